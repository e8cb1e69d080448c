"""How many files a job needs, and whether a dataset is large enough for a search.

The rule (MLPerf Storage v1.0, "dataset size"): an epoch has at least 500 steps, and the dataset is
at least five times the memory of all hosts, so that it is not read from the page cache. Files are
rounded up as in v3.0, so that neither bound is missed.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dlemu.config.model import Workload
from dlemu.config.published import command
from dlemu.config.sections import DatasetSection
from dlemu.config.types import MOST_FILES
from dlemu.dataset.layout import Layout
from dlemu.errors import DatasetError, WorkloadError
from dlemu.findings import Finding, note
from dlemu.host.processes import host_memory_bytes, usable_cpus
from dlemu.ranks.world import Alone, World
from dlemu.units import PAGE_BYTES, ceil_div, counted, format_bytes

STEPS_PER_EPOCH = 500
MEMORY_MULTIPLE = 5
_LEAST_EPOCH = 10
"""An epoch of a quick search has at least this many times the batches that are read ahead. What is
read ahead during the first step, which does not count, raises AU by at most 1 / _LEAST_EPOCH."""
_HEADROOM = 1.25
"""The command that extends a dataset asks for this many times the expected accelerators."""


def num_accelerators(workload: Workload, world: World) -> int:
    """Return the emulated accelerators of a job over all its ranks."""
    return workload.num_accelerators or world.num_ranks * workload.accelerators_per_rank


_MOST_CALLS = 2300.0
"""Files opened and batches handed over, in a second, by one process: more, and the threads that do
it keep Python's lock from the one that keeps time. `python -m benchmarks.own_cost` measures it."""
_SAMPLES_A_CALL = 50
"""Samples of a stream that cost as much as opening a file."""
cpus_a_process = 2.0
"""Fewer, and processes keep the CPUs from each other. Tests ask for so many that one is enough."""


def num_processes(workload: Workload, world: World) -> int:
    """Return the processes that share a job's accelerators (`train.processes`); 1 with mpirun."""
    asked, total = workload.train.processes, num_accelerators(workload, world)
    if world.num_ranks > 1:
        return 1
    if asked != "auto":
        return min(asked, total)
    if workload.reader.loader.by_dali or workload.train.compute == "gpu":
        return 1  # a process more is a CUDA context more, on each GPU
    seconds = workload.train.computation_time.mean
    samples, each = workload.reader.batch_size, workload.dataset.num_samples_per_file
    opened = float(samples)
    if each > 1 and (workload.streamed or workload.by_tf_data):
        opened = samples / each + samples / _SAMPLES_A_CALL
    calls = (1 + opened) * total / seconds if seconds else math.inf
    most = min(total, max(1, int(usable_cpus() / cpus_a_process)))
    return most if calls >= most * _MOST_CALLS else max(1, math.ceil(calls / _MOST_CALLS))


def accelerators_of(rank: int, num_ranks: int, total: int) -> range:
    """Return the accelerators that a rank emulates: as many as the others, or one more.

    Rank 0 always has some, because it reports for all ranks.
    """
    return range(ceil_div(rank * total, num_ranks), ceil_div((rank + 1) * total, num_ranks))


@dataclass(frozen=True)
class TotalMemory:
    """Memory of all hosts of a job, which could cache the dataset."""

    num_bytes: int
    about: Finding | None = None
    """How it adds up, and its source."""

    @property
    def fields(self) -> dict[str, Any]:
        """Its JSON form."""
        return {"num_bytes": self.num_bytes, "about": self.about and self.about.fields}


def measure_memory(workload: Workload, world: World) -> TotalMemory:
    """Return the hosts' memory: `host_memory` of each, or what each has. All ranks call it."""
    if workload.host_memory is not None:
        num_hosts = max(world.num_hosts, workload.num_hosts)
        return _memory(workload.host_memory * num_hosts, num_hosts, workload.host_memory)
    own, source = host_memory_bytes()
    by_host = dict(world.all_gather((world.host_index, own)))
    total = sum(by_host.values())
    if world.num_hosts == 1 and workload.num_hosts > 1:
        total *= workload.num_hosts
        return _memory(total, workload.num_hosts, own, source)
    if world.num_hosts > 1:
        return _memory(total, world.num_hosts, None)
    return _memory(total, 1, None, source)


