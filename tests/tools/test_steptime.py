"""Step times: the fit, the files, the user's own function, and what NVML tells or does not."""

import json
import multiprocessing
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from dlemu.cli.main import run
from dlemu.config.model import check_workload, load_workload
from dlemu.config.published import derived_yaml
from dlemu.host.processes import usable_cpus
from dlemu.tools.steptime.job import StepTimes, batch_sizes
from dlemu.tools.steptime.measure import Gpu, GpuState, Timed, find_gpu, summary
from dlemu.tools.steptime.steps import Preprocessing

STEP = """
def quick(batch, device):
    if batch == 4:
        raise MemoryError
    return lambda: sum(range(1000 * batch))

def broken(batch, device):
    values = []
    return lambda: values[batch]

def no_step(batch, device):
    return 3

def undecodable(batch, device):
    import json
    return lambda: json.loads("no JSON")

def sample():
    return lambda number: sum(range(2000))

def broken_sample():
    return lambda number: [][number]

def killed_sample():
    import os, signal
    return lambda number: os.kill(os.getpid(), signal.SIGKILL)
"""


TORCH = """
import os
def set_num_threads(number):
    open(f"process-{os.getpid()}-{number}", "w").close()
"""
"""Of the processes that are started, which take torch along: to import the real one takes long."""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words of a command on the CPU, in a folder with a module of the user's."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "own_model", raising=False)
    (tmp_path / "own_model.py").write_text(STEP)
    (tmp_path / "own_wrong.py").write_text("quick = 1\n=")
    (tmp_path / "torch.py").write_text(TORCH)
    words = ["steptime", "workload=unet3d_h100", "steptime.device=cpu"]
    return [*words, "steptime.steps=3", "steptime.seconds=0", "output.folder=out"]


