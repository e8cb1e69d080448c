"""Records of steps, and of a job whose storage gives a rate that its readers share."""

from dataclasses import dataclass, field

import numpy as np

from dlemu.judge.records import STEP, Steps


def rows(num_accelerators: int, num_steps: int, **fields: object) -> Steps:
    """Return steps whose fields are numbers, or arrays (accelerators, steps)."""
    steps = np.zeros((num_accelerators, num_steps), STEP)
    steps["accelerator"] = np.arange(num_accelerators)[:, None]
    steps["step"] = np.arange(num_steps)
    steps["num_samples"] = 2
    for name, value in fields.items():
        steps[name] = value
    ready = steps["wait"] + steps["compute"]
    steps["barrier"] += ready.max(axis=0) - ready
    return steps


@dataclass
class Shared:
    """Streams that share a storage's rate, and an accelerator that takes batches in order.

    It takes the next batch as soon as it computes. Each of `num_workers` makes every so many-th
    batch, at most `window` ahead; a read is one unit.
    """

    num_workers: int
    window: int
    rate: float
    compute: float
    now: float = 0.0
    left: dict[int, float] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    ready: dict[int, float] = field(default_factory=dict)

    def steps(self, num_steps: int) -> Steps:
        """Return the records of so many steps."""
        steps = rows(1, num_steps, computation_time=self.compute, compute=self.compute)
        for step in range(num_steps):
            start = self.now
            while step not in self.ready:
                self._run(step, num_steps, until=np.inf)
            steps["wait"][0, step] = self.now - start
            steps["read"][0, step] = self.ready[step] - self.begun[step]
            end = self.now + self.compute
            while self.now < end:
                self._run(step + 1, num_steps, until=end)
        return steps

    def _run(self, taken: int, num_steps: int, until: float) -> None:
        """Go on to the end of the next read, or until then."""
        for worker in range(self.num_workers):
            made = [batch for batch in self.begun if batch % self.num_workers == worker]
            batch = max(made, default=worker - self.num_workers) + self.num_workers
            is_free = not any(batch % self.num_workers == worker for batch in self.left)
            if is_free and batch < min(taken + self.window, num_steps):
                self.left[batch] = 1.0
                self.begun[batch] = self.now
        if not self.left:
            self.now = until
            return
        each = self.rate / len(self.left)
        seconds = min(until - self.now, min(self.left.values()) / each)
        self.now = until if seconds == until - self.now else self.now + seconds
        for batch in list(self.left):
            self.left[batch] -= seconds * each
            if self.left[batch] < 1e-9:
                del self.left[batch]
                self.ready[batch] = self.now
