"""How fast a dataset is written, from about a second of writing it."""

import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from dlemu.datagen.content import Content
from dlemu.datagen.prepare import dataset_folders
from dlemu.datagen.recipe import Recipe
from dlemu.datagen.work import FILES_IN_FLIGHT, Stopped
from dlemu.datagen.write import FileWriter
from dlemu.storage import probe

_PROBE_SECONDS = 1.0


def write_rate(recipe: Recipe, folder: Path) -> float | None:
    """Return bytes per second at which a rank writes such files; None if it cannot tell.

    The files are written as `generate` does, into a temporary folder beside `folder`, or in the
    next folder above that is there; it is removed in the end.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    try:
        with TemporaryDirectory(dir=there, prefix=".dlemu-probe.") as name:
            for below in dataset_folders(Path(name), recipe):
                below.mkdir(parents=True, exist_ok=True)
            seconds = min(_PROBE_SECONDS, probe.longest_seconds)
            return _write_for(recipe, Path(name), seconds)
    except OSError:
        return None


class _Prober(FileWriter):
    def do(self, file: int) -> None:
        self.write_file(file)


def _write_for(recipe: Recipe, folder: Path, seconds: float) -> float | None:
    content = Content(recipe.layout.seed)
    writers = [_Prober(folder, recipe, content) for _ in range(FILES_IN_FLIGHT)]

    def write(first: int) -> None:
        # A full disk ends it early: what was written until then tells the rate.
        with suppress(OSError, Stopped):
            while not writers[first].stopped:
                for file in range(first, recipe.layout.num_files, FILES_IN_FLIGHT):
                    writers[first].do(file)
                    if writers[first].stopped:
                        return
                if first >= recipe.layout.num_files:
                    return

    threads = [Thread(target=write, args=(number,), daemon=True) for number in range(len(writers))]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    for writer in writers:
        writer.stopped = True
    for thread in threads:
        thread.join()
    return sum(writer.bytes_done for writer in writers) / (time.perf_counter() - start) or None
