"""Places: the promises that all keep, one from outside up to a verdict, and their names."""

import importlib
import json
import pickle
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from dlemu.config.model import check_workload
from dlemu.config.source import acts
from dlemu.contract import _OF_PLACES, main, place_faults
from dlemu.errors import DatasetError, RunError, WorkloadError
from dlemu.storage.folder import DevicePlace, Folder, local_place
from dlemu.storage.place import PLACES, Place, path_of, place_of
from tests.lab.commands import QUICK, SMALL
from tests.lab.object_server import moto_server

Printed = Callable[..., str]
EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = "my_place:PLACE://file"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> type[Place]:
    """The place of the examples; fsspec comes with torch."""
    pytest.importorskip("fsspec", reason="fsspec is not installed: it comes with torch")
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    monkeypatch.setattr(PLACES, "_loaded", {})
    found: type[Place] = importlib.import_module("my_place").PLACE
    return found


class Forgetful(Folder):
    """Keeps no promise."""

    kind, has_paths, witness = "", False, "requests"

    def open(self, name: str) -> IO[bytes]:
        raise ZeroDivisionError

    def list(self, below: str) -> Iterator[Any]:
        yield "train/other", 1

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        self.path.joinpath(name).parent.mkdir(exist_ok=True)
        with open(self.path / name, "ab") as file:
            file.writelines(pieces)

    def delete(self, *names: str) -> None:
        self.path.joinpath(*names).unlink()

    def whole(self, name: str) -> bytes:
        return b""

    reader = probe = writing = open  # type: ignore[assignment]
    __reduce__ = open  # type: ignore[assignment]


def test_a_folder_keeps_the_contract_and_the_contract_names_what_is_not_kept(
    tmp_path: Path,
) -> None:
    assert [*place_faults(Folder(tmp_path))] == [] and not [*tmp_path.iterdir()]
    found = [*place_faults(Forgetful(tmp_path))]
    assert [each.figures["promise"] for each in found] == [*_OF_PLACES]


def test_a_bucket_keeps_the_contract(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with moto_server() as moto:
        for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b")):
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", moto.url)
        made = urllib.request.Request(f"{moto.url}/places", method="PUT")
        urllib.request.urlopen(made).close()
        assert main(["s3://places/some/where"]) == 0
    assert capsys.readouterr().out == "s3://places/some/where: sound\n"
    assert main(["none://x"]) == 1
    assert "places are folders, s3://" in capsys.readouterr().out


def test_the_example_is_a_place_in_memory_and_on_a_drive(
    example: type[Place], tmp_path: Path
) -> None:
    for url in (f"{OWN}{tmp_path}", "my_place:PLACE://memory/some/where"):
        place = place_of(path_of(url))
        assert type(place) is example and [*place_faults(place)] == []
    place = place_of(path_of(f"{OWN}{tmp_path}"))
    with pytest.raises(DatasetError, match=r"file/.*/none is missing; dlemu verify lists"):
        place.get("none", 0, 1)
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match=r"folder cannot be read \(IsADirectoryError: "):
        place.get("folder", 0, 1)


def test_from_nothing_to_a_verdict_in_a_place_of_ones_own(
    example: type[Place], tmp_path: Path, printed: Printed
) -> None:
    url = f"{OWN}{tmp_path}/data"
    words = [*SMALL, f"dataset.data_folder={url}"]
    said = printed("run", *QUICK, words[-1], f"output.folder={tmp_path / 'none'}", status=1)
    assert "holds no dlemu.json and no files; generate it: dlemu datagen" in said
    assert "56 npz files of 1 sample" in printed("datagen", *words)
    assert len([*tmp_path.glob("data/train/*.npz")]) == 56, "read as others would"
    assert not (tmp_path / "data" / ".dlemu").exists() or not any(tmp_path.glob("data/.dlemu/*"))
    assert "nothing was written" in printed("datagen", *words)
    assert "a dataset in a file system of fsspec is not extended" in printed(
        "datagen", *words, "dataset.num_files_train=57", status=1
    )
    assert "no bad files; sizes and content were checked" in printed("verify", url, "--full")

    run = ["run", *QUICK, words[-1], f"output.folder={tmp_path / 'run'}"]
    said = printed(*run, "reader.data_loader=pytorch", "reader.read_threads=1", status=1)
    assert f"reader.data_loader=pytorch does not read {url}: use reader.data_loader=threads" in said
    assert "fsspec does not survive the fork of a worker" in said
    printed(*run)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["system"][0]["file_system"] == "fsspec"
    assert summary["system"][0]["mount"] == summary["dataset"]["folder"] == url
    requests = summary["measured"]["objects"]
    assert requests["gets"] == 2 * 56 and requests["retries"] == 0
    assert summary["measured"]["page_cache_share"] is None, "nobody knows what a server keeps"
    assert "112 GETs" in printed("report", tmp_path / "run")

    damaged = next(tmp_path.glob("data/train/*_03_*.npz"))
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert f"{damaged.name}: differs" in printed("verify", url, "--full", status=1)
    assert "1 bad file, 1 written again" in printed("verify", url, "--full", "--repair")
    assert damaged.read_bytes() == data


