"""`dlemu compare`: results side by side, and whether one is worse than CI allows."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any

from pydantic import BeforeValidator

from dlemu.cli.commands import COMMANDS
from dlemu.cli.scripts import json_text
from dlemu.cli.words import parse
from dlemu.errors import WorkloadError
from dlemu.reports.compare import Comparison, Result, compare_folders
from dlemu.reports.noise import Difference
from dlemu.terminal import Answer, answer, keep_stdout, say, shown_line
from dlemu.units import text_table
from dlemu.workload.sections import Arguments

_MAX_LOSS = "compare.max_loss"
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")


def _percent(text: object) -> float:
    found = _PERCENT.fullmatch(str(text).strip())
    if found is None or float(found[1]) > 100:
        raise ValueError(f"must be 0% to 100%, such as 5%, got {text}")
    return float(found[1])


class Allowed(Arguments):
    """What a result may have lost against the first one."""

    max_loss: Annotated[float, BeforeValidator(_percent)] | None = None
    """Exit with 2 where a result has lost more than that, as 5%: samples/s of runs, accelerators of
    sizings."""


_FIGURES: dict[str, tuple[str, float, str]] = {
    "au_percentage": ("AU (%)", 1, ".2f"),
    "samples_per_second": ("samples/s", 1, ",.2f"),
    "read_bytes_per_second": ("read (MB/s)", 1e-6, ",.1f"),
    "save_bytes_per_second": ("save (GB/s)", 1e-9, ",.3f"),
    "load_bytes_per_second": ("load (GB/s)", 1e-9, ",.3f"),
    "page_cache_share": ("from memory (%)", 100, ".1f"),
    "real_accelerators": ("N*", 1, ".2f"),
}
"""Heading, factor and form of each figure."""
_IN_PERCENT = (
    "samples_per_second",
    "read_bytes_per_second",
    "save_bytes_per_second",
    "load_bytes_per_second",
)
"""Their differences are shown relative to the first result."""
_SCORES = {"run": "samples/s", "sizing": "accelerators", "checkpoint": "bytes/s"}
"""What a loss is counted in, by the kind of result."""


def main(arguments: Sequence[str]) -> int:
    """Run `dlemu compare` with its arguments; return the exit status."""
    words = parse(arguments, COMMANDS["compare"].options)
    max_loss = Allowed(**words.tree("compare")).max_loss
    if len(words.others) < 2:
        raise WorkloadError("dlemu compare needs two folders of results: dlemu compare A B")
    with keep_stdout("--json" in words.options):
        comparisons = compare_folders(list(map(Path, words.others)))
        lost = [loss for each in comparisons for loss in _losses(each, max_loss)]
        if "--json" in words.options:
            answer(json_text(_document(comparisons, max_loss)))
        else:
            say(Answer("\n\n".join(_render(each) for each in comparisons)))
        if max_loss is not None:
            text = "\n".join(lost) or f"no result lost more than {_MAX_LOSS}={max_loss:g}%"
            say(Answer(f"\n{text}", text))
    return 2 if lost else 0


def _losses(comparison: Comparison, max_loss: float | None) -> Iterator[str]:
    """Yield a line for each result that has lost more than is allowed."""
    if max_loss is None:
        return
    first, *others = comparison.results
    what = _SCORES[first.kind]
    for number, other in enumerate(others, 1):
        loss = 100 * comparison.loss(number)
        if round(loss, 6) > max_loss:
            more = "; its number is a lower bound" if other.at_least else ""
            yield shown_line(
                f"LOSS: {other.folder} has {loss:.1f}% fewer {what} than {first.folder}, "
                f"{_MAX_LOSS} allows {max_loss:g}%{more}"
            )


def _render(comparison: Comparison) -> str:
    """Return the comparison as text."""
    results = comparison.results
    names = [_name(number) for number in range(len(results))]
    target = f" on {results[0].target}" if results[0].target else ""
    overview = _overview(names, results)
    text = {"", "verdict", "limit", "folder"}
    left = [column for column, head in enumerate(overview[0]) if head in text]
    head = f"{_caveat(names, results)}{results[0].workload}{target}"
    parts = [head, text_table(overview, left=left)]
    for number in range(1, len(results)):
        found = comparison.differences(number)
        rows = [[f"  {_FIGURES[name][0]}", *_shown(name, each)] for name, each in found.items()]
        if rows:
            known = any(each.noise is not None for each in found.values())
            interval = ", with the 95% interval of the difference" if known else ""
            head = f"{names[number]} against A{interval}:"
            parts.append(f"{head}\n{text_table(rows, left=(0, 2))}")
    noise = "; ".join(f"{n} from {r.basis}" for n, r in zip(names, results, strict=True))
    parts.append(f"noise: {noise}")
    unlike: dict[str, list[Any]] = {**comparison.facts, **comparison.keys}
    if unlike:
        rows = [[f"  {name}", *map(_cell, values)] for name, values in unlike.items()]
        parts.append(f"what differs:\n{text_table([['', *names], *rows])}")
    else:
        parts.append("what differs: nothing that is known of hosts, drives, versions and keys")
    return "\n\n".join(parts)


def _caveat(names: Sequence[str], results: Sequence[Result]) -> str:
    """Return the line that single runs tell no difference; "" where each is of several runs."""
    single = [
        name
        for name, result in zip(names, results, strict=True)
        if any(figure.of_one_run for figure in result.figures.values())
    ]
    if not single:
        return ""
    each = "one run each" if len(single) == len(results) else f"{', '.join(single)}: one run"
    return f"{each}: not comparable, take runs=5\n\n"


def _name(number: int) -> str:
    """Return A, B ... Z, then R27 and so on."""
    return ascii_uppercase[number] if number < 26 else f"R{number + 1}"


def _overview(names: Sequence[str], results: Sequence[Result]) -> list[list[str]]:
    """Return the head and a row for each result."""
    figures = [name for name in _FIGURES if any(name in r.figures for r in results)]
    verdict = any(result.verdict for result in results)
    rows = [
        [
            *("", "accelerators", *(_FIGURES[name][0] for name in figures)),
            *(["verdict"] if verdict else []),
            *("limit", "folder"),
        ]
    ]
    for name, result in zip(names, results, strict=True):
        cells = [name, f"{'>= ' if result.at_least else ''}{result.num_accelerators}"]
        for figure in figures:
            _, factor, form = _FIGURES[figure]
            found = result.figures.get(figure)
            cells.append("-" if found is None else format(factor * found.value, form))
        if verdict:
            cells.append(result.verdict)
        rows.append([*cells, result.limit, str(result.folder)])
    return rows


def _shown(name: str, found: Difference) -> tuple[str, str]:
    """Return a difference with its noise, and what is to be said of it."""
    _, factor, form = _FIGURES[name]
    unit = " points" if "%" in _FIGURES[name][0] else ""
    if name in _IN_PERCENT and found.against:
        factor, form, unit = 100 / found.against, ".1f", " %"
    text = f"{format(factor * found.value, f'+{form}')}"
    if found.within_one_run is not None:
        apart = format(abs(factor) * found.within_one_run, form)
        return f"{text}{unit}", f"± {apart} within one run"
    if found.noise is None:
        return f"{text}{unit}", "noise unknown"
    told = "within the noise" if found.within_noise else ""
    return f"{text} ± {format(abs(factor) * found.noise, form)}{unit}", told


def _cell(value: object) -> str:
    text = "-" if value is None else str(value)
    return shown_line(text if len(text) <= 60 else f"{text[:57]}...")


def _document(comparisons: Sequence[Comparison], max_loss: float | None) -> Any:
    """Return what --json prints: an object, or a list where there are several targets."""
    documents = [
        {
            "results": [asdict(result) for result in each.results],
            "differences": [
                {
                    name: asdict(found) | {"share": found.share, "within_noise": found.within_noise}
                    for name, found in each.differences(number).items()
                }
                for number in range(1, len(each.results))
            ],
            "loss": [each.loss(number) for number in range(1, len(each.results))],
            "max_loss": None if max_loss is None else max_loss / 100,
            "differing_facts": each.facts,
            "differing_keys": each.keys,
        }
        for each in comparisons
    ]
    return documents[0] if len(documents) == 1 else documents
