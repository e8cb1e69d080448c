"""How many samples the workers of a plain DataLoader make on this host, whatever the storage.

They are timed for a moment, on a few files in memory, and the rate is kept for the host: what it
depends on is its name. `loaders.plain` is what they do.
"""

import json
import math
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from dlemu.config.model import Workload
from dlemu.dataset.layout import Dataset, layout_of
from dlemu.errors import DlemuError
from dlemu.host.processes import free_memory_bytes, usable_cpus
from dlemu.storage.files import write_atomically
from dlemu.units import ceil_div

folder: str | None = None
"""Of the rates that are kept; None: dlemu's below the user's caches. Tests set it."""
SECONDS = 1.0
"""How long workers are timed, at least."""
_LEAST_RUN_SECONDS = 20.0
"""Of a run for which workers are timed: it should take much longer than that does."""
_FILES_BYTES = 64 << 20
"""About how many bytes of files are read again and again."""
_SHARE_OF_MEMORY = 0.1
_MORE_THAN_CPUS = 1.5
"""More processes than this many times the CPUs get no more done, and need not be timed."""
_IN_MEMORY = Path("/dev/shm")
_PREFIX = "dlemu-workers."
_KEYS = (
    *("dataset.format", "dataset.record_length_bytes", "dataset.record_length_bytes_stdev"),
    *("dataset.record_length_bytes_resize", "dataset.record_dims", "dataset.record_element_type"),
    *("dataset.num_samples_per_file", "reader.batch_size", "reader.preprocess"),
    *("reader.preprocess_time", "reader.worker_memory"),
)
"""What the time of a sample depends on, beside the host."""


class Rates(Protocol):
    """What is known of a host."""

    @property
    def cpus(self) -> int: ...

    def of(self, loaders: int, workers: int) -> float | None:
        """Return samples per second of so many DataLoaders together; None: it is not known."""


@dataclass(frozen=True)
class TwoRates:
    """A host by two figures: what one worker makes, and what all make where they fill the CPUs."""

    cpus: int
    one: float
    """Samples per second, as the next."""
    all: float

    @classmethod
    def of_this_host(cls, workload: Workload) -> "TwoRates | None":
        """Time workers here, or take what is kept; None: it is not known what they do."""
        if not _is_plain(workload) or find_spec("torch") is None:
            return None
        rates, each = _Rates(workload, timed=True), max(1, workload.reader.read_threads)
        one, full = rates.of(1, each), rates.of(ceil_div(rates.cpus, each), each)
        if one is None or full is None:
            return None
        return cls(rates.cpus, one / min(each, rates.cpus), max(one, full))

    def of(self, loaders: int, workers: int) -> float:
        return min(self.one * loaders * workers, self.all)


def workers_of(
    workload: Workload, accelerators: int, *, timed: bool = True, rates: Rates | None = None
) -> dict[str, Any]:
    """Return what a DataLoader makes for each of a host's accelerators; {} if it is not known.

    `timed`: workers are timed where this host's rate is not known. `rates`: of another host.
    """
    reader, seconds = workload.reader, workload.train.computation_time.mean
    if not _is_plain(workload) or not seconds:
        return {}
    if rates is None:
        if find_spec("torch") is None:
            return {}
        rates = _Rates(workload, timed=timed)
    cpus = rates.cpus
    made = rates.of(accelerators, reader.read_threads)
    if made is None:
        return {}
    demand = accelerators * reader.batch_size / seconds
    enough: int | None = reader.read_threads
    while made < demand and enough is not None:
        if accelerators * enough >= cpus:  # they are full: more workers get no more done
            enough = None
            break
        enough = max(enough + 1, math.ceil(enough * demand / made))
        found = rates.of(accelerators, enough)
        if found is None:
            return {}
        made = found
    each = (rates.of(accelerators, reader.read_threads) or 0.0) / accelerators
    return {
        "samples_per_second": each,
        "read_threads": reader.read_threads,
        "accelerators": accelerators,
        "au_percentage": min(100.0, 100 * each * seconds / reader.batch_size),
        "enough": enough,
        "cpus": cpus,
    }


