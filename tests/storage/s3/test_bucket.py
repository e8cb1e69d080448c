"""From nothing to a verdict on an S3 server: datagen, verify, run, and what may be wrong there."""

import itertools
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from dlemu.cli.main import run
from dlemu.config.compose import compose_words
from dlemu.config.model import check_workload, load_workload
from dlemu.datagen.survey import find_dataset
from dlemu.datagen.write import generate
from dlemu.ranks.world import Alone
from dlemu.sizing.first import find_files
from dlemu.storage.place import path_of, place_of
from dlemu.storage.s3.store import Store
from tests.lab import commands
from tests.lab.commands import dlemu
from tests.lab.mpirun import mpirun
from tests.lab.object_server import Moto, RangeServer, moto_server
from tests.lab.real_datasets import LAYOUTS, make
from tests.lab.waiting import LONG

Printed = Callable[..., str]
FEW = ["dataset.num_files_train=8", "reader.batch_size=1"]
"""moto takes milliseconds for each request."""
SMALL, QUICK = [*commands.SMALL, *FEW], [*commands.QUICK, *FEW]
SECRET, KEY = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "AKIAIOSFODNN7EXAMPLE"


@pytest.fixture(scope="module")
def _started() -> Iterator[Moto]:
    with moto_server() as moto:
        yield moto


