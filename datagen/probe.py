"""How fast a dataset is written, from about a second of writing it."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dlemu.datagen.content import Content
from dlemu.datagen.prepare import dataset_folders
from dlemu.datagen.recipe import Recipe
from dlemu.datagen.target import FileMaker, Folder
from dlemu.datagen.work import FileProgress, Stopped, work_through
from dlemu.storage import probe
from dlemu.world.world import Alone

_SECONDS = 1.0


def write_rate(recipe: Recipe, folder: Path) -> float | None:
    """Return bytes per second at which a rank writes such files; None if it cannot tell.

    The files are written as `generate` does, into a temporary folder beside `folder`, or in the
    next folder above that is there; it is removed in the end.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    seen: list[FileProgress] = []

    def stop(progress: FileProgress) -> None:
        seen.append(progress)
        raise Stopped

    try:
        with TemporaryDirectory(dir=there, prefix=".dlemu-probe.") as name:
            for below in dataset_folders(Path(name), recipe):
                below.mkdir(parents=True, exist_ok=True)
            places, content = Folder(Path(name)).of_workers(recipe, Alone()), Content(0)
            writers = [_Prober(each, recipe, content) for each in places]
            files = np.arange(recipe.layout.num_files)
            every = min(_SECONDS, probe.longest_seconds)
            work_through(files, writers, num_bytes=0, world=Alone(), on_progress=stop, every=every)
    except (OSError, Stopped):  # a full disk may end it early
        pass
    return seen[0].bytes_done / seen[0].seconds or None if seen else None


class _Prober(FileMaker):
    def do(self, file: int) -> None:
        self.write_file(file)
