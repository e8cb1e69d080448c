"""The first lines of a command name workload, dataset, storage and host."""

from pathlib import Path

import pytest

from dlemu.cli.main import run
from dlemu.results.header import header
from tests.lab.commands import SMALL

PLACE = {
    "file_system": "xfs",
    "mount": "/mnt/d1",
    "source": "/dev/nvme0n1",
    "device": "nvme0n1",
    "model": "SOLIDIGM SB5PH27X038T",
    "firmware": "G70YG030",
    "size_bytes": 3_840_755_982_336,
    "is_root": False,
    "in_memory": False,
    "host": "node1",
    "num_hosts": 1,
    "cpus": 16.0,
    "memory_bytes": 64 << 30,
}
DATASET = {"folder": "/mnt/d1/u", "format": "npz", "num_files": 168, "num_bytes": 22.9 * 2**30}


def test_three_lines_name_all() -> None:
    assert header({"workload": "unet3d_h100", "place": PLACE, "dataset": DATASET}) == (
        "workload: unet3d_h100 on 168 npz files, 22.9 GiB, in /mnt/d1/u\n"
        "storage:  xfs at /mnt/d1, nvme0n1 (SOLIDIGM SB5PH27X038T, 3.84 TB)\n"
        "host:     node1, 16 CPUs, 64.0 GiB of memory"
    )


@pytest.mark.parametrize(
    ("differs", "line"),
    [
        (
            {"device": "vda", "model": "", "size_bytes": 275e9, "is_root": True},
            "storage:  xfs at /mnt/d1, vda (275 GB), the root disk",
        ),
        (
            {"file_system": "nfs4", "source": "server:/x", "device": "", "size_bytes": 0},
            "storage:  nfs4 at /mnt/d1, from server:/x",
        ),
        (
            {"file_system": "tmpfs", "device": "", "in_memory": True},
            "storage:  tmpfs at /mnt/d1, in memory: no drive is read",
        ),
        (
            {"num_hosts": 3, "cpus": 1.0, "memory_bytes": 0},
            "host:     node1, and 2 other hosts, 1 CPU",
        ),
    ],
)
def test_other_storage_and_hosts(differs: dict[str, object], line: str) -> None:
    assert line in header({"workload": "x", "place": PLACE | differs, "dataset": DATASET})


def test_what_is_refused_has_no_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "own.txt").write_text("x")

    assert run(["datagen", *SMALL, f"dataset.data_folder={tmp_path}"]) == 1

    assert capsys.readouterr().out == ""