@pytest.fixture
def moto(_started: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", _started.url)
    _started.faults.refuse = 0
    _started.seen.clear()
    return _started


@pytest.fixture
def outside(moto: Moto, request: pytest.FixtureRequest) -> S3Store:
    """A bucket of the test's own, by a client that is not dlemu's."""
    name = f"b{abs(hash(request.node.name))}"
    urllib.request.urlopen(urllib.request.Request(f"{moto.url}/{name}", method="PUT")).close()
    return S3Store(name, region="us-east-1", client_options={"allow_http": True})


@pytest.fixture
def data(outside: S3Store) -> str:
    return f"dataset.data_folder=s3://{outside.config['bucket']}/some/where"


def names(outside: S3Store) -> list[str]:
    return sorted(each["path"] for page in obstore.list(outside) for each in page)


def test_from_nothing_to_a_verdict(
    outside: S3Store, data: str, moto: Moto, tmp_path: Path, printed: Printed
) -> None:
    assert "8 npz files of 1 sample" in printed("datagen", *SMALL, data)
    assert len(names(outside)) == 8 + 2, "objects and the two of the manifest, and no plan"
    assert "nothing was written" in printed("datagen", *SMALL, data)
    assert "no bad files; sizes and content were checked" in printed(
        "verify", *SMALL, data, "--full"
    )
    assert "would be accepted" in printed("run", "--dry-run", *QUICK, data)

    moto.seen.clear()
    told = printed("run", *QUICK, data, f"output.folder={tmp_path / 'out'}")
    # Two epochs of 8 objects, and the manifest: no LIST, no HEAD, to the unit.
    assert moto.seen.methods == {"GET": 2 * 8 + 1}
    assert "objects: 16 GETs, p50 " in told
    assert not re.search("page cache|no drive is seen|O_DIRECT", told)
    assert f"storage:  s3 at s3://{outside.config['bucket']}/some/where, from {moto.url}" in told
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    found = summary["measured"]["objects"]
    assert found["gets"] == 16
    assert found["received_bytes"] == summary["measured"]["read_bytes"]
    assert found["needed_bytes"] <= found["received_bytes"]
    assert found["p50_seconds"] <= found["p99_seconds"]
    assert summary["system"][0]["file_system"] == "s3"
    assert summary["system"][0]["drives"] == []
    assert summary["measured"]["page_cache_share"] is None
    assert summary["measured"]["wear"]["drives"] == [], "this host's drives have no part in it"
    assert summary["limit"]["name"] in ("storage", "none", "host cpu", "unclear", "loader")


def test_an_interrupted_datagen_goes_on(
    outside: S3Store, data: str, moto: Moto, printed: Printed
) -> None:
    puts, original = itertools.count(), Store.put

    def put(self: Store, key: str, *part: Any, **more: Any) -> None:
        if "/train/" in key and next(puts) >= 3:  # those of other threads, too
            raise KeyboardInterrupt
        original(self, key, *part, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Store, "put", put)
        with pytest.raises(KeyboardInterrupt):
            generate(check_workload(compose_words([*SMALL, data])), world=Alone())
    assert "some/where/dlemu.json" not in names(outside)
    assert "is unfinished; start dlemu datagen" in printed("run", *QUICK, data, status=1)
    assert "unfinished dataset" in printed("datagen", *SMALL, data, "dataset.seed=7", status=1)
    moto.seen.clear()
    assert "5 written now, the others were there" in printed("datagen", *SMALL, data)
    assert moto.seen.methods["PUT"] == 2 + 5 + 1 + 2
    assert run(["verify", *SMALL, data, "--full"]) == 0
    lost = next(name for name in names(outside) if "/train/" in name)
    obstore.delete(outside, lost)
    assert "write:    1 file" in printed("datagen", *SMALL, data, "--dry-run")
    assert "1 written now, the others were there" in printed("datagen", *SMALL, data)
    assert run(["verify", *SMALL, data, "--full"]) == 0
    assert not any("/.dlemu/" in name for name in names(outside))
    larger = printed("datagen", *SMALL, data, "dataset.num_files_train=9", status=1)
    assert "a dataset in a bucket is not extended" in larger


def test_damage_is_found_and_repaired(
    outside: S3Store, data: str, printed: Printed, tmp_path: Path
) -> None:
    """Of files that have indexes beside them."""
    words = [data, "dataset.format=tfrecord"]
    out = f"output.folder={tmp_path / 'out'}"
    assert run(["datagen", *SMALL, *words]) == 0
    assert len(names(outside)) == 2 * 8 + 2
    objects = [name for name in names(outside) if name.endswith(".tfrecord")]
    missing, cut, other = objects[3], objects[5], objects[7]
    good = bytes(obstore.get(outside, other).bytes())
    obstore.delete(outside, missing)
    obstore.put(outside, cut, bytes(obstore.get(outside, cut).bytes())[:-1])
    obstore.put(outside, other, good[:6000] + bytes([good[6000] ^ 1]) + good[6001:])
    obstore.put(outside, f"{missing}.copy", b"x")
    told = printed("run", *QUICK, *words, out, status=1)
    assert told.endswith("dlemu verify lists what is damaged of a dataset of dlemu's\n")
    told = printed("verify", *SMALL, *words, "--full", "--repair", status=1)
    assert f"{Path(missing).name}: is missing" in told
    assert f"{Path(cut).name}: has " in told
    assert f"{Path(other).name}: differs from what was written at byte 6000" in told
    assert "3 bad files, 3 written again, 1 extra file" in told, "the extra one stays"
    obstore.delete(outside, f"{missing}.copy")
    assert run(["verify", *SMALL, *words, "--full"]) == 0
    assert run(["run", *QUICK, *words, out]) == 0


def test_other_objects_are_not_touched(outside: S3Store, data: str, printed: Printed) -> None:
    obstore.put(outside, "some/where/train/mine.npz", b"x")
    told = printed("datagen", *SMALL, data, status=1)
    assert "train/mine.npz is no file of this dataset; move it elsewhere" in told
    assert names(outside) == ["some/where/train/mine.npz"]


def test_what_is_wrong_there_gets_one_line(moto: Moto, data: str, printed: Printed) -> None:
    nobody = "storage.endpoint_url=http://127.0.0.1:9"
    for words, line in (
        (nobody, "does not answer (connection refused), in each of 2 tries; is the server up"),
        ("dataset.data_folder=s3://nowhere/x", "has no bucket nowhere; make it"),
    ):
        said = printed("run", *QUICK, "storage.retries=1", data, words, status=1)
        assert line in said and said.count("\n") == 1


def test_wrong_credentials_get_one_line(
    moto: Moto, data: str, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moto import settings
    from moto.core.authorization import ActionAuthenticatorMixin

    monkeypatch.setattr(ActionAuthenticatorMixin, "request_count", 0)
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
    told = printed("run", *QUICK, data, status=1)
    assert "(403 InvalidAccessKeyId); check AWS_ACCESS_KEY_ID" in told and told.count("\n") == 1


def test_a_search_reads_objects_and_secrets_are_in_no_output(
    moto: Moto,
    data: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    keys = [
        f"storage.storage_options.access_key_id={KEY}",
        f"storage.storage_options.secret_access_key={SECRET}",
        f"output.log={tmp_path / 'log'}",
        "dataset.num_files_train=20",
        "reader.read_threads=1",
        "reader.prefetch_size=1",
        data,
    ]
    out = f"output.folder={tmp_path / 'out'}"
    assert run(["datagen", *SMALL, *keys]) == 0
    assert run(["run", "-v", *QUICK, *keys, out, f"--csv={tmp_path / 'rows.csv'}"]) == 0
    assert run(["report", str(tmp_path / "out"), f"--html={tmp_path / 'page.html'}"]) == 0
    assert run(["run", *QUICK, *keys, "--cfg=job"]) == 0
    assert run(["run", *QUICK, *keys, "--cfg=job", "--json"]) == 0
    moto.seen.clear()
    searching = ["size.quick=true", "size.confirm=0", "size.start=1", "size.max_accelerators=1"]
    found = f"output.folder={tmp_path / 'size'}"
    assert run(["size", *QUICK, *keys, *searching, found, "--json"]) == 0
    assert moto.seen.methods.keys() == {"GET"}
    words = ["run", *QUICK, *keys, "storage.secret_access_key=a,b c"]
    run([*words, "storage.storage_options.secret_access_keys=1"])
    run(["run", *QUICK, *keys, f"storage.endpoint_url=http://me:{SECRET}@a"])
    told = capsys.readouterr()
    assert "the server may have it in memory; up to" in told.err
    assert "O_DIRECT" not in told.err and "x drive" not in told.err
    texts = {"stdout": told.out, "stderr": told.err}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    texts |= {str(path): path.read_bytes().decode("latin-1") for path in files}
    assert {Path(name).name for name in texts} >= {
        "stdout", "log", "config.yaml", "summary.json", "page.html", "rows.csv", "host.0.jsonl"
    }  # fmt: skip
    for name, text in texts.items():
        for secret in (SECRET, KEY, "a,b c"):
            assert secret not in text, name
    assert "storage.storage_options.secret_access_key=..." in texts[str(tmp_path / "log")]


@pytest.mark.mpi
def test_only_rank_0_needs_the_environment(moto: Moto, data: str, tmp_path: Path) -> None:
    """Launchers do not forward AWS_* to other hosts."""
    assert run(["datagen", *SMALL, data]) == 0
    job = " ".join(["run", *QUICK, data, "num_accelerators=2", f"output.folder={tmp_path / 'out'}"])
    alone = "env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY -u AWS_ENDPOINT_URL"
    rank = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
    script = f'[ "{rank}" = 0 ] || A="{alone}"; exec $A {sys.executable} -m dlemu {job}'
    moto.seen.clear()
    done = subprocess.run(
        mpirun(2, "sh", "-c", script), capture_output=True, text=True, timeout=LONG, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert moto.seen.methods == {"GET": 2 * 8 + 1}


def test_a_server_that_hangs_is_named(tmp_path: Path) -> None:
    """The watchdog ends the run, and says which worker waits for what from where."""
    commands.generate(tmp_path, SMALL)
    with RangeServer(tmp_path) as server:
        server.faults.hang, server.faults.hang_after = threading.Event(), 1
        words = [*QUICK, "dataset.data_folder=s3://any/data", "output.stall_seconds=2"]
        done = dlemu("run", *words, f"storage.endpoint_url={server.url}", cwd=tmp_path)
        server.faults.hang.set()
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "no progress for 2" in line
    assert "reads train/img_" in line
    assert f" from {server.url}" in line


BY_READING = ("imagenet_tfrecords", "laion", "clicks")
"""Layouts whose objects are counted by reading all of each: the first and the last alone."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_objects_of_others_are_surveyed(
    outside: S3Store, moto: Moto, tmp_path: Path, printed: Printed, name: str
) -> None:
    """Before: "has no dlemu.json, ... objects are never listed in a run"."""
    keys = make(name, tmp_path / "data")
    top = Path(str(keys["data_folder"]))
    for path in top.rglob("*"):
        if path.is_file():
            obstore.put(outside, f"of/others/{path.relative_to(top)}", path.read_bytes())
    if (top / "train").is_dir():  # as a console makes a folder
        obstore.put(outside, "of/others/train", b"")
    url = f"s3://{outside.config['bucket']}/of/others"
    words = ["workload=unet3d_h100", f"dataset.data_folder={url}", "reader.batch_size=2"]
    job = load_workload("unet3d_h100", {"dataset.data_folder": str(top)})
    there = find_dataset(job, Alone()).layout
    run = ["run", *words, "reader.data_loader=threads", "train.computation_time=0.001"]
    run += ["train.epochs=1", "metric.au=0.0001", f"output.folder={tmp_path / 'run'}"]
    if name == "histology":
        assert "chunks, which only h5py reads, and it opens no file" in printed(*run, status=1)
        return
    said = printed(*run)
    assert f"note: no manifest in {url}: {there.num_files} {keys['format']} files were" in said
    few = f"samples were counted in the first and the last of {there.num_files} objects"
    assert (few in said) == (name in BY_READING and there.num_files > 2)
    survey = json.loads((tmp_path / "run" / "survey.json").read_text())
    assert survey["num_samples"] == there.num_samples
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert summary["metric"]["train_au_percentage"]
    read = {path.relative_to(top) for path in top.rglob("*") if path.is_file()}
    gets = {key.partition("/of/others/")[2] for key in moto.seen.keys}
    assert len(gets & {*map(str, read)}) >= there.num_files, "each was read"
    ours = {"of/others/train"} if (top / "train").is_dir() else set[str]()
    assert {*names(outside)} == {f"of/others/{each}" for each in read} | ours


def test_a_search_and_a_try_read_objects_of_others(
    outside: S3Store, moto: Moto, tmp_path: Path, printed: Printed
) -> None:
    for number in range(40):
        obstore.put(outside, f"of/cats/cat.{number}.jpg", bytes(3000 + number))
    url = f"s3://{outside.config['bucket']}/of"
    job = ["reader.batch_size=1", "reader.read_threads=1", "reader.prefetch_size=1"]
    job += ["train.computation_time=0.01", "train.epochs=1", "reader.data_loader=threads"]
    search = ["size", "workload=resnet50_h100", f"dataset.data_folder={url}", "size.quick=true"]
    search += [*job, "size.max_accelerators=1", "size.confirm=1", "metric.au=0.0001"]
    note = f"no manifest in {url}: 40 jpeg files were found"
    assert f"dataset:  {note}" in printed(*search, "--dry-run")
    folder = tmp_path / "size"
    assert f"note: {note}" in printed(*search, f"output.folder={folder}")
    (survey,) = folder.glob("*survey.json")
    assert json.loads(survey.read_text())["num_samples"] == 40
    assert not [*folder.glob("runs/*/survey.json")], "the search keeps it for its runs"
    (run,) = folder.glob("runs/*/summary.json")
    assert any(note in str(each) for each in json.loads(run.read_text())["notes"])

    keys: dict[str, object] = {
        **{"dataset.record_length_bytes": 3000, "dataset.num_samples_per_file": 1},
        "reader.data_loader": "threads",
    }
    workload = load_workload("resnet50_h100", keys)
    place = place_of(path_of(url))
    found = find_files(place, workload)
    assert found is not None and not found.written and found.layout.num_files == 40
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dlemu.sizing.first._MOST_OBJECTS", 39)
        assert find_files(place, workload) is None, "many objects are not listed"
    unlike = load_workload("unet3d_h100", keys)
    assert find_files(place, unlike) is None, "no pictures are read for volumes"
