"""Results of DLIO and mlpstorage: what dlemu computes from their steps, beside what they tell.

tests/data/dlio_2.0.0 is a result of DLIO 2.0.0: two ranks, two epochs of 12 steps, 50 ms each.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlemu.errors import RunError
from dlemu.report.compare import compare_folders
from dlemu.report.page import section
from dlemu.report.present import present, status_of
from dlemu.report.stored import Stored, read_result
from dlemu.report.text import render_text
from tests.lab.commands import Printed

DLIO = Path(__file__).parents[1] / "data" / "dlio_2.0.0"


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    """A copy of DLIO's result, to be changed."""
    shutil.copytree(DLIO, tmp_path / "leaf")
    return tmp_path / "leaf"


def one(folder: Path, **keys: object) -> Any:
    """Return the document of a folder."""
    return read(folder, **keys).document


def read(folder: Path, **keys: object) -> Stored:
    return read_result(folder, {key.replace("__", "."): value for key, value in keys.items()})


def text_of(folder: Path) -> str:
    return render_text(present(read(folder).shown))


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_real_result_is_computed_again() -> None:
    found = one(DLIO)
    ranks = [load(DLIO / f"{rank}_output.json") for rank in range(2)]
    for epoch in found["per_epoch"]:
        procs, walls = [], []
        for rank in ranks:
            of_epoch = rank[str(epoch["epoch"])]
            proc, au = of_epoch["proc"]["block1"], of_epoch["au"]["block1"]
            procs.append(proc)
            walls.append(11 * 0.05 / (au / 100) + proc[0])  # DLIO's own formula, turned round
        wall, first = np.mean(walls), max(proc[0] for proc in procs)
        # What is between the steps belongs to all of them alike.
        between = (wall - np.max(procs, axis=0).sum()) / 12
        expected = 100 * 11 * 0.05 / (wall - first - between)
        assert epoch["au_percentage"] == pytest.approx(expected, rel=1e-6)
        assert epoch["seconds"] == pytest.approx(wall, rel=1e-6)
        assert epoch["first_step_seconds"] == pytest.approx(first + between, rel=1e-6)
        stamp = load(DLIO / "per_epoch_stats.json")[str(epoch["epoch"])]["block1"]["duration"]
        assert epoch["seconds"] == pytest.approx(float(stamp), abs=0.02)
    # DLIO 2.0.0 counts samples over the whole epoch, as dlemu does.
    told = found["recorded"]["metric"]["train_throughput_samples_per_second"]
    ours = [epoch["true_samples_per_second"] for epoch in found["per_epoch"]]
    assert ours == pytest.approx(told, rel=1e-3)


def write_leaf(
    folder: Path,
    procs: Sequence[Sequence[float]],
    *,
    compute: float = 0.1,
    measured: float | None = None,
    between: float = 0.0,
    **instead: Any,
) -> None:
    """Write what DLIO would, of one epoch: each rank's `proc` seconds, barriers in between."""
    (folder / ".hydra").mkdir(parents=True)
    slowest = np.max(procs, axis=0)
    wall = slowest.sum() + between * len(slowest)
    credited = compute if measured is None else measured
    own = []
    for rank, proc in enumerate(procs):
        num = len(proc)
        own.append(100 * credited * (num - 1) / (wall - proc[0]))
        output = {
            "1": {
                "load": {"block1": [seconds - credited for seconds in proc]},
                "proc": {"block1": list(proc)},
                "compute": {"block1": [credited] * num},
                "au": {"block1": own[-1]},
                "throughput": {"block1": 7.0},
            }
            | instead
        }
        (folder / f"{rank}_output.json").write_text(json.dumps(output))
    stats = "per_epoch_stats.json" if measured is None else "0_per_epoch_stats.json"
    (folder / stats).write_text("{}")
    metric = {"train_au_percentage": [float(np.mean(own))], "train_au_meet_expectation": "fail"}
    told = {"num_accelerators": len(procs), "metric": metric}
    (folder / "summary.json").write_text(json.dumps(told))
    (folder / ".hydra" / "config.yaml").write_text(
        f"workload:\n  model: {{name: unet3d, type: cnn}}\n"
        f"  dataset: {{format: npz, num_files_train: 4000, record_length: 1000000}}\n"
        f"  reader: {{batch_size: 4, read_threads: 1, of_tomorrow: 3}}\n"
        f"  train: {{epochs: 1, computation_time: {compute}}}\n"
    )


