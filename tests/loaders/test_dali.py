"""DALI's own readers and dlemu's read what others wrote."""

import contextlib
import ctypes
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nvidia.dali", reason="needs DALI: pip install 'dlemu[dali-cuda13]'")

from dlemu.config.model import check_workload
from dlemu.errors import DatasetError, RunError, WorkloadError
from dlemu.loaders.dali import pipelines
from dlemu.loaders.dali.device import spread_batch
from dlemu.loaders.dali.loader import DaliLoader
from dlemu.loaders.dali.pipelines import read_numpy
from dlemu.storage.counted import PathBytes
from dlemu.storage.gpu import cuda
from dlemu.storage.gpu.cufile import availability
from tests.lab.waiting import until
from tests.loaders.contract import BY_DALI, Case, check_epoch, make_case, payload_bytes, read_all


def open_dali(case: Case, **options: bool) -> DaliLoader:
    loader = case.open(**options)
    assert isinstance(loader, DaliLoader)
    return loader


def case_of(folder: Path, dataset: str, keys: Mapping[str, object], accelerators: int = 1) -> Case:
    keys = {"reader.data_loader": "dali", **keys}
    return make_case(folder, dataset, keys, num_accelerators=accelerators)


@pytest.mark.parametrize(
    ("dataset", "keys", "way"),
    [
        ("npy", {}, "numpy"),
        ("npy", {"reader.odirect": True}, "numpy"),
        ("tfrecord", {}, "tfrecord"),
        ("tfrecord of 13", {}, "tfrecord"),
        ("jpeg", {}, "pictures"),
        ("jpeg", {"reader.odirect": True}, "host memory"),
        ("jpeg", {"reader.preprocess_time": 0.001}, "host memory"),
        # DALI's reader would go through the page cache all the same.
        ("tfrecord", {"reader.odirect": True}, "host memory"),
        ("npz", {}, "host memory"),
        ("hdf5", {}, "host memory"),
        ("npy of 5", {}, "host memory"),
        # What DALI's readers do not do.
        ("tfrecord", {"reader.check_crc": True}, "host memory"),
        ("npy", {"reader.decode": "library"}, "host memory"),
        ("npy", {"reader.preprocess_time": 0.001}, "host memory"),
    ],
)
def test_dali_reads_itself_wherever_it_does_what_is_asked(
    tmp_path: Path, dataset: str, keys: dict[str, object], way: str
) -> None:
    loader = open_dali(case_of(tmp_path, dataset, keys))
    assert loader.way == way
    loader.close()


def test_without_an_index_our_own_reader_reads(tmp_path: Path) -> None:
    case = case_of(tmp_path, "tfrecord of 13", {})
    for file in range(case.layout.num_files):
        (tmp_path / case.layout.index_paths(file)[0]).unlink()
    with closing(open_dali(case, known_places=False)) as loader:
        assert loader.way == "host memory"
        check_epoch(case, loader, 0)