def test_the_users_own_step_becomes_a_workload(
    own: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*own, "steptime.model=own_model:quick", "steptime.batches=[1,7,4]"]) == 0
    shown = capsys.readouterr().out
    assert "on the CPU: " in shown and "out of memory, skipped: batch 4" in shown
    evidence = json.loads(Path("out/unet3d_measured_cpu.json").read_text())
    assert evidence["environment"]["loop"] == "waits"
    assert [each["batch"] for each in evidence["batches"]] == [1, 7]
    assert len(evidence["batches"][1]["step_seconds"]) == 3
    workload = load_workload("out/unet3d_measured_cpu.yaml")
    seven, time = evidence["batches"][1], workload.train.computation_time
    assert (workload.name, workload.reader.batch_size) == ("unet3d_measured_cpu", 7)
    assert time.mean == pytest.approx(seven["mean_seconds"], rel=1e-5)
    assert time.stdev == pytest.approx(seven["stdev_seconds"], rel=1e-3)
    assert "# torch: " in Path("out/unet3d_measured_cpu.yaml").read_text()
    assert run(["run", "workload=out/unet3d_measured_cpu.yaml", "--cfg", "job"]) == 0


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("model=own_model:broken", "own_model.py:9: IndexError list index out of range"),
        ("model=own_model:undecodable", "own_model.py:16: JSONDecodeError Expecting value"),
        ("model=own_wrong:quick", "own_wrong.py:2: SyntaxError invalid syntax"),
        ("model=own_model:no_step", "must return a function that does one step, got int"),
        ("model=own_model:nosuch", "own_model.py has no function nosuch"),
        ("preprocess=own_model:broken_sample", "own_model.py:22: IndexError list index out of ran"),
        ("preprocess=own_model:killed_sample", "own_model:killed_sample: a process was killed"),
    ],
)
def test_a_wrong_function_gets_one_line(
    own: list[str], word: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["steptime.model=own_model:quick"] * word.startswith("preprocess")
    assert run([*own, *words, "reader.read_threads=1", f"steptime.{word}"]) == 1
    [told] = capsys.readouterr().err.splitlines()
    assert line in told and told.startswith(f"dlemu: steptime.{word.partition('=')[0]}")
    assert not Path("out").exists() and not multiprocessing.active_children()


def test_preprocessing_is_timed_by_as_many_processes_as_the_job_has_workers(
    own: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*own, "steptime.model=own_model:quick", "steptime.batches=[7]"]
    words += ["steptime.preprocess=own_model:sample", "reader.read_threads=2"]
    assert run([*words, "steptime.seconds=0.2"]) == 0
    assert " in 2 at once; these prepare " in capsys.readouterr().out
    found = json.loads(Path("out/unet3d_measured_cpu.json").read_text())["preprocessing"]
    assert found["workers"] == 2 and found["samples_together"] >= 2 * 2
    # One alone, then two at once, each with one thread.
    assert len(list(Path().glob("process-*-1"))) == 1 + 2
    reader = load_workload("out/unet3d_measured_cpu.yaml").reader
    assert reader.read_threads == 2, "the time is that of two workers"
    kind = "together" if usable_cpus() >= 2 else "on_core"
    assert reader.preprocess_time.mean == pytest.approx(found[f"mean_seconds_{kind}"], rel=1e-5)
    assert reader.preprocess_time.stdev == pytest.approx(found[f"stdev_seconds_{kind}"], rel=1e-3)


def test_workers_that_wait_for_a_core_wait_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the run they wait again: what they waited while they were timed does not count."""
    waited, on_core = np.full(10, 0.006), np.full(10, 0.003)
    for cpus, mean in ((4.0, 0.006), (2.0, 0.003)):
        monkeypatch.setattr("dlemu.tools.steptime.steps.usable_cpus", lambda cpus=cpus: cpus)
        found = Preprocessing(
            function="own:f", workers=4, alone=on_core, together=waited, on_core=on_core
        )
        assert found.key()["mean"] == mean


def test_a_gpu_is_not_replaced_by_the_cpu(
    own: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("dlemu.tools.steptime.job.find_gpu", lambda: None)
    assert run(["steptime", "workload=unet3d_h100"]) == 1
    assert "sees no GPU" in capsys.readouterr().err


def test_the_networks_are_the_benchmarks() -> None:
    """Parameters of ResNet-50 v1.5; operations of a forward pass, twice the published MACs."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from dlemu.tools.steptime.networks import network

    for name, flop in (("unet3d", 2 * 477e9), ("resnet50", 2 * 4.09e9), ("cosmoflow", 2 * 10.2e9)):
        net = network(name)
        with torch.device("meta"):
            model = net.model()
            data = torch.empty(1, net.channels, *(net.side,) * net.axes)
        with FlopCounterMode(display=False) as counter:
            model(data)
        assert counter.get_total_flops() == pytest.approx(flop, rel=0.02), name
        if name == "resnet50":
            assert sum(each.numel() for each in model.parameters()) == 25_557_032


def test_a_small_network_learns() -> None:
    torch = pytest.importorskip("torch")
    from dlemu.tools.steptime.networks import Training, UNet3D, dice_and_cross_entropy, network

    training = Training(network("cosmoflow", 32), "cpu", layout="contiguous")
    model: Any = training.model
    before = [each.clone() for each in model.parameters()]
    training.step(training.data(1), training.net.target(1, "cpu"))
    after = model.parameters()
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    logits = UNet3D((2, 4, 8))(torch.rand(1, 1, 16, 16, 16))
    assert logits.shape == (1, 3, 16, 16, 16)
    right = torch.zeros(1, 4, 4, 4, dtype=torch.long)
    sure = torch.nn.functional.one_hot(right, 3).movedim(-1, 1) * 100.0
    # Dice of the two classes that are not there is 1: nothing is missed.
    assert float(dice_and_cross_entropy(sure, right)) == pytest.approx(0, abs=1e-3)


def test_a_row_is_published_by_where_it_comes_from_not_by_its_name(tmp_path: Path) -> None:
    tree = load_workload("unet3d_h100").model_dump(
        mode="json", exclude={"made_from", "given", "ignored"}
    )
    own = load_workload("unet3d_h100", {"reader.read_threads": 9, "storage.access_key_id": "key"})
    file = tmp_path / "unet3d_h100.yaml"
    for from_file in (False, True):
        text = derived_yaml(own, "own", {"reader.batch_size": 2}, ["a line"])
        assert ("defaults" in text) is not from_file and "key" not in text.lower()
        file.write_text(text)
        found = load_workload(str(file))
        assert (found.reader.read_threads, found.reader.batch_size) == (9, 2)
        assert found.with_keys({"name": "x"}).train == load_workload("unet3d_h100").train
        own = check_workload({**tree, "reader": {**tree["reader"], "read_threads": 9}})
        own = own.model_copy(update={"made_from": str(file)})


def test_an_interrupted_measurement_keeps_what_it_has(
    own: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The workload's own batch is measured first, so its file is right already."""
    measure = Mock(side_effect=[timed(7, 0.25, 0.01), KeyboardInterrupt])
    monkeypatch.setattr("dlemu.tools.steptime.job.measure", measure)
    assert run([*own, "steptime.model=own_model:quick", "steptime.batches=[3,7,14]"]) != 0
    shown = capsys.readouterr().out
    assert "batch 7, 1 of 3: " in shown and "batch 3, 2 of 3: " in shown and " left" in shown
    found = load_workload("out/unet3d_measured_cpu.yaml")
    assert [call.args[1] for call in measure.call_args_list] == [7, 3]
    assert found.reader.batch_size == 7
    assert (found.train.computation_time.mean, found.train.launch_time) == (0.25, 0.01)
    evidence = json.loads(Path("out/unet3d_measured_cpu.json").read_text())
    assert [each["batch"] for each in evidence["batches"]] == [7]


def test_a_step_that_memory_cannot_hold_is_left_out(
    own: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel would end the process. What is counted needs no memory."""
    monkeypatch.setattr("dlemu.tools.steptime.steps.free_memory_bytes", lambda: 10**9)
    assert run([*own, "steptime.batches=[7]"]) == 1
    shown = capsys.readouterr()
    assert re.search(r"batch 7: needs \d+\.\d GiB of memory, 953\.7 MiB are free", shown.out)
    assert "out of memory at every batch size (7)" in shown.err


def timed(batch: int, seconds: float, launch: float) -> Timed:
    steps = np.full(10, seconds)
    same: dict[str, Any] = {"layout": "contiguous", "flops": 1e12, "memory": 0, "on_gpu": True}
    return Timed(batch=batch, seconds=steps, launch=launch, **same)


def test_a_launch_bound_step_is_left_out_of_the_fit() -> None:
    steps = [timed(1, 0.004, 0.0039), timed(2, 0.010, 0.004), timed(4, 0.018, 0.004)]
    workload = load_workload("cosmoflow_h100")
    for count, fit in ((3, {"a": 0.002, "b": 0.004, "residual": 0.0}), (2, None)):
        answer = StepTimes(
            workload=workload,
            model="cosmoflow",
            name="cosmoflow_x",
            environment={},
            timed=steps[:count],
        )
        document = answer.document()
        assert [each["launch_bound"] for each in document["batches"]][:2] == [True, False]
        assert document["fit"] == (fit and pytest.approx(fit))


def test_batches_are_those_around_the_workloads() -> None:
    assert batch_sizes("auto", 7) == [7, 1, 3, 14]
    assert batch_sizes("auto", 1) == [1, 2, 4]
    assert batch_sizes((4, 2), 7) == [2, 4]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """As much of pynvml as is used, for a GPU."""
    library = Mock(NVMLError=RuntimeError)
    library.nvmlSystemGetDriverVersion.return_value = b"580.1"
    library.nvmlDeviceGetComputeRunningProcesses.return_value = [SimpleNamespace(pid=1)]
    library.nvmlDeviceGetClockInfo.return_value = 1980
    library.nvmlDeviceGetPowerUsage.return_value = 650_000
    library.nvmlDeviceGetTemperature.return_value = 55
    library.nvmlDeviceGetCurrentClocksThrottleReasons.return_value = 0x4
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def test_another_process_on_the_gpu_is_named(
    nvml: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["steptime", "workload=unet3d_h100"]) == 1
    assert "another process computes on this GPU: pid 1 (" in capsys.readouterr().err


def test_nvml_tells_the_state(nvml: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    state = Gpu(nvml, 0).state()
    assert state and state == GpuState(sm_mhz=1980, watts=650.0, celsius=55, reasons=4)
    assert state.throttled_by == ("power cap",)
    assert replace(state, reasons=1).throttled_by == (), "idle is none"
    cool = [replace(state, celsius=celsius, reasons=1) for celsius in (40, 50, 41)]
    found = summary([state, *cool])
    assert found["celsius"] == {"min": 40, "median": 50, "max": 55}
    assert found["throttled_share"] == {"power cap": 0.25}
    nvml.nvmlInit.side_effect = RuntimeError("no driver")
    assert find_gpu() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_gpu() is None
