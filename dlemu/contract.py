"""What a file format, a loader, a cache policy and a place must do, tried on small files.

    python -m dlemu.contract mypackage.mymodule
    python -m dlemu.contract mypackage.mymodule://where/it/may/write

Each line that it prints is a promise of `dlemu.formats.Format`, `dlemu.loaders.Loader`,
`dlemu.loaders.cache.hits.Lru` or `dlemu.storage.place.Place` that is not kept; the exit status is
then 1. The house keeps them.
"""

import os
import pickle
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import check_workload
from dlemu.config.sections import POLICIES
from dlemu.config.types import LOADERS
from dlemu.datagen.assemble import Assembly, Content, piece_buffer
from dlemu.datagen.write import generate
from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import EpochPlan, make_plan
from dlemu.errors import DatasetError, WorkloadError, in_short
from dlemu.findings import Finding, as_written, note
from dlemu.formats import FORMATS, FileSamples, Format, Places
from dlemu.formats.format import Checksum
from dlemu.loaders import OTHERS, Batch, Loader, find_loader, open_loader
from dlemu.loaders.cache.hits import PlannedCache
from dlemu.plugins import Registry, UnusablePartError, is_url
from dlemu.ranks.world import Alone
from dlemu.report.words import sentence, told
from dlemu.storage.counted import CountedFile
from dlemu.storage.extents import ExtentReader
from dlemu.storage.files import aligned_buffer
from dlemu.storage.place import Place, ReaderKeys, path_of, place_of
from dlemu.terminal import Answer, say
from dlemu.units import PAGE_BYTES

_Used = TypeVar("_Used")

_SEED = 11
_SINGLE = (1, 2, 100, 127, 128, 4095, 4096, 16_383, 114_660, 150_528, 1_048_577, 2_828_486)
_EQUAL = (1, 24, 4096, 10_007)
_DIFFERENT = (5, 70_000, 127, 1, 16_500)
_CUT = 50_000


def file_samples(
    sizes: Sequence[int], *, first: int = 0, dtype: str = "uint8", dims: tuple[int, ...] = ()
) -> FileSamples:
    """Return samples of these sizes, numbered from `first` on."""
    numbers = np.arange(first, first + len(sizes))
    return FileSamples(numbers, np.array(sizes, np.int64), np.dtype(dtype), dims)


def files_of(format: Format) -> list[FileSamples]:
    """Return the content of files of every kind that a format has."""
    files = [file_samples([size], first=size) for size in _SINGLE]
    files += [file_samples([size] * count) for size in _EQUAL for count in (2, 40)]
    files.append(file_samples([24] * 1251))
    files.append(file_samples([24], dtype="float32", dims=(3, 2)))
    files.append(file_samples([24] * 5, dtype="float32", dims=(3, 2)))
    files.append(file_samples([4096 * 8] * 2, dtype="int64"))
    files.append(file_samples([30] * 2, dtype="int16", dims=(3, 5, 1)))
    return files + ([] if format.why_equal else [file_samples(_DIFFERENT)])


def write_file(path: Path, format: Format, file: FileSamples) -> tuple[int, int]:
    """Write a file, and its indexes, as datagen does; return its bytes and CRC-32C."""
    with open(path, "wb", buffering=0) as target:

        def put(piece: NDArray[np.uint8], offset: int) -> None:
            target.seek(offset)
            target.write(piece.data)

        assembly = Assembly(_content(), piece_buffer(), put)
        format.write(assembly, file)
        written = assembly.finish()
    for index, data in zip(format.index_paths(str(path)), format.indexes(file.sizes), strict=True):
        if index.startswith(str(path)):  # others lie in a tree of their own
            Path(index).write_bytes(data)
    return written


@cache
def _content() -> Content:
    return Content(_SEED)


def content(sample: int, num_bytes: int) -> bytes:
    """Return what a sample holds."""
    out = np.empty(num_bytes, np.uint8)
    _content().fill(out, sample)
    return out.tobytes()


def locate(format: Format, path: Path, num_samples: int) -> Places:
    """Return where a file's samples lie, by its own headers."""
    with open(path, "rb", buffering=0) as file:
        number = file.fileno()
        return format.locate(
            lambda offset, length: os.pread(number, length, offset),
            os.fstat(number).st_size,
            num_samples=num_samples,
            path=str(path),
        )


