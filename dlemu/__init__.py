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

if TYPE_CHECKING:  # with `as`: a strict type checker then takes the name for a public one
    from dlemu.datagen.verify import verify as verify
    from dlemu.datagen.write import generate as generate
    from dlemu.dataset.rule import dataset_size as dataset_size
    from dlemu.errors import DatasetError as DatasetError
    from dlemu.errors import DlemuError as DlemuError
    from dlemu.errors import RunError as RunError
    from dlemu.errors import WorkloadError as WorkloadError
    from dlemu.library import Shown as Shown
    from dlemu.library import show as show
    from dlemu.library import size as size
    from dlemu.loaders import Batch as Batch
    from dlemu.report.meter import Meter as Meter
    from dlemu.results.metrics import Metrics as Metrics
    from dlemu.results.metrics import measure as measure
    from dlemu.results.outcome import Outcome as Outcome
    from dlemu.run.job import run_job as run_job
    from dlemu.sizing.answers import Sized as Sized
    from dlemu.sizing.predict import Predicted as Predicted
    from dlemu.sizing.predict import predict as predict
    from dlemu.training.loader import TrainingLoader as TrainingLoader
    from dlemu.training.loader import make_loader as make_loader
    from dlemu.workload.model import Workload as Workload
    from dlemu.workload.model import load_workload as load_workload
    from dlemu.world.mpi import make_world as make_world
    from dlemu.world.world import Alone as Alone
    from dlemu.world.world import World as World

    __version__: str

_NAMES = {
    "datagen.verify": "verify",
    "datagen.write": "generate",
    "dataset.rule": "dataset_size",
    "errors": "DatasetError DlemuError RunError WorkloadError",
    "library": "Shown show size",
    "loaders": "Batch",
    "report.meter": "Meter",
    "results.metrics": "Metrics measure",
    "results.outcome": "Outcome",
    "run.job": "run_job",
    "sizing.answers": "Sized",
    "sizing.predict": "Predicted predict",
    "training.loader": "TrainingLoader make_loader",
    "workload.model": "Workload load_workload",
    "world.mpi": "make_world",
    "world.world": "Alone World",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)


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
