"""Who tells what storage delivered: drives, NFS, the processes, or nobody."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlemu.cli.main import run
from dlemu.host.intervals import IntervalSummary
from dlemu.results.delivered import stored_bytes, vouched_bytes
from dlemu.results.evidence import HostReport, combine
from dlemu.results.records import STEP
from dlemu.storage.path_bytes import PathBytes
from dlemu.workload.model import load_workload
from tests.lab.commands import QUICK, generate
from tests.lab.summed import sums_of

NOTHING = IntervalSummary(1.0, {}, *(None,) * 6, 4.0, *(None,) * 3, max_pss_bytes=None)
DRIVE = {"sda": 0.5}
READ = 1000
KINDS_THAT_COUNT_SOME = ["lustre", "ceph", "beegfs", "fuse.sshfs", "virtiofs", "cifs", "overlay"]


def interval(**counts: Any) -> IntervalSummary:
    return replace(NOTHING, **counts)


@pytest.mark.parametrize(
    ("counts", "kind", "stored"),
    [
        ({"devices": DRIVE, "device_read_bytes": 800, "process_read_bytes": 700}, "ext4", 700),
        ({"devices": DRIVE, "device_read_bytes": 800, "process_read_bytes": 0}, "ext4", 0),
        ({"devices": DRIVE, "device_read_bytes": 800}, "ext4", 800),
        ({"network_read_bytes": 600, "process_read_bytes": 500}, "nfs4", 500),
        ({"network_read_bytes": 600, "process_read_bytes": 0}, "nfs4", 600),
        ({"process_read_bytes": 500}, "tmpfs", 0),
        ({"process_read_bytes": 500}, "xfs", 500),
        ({}, "xfs", None),
        ({"process_read_bytes": 500}, "lustre", None),
        ({"process_read_bytes": 1000}, "zfs", None),
    ],
)
def test_the_best_witness_tells(counts: dict[str, Any], kind: str, stored: int | None) -> None:
    assert stored_bytes(interval(**counts), kind) == stored


@pytest.mark.parametrize("kind", KINDS_THAT_COUNT_SOME)
@pytest.mark.parametrize(("counted", "vouched"), [(0, None), (940, None), (960, 960), (None, None)])
def test_a_count_that_may_not_be_all_tells_only_if_it_is_nearly_all(
    kind: str, counted: int | None, vouched: int | None
) -> None:
    assert vouched_bytes(interval(process_read_bytes=counted), kind, read=READ) == vouched


@pytest.mark.parametrize("kind", ["zfs", "gpfs", ""])
def test_a_count_that_memory_is_in_tells_nothing(kind: str) -> None:
    assert vouched_bytes(interval(process_read_bytes=READ), kind, read=READ) is None


def share_and_note(kind: str, *counted: int | None) -> tuple[float | None, str]:
    """Return what is found of one host's epochs, each of 1000 bytes in two steps."""
    steps = np.zeros((len(counted), 2), STEP)
    steps["epoch"], steps["step"] = np.arange(len(counted))[:, None], np.arange(2)
    steps["num_bytes"], steps["compute"] = READ // 2, 1.0
    epochs = [interval(process_read_bytes=num) for num in counted]
    host = HostReport(
        host="a",
        epochs=epochs,
        probe=None,
        num_workers=1,
        resident_before=0.25,
        direct=False,
        file_system=kind,
    )
    workload = load_workload("unet3d_h100")
    found = combine(workload, [host], sums_of(steps, ["rank 0 on host a"]), PathBytes())
    return found.measured["page_cache_share"], "; ".join(found.notes)


@pytest.mark.parametrize(
    ("kind", "counted", "share", "note"),
    [
        ("tmpfs", [0, 0], 1.0, "the data folder lies in memory (tmpfs): no storage was read"),
        ("lustre", [980, 1000], 0.01, "which sees no cache but the page cache"),
        ("lustre", [980, 300], None, "how many bytes came from memory is not known; 25% of the"),
        ("fuse", [0, 0], None, "(fuse), and the processes' own count (read_bytes) does not tell"),
        ("gpfs", [1000, 1000], None, "does not tell"),
        ("xfs", [1000, 400], 0.3, "which sees no cache but the page cache"),
    ],
)
def test_a_share_is_known_or_it_is_said_why_not(
    kind: str, counted: list[int], share: float | None, note: str
) -> None:
    found, notes = share_and_note(kind, *counted)
    assert found == (None if share is None else pytest.approx(share))
    assert note in notes


def test_tmpfs_is_memory(memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*QUICK, generate(memory), "metric.max_cached_share=null"]
    assert run(["run", *words, f"output.folder={memory / 'run'}"]) == 1
    text = capsys.readouterr().out
    assert "\nNO VERDICT: " in text and "100.0% of the bytes came from memory, at most 20%" in text
    assert "take a data folder on a drive: this one lies in memory" in text
    assert "note: the data folder lies in memory (tmpfs): no storage was read" in text
    summary = json.loads((memory / "run" / "summary.json").read_text())
    assert summary["measured"]["page_cache_share"] == 1.0
    assert (summary["verdict"], summary["status"]) == ("NO VERDICT", "complete")
