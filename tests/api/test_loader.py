"""dlemu in a training loop of one's own: its loader, the meter, the public names, their types."""

import re
import subprocess
import sys
import threading
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

import dlemu
from dlemu.judge.records import dump_workload
from tests.lab.commands import small_job
from tests.lab.waiting import LONG

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the small dataset lies, in data: 8 batches of 7."""
    return tmp_path_factory.mktemp("training")


def test_the_readmes_loop_runs_as_it_stands(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the workload is another: a small one, whose dataset is there."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1 and "meter.compute(batch)" in blocks[0]
    (folder / "own.yaml").write_text(dump_workload(small_job(folder)))
    program = (
        blocks[0]
        .replace('"unet3d_h100"', repr(str(folder / "own.yaml")))
        .replace('"/mnt/nvme/unet3d"', repr(str(folder / "data")))
    )
    assert program.count(str(folder)) == 2
    exec(program, {})
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    assert lines[0].startswith("PASS: AU ")
    assert lines[1] == "unet3d_h100: 1 emulated accelerator, 2 epochs of 8 steps, batches of 7"


def test_ranks_share_each_epoch_and_every_pass_is_another(folder: Path) -> None:
    seen: list[int] = []
    for rank in range(2):
        with dlemu.make_loader(small_job(folder), rank=rank, num_ranks=2) as loading:
            passes = [[b.samples.tolist() for b in loading] for _ in range(2)]
            assert passes[0] != passes[1]
            loading.set_epoch(0)
            assert [b.samples.tolist() for b in loading] == passes[0]
        loading.close()
        seen += chain(*passes[0])
    assert sorted(seen) == list(range(56))


@pytest.mark.parametrize("loader", ["threads", "pytorch", "tensorflow"])
def test_a_batch_is_one_array_and_lives_while_the_next_is_taken(loader: str, folder: Path) -> None:
    """A pipelined loop of one's own still copies batch n when it has batch n + 1."""
    workload = small_job(folder, reader__data_loader=loader, train__loop="pipelined")
    with dlemu.make_loader(workload) as loading:
        assert loading.workload.train.loop == "rule", "the loop that takes decides when"
        held: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []
        for batch in loading:
            assert batch.data is not None and batch.data.shape == (7, 2000)
            for data, copy in held[-1:]:
                assert np.array_equal(data, copy)
                assert not np.shares_memory(data, batch.data)
            held.append((batch.data, batch.data.copy()))
        assert len(held) == 8


def test_pinning_says_what_it_lacks(folder: Path) -> None:
    from dlemu.storage.gpu import cuda

    try:
        cuda.num_gpus()
    except dlemu.RunError:
        with pytest.raises(dlemu.RunError, match=r"^no GPU: .*; install NVIDIA's driver"):
            dlemu.make_loader(small_job(folder), pin=True)
    pytest.importorskip("nvidia.dali")
    with pytest.raises(dlemu.WorkloadError, match=r"^pin needs .*, got dali$"):
        dlemu.make_loader(small_job(folder, reader__data_loader="dali"), pin=True)


@pytest.mark.gpu
@pytest.mark.parametrize("loader", ["threads", "pytorch"])
def test_pinned_batches_are_pinned(loader: str, folder: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    torch.cuda.init()  # before it, torch calls nothing pinned
    with dlemu.make_loader(small_job(folder, reader__data_loader=loader), pin=True) as loading:
        for batch in loading:
            on_host = torch.from_numpy(batch.data)
            assert on_host.is_pinned()
            copied = on_host.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
            assert torch.equal(copied.cpu(), on_host)


def pass_in_a_thread(loading: dlemu.TrainingLoader) -> list[int]:
    """Return the samples of a pass that was made by a thread of its own."""
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.extend(chain(*(b.samples for b in loading))))
    thread.start()
    thread.join(LONG)
    return seen


def test_workers_outlive_the_thread_that_iterates(folder: Path) -> None:
    """The kernel tells a worker of its parent's death when the thread ends that started it."""
    keys: dict[str, object] = {"reader__data_loader": "pytorch", "reader__read_threads": 2}
    with dlemu.make_loader(small_job(folder, **keys)) as loading:
        pids: list[list[int]] = []
        for _ in range(3):
            assert sorted(pass_in_a_thread(loading)) == list(range(56))
            pids.append(loading._loader.pids())
        assert pids[0] == pids[1] == pids[2] and len(pids[0]) == 2
        assert all(map(psutil.pid_exists, pids[0]))
    assert not any(map(psutil.pid_exists, pids[0]))
    for thread in threading.enumerate():
        if thread.name == "dlemu starter":
            thread.join(LONG)
            assert not thread.is_alive(), "it ends with the loader"


ABANDONED = """
import sys
from pathlib import Path
from tests.api.test_loader import pass_in_a_thread, small_job
import dlemu
job = small_job(Path({folder!r}), reader__data_loader="pytorch", reader__read_threads=2)
first, second = dlemu.make_loader(job), dlemu.make_loader(job)
for each in (first, second):
    pass_in_a_thread(each)
    print(*each._loader.pids(), flush=True)
del first
sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_no_worker_is_left_of_a_loader_that_nobody_closes(folder: Path, killed: bool) -> None:
    """Whether its program goes on without it, is killed, or comes to its end."""
    command = [sys.executable, "-c", ABANDONED.format(folder=str(folder))]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            first, second = (
                [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
                for _ in range(2)
            )
            assert len(psutil.wait_procs(first, timeout=LONG)[0]) == 2
            if killed:
                process.kill()
            process.stdin.close()
            process.wait(LONG)
            assert len(psutil.wait_procs(second, timeout=LONG)[0]) == 2
        finally:
            process.kill()
        assert process.stderr is not None and process.stderr.read() == b""


def test_a_folder_says_its_own_job_and_a_name_is_a_worksmall_job(folder: Path) -> None:
    data = small_job(folder).data_folder
    with dlemu.make_loader(data) as loading:
        assert loading.workload.data_folder == data
    with pytest.raises(dlemu.WorkloadError, match=r"^dataset\.data_folder is not set"):
        dlemu.make_loader("unet3d_h100")


def test_what_a_loader_cannot_do_is_named(folder: Path) -> None:
    job = small_job(folder)
    with pytest.raises(dlemu.WorkloadError, match="below num_ranks 2, got 2"):
        dlemu.make_loader(job, rank=2, num_ranks=2)
    with pytest.raises(dlemu.WorkloadError, match=r"^cache\.folder and origin\..* work in"):
        dlemu.make_loader(job.with_keys({"cache.folder": "cache"}))
    with pytest.raises(dlemu.DatasetError, match="is not there; generate it: dlemu datagen"):
        dlemu.make_loader(job.with_keys({"dataset.data_folder": str(folder / "none")}))
    with (
        dlemu.make_loader(job.with_keys({"reader.batch_size": 57})) as loading,
        pytest.raises(dlemu.WorkloadError, match="56 samples are too few"),
    ):
        len(loading)


def test_the_public_names_are_what_is_listed() -> None:
    assert dlemu.__all__ == sorted(dlemu.__all__) == dir(dlemu)
    for name in dlemu.__all__:
        value = getattr(dlemu, name)
        assert value.__doc__ and value.__module__.startswith("dlemu"), name
    with pytest.raises(AttributeError, match="module 'dlemu' has no attribute 'nothing'"):
        _ = dlemu.nothing
