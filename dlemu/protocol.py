"""Several runs as MLPerf Storage asks for them: the closed division's rules, and the table.

What passes here is "MLPerf-Storage-style": a result of MLPerf is what its reviewers have published.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dlemu.errors import WorkloadError
from dlemu.files import dataset_size
from dlemu.job import Outcome, Say, run_job
from dlemu.records import SUMMARY, write_summary
from dlemu.report import render_run
from dlemu.settle import measure_memory, num_accelerators
from dlemu.workload import Workload, load_workload
from dlemu.world import World

LABEL = "MLPerf-Storage-style, not an MLPerf result"

# MLPerf Storage v1.0 rules, "closed division"; v2.0 adds reader.odirect for unet3d.
_CLOSED = {
    "dataset.num_files_train",
    "dataset.num_subfolders_train",
    "dataset.data_folder",
    "reader.read_threads",
    "reader.computation_threads",
    "reader.transfer_size",
    "reader.prefetch_size",
    "checkpoint.checkpoint_folder",
    "storage.storage_type",
    "storage.storage_root",
}
# Ours, which say where and how often to run, not what is run; train.seed has to change anyway.
_PROCEDURE = {
    "accelerators_per_rank",
    "dataset.seed",
    "division",
    "drives",
    "framework",
    "host_memory",
    "metric.edition",
    "metric.max_cached_share",
    "name",
    "num_accelerators",
    "num_hosts",
    "runs",
    "train.seed",
    "warmup",
    "workflow.generate_data",
}
_MAX_PREFETCH = 2
_MAX_CACHED_SHARE = 0.05
_REPEATABILITY = 0.05
"""Each run's samples/s must lie this close to their mean (rules, "repeatability")."""
# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def run_protocol(workload: Workload, *, world: World, say: Say = print) -> int:
    """Run the warm-ups and the runs that count, each with a seed of its own; return exit status.

    Raises:
        WorkloadError: division=closed does not allow a key or a value.
    """
    if workload.division == "closed":
        workload = check_closed(workload)
        _check_size(workload, world)
    base = world.broadcast(_base_folder(workload))
    summary: dict[str, Any] = {
        "status": "incomplete",
        "label": LABEL,
        "division": workload.division,
        "workload": workload.name,
        "start": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": [],
    }
    _start(base, summary, world)
    outcomes: list[Outcome] = []
    for number in range(workload.warmup + workload.runs):
        warming = number < workload.warmup
        name = f"warmup.{number + 1}" if warming else f"run.{number + 1 - workload.warmup}"
        if world.rank == 0:
            say(f"\n{name} of {workload.warmup} warm-ups and {workload.runs} runs")
        outcome = run_job(
            workload.with_keys(
                {
                    "output.folder": str(base / name),
                    "train.seed": workload.train.seed + number,
                }
            ),
            world=world,
            say=say,
        )
        if outcome is None:
            continue
        say(render_run(workload, outcome.metrics, outcome.summary))
        if not warming:
            outcomes.append(outcome)
        row = _row(workload, name, outcome)
        if summary["runs"]:
            ended = datetime.fromisoformat(summary["runs"][-1]["end"])
            row["gap_seconds"] = (datetime.fromisoformat(row["start"]) - ended).total_seconds()
        summary["runs"].append(row)
        write_summary(base, summary)
    status = 0
    if world.rank == 0:
        verdict = judge(workload, outcomes)
        summary |= verdict | {"end": datetime.now(UTC).isoformat(timespec="seconds")}
        write_summary(base, summary)
        say(f"\n{render_runs(workload, summary)}\nresults: {base}")
        status = {"complete": 2, "failed": 1}[summary["status"]]
        status = 0 if summary["passed"] else status
    return world.broadcast(status)


def check_closed(workload: Workload) -> Workload:
    """Return the workload with the closed division's bounds, if it keeps to the rules.

    Every value that differs from the published workload of that name is looked at, wherever it was
    set.

    Raises:
        WorkloadError: a key that may not be changed, or a value that is not allowed.
    """
    try:
        published = load_workload(workload.name)
    except WorkloadError:
        raise WorkloadError(
            f"division=closed runs the published workloads only, not {workload.name!r}"
        ) from None
    allowed = _CLOSED | _PROCEDURE
    if workload.name.startswith("unet3d"):
        allowed = allowed | {"reader.odirect"}
    was = dict(_leaves(published.model_dump()))
    for key, value in _leaves(workload.model_dump()):
        section = key.partition(".")[0]
        if section in ("output", "ignored", "given", "size", "predict", "drive"):
            continue
        if was.get(key) != value and not any(
            key == each or key.startswith(f"{each}.") for each in allowed
        ):
            raise WorkloadError(
                f"division=closed does not allow {key}={value} (published: {was.get(key)}); "
                "leave it out, or use division=open"
            )
    if workload.reader.prefetch_size > _MAX_PREFETCH:
        raise WorkloadError(
            f"division=closed: reader.prefetch_size must be at most {_MAX_PREFETCH}, "
            f"got {workload.reader.prefetch_size}"
        )
    bound = workload.metric.max_cached_share
    if bound is None:
        workload = workload.with_keys({"metric.max_cached_share": _MAX_CACHED_SHARE})
    elif bound > _MAX_CACHED_SHARE:
        raise WorkloadError(
            f"division=closed: metric.max_cached_share must be at most {_MAX_CACHED_SHARE:g}, "
            f"got {bound:g}"
        )
    return workload


