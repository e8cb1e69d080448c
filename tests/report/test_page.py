"""The page of `dlemu report --html`: what it says. How a browser shows it, docs/browser.py sees."""

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dlemu.host.intervals import IntervalSummary
from dlemu.host.network import NetworkCounters, NicCounters
from dlemu.report.blocks import Table
from dlemu.report.facts import date_of, facts_of
from dlemu.report.html import render_html
from dlemu.report.over_time import best_counter, stairs
from dlemu.report.page import page_of, section
from dlemu.report.plot import Axis, Plot, Series
from dlemu.report.stored import Stored, read_result
from dlemu.results.series import Interval
from dlemu.sizing.search import Point
from dlemu.workload.model import load_workload
from tests.lab.stored import observation, store_run, store_runs, write_host

ODD = "a <b>" + "x" * 80 + ' & "c"'
"""A folder's name that must be escaped, and be broken into lines on a phone."""

ANSWER: dict[str, Any] = {
    "workload": "unet3d_h100",
    "target": "d1",
    "data_folder": "/mnt/d1/unet3d",
    "drives": 1,
    "num_accelerators": 8,
    "real_accelerators": 8.37,
    "at_least": False,
    "fewest_failed": 9,
    "interval": [8.28, 8.46],
    "threshold": 90.0,
    "limit": "storage",
    "quick": True,
    "read_ahead_share": 0.02,
    "dataset_bytes": 3.2e12,
    "seconds": 4000.0,
    "points": [
        asdict(Point(n, au, n * 25.0, 2.4e10, "storage", 900.0, "busy all the time", 0.01))
        for n, au in ((12, 62.8), (9, 83.7), (8, 94.31), (8, 93.96))
    ],
    "confirmations": [],
    "remarks": [],
    "first": None,
    "bound": "",
    "conditions": {},
    "sample_bytes": 146600628,
    "demand_bytes_per_second": 3177103393.0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold a run that fails and several runs, all with what their host did over time."""
    folder = tmp_path_factory.mktemp("page") / ODD
    store_run(folder / "fail", wait=0.5)
    store_runs(folder / "several")
    for path in folder.glob("**/steps.0.npy"):
        seen = [observation(100.0 + seconds, 10 * seconds, 0) for seconds in range(30)]
        write_host(path.parent, 0, seen, 0.0)
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    """The page of results of all kinds."""
    cut = {"d1.cosmoflow_h100": {"points": ANSWER["points"][:2], "conditions": {}}}
    document = {"kind": "sizing", "answers": [ANSWER], "unfinished": cut}
    foreign = read_result(Path(__file__).parents[1] / "data" / "dlio_2.0.0", {"metric.au": 0.5})
    runs = [read_result(folder / name) for name in ("fail", "several")]
    return page_of([section(each) for each in (*runs, Stored(folder, document), foreign)])


# --- what it says ---------------------------------------------------------------------------------


def test_a_page_needs_no_network_and_no_script(page: str) -> None:
    assert not re.search(r"<(script|img|iframe|link)|https?:|url\(|@import|\son\w+=", page)
    assert "a &lt;b&gt;" in page and "a <b>" not in page and "SSD <7450>" not in page


def test_results_lie_side_by_side_and_lead_to_their_sections(page: str) -> None:
    overview = page[: page.index("<section")]
    links = re.findall(r'href="#(.*?)"', overview)
    assert list(dict.fromkeys(links)) == re.findall(r'<section id="(.*?)"', page)
    assert len(links) == 5
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in overview.split("<tr>")[1:]]
    heads, failed, several, sizing, unfinished, foreign = cells
    assert heads[1:5] == ["workload", "verdict", "accelerators", "AU (%)"]
    assert failed[2] == "FAIL" and failed[heads.index("runs")] == "1"
    assert failed[heads.index("storage")] == "SSD &lt;7450&gt; (unet3d)"
    assert several[heads.index("runs")] == "3", "warm-ups do not count"
    assert sizing[1:4] == ["unet3d_h100", "feeds 8 (quick)", "0"]
    assert unfinished[2] == "no answer yet"
    assert foreign[1:5] == ["unet3d_h100 (DLIO)", "PASS", "2", "94.32"]


def test_a_run_that_was_cut_short_does_not_count(folder: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(folder / "several", cut)
    for path, gone in ((cut, "passed"), (cut / "run.3", "end")):
        tree = json.loads((path / "summary.json").read_text())
        del tree[gone]
        tree["runs"] = [row for row in tree.get("runs", ()) if row["name"] != "run.3"]
        tree["status"] = "incomplete"
        if path != cut:
            tree["kind"] = "run"
        (path / "summary.json").write_text(json.dumps(tree))
    stored = read_result(cut)
    assert "run.3" in stored.runs, "it is shown"
    assert [run["start"] for run in stored.counting] == [
        stored.runs[name]["start"] for name in ("run.1", "run.2")
    ]


def test_a_long_path_in_a_table_may_break_at_each_folder() -> None:
    table = render_html([Table(heads=["result"], rows=[["outputs/a/1"]], links=["first"])])
    assert '<a href="#first">outputs/<wbr>a/<wbr>1</a>' in table


@pytest.mark.parametrize(
    ("odirect", "way"),
    [
        (True, "O_DIRECT"),
        (False, "through the page cache"),
        ("auto", "O_DIRECT if the data folder takes it"),
    ],
)
def test_how_was_read_is_what_was_asked_for(odirect: bool | str, way: str) -> None:
    workload = load_workload(
        "unet3d_h100", {"reader.odirect": odirect, "dataset.data_folder": "/data"}
    )
    reader = workload.reader.model_dump()
    facts = dict(facts_of({"data_loader": "pytorch", "reader": reader}))
    assert facts["loader"] == f"pytorch, 4 workers for each accelerator, {way}"


@pytest.mark.parametrize(
    ("start", "end", "shown"),
    [
        ("2026-11-21T23:54:11+00:00", "2026-11-21T23:54:22+00:00", "2026-11-21 23:54 UTC"),
        ("2026-11-21T23:54:11+00:00", "2026-11-21T23:58:22+00:00", "2026-11-21 23:54 to 23:58 UTC"),
        (
            "2026-11-21T23:54:11+00:00",
            "2026-11-22T00:03:00+00:00",
            "2026-11-21 23:54 to 2026-11-22 00:03 UTC",
        ),
        ("2026-11-21T23:54:11+00:00", "", "2026-11-21 23:54 UTC"),
        ("soon", "", "soon"),
    ],
)
def test_the_time_of_a_run(start: str, end: str, shown: str) -> None:
    assert date_of({"start": start, "end": end}, long=True) == shown


# --- plots ----------------------------------------------------------------------------------------


def test_no_line_is_drawn_where_a_counter_is_unknown() -> None:
    pieces = stairs([interval(second) for second in range(3)], [5.0, None, 7.0])
    assert pieces == [[(0.0, 5.0), (1.0, 5.0)], [(2.0, 7.0), (3.0, 7.0)]]
    axis = Axis(name="s", low=0.0, high=3.0)
    plot = render_html([Plot(title="t", x=axis, y=axis, series=[Series("a", "first", pieces)])])
    (path,) = re.findall(r'class="line" d="(M[^"]*L[^"]*)"', plot)
    assert path.count("M") == 2, "a gap"


def interval(second: int) -> Interval:
    """Return a second in which 4 kB were read by read calls, and 6 MB came over the network."""
    network = NetworkCounters({"eth0": NicCounters(6_000_000, 0)})
    seen = IntervalSummary(1.0, {}, None, None, 0, 4000, *(None,) * 2, 4.0, *(None,) * 4)
    return Interval(
        begin=float(second),
        end=second + 1.0,
        seen=replace(seen, network=network),
        drive_reads_per_second=None,
        drive_queue=None,
        page_cache_bytes=None,
        epoch=None,
        au_percentage=None,
    )


def test_what_came_from_a_bucket_is_not_sought_in_read_calls() -> None:
    name, rates = best_counter([interval(0)], in_bucket=False)
    assert name.startswith("by read calls") and rates == [4000]
    name, rates = best_counter([interval(0)], in_bucket=True)
    assert name.startswith("over the host's network interfaces") and rates == [6e6]


@pytest.mark.parametrize("most", [1, 2, 7, 9, 15, 64, 100, 512, 10_000])
def test_an_axis_of_whole_numbers_shows_few_of_them(most: int) -> None:
    found = Axis(name="N", low=0.5, high=most + 0.5, whole=True).ticks
    ticks = [value for value, _ in found]
    assert 1 <= len(ticks) <= 9 and all(tick == int(tick) and 1 <= tick <= most for tick in ticks)
    assert len(set(ticks)) == len(ticks)
