"""Judges a run and several: PASS, FAIL or NO VERDICT, why, and the other fields that follow.

A judgement follows from the steps, the workload and what was measured beside them. So a stored run
is judged as it was when it ended.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, cast

import numpy as np

from dlemu.config.model import Workload
from dlemu.config.published import differing, published_row
from dlemu.dataset.rule import DatasetSize, TotalMemory
from dlemu.findings import Finding, Kind, fields_of, note, reason, remark, weakens, weighing
from dlemu.judge.capacity import Phase, phases_of, real_accelerators
from dlemu.judge.dlio_names import dlio_names
from dlemu.judge.metrics import EpochMetrics, Metrics, passes, t95
from dlemu.judge.records import UNFINISHED, plain
from dlemu.judge.steady import Level, trend_of
from dlemu.judge.summary import (
    CheckpointFields,
    EpochRow,
    Measured,
    Metric,
    RunRow,
    RunsSummary,
    Spread,
    Summary,
    Verdict,
    limit_name,
    place_of,
)

_MOST_HIDDEN = 0.05
"""Share of the reading that the steps left out may hide. Repeated runs may differ by as much
(MLPerf Storage rules, "repeatability")."""
_MIN_DIFFERENCE = 0.01
"""Smaller shares of the bytes, and smaller differences of AU or demand, are not remarked on."""
_MOST_CACHED = 0.2
"""Share of the bytes that may come from memory unless metric.max_cached_share says otherwise: the
most that a dataset of the rule's size, five times the memory, can have there."""
_OTHER_RATE = 0.1
"""Two rates may differ by this share: that of the AU and that of the whole epoch, as a start takes
time; nominal and real bytes, as headers and whole blocks are read as well."""
UNKNOWN = Summary()
"""Of steps that no run has measured: a training loop of one's own."""
_OF_A_FOLDER = {"system", "measured", "notes"}
"""What is known of a training loop of one's own whose folder was watched."""


def judge_run(workload: Workload, metrics: Metrics, summary: Summary = UNKNOWN) -> Summary:
    """Return `verdict` and `findings` of a run's summary.

    `summary` is what is known beside the steps. A FAIL remains a FAIL whatever the left-out steps
    hide, which only raises the AU.
    """
    reasons = list(_reasons(workload, metrics, summary))
    met = passes(metrics.au_percentage, 100 * workload.metric.au)
    found = [*reasons, *_remarks(workload, metrics, summary)]
    if not reasons:
        near = _near(workload, metrics, own="watched" in summary)
        found = [*near, *remarks_of(workload, metrics, summary)]
        share = hidden_share(workload, metrics)
        apart = metrics.au_percentage - metrics.whole_epoch_au_percentage > 100 * _MIN_DIFFERENCE
        flatters = share > _MOST_HIDDEN
        if met:
            flatters = not _is_proven(workload, metrics) and (share > _MIN_DIFFERENCE or apart)
        if flatters:
            found.append(note("read_ahead", share=share, **_of_whole(workload, metrics)))
    if workers := summary.get("workers"):
        found.append(note("workers_make", **workers))
    if _is_a_job(summary):
        found += _unlike_in_full(workload, summary.get("ignored", ()))
    return Summary(
        verdict="NO VERDICT" if reasons else "PASS" if met else "FAIL",
        findings=fields_of(found),
    )


def _reasons(workload: Workload, metrics: Metrics, summary: Summary) -> Iterator[Finding]:
    """Yield why there is no verdict."""
    if summary.get("status") in UNFINISHED:
        yield from _unfinished(workload, metrics, summary)
        return
    if cached := cached_too_much(workload, summary):
        yield cached
    if uncounted := uncounted_too_much(summary):
        yield uncounted
    if not passes(metrics.au_percentage, 100 * workload.metric.au):
        return
    if not _is_proven(workload, metrics):
        yield from _unproven(workload, metrics, own="watched" in summary)
    if _read_share(workload, metrics) < 1 - _OTHER_RATE:
        yield reason("bytes_not_read", **_sample_bytes(workload, metrics))


def _is_proven(workload: Workload, metrics: Metrics) -> bool:
    """Return whether the AU passes with nothing left out, not even a stall for a checkpoint.

    No reading can hide there.
    """
    return passes(_whole_au(workload, metrics), 100 * workload.metric.au)


