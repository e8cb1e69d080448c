"""The page of `dlemu report --html`: what it says. How a browser shows it, docs/browser.py sees."""

import json
import re
import shutil
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dlemu.cli.main import run
from dlemu.host.intervals import IntervalSummary
from dlemu.host.network import NetworkCounters, NicCounters
from dlemu.host.observer import HostObserver
from dlemu.report.blocks import Table
from dlemu.report.html import render_html
from dlemu.report.over_time import _best_counter, _stairs
from dlemu.report.page import page_of
from dlemu.report.plot import Axis, Plot, Series
from dlemu.reports.foreign import read_foreign
from dlemu.reports.sizings import StoredSizing
from dlemu.reports.stored import read_folder
from dlemu.results.facts import date_of, drive_name, facts_of
from dlemu.sizing.search import Point
from dlemu.workload.model import load_workload
from tests.lab.commands import QUICK, generate

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
PLACE = {
    "file_system": "xfs",
    "mount": "/mnt/d1",
    "device": "nvme1n1",
    "model": "SSD <7450>",
    "firmware": "E2MU200",
    "size_bytes": 3_840_755_982_336,
    "is_root": True,
    "host": "node1",
    "cpus": 96.0,
    "memory_bytes": 1 << 39,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold a run that fails and a series of five, each long enough for plots over time."""
    folder = tmp_path_factory.mktemp("page") / ODD
    data = generate(folder)
    fails = [
        "metric.au=0.999",
        "train.computation_time=0.001",
        "reader.preprocess_time=0.04",
        "reader.preprocess=sleep",
    ]
    series = ["runs=5", "warmup=1", "train.epochs=1", "train.computation_time=0.1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dlemu.run.monitor.HostObserver", partial(HostObserver, period=0.1))
        assert run(["run", *QUICK, data, f"output.folder={folder / 'fail'}", *fails]) == 2
        run(["run", *QUICK, data, f"output.folder={folder / 'five'}", *series])
    path = folder / "fail" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"place": PLACE}))
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    """The page of results of all kinds."""
    cut = {"d1.cosmoflow_h100": {"points": ANSWER["points"][:2], "conditions": {}}}
    document = {"kind": "sizing", "answers": [ANSWER], "unfinished": cut}
    search = StoredSizing(folder / "size", document)
    foreign = read_foreign(Path(__file__).parents[1] / "data" / "dlio_2.0.0", {"metric.au": 0.5})
    runs = [read_folder(folder / name) for name in ("fail", "five")]
    return page_of([*runs, search, foreign])


# --- what it says ---------------------------------------------------------------------------------


def test_a_page_needs_no_network_and_no_script(page: str) -> None:
    assert not re.search(r"<(script|img|iframe|link)|https?:|url\(|@import|\son\w+=", page)
    assert "a &lt;b&gt;" in page and "a <b>" not in page and "SSD <7450>" not in page


def test_results_stand_side_by_side_and_lead_to_their_sections(page: str) -> None:
    overview = page[: page.index("<section")]
    links = re.findall(r'href="#(.*?)"', overview)
    assert list(dict.fromkeys(links)) == re.findall(r'<section id="(.*?)"', page)
    assert len(links) == 5
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in overview.split("<tr>")[1:]]
    heads, failed, series, sizing, unfinished, foreign = cells
    assert heads[1:6] == ["workload", "verdict", "accelerators", "AU (%)", "samples/s"]
    assert failed[2] == "FAIL" and failed[heads.index("runs")] == "1"
    assert failed[heads.index("storage")] == "SSD &lt;7450&gt; (data)"
    assert series[heads.index("runs")] == "5", "warm-ups do not count"
    assert sizing[1:4] == ["unet3d_h100", "feeds 8 (quick)", "0"]
    assert unfinished[2] == "no answer yet"
    assert foreign[1:5] == ["unet3d_h100 (DLIO)", "PASS", "2", "94.32"]


def test_a_run_that_was_cut_short_does_not_count(folder: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(folder / "five", cut)
    for path, gone in ((cut, "passed"), (cut / "run.5", "end")):
        tree = json.loads((path / "summary.json").read_text())
        del tree[gone]
        tree["runs"] = [row for row in tree.get("runs", ()) if row["name"] != "run.5"]
        if path != cut:
            del tree["runs"]
        tree["status"] = "incomplete"
        (path / "summary.json").write_text(json.dumps(tree))
    stored = read_folder(cut)
    assert "run.5" in stored.outcomes, "it is shown"
    assert list(stored.counting) == ["run.1", "run.2", "run.3", "run.4"]


def test_a_long_path_in_a_table_may_break_at_each_folder() -> None:
    table = render_html([Table(heads=["result"], rows=[["outputs/a/1"]], links=["first"])])
    assert '<a href="#first">outputs/<wbr>a/<wbr>1</a>' in table


def test_a_series_is_one_section_with_its_runs_folded(page: str) -> None:
    (section,) = (s for s in page.split("<section") if "/five</small>" in s)
    assert section.count("<h2>") == 1 and section.count("<pre>") == 1, "its keys stand there once"
    folded = re.findall(r"<details><summary>(.*?)</summary>", section)
    names = ["warmup.1", *(f"run.{n}" for n in range(1, 6))]
    of_runs = [f"{name}: its epochs, and what the hosts did" for name in names]
    assert [name for name in folded if name != "each epoch"][:-1] == of_runs
    before = section[: section.index("<details>")]
    assert "95% interval of the mean" in before and before.count("<figure>") == 2
    assert "mean ± 5%: farther off is not repeatable" in before and "threshold 1%" in before


def test_a_sizing_is_a_page(page: str) -> None:
    section = page[page.index("unet3d_h100 on d1") :]
    assert '<p class="verdict caution">d1 feeds 8 H100s of 3D U-Net at AU 90% or more; ' in section
    plot = section[section.index("<figure>") : section.index("</figure>")]
    assert plot.count("h0") == 4 + 2, "one dot a run, and two in the legend"
    assert plot.count('class="line"') == 4, "only prediction and threshold: none between the runs"
    assert section.count('<td class="text">FAIL</td>') == 2


def test_a_result_says_where_it_was_measured(page: str, folder: Path) -> None:
    stored = read_folder(folder / "fail")
    facts = dict(facts_of(stored.summary))
    assert facts["host"] == "node1, 96 CPUs, 512.0 GiB of memory"
    assert facts["drive"] == ("nvme1n1, SSD <7450>, firmware E2MU200, 3.84 TB, the root disk")
    assert facts["file system"] == "xfs at /mnt/d1"
    assert facts["versions"].startswith("dlemu ") and "kernel " in facts["versions"]
    assert "56 npz files" in facts["dataset"] and str(folder / "data") in facts["dataset"]
    assert all(f"<dt>{name}</dt>" in page for name in facts)


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


def test_what_an_earlier_version_left_out_is_not_shown() -> None:
    old = {"hostname": "vm", "measured": {"hosts": [{"device": "vda", "usable_cpus": 2.0}]}}
    known = {name: value for name, value in facts_of(old) if value}
    assert known == {"host": "vm, 2 CPUs", "drive": "vda"}
    assert drive_name(old, "data") == "data (vda)" and drive_name({}, "data") == "data"


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
    pieces = _stairs([0.0, 1.0, 2.0, 3.0], [5.0, None, 7.0])
    assert pieces == [[(0.0, 5.0), (1.0, 5.0)], [(2.0, 7.0), (3.0, 7.0)]]
    axis = Axis(name="s", low=0.0, high=3.0)
    plot = render_html([Plot(title="t", x=axis, y=axis, series=[Series("a", "first", pieces)])])
    (path,) = re.findall(r'class="line" d="(M[^"]*L[^"]*)"', plot)
    assert path.count("M") == 2, "a gap"


def test_what_came_from_a_bucket_is_not_sought_in_read_calls() -> None:
    network = NetworkCounters({"eth0": NicCounters(6_000_000, 0)})
    part = IntervalSummary(2.0, {}, None, None, 0, 4000, *(None,) * 2, 4.0, *(None,) * 4)
    parts = [replace(part, network=network)]
    name, rates = _best_counter(parts, in_bucket=False)
    assert name.startswith("by read calls") and rates == [2000]
    name, rates = _best_counter(parts, in_bucket=True)
    assert name.startswith("over the host's network interfaces") and rates == [3e6]


@pytest.mark.parametrize("most", [1, 2, 7, 9, 15, 64, 100, 512, 10_000])
def test_an_axis_of_whole_numbers_shows_few_of_them(most: int) -> None:
    found = Axis(name="N", low=0.5, high=most + 0.5, whole=True).ticks
    ticks = [value for value, _ in found]
    assert 1 <= len(ticks) <= 9 and all(tick == int(tick) and 1 <= tick <= most for tick in ticks)
    assert len(set(ticks)) == len(ticks)
