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
from pathlib import Path
from typing import Any

import numpy as np

from dlemu.config.compose import PATH_KEYS, leaves, read_yaml
from dlemu.config.source import acts
from dlemu.errors import DAMAGE, DlemuError, RunError, WorkloadError, in_short
from dlemu.judge.metrics import t95
from dlemu.judge.records import CONFIG, SIZING, SUMMARY, read_config, read_summary
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
"""The figure in which a loss is counted, by the kind of result."""


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
    title += [f"{name}: {_about(result)}" for name, result in zip(names, results, strict=True)]
    blocks: list[Block] = [Lines(title)]
    for name, other, found in zip(names[1:], results[1:], document["differences"], strict=True):
        known = any(each["noise"] is not None for each in found.values())
        heads = ("", "A", name, f"{name} against A{' (95%)' if known else ''}", " ")
        rows = [
            [head, *(_figure(r, figure) for r in (results[0], other)), *_shown(figure, found)]
            for figure, (head, _, _) in _FIGURES.items()
            if figure in results[0]["figures"] or figure in other["figures"]
        ]
        blocks.append(Table(heads=heads, rows=rows, texts=(" ",)))
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


def _about(result: Document) -> str:
    """Return where a result lies, what it found, and what its noise was taken from."""
    number = counted(result["num_accelerators"], "accelerator")
    parts = [
        result["folder"],
        f"at least {number}" if result["at_least"] else number,
        result["verdict"],
        result["limit"] and f"limit {result['limit']}",
        f"noise from {result['basis']}",
    ]
    return ", ".join(filter(None, parts))


def _figure(result: Document, name: str) -> str:
    _, factor, form = _FIGURES[name]
    found = result["figures"].get(name)
    return "-" if found is None else format(factor * found["value"], form)


def _shown(name: str, differences: Document) -> tuple[str, str]:
    """Return a difference with its noise, and what that means."""
    if (found := differences.get(name)) is None:
        return "-", ""
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


def figure(
    value: float, error: float | None = None, freedom: float = math.inf, *, one_run: bool = False
) -> Document:
    """Return a mean with its standard error, and that error's degrees of freedom.

    None: nothing tells how far the mean varies. `one_run`: the error is that of parts of one run.
    """
    return {"value": value, "error": error, "freedom": freedom, "of_one_run": one_run}


def figure_of(values: Sequence[float]) -> Document:
    """Return the mean of values with its error."""
    value = float(np.mean(values))
    if len(values) < 2:
        return figure(value)
    return figure(value, float(np.std(values, ddof=1)) / math.sqrt(len(values)), len(values) - 1)


