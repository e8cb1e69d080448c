"""`resnet50_jpeg12` simulated: what a picture's time makes of the AU where storage is slow, too."""

import heapq
import random
from statistics import fmean

from benchmarks.harness import markdown

_WORKERS, _BATCH, _STEPS = 12, 200, 130
_RATE, _C = 0.45, 0.0436
"""Of the demand, and seconds of a step on the H200."""
_UNEVEN = 0.1
"""Standard deviation of a picture's time, as a share of it."""


def simulate(seconds: float, reads: int, seed: int) -> float:
    """Return whole AU (%) where a picture takes `seconds` to decode, and so many reads of its file.

    The drive serves reads in turn at its rate. A worker reads and decodes picture after picture,
    and begins its next batch when its last one is taken: at the start of that step.
    """
    draw = random.Random(seed)
    read_seconds = _C / (_RATE * _BATCH) / reads
    free, step_end, step = 0.0, 0.0, 0
    ready: dict[int, float] = {}
    # When, the worker's batch, its picture, reads of it that are done.
    todo = [(0.0, worker, 0, 0) for worker in range(_WORKERS)]
    while todo:
        now, batch, picture, done = heapq.heappop(todo)
        if done < reads:
            free = max(free, now) + read_seconds
            heapq.heappush(todo, (free, batch, picture, done + 1))
            continue
        end = now + seconds * max(0.0, draw.gauss(1, _UNEVEN))
        if picture + 1 < _BATCH:
            heapq.heappush(todo, (end, batch, picture + 1, 0))
            continue
        ready[batch] = end
        while step in ready:
            begin = max(step_end, ready[step])
            if step + _WORKERS < _STEPS:
                heapq.heappush(todo, (begin, step + _WORKERS, 0, 0))
            step_end, step = begin + _C, step + 1
    return 100 * _STEPS * _C / step_end


def simulated_decoding() -> str:
    """Return the table of AU by a picture's time, for files read by three calls and by one."""
    rows = [
        [
            f"{milliseconds:g}",
            *(
                f"{fmean(simulate(milliseconds / 1e3, reads, seed) for seed in range(3)):.1f}"
                for reads in (3, 1)
            ),
        ]
        for milliseconds in (2.9, 3.4, 3.8, 4.2, 4.5, 5.0)
    ]
    return markdown(["a picture, ms", "AU %, 3 reads a file", "AU %, 1 read"], rows)
