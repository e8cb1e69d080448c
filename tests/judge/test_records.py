"""A run's folder and its summary: what is written is read back, and damage is one line."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.lib.recfunctions
import pytest

from dlemu.cli.main import run
from dlemu.errors import RunError
from dlemu.judge import records
from dlemu.judge.records import (
    STEP,
    JsonLines,
    Steps,
    append_steps,
    conditions_of,
    read_steps,
    read_summary,
    write_json,
    write_steps,
    write_summary,
)
from dlemu.report.words.places import facts_of, lines_of
from tests.lab.commands import QUICK, Printed, summary_of
from tests.lab.stored import SYSTEM, store_run


def some_steps(rank: int = 0, number: int = 3) -> Steps:
    steps = np.zeros(number, STEP)
    steps["step"] = np.arange(number)
    steps["accelerator"] = rank
    steps["wait"] = 0.1 + rank
    return steps


def test_the_ranks_records_are_read_in_their_order(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        write_steps(tmp_path, rank, some_steps(rank))
    steps = read_steps(tmp_path)
    assert steps.tobytes() == np.concatenate([some_steps(r) for r in (0, 2, 10)]).tobytes()
    names = " ".join(sorted(path.name for path in tmp_path.iterdir()))
    assert names == "steps.0.npy steps.10.npy steps.2.npy", "no temporary file is left"


def test_a_kill_while_records_are_appended_leaves_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_steps(tmp_path, 0, some_steps())
    monkeypatch.setattr(records, "_write_header", lambda *_: None)  # killed before it

    append_steps(tmp_path, 0, some_steps(number=2))

    assert read_steps(tmp_path).tobytes() == some_steps().tobytes()


def test_a_cut_file_is_one_line_wherever_it_is_cut(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, some_steps())
    path = tmp_path / "steps.0.npy"
    content = path.read_bytes()
    for length in [*range(0, len(content), 7), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(RunError, match="is damaged"):
            read_steps(tmp_path)


def test_another_arrays_file_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "steps.1.npy", np.zeros(3, [("wait", float)]))
    with pytest.raises(RunError) as error:
        read_steps(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'steps.1.npy'} holds ('wait',), not steps of this version of dlemu; take "
        "the one that wrote it, or run it again"
    )
    (tmp_path / "steps.1.npy").rename(tmp_path / "steps.x.npy")
    with pytest.raises(RunError, match=r"steps\.x\.npy is no steps\.<rank>\.npy; remove it"):
        read_steps(tmp_path)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "steps.0.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(RunError, match=r"is damaged: Array can.t be memory-mapped: Python objects"):
        read_steps(tmp_path)


def test_a_summary_comes_back(tmp_path: Path) -> None:
    values = {"au": np.float64(92.5), "per_accelerator": np.array([1, 2]), "folder": Path("/data")}
    values |= {"nothing": float("nan"), "much": float("inf"), "list": (True, None, "µ")}
    write_summary(tmp_path, values)
    plain = {"au": 92.5, "per_accelerator": [1, 2], "folder": "/data"}
    plain |= {"nothing": None, "much": None, "list": [True, None, "µ"]}
    assert read_summary(tmp_path) == plain
    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text) and text.endswith("}\n") and text.startswith('{\n  "au"')


@pytest.mark.parametrize(
    ("content", "end"),
    [
        ("", "is damaged: "),
        ("{", "is damaged: "),
        ("[1]", "it holds no object"),
        ('{"a": NaN}', "NaN is no finite number"),
        ('{"a": -1e999}', "-1e999 is no finite number"),
    ],
)
def test_a_damaged_summary_is_one_line(tmp_path: Path, content: str, end: str) -> None:
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(RunError) as error:
        read_summary(tmp_path)
    assert end in str(error.value)


@contextmanager
def little_space(num_bytes: int) -> Iterator[None]:
    """Let files grow to so many bytes only, as if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("room", [-1000, 0, 50])
