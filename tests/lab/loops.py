"""Both training loops in simulated time, over storage that is told by a line of arithmetic."""

from collections.abc import Sequence
from typing import Literal

from dlemu.loaders.steps import Window

Loop = Literal["rule", "pipelined"]


def simulate(
    seconds: Sequence[float],
    *,
    workers: int,
    ahead: int,
    computation_time: float,
    loop: Loop,
    shared: bool,
) -> float:
    """Return the AU in percent, first step left out, of one accelerator.

    `seconds` is what each batch takes to read alone. Batches that are read at once take no longer
    (each worker waits for its own reads), or, if the storage is `shared`, share its rate.
    """
    window = Window(ahead=ahead, takes_early=1 if loop == "pipelined" else 0)
    num = len(seconds)
    following = list(range(max(1, workers)))
    left: dict[int, float] = {}
    made: set[int] = set()
    now, step, first_step, ends = 0.0, 0, 0.0, None
    window.begin(0)
    while step < num:
        for worker, batch in enumerate(following):
            if worker not in left and batch < min(num, window.limit):
                left[worker] = seconds[batch]
        if ends is None and step in made:
            ends = now + computation_time
        speed = 1 / len(left) if shared and left else 1.0
        steps = [each / speed for each in left.values()]
        pause = min(steps + ([ends - now] if ends is not None else []))
        now += pause
        for worker in list(left):
            left[worker] -= pause * speed
            if left[worker] <= 1e-12:
                del left[worker]
                made.add(following[worker])
                window.made(following[worker])
                following[worker] += len(following)
        if ends is not None and now >= ends - 1e-12:
            ends = None
            step += 1
            window.begin(step)
            if step == 1:
                first_step = now
    return 100 * (num - 1) * computation_time / (now - first_step)
