"""What dlemu says of storage whose answer is known: python -m benchmarks.truth [WORD ...].

Prints a Markdown table; words choose the cases whose names hold them all. Root only. Each case is
run once, and takes 5 to 15 s.
"""

import sys
from collections.abc import Sequence

from tests.lab.bench import CASES


def main(words: Sequence[str]) -> None:
    """Run the cases and print a line of each."""
    print("| case | loader | true AU (%) | AU found (%) | true limit | limit named |")
    print("|---|---|--:|--:|---|---|")
    for (name, loader), run in CASES.items():
        if not all(word in f"{name} {loader}" for word in words):
            continue
        found = run()
        true_au = "" if found.true_au is None else f"{found.true_au:.1f}"
        cells = [name, loader, true_au, f"{found.au:.1f}", found.true_limit or "", found.limit]
        if found.true_cached is not None:
            truth, said = (
                ", ".join(f"{100 * share:.1f}" for share in shares)
                for shares in (found.true_cached, found.cached)
            )
            cells[0] += f"; from memory by epoch: true {truth}%, found {said}%"
        print(f"| {' | '.join(cells)} |", flush=True)
        if found.true_limit not in (None, found.limit):
            print(f"{name}, {loader}: {found.evidence}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
