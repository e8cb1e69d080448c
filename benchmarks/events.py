"""What the closed form leaves out, event by event: python -m benchmarks.events.

Accelerators with their workers share one storage evenly; batches differ in size as UNet3D's
samples do (sd 0.47 of the mean), are read ahead as PyTorch does (one batch in each of the workers)
and handed over in order; a barrier ends each step. Beside it is min(1, rate / demand).
"""

import heapq
import random

from dlemu.config.model import Workload, load_workload

STEPS = 500


def simulate(job: Workload, *, accelerators: int, supply: float, seed: int = 0) -> float:
    """Return AU by the rule of v1.0, for a storage that supplies so much of the demand."""
    generator = random.Random(seed)
    mean, stdev = job.dataset.record_length_bytes, job.dataset.record_length_bytes_stdev
    rate = supply * accelerators * job.demand
    compute, workers = job.train.computation_time.mean, job.reader.read_threads
    # Every read under way gets the same: `given` is what each has got since the start, and a
    # batch is there once that has grown by its size.
    now = given = first = 0.0
    reading: list[tuple[float, int, int]] = []

    def read(accelerator: int, batch: int) -> None:
        sizes = (generator.gauss(mean, stdev) for _ in range(job.reader.batch_size))
        done = given + sum(max(0.01 * mean, size) for size in sizes)
        heapq.heappush(reading, (done, accelerator, batch))

    for accelerator in range(accelerators):
        for batch in range(workers):
            read(accelerator, batch)
    ready: set[tuple[int, int]] = set()
    for step in range(STEPS):
        waiting = set(range(accelerators))
        end = now + compute
        while True:
            for accelerator in [a for a in sorted(waiting) if (a, step) in ready]:
                waiting.remove(accelerator)
                ready.remove((accelerator, step))
                read(accelerator, step + workers)
                end = now + compute
            arrives = now + (reading[0][0] - given) * len(reading) / rate if reading else end
            until = arrives if waiting else min(end, arrives)
            given += (until - now) * rate / len(reading) if reading else 0.0
            now = until
            if not waiting and now == end:
                break
            given, accelerator, batch = heapq.heappop(reading)
            ready.add((accelerator, batch))
        if step == 0:
            first = now
    return 100 * (STEPS - 1) * compute / (now - first)


def main() -> None:
    """Print AU of both at the same supply."""
    print("| workload | accelerators | supply / demand | events, AU % | closed form | differs |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, accelerators in (("unet3d_h100", 1), ("unet3d_h100", 8), ("cosmoflow_h100", 8)):
        job = load_workload(name)
        for supply in (0.6, 0.9, 1.0, 1.1, 1.25, 1.5):
            au = simulate(job, accelerators=accelerators, supply=supply)
            closed = min(100.0, 100 * supply)
            print(
                f"| {name} | {accelerators} | {supply} | {au:.1f} | {closed:.1f} | "
                f"{au - closed:+.1f} |"
            )


if __name__ == "__main__":
    main()
