"""Loops that leave early, pause, accumulate gradients, or belong to a framework."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dlemu.errors import WorkloadError
from dlemu.meter import Meter
from dlemu.report.words import note_lines
from tests.lab.virtual import VirtualClock

WAIT, BODY = 1.0, 4.0


class Batches:
    """Batches of two samples, each after a wait."""

    def __init__(self, clock: VirtualClock, num: int = 6) -> None:
        self._clock, self._num = clock, num

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self._num):
            self._clock.time += WAIT
            yield [0, 1]


def test_a_loop_that_leaves_has_its_last_step() -> None:
    clock = VirtualClock()
    meter = Meter("mine", clock=clock)
    for number, _ in enumerate(meter.epoch(Batches(clock), 0)):
        clock.time += BODY
        if number == 3:
            break
    assert meter.steps["compute"].tolist() == [BODY] * 4
    assert meter.steps["wait"].tolist() == [WAIT] * 4


def test_a_loop_that_fails_has_the_step_in_which_it_did() -> None:
    clock = VirtualClock()
    meter = Meter("mine", clock=clock)
    with pytest.raises(ValueError, match="in the loop"):
        for number, _ in enumerate(meter.epoch(Batches(clock), 0)):
            clock.time += BODY
            if number == 2:
                raise ValueError("in the loop")
    assert meter.steps["compute"].tolist() == [BODY] * 3


@pytest.mark.parametrize("marked", [True, False])
def test_an_iterator_that_is_kept_does_not_stretch_its_last_step(marked: bool) -> None:
    """As Lightning keeps it: validation comes first, and the report before the next question."""
    clock = VirtualClock()
    meter = Meter("mine", clock=clock)
    kept = meter.epoch(Batches(clock, 3), 0)
    for _ in range(3):
        next(kept)
        if marked:
            with meter.computing():
                clock.time += BODY
        else:
            clock.time += BODY
    clock.time += 500.0
    assert meter.steps["compute"].tolist() == [BODY] * 3
    assert list(kept) == [], "the loop may go on"
    assert len(meter.steps) == 3


def test_a_batch_that_is_taken_and_left_is_no_step() -> None:
    clock = VirtualClock()
    meter = Meter("mine", clock=clock)
    for number, _ in enumerate(meter.epoch(Batches(clock), 0)):
        if number == 4:
            break
        clock.time += BODY
    assert len(meter.steps) == 4


def test_a_pause_is_no_part_of_a_step() -> None:
    """Evaluation of 100 s in the second step, and what follows is told as if it had not been."""
    clock = VirtualClock()
    meter = Meter("mine", clock=clock)
    for number, _ in enumerate(meter.epoch(Batches(clock, 4), 0)):
        with meter.computing():
            clock.time += BODY
        if number == 1:
            with meter.pause():
                clock.time += 100.0
    steps = meter.steps
    assert steps["compute"].tolist() == [BODY] * 4 and not steps["overhead"].any()
    begin = steps["start"][0]
    assert (steps["start"] - begin).tolist() == [n * (WAIT + BODY) for n in range(4)]
    with meter.pause():  # between epochs nothing is measured anyway
        clock.time += 1.0


def test_a_pause_inside_compute_is_refused() -> None:
    clock = VirtualClock()
    meter = Meter("mine", clock=clock)
    for _ in meter.epoch(Batches(clock, 1), 0):
        with (
            meter.computing(),
            pytest.raises(WorkloadError, match="inside meter"),
            meter.pause(),
        ):
            pass


def test_what_is_read_in_a_pause_counts_for_no_epoch(tmp_path: Path) -> None:
    """Counted by the real kernel: of 3 files of a MiB, the one that is read in the pause."""
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    meter = Meter("mine", folder=tmp_path)
    for number, _ in enumerate(meter.epoch(["a", "b", "c"], 0)):
        (tmp_path / "file").read_bytes()
        with meter.pause():
            for _ in range(20 * (number == 1)):
                (tmp_path / "file").read_bytes()
    document = meter.document()
    assert document is not None
    assert 3 << 20 <= document["measured"]["hosts"][0]["process_rchar"] < 10 << 20


def test_accumulated_gradients_leave_each_batch_its_own_compute() -> None:
    """As transformers takes them: two batches, then both are computed."""
    clock = VirtualClock()
    meter = Meter("mine", clock=clock)
    for number, _ in enumerate(meter.epoch(Batches(clock), 0)):
        if number % 2:
            for seconds in (3.0, 5.0):
                with meter.computing():
                    clock.time += seconds
            clock.time += 1.0  # the optimizer
    steps = meter.steps
    assert steps["compute"].tolist() == [3.0, 5.0] * 3
    assert steps["overhead"].tolist() == [0.5] * 6
    assert steps["start"].tolist()[:3] == [0.0, 4.5, 11.0]
    document = meter.document()
    assert document is not None
    assert not any("compute is all between" in line for line in note_lines(document))


def test_a_meter_with_a_name_gives_no_verdict_unless_asked() -> None:
    clock = VirtualClock()
    verdicts: dict[str, dict[str, Any]] = {
        "MEASURED": {},
        "PASS": {"au": 0.5},
        "FAIL": {"au": 0.99},
    }
    for verdict, given in verdicts.items():
        meter = Meter("mine", clock=clock, **given)
        for _ in meter.epoch(Batches(clock), 0):
            clock.time += BODY
        document = meter.document()
        assert document is not None
        assert (document["verdict"], document["workload"]) == (verdict, "mine")
        told = meter.report()
        assert "unet3d" not in told and ("required" in told) == bool(given)
    with pytest.raises(WorkloadError, match="au is for a job with a name"):
        from dlemu.config.model import load_workload

        Meter(load_workload("unet3d_h100"), au=0.5)


def test_a_loop_that_somebody_else_drives() -> None:
    clock = VirtualClock()
    meter = Meter("mine", clock=clock)
    with pytest.raises(WorkloadError, match="only between"):
        meter.take([0])
    for epoch in range(2):
        meter.begin(epoch)
        for number in range(3):
            clock.time += WAIT
            if number == 1:
                with meter.pause():  # between two steps
                    clock.time += 50.0
            meter.take([0, 1])
            clock.time += BODY
            meter.ask()
        meter.end()
        clock.time += 9.0
    steps = meter.steps
    assert steps["wait"].tolist() == [WAIT] * 6 and steps["compute"].tolist() == [BODY] * 6
    assert steps["num_samples"].tolist() == [2] * 6
    with pytest.raises(WorkloadError, match="epoch 1 was recorded already"):
        meter.begin(1)


# Frameworks, as a few lines that have their names: the real ones are not installed here. They
# were tried by hand with pytorch-lightning 2.6.6 and transformers 5.

ON_CPU = SimpleNamespace(type="cpu", index=None)


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what makes a module with a class of no methods."""

    def make(name: str, callback: str) -> None:
        module: Any = ModuleType(name)
        setattr(module, callback, type(callback, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delitem(sys.modules, f"dlemu.integrations.{name.split('_')[-1]}", raising=False)

    return make


def test_the_callback_of_lightning(framework: Callable[..., None]) -> None:
    framework("pytorch_lightning", "Callback")
    from dlemu.integrations.lightning import MeterCallback

    clock = VirtualClock()
    meter = Meter("mine", clock=clock)
    hook = MeterCallback(meter)
    model = SimpleNamespace(device=ON_CPU)
    hook.on_validation_start(None, model)  # the sanity check before the first epoch
    hook.on_validation_end(None, model)
    hook.on_train_epoch_start(SimpleNamespace(current_epoch=0), model)
    for number in range(4):
        clock.time += WAIT
        hook.on_train_batch_start(None, model, [0, 1], number)
        clock.time += BODY
        hook.on_train_batch_end(None, model, None, [0, 1], number)
        if number in (1, 3):
            hook.on_validation_start(None, model)
            clock.time += 60.0
            hook.on_validation_end(None, model)
    hook.on_train_epoch_end(None, model)
    assert meter.steps["wait"].tolist() == [WAIT] * 4
    assert meter.steps["compute"].tolist() == [BODY] * 4


def test_the_callback_of_transformers(framework: Callable[..., None]) -> None:
    framework("transformers", "TrainerCallback")
    from dlemu.integrations.transformers import MeterCallback

    clock = VirtualClock()
    meter = Meter("mine", clock=clock)
    hook = MeterCallback(meter)
    asked = SimpleNamespace(
        device=ON_CPU, per_device_train_batch_size=2, gradient_accumulation_steps=3
    )
    control = SimpleNamespace(should_evaluate=False, should_save=False)
    hook.on_epoch_begin(asked, None, control)
    for number in range(4):
        clock.time += WAIT
        hook.on_step_begin(asked, None, control)
        clock.time += BODY
        control.should_evaluate, control.should_save = number == 1, number in (1, 2)
        hook.on_step_end(asked, None, control)
        if control.should_evaluate:
            clock.time += 60.0
            hook.on_evaluate(asked, None, control)
        if control.should_save:
            clock.time += 7.0
            hook.on_save(asked, None, control)
    hook.on_epoch_end(asked, None, control)
    steps = meter.steps
    assert steps["wait"].tolist() == [WAIT] * 4 and steps["compute"].tolist() == [BODY] * 4
    assert steps["num_samples"].tolist() == [6] * 4, "three batches of two"
