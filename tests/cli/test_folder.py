"""A data folder alone: its dataset says which workload it was written for."""

import json
import os
import shutil
from pathlib import Path

import pytest

from dlemu.cli.main import run
from dlemu.storage.files import create
from tests.lab.commands import QUICK, SMALL, Printed, generate

ASK = "add workload=NAME (dlemu help workloads lists them) or a file.yaml"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset, which differs from its workload in size and seed."""
    folder = tmp_path_factory.mktemp("written") / "data"
    assert run(["datagen", str(folder), *SMALL, "dataset.seed=3"]) == 0
    return folder


@pytest.mark.parametrize("form", ["run {}", "size dataset.data_folder={}", "datagen {}"])
def test_the_dataset_of_another_workload_is_refused_however_it_is_named(
    form: str, written: Path, printed: Printed
) -> None:
    """Its samples would be read at the wrong rate: a PASS of no workload."""
    said = printed(*form.format(written).split(), "workload=cosmoflow_h100", status=1)
    remedy = "leave workload= out, or name another folder"
    assert said == f"dlemu: {written} holds a unet3d_h100 dataset; {remedy}\n"


def test_a_dataset_serves_each_row_of_its_network_and_keys_that_describe_it(written: Path) -> None:
    named = f"dataset.data_folder={written}"
    assert run(["verify", named, "workload=unet3d_b200"]) == 0
    same = ["dataset.format=npz", *SMALL[1:], "dataset.record_element_type=uint8"]
    same += ["dataset.num_samples_per_file=1", "dataset.record_dims=[]", "dataset.seed=3"]
    assert run(["verify", named, "workload=cosmoflow_h100", *same]) == 0


def test_what_nobody_knows_is_asked_for(written: Path, tmp_path: Path, printed: Printed) -> None:
    """As of a dataset that Python wrote, for keys without a name."""
    data = shutil.copytree(written, tmp_path / "data")
    tree = json.loads((data / "dlemu.json").read_text())
    del tree["workload"]
    (data / "dlemu.json").write_text(json.dumps(tree))
    said = printed("run", data, status=1)
    assert said == f"dlemu: {data} does not say for which workload it was written; {ASK}\n"
    assert printed("run", data, "workload=unet3d_h100", "--cfg", "job")


def test_a_workload_of_a_file_is_found_again(tmp_path: Path, printed: Printed) -> None:
    own, data = tmp_path / "own.yaml", tmp_path / "data"
    own.write_text("dataset: {format: npz, num_files_train: 3, record_length_bytes: 700}\n")
    printed("datagen", data, f"workload={own}")
    assert "name: own\n" in printed("run", data, "--cfg", "job")
    own.unlink()
    line = f"dlemu: {data} was written for workload={own}, which is not there; {ASK}\n"
    assert printed("run", data, status=1) == line


# A link planted under the temporary name of a file: the file that it leads to stays as it is.

TEXT = "another user's"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text(TEXT)
    return path


def test_of_a_dataset_a_run_and_a_cache(tmp_path: Path, victim: Path) -> None:
    names = ("data/dlemu.json", "data/dlemu.files.npy", "out/summary.json")
    paths = [tmp_path / name for name in (*names, "cache/dlemu-cache.json")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.with_name(f"{path.name}.partial").symlink_to(victim)
    cache = [f"cache.folder={tmp_path / 'cache'}", "cache.capacity=0.5"]
    words = [*QUICK, generate(tmp_path), *cache, f"output.folder={tmp_path / 'out'}"]
    assert run(["run", *words]) == 0
    assert victim.read_text() == TEXT
    assert all(path.stat().st_size and not path.is_symlink() for path in paths)


def test_only_files_and_links_are_removed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileExistsError):
        create(tmp_path / "fifo")
    assert (tmp_path / "fifo").is_fifo()


def test_a_name_that_is_taken_again_at_once_is_refused(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes the link anew between the removal and the second try."""
    link = tmp_path / "link"
    link.symlink_to(victim)
    monkeypatch.setattr("os.unlink", lambda path: None)
    with pytest.raises(FileExistsError):
        create(link)
    assert victim.read_text() == TEXT
