"""What is read: the dataset with its way of reading, and the tasks of its workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import sub
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Dataset, Layout, Samples
from dlemu.dataset.plan import EpochPlan
from dlemu.errors import WorkloadError
from dlemu.formats import FORMATS
from dlemu.loaders.checksums import CHECKSUMS
from dlemu.storage.extents import settle_direct
from dlemu.workload.model import Workload

Memory = NDArray[np.uint8]

_STEPS_AT_ONCE = 64


class Task(NamedTuple):
    """A batch that a worker is to make, or its part of one."""

    epoch: int
    step: int
    samples: Samples
    """Sample numbers that it hands over, int64 (samples,)."""
    rows: Samples
    """Row of the batch for each of them, int64 (samples,)."""
    fetch: Samples
    """Sample numbers to read from storage now, in this order, int64 (fetched,)."""
    places: Samples | None
    """int64 (3, fetched): the payload's offset, the payload's bytes, the file's bytes. Only where
    a file holds one sample and dlemu wrote it; None: each file's header must be parsed."""


class Cost(NamedTuple):
    """What a batch cost its worker."""

    num_bytes: int
    """Read from storage."""
    read_seconds: float
    decode_seconds: float
    hand_over_seconds: float

    def since(self, before: "Cost") -> "Cost":
        """Return what came since an earlier count."""
        return Cost(*map(sub, self, before))


@dataclass(frozen=True)
class Source:
    """A dataset, and how it is read."""

    dataset: Dataset
    direct: bool
    """Whether O_DIRECT is used."""
    keep: int = 0
    """Batches that training may hold at once, the current one included; 0: bytes are dropped."""

    @classmethod
    def open(cls, dataset: Dataset, *, keep: int) -> "Source":
        """Return how a dataset is read; raise what `open_loader` raises."""
        reader, layout = dataset.workload.reader, dataset.layout
        if reader.decode == "library" and reader.odirect is True:
            raise WorkloadError(
                "reader.odirect must be false or auto where reader.decode=library, got true: "
                "np.load, h5py and TFRecord parsers read through the page cache"
            )
        if reader.check_crc and reader.decode == "raw" and layout.format not in CHECKSUMS:
            raise WorkloadError(
                f"reader.check_crc must be false for {layout.format} files, which have no checksums"
            )
        odirect = False if reader.decode == "library" else reader.odirect
        direct = settle_direct(dataset.folder / layout.path(0), odirect)
        return cls(dataset, direct, keep)

    @property
    def workload(self) -> Workload:
        return self.dataset.workload

    @property
    def layout(self) -> Layout:
        return self.dataset.layout

    @property
    def takes_early(self) -> int:
        """Batches that the training loop takes while it computes: 1 if it is pipelined, else 0."""
        return 1 if self.workload.train.loop == "pipelined" else 0

    @property
    def reads_when_asked(self) -> bool:
        """Whether a batch is read while the training loop waits for it, and never before."""
        return self.workload.batches_in_flight == 1

    def tasks(
        self,
        epoch: int,
        plan: EpochPlan,
        accelerator: int,
        *,
        stream: int = 0,
        num_streams: int = 1,
    ) -> Iterator[Task]:
        """Yield the tasks of one of an accelerator's `num_streams` workers, step by step.

        Stream w makes the batches of steps w, w + num_streams …; in an interleaved plan, its part
        of every batch.
        """
        whole = np.arange(self.workload.reader.batch_size)
        steps: Sequence[int] = range(stream, plan.num_steps, num_streams)
        if plan.stream_of is not None:
            steps = np.flatnonzero(plan.takes_part(accelerator)[:, stream]).tolist()
        # Places are computed for many steps at once: each NumPy call has a fixed cost.
        for start in range(0, len(steps), _STEPS_AT_ONCE):
            block = steps[start : start + _STEPS_AT_ONCE]
            if plan.stream_of is None:
                parts = [(whole, plan.fetch(step, accelerator)) for step in block]
            else:
                parts = [plan.part(step, accelerator, stream) for step in block]
            places = self._places([fetch for _, fetch in parts])
            for step, (rows, fetch), three in zip(block, parts, places, strict=True):
                samples = plan.samples[step, accelerator]
                samples = samples if rows is whole else samples[rows]
                yield Task(epoch, step, samples, rows, fetch, three)

    def _places(self, fetches: Sequence[Samples]) -> Sequence[Samples | None]:
        """Return `Task.places` of each batch."""
        if not self.dataset.known_places or self.layout.samples_per_file > 1:
            return [None] * len(fetches)
        file_format = FORMATS[self.layout.format]
        sizes = self.layout.sizes(np.concatenate(fetches))
        whole = file_format.file_bytes(sizes[:, None])
        ends = np.cumsum([len(fetch) for fetch in fetches])
        three = np.stack([file_format.starts(sizes), sizes, whole])
        return np.split(three, ends[:-1], axis=1)
