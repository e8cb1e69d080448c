"""What lies in a data folder: one pass over its directories, no file opened."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlemu.files import Layout

WORK = ".dlemu"
"""Folder in which an unfinished dataset's journals are."""
PARTIAL = ".partial"
"""Behind the name of a file that is being written."""


@dataclass(frozen=True)
class Listing:
    """The files below a data folder that a layout names, and the others."""

    sizes: NDArray[np.int64]
    """Bytes of each file, -1 where there is none."""
    index_sizes: NDArray[np.int64]
    """The same for the indexes; all -1 where the format has none."""
    others: tuple[str, ...]
    """Paths below the folder that are no file's."""


def list_files(folder: Path, layout: Layout) -> Listing:
    """Return what lies below `train/` and `index/` of a data folder."""
    sizes = np.full((2, layout.num_files), -1, np.int64)
    others = []
    trees = (("train", layout.path), ("index/train", layout.index_path))
    for place, (tree, path) in enumerate(trees):
        for below, entry in walk(folder, tree):
            file = _file_number(entry.name)
            if file is not None and file < layout.num_files and path(file) == below:
                sizes[place, file] = entry.stat().st_size
            else:
                others.append(below)
    return Listing(sizes[0], sizes[1], tuple(sorted(others)))


def walk(folder: Path, tree: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all files in `folder/tree`, with their paths below `folder`; none if it is not there.

    Links to folders are followed: a dataset may be spread over several drives by them.
    """
    left = [tree]
    while left:
        below = left.pop()
        try:
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    if entry.is_dir():
                        left.append(f"{below}/{entry.name}")
                    else:
                        yield f"{below}/{entry.name}", entry
        except FileNotFoundError:
            continue


def _file_number(name: str) -> int | None:
    """Return i of "img_i_of_n.npz"."""
    parts = name.rsplit("_", 3)
    return int(parts[1]) if len(parts) == 4 and parts[1].isdecimal() else None
