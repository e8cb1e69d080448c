"""Checkpoints over several hosts, each a network namespace with ranks of its own."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lab import warm
from tests.lab.commands import QUICK, generate, with_checkout
from tests.lab.drives import own_drive
from tests.lab.hosts import Hosts, hosts

pytestmark = [pytest.mark.root, pytest.mark.mpi]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path / "hosts", 3) as made:
        yield made


def over(lab: Hosts, ranks: Sequence[int], folder: Path, *words: str) -> tuple[str, Any]:
    """Run `dlemu` in so many ranks on each host; return what it printed, and summary.json."""
    command = lab.mpirun(ranks, *warm.command(), *words, f"output.folder={folder}")
    environment = with_checkout()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180)
    # The launcher may have a warning of its own there.
    assert done.returncode == 0 and "dlemu: " not in done.stderr, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "summary.json").read_text())


def keys(folder: Path) -> list[str]:
    return [
        f"checkpoint.checkpoint_folder={folder}",
        "model.model_size_bytes=1000001",
        "model.parallelism.zero_stage=3",
        "num_accelerators=4",
    ]


def test_each_reads_what_another_host_wrote_and_the_slowest_is_named(
    lab: Hosts, tmp_path: Path
) -> None:
    (tmp_path / "seen").mkdir()
    with own_drive(32 << 20) as drive:
        for name in lab.names:  # a host has a /dev/shm of its own
            lab.mount(name, drive, tmp_path / "seen")
        words = [*keys(tmp_path / "seen/ck"), "model=unet3d", "checkpoint.num_checkpoints_write=2"]
        words += ["checkpoint.num_checkpoints_read=2", "checkpoint.odirect=true", "--verify"]
        words += ["checkpoint.time_between_checkpoints=0"]
        _, told = over(lab, [1, 2, 1], tmp_path / "out", "checkpoint", *words)
    own = told["checkpoint"]
    assert own["num_bytes_of_hosts"] == [1_000_001, 2_000_002, 1_000_001]
    assert (own["shared"], own["foreign_share"]) == (True, 1.0)
    assert own["verified"]
    host_of = ["h0", "h1", "h1", "h2"]
    for entry in own["saves"]:
        slowest, took = entry["slowest"], entry["hosts"]
        assert slowest["accelerator"] == slowest["rank"]
        assert slowest["host"] == host_of[slowest["rank"]] == max(took, key=took.get)
        assert took[slowest["host"]] == entry["seconds"]
        assert list(entry["counted"]) == list(took) == ["h0", "h1", "h2"]
    wear = told["measured"]["wear"]
    assert wear["file_bytes_written"] == 8_000_008
    assert [each["host"] for each in wear["drives"]] == ["h0", "h1", "h2"]


def test_a_run_writes_from_hosts_of_which_one_has_a_folder_of_its_own(
    lab: Hosts, tmp_path: Path
) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    for folder in (shared, own):
        folder.mkdir()
    lab.mount("h1", own, shared)
    words = [*QUICK, generate(tmp_path), *keys(shared / "ck"), "workflow.checkpoint=true"]
    words += ["checkpoint.steps_between_checkpoints=2", "checkpoint.keep=1"]
    said, told = over(lab, [2, 1, 1], tmp_path / "out", "run", *words)
    assert "checkpoints: 2, one every 2 steps, synchronous; 4,000,004 bytes each" in said
    assert told["checkpoints"]["written_bytes"] == 8_000_008
    written = {
        folder.name: sorted(str(path.relative_to(folder / "ck")) for path in folder.glob("ck/*/*"))
        for folder in (shared, own)
    }
    # Accelerator 2 is h1's: hosts are filled one after the other.
    assert written == {
        "shared": [f"global_epoch2_step2/model_states-{n}.pt" for n in (0, 1, 3)],
        "own": ["global_epoch2_step2/model_states-2.pt"],
    }
