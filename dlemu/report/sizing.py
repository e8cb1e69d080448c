"""A sizing: the answers of `dlemu size` and `dlemu try`, and searches that did not end."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from dlemu.findings import weighing
from dlemu.judge.metrics import passes
from dlemu.judge.records import write_text
from dlemu.plugins import is_url
from dlemu.report import words
from dlemu.report.blocks import (
    Axis,
    Bands,
    Block,
    Column,
    CommandLine,
    Document,
    Fold,
    Lines,
    Look,
    Plot,
    Series,
    Table,
    Tone,
    Verdict,
    axis_from_zero,
    axis_of_au,
    axis_of_names,
    date_of,
    dotted,
    drive_name,
    level,
    measured,
    table_of,
    where_cells,
)
from dlemu.report.text import render_markdown
from dlemu.units import counted, format_bytes, format_rate, format_seconds, rate_unit

Answer = Mapping[str, Any]
"""One of the `answers` of sizing.json."""
Run = Mapping[str, Any]
"""One of the `points` of an answer."""

_OF_EVERY_TRY = ("unlike_row", "dataset_under_rule")
"""What is found of every first answer: the line below its table says so once."""
_OF_ONE_RUN = ("near_threshold", "not_steady")
"""What is found of one run, where more runs decide and the answer says it. That a rate went up and
down within runs has no `phases`: then the run's own words stand."""
COMPUTED = "(computed): no run had so many; the number follows from the rate of other runs"
REAL = "N*: the number of accelerators, with its fraction, at which AU meets the threshold"
AT_LEAST = "≥: the storage was not the limit, it may feed more"
QUICK = "quick: the dataset is smaller than the rule requires"
FIRST = "a first answer, not by the benchmark's rule: "
_FIRST_OF_FILES = (
    f"{FIRST}small files were read again and again with O_DIRECT, so a cache in the drive, its "
    "controller or a server may have served them"
)
_FIRST_OF_OBJECTS = (
    f"{FIRST}small objects were read again and again, so a cache of the server may have served them"
)
_LOOKS: tuple[Look, ...] = ("first", "second", "third", "fourth")


def present_sizing(document: Document) -> list[Block]:
    """Return what is known of all targets and workloads.

    `unfinished` has the searches without an answer, by "<target>.<workload>".
    """
    answers = document["answers"]
    if document.get("tried"):
        return _present_try(answers)
    blocks = [block for answer in answers for block in present_answer(answer)]
    if len(answers) > 1:
        blocks += present_table(answers)
    for name, search in document.get("unfinished", {}).items():
        runs = search["points"]
        line = (
            f"{name}: no answer yet; the search was interrupted after {counted(len(runs), 'run')}"
        )
        blocks.append(Verdict(line, "caution"))
        blocks += [_table(runs, None), *plots_of(runs, {})] if runs else []
        blocks.append(measured(search["conditions"]))
    return blocks


def lines_of_real(found: Document) -> Iterator[str]:
    """Yield what is counted, and how many real H100s that is, where one was measured."""
    if (real := found.get("real_h100s")) is not None:
        least = "at least " if real["at_least"] else ""
        yield (
            "counted: accelerators with the step time of MLPerf's H100; of H100s as measured with "
            f"PyTorch, bf16: {least}{real['num_accelerators']} ({real['workload']})"
        )


