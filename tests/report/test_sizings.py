"""Stored sizings: the answer, the runs that it rests on, and searches that were interrupted."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dlemu.cli.main import run
from dlemu.report import png
from dlemu.report.blocks import Verdict
from dlemu.report.page import page_of, section
from dlemu.report.sizing import (
    draw,
    plots_of,
    present_answer,
    sentence,
    write_tables,
)
from dlemu.report.stored import read_result
from dlemu.report.text import render_text
from dlemu.results.records import conditions_of
from dlemu.sizing.answers import First, Sized, document_of
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
        (folder / "sizing.json").write_text(json.dumps(document_of(answers)))
        lines = [{"settings": {}}, *map(asdict, answers[0].points)]
        log = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "nvme.unet3d_h100.jsonl").write_text(log)
    if unfinished:
        points = [asdict(point(number)) for number in range(5, 5 + unfinished)]
        log = "".join(json.dumps(line) + "\n" for line in ({"settings": {}}, *points))
        (folder / "sata.unet3d_h100.jsonl").write_text(log + '{"num_accel')
    return folder


def test_what_was_written_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "size", [sized(tmp_path)])
    found = read_result(folder)
    assert found.status == 0
    assert found.document == {**json.loads((folder / "sizing.json").read_text()), "unfinished": {}}
    none = read_result(write(tmp_path / "none", [sized(tmp_path, feeds=0.5)]))
    assert none.status == 2, "a storage that feeds none fails"


def test_an_interrupted_search_shows_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "size", [sized(tmp_path)], unfinished=2)
    assert run(["report", str(folder)]) == 1
    text = capsys.readouterr().out
    head = "sata.unet3d_h100: no answer yet; the search was interrupted after 2 runs"
    shown = text[text.index(head) :].splitlines()
    assert shown[4].split()[:2] == ["5", "77.40"] and shown[4].endswith("storage")
    alone = write(tmp_path / "alone", [], unfinished=1)
    assert section(read_result(alone)).verdict.endswith("after 1 run")
    assert run(["compare", str(folder), str(alone)]) == 1
    line = f"dlemu: {alone}: the search did not end, so nothing is compared\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    "content",
    ["[", "{}", "[3]", '{"kind": "sizing", "answers": [3]}', '{"target": "a", "workload": "b"}'],
)
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
    del tree["answers"][0]["points"][0]["seconds"]
    (folder / "sizing.json").write_text(json.dumps(tree))
    assert run(["report", str(folder)]) == 1
    err = capsys.readouterr().err
    assert (
        err == f"dlemu: {folder}/sizing.json or a file beside it is damaged: KeyError 'seconds'\n"
    )


FIRST: dict[str, Any] = {
    "low": 3,
    "high": 4,
    "evidence": "64 readers at once get 1.86 GB/s, one takes 2.86 GB/s; no run was made",
    "data_loader": "threads",
    "written": True,
}


def runs(*found: tuple[int, float, str]) -> list[dict[str, Any]]:
    return [asdict(replace(point(n), au_percentage=au, limit=limit)) for n, au, limit in found]


def answer_of(folder: Path, **changes: Any) -> Any:
    """Return an answer of sizing.json: 4 accelerators pass, and 5 fail."""
    fields = sized(folder).fields | {"quick": False, "points": runs((5, 77.0, "storage"))}
    return json.loads(json.dumps(fields | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "feeds 4 H100s of 3D U-Net at AU 90% or more; limit: the drive, 12 GB/s"),
        ({"first": FIRST}, "4 H100s of 3D U-Net (3 to 4) at AU 90%"),
        ({"workload": "mine", "num_accelerators": 1}, "feeds 1 accelerator of mine at "),
        ({"workload": "dlrm_dcnv2_b200", "remarks": ["BUT"]}, "12 GB/s; BUT"),
        (
            {"at_least": True, "points": runs((5, 77.0, "host cpu"))},
            "feeds at least 4 H100s of 3D U-Net at AU 90% or more; limit: host cpu, so the",
        ),
        ({"at_least": True, "fewest_failed": None, "points": runs()}, "; nothing that was tried "),
        (
            {"points": runs((6, 49.0, "storage"), (5, 77.0, "host cpu"))},
            "; limit at 6: the drive, 12 GB/s; limit at 5: host cpu",
        ),
        (
            {
                "num_accelerators": 0,
                "real_accelerators": 0.65,
                "points": runs((1, 58.5, "storage")),
            },
            "cannot feed one H100 of 3D U-Net: AU 58.50%, required 90%; one needs 2.86 GB/s, "
            "this storage gives 1.86 GB/s",
        ),
        (
            {"num_accelerators": 0, "at_least": True, "points": runs((1, 60.0, "loader"))},
            "AU 60.00%, required 90%; limit: loader, so the storage may feed more",
        ),
    ],
)
def test_an_answer_is_one_sentence(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in sentence(answer_of(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "tone"),
    [
        ({}, "pass"),
        ({"quick": True}, "caution"),
        ({"remarks": ["BUT"]}, "caution"),
        ({"at_least": True}, "caution"),
        ({"num_accelerators": 0, "points": runs((1, 60.0, "storage"))}, "fail"),
    ],
)
def test_only_an_answer_that_nothing_weakens_is_green(
    changes: dict[str, Any], tone: str, tmp_path: Path
) -> None:
    verdict = present_answer(answer_of(tmp_path, **changes))[0]
    assert isinstance(verdict, Verdict) and verdict.tone == tone


def test_each_limit_names_its_run(tmp_path: Path) -> None:
    """2 is the answer: what held 3 and 4 back is not said as if it held 2 back."""
    own = {"num_accelerators": 2, "confirmations": runs((2, 93.27, "host cpu"))}
    tried = runs((4, 48.0, "storage"), (3, 64.87, "host cpu"), (2, 93.27, "host cpu"))
    text = render_text(present_answer(answer_of(tmp_path, **own, points=tried)))
    lines = [line for line in text.splitlines() if line.startswith("limit at")]
    assert lines == ["limit at 4: storage", "limit at 3: host cpu"]


def test_runs_that_disagree_give_no_real_number(tmp_path: Path) -> None:
    text = render_text(present_answer(answer_of(tmp_path, real_accelerators=None, interval=None)))
    assert "no N*: the runs disagree" in text


def test_an_answer_has_the_remarks_of_its_runs(tmp_path: Path) -> None:
    """Of two runs with other numbers the last; a run that the answer does not show says nothing."""
    shares = ("BUT 57% of the bytes came from memory", "BUT 55% of the bytes came from memory")
    passed = [replace(point(4), remarks=(share,)) for share in shares]
    failed = replace(point(5), remarks=("of another run",))
    answer = replace(
        sized(tmp_path), points=(failed, *passed), confirmations=tuple(passed), folder=tmp_path
    )
    assert answer.remarks == (shares[1],)
    rate = answer.samples_per_second * 146600628 / 1e6
    write_tables(tmp_path, answer.document)
    for name in ("table.md", "table.csv"):
        assert shares[1] in (tmp_path / name).read_text()
        assert f"{rate:.2f}" in (tmp_path / name).read_text()


def test_plots_join_no_runs_and_predict_between_them_only(tmp_path: Path) -> None:
    plots = plots_of(
        runs((12, 62.8, "storage"), (8, 94.0, "none")), answer_of(tmp_path, num_accelerators=8)
    )
    for plot in plots:
        measured = [series for series in plot.series if series.marked]
        assert [each.name for each in measured] == ["a run that passed", "a run that failed"]
        assert not any(each.joined for each in measured)
    (predicted,) = (each for each in plots[0].series if each.name.startswith("predicted"))
    (curve,) = predicted.pieces
    assert (curve[0][0], curve[-1][0]) == (8, 12), "from the fewest to the most that were measured"
    real = answer_of(tmp_path)["real_accelerators"]
    assert curve[0][1] == pytest.approx(90 * real / 8)
    no_real = answer_of(tmp_path, real_accelerators=None, interval=None)
    plots = plots_of(runs((12, 62.8, "storage"), (8, 94.0, "none")), no_real)
    assert not any(each.name.startswith("predicted") for each in plots[0].series)


def test_pictures_name_drive_and_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, day in enumerate(("2026-01-02", "2026-01-03", "2026-01-01"), 1):
        run = tmp_path / "runs" / f"nvme.unet3d_h100.0{number}.n8"
        run.mkdir(parents=True)
        told = {"status": "complete", "start": f"{day}T10:00:00+00:00", "place": {"model": "M 7"}}
        (run / "summary.json").write_text(json.dumps(told))
    conditions = conditions_of(tmp_path, "nvme.unet3d_h100")
    answer = replace(sized(tmp_path), conditions=conditions)
    titles: list[str] = []
    monkeypatch.setattr(
        png, "save_pictures", lambda plots, path, *, title: titles.append(f"{path.name}: {title}")
    )
    draw(tmp_path, document_of([answer, replace(answer, at_least=True)]))
    assert titles == [
        "nvme.unet3d_h100: unet3d_h100 on M 7 (nvme), 2026-01-01\n"
        "quick: the dataset is smaller than the rule requires",
        "table: 2026-01-01",
    ]


def test_pictures_are_drawn(tmp_path: Path) -> None:
    draw(tmp_path, document_of([sized(tmp_path), sized(tmp_path)]))
    for name in ("nvme.unet3d_h100", "table"):
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()


def test_a_first_answer_keeps_the_remarks_that_not_every_one_has(tmp_path: Path) -> None:
    remarks = ("BUT the drive is memory (tmpfs)", "unlike unet3d_h100: epochs")
    said = sentence({**answer_of(tmp_path, first=FIRST), "remarks": remarks})
    assert "; BUT the drive is memory (tmpfs)" in said and "unlike" not in said
    by_rule = sentence({**answer_of(tmp_path), "remarks": remarks})
    assert by_rule.endswith("; ".join(remarks))


def test_a_first_answer_without_a_run_is_shown_as_the_others(tmp_path: Path) -> None:
    answer = replace(
        sized(tmp_path),
        num_accelerators=0,
        real_accelerators=0.65,
        points=(),
        confirmations=(),
        first=First(**FIRST, instead_of="pytorch", commands=(), full=""),
    )
    found = read_result(write(tmp_path / "try", [answer]))
    assert found.status == 0, "it is no verdict"
    assert section(found).verdict == (
        "nvme cannot feed one H100 of 3D U-Net; one needs 2.86 GB/s, this storage gives 1.86 GB/s; "
        "read by threads, which take less CPU time than pytorch: that is not installed"
    )
    page = page_of([section(found)])
    assert "cannot feed one H100" in page and "<figure>" not in page
    assert run(["compare", str(found.folder), str(found.folder)]) == 1
