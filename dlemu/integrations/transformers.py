"""The Meter as a callback of transformers: `Trainer(..., callbacks=[MeterCallback(meter)])`.

A step is one of the optimizer, with all batches whose gradients it accumulates: the trainer takes
them together, and shows its callbacks no single one.
"""

from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback

from dlemu.meter import Meter


class MeterCallback(TrainerCallback):  # type: ignore[misc]
    """Times each step of the optimizer by a Meter; evaluation and saving are no part of a step.

    Args:
        meter: its `report()` tells the AU once `train` has ended.
        device: as in `Meter.epoch`; None: the trainer's, where it is a GPU.
    """

    def __init__(self, meter: Meter, *, device: str | None = None) -> None:
        self._meter, self._device, self._paused, self._epochs = meter, device, ExitStack(), 0

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        used = self._device or (str(args.device) if args.device.type == "cuda" else None)
        loader = more.get("train_dataloader")
        self._meter.begin(self._epochs, device=used, loader=loader)
        self._epochs += 1

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._paused.close()
        num = args.per_device_train_batch_size * args.gradient_accumulation_steps
        self._meter.take(range(num))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._meter.ask()
        if control.should_evaluate or control.should_save:  # the trainer does it now
            self._paused.enter_context(self._meter.pause())

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not control.should_save:
            self._paused.close()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._paused.close()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._paused.close()
        self._meter.end()