def present_answer(answer: Answer) -> list[Block]:
    """Return the answer for one target and workload, and the runs that it rests on."""
    runs, number = answer["points"], answer["num_accelerators"]
    real, interval = answer["real_accelerators"], answer["interval"]
    after = []
    if real is not None and interval is not None:
        low, high = interval
        after.append(f"{REAL}; here {real:.2f}, 95% interval {low:.2f} to {high:.2f}")
    elif not answer["at_least"]:
        after.append("no N*: the runs disagree on where AU meets the threshold")
    after += [*lines_of_real(answer), *_limit_lines(answer), *_held([answer]), *_doubts(answer)]
    if any(run["au_with_stalls_percentage"] is not None for run in runs):
        after.append(
            "checkpoints: each run wrote its own; AU excludes the stalls, in which all "
            "accelerators waited for a checkpoint"
        )
    if (share := answer["read_ahead_share"]) is not None:
        of_servers = is_url(answer["data_folder"])
        how = "the server may have it in memory" if of_servers else "it was read with O_DIRECT"
        after.append(
            f"{QUICK}; {how}; up to {share:.1%} of the data is read in the excluded step, so AU "
            f"may be up to {100 * share:.1f} points too high"
        )
    after.append(f"{counted(len(runs), 'run')} in {format_seconds(answer['seconds'])}")
    # Else the bound was none: something failed, or the storage held back what passed.
    is_bounded = answer["at_least"] and answer["fewest_failed"] is None
    if is_bounded and (bound := answer["bound"]):
        after.append(words.sentence(bound))
    elif number and is_bounded:
        after.append(f"next: raise size.max_accelerators; nothing failed up to {number}")
    return [
        Verdict(f"{answer['target']} {sentence(answer)}", _tone(answer)),
        *([_table(runs, answer["threshold"])] if runs else []),
        Lines(after),
        *(plots_of(runs, answer) if runs else []),
        _where(answer),
    ]


def _present_try(answers: Sequence[Answer]) -> list[Block]:
    """Return the first answers side by side, and the one command that comes next."""
    folds: list[Block] = []
    for answer in answers:
        runs = answer["points"]
        parts: list[Block] = [Lines([words.evidence_of(answer)])]
        if runs:
            table = _table(runs, answer["threshold"])
            lines = [*_limit_lines(answer), *_doubts(answer)]
            parts = [table, *plots_of(runs, answer), Lines(lines)]
        parts += _where(answer).blocks
        folds.append(Fold(f"{answer['workload']}: runs and dataset", parts))
    return [
        *(Verdict(f"{each['target']} {sentence(each)}", _tone(each)) for each in answers),
        table_of(
            answers,
            Column("workload", "workload"),
            Column("accelerators", _number),
            Column("range", range_of, spare=2),
            Column("N*", "real_accelerators", ".2f"),
            Column("one needs", _needs, format_rate),
            Column("storage gives", _gives, format_rate, spare=1),
            Column("limit", "limit", text=True),
        ),
        Lines(
            [
                f"{REAL}; one needs: bytes/s at the required AU",
                *[COMPUTED] * any(answer["is_computed"] for answer in answers),
                *_held(answers),
                *_first(answers),
            ]
        ),
        *(Lines([f"{a['workload']}: {line}"]) for a in answers for line in _beside_answer(a)),
        *(Lines([f"{a['workload']}: {line}"]) for a in answers for line in lines_of_real(a)),
        *folds,
        *_next(answers),
    ]


def _beside_answer(answer: Answer) -> list[str]:
    """Return what a DataLoader makes whatever the storage, and why runs reached more than told."""
    kinds = ("second_reads_faster", "workers_make")
    return [words.sentence(each) for each in answer["findings"] if each["kind"] in kinds]


def _next(answers: Sequence[Answer]) -> Iterator[Block]:
    """Yield the full measurement of the first workload that the storage limits, else of any."""
    possible = [answer for answer in answers if answer["first"]["commands"]]
    limited = [each for each in possible if each["num_accelerators"] and not each["at_least"]]
    (answer,) = (limited or possible or answers)[:1]
    what = f"the full measurement of {answer['workload']} {answer['first']['full']}"
    if not possible:
        yield Lines([what])
        return
    yield Lines([f"next: {what}"])
    yield CommandLine("", " && ".join(answer["first"]["commands"]))


def present_table(answers: Sequence[Answer]) -> list[Block]:
    """Return the table of drives, with the columns of published results."""
    table = table_of(
        answers,
        Column("workload", "workload"),
        Column("target", "target", text=True),
        Column("drives", "drives"),
        Column("accelerators", _number),
        Column("dataset", "dataset_bytes", format_bytes),
        Column("AU (%)", lambda a: " ".join(f"{r['au_percentage']:.2f}" for r in shown_runs(a))),
        Column("MB/s", _nominal_rate),
    )
    notes = [QUICK] * any(each["quick"] for each in answers)
    notes += [AT_LEAST] * any(each["at_least"] for each in answers)
    notes += [COMPUTED] * any(each["is_computed"] for each in answers)
    notes += dict.fromkeys(
        words.sentence(found)
        for each in answers
        for found in each["findings"]
        if found["kind"] not in _OF_ONE_RUN
    )
    notes += _first([each for each in answers if each["first"]])
    plots = [_plot_of_all(answers)] if len(answers) > 1 else []
    return [table, Lines(notes), *plots]


