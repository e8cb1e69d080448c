"""Checkpoints lie in a bucket; what is there is the record's, or the bucket is refused."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlemu.checkpoint import folder
from dlemu.checkpoint.files import PlaceWriter
from dlemu.checkpoint.folder import RECORD
from dlemu.cli.main import run
from dlemu.config.sections import StorageSection
from dlemu.datagen.assemble import Content
from dlemu.datagen.target import Stopped
from dlemu.errors import RunError
from dlemu.storage.place import path_of, place_of
from dlemu.storage.s3 import access_of
from dlemu.storage.s3.store import Store
from tests.lab import warm
from tests.lab.object_server import Moto, moto_server
from tests.lab.waiting import until

PART = 64 << 10
WORDS = ["checkpoint", "s3://training/ck", "model=unet3d", "model.parallelism.zero_stage=3"]
WORDS += ["num_accelerators=2", f"model.model_size_bytes={6 * PART + 7}", "progress=off"]
WORDS += ["checkpoint.num_checkpoints_write=2", "checkpoint.num_checkpoints_read=2"]


@pytest.fixture
def moto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moto]:
    """A server with the bucket "training" that takes small parts, and the environment for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART)
    monkeypatch.setattr(folder, "_LEAST_BYTES", PART)
    with moto_server() as moto:
        for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b")):
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", moto.url)
        request = urllib.request.Request(f"{moto.url}/training", method="PUT")
        urllib.request.urlopen(request).close()
        moto.seen.clear()
        yield moto


def store(**keys: Any) -> Store:
    access = access_of(StorageSection(**keys))
    return Store(access, access.endpoints[0], "training")


def writing(**keys: Any) -> PlaceWriter:
    place = place_of(path_of("s3://training"), access_of(StorageSection(**keys)))
    return PlaceWriter(place, Content(7), piece_bytes=PART, at_once=1)


def names(*steps: int) -> set[str]:
    files = {f"ck/global_epoch1_step{step}/model_states-{n}.pt" for step in steps for n in (0, 1)}
    return files | {f"ck/{RECORD}"}


def there() -> set[str]:
    return {name for name, _ in store().sizes("")}


def test_objects_are_written_in_parts_read_by_ranges_and_replaced(
    moto: Moto, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["checkpoint.keep=1", "checkpoint.io_depth=4", "checkpoint.piece_bytes=4096"]
    keys += ["output.folder=out"]
    assert run([*WORDS, *keys, "--verify"]) == 0
    assert there() == names(2), "the older one was removed"
    # 2 checkpoints of 2 objects in 7 parts; the record at the start and behind each.
    assert moto.seen.methods["PUT"] == 2 * 2 * 7 + 3
    assert moto.seen.ranges == 2 * 2 * 7
    told = json.loads(Path("out/summary.json").read_text())
    assert told["system"][0]["file_system"] == "s3" and told["checkpoint"]["cached_share"] is None
    assert told["checkpoint"]["piece_bytes"] == PART
    assert told["checkpoint"]["saves"][0]["parts"]["fsync"] == 0
    assert told["measured"]["wear"]["drives"] == []
    assert "page cache" not in capsys.readouterr().out
    assert run([*WORDS, "checkpoint.num_checkpoints_read=0"]) == 0
    assert "removed: 1 checkpoint of an earlier command" in capsys.readouterr().out
    assert there() == names(1, 2)
    reads = [*WORDS, "checkpoint.num_checkpoints_write=0", "--verify"]
    assert run(reads) == 0
    name = "ck/global_epoch1_step2/model_states-1.pt"
    data = bytearray(store().get_whole(name))
    data[2 * PART] ^= 1
    for damage, line in (
        (data, f"is damaged at byte {2 * PART:,}"),
        (data[:-1], f"it holds {len(data) - 1} bytes, {len(data)} are wanted"),
        (None, "is missing"),
    ):
        store().delete(name) if damage is None else store().put(name, memoryview(damage))
        capsys.readouterr()
        assert run(reads) == 1
        said = capsys.readouterr().err
        assert name in said and said.endswith(f"{line}; write the checkpoints again\n")


def test_an_object_of_which_only_a_part_was_made_is_not_there(
    moto: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Content.fill

    def stop_soon(content: Content, out: Any, sample: int, offset: int = 0) -> None:
        fill(content, out, sample, offset)
        if offset == 5 * PART:
            writer.stop()

    monkeypatch.setattr(Content, "fill", stop_soon)
    with writing() as writer, pytest.raises(Stopped):
        writer.write(path_of("s3://training/a"), 100 * PART, sample=0)
    assert there() == set() and moto.seen.methods["DELETE"] == 1


def test_a_part_is_sent_again_and_a_server_that_takes_none_is_named(moto: Moto) -> None:
    size, path = 3 * PART, path_of("s3://training/a")
    with writing(retries=2) as writer:
        moto.faults.refuse = 2
        writer.write(path, size, sample=0)
        assert len(store().get_whole("a")) == size
        moto.faults.refuse = 10**6
        with pytest.raises(RunError, match=r"/a cannot be written: \S+ answers 503, in each of 3 "):
            writer.write(path, size, sample=1)
    moto.faults.refuse = 0


def test_after_a_kill_the_same_command_replaces_what_was_left(moto: Moto) -> None:
    many = "checkpoint.num_checkpoints_write=1000"
    process = warm.Popen([*warm.COMMAND, *WORDS, many], stdout=-1, stderr=-1, env=os.environ)
    until(lambda: f"ck/{RECORD}" in there() and len(there()) > 2, "objects", by=process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert there() <= names(*range(1, 1000))
    assert run([*WORDS, "checkpoint.num_checkpoints_read=0"]) == 0
    assert there() == names(1, 2)
