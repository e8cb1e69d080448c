"""What a report is made of. `present` makes blocks of a document; a renderer knows only blocks.

A plot is data, too: series over a pair of axes. `html` draws it on a page, `png` as a picture.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from dlemu.judge.summary import is_at_servers, place_of
from dlemu.report.words.places import dataset_text, drives_text, host_text, storage_text
from dlemu.units import counted, each_once, round_up

Document = Mapping[str, Any]
"""What a command has measured, or a part of it: JSON as Python reads it."""
Tone = Literal["pass", "fail", "caution", "plain"]
"""How good an answer is: "caution" is NO VERDICT, and a PASS with a remark that weakens it."""
Look = Literal["first", "second", "third", "fourth", "limit", "mark"]
"""How something is drawn: "first" to "fourth" differ in colour, line and dot, "limit" is dotted,
for thresholds, "mark" is what is chosen."""
_MOST_NUMBERS = 8
"""On the axis of whole numbers, so that they do not touch where 300 pixels are all."""


@dataclass(frozen=True)
class Series:
    """A measured line of a plot, or a threshold."""

    name: str
    look: Look
    pieces: Sequence[Sequence[tuple[float, float]]]
    """Points that were measured one after the other; nothing is drawn between two pieces."""
    marked: bool = False
    """Whether each point has a dot."""
    joined: bool = True
    """Whether a line joins the points of a piece."""


def dotted(
    name: str,
    look: Look,
    numbers: Sequence[float],
    values: Sequence[float | None],
    *,
    joined: bool = True,
) -> Series:
    """Return a series with a dot for each value that is known."""
    points = [(x, y) for x, y in zip(numbers, values, strict=True) if y is not None]
    return Series(name, look, [points], marked=True, joined=joined)


@dataclass(frozen=True)
class Bands:
    """Ranges of x that are shaded."""

    name: str
    look: Look
    ranges: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """One axis; `name` has the unit."""

    name: str
    low: float
    high: float
    whole: bool = False
    """Whether only whole numbers have a meaning on it."""
    names: Sequence[str] = ()
    """What lies at 0, 1, 2, ... where it has no numbers, as sizes and workloads."""

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Where it shows something, and what."""
        if self.names:
            return [(float(place), name) for place, name in enumerate(self.names)]
        return [(value, f"{value:,g}") for value in self._numbers()]

    def _numbers(self) -> list[float]:
        if not self.whole:
            return _round_steps(self.low, self.high)
        first, last = math.ceil(self.low), math.floor(self.high)
        steps = (size * 10**power for power in range(19) for size in (1, 2, 5))
        step = next(step for step in steps if (last - first) // step < _MOST_NUMBERS)
        return [float(number) for number in range(round_up(first, step), last + 1, step)]

    def share(self, value: float) -> float:
        """Return where a value lies, 0 to 1."""
        return (value - self.low) / ((self.high - self.low) or 1)


def axis_of_numbers(name: str, least: int, most: int) -> Axis:
    """Return an axis of whole numbers, with room for dots at both ends."""
    return Axis(name, least - 0.5, most + 0.5, whole=True)


def axis_of_au(*values: float) -> Axis:
    """Return an axis of AU in percent, from a bit below the least value."""
    return Axis("accelerator utilisation (%)", low=max(0.0, min(values) - 5), high=100.0)


def axis_from_zero(name: str, series: Sequence[Series], *, whole: bool = False) -> Axis:
    """Return an axis from 0 to a bit above the largest value."""
    most = max((y for each in series for piece in each.pieces for _, y in piece), default=0.0)
    return Axis(name, 0.0, 1.1 * most or 1.0, whole=whole)


def axis_of_names(name: str, names: Sequence[str]) -> Axis:
    """Return an axis of names, one beside the other."""
    return Axis(name, -0.5, len(names) - 0.5, names=names)


def level(name: str, look: Look, x: Axis, *values: float) -> Series:
    """Return lines at these values, over all of an axis."""
    return Series(name, look, [[(x.low, value), (x.high, value)] for value in values])


@dataclass(frozen=True)
class Plot:
    """Series over one pair of axes."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    bands: Sequence[Bands] = field(default=())


def _round_steps(low: float, high: float) -> list[float]:
    """Return about five round numbers between two."""
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span))
    step = next(s for s in (0.1, 0.2, 0.25, 0.5, 1, 2) if span / (s * power) <= 6) * power
    first = math.ceil(low / step)
    return [round((first + i) * step, 9) for i in range(int((high - first * step) // step) + 1)]


@dataclass(frozen=True)
class Verdict:
    """The answer in one line: all that the quiet mode prints."""

    line: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Lines:
    """Sentences, each a paragraph, such as "limit: storage. vda gave 1.5 GB/s"."""

    lines: Sequence[str]


@dataclass(frozen=True)
class CommandLine:
    """A command to copy. It keeps its line, however narrow the terminal is."""

    what: str
    """Why one would run it, as "next"."""
    line: str


@dataclass(frozen=True)
class Facts:
    """Names and values side by side; what has no value is left out."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """Cells in rows, as text. The first column names the row."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    texts: Sequence[str] = ()
    """Heads of columns without numbers: they stand to the left, as the first column does."""
    spare: Sequence[str] = ()
    """Heads of columns to leave out where the terminal is too narrow, in this order."""
    links: Sequence[str] = ()
    """Targets in the page, one a row, for the first cell."""


@dataclass(frozen=True)
class Column:
    """A column of a table of equal things."""

    head: str
    value: str | Callable[[Any], Any]
    """A thing's value: by its key, or what this returns for the thing. None is shown as "-"."""
    form: str | Callable[[Any], str] = ""
    """The value as text: by a format such as ".2f", or what this returns for the value."""
    text: bool = False
    """As `Table.texts`."""
    spare: int = 0
    """From 1: when it is left out, as `Table.spare`."""

    def cell(self, thing: Any) -> str:
        """Return the cell of a thing."""
        value = thing[self.value] if isinstance(self.value, str) else self.value(thing)
        if value is None:
            return "-"
        return format(value, self.form) if isinstance(self.form, str) else self.form(value)


def table_of(things: Iterable[Any], *columns: Column, title: str = "") -> Table:
    """Return a table with a row for each thing."""
    spare = sorted((each for each in columns if each.spare), key=lambda each: each.spare)
    return Table(
        title=title,
        heads=[each.head for each in columns],
        rows=[[each.cell(thing) for each in columns] for thing in things],
        texts=[each.head for each in columns if each.text],
        spare=[each.head for each in spare],
    )


def over_epochs(rows: Iterable[tuple[str, Sequence[float], str]], title: str = "") -> Table:
    """Return a table with a row for each name, values of epochs, and form of a number."""
    finds = (fmean, min, max)
    cells = [[name, *(format(find(each), form) for find in finds)] for name, each, form in rows]
    return Table(("per epoch", "mean", "min", "max"), cells, title)


@dataclass(frozen=True)
class Fold:
    """Details: closed in a page, and in the terminal shown by -v only."""

    title: str
    blocks: Sequence["Block"]
    is_open: bool = False
    """Whether a page shows it open."""


@dataclass(frozen=True)
class FileText:
    """The text of a file, shown as it is."""

    text: str


Block = Verdict | Lines | CommandLine | Facts | Table | Plot | Fold | FileText


@dataclass(frozen=True)
class ResultSection:
    """One result: what it is called, where it lies, its blocks, and its row beside others."""

    title: str
    folder: str
    blocks: Sequence[Block]
    rows: Sequence[Mapping[str, str]] = field(default=())
    """Its cells in the table across results, by their heads."""


def measured(document: Document, *more: tuple[str, str], is_open: bool = False) -> Fold:
    """Return where and when something was measured, below a fold."""
    facts = Facts([*facts_of(document), *more])
    return Fold("where and how it was measured", [facts], is_open)


def where_cells(document: Document, folder: str) -> dict[str, str]:
    """Return the cells of the table across results that say where and when one was measured."""
    return {
        "storage": drive_name(document, folder),
        "host": str(document.get("hostname") or ""),
        "measured": date_of(document),
    }


# --- where and when it was measured ---------------------------------------------------------------


def facts_of(summary: Document) -> Iterator[tuple[str, str]]:
    """Yield names and values, "" where a value is not known."""
    place = place_of(summary)
    yield "measured", date_of(summary, long=True)
    yield "host", _host(summary, place)
    yield "storage", storage_text(place) if "file_system" in place else _devices(summary, place)
    yield "firmware", drives_text(place, "firmware")
    yield "dataset", dataset_text(summary.get("dataset") or {})
    yield "loader", _loader(summary)
    versions = summary.get("versions") or {}
    first = {"dlemu": versions.get("dlemu")} | versions
    yield "versions", ", ".join(f"{name} {value}" for name, value in first.items() if value)


def date_of(summary: Document, *, long: bool = False) -> str:
    """Return the day of a run; with `long` also the time, "2026-11-21 23:54 to 23:58 UTC"."""
    start, end = (str(summary.get(name) or "") for name in ("start", "end"))
    if not long:
        return start[:10]
    if "T" not in start:
        return start
    (day, time), (last_day, last) = start.split("T", 1), (end.split("T", 1) * 2)[:2]
    if not end or (day, time[:5]) == (last_day, last[:5]):
        return f"{day} {time[:5]} UTC"
    return f"{day} {time[:5]} to {'' if last_day == day else f'{last_day} '}{last[:5]} UTC"


def drive_name(summary: Document, folder: str) -> str:
    """Return what a title calls the storage: the drive's model, else its device and the folder."""
    place = place_of(summary)
    if model := drives_text(place, "model"):
        return f"{model} ({folder})"
    devices = _devices(summary, place)
    return f"{folder} ({devices})" if devices else folder


def _host(summary: Document, place: Document) -> str:
    measured: Document = next(iter((summary.get("measured") or {}).get("hosts") or ()), {})
    known = {"host": summary.get("hostname"), "cpus": measured.get("usable_cpus")}
    known |= {key: value for key, value in place.items() if value}
    return host_text(known, summary.get("num_hosts"))


def _devices(summary: Document, place: Document) -> str:
    hosts = (summary.get("measured") or {}).get("hosts") or ()
    return drives_text(place, "name") or each_once(host.get("device") for host in hosts)


def _loader(summary: Document) -> str:
    parts = [summary.get("data_loader")]
    if parts[0] and (reader := summary.get("reader")):
        parts.append(f"{counted(reader['read_threads'], 'worker')} for each accelerator")
        if is_at_servers(summary):
            parts.append(f"{reader['gets_in_flight']} GETs in flight each")
        else:
            ways = {
                True: "O_DIRECT",
                False: "through the page cache",
                "auto": "O_DIRECT if the data folder takes it",
            }
            parts.append(ways[reader["odirect"]])
    return each_once(parts)