def _first(answers: Sequence[Answer]) -> list[str]:
    """Return why an answer of `dlemu try` is only a first one; nothing without answers."""
    by_place = (_FIRST_OF_OBJECTS if is_url(a["data_folder"]) else _FIRST_OF_FILES for a in answers)
    return [*dict.fromkeys(by_place)]


def sentence(answer: Answer) -> str:
    """Return the answer in one sentence: "feeds 7 H100s of ResNet-50 at AU 90% or more; ...".

    It begins with the verb, and has no full stop.
    """
    number, first = answer["num_accelerators"], answer["first"]
    accelerator, network = _plain(answer["workload"])
    required = f"{answer['threshold']:g}%"
    if number:
        least = "at least " if answer["at_least"] else ""
        band = "" if least or answer["low"] == answer["high"] else f" ({range_of(answer)})"
        many = f"{least}{counted(number, accelerator)} of {network}{band}"
        parts = [f"feeds {many} at AU {required} or more{_computed(answer)}"]
    else:
        fewest = min((run["num_accelerators"] for run in answer["points"]), default=0)
        what = f"cannot feed one {accelerator} of {network}"
        if fewest > 1 and answer["at_least"]:  # nobody knows
            what = f"feeds no number of {accelerator}s of {network} that was tried"
        failed = [run for run in answer["points"] if _verdict(run, answer["threshold"]) == "FAIL"]
        au = [run["au_percentage"] for run in failed if run["num_accelerators"] == fewest]
        reached = f"AU {fmean(au):.2f}%, required {required}" if au else ""
        reached += f", with {fewest}" if fewest > 1 else ""
        parts = [f"{what}{_computed(answer)}" + (f": {reached}" if reached else "")]
    parts += _limits(answer)
    if answer["phases"]:
        parts.append(f"not steady: {words.fed(answer['phases'])}")
    quick = ["a quick search"] if answer["quick"] and not first else []
    known = {*_OF_ONE_RUN, *(_OF_EVERY_TRY if first else ())}
    known -= {"not_steady"} if not answer["phases"] else set()
    found = weighing(answer, "weakens", "remark")
    remarks = [words.sentence(each) for each in found if each["kind"] not in known]
    return "; ".join([*parts, *quick, *remarks])


def range_of(answer: Answer) -> str:
    """Return "6 to 8", or "6 or more" where `high` is not known."""
    if answer["high"] is None:
        return f"{answer['low']} or more"
    return f"{answer['low']} to {answer['high']}"


def _computed(answer: Answer) -> str:
    """Return that no run had the answer's number, with those that were run; "" where one had."""
    if not answer["is_computed"]:
        return ""
    numbers = sorted({run["num_accelerators"] for run in answer["points"]})
    *others, last = map(str, numbers or ["none"])
    were = f"{', '.join(others)} and {last} were" if others else f"{last} was"
    return f", by arithmetic: only {were} run" if numbers else ", by arithmetic: no run was made"


def _limits(answer: Answer) -> list[str]:
    """Return what a sentence says of the limit: "limit: the drive, 1.5 GB/s"."""
    gives, needs = _gives(answer), format_rate(_needs(answer))
    if not answer["num_accelerators"] and not answer["at_least"] and gives is not None:
        return [f"one needs {needs}, this storage gives {format_rate(gives)}"]
    if answer["at_least"] and answer["fewest_failed"] is None:
        return ["nothing that was tried failed, so it may feed more"]
    if answer["limit"] != "storage":
        return [f"limit: {answer['limit']}, so the storage may feed more"]
    return [f"limit: {_storage(answer)}" + (f", {format_rate(gives)}" if gives else "")]