def _memory(
    num_bytes: int, num_hosts: int, each: int | None, source: str | None = None
) -> TotalMemory:
    figures = {"bytes": num_bytes, "hosts": num_hosts, "bytes_each": each, "source": source}
    is_given = each is not None and source is None
    return TotalMemory(num_bytes, note("hosts_memory", **figures, is_given=is_given))


@dataclass(frozen=True)
class DatasetSize:
    """The dataset that a job needs by the rule; `dlemu.show` makes text and a table of it."""

    workload: Workload = field(repr=False)
    num_accelerators: int
    memory: TotalMemory

    @property
    def samples_for_steps(self) -> int:
        """Samples that 500 steps take."""
        return STEPS_PER_EPOCH * self.workload.reader.batch_size * self.num_accelerators

    @property
    def samples_for_memory(self) -> float:
        """Samples that are five times as large as the hosts' memory."""
        return MEMORY_MULTIPLE * self.memory.num_bytes / self.workload.dataset.mean_bytes

    @property
    def decided_by(self) -> Literal["steps", "memory"]:
        """Which of the two asks for more samples."""
        return "steps" if self.samples_for_steps >= self.samples_for_memory else "memory"

    @property
    def num_files(self) -> int:
        """Files that are needed."""
        samples = max(self.samples_for_steps, self.samples_for_memory)
        return math.ceil(samples / self.workload.dataset.num_samples_per_file)

    @property
    def num_samples(self) -> int:
        """Samples in these files."""
        return self.num_files * self.workload.dataset.num_samples_per_file

    @property
    def num_bytes(self) -> float:
        """Mean bytes of these samples in their files, without what a format adds."""
        return self.num_samples * self.workload.dataset.stored_bytes

    @property
    def excess(self) -> str:
        """Why these are more files than a dataset may have, and what to do; "" if they are not."""
        if self.num_files <= MOST_FILES:
            return ""
        dataset = self.workload.dataset
        least = math.ceil(self.num_samples / MOST_FILES)
        why = WorkloadError(
            f"{self.num_files:,} files are more than dataset.num_files_train may be, "
            f"{MOST_FILES:,}: a file has {counted(dataset.num_samples_per_file, 'sample')} of "
            f"{format_bytes(dataset.stored_bytes)}; set dataset.num_samples_per_file={least}"
        )
        return str(why)

    def judge(self, num_files: int) -> list[Finding]:
        """Return for each of the two rules whether so many files are enough."""
        per_file = self.workload.dataset.num_samples_per_file
        memory = None if self.memory.about is None else self.memory.about.fields
        steps_need = math.ceil(self.samples_for_steps / per_file)
        memory_needs = math.ceil(self.samples_for_memory / per_file)
        return [
            note("steps_need_files", steps=STEPS_PER_EPOCH, needed=steps_need, files=num_files),
            note(
                "memory_needs_files",
                multiple=MEMORY_MULTIPLE,
                memory=memory,
                needed=memory_needs,
                files=num_files,
            ),
        ]

    @property
    def document(self) -> dict[str, object]:
        """What `dlemu datasize --json` prints; sizes in bytes."""
        dataset = self.workload.dataset
        return {
            "kind": "datasize",
            "workload": self.workload.name,
            "num_accelerators": self.num_accelerators,
            "memory": self.memory.fields,
            "batch_size": self.workload.reader.batch_size,
            "format": dataset.format,
            "sample_bytes": dataset.mean_bytes,
            "stored_sample_bytes": dataset.stored_bytes,
            "samples_per_file": dataset.num_samples_per_file,
            "samples_for_steps": self.samples_for_steps,
            "samples_for_memory": self.samples_for_memory,
            "decided_by": self.decided_by,
            "num_files": self.num_files,
            "num_samples": self.num_samples,
            "num_bytes": self.num_bytes,
            "block_bytes": self.num_files * PAGE_BYTES,
            "excess": self.excess,
            "has_folder": bool(self.workload.dataset.data_folder),
            "command": "" if self.excess else datagen_command(self.workload, self.num_files),
        }


