"""GPUs that compute where others sleep: train.compute=gpu."""

from collections.abc import Callable

from dlemu.clock import Clock
from dlemu.errors import RunError, WorkloadError
from dlemu.workload.model import Workload


def compute_on_gpu(
    workload: Workload, accelerators: int, clock: Clock
) -> Callable[[float], None] | None:
    """Return what keeps this rank's GPUs busy until a deadline, None where compute is a sleep."""
    if workload.train.compute == "sleep" or accelerators == 0:
        return None
    from dlemu.gpu.compute import gpu_compute

    return gpu_compute(find_gpus(workload, accelerators), clock)


def find_gpus(workload: Workload, accelerators: int) -> range:
    """Return the GPUs that compute for so many accelerators."""
    from dlemu.gpu.compute import find_torch
    from dlemu.gpu.cuda import num_gpus

    try:
        num = workload.dali.gpus_per_host or num_gpus()
    except RunError as error:
        raise WorkloadError(f"train.compute=gpu: {error}; or set train.compute=sleep") from None
    gpus = range(max(1, min(num, accelerators)))
    find_torch(gpus)
    return gpus
