"""A model's files are there or are written, and are read once for each cell of a table.

The ways to read, each from a file's first byte to its last, with several readers:

    mmap     map the file, and copy from it: each page is a fault, and the kernel reads ahead
    pread    read calls through the page cache
    odirect  read calls past the page cache
    cufile   cuFile, into the GPU's memory

Readers are threads. Each takes the next piece of the next file, so k readers read k places at once.
Bytes go into a buffer of each reader that the next piece overwrites: a model may be larger than the
host's memory.
"""

import mmap
import os
import re
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from dlemu.config.compose import datasheet, named, read_yaml
from dlemu.config.model import Drive, NamedDrive
from dlemu.config.types import Arguments, Listed, LocalPath, Names, ResultsFolder, Switch
from dlemu.errors import RunError, WorkloadError, did_you_mean, system_line
from dlemu.findings import Finding, Tell, note
from dlemu.host.devices import lies_in_memory
from dlemu.judge.own_rates import OwnRates
from dlemu.judge.steady import fields_of
from dlemu.plugins import is_url
from dlemu.storage.extents import settle_direct
from dlemu.storage.files import PARTIAL, UNITS, aligned_buffer, open_sized
from dlemu.storage.folder import local_place
from dlemu.storage.gpu.cuda import DeviceMemory, GpuContext
from dlemu.storage.gpu.cufile import DeviceBuffer, DeviceFile, Driver, availability, lists_gpu
from dlemu.storage.owned import disk_bytes, room, scratch
from dlemu.storage.pagecache import Pages, drop
from dlemu.storage.probe import probe_rate
from dlemu.tools.paths.cells import OnBegin, write_random_files
from dlemu.units import PAGE_BYTES, counted, format_bytes, round_up

_PROBE_READERS, _PROBE_SECONDS = 32, 1.5
_MORE_THAN_ASKED = 1.1
"""A small file is read as a page: the share of the model may be this much above `scale`."""
Way = Literal["mmap", "pread", "odirect", "cufile"]
WAYS: tuple[Way, ...] = get_args(Way)

_PIECE = 64 << 20
"""Bytes of a file that a reader takes at once."""
_CALL = 4 << 20
"""Bytes of a read call."""

_WEIGHTS = re.compile(
    r"\.(safetensors|bin|gguf|ggml|pt|pth|ckpt|h5|msgpack|onnx|tflite|engine|plan)$", re.IGNORECASE
)
"""How the names of files with a model's weights end."""
_HIDDEN = re.compile(r"(^|/)\.")

_Read = Callable[[int, int], int]
"""Reads so many bytes at an offset of a file; returns how many came."""


@dataclass(frozen=True)
class Model:
    """The files of a model's weights: a row of workloads/weights/."""

    name: str
    files: tuple[int, ...]
    """Bytes of each file, as they are published.

    Those of the Llama 3 models follow from the shapes of their tensors, by the rule of Hugging
    Face's `save_pretrained`: a file takes tensors in their order until the next one would exceed
    the limit. For Llama 2 70B this gives the 15 published files, and `total_size` of its
    model.safetensors.index.json, to the byte.
    """
    datatype: str
    source: str

    @property
    def num_bytes(self) -> int:
        return sum(self.files)


def known_models() -> list[str]:
    """Return the names of the models in workloads/weights/."""
    return list(named("weights"))


def find_model(name: str) -> Model:
    """Return a model by its name.

    Raises:
        WorkloadError: there is none of that name.
    """
    known = named("weights")
    if name not in known:
        hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
        raise WorkloadError(f"model {name} is not known{hint} (or name files: files=FILE,FILE)")
    row = read_yaml(known[name])
    return Model(name, tuple(row["files"]), row["datatype"], row["source"])


def known_drives() -> list[Drive]:
    """Return the drives that have a datasheet, the fastest first."""
    drives = [Drive.model_validate(datasheet(name)) for name in named("drive")]
    return sorted(drives, key=lambda drive: -drive.read_rate)