def taken(data: bytes, places: Places) -> list[bytes]:
    """Return the samples' bytes by their places."""
    parts = [
        data[offset : offset + length * places.interleaved]
        for offset, length in zip(places.offsets.tolist(), places.lengths.tolist(), strict=True)
    ]
    if places.interleaved == 1:
        return parts
    return [
        np.frombuffer(part, f"V{places.element_bytes}")[index :: places.interleaved].tobytes()
        for index, part in enumerate(parts)
    ]


def faults(format: Format, folder: Path) -> Iterator[Finding]:
    """Yield what is wrong with a format; files are written into `folder`.

    `report.words.sentence` has the line of each.
    """
    path, broken = folder / f"file.{format.suffix}", set[str]()
    if format.in_columns:
        yield note("columns_not_tried")
        return
    for file in files_of(format):
        try:
            case = _Case(format, path, file)
        except Exception as error:  # whatever a user's module raises
            yield _raised(error, "write", "indexes")
            return
        of = {"samples": len(file.samples), "sample_bytes": int(file.sizes[0])}
        yield from _broken(_PROMISES, case, broken, tried="file", **of)
    yield from _refusals(format, path)


def _broken(
    promises: Mapping[str, Callable[[Any], bool]],
    case: object,
    known: set[str],
    *,
    tried: Literal["file", "dataset", "place"],
    **figures: object,
) -> Iterator[Finding]:
    """Yield each promise that does not hold for a case, but for those that are known.

    `figures` are those of the case: `samples` and `sample_bytes` of a file, `format` of a dataset.
    """
    for promise in [each for each in promises if each not in known]:
        try:
            if promises[promise](case):
                continue
            why = None
        except Exception as error:  # whatever a user's module raises
            why = f"{type(error).__name__}: {in_short(error)}"
        known.add(promise)
        case_of: dict[str, object] = {"samples": None, "sample_bytes": None, "format": None}
        case_of |= {"tried": tried, "error": why, **figures}
        yield note("promise_broken", promise=promise, **case_of)


def _raised(error: Exception, *methods: str) -> Finding:
    """Return what methods of a user's module raise."""
    text = f"{type(error).__name__}: {in_short(error)}"
    return note("part_raises", methods=list(methods), error=text)


@dataclass
class _Case:
    """A file that a format has written."""

    format: Format
    path: Path
    file: FileSamples

    def __post_init__(self) -> None:
        self.num_bytes, _ = write_file(self.path, self.format, self.file)
        self.data = self.path.read_bytes()
        self.content = [
            self.format.stored(content(sample, size), size) for sample, size in self.file
        ]

    @property
    def known(self) -> Places:
        """The places as they are known without the file."""
        return self.format.places(self.file.sizes, element_bytes=self.file.dtype.itemsize)


def _is_found(case: _Case) -> bool:
    found, known = locate(case.format, case.path, len(case.content)), case.known
    if known.interleaved > 1 and known.element_bytes != found.element_bytes:
        return False
    lengths = found.lengths.tolist(), known.lengths.tolist()
    offsets = found.offsets.tolist(), known.offsets.tolist()
    return offsets[0] == offsets[1] and lengths == (case.file.sizes.tolist(),) * 2


def _has_a_head(case: _Case) -> bool:
    case.format.check_head(case.data[:PAGE_BYTES], len(case.data))
    return True


def _starts(case: _Case) -> bool:
    starts = case.format.starts(case.file.sizes).tolist()
    return len(case.content) > 1 or starts == case.known.offsets.tolist()


def _is_parsed(case: _Case) -> bool:
    parsed = case.format.parse(CountedFile(str(case.path)), len(case.content))
    found = [
        case.format.stored(bytes(parsed.sample(place)), size)
        for place, size in enumerate(case.file.sizes.tolist())
    ]
    parsed.close()
    return found == case.content


def _is_summed(case: _Case) -> bool:
    fields, again = case.format.checksum(), case.format.checksum()
    if fields is None or again is None:
        return fields is again
    Checksum("", fields)(memoryview(case.data))
    wrong = bytearray(case.data)
    wrong[int(case.known.offsets[-1])] ^= 1
    return _refused(lambda: Checksum("", again)(memoryview(wrong)))


