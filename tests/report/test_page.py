"""The page of `dlemu report --html`. Golden files hold its text; docs/browser.py looks at it."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlemu.cli.main import run
from dlemu.judge.series import COLUMNS, HostSeries, Interval
from dlemu.report.blocks import Axis, Bands, CommandLine, Plot, ResultSection, Series, Table
from dlemu.report.html import _COPY, render_html, render_page
from dlemu.report.page import host_plots, stairs
from tests.lab.stored import STORED, observation, write_host

ODD = "a <b>" + "x" * 80 + ' & "c"'
"""A folder's name that must be escaped, and be broken into lines on a phone."""


def test_results_of_all_kinds_lie_side_by_side_and_lead_to_their_sections(tmp_path: Path) -> None:
    folder = tmp_path / ODD
    for name in ("run", "several", "size"):
        STORED[name](folder / name)
    write_host(folder / "run", 0, [observation(100.0 + n, 10 * n, 0) for n in range(30)], 0.0)
    sizing = json.loads((folder / "size" / "sizing.json").read_text())
    points = sizing["answers"][0]["points"][:1]
    sizing["unfinished"] = {"d9.cosmoflow_h100": {"points": points, "conditions": {}}}
    (folder / "size" / "sizing.json").write_text(json.dumps(sizing))
    shutil.copytree(Path(__file__).parents[1] / "data" / "dlio_2.0.0", folder / "dlio")
    names = [str(folder / name) for name in ("run", "several", "size", "dlio")]
    assert run(["report", *names, "--html", str(tmp_path / "page.html")]) == 1
    page = (tmp_path / "page.html").read_text()
    for tag in ("section", "table", "tr", "td", "th", "svg", "details", "p"):
        assert len(re.findall(rf"<{tag}\b", page)) == page.count(f"</{tag}>"), tag
    assert "nan" not in page.lower()
    told, script = page.split("<script>")
    assert script == f"\n{_COPY}</script></body></html>\n", "one script, the same in each page"
    assert not re.search(r"<(script|img|iframe|link)|https?:|url\(|@import|\son\w+=", told)
    assert "a &lt;b&gt;" in page and "a <b>" not in page and "SSD <7450>" not in page
    assert "bytes read over time" in page
    overview = page[: page.index("<section")]
    links = re.findall(r'href="#(.*?)"', overview)
    assert list(dict.fromkeys(links)) == re.findall(r'<section id="(.*?)"', page)
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in overview.split("<tr>")[1:]]
    heads, failed, several, sizing, *_, unfinished, foreign = cells
    assert heads[1:5] == ["workload", "verdict", "accelerators", "AU (%)"]
    assert failed[2] == "FAIL" and failed[heads.index("runs")] == "1"
    assert failed[heads.index("storage")] == "SSD &lt;7450&gt; (unet3d)"
    assert several[heads.index("runs")] == "3", "warm-ups do not count"
    assert sizing[1:4] == ["unet3d_h100", "feeds 8 (quick)", "8"]
    assert unfinished[2] == "no answer yet"
    assert foreign[1:5] == ["unet3d_h100 (DLIO)", "NO&nbsp;VERDICT", "2", "94.32"]


def test_a_long_path_in_a_table_may_break_at_each_folder() -> None:
    table = render_html([Table(heads=["result"], rows=[["outputs/a/1"]], links=["first"])])
    assert '<a href="#first">outputs/<wbr>a/<wbr>1</a>' in table


# --- plots ----------------------------------------------------------------------------------------


def test_no_line_is_drawn_where_a_counter_is_unknown() -> None:
    pieces = stairs([interval(second) for second in range(3)], [5.0, None, 7.0])
    assert pieces == [[(0.0, 5.0), (1.0, 5.0)], [(2.0, 7.0), (3.0, 7.0)]]
    axis = Axis(name="s", low=0.0, high=3.0)
    assert replace(axis, low=2.0).share(2.5) == 0.5
    plot = render_html([Plot(title="t", x=axis, y=axis, series=[Series("a", "first", pieces)])])
    (path,) = re.findall(r'class="line" d="(M[^"]*L[^"]*)"', plot)
    assert path.count("M") == 2, "a gap"


def test_a_picture_names_bands_and_series_of_several_pieces_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    png = pytest.importorskip("dlemu.report.png")
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(png.Figure, "savefig", lambda figure, *_, **__: drawn.update(it=figure))
    axis = Axis(name="s", low=0.0, high=3.0)
    series = Series("AU", "first", [[(n, 1.0), (n + 0.5, 1.0)] for n in range(3)])
    bands = Bands("too few", "mark", [(n, n + 0.5) for n in range(3)])
    png.save_pictures([Plot("t", axis, axis, [series], [bands])], tmp_path / "a", title="t")
    (axes,) = drawn["it"].axes
    assert axes.get_legend_handles_labels()[1] == ["too few", "AU"]


def interval(second: int) -> Interval:
    """Return a second in which 4 kB were read by read calls, and 6 MB came over the network."""
    rates = {"read_calls_MB_per_s": 0.004, "network_received_MB_per_s": 6.0}
    return Interval(second, second + 1.0, dict.fromkeys(COLUMNS) | rates)


@pytest.mark.parametrize(
    ("received", "name", "most"),
    [(False, "by read calls", 4), (True, "over the host's network interfaces", 6)],
)
def test_what_came_from_a_bucket_is_not_sought_in_read_calls(
    received: bool, name: str, most: float
) -> None:
    plot, _ = host_plots(HostSeries(0, "a", [], [interval(0)]), received)
    (series,) = plot.series
    assert series.name.startswith(name) and series.pieces == [[(0.0, most), (1.0, most)]]


def test_a_command_wraps_and_has_no_title_that_says_nothing() -> None:
    alone, titled = (render_html([CommandLine(what, "dlemu run")]) for what in ("", "next"))
    assert alone == '<pre class="command">dlemu run</pre>'
    assert titled == f"<p>next:</p>{alone}"
    style = render_page("title", [ResultSection("a", "b", [], [])]).partition(".command {")[2]
    rules = style.partition("}")[0]
    assert all(rule in rules for rule in ("pre-wrap", "anywhere", "user-select: all"))