def judge(workload: Workload, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what several runs came to: status, passed, reasons, mean, sd, 95 % interval."""
    au = [outcome.metrics.au_percentage for outcome in outcomes]
    rates = [outcome.metrics.samples_per_second for outcome in outcomes]
    reasons = []
    for number, outcome in enumerate(outcomes, 1):
        if outcome.summary["status"] != "complete":
            reasons.append(f"run {number} failed: {outcome.summary.get('error')}")
        elif not outcome.passed:
            reasons.append(f"run {number} has {au[number - 1]:.2f}% utilisation")
    mean = float(np.mean(rates))
    spread = max(abs(rate / mean - 1) for rate in rates)
    if spread > _REPEATABILITY:
        reasons.append(
            f"samples/s are up to {100 * spread:.1f}% off their mean, at most "
            f"{100 * _REPEATABILITY:g}% is repeatable"
        )
    failed = any(outcome.summary["status"] != "complete" for outcome in outcomes)
    return {
        "status": "failed" if failed else "complete",
        "passed": not reasons,
        "reasons": reasons,
        "repeatability_percentage": 100 * spread,
        "au_percentage": statistics(au),
        "samples_per_second": statistics(rates),
    }


def statistics(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, sd (n - 1) and the 95 % interval of the mean; the latter None for one value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return {"mean": mean, "sd": None, "interval": None}
    sd = float(np.std(values, ddof=1))
    half = _T95[min(len(values) - 1, len(_T95)) - 1] * sd / len(values) ** 0.5
    return {"mean": mean, "sd": sd, "interval": [mean - half, mean + half]}


def render_runs(workload: Workload, summary: Mapping[str, Any]) -> str:
    """Return the table of the runs and what they came to together."""
    lines = [
        f"{workload.name}: {LABEL}",
        "",
        f"{'run':<12}{'AU (%)':>10}{'samples/s':>14}{'MiB/s':>12}{'cached (%)':>12}"
        f"{'gap (s)':>10}  limit",
    ]
    for row in summary["runs"]:
        cached = row["page_cache_share"]
        gap = row["gap_seconds"]
        lines.append(
            f"{row['name']:<12}{row['au_percentage']:>10.2f}{row['samples_per_second']:>14.2f}"
            f"{row['nominal_MiB_per_second']:>12.1f}"
            f"{'-' if cached is None else f'{100 * cached:.1f}':>12}"
            f"{'-' if gap is None else f'{gap:.0f}':>10}  {row['limit']}"
            + (f"; under the threshold: {row['epochs_under']}" if row["epochs_under"] else "")
        )
    for name, key in (("AU (%)", "au_percentage"), ("samples/s", "samples_per_second")):
        each = summary[key]
        line = f"{name}: mean {each['mean']:.2f}"
        if each["interval"] is not None:
            low, high = each["interval"]
            line += f", sd {each['sd']:.2f}, 95% interval {low:.2f} to {high:.2f}"
        lines.append(line)
    word = "PASS" if summary["passed"] else "FAIL"
    reasons = "; ".join(summary["reasons"]) or (
        f"every run has at least {100 * workload.metric.au:g}%, samples/s within "
        f"{summary['repeatability_percentage']:.1f}% of their mean"
    )
    if summary["status"] == "failed":
        word = "NO VERDICT"
    return "\n".join([*lines, f"{word}: {reasons}"])


def _row(workload: Workload, name: str, outcome: Outcome) -> dict[str, Any]:
    under = [
        f"epoch {epoch.epoch + 1} ({epoch.au_percentage:.2f}%)"
        for epoch in outcome.metrics.epochs
        if round(epoch.au_percentage, 2) < round(100 * workload.metric.au, 2)
    ]
    return {
        "name": name,
        "status": outcome.summary["status"],
        "start": outcome.summary["start"],
        "end": outcome.summary["end"],
        "gap_seconds": None,
        "au_percentage": outcome.metrics.au_percentage,
        "samples_per_second": outcome.metrics.samples_per_second,
        "nominal_MiB_per_second": outcome.summary["metric"]["train_io_mean_MB_per_second"],
        "page_cache_share": outcome.summary["measured"].get("page_cache_share"),
        "limit": outcome.summary["limit"]["name"],
        "epochs_under": ", ".join(under),
    }


def _check_size(workload: Workload, world: World) -> None:
    if workload.dataset.num_files_train == "auto":
        return
    memory = measure_memory(workload, world)
    size = dataset_size(
        workload,
        num_accelerators=num_accelerators(workload, world),
        host_memory=memory.num_bytes,
    )
    if workload.num_files < size.num_files:
        raise WorkloadError(
            f"division=closed: dataset.num_files_train must be at least {size.num_files} "
            f"({'500 steps' if size.won == 'steps' else '5 x memory'}), got {workload.num_files}; "
            "generate with dataset.num_files_train=auto"
        )


def _base_folder(workload: Workload) -> Path:
    if workload.output.folder is not None:
        return Path(workload.output.folder)
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("outputs") / workload.name / now


def _start(base: Path, summary: Mapping[str, Any], world: World) -> None:
    if world.rank == 0:
        if (base / SUMMARY).exists():
            raise WorkloadError(
                f"output.folder {base} holds runs already; name another, or remove it"
            )
        try:
            base.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WorkloadError(
                f"output.folder {base} cannot be written ({error.strerror}); set output.folder"
            ) from None
        write_summary(base, summary)
    world.barrier()


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
