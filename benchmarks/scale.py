"""What 10 million files and 1,024 accelerators cost: python -m benchmarks.scale [most=10000000].

`parts=plan,manifest` runs some parts only; the table names them by what they do.
Each part of dlemu that grows with a dataset is run on its own, in a process of its own, for ten
times as many files each time. No sample is read: this is names, numbers and records.
"""

import sys

from benchmarks.machine import describe_machine, markdown
from tests.lab.scale import FEWEST, NUM_ACCELERATORS, PARTS, costs


def main(arguments: list[str]) -> None:
    """Run the parts and print the table."""
    given = dict(argument.split("=", 1) for argument in arguments)
    sizes = [FEWEST]
    while sizes[-1] * 10 <= int(given.get("most", 10_000_000)):
        sizes.append(sizes[-1] * 10)
    rows: list[list[str]] = []
    parts = given.get("parts", ",".join(PARTS)).split(",")
    for part, (title, _) in ((part, PARTS[part]) for part in parts):
        found = costs(part, sizes)
        row = [title]
        for each in found:
            row += [f"{each.cpu_seconds:.2f}", f"{each.peak_bytes / 1e6:.0f}"]
        row.append(f"{found[-1].peak_bytes / sizes[-1]:.0f}")
        rows.append(row)
        print("  ".join(row), file=sys.stderr, flush=True)
    print(f"{describe_machine()}; {NUM_ACCELERATORS:,} accelerators\n")
    header = ["part"]
    for size in sizes:
        header += [f"{size:.0e} files: CPU-s".replace("e+0", "e"), "peak MB"]
    print(markdown([*header, "bytes a file"], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
