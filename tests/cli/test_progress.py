"""The live line: on a terminal, in a pipe, turned off, and when something fails."""

import contextlib
import io
import os
import pty
import re
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlemu.cli import progress
from dlemu.cli.main import run
from dlemu.cli.progress import describe, show_progress
from dlemu.datagen.work import FileProgress
from dlemu.run.live import RunProgress
from dlemu.terminal import say
from tests.lab import warm
from tests.lab.commands import QUICK, SIZES, generate
from tests.lab.waiting import until

OFTEN = {
    "dlemu.cli.progress.live_seconds": 0.05,
    "dlemu.cli.progress.plain_seconds": 0.05,
    "dlemu.cli.progress.largest_share": 1.0,
}
RUN = [*QUICK, "train.computation_time=0.05", "train.epochs=3"]
"""Epochs of 8 steps."""
LONG = [*RUN, "train.epochs=500"]
"""Ends when a test has seen what it waits for."""
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
    """Show it often, here and in warm processes."""
    monkeypatch.setattr(warm, "settings", {**warm.settings, **OFTEN})
    for name, value in OFTEN.items():
        monkeypatch.setattr(progress, name.rpartition(".")[2], value)


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


class OnTerminal:
    """A command on a pseudo terminal."""

    def __init__(
        self, words: list[str], folder: Path, columns: int = 80, stdout: int | None = None
    ) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, columns))
        self._before = termios.tcgetattr(theirs)
        environment = {**os.environ, "TERM": "xterm"}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            environment.pop(name, None)
        self.process = warm.Popen(
            [*warm.COMMAND, *words],
            cwd=folder,
            env=environment,
            start_new_session=True,
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
        )
        self._theirs, self.text = theirs, ""

    def read(self, shown: Callable[[str], object]) -> None:
        """Return when what was written has it."""
        until(lambda: self._take() or shown(self.text), "what is to be shown")
        assert shown(self.text), self.text

    def _take(self) -> bool:
        """Take what was written; return whether the command has ended."""
        os.set_blocking(self._ours, False)
        ended = self.process.poll() is not None
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._ours, 65536):
                self.text += piece.decode()
        return ended

    def end(self) -> tuple[int, Screen]:
        """Return the exit status, and what the terminal shows."""
        until(self._take, "its end")
        assert termios.tcgetattr(self._theirs) == self._before, "the terminal is as it was"
        os.close(self._ours)
        os.close(self._theirs)
        assert "\x1b[?" not in self.text, "nothing is hidden that must be shown again"
        return self.process.wait(), Screen(self.text)


@pytest.mark.parametrize("columns", [40, 80])
def test_a_terminal_shows_the_line_and_an_interrupt_leaves_it_clean(
    data: str, tmp_path: Path, columns: int
) -> None:
    shown = OnTerminal(["run", *LONG, data, "output.folder=run"], tmp_path, columns)
    whole = r"epoch \d+/500, step \d/8, AU [\d.]+%"
    shown.read(lambda text: re.search(f"{whole}.*samples/s.*left" if columns > 40 else whole, text))
    os.kill(shown.process.pid, signal.SIGINT)
    status, screen = shown.end()
    assert status == 130
    frames = re.findall(r"epoch \d+/500[^\x1b\r\n]*", shown.text)
    assert all(len(frame) < columns for frame in frames)
    wide = any("samples/s" in frame and "left" in frame for frame in frames)
    assert wide == (columns > 40)
    assert screen.lines[-2:] == ["dlemu: interrupted", ""]
    assert not any("/500" in line or "starting" in line for line in screen.lines)


def test_stdout_and_stderr_may_be_apart(data: str, tmp_path: Path) -> None:
    """Of a run whose stdout is a file, the terminal shows the line alone; the file is as ever."""
    words = ["run", *RUN, data, "output.folder=run"]
    with (tmp_path / "out").open("wb") as out:
        shown = OnTerminal(words, tmp_path, stdout=out.fileno())
        status, screen = shown.end()
    assert status == 0 and screen.lines == [""]
    text = (tmp_path / "out").read_text()
    assert "\x1b" not in text and "epoch 1/3" not in text
    assert text.startswith("workload: ") and "\ncold start: " in text
    assert text.endswith("results: run\n")


