"""Completion, asked of the shells themselves."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dlemu.cli.commands import COMMANDS
from dlemu.cli.completion import SHELLS, script, values_of_keys, words_of_commands
from dlemu.cli.main import run
from dlemu.workload.keys import all_keys

ASKED = {
    "dlemu ": {*COMMANDS, "help"},
    "dlemu ru": {"run"},
    "dlemu run reader.odir": {"reader.odirect="},
    "dlemu run reader.odirect=": {"true", "false", "auto"},
    "dlemu run workload=unet3d_b": {"unet3d_b200"},
    "dlemu predict drive=d7": {"d7_p5520", "d7_ps1010"},
    "dlemu run dataset.data_folder=sto": {"storage"},
    "dlemu verify sto": {
        "storage/",
        *(f"{key}=" for key in all_keys() if key.startswith("storage.")),
    },
    "dlemu verify --re": {"--repair"},
    "dlemu run --cfg ": {"job"},
    "dlemu help reader.odir": {"reader.odirect"},
    "dlemu completion z": {"zsh"},
}
"""What is typed, and what a shell offers."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "storage").mkdir()
    for shell in SHELLS:
        (tmp_path / f"script.{shell}").write_text(script(shell))
    return tmp_path


def ask(shell: str, program: str, folder: Path) -> dict[str, set[str]]:
    """Return what a shell offers for each line that was typed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = [shell, *{"bash": ["--norc"], "zsh": ["-f"]}[shell], "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, timeout=60, env={"PATH": "/usr/bin"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    offered: dict[str, set[str]] = {}
    line = ""
    for each in done.stdout.splitlines():
        if each.startswith("> "):
            line = each[2:]
            offered[line] = set()
        elif each.strip():
            offered[line].add(each.strip())
    return offered


def test_bash_offers_what_fits(folder: Path) -> None:
    lines = "\n".join(f"ask '{line}'" for line in ASKED)
    program = f"""
        source ./script.bash
        complete -p dlemu > /dev/null || exit 1
        ask() {{
            COMP_LINE="$1" COMP_POINT=${{#1}} COMPREPLY=(); _dlemu
            echo "> $1"; printf '%s\\n' "${{COMPREPLY[@]}}"
        }}
        {lines}
    """
    assert ask("bash", program, folder) == ASKED


def test_zsh_offers_what_fits(folder: Path) -> None:
    """What the script gives to zsh, which then leaves out what does not begin as was typed."""
    typed = {line: line + ("''" if line.endswith(" ") else "") for line in ASKED}
    lines = "\n".join(f"ask {words}" for words in typed.values())
    program = f"""
        compadd() {{ while [[ $1 != -- ]]; do shift; done; shift; printf '%s\\n' "$@" }}
        _files() {{ print storage }}
        compset() {{ }}
        source ./script.zsh
        ask() {{ words=("$@"); CURRENT=$#words; print "> $*"; _dlemu }}
        {lines}
    """
    offered = ask("zsh", program, folder)
    for line, wanted in ASKED.items():
        assert {word.rstrip("/") for word in wanted} <= offered[line], line


def test_all_is_offered() -> None:
    words = words_of_commands()
    assert words.keys() == {*COMMANDS, "help"}
    offered = {word.removesuffix("=") for each in words.values() for word in each}
    assert {*all_keys()} <= offered
    of_tools = {"paths": "queue_depths=", "load": "readers=", "wear": "years=", "try": "keep="}
    assert all(word in words[name] for name, word in of_tools.items())
    assert {"--trace", "--html"} <= {*words["report"]}
    assert values_of_keys()["reader.odirect"] == ["true", "false", "auto"]


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "bash"]) == 0
    assert capsys.readouterr().out == script("bash") + "\n"
