"""The rules of MLPerf Storage's closed division: what a submitter may change, and must not."""

from collections.abc import Iterator, Mapping
from typing import Any

from dlemu.errors import WorkloadError
from dlemu.files import MEMORY_MULTIPLE, STEPS_PER_EPOCH, DatasetSize
from dlemu.workload import Workload, load_workload

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
_RUNS = 5
"""Consecutive runs (rules, "repeatability"); v2.0 wants a warm-up before them."""
_MAX_CACHED_SHARE = 0.05


def check_closed(workload: Workload, size: DatasetSize) -> Workload:
    """Return the workload with the closed division's bounds, if it keeps to the rules.

    Every value that differs from the published workload of that name is looked at, wherever it was
    set, and every key that was given although it has no effect. `size` is what the rule asks for.

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
        allowed |= {"reader.odirect"}
    idle = [key for key in workload.given if key in workload.ignored and key not in allowed]
    if idle:
        raise WorkloadError(
            f"division=closed does not allow {idle[0]}; leave it out, or use division=open"
        )
    was = dict(_leaves(published.model_dump()))
    for key, value in _leaves(workload.model_dump()):
        section = key.partition(".")[0]
        if section in ("output", "ignored", "given", "size", "predict", "drive"):
            continue
        if was.get(key) != value and key not in allowed:
            raise WorkloadError(
                f"division=closed does not allow {key}={value} (published: {was.get(key)}); "
                "leave it out, or use division=open"
            )
    if workload.reader.prefetch_size > _MAX_PREFETCH:
        raise WorkloadError(
            f"division=closed: reader.prefetch_size must be at most {_MAX_PREFETCH}, "
            f"got {workload.reader.prefetch_size}"
        )
    _check_procedure(workload)
    if workload.dataset.num_files_train != "auto" and workload.num_files < size.num_files:
        reason = (
            f"{STEPS_PER_EPOCH} steps" if size.won == "steps" else f"{MEMORY_MULTIPLE} x memory"
        )
        raise WorkloadError(
            f"division=closed: dataset.num_files_train must be at least {size.num_files} "
            f"({reason}), got {workload.num_files}; generate with dataset.num_files_train=auto"
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


def _check_procedure(workload: Workload) -> None:
    """Refuse fewer runs than the edition asks for, or caches left warm between them."""
    edition = workload.metric.edition
    if workload.runs < _RUNS:
        raise WorkloadError(
            f"division=closed: runs must be at least {_RUNS}, got {workload.runs}; add runs={_RUNS}"
        )
    if edition == "v2.0" and workload.warmup < 1:
        raise WorkloadError(
            "division=closed: warmup must be at least 1 in edition v2.0, got 0; add warmup=1"
        )
    output = workload.output
    if edition == "v1.0" and not (output.drop_caches or output.drop_all_caches):
        raise WorkloadError(
            "division=closed: output.drop_caches must be true in edition v1.0, which wants cold "
            "caches before every run, got false"
        )


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
