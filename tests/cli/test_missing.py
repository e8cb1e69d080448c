"""What a host lacks is told in one line, before anything is written, read or made cold."""

import re
import sys
from pathlib import Path

import pytest

from dlemu.cli.main import run
from dlemu.config.sections import LOADERS
from dlemu.errors import RunError
from dlemu.formats import FORMATS
from dlemu.storage.gpu import cuda

CASES: list[tuple[str, str, dict[str, object], str]] = [
    (
        "run",
        "torch",
        {"reader.data_loader": "pytorch", "workflow.generate_data": "true"},
        r"reader.data_loader=pytorch needs torch: pip install 'dlemu\[torch\]', or use reader.",
    ),
    (
        "run",
        "nvidia",
        {"reader.data_loader": "dali", "workflow.generate_data": "true"},
        r"reader.data_loader=dali needs nvidia.*: pip install 'dlemu\[dali-cuda13\]', or use ",
    ),
    ("size", "h5py", {"dataset.format": "hdf5"}, r"dataset.format=hdf5 needs h5py: pip install h5"),
    (
        "calibrate",
        "torch",
        {"train.compute": "gpu", "dali.gpus_per_host": 1},
        r"train.compute=gpu needs torch: pip install 'dlemu\[torch\]', or set train.compute=sleep",
    ),
    (
        "run",
        "",
        {"train.compute": "gpu"},
        r"train.compute=gpu: no GPU: no driver; or set train.compute=",
    ),
]
OURS = ("dlemu.loaders.pytorch", "dlemu.loaders.dali.loader", "dlemu.loaders.dali.pipelines")


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Python find no such package."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for name in OURS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(LOADERS, "_loaded", {})
    monkeypatch.setattr(FORMATS, "_loaded", {})


@pytest.mark.parametrize(("command", "package", "keys", "line"), CASES)
def test_what_is_missing_is_told_at_once(
    command: str,
    package: str,
    keys: dict[str, object],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """There is no dataset either, and `run` would write it first: neither is come to."""

    def none() -> int:
        raise RunError("no GPU: no driver")

    monkeypatch.setattr(cuda, "num_gpus", none)
    without(package, monkeypatch)
    data = tmp_path / "data"
    data.mkdir()
    words = ["workload=unet3d_h100", f"dataset.data_folder={data}", "dataset.num_files_train=10"]
    words += [f"output.folder={tmp_path / 'results'}", "reader.data_loader=threads"]
    assert run([command, *words, *(f"{key}={value}" for key, value in keys.items())]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and not list(data.iterdir()), "nothing was written"
    assert re.search(line, told.removeprefix("dlemu: ")), told