def _model(value: object) -> object:
    """Take a name as the model of that name."""
    return find_model(value) if isinstance(value, str) else value


def _found(value: object) -> object:
    """Return the files of "A,B" or "[A,B]", names and patterns, in the order of their names.

    Of a folder they are a model's weights, or without such all files below it.
    """
    if not isinstance(value, str):
        return value
    found: list[Path] = []
    is_list = value.startswith("[") and value.endswith("]")  # not [ab]*.bin
    for name in filter(None, (value[1:-1] if is_list else value).split(",")):
        if is_url(name):
            raise ValueError(f"files: {name} is no file of this host; name files on a mount of it")
        path = Path(name)
        if path.is_dir():
            found += _files_in(path)
            continue
        matching = sorted(path.parent.glob(path.name)) if {*"*?["} & {*path.name} else [path]
        if not matching:
            raise ValueError(f"files: {name} matches no file; name the model's files")
        found += matching
    return tuple(found)


def _files_in(folder: Path) -> list[Path]:
    """Return the files below a folder that a server loads.

    Raises:
        ValueError: there are none.
    """
    names = sorted(name for name, _ in local_place(folder).list("") if not _HIDDEN.search(name))
    if not names:
        raise ValueError(f"files: {folder} holds no files; name the folder of a model")
    return [folder / name for name in filter(_WEIGHTS.search, names)] or [
        folder / name for name in names
    ]


class Load(Arguments):
    """The keys of `dlemu load`: which files are read, and how."""

    model: Annotated[Model, BeforeValidator(_model), Names(known_models)] | None = None
    """A model whose files are read."""
    target: LocalPath | None = None
    """Folder on the drive; the files are written to dlemu_load.<model> there and removed again.
    None: by arithmetic, from the datasheets of drives."""
    files: Annotated[tuple[Path, ...], BeforeValidator(_found)] = ()
    """Files that are there, instead of a model; * and ? as in a shell. Of a folder: the weights
    below it (safetensors, gguf, bin, ...), or without such all files."""
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of each file that is written and read, on a small disk; the answer says so."""
    keep: bool = False
    """Leave the files; the next command finds them."""
    readers: Listed[Annotated[int, Field(ge=1, le=1024)]] = (1, 4, 16)
    """Threads that read at once."""
    ways: Listed[Way] | None = None
    """How files are read. None: all that work here. One that is named and does not work is an
    error."""
    drive: NamedDrive | None = None
    """Datasheet of the drive to compare with; None: the files are probed."""
    drives: Annotated[int, Field(ge=1)] = 1
    """Number of such drives."""
    output: ResultsFolder | None = None
    """Folder for summary.json; None: outputs/load/<date>-<time>. By arithmetic none is written."""
    progress: Switch = "on"
    """Show on stderr what is being read."""

    @model_validator(mode="after")
    def _places(self) -> Self:
        if self.target is not None and not self.target.is_dir():
            raise ValueError(f"target {self.target} is not a folder; create or mount it")
        for path in self.files:
            if not path.is_file():
                raise ValueError(f"files: {path} is not a file; name the model's files")
        if self.files and not any(path.stat().st_size for path in self.files):
            raise ValueError("files: they hold no bytes; name the model's files")
        return self


def document_of(load: Load, measured: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the document of a model load; what was not measured is arithmetic by datasheets."""
    model, measured = load.model, measured or {}
    whole = measured.get("num_bytes", 0) if model is None else model.num_bytes
    drives = known_drives() if load.drive is None else [load.drive]
    return {
        "kind": "load",
        "model": None if model is None else model.name,
        "datatype": None if model is None else model.datatype,
        "source": None if model is None else model.source,
        "model_bytes": whole,
        "num_files": 0 if model is None else len(model.files),
        "by_datasheet": [
            {
                "drive": drive.name,
                "drives": load.drives,
                "read_bytes_per_second": load.drives * drive.read_rate,
                "seconds": whole / (load.drives * drive.read_rate),
            }
            for drive in drives
        ],
        **measured,
    }


