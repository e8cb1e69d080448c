"""The command line: what is typed wrong gets one line that says how to mend it."""

import os
import shlex
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from dlemu.cli.main import run
from dlemu.config.types import LOADERS
from dlemu.errors import RunError
from dlemu.formats import FORMATS
from dlemu.storage.gpu import cuda
from tests.lab import warm
from tests.lab.commands import QUICK, SMALL, Printed, dlemu, generate, summary_of
from tests.lab.waiting import LONG, until


def test_a_checkout_that_is_not_installed_has_no_version(
    monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    unknown = Mock(side_effect=PackageNotFoundError("dlemu"))
    monkeypatch.setattr("importlib.metadata.version", unknown)
    assert printed("--version") == "dlemu (a checkout that is not installed)\n"


def test_no_threads_are_started_to_multiply_matrices() -> None:
    # A thread that was joined may be a task for a moment more.
    code = "import os, time, dlemu.__main__ as command; command.main(); import numpy\n"
    code += "number, end = 2, time.monotonic() + 60\n"
    code += "while number > 1 and time.monotonic() < end:\n"
    code += "    time.sleep(0.01); number = len(os.listdir('/proc/self/task'))\n"
    code += "print(number)"
    words = ["datasize", "workload=unet3d_h100", "num_accelerators=1", "host_memory=1GiB"]
    environment = {key: value for key, value in os.environ.items() if "NUM_THREADS" not in key}
    out = subprocess.check_output([sys.executable, "-c", code, *words], env=environment, text=True)
    assert out.splitlines()[-1] == "1"


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd "{gone}" && rmdir "{gone}" && {sys.executable} -m dlemu doctor --wear .'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=LONG)
    line = "dlemu: the working directory is gone; cd to another\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_help_may_be_cut_short() -> None:
    """As `dlemu --help | head -1` does."""
    command = f"{sys.executable} -m dlemu --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=LONG)
    assert done.stderr == ""


def test_overrides_mean_what_hydra_says(printed: Printed) -> None:
    words = ["workload=resnet50_h100", "+reader.io_depth=4", "~metric", "++train.epochs=9"]
    tree = yaml.safe_load(printed("run", *words, "reader={read_threads:3}", "--cfg", "job"))
    assert (tree["reader"]["io_depth"], tree["reader"]["read_threads"]) == (4, 3)
    assert tree["reader"]["batch_size"] == 400, "a group that is given joins the workload's"
    assert (tree["metric"]["au"], tree["train"]["epochs"]) == (0.9, 9)


def test_files_of_ones_own_are_found_in_a_config_dir(tmp_path: Path, printed: Printed) -> None:
    (tmp_path / "drive").mkdir()
    (tmp_path / "drive" / "own.yaml").write_text("{name: Own, read_bandwidth: 9GB}")
    (tmp_path / "mine.yaml").write_text("dataset: {format: npz, num_files_train: 7}\n")
    words = ["workload=mine", "drive=own", "drive.capacity=5TB", "--config-dir", tmp_path]
    tree = yaml.safe_load(printed("predict", *words, "--cfg", "job"))
    assert (tree["name"], tree["dataset"]["num_files_train"]) == ("mine", 7)
    assert (tree["drive"]["read_bandwidth"], tree["drive"]["capacity"]) == (9e9, 5e12)


_ONE = ["reader.batch_size=1", "reader.prefetch_size=1", "size.quick=true", "size.confirm=2"]
_SWEPT = {
    "run": ("num_accelerators", QUICK),
    "size": ("size.max_accelerators", [*QUICK, *_ONE]),
    "checkpoint": ("checkpoint.num_checkpoints_write", ["model=unet3d", "checkpoint.scale=0.001"]),
}


@pytest.mark.parametrize("command", _SWEPT)
def test_several_values_are_a_job_each_and_one_table(
    command: str, data: str, tmp_path: Path, printed: Printed
) -> None:
    key, words = _SWEPT[command]
    place = f"checkpoint.checkpoint_folder={tmp_path}/x" if command == "checkpoint" else data
    text = printed(command, *words, place, f"{key}=1,2", f"output.folder={tmp_path}/all", "-m")
    folders = [tmp_path / "all" / f"{key}={number}" for number in (1, 2)]
    shown = [line.split()[0] for line in text.splitlines() if line]
    assert [each for each in shown if each.startswith("/")][-2:] == [*map(str, folders)]
    stored = "sizing.json" if command == "size" else "summary.json"
    assert [(folder / stored).is_file() for folder in folders] == [True, True]


def test_a_job_that_fails_ends_no_sweep(
    data: str, tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", *QUICK, data, "num_accelerators=99,1", f"output.folder={tmp_path}/all", "-m"]
    *_, failed, ended, _, _, line = printed(*words, status=1).splitlines()
    assert "/num_accelerators=99" in failed and f"failed: {line[7:]}" in failed
    assert "/num_accelerators=1" in ended and "PASS" in ended
    monkeypatch.setattr("dlemu.run.job.run_job", Mock(side_effect=KeyboardInterrupt))
    assert printed(*words, status=130).count("interrupted; ") == 1, "Ctrl-C ends all"


def test_verify_names_what_is_bad_and_repairs_it(tmp_path: Path, printed: Printed) -> None:
    data = generate(tmp_path)
    folder = tmp_path / "data"
    files = sorted((folder / "train").iterdir())
    whole = [file.read_bytes() for file in files]
    files[3].unlink()
    with files[5].open("r+b") as file:
        file.seek(9000)
        file.write(b"!!!!")
    assert printed("verify", *SMALL, data, status=1) == (
        f"train/{files[3].name}: is missing\n{folder}: 1 bad file; sizes were checked; "
        f"dlemu verify {folder} --repair writes them again\n"
    )
    (folder / "train" / ".DS_Store").touch()
    assert printed("verify", folder, "--full", "--repair") == (
        "train/.DS_Store: does not belong to the dataset; nothing reads it\n"
        f"train/{files[3].name}: is missing, written again\n"
        f"train/{files[5].name}: differs from what was written at byte 9000, written again\n"
        f"{folder}: 2 bad files, 2 written again, 1 extra file; sizes and content were checked\n"
    )
    assert [file.read_bytes() for file in files] == whole


@pytest.mark.parametrize(
    ("number", "keys", "seen", "verdict"),
    [
        (signal.SIGTERM, "train.computation_time=600", "host.0.jsonl", ""),
        (signal.SIGINT, "train.epochs=100000", "steps.0.npy", "NO VERDICT: interrupted after "),
    ],
)
def test_a_signal_ends_a_run_and_says_so(
    number: int, keys: str, seen: str, verdict: str, data: str, tmp_path: Path
) -> None:
    """Epochs that were whole before it are reported, and never judged."""
    words = [*QUICK, data, keys, "output.folder=run"]
    command = [*warm.COMMAND, "run", *words]
    process = warm.Popen(command, stdout=-1, stderr=-1, text=True, cwd=tmp_path)
    until((tmp_path / "run" / seen).exists, "the first records", by=process)
    process.send_signal(number)
    out, said = process.communicate(timeout=LONG)
    assert (process.returncode, said) == (130, "dlemu: interrupted\n")
    assert f"\n{verdict}" in out and ("VERDICT" in out) == bool(verdict)
    assert out.splitlines()[-1] == (
        "interrupted; its records are in run; this runs it again: "
        f"{shlex.join(['dlemu', 'run', *words])}"
    )
    assert summary_of(tmp_path / "run")["status"] == "incomplete"
    done = dlemu("report", "run", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout.startswith(verdict)
    why = "dlemu: run: no verdict (incomplete), no whole epoch of all accelerators: interrupted\n"
    assert done.stderr == ("" if verdict else why)


def test_an_interrupted_datagen_says_which_command_goes_on(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*QUICK, f"dataset.data_folder={tmp_path / 'a b'}", "dataset.num_files_train=3"]
    with monkeypatch.context() as patch:
        patch.setattr("dlemu.datagen.write.generate", Mock(side_effect=KeyboardInterrupt))
        *_, line, _ = printed("datagen", *words, status=130).splitlines()
        assert line.startswith("interrupted; this goes on after the files so far: dlemu datagen ")
        # Of a run that writes its dataset first it is the run that goes on, and is said once.
        again = printed("run", *words, "workflow.generate_data=true", status=130)
        assert again.startswith("interrupted; this runs it again: dlemu run ")
        assert again.count("interrupted; ") == 1
    assert run(shlex.split(line.partition(": dlemu ")[2])) == 0


# What a host lacks is told in one line, before anything is written, read or made cold.

CASES = [
    (
        "run",
        "torch",
        ["reader.data_loader=pytorch", "workflow.generate_data=true"],
        "reader.data_loader=pytorch needs torch: pip install 'dlemu[torch]', or use reader.",
    ),
    ("size", "h5py", ["dataset.format=hdf5"], "dataset.format=hdf5 needs h5py: pip install h5"),
    ("run", "", ["train.compute=gpu"], "train.compute=gpu: no GPU: no driver; or set train."),
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
    keys: list[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    printed: Printed,
    tmp_path: Path,
) -> None:
    """There is no dataset either, and `run` would write it first: neither is come to."""
    monkeypatch.setattr(cuda, "num_gpus", Mock(side_effect=RunError("no GPU: no driver")))
    without(package, monkeypatch)
    data = tmp_path / "data"
    data.mkdir()
    words = ["workload=unet3d_h100", f"dataset.data_folder={data}", "dataset.num_files_train=10"]
    words += [f"output.folder={tmp_path / 'results'}", "reader.data_loader=threads"]
    told = printed(command, *words, *keys, status=1)
    assert told.count("\n") == 1 and not list(data.iterdir()), "nothing was written"
    assert told.startswith(f"dlemu: {line}")
