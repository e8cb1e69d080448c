"""How far a command is: a live line on a terminal, and a plain line every 10 s elsewhere."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlemu.ranks.ending import last_act
from dlemu.ranks.world import World
from dlemu.terminal import erased_by, is_quiet, say, shown_line, turn
from dlemu.units import format_bytes, format_left, format_rate, format_seconds

if TYPE_CHECKING:
    from dlemu.checkpoint.crew import CheckpointProgress
    from dlemu.datagen.target import FileProgress
    from dlemu.run.live import RunProgress

    Shown = RunProgress | FileProgress | CheckpointProgress | str

live_seconds, plain_seconds = 1.0, 10.0
"""Between two looks at a terminal, and between two lines of text elsewhere."""
largest_share = 0.0008
"""Of a core, for all that is shown; a line that costs more is shown less often."""
_END_SECONDS = 2.0
"""Longest wait for a line that is being written, where nobody reads the terminal."""
_SHORTEST_BAR, _LONGEST_BAR = 8, 40


@dataclass(frozen=True)
class ProgressView:
    """One state of the progress lines."""

    pieces: tuple[str, ...]
    """Of the line, in order; an empty one is left out."""
    first_dropped: tuple[int, ...] = ()
    """Which of them are left out where the line is too narrow, the least important first."""
    above: str = ""
    """The line above."""
    share: float | None = None
    """Share (0-1) that is done, for the bar; None: not known."""

    def fitting(self, width: int) -> str:
        """Return the line with as many pieces as fit; the first may still be too long."""
        left = dict(enumerate(self.pieces))
        for index in (*self.first_dropped, *reversed(range(1, len(self.pieces)))):
            text = ", ".join(filter(None, left.values()))
            if len(text) <= width:
                break
            left.pop(index, None)
        return ", ".join(filter(None, left.values()))


def shows(workload: Any, world: World) -> bool:
    """Return whether this rank shows how far it is; `workload` is None if a folder was given."""
    wanted = workload is None or workload.progress == "on"
    return world.rank == 0 and wanted and not is_quiet()


@contextmanager
def show_progress(title: str, now: Callable[[], "Shown"], *, on: bool) -> Iterator[None]:
    """Show what `now()` returns, about once a second, from a thread of its own.

    It goes to stderr. The line is gone when the `with` ends, however it ends. Nothing that fails
    here reaches the command.
    """
    if not on:
        yield
        return
    place: _Line | _PlainLines = _PlainLines(title)
    if sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        if console.is_terminal and not console.is_dumb_terminal:
            place = _Line(console)
    with (
        erased_by(place.erase),
        _Ticker(lambda: place.show(describe(now())), place.seconds) as ticker,
        last_act(ticker.stop),
    ):
        yield


@contextmanager
def show_files(title: str, *, on: bool) -> Iterator[Callable[["FileProgress"], None] | None]:
    """Yield a function that takes each FileProgress, which is shown; None if not `on`."""
    looking = Doing("looking at the folder")
    latest: deque[FileProgress] = deque(maxlen=1)

    def now() -> "FileProgress | str":
        return latest[0] if latest else str(looking)

    with show_progress(title, now, on=on):
        yield latest.append if on else None


class Doing:
    """What a command does at the moment, how much of it is done, and since when."""

    def __init__(self, text: str = "starting") -> None:
        self.begin(text)

    def begin(self, text: str) -> None:
        """Say what is done from now on."""
        self._text, self._since, self._num_bytes = text, time.perf_counter(), 0

    def add(self, num_bytes: int) -> None:
        """Count bytes that were read."""
        self._num_bytes += num_bytes

    def __str__(self) -> str:
        done = f", {format_bytes(self._num_bytes)}" if self._num_bytes else ""
        return _lasting(f"{self._text}{done}", time.perf_counter() - self._since)


def _lasting(text: str, seconds: float) -> str:
    return f"{text}, {format_seconds(round(seconds))}" if seconds >= 1 else text


def describe(progress: "Shown") -> ProgressView:
    """Return what is shown of it."""
    from dlemu.datagen.target import FileProgress

    if isinstance(progress, str):
        return ProgressView((progress,))
    if isinstance(progress, FileProgress):
        return _describe_files(progress)
    from dlemu.checkpoint.crew import CheckpointProgress

    if isinstance(progress, CheckpointProgress):
        return _describe_checkpoint(progress)
    return _describe_run(progress)


def _describe_checkpoint(now: "CheckpointProgress") -> ProgressView:
    """Return "writing checkpoint 1, 1.2 GiB of 15 GiB, 1.2 GB/s"; nothing of its first second."""
    if not now.num_bytes or now.seconds < 1:
        return ProgressView((now.doing,))
    done, rate = format_bytes(now.num_done), format_rate(now.num_done / now.seconds)
    return ProgressView((f"{now.doing}, {done} of {format_bytes(now.num_bytes)}, {rate}",))


def _describe_files(progress: "FileProgress") -> ProgressView:
    """Return "12/168 files, 1.7 GiB of 22.9 GiB, 1.2 GB/s, 0:18 left"."""
    done, total = progress.bytes_done, progress.bytes_total
    rate = done / progress.seconds if progress.seconds > 0 else 0.0
    return ProgressView(
        (
            f"{progress.files_done:,}/{progress.files_total:,} files",
            f"{format_bytes(done)} of {format_bytes(total)}",
            format_rate(rate),
            format_left((total - done) / rate) if rate else "",
        ),
        first_dropped=(1, 2),
        share=done / total if total else None,
    )


def _describe_run(now: "RunProgress") -> ProgressView:
    """Return "epoch 1/5, step 310/500, AU 92.31%, 312 samples/s, drive 812 MB/s, ..."."""
    if not now.steps:
        return ProgressView((_lasting(now.doing, now.seconds),), above=now.job)
    au, rate = now.au_percentage, now.samples_per_second
    drive, cached, saved = now.drive_bytes_per_second, now.cached_share, now.checkpoint
    return ProgressView(
        (
            f"epoch {now.epoch:,}/{now.epochs:,}",
            f"step {now.step:,}/{now.steps:,}",
            "" if au is None else f"AU {au:.2f}%",
            "" if rate is None else f"{rate:,.4g} samples/s",
            "" if drive is None else f"drive {format_rate(drive)}",
            "" if cached is None else f"{100 * cached:.0f}% cached",
            "" if saved is None else f"checkpoint {saved.number}: {100 * saved.share:.0f}%",
            "" if now.seconds_left is None else format_left(now.seconds_left),
            "" if now.num_ranks == 1 else f"rank 0 of {now.num_ranks:,}",
        ),
        first_dropped=(5, 8, 3, 4),
        above=now.job,
        share=now.share,
    )


class _PlainLines:
    """A line of text now and then."""

    def __init__(self, title: str) -> None:
        self._title, self.seconds = title, plain_seconds

    def show(self, what: ProgressView) -> None:
        words = [what.above, *what.pieces]
        say(shown_line(f"{self._title}: {', '.join(filter(None, words))}"), to_stderr=True)

    def erase(self) -> None:
        """Lines of text stay."""


class _Line:
    """A line at the terminal's end, with another above it where there is one to show.

    It is drawn without hiding the cursor or scrolling: a process that is killed leaves a terminal
    that works.
    """

    def __init__(self, console: Any) -> None:
        from rich.control import Control
        from rich.progress_bar import ProgressBar
        from rich.segment import ControlType as Do
        from rich.text import Text

        self._console, self.seconds = console, live_seconds
        self._height = 0
        self._text, self._bar = Text, ProgressBar
        line = (Do.CARRIAGE_RETURN, (Do.ERASE_IN_LINE, 2))
        above = ((Do.CURSOR_UP, 1), (Do.ERASE_IN_LINE, 2))
        self._erasing = {1: Control(*line), 2: Control(*line, *above)}

    def show(self, what: ProgressView) -> None:
        console = self._console
        width = console.width - 1  # the last column may begin a line
        texts = (what.above, what.fitting(width))
        lines = [self._text(shown_line(text)) for text in texts if text]
        for each in lines:
            each.truncate(width, overflow="ellipsis")
        room = min(_LONGEST_BAR, width - lines[-1].cell_len - 1)
        with turn():
            self._height = len(lines)
            console.print(self._text("\n").join(lines), end="", soft_wrap=True)
            if what.share is not None and room >= _SHORTEST_BAR:
                bar = self._bar(total=1.0, completed=what.share, width=room)
                console.print(" ", bar, sep="", end="", soft_wrap=True)

    def erase(self) -> None:
        """Remove it, if it is there."""
        height, self._height = self._height, 0
        if height:
            self._console.control(self._erasing[height])


class _Ticker:
    """Calls a function now and then, from a thread of its own, until it fails or is stopped."""

    def __init__(self, act: Callable[[], object], seconds: float) -> None:
        self._act, self._seconds = act, seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live line", daemon=True)

    def __enter__(self) -> "_Ticker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, error: BaseException | None = None) -> None:
        """Show nothing more, and erase the line."""
        self._ended.set()
        self._thread.join(_END_SECONDS)
        with turn():
            pass

    def _run(self) -> None:
        begin, used = time.perf_counter(), time.thread_time()
        pause = self._seconds
        while not self._ended.wait(pause):
            with suppress(Exception):
                self._act()
            owed = (time.thread_time() - used) / largest_share - (time.perf_counter() - begin)
            pause = min(max(self._seconds, owed), plain_seconds)
