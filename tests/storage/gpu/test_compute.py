"""A real GPU computes until the deadline, and is busy until then; without one that is said."""

from types import SimpleNamespace

import pytest

from dlemu.clock import WallClock
from dlemu.config.model import load_workload
from dlemu.errors import WorkloadError
from dlemu.run.compute import find_compute_gpus, gpu_compute

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'dlemu[torch]'")


def test_a_gpu_that_is_not_there_is_named() -> None:
    missing = torch.cuda.device_count()
    with pytest.raises(WorkloadError, match=r"^train\.compute=gpu: this PyTorch .* sees \d+ GPUs"):
        gpu_compute([missing], WallClock.calibrate(), 0.001)
    with pytest.raises(WorkloadError, match=r"^train\.compute=gpu"):
        gpu_compute([], WallClock.calibrate(), 0.001)


@pytest.mark.parametrize(
    ("own", "keys", "gpus"),
    [(range(2, 3), {}, [0]), (range(1, 2), {}, [1]), (range(4), {}, [0, 1]),
     (range(1, 2), {"dali.gpus_per_host": 1}, [0])],
)  # fmt: skip
def test_each_rank_computes_on_the_gpus_of_its_accelerators(
    own: range, keys: dict[str, object], gpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks of a host with two GPUs share none."""
    monkeypatch.setattr("dlemu.storage.gpu.cuda.num_gpus", lambda: 2)
    monkeypatch.setattr("dlemu.run.compute.find_torch", lambda _: None)
    asked = {"train.compute": "gpu", "train.computation_time": 0.1, **keys}
    assert find_compute_gpus(load_workload("unet3d_h100", asked), own) == gpus


@pytest.mark.parametrize(
    ("step", "slower", "rows"),
    [(0.0035, 1, 4096), (0.083, 1, 8192), (60.0, 1, 8192), (0.083, 20, 2048), (0.083, 1e6, 256)],
)
def test_a_product_is_as_long_as_kernels_of_such_a_step(
    step: float, slower: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an H100, where 4096 rows take 0.18 ms, and on slower GPUs: they are asked for no more."""
    tried: list[int] = []

    def take(self: object, gpu: int, side: int) -> float:
        tried.append(side)
        return slower * 0.00018 * (side / 4096) ** 3

    monkeypatch.setattr("dlemu.run.compute._Product._calibrate", take)
    cuda = SimpleNamespace(Stream=lambda gpu: None, set_device=lambda gpu: None)
    monkeypatch.setattr("dlemu.run.compute.find_torch", lambda gpus: SimpleNamespace(cuda=cuda))
    gpu_compute([0], WallClock.calibrate(), step)
    assert tried[-1] == max(tried) == rows


@pytest.mark.gpu
@pytest.mark.parametrize("seconds", [0.0035, 0.05, 0.323])
def test_it_is_busy_until_the_deadline(seconds: float) -> None:
    if torch.cuda.device_count() == 0:
        pytest.skip("needs a CUDA GPU")
    clock = WallClock.calibrate()
    compute = gpu_compute([0], clock, seconds)
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
