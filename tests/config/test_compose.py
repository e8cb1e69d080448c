"""What files and words of the command line mean, alone and together."""

import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from dlemu.config import compose
from dlemu.config.compose import compose_words
from dlemu.config.model import load_workload
from dlemu.errors import WorkloadError

BASED = """
defaults: [unet3d_h100, _self_]
name: ours
reader: {batch_size: 2, preprocess_time: {mean: 0.1, stdev: 0.01}}
"""
OWN = """
dataset: {format: npz, num_files_train: 4, data_folder: "/mnt/${name}"}
train: {epochs: 3, seed: "${train.epochs}"}
"""
SHARED = """
dataset: {format: npz, num_files_train: 4}
reader: {preprocess_time: &time {mean: 0.1, stdev: 0.01}}
train: {computation_time: *time}
"""


def test_rows_of_ones_own_are_found_below_the_config_dir(tmp_path: Path) -> None:
    for group, keys in (("model", "model: {name: m, num_layers: 3}"), ("drive", "{name: d}")):
        (tmp_path / group).mkdir()
        (tmp_path / group / "own.yaml").write_text(keys)
    tree = compose_words(["workload=unet3d_h100", "model=own", "drive=own"], tmp_path)
    assert tree["model"] == {"name": "m", "num_layers": 3}
    assert tree["drive"] == str(tmp_path / "drive" / "own.yaml")
    assert compose_words(["model=own"], tmp_path)["made_from"] == str(tmp_path / "model/own.yaml")


def test_references_and_groups_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(f"name: ours{OWN}")
    own = load_workload(tmp_path / "own.yaml")
    assert (own.dataset.data_folder, own.train.seed) == ("/mnt/ours", 3)
    reader = load_workload("unet3d_h100", {"reader": {"batch_size": 3}}).reader
    assert (reader.batch_size, reader.read_threads) == (3, 4), "the group is joined"


def test_what_a_file_refers_to_twice_is_changed_in_one_place(tmp_path: Path) -> None:
    (tmp_path / "shared.yaml").write_text(SHARED)
    changed = load_workload(tmp_path / "shared.yaml", {"reader.preprocess_time.stdev": 0.2})
    assert changed.reader.preprocess_time.stdev == 0.2
    assert changed.train.computation_time.stdev == 0.01


@pytest.mark.parametrize(
    "defaults",
    [
        *("unet3d_h100", "{x: 1}", "[[1]]", "3", "[3]", "[null]", "null", "[{x: 1}]", "[{a: [1]}]"),
        *("[unet3d_h100, {}]", "[{a: b, c: d}]", "[{1: a}]", "true", "''"),
    ],
)
def test_defaults_that_are_no_list_of_names_are_refused_in_one_line(
    defaults: str, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(f"defaults: {defaults}")
    with pytest.raises(WorkloadError, match=r"own.yaml: defaults must be a list .* write def") as e:
        load_workload(tmp_path / "own.yaml")
    assert "\n" not in str(e.value)


def test_what_defaults_may_hold_is_taken(tmp_path: Path) -> None:
    lists = ("[unet3d_h100, _self_]", "[{/workload: unet3d_h100}]", "[{workload: [unet3d_h100]}]")
    for defaults in lists:
        (tmp_path / "own.yaml").write_text(f"defaults: {defaults}\nname: own")
        try:
            load_workload(tmp_path / "own.yaml")
        except WorkloadError as error:
            assert "must be a list" not in str(error)


def test_the_rest_of_a_program_keeps_its_hydra(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(BASED)
    theirs = object()
    GlobalHydra.instance().hydra = theirs  # type: ignore[assignment]
    try:
        load_workload(own)
        assert GlobalHydra.instance().hydra is theirs
    finally:
        GlobalHydra.instance().clear()


NUMBERS_AS_TYPED = "1 -1 0 -0 123456789012345678901234567890 1.5 -0.0 1e6 1E6 1e-6 1.5e3 -1e5 1e999"
NEARLY_NUMBERS = "00 01 -01 00.5 1. .5 1e05 05e1 1_000 1a 5e 0x7f 1e+5 +5 2001-01-01 -5x --x 10:30"
NAMES = "inf -inf nan INF Infinity infx nanny true TRUE false False null NULL None nullx truer a/b"
TEXTS = (
    "5% 90% 256GiB 1.5GiB 10MB 1K threads a.b a-b unet3d_h100 a b.c.d e5 E5 a_b _a yes no on off"
)
VALUES = f"{NUMBERS_AS_TYPED} {NEARLY_NUMBERS} {NAMES} {TEXTS}".split()


def test_words_without_hydra_mean_what_they_mean_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"x.k{number}={value}" for number, value in enumerate(VALUES)]
    words += ["train.epochs=1", "train.epochs=2", "reader=5", "reader.batch_size=3"]
    plain = [word for word in words if compose._plain_word(word) is not None]
    assert 40 < len(plain) < len(words) - 20
    ours = compose_words(["workload=unet3d_h100", *plain])
    monkeypatch.setattr(compose, "_plain_word", lambda _: None)
    theirs = compose_words(["workload=unet3d_h100", *plain])
    assert {*ours.pop("given")} == {*theirs.pop("given")}
    assert repr(ours) == repr(theirs), "1.0 is not 1"


def test_a_published_workload_needs_no_hydra() -> None:
    code = "import sys, dlemu; dlemu.load_workload('unet3d_h100', {'train.epochs': 2}); "
    code += "from dlemu.config.compose import compose_words; compose_words(['workload="
    code += "unet3d_h100', 'train.epochs=2', 'dataset.data_folder=/a b', 'metric.au=90%']); "
    code += "print({'hydra', 'omegaconf'} & set(sys.modules))"
    root = Path(__file__).parents[2]
    assert subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True) == "set()\n"
