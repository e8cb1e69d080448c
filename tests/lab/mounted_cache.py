"""A real cache product: rclone's FUSE mount, which keeps copies of what it reads."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.waiting import LONG


@contextlib.contextmanager
def rclone_cache(
    origin: Path, cache: Path, point: Path, *, enter: Callable[[], None] | None = None
) -> Iterator[int]:
    """Mount `origin` on `point`, with copies in `cache`; yield the process that serves it.

    `enter` is called in that process before it begins.
    """
    for program in ("rclone", "fusermount3"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not here; apt-get install rclone fuse3")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse may not be opened here")
    words = ["--vfs-cache-mode", "full", "--cache-dir", str(cache), "--config", os.devnull]
    served = subprocess.Popen(
        ["rclone", "mount", origin, point, *words],
        stderr=subprocess.PIPE,
        preexec_fn=enter,
    )
    try:
        deadline = time.monotonic() + LONG
        while not point.is_mount():
            if served.poll() is not None or time.monotonic() > deadline:
                assert served.stderr is not None
                pytest.skip(f"rclone mounts nothing here: {served.stderr.read().decode()[-200:]}")
            time.sleep(0.02)
        yield served.pid
    finally:
        subprocess.run(["fusermount3", "-u", "-z", point], check=False)
        served.terminate()
        served.wait(30)
        assert served.stderr is not None
        served.stderr.close()
