"""Blocks as a page that needs no other file, and as what a notebook shows.

The page has one script, which gives each command a button that copies it. Without it, as a mail
program shows the page, nothing is missing: a click selects the whole command.

Lines and dots of a plot are SVG that is stretched; its texts are HTML, of one size anywhere. So it
can be read on a wide and on a narrow screen.
"""

import html
from collections.abc import Iterable, Sequence

from dlemu.report.blocks import (
    Axis,
    Block,
    CommandLine,
    Facts,
    FileText,
    Fold,
    Lines,
    Plot,
    ResultSection,
    Series,
    Table,
    Verdict,
)
from dlemu.terminal import shown

_STYLE = """\
:root { color-scheme: light dark; --text: #1d2733; --soft: #55616d; --line: #d5dbe1;
  --back: #ffffff; --panel: #f4f6f8; --first: #1f5fa8; --second: #b4540a; --mark: #2e7d4f;
  --fourth: #7b3fa0;
  --pass: #2e7d4f; --pass-back: #eaf5ee; --fail: #b3372f; --fail-back: #fbeceb;
  --none: #8a6d1a; --none-back: #faf4df; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e9ee; --soft: #a9b4bf; --line: #3a444f;
  --back: #14191f; --panel: #1f262e; --first: #74b3f5; --second: #f2a65a; --mark: #6fcf97;
  --fourth: #c792ea;
  --pass: #6fcf97; --pass-back: #17301f; --fail: #f08d85; --fail-back: #3a1a18;
  --none: #e0c060; --none-back: #322a10; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 62rem; margin: 1.5rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } h3 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; border-top: 1px solid var(--line);
  padding-top: 1.2rem; }
small, th, dt, .unit { color: var(--soft); } a { color: var(--first); }
.verdict { padding: .5rem .8rem; border-left: 5px solid; font-weight: 600; margin: .8rem 0; }
.pass { border-color: var(--pass); background: var(--pass-back); }
.fail { border-color: var(--fail); background: var(--fail-back); }
.caution { border-color: var(--none); background: var(--none-back); }
.plain { border-color: var(--line); background: var(--panel); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .8rem 0; }
dd { margin: 0; }
.table { overflow-x: auto; margin: .8rem 0; overflow-wrap: normal; }
table { border-collapse: collapse; font-size: 14px; }
th, td { padding: .25rem .5rem; text-align: right; vertical-align: baseline;
  font-variant-numeric: tabular-nums; }
th { font-weight: 600; vertical-align: bottom; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; position: sticky; left: 0;
  background: var(--back); }
td { white-space: nowrap; } .text { text-align: left; } td.text { white-space: normal; }
details { margin: .8rem 0; } summary { cursor: pointer; }
pre { background: var(--panel); padding: .8rem; overflow-x: auto; font-size: 13px; }
.command { white-space: pre-wrap; overflow-wrap: anywhere; user-select: all; margin-top: 0; }
button { float: right; font: inherit; font-size: 13px; color: var(--first); cursor: pointer;
  background: var(--panel); border: 1px solid var(--line); padding: 0 .5rem; }
button + .command { clear: right; }
figure { margin: 1.2rem 0 1.8rem; } figcaption { font-weight: 600; }
.legend { list-style: none; margin: .2rem 0 .5rem; padding: 0; display: flex; flex-wrap: wrap;
  gap: 0 1.2rem; font-size: 13px; }
.legend svg { width: 26px; height: 10px; margin-right: .4rem; }
.unit { font-size: 13px; margin: 0; } .unit.x { text-align: right; margin-right: 1.5rem; }
.area { position: relative; height: 13rem; margin: .7rem 1.5rem 1.7rem 3.3rem;
  border: solid var(--soft); border-width: 0 0 1px 1px; }
.area svg { position: absolute; width: 100%; height: 100%; overflow: visible; }
.area span { position: absolute; font-size: 12px; line-height: 1; color: var(--soft);
  white-space: nowrap; font-variant-numeric: tabular-nums; }
.area .y { right: calc(100% + 6px); transform: translateY(50%); }
.area .x { top: calc(100% + 7px); transform: translateX(-50%); }
path { fill: none; stroke: currentColor; stroke-width: 2; vector-effect: non-scaling-stroke; }
.grid { color: var(--line); } .grid path { stroke-width: 1; }
.first { color: var(--first); } .second { color: var(--second); } .mark { color: var(--mark); }
.third { color: var(--mark); } .fourth { color: var(--fourth); }
.second .line { stroke-dasharray: 6 3; } .third .line { stroke-dasharray: 9 3 2 3; }
.fourth .line { stroke-dasharray: 12 3; }
.dots { stroke-width: 9; stroke-linecap: round; } .second .dots { stroke-linecap: square;
  stroke-width: 7; }
.limit { color: var(--text); } .limit .line { stroke-dasharray: 2 4; }
.band { fill: currentColor; stroke: none; opacity: .16; }
"""
_COPY = """\
document.querySelectorAll(".command").forEach(command => {
  const button = document.createElement("button");
  button.textContent = "copy";
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(command);
    // The clipboard's own interface is missing where the page comes from a server without TLS.
    button.textContent = document.execCommand("copy") ? "copied" : "selected: press Ctrl-C";
  });
  command.before(button);
});
"""
_SIDE = 1000
"""Width and height of a plot's SVG, in its own units."""
_SHORT = 12
"""Characters of a cell that stays on one line."""
_MARK = "MLPerf-Storage-style, not an MLPerf result"