@pytest.mark.parametrize("loop", ["rule", "pipelined"])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_its_own_readers_are_asked_when_the_loop_would_ask(
    tmp_path: Path, loop: str, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first request makes `prefetch` batches; each batch that is taken asks for one more."""
    keys = {"reader.prefetch_size": prefetch, "train.loop": loop, "reader.batch_size": 2}
    case = case_of(tmp_path, "npy", keys)
    asked = Mock()

    def counted(*given: Any, **keys: Any) -> Any:
        pipeline = read_numpy(*given, **keys)
        asked.side_effect = pipeline.schedule_run
        pipeline.schedule_run = asked
        return pipeline

    monkeypatch.setattr(pipelines, "read_numpy", counted)
    loader = open_dali(case)
    for step, _ in enumerate(loader.epoch(0, case.plan(0))):
        taken = step + 1 if loop == "rule" else step + 2
        until(lambda: asked.call_count >= 1 + taken)  # noqa: B023
        assert asked.call_count == 1 + taken
        if step == 4:
            break
    loader.close()


@pytest.mark.parametrize("prefetch", [1, 2])
@pytest.mark.parametrize("dataset", ["npy", "jpeg", "npz"])
def test_it_reads_as_far_ahead_as_it_says(tmp_path: Path, dataset: str, prefetch: int) -> None:
    """By DALI's readers and by ours; with DALI's own iterator for PyTorch they open as many."""
    keys = {"reader.prefetch_size": prefetch, "reader.batch_size": 3, "reader.read_threads": 2}
    case = case_of(tmp_path, dataset, keys)
    ahead = case.workload.reader.batches_ahead
    with opened_below(tmp_path / "train") as opened, closing(open_dali(case)) as loader:
        opened()
        steps = loader.epoch(0, case.plan(0))
        next(steps)
        until(lambda: len(opened()) >= 3 * (1 + ahead))
        assert len(opened()) <= 3 * (1 + ahead) + 1, "DALI opens one file more, to see its shape"
        next(steps)
        until(lambda: len(opened()) >= 3 * (2 + ahead))


@contextlib.contextmanager
def opened_below(folder: Path) -> Iterator[Callable[[], set[str]]]:
    """Give what tells the files of a folder that were opened so far (inotify)."""
    libc, in_open = ctypes.CDLL(None), 0x20
    number = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(number, str(folder).encode(), in_open) >= 0
    found: set[str] = set()

    def opened() -> set[str]:
        with contextlib.suppress(BlockingIOError):
            while events := os.read(number, 1 << 16):
                while events:
                    length = int.from_bytes(events[12:16], "little")
                    found.add(events[16 : 16 + length].rstrip(b"\0").decode())
                    events = events[16 + length :]
        return found - {""}

    yield opened
    os.close(number)


def test_each_of_its_threads_reads_while_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the drive's rate while it was read from is that of all the time."""
    seconds = itertools.count()
    monkeypatch.setattr(pipelines, "perf_counter", lambda: float(next(seconds)))
    case = case_of(tmp_path, "npy", {"reader.read_threads": 4})
    with closing(open_dali(case)) as loader:
        [first, *_] = list(loader.epoch(0, case.plan(0)))
    assert first[0].read_seconds == 4, "waited for 1 s"


def test_the_pipeline_is_there_when_the_first_step_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job builds it before its loop: on a GPU that takes a second or two for pictures."""
    case = case_of(tmp_path, "npy", {})
    built: list[int] = []
    read = pipelines.read_numpy

    def noted(*given: Any, **named: Any) -> Any:
        built.append(1)
        return read(*given, **named)

    monkeypatch.setattr(pipelines, "read_numpy", noted)
    with closing(open_dali(case)) as loader:
        steps = loader.epoch(0, case.plan(0))
        assert built, "before a batch is asked for"
        assert len(list(steps)) == len(case.plan(0).samples)


@pytest.mark.parametrize("suffix", ["jpeg", "png"])
def test_a_job_s_own_pictures_are_decoded(tmp_path: Path, suffix: str) -> None:
    """Training gets their pixels, cut or padded; dlemu's own pictures have none, only bytes."""
    Image = pytest.importorskip("PIL.Image")
    pytest.importorskip("nvidia.nvimgcodec", reason="DALI decodes with it: a need of its package")
    pixels = np.arange(12 * 3, dtype=np.uint8).reshape(12, 1, 1, 3).repeat(8, 1).repeat(9, 2)
    (tmp_path / "train").mkdir()
    for number, each in enumerate(pixels):
        Image.fromarray(each).save(tmp_path / "train" / f"img_{number:02d}_of_12.{suffix}")
    dataset = {"data_folder": str(tmp_path), "format": suffix, "num_files_train": 12}
    lengths = {"record_length_bytes": 600, "record_length_bytes_resize": 220}
    reader = {"data_loader": "dali", "batch_size": 3}
    case = Case(check_workload({"dataset": dataset | lengths, "reader": reader}))
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "train").iterdir()}
    with closing(case.open(known_places=False)) as loader:
        for [batch] in loader.epoch(0, case.plan(0)):
            assert batch.lengths is not None
            assert batch.data is not None
            assert batch.lengths.tolist() == [220] * 3
            assert batch.read_seconds == 0 < batch.decode_seconds, "decoding takes far longer"
            names = [Path(case.layout.path(file)).name for file in batch.samples.tolist()]
            assert batch.num_bytes == sum(sizes[name] for name in names)
            for sample, row in zip(batch.samples.tolist(), batch.data, strict=True):
                near = np.abs(row[:216].astype(int) - pixels[sample].reshape(-1)) <= 3
                assert near.all(), "JPEG loses little of one colour"
                assert not row[216:].any()


