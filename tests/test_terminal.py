"""What is typed is taken as it stands; what is shown acts on no terminal and needs no locale."""

import contextlib
import json
import os
import pkgutil
import pydoc
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import dlemu as package
from dlemu.cli.main import run
from dlemu.config.model import load_workload
from dlemu.config.published import command
from dlemu.errors import RunError
from dlemu.terminal import shown, shown_line, terminal_width
from tests.lab.commands import QUICK, SMALL, dlemu
from tests.lab.waiting import LONG
from tests.test_layers import ROOT

ODD = "my set [1] ~ü,=x"
HOSTILE = "\x1b]0;owned\x07\x1b[31m\u202e\x9b2J\r\x00"
ACTS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
COMMAND = [sys.executable, "-m", "dlemu"]


EACH = """
import json, os, sys
from dlemu.cli.main import run
for words, status in json.loads(sys.argv[1]):
    words = [os.fsdecode(word.encode()) for word in words]  # as arguments are decoded
    assert run(words) == status, words
"""


# --- what is shown --------------------------------------------------------------------------------


def test_what_acts_on_a_terminal_is_written_out() -> None:
    assert shown("a\x1b[1mb\nc\td\x7f\x9b\u202e\u2066\u2028\udcff") == (
        "a\\x1b[1mb\nc\\x09d\\x7f\\x9b\\u202e\\u2066\\u2028\\udcff"
    )
    assert shown_line("a\nb\r") == "a\\x0ab\\x0d"
    assert shown("größe µ ≥ … 数据 🙂") == "größe µ ≥ … 数据 🙂"


