"""Looks at a page of results as a browser shows it: narrow and wide, bright and dark.

    python -m docs.browser                                   checks a page; `make docs` does
    python -m docs.browser PAGE PICTURE [WIDTH [light|dark]]   takes a picture of one

The page is that of the results in tests/lab/stored.py. One start of headless Chromium measures
several views, each in a frame of its own width and colour scheme. The exit status is 1 where a text
is too faint or too small, lies beyond the edge or over another, or the page scrolls sideways.
"""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from dlemu.cli.main import run
from tests.lab.golden import prepared
from tests.lab.stored import STORED

VIEWS = [(420, "light"), (420, "dark"), (1200, "light"), (1200, "dark")]
"""Width in pixels, and colour scheme."""
_LISTED = ("outside", "faint", "small", "overlaps")
"""Texts of a view that are wrong."""

_FRAMES = """<!doctype html><meta charset="utf-8">
<style>body { margin: 0 } iframe { border: 0; height: 900px; display: block }</style><body><script>
const page = %s, views = %s, tall = %s;

function texts(root) {  // the elements that hold text of their own
  return [root, ...root.querySelectorAll("*")].filter(each =>
    [...each.childNodes].some(n => n.nodeType === Node.TEXT_NODE && n.data.trim()) &&
    each.checkVisibility());
}

function light(colour) {  // relative luminance, WCAG 2.1
  const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map(each => {
    each /= 255;
    return each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function behind(element, style) {
  for (; element; element = element.parentElement) {
    const colour = style(element).backgroundColor;
    if (!/, 0\\)$/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
}

function contrast(element, style) {
  const [dark, bright] = [light(style(element).color), light(behind(element, style))].sort(
    (a, b) => a - b);
  return (bright + 0.05) / (dark + 0.05);
}

function boxes(element) {  // of its text, not of the element: a paragraph is as wide as the page
  const range = element.ownerDocument.createRange();
  range.selectNodeContents(element);
  return [...range.getClientRects()];
}

function touch(a, b) {
  return a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 &&
    b.top < a.bottom - 1;
}

function overlaps(figure) {
  const found = [], all = texts(figure).map(each => [each.textContent, boxes(each)]);
  all.forEach(([one, ours], n) => all.slice(n + 1).forEach(([other, theirs]) => {
    if (ours.some(a => theirs.some(b => touch(a, b)))) found.push(one + " | " + other);
  }));
  return found;
}

function measure(frame) {
  const page = frame.contentDocument, root = page.documentElement;
  const style = each => frame.contentWindow.getComputedStyle(each);
  const of = each => each.textContent.slice(0, 60);
  const all = texts(page.body);
  return {
    dark: frame.contentWindow.matchMedia("(prefers-color-scheme: dark)").matches,
    back: style(page.body).backgroundColor,
    across: [root.scrollWidth, root.clientWidth],
    texts: all.length,
    faint: all.filter(each => contrast(each, style) < 4.5).map(of),
    small: all.filter(each => parseFloat(style(each).fontSize) < 11).map(of),
    outside: all.filter(each => !each.closest(".table, pre") && boxes(each).some(
      box => box.right > root.clientWidth + 0.5 || box.left < -0.5)).map(of),
    figures: page.querySelectorAll("figure").length,
    overlaps: [...page.querySelectorAll("figure")].flatMap(overlaps),
  };
}

(async () => {
  const found = [];
  for (const [width, scheme] of views) {
    const frame = document.createElement("iframe");
    frame.style.width = width + "px";
    frame.style.colorScheme = scheme;
    frame.srcdoc = page;
    document.body.append(frame);
    await new Promise(done => { frame.onload = done; });
    if (tall) frame.style.height = frame.contentDocument.documentElement.scrollHeight + "px";
    else frame.contentDocument.querySelectorAll("details").forEach(each => { each.open = true; });
    found.push(measure(frame));
  }
  const result = document.createElement("pre");
  result.id = "found";
  result.textContent = JSON.stringify(found);
  if (!tall) document.body.append(result);
})();
</script>"""


WRONG = (
    "<!doctype html><body style='margin:0;background:#fff'>"
    "<p style='color:#888'>faint</p><p style='font-size:9px'>small</p>"
    "<p style='width:900px;white-space:nowrap'>" + "wide " * 100 + "</p><figure>"
    "<span style='position:absolute;left:0'>one label</span>"
    "<span style='position:absolute;left:20px'>another</span></figure></body>"
)
"""A page with each of the faults, all of which must be seen."""


def main(words: list[str]) -> int:
    """Check a page, or take a picture of one; return the exit status."""
    if words:
        _picture(*words)
        return 0
    if _path() is None:
        sys.stdout.write("no Chromium on this host: nobody looked at the page of results\n")
        return 0
    with prepared(STORED) as folder, contextlib.redirect_stdout(io.StringIO()):
        with contextlib.redirect_stderr(io.StringIO()):
            run(["report", *filter(os.path.isdir, STORED), "--html", "page.html"])
        page = Path(folder, "page.html").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        found = [*faults(page, Path(folder))]
        kinds = {each.partition(": ")[2].partition(":")[0] for each in faults(WRONG, Path(folder))}
    if kinds != {"as bright as light", "it scrolls sideways", *_LISTED}:
        found.append(f"of a page with all faults these alone were seen: {sorted(kinds)}")
    sys.stdout.write("".join(f"{each}\n" for each in found))
    return int(bool(found))


def faults(page: str, folder: Path) -> Iterator[str]:
    """Yield what is wrong with a page, each with its view."""
    views = look(page, folder)
    if views[0]["back"] == views[1]["back"]:
        yield "dark: as bright as light"
    for view, (width, scheme) in zip(views, VIEWS, strict=True):
        scrolls, fits = view["across"]
        if scrolls > fits:
            yield f"{width} px, {scheme}: it scrolls sideways"
        for kind in _LISTED:
            if view[kind]:
                yield f"{width} px, {scheme}: {kind}: {view[kind][:5]}"


def look(page: str, folder: Path) -> list[dict[str, Any]]:
    """Return what each of VIEWS shows."""
    frames = _frames(page, VIEWS, folder, tall=False)
    shown = _chromium("--dump-dom", frames)
    found = re.search(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)
    assert found is not None, "the page was not measured"
    measured: list[dict[str, Any]] = json.loads(unescape(found[1]))
    return measured


def _frames(page: str, views: list[tuple[int, str]], folder: Path, *, tall: bool) -> Path:
    # In a script "</" ends it.
    content = [json.dumps(each).replace("</", "<\\/") for each in (page, views, tall)]
    frames = folder / "frames.html"
    frames.write_text(_FRAMES % tuple(content), encoding="utf-8")
    return frames


def _path() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


def _chromium(*words: str | Path) -> str:
    path, last = _path(), words[-1]
    assert path is not None, "no Chromium on this host"
    command = [path, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--virtual-time-budget=10000", *map(str, words[:-1]), f"file://{last}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def _picture(page: str, picture: str, width: str = "420", scheme: str = "light") -> None:
    text = Path(page).read_text(encoding="utf-8")
    frames = _frames(text, [(int(width), scheme)], Path(picture).absolute().parent, tall=True)
    size = f"--window-size={max(500, int(width))},2600"
    _chromium(f"--screenshot={Path(picture).absolute()}", size, frames)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
