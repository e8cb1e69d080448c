"""The files in a data folder, by one pass over its directories; no file is opened."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Layout
from dlemu.storage.atomic import PARTIAL

WORK = ".dlemu"
"""Subfolder for the plan and the journals of an unfinished dataset."""
_NUMBER = re.compile(r".*_(\d{1,19})_of_\d+\.", re.ASCII | re.DOTALL)
_LEFT_BEHIND = {"lost+found", "Thumbs.db", "desktop.ini"}

Layouts = Sequence[Layout]


def left_behind(name: str) -> bool:
    """Return whether a file is hidden, or a server's or desktop's: never read, nor in the way."""
    return name.startswith(".") or name in _LEFT_BEHIND


@dataclass(frozen=True)
class Listing:
    """What lies below `train/` and `index/` of a data folder; paths are below that folder."""

    found: tuple[NDArray[np.int64], ...]
    """For each layout the bytes of its files and of their indexes, int64 (1 + indexes, files);
    -1: missing."""
    partial: tuple[str, ...]
    """Temporary files of the layouts, left by an interrupted datagen."""
    left_behind: tuple[str, ...]
    """Files that are never read: see `left_behind`."""
    strays: tuple[str, ...]
    """All other files: they do not belong to the dataset."""


def sort_out(found: Iterable[tuple[str, os.DirEntry[str] | int]], layouts: Layouts) -> Listing:
    """Sort what was found: each path below the data folder, with its entry or its bytes."""
    sizes = [
        np.full((1 + len(layout.index_paths(0)), layout.num_files), -1, np.int64)
        for layout in layouts
    ]
    partial: list[str] = []
    ignored: list[str] = []
    strays: list[str] = []
    for below, entry in found:
        whole = below.removesuffix(PARTIAL)
        owner = _owner(whole, layouts)
        if owner is None:
            (ignored if left_behind(below.rpartition("/")[2]) else strays).append(below)
        elif whole != below:
            partial.append(below)
        else:
            number, place, file = owner
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile, or a broken link
                size = entry if isinstance(entry, int) else entry.stat().st_size
                sizes[number][place, file] = size
    return Listing(tuple(sizes), *(tuple(sorted(paths)) for paths in (partial, ignored, strays)))


def _owner(below: str, layouts: Layouts) -> tuple[int, int, int] | None:
    """Return the number of the layout that a path belongs to, its row in `found`, and its file."""
    match = _NUMBER.match(below)
    if match is None:
        return None
    file = int(match[1])
    for number, layout in enumerate(layouts):
        if file >= layout.num_files:
            continue
        if layout.path(file) == below:
            return number, 0, file
        indexes = layout.index_paths(file)
        if below in indexes:
            return number, 1 + indexes.index(below), file
    return None


def walk(folder: Path, tree: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all files in `folder/tree` with their paths below `folder`; none if it does not exist.

    Links to folders are followed: they may spread a dataset over several drives. Hidden folders
    (a file server's snapshots) and `lost+found` are skipped.
    """
    left = [tree]
    while left:
        below = left.pop()
        try:
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    if not entry.is_dir():
                        yield f"{below}/{entry.name}", entry
                    elif not left_behind(entry.name):
                        left.append(f"{below}/{entry.name}")
        except FileNotFoundError:
            continue
