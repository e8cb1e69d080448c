"""The plot of a run's checkpoints in a page."""

from collections.abc import Iterable, Mapping, Sequence

from dlemu.reports.drawing import Axis, Look, Plot, axis_of_numbers, dotted
from dlemu.results.summary import Summary


def render_of_run(summary: Summary) -> Iterable[str]:
    """Yield the plot of a run's checkpoints; nothing where it took none."""
    told = summary.get("checkpoints")
    if told is None or not told["stall_seconds"]:
        return
    found = {"until it was written": told["duration_seconds"]}
    found["accelerators stood still"] = told["stall_seconds"]
    yield _plot("each checkpoint", found)


def _plot(title: str, found: Mapping[str, Sequence[float]]) -> str:
    """Return a plot of seconds over the number of the checkpoint."""
    looks: tuple[Look, ...] = ("first", "second")
    series = [
        dotted(name, look, range(1, len(seconds) + 1), seconds, joined=False)
        for look, (name, seconds) in zip(looks, found.items(), strict=True)
        if seconds
    ]
    most = max(len(seconds) for seconds in found.values())
    highest = max(second for seconds in found.values() for second in seconds)
    return Plot(
        title=title,
        x=axis_of_numbers("checkpoint", 1, most),
        y=Axis(name="seconds", low=0.0, high=1.05 * highest or 1.0),
        series=series,
    ).render()
