"""The rules of MLPerf Storage's closed division: what a submitter may change."""

from collections.abc import Iterator

from dlemu.dataset.rule import MEMORY_MULTIPLE, STEPS_PER_EPOCH, DatasetSize
from dlemu.errors import WorkloadError
from dlemu.workload.model import Workload, leaves, load_workload

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
# Keys of dlemu that say where and how often to run, not what is run. train.seed must change.
_PROCEDURE = {
    "accelerators_per_rank",
    "dataset.seed",
    "division",
    "drives",
    "host_memory",
    "metric.edition",
    "metric.max_cached_share",
    "name",
    "num_accelerators",
    "num_hosts",
    "progress",
    "runs",
    "train.seed",
    "warmup",
    "workflow.generate_data",
}
_MAX_PREFETCH = 2
_RUNS = 5
"""Consecutive runs (rules, "repeatability"); v2.0 also asks for a warm-up before them."""
_MAX_CACHED_SHARE = 0.05


def check_closed(workload: Workload, size: DatasetSize) -> Workload:
    """Return the workload with the closed division's bounds, if it keeps the rules.

    All values that differ from the published workload of that name are checked, wherever they were
    set, and all given keys that have no effect. `size` is the dataset that the rule asks for.

    Raises:
        WorkloadError: names all keys that may not be changed, and all values that are not allowed.
    """
    try:
        published = load_workload(workload.name)
    except WorkloadError:
        raise WorkloadError(
            f"division=closed runs the published workloads only, not {workload.name!r}"
        ) from None
    refusals = [
        *_refused_keys(workload, published),
        *_refused_values(workload, size),
    ]
    if refusals:
        raise WorkloadError(f"division=closed: {'; '.join(refusals)}; or use division=open")
    if workload.metric.max_cached_share is None:
        workload = workload.with_keys({"metric.max_cached_share": _MAX_CACHED_SHARE})
    return workload


def _refused_keys(workload: Workload, published: Workload) -> Iterator[str]:
    """Yield the keys that a submitter may not change."""
    allowed = _CLOSED | _PROCEDURE
    if workload.name.startswith("unet3d") and workload.metric.edition == "v2.0":
        allowed |= {"reader.odirect"}
    was = dict(leaves(published.model_dump()))
    for key in workload.given:
        if key in workload.ignored and key not in was and key not in allowed:
            yield f"{key} is not allowed, leave it out"
    for key, value in leaves(workload.model_dump()):
        section = key.partition(".")[0]
        if section in ("output", "ignored", "given", "size", "predict", "drive"):
            continue
        if was.get(key) != value and key not in allowed:
            yield f"{key}={value} is not allowed (published: {was.get(key)}), leave it out"


def _refused_values(workload: Workload, size: DatasetSize) -> Iterator[str]:
    """Yield the values out of bounds, of keys that may be changed."""
    if workload.reader.prefetch_size > _MAX_PREFETCH:
        yield (
            f"reader.prefetch_size must be at most {_MAX_PREFETCH}, got "
            f"{workload.reader.prefetch_size}, set reader.prefetch_size={_MAX_PREFETCH}"
        )
    bound = workload.metric.max_cached_share
    if bound is not None and bound > _MAX_CACHED_SHARE:
        yield (
            f"metric.max_cached_share must be at most {_MAX_CACHED_SHARE:g}, got {bound:g}, "
            "leave it out"
        )
    edition = workload.metric.edition
    if workload.runs < _RUNS:
        yield f"runs must be at least {_RUNS}, got {workload.runs}, add runs={_RUNS}"
    if edition == "v2.0" and workload.warmup < 1:
        yield "warmup must be at least 1 in edition v2.0, got 0, add warmup=1"
    output = workload.output
    if edition == "v1.0" and not (output.drop_caches or output.drop_all_caches):
        yield (
            "output.drop_caches must be true in edition v1.0, which wants cold caches before "
            "every run, got false, leave it out"
        )
    if workload.dataset.num_files_train == "auto" or workload.num_files >= size.num_files:
        return
    reason = (
        f"{STEPS_PER_EPOCH} steps" if size.decided_by == "steps" else f"{MEMORY_MULTIPLE} x memory"
    )
    yield (
        f"dataset.num_files_train must be at least {size.num_files} ({reason}), got "
        f"{workload.num_files}, generate with dataset.num_files_train=auto"
    )
