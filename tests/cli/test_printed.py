"""Every command that dlemu prints runs as it stands: each message is driven, each command run."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlemu.cli.main import run
from tests.lab.commands import SMALL

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
) -> Iterator[Said]:
    """The working directory is empty but for two workloads of one's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN % (tmp_path / "root"))
    (tmp_path / "starts.yaml").write_text(STARTS)

    def answer(words: list[str]) -> str:
        capfd.readouterr()
        run(words)
        captured = capfd.readouterr()
        return captured.out + captured.err

    yield answer


def commands_in(text: str) -> list[list[str]]:
    """Return the commands with a workload in a text, each as the words behind `dlemu`."""
    found = []
    for match in re.finditer(r"dlemu (?=\w+ workload=)", text):
        words = shlex.split(text[match.end() :].splitlines()[0].replace(", or take", " "))
        ended = next((n for n, word in enumerate(words[1:], 1) if "=" not in word), len(words))
        found.append(words[:ended])
    return found


def run_as_it_stands(words: list[str], said: Said) -> None:
    """Run a printed command; where it would write much or run long, all but the work."""
    number = re.search(r"num_files_train=(\w+)", " ".join(words))
    is_small = words[0] == "predict" or (number and number[1].isdigit() and int(number[1]) < 200)
    words = words if is_small else [*words, "--cfg", "job"]
    assert run(words) in (0, 2), (words, said(words))


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
    found = commands_in(said(message))
    assert len(found) == 1, said(message)

    run_as_it_stands(found[0], said)

    if message[0] == "run":
        assert len(commands_in(said(message))) == 0, "the dataset is there now"
