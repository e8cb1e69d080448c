"""How many GiB and hours a run by the rule takes: `python -m docs.how_long`.

    python -m docs.how_long            print the tables
    python -m docs.how_long --write    put them into docs/how_long.md

It is arithmetic alone: the rule for the size of a dataset, and the time of epochs without waiting.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from dlemu import dataset_size, load_workload
from dlemu.config.model import Workload
from dlemu.units import ceil_div
from docs.house import print_or_write

PAGE = Path(__file__).with_name("how_long.md")
MARKS = "<!-- python -m docs.how_long --write -->", "<!-- end -->"
_WORKLOADS = (
    *("unet3d_h100", "resnet50_h100", "cosmoflow_h100"),
    *("unet3d_b200", "retinanet_b200", "flux_b200", "dlrm_b200"),
)
"""Those of MLPerf Storage, for the accelerators that its editions ask for most."""
_MEMORY = "256GiB"
_WRITE = 1e9
"""Bytes per second at which a dataset is written, for the column of minutes."""


def tables() -> str:
    """Return the tables of the page."""
    lines = [
        "| workload | accelerators | files | GiB | to write | read in a run | one run |",
        "|---|---|---|---|---|---|---|",
        *(row for name in _WORKLOADS for number in (1, 8) for row in _rows(name, number)),
    ]
    return "\n".join(lines)


def _rows(name: str, number: int) -> Iterator[str]:
    workload = load_workload(name, {"num_accelerators": number, "host_memory": _MEMORY})
    size = dataset_size(workload)
    cells = (
        f"`{name}`",
        str(number),
        f"{size.num_files:,}",
        f"{size.num_bytes / 2**30:,.0f}",
        _hours(size.num_bytes / _WRITE),
        f"{size.num_bytes * workload.train.epochs / 2**30:,.0f} GiB",
        _hours(_seconds(workload, size.num_samples, number)),
    )
    yield f"| {' | '.join(cells)} |"


def _seconds(workload: Workload, num_samples: int, number: int) -> float:
    """Return the time of a run in which no accelerator waits."""
    steps = ceil_div(num_samples, workload.reader.batch_size * number)
    return steps * workload.train.computation_time.mean * workload.train.epochs


def _hours(seconds: float) -> str:
    minutes = max(1, seconds / 60)
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:,.1f} h"


def main(words: list[str]) -> int:
    """Print the tables, or write them."""
    return print_or_write(words, PAGE, tables(), MARKS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
