"""Completion, asked of the shells themselves."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dlemu.cli.commands import COMMANDS
from dlemu.cli.help import SHELLS
from dlemu.cli.main import run
from dlemu.config.keys import all_keys

ASKED = {
    "dlemu ": {*COMMANDS, "help"},
    "dlemu ru": {"run"},
    "dlemu run reader.odir": {"reader.odirect="},
    "dlemu run reader.odirect=": {"true", "false", "auto"},
    "dlemu run workload=unet3d_b": {"unet3d_b200"},
    "dlemu predict drive=d7": {"d7_p5520", "d7_ps1010"},
    "dlemu run dataset.data_folder=sto": {"storage/", "store.txt"},
    "dlemu verify sto": {"storage/", *(f"{key}=" for key in all_keys() if key[:8] == "storage.")},
    "dlemu report x --html=sto": {"storage/", "store.txt"},
    "dlemu verify --re": {"--repair"},
    "dlemu run --cfg ": {"job"},
    "dlemu help reader.odir": {"reader.odirect"},
    "dlemu completion z": {"zsh"},
}
"""What is typed, and what a shell offers."""


ASK = {
    "bash": 'COMP_WORDBREAKS=; ask() { COMPREPLY=(); _dlemu; printf "%s\\n" "${COMPREPLY[@]}"; }',
    "zsh": "compdef() { }; ask() { compgen -F _dlemu -- x }",
}
"""What asks for the words behind COMP_LINE, without the completion's own windows."""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_offers_what_fits(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "storage").mkdir()
    (tmp_path / "store.txt").touch()
    assert run(["completion", shell]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    lines = [f"COMP_LINE='{line}' COMP_POINT={len(line)}; echo; ask" for line in ASKED]
    program = "\n".join([ASK[shell], "source ./script", *lines])
    command = [shell, {"bash": "--norc", "zsh": "-f"}[shell], "-c", program]
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=60, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    answers = done.stdout.removeprefix("\n").split("\n\n")
    for (line, wanted), text in zip(ASKED.items(), answers, strict=True):
        key, is_set, _ = line.split()[-1].partition("=")
        head = f"{key}=" if is_set else ""
        assert {word.strip().removeprefix(head) for word in text.splitlines()} == wanted, line
