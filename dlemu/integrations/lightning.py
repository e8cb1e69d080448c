"""The Meter as a callback of Lightning: `Trainer(callbacks=[MeterCallback(meter)])`.

Lightning moves a batch to the device before its hooks see it, so that copy is part of the wait.
"""

from contextlib import ExitStack
from typing import Any

from pytorch_lightning import Callback

from dlemu.meter import Meter


class MeterCallback(Callback):  # type: ignore[misc]
    """Times each batch of training by a Meter; validation is no part of a step.

    Args:
        meter: its `report()` tells the AU once `fit` has ended.
        device: as in `Meter.epoch`; None: that of the model, where it is a GPU.
    """

    def __init__(self, meter: Meter, *, device: str | None = None) -> None:
        super().__init__()
        self._meter, self._device, self._paused = meter, device, ExitStack()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        device = pl_module.device
        used = self._device or (f"cuda:{device.index or 0}" if device.type == "cuda" else None)
        self._meter.begin(
            trainer.current_epoch, device=used, loader=getattr(trainer, "train_dataloader", None)
        )

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self._meter.take(batch)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._meter.ask()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._meter.end()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._paused.enter_context(self._meter.pause())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._paused.close()
