"""summary.json: what is read comes back, of this version and of others."""

import json
from pathlib import Path

import pytest

from dlemu.cli.main import run
from tests.lab.commands import QUICK, generate


def test_a_report_keeps_what_another_version_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", *QUICK, generate(tmp_path), f"output.folder={tmp_path / 'run'}"]) == 0
    path = tmp_path / "run" / "summary.json"
    tree = json.loads(path.read_text())
    tree["measured"]["of_tomorrow"] = tree["of_tomorrow"] = [1, {"a": None}]
    del tree["loop"], tree["decode"]
    path.write_text(json.dumps(tree))
    capsys.readouterr()
    assert run(["report", str(path.parent), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert list(again.items()) == [("folder", str(path.parent)), *tree.items()], "in this order"
    assert run(["report", str(path.parent)]) == 0
    assert "(edition v1.0)" in capsys.readouterr().out, "an older run does not tell its loop"
