"""Results of one kind side by side: what each reached, and in what they differ.

A result is a run, several runs in a folder, a command's checkpoints, or a sizing. The document has
what `dlemu compare --json` prints. A result there has its names of summary.json and sizing.json;
`figures` by name, each a mean with its standard error; `basis`, what that error was taken from;
`facts` of hosts, drives and versions, and the `keys` of the workload, both by dotted name.

The noise of a mean is its standard error over runs. Two means are compared as Welch's t-test does,
with 95 % intervals. Parts of the steps of one run vary less than runs do: their spread gives no
interval of a difference between runs.
"""

import glob
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dlemu.config.compose import PATH_KEYS, leaves
from dlemu.config.model import Workload
from dlemu.errors import DAMAGE, DlemuError, RunError, WorkloadError, in_short
from dlemu.judge.metrics import t95
from dlemu.judge.records import SIZING, SUMMARY, read_config, read_summary
from dlemu.judge.summary import limit_name
from dlemu.report.blocks import Block, Document, Lines, Table, Verdict
from dlemu.report.stored import Stored, read_result
from dlemu.units import counted, each_once

_PATHS = PATH_KEYS | {"size.targets"}
_OF_A_RUN = ("au_percentage", "samples_per_second", "read_bytes_per_second", "page_cache_share")
_FIGURES: dict[str, tuple[str, float, str]] = {
    "au_percentage": ("AU (%)", 1, ".2f"),
    "samples_per_second": ("samples/s", 1, ",.2f"),
    "read_bytes_per_second": ("read (MB/s)", 1e-6, ",.1f"),
    "save_bytes_per_second": ("save (GB/s)", 1e-9, ",.3f"),
    "load_bytes_per_second": ("load (GB/s)", 1e-9, ",.3f"),
    "page_cache_share": ("from memory (%)", 100, ".1f"),
    "real_accelerators": ("N*", 1, ".2f"),
}
"""Head, factor and form of each figure."""
_SCORES = {"run": "samples/s", "sizing": "accelerators", "checkpoint": "bytes/s"}
"""What a loss is counted in, by the kind of result."""


# --- blocks ---------------------------------------------------------------------------------------


def present_comparisons(document: Document) -> list[Block]:
    """Return the blocks of all comparisons, and which results lost more than is allowed."""
    blocks = []
    for number, comparison in enumerate(document["comparisons"]):
        blocks += [*([Lines([""])] if number else []), *_present(comparison)]
    blocks += [Verdict(line, "fail") for line in document["losses"]]
    if document["max_loss"] is not None and not document["losses"]:
        percent = f"{100 * document['max_loss']:g}%"
        blocks.append(Verdict(f"no result lost more than compare.max_loss={percent}", "pass"))
    return blocks


def _present(document: Document) -> list[Block]:
    """Return the blocks of one comparison."""
    results = document["results"]
    names = [chr(ord("A") + n) if n < 26 else f"R{n + 1}" for n in range(len(results))]
    target = f" on {results[0]['target']}" if results[0]["target"] else ""
    single = [
        name
        for name, result in zip(names, results, strict=True)
        if any(figure["of_one_run"] for figure in result["figures"].values())
    ]
    each = "one run each" if len(single) == len(results) else f"{', '.join(single)}: one run"
    title = [f"{each}: not comparable, take runs=5"] if single else []
    title.append(f"{results[0]['workload']}{target}")
    blocks: list[Block] = [Lines(title), _overview(names, results)]
    for name, found in zip(names[1:], document["differences"], strict=True):
        if found:
            known = any(each["noise"] is not None for each in found.values())
            heads = (f"{name} against A", f"difference{', 95% interval' if known else ''}", "")
            rows = [[_FIGURES[figure][0], *_shown(figure, each)] for figure, each in found.items()]
            blocks.append(Table(heads=heads, rows=rows, texts=("",)))
    noise = "; ".join(f"{n} from {each['basis']}" for n, each in zip(names, results, strict=True))
    blocks.append(Lines([f"noise: {noise}"]))
    unlike = {**document["differing_facts"], **document["differing_keys"]}
    if unlike:
        rows = [[name, *map(_cell, values)] for name, values in unlike.items()]
        blocks.append(Table(heads=("what differs", *names), rows=rows, texts=names))
    else:
        blocks.append(Lines(["what differs: no known host, drive, version or key"]))
    return blocks


def losses(document: Document) -> Iterator[str]:
    """Yield a line for each result that has lost more than is allowed."""
    first, *others = document["results"]
    allowed = document["max_loss"]
    for other, loss in zip(others, document["loss"], strict=True):
        if allowed is not None and round(100 * loss, 6) > round(100 * allowed, 6):
            more = "; its number is a lower bound" if other["at_least"] else ""
            yield (
                f"LOSS: {other['folder']} has {100 * loss:.1f}% fewer {_SCORES[first['kind']]} "
                f"than {first['folder']}, compare.max_loss allows {100 * allowed:g}%{more}"
            )


