"""The question asked backwards: what does a number of accelerators ask of a storage?

By the rule, an accelerator may wait until its AU is at the threshold: a storage that gives
threshold x demand passes. Bare is what accelerators read that never wait.
"""

import math
from collections.abc import Iterator
from typing import Any

from dlemu.config.compose import datasheet, named
from dlemu.config.model import Drive, Workload
from dlemu.dataset.rule import STEPS_PER_EPOCH, DatasetSize, measure_memory
from dlemu.errors import WorkloadError
from dlemu.ranks.world import Alone
from dlemu.report.words import sentence
from dlemu.sizing.formula import LINK_PAYLOAD, Reads
from dlemu.units import ceil_div

OF_A_HOST = 8
"""Accelerators of a host, where nothing else is asked for."""
_STALL_SHARE = 0.05
"""Of the time between two checkpoints, what one may take where nothing else is asked for."""
_ROUNDING = 1e-9
"""So much less than a whole number of drives is that number."""


def asks_for_needs(workload: Workload) -> bool:
    """Return whether a prediction is of what accelerators need: no storage is given."""
    drive, predict = workload.drive, workload.predict
    if predict.accelerators is None or predict.minutes or predict.calibration is not None:
        return False
    return drive is None and workload.server.read_bandwidth is None


def needs_of(workload: Workload) -> dict[str, Any]:
    """Return the document of what predict.accelerators of a workload need; rates in bytes/s.

    `rule` and `bare` have each rate at the threshold and at AU 100 %, `storages` the numbers of
    each known drive, and of the key drive where it has a rate.

    Raises:
        WorkloadError: the workload does not compute, or the model does not fit so many.
    """
    number = workload.predict.accelerators
    assert number is not None, "asked for by the caller"
    seconds, au = workload.train.computation_time.mean, workload.metric.au
    if seconds <= 0:
        raise WorkloadError("train.computation_time must be above 0 for a prediction, got 0")
    reads = Reads.of(workload)
    bare = number * reads.num_bytes / seconds
    hosts = workload.num_hosts
    if "num_hosts" not in workload.given:
        hosts = ceil_div(number, OF_A_HOST)
    job = workload.with_keys({"num_accelerators": number, "num_hosts": hosts})
    size = DatasetSize(job, number, measure_memory(job, Alone()))

    def rates(share: float) -> dict[str, float]:
        rate = share * bare
        return {
            "read_bytes_per_second": rate,
            "reads_per_second": rate / reads.size,
            "samples_per_second": share * number * workload.reader.batch_size / seconds,
            "host_bytes_per_second": rate / hosts,
            "host_gbps": 8e-9 * rate / hosts / LINK_PAYLOAD[0],
        }

    return {
        "kind": "needs",
        "workload": workload.name,
        "num_accelerators": number,
        "threshold": 100 * au,
        "bytes_of_a_read": reads.size,
        "num_hosts": hosts,
        "rule": rates(au),
        "bare": rates(1.0),
        "dataset": {
            "num_files": size.num_files,
            "num_bytes": size.num_bytes,
            "decided_by": size.decided_by,
            "memory": sentence(size.memory.about) if size.memory.about else "",
        },
        "checkpoint": _checkpoint(job, size),
        "storages": [
            {
                "drive": drive.name,
                "read_bytes_per_second": (rate := reads.rate_of(drive)),
                "rule": _drives(au * bare / rate),
                "bare": _drives(bare / rate),
                "to_hold": drive.capacity and math.ceil(size.num_bytes / drive.capacity),
            }
            for drive in _known_drives(workload)
        ],
    }


def _drives(number: float) -> int:
    return max(1, math.ceil(number - _ROUNDING))


def _known_drives(workload: Workload) -> Iterator[Drive]:
    """Yield the drive of the key, if it has a rate, and those with a datasheet, the fastest first.

    Two sizes of one model that read alike are one row.
    """
    own = workload.drive
    known = [Drive.model_validate(datasheet(name)) for name in named("drive")]
    known.sort(key=lambda drive: -drive.read_rate)
    if own is not None and own.read_bandwidth is not None:
        yield own
    yield from (drive for drive in known if own is None or drive.name != own.name)


def _checkpoint(job: Workload, size: DatasetSize) -> dict[str, Any] | None:
    """Return bytes, time and rate of a checkpoint; None: the workload has none."""
    model, key = job.model, job.checkpoint
    if model.num_layers is None and model.model_size_bytes is None:
        return None
    from dlemu.checkpoint.plan import ShardPlan  # which loads all that writes

    num_bytes = ShardPlan.of(job, Alone()).num_bytes
    samples = job.reader.batch_size * size.num_accelerators
    steps = key.steps_between_checkpoints
    if steps is None:
        an_epoch = max(STEPS_PER_EPOCH, size.num_samples // samples)
        steps = key.epochs_between_checkpoints * an_epoch
    between = steps * job.train.computation_time.mean / job.metric.au
    seconds = _STALL_SHARE * between if key.max_seconds is None else key.max_seconds
    return {
        "num_bytes": num_bytes,
        "every_seconds": between,
        "seconds": seconds,
        "asked": key.max_seconds is not None,
        "write_bytes_per_second": num_bytes / seconds,
    }
