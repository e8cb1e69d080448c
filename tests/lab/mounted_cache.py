"""A real cache product: rclone's FUSE mount, which keeps copies of what it reads."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def rclone_cache(
    origin: Path, cache: Path, point: Path, *, enter: Callable[[], None] | None = None
) -> Iterator[None]:
    """Mount `origin` on `point`, with copies in `cache`.

    `enter` is called in the process that serves it, before it begins.
    """
    for program in ("rclone", "fusermount3"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not here; apt-get install rclone fuse3")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse may not be opened here")
    words = ["--vfs-cache-mode", "full", "--cache-dir", str(cache), "--config", os.devnull]
    mount = ["rclone", "mount", str(origin), str(point), "--daemon", "--daemon-wait", "2m", *words]
    if status := subprocess.run(mount, preexec_fn=enter).returncode:
        pytest.skip(f"rclone mounts nothing here: exit status {status}")
    try:
        yield
    finally:  # which ends the process as well
        subprocess.run(["fusermount3", "-u", "-z", point], check=False)