def measure(
    load: Load,
    on_event: Tell,
    on_begin: OnBegin = lambda phase: None,
    at: Callable[[int], object] = lambda num_bytes: None,
) -> dict[str, Any]:
    """Read the files once for each way and number of readers; return this part of the document.

    `on_event` gets what is found, `on_begin` what is done next, `at` the bytes of each read. A cell
    has the pages of the files that were in the page cache when its reading began, `pages_before`: 0
    is cold; None: the kernel does not say.

    Raises:
        RunError: space is missing, a file cannot be read, or stays in the page cache.
    """
    folder = load.target or load.files[0].parent
    if lies_in_memory(folder):
        raise RunError(f"{folder} lies in memory: no drive is read; name a folder on a drive")
    with _files(load, on_event, on_begin) as files:
        ways = list(_usable(load, files[0], on_event))
        drive, source = _drive_rate(load, files, on_begin)
        total = sum(path.stat().st_size for path in files)
        whole = total if load.model is None else load.model.num_bytes
        cells: list[dict[str, Any]] = []
        num_pages = 0
        for way, readers in product(ways, load.readers):
            on_begin(f"{way}, {counted(readers, 'reader')}")
            pages = _drop(files)
            num_pages = pages.pages
            if pages.resident:
                raise RunError(
                    f"{pages.resident} of {pages.pages} pages stay in the page cache, so no "
                    "read would be cold; another process maps or locks these files: end it"
                )
            calls: list[int] = []
            noting = partial(_note, calls, at)
            with OwnRates(partial(sum, calls)) as rates:
                num_bytes, seconds, cpu_seconds = read_once(
                    files, way=way, num_readers=readers, at=noting
                )
            rate = num_bytes / seconds
            cells.append(
                {
                    "way": way,
                    "readers": readers,
                    "num_bytes": num_bytes,
                    "seconds": seconds,
                    "cpu_seconds": cpu_seconds,
                    "pages_before": None if pages.unknown else pages.resident,
                    "bytes_per_second": rate,
                    "share_of_drive": rate / drive,
                    "whole_model_seconds": whole / rate,
                    "steady": fields_of(rates.steadiness()),
                }
            )
            on_event(
                note("way_read", way=way, readers=readers, seconds=seconds, bytes_per_second=rate)
            )
    fastest = max((cell["bytes_per_second"] for cell in cells), default=0.0)
    if load.drive is None and fastest > drive:
        # Pieces of small files, in any order, take longer than the files.
        source = note("drive_by_reading", readers=_PROBE_READERS, bytes_per_second=drive)
        drive = fastest
        for cell in cells:
            cell["share_of_drive"] = cell["bytes_per_second"] / drive
    return {
        "scale": load.scale,
        "num_files": len(files),
        "num_bytes": total,
        "num_pages": num_pages,
        "cells": cells,
        "drive_bytes_per_second": drive,
        "drive_source": source.fields,
    }


def _note(calls: list[int], at: Callable[[int], object], num_bytes: int) -> None:
    """Keep the bytes of a call: any thread may append."""
    calls.append(num_bytes)
    at(num_bytes)


def _drop(files: Sequence[Path]) -> Pages:
    """Drop files from the page cache; again while pages stay, for two seconds.

    They may just have been read ahead, or the kernel may be at work on them.
    """
    pages = drop(files)
    for seconds in (0.0, 0.1, 0.4, 1.6):
        if pages.resident:
            time.sleep(seconds)
            pages = drop(files)
    return pages


def _usable(load: Load, file: Path, on_event: Tell) -> Iterator[Way]:
    for way in load.ways or WAYS:
        try:
            _check_way(way, file)
        except RunError as error:
            if load.ways is not None:
                raise RunError(
                    f"ways={way} does not work on {file.parent}: {error}", remedy="leave it out"
                ) from None
            on_event(note("way_left_out", way=way, error=str(error)))
        else:
            yield way


