"""Stored sizings: the answer, the runs that it rests on, and searches that were interrupted."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dlemu.findings import fields_of, remark, weakens
from dlemu.report import words
from dlemu.report.blocks import Table, Verdict
from dlemu.report.page import page_of, section
from dlemu.report.present import present, status_of
from dlemu.report.sizing import plots_of, present_answer, sentence, write_table
from dlemu.report.stored import read_result
from dlemu.report.text import render_text
from dlemu.sizing.answers import First, Sized, document_of
from dlemu.units import format_rate
from tests.lab.commands import Printed
from tests.lab.stored import MADE, sized


def write(folder: Path, *answers: Sized, unfinished: int = 0) -> Path:
    """Write what `dlemu size` would; `unfinished` runs of a search on a second drive as well."""
    folder.mkdir(parents=True)
    document = document_of(answers)
    if unfinished:
        points = [asdict(point) for point in sized().points[:unfinished]]
        search = {"sata.unet3d_h100": {"points": points, "conditions": {}}}
        document |= {"status": "incomplete", "unfinished": search}
    (folder / "sizing.json").write_text(json.dumps(document))
    return folder


def test_an_interrupted_search_shows_its_runs(tmp_path: Path, printed: Printed) -> None:
    folder = write(tmp_path / "size", sized(), unfinished=2)
    text = printed("report", folder, status=1)
    head = "sata.unet3d_h100: no answer yet; the search was interrupted after 2 runs"
    shown = text[text.index(head) :].splitlines()
    assert shown[4].split()[:2] == ["12", "62.80"] and shown[4].endswith("storage")
    alone = write(tmp_path / "alone", unfinished=1)
    assert "; the search was interrupted after 1 run\n" in printed("report", alone, status=1)
    line = f"dlemu: {alone}: the search did not end, so nothing is compared\n"
    assert printed("compare", folder, alone, status=1) == line


def runs(*found: tuple[int, float, str]) -> list[dict[str, Any]]:
    first = sized().points[0]
    return [
        asdict(replace(first, num_accelerators=n, au_percentage=au, limit=limit, evidence=()))
        for n, au, limit in found
    ]


TWO_LIMITS = {"points": runs((10, 49.0, "storage"), (9, 77.0, "host cpu"))}
NONE = {
    "num_accelerators": 0,
    "low": 0,
    "high": None,
    "at_least": True,
    "real_accelerators": None,
    "limit": "loader",
    "points": runs((1, 60.0, "loader")),
}
UNKNOWN = NONE | {"points": runs((4, 80.0, "loader"))}
BY_ARITHMETIC = {"is_computed": True, "num_accelerators": 7, "low": 6, "high": 7}


BUT = fields_of([weakens("links", num_files=1)])


def answer_of(**changes: Any) -> Any:
    """Return an answer of sizing.json: 8 accelerators pass, and 9 fail."""
    fields = sized().fields | {"quick": False, "points": runs((9, 83.7, "storage"))}
    return json.loads(json.dumps(fields | changes))


@pytest.mark.parametrize(
    ("changes", "tone", "said"),
    [
        ({"quick": True}, "caution", "; a quick search"),
        ({}, "pass", "feeds 8 H100s of 3D U-Net at AU 90% or more; limit: the drive, 23.9 GB/s"),
        ({"workload": "mine", "num_accelerators": 1}, "pass", "feeds 1 accelerator of mine at "),
        ({"workload": "dlrm_dcnv2_b200", "findings": BUT}, "caution", "23.9 GB/s; BUT"),
        (TWO_LIMITS, "pass", "at AU 90% or more; limit: the drive, 23.9 GB/s"),
        (NONE, "caution", "AU 60.00%, required 90%; limit: loader, so the storage may feed more"),
        (UNKNOWN, "caution", "feeds no number of H100s of 3D U-Net that was tried: AU 80.00%, req"),
        (
            BY_ARITHMETIC,
            "caution",
            "feeds 7 H100s of 3D U-Net (6 to 7) at AU 90% or more, by arith",
        ),
        (BY_ARITHMETIC, "caution", "by arithmetic: only 9 was run; limit: the drive, 23.9 GB/s"),
    ],
)
def test_an_answer_is_one_sentence_and_green_only_where_nothing_weakens_it(
    changes: dict[str, Any], tone: str, said: str
) -> None:
    """The golden files hold a quick one, a lower bound, and one of a storage that feeds none."""
    answer = answer_of(**changes)
    verdict = present_answer(answer)[0]
    assert isinstance(verdict, Verdict) and verdict.tone == tone and said in sentence(answer)


def test_each_limit_names_its_run() -> None:
    """2 is the answer: what held 3 and 4 back is not said as if it held 2 back."""
    own = {"num_accelerators": 2, "confirmations": runs((2, 93.27, "host cpu"))}
    tried = runs((4, 48.0, "storage"), (3, 64.87, "host cpu"), (2, 93.27, "host cpu"))
    without = {"points": tried, "real_accelerators": None, "interval": None}
    lines = render_text(present_answer(answer_of(**own, **without))).splitlines()
    assert [line for line in lines if line.startswith("limit at")] == [
        "limit at 4: storage",
        "limit at 3: host cpu",
    ]
    assert "no N*: the runs disagree on where AU meets the threshold" in lines


def test_an_answer_has_the_remarks_of_its_runs(tmp_path: Path) -> None:
    """Of two runs with other numbers the last; a run that the answer does not show says nothing."""
    shares = [weakens("from_memory", share=share, bound=None) for share in (0.57, 0.55)]
    failed, _, *passed = sized().points
    passed = [replace(run, findings=(share,)) for run, share in zip(passed, shares, strict=True)]
    failed = replace(failed, findings=(remark("links", num_files=3),))
    answer = replace(sized(), points=(failed, *passed), confirmations=tuple(passed))
    assert answer.findings == (shares[1],)
    write_table(tmp_path, answer.document)
    assert words.sentence(shares[1]) in (tmp_path / "table.md").read_text()


def test_plots_join_no_runs_and_predict_between_them_only() -> None:
    tried = runs((12, 62.8, "storage"), (8, 94.0, "none"))
    plots = plots_of(tried, answer_of())
    for plot in plots:
        measured = [series for series in plot.series if series.marked]
        assert [each.name for each in measured] == ["a run that passed", "a run that failed"]
        assert not any(each.joined for each in measured)
    (predicted,) = (each for each in plots[0].series if each.name.startswith("predicted"))
    (curve,) = predicted.pieces
    assert (curve[0][0], curve[-1][0]) == (8, 12), "from the fewest to the most that were measured"
    assert curve[-1][1] == pytest.approx(90 * 8.37 / 12)
    plots = plots_of(tried, answer_of(real_accelerators=None, interval=None))
    assert not any(each.name.startswith("predicted") for each in plots[0].series)


def test_a_first_answer_keeps_the_remarks_that_not_every_one_has() -> None:
    unlike = remark("unlike_row", row="unet3d_h100", keys=["train.epochs"])
    found = fields_of([weakens("drive_is_memory", drive="tmpfs"), unlike])
    said = sentence({**answer_of(first=MADE["first"]), "findings": found})
    assert "; BUT the drive is memory (tmpfs)" in said and "unlike" not in said
    both = "; BUT the drive is memory (tmpfs); unlike unet3d_h100: epochs"
    assert sentence({**answer_of(), "findings": found}).endswith(both)


def test_a_first_answer_without_a_run_is_shown_as_the_others(
    tmp_path: Path, printed: Printed
) -> None:
    none: Any = {
        "num_accelerators": 0,
        "real_accelerators": 0.65,
        "first": First(**MADE["first"], finding=None),
    }
    answer = replace(sized(), **none, points=(), confirmations=())
    found = read_result(write(tmp_path / "try", answer))
    assert status_of(found.document) == 0, "it is no verdict"
    shown = section(found, present(found.document))
    verdict = next(block for block in shown.blocks if isinstance(block, Verdict))
    assert verdict.line.startswith("d1 cannot feed one H100 of 3D U-Net; one needs 2.86 ")
    page = page_of([shown])
    assert "cannot feed one H100" in page and "<figure>" not in page
    assert "0.65" in printed("compare", found.folder, found.folder)


def test_runs_that_disagree_have_the_rate_of_those_that_passed() -> None:
    """There is no N* then, but the number was fed: its runs tell by how much."""
    apart = sized(real_accelerators=None, disagree=((12, 2.4e10), (8, 2.6e10)))
    [answer] = document_of([apart])["answers"]
    passed = 8 * (94.31 + 93.96) / 2 / 100 * answer["demand_bytes_per_second"]
    rate = format_rate(passed)
    assert f"; limit: the drive, {rate};" in sentence(answer)
    first = replace(apart, first=First(**MADE["first"], finding=None))
    table = next(
        block
        for block in present(document_of([first], Path("/mnt/d1")))
        if isinstance(block, Table)
    )
    [gives] = [n for n, column in enumerate(table.heads) if column == "storage gives"]
    assert table.rows[0][gives] == rate


def test_a_first_answer_below_its_runs_says_that_they_read_files_again() -> None:
    first = First(**MADE["first"], finding=None)
    answers = [sized(first=first, first_reads=2.4e10), sized(first=first)]
    text = render_text(present(document_of(answers, Path("/mnt/d1"))))
    line = "unet3d_h100: files that were read for the first time came with 24 GB/s, read again"
    assert text.count(line) == 1
