"""`dlemu watch`: a command as it is, and what its folder holds afterwards.

Most jobs here are small programs over a package `torch` of a few lines, which has the names that
the hook wraps: the real one takes seconds to import. One test has the real one.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlemu.config.model import load_workload
from dlemu.report.stored import read_result
from dlemu.watch import launch
from tests.lab import warm

TORCH = {
    "torch/__init__.py": """
        from torch import optim, serialization, utils
        from torch.serialization import save
        from torch.utils.data import dataloader
        __version__ = "small"
        class cuda:
            is_initialized = staticmethod(lambda: False)
        is_grad_enabled = lambda: True
        """,
    "torch/serialization.py": """
        def save(what, where):
            open(where, "w").write(str(what))
        """,
    "torch/optim/__init__.py": "from torch.optim import optimizer\n",
    "torch/optim/optimizer.py": """
        hooks = []
        register_optimizer_step_post_hook = hooks.append
        def step():
            for hook in hooks:
                hook(None, (), {})
        """,
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": "from torch.utils.data.dataloader import DataLoader\n",
    "torch/utils/data/_utils/__init__.py": "from torch.utils.data._utils import fetch, worker\n",
    "torch/utils/data/_utils/worker.py": "_worker_info = None\n",
    "torch/utils/data/_utils/fetch.py": """
        class _MapDatasetFetcher:
            def __init__(self, dataset):
                self.dataset = dataset
            def fetch(self, numbers):
                return [self.dataset[number] for number in numbers]
        class _IterableDatasetFetcher(_MapDatasetFetcher):
            pass
        """,
    "torch/utils/data/dataloader.py": """
        from torch.utils.data import _utils
        class _BaseDataLoaderIter:
            def __init__(self, loader):
                fetcher = _utils.fetch._MapDatasetFetcher(loader.dataset)
                n, b = len(loader.dataset), loader.batch_size
                self.batches = (fetcher.fetch(range(k, k + b)) for k in range(0, n, b))
            def __iter__(self):
                return self
            def __next__(self):
                return next(self.batches)
        class DataLoader:
            multiprocessing_context = prefetch_factor = sampler = batch_sampler = None
            pin_memory = persistent_workers = drop_last = False
            num_workers = 0
            def __init__(self, dataset, batch_size):
                self.dataset, self.batch_size = dataset, batch_size
            def __iter__(self):
                return _BaseDataLoaderIter(self)
        """,
}
JOB = """
import os, sys
import torch
from torch.utils.data import DataLoader
class Files:
    def __init__(self, folder):
        self.files = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    def __len__(self):
        return len(self.files)
    def __getitem__(self, number):
        return open(self.files[number], "rb").read()
loader = DataLoader(Files(sys.argv[1]), 2)
for epoch in range(2):
    for batch in loader:
        sum(range(20_000))
        torch.optim.optimizer.step()
    torch.save(epoch, "model.pt")
    for batch in DataLoader(Files(sys.argv[1]), 4):
        pass
"""


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files, each text without its indentation."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = text.strip("\n").splitlines()
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        path.write_text("".join(f"{line[indent:]}\n" for line in lines))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with a small torch, job.py, and 16 npy files of data."""
    write(tmp_path, TORCH)
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "data").mkdir()
    for number in range(16):
        (tmp_path / f"data/{number:02}.npy").write_bytes(bytes(1000))
    return tmp_path


def watched(folder: Path, *command: str, keys: Sequence[str] = (), **more: Any) -> Any:
    """Run dlemu watch in a folder; return the completed process."""
    words = [*warm.COMMAND, "watch", "output.folder=out", *keys, "--", *command]
    environment = {**os.environ, **more.pop("env", {})}
    return warm.run(words, cwd=folder, env=environment, **more)


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out/summary.json").read_text())
    return found


