"""One HTML file on stored runs: tables, the epochs, and the hosts' counters."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from dlemu.errors import DAMAGE, RunError, in_short
from dlemu.host.intervals import Observation, read_observations, summarize_interval
from dlemu.results.outcome import Outcome
from dlemu.results.records import CONFIG
from dlemu.results.several import runs_verdict_line
from dlemu.results.stored import Stored
from dlemu.results.summary import RunsSummary
from dlemu.results.text import ROWS, report_run
from dlemu.terminal import shown
from dlemu.units import ceil_div
from dlemu.workload.model import Workload

_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem;
     border-top: 1px solid #d5dbe1; padding-top: 1.5rem; } h3 { font-size: 1rem; margin-bottom: 0; }
table { border-collapse: collapse; margin: .8rem 0; }
th, td { padding: .2rem .9rem .2rem 0; text-align: right; font-variant-numeric: tabular-nums; }
th { color: #5b6875; font-weight: 600; border-bottom: 1px solid #d5dbe1; }
th:first-child, td:first-child { text-align: left; }
p.verdict { padding: .5rem .8rem; border-left: 5px solid; font-weight: 600; margin: .8rem 0; }
p.pass { border-color: #2e7d4f; background: #eaf5ee; }
p.fail { border-color: #b3372f; background: #fbeceb; }
p.none { border-color: #8a6d1a; background: #faf4df; }
pre { background: #f4f6f8; padding: .8rem; overflow-x: auto; font-size: 13px; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #5b6875; }
small { color: #5b6875; }
"""
_BLUE, _ORANGE, _GREY = "#1f5fa8", "#c46a12", "#5b6875"
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 220, 60, 16, 26, 34
_LEAST_SECONDS = 0.2
"""Over a shorter time a rate is mostly the resolution of the counters."""


@dataclass(frozen=True)
class Series:
    """A line of a plot."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    marked: bool = False
    """Whether each point has a dot."""
    dashed: bool = False


def render_page(stored: Sequence[Stored]) -> str:
    """Return the HTML of one page about these folders; it needs no other file."""
    body = [f"<h1>dlemu: {len(stored)} result{'s' * (len(stored) != 1)}</h1>"]
    for each in stored:
        body.append(f"<h2>{_text(each.workload.name)} <small>{_text(str(each.folder))}</small>")
        body.append("</h2>")
        if each.together is not None:
            body += _several(each.workload, each.together)
        for name, outcome in each.outcomes.items():
            if name:
                body.append(f"<h3>{_text(name)}</h3>")
            body += _run(each.workload, each.folder / name, outcome)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>dlemu report</title>\n<style>\n{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _several(workload: Workload, together: RunsSummary) -> Iterable[str]:
    """Yield the verdict and the table of several runs."""
    yield _verdict(runs_verdict_line(workload, together))
    yield f"<p><small>{_text(together['label'])}</small></p>"
    cells = [
        (
            row["name"],
            f"{row['au_percentage']:.2f}",
            f"{row['samples_per_second']:.2f}",
            "" if row["page_cache_share"] is None else f"{100 * row['page_cache_share']:.1f}",
            row["limit"],
            row["epochs_under"],
        )
        for row in together["runs"]
    ]
    heads = ("run", "AU (%)", "samples/s", "cached (%)", "limit", "epochs under the threshold")
    yield _table(heads, cells)


def _run(workload: Workload, folder: Path, outcome: Outcome) -> Iterable[str]:
    """Yield the parts of one run's section."""
    epochs = outcome.metrics.epochs
    report = report_run(workload, outcome.metrics, outcome.summary)
    yield f"<p>{_text(report.title)}; {_text(str(outcome.summary['start']))}</p>"
    yield _verdict(report.verdict)
    yield "".join(f"<p>{_text(line)}</p>" for line in report.remarks)
    mean_bytes = workload.dataset.mean_bytes
    heads = ["epoch", *(name.strip() for name, _, _ in ROWS)]
    cells = [
        [str(epoch.epoch + 1), *(format(value(epoch, mean_bytes), form) for _, value, form in ROWS)]
        for epoch in epochs
    ]
    yield _table(heads, cells)
    numbers = [epoch.epoch + 1 for epoch in epochs]
    rule = [(epoch.epoch + 1, epoch.au_percentage) for epoch in epochs]
    whole = [(epoch.epoch + 1, epoch.whole_epoch_au_percentage) for epoch in epochs]
    wanted = 100 * workload.metric.au
    least = min(wanted, *(au for _, au in (*rule, *whole)))
    ends = (numbers[0] - 0.5, numbers[-1] + 0.5)
    yield _plot(
        "utilisation per epoch (%)",
        [
            Series("by the rule", _BLUE, rule, marked=True),
            Series("with the first step", _ORANGE, whole, marked=True),
            Series(f"threshold {wanted:g}%", _GREY, [(x, wanted) for x in ends], dashed=True),
        ],
        x_range=ends,
        y_range=(max(0.0, least - 5), 100.0),
        x_ticks=[(number, str(number)) for number in numbers[:: ceil_div(len(numbers), 20)]],
    )
    for path in sorted(folder.glob("host.*.jsonl")):
        yield from _host(path)
    config = (folder / CONFIG).read_text(encoding="utf-8")
    yield f"<details><summary>workload</summary><pre>{_text(config)}</pre></details>"


def _host(path: Path) -> Iterable[str]:
    """Return the plots of one host's counters over time."""
    try:
        return list(_plots(path.name.split(".")[1], read_observations(path)))
    except DAMAGE as error:
        raise RunError(f"{path} is damaged: {in_short(error)}") from None


