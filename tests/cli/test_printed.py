"""Every command that dlemu prints runs as it stands: each message is driven, each command run."""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dlemu.cli.main import run
from tests.lab.commands import QUICK, SMALL, Printed

Said = Callable[[list[str]], str]
"""Runs a command; returns all that it prints."""

BRIEFLY = ["reader.data_loader=threads", "train.epochs=1", "train.computation_time=0.001"]
TINY = ["dataset.record_length_bytes=700", "dataset.record_length_bytes_stdev=0"]
OWN = """\
storage: {storage_root: %s}
dataset: {format: npz, num_files_train: 8, record_length_bytes: 777, data_folder: inside}
reader: {batch_size: 1, data_loader: threads, read_threads: 1, prefetch_size: 1}
train: {computation_time: {mean: 0.01, stdev: 0.001}}
"""
STARTS = "defaults: [cosmoflow_h100, _self_]\ndataset: {num_files_train: 3}\n"


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Said:
    """The working directory is empty but for two workloads of one's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN % (tmp_path / "root"))
    (tmp_path / "starts.yaml").write_text(STARTS)

    def answer(words: list[str]) -> str:
        capfd.readouterr()
        run(words)
        captured = capfd.readouterr()
        return captured.out + captured.err

    return answer


def commands_in(text: str) -> list[list[str]]:
    """Return the commands with a workload in a text, each as the words behind `dlemu`."""
    found = []
    for match in re.finditer(r"dlemu (?=\w+ workload=)", text):
        words = shlex.split(text[match.end() :].splitlines()[0].replace(", or take", " "))
        ended = next((n for n, word in enumerate(words[1:], 1) if "=" not in word), len(words))
        found.append(words[:ended])
    return found


MESSAGES = [
    ["datasize", *SMALL, "num_accelerators=1", "host_memory=4MiB"],
    ["datasize", "workload=resnet50_h100", "dataset.data_folder=my data"],
    ["datasize", "workload=own.yaml", "host_memory=1MiB"],
    ["datasize", "workload=own.yaml", "host_memory=1MiB", "dataset.format=hdf5"],
    ["run", *SMALL, "dataset.data_folder=missing"],
    ["run", "missing/folder", *SMALL, "reader.odirect=true"],
    ["run", "./missing", "workload=own.yaml"],
    ["run", "workload=own.yaml"],
    ["run", "./missing", "workload=starts.yaml", *TINY],
    ["run", "./m", "workload=unet3d_h100", *TINY, "dataset.record_length_bytes_resize=null"],
    ["run", "./m", "workload=unet3d_h100", *TINY, "dataset.num_files_train=3", "name=other"],
    ["run", "./m", "workload=unet3d_h100", *TINY, "dataset.num_files_train=3", "name=unet3d_a100"],
    ["size", *SMALL, "dataset.data_folder=missing"],
    ["size", "./missing", "workload=own.yaml"],
    ["size", "empty", "workload=own.yaml"],
    ["calibrate", "empty", "workload=own.yaml"],
    ["size", "small", "host_memory=1MiB"],
    ["size", "small", "size.quick=true", "reader.read_threads=16"],
]


@pytest.mark.parametrize("message", MESSAGES, ids=range(len(MESSAGES)))
def test_a_printed_command_runs_as_it_stands(
    message: list[str], said: Said, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    if "small" in message:
        assert run(["datagen", "small", "workload=own.yaml", "dataset.num_files_train=4"]) == 0
    if message[0] == "run":
        message = [*message, *BRIEFLY]
    (words,) = commands_in(said(message))
    number = re.search(r"num_files_train=(\w+)", " ".join(words))
    is_small = words[0] == "predict" or (number and number[1].isdigit() and int(number[1]) < 200)
    if not is_small:  # it would write much or run long: all but the work
        words += ["--cfg", "job"]
    assert run(words) in (0, 2), (words, said(words))
    if message[0] == "run":
        assert len(commands_in(said(message))) == 0, "the dataset is there now"


# --dry-run says what a command would do, refuses what it would refuse, and leaves nothing.


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset."""
    folder = tmp_path_factory.mktemp("dry") / "data"
    assert run(["datagen", str(folder), *SMALL]) == 0
    return folder


def everything(folder: Path) -> list[tuple[str, int]]:
    """Return all that lies below a folder, files with the time of the last change."""
    times = {path: path.stat().st_mtime_ns * path.is_file() for path in folder.rglob("*")}
    return sorted((str(path), time) for path, time in times.items())


def test_nothing_stays(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed is in golden/dry.txt."""
    monkeypatch.chdir(data.parent)
    before = everything(data.parent)
    cache = [f"cache.folder={data.parent}/cache", "cache.capacity=0.5"]
    assert run(["run", str(data), *QUICK[5:], *cache, "--dry-run"]) == 0
    assert run(["datagen", str(data), "dataset.num_files_train=60", "--dry-run"]) == 0
    assert everything(data.parent) == before


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["datagen", *SMALL, "dataset.record_length_bytes=1GB"], "write:    56 files, "),
        (["checkpoint", "model=llama3_405b"], "writes:  "),
    ],
)
def test_the_facts_come_before_the_line_on_a_disk_that_is_too_small(
    words: list[str],
    fact: str,
    tmp_path: Path,
    printed: Printed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = shutil._ntuple_diskusage(10**9, 0, 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)
    said = printed(words[0], tmp_path / "new", *words[1:], "--dry-run", status=1)
    assert f"\n{fact}" in said.partition("\ndlemu: ")[0]
    assert "free" in said.splitlines()[-1] and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "num_accelerators=9"], "56 samples are too few for 2 steps"),
        (["run", "dataset.num_files_train=auto"], "dataset.num_files_train=auto asks for"),
        (["run", "output.folder={data}/dlemu.json"], "cannot be written (File exists)"),
        (["run", "division=closed"], "division=closed: "),
        (["datagen", "dataset.seed=7"], "dataset.seed is 0, the workload's is 7"),
        (["size"], "are needed for 1 accelerator"),
        (["size", "size.quick=true"], "a quick search needs 50"),
    ],
)
def test_what_would_be_refused_is_refused_with_the_same_line(
    words: list[str], said: str, data: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sizing.measured", "run.forecast"):  # advice depends on what a probe reads
        monkeypatch.setattr(f"dlemu.{module}.probe_dataset", lambda *_, **__: 1e9)
    before = everything(data.parent)
    command, *keys = [word.format(data=data) for word in words]
    *_, refused = printed(command, data, *keys, "--dry-run", status=1).splitlines()
    assert refused.startswith("dlemu: ") and said in refused
    assert everything(data.parent) == before
    assert printed(command, data, *keys, status=1).splitlines()[-1] == refused