def _near(workload: Workload, metrics: Metrics, *, own: bool) -> Iterator[Finding]:
    """Yield that the threshold lies within the AU's interval; of several runs, all decide.

    `own`: of a watched job, which has no keys.
    """
    interval, wanted = metrics.au_interval, 100 * workload.metric.au
    if interval is not None and interval[0] < wanted < interval[1] and workload.runs == 1:
        within = {"low_percentage": interval[0], "high_percentage": interval[1]}
        yield remark("near_threshold", **within, own=own)


def _unfinished(workload: Workload, metrics: Metrics, summary: Summary) -> Iterator[Finding]:
    """Yield how far a run came that did not end, and what is not known of it."""
    num, of = len(metrics.epochs), workload.train.epochs
    if num == of and "error" in summary:  # it failed after its last epoch
        yield reason("failed_after_the_end", error=summary["error"])
    else:
        yield ended_early(summary, num, of, "epoch")
    if "page_cache_share" not in summary.get("measured", {}):
        yield reason("limit_unknown")


def ended_early(
    summary: Summary | RunsSummary, done: int, planned: int, unit: Literal["epoch", "run"]
) -> Finding:
    """Return how unfinished runs ended, after so many units of those that were planned."""
    error = summary.get("error")
    has_failed = summary["status"] == "failed"
    return reason(
        "ended_early", failed=has_failed, error=error, done=done, planned=planned, unit=unit
    )


def hidden_share(workload: Workload, metrics: Metrics) -> float:
    """Return the largest share (0-1) of an epoch that can be read in what is left out."""
    ahead = _batches_ahead(workload)
    # While a checkpoint is written, and in the step after it, workers may read as far ahead again.
    return min(1.0, max(ahead * epoch.num_blocks / epoch.num_counted for epoch in metrics.epochs))


def cached_too_much(workload: Workload, summary: Summary) -> Finding | None:
    """Return why `metric.max_cached_share` is exceeded or cannot be checked, None if neither is so.

    Where any share may, or the key is not set, a share that is not known is no reason.
    """
    bound, measured = workload.metric.max_cached_share, summary.get("measured", Measured())
    if "page_cache_share" not in measured:
        return None
    share = measured["page_cache_share"]
    if share is None:
        if bound is None or bound == 1:
            return None
        return reason("cached_share_unknown", bound=bound, in_bucket="objects" in measured)
    bound = _MOST_CACHED if bound is None else bound
    if share <= bound:
        return None
    ways = _past_memory(workload, summary)
    return reason("cached_too_much", share=share, bound=bound, ways=ways)


def uncounted_too_much(summary: Summary) -> Finding | None:
    """Return that the drives gave much less than was read with O_DIRECT, None if they did not."""
    share = summary.get("measured", Measured()).get("uncounted_share", 0.0)
    return reason("uncounted_too_much", counted_share=1 - share) if share > _MOST_CACHED else None


def _past_memory(workload: Workload, summary: Summary) -> list[str]:
    """Return what makes a run read its storage and not memory."""
    if place_of(summary).get("in_memory"):
        return ["drive"]
    if not _is_a_job(summary):
        return ["larger_dataset_or_drop"]
    ways = [] if workload.reader.odirect is True else ["odirect"]
    ways.append("larger_dataset")
    if not workload.output.drop_caches:
        ways.append("cold_epoch")
    elif workload.train.epochs > 1 and not workload.drops_each_epoch:
        ways.append("cold_epochs")
    return ways


def _batches_ahead(workload: Workload) -> int:
    """Return the batches of an accelerator, beyond its own, that workers may read in a step."""
    return workload.batches_in_flight - 1