def _is_plain(workload: Workload) -> bool:
    """Return whether a DataLoader is asked for, and what it would do is known."""
    dataset, reader = workload.dataset, workload.reader
    return (
        reader.loader.is_dataloader
        and reader.read_threads > 0
        and not dataset.file_format.in_columns
        # What decoding them takes is known of the job's own pictures alone.
        and (not dataset.file_format.is_picture or reader.preprocess_time.mean > 0)
        and workload.place.has_paths
    )


def _own_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dlemu")


class _Rates:
    """Samples per second of all DataLoaders of this host, as kept, or timed now."""

    def __init__(self, workload: Workload, *, timed: bool) -> None:
        self._workload, self._timed = workload, timed
        self.cpus = max(1, math.floor(usable_cpus()))
        self._path = Path(folder or _own_folder(), "workers.json")
        self._kept: dict[str, float] = {}
        with suppress(OSError, ValueError, TypeError, AttributeError):  # none yet, or damaged
            found = json.loads(self._path.read_text(encoding="utf-8"))
            self._kept = {str(key): float(rate) for key, rate in found.items() if rate > 0}

    def of(self, loaders: int, workers: int) -> float | None:
        """Return the rate of so many DataLoaders; None: it is not known."""
        most = max(1, ceil_div(math.ceil(_MORE_THAN_CPUS * usable_cpus()), workers))
        loaders = min(loaders, most)
        key = json.dumps({**self._shape(), "loaders": loaders, "read_threads": workers})
        if key not in self._kept:
            rate = _time(self._workload, loaders, workers) if self._timed else None
            if rate is None:
                return None
            self._kept[key] = rate
            with suppress(OSError):  # a home that cannot be written: it is timed again
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, json.dumps(self._kept, indent=1).encode())
        return self._kept[key]

    def _shape(self) -> Mapping[str, Any]:
        from importlib.metadata import version  # slow, and few commands need it

        tree = self._workload.model_dump(mode="json")
        pairs = (key.split(".") for key in _KEYS)
        return {
            "host": platform.node(),
            "cpus": usable_cpus(),
            "torch": version("torch"),
            **{f"{group}.{name}": tree[group].get(name) for group, name in pairs},
        }


def _time(workload: Workload, loaders: int, workers: int) -> float | None:
    """Time workers on files in memory; None if they cannot be."""
    from dlemu.datagen.write import generate
    from dlemu.loaders.plain import rate_of_workers
    from dlemu.loaders.source import Source
    from dlemu.ranks.world import Alone

    size, per_file = workload.dataset.mean_bytes, workload.dataset.num_samples_per_file
    batch = max(1, min(workload.reader.batch_size, int(_FILES_BYTES / size)))
    files = max(ceil_div(batch, per_file), 1)
    # Two batches of each worker, and one in the making, lie in memory, beside the files.
    needed = size * (files * per_file + 4 * batch * loaders * workers)
    if needed > _SHARE_OF_MEMORY * free_memory_bytes():
        return None
    for left in _IN_MEMORY.glob(f"{_PREFIX}*"):  # of a run that was killed meanwhile
        if not Path("/proc", left.name.removeprefix(_PREFIX).partition(".")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)
    prefix = f"{_PREFIX}{os.getpid()}."
    with (
        suppress(DlemuError, OSError),
        tempfile.TemporaryDirectory(prefix=prefix, dir=_IN_MEMORY) as scratch,
    ):
        in_memory = workload.with_keys(
            {
                "dataset.data_folder": scratch,
                "storage.storage_root": "/",
                "dataset.num_files_train": files,
                "reader.batch_size": batch,
                "reader.odirect": False,
                "reader.check_crc": False,
                "reader.hand_over": "batch",
                "cache.folder": None,
                "output.folder": None,
            }
        )
        generate(in_memory, world=Alone())
        source = Source.open(Dataset(in_memory, layout_of(in_memory)), keep=1)
        return rate_of_workers(source, loaders=loaders, workers=workers, seconds=SECONDS)
    return None


def is_long_enough(workload: Workload, num_steps: int) -> bool:
    """Return whether a run takes so long that workers may be timed before it."""
    train = workload.train
    return num_steps * train.epochs * train.computation_time.mean >= _LEAST_RUN_SECONDS
