"""As the world is set up: one row a set-up, with what dlemu said of it before and says now.

Each row is a report of somebody's real host; `python -m tests.test_setups` prints the table. What
needs root skips without it, and no other row needs a privilege.
"""

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlemu import loaders
from dlemu.config.compose import value_of
from dlemu.config.model import Workload, check_workload, load_workload
from dlemu.config.sections import StorageSection
from dlemu.datagen.survey import find_dataset
from dlemu.dataset import rule
from dlemu.dataset.plan import make_plan
from dlemu.errors import DatasetError, RunError, WorkloadError, system_line
from dlemu.formats.tfrecord import TfRecord
from dlemu.host.devices import (
    counted_devices,
    devices_under,
    files_below,
    lies_in_memory,
    mount_under,
)
from dlemu.judge.outcome import remarks_of
from dlemu.ranks.world import Alone
from dlemu.report.words import note_lines
from dlemu.sizing.first import find_files, full_measurement
from dlemu.storage import files
from dlemu.storage.files import direct_unit
from dlemu.storage.owned import why_full
from dlemu.storage.place import place_of
from dlemu.storage.s3 import access_of
from dlemu.storage.s3.store import Store
from dlemu.tools.paths.cells import smallest_direct
from tests.lab.commands import (
    QUICK,
    SMALL,
    Printed,
    generate,
    ran,
    small_job,
    summary_of,
    with_checkout,
)
from tests.lab.dataset import tree
from tests.lab.drives import bound, large_sectors, mounted, own_drive
from tests.lab.preloaded import without_folder_sync, without_new_calls
from tests.lab.private_ca import certificates, tls_server
from tests.lab.real_datasets import LAYOUTS, make
from tests.lab.waiting import LONG

ELSEWHERE = {
    "an overlay of a container whose layers are hidden": (
        "0.0% of their pages stayed ... PASS, all of it from memory",
        "mincore is asked beside cachestat; fadvise always",
        "storage/test_pagecache.py::test_pages_behind_an_overlay_are_seen_and_dropped",
    ),
    "a proxy in the environment": (
        "PASS 99.9 became FAIL 61.8, limit: storage",
        "not used; storage.proxy= names one, and the verdict says so",
        "loaders/test_objects.py::test_no_proxy_of_the_environment_is_used",
    ),
    "a main process that is killed": (
        "spawned workers of 242 MB stayed for ever",
        "no worker stays, by any start method",
        "loaders/test_faults.py::test_no_worker_outlives_a_main_process_that_is_killed",
    ),
    "a text for the list of defaults": (
        "89 lines of traceback",
        "one line: defaults must be a list of names",
        "config/test_compose.py::test_defaults_that_are_no_list_of_names_are_refused_in_one_line",
    ),
    "steps under 20 ms": (
        "an AU with the cost of the tool in it, and no word",
        "the ceiling of the host stands beside the AU",
        "run/test_replay.py::test_the_ceiling_is_the_au_of_steps_that_read_nothing",
    ),
    "a reader of the output that ends, as in dlemu run | head": (
        "the run ended as failed",
        "the printing ends, the run does not",
        "test_terminal.py::test_output_that_nobody_takes_ends_the_printing_and_not_the_run",
    ),
    "a stdout that is full or closed": (
        "the run ended as failed",
        "the run ends as it would",
        "test_terminal.py::test_streams_may_be_closed_or_full",
    ),
    "a cgroup whose memory is taken but for the page cache": (
        "its limit counted, whatever was left of it",
        "what it may still take counts",
        "host/test_processes.py::test_what_a_group_may_still_take_is_its_limit_without_what_stays",
    ),
    "cuFile on a drive of sectors above 4 KiB": (
        "multiples of 4096 were read",
        "the unit of the file is asked",
        "storage/gpu/test_cufile.py::test_the_unit_of_the_file_is_asked",
    ),
    "checkpoints of the closed division": (
        "no word, and no check",
        "the rules of v2.0 and v3.0 are checked",
        "run/test_checkpoint_rules.py::test_what_breaks_a_rule_is_named",
    ),
    "any other error of the operating system": (
        "dlemu: Invalid argument",
        "file, call and remedy, by one place",
        "test_layers.py::test_one_place_makes_the_lines_of_system_errors",
    ),
    "subfolders that lead to several drives": (
        "the first drive alone was asked for room",
        "each is asked for its room",
        "datagen/test_write.py::test_subfolders_may_be_links_to_other_drives",
    ),
    "a host that forbids io_uring": (
        "held",
        "held: a line says why that way is left out",
        "tools/paths/test_paths.py::test_a_host_without_io_uring_is_told_why_in_a_line",
    ),
    "loads of a checkpoint of which nobody knows what came from memory": (
        "limit of the loads: storage",
        "no limit is named",
        "checkpoint/test_outcome.py::test_the_limit",
    ),
}
"""Rows that stand beside what they are of: the set-up, what was said of it, what is, its test."""
HERE = {
    "a dataset of others: ImageNet, COCO, KiTS19, LAION, ... (13 layouts)": (
        '"has no jpeg files", "remove one", "its samples are equal"',
        "read as it lies, each sample once an epoch",
        "test_a_real_dataset_is_read_as_it_lies",
    ),
    "such a dataset, and no workload": (
        "nothing says which workload to take",
        "what it holds, and the workloads that read such samples",
        "test_files_of_others_say_no_step_and_the_line_names_who_reads_such",
    ),
    "pictures for ResNet-50": (
        "must be a multiple of 1 where a jpeg file holds 1251 samples",
        "one sample a file",
        "test_the_workload_that_is_named_for_pictures_reads_them",
    ),
    "such a dataset in size and calibrate": (
        "holds no whole dataset of dlemu's; write one",
        "one survey, kept beside the results",
        "test_a_search_and_a_calibration_read_a_real_dataset",
    ),
    "more files than dataset.num_files_train": (
        "refused",
        "the first are read, and a note says so",
        "test_the_first_files_of_a_larger_dataset_are_read",
    ),
    "sectors of 16 KiB": (
        '"Invalid argument", "does not take O_DIRECT"',
        "the unit is asked; all commands work",
        "test_sectors_larger_than_a_page",
    ),
    "a kernel that does not tell that unit": (
        "4096 was taken",
        "one is tried for each file system",
        "test_the_unit_is_tried_where_the_kernel_is_silent",
    ),
    "fsync of a folder that is refused": (
        "dlemu: Invalid argument; name another folder",
        "noted, and it goes on",
        "test_a_host_whose_folders_are_not_synced",
    ),
    "a drive with errors": (
        "dlemu: Input/output error",
        "file, call, and the kernel's log",
        "test_an_error_of_a_drive_names_file_call_and_remedy",
    ),
    "no inodes left": (
        "accepted, then: is full; free space",
        "counted before; the line says files",
        "test_a_file_system_without_inodes",
    ),
    "train/ is a link to another drive": (
        "the root disk, 77.5 % from memory",
        "the drive of the files",
        "test_the_drive_is_that_of_the_files",
    ),
    "that link, and no room behind it": (
        "accepted, then: is full",
        "room is asked where the files will lie",
        "test_room_is_asked_where_the_files_will_lie",
    ),
    "a private certificate authority": (
        "does not answer (error sending request)",
        "storage.ca_file=; the reason of a failed handshake",
        "test_an_authority_of_ones_own",
    ),
    "secure: false of DLIO": (
        "no effect",
        "storage.verify_tls=false, and BUT",
        "test_secure_of_dlio_is_mapped",
    ),
    "DLIO's 14 files of llama": (
        "dataset.format is not set",
        "take dlemu checkpoint workload=...",
        "test_a_file_without_a_dataset_names_the_command_for_it",
    ),
    "files of MLPerf Storage that are no workloads": (
        "unknown key",
        "of what they are",
        "test_a_file_that_is_no_workload_says_why",
    ),
    "keys of earlier versions of DLIO": (
        "unknown key checkpoint.num_checkpoints; did you mean ..._read?",
        "taken",
        "test_keys_of_earlier_versions_of_dlio_are_taken",
    ),
    "the config.yaml that a run of DLIO has kept": (
        "dataset.format is not set",
        "the workload of that run",
        "test_a_file_that_a_run_of_dlio_has_kept_is_the_workload_of_it",
    ),
    "reader.odirect on checkpoints": (
        "no word, no effect",
        "checkpoints have checkpoint.odirect",
        "test_a_key_of_samples_is_not_taken_for_one_of_checkpoints",
    ),
    "no room, in the closed division": (
        "add checkpoint.keep=1 checkpoint.scale=..., which it forbids",
        "free space, or name another folder",
        "test_no_key_is_advised_that_the_closed_division_forbids",
    ),
    "AWS_ENDPOINT_URL, OMP_NUM_THREADS, ... set": (
        "not recorded",
        "in the header and the summary",
        "test_variables_that_change_what_is_measured_are_kept",
    ),
    "400 MB for 32 spawned workers": (
        "killed without a word",
        "refused before, with the limit's name",
        "test_workers_that_a_cgroup_would_kill_are_refused",
    ),
    "a last step that is not full": (
        "16 of 100 samples left out without a word",
        "a note",
        "test_samples_that_an_epoch_leaves_out_are_said",
    ),
    "7 ranks for 100 samples, 1 file for 3, 33 subfolders for 10": (
        "held",
        "held",
        "test_numbers_that_do_not_divide",
    ),
    "PYTHONOPTIMIZE=2, the C locale, Slurm's variables, no HOME": (
        "held",
        "held",
        "test_an_environment_changes_no_verdict",
    ),
    "a closed stdin": ("held", "held", "test_stdin_may_be_closed"),
    "a random uid without passwd and HOME": (
        "held",
        "held",
        "test_a_user_without_a_name_and_a_home",
    ),
    "cachestat, statx, pidfd_open, prctl and madvise refused": (
        "held",
        "held",
        "test_a_kernel_without_the_newer_calls",
    ),
    "umlauts, commas and quotes in paths": ("held", "held", "test_any_name_of_a_folder"),
    "HDF5 whose bytes lie in other files": (
        "held",
        "held",
        "test_hdf5_whose_bytes_lie_in_other_files",
    ),
    "sectors of 4 KiB (4Kn)": ("held", "held", "test_sectors_of_4_kib"),
    "btrfs with zstd": ("held", "held: its drive is found", "test_btrfs_that_compresses"),
    "names and a locale that are not UTF-8 (EUC-JP)": (
        "held",
        "held, also for files of others",
        "test_names_of_an_older_encoding",
    ),
    "a folder of 300,000 files": ("held", "held, also for files of others", "test_very_many_files"),
    "MPICH 5 in place of Open MPI": ("held", "held", "test_ranks_of_mpich"),
    "another Python (3.13)": ("held", "held", "test_another_python"),
}
"""The same of the rows below. Held: nothing was wrong before."""


