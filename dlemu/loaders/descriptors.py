"""How many file descriptors a rank needs while it reads, and how many it may have."""

import resource
import sys

from dlemu.config.model import Workload
from dlemu.errors import WorkloadError
from dlemu.loaders.cache.host import has_tier
from dlemu.storage.s3 import in_bucket
from dlemu.units import counted

OTHERS = 128
"""Descriptors for everything else in the process."""
MOST_MESSAGES = 256
"""Messages that a pipe of Linux (64 KiB) always holds, at 256 bytes each."""
FILES_KEPT = 8
"""Files of many samples that a stream keeps open if it reads several of them in turn."""
_OF_A_CACHE = 6
"""More descriptors of a worker that reads through a cache: the state that all workers share, four
files in memory (one joins two that wait while one is written), and the file in the cache."""


def make_room(workload: Workload, num_accelerators: int) -> int:
    """Raise this process's limit of open files to what its accelerators can use; return it."""
    soft, hard = _limits()
    least, wanted = (OTHERS + num_accelerators * each for each in _of_an_accelerator(workload))
    if least > hard:
        most = most_accelerators(workload)
        fewer = f"emulate at most {most} in a rank, " if most else ""
        raise WorkloadError(
            f"{counted(num_accelerators, 'accelerator')} of reader.read_threads="
            f"{workload.reader.read_threads} in a rank need {least} open files, a process may "
            f"have {hard} here; {fewer}use more ranks or fewer reader.read_threads, or raise the "
            f"limit as root: ulimit -n {least}"
        )
    if wanted > soft:
        soft, limits = min(wanted, hard), resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
    return soft


def most_accelerators(workload: Workload) -> int:
    """Return how many accelerators a rank can emulate at the hard limit."""
    return max(0, _limits()[1] - OTHERS) // _of_an_accelerator(workload)[0]


def needed(workload: Workload, num_accelerators: int) -> int:
    """Return the limit of open files that a rank with so many accelerators needs."""
    return OTHERS + num_accelerators * _of_an_accelerator(workload)[0]


def _limits() -> tuple[int, int]:
    soft, hard = (
        sys.maxsize if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return soft, hard


def _of_an_accelerator(workload: Workload) -> tuple[int, int]:
    """Return the descriptors that one accelerator needs in a rank, and those that it can use."""
    reader = workload.reader
    least, kept = _of_a_stream(workload)
    if reader.data_loader != "pytorch":
        return reader.num_streams * least, reader.num_streams * kept
    if reader.read_threads == 0:
        return kept, kept
    # One queue to each worker and one back. Our queue is one descriptor, multiprocessing's is two.
    queues = (1 + reader.read_threads) * (1 if workload.batches_in_flight <= MOST_MESSAGES else 2)
    if reader.multiprocessing_context == "fork":
        return queues, queues
    # Two shared memories take two descriptors each; multiprocessing keeps two for each worker.
    spawned = queues + 4 + 2 * reader.read_threads
    return spawned, spawned


def _of_a_stream(workload: Workload) -> tuple[int, int]:
    """Return the descriptors that a worker needs for what it reads, and those that it can use."""
    if workload.dataset.data_folder and in_bucket(workload.data_folder):
        connections = workload.reader.gets_in_flight
        return connections, connections
    one_by_one = workload.dataset.num_samples_per_file == 1 or workload.streamed
    through_cache = _OF_A_CACHE if has_tier(workload) else 0
    return 1 + through_cache, through_cache + (1 if one_by_one else FILES_KEPT)
