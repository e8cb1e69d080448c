"""The loader of a training loop of one's own."""

from collections.abc import Iterator

from dlemu.errors import WorkloadError
from dlemu.job import find_dataset
from dlemu.loaders import Batch, open_loader
from dlemu.plan import make_plan
from dlemu.workload import Workload
from dlemu.world import Alone, World


class TrainingLoader:
    """Yields one accelerator's batches, an epoch at a time, with the samples' bytes.

    `batch.arrays` holds one uint8 array a sample, of exactly `record_length_bytes_resize` bytes
    where that is set; they are valid until the next batch is taken, for their memory is reused.
    `set_epoch` shuffles anew, as with PyTorch's DistributedSampler; without it every pass is the
    next epoch. Closing, or leaving a `with`, ends the workers.
    """

    def __init__(self, workload: Workload, *, rank: int, num_ranks: int, world: World) -> None:
        self.workload, self._layout, known, self.notes = find_dataset(workload, world)
        self._rank, self._num_ranks = rank, num_ranks
        self._epoch = 0
        self._loader = open_loader(
            self.workload,
            self._layout,
            self.workload.data_folder,
            accelerators=range(rank, rank + 1),
            known_places=known,
            keep=True,
        )

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
        self._loader.close()

    def __enter__(self) -> "TrainingLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_loader(
    workload: Workload, *, rank: int = 0, num_ranks: int = 1, world: World | None = None
) -> TrainingLoader:
    """Return the loader of one of `num_ranks` training processes, each its share of every epoch.

    `rank` is 0 to num_ranks - 1; a `world` (dlemu.make_world()) says both, and is needed only
    where the dataset's size is to be settled over several hosts.

    Raises:
        DatasetError: there is no dataset, or it does not fit the workload.
        WorkloadError: rank is not below num_ranks, or a package is missing.
    """
    if world is not None:
        rank, num_ranks = world.rank, world.num_ranks
    if not 0 <= rank < num_ranks:
        raise WorkloadError(f"rank must be at least 0 and below num_ranks {num_ranks}, got {rank}")
    return TrainingLoader(workload, rank=rank, num_ranks=num_ranks, world=world or Alone())