def _overview(names: Sequence[str], results: Sequence[Document]) -> Table:
    """Return the table with a row for each result."""
    figures = [name for name in _FIGURES if any(name in each["figures"] for each in results)]
    texts = [name for name in ("verdict", "limit", "folder") if any(r[name] for r in results)]
    rows = []
    for name, result in zip(names, results, strict=True):
        cells = [name, f"{'>= ' if result['at_least'] else ''}{result['num_accelerators']}"]
        for figure in figures:
            _, factor, form = _FIGURES[figure]
            found = result["figures"].get(figure)
            cells.append("-" if found is None else format(factor * found["value"], form))
        rows.append([*cells, *(result[text] for text in texts)])
    heads = ("", "accelerators", *(_FIGURES[name][0] for name in figures))
    return Table(
        heads=(*heads, *texts), rows=rows, texts=texts, spare=("from memory (%)", "read (MB/s)")
    )


def _shown(name: str, found: Document) -> tuple[str, str]:
    """Return a difference with its noise, and what that means."""
    _, factor, form = _FIGURES[name]
    unit = " points" if "%" in _FIGURES[name][0] else ""
    if name.endswith("_per_second") and found["against"]:  # a rate: in percent of the first
        factor, form, unit = 100 / found["against"], ".1f", " %"
    text = f"{format(factor * found['value'], f'+{form}')}"
    if found["within_one_run"] is not None:
        apart = format(abs(factor) * found["within_one_run"], form)
        return f"{text}{unit}", f"± {apart} within one run"
    if found["noise"] is None:
        return f"{text}{unit}", "noise unknown"
    within = "within the noise" if found["within_noise"] else ""
    return f"{text} ± {format(abs(factor) * found['noise'], form)}{unit}", within