def _held(answers: Sequence[Answer]) -> list[str]:
    """Return for how long the storage gave what the answers say: a rate that ends later is new."""
    held = [(each["workload"], each.get("storage_seconds")) for each in answers]
    several = len(answers) > 1
    times = [
        f"{format_seconds(seconds)}{f' ({name})' if several else ''}"
        for name, seconds in held
        if seconds
    ]
    if not times:
        return []
    return [
        f"{_storage(answers[0])} gave this for at least {', '.join(times)} of runs; what lasts "
        "longer than they did, such as credits of a cloud volume, is not seen"
    ]


def _storage(answer: Answer) -> str:
    hosts = answer["conditions"].get("system") or [{}]
    remote = hosts[0].get("drives") == []  # a server's, or a bucket's
    return "the drive" if answer["drives"] == 1 and not remote else "the storage"


def _doubts(answer: Answer) -> list[str]:
    """Return what keeps the runs from being of one mind."""
    return words.sentences(answer, "note")


def _gives(answer: Answer) -> float | None:
    """Return the bytes per second that the storage gives; None where it was not the limit.

    Where its runs disagree, so that there is no N*, it is the rate of those that the answer shows,
    or of the one that decides: the rate and the number are then of the same runs.
    """
    real = answer["real_accelerators"]
    if real is not None:
        return float(real * _needs(answer))
    if answer["high"] is None:
        return None
    runs = shown_runs(answer) if answer["num_accelerators"] else _deciding(answer)[:1]
    moved = [run["num_accelerators"] * _settled(run) / 100 for run in runs]
    return float(fmean(moved) * answer["demand_bytes_per_second"]) if moved else None


def _settled(run: Run) -> float:
    """Return a run's AU; where the storage's rate fell in it, that behind the fall."""
    levels = run.get("levels") or []
    fell = len(levels) == 2 and levels[1]["bytes_per_second"] < levels[0]["bytes_per_second"]
    last = levels[1]["au_percentage"] if fell else None
    return float(run["au_percentage"] if last is None else last)


def _needs(answer: Answer) -> float:
    """Return the bytes per second that one accelerator takes at the threshold."""
    return float(answer["demand_bytes_per_second"] * answer["threshold"] / 100)


_NETWORKS = {"unet3d": "3D U-Net", "resnet50": "ResNet-50", "cosmoflow": "CosmoFlow"}
_GPU = re.compile(r"(.+)_([abhv]\d+)")


def _plain(workload: str) -> tuple[str, str]:
    """Return accelerator and network of a workload: "resnet50_h100" is an "H100" of "ResNet-50"."""
    if (found := _GPU.fullmatch(workload)) is None:
        return "accelerator", workload
    return found[2].upper(), _NETWORKS.get(found[1], found[1])


def _tone(answer: Answer) -> Tone:
    """Return "pass" only for an answer by the rule that nothing weakens."""
    if not answer["num_accelerators"] and not answer["at_least"]:
        return "fail"
    weak = ("at_least", "first", "quick", "is_computed", "phases", "findings")
    unsure = any(answer[name] for name in weak)
    return "caution" if unsure else "pass"


def _deciding(answer: Answer) -> list[Run]:
    """Return the failing run whose limit is the answer's, and the nearest if it had another.

    Of several the one with the fewest accelerators, and of those the last. Where no run with that
    limit failed, it is the last one that had it: what stands first is the limit of the headline.
    """
    threshold = answer["threshold"]
    failed = [run for run in answer["points"] if not passes(run["au_percentage"], threshold)]
    nearest = sorted(reversed(failed), key=lambda run: int(run["num_accelerators"]))
    own = [run for run in nearest if run["limit"] == answer["limit"]]
    if nearest and not own:
        own = [run for run in reversed(answer["points"]) if run["limit"] == answer["limit"]]
    return [*own[:1], *(run for run in nearest[:1] if run["limit"] != answer["limit"])]


def _limit_lines(answer: Answer) -> list[str]:
    """Return each limit with the run that it held back; where nothing failed, of the last run."""
    return [
        f"limit at {run['num_accelerators']}: {run['limit']}"
        + (f". {words.evidence_of(run)}" if run["evidence"] else "")
        for run in _deciding(answer) or answer["confirmations"][-1:]
    ]