def test_checkpoints_go_to_a_place_of_ones_own(
    example: type[Place], tmp_path: Path, printed: Printed
) -> None:
    words = ["model=llama3_8b", "checkpoint.scale=1e-6", "checkpoint.time_between_checkpoints=0"]
    words += ["checkpoint.num_checkpoints_write=2", "checkpoint.num_checkpoints_read=2"]
    words += [f"checkpoint.checkpoint_folder={OWN}{tmp_path}/ck"]
    printed("checkpoint", *words, f"output.folder={tmp_path / 'out'}", "--verify")
    assert {each.name for each in tmp_path.glob("ck/*")} >= {"global_epoch1_step1"}
    words.append(f"output.folder={tmp_path / 'again'}")
    assert "removed: 2 checkpoints" in printed("checkpoint", *words)


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("s3://", "dataset.data_folder=s3:// must be s3://BUCKET/PREFIX"),
        ("s3://b/../c", "dataset.data_folder=s3://b/../c must be s3://BUCKET/PREFIX"),
        (
            "folder:///mnt",
            "dataset.data_folder=folder:///mnt: a folder is named by its path; leave folder:// out",
        ),
        ("gs://b", "dataset.data_folder=gs://b: places are folders, s3:// and MODULE:PLACE://"),
        ("no.module://x", "dataset.data_folder=no.module cannot be used (ModuleNotFoundError"),
        ("json:loads://x", "dataset.data_folder=json:loads cannot be used (TypeError"),
        ("dlemu.storage.place:Place://x", "Place cannot be used: it must be a subclass of dlemu.s"),
    ],
)
def test_what_names_no_place_is_one_line(url: str, line: str) -> None:
    with pytest.raises(WorkloadError) as error:
        path_of(url)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_a_path_keeps_its_place_when_it_is_joined_and_sent() -> None:
    path = path_of("s3://bucket/some//where/") / "train" / "a"
    assert str(path) == "s3://bucket/some/where/train/a" == str(pickle.loads(pickle.dumps(path)))
    assert path.parent.parent == path_of("s3://bucket/some/where")
    assert path.absolute() == path.resolve() == path and not path.exists()
    assert place_of(path.parent).kind == "s3" and path_of("/mnt/x") == Path("/mnt/x")
    assert replace(place_of(path), number=3).path == path


def test_a_document_imports_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PLACES, "_loaded", {})
    for key in ("dataset.data_folder", "checkpoint.checkpoint_folder"):
        assert acts(key, "own:PLACE://x") and not acts(key, "s3://b/x") and not acts(key, "/mnt")
    assert acts("size.targets", ["/mnt", "own:PLACE://x"])
    assert not acts("storage.endpoint_url", "http://10.0.0.7:9000")


def test_links_to_folders_are_followed_but_for_those_that_lead_back(tmp_path: Path) -> None:
    """Before: "Too many levels of symbolic links", of a folder with a link to itself."""
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one / "a", one / "b", other / "c"):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (one / "a" / "self").symlink_to(".")
    (one / "a" / "above").symlink_to(tmp_path)
    (one / "a" / "beside").symlink_to(one / "b")
    (one / "far").symlink_to(other)
    (other / "back").symlink_to(one)
    (other / "near").symlink_to("c")
    found = sorted(name for name, _ in local_place(one).list(""))
    assert found == ["a/beside/file", "a/file", "b/file", "far/c/file", "far/near/file"]


def test_a_block_device_is_read_and_never_written(tmp_path: Path) -> None:
    path = tmp_path / "device"
    path.write_bytes(b"device")
    device = DevicePlace(path)
    with pytest.raises(RunError, match="is a block device, which is only read"):
        device.put("a", [b"x"])
    with pytest.raises(RunError, match="is a block device, which is only read"):
        device.delete("a")
    assert type(local_place(path)) is Folder and not device.is_there()


def test_a_place_takes_the_keys_of_requests_and_no_others() -> None:
    """Keys without an effect are listed by a run."""
    words = {"dataset": {"format": "npz", "data_folder": "s3://b/x", "num_files_train": 8}}
    job = check_workload(words)
    assert not job.place.has_paths and job.place.word == "a bucket"
    assert check_workload({"dataset": {"format": "npz", "num_files_train": 8}}).place.has_paths
