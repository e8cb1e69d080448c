"""`dlemu run workflow.checkpoint=true` as users call it."""

import signal
from pathlib import Path

import pytest

from dlemu.judge.records import read_steps
from tests.lab import bench
from tests.lab.waiting import until

_ZERO_3 = ("model.model_size_bytes=3000001", "model.parallelism.zero_stage=3")


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/*"))


@pytest.mark.parametrize(
    ("num_ranks", "keys"),
    [
        (1, ["reader.data_loader=pytorch"]),
        (2, ["reader.data_loader=threads", "checkpoint.asynchronous=true"]),
    ],
)
def test_all_accelerators_write_while_they_read(
    tmp_path: Path, num_ranks: int, keys: list[str]
) -> None:
    workload = bench.small(tmp_path)
    folder = tmp_path / "checkpoints"
    words = [*_ZERO_3, "workflow.checkpoint=true", "num_accelerators=4", *keys]
    words += ["checkpoint.steps_between_checkpoints=3", f"checkpoint.checkpoint_folder={folder}"]
    with bench.start(workload, *words, num_ranks=num_ranks) as run:
        run.process.wait(180)  # two ranks with workers start slowly on a busy host
        run.completes()
    files = [f"global_epoch1_step{n}/model_states-{a}.pt" for n in (3, 6) for a in range(4)]
    assert names_in(folder) == files
    assert {(folder / name).stat().st_size for name in files} == {3_000_001}
    told = run.summary["checkpoints"]
    assert (told["num_bytes"], told["written_bytes"]) == (12_000_004, 24_000_008)
    assert len(told["stall_seconds"]) == 2
    wear = run.summary["measured"]["wear"]
    assert wear["file_bytes_written"] == 24_000_008
    assert wear["drives"] == [] or wear["file_system_amplification"] >= 1
    steps = read_steps(run.folder)
    assert set(steps["step"][steps["stall"] > 0]) == {2, 5}
    assert "checkpoints: 2, one every 3 steps" in run.told()


def test_an_interrupted_run_leaves_whole_files_and_the_next_cleans_up(tmp_path: Path) -> None:
    workload = bench.small(tmp_path, dataset__num_files_train=200)
    folder = tmp_path / "checkpoints"
    words = ["workflow.checkpoint=true", f"checkpoint.checkpoint_folder={folder}"]
    words += ["model.model_size_bytes=20MB", "checkpoint.steps_between_checkpoints=5"]
    words += ["checkpoint.asynchronous=true"]
    with bench.start(workload, *words, "train.epochs=20") as run:
        run.wait_for("demand:")
        until(lambda: len(names_in(folder)) >= 2, "two checkpoints")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
    assert all(name.endswith(".pt") for name in names_in(folder))
    assert {(folder / name).stat().st_size for name in names_in(folder)} == {20_000_000}
    with bench.start(workload, *words[:-2], "train.total_training_steps=4") as run:
        run.completes()
        assert "of an earlier command" in run.told()
    assert names_in(folder) == ["global_epoch1_step4/model_states-0.pt"]
