"""Files are read whole, once, and cold; what was written for it is removed. The models' files."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dlemu.cli import tools
from dlemu.cli.words import parse
from dlemu.errors import RunError, WorkloadError
from dlemu.host.devices import lies_in_memory
from dlemu.report.stored import read_result
from dlemu.report.text import render_text
from dlemu.report.tools import present_load
from dlemu.report.words import telling
from dlemu.storage.pagecache import Pages, drop, look
from dlemu.terminal import silent
from dlemu.tools import model_load as module
from dlemu.tools.model_load import WAYS, Load, Model, document_of, measure, read_once
from tests.lab.waiting import until

SIZES = (9_000_000, 4096, 5_000_001)
DRIVE: Any = "d3_s4520"
MODEL = Model("tiny", SIZES, "fp16", "here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if lies_in_memory(tmp_path):
        pytest.skip(f"{tmp_path} lies in memory")
    (tmp_path / "drive").mkdir()
    return tmp_path / "drive"


@pytest.fixture
def files(folder: Path) -> list[Path]:
    paths = [folder / f"{number}.bin" for number in range(len(SIZES))]
    for path, size in zip(paths, SIZES, strict=True):
        path.write_bytes(os.urandom(size))
    return paths


@pytest.fixture
def load(folder: Path) -> Load:
    """A small model on a drive whose rate is known."""
    return Load(model=MODEL, target=folder, readers=(1, 3), drive=DRIVE)


def test_what_is_read_is_in_the_page_cache_afterwards_but_for_o_direct(files: list[Path]) -> None:
    # The kernel may already have reclaimed a few pages where other tests need memory.
    for way, least, most in (("odirect", 0.0, 0.0), ("pread", 0.95, 1.0), ("mmap", 0.95, 1.0)):
        until(lambda: drop(files).resident == 0, "a cold page cache")
        read_once(files, way=way, num_readers=2)  # type: ignore[arg-type]
        share = look(files).share
        assert share is not None and least <= share <= most, way


def test_a_file_that_ends_early_is_an_error(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = files[0].stat()
    longer = os.stat_result((*truth[:6], truth.st_size + 8192, *truth[7:10]))
    monkeypatch.setattr(Path, "stat", lambda *_, **__: longer)
    with pytest.raises(RunError, match=r"0.bin ended early, at byte 8388608"):
        read_once(files[:1], way="pread", num_readers=2)


def test_a_model_is_written_read_cold_and_removed(
    load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "lists_gpu", lambda: False)
    events: list[str] = []

    answer = measure(load, telling(events.append))

    assert not any(folder.iterdir())
    assert answer["num_bytes"] == sum(SIZES)
    assert [(cell["way"], cell["readers"]) for cell in answer["cells"]] == [
        (way, readers) for way in WAYS[:3] for readers in (1, 3)
    ]
    assert all(c["pages_before"] == 0 and c["num_bytes"] == sum(SIZES) for c in answer["cells"])
    assert "left out: cufile: no GPU on this host" in events
    told = document_of(load, answer)
    assert "cold: 0 of 3420 pages in" in render_text(present_load(told))
    share = sum(SIZES) / answer["cells"][0]["seconds"] / 550e6
    assert told["cells"][0]["share_of_drive"] == pytest.approx(share)
    assert told["by_datasheet"][0]["seconds"] == sum(SIZES) / 550e6


@pytest.mark.parametrize("probed", [1.0, 1e15], ids=["slower", "faster"])
def test_a_drive_gives_no_less_than_its_files_were_read_with(
    load: Load, probed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe reads random pieces, which are slower to get of small files than the files."""
    monkeypatch.setattr(module, "lists_gpu", lambda: False)
    monkeypatch.setattr(module, "probe_rate", lambda *_, **__: probed)
    probing = load.model_copy(update={"drive": None})
    answer = measure(probing, silent)
    rates = [cell["bytes_per_second"] for cell in answer["cells"]]
    drive = max(probed, *rates)
    assert answer["drive_bytes_per_second"] == drive
    assert [cell["share_of_drive"] for cell in answer["cells"]] == [each / drive for each in rates]
    kind = "drive_by_probe" if probed == drive else "drive_by_reading"
    assert answer["drive_source"]["kind"] == kind
    said = render_text(present_load(document_of(probing, answer)))
    assert ("random pieces of them got 1 B/s" in said) == (probed == 1)


def test_an_interrupted_load_is_named_and_a_whole_one_kept(
    files: list[Path], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [f"files={folder}/*.bin", "ways=pread", "readers=1,3", "drive=d7_ps1010"]
    words = parse([*given, f"output={tmp_path / 'out'}"])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "read_once", Mock(side_effect=KeyboardInterrupt))
        tools.load(words)
    with pytest.raises(RunError, match=r"no result \(incomplete\): interrupted"):
        read_result(tmp_path / "out")
    told = tools.load(words).document
    assert read_result(tmp_path / "out").shown == told and len(told["cells"]) == 2


