"""What a published row stands for, where the same network was measured on a GPU."""

from dlemu.units import format_seconds
from dlemu.workload.compose import known_workloads
from dlemu.workload.model import Workload, load_workload

_PUBLISHED, _MEASURED = "_h100", "_h200"
_WORTH_SAYING = 1.3
"""From this factor between published and measured step on, in either direction, it is said."""


def what_it_stands_for(workload: Workload) -> str:
    """Return a line about the row's computation_time, or "" if there is nothing to say.

    Said of MLPerf Storage's H100 rows only. An H200 has the same cores as an H100, and more memory
    bandwidth.
    """
    name = workload.name.removesuffix(_PUBLISHED)
    measured_name = f"{name}{_MEASURED}"
    if name == workload.name or not {workload.name, measured_name} <= known_workloads().keys():
        return ""
    published, measured = load_workload(workload.name), load_workload(measured_name)
    same = published.train.computation_time, published.reader.batch_size
    if same != (workload.train.computation_time, workload.reader.batch_size):
        return ""
    step, real = published.train.computation_time.mean, measured.train.computation_time.mean
    if max(step / real, real / step) <= _WORTH_SAYING:
        return ""
    return (
        f"{workload.name} is MLPerf Storage's H100, {format_seconds(step)} a step; an H200 with "
        f"plain PyTorch took {format_seconds(real)} and reads {step / real:.1f} times as fast "
        f"(workload={measured_name}; docs/fidelity.md)"
    )