def dataset_size(
    workload: Workload, *, num_accelerators: int | None = None, host_memory: int | str | None = None
) -> DatasetSize:
    """Return the dataset that a job needs: 500 steps an epoch, and five times the hosts' memory.

    `host_memory` is the memory of each of the workload's `num_hosts` hosts, in bytes or as text
    ("256GiB"). What is None is taken from the workload's keys of the same names; if `host_memory`
    is not set there either, it is the memory of this host.

    Raises:
        WorkloadError: a value is out of bounds.
    """
    asked = {"num_accelerators": num_accelerators, "host_memory": host_memory}
    given = {key: value for key, value in asked.items() if value is not None}
    return required_size(workload.with_keys(given), Alone())


def required_size(workload: Workload, world: World) -> DatasetSize:
    """Return the dataset that a job of these ranks needs; all of them call it."""
    accelerators = num_accelerators(workload, world)
    return DatasetSize(workload, accelerators, measure_memory(workload, world))


def resolve_auto(workload: Workload, world: World) -> Workload:
    """Return the workload with the number of files that "auto" stands for; all ranks call it."""
    if workload.dataset.num_files_train != "auto":
        return workload
    size = required_size(workload, world)
    if size.excess:
        raise WorkloadError(f"dataset.num_files_train=auto: {size.excess}")
    return workload.with_keys({"dataset.num_files_train": size.num_files})


@dataclass(frozen=True, kw_only=True)
class FilesBound:
    """How many accelerators a dataset is enough for, and what makes it larger."""

    num_files: int
    most_accelerators: int
    num_more_files: int
    """Together they are enough for `wanted_accelerators`."""
    wanted_accelerators: int
    command: str
    """It extends the dataset; "": the files are of another tool, which adds some."""
    writes_another: bool
    """It writes another one beside it: one in a bucket is not extended."""