def test_a_job_is_measured_and_left_as_it_is(job: Path) -> None:
    done = watched(job, sys.executable, "job.py", "data", env={"PYTHONPATH": str(job)})
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    found = summary(job)
    assert (found["kind"], found["verdict"], found["workload"]) == ("run", "MEASURED", "job")
    assert [epoch["num_steps"] for epoch in found["per_epoch"]] == [8, 8]
    assert found["threshold_percentage"] is None and found["num_accelerators"] == 1
    seen = found["watched"]
    roles = {(each["role"], each["iterations"], each["batches"]) for each in seen["loaders"]}
    assert roles == {("training", 2, 16), ("evaluation", 2, 8)}
    assert {each["place"].partition(":")[0] for each in seen["loaders"]} == {str(job / "job.py")}
    assert seen["batches_a_step"] == 1 and seen["checkpoints"]["num"] == 2
    files = {name: seen["files"][name] for name in ("num", "is_all", "mean_bytes", "format")}
    assert files == {"num": 16, "is_all": True, "mean_bytes": 1000, "format": "npy"}
    assert seen["workers"]["num_batches"] >= 16 and seen["notes"] == []
    made = load_workload(job / "out/workload.yaml")
    assert (made.name, made.reader.batch_size, made.dataset.format) == ("job", 2, "npy")
    assert (made.dataset.num_files_train, made.dataset.record_length_bytes) == (16, 1000)
    assert made.dataset.data_folder == str(job / "data")
    text = (job / "out/workload.yaml").read_text()
    assert "The job saved model.pt. To emulate" in text and "The job also evaluates" in text
    (words,) = re.findall("^# (workflow.checkpoint=true .*)$", text, re.M)
    told = dict(word.split("=") for word in words.split())
    saving = made.with_keys({key: yaml.safe_load(value) for key, value in told.items()})
    assert saving.checkpoint.epochs_between_checkpoints == 1 and saving.model is not None
    assert (saving.model.model_size_bytes or 0) > 0
    stored = read_result(job / "out")
    assert stored.document["metric"] == found["metric"]
    with_threshold = read_result(job / "out", {"metric.au": 0.0001}).document
    assert with_threshold["verdict"] in ("PASS", "NO VERDICT")
    assert "MEASURED: AU " in done.stderr and "job.py data ended with status 0" in done.stderr


@pytest.mark.parametrize(
    ("program", "status"),
    [
        pytest.param("raise SystemExit(7)", 7, id="its status"),
        pytest.param("import os; os.kill(os.getpid(), 9)", 128 + 9, id="SIGKILL"),
        pytest.param("import os; os._exit(3)", 3, id="os._exit"),
        pytest.param("1 / 0", 1, id="an error"),
    ],
)
def test_how_a_job_ends_is_how_the_watch_ends(job: Path, program: str, status: int) -> None:
    with (job / "job.py").open("a") as file:
        file.write(f"{program}\n")
    done = watched(job, sys.executable, "job.py", "data", env={"PYTHONPATH": str(job)})
    assert done.returncode == status, done.stderr
    assert summary(job)["watched"]["status"] == status
    assert [epoch["num_steps"] for epoch in summary(job)["per_epoch"]] == [8, 8]
    assert ("ZeroDivisionError" in done.stderr) == (program == "1 / 0")


def test_stdin_and_stdout_are_the_commands_own(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\ntwo\n")
    with (tmp_path / "in").open() as stdin:
        done = watched(tmp_path, "cat", stdin=stdin)
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n")
    line = "dlemu: no Python process with a DataLoader was seen; name the command that trains"
    assert done.stderr.startswith(line) and "?" not in done.stderr, "nothing is asked"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "dlemu: no command; write dlemu watch -- python train.py"),
        (("nowhere-to-be-found",), "dlemu: nowhere-to-be-found: no such program; give the"),
        (("python3", "-I", "x.py"), "dlemu: python -I (isolated) cannot be watched"),
        (("python3", "-uS", "x.py"), "dlemu: python -S (without site) cannot be watched"),
    ],
)
def test_what_cannot_be_watched_is_refused(tmp_path: Path, words: Sequence[str], line: str) -> None:
    done = watched(tmp_path, *words)
    assert done.returncode == 1 and done.stderr.startswith(line), done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was made"


def test_words_before_the_dashes_are_keys(job: Path) -> None:
    done = warm.run([*warm.COMMAND, "watch", "python", "--", "x.py"], cwd=job)
    assert done.returncode == 1
    assert "write dlemu watch [key=value ...] -- python" in done.stderr
    words = ("--json", "--help", "--csv")
    done = watched(job, sys.executable, "-c", "import sys; print(sys.argv)", *words)
    assert done.stdout == f"{['-c', *words]}\n", "words behind the dashes are the command's"
    assert "no DataLoader was iterated" in done.stderr and done.returncode == 0


