"""Pages as a browser shows them: one start of headless Chromium measures several views of a page.

Each view is a frame of its own width and colour scheme, so it does not depend on the window.

    python -m tests.lab.browser PAGE PICTURE [WIDTH [light|dark]]    takes a picture of a page
"""

import json
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest

VIEWS = [(420, "light"), (420, "dark"), (1200, "light"), (1200, "dark")]
"""Width in pixels, and colour scheme."""

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


def look(page: str, folder: Path) -> list[dict[str, Any]]:
    """Return what each of VIEWS shows; skip the test where no Chromium can be started."""
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


def _chromium(*words: str | Path) -> str:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this host, which shows pages")
    last = words[-1]
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
    _picture(*sys.argv[1:])