def _cell(value: object) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- figures and their noise ----------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A mean, and its standard error; None: nothing tells how far it varies."""

    value: float
    error: float | None = None
    freedom: float = math.inf
    """Degrees of freedom of the error."""
    of_one_run: bool = False
    """Whether the error is that of parts of one run."""


def figure_of(values: Sequence[float]) -> Figure:
    """Return the mean of values with its error."""
    value = float(np.mean(values))
    if len(values) < 2:
        return Figure(value)
    return Figure(value, float(np.std(values, ddof=1)) / math.sqrt(len(values)), len(values) - 1)


def difference(new: Figure, old: Figure) -> dict[str, Any]:
    """Return what `new` is above `old`, also as a share of it, and the noise of both together.

    `noise` is half of the 95 % interval of the difference, None if unknown; `within_one_run` what
    it would be if runs varied as little as the parts of one run.
    """
    value, width = new.value - old.value, None
    if new.error is not None and old.error is not None:
        squares = [new.error**2, old.error**2]
        freedoms = (new.freedom, old.freedom)
        below = sum(s**2 / freedom for s, freedom in zip(squares, freedoms, strict=True))
        freedom = sum(squares) ** 2 / below if below else math.inf
        width = t95(freedom) * math.sqrt(sum(squares))
    one_run = new.of_one_run or old.of_one_run
    noise = None if one_run else width
    return {
        "value": value,
        "against": old.value,
        "noise": noise,
        "within_one_run": width if one_run else None,
        "share": value / old.value if old.value else None,
        "within_noise": None if noise is None else abs(value) <= noise,
    }


# --- the document ---------------------------------------------------------------------------------


def compare_folders(folders: Sequence[Path], max_loss: float | None = None) -> list[Document]:
    """Return the comparison of each workload and target in these folders.

    The first result is what the others are compared with. `max_loss` is the share (0-1) that a
    result may have lost against it.

    Raises:
        DlemuError: a folder holds no result, is damaged, or holds one of another kind or workload.
    """
    found = [_read(folder) for folder in folders]
    single = all(len(results) == 1 for results in found)
    comparisons = []
    for first in found[0]:
        same = [first]
        for folder, results in zip(folders[1:], found[1:], strict=True):
            wanted = first["workload"], first["target"]
            named = [r for r in results if single or (r["workload"], r["target"]) == wanted]
            if not named:
                raise WorkloadError(
                    f"{folder} has no sizing of {first['workload']} on {first['target']}, "
                    f"{folders[0]} has; compare sizings of the same targets and workloads"
                )
            same.append(named[0])
            if (first["kind"], first["workload"]) != (same[-1]["kind"], same[-1]["workload"]):
                raise WorkloadError(
                    f"{folders[0]} holds a {first['kind']} of {first['workload']}, {folder} a "
                    f"{same[-1]['kind']} of {same[-1]['workload']}; compare results of one kind "
                    "and workload"
                )
        comparisons.append(_compared(same, max_loss))
    return comparisons


def _compared(results: Sequence[Document], max_loss: float | None) -> Document:
    first, *others = results
    keys = dict(_unlike([each["keys"] for each in results]))
    return {
        "kind": "comparison",
        "results": [
            {**each, "figures": {name: asdict(value) for name, value in each["figures"].items()}}
            for each in results
        ],
        "differences": [
            {
                name: difference(other["figures"][name], figure)
                for name, figure in first["figures"].items()
                if name in other["figures"]
            }
            for other in others
        ],
        "loss": [
            max(0.0, 1 - now / was) if was > 0 else 0.0
            for was, now in (_scores(first, other) for other in others)
        ],
        "max_loss": max_loss,
        "differing_facts": dict(_unlike([each["facts"] for each in results])),
        "differing_keys": dict(sorted(keys.items(), key=lambda pair: pair[0] in _PATHS)),
    }


def _scores(first: Document, other: Document) -> tuple[float, float]:
    """Return what a loss is counted in: accelerators of sizings, samples/s of runs, bytes/s."""
    if first["kind"] == "sizing":
        return first["num_accelerators"], other["num_accelerators"]
    for name in ("samples_per_second", "save_bytes_per_second", "load_bytes_per_second"):
        if name in first["figures"] and name in other["figures"]:
            return first["figures"][name].value, other["figures"][name].value
    raise WorkloadError(
        f"{first['folder']} and {other['folder']} have no figure in common: one has checkpoints "
        "that were written, the other such that were read; compare results of the same command"
    )


def _read(folder: Path) -> list[Document]:
    """Return what a folder holds: one result, or one for each target and workload of a sizing.

    Raises:
        DlemuError: it holds none, or a damaged one.
    """
    if folder.name in (SIZING, SUMMARY):
        folder = folder.parent
    try:
        stored = read_result(folder)
        match stored.kind:
            case "sizing":
                results = [_sizing(folder, answer) for answer in stored.document["answers"]]
            case "checkpoint":
                results = [_checkpoints(stored)]
            case "run" | "runs" if "tool" not in stored.document:
                results = [_runs(stored)]
            case _:
                raise RunError(f"{folder} holds a result of another tool; name results of dlemu")
        if not results:
            raise RunError(f"{folder}: the search did not end, so nothing is compared")
        for result in results:
            for name in ("workload", "target", "verdict", "limit"):
                if not isinstance(value := result[name], str):
                    raise ValueError(f"its {name} is {value!r}")
            for name, figure in result["figures"].items():
                if not math.isfinite(figure.value) or not math.isfinite(figure.error or 0.0):
                    raise ValueError(f"its {name} is no finite number")
        return results
    except DlemuError:
        raise
    except DAMAGE as error:
        raise RunError(f"{folder} holds a damaged result: {in_short(error)}") from None


def _runs(stored: Stored) -> Document:
    counting = stored.counting
    name, first = next(iter(stored.runs.items()))
    if len(counting) > 1:
        figures, basis = _over(list(map(_of_run, counting))), counted(len(counting), "run")
    else:
        figures, basis = _of_one(counting[0])
    limit = each_once(map(limit_name, counting))
    about = {**first, "verdict": stored.document["verdict"], "limit": limit}
    return _result(stored.folder, "run", about, figures, basis, _measured(stored.folder / name))


def _checkpoints(stored: Stored) -> Document:
    """Return the result of `dlemu checkpoint`; its figures are the rates of saves and loads."""
    document, entries = stored.document, stored.document["checkpoint"]
    figures = {
        f"{kind}_bytes_per_second": figure_of([e["num_bytes"] / e["seconds"] for e in found])
        for kind, found in (("save", entries["saves"]), ("load", entries["loads"]))
        if found
    }
    if not figures:
        raise RunError(f"{stored.folder} holds no checkpoint that was written or read")
    limit = each_once(limit_name(document, name) for name in ("limit", "load_limit"))
    basis = counted(len(entries["saves"] or entries["loads"]), "checkpoint")
    about = {**document, "limit": limit}
    return _result(stored.folder, "checkpoint", about, figures, basis, _measured(stored.folder))


def _result(
    folder: Path,
    kind: str,
    about: Document,
    figures: Mapping[str, Figure],
    basis: str,
    measured: Document,
) -> Document:
    """Return a result; `about` has what was measured, `measured` its facts and keys."""
    named = {"target": "", "at_least": False, "verdict": "", **about}
    same = ("workload", "target", "num_accelerators", "at_least", "verdict", "limit")
    return {
        "folder": str(folder),
        "kind": kind,
        **{name: named[name] for name in same},
        "figures": figures,
        "basis": basis,
        **measured,
    }


def _measured(folder: Path, *without: str) -> Document:
    """Return `facts` and `keys` of a stored run or command, as another result may differ in."""
    return {
        "facts": _facts(read_summary(folder)),
        "keys": _keys(read_config(folder, {}), *without),
    }


def _of_run(run: Document) -> dict[str, float | None]:
    metric, epochs = run["metric"], run["per_epoch"]
    seconds = [epoch["seconds"] for epoch in epochs]
    rates = [epoch["read_bytes_per_second"] for epoch in epochs]
    return {
        "au_percentage": metric["train_au_mean_percentage"],
        "samples_per_second": metric["train_throughput_mean_samples_per_second"],
        "read_bytes_per_second": sum(map(float.__mul__, rates, seconds)) / sum(seconds),
        "page_cache_share": run.get("measured", {}).get("page_cache_share"),
    }


def _over(rows: Sequence[Mapping[str, float | None]]) -> dict[str, Figure]:
    """Return the figures of several rows; a name that one of them does not know is left out."""
    figures = {}
    for name in rows[0]:
        values = [value for row in rows if (value := row[name]) is not None]
        if len(values) == len(rows):
            figures[name] = figure_of(values)
    return figures


def _of_one(run: Document) -> tuple[dict[str, Figure], str]:
    """Return the figures of one run, and what their noise is taken from.

    Rates vary as the AU does: each step is asked to compute alike.
    """
    means, interval = _of_run(run), run["metric"].get("train_au_interval_percentage")
    au = run["metric"]["train_au_mean_percentage"]
    figures = {
        name: Figure(mean, of_one_run=True) for name, mean in means.items() if mean is not None
    }
    if interval is None:
        return figures, "nothing: the run is too short"
    share = max(interval[1] - au, au - interval[0]) / au / t95(math.inf)
    for name in [name for name in figures if name != "page_cache_share"]:
        figures[name] = replace(figures[name], error=share * figures[name].value)
    return figures, "parts of the steps of one run"


def _sizing(folder: Path, answer: Document) -> Document:
    points = answer["confirmations"] or answer["points"][-1:]
    if not points:
        raise RunError(f"{folder}: no run of {answer['workload']} was made, so nothing is compared")
    figures = _over([{name: point.get(name) for name in _OF_A_RUN} for point in points])
    if answer["real_accelerators"] is not None and answer["interval"] is not None:
        low, high = answer["interval"]
        error = (high - low) / 2 / t95(math.inf)
        figures["real_accelerators"] = Figure(answer["real_accelerators"], error)
    measured: Document = {"facts": {}, "keys": {}}
    name = glob.escape(f"{answer['target']}.{answer['workload']}")
    for run in sorted((folder / "runs").glob(f"{name}.*")):
        with suppress(DlemuError, *DAMAGE):  # cut short, or removed
            measured = _measured(run, "num_accelerators", "size")
            break
    basis = f"{counted(len(points), 'run')} at {points[-1]['num_accelerators']}"
    return _result(folder, "sizing", {**answer, "verdict": ""}, figures, basis, measured)


def _keys(workload: Workload, *without: str) -> dict[str, object]:
    """Return the keys that say what was run, by dotted name."""
    left_out = {"given", "ignored", "output", *without}
    keys = dict(leaves(workload.model_dump(mode="json", exclude=left_out)))
    if "random" in (workload.reader.file_shuffle, workload.reader.sample_shuffle):
        del keys["train.seed"]  # each run draws its own
    return keys


def _facts(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the known facts of a run's hosts; of several hosts, each value once."""
    hosts = summary.get("system") or [{"host": summary.get("hostname", "")}]
    facts = {f"num_{what}": str(summary.get(f"num_{what}", "")) for what in ("ranks", "hosts")}
    for name in dict.fromkeys(name for host in hosts for name in host if name != "drives"):
        facts[f"system.{name}"] = each_once(str(host.get(name, "")) for host in hosts)
    drives = [drive for host in hosts for drive in host.get("drives", ())]
    for name in dict.fromkeys(name for drive in drives for name in drive):
        facts[f"drives.{name}"] = each_once(drive.get(name, "") for drive in drives)
    for name, value in (summary.get("versions") or {}).items():
        if name != "kernel" or "system.kernel" not in facts:
            facts[f"versions.{name}"] = str(value)
    return {name: value for name, value in facts.items() if value}


def _unlike(tables: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each name whose known values differ, with the value in each table or None."""
    for name in dict.fromkeys(name for table in tables for name in table):
        known = [table[name] for table in tables if name in table]
        if any(value != known[0] for value in known):
            yield name, [table.get(name) for table in tables]
