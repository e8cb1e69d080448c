"""The words of findings: a sentence for each kind, and those of other versions."""

import ast
import json
from pathlib import Path
from typing import get_args

import dlemu
from dlemu.findings import Finding, Kind, weakens
from dlemu.judge.earlier import summary_of_today, with_findings
from dlemu.judge.records import plain
from dlemu.report.run import tone_of
from dlemu.report.stored import read_result
from dlemu.report.words import SENTENCES, advice_of, evidence_of, sentence, sentences
from tests.lab.commands import Printed


def test_each_kind_has_its_sentence() -> None:
    assert SENTENCES.keys() == {*get_args(Kind)}


def test_what_weakens_a_verdict_begins_with_but_once() -> None:
    found = weakens("links", num_files=1)
    text = "BUT 1 file of those looked at have several names (links)"
    assert sentence(found) == sentence(found.fields) == text
    inside = weakens("of_run", run=3, num_alike=0, finding=found.fields)
    assert sentence(inside) == f"run 3: {text}"


def test_a_finding_is_the_same_value_after_a_file() -> None:
    found = weakens("from_memory", share=0.25, bound=None)
    assert Finding.of(json.loads(json.dumps(plain(found.fields)))) == found


def test_a_finding_of_a_later_version_is_shown_by_its_figures() -> None:
    later = {"kind": "moon", "weight": "remark", "figures": {"phase": 0.5, "name": "new"}}
    assert sentence(later) == "moon (phase=0.5, name=new)"
    assert sentence(weakens("links", files=2)) == "BUT links (files=2)"


def test_the_evidence_of_an_earlier_version_is_shown_as_it_was_written() -> None:
    old = {"name": "storage", "evidence": "it was slow", "advice": "a faster one"}
    limit = summary_of_today({"limit": old})["limit"]
    assert (evidence_of(limit), advice_of(limit)) == ("it was slow", "a faster one")
    assert advice_of({"name": "none", "evidence": [], "advice": []}) == ""


def test_a_document_with_sentences_is_shown_as_it_was_written() -> None:
    """Until November 2026 documents had them; a remark that began with BUT weakened a PASS."""
    old = {"verdict": "PASS", "reasons": ["a"], "remarks": ["b", "BUT c"], "read_ahead": "d"}
    document = with_findings({**old, "unlike": ""})
    assert document.keys() == {"verdict", "findings"}
    assert sentences(document, "reason", "weakens", "remark", "note") == ["a", "b", "BUT c", "d"]
    assert tone_of(document) == "caution" and tone_of(with_findings({"verdict": "PASS"})) == "pass"
    assert with_findings(document) == document


OLDEST = Path(__file__).parents[1] / "data" / "earlier" / "220ebcf_runs"
"""Two runs of 16 small files, written by the oldest version whose results are read."""


def test_results_of_the_oldest_version_are_shown_with_their_own_text(printed: Printed) -> None:
    """What they lack follows from their steps: rows of the table, AU of the whole epoch."""
    alone = OLDEST / "run.2"
    written = json.loads((alone / "summary.json").read_text())
    first, *lines = printed("report", alone).splitlines()
    assert first.startswith(f"{written['verdict']}: AU ")
    assert all(text in first for text in written["remarks"])
    limit = written["limit"]
    assert f"limit: {limit['name']}. {limit['evidence']}" in lines
    assert f"try: {limit['advice']}" in lines
    assert any(line.startswith("AU with the first step (%)") for line in lines)
    several = json.loads((OLDEST / "summary.json").read_text())
    line, *_ = printed("report", OLDEST, status=2).splitlines()
    assert line.startswith(f"{several['verdict']}: {several['reasons'][0]}")
    assert "AU (%)" in printed("compare", alone, OLDEST / "run.1")
    found = read_result(alone).document["findings"]
    assert {each["kind"] for each in found} == {"as_written"}


PACKAGE = Path(dlemu.__file__).parent
"""Wherever it is installed; its datagen may be a link."""
MAKERS = ("reason", "weakens", "remark", "note", "told")


def figures_used() -> dict[str, set[str]]:
    """Return the figures that the sentence of each kind is made of, by its source."""
    used: dict[str, set[str]] = {}
    for path in (PACKAGE / "report/words").glob("*.py"):
        tree = ast.parse(path.read_text())
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for table in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
            for key, made in zip(table.keys, table.values, strict=True):
                if isinstance(key, ast.Constant) and str(key.value) in SENTENCES:
                    body = functions.get(made.id) if isinstance(made, ast.Name) else made
                    used[str(key.value)] = {
                        node.attr
                        for node in ast.walk(body or made)
                        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "f"
                    }
    return used


def test_a_finding_brings_the_figures_of_its_sentence() -> None:
    """A sentence without them would be shown by kind and figures, as one of a later version is."""
    used, lacking, made = figures_used(), [], 0
    may_lack = {"host", "row_bytes_per_second"}  # sentences look whether they are there
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.glob("datagen/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and node.args and node.keywords):
                continue
            kind, keys = node.args[0], {each.arg for each in node.keywords}
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name not in MAKERS or not isinstance(kind, ast.Constant) or None in keys:
                continue
            made += 1
            if without := used.get(str(kind.value), set()) - keys - may_lack:
                lacking.append((path.name, node.lineno, kind.value, without))
    assert lacking == [] and made > 100