def _table(runs: Sequence[Run], threshold: float | None) -> Table:
    """Return what was tried; no threshold is known where the search has no answer yet."""
    stalls = any(run["au_with_stalls_percentage"] is not None for run in runs)
    return table_of(
        runs,
        Column("accelerators", "num_accelerators"),
        Column("AU (%)", "au_percentage", ".2f"),
        *([Column("with stalls (%)", "au_with_stalls_percentage", ".2f")] * stalls),
        Column("verdict", lambda run: _verdict(run, threshold), text=True),
        Column("samples/s", "samples_per_second", ".2f", spare=1),
        Column("read", "read_bytes_per_second", format_rate),
        Column("from memory", "page_cache_share", ".0%", spare=3),
        Column("duration", "seconds", format_seconds, spare=2),
        Column("limit", lambda run: run["limit"] or "", text=True),
    )


def _verdict(run: Run, threshold: float | None) -> str:
    """Return "" where no threshold is known: the search has no answer yet."""
    if threshold is None:
        return ""
    return "PASS" if passes(run["au_percentage"], threshold) else "FAIL"


def plots_of(runs: Sequence[Run], answer: Answer) -> list[Plot]:
    """Return AU and read rate of every run over N, with threshold, N* and answer.

    Without an answer (`{}`) only what was measured is drawn.
    """
    numbers = [run["num_accelerators"] for run in runs]
    number, interval, threshold = (
        answer.get(name) for name in ("num_accelerators", "interval", "threshold")
    )
    ends = [*numbers, *(interval or ())]
    x = Axis("emulated accelerators (N)", min(ends) - 0.8, max(ends) + 0.8, whole=True)
    bands = [Bands("N*: 95% interval", "first", [interval])] if interval else []
    if number:
        half = (x.high - x.low) / 60
        least_of = "at least " if answer["at_least"] else ""
        bands.append(Bands(f"answer: {least_of}{number}", "mark", [(number - half, number + half)]))
    reached = [run["au_percentage"] for run in runs]
    rates = [run["read_bytes_per_second"] for run in runs]
    unit, size = rate_unit(max(rates))
    au_series = _dots(runs, reached, threshold)
    rate_series = _dots(runs, [rate / size for rate in rates], threshold)
    if threshold is not None:
        au_series += _predicted(runs, answer)
        au_series.append(level(f"threshold {threshold:g}%", "limit", x, threshold))
        needs = [(float(n), n * _needs(answer) / size) for n in (min(numbers), max(numbers))]
        rate_series.append(Series("what N need at the threshold", "limit", [needs]))
    au_axis, rate_axis = axis_of_au(threshold or 100.0, *reached), axis_from_zero(unit, rate_series)
    return [
        Plot("AU of each run", x, au_axis, au_series, bands),
        Plot("bytes read in each run", x, rate_axis, rate_series, bands[-1:] if number else ()),
    ]


def _dots(runs: Sequence[Run], values: Sequence[float], threshold: float | None) -> list[Series]:
    """Return one dot a run. No line: nothing was measured between two numbers."""
    kinds: dict[str, tuple[str, Look]] = {
        "PASS": ("a run that passed", "first"),
        "FAIL": ("a run that failed", "second"),
        "": ("a run", "first"),
    }
    points: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for run, value in zip(runs, values, strict=True):
        points[_verdict(run, threshold)].append((run["num_accelerators"], value))
    return [
        Series(name, look, [points[kind]], marked=True, joined=False)
        for kind, (name, look) in kinds.items()
        if points[kind]
    ]


def _predicted(runs: Sequence[Run], answer: Answer) -> list[Series]:
    """Return the AU that N* predicts between the fewest and the most that were tried."""
    numbers = [run["num_accelerators"] for run in runs]
    low, high, real = min(numbers), max(numbers), answer["real_accelerators"]
    if real is None or low == high:
        return []
    best = max(run["au_percentage"] for run in runs)
    points = [low + (high - low) * part / 60 for part in range(61)]
    curve = [(n, min(best, answer["threshold"] * real / n)) for n in points]
    return [Series("predicted by N*: the same bytes/s for any N", "third", [curve])]


