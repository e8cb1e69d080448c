"""How much is printed, where else it is kept, and in which units."""

import re
from pathlib import Path

import pytest
import yaml

from dlemu.cli import words as words_module
from dlemu.cli.words import OPTIONS, parse, with_command_first
from dlemu.terminal import set_mode
from tests.lab.commands import QUICK, SMALL, Printed
from tests.lab.golden import FOLDER

BINARY = re.compile(r"\b[KMGT]iB/s")


@pytest.fixture(autouse=True)
def usual_mode() -> None:
    set_mode()


def test_quiet_prints_the_verdict_only(data: str, tmp_path: Path, printed: Printed) -> None:
    words = [data, f"output.folder={tmp_path / 'run'}", f"output.log={tmp_path / 'log'}"]
    said = printed("run", *QUICK, *words, "-q")
    assert re.fullmatch(r"PASS: AU .*\n", said)
    log = (tmp_path / "log").read_text()
    assert "samples/s" in log and said.strip() in log, "what is hidden is kept"


def test_the_log_has_the_command_the_time_and_errors(tmp_path: Path, printed: Printed) -> None:
    log = tmp_path / "a b.log"
    words = ["run", *SMALL, "dataset.data_folder=/nosuch", f"output.log={log}"]
    refused = printed(*words, status=1)
    time, command = log.read_text().splitlines()[0].split(" $ ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", time)
    assert command.startswith("dlemu run workload=unet3d_h100 ")
    assert f"'output.log={log}'" in command
    assert refused.rstrip("\n") == log.read_text().splitlines()[-1][20:]
    assert printed(*words, "--cfg", "job") and len(log.read_text().splitlines()) == 2


def test_rates_are_in_one_family_of_units() -> None:
    """10^6 and its powers; MiB/s are in DLIO's fields of summary.json alone."""
    assert [path.name for path in FOLDER.glob("*.txt") if BINARY.search(path.read_text())] == []


# The words of DLIO and mlpstorage mean the same here, or get a line that says what to write.


@pytest.mark.parametrize(
    ("words", "own"),
    [
        ("++workload.train.epochs=1", "train.epochs=1"),
        ("++train.epochs=1 workload=unet3d_h100", "++train.epochs=1 workload=unet3d_h100"),
        ("--workload unet3d_h100 --cfg job", "workload=unet3d_h100 --cfg=job"),
        ("--model unet3d --accelerator-type h100", "workload=unet3d_h100"),
        ("--param a.b=1 --param=c.d=2", "a.b=1 c.d=2"),
        ("--closed", "division=closed"),
        (
            "--o-direct -ma 8 -cm 189 -at b200 --model unet3d",
            "workload=unet3d_b200 reader.odirect=true num_accelerators=8 host_memory=189GiB",
        ),
        ("a -- --closed", "a --closed"),
    ],
)
def test_a_word_of_the_others_means_the_same(words: str, own: str) -> None:
    assert parse(words.split(), [*OPTIONS], for_job=True).as_typed == own.split()


@pytest.mark.parametrize(
    ("words", "own"),
    [
        ("closed training unet3d run file -na 4", "run --model unet3d --closed -na 4"),
        ("whatif training unet3d datasize -ma 4", "datasize --model unet3d -ma 4"),
        ("run file", "run file"),
        ("closed checkpointing llama3-8b run file", "closed checkpointing llama3-8b run file"),
        ("", ""),
    ],
)
def test_mlpstorage_has_the_command_behind_the_model(words: str, own: str) -> None:
    assert with_command_first(words.split()) == own.split()


def test_a_command_line_of_mlpstorage_works(printed: Printed) -> None:
    words = "--model unet3d --accelerator-type h100 --num-accelerators 4 --num-client-hosts 1 "
    words += "--client-host-memory-in-gb 64 --data-dir /mnt/unet3d --params reader.read_threads=8"
    text = printed("run", *words.split(), "++workload.train.epochs=2", "--cfg", "job")
    tree = yaml.safe_load(text)
    assert (tree["name"], tree["reader"]["read_threads"]) == ("unet3d_h100", 8)
    assert (tree["train"]["epochs"], tree["num_accelerators"]) == (2, 4)
    assert tree["host_memory"] == 64 << 30


def test_every_word_that_is_refused_has_a_row_in_the_page(printed: Printed) -> None:
    page = (Path(__file__).parents[2] / "docs" / "from_dlio.md").read_text()
    rows = set(re.findall(r"`(?:mlpstorage )?([\w-]+)[^`]*`", page))
    assert not words_module._REFUSED.keys() - rows
    for word, words, write in (
        ("closed", "closed checkpointing llama3-8b run file", "write dlemu run … division=closed"),
        (
            "object",
            "open training unet3d run object",
            "write dataset.data_folder=s3://BUCKET/FOLDER",
        ),
        ("--loops", "run --loops=3", "write runs=N"),
    ):
        line = f"{word} is a word of mlpstorage; {write}"
        assert printed(*words.split(), status=1) == f"dlemu: {line}\n"