def test_counts_what_its_own_readers_read(tmp_path: Path) -> None:
    case = case_of(tmp_path, "npy", {})
    with closing(open_dali(case)) as loader:
        [first, *_] = steps = check_epoch(case, loader, 0)
        sizes = case.layout.sizes(first[0].samples)
        assert first[0].num_bytes == (sizes + 4096).sum(), "whole files"
        total = sum(batches[0].num_bytes for batches in steps)
        assert loader.path_bytes() == PathBytes(host=total)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "cut": lambda path: os.truncate(path, 5000),
    "enlarged": lambda path: np.save(path, np.zeros((50_000, 1, 1), np.uint8)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("direct", [False, True])
def test_damage_is_told_in_one_line(tmp_path: Path, damage: str, direct: bool) -> None:
    case = case_of(tmp_path, "npy", {"reader.odirect": direct})
    path = tmp_path / case.layout.path(int(case.plan(0).samples[2, 0, 1]))
    DAMAGES[damage](path)
    with pytest.raises(DatasetError) as raised:
        read_all(case)
    text = str(raised.value)
    assert str(path) in text and "dlemu verify" in text
    assert "\n" not in text and len(text) < 500


def test_a_damaged_index_is_told_in_one_line(tmp_path: Path) -> None:
    case = case_of(tmp_path, "tfrecord of 13", {})
    path = tmp_path / case.layout.index_paths(1)[0]
    path.write_bytes(b"0 20000\n")
    with pytest.raises(DatasetError, match=f"^{path}: it has 1 lines, .* asks for 13"):
        read_all(case)


def test_says_what_it_waits_for(tmp_path: Path) -> None:
    case = case_of(tmp_path, "npy", {})
    plan = case.plan(0)
    path = tmp_path / case.layout.path(int(plan.samples[3, 0, 0]))
    path.unlink()
    os.mkfifo(path)  # open() waits for a writer
    loader = open_dali(case)
    assert loader.waiting_for() == "no worker is busy"
    raised = []

    def read() -> None:
        try:
            list(loader.epoch(0, plan))
        except DatasetError as error:
            raised.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    # DALI reads the first sample of the next batch before it hands a batch over.
    wanted = r"accelerator 0 waits for DALI to read the batch of step 2 for [1-9]\d* s"
    until(lambda: re.fullmatch(wanted, loader.waiting_for()), wanted)
    while reader.is_alive():  # it opens it more than once
        with contextlib.suppress(OSError):  # nobody waits just now
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        reader.join(0.01)
    loader.close()
    assert str(path) in str(raised)


def test_a_missing_gpu_is_told_in_one_line(tmp_path: Path) -> None:
    if has_gpu():
        pytest.skip("there is a GPU")
    case = case_of(tmp_path, "npy", {"dali.device": "gpu"})
    with pytest.raises(WorkloadError, match=r"^dali\.device=gpu: .*; or set dali\.device=cpu$"):
        case.open()


# --- batches in GPU memory ------------------------------------------------------------------------


def has_gpu() -> bool:
    try:
        return cuda.num_gpus() > 0
    except RunError:
        return False


@given(data=st.data(), most=st.none() | st.integers(1, 20_000))
def test_extents_hold_each_sample_of_a_batch(data: st.DataObject, most: int | None) -> None:
    files = [
        np.random.default_rng(file).integers(0, 256, 61_000, np.uint8).tobytes() for file in (0, 1)
    ]
    # Any order, and samples that lie together, near, and far from each other.
    places = data.draw(
        st.lists(
            st.tuples(st.integers(0, 1), st.integers(0, 9)), min_size=1, max_size=12, unique=True
        )
    )
    unit = data.draw(st.sampled_from([4096, 16384]))
    gap = data.draw(st.sampled_from([0, 16, 4095, 4096]))
    length = data.draw(st.integers(1, 6000 - gap))
    first = data.draw(st.integers(0, 100))
    offsets = [first + place * (length + gap) for _, place in places]

    numbers, lengths = [file for file, _ in places], [length] * len(places)
    spread = spread_batch(numbers, offsets, lengths, most=most, unit=unit)

    slot = bytearray(12 * (length + 3 * unit))
    used = 0
    for extent in spread.extents:
        assert extent.start % unit == extent.at % unit == 0
        assert extent.at >= used, "extents share no page"
        kept = -(-(extent.keep - extent.start) // unit) * unit
        used = extent.at + kept
        # As O_DIRECT reads: whole pages, or up to the file's end.
        read = files[extent.file][extent.start : extent.start + kept]
        slot[extent.at : extent.at + len(read)] = read
        assert extent.stop <= len(files[extent.file])
    assert used <= len(slot)
    want = length if most is None else min(length, most)
    for (file, _), offset, begin, kept in zip(
        places, offsets, spread.begins, spread.lengths, strict=True
    ):
        assert kept == want
        assert slot[begin : begin + kept] == files[file][offset : offset + kept]


@pytest.fixture(scope="session")
def gpu_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not has_gpu():
        pytest.skip("needs a CUDA GPU")
    return tmp_path_factory.mktemp("gpu")


@pytest.mark.gpu
@pytest.mark.parametrize("gds", ["off", "prefer"])
@pytest.mark.parametrize("resize", [None, 5_000, 30_000])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dataset", BY_DALI)
def test_a_gpu_gets_what_the_plan_and_the_generator_say(
    gpu_folders: Path, dataset: str, known: bool, resize: int | None, gds: str
) -> None:
    if dataset == "jpeg" and not known:
        pytest.skip("DALI decodes a job's own pictures, and these have no pixels")
    folder = gpu_folders / dataset.replace(" ", "_")
    case = case_of(
        folder,
        dataset,
        {
            "dali.device": "gpu",
            "reader.gds": gds,
            "reader.read_threads": 2,
            "dataset.record_length_bytes_resize": resize,
        },
        2,
    )
    if gds == "prefer":
        found = availability(folder)
        if not found.usable:
            pytest.skip(f"cuFile does not work here: {found.why}")
    with closing(open_dali(case, known_places=known)) as loader:
        steps = [*check_epoch(case, loader, 0), *check_epoch(case, loader, 1)]
        paths = loader.path_bytes()
    assert sum(batch.num_bytes for one in steps for batch in one) >= payload_bytes(case, steps)
    if gds == "off" or dataset in ("npz of 5", "npy of 5"):
        assert paths.mode == "host"
    else:
        read = paths.p2pdma + paths.nvidia_fs + paths.compat
        assert read >= payload_bytes(case, steps), "cuFile's own counters saw the bytes"
        # Headers, of files that are hardly larger than those; none where dlemu wrote the files.
        assert paths.host < 0.5 * read
        assert paths.host == 0 or not known
