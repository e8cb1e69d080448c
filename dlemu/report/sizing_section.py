"""The section of a page about one answer of `dlemu size`: a sentence, plots over N, a table."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from dlemu.report.blocks import Block, Facts, Lines, Table, Tone, Verdict
from dlemu.report.plot import Axis, Bands, Plot, Series, dotted, level
from dlemu.reports.sizings import Answer, Run, answer_lines, sentence
from dlemu.results.facts import Summary, facts_of, runs_of
from dlemu.results.metrics import passes
from dlemu.units import counted, rate_unit


def render_answer(folder: Path, answer: Answer) -> Iterable[Block]:
    """Yield the parts of one answer's section."""
    number, runs = answer["num_accelerators"], answer["points"]
    unsure = answer["at_least"] or answer.get("first") or answer.get("remarks")
    tone: Tone = "fail" if number == 0 else "caution" if unsure else "pass"
    yield Verdict(f"This storage {sentence(answer)}.", tone)
    yield Lines(answer_lines(answer))
    yield Facts(list(facts_of(measured_as(folder, answer))))
    if runs:
        yield from _runs(runs, answer)


def render_unfinished(folder: Path, name: str, runs: Sequence[Run]) -> Iterable[Block]:
    """Yield the parts of the section of a search that did not end."""
    made = counted(len(runs), "run")
    yield Verdict(f"No answer yet: the search was interrupted after {made}.", "caution")
    yield Facts(list(facts_of(_of_runs(runs_of(folder, name)))))
    if runs:
        yield from _runs(runs, {})


def measured_as(folder: Path, answer: Answer) -> Summary:
    """Return where and when an answer was measured, as the summary of a run has it."""
    runs = runs_of(folder, f"{answer['target']}.{answer['workload']}")
    found = _of_runs(runs)
    dataset = {"folder": answer["data_folder"], "num_bytes": answer["dataset_bytes"]}
    own = {name: answer[name] for name in ("place", "versions") if answer.get(name)}
    return {**found, "dataset": {**dataset, **found.get("dataset", {})}, **own}


def _of_runs(runs: Sequence[Summary]) -> Summary:
    """Return the fields of the last run, from the start of the first on."""
    return {**runs[-1], "start": runs[0].get("start")} if runs else {}


def _runs(runs: Sequence[Run], answer: Answer) -> Iterable[Block]:
    """Yield what was tried: utilisation and bytes read over N, and the table."""
    numbers = [run["num_accelerators"] for run in runs]
    interval = answer.get("interval") or ()
    least, most = min(*numbers, *interval, numbers[0]), max(*numbers, *interval, numbers[0])
    x = Axis(name="emulated accelerators (N)", low=least - 0.8, high=most + 0.8, whole=True)
    bands = []
    if interval:
        bands.append(
            Bands("N* meets the threshold: 95% interval", "first", [(interval[0], interval[1])])
        )
    if number := answer.get("num_accelerators"):
        half = (x.high - x.low) / 60
        bands.append(Bands(f"answer: {number}", "mark", [(number - half, number + half)]))
    yield _au_plot(x, runs, answer.get("threshold"), bands)
    unit, size = rate_unit(max(run["read_bytes_per_second"] for run in runs))
    rates = [run["read_bytes_per_second"] / size for run in runs]
    yield Plot(
        title="bytes read in each run",
        x=x,
        y=Axis(name=unit, low=0.0, high=1.1 * max(rates) or 1.0),
        series=[_dots(runs, rates)],
        bands=bands[-1:] if number else (),
    )
    yield _table(runs, answer.get("threshold"), (unit, size))


def _au_plot(x: Axis, runs: Sequence[Run], threshold: float | None, bands: Sequence[Bands]) -> Plot:
    reached = [run["au_percentage"] for run in runs]
    series = [_dots(runs, reached)]
    if threshold is not None:
        series.append(level(f"threshold {threshold:g}%", "limit", x, threshold))
    least = min([*reached, threshold or 100.0])
    return Plot(
        title="utilisation of each run",
        x=x,
        y=Axis(name="accelerator utilisation (%)", low=max(0.0, least - 5), high=100.0),
        series=series,
        bands=bands,
    )


def _dots(runs: Sequence[Run], values: Sequence[float]) -> Series:
    """Return one dot a run. No line: nothing was measured between two numbers."""
    numbers = [run["num_accelerators"] for run in runs]
    return dotted("a run", "first", numbers, values, joined=False)


def _table(runs: Sequence[Run], threshold: float | None, rate: tuple[str, float]) -> Table:
    unit, size = rate
    heads = (
        *("run", "accelerators", "AU (%)", "verdict", "samples/s", f"read ({unit})"),
        *("from memory (%)", "limit", "duration (s)"),
    )
    rows = []
    for number, run in enumerate(runs, 1):
        au, share = run["au_percentage"], run.get("page_cache_share")
        verdict = "" if threshold is None else "passed" if passes(au, threshold) else "failed"
        rows.append(
            (
                str(number),
                str(run["num_accelerators"]),
                f"{au:.2f}",
                verdict,
                f"{run['samples_per_second']:.1f}",
                f"{run['read_bytes_per_second'] / size:.3g}",
                "" if share is None else f"{100 * share:.1f}",
                str(run.get("limit") or ""),
                f"{run.get('seconds') or 0.0:.1f}",
            )
        )
    return Table(heads=heads, rows=rows, texts=("verdict", "limit"))
