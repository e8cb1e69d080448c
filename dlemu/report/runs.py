"""Several runs together: blocks from their summary.json."""

from collections.abc import Mapping, Sequence
from typing import Any

from dlemu.report.blocks import Block, Facts, Fold, Lines, Table, Verdict
from dlemu.report.facts import facts_of
from dlemu.report.plot import Axis, Plot, axis_of_numbers, dotted, level
from dlemu.report.run import plot_au, tone_of
from dlemu.results.several import REPEATABILITY, counting_rows

_HEADS = (
    *("run", "verdict", "AU (%)", "samples/s", "MB/s", "cached (%)", "pause before (s)", "limit"),
    "epochs under the threshold",
)


def present_runs(document: Mapping[str, Any]) -> list[Block]:
    """Return the blocks of several runs, without those of each run."""
    facts = [(name, value) for name, value in facts_of(document) if value]
    counting = counting_rows(document["runs"])
    return [
        Verdict(verdict_line(document), tone_of(document)),
        Lines(
            [
                f"{document['workload']}, division {document['division']}: {document['label']}",
                *(f"note: {note}" for note in document.get("notes") or ()),
            ]
        ),
        Table(
            heads=_HEADS,
            rows=list(map(_row, document["runs"])),
            texts=("verdict", "limit", _HEADS[-1]),
            spare=(_HEADS[-1], "pause before (s)", "MB/s"),
        ),
        Table(
            heads=("runs that count", "mean", "standard deviation", "95% interval of the mean"),
            rows=[
                _spread("AU (%)", document["au_percentage"]),
                _spread("samples/s", document["samples_per_second"]),
            ],
        ),
        plot_au(
            "run",
            range(1, len(counting) + 1),
            (
                [row["au_percentage"] for row in counting],
                [row["whole_epoch_au_percentage"] for row in counting],
            ),
            document["threshold_percentage"],
        ),
        _plot_rates([row["samples_per_second"] for row in counting]),
        Fold("where and how it was measured", [Facts(facts)], is_open=True),
    ]


def verdict_line(document: Mapping[str, Any]) -> str:
    """Return the verdict on all runs, with its reasons."""
    reasons = "; ".join(document["reasons"]) or (
        f"every run has AU {document['threshold_percentage']:g}% or more, samples/s within "
        f"{document['repeatability_percentage']:.1f}% of their mean"
    )
    return "; ".join([f"{document['verdict']}: {reasons}", *document["remarks"]])


def _row(row: Mapping[str, Any]) -> list[str]:
    cached, gap = row["page_cache_share"], row["gap_seconds"]
    return [
        row["name"],
        row["verdict"],
        f"{row['au_percentage']:.2f}",
        f"{row['samples_per_second']:.2f}",
        f"{row['nominal_MiB_per_second'] * 2**20 / 1e6:.1f}",
        "-" if cached is None else f"{100 * cached:.1f}",
        "-" if gap is None else f"{gap:.0f}",
        row["limit"],
        row["epochs_under"],
    ]


def _spread(name: str, spread: Mapping[str, Any]) -> list[str]:
    deviation, interval = spread["sd"], spread["interval"]
    return [
        name,
        f"{spread['mean']:.2f}",
        "-" if deviation is None else f"{deviation:.2f}",
        "-" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}",
    ]


def _plot_rates(rates: Sequence[float]) -> Plot:
    """Return samples/s of each run, and how far they may lie from their mean."""
    mean = sum(rates) / len(rates)
    bounds = [mean * (1 - REPEATABILITY), mean * (1 + REPEATABILITY)]
    x = axis_of_numbers("run", 1, len(rates))
    low, high = min(*rates, *bounds), max(*rates, *bounds)
    far = f"mean ± {100 * REPEATABILITY:g}%: farther off is not repeatable"
    return Plot(
        title="samples per second of each run",
        x=x,
        y=Axis(name="samples/s", low=low - 0.01 * mean, high=high + 0.01 * mean),
        series=[
            dotted("a run", "first", range(1, len(rates) + 1), rates, joined=False),
            level("mean", "second", x, mean),
            level(far, "limit", x, *bounds),
        ],
    )