def test_elsewhere_a_plain_line_comes_now_and_then(data: str, tmp_path: Path) -> None:
    command = [*warm.COMMAND, "run", *LONG, data, "output.folder=run"]
    with warm.Popen(command, cwd=tmp_path, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if re.match(r"run: epoch \d+/500, step \d/8, AU [\d.]+%, ", line):
                break
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate()
    assert process.returncode == 130
    assert "/500, step" not in out and "\x1b" not in out + "".join(lines) + rest
    assert all(line.startswith("run: ") for line in lines)


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "unknown"}])
def test_a_terminal_without_controls_gets_plain_lines(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_pty(monkeypatch, **environment) as written, show_progress("run", lambda: NOW, on=True):
        until(lambda: written)
    text = b"".join(written).decode()
    assert "\x1b" not in text and text.startswith("run: run 3 of about 8, ")


@pytest.mark.parametrize("command", ["run", "datagen", "calibrate"])
def test_progress_off_shows_nothing(command: str, tmp_path: Path) -> None:
    off = "progress=off"
    words = [*SIZES, "workload=unet3d_h100", "dataset.data_folder=data"]
    if command == "run":
        assert run(["datagen", *words[1:], f"dataset.data_folder={tmp_path}/data"]) == 0
        words = [*RUN, "dataset.data_folder=data", "output.folder=run"]
    if command == "calibrate":
        words = [*words, "dataset.num_files_train=none"]  # refused: nothing else is shown
    with (tmp_path / "err").open("wb") as errors:
        done = warm.run([*warm.COMMAND, command, *words, off], cwd=tmp_path, stderr=errors)
    said = (tmp_path / "err").read_text()
    assert (said == "") == (done.returncode == 0)
    assert "epoch 1/" not in said and said.count("\n") <= 1


def test_an_error_is_never_glued_to_the_line(tmp_path: Path) -> None:
    """The files disappear while it runs."""
    words = [*LONG, generate(tmp_path), "output.folder=run"]
    shown = OnTerminal(["run", *words], tmp_path)
    shown.read(lambda text: "epoch 2/500" in text)
    for path in (tmp_path / "data" / "train").iterdir():
        path.unlink()
    status, screen = shown.end()
    assert status == 1
    assert not any("/500" in line for line in screen.lines)
    assert screen.lines[-2].startswith("dlemu: ") and "missing" in screen.lines[-2]


def test_a_search_shows_its_state_above(data: str, tmp_path: Path) -> None:
    keys = ["size.quick=true", "size.confirm=1", "size.start=1", "size.max_accelerators=1"]
    keys += ["reader.batch_size=1", "train.epochs=500"]
    shown = OnTerminal(["size", *QUICK, *keys, data, "output.folder=sized"], tmp_path)
    state = "run 1 of about 3, trying 1 accelerator"
    shown.read(lambda text: re.search(rf"{state}\r\nepoch \d+/500, step", text))
    os.kill(shown.process.pid, signal.SIGINT)
    status, screen = shown.end()
    assert status == 130, shown.text
    assert not any("of about" in line for line in screen.lines)


# --- here -----------------------------------------------------------------------------------------


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


def test_what_is_said_comes_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_pty(monkeypatch) as written, show_progress("size", lambda: NOW, on=True):
        until(lambda: b"".join(written).count(b"epoch 1/5") > 2)
        say("one", to_stderr=True)
        until(lambda: b"".join(written).partition(b"one")[2].count(b"epoch 1/5") > 2)
        say("two\nthree", to_stderr=True)
    text = b"".join(written).decode()
    assert Screen(text).lines == ["one", "two", "three", ""]


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
    asked = 0

    def fail() -> RunProgress:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("of the live line alone")
        return NOW

    refused = threading.Event()

    class Gone(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            refused.set()
            raise OSError(5, "Input/output error")

    with on_pty(monkeypatch) as written, show_progress("run", fail, on=True):
        until(lambda: b"epoch 1/5" in b"".join(written), "it to go on")
    assert asked > 1
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Gone())
    with show_progress("run", lambda: NOW, on=True):
        assert refused.wait(60)
        say("on stdout")


def test_a_narrow_line_keeps_what_matters() -> None:
    shown = describe(NOW)
    assert shown.above == NOW.job
    assert shown.fitting(200) == (
        "epoch 1/5, step 310/500, AU 92.31%, 312.3 samples/s, drive 812 MB/s, 3% cached, "
        "0:41 left, rank 0 of 4"
    )
    assert shown.fitting(79) == (
        "epoch 1/5, step 310/500, AU 92.31%, 312.3 samples/s, drive 812 MB/s, 0:41 left"
    )
    assert shown.fitting(50) == "epoch 1/5, step 310/500, AU 92.31%, 0:41 left"
    assert shown.fitting(39) == "epoch 1/5, step 310/500, AU 92.31%"
    assert shown.fitting(5) == "epoch 1/5", "the terminal cuts it"


def test_files_and_phases_are_described() -> None:
    files = describe(FileProgress(12, 168, 2 << 30, 8 << 30, 10.0))
    assert files.fitting(100) == "12/168 files, 2.0 GiB of 8.0 GiB, 215 MB/s, 0:30 left"
    assert files.share == 0.25
    probing = describe(RunProgress(doing="probing the drive", seconds=2.6))
    assert probing.fitting(80) == "probing the drive, 3 s"
    assert describe(RunProgress(doing="starting")).fitting(80) == "starting"


def test_a_line_that_takes_long_is_shown_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 ms of CPU time each, of which a hundredth may be used."""
    now, used, pauses = [0.0], [0.0], list[float]()

    def act() -> None:
        used[0] += 0.004

    def wait(pause: float) -> bool:
        pauses.append(pause)
        now[0] += pause
        return len(pauses) == 4

    clock = SimpleNamespace(thread_time=lambda: used[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress, "largest_share", 0.01)
    monkeypatch.setattr(progress, "plain_seconds", 10.0)
    ticker = progress._Ticker(act, 0.1)
    monkeypatch.setattr(ticker, "_ended", SimpleNamespace(wait=wait))
    ticker._run()
    assert pauses == pytest.approx([0.1, 0.3, 0.4, 0.4])
