"""A folder on a drive: one of the test's own where root allows it, else the checkout's.

On a drive that others use as well, no count of bytes is exact.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlemu.host.devices import devices_under

_MIB = 1 << 20


@contextlib.contextmanager
def own_drive(num_bytes: int, *, images: Path = Path("/dev/shm")) -> Iterator[Path]:
    """Mount a new ext4 file system on a loop device; its image takes memory unless told else.

    Over an image in tmpfs the loop device counts as the drive: dlemu finds none below it.
    """
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    with tempfile.TemporaryDirectory(dir=images, prefix="dlemu-drive-") as folder:
        image, point = Path(folder, "image"), Path(folder, "mounted")
        point.mkdir()
        with image.open("wb") as file:
            file.truncate(num_bytes)
        _run("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", image)
        _run("mount", "-o", "loop,noatime", image, point)
        try:
            yield point
        finally:
            subprocess.run(["umount", point], check=True)


@contextlib.contextmanager
def drive_folder(num_bytes: int) -> Iterator[Path]:
    """Give a folder on a drive for files of this size together; skip where there is none."""
    if os.geteuid() == 0 and shutil.which("mkfs.ext4"):
        with own_drive(num_bytes + num_bytes // 8 + 8 * _MIB) as folder:
            yield folder
        return
    build = Path.cwd() / "build"
    build.mkdir(exist_ok=True)
    if not devices_under(build):
        pytest.skip(f"{build} is on no block device")
    with tempfile.TemporaryDirectory(dir=build, prefix="drive-") as name:
        yield Path(name)


@contextlib.contextmanager
def mounted(point: Path, options: str = "rw", kind: str = "tmpfs") -> Iterator[Path]:
    """Mount a file system in memory on a new folder; a small one: "size=64k"."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    point.mkdir()
    _run("mount", "-t", kind, "-o", options, kind, point)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


@contextlib.contextmanager
def bound(folder: Path, point: Path) -> Iterator[Path]:
    """Let a folder be seen at another place as well."""
    point.mkdir(exist_ok=True)
    _run("mount", "--bind", folder, point)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{command[0]} cannot be used here: {done.stderr.strip()}")
