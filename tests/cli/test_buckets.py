"""The URL of a data folder stands where a folder does: each command that takes one takes both."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from dlemu.api import make_loader
from dlemu.cli.commands import COMMANDS
from dlemu.cli.main import run
from dlemu.errors import WorkloadError
from dlemu.storage.place import path_of, place_of
from dlemu.storage.s3 import access_of
from tests.lab.commands import QUICK, SIZES, Printed
from tests.lab.object_server import Moto, moto_server
from tests.lab.real_datasets import make

DATASET, PICTURES = "s3://training/unet3d", "s3://training/pictures"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    """A bucket with a dataset of dlemu's and one of others."""
    folder = tmp_path_factory.mktemp("pictures")
    make("imagenet", folder)
    with pytest.MonkeyPatch.context() as patch, moto_server() as server:
        reach(patch, server)
        urlopen(Request(f"{server.url}/training", method="PUT")).close()
        assert run(["datagen", "workload=unet3d_h100", *SIZES, DATASET]) == 0
        place = place_of(path_of(PICTURES), access_of())
        for path in filter(Path.is_file, folder.rglob("*")):
            place.put(str(path.relative_to(folder)), [path.read_bytes()])
        yield server


def reach(patch: pytest.MonkeyPatch, server: Moto) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "any")
    patch.setenv("AWS_ENDPOINT_URL", server.url)


@pytest.fixture
def server(filled: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    reach(monkeypatch, filled)
    return filled


SAID = {
    "run": (f"{DATASET} reader.data_loader=threads --dry-run", 0, "dlemu run would be accepted"),
    "size": (f"{DATASET} reader.data_loader=threads --dry-run", 1, "has 56; in a bucket"),
    "datagen": (f"{DATASET} --dry-run", 0, "dlemu datagen would be accepted"),
    "calibrate": (f"{DATASET} reader.data_loader=threads", 1, f"files, and {DATASET} is a bucket"),
    "predict": (f"{DATASET} drive=d7_ps1010", 0, "accelerators of unet3d_h100"),
    "datasize": (f"{DATASET} host_memory=1GiB", 0, f"dataset.data_folder={DATASET}_"),
    "steptime": (f"{DATASET} --cfg job", 0, f"data_folder: {DATASET}"),
    "verify": (f"{DATASET} storage.retries=2", 0, "no bad files"),
    "checkpoint": (f"{DATASET} model=llama3_8b --dry-run", 1, f"{DATASET} holds dlemu"),
    "doctor": (f"{DATASET} reader.data_loader=threads", 0, f"{DATASET} can be listed"),
    "load": (f"target={DATASET} model=sdxl", 1, "is no folder of this host"),
    "paths": (DATASET, 1, "is no folder of this host"),
    "report": (DATASET, 1, "is no folder of this host"),
    "compare": (f"{DATASET} {DATASET}", 1, "is no folder of this host"),
}
"""The words of each command that takes a folder, its exit status, and a part of what it says."""


@pytest.mark.parametrize("name", SAID)
def test_a_url_stands_where_a_folder_does(server: Moto, printed: Printed, name: str) -> None:
    """Before: "s3://... alone does not say which workload to take"."""
    words, status, said = SAID[name]
    told = printed(name, *shlex.split(words), status=status)
    assert said in told
    assert status == 0 or "dry-run" in words or told.count("\n") == 1


def test_no_command_that_takes_a_folder_is_missing() -> None:
    """`try` of a bucket is in tests/sizing."""
    takes = {name for name, command in COMMANDS.items() if "FOLDER" in command.words}
    of_jobs = {name for name, command in COMMANDS.items() if not command.function}
    assert {*SAID, "try"} >= takes | of_jobs


def test_what_a_bucket_holds_decides(server: Moto, printed: Printed, tmp_path: Path) -> None:
    """The dataset names its workload; of files of others the line says who reads such."""
    quick = [*QUICK[1:], "train.epochs=1", f"output.folder={tmp_path / 'run'}"]
    assert "PASS" in printed("run", DATASET, *quick)
    other = printed("run", DATASET, "workload=cosmoflow_h100", status=1)
    assert other.startswith(f"dlemu: {DATASET} holds a unet3d_h100 dataset; leave workload= out")
    none = printed("run", "s3://training/none", status=1)
    assert none.startswith("dlemu: s3://training/none is not there, so nothing says which workload")
    line = printed("run", PICTURES, status=1)
    assert line.startswith(f"dlemu: {PICTURES} holds 18 jpeg files, of about 2.9 KiB a sample")
    (row, *_) = re.findall(r"\w+_h100", line)
    words = [f"workload={row}", "reader.batch_size=2", "reader.data_loader=threads"]
    assert "18 jpeg files were found" in printed("run", PICTURES, *words, "--dry-run")
    two = printed("run", DATASET, f"dataset.data_folder={PICTURES}", status=1)
    assert (
        two
        == f"dlemu: {DATASET} is the data folder, and dataset.data_folder={PICTURES}; keep one\n"
    )


def test_the_words_of_storage_reach_the_bucket(
    server: Moto, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any workload is known: they say where its name lies."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    fits = [f"storage.endpoint_url={server.url}", "reader.data_loader=threads", "--dry-run"]
    assert "would be accepted" in printed("run", DATASET, *fits)
    refused = printed("run", DATASET, "storage.retries=0", status=1)
    assert "http://127.0.0.1:9 does not answer (connection refused)" in refused
    assert "storage.retries must be a whole number" in printed(
        "run", DATASET, "storage.retries=many", status=1
    )


def test_a_loader_takes_the_url_of_a_dataset(server: Moto) -> None:
    with pytest.raises(WorkloadError, match="data_loader=pytorch does not read"):
        make_loader(DATASET)