def _has_indexes(case: _Case) -> bool:
    written = case.format.indexes(case.file.sizes)
    counted = case.format.index_bytes(case.file.sizes[None])
    return [len(data) for data in written] == [int(each[0]) for each in counted]


_PROMISES: dict[str, Callable[[_Case], bool]] = {
    "file_bytes": lambda case: (
        len(case.data) == case.num_bytes == case.format.file_bytes(case.file.sizes[None])[0]
    ),
    "places": lambda case: taken(case.data, case.known) == case.content,
    "locate": _is_found,
    "starts": _starts,
    "parse": _is_parsed,
    "checksum": _is_summed,
    "index_bytes": _has_indexes,
    "check_head": _has_a_head,
}


def _refusals(format: Format, path: Path) -> Iterator[Finding]:
    """Yield what a format takes though it is damaged.

    Files without headers cannot tell: loaders compare their size with the plan's.
    """
    if type(format).check_head is Format.check_head:
        return
    for sizes in ([_CUT], [_CUT * 2 // 5] * 3):
        num_bytes, _ = write_file(path, format, file_samples(sizes))
        data = path.read_bytes()
        for left in (0, 3, 11, 100, num_bytes // 2, _CUT - 6000):
            path.write_bytes(data[:left])
            if not _refused(partial(locate, format, path, len(sizes))):
                yield note("cut_file_taken", method="locate", byte=left, bytes=num_bytes)
    num_bytes, _ = write_file(path, format, file_samples([_CUT]))
    head = path.read_bytes()[:PAGE_BYTES]
    for left in (8, 20, PAGE_BYTES, num_bytes // 2):
        if not _refused(partial(format.check_head, head[:left], left)):
            yield note("cut_file_taken", method="check_head", byte=left, bytes=num_bytes)
    if not _refused(partial(format.check_head, bytes(PAGE_BYTES), num_bytes)):
        yield note("zeros_taken")
    write_file(path, format, file_samples([64] * 6))
    for count in (2, 5, 7):
        if not _refused(partial(locate, format, path, count)):
            yield note("other_number_taken", samples=count, stored=6)


def _refused(call: Callable[[], object]) -> bool:
    """Return whether a call raises what users see as one line."""
    try:
        call()
    except DatasetError:
        return True
    except Exception:  # whatever a user's module raises
        return False
    return False


@dataclass
class _LoaderTrial:
    """A dataset that a loader reads for two accelerators."""

    dataset: Dataset

    @classmethod
    def of(cls, folder: Path, loader: str, dataset: Mapping[str, Any]) -> "_LoaderTrial":
        """Write a dataset into a folder, and return it."""
        place = {"data_folder": str(folder / dataset["format"]), "seed": _SEED}
        reader = {"data_loader": loader, "batch_size": 3, "read_threads": 2}
        workload = check_workload({"dataset": place | dict(dataset), "reader": reader})
        generate(workload, world=Alone())
        return cls(Dataset.of(workload))

    def open(self, *, keep: int = 1) -> Loader:
        return open_loader(self.dataset, accelerators=range(2), keep=keep)

    def plan(self, epoch: int) -> EpochPlan:
        workload, layout = self.dataset.workload, self.dataset.layout
        return make_plan(workload, layout, num_accelerators=2, epoch=epoch)

    def read(self, use: Callable[[Batch], _Used], *, keep: int = 1) -> list[_Used]:
        """Return what a use of each batch of two epochs has given."""
        with closing(self.open(keep=keep)) as loader:
            return [
                use(batch)
                for epoch in range(2)
                for batches in loader.epoch(epoch, self.plan(epoch))
                for batch in batches
            ]

    def bytes_of(self, batch: Batch) -> list[bytes]:
        sizes = self.dataset.layout.sizes(batch.samples).tolist()
        return list(map(content, batch.samples.tolist(), sizes))


def _is_in_order(reading: _LoaderTrial) -> bool:
    """An epoch's plan has each sample once."""
    found = reading.read(lambda b: (b.epoch, b.step, b.accelerator, b.samples.tolist()))
    plans = [reading.plan(epoch) for epoch in range(2)]
    return found == [
        (epoch, step, accelerator, plan.samples[step, accelerator].tolist())
        for epoch, plan in enumerate(plans)
        for step in range(plan.num_steps)
        for accelerator in range(2)
    ]


def _has_the_bytes(reading: _LoaderTrial) -> bool:
    def is_right(batch: Batch) -> bool:
        return [array.tobytes() for array in batch.arrays or ()] == reading.bytes_of(batch)

    return all(reading.read(is_right))


def _counts(reading: _LoaderTrial) -> bool:
    def count(batch: Batch) -> tuple[int, int]:
        return batch.num_bytes, sum(map(len, reading.bytes_of(batch)))

    read, used = map(sum, zip(*reading.read(count, keep=0), strict=True))
    return read >= 0.9 * used


def _goes_on(reading: _LoaderTrial) -> bool:
    with closing(reading.open()) as loader:
        epoch = loader.epoch(0, reading.plan(0))
        next(epoch)
        getattr(epoch, "close", lambda: None)()
        again = list(loader.epoch(1, reading.plan(1)))
    return [batch.epoch for batch in again[0]] == [1, 1]


def _ends(reading: _LoaderTrial) -> bool:
    """Whether all ends in time, in the middle of an epoch too."""
    before = {*threading.enumerate()}
    loader = reading.open()
    epoch = loader.epoch(0, reading.plan(0))
    next(epoch)
    pids = loader.pids()
    loader.close()
    loader.close()
    del epoch, loader
    end = time.monotonic() + _END_SECONDS
    while time.monotonic() < end:
        alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if {*threading.enumerate()} <= before and not alive:
            return True
        time.sleep(0.01)
    return False


def _tells_descriptors(reading: _LoaderTrial) -> bool:
    """Whether an accelerator opens at most what it says, beside what all have in common."""
    least, most = find_loader(reading.dataset.workload).descriptors(reading.dataset.workload)
    before = len(os.listdir("/proc/self/fd"))
    with closing(reading.open()) as loader:
        opened = max(len(os.listdir("/proc/self/fd")) for _ in loader.epoch(0, reading.plan(0)))
    return 0 < least <= most and opened - before <= 2 * most + OTHERS


def _checks(reading: _LoaderTrial) -> bool:
    loader = find_loader(reading.dataset.workload)
    loader.check(reading.dataset.workload)
    return not any(loader.lacks())


def _reads_by_requests(reading: _LoaderTrial) -> bool:
    """The same files, in a place where the kernel does not open them."""
    workload = reading.dataset.workload
    url = f"dlemu.contract:Unnamed://{workload.data_folder}"
    there = workload.with_keys({"dataset.data_folder": url})
    elsewhere = replace(reading, dataset=Dataset.of(there))
    return not find_loader(there).reads(there) or _has_the_bytes(elsewhere)


class Unnamed(Place):
    """The files of a folder, as a place without paths has them."""

    kind = "unnamed"
    survives_fork = True

    @property
    def _folder(self) -> Place:
        return place_of(Path("/", *self.path.parts))

    def open(self, name: str) -> IO[bytes]:
        return self._folder.open(name)

    def list(self, below: str) -> Iterator[tuple[str, Any]]:
        return self._folder.list(below)

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        self._folder.put(name, pieces)

    def delete(self, *names: str) -> None:
        self._folder.delete(*names)


def _refuses_cut_files(reading: _LoaderTrial) -> bool:
    """The last promise: nothing can be read afterwards."""
    for path in reading.dataset.folder.glob("train/*"):
        os.truncate(path, path.stat().st_size // 2)
    return _refused(lambda: reading.read(lambda batch: None))


_OF_LOADERS: dict[str, Callable[[_LoaderTrial], bool]] = {
    "epoch": _is_in_order,
    "batch": _has_the_bytes,
    "num_bytes": _counts,
    "closed_early": _goes_on,
    "close": _ends,
    "check": _checks,
    "descriptors": _tells_descriptors,
    "reads": _reads_by_requests,
    "cut_file": _refuses_cut_files,
}
_DATASETS: tuple[dict[str, object], ...] = (
    {"format": "npz", "num_files_train": 26, "record_length_bytes_stdev": 9000.0},
    {"format": "npy", "num_files_train": 6, "num_samples_per_file": 5},
    {"format": "tfrecord", "num_files_train": 4, "num_samples_per_file": 7},
)
_END_SECONDS = 60.0


def loader_faults(name: str, folder: Path) -> Iterator[Finding]:
    """Yield what is wrong with a loader; datasets are written into `folder`."""
    broken = set[str]()
    for dataset in _DATASETS:
        reading = _LoaderTrial.of(folder, name, dataset)
        about = {"format": dataset["format"]}
        yield from _broken(_OF_LOADERS, reading, broken, tried="dataset", **about)


def policy_faults(name: str, _folder: Path) -> Iterator[Finding]:
    """Yield what is wrong with a policy of a cache; some files are larger than the cache."""
    random = np.random.default_rng(_SEED)
    try:
        cache = PlannedCache(name, 5, [1 + file % 7 for file in range(50)])
        for _ in range(3):
            cache.epoch(random.integers(0, 50, 200).tolist())
    except Exception as error:  # whatever a user's module raises
        yield _raised(error, "admits", "victim")


@dataclass
class _PlaceTrial:
    """A folder of our own in a place."""

    place: Place

    def put(self, name: str, *pieces: bytes) -> None:
        self.place.put(name, pieces)

    def names(self, below: str = "") -> dict[str, int]:
        """Return the files below a folder, with their bytes."""
        found = self.place.list(below)
        return {
            name: each if isinstance(each, int) else each.stat().st_size for name, each in found
        }

    def reader(self, **keys: Any) -> ExtentReader:
        return self.place.at(1).reader(ReaderKeys(**keys))


def _is_put_and_opened(trial: _PlaceTrial) -> bool:
    data = content(1, _PUT)
    trial.put("train/a", data[:7], data[7:])
    with trial.place.open("train/a") as file:
        file.seek(5)
        return file.read(9) == data[5:14] and file.seek(0, os.SEEK_END) == _PUT


def _is_replaced(trial: _PlaceTrial) -> bool:
    trial.put("train/a", b"old")
    trial.put("train/a", b"new one")
    return trial.place.whole("train/a") == b"new one"


def _is_whole(trial: _PlaceTrial) -> bool:
    """A writing that fails leaves what was there."""

    def fail() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    trial.put("train/a", b"whole")
    for name in ("train/a", "train/new"):
        with suppress(ZeroDivisionError):
            trial.place.put(name, fail())
    return trial.place.whole("train/a") == b"whole" and trial.names("train") == {"train/a": 5}


def _is_listed(trial: _PlaceTrial) -> bool:
    for name in ("train/a", "train/sub/b", "trainer/c", "top"):
        trial.put(name, name.encode())
    below = trial.names("train")
    return below == {"train/a": 7, "train/sub/b": 11} and trial.names("none") == {}


def _is_deleted(trial: _PlaceTrial) -> bool:
    trial.put("train/a", b"x")
    trial.place.delete("train/a", "train/none")
    return trial.names("train") == {} and trial.names() == {}


def _is_missed(trial: _PlaceTrial) -> bool:
    for act in (trial.place.open, trial.place.whole):
        try:
            act("train/none")
        except FileNotFoundError:
            continue
        return False
    return trial.place.has_paths or _refused(lambda: trial.place.get("train/none", 0, 4))


def _is_read(trial: _PlaceTrial) -> bool:
    """Whole and in ranges, in order and by extents."""
    data, path = content(2, _PUT), str(trial.place.path / "train/a")
    trial.put("train/a", data)
    for whole, piece in ((True, 1 << 20), (False, 4096)):
        with closing(
            trial.reader(piece_bytes=piece, range_bytes=piece, in_flight=2, whole=whole)
        ) as reader:
            reader.know(path, _PUT)
            file, parts = reader.open(path), [bytearray(_PUT - 1), bytearray(1)]
            reader.read(file, 0, [memoryview(part) for part in parts])
            each = [bytearray(50), bytearray(4000)]
            reader.read_each(file, [9000, 100], [50, 4000], [memoryview(part) for part in each])
            reader.close_file(file)
            got = reader.counts.received_bytes
        if b"".join(parts) != data or each != [data[9000:9050], data[100:4100]]:
            return False
        if trial.place.witness == "requests" and got < _PUT:
            return False
    return True


def _is_written(trial: _PlaceTrial) -> bool:
    """As datagen writes, with a page that is written last, and as it compares."""
    data, into = content(3, _PUT), aligned_buffer(2 * PAGE_BYTES)
    last = _PUT // PAGE_BYTES * PAGE_BYTES
    trial.place.make([Path("train")])
    with trial.place.writing("train/a", direct=False) as write:
        write(memoryview(data)[4096:], 4096, _PUT - 4096)
        write(memoryview(data)[:4096], 0, 4096)
    with trial.place.reading("train/a") as read:
        return read(into, last) == _PUT - last and bytes(into[: _PUT - last]) == data[last:]


def _is_probed(trial: _PlaceTrial) -> bool:
    trial.put("train/a", content(4, _PUT))
    return bool(trial.place.probe(["train/a"], num_readers=2, seconds=0.05))


def _is_sent(trial: _PlaceTrial) -> bool:
    """To worker processes that are spawned."""
    again: Place = pickle.loads(pickle.dumps(trial.place))
    trial.put("train/a", b"sent")
    return again.whole("train/a") == b"sent" and str(again.path) == str(trial.place.path)


_PUT = 100_000
_OF_PLACES: dict[str, Callable[[_PlaceTrial], bool]] = {
    "put_and_open": _is_put_and_opened,
    "put_again": _is_replaced,
    "put_whole": _is_whole,
    "list": _is_listed,
    "delete": _is_deleted,
    "open_missing": _is_missed,
    "reader": _is_read,
    "writing_and_reading": _is_written,
    "probe": _is_probed,
    "pickle": _is_sent,
    "kind": lambda trial: bool(trial.place.has_paths or trial.place.kind),
}


def place_faults(place: Place) -> Iterator[Finding]:
    """Yield what is wrong with a place; files in it are written and removed."""
    broken = set[str]()
    for promise in _OF_PLACES:
        own = replace(place, path=place.path / f"dlemu-contract.{secrets.token_hex(4)}")
        own.make([Path()])
        trial = _PlaceTrial(own)
        try:
            yield from _broken({promise: _OF_PLACES[promise]}, trial, broken, tried="place")
        finally:
            with suppress(Exception):  # whatever a user's module raises
                place.delete(*(f"{own.path.name}/{name}" for name in trial.names()))
                shutil.rmtree(own.path)  # where names need folders


def main(names: Sequence[str]) -> int:
    """Print what is wrong with each part; return the exit status."""
    found = []
    for name in names:
        with TemporaryDirectory() as folder:
            found += [f"{name}: {sentence(each)}" for each in _faults(name, Path(folder))]
    say(Answer("\n".join(found or [f"{name}: {told('part_is_sound')}" for name in names])))
    return 1 if found or not names else 0


def _faults(name: str, folder: Path) -> Iterator[Finding]:
    """Yield what is wrong with all parts of a name: a module may hold one of each kind."""
    if is_url(name):
        yield from _faults_at(name)
        return
    reason, tried = "", False
    for registry, method, of_kind in _KINDS:
        try:
            part: object = registry[name]
        except UnusablePartError as error:
            reason = reason or error.problem
            continue
        except ValueError as error:
            reason = reason or str(error)
            continue
        if hasattr(part, method):
            tried = True
            yield from of_kind(name, folder)
    if not tried:
        yield as_written(reason)


def _faults_at(url: str) -> Iterator[Finding]:
    """Yield what is wrong with the place of a URL."""
    try:
        path = path_of(url, "place")
        place = place_of(path, place_of(path).reach())
    except WorkloadError as error:
        yield as_written(str(error))
        return
    yield from place_faults(place)


def _format_faults(name: str, folder: Path) -> Iterator[Finding]:
    return faults(FORMATS[name], folder)


_KINDS: tuple[tuple[Registry[Any], str, Callable[[str, Path], Iterator[Finding]]], ...] = (
    (FORMATS, "write", _format_faults),
    (LOADERS, "epoch", loader_faults),
    (POLICIES, "admits", policy_faults),
)
"""Parts of one's own, each with a method that the other kinds lack."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
