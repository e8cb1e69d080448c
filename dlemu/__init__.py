"""How many GPUs will this storage feed? Emulates deep-learning training I/O and says why.

import dlemu

workload = dlemu.load_workload("unet3d_h100", {"dataset.data_folder": "/mnt/nvme/unet3d"})
with dlemu.make_loader(workload) as loader:
    meter = dlemu.Meter(workload)
    for epoch in range(2):
        for batch in meter.epoch(loader, epoch):
            meter.compute(batch)
print(meter.report())
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlemu.datagen import generate
    from dlemu.datagen.verify import verify
    from dlemu.dataset.rule import dataset_size
    from dlemu.errors import DatasetError, DlemuError, RunError, WorkloadError
    from dlemu.loaders import Batch
    from dlemu.results.metrics import Metrics, measure
    from dlemu.results.outcome import Outcome
    from dlemu.run.job import run_job
    from dlemu.sizing.answers import Sized
    from dlemu.sizing.measured import size
    from dlemu.sizing.predict import Predicted, predict
    from dlemu.training.loader import TrainingLoader, make_loader
    from dlemu.training.meter import Meter
    from dlemu.workload.model import Workload, load_workload
    from dlemu.world.mpi import make_world
    from dlemu.world.world import Alone, World

    __version__: str

_MODULES = {
    "Alone": "world.world",
    "Batch": "loaders",
    "DatasetError": "errors",
    "DlemuError": "errors",
    "Meter": "training.meter",
    "Metrics": "results.metrics",
    "Outcome": "results.outcome",
    "Predicted": "sizing.predict",
    "RunError": "errors",
    "Sized": "sizing.answers",
    "TrainingLoader": "training.loader",
    "Workload": "workload.model",
    "WorkloadError": "errors",
    "World": "world.world",
    "dataset_size": "dataset.rule",
    "generate": "datagen",
    "load_workload": "workload.model",
    "make_loader": "training.loader",
    "make_world": "world.mpi",
    "measure": "results.metrics",
    "predict": "sizing.predict",
    "run_job": "run.job",
    "size": "sizing.measured",
    "verify": "datagen",
}

__all__ = [
    "Alone",
    "Batch",
    "DatasetError",
    "DlemuError",
    "Meter",
    "Metrics",
    "Outcome",
    "Predicted",
    "RunError",
    "Sized",
    "TrainingLoader",
    "Workload",
    "WorkloadError",
    "World",
    "dataset_size",
    "generate",
    "load_workload",
    "make_loader",
    "make_world",
    "measure",
    "predict",
    "run_job",
    "size",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: `dlemu --help` needs none of them."""
    if name == "__version__":
        from importlib.metadata import version

        return version("dlemu")
    if name not in _MODULES:
        raise AttributeError(f"module 'dlemu' has no attribute {name!r}")
    value = getattr(import_module(f"dlemu.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
