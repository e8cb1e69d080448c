"""The live line: on a terminal, in a pipe, turned off, and when something fails."""

import contextlib
import io
import os
import pty
import re
import sys
import termios
import threading
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from dlemu.cli import progress
from dlemu.cli.main import run
from dlemu.cli.progress import describe, show_progress
from dlemu.datagen.target import FileProgress
from dlemu.run.live import RunProgress
from dlemu.terminal import say
from tests.lab.commands import QUICK, generate
from tests.lab.waiting import until

NOW = RunProgress(
    job="run 3 of about 8, trying 12 accelerators, best so far 9 PASS",
    epoch=1,
    epochs=5,
    step=310,
    steps=500,
    au_percentage=92.314,
    samples_per_second=312.3,
    drive_bytes_per_second=812e6,
    cached_share=0.031,
    seconds_left=41.0,
    num_ranks=4,
)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"live_seconds": 0.05, "plain_seconds": 0.05, "largest_share": 1.0}.items():
        monkeypatch.setattr(progress, name, value)


class Screen:
    """What a terminal shows of text with the few controls that the line uses."""

    def __init__(self, text: str) -> None:
        self.lines, self.row, self.column = [""], 0, 0
        for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            self._take(piece)

    def _take(self, piece: str) -> None:
        if piece == "\r":
            self.column = 0
        elif piece == "\n":
            self.row += 1
            self.lines += [""] * (self.row + 1 - len(self.lines))
        elif piece == "\x1b[2K":
            self.lines[self.row] = ""
        elif piece == "\x1b[1A":
            self.row -= 1
        elif not piece.startswith("\x1b"):
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + piece + line[self.column + len(piece) :]
            self.column += len(piece)
        else:
            assert piece.endswith("m"), f"{piece!r} is more than a color"


@contextlib.contextmanager
def on_pty(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Iterator[list[bytes]]:
    """Make stderr a pseudo terminal; yield a list that is at the end all that was written."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    pieces: list[bytes] = []

    def drain() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(ours, 65536):
                pieces.append(piece)

    reader = threading.Thread(target=drain)
    reader.start()
    with open(theirs, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        yield pieces
    reader.join()
    os.close(ours)


def test_an_error_is_never_glued_to_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files disappear while it runs. The line is on stderr alone."""
    words = [*QUICK, generate(tmp_path), "train.computation_time=0.05", "train.epochs=500"]
    with on_pty(monkeypatch) as written:

        def remove() -> None:
            shown = rb"epoch 2/500, step \d/8, AU [\d.]+%"
            until(lambda: re.search(shown, b"".join(written)))
            for path in (tmp_path / "data" / "train").iterdir():
                path.unlink()

        remover = threading.Thread(target=remove)
        remover.start()
        assert run(["run", *words, f"output.folder={tmp_path / 'run'}"]) == 1
        remover.join()
    text = b"".join(written).decode()
    assert "\x1b[?" not in text, "nothing is hidden that must be shown again"
    assert "\x1b" not in capsys.readouterr().out
    lines = Screen(text).lines
    assert not any("/500" in line for line in lines)
    assert lines[-2].startswith("dlemu: ") and "missing" in lines[-2]


@pytest.mark.parametrize("terminal", ["dumb", ""])
def test_elsewhere_a_plain_line_comes_now_and_then(
    terminal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    with on_pty(monkeypatch, TERM=terminal or "xterm") as written, monkeypatch.context() as patch:
        if not terminal:
            patch.setattr(sys, "stderr", stream)
        with show_progress("run", lambda: NOW, on=True):
            until(lambda: written or stream.getvalue())
    text = b"".join(written).decode() or stream.getvalue()
    assert "\x1b" not in text and text.startswith("run: run 3 of about 8, ")


def test_what_is_said_comes_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_pty(monkeypatch) as written, show_progress("size", lambda: NOW, on=True):
        until(lambda: b"".join(written).count(b"epoch 1/5") > 2)
        say("one", to_stderr=True)
        until(lambda: b"".join(written).partition(b"one")[2].count(b"epoch 1/5") > 2)
        say("two\nthree", to_stderr=True)
    text = b"".join(written).decode()
    lines = Screen(text).lines
    assert lines[:3] == ["one", "two", "three"] and not any(lines[3:])


@pytest.mark.parametrize("variable", ["NO_COLOR", ""])
def test_no_color_is_respected(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {variable: "1"} if variable else {}
    now = FileProgress(3, 9, 3, 9, 1.0)
    with (
        on_pty(monkeypatch, **environment) as written,
        show_progress("datagen", lambda: now, on=True),
    ):
        until(lambda: "\u2501".encode() in b"".join(written))
    text = b"".join(written).decode()
    assert ("\x1b[9" in text) == (not variable) and "\u2501" in text


def test_what_fails_here_never_reaches_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(side_effect=chain([RuntimeError("of the live line alone")], repeat(NOW)))
    with on_pty(monkeypatch) as written, show_progress("run", asked, on=True):
        until(lambda: b"epoch 1/5" in b"".join(written), "it to go on")
    assert asked.call_count > 1
    gone = Mock(spec=io.StringIO, isatty=lambda: True)
    gone.write.side_effect = OSError(5, "Input/output error")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", gone)
    with show_progress("run", lambda: NOW, on=True):
        until(lambda: gone.write.called)
        say("on stdout")


def test_a_narrow_line_keeps_what_matters() -> None:
    shown = describe(NOW)
    assert shown.above == NOW.job
    whole = "epoch 1/5, step 310/500, AU 92.31%, 312.3 samples/s, drive 812 MB/s, 3% cached, "
    assert shown.fitting(200) == f"{whole}0:41 left, rank 0 of 4"
    assert shown.fitting(79) == f"{whole.removesuffix('3% cached, ')}0:41 left"
    assert shown.fitting(50) == "epoch 1/5, step 310/500, AU 92.31%, 0:41 left"
    assert shown.fitting(5) == "epoch 1/5", "the terminal cuts it"
    files = describe(FileProgress(12, 168, 2 << 30, 8 << 30, 10.0))
    assert files.fitting(100) == "12/168 files, 2.0 GiB of 8.0 GiB, 215 MB/s, 0:30 left"
    assert files.share == 0.25
    probing = describe(RunProgress(doing="probing the drive", seconds=2.6))
    assert probing.fitting(80) == "probing the drive, 3 s"


def test_a_line_that_takes_long_is_shown_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 ms of CPU time each, of which a hundredth may be used."""
    act, pauses = Mock(), list[float]()

    def wait(pause: float) -> bool:
        pauses.append(pause)
        return len(pauses) == 4

    clock = SimpleNamespace(
        thread_time=lambda: 0.004 * act.call_count, perf_counter=lambda: sum(pauses)
    )
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress, "largest_share", 0.01)
    monkeypatch.setattr(progress, "plain_seconds", 10.0)
    ticker = progress._Ticker(act, 0.1)
    monkeypatch.setattr(ticker, "_ended", SimpleNamespace(wait=wait))
    ticker._run()
    assert pauses == pytest.approx([0.1, 0.3, 0.4, 0.4])