def test_a_share_of_a_model_is_labelled_and_kept_files_are_found(load: Load, folder: Path) -> None:
    own = folder / "dlemu_load.tiny"
    load = load.model_copy(
        update={"ways": ("odirect",), "readers": (2,), "scale": 0.1, "keep": True}
    )

    answer = measure(load, silent)

    sizes = [path.stat().st_size for path in sorted(own.iterdir())]
    assert sizes == [900_000, 4096, 500_000]
    text = render_text(present_load(document_of(load, answer)))
    assert "(scale=0.1 of the model); cold: 0 of" in text and "computed from a part" in text
    events: list[str] = []
    measure(load.model_copy(update={"keep": False}), telling(events.append))
    assert events[0] == f"{own} has the files already; they stay"
    assert len([*own.iterdir()]) == 3


def test_kept_files_of_another_scale_stay(load: Load, folder: Path) -> None:
    own = folder / "dlemu_load.tiny"
    load = load.model_copy(update={"ways": ("odirect",), "readers": (2,)})
    measure(load.model_copy(update={"scale": 0.5, "keep": True}), silent)
    kept = {path: path.read_bytes() for path in own.iterdir()}

    with pytest.raises(RunError, match=r"it was kept with another scale, .*; give its scale, or r"):
        measure(load.model_copy(update={"scale": 0.2}), silent)
    assert {path: path.read_bytes() for path in own.iterdir()} == kept

    first, *others = sorted(kept)
    first.unlink()
    measure(load.model_copy(update={"scale": 0.5}), silent)
    assert sorted(own.iterdir()) == others, "it was written for this command alone"


def test_a_file_of_several_names_is_read_once(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(files[0])
    os.link(files[0], tmp_path / "hard")
    names = (files[0], files[0], tmp_path / "link", tmp_path / "hard", files[1])
    events: list[str] = []
    plan = Load(files=names, ways=("pread",), readers=(1,), drive=DRIVE)
    listed: Any = f"[{','.join(map(str, names))}]"
    assert Load(files=listed, drive=DRIVE).files == plan.files

    answer = measure(plan, telling(events.append))

    assert (answer["num_files"], answer["num_bytes"]) == (2, SIZES[0] + SIZES[1])
    assert events[0] == "5 names of 2 files: read once"


def test_what_goes_wrong_leaves_nothing(
    load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = replace(MODEL, files=(1 << 50,))
    with pytest.raises(RunError, match=r"free, too little for 1 file, 1\.0 PiB; .*: scale=\d"):
        measure(load.model_copy(update={"model": huge}), silent)
    monkeypatch.setattr(module, "lists_gpu", lambda: False)
    with pytest.raises(RunError, match=r"^ways=cufile does not work on .*: no GPU on this host"):
        measure(load.model_copy(update={"ways": ("cufile",)}), silent)
    with pytest.raises(
        RunError, match=r"^/dev/shm lies in memory: no drive is read; name a folder"
    ):
        measure(load.model_copy(update={"target": Path("/dev/shm")}), telling(pytest.fail))
    tries = Mock(return_value=Pages(3, 7, 3420))
    monkeypatch.setattr(module, "drop", tries)
    monkeypatch.setattr("dlemu.tools.model_load.time.sleep", lambda seconds: None)
    with pytest.raises(RunError, match="7 of 3420 pages stay in the page cache"):
        measure(load, silent)
    assert tries.call_count > 4, "the kernel may be at work on a page for a moment"
    assert not any(folder.iterdir())


def test_a_folder_is_what_a_server_loads_from_it(folder: Path, files: list[Path]) -> None:
    """Before: "... is no key=value; write target=...". With a model it is where that goes."""

    def asked(*words: object) -> Load:
        return tools.load_of(parse([str(word) for word in words]))

    hub = folder / "snapshots"
    hub.mkdir()
    for number, path in enumerate(files):  # as Hugging Face's cache keeps them
        path.rename(path.with_suffix(""))
        (hub / f"model-{number}.safetensors").symlink_to(path.with_suffix(""))
    (hub / "config.json").write_text("{}")
    links = tuple(hub / f"model-{number}.safetensors" for number in range(len(files)))
    assert asked(folder).files == asked(f"files={folder}").files == links
    for link in links:
        link.unlink()
    others = {path.with_suffix("") for path in files} | {hub / "config.json"}
    assert {*asked(folder).files} == others, "a dataset, for example"
    named = asked(folder, "model=sdxl")
    assert (named.target, named.files) == (folder, ())
    for words, line in {
        (folder, hub): "one folder is needed",
        (folder, "model=sdxl", f"target={hub}"): "is the target, and target=",
        ("s3://bucket/model",): "is no folder of this host; name one, or a mount of it",
        ("files=s3://bucket/a.bin",): "is no file of this host; name files on a mount of it",
        (folder / "none",): "none is not a file; name the model's files",
    }.items():
        with pytest.raises(WorkloadError, match=line):
            asked(*words)
