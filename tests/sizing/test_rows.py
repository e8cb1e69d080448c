"""`dlemu help workloads`: what each row asks of storage."""

import pytest

from dlemu.config.model import load_workload
from dlemu.sizing.formula import limited


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (100.0, "no: 10.3 MB/s; any drive is fast enough"),
        (3.0, "yes: one D7-PS1010 feeds 42.4"),
        (20.0, "no: one D3-S4520 feeds 11"),
        (0.01, "yes: one needs 7.1 D7-PS1010"),
    ],
)
def test_storage_limits_by_bytes(step: float, said: str) -> None:
    """1.03 GB a step: from below 1 % of a SATA drive to several NVMe drives."""
    workload = load_workload("unet3d_h100", {"train.computation_time": step})
    if step == 100.0:
        workload = workload.with_keys({"reader.batch_size": 1, "train.computation_time": 100.0})
        said = "no: 1.47 MB/s; any drive is fast enough"
    assert limited(workload) == said


def test_random_reads_are_felt_by_their_number() -> None:
    """10 million samples of 512 bytes each second are 5 GB/s, but more than a drive's IOPS."""
    keys: dict[str, object] = {"dataset.record_length_bytes": 512, "reader.batch_size": 100_000}
    workload = load_workload("gnn_rgat_h100", keys | {"train.computation_time": 0.01})
    assert limited(workload) == "unknown: at most 3.6 D7-PS1010 for one"