@pytest.mark.parametrize("name", ELSEWHERE)
def test_each_other_row_is_there(name: str) -> None:
    module, _, test = ELSEWHERE[name][2].partition("::")
    assert f"\ndef {test}(" in (Path(__file__).parent / module).read_text()


@pytest.mark.parametrize("name", HERE)
def test_each_row_is_there(name: str) -> None:
    assert callable(globals()[HERE[name][2]])


# --- real datasets --------------------------------------------------------------------------------


def job_over(keys: dict[str, Any], folder: Path, **reader: object) -> Workload:
    return check_workload(
        {
            "name": "real",
            "dataset": keys,
            "reader": {"batch_size": 2, "data_loader": "threads", "read_threads": 2} | reader,
            "train": {"epochs": 2, "computation_time": 0.001},
            "metric": {"au": 0.0001, "max_cached_share": 1},
            "output": {"folder": str(folder)},
        }
    )


LLAMA = """
model:
  name: llama_8b_zero3
  type: transformer
  num_layers: 32
  parallelism: {tensor: 1, pipeline: 1, zero_stage: 3}
  transformer:
    vocab_size: 128256
    hidden_size: 4096
    ffn_hidden_size: 14336
    num_attention_heads: 32
    num_kv_heads: 8
framework: pytorch
workflow: {generate_data: False, train: False, checkpoint: True}
checkpoint: {checkpoint_folder: checkpoints/llama_8b_zero3, fsync: True}
"""
SAMPLES: dict[str, Any] = {
    "imagenet": ("has no jpeg files (of others: none)", 18),
    "cats_and_dogs": ("has two files of number 0 ...; remove one", 16),
    "coco": ("train has no jpeg files", 18),
    "kits19": ("has no npy files (of others: none)", 10),
    "imagenet_tfrecords": ("has no tfrecord files (of others: none)", [7, 7, 7, 3]),
    "laion": ("train has no webdataset files", [8, 8, 5]),
    "huggingface": ("train has no parquet files", [9, 9, 4]),
    "mosaicml": ("dataset.format must be 'npz', ...", [6, 6, 4]),
    "fashion_mnist": ("the zip archive has no x.npy", [12, 12, 5]),
    "cifar": ("one sample of a file", [9, 9, 6]),
    "histology": ("it has no dataset records_0, but ['meta', 'x']", [10, 7]),
    "galaxies": ("it has no dataset records_0, but ['survey']", [8, 8]),
    "clicks": ("it has 21 lines, dataset.num_samples_per_file asks for 1", [20, 20, 11]),
}
"""What was said before, and the samples that a layout holds now, in all or in each shard."""


