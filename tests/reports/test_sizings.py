"""Stored sizings: the answer, the runs that it rests on, and searches that were interrupted."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dlemu.cli.main import run
from dlemu.reports.sizings import is_sizing, read_sizing
from dlemu.sizing.answers import Sized, as_json
from dlemu.sizing.search import Goal, Point, search
from dlemu.sizing.targets import Target
from dlemu.workload.model import load_workload


def point(number: int, feeds: float = 4.3) -> Point:
    """Return a run on storage that feeds so many accelerators at AU 90 %."""
    au = min(98.7, 90 * feeds / number)
    share = au / 100
    return Point(
        num_accelerators=number,
        au_percentage=au,
        samples_per_second=21.0 * number * share,
        read_bytes_per_second=3.1e9 * number * share,
        limit="storage" if au < 90 else "none",
        seconds=60.0,
        evidence="vda was busy 99% of the time" if au < 90 else "",
        page_cache_share=0.01,
    )


def sized(folder: Path, feeds: float = 4.3) -> Sized:
    """Return the answer of a search on such storage."""
    goal = Goal(threshold=90.0, max_accelerators=64, start=5, confirm=3)
    found = search(lambda number: point(number, feeds), goal)
    return Sized(
        **vars(found),
        target=Target("nvme", "/mnt/nvme", 1),
        workload=load_workload("unet3d_h100", {"size.quick": True}),
        folder=folder,
        dataset_bytes=1.5e12,
        read_ahead_share=0.02,
    )


def write(folder: Path, answers: list[Sized], unfinished: int = 0) -> Path:
    """Write what `dlemu size` would; `unfinished` runs of a search on a second drive as well."""
    (folder / "runs").mkdir(parents=True)
    if answers:
        (folder / "sizing.json").write_text(json.dumps(as_json(answers)))
        lines = [{"settings": {}}, *map(asdict, answers[0].points)]
        log = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "nvme.unet3d_h100.jsonl").write_text(log)
    if unfinished:
        points = [asdict(point(number)) for number in range(5, 5 + unfinished)]
        log = "".join(json.dumps(line) + "\n" for line in ({"settings": {}}, *points))
        (folder / "sata.unet3d_h100.jsonl").write_text(log + '{"num_accel')
    return folder


def test_an_answer_passes_and_has_one_row(tmp_path: Path) -> None:
    answer = sized(tmp_path)
    sizing = read_sizing(write(tmp_path / "size", [answer]))
    assert sizing.status == 0
    (row,) = sizing.rows
    assert (row.num_accelerators, row.verdict) == (4, "feeds 4")
    assert row.au_percentage == pytest.approx(96.75)


def test_a_lower_bound_says_that_it_is_one(tmp_path: Path) -> None:
    goal = Goal(threshold=90.0, max_accelerators=3, start=3, confirm=1)
    found = search(lambda number: point(number, feeds=50), goal)
    answer = replace(sized(tmp_path), **vars(found), bound="4 need more open files")
    text = read_sizing(write(tmp_path / "size", [answer])).text
    assert (
        "nvme: at least 3 unet3d_h100 accelerators at AU 90.00% or more: no number that was tried "
        "failed, so the storage may feed more\n"
    ) in text


def test_json_is_what_the_sizing_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "size", [sized(tmp_path)])
    assert run(["report", "--json", str(folder)]) == 0
    found: Any = json.loads(capsys.readouterr().out)
    assert found["answers"] == [json.loads((folder / "sizing.json").read_text())]
    assert found["unfinished"] == {}


def test_a_storage_that_feeds_none_fails(tmp_path: Path) -> None:
    sizing = read_sizing(write(tmp_path / "size", [sized(tmp_path, feeds=0.5)]))
    assert sizing.status == 2


def test_an_interrupted_search_shows_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "size", [sized(tmp_path)], unfinished=2)
    assert run(["report", str(folder)]) == 1
    text = capsys.readouterr().out
    head = "sata.unet3d_h100: no answer yet; the search was interrupted after 2 runs"
    shown = text[text.index(head) :].splitlines()
    assert len(shown) == 4 and shown[2].split()[:2] == ["5", "77.40"]
    alone = write(tmp_path / "alone", [], unfinished=1)
    assert is_sizing(alone)
    assert "after 1 run\n" in read_sizing(alone).text


@pytest.mark.parametrize("content", ["[", "{}", "[3]", '{"target": "a", "workload": "b"}'])
def test_a_damaged_sizing_is_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sizing.json").write_text(content)
    assert run(["report", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith(f"dlemu: {tmp_path}/sizing.json is damaged: ")


def test_a_field_that_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "size", [sized(tmp_path)])
    tree = json.loads((folder / "sizing.json").read_text())
    del tree["points"][0]["seconds"]
    (folder / "sizing.json").write_text(json.dumps(tree))
    assert run(["report", str(folder)]) == 1
    err = capsys.readouterr().err
    assert err == f"dlemu: {folder}/sizing.json is damaged: KeyError 'seconds'\n"
