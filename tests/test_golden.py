"""What commands print, whole: `make golden` writes tests/golden/ anew, and the diff is read."""

from pathlib import Path

import pytest

from dlemu.cli.commands import COMMANDS
from tests.lab.golden import FOLDER, commands_of, written
from tests.lab.stored import RENDERED, STORED

FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.quick
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_commands_print_what_they_printed(path: Path) -> None:
    text = path.read_text()
    assert written(text) == text, "if that is meant: make golden, and read the diff"


def test_every_command_and_every_result_has_a_golden_file() -> None:
    lines = [line for path in FILES for line in commands_of(path.read_text())]
    named = {" ".join(line.split()[1:3]) for line in lines}
    assert named >= {f"dlemu {name}" for name in COMMANDS} | {f"render {name}" for name in RENDERED}
    shown = {line.split()[2] for line in lines if line.endswith(" --help")}
    assert shown >= COMMANDS.keys()
    assert STORED.keys() <= {word.rpartition("=")[2] for line in lines for word in line.split()}
