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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # with `as`: a strict type checker then takes the name for a public one
    from dlemu.api import TrainingLoader as TrainingLoader
    from dlemu.api import make_loader as make_loader
    from dlemu.config.model import Workload as Workload
    from dlemu.config.model import load_workload as load_workload
    from dlemu.datagen.verify import verify as verify
    from dlemu.datagen.write import generate as generate
    from dlemu.dataset.rule import dataset_size as dataset_size
    from dlemu.errors import DatasetError as DatasetError
    from dlemu.errors import DlemuError as DlemuError
    from dlemu.errors import RunError as RunError
    from dlemu.errors import WorkloadError as WorkloadError
    from dlemu.judge.metrics import Metrics as Metrics
    from dlemu.judge.metrics import measure as measure
    from dlemu.judge.outcome import Outcome as Outcome
    from dlemu.library import ResultText as ResultText
    from dlemu.library import show as show
    from dlemu.library import size as size
    from dlemu.loaders import Batch as Batch
    from dlemu.meter import Meter as Meter
    from dlemu.ranks.mpi import make_world as make_world
    from dlemu.ranks.world import Alone as Alone
    from dlemu.ranks.world import World as World
    from dlemu.run.job import run_job as run_job
    from dlemu.sizing.answers import Sized as Sized
    from dlemu.sizing.predict import Predicted as Predicted
    from dlemu.sizing.predict import predict as predict

    __version__: str

_NAMES = {
    "api": "TrainingLoader make_loader",
    "config.model": "Workload load_workload",
    "datagen.verify": "verify",
    "datagen.write": "generate",
    "dataset.rule": "dataset_size",
    "errors": "DatasetError DlemuError RunError WorkloadError",
    "judge.metrics": "Metrics measure",
    "judge.outcome": "Outcome",
    "library": "ResultText show size",
    "loaders": "Batch",
    "meter": "Meter",
    "ranks.mpi": "make_world",
    "ranks.world": "Alone World",
    "run.job": "run_job",
    "sizing.answers": "Sized",
    "sizing.predict": "Predicted predict",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: `dlemu --help` needs none of them."""
    from dlemu.plugins import named_by, own_version

    if name == "__version__":
        return own_version()
    if name not in _MODULES:
        raise AttributeError(f"module 'dlemu' has no attribute {name!r}")
    value = named_by(f"dlemu.{_MODULES[name]}:{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
