"""What a host lacks is told in one line, before anything is written, read or made cold."""

import re
import sys
from pathlib import Path

import pytest

import dlemu
from dlemu.cli.main import run
from dlemu.gpu import cuda

TORCH = r"reader.data_loader=pytorch needs torch: pip install 'dlemu\[torch\]', or use reader."
DALI = r"reader.data_loader=dali needs nvidia.*: pip install 'dlemu\[dali-cuda13\]', or use reader."
H5PY = r"dataset.format=hdf5 needs h5py: pip install h5py$"
COMPUTE = r"train.compute=gpu needs torch: pip install 'dlemu\[torch\]', or set train.compute=sleep"
CASES = [
    ("run", "torch", {"reader.data_loader": "pytorch"}, TORCH),
    ("run", "nvidia", {"reader.data_loader": "dali"}, DALI),
    ("size", "h5py", {"dataset.format": "hdf5"}, H5PY),
    ("calibrate", "torch", {"train.compute": "gpu", "dali.gpus_per_host": 1}, COMPUTE),
]
OURS = ("dlemu.loaders.pytorch", "dlemu.loaders.dali.loader", "dlemu.loaders.dali.pipelines")


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Python find no such package."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for name in OURS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)


def words(folder: Path, keys: dict[str, object]) -> list[str]:
    own: dict[str, object] = {
        "workload": "unet3d_h100",
        "dataset.data_folder": folder / "data",
        "dataset.num_files_train": 10,
        "output.folder": folder / "results",
        "reader.data_loader": "threads",
    }
    return [f"{key}={value}" for key, value in (own | keys).items()]


def refused(
    command: str, keys: dict[str, object], folder: Path, capsys: pytest.CaptureFixture[str]
) -> str:
    """Return the line of a command that writes nothing; `run` would write the dataset first."""
    if command == "run":
        keys = keys | {"workflow.generate_data": "true"}
    elif command == "size":
        (folder / "data").mkdir()
    assert run([command, *words(folder, keys)]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and not list((folder / "data").glob("*")), "nothing was written"
    return told.removeprefix("dlemu: ").strip()


@pytest.mark.parametrize(("command", "package", "keys", "line"), CASES)
def test_a_missing_package_is_told_at_once(
    command: str,
    package: str,
    keys: dict[str, object],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    without(package, monkeypatch)
    assert re.search(line, refused(command, keys, tmp_path, capsys))


def test_a_missing_gpu_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def none() -> int:
        raise dlemu.RunError("no GPU: no driver")

    monkeypatch.setattr(cuda, "num_gpus", none)
    line = "train.compute=gpu: no GPU: no driver; or set train.compute="
    assert refused("run", {"train.compute": "gpu"}, tmp_path, capsys).startswith(line)
