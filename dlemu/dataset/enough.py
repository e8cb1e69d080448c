"""Is a dataset large enough for so many accelerators? If not: the command that writes one that is.

The rule asks for 500 steps an epoch and five times the hosts' memory. A quick search asks for
little: so many steps that what the first one, which is left out, reads for the others matters
little.
"""

import math
from dataclasses import dataclass

from dlemu.dataset.layout import STEPS_PER_EPOCH, Layout, dataset_size
from dlemu.errors import DatasetError
from dlemu.units import counted
from dlemu.workload.commands import command
from dlemu.workload.model import Workload
from dlemu.workload.sections import DatasetSection

_LEAST_EPOCH = 10
"""An epoch of a quick search has this many times the batches that may be read ahead: what the step
left out reads for the others raises AU by up to the inverse."""
_HEADROOM = 1.25
"""A dataset that was too small is asked for with so many more accelerators in view."""


@dataclass(frozen=True)
class Enough:
    """A dataset, and the job that it has to be enough for."""

    workload: Workload
    layout: Layout
    host_memory: int
    """Bytes, summed over the hosts."""

    @property
    def most(self) -> int:
        """The most accelerators whose epoch has steps enough; memory aside."""
        least = self._least_steps if self.workload.size.quick else STEPS_PER_EPOCH
        return self.layout.num_samples // (self.workload.reader.batch_size * least)

    def num_steps(self, accelerators: int) -> int:
        """Return the steps of an epoch with so many accelerators."""
        fitting = self.layout.num_samples // (self.workload.reader.batch_size * accelerators)
        most = self.workload.train.total_training_steps
        return fitting if most < 0 else min(fitting, most)

    def read_ahead_share(self, accelerators: int) -> float:
        """Return the most of an epoch that is read inside the step left out."""
        return self._read_ahead / self.num_steps(accelerators)

    def check(self, accelerators: int, *, expected: float) -> None:
        """Refuse a dataset that is too small; `expected` is where the search may end.

        Raises:
            DatasetError: with the command that writes a dataset large enough.
        """
        ahead = max(accelerators, math.ceil(_HEADROOM * min(expected, 4 * accelerators)))
        if self.workload.size.quick:
            self._check_quick(accelerators, ahead)
        else:
            self._check_whole(accelerators, ahead)

    def _check_quick(self, accelerators: int, ahead: int) -> None:
        workload, steps = self.workload, self.num_steps(accelerators)
        if steps >= self._least_steps:
            return
        samples = self._least_steps * workload.reader.batch_size * ahead
        files = math.ceil(samples / workload.dataset.num_samples_per_file)
        raise DatasetError(
            f"for {counted(accelerators, 'accelerator')} the {self.layout.num_files:,} files in "
            f"{workload.data_folder} make {counted(steps, 'step')} an epoch, a quick search needs "
            f"{self._least_steps}, {_LEAST_EPOCH} times what is read ahead; extend "
            f"it: {datagen_command(workload, files)}"
        )

    def _check_whole(self, accelerators: int, ahead: int) -> None:
        workload, have = self.workload, self.layout.num_files
        size, asked = (
            dataset_size(workload, num_accelerators=number, host_memory=self.host_memory)
            for number in (accelerators, ahead)
        )
        if have >= size.num_files:
            return
        why = f"{STEPS_PER_EPOCH} steps an epoch" if size.won == "steps" else "5 x memory"
        raise DatasetError(
            f"{counted(size.num_files, 'file')} are needed for "
            f"{counted(accelerators, 'accelerator')} ({why}), "
            f"{workload.data_folder} has {have:,}; extend it: "
            f"{datagen_command(workload, asked.num_files)}, or take size.quick=true and a result "
            "that says so"
        )

    @property
    def _read_ahead(self) -> int:
        """Batches of an accelerator that may be read inside the step left out."""
        return self.workload.batches_in_flight

    @property
    def _least_steps(self) -> int:
        return _LEAST_EPOCH * self._read_ahead


def datagen_command(
    workload: Workload, num_files: int | str, *, num_accelerators: int | None = None
) -> str:
    """Return the command that writes this workload's dataset with so many files.

    Of "auto" files so many accelerators decide.
    """
    more: dict[str, object] = {"dataset.data_folder": workload.data_folder}
    keys = [f"dataset.{key}" for key in DatasetSection.model_fields]
    if num_files == "auto":
        keys += ["reader.batch_size", "host_memory"]
        more["num_accelerators"] = num_accelerators or 1
    return command("datagen", workload, keys, more | {"dataset.num_files_train": num_files})
