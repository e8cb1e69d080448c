"""Progress: a bar on a terminal, and a plain line every few seconds elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dlemu.datagen.work import FileProgress
from dlemu.terminal import say
from dlemu.units import format_bytes, format_rate, format_seconds

_PLAIN_SECONDS = 5.0


@contextmanager
def show_progress(
    title: str, *, quiet: bool = False
) -> Iterator[Callable[[FileProgress], None] | None]:
    """Yield a function that shows a FileProgress; None if `quiet`."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _plain(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    with Bar(
        TextColumn(title),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=None, text="")

        def show(progress: FileProgress) -> None:
            bar.update(
                task,
                completed=progress.bytes_done,
                total=progress.bytes_total,
                text=describe(progress),
            )

        yield show


def describe(progress: FileProgress) -> str:
    """Return "12/168 files, 1.7 of 22.9 GiB, 1.2 GB/s, 0:18 left"."""
    rate = progress.bytes_done / progress.seconds if progress.seconds > 0 else 0.0
    left = (progress.bytes_total - progress.bytes_done) / rate if rate else float("inf")
    rest = f", {format_seconds(left)} left" if left != float("inf") else ""
    return (
        f"{progress.files_done:,}/{progress.files_total:,} files, "
        f"{format_bytes(progress.bytes_done)} of {format_bytes(progress.bytes_total)}, "
        f"{format_rate(rate)}{rest}"
    )


def _plain(title: str) -> Callable[[FileProgress], None]:
    last = time.perf_counter()

    def show(progress: FileProgress) -> None:
        nonlocal last
        if time.perf_counter() - last >= _PLAIN_SECONDS:
            last = time.perf_counter()
            say(f"{title}: {describe(progress)}", to_stderr=True)

    return show