def render_page(title: str, sections: Sequence[ResultSection], across: Table | None = None) -> str:
    """Return the HTML of one page about these results, with a table across them.

    The page needs no other file. The table's links are `result-1` and so on.
    """
    body = [f"<p><small>{_MARK}</small></p>"]
    if across is not None:
        body.append(_table(across))
    for number, section in enumerate(sections, 1):
        name = f"{escaped(section.title)} <small>{escaped(section.folder)}</small>"
        body.append(f'<section id="result-{number}"><h2>{name}</h2>')
        body += [render_html(section.blocks), "</section>"]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title>\n<style>\n{_STYLE}</style></head>\n<body>\n"
        + "\n".join([f"<h1>{escaped(title)}</h1>", *body])
        + f"\n<script>\n{_COPY}</script></body></html>\n"
    )


def render_html(blocks: Iterable[Block]) -> str:
    """Return blocks as a part of a page."""
    return "\n".join(map(_html, blocks))


def _html(block: Block) -> str:
    match block:
        case Verdict(line, tone):
            return f'<p class="verdict {tone}">{escaped(line)}</p>'
        case Lines(lines):
            return "".join(f"<p>{escaped(line)}</p>" for line in lines)
        case CommandLine(what, line):
            title = f"<p>{escaped(what)}:</p>" if what else ""
            return f'{title}<pre class="command">{escaped(line)}</pre>'
        case Facts(pairs):
            shown_pairs = [(escaped(name), escaped(value)) for name, value in pairs if value]
            rows = "\n".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in shown_pairs)
            return f"<dl>{rows}</dl>"
        case Table():
            return _table(block)
        case Plot():
            return _plot(block)
        case FileText(text):
            return f"<pre>{escaped(text)}</pre>"
        case Fold(title, blocks, is_open):
            inner, how = render_html(blocks), " open" if is_open else ""
            return f"<details{how}><summary>{escaped(title)}</summary>{inner}</details>"


def _table(table: Table) -> str:
    """Return a table that scrolls in its own box where the page is narrow."""
    kinds = [' class="text"' if head in table.texts else "" for head in table.heads]
    heads = zip(table.heads, kinds, strict=True)
    head = "".join(f"<th{kind}>{escaped(name)}</th>" for name, kind in heads)
    lines = []
    for number, row in enumerate(table.rows):
        cells = [escaped(cell) for cell in row]
        cells = [c.replace(" ", "&nbsp;") if len(c) <= _SHORT else c for c in cells]
        if table.links:
            name = cells[0].replace("/", "/<wbr>")  # a path may break at each folder
            cells[0] = f'<a href="#{escaped(table.links[number])}">{name}</a>'
        tags = (f"<td{kind}>{cell}</td>" for cell, kind in zip(cells, kinds, strict=True))
        lines.append(f"<tr>{''.join(tags)}</tr>")
    title = f"<h3>{escaped(table.title)}</h3>" if table.title else ""
    body = "\n".join(lines)
    return f'{title}<div class="table"><table><tr>{head}</tr>\n{body}</table></div>'


def escaped(text: str) -> str:
    """Return a text without markup, and without control characters, which HTML forbids."""
    return html.escape(shown(text))


def _plot(plot: Plot) -> str:
    """Return a plot as HTML, with its title, its legend and its axes."""
    x, y = plot.x, plot.y
    lines = "".join(f'<path d="M{_spot(plot, x.low, value)}H{_SIDE}"/>' for value, _ in y.ticks)
    drawn, keys = [f'<g class="grid">{lines}</g>'], []
    for each in plot.series:
        keys.append(_key(each.name, each.look, _paths(each, "M0 5H26", "M13 5h0")))
    for bands in plot.bands:
        keys.append(_key(bands.name, bands.look, '<rect class="band" width="26" height="10"/>'))
        shaded = "".join(_band(x, ends) for ends in bands.ranges)
        drawn.append(f'<g class="{bands.look}">{shaded}</g>')
    for each in plot.series:
        spots = [[_spot(plot, *point) for point in piece] for piece in each.pieces]
        lines = " ".join("M" + "L".join(piece) for piece in spots if piece)
        # A line without length is a dot that is not stretched.
        dots = " ".join(f"M{spot}h0" for piece in spots for spot in piece)
        drawn.append(f'<g class="{each.look}">{_paths(each, lines, dots)}</g>')
    ticks = [
        f'<span class="{kind}" style="{side}:{round(100 * axis.share(at), 2)}%">'
        f"{escaped(text)}</span>"
        for kind, side, axis in (("y", "bottom", y), ("x", "left", x))
        for at, text in axis.ticks
    ]
    return (
        f"<figure><figcaption>{escaped(plot.title)}</figcaption>"
        f'<ul class="legend">{"".join(keys)}</ul><p class="unit">{escaped(y.name)}</p>'
        f'<div class="area" role="img" aria-label="{escaped(plot.title)}">'
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none">{"".join(drawn)}</svg>'
        f'{"".join(ticks)}</div><p class="unit x">{escaped(x.name)}</p></figure>'
    )


def _spot(plot: Plot, x: float, y: float) -> str:
    across, up = plot.x.share(x), plot.y.share(y)
    return f"{round(_SIDE * across, 1)} {round(_SIDE * (1 - up), 1)}"


def _paths(series: Series, lines: str, dots: str) -> str:
    """Return the lines of a series that is joined, and the dots of one that is marked."""
    line = f'<path class="line" d="{lines}"/>' if series.joined else ""
    return line + (f'<path class="dots" d="{dots}"/>' if series.marked else "")


def _band(x: Axis, ends: tuple[float, float]) -> str:
    left, right = (round(_SIDE * x.share(end), 1) for end in ends)
    width = round(right - left, 1)
    return f'<rect class="band" x="{left}" width="{width}" height="{_SIDE}"/>'


def _key(name: str, look: str, key: str) -> str:
    return f'<li><svg class="{look}" viewBox="0 0 26 10">{key}</svg>{escaped(name)}</li>'