def test_the_table_has_each_layout() -> None:
    assert SAMPLES.keys() == LAYOUTS.keys()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_real_dataset_is_read_as_it_lies(tmp_path: Path, name: str) -> None:
    """Each sample once an epoch, but for what does not fill the last step; nothing is changed."""
    keys, (_, samples) = make(name, tmp_path / "data"), SAMPLES[name]
    before, out = tree(tmp_path / "data"), tmp_path / "out" / "1"

    outcome = ran(job_over(keys, out))

    total = samples if isinstance(samples, int) else sum(samples)
    assert {epoch.num_samples for epoch in outcome.metrics.epochs} == {total // 2 * 2}
    survey = json.loads((out / "survey.json").read_text())
    assert survey["num_samples"] == total
    each = samples if isinstance(samples, list) and len({*samples}) > 1 else None
    even = 1 if isinstance(samples, int) else samples[0]
    assert survey["samples_of_files"] == (each or even)
    assert tree(tmp_path / "data") == before, "nothing is written there"


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_folder_says_by_itself_what_it_holds(tmp_path: Path, printed: Printed, name: str) -> None:
    """With a published workload and no key: format, files, samples and sizes are the folder's.

    Before: "has no npz files", "has 18 files, dataset.num_files_train is 168", and "has samples of
    3,000 bytes on average, dataset.record_length_bytes says 146,600,628".
    """
    keys, samples = make(name, tmp_path / "data"), SAMPLES[name][1]
    folder = keys["data_folder"]
    job = load_workload("unet3d_h100", {"dataset.data_folder": folder})
    dataset = find_dataset(job, Alone())
    found = dataset.workload.dataset
    total = samples if isinstance(samples, int) else sum(samples)
    assert (found.format, found.num_files_train) == (keys["format"], keys["num_files_train"])
    assert dataset.layout.num_samples == total
    assert found.mean_bytes == pytest.approx(dataset.layout.mean_bytes, rel=0.1)
    (told,) = (each for each in dataset.notes if each.startswith("taken from the files: "))
    words = dict(word.partition("=")[::2] for word in told.split()[4:])
    if name != "fashion_mnist":
        assert words["dataset.format"] == found.format
    assert words["dataset.num_files_train"] == str(found.num_files_train)
    said = printed("run", "workload=unet3d_h100", str(folder), "reader.batch_size=2", "--dry-run")
    assert f"dataset:  {told}" in said and "would be accepted" in said


@pytest.mark.parametrize("command", ["run", "size", "predict", "steptime", "datasize"])
def test_files_of_others_say_no_step_and_the_line_names_who_reads_such(
    tmp_path: Path, printed: Printed, command: str
) -> None:
    """Before: "holds no dataset of dlemu's, so nothing says which workload to take"."""
    make("imagenet", tmp_path / "pictures")
    make("kits19", tmp_path / "volumes")
    (tmp_path / "tables").mkdir()
    for part in range(2):
        (tmp_path / "tables" / f"{part}.csv").write_text("1,2\n" * 9)
    said = printed(command, str(tmp_path / "pictures"), status=1)
    assert "pictures holds 18 jpeg files, of about 2.9 KiB a sample: they do not say batch" in said
    assert "add workload=stable_diffusion_h100 (alike: retinanet_h100, flux_h100), or" in said
    others = printed(command, str(tmp_path / "volumes"), status=1)
    assert "no published workload has such samples; add workload=FILE.yaml, or workload=" in others
    assert "2 csv files" in printed(command, str(tmp_path / "tables"), status=1)
    assert "\n" not in said.strip() + others.strip()


def test_the_workload_that_is_named_for_pictures_reads_them(
    tmp_path: Path, printed: Printed
) -> None:
    """Before: "must be a multiple of 1 where a jpeg file holds 1251 samples" for resnet50_h100."""
    make("imagenet", tmp_path / "pictures")
    line = printed("run", str(tmp_path / "pictures"), status=1)
    for row in ("resnet50_h100", *re.findall(r"\w+_h100", line)):
        words = [str(tmp_path / "pictures"), f"workload={row}", "reader.batch_size=2"]
        said = printed("run", *words, "reader.data_loader=threads", "--dry-run")
        assert "18 jpeg files were found" in said and "would be accepted" in said


KINDS = {"imagenet": "jpeg", "laion": "webdataset", "huggingface": "parquet"}


@pytest.mark.parametrize("name", KINDS)
def test_a_search_and_a_calibration_read_a_real_dataset(
    tmp_path: Path, printed: Printed, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: "holds no whole dataset of dlemu's; write one". One survey, and the same line."""
    keys = make(name, tmp_path / "data")
    folder, out = str(keys["data_folder"]), tmp_path / "size"
    before = tree(tmp_path / "data")
    note = f"no manifest in {folder}: {keys['num_files_train']} {KINDS[name]} files were found"
    job = [f"dataset.data_folder={folder}", "workload=unet3d_h100", "reader.batch_size=1"]
    job += ["reader.data_loader=threads", "reader.read_threads=1", "reader.prefetch_size=1"]
    job += ["train.epochs=1", "metric.au=0.0001", "train.computation_time=0.005"]
    search = ["size", *job, "size.max_accelerators=1", "size.confirm=1", "host_memory=1KiB"]
    monkeypatch.setattr(rule, "STEPS_PER_EPOCH", 10)
    said = printed(*search, f"output.folder={out}")
    assert f"note: {note}" in said
    (run,) = out.glob("runs/*/summary.json")
    assert any(note in str(each) for each in json.loads(run.read_text())["notes"])
    (survey,) = out.rglob("*survey.json")
    described = json.loads(survey.read_text())
    assert described["num_files"] == keys["num_files_train"]
    more = printed(*search, f"output.folder={tmp_path / 'more'}", "num_hosts=999999", status=1)
    assert "add files to it, or name another dataset, or take size.quick=true" in more
    assert "dlemu datagen" not in more, "nothing is written into it"
    assert not (tmp_path / "more").exists(), "a search that is refused leaves nothing"
    assert tree(tmp_path / "data") == before


def test_a_prediction_is_of_the_samples_of_a_real_dataset(tmp_path: Path, printed: Printed) -> None:
    """Before: of the published row's samples, whatever the folder held."""
    (tmp_path / "train").mkdir()
    for number in range(40):
        (tmp_path / "train" / f"{number}.jpg").write_bytes(bytes(11_466 + number))
    words = ["workload=resnet50_h100", "drive=d7_ps1010", "--json"]
    read = json.JSONDecoder().raw_decode
    row, _ = read(printed("predict", *words))
    own, _ = read(printed("predict", str(tmp_path), *words))
    demand = own["demand_bytes_per_second"] / row["demand_bytes_per_second"]
    assert demand == pytest.approx(0.1, rel=0.01)


def test_nothing_is_advised_to_be_written_beside_a_real_dataset(
    tmp_path: Path, printed: Printed
) -> None:
    """Before: `datasize` ended with a `datagen` into it, which that refuses."""
    make("imagenet", tmp_path / "pictures")
    words = ["workload=resnet50_h100", "host_memory=1GiB"]
    place = f"dataset.data_folder={tmp_path / 'pictures'}"
    for there in (str(tmp_path / "pictures"), place):
        said = printed("datasize", there, *words)
        assert said.endswith("add files to it, or name another folder\n")
        assert "dlemu datagen" not in said
    assert printed("datagen", place, *words, "dataset.num_files_train=9", status=1)
    (tmp_path / "empty").mkdir()
    said = printed("datasize", f"dataset.data_folder={tmp_path / 'empty'}", *words)
    assert f"dlemu datagen workload=resnet50_h100 dataset.data_folder={tmp_path / 'empty'}" in said


def test_tools_leave_a_real_dataset_as_it_is(tmp_path: Path, printed: Printed) -> None:
    """`paths` has files of its own beside it, for a while; `load` reads what lies there."""
    if lies_in_memory(tmp_path):
        pytest.skip(f"{tmp_path} lies in memory")
    make("imagenet", tmp_path / "pictures")
    before, off = tree(tmp_path / "pictures"), "progress=off"
    words = ["seconds=0.1", "io_sizes=4KiB", "workers=1", "file_size=64KiB", "paths=host_buffered"]
    printed("paths", tmp_path / "pictures", *words, f"output={tmp_path / 'paths'}", off)
    once = ["readers=1", "ways=pread", f"output={tmp_path / 'load'}", off]
    num_files = sum(path.is_file() for path in (tmp_path / "pictures").rglob("*"))
    assert f"in {num_files} files" in printed("load", tmp_path / "pictures", *once)
    assert tree(tmp_path / "pictures") == before


def test_a_try_reads_pictures_that_are_there(tmp_path: Path) -> None:
    """Before: it wrote files beside them. Volumes are still written for those who read such."""
    for number in range(40):
        (tmp_path / f"{number}.jpg").write_bytes(bytes(3000 + number))
    (tmp_path / "dlemu-try").mkdir()
    (tmp_path / "dlemu-try" / "img_1_of_9.jpg").write_bytes(bytes(10))
    keys: dict[str, object] = {
        "dataset.record_length_bytes": 3000,
        "dataset.num_samples_per_file": 1,
    }
    found = find_files(place_of(tmp_path), load_workload("resnet50_h100", keys))
    assert found is not None and not found.written and found.layout.num_files == 40
    again = found.layout.repeated(90)
    assert again.path(85) == found.layout.path(5) and again.num_samples == 90
    needs, commands = full_measurement(place_of(tmp_path), found, 1, 4, feeds=1.0, write_rate=1e9)
    assert "files even for a quick search, there are 40" in needs and not commands
    assert find_files(place_of(tmp_path), load_workload("unet3d_h100", keys)) is None
    large = load_workload("resnet50_h100")
    assert find_files(place_of(tmp_path), large) is None, "fewer bytes than a try writes"


def test_a_word_of_the_user_that_contradicts_the_files_is_refused(
    tmp_path: Path, printed: Printed
) -> None:
    for name in ("imagenet", "fashion_mnist"):
        make(name, tmp_path / name)
    for name, key, said in (
        ("imagenet", "dataset.format=png", "has no png files (of others: 18 jpeg)"),
        ("imagenet", "dataset.num_files_train=19", "has 18 files, dataset.num_files_train is 19"),
        ("imagenet", "dataset.record_length_bytes=9000", "or set dataset.record_length_bytes="),
        ("fashion_mnist", "dataset.num_samples_per_file=13", "files of 12 samples"),
    ):
        line = printed("run", "workload=unet3d_h100", str(tmp_path / name), key, status=1)
        assert said in line and line.count("\n") == 1
    taken = printed(
        "run",
        "workload=unet3d_h100",
        str(tmp_path / "imagenet"),
        "--dry-run",
        "dataset.num_files_train=12",
        "reader.batch_size=2",
    )
    assert "dataset.num_files_train=12: the first 12 of 18 files are read" in taken


@pytest.mark.parametrize("name", ["laion", "huggingface", "fashion_mnist", "imagenet_tfrecords"])
def test_a_damaged_file_of_others_is_not_sent_to_verify(
    tmp_path: Path, printed: Printed, name: str
) -> None:
    """Before: "dlemu verify lists what is damaged", which knows of dlemu's own alone."""
    keys = make(name, tmp_path / "data")
    job = job_over(keys, tmp_path / "out")
    first = Path(str(keys["data_folder"])) / find_dataset(job, Alone()).layout.path(0)
    os.truncate(first, first.stat().st_size // 2)
    with pytest.raises(DatasetError) as error:
        find_dataset(job, Alone())
    assert str(error.value).startswith(f"{first}: ") and "dlemu verify" not in str(error.value)
    assert "copy it from its source again" in str(error.value)


def test_what_an_array_holds_is_said_where_nothing_tells(tmp_path: Path) -> None:
    """A volume, or as many images: the nearer to the workload's sample, and the other by a key."""
    (tmp_path / "train").mkdir()
    for part in range(4):
        np.save(tmp_path / "train" / f"{part}.npy", np.zeros((30, 20, 10), np.uint8))
    number, size = "dataset.num_samples_per_file", "dataset.record_length_bytes"
    where = {"dataset.data_folder": str(tmp_path), "dataset.record_length_bytes_stdev": 0}
    cases: tuple[tuple[dict[str, object], int, str], ...] = (
        ({size: 6000}, 4, "30x20x10 is taken as one sample; dataset.num_samples_per_file=30: "),
        ({size: 200}, 120, "30x20x10 is taken as 30 samples, by its first axis"),
        ({number: 30}, 120, ""),
        ({number: 1}, 4, ""),
        ({number: 10}, 40, ""),
    )
    for keys, samples, said in cases:
        dataset = find_dataset(load_workload("unet3d_h100", {**where, **keys}), Alone())
        assert dataset.layout.num_samples == samples
        assert said in "; ".join(dataset.notes)


@pytest.mark.parametrize(("channels", "samples"), [(2, 4), (4, 4), (5, 20)])
def test_a_volume_of_some_channels_is_one_sample(
    tmp_path: Path, channels: int, samples: int
) -> None:
    """Four axes are images where the first is longer than channels; else the nearer in size."""
    (tmp_path / "train").mkdir()
    for part in range(4):
        np.save(tmp_path / "train" / f"{part}.npy", np.zeros((channels, 30, 20, 10), np.uint8))
    keys: dict[str, object] = {
        "dataset.data_folder": str(tmp_path),
        "dataset.record_length_bytes": 6000 * channels,
        "dataset.record_length_bytes_stdev": 0,
    }
    if channels == 5:
        keys["dataset.record_length_bytes"] = 6000
    dataset = find_dataset(load_workload("unet3d_h100", keys), Alone())
    assert dataset.layout.num_samples == samples


@pytest.mark.parametrize("name", ["imagenet", "laion"])
def test_verify_says_why_it_cannot_check_a_real_dataset(
    tmp_path: Path, printed: Printed, name: str
) -> None:
    make(name, tmp_path)
    assert "has no manifest, so nothing says what" in printed("verify", str(tmp_path), status=1)


def test_each_sample_of_uneven_shards_is_read_once(tmp_path: Path) -> None:
    """In random order of shards and from end to end, by whatever reads them."""
    keys = make("laion", tmp_path / "data")
    job = job_over(keys, tmp_path / "out", sample_shuffle="off")
    dataset = find_dataset(job, Alone())
    layout = dataset.layout
    assert [layout.in_file(file) for file in range(3)] == [8, 8, 5]
    every = np.arange(layout.num_samples)
    assert layout.file_of(every).tolist() == [0] * 8 + [1] * 8 + [2] * 5
    assert layout.place_of(every).tolist() == [*range(8), *range(8), *range(5)]
    assert [layout.find(sample) for sample in (0, 7, 8, 20)] == [(0, 0), (0, 7), (1, 0), (2, 4)]
    for epoch in range(4):
        plan = make_plan(dataset.workload, layout, num_accelerators=1, epoch=epoch)
        read = plan.sequence
        assert read is not None and sorted(read.tolist()) == every.tolist()
        runs = layout.file_of(read)[np.append(True, np.diff(layout.file_of(read)) != 0)]
        assert sorted(runs.tolist()) == [0, 1, 2], "each shard is read in one piece"


def test_shards_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the survey beside the results, unless a file has changed since."""
    keys = make("imagenet_tfrecords", tmp_path / "data")
    ran(job_over(keys, tmp_path / "out" / "1"))
    counted: list[str] = []
    count = TfRecord.count

    def noted(*words: Any, path: str = "") -> int:
        counted.append(path)
        return count(*words, path=path)

    monkeypatch.setattr(TfRecord, "count", noted)
    ran(job_over(keys, tmp_path / "out" / "2"))
    assert not counted
    shard = tmp_path / "data" / "train" / "train-00001-of-00004"
    shard.write_bytes((tmp_path / "data" / "train" / "train-00003-of-00004").read_bytes())
    ran(job_over(keys, tmp_path / "out" / "3"))
    assert len(counted) == 4
    survey = json.loads((tmp_path / "out" / "3" / "survey.json").read_text())
    assert survey["samples_of_files"] == [7, 3, 7, 3]


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    for name, said in {
        "coco": "not read: 2 files of other sets, such as val2017/000000000139.jpg",
        "kits19": "not read: 10 files *_y.npy beside *_x.npy: they hold labels",
        "imagenet": "dataset.num_files_train=12: the first 12 of 18 files are read",
    }.items():
        keys = make(name, tmp_path / name)
        if name == "imagenet":
            keys["num_files_train"] = 12
        dataset = find_dataset(job_over(keys, tmp_path / "out"), Alone())
        assert dataset.notes[1:] == (said,)


def test_names_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    keys = make("cats_and_dogs", tmp_path)
    for number in (10, 9):
        (tmp_path / "train" / "cat" / f"cat.{number}.JPG").write_bytes(bytes(3000))
    layout = find_dataset(
        job_over(keys | {"num_files_train": 18}, tmp_path / "out"), Alone()
    ).layout
    cats = [layout.path(file) for file in range(10)]
    assert cats == [f"train/cat/cat.{number}.jpg" for number in range(8)] + [
        "train/cat/cat.9.JPG",
        "train/cat/cat.10.JPG",
    ]


def test_the_first_files_of_a_larger_dataset_are_read(tmp_path: Path) -> None:
    """Before: refused; now as mlcommons/storage #779 asks for it."""
    job = small_job(tmp_path).with_keys({"dataset.num_files_train": 28})
    outcome = ran(job)
    assert {epoch.num_samples for epoch in outcome.metrics.epochs} == {28}
    notes = note_lines(summary_of(tmp_path / "run"))
    assert "note: dataset.num_files_train=28: the first 28 of 56 files are read" in notes
    dataset = find_dataset(job, Alone())
    assert dataset.layout.path(27) == "train/img_27_of_56.npz" and dataset.layout.num_samples == 28


ONE_SMALL = [
    *("checkpoint.scale=0.0001", "checkpoint.num_checkpoints_write=1", "progress=off"),
    *("checkpoint.num_checkpoints_read=1", "checkpoint.time_between_checkpoints=0"),
]
"""A checkpoint that takes no time: a published model rests for seconds between any two."""


# --- what a host's file systems take --------------------------------------------------------------


def test_sectors_larger_than_a_page(tmp_path: Path, printed: Printed) -> None:
    """Before: "dlemu: Invalid argument", and "(xfs) does not take O_DIRECT", which it does."""
    with large_sectors(tmp_path) as drive:
        data = f"dataset.data_folder={drive / 'data'}"
        assert "all written now" in printed("datagen", *SMALL, data)
        assert direct_unit(drive / "data" / "train" / "img_00_of_56.npz") == 16384
        path = drive / "data" / "train" / "img_07_of_56.npz"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"?")
        assert "1 written again" in printed("verify", drive / "data", "--full", "--repair")
        assert path.read_bytes() == content
        out = f"output.folder={tmp_path / 'run'}"
        words = [*QUICK, data, out, "reader.odirect=true", "reader.hand_over=batch"]
        printed("run", *words, status=0)
        checkpoint = f"checkpoint.checkpoint_folder={drive / 'ck'}"
        kept = [checkpoint, "checkpoint.odirect=true", f"output.folder={tmp_path / 'ck'}"]
        printed("checkpoint", "model=llama3_8b", *ONE_SMALL, *kept, "checkpoint.verify=true")
        assert smallest_direct(drive) == 16384


@pytest.mark.parametrize("unit", [None, 8192, 65536])
def test_the_unit_is_tried_where_the_kernel_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: int | None
) -> None:
    path, real = tmp_path / "a", os.preadv
    path.write_bytes(bytes(1 << 17))
    monkeypatch.setattr(files, "_asked_unit", lambda path: None)

    def preadv(number: int, into: list[memoryview], offset: int) -> int:
        if unit is None or len(into[0]) % unit:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(number, into, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    assert direct_unit(path) == unit


def refusing(number: int, *, folders: bool) -> Any:
    """Return an os.fsync that fails with this error, for folders or for files."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == folders:
            raise OSError(number, os.strerror(number))
        real(descriptor)

    return fsync


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_folder_that_is_not_synced_is_noted(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Before: "dlemu: Invalid argument" of datagen, on some FUSE and SMB."""
    monkeypatch.setattr(files, "NOT_SYNCED", [])
    monkeypatch.setattr(os, "fsync", refusing(number, folders=True))
    said = printed("datagen", *SMALL, f"dataset.data_folder={tmp_path / 'data'}")
    assert "all written now" in said
    assert said.count("its file system does not sync folders; names may be lost") == 1


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_host_whose_folders_are_not_synced(tmp_path: Path, number: int) -> None:
    """By the C library, as a FUSE file system says it to each process, forked ones as well.

    Before: "dlemu: Invalid argument" of datagen, "name another folder" of checkpoint.
    """
    environment = with_checkout() | {"LD_PRELOAD": str(without_folder_sync(tmp_path, number))}
    data, out = f"dataset.data_folder={tmp_path / 'data'}", f"output.folder={tmp_path / 'run'}"
    kept = [f"checkpoint.checkpoint_folder={tmp_path / 'ck'}", f"output.folder={tmp_path / 'out'}"]
    for words, said in (
        (["datagen", *SMALL, data], "all written now"),
        (["run", *QUICK, data, out], "PASS"),
        (["checkpoint", "model=llama3_8b", *kept, *ONE_SMALL], "a checkpoint of llama3_8b"),
    ):
        ran = subprocess.run(
            [sys.executable, "-m", "dlemu", *words],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=LONG,
        )
        told = ran.stdout + ran.stderr
        assert ran.returncode == 0 and said in told, told
        unsynced = "its file system does not sync folders; names may be lost"
        assert told.count(unsynced) == (words[0] != "run"), told


def test_an_error_of_a_drive_names_file_call_and_remedy(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: "dlemu: Input/output error"."""
    monkeypatch.setattr(os, "fsync", refusing(errno.EIO, folders=True))
    said = printed("datagen", *SMALL, f"dataset.data_folder={tmp_path / 'data'}", status=1)
    assert f"{tmp_path / 'data'}" in said
    assert re.search(r"Input/output error; look for (the drive|\w+) in the kernel's log", said)


def test_no_error_of_the_system_is_bare() -> None:
    """Where neither the system nor the code names a file, the call stands in the line."""

    def tried(path: Path | None) -> str:
        try:
            os.close(-1)
        except OSError as error:
            return system_line(error)
        raise AssertionError

    assert tried(None) == "os.close failed: Bad file descriptor"
    assert tried(Path("/mnt/x")) == "/mnt/x: os.close failed: Bad file descriptor"
    try:
        os.stat("/none")
    except OSError as error:
        line = system_line(error)
    assert line == "/none: No such file or directory; create it, or name another"


def test_a_file_system_without_inodes(tmp_path: Path, printed: Printed) -> None:
    """Before: accepted by the dry run, then "is full; free space" with all but 1 MiB free."""
    with mounted(tmp_path / "few", "size=64m,nr_inodes=30") as few:
        words = ["datagen", *SMALL, f"dataset.data_folder={few / 'data'}"]
        for more in ([], ["--dry-run"]):
            said = printed(*words, *more, status=1)
            assert "files (inodes), too little for 56 npz files" in said and "df -i" in said
        with pytest.raises(OSError) as full:
            for number in range(31):
                (few / str(number)).touch()
        assert why_full(few, full.value) == (
            "has no room for another file: its 30 inodes are taken (df -i)"
        )
        assert why_full(tmp_path, OSError(errno.ENOSPC, "No space")) == "is full (No space)"


# --- drives are found by the files ----------------------------------------------------------------


@pytest.fixture
def two_drives() -> Iterator[tuple[Path, Path]]:
    with own_drive(48 << 20) as one, own_drive(24 << 20) as other:
        yield one, other


def loop_of(drive: Path) -> str:
    found = subprocess.run(["findmnt", "-no", "SOURCE", drive], capture_output=True, text=True)
    return found.stdout.strip().removeprefix("/dev/")


def test_the_drive_is_that_of_the_files(
    tmp_path: Path, two_drives: tuple[Path, Path], printed: Printed
) -> None:
    """Before: "vda, the root disk", and 77.5 % from memory with O_DIRECT."""
    one, other = two_drives
    data = tmp_path / "data"
    data.mkdir()
    (one / "t").mkdir()
    (data / "train").symlink_to(one / "t")
    for read_folder in (devices_under, lambda place: counted_devices(place)):
        assert [each.name for each in read_folder(data)] == [loop_of(one)]
    mount = mount_under(data)
    assert mount is not None and mount.point == str(one)
    job = small_job(tmp_path, reader__odirect=True, train__epochs=1)
    ran(job)
    summary = summary_of(tmp_path / "run")
    assert summary["measured"]["page_cache_share"] in (0.0, None)
    assert summary["system"][0]["mount"] == str(one)
    (other / "more").mkdir()
    (other / "more" / "x.npz").write_bytes(bytes(100))
    (one / "t" / "sub").symlink_to(other / "more")
    assert len({each.stat().st_dev for each in files_below(data)}) == 2, "links in a folder"
    (one / "t" / "sub").unlink()
    (one / "t" / "img_x.npz").symlink_to(other / "more" / "x.npz")
    assert len({each.stat().st_dev for each in files_below(data)}) == 2, "links of files"
    (one / "t" / "img_x.npz").unlink()
    with bound(other / "more", one / "t" / "bound"):
        assert len({each.stat().st_dev for each in files_below(data)}) == 2, "bind mounts"


def test_room_is_asked_where_the_files_will_lie(
    tmp_path: Path, two_drives: tuple[Path, Path], printed: Printed
) -> None:
    """Before: accepted by the dry run, then "is full" in the middle."""
    one, other = two_drives
    data = tmp_path / "data"
    data.mkdir()
    (data / "train").symlink_to(one)
    large = [*SMALL, "dataset.record_length_bytes=1MB", "dataset.record_length_bytes_stdev=0"]
    words = ["datagen", *large, f"dataset.data_folder={data}", "--dry-run"]
    assert f"{data}/train has " in printed(*words, status=1)
    (data / "train").unlink()
    (data / "train").mkdir()
    for number, drive in enumerate((one, other)):
        (data / "train" / str(number)).symlink_to(drive)
    half = [*words, "dataset.num_subfolders_train=2", "dataset.record_length_bytes=900kB"]
    said = printed(*half, status=1)
    assert f"{data}/train/1 has " in said and "too little for 28 npz files" in said


# --- servers with certificates of one's own, and what the environment changes ---------------------


@pytest.fixture
def private_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    pytest.importorskip("obstore")
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    ca, server = certificates(tmp_path)
    with tls_server(server) as url:
        yield url, ca


def asked(url: str, **keys: Any) -> bytes:
    storage = StorageSection(endpoint_url=(url,), get_seconds=20, retries=0, **keys)
    return Store(access_of(storage), url, "bucket").get_whole("x")


def test_an_authority_of_ones_own(
    private_ca: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: "does not answer (error sending request)", whatever was set."""
    url, ca = private_ca
    assert asked(url, ca_file=str(ca)) == asked(url, verify_tls=False) == b"abc"
    with pytest.raises(RunError, match="signed by an unknown authority; storage"):
        asked(url)
    with pytest.raises(RunError, match="certificate is for another name"):
        asked(url.replace("127.0.0.1", "localhost"), ca_file=str(ca))
    with pytest.raises(RunError, match=r"connection reset; if it wants TLS, write https://"):
        asked(url.replace("https", "http"))
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, str(ca))
            assert asked(url) == b"abc"
            patch.setenv(name, str(tmp_path / "none.pem"))
            with pytest.raises(WorkloadError, match=f"{name}=.*none.pem cannot be read"):
                asked(url)
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(WorkloadError, match="holds no certificate in PEM"):
        asked(url, ca_file=str(tmp_path / "empty.pem"))


def test_a_public_authority_stays_beside_ones_own(private_ca: tuple[str, Path]) -> None:
    """A file of many certificates is taken whole."""
    url, ca = private_ca
    other, _ = certificates(ca.parent / "other")
    both = ca.parent / "both.pem"
    both.write_bytes(other.read_bytes() + ca.read_bytes())
    assert asked(url, ca_file=str(both)) == b"abc"


def test_secure_of_dlio_is_mapped() -> None:
    options = {"endpoint_url": "https://10.0.0.7:9000", "region": "eu", "secure": False}
    storage = {"storage_type": "s3", "storage_root": "bucket", "storage_options": options}
    tree = {
        "dataset": {"format": "npz", "num_files_train": 1, "data_folder": "d"},
        "storage": storage,
        "reader": {"batch_size": 1},
        "train": {},
    }
    workload = check_workload(tree)
    assert workload.storage.verify_tls is False and not workload.ignored
    options["secure"] = True
    assert check_workload(tree).storage.verify_tls


def test_a_file_without_a_dataset_names_the_command_for_it(
    tmp_path: Path, printed: Printed
) -> None:
    """Before: "dataset.format is not set", for DLIO's 14 files of llama."""
    path = tmp_path / "llama_8b_zero3.yaml"
    path.write_text(LLAMA)
    for command in ("run", "datagen", "datasize", "size"):
        said = printed(command, f"workload={path}", f"dataset.data_folder={tmp_path}", status=1)
        assert f"{path} describes a model whose checkpoints are written, and no dataset" in said
        assert f"take dlemu checkpoint workload={path}, or" in said
    words = [f"workload={path}", f"checkpoint.checkpoint_folder={tmp_path / 'ck'}"]
    fits = ["checkpoint.scale=0.0001", "--dry-run"]
    assert "would be accepted" in printed("checkpoint", *words, *fits)
    for edition, said in {
        "v1.0": "division=closed: edition v1.0 has no checkpoints; add metric.edition=v3.0",
        "v3.0": "takes the published models only (rule 4.3.3), not 'llama_8b_zero3'; write model=",
    }.items():
        closed = ["division=closed", f"metric.edition={edition}"]
        assert said in printed("checkpoint", *words, *fits, *closed, status=1)


OTHER_FILES = {
    "defaults:\n  - workload: default\n  - override hydra/job_logging: custom\n": (
        "it is a file of a Hydra application, not a workload"
    ),
    "handlers: {console: {level: INFO}}\n": (
        "is no workload: it has handlers; a workload has at least dataset.format, "
        "dataset.num_files_train, reader.batch_size and train.computation_time (dlemu run "
    ),
    "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nspec: {}\n": (
        "is no workload: it has apiVersion, kind, metadata and more; a workload has at least"
    ),
    "model: {_component_: llama2_7b}\ndataset: {_component_: alpaca}\nbatch_size: 2\n": (
        "is no workload: it has model, dataset, batch_size; a workload has at least"
    ),
    "model_name_or_path: gpt2\ndataset: imdb\ntrain: {epochs: 3}\n": (
        "is no workload: it has model_name_or_path, dataset, train; a workload has at least"
    ),
    "datset: {num_files_train: 4}\nreadre: {}\n": (
        "is no workload: it has datset, readre (did you mean dataset?); a workload has at least"
    ),
    "trainer: {max_epochs: 3}\nmodel: {}\ndata: {}\n": (
        "is no workload: it has trainer, model, data; a workload has at least"
    ),
    "defaults: [_self_, {model: resnet}, {data: mnist}]\nseed: 1\n": (
        "it is a file of a Hydra application, not a workload"
    ),
    "reader: {batch_size: 2}\ntrain: {computation_time: 0.1}\n": (
        "is no workload: it has no group of keys dataset, with format= and more"
    ),
    "- workload=unet3d_h100\n": "holds no keys; a workload has dataset, reader and train",
    "": "holds no keys",
    "database: {host: 127.0.0.1, database: milvus}\ndataset: {num_vectors: 1_000_000}\n"
    "index: {index_type: DISKANN}\nworkflow: {compact: True}\n": (
        "is of MLPerf Storage's benchmark of vector databases (vectordb), which dlemu does not"
    ),
    "hosts: 127.0.0.1\ndata_dir: /mnt/nvme\nresults_dir: /root/results\n": (
        "is of mlpstorage itself: its own options; name the file of a training workload"
    ),
    "System:\n  name: Acme 9000\n  released: 2025-03-01\n": (
        "a value in it is a date, which no key of a workload takes; quote it if it is a name, or"
    ),
    "dataset: {num_files_train: 4}\nreader: {batch_size: 2}\n": (
        "dataset.format is not set; add dataset.format=npz, or that of your files"
    ),
    "user_templates: {chatbot: {}}\nqos_profiles: {interactive: {}}\n": (
        "is of MLPerf Storage's benchmark of key-value caches (kvcache), which dlemu does not"
    ),
}
"""Public files that are no workloads, in short, and why."""


@pytest.mark.parametrize("text", OTHER_FILES)
def test_a_file_that_is_no_workload_says_why(tmp_path: Path, printed: Printed, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    said = printed("run", f"workload={path}", status=1)
    assert said.count("\n") == 1 and OTHER_FILES[text] in said


MOVED: dict[str, dict[str, object]] = {
    "checkpoint: {num_checkpoints: 7}": {"checkpoint.num_checkpoints_write": 7},
    "checkpoint: {recovery_after_steps: 1000}": {},
    "checkpoint: {optimization_groups: [100, 20], model_datatype: bf16}": {
        "model.optimization_groups": [100, 20],
        "model.model_datatype": "bf16",
    },
    "model: mine\ncheckpoint: {layer_parameters: [5, 6]}": {"model.layer_parameters": [5, 6]},
    "model: {parallelism: {zero_stage: -1}}": {"model.parallelism.zero_stage": 0},
    "workflow: {do_eval: False}": {},
    "generator: {num_workers: 16}": {},
    "reader: {seed: 42, shuffle: true, data_loader_classname: torch.utils.data.DataLoader}": {},
    "reader: {storage_type: object, protocol: s3, storage_library: minio, storage_root: b/x, "
    "endpoint_uris: ['http://a', 'http://b'], load_balance_strategy: round_robin, "
    "storage_options: {region: eu, access_key_id: '', secret_access_key: '', endpoint_url: ''}}": {
        "storage.storage_type": "s3",
        "storage.storage_root": "b/x",
        "storage.region": "eu",
        "storage.access_key_id": None,
        "storage.endpoint_url": ["http://a", "http://b"],
    },
}
"""What files of DLIO of 2022 to 2024 have, and those of MLPerf Storage v3.0, and what it is now."""


@pytest.mark.parametrize("text", MOVED)
def test_keys_of_earlier_versions_of_dlio_are_taken(tmp_path: Path, text: str) -> None:
    """Before: "unknown key checkpoint.num_checkpoints; did you mean ...num_checkpoints_read?"."""
    path = tmp_path / "own.yaml"
    batch = "dataset: {format: npz, num_files_train: 4, batch_size: 3, record_length_std: 5}"
    path.write_text(f"{batch}\n{text}\n")
    job = load_workload(str(path))
    tree_of_job = job.model_dump(mode="json")
    now = {"reader.batch_size": 3, "dataset.record_length_bytes_stdev": 5.0, **MOVED[text]}
    assert {key: value_of(tree_of_job, key) for key in now} == now


OF_OTHER_PLACES = {
    "reader: {data_loader_root: 's3://b/training'}": (
        "reader.data_loader_root=s3://b/training is followed neither by DLIO nor here: "
        "dataset.data_folder says what is read; set reader.data_loader_root=null"
    ),
    "storage: {storage_type: object, protocol: az, storage_root: b/x}": (
        "storage.protocol=az is not spoken here: places are folders and s3://; "
        "set storage.protocol=null"
    ),
}


@pytest.mark.parametrize("text", OF_OTHER_PLACES)
def test_a_key_that_names_another_place_is_not_ignored(
    tmp_path: Path, printed: Printed, text: str
) -> None:
    """Files of MLPerf Storage v3.0 have these; what is read would not be what they say."""
    path = tmp_path / "own.yaml"
    path.write_text(f"dataset: {{format: npz, data_folder: /unused}}\n{text}\n")
    assert printed("run", f"workload={path}", status=1) == f"dlemu: {OF_OTHER_PLACES[text]}\n"


VARIABLES = {
    "${AWS_REGION}": "${AWS_REGION} names no key; write ${oc.env:AWS_REGION} for a variable of the",
    "${oc.env:NOT_THERE}": "the environment has no NOT_THERE; set it, or write ${oc.env:NOT_THERE,",
}


@pytest.mark.parametrize("text", VARIABLES)
def test_a_variable_that_is_not_there_says_what_to_write(
    tmp_path: Path, printed: Printed, text: str
) -> None:
    """Before: "Interpolation key 'AWS_REGION' not found", of a file of MLPerf Storage v3.0."""
    path = tmp_path / "own.yaml"
    path.write_text(f"dataset: {{format: npz}}\nstorage: {{region: '{text}'}}\n")
    said = printed("run", f"workload={path}", status=1)
    assert VARIABLES[text] in said and said.count("\n") == 1


def test_one_file_may_hold_all_samples_of_a_dataset() -> None:
    """As DLIO's DLRM of 4,195,197,692 samples. Before: at most 1,000,000,000."""
    keys: dict[str, object] = {"dataset.num_samples_per_file": 4_195_197_692}
    keys |= {"dataset.num_files_train": 1, "dataset.format": "raw"}
    assert load_workload("unet3d_h100", keys).dataset.num_samples_per_file == 4_195_197_692
    with pytest.raises(WorkloadError, match="must be at most 10,000,000,000"):
        load_workload("unet3d_h100", keys | {"dataset.num_files_train": 3})


def test_a_file_that_a_run_of_dlio_has_kept_is_the_workload_of_it(
    tmp_path: Path, printed: Printed
) -> None:
    """Before: "dataset.format is not set": Hydra keeps it below `workload`."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "workload:\n  model: {name: unet3d}\n  dataset: {format: npy, num_files_train: 9}\n"
        "  reader: {batch_size: 5}\n"
    )
    said = printed("run", f"workload={path}", "--cfg=job")
    assert "format: npy" in said and "batch_size: 5" in said


def test_a_file_url_is_a_folder() -> None:
    """Before: "places are folders, s3:// and ..., got file://"."""
    tree = {
        "dataset": {"format": "npz", "num_files_train": 1, "data_folder": "file:///mnt/data"},
        "checkpoint": {"checkpoint_folder": "file:///nvme/ck"},
        "reader": {"batch_size": 1},
        "train": {},
    }
    workload = check_workload(tree)
    assert workload.data_folder == Path("/mnt/data")
    assert workload.checkpoint.checkpoint_folder == "/nvme/ck"


def test_a_key_of_samples_is_not_taken_for_one_of_checkpoints(
    tmp_path: Path, printed: Printed
) -> None:
    """Before: taken without a word and without an effect."""
    words = ["checkpoint", "model=llama3_8b", "--dry-run"]
    for key in ("odirect=true", "io_depth=4", "piece_bytes=1MiB"):
        name = key.partition("=")[0]
        said = printed(*words, f"reader.{key}", status=1)
        assert said == f"dlemu: reader.{name} is of reading samples; checkpoints have " + (
            f"checkpoint.{name}\n"
        )
    said = printed(*words, "reader.read_threads=3", "checkpoint.io_depth=2")
    assert said.startswith("ignored: reader.read_threads\n")


@pytest.mark.parametrize("division", ["open", "closed"])
def test_no_key_is_advised_that_the_closed_division_forbids(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch, division: str
) -> None:
    """Before: "free space, or add checkpoint.keep=1 checkpoint.scale=..." in both."""
    words = [f"checkpoint.checkpoint_folder={tmp_path / 'ck'}", "checkpoint.fsync=true"]
    words += ["num_accelerators=8", "metric.edition=v3.0", f"division={division}"]
    words += [f"output.folder={tmp_path / 'out'}"]
    monkeypatch.setattr("dlemu.checkpoint.folder.disk_bytes", lambda folder: (0, 10**9))
    monkeypatch.setattr("dlemu.storage.owned.disk_bytes", lambda folder: (0, 10**9))
    said = printed("checkpoint", "model=llama3_8b", *words, "--dry-run", status=1)
    assert "free, too little for 10 checkpoints of 104.7 GiB" in said
    if division == "closed":
        assert said.endswith("; free space, or name another checkpoint.checkpoint_folder\n")
    else:
        assert "; free space, or add checkpoint.keep=1 checkpoint.scale=" in said


def test_a_run_whose_servers_were_not_checked_says_but(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    outcome = ran(job)
    summary: Any = dict(summary_of(tmp_path / "run"))
    summary["measured"] |= {"objects": {"gets": 1}}
    trusting = job.with_keys({"storage.verify_tls": False})
    kinds = [each.kind for each in remarks_of(trusting, outcome.metrics, summary)]
    assert "tls_not_verified" in kinds
    assert "tls_not_verified" not in [
        each.kind for each in remarks_of(job, outcome.metrics, summary)
    ]


def test_variables_that_change_what_is_measured_are_kept(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other one: an environment holds secrets."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:word@10.0.0.7:9000")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("MY_TOKEN", "another")
    said = printed("run", *QUICK, generate(tmp_path), f"output.folder={tmp_path / 'run'}")
    assert "set:      AWS_ENDPOINT_URL=http://10.0.0.7:9000; OMP_NUM_THREADS=1\n" in said
    stored = (tmp_path / "run" / "summary.json").read_text()
    environment = json.loads(stored)["system"][0]["environment"]
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "a-secret" not in stored and "another" not in stored and "word@" not in stored


# --- what held, and is to hold --------------------------------------------------------------------


SURROUNDINGS: dict[str, dict[str, str]] = {
    "PYTHONOPTIMIZE=2 and the C locale": {
        **{"PYTHONOPTIMIZE": "2", "LC_ALL": "C", "PYTHONUTF8": "0"},
        "PYTHONCOERCECLOCALE": "0",
    },
    "Slurm's batch environment, and no HOME": {
        **{"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "HOME": ""},
    },
}


def told_by(words: list[str], folder: Path, **more: Any) -> str:
    """Return what a command of its own process prints, which must end well."""
    ended = subprocess.run(
        [sys.executable, "-m", "dlemu", *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        cwd=folder,
        timeout=LONG,
        **more,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return str(ended.stdout)


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_an_environment_changes_no_verdict(tmp_path: Path, data: str, name: str) -> None:
    surroundings = with_checkout() | SURROUNDINGS[name]
    words = ["run", *QUICK, data, f"output.folder={tmp_path / 'run'}"]
    assert "PASS" in told_by(words, tmp_path, env=surroundings)


def test_stdin_may_be_closed(tmp_path: Path, data: str) -> None:
    words = ["run", *QUICK, data, f"output.folder={tmp_path / 'run'}"]
    assert "PASS" in told_by(words, tmp_path, env=with_checkout(), preexec_fn=lambda: os.close(0))


def test_a_user_without_a_name_and_a_home(tmp_path: Path, data: str) -> None:
    """As a container starts with a random uid."""
    if os.geteuid() != 0:
        pytest.skip("only root may be somebody else")
    tmp_path.chmod(0o777)
    for above in tmp_path.parents:
        if not above.stat().st_mode & stat.S_IXOTH and above.owner() == "root":
            pytest.skip(f"{above} is not open to other users")
    python = Path(sys.executable).resolve()
    if not all(path.stat().st_mode & stat.S_IXOTH for path in (python, *python.parents)):
        pytest.skip(f"{python} is not open to other users")
    words = ["run", *QUICK, data, f"output.folder={tmp_path / 'run'}"]
    surroundings = with_checkout() | {"HOME": "/nowhere"}
    assert "PASS" in told_by(words, tmp_path, env=surroundings, user=54321, group=54321)


def test_a_kernel_without_the_newer_calls(tmp_path: Path, data: str) -> None:
    """cachestat, statx, pidfd_open, prctl and madvise refused, as by a profile of seccomp."""
    environment = with_checkout() | {"LD_PRELOAD": str(without_new_calls(tmp_path, errno.EPERM))}
    words = ["run", *QUICK, data, f"output.folder={tmp_path / 'run'}"]
    assert "PASS" in told_by(words, tmp_path, env=environment)


def test_any_name_of_a_folder(tmp_path: Path, printed: Printed) -> None:
    folder = tmp_path / "Größe, ö=1 'x'"
    folder.mkdir()
    job = small_job(folder)
    assert ran(job).metrics.epochs
    assert "no bad files" in printed("verify", folder / "data", "--full")


@pytest.mark.parametrize(
    ("files", "each", "accelerators", "folders"), [(100, 1, 7, 0), (1, 12, 3, 0), (10, 1, 1, 33)]
)
def test_numbers_that_do_not_divide(
    tmp_path: Path, files: int, each: int, accelerators: int, folders: int
) -> None:
    """7 accelerators for 100 samples, 1 file for 3, 33 subfolders for 10 files."""
    job = small_job(
        tmp_path,
        dataset__format="tfrecord",
        dataset__num_files_train=files,
        dataset__num_samples_per_file=each,
        dataset__num_subfolders_train=folders,
        num_accelerators=accelerators,
        reader__batch_size=1,
    )
    for epoch in ran(job).metrics.epochs:
        assert epoch.num_samples == files * each // accelerators * accelerators


@pytest.mark.parametrize("kind", ["external", "virtual"])
def test_hdf5_whose_bytes_lie_in_other_files(tmp_path: Path, kind: str) -> None:
    import h5py

    (tmp_path / "data" / "train").mkdir(parents=True)
    for number in range(4):
        source, shape = tmp_path / f"{number}.bin", (100, 10)
        with h5py.File(tmp_path / "data" / "train" / f"{number}.h5", "w") as file:
            if kind == "external":
                where = [(str(source), 0, 1000)]
                file.create_dataset("records_0", shape, np.uint8, external=where)[:] = number
                continue
            with h5py.File(source, "w") as other:
                other["d"] = np.full(shape, number, np.uint8)
            layout = h5py.VirtualLayout(shape, np.uint8)
            layout[:] = h5py.VirtualSource(str(source), "d", shape)
            file.create_virtual_dataset("records_0", layout)
    keys = {"format": "hdf5", "num_files_train": 4, "data_folder": str(tmp_path / "data")}
    outcome = ran(job_over(keys | {"record_length_bytes": 1000}, tmp_path / "out"))
    assert {epoch.num_samples for epoch in outcome.metrics.epochs} == {4}


def test_sectors_of_4_kib(tmp_path: Path) -> None:
    with large_sectors(tmp_path, 4096) as drive:
        (drive / "a").write_bytes(bytes(8192))
        assert direct_unit(drive / "a") in (512, 4096)
        assert ran(small_job(drive, reader__odirect=True)).metrics.epochs


def test_btrfs_that_compresses(tmp_path: Path, printed: Printed) -> None:
    """Its files have a device number that no drive has."""
    with own_drive(160 << 20, images=tmp_path, make=("mkfs.btrfs", "-q", "--mixed")) as drive:
        subprocess.run(["mount", "-o", "remount,compress=zstd", drive], check=True)
        assert ran(small_job(drive, reader__odirect="auto")).metrics.epochs
        (system,) = summary_of(drive / "run")["system"]
        assert system["file_system"] == "btrfs" and "compress=zstd" in system["mount_options"]
        assert [each.name for each in counted_devices(drive / "data")] == [loop_of(drive)]
        assert devices_under(drive / "data"), "the drive under the loop device's file"
        printed("checkpoint", f"{drive / 'ck'}", "model=llama3_8b", *ONE_SMALL)
        assert "no bad files" in printed("verify", drive / "data", "--full")


JAPANESE = "日本"
"""Its bytes in EUC-JP are no UTF-8."""


@pytest.mark.parametrize("locale", ["ja_JP.eucJP", "C.UTF-8"])
def test_names_of_an_older_encoding(tmp_path: Path, locale: str) -> None:
    """In that locale they are text; in another one, bytes that are kept."""
    surroundings = with_checkout() | {"LC_ALL": locale, "PYTHONUTF8": "0"}
    if locale == "ja_JP.eucJP":
        if not shutil.which("localedef") or not Path("/usr/share/i18n/charmaps").exists():
            pytest.skip("no localedef, or no tables for it: apt-get install locales")
        made = tmp_path / "locales" / locale
        made.parent.mkdir()
        subprocess.run(["localedef", "-i", "ja_JP", "-f", "EUC-JP", made], check=True)
        surroundings |= {"LOCPATH": str(made.parent)}
    below = os.fsencode(tmp_path) + b"/" + JAPANESE.encode("euc_jp")
    os.makedirs(below + b"/train")
    for number in range(6):
        with open(
            below + b"/train/" + JAPANESE.encode("euc_jp") + b"%d.jpg" % number, "wb"
        ) as file:
            file.write(bytes(2000))
    words: list[str | bytes] = ["run", below, "workload=resnet50_h100", "reader.batch_size=2"]
    words += [*QUICK[5:], "reader.data_loader=threads", b"output.folder=" + below + b"/run"]
    ended = subprocess.run(
        [sys.executable, "-m", "dlemu", *words], capture_output=True, cwd=tmp_path, env=surroundings
    )
    assert ended.returncode == 0, ended.stderr
    assert b"PASS" in ended.stdout and b"6 jpeg files were found" in ended.stdout
    if locale == "ja_JP.eucJP":
        assert JAPANESE.encode("euc_jp") + b": 6 jpeg" in ended.stdout, "as the terminal shows it"
    with open(below + b"/run/summary.json", "rb") as stored:
        assert json.load(stored)["metric"]["train_throughput_mean_samples_per_second"] > 0
    for command, folder in (("report", below + b"/run"), ("verify", below)):
        shown = subprocess.run(
            [sys.executable, "-m", "dlemu", command, folder], capture_output=True, env=surroundings
        )
        assert b"Traceback" not in shown.stderr and (shown.stdout or shown.stderr)


def test_very_many_files(memory: Path, printed: Printed) -> None:
    """Each name is listed and put into order; some are opened."""
    (memory / "train").mkdir()
    first = memory / "train" / "0.jpg"
    first.write_bytes(bytes(3000))
    for number in range(1, 300_000):
        os.link(first, f"{first.parent}/{number // 60_000}_{number}.jpg")
    if len(os.listdir(first.parent)) < 300_000:
        pytest.skip("this file system has not so many links of a file")
    words = ["workload=resnet50_h100", "reader.data_loader=threads", "train.epochs=1"]
    said = printed("run", memory, *words, "--dry-run")
    assert "300,000 jpeg files were found" in said and "would be accepted" in said
    layout = find_dataset(
        load_workload("resnet50_h100", {"dataset.data_folder": str(memory)}), Alone()
    ).layout
    assert (layout.num_files, layout.num_samples) == (300_000, 300_000)
    assert [layout.path(file) for file in (0, 1, 2, -1)] == [
        *("train/0.jpg", "train/0_1.jpg", "train/0_2.jpg", "train/4_299999.jpg")
    ]


MPICH = Path(__file__).parents[1] / "build" / "mpich"
"""python -m venv build/mpich, and its pip install mpich."""


@pytest.mark.mpi
def test_ranks_of_mpich(tmp_path: Path, data: str) -> None:
    pytest.importorskip("mpi4py", reason="pip install 'dlemu[mpi]'")
    launcher = MPICH / "bin" / "mpiexec"
    if not launcher.exists():
        pytest.skip(f"no MPICH in {MPICH}: python -m venv {MPICH}, and its pip install mpich")
    surroundings = with_checkout() | {
        "MPI4PY_MPIABI": "mpich",
        "LD_LIBRARY_PATH": str(MPICH / "lib"),
    }
    words = ["run", *QUICK, data, f"output.folder={tmp_path / 'run'}"]
    ended = subprocess.run(
        [launcher, "-n", "2", sys.executable, "-m", "dlemu", *words],
        capture_output=True,
        text=True,
        env=surroundings,
        timeout=LONG,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("PASS") == 1, "one rank speaks"
    assert summary_of(tmp_path / "run")["num_accelerators"] == 2


def test_another_python(tmp_path: Path, data: str) -> None:
    """`PYTHON=python3.13 make test` runs all tests by it; here is one run."""
    root = Path(__file__).parents[1]
    others = [
        path
        for path in sorted(root.glob(".venv-python3.*/bin/python"))
        if path.resolve() != Path(sys.executable).resolve()
    ]
    if not others:
        pytest.skip("no environment of another Python: PYTHON=python3.13 make test makes one")
    for number, python in enumerate(others):
        words = ["run", *QUICK, data, f"output.folder={tmp_path / str(number)}"]
        ended = subprocess.run(
            [python, "-m", "dlemu", *words], capture_output=True, text=True, env=with_checkout()
        )
        assert ended.returncode == 0 and "PASS" in ended.stdout, ended.stdout + ended.stderr


# --- a cgroup's memory, and samples that are left out ---------------------------------------------


def test_workers_that_a_cgroup_would_kill_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: 8 x 4 spawned workers in 400 MB were killed without a word."""
    free, limit = 400_000_000, "memory.max of cgroup /sys/fs/cgroup/x"
    monkeypatch.setattr(loaders, "free_memory", lambda: (free, limit))
    for context in ("spawn", "forkserver"):
        keys = {"reader.multiprocessing_context": context, "reader.read_threads": 4}
        workload = load_workload("unet3d_h100", keys)
        with pytest.raises(WorkloadError) as error:
            loaders.check_workers_memory(workload, 8)
        assert f"32 workers of reader.multiprocessing_context={context} take about" in str(
            error.value
        )
        assert f"are free ({limit}): lower reader.read_threads" in str(error.value)
        loaders.check_workers_memory(workload.with_keys({"reader.read_threads": 2}), 1)
    loaders.check_workers_memory(load_workload("unet3d_h100", {"reader.read_threads": 4}), 8)


def test_a_key_without_an_effect_makes_no_run_unlike(tmp_path: Path, printed: Printed) -> None:
    """Before: "ignored: dataset.record_length_bytes_resize", and the same key under "unlike"."""
    key = "dataset.record_length_bytes_resize"
    words = [generate(tmp_path), f"output.folder={tmp_path / 'run'}", "reader.hand_over=none"]
    said = printed("run", *QUICK, *words)
    ignored, rest = said.split("\n", 1)
    assert ignored.startswith("ignored: ") and key in ignored
    assert "unlike unet3d_h100: demand" in rest and key.partition(".")[2] not in rest
    handed = printed("run", *QUICK, *words[:1], f"output.folder={tmp_path / 'more'}")
    assert f"{key}=2000" in handed, "where it has one it does"


def test_samples_that_an_epoch_leaves_out_are_said(tmp_path: Path) -> None:
    """Before: 16 of 100 were left out without a word (mlcommons/DLIO_local_changes #25)."""
    ran(small_job(tmp_path, dataset__num_files_train=50, reader__batch_size=14))
    said = "an epoch leaves out 8 of 50 samples, which do not fill another step of 14"
    assert f"note: {said}" in note_lines(summary_of(tmp_path / "run"))


if __name__ == "__main__":  # python -m tests.test_setups
    print("| set-up | before | now | test |")
    print("|---|---|---|---|")
    for setup, (before, now, where) in (ELSEWHERE | HERE).items():
        print(f"| {setup} | {before} | {now} | {where.rpartition('::')[2]} |")
