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
    from dlemu.errors import DatasetError, DlemuError, RunError, WorkloadError
    from dlemu.job import Outcome, run_job
    from dlemu.loaders import Batch
    from dlemu.meter import Meter
    from dlemu.metrics import Metrics, measure
    from dlemu.training import TrainingLoader, make_loader
    from dlemu.workload import Workload, load_workload
    from dlemu.world import Alone, World, make_world

_MODULES = {
    "Alone": "world",
    "Batch": "loaders",
    "DatasetError": "errors",
    "DlemuError": "errors",
    "Meter": "meter",
    "Metrics": "metrics",
    "Outcome": "job",
    "RunError": "errors",
    "TrainingLoader": "training",
    "Workload": "workload",
    "WorkloadError": "errors",
    "World": "world",
    "generate": "datagen",
    "load_workload": "workload",
    "make_loader": "training",
    "make_world": "world",
    "measure": "metrics",
    "run_job": "job",
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
    "RunError",
    "TrainingLoader",
    "Workload",
    "WorkloadError",
    "World",
    "generate",
    "load_workload",
    "make_loader",
    "make_world",
    "measure",
    "run_job",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: `dlemu --help` needs none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module 'dlemu' has no attribute {name!r}")
    value = getattr(import_module(f"dlemu.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
