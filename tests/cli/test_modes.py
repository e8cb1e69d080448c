"""How much is printed, where else it is kept, and in which units."""

import re
from pathlib import Path

import pytest

from dlemu.cli.main import run
from dlemu.terminal import set_mode
from tests.lab.commands import QUICK, SMALL, generate

DECIMAL, BINARY = re.compile(r"\b[kMGT]B/s"), re.compile(r"\b[KMGT]iB/s")


@pytest.fixture(autouse=True)
def usual_mode() -> None:
    set_mode()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return generate(tmp_path_factory.mktemp("small"))


def job(data: str, folder: Path) -> list[str]:
    return ["run", *QUICK, data, f"output.folder={folder / 'run'}"]


def test_quiet_prints_the_verdict_only(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run([*job(data, tmp_path), "-q", f"output.log={tmp_path / 'log'}"]) == 0
    said = capsys.readouterr()
    assert re.fullmatch(r"PASS: AU .*\n", said.out) and said.err == ""
    log = (tmp_path / "log").read_text()
    assert "samples/s" in log and said.out.strip() in log, "what is hidden is kept"


def test_several_runs_are_one_verdict(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run([*job(data, tmp_path), "runs=2", "--quiet"]) in (0, 1, 2)
    assert re.fullmatch(r"(PASS|FAIL|NO VERDICT): .*\n", capsys.readouterr().out)
    folder = str(tmp_path / "run")
    said = []
    for words in (["report", folder], ["compare", folder, folder]):
        for mode in ([], ["-q"]):
            run([*words, *mode])
            said.append(capsys.readouterr().out)
    report, quiet, compared, still = said
    assert quiet == report.splitlines(keepends=True)[0] and "samples/s" in report
    assert compared == still and "samples/s" in compared


def test_quiet_keeps_errors_and_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "-q", "workload=unet3d_h100", "reader.batchsize=3"]) == 1
    assert "did you mean reader.batch_size?" in capsys.readouterr().err
    assert run(["predict", "-q", "workload=unet3d_h100", "drive=d7_ps1010"]) == 0
    assert "unet3d_h100" in capsys.readouterr().out
    assert run(["datasize", "workload=unet3d_h100", "-q"]) == 0
    assert "needs " in capsys.readouterr().out


def test_verbose_says_what_is_decided(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["datasize", "-v", "workload=unet3d_h100", "reader.read_threads=8"]
    assert run(words) == 0
    said = capsys.readouterr()
    assert "overrides   reader.read_threads" in said.err
    assert "loader pytorch, 8 readers an accelerator, reads of 1.0 MiB" in said.err
    assert "an accelerator asks for 3.18 GB/s" in said.err
    assert run([word for word in words if word != "-v"]) == 0
    plain = capsys.readouterr()
    assert (plain.out, plain.err) == (said.out, "")


def test_the_log_has_the_command_the_time_and_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a b.log"
    words = ["run", *SMALL, "dataset.data_folder=/nosuch", f"output.log={log}"]
    assert run(words) == 1
    time, command = log.read_text().splitlines()[0].split(" $ ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", time)
    assert (
        command.startswith("dlemu run workload=unet3d_h100 ") and f"'output.log={log}'" in command
    )
    assert capsys.readouterr().err.rstrip("\n") == log.read_text().splitlines()[-1][20:]
    before = log.read_text()
    assert run(words) == 1
    assert log.read_text().startswith(before), "it is appended to"
    log.unlink()
    assert run([*words, "--cfg", "job"]) == 0 and not log.exists()


def test_rates_are_in_one_family_of_units(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """10^6 and its powers; MiB/s are in DLIO's fields of summary.json alone."""
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    folder = data.partition("=")[2]
    runs = [
        job(data, tmp_path),
        [*job(data, tmp_path / "two"), "runs=2"],
        ["report", f"{tmp_path}/run", f"{tmp_path}/two/run"],
        ["predict", "workload=unet3d_h100", "drive=d7_ps1010"],
        ["datasize", *SMALL],
        ["paths", folder, "seconds=0.05", "io_sizes=4KiB", "file_size=16MB", "workers=1"],
        ["size", *QUICK, data, "size.quick=true", "size.confirm=0", "size.max_accelerators=1"],
        *([name, "--help-all"] for name in ("run", "size", "predict", "paths")),
    ]
    for words in runs:
        run(words)
        said = capsys.readouterr()
        text = said.out + said.err
        assert not BINARY.search(text), words
        assert words[0] in ("datasize", "size") or "help" in words[-1] or DECIMAL.search(text), (
            words
        )


@pytest.mark.parametrize(
    "key",
    [
        "dataset.record_length_bytes",
        "dataset.record_length_bytes_resize",
        "reader.piece_bytes",
        "reader.transfer_size",
        "host_memory",
    ],
)
def test_sizes_take_a_unit(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "workload=resnet50_h100", f"{key}=1MB", "--cfg", "job"]
    assert run(words) == 0
    leaf = key.rpartition(".")[2]
    assert re.search(rf"\b{leaf}: 1000000(\.0|B)?$", capsys.readouterr().out, re.M)