def _unproven(workload: Workload, metrics: Metrics, *, own: bool) -> Iterator[Finding]:
    """Yield why an AU proves nothing that passes only without the first step.

    `own`: of a watched job, which has no keys: it is told the steps.
    """
    au, whole = metrics.au_percentage, metrics.whole_epoch_au_percentage
    share = hidden_share(workload, metrics)
    figures: dict[str, Any] = _of_whole(workload, metrics)
    kind: Kind
    if share > _MOST_HIDDEN:
        most = math.ceil(_batches_ahead(workload) / _MOST_HIDDEN - 1e-9)
        steps, kind = most + metrics.left_out, "reads_hidden"
        figures |= {"share": share, "most": _MOST_HIDDEN}
    elif whole < (1 - _OTHER_RATE) * au:
        steps, kind = _steps_that_dwarf_the_first(metrics), "first_step_too_slow"
    else:
        return
    fewest = min(epoch.num_steps // epoch.num_blocks for epoch in metrics.epochs)
    keys: dict[str, int] = {}
    if own:
        figures["steps"] = max(steps, fewest + 1)
    elif steps > fewest and max(epoch.num_blocks for epoch in metrics.epochs) > 1:
        keys = {"checkpoint.steps_between_checkpoints": steps}
    elif steps > fewest or metrics.edition == "v1.0":
        keys = _keys_for(workload, metrics, max(steps, fewest + 1))
    # Without keys: compute took longer than asked, which other editions than v1.0 credit.
    yield reason(kind, **figures, keys=keys)


def _whole_au(workload: Workload, metrics: Metrics) -> float:
    """Return the AU of the whole time, in which a first step counts for as much as another one.

    What a warm-up computes beyond that is no demand: workers may read far ahead in it.
    """
    train = workload.train
    more = max(0.0, (train.first_step_time or 0.0) - train.computation_time.mean)
    lowered = 100 * more / metrics.epochs[0].seconds / len(metrics.epochs)
    return metrics.delivered_au_percentage - lowered


def _of_whole(workload: Workload, metrics: Metrics) -> dict[str, Any]:
    """Return the AU of the whole time, and whether the rule leaves out stalls for checkpoints."""
    return {
        "delivered_au_percentage": _whole_au(workload, metrics),
        "leaves_out_stalls": metrics.checkpoints is not None,
    }


def _steps_that_dwarf_the_first(metrics: Metrics) -> int:
    """Return the steps of an epoch that makes up for this first step, at the pace of the others."""
    needed = 0
    for epoch in metrics.epochs:
        others = (epoch.seconds - epoch.first_step_seconds) / max(1, epoch.num_steps - 1)
        extra = epoch.first_step_seconds / max(others, 1e-9) - 1
        needed = max(needed, math.ceil((1 - _OTHER_RATE) / _OTHER_RATE * extra))
    return needed


def _keys_for(workload: Workload, metrics: Metrics, steps: int) -> dict[str, int]:
    """Return the overrides for an epoch of so many steps."""
    samples = steps * workload.reader.batch_size * metrics.num_accelerators
    files = math.ceil(samples / workload.dataset.num_samples_per_file)
    most = workload.train.total_training_steps
    keys = {"train.total_training_steps": steps} if 0 <= most < steps else {}
    have = workload.dataset.num_files_train
    if have == "auto" or have < files or not keys:
        keys["dataset.num_files_train"] = files
    return keys


def remarks_of(workload: Workload, metrics: Metrics, summary: Summary) -> tuple[Finding, ...]:
    """Return what makes a run another test than the published one, for the line of its verdict.

    What weakens it says that the storage itself was not measured.
    """
    found = _remarks(workload, metrics, summary)
    return (*found, *(_of_dataset(workload, metrics, summary) if _is_a_job(summary) else ()))


def _is_a_job(summary: Summary) -> bool:
    """Return whether a job of dlemu's was run: a loop of one's own is like no published row."""
    return "watched" not in summary and not summary.keys() <= _OF_A_FOLDER


def _of_place(summary: Summary) -> Iterator[Finding]:
    """Yield what makes a drive none, or a dataset smaller than it looks."""
    if memory := place_of(summary).get("memory"):
        yield weakens("drive_is_memory", drive=memory)
    if links := summary.get("dataset", {}).get("num_links"):
        yield weakens("links", num_files=links)


def _of_dataset(workload: Workload, metrics: Metrics, summary: Summary) -> Iterator[Finding]:
    """Yield how the job differs from the published row, and whether its dataset is too small."""
    if (row := published_row(workload)) is None:
        return
    keys = list(differing(workload, row, summary.get("ignored", ())))
    rates = {}
    if abs(workload.demand / row.demand - 1) > _MIN_DIFFERENCE:
        bounded = workload.demand if workload.demand < math.inf else None
        rates = {"demand_bytes_per_second": bounded, "row_bytes_per_second": row.demand}
    if rates or keys:
        yield remark("unlike_row", row=row.name, keys=keys, **rates)
    files = summary.get("dataset", {}).get("num_files")
    if files is None:
        return
    memory = workload.host_memory or place_of(summary).get("memory_bytes", 0)
    total = TotalMemory(memory * summary.get("num_hosts", 1))
    needed = DatasetSize(workload, metrics.num_accelerators, total).num_files
    if files < needed:
        yield remark("dataset_under_rule", num_files=files, num_files_needed=needed)


def _unlike_in_full(workload: Workload, ignored: Collection[str]) -> Iterator[Finding]:
    """Yield the keys that differ from the published row, with both values; not the `ignored`."""
    row = published_row(workload)
    keys = differing(workload, row, ignored) if row is not None else {}
    if row is not None and keys:
        shown = {key: [*map(plain, values)] for key, values in keys.items()}
        yield note("keys_unlike_row", row=row.name, keys=shown)


def _remarks(workload: Workload, metrics: Metrics, summary: Summary) -> Iterator[Finding]:
    measured, bound = summary.get("measured", Measured()), workload.metric.max_cached_share
    share = measured.get("page_cache_share")
    own = bound if bound is not None and bound > _MOST_CACHED else None
    if share is not None and share > 0.05 and not cached_too_much(workload, summary):
        yield weakens("from_memory", share=share, bound=own)
    elif own is not None:
        yield remark("cached_share_allowed", bound=own)
    elif "page_cache_share" in measured and share is None and "objects" not in measured:
        yield weakens("from_memory_unknown")  # of a bucket, this host's page cache has nothing
    yield from _of_place(summary)
    if "objects" in measured and workload.storage.proxy:
        yield remark("through_proxy", proxy=workload.storage.proxy)
    if "objects" in measured and not workload.storage.verify_tls:
        yield weakens("tls_not_verified")
    times = _read_share(workload, metrics)
    if abs(times - 1) > _OTHER_RATE:
        yield weakens("other_sample_size", **_sample_bytes(workload, metrics))
    steady: Mapping[str, Any] = measured.get("steady") or {"trend": "steady"}
    if steady["trend"] != "steady":
        yield weakens("not_steady", trend=steady["trend"], levels=steady["levels"])
    if workload.host_memory is not None:  # a small value allows a small dataset
        yield remark("host_memory_given", host_memory_bytes=workload.host_memory)
    cached: Mapping[str, Any] = measured.get("cache") or {}
    if slow := cached.get("emulated_origin"):
        yield remark("origin_emulated", how=slow)


def _sample_bytes(workload: Workload, metrics: Metrics) -> dict[str, float]:
    """Return the bytes of a sample: read, and by the workload."""
    return {"read_bytes": _read_mean(metrics), "nominal_bytes": workload.dataset.mean_bytes}


def levels_of(summary: Summary) -> list[Level]:
    """Return the levels of the storage's rate, where it was the limit; of a steady one the one."""
    found = summary.get("measured", Measured()).get("steady") or {"levels": ()}
    return [Level(**level) for level in found["levels"]]


def _read_mean(metrics: Metrics) -> float:
    """Return the bytes that were really read for a sample."""
    return metrics.read_bytes / max(1, sum(epoch.num_samples for epoch in metrics.epochs))


def _read_share(workload: Workload, metrics: Metrics) -> float:
    """Return bytes really read / nominal bytes of a sample; 1 where nobody counted."""
    read = _read_mean(metrics)
    return read / workload.dataset.mean_bytes if read else 1.0


_MEET_EXPECTATION: Mapping[str, Literal["success", "fail", "no verdict"]] = {
    "PASS": "success",
    "FAIL": "fail",
    "NO VERDICT": "no verdict",
}
"""DLIO's words, and one that it lacks."""
_OF_READER = ("batch_size", "read_threads", "odirect", "gets_in_flight")
_OF_AN_EPOCH = (
    *("num_steps", "seconds", "au_percentage", "whole_epoch_au_percentage", "samples_per_second"),
    *("true_samples_per_second", "read_bytes_per_second", "reads_per_second"),
    *("first_step_seconds", "wait_mean_seconds", "wait_p50_seconds", "wait_p99_seconds"),
)
"""Fields of EpochMetrics that summary.json has."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run, on rank 0."""

    folder: Path
    metrics: Metrics
    summary: Summary
    """The fields of summary.json."""


def with_metrics(summary: Summary, workload: Workload, metrics: Metrics) -> Summary:
    """Return the summary with the fields that follow from the steps."""
    judgement = judge_run(workload, metrics, summary)
    wanted = 100 * workload.metric.au
    feeds, phases = None, list[Phase]()
    if judgement["verdict"] != "NO VERDICT" and limit_name(summary) == "storage":
        number, levels = metrics.num_accelerators, levels_of(summary)
        feeds = real_accelerators(number, metrics.au_percentage, wanted)
        if len(levels) > 1:
            phases = phases_of(number, metrics.whole_run_au_percentage, levels, wanted)
            feeds = phases[-1].feeds if trend_of(levels) == "fell" else None
    au = [epoch.au_percentage for epoch in metrics.epochs]
    each = np.mean([epoch.accelerator_au for epoch in metrics.epochs], axis=0)
    rate = [epoch.samples_per_second for epoch in metrics.epochs]
    nominal = [each * workload.dataset.mean_bytes / 2**20 for each in rate]
    written = summary.get("checkpoints")
    if metrics.checkpoints is not None:
        both = cast(CheckpointFields, {**(written or {}), **metrics.checkpoints})
        summary = {**summary, "checkpoints": both}
    reader = workload.reader
    return {
        "kind": "run",
        "workload": workload.name,
        **summary,
        "reader": {
            **{name: getattr(reader, name) for name in _OF_READER},
            "scattered": workload.dataset.format == "parquet" or reader.access == "random",
        },
        "num_accelerators": metrics.num_accelerators,
        "epochs": len(metrics.epochs),
        **judgement,
        "threshold_percentage": wanted,
        "real_accelerators": feeds,
        "phases": [asdict(phase) for phase in phases],
        "per_epoch": [
            _row(epoch, workload.dataset.mean_bytes, known=metrics.read_bytes > 0)
            for epoch in metrics.epochs
        ],
        "metric": Metric(
            edition=metrics.edition,
            train_au_percentage=au,
            train_au_mean_percentage=float(np.mean(au)),
            train_au_stdev_percentage=float(np.std(au)),
            train_au_interval_percentage=list(metrics.au_interval or ()) or None,
            train_au_min_accelerator_percentage=float(each.min()),
            train_au_meet_expectation=_MEET_EXPECTATION[judgement["verdict"]],
            train_hidden_share=hidden_share(workload, metrics),
            train_throughput_samples_per_second=rate,
            train_throughput_mean_samples_per_second=float(np.mean(rate)),
            train_throughput_stdev_samples_per_second=float(np.std(rate)),
            train_io_mean_MB_per_second=float(np.mean(nominal)),
            train_io_stdev_MB_per_second=float(np.std(nominal)),
            **dlio_names(written),
        ),
    }


def without_threshold(document: Summary) -> Summary:
    """Return the document of a job that nobody asked to pass: its AU is told, and no verdict."""
    return {
        **document,
        "verdict": "MEASURED",
        "findings": [each for each in document["findings"] if each["weight"] == "weakens"],
        "threshold_percentage": None,
        "real_accelerators": None,
    }


def _row(epoch: EpochMetrics, mean_bytes: float, *, known: bool) -> EpochRow:
    """Return the row of an epoch; `known` is whether the loader counts what it reads.

    A loop of one's own may show neither its samples nor their bytes.
    """
    row: dict[str, Any] = {"epoch": epoch.epoch + 1}
    row |= {name: getattr(epoch, name) for name in _OF_AN_EPOCH}
    row["nominal_bytes_per_second"] = epoch.samples_per_second * mean_bytes
    row["lost"] = asdict(epoch.lost)
    unknown = [
        *(["samples_per_second"] if not epoch.num_samples else []),
        *(["nominal_bytes_per_second", "read_bytes_per_second"] if not known else []),
        *(["reads_per_second"] if not epoch.num_reads else []),
    ]
    return row | dict.fromkeys(unknown)


# --- several runs ---------------------------------------------------------------------------------


_CLOCK = 1.0
"""Seconds to which the start and end of a run are known."""
REPEATABILITY = 0.05
"""Each run's samples/s must lie this close to their mean (rules, "repeatability")."""


def judge_runs(summary: RunsSummary, runs: Sequence[Summary]) -> RunsSummary:
    """Return the summary with the verdict, its reasons, and the spread of AU and samples/s.

    FAIL if one of the `runs` has it; else NO VERDICT if a run has that.
    """
    au = [run["metric"]["train_au_mean_percentage"] for run in runs]
    rates = [run["metric"]["train_throughput_mean_samples_per_second"] for run in runs]
    reasons: list[Finding] = []
    verdicts = [run["verdict"] for run in runs]
    for number, run in enumerate(runs, 1):
        if run["verdict"] == "NO VERDICT":
            why = weighing(run, "reason")
            reasons.append(reason("run_undecided", run=number, findings=why))
        elif run["verdict"] == "FAIL":
            rule = "3.3.2" if _has_numbered_rules(summary, run) else None
            reasons.append(
                reason("run_under_threshold", run=number, au_percentage=au[number - 1], rule=rule)
            )
    mean = float(np.mean(rates))
    spread = max(abs(rate / mean - 1) for rate in rates)
    if spread > REPEATABILITY:
        reasons.append(reason("not_repeatable", share=spread, most=REPEATABILITY))
    if runs and _has_numbered_rules(summary, runs[-1]):
        reasons += _long_gaps(summary["runs"])
    verdict: Verdict = "FAIL" if reasons else "PASS"
    if "FAIL" not in verdicts and "NO VERDICT" in verdicts:
        verdict = "NO VERDICT"
    return {
        "kind": "runs",
        **summary,
        "status": "complete",
        "threshold_percentage": runs[0]["threshold_percentage"],
        "verdict": verdict,
        "findings": fields_of([*reasons, *_joined(runs)]),
        "repeatability_percentage": 100 * spread,
        "au_percentage": spread_of(au, most=100.0),
        "samples_per_second": spread_of(rates),
    }


def _has_numbered_rules(summary: RunsSummary, run: Summary) -> bool:
    """Return whether the closed division's rules apply, in the edition that numbers them."""
    return summary.get("division") == "closed" and run["metric"]["edition"] == "v3.0"


def _long_gaps(rows: Sequence[RunRow]) -> Iterator[Finding]:
    """Yield the gaps before runs that leave time for another one: rule 2.1.18."""
    for before, row in pairwise(rows):
        gap = row["gap_seconds"]
        begin, end = (datetime.fromisoformat(before[key]) for key in ("start", "end"))
        took = (end - begin).total_seconds()
        # Of an older version's runs the clock may have been set back.
        if gap is not None and took >= 0 and gap >= max(took, _CLOCK):
            yield reason(
                "gap_too_long",
                before=before["name"],
                after=row["name"],
                gap_seconds=gap,
                run_seconds=took,
                rule="2.1.18",
            )


def spread_of(values: Sequence[float], *, most: float = math.inf) -> Spread:
    """Return mean, standard deviation (n - 1) and the 95 % interval of the mean.

    The values, and so the interval, are from 0 to `most`.
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return Spread(mean=mean, sd=None, interval=None)
    sd = float(np.std(values, ddof=1))
    half = t95(len(values) - 1) * sd / len(values) ** 0.5
    return Spread(mean=mean, sd=sd, interval=[max(0.0, mean - half), min(most, mean + half)])


def counting_rows(rows: Sequence[RunRow]) -> list[RunRow]:
    """Return the rows of the runs that count: warm-ups do not."""
    return [row for row in rows if not row["name"].startswith("warmup")]


def _joined(runs: Sequence[Summary]) -> Iterator[Finding]:
    """Yield the remarks of all runs, each kind once; where figures differ, those of the first."""
    kinds: dict[object, dict[int, Mapping[str, Any]]] = {}
    for number, run in enumerate(runs, 1):
        for each in weighing(run, "weakens", "remark"):
            kind = (each["kind"], each["figures"].get("text"))
            kinds.setdefault(kind, {}).setdefault(number, each)
    for by_run in kinds.values():
        first, found = next(iter(by_run.items()))
        if len(by_run) == len(runs) and all(each == found for each in by_run.values()):
            yield Finding.of(found)
        else:
            figures = {"run": first, "num_alike": len(by_run) - 1, "finding": found}
            yield Finding("of_run", found["weight"], figures)


def row_of(name: str, run: Summary) -> RunRow:
    """Return a run's row of the table."""
    epochs, metric = run["per_epoch"], run["metric"]
    measured = run.get("measured", Measured())
    wanted = run["threshold_percentage"]
    under = [
        {name: epoch[name] for name in ("epoch", "au_percentage")}
        for epoch in epochs
        if wanted is not None and not passes(epoch["au_percentage"], wanted)
    ]
    return RunRow(
        name=name,
        status=run["status"],
        verdict=run["verdict"],
        start=run.get("start", ""),
        end=run.get("end", ""),
        gap_seconds=None,
        au_percentage=metric["train_au_mean_percentage"],
        whole_epoch_au_percentage=fmean(epoch["whole_epoch_au_percentage"] for epoch in epochs),
        samples_per_second=metric["train_throughput_mean_samples_per_second"],
        min_accelerator_au_percentage=metric["train_au_min_accelerator_percentage"],
        read_bytes_per_second=measured.get("read_bytes_per_second"),
        nominal_MiB_per_second=metric["train_io_mean_MB_per_second"],
        page_cache_share=measured.get("page_cache_share"),
        limit=limit_name(run),
        epochs_under=under,
    )