def _check_way(way: Way, file: Path) -> None:
    """Raise RunError with the reason, if a file cannot be read this way."""
    if way == "odirect" and not settle_direct(file, "auto"):
        raise RunError("its file system has no O_DIRECT")
    if way == "cufile":
        if not lists_gpu():
            raise RunError("no GPU on this host")
        if why := availability(file.parent).why:
            raise RunError(why)


def _drive_rate(load: Load, files: Sequence[Path], on_begin: OnBegin) -> tuple[float, Finding]:
    """Return the drive's bytes per second, and where the figure comes from."""
    if load.drive is not None:
        rate = load.drives * load.drive.read_rate
        return rate, note("drive_by_datasheet", drives=load.drives, drive=load.drive.name)
    on_begin("probing the drive")
    drop(files)
    probed = probe_rate(files, num_readers=_PROBE_READERS, seconds=_PROBE_SECONDS)
    if probed is None:
        raise RunError(f"{files[0]} cannot be read to probe the drive; name it: drive=d7_ps1010")
    return probed, note("drive_by_probe", readers=_PROBE_READERS)


@contextmanager
def _files(load: Load, on_event: Tell, on_begin: OnBegin) -> Iterator[tuple[Path, ...]]:
    """Yield the files; those that were written for this are removed, unless they are to stay."""
    if load.files:
        # A second reading of one file would come from memory: names and links are no more files.
        by_file = {(path.stat().st_dev, path.stat().st_ino): path for path in load.files}
        if len(by_file) < len(load.files):
            on_event(note("names_of_one_file", names=len(load.files), files=len(by_file)))
        yield tuple(by_file.values())
        return
    assert load.model is not None and load.target is not None
    folder = load.target / f"dlemu_load.{load.model.name}"
    num = len(load.model.files)
    sizes = [max(PAGE_BYTES, round(size * load.scale)) for size in load.model.files]
    share = sum(sizes) / load.model.num_bytes
    if share > _MORE_THAN_ASKED * load.scale:
        raise WorkloadError(
            f"scale={load.scale:g} is too small: files of {PAGE_BYTES} bytes, the least that is "
            f"read, are {share:.2g} of {load.model.name}; take scale={10 * share:.2g}"
        )
    names = [f"model-{index + 1:05}-of-{num:05}.safetensors" for index in range(num)]
    files = tuple(folder / name for name in names)
    left = []
    for path, size in zip(files, sizes, strict=True):
        if not path.exists():
            left.append((path, size))
        elif path.stat().st_size != size:
            raise RunError(
                f"{path} has {format_bytes(path.stat().st_size)}, not {format_bytes(size)}: it was "
                f"kept with another scale, or not written to its end; give its scale, or remove "
                f"{folder}"
            )
    if not left:
        on_event(note("files_there_already", folder=str(folder)))
        yield files
        return
    size = sum(round_up(size) for _, size in left)
    fitting = 0.8 * load.scale * disk_bytes(load.target)[1] / size
    remedy = f"read a share of the model: scale={fitting:.2g}" if fitting else "name another target"
    room(load.target, size, f"free some, or {remedy}", what=counted(len(left), "file"))
    # Files that are to stay get their names once they are whole.
    suffix = PARTIAL if load.keep else ""
    try:
        folder.mkdir(exist_ok=True)
        with scratch(folder, [f"{path.name}{suffix}" for path, _ in left]):
            on_event(note("writing_model", files=len(left), bytes=size, folder=str(folder)))
            on_begin(f"writing {counted(len(left), 'file')} into {folder}")
            write_random_files([(f"{path}{suffix}", size) for path, size in left])
            for path, _ in left:
                os.rename(f"{path}{suffix}", path)
            yield files
    except OSError as error:
        raise RunError(system_line(error, folder)) from error
    finally:
        with suppress(OSError):  # files stay there
            folder.rmdir()


