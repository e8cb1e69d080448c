"""The help says what the models say, of each command its keys only, and its examples run."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from dlemu.cli.commands import COMMANDS
from dlemu.cli.help import SHELLS, keys_of
from dlemu.config.compose import known_workloads
from dlemu.config.keys import all_keys
from dlemu.config.model import read_by
from tests.lab.commands import Printed
from tests.lab.waiting import LONG

RUN_EXAMPLES = ("datasize", "predict", "verify")
"""Commands whose examples run here; those of the others are checked by their keys."""


def test_every_key_has_its_meaning_and_is_read_by_commands() -> None:
    keys = all_keys().values()
    assert [key.name for key in keys if not (key.meaning.endswith(".") and key.values)] == []
    assert {name for key in keys for name in read_by(key.name)} <= {*COMMANDS}
    assert not {"size.quick", "predict.host_cpus"} & {key.name for key in keys_of("run")}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_has_the_commands_keys_and_no_other(command: str, printed: Printed) -> None:
    short, whole = printed(command, "--help"), printed(command, "--help-all")
    own = {key.name for key in keys_of(command)}
    known = own | {*all_keys()}
    for text in (short, whole):
        shown = {line[2:] for line in text.splitlines() if line[2:] in known}
        assert shown <= own
        assert max(map(len, text.splitlines())) <= 100
    assert shown == own
    assert printed("help", command) == short
    assert {*COMMANDS[command].keys.split()} <= own


def test_a_value_stands_apart_from_the_name_of_its_workload(printed: Printed) -> None:
    rows = [
        line.split() for line in printed("help", "train.epochs").split("sets it:\n")[1].splitlines()
    ]
    assert ["cosmoflow_real_h100", "5"] in rows and all(row[0] in known_workloads() for row in rows)


def test_words_are_found_however_they_are_typed(printed: Printed) -> None:
    for words, shown in (
        ("reader.read_threads", "  unet3d_h100            4\n"),
        ("++reader.odirect=true", "values   true, false, auto"),
        ("train.computation_time.mean", "seconds"),
        ("dataset.parquet.row_group_size", "whole row groups"),
        ("dali", "dali.gpus_per_host"),
        ("n*", "the number of accelerators, with its fraction"),
    ):
        assert shown in printed("help", words)
    assert printed("help", "keys").count("\n  ") > 3 * len(all_keys())


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["dataset.num_files_train=2", "dataset.record_length_bytes=20kB"]
    small.append("dataset.record_length_bytes_stdev=0")
    printed("datagen", "data/cosmoflow", "workload=cosmoflow_h100", *small)
    for name, command in COMMANDS.items():
        for example in command.examples:
            words = shlex.split(example)[1:]
            if name not in RUN_EXAMPLES and not command.function:
                words.append("--cfg=job")
            printed(*words, status=0)


# Completion, asked of the shells themselves.

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
def test_a_shell_offers_what_fits(shell: str, tmp_path: Path, printed: Printed) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "storage").mkdir()
    (tmp_path / "store.txt").touch()
    (tmp_path / "script").write_text(printed("completion", shell))
    lines = [f"COMP_LINE='{line}' COMP_POINT={len(line)}; echo; ask" for line in ASKED]
    program = "\n".join([ASK[shell], "source ./script", *lines])
    command = [shell, {"bash": "--norc", "zsh": "-f"}[shell], "-c", program]
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=LONG, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    answers = done.stdout.removeprefix("\n").split("\n\n")
    for (line, wanted), text in zip(ASKED.items(), answers, strict=True):
        key, is_set, _ = line.split()[-1].partition("=")
        head = f"{key}=" if is_set else ""
        assert {word.strip().removeprefix(head) for word in text.splitlines()} == wanted, line
