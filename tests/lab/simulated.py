"""What AU must be, told by events in simulated time; nothing of dlemu's is used.

torch's DataLoader sends each worker so many requests beforehand, and one more whenever the training
loop has taken a batch. A worker makes its batches one after the other, and reads a batch's records
one after the other, request by request.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Loop = Literal["rule", "pipelined"]


@dataclass(frozen=True)
class Read:
    """A request to the storage: what it waits for alone, and its part of what all share."""

    seconds: float = 0.0
    num_bytes: float = 0.0


Batch = Sequence[Read]


def true_au(
    batches: Sequence[Batch],
    *,
    workers: int,
    prefetch_factor: int,
    computation_time: float,
    loop: Loop = "rule",
    bytes_per_second: float = float("inf"),
    late: float = 0.0,
    whole: bool = False,
) -> float:
    """Return the AU of one accelerator in percent, first step left out unless `whole`.

    Storage that gives `bytes_per_second` serves requests in the order in which they come. Every
    wait, of a worker or of the accelerator, ends `late` by so many seconds.
    """
    queues: list[deque[int]] = [deque() for _ in range(workers)]
    left: list[deque[Read]] = [deque() for _ in range(workers)]
    making: list[int | None] = [None] * workers
    events: list[tuple[float, int, int]] = []  # time, number, worker (-1: the accelerator)
    ready: set[int] = set()
    sent = taken = ended = numbered = 0
    free_from = now = first_end = 0.0
    wants, computes = True, False

    def wake(time: float, who: int) -> None:
        nonlocal numbered
        numbered += 1
        heapq.heappush(events, (time, numbered, who))

    def send() -> None:
        nonlocal sent
        if sent < len(batches):
            worker = sent % workers
            queues[worker].append(sent)
            sent += 1
            if making[worker] is None:
                go_on(worker)

    def go_on(worker: int) -> None:
        """Have a worker issue its next request; one that was idle takes a batch."""
        nonlocal free_from
        if not left[worker]:
            batch = making[worker]
            if batch is not None:
                ready.add(batch)
                making[worker] = None
            if not queues[worker]:
                return
            making[worker] = queues[worker].popleft()
            left[worker].extend(batches[making[worker] or 0])
        read = left[worker].popleft()
        free_from = max(free_from, now) + read.num_bytes / bytes_per_second
        wake(free_from + read.seconds + late, worker)

    for _ in range(workers * prefetch_factor):
        send()
    while ended < len(batches):
        if wants and taken in ready:
            # The loop has its batch, and by this call one more is asked for.
            taken, wants = taken + 1, False
            send()
        if not computes and ended < taken:
            computes = True
            wake(now + computation_time + late, -1)
            wants = wants or loop == "pipelined"
            continue
        now, _, who = heapq.heappop(events)
        if who >= 0:
            go_on(who)
            continue
        ended, computes = ended + 1, False
        first_end = first_end or now
        wants = wants or loop == "rule"
    if whole:
        return 100 * len(batches) * computation_time / now
    return 100 * (len(batches) - 1) * computation_time / (now - first_end)
