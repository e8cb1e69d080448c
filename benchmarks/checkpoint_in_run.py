"""What checkpoints cost a run on drives of known rates: python -m benchmarks.checkpoint_in_run.

Prints a Markdown table; root only. Each case is run once, and takes about 10 s.
"""

from tests.lab.held_checkpoints import asynchronous, synchronous


def main() -> None:
    """Run the cases with both loaders and print a line of each."""
    print("| case | loader | truth | found | difference | sleeps ended late by, ms |")
    print("|---|---|--:|--:|--:|--:|")
    for run in (synchronous, asynchronous):
        for loader in ("threads", "pytorch"):
            for held in run(loader=loader):
                differs = held.found - held.truth
                print(
                    f"| {held.what} | {loader} | {held.truth:.2f} {held.unit} | {held.found:.2f} "
                    f"{held.unit} | {differs:+.3f} | {1e3 * held.late:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
