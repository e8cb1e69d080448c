"""A calibration made here, and what a prediction makes of it."""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import dlemu
from dlemu.cli.main import run
from dlemu.config.model import Workload
from dlemu.errors import DatasetError, RunError, WorkloadError
from dlemu.judge.records import STEP
from dlemu.judge.steady import Piece, steadiness
from dlemu.ranks.world import Alone
from dlemu.report.predict import present_calibration
from dlemu.report.text import render_text
from dlemu.run.live import Live
from dlemu.run.workers import TwoRates
from dlemu.sizing import calibrate
from dlemu.sizing.calibrate import _Calibrator, _jitter, calibrate_host
from dlemu.sizing.formula import Calibration
from dlemu.storage.owned import held
from tests.sizing.conftest import BATCH_BYTES, file_of, outcome, results_of


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read for a moment in each of the three runs: how exact the figures are is not asked."""
    monkeypatch.setattr(calibrate, "_SECONDS", 0.2)


def run_as_printed(out: str) -> int:
    """Run the last line of the output as a shell would; return the exit status."""
    program, *arguments = shlex.split(out.splitlines()[-1])
    assert program == "dlemu"
    return run(arguments)


def scratch() -> set[str]:
    own = f"dlemu-calibrate.{os.getpid()}."
    return {name for name in os.listdir("/dev/shm") if name.startswith(own)}


def test_what_a_killed_calibration_has_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing that is in use, nor what is no folder of a calibration."""
    monkeypatch.setattr(calibrate, "_IN_MEMORY", tmp_path)
    killed, foreign = tmp_path / "dlemu-calibrate.1.x", tmp_path / "dlemu-calibrate.2"
    for folder in (tmp_path / "elsewhere", killed, foreign):
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "file").touch()
    for folder in (tmp_path / "elsewhere", killed):
        (folder / "dlemu-calibrate.json").write_text("{}")
    (tmp_path / "dlemu-calibrate.link").symlink_to(tmp_path / "elsewhere")
    with held(killed), calibrate._scratch_folder() as own:
        assert own.is_dir() and killed.is_dir(), "it is in use"
    with calibrate._scratch_folder() as own:
        assert own.is_dir() and not killed.exists()
    names = ["dlemu-calibrate.2", "dlemu-calibrate.link", "elsewhere"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert all((tmp_path / name / "data" / "file").exists() for name in names)


def test_a_prediction_takes_what_was_measured(
    job: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", file_of(job)]) == 0

    out = capsys.readouterr().out
    path = results_of(job) / "calibration.cosmoflow_h100.json"
    found = Calibration.model_validate_json(path.read_text())
    assert (found.workload, found.loader, found.odirect) == ("cosmoflow_h100", "threads", False)
    assert (found.sample_bytes, found.read_threads) == (BATCH_BYTES, 1)
    assert found.host_read_bytes_per_second > 0
    assert found.overhead >= 0 and found.jitter >= 0, "on a busy host chance may say less than 0"
    assert found.drive_read_bytes_per_second is not None
    assert found.barrier is not None and "barrier of two processes: " in out
    assert found.page_cache_share < 0.05
    assert f"result: {path}" in out and "this host moves" in out
    assert (found.overhead_limit, found.host_limit, found.drive_limit).count(None) == 0
    assert found.host_limit != "storage", "none was read from memory"
    assert run_as_printed(out) == 0
    assert not scratch(), "memory is given back"
    told = re.search(r"^calibration: (.*)$", capsys.readouterr().out, re.M)
    assert told is not None and re.fullmatch(r"[\d.:]+ s? ?old", told[1]), "same host"
    here = job.with_keys({"predict.calibration": str(path)})
    here = here.with_keys({"given": ()})  # the folder is not named
    there = {"given": ("dataset.data_folder",), "output.folder": None}
    dlemu.predict(here.with_keys(there))
    other = {"drive": "loop of another", "host": "b with 1 CPU"}
    stored = found.model_copy(update={"identity": {**found.identity, **other}})
    path.write_text(stored.model_dump_json())
    calibration = dlemu.predict(here).calibration
    assert calibration and "host" in calibration["figures"]["differs"]["figures"]["keys"]
    with pytest.raises(
        WorkloadError, match=r"is of another storage than .*: drive .*, was loop of"
    ):
        dlemu.predict(here.with_keys(there))
    assert run(["report", str(path.parent)]) == 0
    assert capsys.readouterr().out.strip() in out, "dlemu report shows it again"

    assert run(["predict", file_of(job), f"predict.calibration={path}"]) == 0
    assert "host and drive calibrated" in capsys.readouterr().out
    told = json.loads((path.parent / "predict.json").read_text())
    assert told["calibrated"] is True
    assert not (told["at_least"] and told["limit"] == "storage")
    most = found.drive_read_bytes_per_second / (job.metric.au * job.demand)
    # N* is as large as a number that passes by the rounding of so small an AU.
    assert told["real_accelerators"] <= max(1.0001 * most, told["num_accelerators"])
    assert min(told["feeds"].values()) <= 1.0001 * most


@pytest.mark.usefixtures("no_runs")
def test_without_a_target_the_drive_stays_open(
    job: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", file_of(job), "dataset.data_folder=null"]) == 0

    out = capsys.readouterr().out
    assert "3/3 left out: dataset.data_folder is not set" in out
    assert run_as_printed(out) == 0, "for a drive by its name"
    path = results_of(job) / "calibration.cosmoflow_h100.json"
    assert json.loads(path.read_text())["drive_read_bytes_per_second"] is None
    assert run(["predict", file_of(job), f"predict.calibration={path}"]) == 1
    assert run(["predict", file_of(job), f"predict.calibration={path}", "drive=d3_s4520"]) == 0


def concluded(
    job: Workload,
    folder: Path,
    say: Callable[[str], None] = lambda text: None,
    *,
    full: str = "host cpu",
    read: str = "storage",
    cached: float = 0.0,
    steady: Mapping[str, Any] | None = None,
) -> Calibration:
    """Return what runs give that were bound so, the last with this share from memory."""
    cold = outcome(folder / "read", read, cached=cached)
    if steady is not None:
        cold.summary["measured"]["steady"] = steady
    return _Calibrator(job, Alone(), say, folder, Live())._conclude(
        outcome(folder / "one", "none", seconds=0.0021),
        outcome(folder / "full", full, seconds=0.002),
        cold,
        TwoRates(8, 12.5, 90.0),
    )


@pytest.mark.parametrize(("cached", "rate"), [(0.25, 0.75 * BATCH_BYTES / 0.01 / 4), (0.969, None)])
def test_what_memory_served_is_not_the_drives(
    cached: float, rate: float | None, job: Workload, tmp_path: Path
) -> None:
    """A batch in 10 ms by four drives; where most is from memory, the host's figures are kept."""
    said: list[str] = []
    found = concluded(job.with_keys({"drives": 4}), tmp_path, said.append, cached=cached)
    assert said[0].startswith(f"note: {cached:.0%} of the bytes of 3/3 came from memory; reader.")
    assert found.drive_read_bytes_per_second == pytest.approx(rate)
    assert found.page_cache_share == (cached if rate else 0.0)
    assert found.host_read_bytes_per_second == pytest.approx(BATCH_BYTES / 0.002)
    assert (found.overhead_limit, found.host_limit) == ("none", "host cpu")


def test_what_the_loader_bound_is_the_least_that_the_drive_gives(
    job: Workload, tmp_path: Path
) -> None:
    said: list[str] = []
    found = concluded(job, tmp_path, said.append, full="storage", read="loader")
    assert (found.host_limit, found.drive_limit) == ("memory", "loader")
    text = render_text(present_calibration({"demand_bytes_per_second": 1e6, **found.model_dump()}))
    assert "at least" in text
    assert said[0].endswith(
        "was loader, so the storage may give more: accelerators lost 50% of the time"
    )


@pytest.mark.parametrize(("parts", "share"), [((20, 10), 100 / 300), ((10, 20), 100 / 200)])
def test_of_a_drive_that_slows_down_the_later_rate_counts(
    parts: tuple[int, int], share: float, job: Workload, tmp_path: Path
) -> None:
    """It gave four times as much at first; the mean of the whole is true at no time."""
    first, last = parts
    steady = steadiness([Piece(1.0, 4e8, 0.0)] * first + [Piece(1.0, 1e8, 0.0)] * last)
    assert steady is not None and steady.trend == "fell"
    said: list[str] = []
    even = concluded(job, tmp_path / "even").drive_read_bytes_per_second
    found = concluded(job, tmp_path, said.append, steady=steady.fields)
    assert even is not None and found.drive_read_bytes_per_second == pytest.approx(share * even)
    assert found.drive_trend == "fell"
    rates = f"400 MB/s for the first {first} s, then 100 MB/s"
    assert said == [f"note: 3/3 was not steady: {rates}; the later rate is taken"]
    shown = present_calibration({"demand_bytes_per_second": 1e6, **found.model_dump()})
    assert "limit: storage; not steady: it was faster at first" in render_text(shown)


def test_jitter_is_the_spread_of_most_steps_and_no_hiccups() -> None:
    """Gumbel's distribution has this scale; the first step and one in a hundred are far off."""
    steps = np.zeros(1001, STEP)
    steps["step"] = np.arange(1001)
    shares = (np.arange(1000) + 0.5) / 1000
    steps["wait"][1:] = 0.01 - 0.003 * np.log(-np.log(shares))
    # Times that are drawn are asked for.
    steps["compute"] = steps["computation_time"] = 0.1 + 0.05 * np.sin(np.arange(1001))
    assert _jitter(steps) == pytest.approx(0.003, rel=0.01)
    steps["wait"][0] = 100.0
    steps["wait"][1:] = np.where(shares > 0.99, 5.0, steps["wait"][1:])
    assert _jitter(steps) == pytest.approx(0.003, rel=0.01)
    for name in ("compute", "barrier"):
        moved = steps.copy()
        moved[name] += moved["wait"]
        moved["wait"] = 0.0
        assert _jitter(moved) == pytest.approx(0.003, rel=0.01)


def test_what_cannot_be_calibrated_is_refused(job: Workload, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    above = "holds no whole dataset of dlemu's; name .*/data, which holds one$"
    few = "dataset of dlemu's; write some files: dlemu datagen .*dataset.num_files_train=2097152$"
    for folder, why in ((tmp_path / "empty", few), (tmp_path, above)):
        with pytest.raises(DatasetError, match=why):
            next(calibrate_host(job.with_keys({"dataset.data_folder": str(folder)}), Alone()))
    with pytest.raises(RunError, match="calibrate needs 1000 there, 4 batches; free memory"):
        huge = {"dataset.record_length_bytes": 1e11, "reader.batch_size": 250}
        next(calibrate_host(job.with_keys({**huge, "dataset.data_folder": None}), Alone()))
    with pytest.raises(WorkloadError, match="measures one host, not 3"):
        several = Alone()
        several.num_hosts = 3
        next(calibrate_host(job, several))


def test_a_folder_above_the_dataset_is_enough(
    job: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `dlemu try`; the workload is the dataset's."""
    read: list[Path] = []

    def calibrated(workload: Workload, *_: object) -> Iterator[object]:
        read.append(workload.data_folder)
        yield from ()

    monkeypatch.setattr(calibrate, "calibrate_host", calibrated)
    assert run(["calibrate", str(tmp_path)]) == 0
    assert run(["calibrate", str(tmp_path), "workload=cosmoflow_h100"]) == 0
    assert read == 2 * [job.data_folder]


def test_what_was_measured_is_shown_before_it_is_written(
    job: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may have become full meanwhile."""
    said: list[str] = []
    found = concluded(job, tmp_path)
    monkeypatch.setattr(_Calibrator, "calibrate", lambda *_: found)
    full = RunError("the disk is full")
    monkeypatch.setattr(calibrate, "write_json", Mock(side_effect=full))
    documents = calibrate_host(job, Alone(), said.append)
    assert next(documents).items() >= found.model_dump().items(), "before it is written"
    with pytest.raises(RunError, match="the disk is full"):
        next(documents)
    assert [line.partition(":")[0] for line in said] == ["workload"]
    assert not results_of(job).exists() and not scratch()
