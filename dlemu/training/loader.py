"""The loader of a training loop of one's own."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from dlemu.datagen.find import find_dataset
from dlemu.dataset.plan import make_plan
from dlemu.errors import WorkloadError
from dlemu.loaders import Batch, SharesMemory, check_loader, open_loader
from dlemu.workload.model import Workload
from dlemu.world.world import Alone, World

if TYPE_CHECKING:
    from dlemu.gpu.cuda import Pinned


_HELD = 2
"""Batches that a loop may use at once: the one it computes on, and the next, which it copies."""


class TrainingLoader:
    """Yields one accelerator's batches, an epoch at a time, with the samples' bytes.

    `batch.data` is one uint8 array (batch, bytes) that the worker has filled: each row has exactly
    `record_length_bytes_resize` bytes where that is set, else those of the largest sample, padded
    with zeros. It is valid until the next but one is taken, for its memory is reused; with `pin`
    that memory is pinned, and torch.from_numpy(batch.data).to("cuda", non_blocking=True) copies
    while the program goes on. The workers read as far ahead as a DataLoader's, whatever
    `train.loop` says: when the next batch is asked for is for the training loop to decide.
    `set_epoch` shuffles anew, as with PyTorch's DistributedSampler; without it every pass is the
    next epoch. Closing, or leaving a `with`, ends the workers.
    """

    def __init__(
        self, workload: Workload, *, rank: int, num_ranks: int, world: World, pin: bool
    ) -> None:
        check_loader(workload, 1)
        found = find_dataset(workload, world)
        self.workload = found.workload.with_keys({"train.loop": "rule"})
        self.notes, self._layout = found.notes, found.layout
        self._rank, self._num_ranks = rank, num_ranks
        self._epoch = 0
        self._pinned: Pinned | None = None
        self._loader = open_loader(
            replace(found, workload=self.workload), accelerators=range(rank, rank + 1), keep=_HELD
        )
        if pin:
            self._pinned = self._pin()

    def _pin(self) -> "Pinned":
        from dlemu.gpu.cuda import Pinned

        if not isinstance(self._loader, SharesMemory):
            name = self.workload.reader.data_loader
            self.close()
            raise WorkloadError(
                f"pin needs reader.data_loader=pytorch, threads or tensorflow, got {name}"
            )
        try:
            return Pinned(self._loader.memory())
        except BaseException:
            self.close()
            raise

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        """Yield the epoch's batches.

        Raises:
            DatasetError: a file is missing or damaged.
            RunError: a worker died.
        """
        epoch, self._epoch = self._epoch, self._epoch + 1
        plan = make_plan(self.workload, self._layout, num_accelerators=self._num_ranks, epoch=epoch)
        for (batch,) in self._loader.epoch(epoch, plan):
            yield batch

    def __len__(self) -> int:
        """Return the steps of an epoch."""
        plan = make_plan(
            self.workload, self._layout, num_accelerators=self._num_ranks, epoch=self._epoch
        )
        return plan.num_steps

    def close(self) -> None:
        """End the workers; may be called again."""
        if self._pinned is not None:
            self._pinned.close()
        self._loader.close()

    def __enter__(self) -> "TrainingLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_loader(
    workload: Workload,
    *,
    rank: int = 0,
    num_ranks: int = 1,
    world: World | None = None,
    pin: bool = False,
) -> TrainingLoader:
    """Return the loader of one of `num_ranks` training processes, each its share of every epoch.

    `rank` is 0 to num_ranks - 1; a `world` (dlemu.make_world()) says both, and is needed only
    where the dataset's size is to be settled over several hosts. `pin` puts the batches into pinned
    memory, from which a GPU copies while the program goes on.

    Raises:
        DatasetError: there is no dataset, or it does not fit the workload.
        RunError: `pin`, and there is no GPU.
        WorkloadError: rank is not below num_ranks, a package is missing, or memory is short.
    """
    if world is not None:
        rank, num_ranks = world.rank, world.num_ranks
    if not 0 <= rank < num_ranks:
        raise WorkloadError(f"rank must be at least 0 and below num_ranks {num_ranks}, got {rank}")
    return TrainingLoader(workload, rank=rank, num_ranks=num_ranks, world=world or Alone(), pin=pin)
