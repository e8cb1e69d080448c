"""The pages build without a warning, lead nowhere that is missing, and say what is there."""

import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest

import dlemu
from dlemu.cli.commands import COMMANDS
from dlemu.cli.words import OPTIONS
from docs import glossary, how_long, keys, workloads
from docs.house import PAGE, draw, folder_path, page_with
from tests.test_layers import MAY_IMPORT, MODULES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.iterdir() if path.suffix in (".md", ".rst"))
TEXTS = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
OTHERS_NAMES = {
    *("RWF_NOWAIT", "flock", "package_dir", "summary.json", "key=value", "metric.*", "__init__"),
}
"""Names in docs/architecture.md that are not dlemu's: files, system calls, settings."""


class Parsed(HTMLParser):
    """What a built page refers to, and what can be referred to in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link":
            self.resources.append(values.get("href", ""))
        elif "src" in values:
            self.resources.append(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the pages as `make docs` does; a warning is an error."""
    out = tmp_path_factory.mktemp("site")
    words = ["-q", "-W", "--keep-going", "-b", "html", "-d", f"{out}.trees", str(DOCS), str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    return out


@pytest.fixture(scope="module")
def parsed(site: Path) -> dict[Path, Parsed]:
    return {page: Parsed(page) for page in site.glob("**/*.html")}


def test_every_page_is_built_and_every_public_name_is_in_one(
    site: Path, parsed: dict[Path, Parsed]
) -> None:
    assert {page.stem for page in PAGES} <= {page.stem for page in parsed}
    ids = parsed[site / "api.html"].ids
    assert [name for name in dlemu.__all__ if f"dlemu.{name}" not in ids] == []


def test_every_module_is_listed(site: Path) -> None:
    text = (site / "modules.html").read_text(encoding="utf-8")
    for folder in MAY_IMPORT:
        for path in folder_path(folder).glob("**/*.py"):
            inner = path.relative_to(folder_path(folder)).with_suffix("").parts
            name = ".".join(("dlemu", folder, *inner)).removesuffix(".__init__")
            assert f">{name}<" in text, f"give docs/modules.rst the folder {folder}"


def test_no_link_leads_to_a_page_that_is_missing(parsed: dict[Path, Parsed]) -> None:
    for page, content in parsed.items():
        for link in content.links:
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / unquote(name)).resolve() if name else page
            assert target.is_file(), f"{page.name}: {link}"
            if anchor and target in parsed:
                assert unquote(anchor) in parsed[target].ids, f"{page.name}: {link}"


def test_nothing_comes_from_the_network(site: Path, parsed: dict[Path, Parsed]) -> None:
    loaded = {each for content in parsed.values() for each in content.resources}
    for sheet in site.glob("**/*.css"):
        loaded |= set(re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')]+)", sheet.read_text()))
    assert [each for each in loaded if re.match(r"(https?:)?//", each)] == []


def test_files_and_modules_that_are_named_are_there() -> None:
    """A page that names a module is changed when the module moves."""
    named = re.compile(r"`((?:dlemu|datagen|workloads|tests|benchmarks|examples)/[\w/.]+\.\w+)`")
    for text in TEXTS:
        page = text.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page):
            assert link.startswith("http") or (text.parent / link).is_file(), f"{text.name}: {link}"
        for module in re.findall(r"python\s+-m\s+([a-z_.0-9]+)", page):
            assert find_spec(module) is not None, f"{text.name}: python -m {module}"
        for path in named.findall(page) if text.name != "CHANGELOG.md" else ():
            assert (ROOT / path).exists(), f"{text.name} names {path}"


def test_a_word_has_one_meaning() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (DOCS / "glossary.md").read_text(), re.M)
    words = [word for word, _ in rows if word != "word"]
    assert len(words) == len(set(words)) > 50


@pytest.mark.parametrize(
    ("made", "page", "parts"),
    [
        ("house", PAGE, lambda page: page_with(page, draw(MAY_IMPORT))),
        ("keys", keys.PAGE, lambda page: keys.render()),
        (
            "workloads",
            workloads.PAGE,
            lambda page: page_with(page, workloads.table(), workloads.MARKS),
        ),
        (
            "glossary",
            glossary.PAGE,
            lambda page: page_with(page, glossary.table(), glossary.MARKS),
        ),
        (
            "how_long",
            how_long.PAGE,
            lambda page: page_with(page, how_long.tables(), how_long.MARKS),
        ),
    ],
)
def test_what_is_made_of_the_code_is_up_to_date(
    made: str, page: Path, parts: Callable[[str], str]
) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == parts(text), f"run python -m docs.{made} --write"


def test_the_architecture_names_only_what_exists() -> None:
    """Folders, modules, commands; classes, functions and fields, in their module if it is named."""
    text = re.sub(r"```.*?```", "", (DOCS / "architecture.md").read_text(), flags=re.S)
    names = set(re.findall(r"`([^`\n]+)`", text)) - OTHERS_NAMES
    assert len(names) > 50
    assert [name for name in sorted(names) if not _exists(name)] == []


def test_the_walks_of_the_architecture_go_through_what_exists() -> None:
    """Every module, function and field of both drawings."""
    walks = (DOCS / "architecture.md").read_text().partition("## Two walks")[2].partition("## ")[0]
    names = set(re.findall(r"\b[a-z]+/[a-z_]+\b|\b[a-z]+_[a-z_]+\b", walks))
    assert len(names) > 20
    assert [name for name in sorted(names) if not _exists(name)] == []


def _exists(name: str) -> bool:
    if name.startswith("--"):
        return name in OPTIONS
    match name.split():
        case ["dlemu", command, *_]:
            return command in COMMANDS
        case ["python", "-m", module, *_]:
            return find_spec(module) is not None
    path = name.removesuffix("/")
    homes = (ROOT, ROOT / "dlemu")
    if any((home / f"{path}{end}").exists() for home in homes for end in ("", ".py")):
        return True
    home, _, last = name.rpartition(".")
    if home == "dlemu":
        return (ROOT / "dlemu" / last).exists()
    of = rf"^\s*((class|def) {re.escape(last)}\b|{re.escape(last)}\b.*[:=])"
    inside = [*MODULES.values(), ROOT / "tests" / "test_layers.py"]
    if home:
        inside = [p for m, p in MODULES.items() if f".{m}".endswith("." + home.replace("/", "."))]
    return any(re.search(of, each.read_text(), re.M) for each in inside)
