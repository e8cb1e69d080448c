"""Observes a host while a job runs: the counters of its drives, network, CPUs and processes."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from typing import Any, Self, TypeVar

from dlemu.host.devices import PROC, SYS, devices_under, mount_under, network_read_bytes
from dlemu.host.intervals import Observation
from dlemu.host.limits import cgroup_folders, page_cache_bytes, throttled_seconds, usable_cpus
from dlemu.host.network import find_links, read_network
from dlemu.host.processes import ProcessTree, read_host_cpu

T = TypeVar("T")

# Shares of one core that reading the counters, looking for new processes, and measuring memory may
# take: together below 1 %. What would cost more is done less often.
_COUNTERS, _SEARCH, _MEMORY = 0.004, 0.002, 0.001


class HostObserver:
    """Reads a host's counters at the start and end of epochs, and about once a second between.

    Observes less often where so many processes run that it would take 1 % of a core. Keeps all
    observations, and writes them to `path` as JSON lines.

    Args:
        folders: the counters of the drives under them are read; of the first one, the data folder,
            those of its mount as well.
        pids: returns the processes to follow; their descendants are followed as well.
        path: where to write the observations; None writes nothing.
        period: seconds between two observations.

    Raises:
        OSError: on entering, `path` exists or cannot be created; on a later call, a write failed.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        pids: Callable[[], Iterable[int]],
        path: Path | None = None,
        *,
        period: float = 1.0,
        proc: Path = PROC,
        sys: Path = SYS,
    ) -> None:
        self.devices = devices_under(*folders, proc=proc, sys=sys)
        self.observations: list[Observation] = []
        self.cpu_seconds = 0.0
        """CPU time that the observing thread has used."""
        network = read_network(proc=proc)
        self.links = find_links(network.nics, sys=sys) if network else {}
        """The host's network interfaces, and their bits per second; None where unknown."""
        self._mount = mount_under(folders[0], proc=proc)
        self._pids, self._path, self._period, self._proc = pids, path, period, proc
        self._tree = ProcessTree(proc)
        self._cgroups: list[Path] = []
        self._usable_cpus = 0.0
        self._file: FileIO | None = None
        self.failure: OSError | None = None
        """What ended the observing: a write that failed."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._observe, name="host observer", daemon=True)

    def __enter__(self) -> Self:
        if self._path is not None:
            self._file = self._path.open("xb", buffering=0)
            # Both clocks, so that the observations can be compared with other logs.
            self._write({"time": time.perf_counter(), "unix_time": time.time()})
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ending = True
        self._wake.set()
        self._thread.join()
        if self._file is not None:
            self._file.close()
        if self.failure is not None and error is None:
            raise self.failure

    def mark(self, label: str) -> Observation:
        """Observe now, under a label. Does not measure memory, which can take a second.

        Raises:
            OSError: an observation could not be written.
        """
        if self.failure is not None:
            raise self.failure
        with self._lock:
            self._refresh()
            observation = self._take(label, None)
        self._wake.set()
        return observation

    def between(self, first: str, last: str) -> list[Observation]:
        """Return the observations from one label to another, both included."""
        with self._lock:
            labels = [observation.label for observation in self.observations]
            start = labels.index(first)
            return self.observations[start : labels.index(last, start) + 1]

    def _observe(self) -> None:
        refresh = _paced(self._refresh, _SEARCH)
        measure_memory = _paced(self._tree.pss_bytes, _MEMORY)
        while not self._ending:
            start = time.thread_time()
            try:
                with self._lock:
                    refresh()
                pss_bytes = measure_memory()
                begun = time.thread_time()
                with self._lock:
                    self._take(None, pss_bytes)
            except OSError as error:
                self.failure = error
                return
            ended = time.thread_time()
            self.cpu_seconds += ended - start
            self._wake.wait(max(self._period, (ended - begun) / _COUNTERS))
            self._wake.clear()

    def _refresh(self) -> None:
        self._tree.refresh(self._pids())
        pids = self._tree.pids
        folders = cgroup_folders("cpu", pids=pids, proc=self._proc)
        self._cgroups = list(dict.fromkeys([*self._cgroups, *folders]))
        self._usable_cpus = usable_cpus(pids, proc=self._proc)

    def _take(self, label: str | None, pss_bytes: int | None) -> Observation:
        counters = {device.name: device.counters() for device in self.devices}
        network = read_network(proc=self._proc)
        observation = Observation(
            time=time.perf_counter(),
            label=label,
            devices={name: counts for name, counts in counters.items() if counts is not None},
            network_read_bytes=network_read_bytes(self._mount, proc=self._proc),
            host=read_host_cpu(proc=self._proc),
            usable_cpus=self._usable_cpus,
            processes=self._tree.counters(),
            throttled_seconds=throttled_seconds(self._cgroups),
            pss_bytes=pss_bytes,
            page_cache_bytes=page_cache_bytes(proc=self._proc),
            network=None if network is None else network.only(self.links),
        )
        self.observations.append(observation)
        self._write(asdict(observation))
        return observation

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record).encode() + b"\n")


def _paced(function: Callable[[], T], share: float) -> Callable[[], T | None]:
    """Return the function; it skips calls that would use more than this share of a core."""
    due = 0.0

    def call() -> T | None:
        nonlocal due
        if time.perf_counter() < due:
            return None
        start = time.thread_time()
        result = function()
        due = time.perf_counter() + (time.thread_time() - start) / share
        return result

    return call