def test_the_wait_for_a_slow_first_batch_is_left_out(tmp_path: Path) -> None:
    """DLIO leaves it in the window of the ranks that were ready: 96 % become 58 %."""
    steps = [0.104] * 400
    write_leaf(tmp_path / "leaf", [steps, [30.0, *steps[1:]]])
    found = one(tmp_path / "leaf")
    (epoch,) = found["per_epoch"]
    assert epoch["au_percentage"] == pytest.approx(100 / 1.04)
    assert np.mean(found["recorded_per_epoch"]["train_au_percentage"]) == pytest.approx(
        (100 / 1.04 + 55.96) / 2, abs=0.3
    )
    assert "not the 14.948 s of waiting for other ranks after it" in found["differences"][0]
    assert epoch["first_step_seconds"] == pytest.approx(30.0)
    assert epoch["true_samples_per_second"] == pytest.approx(8 * 400 / (30 + 399 * 0.104))


def test_what_dlio_spends_between_the_steps_counts(tmp_path: Path) -> None:
    write_leaf(tmp_path / "leaf", [[0.1] * 500], between=0.025)
    found = one(tmp_path / "leaf")
    assert found["metric"]["train_au_mean_percentage"] == pytest.approx(80.0)
    assert "20.0% of the time is DLIO's own" in " ".join(found["differences"])
    assert found["verdict"] == "FAIL"


def test_measured_compute_is_credited_by_v2_alone(tmp_path: Path) -> None:
    """A step of 100 ms that slept 120 ms: AU 100 % by v2.0, 83 % by v1.0."""
    write_leaf(tmp_path / "leaf", [[0.12] * 500], measured=0.12)
    for edition, au in (("v1.0", 100 * 0.1 / 0.12), ("v2.0", 100.0)):
        (epoch,) = one(tmp_path / "leaf", metric__edition=edition)["per_epoch"]
        assert epoch["au_percentage"] == pytest.approx(au)


@pytest.mark.parametrize("au", [None, 0.0, 50.0])
def test_without_an_au_the_time_between_the_steps_is_not_known(au: Any, tmp_path: Path) -> None:
    measured = 0.0 if au else None  # an AU of no compute tells nothing
    write_leaf(tmp_path / "leaf", [[0.1] * 20], measured=measured, au={"block1": au})
    found = one(tmp_path / "leaf")
    assert "; the time between the steps is not known" in " ".join(found["differences"])
    assert found["metric"]["train_au_mean_percentage"] == pytest.approx(100)


def test_an_au_is_that_of_the_steps_that_dlio_counts(tmp_path: Path) -> None:
    """Five of ten steps at AU 80 %: the block took 1.125 s. Half of the compute met the load."""
    told: Any = {"au": {"block1": 80.0}, "load": {"block1": [0.05] * 10}}
    write_leaf(tmp_path / "leaf", [[0.1] * 10], measured=0.1, **told)
    ends = {"metric__exclude_start_steps": 2, "metric__exclude_end_steps": 3}
    (epoch,) = one(tmp_path / "leaf", metric__edition="v2.0", **ends)["per_epoch"]
    assert epoch["seconds"] == pytest.approx(1.125)
    assert epoch["au_percentage"] == pytest.approx(100 * 0.05 / 0.1125)


def test_several_blocks_are_one_epoch(tmp_path: Path) -> None:
    write_leaf(tmp_path / "leaf", [[0.11] * 20])
    output = load(tmp_path / "leaf" / "0_output.json")
    for values in output["1"].values():
        values["block2"] = values["block10"] = values["block1"]
    (tmp_path / "leaf" / "0_output.json").write_text(json.dumps(output))
    found = one(tmp_path / "leaf")
    assert [epoch["num_steps"] for epoch in found["per_epoch"]] == [60]
    assert "blocks: 3 an epoch, between checkpoints" in " ".join(found["differences"])