def _plot_of_all(answers: Sequence[Answer]) -> Plot:
    """Return the number of accelerators by workload, in another colour for each target."""
    workloads = list(dict.fromkeys(answer["workload"] for answer in answers))
    targets = list(dict.fromkeys(answer["target"] for answer in answers))
    series = []
    for place, target in enumerate(targets):
        own = [answer for answer in answers if answer["target"] == target]
        name = f"{drive_name(own[0]['conditions'], target)}, {counted(own[0]['drives'], 'drive')}"
        least = [answer["workload"] for answer in own if answer["at_least"]]
        name += f"; at least, for {', '.join(least)}" if least else ""
        numbers = [float(workloads.index(answer["workload"])) for answer in own]
        values = [float(answer["num_accelerators"]) for answer in own]
        look = _LOOKS[place % len(_LOOKS)]
        series.append(dotted(name, look, numbers, values, joined=False))
    x, y = axis_of_names("workload", workloads), axis_from_zero("accelerators", series, whole=True)
    return Plot("most emulated accelerators that pass", x, y, series)


def _measured(answer: Answer) -> Mapping[str, Any]:
    """Return where and when an answer was measured, as the summary of a run has it."""
    dataset = {"folder": answer["data_folder"], "num_bytes": answer["dataset_bytes"]}
    conditions: Mapping[str, Any] = answer["conditions"]
    return {**conditions, "dataset": {**dataset, **conditions.get("dataset", {})}}


def _where(answer: Answer) -> Fold:
    """Return where an answer was measured, below a fold."""
    drives = counted(answer["drives"], "drive") if answer["drives"] else ""
    first = answer["first"]
    written = "for this, and removed" if first and first["written"] else ""
    return measured(_measured(answer), ("drives", drives), ("written", written))


def shown_runs(answer: Answer) -> Sequence[Run]:
    """Return the runs that passed with the answer's number; for 0 the last."""
    found = answer["confirmations"] or ([] if answer["num_accelerators"] else answer["points"][-1:])
    return list(found)


def _number(answer: Answer) -> str:
    """Return the number of accelerators with its marks: a lower bound, a quick search."""
    mark = " (computed)" if answer["is_computed"] else ""
    mark += " (quick)" if answer["quick"] and not answer["first"] else ""
    return f"{'≥ ' if answer['at_least'] else ''}{answer['num_accelerators']}{mark}"


def _nominal_rate(answer: Answer) -> str:
    """Return MB/s as published tables compute them: samples/s x record_length_bytes."""
    if not (runs := shown_runs(answer)):
        return ""
    samples = fmean(run["samples_per_second"] for run in runs)
    return f"{samples * answer['sample_bytes'] / 1e6:.2f}"


def row_of(answer: Answer) -> dict[str, str]:
    """Return the cells of an answer in the table across results."""
    runs = shown_runs(answer)
    cells = {"accelerators": str(answer["num_accelerators"])}
    for head, name in (("AU (%)", "au_percentage"), ("samples/s", "samples_per_second")):
        if runs:
            cells[head] = f"{fmean(run[name] for run in runs):.2f}"
    return {
        **cells,
        **where_cells(_measured(answer), answer["target"]),
        "workload": answer["workload"],
        "verdict": f"feeds {_number(answer)}",
        "runs": str(len(answer["points"])),
        "limit": answer["limit"],
    }


# --- files beside sizing.json ---------------------------------------------------------------------


def write_table(folder: Path, document: Document) -> None:
    """Write table.md: the table of drives."""
    table = render_markdown(present_table(document["answers"]))
    write_text(folder / "table.md", f"{table}\n")


def draw(folder: Path, document: Document) -> None:
    """Draw the last answer as "<target>.<workload>".png and .svg, and all as table.png and .svg.

    Raises:
        ModuleNotFoundError: matplotlib is missing.
    """
    from dlemu.report.png import save_pictures

    answers = document["answers"]
    answer, place = answers[-1], _measured(answers[-1])
    title = f"{answer['workload']} on {drive_name(place, answer['target'])}"
    title = ", ".join(filter(None, [title, date_of(place)]))
    quick = f"\n{QUICK}" if answer["quick"] else ""
    name = f"{answer['target']}.{answer['workload']}"
    save_pictures(plots_of(answer["points"], answer), folder / name, title=f"{title}{quick}")
    if len(answers) > 1:
        save_pictures([_plot_of_all(answers)], folder / "table", title=date_of(place))
