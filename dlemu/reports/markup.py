"""HTML of a page that needs no other file: its style, texts, tables, and the page around them."""

import html
from collections.abc import Iterable

from dlemu.terminal import shown

_STYLE = """\
:root { color-scheme: light dark; --text: #1d2733; --soft: #55616d; --line: #d5dbe1;
  --back: #ffffff; --panel: #f4f6f8; --first: #1f5fa8; --second: #b4540a; --mark: #2e7d4f;
  --pass: #2e7d4f; --pass-back: #eaf5ee; --fail: #b3372f; --fail-back: #fbeceb;
  --none: #8a6d1a; --none-back: #faf4df; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e9ee; --soft: #a9b4bf; --line: #3a444f;
  --back: #14191f; --panel: #1f262e; --first: #74b3f5; --second: #f2a65a; --mark: #6fcf97;
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
.none, .caution { border-color: var(--none); background: var(--none-back); }
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
.first { color: var(--first); } .second { color: var(--second); }
.third, .mark { color: var(--mark); }
.second .line { stroke-dasharray: 6 3; } .third .line { stroke-dasharray: 9 3 2 3; }
.dots { stroke-width: 9; stroke-linecap: round; } .second .dots { stroke-linecap: square;
  stroke-width: 7; }
.limit { color: var(--text); } .limit .line { stroke-dasharray: 2 4; }
.band { fill: currentColor; stroke: none; opacity: .16; }
"""


def escaped(text: str) -> str:
    """Return a text without markup, and without control characters, which HTML forbids."""
    return html.escape(shown(text))


def render_document(title: str, body: Iterable[str]) -> str:
    """Return a whole page; `body` is HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title>\n<style>\n{_STYLE}</style></head>\n<body>\n"
        + "\n".join([f"<h1>{escaped(title)}</h1>", *body])
        + "\n</body></html>\n"
    )


def render_verdict(line: str, verdict: str = "") -> str:
    """Return a verdict's line in its colour; without `verdict`, the line begins with it."""
    kind = {"PASS": "pass", "FAIL": "fail"}.get(verdict or line.partition(":")[0], "none")
    return f'<p class="verdict {kind}">{escaped(line)}</p>'


def render_lines(lines: Iterable[str]) -> str:
    """Return a paragraph a line."""
    return "".join(f"<p>{escaped(line)}</p>" for line in lines)


def render_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Return names and values side by side; what has no value is left out."""
    rows = "\n".join(
        f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in facts if value
    )
    return f"<dl>{rows}</dl>"


def render_table(
    heads: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    texts: Iterable[str] = (),
    links: Iterable[str] = (),
) -> str:
    """Return a table that scrolls in its own box where the page is narrow.

    `texts` are the heads of columns that hold no numbers; `links` are targets in the page, one a
    row, for the first cell.
    """
    names, targets = list(heads), list(links)
    kinds = [' class="text"' if name in texts else "" for name in names]
    head = "".join(
        f"<th{kind}>{escaped(name)}</th>" for name, kind in zip(names, kinds, strict=True)
    )
    lines = []
    for number, row in enumerate(rows):
        cells = [escaped(cell) for cell in row]
        if targets:
            shown = cells[0].replace("/", "/<wbr>")  # a path may break at each folder
            cells[0] = f'<a href="#{escaped(targets[number])}">{shown}</a>'
        tags = (f"<td{kind}>{cell}</td>" for cell, kind in zip(cells, kinds, strict=True))
        lines.append(f"<tr>{''.join(tags)}</tr>")
    body = "\n".join(lines)
    return f'<div class="table"><table><tr>{head}</tr>\n{body}</table></div>'


def render_details(summary: str, body: Iterable[str]) -> str:
    """Return HTML that a click on its title opens."""
    return f"<details><summary>{escaped(summary)}</summary>{''.join(body)}</details>"