def _plots(number: str, observations: Sequence[Observation]) -> Iterable[str]:
    """Yield the plots of the host of that rank."""
    points = _apart(observations)
    if len(points) < 2:
        return
    start, end = points[0].time, points[-1].time
    parts = [summarize_interval(pair) for pair in pairwise(points)]
    times = [point.time - start for point in points]
    borders = {o.label: o.time - start for o in observations if o.label is not None}
    bands = [
        (begun, borders[label.replace("start", "end")])
        for label, begun in borders.items()
        if label.endswith("start") and label.replace("start", "end") in borders
    ]
    ticks = [(second, f"{second:g} s") for second in _round_steps(0, end - start)]
    plot = partial(_plot, x_range=(0.0, end - start), x_ticks=ticks, bands=bands)
    reads = {
        "drives": [part.device_read_bytes for part in parts],
        "network mount": [part.network_read_bytes for part in parts],
        "read calls": [part.process_rchar for part in parts],
    }
    # The best counter that there is: of the drives, else of the mount, else of read calls.
    name = next((name for name, nums in reads.items() if any(num is not None for num in nums)), "")
    rates = [
        None if num is None else num / part.seconds / 1e6
        for num, part in zip(reads.get(name, []), parts, strict=False)
    ]
    if name:
        yield plot(
            f"read on the host of rank {number}, {name} (MB/s); epochs are shaded",
            [Series(name, _BLUE, _stairs(times, rates))],
            y_range=(0.0, 1.1 * max(rate or 0.0 for rate in rates) or 1.0),
        )
    cpu = [p.host_cpu_share and 100 * p.host_cpu_share for p in parts]
    own = [p.process_cpu_share and 100 * p.process_cpu_share for p in parts]
    yield plot(
        f"CPU on the host of rank {number} (%)",
        [
            Series("whole host", _BLUE, _stairs(times, cpu)),
            Series("ranks and workers", _ORANGE, _stairs(times, own)),
        ],
        y_range=(0.0, 100.0),
    )


def _stairs(times: Sequence[float], values: Sequence[float | None]) -> list[tuple[float, float]]:
    """Return the points of values that hold from one time to the next, without unknown ones."""
    return [
        (time, value)
        for (begun, ended), value in zip(pairwise(times), values, strict=True)
        if value is not None
        for time in (begun, ended)
    ]


def _apart(observations: Sequence[Observation]) -> list[Observation]:
    """Return about 400 observations at most, far enough from each other for rates."""
    if not observations:
        return []
    least = max(_LEAST_SECONDS, (observations[-1].time - observations[0].time) / 400)
    kept = [observations[0]]
    for observation in observations[1:]:
        if observation.time - kept[-1].time >= least:
            kept.append(observation)
    return kept


def _text(text: str) -> str:
    """Return a text without markup, and without control characters, which HTML forbids."""
    return html.escape(shown(text))


def _verdict(line: str) -> str:
    kind = {"PASS": "pass", "FAIL": "fail"}.get(line.partition(":")[0], "none")
    return f'<p class="verdict {kind}">{_text(line)}</p>'


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{_text(text)}</th>" for text in heads)
    body = "\n".join(
        f"<tr>{''.join(f'<td>{_text(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _round_steps(low: float, high: float) -> list[float]:
    """Return about five round numbers between two."""
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span))
    step = next(s for s in (0.1, 0.2, 0.25, 0.5, 1, 2) if span / (s * power) <= 6) * power
    first = math.ceil(low / step)
    return [round((first + i) * step, 9) for i in range(int((high - first * step) // step) + 1)]


def _plot(
    title: str,
    series: Sequence[Series],
    *,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    x_ticks: Sequence[tuple[float, str]],
    bands: Sequence[tuple[float, float]] = (),
) -> str:
    """Return an SVG of lines; `bands` are ranges of x to be shaded."""
    (left, right), (low, high) = x_range, y_range
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(value: float) -> float:
        return round(_LEFT + wide * (value - left) / ((right - left) or 1), 1)

    def y(value: float) -> float:
        return round(_TOP + tall * (1 - (value - low) / ((high - low) or 1)), 1)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_text(title)}">']
    parts.append(f'<text x="0" y="14" style="font-weight:600">{_text(title)}</text>')
    parts += [
        f'<rect x="{x(a)}" y="{_TOP}" width="{round(x(b) - x(a), 1)}" height="{tall}" '
        f'fill="#1f5fa8" opacity="0.07"/>'
        for a, b in bands
    ]
    for value in _round_steps(low, high):
        parts.append(
            f'<path d="M{_LEFT} {y(value)}H{_WIDTH - _RIGHT}" stroke="#d5dbe1"/>'
            f'<text x="{_LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{value:g}</text>'
        )
    parts += [
        f'<text x="{x(value)}" y="{_HEIGHT - 14}" text-anchor="middle">{_text(text)}</text>'
        for value, text in x_ticks
    ]
    for place, each in enumerate(series):
        spots = [(x(a), y(b)) for a, b in each.points]
        dash = ' stroke-dasharray="5 4"' if each.dashed else ""
        path = " ".join(f"{a},{b}" for a, b in spots)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{each.colour}" stroke-width="1.8"'
            f"{dash}/>"
        )
        if each.marked:
            parts += [f'<circle cx="{a}" cy="{b}" r="3" fill="{each.colour}"/>' for a, b in spots]
        parts.append(
            f'<text x="{_WIDTH - _RIGHT - 170 * (len(series) - place - 1)}" y="14" '
            f'text-anchor="end" style="fill:{each.colour}">{_text(each.name)}</text>'
        )
    return "".join([*parts, "</svg>"])
