"""What a published row stands for, and in which keys a job differs from it."""

from collections.abc import Collection
from functools import cache

from dlemu.units import format_seconds
from dlemu.workload.compose import known_workloads
from dlemu.workload.derived import origin_of
from dlemu.workload.model import Workload, leaves, load_workload

_PUBLISHED, _REAL = "_h100", "_real_h100"
_WORTH_SAYING = 1.3
"""From this factor between published and measured step on, in either direction, it is said."""


# MLPerf Storage v1.0 rules, "closed division"; v2.0 and v3.0 (rule 3.6.2) add reader.odirect for
# unet3d.
CLOSED = {
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
"""Keys that a submitter may change."""
PROCEDURE = {
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
"""Keys of dlemu that say where and how often to run, not what is run. train.seed must change."""
_WITHOUT_EFFECT = (
    *("output", "ignored", "given", "made_from", "size", "predict", "drive"),
    *("model", "checkpoint"),  # without workflow.checkpoint, which differs
)
"""Groups that change no run."""


def published_row(workload: Workload) -> Workload | None:
    """Return the published workload that a job was made from; None where it is of its own."""
    names = (workload.made_from, workload.name)
    name = next((name for name in names if name in known_workloads()), None)
    return None if name is None else _published(name)


_published = cache(load_workload)


def differing(
    workload: Workload, row: Workload, but: Collection[str] = ()
) -> dict[str, tuple[object, object]]:
    """Return the keys in which a job differs from a published row, with both values.

    Left out are keys of the procedure, those that the closed division may change, and `but`.
    """
    was, allowed = dict(leaves(row.model_dump())), CLOSED | PROCEDURE | {*but}
    return {
        key: (value, was.get(key))
        for key, value in leaves(workload.model_dump())
        if key.partition(".")[0] not in _WITHOUT_EFFECT
        and was.get(key) != value
        and key not in allowed
    }


def is_measured(name: str) -> bool:
    """Return whether a row that comes with dlemu has a step time that `dlemu steptime` measured."""
    return name.endswith(("_h200", _REAL))


def what_it_stands_for(workload: Workload) -> str:
    """Return a line about the row's computation_time, or "" if there is nothing to say.

    Said of MLPerf Storage's H100 rows only, beside a real H100 with plain PyTorch.
    """
    published = origin_of(workload)
    if published is None or is_measured(published.name):
        return ""
    measured_name = f"{published.name.removesuffix(_PUBLISHED)}{_REAL}"
    if measured_name not in known_workloads():
        return ""
    same = published.train.computation_time, published.reader.batch_size
    if same != (workload.train.computation_time, workload.reader.batch_size):
        return ""
    measured = load_workload(measured_name)
    step, real = published.train.computation_time.mean, measured.train.computation_time.mean
    if max(step / real, real / step) <= _WORTH_SAYING:
        return ""
    return (
        f"{published.name} is MLPerf Storage's H100, {format_seconds(step)} a step; a real one "
        f"with PyTorch in bf16 took {format_seconds(real)} and reads {step / real:.1f} times as "
        f"fast (workload={measured_name}; docs/fidelity.md)"
    )