def read_once(
    files: Sequence[Path],
    *,
    way: Way,
    num_readers: int,
    at: Callable[[int], object] = lambda num_bytes: None,
) -> tuple[int, float, float]:
    """Read all files once; return their bytes, the seconds, and the CPU seconds that it took.

    `at` is called with the bytes of each call.

    Raises:
        RunError: a file is not there, ends early, or cannot be read this way.
    """
    sizes = {path: path.stat().st_size for path in files}
    pieces = deque(
        (path, start, min(_PIECE, size - start))
        for path, size in sizes.items()
        for start in range(0, size, _PIECE)
    )
    with ExitStack() as stack:
        gpu = stack.enter_context(GpuContext()) if way == "cufile" else None
        driver = stack.enter_context(Driver(files[0].parent)) if way == "cufile" else None

        def work() -> None:
            with ExitStack() as own:
                own.callback(pieces.clear)  # none is left, or no reader need go on
                _read_pieces(pieces, _opener(way, gpu, driver, own), at)

        threads = stack.enter_context(ThreadPoolExecutor(num_readers))
        stack.callback(pieces.clear)  # an interrupt must not wait for all files
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        try:
            for reader in [threads.submit(work) for _ in range(num_readers)]:
                reader.result()
        except OSError as error:
            raise RunError(f"{way}: {system_line(error)}") from error
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return sum(sizes.values()), seconds, cpu


def _read_pieces(
    pieces: deque[tuple[Path, int, int]],
    open_file: Callable[[Path, ExitStack], _Read],
    at: Callable[[int], object],
) -> None:
    with ExitStack() as opened:
        current, read = Path(), None
        while True:
            try:
                path, start, length = pieces.popleft()
            except IndexError:  # another reader has taken the last one
                return
            if read is None or path != current:
                opened.close()
                current, read = path, open_file(path, opened)
            for offset in range(start, start + length, _CALL):
                wanted = min(_CALL, start + length - offset)
                if read(wanted, offset) != wanted:
                    raise RunError(f"{path} ended early, at byte {offset}")
                at(wanted)


def _opener(
    way: Way, gpu: GpuContext | None, driver: Driver | None, stack: ExitStack
) -> Callable[[Path, ExitStack], _Read]:
    """Return what opens a file for one reader; `stack` holds what all its files share."""
    if way == "cufile":
        assert gpu is not None and driver is not None
        return _by_cufile(gpu, driver, stack)
    buffer = aligned_buffer(_CALL)
    target = np.frombuffer(buffer, np.uint8)

    def by_call(path: Path, opened: ExitStack) -> _Read:
        file, _ = open_sized(path, direct=way == "odirect", error=RunError)
        opened.callback(os.close, file)

        def read(num_bytes: int, offset: int) -> int:
            # O_DIRECT takes whole sectors only, also of a file's end.
            return os.preadv(file, [buffer[: round_up(num_bytes, UNITS[-1])]], offset)

        return read

    def by_mapping(path: Path, opened: ExitStack) -> _Read:
        file, _ = open_sized(path, error=RunError)
        opened.callback(os.close, file)
        source = np.frombuffer(mmap.mmap(file, 0, prot=mmap.PROT_READ), np.uint8)

        def read(num_bytes: int, offset: int) -> int:
            np.copyto(target[:num_bytes], source[offset : offset + num_bytes])
            return num_bytes

        return read

    return by_mapping if way == "mmap" else by_call


def _by_cufile(
    gpu: GpuContext, driver: Driver, stack: ExitStack
) -> Callable[[Path, ExitStack], _Read]:
    gpu.use()
    memory = stack.enter_context(DeviceMemory(_CALL))
    buffer = stack.enter_context(DeviceBuffer(driver, memory.address, _CALL))

    def by_cufile(path: Path, opened: ExitStack) -> _Read:
        file = opened.enter_context(DeviceFile(driver, path))
        return lambda num_bytes, offset: file.read(buffer, round_up(num_bytes, file.unit), offset)

    return by_cufile
