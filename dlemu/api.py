"""The loader for a training loop of one's own."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from dlemu.config.model import Workload, load_workload
from dlemu.config.source import WordSource
from dlemu.datagen.survey import as_it_is, find_dataset, find_workload
from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import count_steps, make_plan
from dlemu.errors import WorkloadError
from dlemu.loaders import Batch, check_loader, open_loader
from dlemu.plugins import is_url
from dlemu.ranks.world import Alone, World
from dlemu.storage.place import path_of, place_of

_HELD = 2
"""Batches that a loop may use at once: the one it computes on, and the next, which it copies."""


class TrainingLoader:
    """Yields the batches of one rank, one epoch at a time. `make_loader` opens it.

    `batch.data` is a uint8 array of shape (batch, bytes). A row has `record_length_bytes_resize`
    bytes, cut or padded with zeros; if that key is not set, it is as long as the largest sample.
    Its memory is reused: a batch stays valid until the next but one is taken. With `pin` the memory
    is pinned, so torch.from_numpy(batch.data).to("cuda", non_blocking=True) copies asynchronously.

    The workers read as far ahead as a DataLoader's; `train.loop` has no effect, since the loop
    itself decides when it asks for a batch. Without `set_epoch`, every pass is the next epoch.
    Close the loader, or use it in a `with`, to end its workers.
    """

    def __init__(self, dataset: Dataset, *, rank: int, num_ranks: int, pin: bool) -> None:
        self.workload = dataset.workload.with_keys({"train.loop": "rule"})
        self.notes, self._layout = dataset.notes, dataset.layout
        self._remedies = dataset.remedies
        self._rank, self._num_ranks, self._epoch = rank, num_ranks, 0
        self._loader = open_loader(
            replace(dataset, workload=self.workload), accelerators=range(rank, rank + 1), keep=_HELD
        )
        with ExitStack() as stack:
            stack.callback(self._loader.close)
            if pin:
                from dlemu.storage.gpu.cuda import Pinned

                if not self._loader.memory():
                    raise WorkloadError(
                        "pin needs reader.data_loader=pytorch, threads or tensorflow, got "
                        f"{self.workload.reader.data_loader}"
                    )
                stack.callback(Pinned(self._loader.memory()).close)
            self._open = stack.pop_all()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; it decides the order, as in DistributedSampler."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        """Yield the epoch's batches.

        Raises:
            DatasetError: a file is missing or damaged.
            RunError: a worker died.
            WorkloadError: there are too few samples for a step.
        """
        epoch, self._epoch = self._epoch, self._epoch + 1
        plan = make_plan(
            self.workload,
            self._layout,
            num_accelerators=self._num_ranks,
            epoch=epoch,
            own=range(self._rank, self._rank + 1),
        )
        with self._remedies():
            for (batch,) in self._loader.epoch(epoch, plan):
                yield batch

    def __len__(self) -> int:
        """Return the number of steps of the next epoch."""
        return count_steps(self.workload, self._layout, num_accelerators=self._num_ranks)

    def close(self) -> None:
        """End the workers; may be called again."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _job_of(workload: Workload | str | Path) -> Workload:
    """Return a workload that may be given by its name, its file, or where its dataset lies."""
    if isinstance(workload, Workload):
        return workload
    if isinstance(workload, str) and is_url(workload):
        workload = path_of(workload, "workload")
    if isinstance(workload, Path) and (
        not (place := place_of(workload)).has_paths or workload.is_dir()
    ):
        name = find_workload(workload, access=place.reach())
        return as_it_is(load_workload(name, source=WordSource.FOUND), workload, {})
    return load_workload(workload)


def make_loader(
    workload: Workload | str | Path,
    *,
    rank: int = 0,
    num_ranks: int = 1,
    world: World | None = None,
    pin: bool = False,
) -> TrainingLoader:
    """Return the loader of one rank; the ranks share every epoch evenly.

    Args:
        workload: the dataset, and how it is read; or a name or file as load_workload takes it; or,
            as a Path, the data folder of a dataset of dlemu's; or the URL of one.
        rank: 0 to num_ranks - 1.
        num_ranks: training processes, one for each accelerator.
        world: the ranks (dlemu.make_world()), instead of `rank` and `num_ranks`. It is needed only
            where num_files_train=auto depends on the memory of several hosts.
        pin: put the batches into pinned memory, from which a GPU copies asynchronously.

    Raises:
        DatasetError: there is no dataset, or it does not fit the workload.
        RunError: `pin` is set, and there is no GPU.
        WorkloadError: rank is out of range, a package is missing, or memory is short.
    """
    workload = _job_of(workload)
    if world is not None:
        rank, num_ranks = world.rank, world.num_ranks
    if not 0 <= rank < num_ranks:
        raise WorkloadError(f"rank must be at least 0 and below num_ranks {num_ranks}, got {rank}")
    if workload.cache.folder is not None or workload.origin.read_bandwidth is not None:
        raise WorkloadError(
            "cache.folder and origin.read_bandwidth work in dlemu run and dlemu size, which plan "
            "all readers of a host; leave them out here"
        )
    check_loader(workload, 1)
    dataset = find_dataset(workload, world or Alone())
    return TrainingLoader(dataset, rank=rank, num_ranks=num_ranks, pin=pin)
