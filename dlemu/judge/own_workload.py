"""A workload file from the steps of a real loop."""

from math import sqrt

import numpy as np

from dlemu.config.model import Workload
from dlemu.config.published import derived_yaml, normal
from dlemu.errors import WorkloadError
from dlemu.judge.records import Steps


def own_workload_yaml(
    workload: Workload, steps: Steps, *, name: str, timed_by: str, launch_seconds: float = 0.0
) -> str:
    """Return a workload file with the batch, sample bytes and compute of these steps.

    `steps` is (steps,) of `records.STEP`. The first step of an epoch is left out: it starts the
    loader, and a GPU looks for its fastest kernels. The loop's own work counts as compute: an
    emulation without it would be faster than the loop (docs/fidelity.md).

    Raises:
        WorkloadError: no epoch has two steps.
    """
    counted = steps[steps["step"] > 0]
    if not len(counted):
        raise WorkloadError(
            "meter.workload_yaml() needs an epoch of at least two steps; the first one is left out"
        )
    compute, samples = counted["compute"] + counted["overhead"], counted["num_samples"]
    batch = int(np.median(samples))
    keys: dict[str, object] = {"train.computation_time": normal(compute)}
    if batch:
        keys["reader.batch_size"] = batch
    if launch_seconds:
        keys["train.launch_time"] = float(f"{min(launch_seconds, compute.mean()):.4g}")
    known = bool(batch and counted["num_bytes"].sum()) and not workload.dataset.record_dims
    of_sample = counted["num_bytes"] / np.maximum(samples, 1)
    if known:
        keys["dataset.record_length_bytes"] = float(f"{of_sample.mean():.10g}")
    # A stream counts what it read ahead with the batch at hand: that tells the mean of a sample,
    # not how samples deviate.
    deviates = known and not (workload.by_tf_data or workload.streamed)
    if deviates:
        # A batch's mean deviates by 1 / sqrt(batch) of what a sample deviates.
        keys["dataset.record_length_bytes_stdev"] = float(f"{of_sample.std() * sqrt(batch):.6g}")
    whole = sum(counted[part].sum() for part in ("wait", "overhead", "compute", "barrier"))
    comment = [
        f"A training loop measured by dlemu.Meter, {len(counted):,} steps, timed by {timed_by}.",
        f"waiting for batches: {100 * counted['wait'].sum() / whole:.1f} % of the time; "
        f"the loop's own work, which computation_time includes: "
        f"{100 * counted['overhead'].sum() / whole:.1f} %",
    ]
    if not batch:
        comment.append(f"batch size: that of {workload.name}; Meter(batch_size=) gives the loop's")
    if not known:
        comment.append(
            f"dataset: that of {workload.name}; the loader does not tell its bytes, "
            "Meter(sample_bytes=) gives them"
        )
    elif not deviates:
        comment.append(
            f"deviation of the samples' bytes: that of {workload.name}; files are streams"
        )
    return derived_yaml(workload, name or f"{workload.name}_measured", keys, comment)