def test_mlpstorages_runs_are_read_and_a_damaged_one_is_named(leaf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "training" / "unet3d" / "run"
    for name in ("20260701_100000", "20260701_101500"):
        shutil.copytree(leaf, folder / name)
        (folder / name / ".hydra").rename(folder / name / "dlio_config")
        (folder / name / "training_unet3d_metadata.json").write_text("{}")
    found = one(folder.parent)
    assert (found["kind"], found["workload"]) == ("runs", "unet3d_h100")
    assert len(found["runs"]) == 2 and "AU as mlpstorage recorded it" in text_of(folder)
    assert section(read(folder)).rows[0]["as recorded (%)"] == "92.60"
    both = compare_folders([folder, leaf])[0]["results"]
    assert both[0]["basis"] == "2 runs"
    assert both[1]["figures"].keys() == {"au_percentage", "samples_per_second"}
    (folder / "20260701_101500" / "summary.json").unlink()
    assert len(one(folder)["runs"]) == 1 and status_of(read(folder).document) == 1
    passed = {"metric__au": 0.5}
    assert status_of(read(folder, **passed).document) == 1
    shutil.copytree(folder / "20260701_100000", folder / "20260701_103000")
    (folder / "20260701_103000" / "1_output.json").unlink()
    assert len(one(folder)["runs"]) == 1, "a run without steps has no figures of ours"
    assert "not read: " in text_of(folder) and "1_output.json missing" in text_of(folder)
    shutil.rmtree(folder / "20260701_103000")
    shutil.copytree(folder / "20260701_101500", folder / "20260701_103000")
    assert status_of(read(folder, **passed).document) == 1, "two of them, too"
    assert text_of(folder).splitlines()[-2] == (
        f"not read: {folder}/20260701_103000 holds no summary.json: DLIO writes it when a run "
        "ends, this did not"
    )


DAMAGE = {
    "{leaf} holds no summary.json: DLIO writes it when a run ends": ("summary.json", "", ""),
    "{leaf}/summary.json is damaged: ": ("summary.json", "{", ""),
    "{leaf}/summary.json holds no figures of": ("summary.json", '"train_au_percentage', '"x'),
    "{leaf}/summary.json is damaged: could": ("summary.json", "91.27854015188012", '"high"'),
    "{leaf}/0_output.json is damaged: ": ("0_output.json", "{", ""),
    "{leaf}/<rank>_output.json is damaged: KeyError": ("0_output.json", '"compute":', '"x":'),
    "{leaf}/.hydra/config.yaml is not YAML": (".hydra/config.yaml", "workload:", "workload: {"),
}
"""What is replaced in a file, by how the line must begin; a file without a word is gone."""


@pytest.mark.parametrize("begins", DAMAGE)
def test_a_damaged_result_is_one_line(begins: str, leaf: Path, printed: Printed) -> None:
    name, old, new = DAMAGE[begins]
    text = (leaf / name).read_text()
    assert old in text
    (leaf / name).unlink()
    if old:
        (leaf / name).write_text(text.replace(old, new, 1))
    line = printed("report", leaf, status=1)
    assert line.startswith(f"dlemu: {begins.format(leaf=leaf)}") and line.count("\n") == 1


@pytest.mark.parametrize("change", ["fewer", "endless"])
def test_times_that_cannot_be_are_named(change: str, leaf: Path) -> None:
    tree = load(leaf / "0_output.json")
    if change == "fewer":
        tree["1"]["compute"]["block1"].pop()
    else:
        tree["1"]["proc"]["block1"][3] = float("inf")
    (leaf / "0_output.json").write_text(json.dumps(tree))
    with pytest.raises(RunError, match=r"damaged: block1 has (other numbers|times that cannot be)"):
        read(leaf)


def test_without_the_steps_of_a_rank_the_tools_own_figures_are_shown(leaf: Path) -> None:
    (leaf / "1_output.json").unlink()
    found, text = one(leaf), text_of(leaf)
    assert (found["kind"], found["verdict"]) == ("foreign", "PASS")
    with pytest.raises(RunError, match="holds no steps of the other tool"):
        compare_folders([leaf, leaf])
    assert text.startswith("PASS: by DLIO's own figures (success)") and " 92.60 " in text
    assert "note: AU cannot be computed again: 1_output.json missing" in text
    assert "by dlemu's formula" not in text


def test_ranks_with_other_steps_are_not_mixed(leaf: Path) -> None:
    tree = load(leaf / "1_output.json")
    for name in ("load", "proc", "compute"):
        tree["2"][name]["block1"].pop()
    (leaf / "1_output.json").write_text(json.dumps(tree))
    found = one(leaf)
    assert found["kind"] == "foreign"
    assert "not every rank has the same steps in epoch 2" in " ".join(found["notes"])


def test_without_its_configuration_there_is_no_verdict_of_ours(leaf: Path) -> None:
    shutil.rmtree(leaf / ".hydra")
    found = one(leaf)
    assert found["kind"] == "foreign"
    assert np.mean(found["au_percentage"]) == pytest.approx(94.315, abs=1e-3)
    text = text_of(leaf)
    assert text.startswith("PASS: by DLIO's own figures (success)")
    assert "AU by dlemu's formula (%)" in text