def test_a_folder_that_cannot_be_written_starts_nothing(job: Path) -> None:
    (job / "file").write_text("")
    words = ["watch", "output.folder=file/out", "--", "touch", str(job / "begun")]
    done = warm.run([*warm.COMMAND, *words], cwd=job)
    assert done.returncode == 1 and "output.folder file/out cannot be written" in done.stderr
    assert not (job / "begun").exists()


def test_an_interrupt_ends_both_with_what_was_measured(job: Path) -> None:
    with (job / "job.py").open("a") as file:
        file.write("print('ready', flush=True)\nimport time\ntime.sleep(600)\n")
    words = ["watch", "output.folder=out", "--", sys.executable, "job.py", "data"]
    process = warm.Popen(
        [*warm.COMMAND, *words],
        cwd=job,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(job)},
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert "KeyboardInterrupt" in told and process.returncode in (130, 1)
    assert summary(job)["watched"]["interrupted"]
    assert "was interrupted (status" in told


def test_the_memory_of_a_job_is_not_measured_as_the_job_waits_meanwhile(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(0.5)"]
    (observer,) = launch.run(command, tmp_path, data=[tmp_path]).observers
    assert [each.pss_bytes for each in observer.observations if each.label is None]
    assert {each.pss_bytes for each in observer.observations} == {None}


def test_ranks_and_children_are_all_seen(job: Path) -> None:
    """Two processes with ranks as a launcher gives them."""
    (job / "launch.py").write_text(
        "import os, subprocess, sys\n"
        "ranks = [subprocess.Popen([sys.executable, 'job.py', 'data'],"
        " env={**os.environ, 'RANK': str(n), 'WORLD_SIZE': '2'}) for n in range(2)]\n"
        "sys.exit(max(rank.wait() for rank in ranks))\n"
    )
    done = watched(job, sys.executable, "launch.py", env={"PYTHONPATH": str(job)})
    assert done.returncode == 0, done.stderr
    found = summary(job)
    assert (found["num_accelerators"], found["num_ranks"]) == (2, 2)
    assert len(list((job / "out").glob("steps.*.npy"))) == 2


def test_a_sitecustomize_of_the_jobs_own_still_runs(job: Path) -> None:
    (job / "sitecustomize.py").write_text("import builtins\nbuiltins.own = 'here'\n")
    program = "import sys; print(own, any('hook' in p for p in sys.path))"
    done = watched(job, sys.executable, "-c", program, env={"PYTHONPATH": str(job)})
    assert done.stdout == "here False\n", done.stderr


def test_what_fails_in_the_hook_never_reaches_the_job(job: Path) -> None:
    """The loader refuses to be described, and batches have no length that can be asked for."""
    (job / "job.py").write_text(
        "from torch.utils.data import DataLoader\n"
        "class Odd(DataLoader):\n"
        "    @property\n"
        "    def num_workers(self):\n"
        "        raise RuntimeError('not told')\n"
        "class Batch:\n"
        "    @property\n"
        "    def shape(self):\n"
        "        raise RuntimeError('no shape')\n"
        "class Data(list):\n"
        "    def __getitem__(self, number):\n"
        "        return Batch()\n"
        "print(sum(1 for _ in Odd(Data(range(8)), 2)))\n"
    )
    done = watched(job, sys.executable, "job.py", env={"PYTHONPATH": str(job)})
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr


def test_the_real_torch_is_watched(tmp_path: Path) -> None:
    """Workers that are forked, a real optimizer, and an epoch that is left early."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "model = torch.nn.Linear(3, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "loader = DataLoader(TensorDataset(torch.zeros(24, 3)), batch_size=2, num_workers=1)\n"
        "for epoch in range(2):\n"
        "    for number, (x,) in enumerate(loader):\n"
        "        optimizer.zero_grad()\n"
        "        model(x).sum().backward()\n"
        "        optimizer.step()\n"
        "        if epoch and number == 5:\n"
        "            break\n"
    )
    done = watched(tmp_path, sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    found = summary(tmp_path)
    assert [epoch["num_steps"] for epoch in found["per_epoch"]] == [12, 6]
    seen = found["watched"]
    (loader,) = seen["loaders"]
    assert (loader["num_workers"], loader["batch_size"], loader["start_method"]) == (1, 2, "fork")
    assert seen["early_ends"] == 1 and seen["batches_a_step"] == 1
    assert seen["workers"]["num_batches"] >= 18, "made by a process of their own"
    text = (tmp_path / "out/workload.yaml").read_text()
    assert "FILL IN dataset.num_files_train" in text and yaml.safe_load(text)["name"] == "train"
