"""Stored sizings: the answer, the runs that it rests on, and searches that were interrupted."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dlemu.cli.main import run
from dlemu.report.page import page_of
from dlemu.reports.sizings import answer_lines, is_sizing, read_sizing, sentence
from dlemu.sizing.answers import First, Sized, as_json, render_csv
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
        "nvme: at least 3 unet3d_h100 accelerators at AU 90.00% or more: 4 need more open files\n"
        "at 3: PASS, AU 98.70%, 9.18 GB/s, 62.2 samples/s; limit none\n"
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


FIRST: dict[str, Any] = {
    "low": 3,
    "high": 4,
    "evidence": "64 readers at once get 1.86 GB/s, one takes 2.86 GB/s; no run was made",
    "data_loader": "threads",
    "written": True,
}


def runs(*found: tuple[int, float, str]) -> list[dict[str, Any]]:
    return [asdict(replace(point(n), au_percentage=au, limit=limit)) for n, au, limit in found]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "feeds 4 H100s of 3D U-Net; limit: the storage, 12 GB/s"),
        ({"first": FIRST}, "feeds 4 H100s of 3D U-Net (3 to 4); limit: the drive, 12 GB/s"),
        (
            {"workload": "mine", "num_accelerators": 1, "quick": True},
            "feeds 1 accelerator of mine; limit: the storage, 12 GB/s; quick: the dataset is "
            "smaller than the rule asks for",
        ),
        (
            {"workload": "dlrm_dcnv2_b200", "remarks": ["origin emulated at 8 MB/s"]},
            "feeds 4 B200s of dlrm_dcnv2; limit: the storage, 12 GB/s; origin emulated at 8 MB/s",
        ),
        (
            {"at_least": True, "limit": "host cpu", "points": runs((5, 77.0, "host cpu"))},
            "feeds at least 4 H100s of 3D U-Net; limit: host cpu, so the storage may feed more",
        ),
        (
            {"at_least": True, "limit": "none", "fewest_failed": None, "points": runs()},
            "feeds at least 4 H100s of 3D U-Net; nothing that was tried failed, so it may feed "
            "more",
        ),
        (
            {"points": runs((6, 49.0, "storage"), (5, 77.0, "host cpu"))},
            "feeds 4 H100s of 3D U-Net; limit at 6: the storage, 12 GB/s; limit at 5: host cpu",
        ),
        (
            {"num_accelerators": 0, "real_accelerators": 0.65}
            | {"first": FIRST | {"low": 0, "high": 0}},
            "feeds no H100 of 3D U-Net: one needs 2.86 GB/s, this storage gives 1.86 GB/s",
        ),
        (
            {"num_accelerators": 0, "at_least": True, "limit": "loader", "fewest_failed": 1}
            | {"points": runs((1, 60.0, "loader"))},
            "feeds no H100 of 3D U-Net; limit: loader, so the storage may feed more",
        ),
    ],
)  # fmt: skip
def test_an_answer_is_one_sentence(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    document = sized(tmp_path).document | {"quick": False, "points": runs((5, 77.0, "storage"))}
    assert sentence(json.loads(json.dumps(document | changes))) == said


def test_each_limit_names_its_run(tmp_path: Path) -> None:
    """2 is the answer: what held 3 and 4 back is not told as if it held 2 back."""
    document = sized(tmp_path).document | {
        "num_accelerators": 2,
        "points": runs((4, 48.0, "storage"), (3, 64.87, "host cpu"), (2, 93.27, "host cpu")),
        "confirmations": runs((2, 93.27, "host cpu")),
    }
    lines = answer_lines(document)
    assert [line.partition(".")[0] for line in lines[1:4]] == [
        "at 4: limit storage, AU 48",
        "at 3: limit host cpu, AU 64",
        "at 2: PASS, AU 93",
    ]


def test_a_first_answer_without_a_run_is_shown_as_the_others(tmp_path: Path) -> None:
    answer = replace(
        sized(tmp_path),
        num_accelerators=0,
        real_accelerators=0.65,
        points=(),
        confirmations=(),
        first=First(**FIRST, instead_of="pytorch", commands=(), full=""),
    )
    folder = write(tmp_path / "try", [answer])
    found = read_sizing(folder)
    assert found.status == 0, "it is no verdict"
    lines = found.text.splitlines()
    assert lines[2].startswith("nvme: feeds no H100 of 3D U-Net (3 to 4): one needs 2.86 GB/s, ")
    assert lines[2].endswith("read by threads, which take less CPU time than pytorch: that is not "
                             "installed")  # fmt: skip
    assert lines[3] == FIRST["evidence"] and lines[4].endswith(", 1 drive, written for this")
    (row,) = found.rows
    assert (row.num_accelerators, row.au_percentage, row.verdict) == (0, None, "feeds 0")
    page = page_of([found])
    assert "This storage feeds no H100" in page and "<figure>" not in page
    assert render_csv([answer]).splitlines()[1].startswith("unet3d_h100,nvme,1,0,false,true,")
    assert run(["compare", str(folder), str(folder)]) == 1