def difference(new: Document, old: Document) -> dict[str, Any]:
    """Return what `new` is above `old`, also as a share of it, and the noise of both together.

    `noise` is half of the 95 % interval of the difference, None if unknown; `within_one_run` what
    it would be if runs varied as little as the parts of one run.
    """
    value, width = new["value"] - old["value"], None
    if new["error"] is not None and old["error"] is not None:
        squares = [each["error"] ** 2 for each in (new, old)]
        freedoms = (new["freedom"], old["freedom"])
        below = sum(s**2 / freedom for s, freedom in zip(squares, freedoms, strict=True))
        freedom = sum(squares) ** 2 / below if below else math.inf
        width = t95(freedom) * math.sqrt(sum(squares))
    one_run = new["of_one_run"] or old["of_one_run"]
    noise = None if one_run else width
    return {
        "value": value,
        "against": old["value"],
        "noise": noise,
        "within_one_run": width if one_run else None,
        "share": value / old["value"] if old["value"] else None,
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
    scores = [_scores(first, other) for other in others]
    keys = dict(_unlike([each["keys"] for each in results]))
    return {
        "kind": "comparison",
        "results": results,
        "differences": [
            {
                name: difference(other["figures"][name], old)
                for name, old in first["figures"].items()
                if name in other["figures"]
            }
            for other in others
        ],
        "loss": [max(0.0, 1 - now / was) if was > 0 else 0.0 for was, now in scores],
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
            return first["figures"][name]["value"], other["figures"][name]["value"]
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
        kind = {"runs": "run"}.get(stored.kind, stored.kind)
        match kind:
            case "sizing":
                found = [_sizing(folder, answer) for answer in stored.document["answers"]]
            case "checkpoint":
                found = [_checkpoints(stored)]
            case "run":
                found = [_runs(stored)]
            case "calibration" | "load" | "paths":
                raise RunError(f"{folder} holds {kind}; runs, sizings, checkpoints are compared")
            case _:
                raise RunError(
                    f"{folder} holds no steps of the other tool; name a run that has them"
                )
        if not found:
            raise RunError(f"{folder}: the search did not end, so nothing is compared")
        held = {"folder": str(folder), "kind": kind}
        results: list[Document] = [
            {**held, **{name: {**_LEAST, **each}[name] for name in _FIELDS}} for each in found
        ]
        for result in results:
            for name in ("workload", "target", "verdict", "limit"):
                if not isinstance(value := result[name], str):
                    raise ValueError(f"its {name} is {value!r}")
            for name, each in result["figures"].items():
                if not math.isfinite(each["value"]) or not math.isfinite(each["error"] or 0.0):
                    raise ValueError(f"its {name} is no finite number")
        return results
    except DlemuError:
        raise
    except DAMAGE as error:
        raise RunError(
            f"{folder} holds a damaged result: {in_short(error)}",
            remedy="restore it from a copy, or run again",
        ) from None


_FIELDS = (
    *("workload", "target", "num_accelerators", "at_least", "verdict", "limit"),
    *("figures", "basis", "facts", "keys"),
)
_LEAST = {"target": "", "at_least": False, "verdict": "", "facts": {}, "keys": {}}
"""What a result may lack."""


def _runs(stored: Stored) -> dict[str, Any]:
    """Return one run, or several as one; of a single one the noise of parts of its steps.

    Rates vary as the AU does: each step is asked to compute alike.
    """
    counting = stored.counting
    name, first = next(iter(stored.runs.items()))
    figures = _over([_of_run(run) for run in counting])
    basis = counted(len(counting), "run")
    if len(counting) == 1:
        metric = counting[0]["metric"]
        au, interval = metric["train_au_mean_percentage"], metric["train_au_interval_percentage"]
        width = max(interval[1] - au, au - interval[0]) if interval else 0.0
        for what, each in figures.items():
            known = interval and what != "page_cache_share"
            error = width / au / t95(math.inf) * each["value"] if known else None
            figures[what] = figure(each["value"], error, one_run=True)
        short = "nothing: the run is too short"
        basis = "parts of the steps of one run" if interval else short
    config = stored.folder / name / CONFIG
    return {
        **first,
        "verdict": stored.document["verdict"],
        "limit": each_once(map(limit_name, counting)),
        "figures": figures,
        "basis": basis,
        "facts": _facts(first),
        "keys": _keys(config.parent) if config.is_file() else {},
    }


def _checkpoints(stored: Stored) -> dict[str, Any]:
    """Return the result of `dlemu checkpoint`; its figures are the rates of saves and loads."""
    document, entries = stored.document, stored.document["checkpoint"]
    figures = {
        f"{kind}_bytes_per_second": figure_of([e["num_bytes"] / e["seconds"] for e in found])
        for kind, found in (("save", entries["saves"]), ("load", entries["loads"]))
        if found
    }
    if not figures:
        raise RunError(f"{stored.folder} holds no checkpoint that was written or read")
    return {
        **document,
        "limit": each_once(limit_name(document, name) for name in ("limit", "load_limit")),
        "figures": figures,
        "basis": counted(len(entries["saves"] or entries["loads"]), "checkpoint"),
        "facts": _facts(document),
        "keys": _keys(stored.folder),
    }


def _sizing(folder: Path, answer: Document) -> dict[str, Any]:
    """Return the answer of a search; its facts and keys are those of a run that is still there."""
    points = answer["confirmations"] or ([] if answer["is_computed"] else answer["points"][-1:])
    figures = _over([{name: point.get(name) for name in _OF_A_RUN} for point in points])
    if answer["real_accelerators"] is not None and answer["interval"] is not None:
        low, high = answer["interval"]
        error = (high - low) / 2 / t95(math.inf)
        figures["real_accelerators"] = figure(answer["real_accelerators"], error)
    known = {}
    name = glob.escape(f"{answer['target']}.{answer['workload']}")
    for run in sorted((folder / "runs").glob(f"{name}.*")):
        with suppress(DlemuError, *DAMAGE):  # cut short, or removed
            keys = _keys(run, "num_accelerators", "size")
            known = {"facts": _facts(read_summary(run)), "keys": keys}
            break
    basis = "by arithmetic: no run had the number"
    if points:
        basis = f"{counted(len(points), 'run')} at {points[-1]['num_accelerators']}"
    return {**answer, "verdict": "", "figures": figures, "basis": basis, **known}


def _of_run(run: Document) -> dict[str, float | None]:
    metric, epochs = run["metric"], run["per_epoch"]
    rates = [(epoch["read_bytes_per_second"], epoch["seconds"]) for epoch in epochs]
    known = all(rate is not None for rate, _ in rates)
    read = sum(rate * took for rate, took in rates) if known else 0.0
    return {
        "au_percentage": metric["train_au_mean_percentage"],
        "samples_per_second": metric["train_throughput_mean_samples_per_second"],
        "read_bytes_per_second": read / sum(took for _, took in rates) if known else None,
        "page_cache_share": run.get("measured", {}).get("page_cache_share"),
    }


def _over(rows: Sequence[Mapping[str, float | None]]) -> dict[str, Document]:
    """Return the figures of several rows; a name that one of them does not know is left out."""
    figures = {}
    for name in rows[0] if rows else ():
        values = [value for row in rows if (value := row[name]) is not None]
        if len(values) == len(rows):
            figures[name] = figure_of(values)
    return figures


def _keys(folder: Path, *without: str) -> dict[str, object]:
    """Return the keys that say what was run in a folder, by dotted name."""
    workload = read_config(folder, {})
    left_out = {"given", "ignored", "output", *without}
    keys = dict(leaves(workload.model_dump(mode="json", exclude=left_out)))
    keys |= {key: value for key, value in leaves(read_yaml(folder / CONFIG)) if acts(key, value)}
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
