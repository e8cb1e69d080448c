"""An epoch's batches in the plan's order. Loaders by name, imported when asked for.

A loader serves all accelerators that one rank emulates. Each accelerator has `read_threads`
workers; worker w makes its batches of steps w, w + read_threads, w + 2 read_threads …, or, in
tf.data's order, its part of every batch. How far they read ahead follows from what the emulated
training loop has taken (`train.loop`, `Workload.batches_in_flight`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Dataset, Samples
from dlemu.dataset.plan import EpochPlan
from dlemu.errors import WorkloadError
from dlemu.loaders.descriptors import make_room
from dlemu.storage.path_bytes import PathBytes
from dlemu.workload.model import Workload


@dataclass(frozen=True, slots=True)
class Batch:
    """What one accelerator gets for one step."""

    epoch: int
    step: int
    accelerator: int
    samples: Samples
    """Sample numbers, int64 (batch,)."""
    num_bytes: int
    """Bytes that were read from storage for it, headers and read-ahead of a stream included."""
    ready: float
    """Time (perf_counter) at which the accelerator could take it."""
    read_seconds: float
    """Seconds that its worker spent in reads; so for decode (parsing, checksums) and hand-over
    (copying and padding)."""
    decode_seconds: float
    hand_over_seconds: float
    data: NDArray[np.uint8] | None = None
    """(batch, row_bytes): the samples collated into one array. A row has
    record_length_bytes_resize bytes (cut, or padded with zeros); where that is not set, those of
    the largest sample. Its memory is used again: `open_loader` says when."""
    lengths: NDArray[np.int64] | None = None
    """(batch,): bytes of each row that are the sample's."""

    @property
    def arrays(self) -> list[NDArray[np.uint8]] | None:
        """The samples one by one, each of its own length: views of `data`."""
        if self.data is None or self.lengths is None:
            return None
        rows = zip(self.data, self.lengths.tolist(), strict=True)
        return [row[:length] for row, length in rows]


class Loader(Protocol):
    """Reads batches for the accelerators of one rank."""

    @property
    def direct(self) -> bool:
        """Whether O_DIRECT is really used (`reader.odirect=auto` may have fallen back)."""
        ...

    def epoch(self, epoch: int, plan: EpochPlan) -> Iterator[list[Batch]]:
        """Yield for each step one batch of every accelerator; may be closed before its end.

        Raises:
            DatasetError: a file is missing, damaged or not what the workload says.
            RunError: a worker died.
        """
        ...

    def waiting_for(self) -> str:
        """Return what the workers are reading now, and for how long, the longest first."""
        ...

    def pids(self) -> list[int]:
        """Return the worker processes."""
        ...

    def close(self) -> None:
        """End all workers; may be called again."""
        ...


@runtime_checkable
class TellsPaths(Protocol):
    """A loader that may read past the host's memory, and knows which way the bytes took."""

    notes: tuple[str, ...]
    """What of the keys could not be met, to be shown."""

    def path_bytes(self) -> PathBytes:
        """Return the bytes so far, by path; before `close`.

        Raises:
            RunError: reader.gds=require, and some went through the host.
        """
        ...


@runtime_checkable
class SharesMemory(Protocol):
    """A loader that hands batches over in memory of its own, always the same."""

    def memory(self) -> list[NDArray[np.uint8]]:
        """Return the arrays that batches are handed over in."""
        ...


class _OpenLoader(Protocol):
    def __call__(
        self,
        dataset: Dataset,
        *,
        accelerators: range,
        keep: int,
    ) -> Loader: ...


LOADERS = {
    "pytorch": ("dlemu.loaders.pytorch", "PyTorchLoader", "torch"),
    "tensorflow": ("dlemu.loaders.threads", "ThreadsLoader", ""),
    "threads": ("dlemu.loaders.threads", "ThreadsLoader", ""),
    "dali": ("dlemu.loaders.dali.loader", "DaliLoader", "dali-cuda13"),
    "native_dali": ("dlemu.loaders.dali.loader", "DaliLoader", "dali-cuda13"),
}
"""Module, class, and the extra that it needs, by `reader.data_loader`."""


def check_loader(workload: Workload, num_accelerators: int) -> None:
    """Refuse at once what this host lacks for the loader of so many accelerators.

    Raises:
        WorkloadError: a package or a GPU is missing, or too few files may be open.
    """
    _find_loader(workload)
    if workload.dataset.format == "hdf5" and find_spec("h5py") is None:
        raise WorkloadError("dataset.format=hdf5 needs h5py: pip install h5py")
    if workload.dali.device == "gpu":
        import_module("dlemu.loaders.dali.loader").find_gpus(workload)
    make_room(workload, num_accelerators)


def open_loader(dataset: Dataset, *, accelerators: range, keep: int) -> Loader:
    """Return the loader that `reader.data_loader` names, for these global accelerator numbers.

    `keep`: batches have `data`, and each stays valid until so many more were taken; with 0 the
    bytes are counted and dropped where the loader can.

    Raises:
        DatasetError: the first file cannot be read.
        WorkloadError: a package is missing, or a key asks for what cannot be.
    """
    return _find_loader(dataset.workload)(dataset, accelerators=accelerators, keep=keep)


def _find_loader(workload: Workload) -> _OpenLoader:
    module, name, extra = LOADERS[workload.reader.data_loader]
    try:
        return cast(_OpenLoader, getattr(import_module(module), name))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dlemu"):
            raise
        raise WorkloadError(
            f"reader.data_loader={workload.reader.data_loader} needs {error.name}: "
            f"pip install 'dlemu[{extra}]', or use reader.data_loader=threads"
        ) from None