def test_a_full_disk_takes_no_line_that_was_kept(room: int, tmp_path: Path) -> None:
    """Neither a command that goes on there, nor a line of which a part has room."""
    path = tmp_path / "log.jsonl"
    JsonLines(path).append(*({"number": number, "text": "x" * 80} for number in range(20)))
    kept = path.read_bytes()
    path.write_bytes(kept + b'{"number": 20, "te')  # what a kill has cut short
    lines = JsonLines(path)
    assert len(path.read_bytes()) > len(kept), "who only reads leaves the file as it is"
    refused = r"^.*log\.jsonl cannot be written \(File too large\); free space or name another"
    with little_space(len(kept) + room), pytest.raises(RunError, match=refused):
        lines.append({"number": 20, "text": "y" * 200})
    assert len(lines.values) == 20 and path.read_bytes() == kept
    path.write_text("1\n{\n2\n")
    with pytest.raises(RunError, match=r"log.jsonl is damaged: .*; remove it, and what"):
        JsonLines(path)


def test_a_full_disk_is_one_line_and_keeps_what_was_there(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, some_steps())
    refused = "cannot be written (File too large); free space or name another output folder"
    for name, write in (
        ("steps.0.npy", partial(write_steps, tmp_path, 0, some_steps(number=2000))),
        ("steps.0.npy", partial(append_steps, tmp_path, 0, some_steps(number=2000))),
        ("big.json", partial(write_json, tmp_path / "big.json", "x" * 100_000)),
    ):
        with little_space(1 << 15), pytest.raises(RunError) as error:
            write()
        assert str(error.value) == f"{tmp_path}/{name} {refused}"
        assert len(read_steps(tmp_path)) == 3, "the older file is whole"
    write_summary(tmp_path, {"status": "failed"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["steps.0.npy", "summary.json"]


# --- summary.json, of this version and of others --------------------------------------------------


DLIO = Path(__file__).parents[1] / "data" / "dlio_2.0.0"


def test_a_report_keeps_what_another_version_wrote(tmp_path: Path, printed: Printed) -> None:
    store_run(tmp_path / "run", wait=0.1)
    path = tmp_path / "run" / "summary.json"
    tree = json.loads(path.read_text())
    tree["measured"]["of_tomorrow"] = tree["of_tomorrow"] = [1, {"a": None}]
    path.write_text(json.dumps(tree))
    again = json.loads(printed("report", path.parent, "--json", status=1))
    assert list(again.items()) == [("folder", str(path.parent)), *tree.items()], "in this order"


_NOT_KEPT = {"host_processor_name", "host_cpuinfo", "host_meminfo"}
"""DLIO's fields that say nothing of the run; `versions` and `measured` say more."""


def test_the_fields_of_dlio_are_there_with_its_types(data: str, tmp_path: Path) -> None:
    """Scripts that read DLIO's summary.json go on to work."""
    dlio = summary_of(DLIO)
    words = [*QUICK, data, f"output.folder={tmp_path}", "num_accelerators=2"]
    assert run(["run", *words]) in (0, 1)
    ours = summary_of(tmp_path)
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
    ("line", "fields"),
    [
        (
            "storage:  xfs at /mnt/d1, vda (275 GB), the root disk",
            {"drives": [{"name": "vda", "model": "", "size_bytes": 275e9}], "is_root": True},
        ),
        (
            "storage:  nfs4 at /mnt/d1, from server:/x",
            {"file_system": "nfs4", "source": "server:/x", "drives": []},
        ),
        (
            "storage:  tmpfs at /mnt/d1, in memory: no drive is read",
            {"file_system": "tmpfs", "in_memory": True},
        ),
        ("host:     node1, and 2 other hosts, 1 CPU", {"cpus": 1.0, "memory_bytes": 0}),
    ],
)
def test_other_storage_and_hosts(line: str, fields: dict[str, object]) -> None:
    facts = facts_of({"workload": "x", "num_hosts": 3, "system": [SYSTEM | fields]})
    assert line in lines_of(facts)


def test_a_search_was_made_from_its_first_run_to_its_last(tmp_path: Path) -> None:
    """Whatever they are called: the hosts and the end are those of the last run."""
    for name, start in (("data.u.2", 90), ("data.u.4", 0), ("data.u.3", 180), ("other.u.9", 270)):
        store_run(tmp_path / "runs" / name, wait=0.1, start=start)
    (tmp_path / "runs" / "data.u.2" / "summary.json").write_text("{")
    found = conditions_of(tmp_path, "data.u")
    first, last = (read_summary(tmp_path / "runs" / f"data.u.{n}") for n in (4, 3))
    assert (found["start"], found["end"]) == (first["start"], last["end"])
    assert conditions_of(tmp_path, "none.u") == {}
