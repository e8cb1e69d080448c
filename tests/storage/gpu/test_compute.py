"""A real GPU computes until the deadline, and is busy until then; without one that is said."""

import pytest

from dlemu.clock import WallClock
from dlemu.errors import WorkloadError
from dlemu.run.compute import gpu_compute

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'dlemu[torch]'")


def test_a_gpu_that_is_not_there_is_named() -> None:
    missing = torch.cuda.device_count()
    with pytest.raises(WorkloadError, match=r"^train\.compute=gpu: this PyTorch .* sees \d+ GPUs"):
        gpu_compute([missing], WallClock.calibrate())
    with pytest.raises(WorkloadError, match=r"^train\.compute=gpu"):
        gpu_compute([], WallClock.calibrate())


@pytest.mark.gpu
@pytest.mark.parametrize("seconds", [0.0035, 0.05, 0.323])
def test_it_is_busy_until_the_deadline(seconds: float) -> None:
    if torch.cuda.device_count() == 0:
        pytest.skip("needs a CUDA GPU")
    clock = WallClock.calibrate()
    compute = gpu_compute([0], clock)
    late, busy = [], []
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        deadline = clock.now() + seconds
        begin.record()
        compute(deadline)
        late.append(clock.now() - deadline)
        # The legacy stream waits for none of compute's own, so it ends when the GPU is idle.
        torch.cuda.synchronize()
        end.record()
        end.synchronize()
        busy.append(begin.elapsed_time(end) / 1000)
    assert min(late) >= 0
    assert sorted(busy)[5] >= 0.95 * seconds