@pytest.mark.parametrize(
    "words",
    [
        [f"r{HOSTILE}n"],
        ["run", "workload=unet3d_h100", f"dataset.{HOSTILE}=1"],
        ["report", f"/nosuch/{HOSTILE[:-1]}\n\n"],
    ],
)
def test_an_error_shows_no_control_character(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("dlemu: ") and said.err.count("\n") == 1
    assert not ACTS.search(said.err) and "\\x1b" in said.err


def test_a_files_name_shows_no_control_character(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = f"dataset.data_folder={tmp_path}/a\x1b[31m\nPASS"
    assert run(["datagen", *SMALL, data]) == 0
    next((tmp_path / "a\x1b[31m\nPASS" / "train").iterdir()).unlink()
    capsys.readouterr()
    assert run(["verify", *SMALL, data]) == 1
    out = capsys.readouterr().out
    assert not ACTS.search(out) and "a\\x1b[31m" in out


def test_help_shows_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the default of an argument would."""
    monkeypatch.setenv("DLEMU_TEST_PLANTED", "planted-value")
    names = (each.name for each in pkgutil.walk_packages(package.__path__, "dlemu."))
    for name in (each for each in names if not each.endswith("__main__")):
        with contextlib.suppress(ImportError):
            assert "planted" not in pydoc.render_doc(import_module(name)), name


# --- any locale -----------------------------------------------------------------------------------


def test_no_command_needs_a_locale(tmp_path: Path) -> None:
    """Python says where a file is opened in the encoding of the locale."""
    own = tmp_path / "own.yaml"
    own.write_text("# größe\ndefaults: [unet3d_h100, _self_]\nname: größe\n", encoding="utf-8-sig")
    data, results = f"dataset.data_folder={ODD}/data", f"{ODD}/run"
    commands: list[tuple[list[str], int]] = [
        (["--help"], 0),
        (["predict", f"workload={own}", "drive=d7_ps1010", "output.folder=predicted"], 0),
        (["datasize", f"workload={own}", "num_accelerators=2", "host_memory=1GiB"], 0),
        (["run", f"workload={own}", "--cfg", "job"], 0),
        (["datagen", *SMALL, data], 0),
        (["run", *QUICK, data, f"output.folder={results}"], 0),
        (["report", results, "--html", "page.html"], 0),
        (["report", results, "--json"], 0),
        (["verify", "--full", *SMALL, data], 0),
        (["verify", *SMALL, f"{data}/none"], 1),
        (["doctor", ODD], 0),
    ]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    narrow = {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "ascii"}
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    warn = {"PYTHONWARNINGS": "always::EncodingWarning"}
    for asked, locale in ((commands[:2], narrow), (commands, plain | warn)):
        done = subprocess.run(
            [sys.executable, "-X", "warn_default_encoding", "-c", EACH, json.dumps(asked)],
            capture_output=True,
            cwd=tmp_path,
            env=kept | {"PYTHONPATH": str(ROOT)} | locale,
            timeout=LONG,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert b"gr\\xf6\\xdfe" in done.stdout
        assert b"Traceback" not in done.stderr and (done.stdout + done.stderr).isascii()
        ours = [line for line in done.stderr.decode().splitlines() if "EncodingWarning" in line]
        assert not [line for line in ours if "dlemu" in line or "datagen" in line]


@pytest.mark.parametrize(
    ("words", "status", "shown", "lines"),
    [
        ("datasize >&- 2>&-", 0, False, []),
        ("datasize >/dev/full", 1, False, ["dlemu: stdout: No space"]),
        ("datasize --json >/dev/full", 1, False, ["dlemu: stdout: No space"]),
        ("nothing 2>/dev/full", 1, False, []),
    ],
)
def test_streams_may_be_closed_or_full(
    words: str, status: int, shown: bool, lines: list[str]
) -> None:
    keys = "workload=unet3d_h100 num_accelerators=1 host_memory=1GiB"
    command = f"{shlex.join(COMMAND)} {words.replace('datasize', f'datasize {keys}')}"
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=buffered,
        timeout=LONG,
    )
    assert (done.returncode, "files" in done.stdout) == (status, shown)
    said = [line for line in done.stderr.splitlines() if line.startswith("dlemu:")]
    assert len(said) == len(lines) and "Traceback" not in done.stderr, done.stderr
    assert all(line.startswith(begin) for line, begin in zip(said, lines, strict=True))


@pytest.mark.parametrize(("to", "status"), [("| true", 0), ("| head -2", 0), (">/dev/full", 1)])
def test_output_that_nobody_takes_ends_the_printing_and_not_the_run(
    to: str, status: int, data: str, tmp_path: Path
) -> None:
    """The results are stored; the exit status is the run's, but for output that was lost."""
    out = tmp_path / "out"
    words = shlex.join([*COMMAND, "run", *QUICK, data, f"output.folder={out}"])
    script = f"{words} {to}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=LONG
    )
    assert done.returncode == status, done.stderr
    assert json.loads((out / "summary.json").read_text())["status"] == "complete"
    said = [line for line in done.stderr.splitlines() if line.startswith("dlemu:")]
    assert len(said) == (1 if status else 0) and "Traceback" not in done.stderr, done.stderr
    assert all("stdout: No space left" in line and "goes on" in line for line in said)


# --- what is typed --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a=b", "~x", "{a: [1, b]}", "x\\"])
def test_a_folder_of_any_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = f"dataset.data_folder={name}/data"
    assert run(["datagen", *SMALL, "dataset.num_files_train=2", data]) == 0
    assert (tmp_path / name / "data" / "dlemu.json").is_file()
    capsys.readouterr()
    assert run(["report", "--", name]) == 1
    assert capsys.readouterr().err == (
        f"dlemu: {name} holds no summary.json; is it a run's folder?\n"
    )


@pytest.mark.parametrize("folder", [ODD, "a\\b\\", "it's", "~/x", "null", "a\x1bb\nc", "a\\'b"])
def test_printed_commands_run_as_they_stand(folder: str, tmp_path: Path) -> None:
    keys = {"dataset.data_folder": folder, "dataset.record_length_bytes": 2000}
    keys["dataset.record_length_bytes_stdev"] = 0
    if folder.isprintable() and "/" not in folder:
        keys["name"] = folder  # which is no path, and quoted for Hydra as well
    workload = load_workload("unet3d_h100", keys)
    line = command("datagen", workload, keys, {"dataset.num_files_train": 1})
    assert shown_line(line) == line
    taken = subprocess.check_output(["bash", "-c", f"printf '%s\\0' {line}"])
    program, *words = os.fsdecode(taken).split("\0")[:-1]
    done = dlemu(*words, cwd=tmp_path)
    assert (program, done.returncode) == ("dlemu", 0), done.stderr
    assert (tmp_path / folder / "dlemu.json").is_file()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            MemoryError(),
            "dlemu: MemoryError: this host has not enough memory for that; ask for less at once, "
            "or free memory\n",
        ),
        (
            RecursionError("too deep"),
            "dlemu: RecursionError: too deep; name input that is nested less deeply\n",
        ),
        (RunError("x" * 20_000), f"dlemu: {'x' * 5000} ... {'x' * 5000}\n"),
    ],
)
def test_what_has_no_end_is_one_line(
    error: Exception,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("dlemu.cli.report.main", fail)
    assert run(["report", "x"]) == 1
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(("columns", "width"), [(80, 70), (0, None)])
def test_a_terminal_without_a_size_is_a_launchers_and_gets_plain_text(
    columns: int, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mpirun gives each rank such a terminal, wherever its own output goes."""
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((columns, 1)))
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    assert terminal_width() == width
