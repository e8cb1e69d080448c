"""A real GPU computes until the deadline, and is busy until then; without one that is said."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dlemu.clock import WallClock
from dlemu.config.model import load_workload
from dlemu.errors import WorkloadError
from dlemu.run.compute import find_compute_gpus, gpu_compute, network_compute

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


class _Devices:
    """PyTorch's part that a network's steps are queued by, and GPUs that work on what is queued."""

    def __init__(self) -> None:
        self.now = 0.0
        self.made: list[int] = []
        """The GPUs of the steps that were made."""
        self.current = -1
        self.takes = 0.1
        self.ends: dict[int, float] = {}
        """When each GPU will have done what is queued."""
        self.cuda = SimpleNamespace(
            device=self._with, Event=lambda **_: _Event(self), synchronize=lambda: None
        )
        self.clock: Any = SimpleNamespace(now=lambda: self.now, sleep_until=self.wait_until)

    def wait_until(self, when: float) -> None:
        self.now = max(self.now, when)

    def end(self) -> float:
        """Return when the current GPU will have done what is queued, by the clock."""
        return max(self.now, self.ends.get(self.current, 0.0))

    @contextmanager
    def _with(self, gpu: int) -> Iterator[None]:
        self.current = gpu
        yield

    def step(self) -> None:
        self.made.append(self.current)
        self.ends[self.current] = self.end() + self.takes


class _Event:
    def __init__(self, devices: _Devices) -> None:
        self._devices = devices
        self._at = 0.0

    def record(self) -> None:
        self._at = self._devices.end()

    def synchronize(self) -> None:
        self._devices.wait_until(self._at)

    def elapsed_time(self, end: "_Event") -> float:
        return 1000 * (end._at - self._at)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> _Devices:
    """Have a function own:step that takes 0.1 s on devices that are not there."""
    found = _Devices()
    monkeypatch.setattr("dlemu.run.compute.find_torch", lambda gpus: found)
    module = SimpleNamespace(step=lambda batch, device: found.step, __file__="own.py")
    monkeypatch.setitem(sys.modules, "own", module)
    return found


@pytest.mark.parametrize(
    ("left", "takes", "steps", "late"),
    [(0.1, 0.1, 1, 0.0), (0.35, 0.1, 3, 0.0), (0.195, 0.1, 2, 0.005), (0.05, 0.1, 1, 0.05),
     (0.1, 0.17, 1, 0.07)],
)  # fmt: skip
def test_a_network_makes_the_whole_steps_that_fit_and_one_at_least(
    left: float, takes: float, steps: int, late: float, devices: _Devices
) -> None:
    """The last: beside what the GPU decodes a step takes longer, and the job's step as well."""
    compute = network_compute([0], devices.clock, "own:step", 7, ahead=0)
    devices.made.clear()
    devices.takes = takes
    deadline = devices.now + left
    compute(deadline)
    assert len(devices.made) == steps
    assert devices.now == pytest.approx(deadline + late)


@pytest.mark.parametrize(
    ("seconds", "takes", "steps", "late"),
    [(0.1, 0.1, 1, [0, 0, 0]), (0.35, 0.1, 3, [0, 0, 0]), (0.1, 0.17, 1, [0, 0, 0.04])],
)
def test_a_pipelined_loop_has_a_step_under_way_when_it_asks_for_a_batch(
    seconds: float, takes: float, steps: int, late: list[float], devices: _Devices
) -> None:
    """The last: the GPU may lag behind by a step, as that of a real loop."""
    compute = network_compute([0], devices.clock, "own:step", 7, ahead=1)
    devices.takes = takes
    begin = devices.now
    for number, each in enumerate(late, 1):
        devices.made.clear()
        compute(begin + number * seconds)
        assert len(devices.made) == steps
        assert devices.now == pytest.approx(begin + number * seconds + each)


def test_steps_that_have_become_longer_are_known_to_be(devices: _Devices) -> None:
    compute = network_compute([0], devices.clock, "own:step", 7, ahead=0)
    devices.takes = 0.17
    for _ in range(9):
        compute(devices.now + 0.17)
    devices.made.clear()
    compute(devices.now + 0.3)
    assert len(devices.made) == 1


def test_each_gpu_trains_a_network_of_its_own(devices: _Devices) -> None:
    compute = network_compute([0, 2], devices.clock, "own:step", 7, ahead=0)
    devices.made.clear()
    compute(devices.now)
    assert devices.made == [0, 2]


def test_a_network_that_is_none_is_named_before_a_gpu_is_looked_for() -> None:
    asked = {"train.compute": "gpu", "train.network": "resnet51"}
    line = "train.network must be one of unet3d, resnet50, cosmoflow, or PACKAGE"
    with pytest.raises(WorkloadError, match=rf"^{line}.*'resnet51'$"):
        find_compute_gpus(load_workload("unet3d_h100", asked), range(1))


def test_a_function_that_fails_is_named_by_its_key(devices: _Devices) -> None:
    with pytest.raises(WorkloadError, match=r"^train\.network=own:stop: .* no function stop"):
        network_compute([0], devices.clock, "own:stop", 7, ahead=0)


def test_a_network_too_large_for_the_gpu_says_what_to_set(
    devices: _Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(batch: int, device: str) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(sys.modules["own"], "step", fill)
    with pytest.raises(WorkloadError, match=r"reader\.batch_size=7 needs more memory than GPU 3"):
        network_compute([3], devices.clock, "own:step", 7, ahead=0)


@pytest.mark.gpu
def test_a_network_trains_until_the_deadline() -> None:
    if torch.cuda.device_count() == 0:
        pytest.skip("needs a CUDA GPU")
    clock = WallClock.calibrate()
    compute = network_compute([0], clock, "resnet50", 8, ahead=0)
    before = torch.cuda.memory_allocated(0)
    deadline = clock.now() + 1.0
    compute(deadline)
    assert clock.now() >= deadline
    assert before > 100e6  # weights, momentum and a batch


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
