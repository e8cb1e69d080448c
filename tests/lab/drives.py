"""A folder on a drive: one of the test's own where root allows it, else the checkout's.

On a drive that others use as well, no count of bytes is exact.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dlemu.host.devices import devices_under

_MIB = 1 << 20


@contextlib.contextmanager
def own_drive(
    num_bytes: int,
    *,
    images: Path = Path("/dev/shm"),
    make: Sequence[str] = ("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0"),
) -> Iterator[Path]:
    """Mount a new file system on a loop device; its image takes memory unless told else.

    Over an image in tmpfs the loop device counts as the drive: dlemu finds none below it.
    """
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    if not shutil.which(make[0]):
        pytest.skip(f"no {make[0]} here")
    with tempfile.TemporaryDirectory(dir=images, prefix="dlemu-drive-") as folder:
        image, point = Path(folder, "image"), Path(folder, "mounted")
        point.mkdir()
        with image.open("wb") as file:
            file.truncate(num_bytes)
        _run(*make, image)
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


@contextlib.contextmanager
def large_sectors(folder: Path, sector_bytes: int = 16384) -> Iterator[Path]:
    """Mount a new XFS on a loop device of such sectors, as of some NVMe drives and RAIDs."""
    if os.geteuid() != 0 or not shutil.which("mkfs.xfs"):
        pytest.skip("only root may mount, and mkfs.xfs is needed")
    image, point = folder / "sectors.image", folder / "sectors"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(320 * _MIB)
    sector = ("-s", f"size={sector_bytes}", "-b", f"size={sector_bytes}")
    found = subprocess.run(
        ["losetup", "-f", "--show", "-b", str(sector_bytes), image], capture_output=True, text=True
    )
    if found.returncode:
        pytest.skip(f"no loop device of such sectors: {found.stderr.strip()}")
    loop = found.stdout.strip()
    try:
        _run("mkfs.xfs", "-q", "-f", *sector, loop)
        mount = subprocess.run(["mount", loop, point], capture_output=True, text=True)
        if mount.returncode:
            pytest.skip(f"this kernel has no blocks larger than a page: {mount.stderr.strip()}")
        try:
            yield point
        finally:
            subprocess.run(["umount", point], check=True)
    finally:
        subprocess.run(["losetup", "-d", loop], check=True)
