"""Checkpoints on a drive whose rate falls while they are written or read."""

import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlemu.report.words import evidence_of
from tests.lab import warm
from tests.lab.cgroups import throttled
from tests.lab.drives import own_drive
from tests.lab.waiting import LONG, until

MB = 10**6
FAST, SLOW = 8 * MB, MB
FIRST, LATER = 36 * MB, 8 * MB
"""Bytes until the drive slows down, and those after that: more than four seconds of each."""


@pytest.mark.parametrize(("kind", "direct"), [("save", True), ("load", True), ("load", False)])
def test_a_drive_that_slows_down_is_told_with_both_rates(
    kind: str, direct: bool, tmp_path: Path
) -> None:
    """It slows down at a count of bytes, not at a time. A neighbour on the drive is not counted."""
    with own_drive(2 * (FIRST + LATER) + 16 * MB) as drive:
        words = [
            *(
                "checkpoint",
                "model=unet3d",
                "num_accelerators=2",
                f"checkpoint.odirect={str(direct).lower()}",
            ),
            *(f"model.model_size_bytes={(FIRST + LATER) // 2}", "model.parallelism.zero_stage=3"),
            *(f"checkpoint.checkpoint_folder={drive / 'ck'}", "progress=off"),
        ]
        saves = [*words, "checkpoint.num_checkpoints_write=1", "checkpoint.num_checkpoints_read=0"]
        loads = [*words, "checkpoint.num_checkpoints_write=0", "checkpoint.num_checkpoints_read=1"]
        if kind == "load":
            warm.run([*warm.COMMAND, *saves], cwd=tmp_path).check_returncode()
        told = [*(saves if kind == "save" else loads), f"output.folder={tmp_path / 'out'}"]
        with throttled((drive, FAST), writes=True) as group:
            process: subprocess.Popen[str] = warm.Popen(
                [*warm.COMMAND, *told],
                enter=group.enter,
                cwd=tmp_path,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            try:
                used = psutil.Process(process.pid)

                def moved_enough() -> bool:
                    counts = used.io_counters()
                    done = counts.write_bytes if kind == "save" else counts.read_bytes
                    return process.poll() is not None or done >= FIRST

                until(moved_enough, f"{FIRST} bytes")
                group.hold(drive, SLOW)
                (drive / "neighbour").write_bytes(bytes(4 * MB))
                said, _ = process.communicate(timeout=LONG)
            finally:
                process.kill()
                process.wait()
    assert process.returncode == 0, said
    summary: dict[str, Any] = json.loads((tmp_path / "out" / "summary.json").read_text())
    steady = summary["checkpoint"]["steady"][kind]
    rates = [level["bytes_per_second"] for level in steady["levels"]]
    # On a busy host it may stand still for a while as well: then the rate varies.
    assert steady["trend"] in ("fell", "varies"), steady
    assert min(rates) < max(rates) / 2, steady
    assert min(rates) < 2 * SLOW, "what others moved is not in it"
    limit = summary["limit" if kind == "save" else "load_limit"]
    assert limit["name"] in ("storage", "unclear"), "busy CPUs are a remark, and no limit"
    assert limit["name"] == "unclear" or "; not steady: " in evidence_of(limit)