@dataclass(frozen=True)
class SizeCheck:
    """Whether a dataset is large enough for a search, up to which number of accelerators.

    A search needs what the rule asks for. A quick search (size.quick) needs much less: so many
    steps that reading ahead during the first step, which does not count, changes AU little.
    """

    workload: Workload
    layout: Layout
    memory: TotalMemory

    @property
    def most_accelerators(self) -> int:
        """The most accelerators that the dataset is large enough for; 0: for none."""
        try:
            self.check(1, expected=1.0)
        except DatasetError:
            return 0
        least = self._least_steps if self.workload.size.quick else STEPS_PER_EPOCH
        return self.layout.num_samples // (self.workload.reader.batch_size * least)

    def files_for(self, accelerators: int) -> int:
        """Return the files that a search for so many accelerators needs."""
        if not self.workload.size.quick:
            return DatasetSize(self.workload, accelerators, self.memory).num_files
        samples = self._least_steps * self.workload.reader.batch_size * accelerators
        return ceil_div(samples, self.workload.dataset.num_samples_per_file)

    def wanted(self, expected: float) -> int:
        """Return for how many accelerators a larger dataset is proposed, with some to spare."""
        return max(2 * self.most_accelerators, math.ceil(_HEADROOM * expected), 1)

    def bound(self, expected: float) -> "FilesBound":
        """Return why a search ends at `most_accelerators`, and the command that extends the files.

        `expected` is an estimate of what the storage feeds.
        """
        have, wanted = self.layout.num_files, self.wanted(expected)
        files = self.files_for(wanted)
        return FilesBound(
            num_files=have,
            most_accelerators=self.most_accelerators,
            num_more_files=files - have,
            wanted_accelerators=wanted,
            command="" if self.layout.is_foreign else extending(self.workload, files),
            writes_another=not self.workload.place.has_paths,
        )

    def num_steps(self, accelerators: int) -> int:
        """Return the steps of an epoch with so many accelerators."""
        fitting = self.layout.num_samples // (self.workload.reader.batch_size * accelerators)
        most = self.workload.train.total_training_steps
        return fitting if most < 0 else min(fitting, most)

    def read_ahead_share(self, accelerators: int) -> float:
        """Return the largest share of an epoch that can be read during its first step."""
        return self.workload.batches_in_flight / self.num_steps(accelerators)

    def check(self, accelerators: int, *, expected: float) -> None:
        """Refuse a dataset that is too small for so many accelerators.

        `expected` is an estimate of the search's result: the command asks for a dataset that will
        do for it as well.
        """
        workload, have = self.workload, self.layout.num_files
        many, folder = counted(accelerators, "accelerator"), workload.data_folder
        if workload.size.quick:
            steps, or_else = self.num_steps(accelerators), ""
            if steps >= self._least_steps:
                return
            why = (
                f"for {many} the {counted(have, 'file')} in {folder} make "
                f"{counted(steps, 'step')} an epoch, a quick search needs {self._least_steps}, "
                f"{_LEAST_EPOCH} times what is read ahead"
            )
        else:
            size = DatasetSize(workload, accelerators, self.memory)
            if self.layout.num_samples >= max(size.samples_for_steps, size.samples_for_memory):
                return
            by_steps, by_memory = f"{STEPS_PER_EPOCH} steps an epoch", f"{MEMORY_MULTIPLE} x memory"
            why = (
                f"{counted(size.num_files, 'file')} are needed for {many} "
                f"({by_steps if size.decided_by == 'steps' else by_memory}), {folder} has {have:,}"
            )
            or_else = ", or take size.quick=true and a result that says so"
        ahead = max(accelerators, math.ceil(_HEADROOM * min(expected, 4 * accelerators)))
        more = "add files to it, or name another dataset"
        if not self.layout.is_foreign:
            more = _to_extend(workload, self.files_for(ahead))
        raise DatasetError(f"{why}; {more}{or_else}")

    @property
    def _least_steps(self) -> int:
        return _LEAST_EPOCH * self.workload.batches_in_flight


def _to_extend(workload: Workload, num_files: int) -> str:
    """Return what makes a dataset larger, for an error."""
    place = workload.place
    way = "extend it" if place.has_paths else f"in {place.word}, write another one"
    return f"{way}: {extending(workload, num_files)}"


def extending(workload: Workload, num_files: int) -> str:
    """Return the command that makes a dataset larger, or another one beside it."""
    if not workload.place.has_paths:
        other = f"{workload.data_folder}_{num_files}"
        workload = workload.with_keys({"dataset.data_folder": other})
    return datagen_command(workload, num_files)


REACHED_BY = tuple(
    f"storage.{key}"
    for key in ("storage_root", "endpoint_url", "region", "proxy", "ca_file", "verify_tls")
)
"""Keys without which a server is not reached."""


def datagen_command(
    workload: Workload, num_files: int | str, *, num_accelerators: int | None = None
) -> str:
    """Return the command that writes this workload's dataset with so many files.

    With "auto" files, `num_accelerators` decides their number. Without a data folder, the dataset
    goes to data/<workload> below the working directory.
    """
    folder = Path("data", workload.name)
    if workload.dataset.data_folder:
        folder = workload.data_folder
    more: dict[str, object] = {"dataset.data_folder": folder}
    workload = workload.with_keys({"storage.storage_root": "./"})  # `folder` has it already
    keys = [*REACHED_BY]
    keys += [f"dataset.{key}" for key in DatasetSection.model_fields]
    if num_files == "auto":
        keys += ["reader.batch_size", "host_memory"]
        more["num_accelerators"] = num_accelerators or 1
    return command("datagen", workload, keys, more | {"dataset.num_files_train": num_files})
