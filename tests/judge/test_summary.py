"""summary.json: what is read comes back, of this version and of others."""

import json
from pathlib import Path

import pytest

from dlemu.cli.main import run
from dlemu.judge.summary import header
from tests.lab.commands import QUICK, generate
from tests.lab.stored import SYSTEM, store_run

DLIO = Path(__file__).parents[1] / "data" / "dlio_2.0.0"


def test_a_report_keeps_what_another_version_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_run(tmp_path / "run", wait=0.1)
    path = tmp_path / "run" / "summary.json"
    tree = json.loads(path.read_text())
    tree["measured"]["of_tomorrow"] = tree["of_tomorrow"] = [1, {"a": None}]
    path.write_text(json.dumps(tree))
    assert run(["report", str(path.parent), "--json"]) == 1
    again = json.loads(capsys.readouterr().out)
    assert list(again.items()) == [("folder", str(path.parent)), *tree.items()], "in this order"


_NOT_KEPT = {"host_processor_name", "host_cpuinfo", "host_meminfo"}
"""DLIO's fields that say nothing of the run; `versions` and `measured` say more."""


def test_the_fields_of_dlio_are_there_with_its_types(tmp_path: Path) -> None:
    """Scripts that read DLIO's summary.json go on to work."""
    dlio = json.loads((DLIO / "summary.json").read_text())
    words = [*QUICK, generate(tmp_path), f"output.folder={tmp_path / 'run'}"]
    assert run(["run", *words, "num_accelerators=2"]) in (0, 1)
    ours = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (dlio.keys() - _NOT_KEPT) <= ours.keys()
    assert dlio["metric"].keys() <= ours["metric"].keys()
    for name in dlio.keys() - _NOT_KEPT:
        assert kind(ours[name]) == kind(dlio[name]), name
    for name, value in dlio["metric"].items():
        assert kind(ours["metric"][name]) == kind(value), name
    assert (ours["num_accelerators"], ours["epochs"], ours["num_files_train"]) == (2, 2, 56)
    assert ours["potential_caching"] == [1] and len(ours["host_memory_GB"]) == 1
    assert ours["data_size_per_host_GB"] == pytest.approx(56 * 20000 / 2**30)


def kind(value: object) -> object:
    """Return a value's type, and that of a list's first value."""
    return (list, type(value[0])) if isinstance(value, list) else type(value)


@pytest.mark.parametrize(
    ("differs", "line"),
    [
        (
            {"drives": [{"name": "vda", "model": "", "size_bytes": 275e9}], "is_root": True},
            "storage:  xfs at /mnt/d1, vda (275 GB), the root disk",
        ),
        (
            {"file_system": "nfs4", "source": "server:/x", "drives": []},
            "storage:  nfs4 at /mnt/d1, from server:/x",
        ),
        (
            {"file_system": "tmpfs", "in_memory": True},
            "storage:  tmpfs at /mnt/d1, in memory: no drive is read",
        ),
        (
            {"cpus": 1.0, "memory_bytes": 0},
            "host:     node1, and 2 other hosts, 1 CPU",
        ),
    ],
)
def test_other_storage_and_hosts(differs: dict[str, object], line: str) -> None:
    assert line in header({"workload": "x", "num_hosts": 3, "system": [SYSTEM | differs]})
