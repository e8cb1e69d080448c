"""The real writer beside ours: torch.distributed.checkpoint writes tensors of the same bytes."""

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from dlemu.checkpoint.files import Stopped, WriteTimes
from dlemu.datagen.assemble import Content
from dlemu.errors import WorkloadError
from dlemu.host.processes import host_memory_bytes
from dlemu.storage.atomic import sync_folder
from dlemu.units import format_bytes

FILES = ("__0_0.distcp", ".metadata", ".metadata.tmp")
"""What torch writes for one accelerator."""


def find_dcp() -> Any:
    """Return torch.distributed.checkpoint.

    Raises:
        WorkloadError: torch is missing.
    """
    try:
        import torch.distributed.checkpoint as dcp
    except ImportError:
        raise WorkloadError(
            "checkpoint.writer=dcp needs torch; pip install 'dlemu[torch]', or leave it out"
        ) from None
    # Without a process group each accelerator saves for itself, as is meant here.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    return dcp


def check_dcp(num_bytes: int) -> None:
    """Refuse tensors of a host for which this one has too little memory.

    Raises:
        WorkloadError: it has less than `num_bytes`, or torch is missing.
    """
    find_dcp()
    memory, _ = host_memory_bytes()
    if num_bytes > memory:
        raise WorkloadError(
            f"checkpoint.writer=dcp keeps its tensors in memory: {format_bytes(num_bytes)} on a "
            f"host of {format_bytes(memory)}; set a smaller checkpoint.scale"
        )


def folder_of(accelerator: int) -> str:
    """Return the folder of an accelerator within a checkpoint's."""
    return f"dcp_{accelerator}"


class DcpWriter:
    """Has the methods of Writer. The tensors lie in memory, as those of a training job do.

    Each accelerator saves for itself, without a process group: one file, by one thread, and its
    metadata, as torch does by default for each rank.
    """

    def __init__(self, content: Content, accelerator: int, *, fsync: bool) -> None:
        self._dcp, self._content = find_dcp(), content
        self._accelerator, self._fsync = accelerator, fsync
        self._tensors: dict[int, Any] = {}
        self._generation = 0.0
        self.bytes_done = 0
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tensors.clear()

    def stop(self) -> None:
        """Write nothing from the next call on; one that runs goes on."""
        self._stopped = True

    def prepare(self, files: Sequence[tuple[int, int]]) -> None:
        """Make the tensors (sample, bytes), outside the measured time."""
        import torch

        begin = time.thread_time()
        self._tensors.clear()
        for sample, num_bytes in files:
            out = np.empty(num_bytes, np.uint8)
            self._content.fill(out, sample)
            self._tensors[sample] = torch.from_numpy(out)
        self._generation = time.thread_time() - begin

    def write_share(self, folder: Path, files: Sequence[tuple[str, int, int]]) -> WriteTimes:
        """Save the prepared tensors as one state; raises as torch does, or Stopped."""
        if self._stopped:
            raise Stopped
        below = folder / folder_of(self._accelerator)
        writer = self._dcp.FileSystemWriter(below, sync_files=self._fsync)
        state = {name: self._tensors[sample] for name, _, sample in files}
        begin = time.perf_counter()
        self._dcp.save(state, storage_writer=writer, no_dist=True)
        saved = time.perf_counter()
        if self._fsync:
            sync_folder(folder)
        num_bytes = sum(size for _, size, _ in files)
        self.bytes_done += num_bytes
        return WriteTimes(
            num_bytes=num_bytes,
            write=saved - begin,
            fsync=time.perf_counter() - saved,
            generation=self._generation,
        )
