"""What the closed form leaves out, event by event: python -m benchmarks.events.

Accelerators with their workers share one storage evenly; batches differ in size as UNet3D's
samples do (sd 0.47 of the mean), are read ahead as PyTorch does (one batch in each of the workers)
and handed over in order; a barrier ends each step. Beside it is min(1, rate / demand).
"""

from dlemu.workload.model import load_workload
from tests.lab.events import simulate


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
