"""What each extra is for, and what its commands say where it is not installed."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dlemu
from tests.lab.waiting import LONG
from tests.mutants import ROOT

SMALL = (
    "dataset.record_length_bytes=4096 dataset.record_length_bytes_stdev=0 "
    "dataset.record_length_bytes_resize=4096 train.computation_time=0.002 train.epochs=1"
)
FILES = f"workload=unet3d_h100 dataset.num_files_train=400 dataset.data_folder=data {SMALL}"
COLUMNS = f"workload=unet3d_h100 dataset.format=parquet dataset.num_files_train=14 {SMALL}"
BUCKET = f"workload=unet3d_h100 dataset.num_files_train=14 dataset.data_folder=s3://b/x {SMALL}"
THREADS = "reader.data_loader=threads output.folder=out"

# Extra: (modules that it brings, {command: what it says before "pip install 'dlemu[EXTRA]'"}).
TABLE = {
    "torch": (
        "torch",
        {
            f"run {FILES} output.folder=out": "reader.data_loader=pytorch needs torch: ",
            f"size {FILES} output.folder=out": "reader.data_loader=pytorch needs torch: ",
            f"calibrate {FILES} output.folder=out": "reader.data_loader=pytorch needs torch: ",
            "checkpoint saved workload=unet3d_h100 checkpoint.writer=dcp": "checkpoint.writer=dcp"
            " needs torch; ",
            "steptime workload=resnet50_h100": "dlemu steptime needs torch: ",
        },
    ),
    "mpi": (
        "mpi4py",
        {
            command: "started as one of several ranks, but MPI cannot be loaded (No module named "
            "'mpi4py'); "
            for command in (
                f"run {FILES} {THREADS}",
                f"size {FILES} {THREADS}",
                f"datagen {FILES}",
                "verify data",
                "paths data",
                "load data",
                "checkpoint saved workload=unet3d_h100",
            )
        },
    ),
    "plot": (
        "matplotlib",
        {
            f"size {FILES} {THREADS} size.quick=true size.max_accelerators=1": "no plot: "
            "matplotlib is missing; ",
            "paths data seconds=0.02 workers=1 io_sizes=128KiB paths=host_buffered "
            "file_size=1MiB output=cells": "no plot: matplotlib is missing; ",
        },
    ),
    "parquet": (
        "pyarrow",
        {
            f"run {COLUMNS} {THREADS} dataset.data_folder=rows reader.decode=library": "reader."
            "decode=library needs pyarrow for parquet: ",
            f"run {COLUMNS} {THREADS} dataset.data_folder=foreign": "dataset.format=parquet needs "
            "PyArrow for files that dlemu did not write: ",
        },
    ),
    "s3": (
        "obstore",
        {f"{command} {BUCKET} {THREADS}": "s3://b/x needs obstore: " for command in ("run", "size")}
        | {
            command: "a data folder in a bucket needs obstore: "
            for command in (
                f"datagen {BUCKET}",
                f"run {BUCKET} {THREADS} --dry-run",
                "verify s3://b/x",
                "checkpoint s3://b/x workload=unet3d_h100",
            )
        },
    ),
    "dali-cuda13": (
        "nvidia.dali,nvidia_dali_cuda130",
        {
            f"{command} {FILES} reader.data_loader=dali output.folder=out": "reader.data_loader"
            "=dali needs NVIDIA DALI: "
            for command in ("run", "size", "calibrate")
        }
        | {"doctor data reader.data_loader=dali": "only for reader.data_loader=dali: "},
    ),
    "gds": (
        "nvidia",
        {"paths data paths=cufile output=cells": "libcufile.so.0 was not found; "},
    ),
}
GOES_ON = {"plot"}
"""Extras without which a command does its work all the same."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with datasets in npz and parquet, and parquet files of another tool."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'dlemu[parquet]'")
    import pyarrow

    folder = tmp_path_factory.mktemp("extras")
    (folder / "foreign" / "train").mkdir(parents=True)
    for number in range(14):
        rows = pyarrow.table({"x": [b"a" * 100]})
        parquet.write_table(rows, folder / "foreign" / "train" / f"part-{number}.parquet")
    without("none", folder, f"datagen {FILES}", f"datagen {COLUMNS} dataset.data_folder=rows")
    return folder


def without(modules: str, folder: Path, *commands: str, **environment: str) -> list[str]:
    """Return what each command printed, and its status at the end, without some modules."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.without", modules, *commands],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stdout
    *told, rest = re.split(r"(?<=^-> \d)\n", done.stdout, flags=re.MULTILINE)
    assert rest == "" and len(told) == len(commands)
    return told


def _has_toolkit() -> bool:
    loads = [sys.executable, "-S", "-c", "import ctypes; ctypes.CDLL('libcufile.so.0')"]
    return (
        Path("/usr/local/cuda/lib64/libcufile.so.0").exists()
        or subprocess.run(loads, stderr=subprocess.DEVNULL).returncode == 0
    )


@pytest.mark.parametrize("extra", TABLE)
def test_the_line_that_installs_what_is_missing_is_named(extra: str, folder: Path) -> None:
    if extra == "gds" and _has_toolkit():
        pytest.skip("the CUDA toolkit has brought libcufile")
    modules, commands = TABLE[extra]
    ranks = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"} if extra == "mpi" else {}
    before = {*folder.iterdir()}
    for command, told in zip(commands, without(modules, folder, *commands, **ranks), strict=True):
        line = f"{commands[command]}pip install 'dlemu[{extra}]'"
        assert line in told, command
        assert "Traceback" not in told, command
        if extra not in GOES_ON:
            assert told.endswith("-> 1"), command
            assert {*folder.iterdir()} == before, "nothing was written"


def test_each_extra_is_in_the_table() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = {*setup["options.extras_require"]} - {"docs", "test"}
    assert {re.sub(r"12$", "13", each) for each in extras} == {*TABLE}
    # A line that is printed names an extra that there is.
    for path in (*(ROOT / "dlemu").rglob("*.py"), *(ROOT / "docs").glob("*.md")):
        for named in re.findall(r"dlemu\[([\w,-]+)\]", path.read_text()):
            assert {*named.split(",")} <= {*setup["options.extras_require"]}, f"{path}: {named}"


def test_an_import_needs_nothing_but_the_standard_library() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(dlemu.__file__).parents[1])!r}); "
        "import dlemu, dlemu.__main__; dir(dlemu);"
        "print(*(name for name in sys.modules if not name.startswith(('dlemu', '__main__')) "
        "and name.partition('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
