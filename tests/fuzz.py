"""Damaged input for everything that dlemu parses: it must return, or say in one line what is wrong.

    python -m tests.fuzz [--seconds 600 | --inputs 1000] [--target NAME]... [--seed 0] [--jobs 2]

Without --seconds and --inputs it takes about a minute of a core.
An input follows from seed, target and number alone. Each target runs in a process of its own, so
that a crash is one finding and not the end. A finding is another exception than DlemuError, a line
of several or without end, a control character on the terminal, a file opened outside the folder,
memory taken for a number in a header, an endless loop, a crash. Exit status 1 if there is one.
"""

import argparse
import contextlib
import copy
import faulthandler
import functools
import io
import json
import math
import mmap
import multiprocessing
import os
import random
import re
import resource
import secrets
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from multiprocessing import connection
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml

from dlemu.cli.main import run
from dlemu.config.compose import compose_words
from dlemu.config.model import check_workload, load_workload
from dlemu.config.sections import ColumnSection
from dlemu.contract import content, file_samples, write_file
from dlemu.datagen.manifest import read_manifest
from dlemu.datagen.verify import verify
from dlemu.datagen.write import generate
from dlemu.dataset.layout import layout_of
from dlemu.dataset.rule import dataset_size
from dlemu.errors import DatasetError, DlemuError
from dlemu.formats import FORMATS, Format, raw, tfrecord
from dlemu.formats.parquet import Parquet
from dlemu.judge.records import JsonLines, dump_workload, read_config
from dlemu.ranks.world import Alone
from dlemu.report import stored as storing
from dlemu.report.html import _COPY
from dlemu.sizing.answers import SizingRecord, settings_of
from dlemu.sizing.predict import predict
from dlemu.storage.counted import CountedFile
from dlemu.terminal import shown
from dlemu.tools.paths.cells import Cell
from dlemu.tools.paths.sweep import cells_of
from dlemu.units import PAGE_BYTES
from tests.lab.commands import SMALL
from tests.lab.dataset import write_tfrecord
from tests.lab.stored import observation, store_calibration, store_run, store_runs, write_host

ROOT = Path(__file__).parents[1]
MOST_BYTES = 2 << 30
"""Memory that a target may take beyond what the process has at its start."""
MOST_SECONDS = 30.0
"""CPU time of one input. NumPy takes seconds for a header of 10,000 letters that is no literal."""
MOST_LETTERS = 10_100
"""Of one line."""
_FOUND = 2
"""Exit status of a target that has findings; another than 0 is a crash."""
FORMAT_NAMES = [
    name
    for name, format in FORMATS.items()
    if type(format).check_head is not Format.check_head and not format.in_columns
]
ACTS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

Randomly = random.Random


class Finding(Exception):
    """What must not be, in words."""


# --- damage ---------------------------------------------------------------------------------------

_EXTREMES = (0, 1, 0x7F, 0xFF, 0xFFFF, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def damaged(data: bytes, randomly: random.Random) -> bytes:
    """Return the file with a few changes of one kind or another."""
    mutable = bytearray(data)
    for _ in range(randomly.randint(1, 3)):
        # Most of what a format reads stands near the start, or the end.
        near = min(len(mutable), randomly.choice((64, 512, 2500, 10**9)))
        at = randomly.randrange(near) if near else 0
        if randomly.random() < 0.3:
            at = max(0, len(mutable) - 1 - at)
        match randomly.randrange(5):
            case 0:
                mutable = mutable[:at]
            case 1 if mutable:
                mutable[at] ^= 1 << randomly.randrange(8)
            case 2:
                width = randomly.choice((1, 2, 4, 8))
                value = randomly.choice((*_EXTREMES, len(mutable), randomly.getrandbits(64)))
                mutable[at : at + width] = (value % 256**width).to_bytes(width, "little")
            case 3:
                source = randomly.randrange(len(mutable) + 1)
                mutable[at : at + 40] = mutable[source : source + 40]
            case _:
                mutable[at:at] = randomly.randbytes(randomly.choice((1, 8, 4096)))
    return bytes(mutable)


_TEXTS = (
    "", "x", "auto", "null", "~", "../../etc/passwd", "/etc/passwd", "a/../../b", "\x1b[2J\x9b",
    "ü", "\u202e\u2028", "\x00", "nan", "1e999", "-1", "0x7f", "2001-99-99", "${oc.env:HOME}",
    "${x", "${", "x" * 5000, "%s%n{0}", "\ud800", "<script>", "'", '"', "a\nb: c", "&a [*a]",
    "!!int ''", "[1,", "{",
)  # fmt: skip
_NUMBERS = (
    0, 1, -1, 2, 7, 0.5, -0.0, 1e-300, 1e300, 5e-324, math.nan, math.inf, -math.inf, 2**31,
    2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**20, 10**400, 1e15, 99999,
)  # fmt: skip


def _anything(randomly: Randomly) -> Any:
    match randomly.randrange(9):
        case 0 | 1:
            return randomly.choice(_TEXTS)
        case 2 | 3 | 4:
            return randomly.choice(_NUMBERS)
        case 5:
            return randomly.choice((True, False, None))
        case 6:
            return randomly.choice(([], {}, [[]], [None], {"": {}}, {"a": 1}, [1, "a"]))
        case 7:
            value: Any = 1
            for _ in range(randomly.choice((3, 30, 900))):
                value = [value] if randomly.random() < 0.5 else {"a": value}
            return value
        case _:
            return randomly.getrandbits(randomly.choice((8, 32, 64))) - 100


def damaged_tree(tree: Any, randomly: Randomly) -> Any:
    """Return a tree of plain values in which some are missing, double, moved or something else."""
    tree = copy.deepcopy(tree)
    for _ in range(randomly.randint(1, 3)):
        places = list(_places(tree))
        if not places:
            return _anything(randomly)
        above, key = randomly.choice(places)
        match randomly.randrange(8):
            case 0:
                del above[key]
            case 1 if isinstance(above, dict):
                above[str(randomly.choice(_TEXTS))] = above.pop(key)
            case 1:
                above.append(above[key])
            case 2:
                other, place = randomly.choice(places)
                above[key] = copy.deepcopy(other[place])
            case 3 if isinstance(above[key], (int, float)):
                try:
                    above[key] = randomly.choice((above[key] * 10**9, -above[key], above[key] / 3))
                except OverflowError:
                    above[key] = math.inf
            case 4:
                above[key] = str(above[key])
            case _:
                above[key] = _anything(randomly)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (dict, list)):
            for key in value if isinstance(value, dict) else range(len(value)):
                yield value, key
                waiting.append(value[key])


def _encoded(tree: Any) -> bytes:
    """Return a tree as JSON, which is YAML too; as NaN and 10^400 have it, what Python reads."""
    try:
        return json.dumps(tree).encode(errors="surrogatepass")
    except RecursionError:
        return b"[" * 100_000


def damaged_json(
    data: bytes, randomly: Randomly, load: Callable[[bytes], Any] = json.loads
) -> bytes:
    """Return the text of another tree, or another text."""
    with contextlib.suppress(ValueError, RecursionError):  # of what is damaged already
        if randomly.random() > 0.2:
            return _encoded(damaged_tree(load(data), randomly))
    return damaged(data, randomly)


def damaged_lines(data: bytes, randomly: Randomly) -> bytes:
    """Return JSON lines of which a few are others."""
    if randomly.random() < 0.2:
        return damaged(data, randomly)
    lines = data.splitlines(keepends=True)
    for _ in range(randomly.randint(1, 2)):
        at = randomly.randrange(len(lines))
        match randomly.randrange(4):
            case 0 if len(lines) > 1:
                del lines[at]
            case 1:
                lines.insert(at, randomly.choice(lines))
            case _:
                lines[at] = damaged_json(lines[at].rstrip(b"\n"), randomly) + b"\n"
    return b"".join(lines)


_BOMBS = (
    b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 9)) for c in range(97, 110)
    ),
    b"a: &a {k: 1, l: 2}\n" + b"".join(
        b"%c: &%c {<<: [%s], m%c: 1}\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 9), c)
        for c in range(97, 110)
    ),
    b"&a [*a]", b"a: &a {b: *a}", b"[" * 30_000, b"{a: " * 9000, b"- " * 20_000, b"? " * 5000,
    b"!!python/object/apply:os.system [id]", b"!!timestamp x", b"!!bool x", b"!!float _",
    b"--- \n---",
    b"\xff\xfe\x00", b"\xef\xbb\xbfname: x", b"a: 1\na: 2", b"x: 1:99:99", b"x: 0b", b"x: 0o9",
    b"%YAML 9",
)  # fmt: skip


def damaged_yaml(data: bytes, randomly: Randomly) -> bytes:
    """Return the text of another tree, another text, or one that grows when it is read."""
    if randomly.random() < 0.1:
        return randomly.choice((b"", data)) + randomly.choice(_BOMBS)
    return damaged_json(data, randomly, _plain_yaml)


@functools.cache
def _plain_yaml(data: bytes) -> Any:
    return yaml.safe_load(data)


# --- targets --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """Something that parses."""

    seeds: Callable[[Path], Sequence[Any]]
    """Returns sound inputs; the folder may be filled with what they need."""
    damage: Callable[[Any, Randomly], Any]
    parse: Callable[[Path, Any], None]
    """Parses an input in that folder; DlemuError is an answer."""
    inputs: int
    """Number of inputs of a short run: some seconds."""


_SIZES = ([5000], [100] * 3)


def sound_files(folder: Path, name: str) -> list[tuple[bytes, int]]:
    """Return files of ours and of libraries, with the number of samples in each."""
    path, files = folder / f"a.{name}", []
    for sizes in _SIZES:
        write_file(path, FORMATS[name], file_samples(sizes))
        files.append((path.read_bytes(), len(sizes)))
    x = np.frombuffer(content(1, 60), np.uint8).reshape(5, 4, 3)
    match name:
        case "npy":
            np.save(path, x)
        case "npz":
            np.savez(path, y=np.zeros(3, np.int64), x=x)
        case "hdf5":
            with h5py.File(path, "w", libver="latest") as file:
                file["records_0"], file["labels"] = x.swapaxes(0, 2), np.zeros(3, np.int64)
        case "tfrecord":
            record = {"size": (20, "int"), "b": (b"b", "byte"), "image": (b"i", "byte")}
            write_tfrecord(path, [record] * 3)
    files.append((path.read_bytes(), 3))
    return files


def check(name: str, data: bytes, num_samples: int) -> None:
    """Locate the samples of what may be damaged."""
    num_read = 0

    def read(offset: int, length: int) -> bytes:
        nonlocal num_read
        assert offset >= 0 and length >= 0
        part = data[offset : offset + length]
        num_read += len(part)
        return part

    try:
        FORMATS[name].check_head(data[:PAGE_BYTES], len(data))
    except DatasetError as error:
        assert "\n" not in str(error)
    try:
        places = FORMATS[name].locate(read, len(data), num_samples=num_samples)
    except DatasetError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 400
    else:
        assert len(places.offsets) == len(places.lengths) == num_samples
        for offset, length in zip(places.offsets.tolist(), places.lengths.tolist(), strict=True):
            assert 0 <= offset <= offset + length * places.interleaved <= len(data)
    assert num_read < 2 * len(data) + 4_500_000, "fields are bounded, and so are reads"


def _format(name: str) -> Target:
    def parse(folder: Path, made: tuple[bytes, int]) -> None:
        check(name, *made)
        if zlib.crc32(made[0]) % 50 == 0:  # the library takes so much longer
            _read_by_library(folder / f"a.{name}", name, *made)

    return Target(
        lambda folder: sound_files(folder, name),
        lambda seed, randomly: (damaged(seed[0], randomly), seed[1]),
        parse,
        2000 if name == "hdf5" else 5000,
    )


def _read_by_library(path: Path, name: str, data: bytes, num_samples: int) -> None:
    path.write_bytes(data)
    with contextlib.closing(FORMATS[name].parse(CountedFile(str(path)), num_samples)) as parsed:
        for place in range(num_samples):
            if parsed.sample(place).nbytes > 100 * len(data) + 1000:
                raise Finding("a sample is larger than the file")


def _indexes(folder: Path) -> Sequence[tuple[str, bytes]]:
    sizes = np.array([100, 2000, 30])
    (lines,) = tfrecord.FORMAT.indexes(sizes)
    return [("lines", lines), ("offsets", b"".join(raw.INDEXED.indexes(sizes)))]


def _read_index(folder: Path, made: tuple[str, bytes]) -> None:
    kind, data = made
    if kind == "lines":
        places = np.array(tfrecord.read_index(data, file_bytes=10_000, num_samples=3))
        offsets, lengths = places[:, 0], places[:, 1]
    else:
        half = len(data) // 2
        found = raw.locate_by([data[:half], data[half:]], 10_000, num_samples=3)
        offsets, lengths = found.offsets, found.lengths
    if min(*offsets, *lengths) < 0 or (offsets + lengths).max() > 10_000:
        raise Finding("a sample lies outside of its file")


@functools.cache
def _small(folder: Path) -> Any:
    words = [*SMALL, "dataset.num_files_train=5", f"dataset.data_folder={folder}"]
    return check_workload(compose_words(words))


def _dataset(folder: Path) -> Sequence[Any]:
    generate(_small(folder), world=Alone())
    text, files = ((folder / name).read_bytes() for name in ("dlemu.json", "dlemu.files.npy"))
    return [(text, files)]


def _damaged_manifest(seed: tuple[bytes, bytes], randomly: Randomly) -> tuple[bytes, bytes]:
    text, files = seed
    if randomly.random() < 0.2:
        return text, damaged(files, randomly)
    return damaged_json(text, randomly), files


def _read_manifest(folder: Path, made: tuple[bytes, bytes]) -> None:
    (folder / "dlemu.json").write_bytes(made[0])
    (folder / "dlemu.files.npy").write_bytes(made[1])
    manifest = read_manifest(folder)
    if manifest is not None:
        manifest.describe()
        with contextlib.suppress(DlemuError):
            manifest.check(layout_of(_small(folder)), folder)
        verify(folder, full=False, world=Alone())


def _workloads(folder: Path) -> Sequence[Any]:
    names = ("unet3d_h100", "cosmoflow_a100", "resnet50_h100")
    shipped = [(ROOT / "workloads" / "workload" / f"{name}.yaml").read_bytes() for name in names]
    whole = dump_workload(load_workload("unet3d_h100", {"drive": "d7_ps1010"})).encode()
    return [*shipped, whole, (ROOT / "tests" / "data" / "mlperf_unet3d_h100.yaml").read_bytes()]


def _read_workload(folder: Path, data: bytes) -> None:
    path = folder / "w.yaml"
    path.write_bytes(data)
    # Hydra takes ten times as long.
    words = [f"workload={path}"]
    is_typed = len(data) % 10 == 0
    workload = check_workload(compose_words(words)) if is_typed else load_workload(path)
    dump_workload(workload)
    if workload.dataset.num_files_train != "auto":
        layout_of(workload)
    dataset_size(workload, num_accelerators=8, host_memory=1 << 40)
    if workload.drive is not None:
        str(predict(workload.with_keys({"output.folder": None})))


_WORDS = (
    "reader.batch_size=2", "dataset.data_folder=/x", "output.folder=[a]", "drive={a: 1}", "~reader",
    "train.computation_time={mean: 1, stdev: 0}", "size.targets=[a,b]", "+a.b=1", "++name='x'",
    "reader.odirect=auto", "host_memory=64GiB", "dataset.record_dims=[1,2]", "name=${train.seed}",
    "a=glob(*)", "a=range(1,3)", "a=int('3')", "a=choice(1,2)", "predict.calibration=/x", "a=1,2",
)  # fmt: skip


def _damaged_words(seed: str, randomly: Randomly) -> list[str]:
    words = [seed]
    for _ in range(randomly.randint(0, 2)):
        words.append(randomly.choice(_WORDS))
    at = randomly.randrange(len(words))
    key, _, value = words[at].partition("=")
    match randomly.randrange(4):
        case 0:
            value = json.dumps(_anything(randomly))
        case 1:
            value = str(randomly.choice((*_TEXTS, *_NUMBERS[:20])))
        case 2:
            cut = randomly.randrange(len(value) + 1)
            value = (
                value[:cut] + randomly.choice("[]{}()'\"\\,:=~$ \t\n\x1büé*&@+-.%") + value[cut:]
            )
        case _:
            key = randomly.choice((key + ".", "." + key, key * 2, key + "@x", "+" + key, "~" + key))
    words[at] = f"{key}={value}"
    return words


def _override(folder: Path, words: list[str]) -> None:
    workload = check_workload(compose_words(["workload=unet3d_h100", *words]))
    dump_workload(workload)


def _stored_runs(folder: Path) -> None:
    """Put a run, and a protocol of several, into the folder."""
    store_run(folder / "run", wait=0.5)
    write_host(folder / "run", 0, [observation(t, 100 * t, 10 * t) for t in range(5)], 1.7e9)
    store_runs(folder / "runs")
    # Faster than YAML, and the same where nobody has damaged it.
    known = {path.parent: read_config(path.parent, {}) for path in folder.rglob("config.yaml")}

    def read(run: Path, keys: Any) -> Any:
        found = known.get(run)
        return read_config(run, keys) if found is None or run in altered else found

    vars(storing)["read_config"] = read


altered: set[Path] = set()
"""Folders whose config.yaml is no longer the run's."""


def _of_run(
    name: str, damage: Callable[[Any, Randomly], Any], inputs: int, *, of: str = "run"
) -> Target:
    """Return the target that one file of a stored run is."""

    def seeds(folder: Path) -> Sequence[Any]:
        _stored_runs(folder)
        if name == "config.yaml":
            altered.add(folder / of)
        return [(folder / of / name).read_bytes()]

    def parse(folder: Path, data: bytes) -> None:
        (folder / of / name).write_bytes(data)
        page = folder / "page.html"
        page.unlink(missing_ok=True)
        # One command shows the text and the page, which reads host.0.jsonl.
        _quietly(["report", str(folder / of), "--html", str(page)], status=None)
        if name == "summary.json":
            _quietly(["report", str(folder / of), "--json", "metric.edition=v2.0"], status=None)
        if page.exists():
            text = page.read_text(encoding="utf-8").replace(f"<script>\n{_COPY}</script>", "")
            if ACTS.search(text) or re.search(r"<(script|img|iframe)|\son\w+=", text):
                raise Finding("the page holds what it must not")

    return Target(seeds, damage, parse, inputs)


def _calibration(folder: Path) -> Sequence[Any]:
    store_calibration(folder / "calibration.json")
    return [(folder / "calibration.json").read_bytes()]


@functools.cache
def _to_be_predicted(path: Path) -> Any:
    return load_workload("unet3d_h100", {"predict.calibration": str(path)})


def _predict(folder: Path, data: bytes) -> None:
    (folder / "calibration.json").write_bytes(data)
    str(predict(_to_be_predicted(folder / "calibration.json")))


def _searches(folder: Path) -> Sequence[Any]:
    rates = {"au_percentage": 95.0, "samples_per_second": 10.0, "read_bytes_per_second": 1e9}
    point = {"num_accelerators": 4, "limit": "storage", **rates}
    search = {"points": [point, point], "conditions": {}}
    document: Any = {"kind": "sizing", "status": "incomplete", "answers": [], "tried": None}
    return [_encoded(document | {"unfinished": {"a": search}, "settings": {"a": _settings()}})]


@functools.cache
def _settings() -> Any:
    return settings_of(load_workload("unet3d_h100"), Alone())


def _read_searches(folder: Path, data: bytes) -> None:
    (folder / "sizing.json").write_bytes(data)
    SizingRecord(folder).open("a", _settings(), {})


def _cells(folder: Path) -> Sequence[Any]:
    numbers = {field.name: 1 for field in fields(Cell)}
    names = {"target": "/a", "path": "cufile", "pattern": "seq_read", "mode": "compat"}
    return [2 * (_encoded(numbers | names) + b"\n")]


def _read_cells(folder: Path, data: bytes) -> None:
    (folder / "cells.jsonl").write_bytes(data)
    cells_of(JsonLines(folder / "cells.jsonl"))


_COLUMNS = Parquet((ColumnSection(name="a"), ColumnSection(name="l", dtype="list", size=9)), 40)


def _read_footer(folder: Path, data: bytes) -> None:
    found = _COLUMNS.find(lambda offset, length: data[offset : offset + length], len(data))
    if not (found.offsets >= 0).all() or (found.offsets + found.lengths).max() > len(data):
        raise Finding("a range lies outside of the file")
    for offsets, lengths in found.joined(100):
        if min(offsets) < 0 or max(map(sum, zip(offsets, lengths, strict=True))) > len(data):
            raise Finding("a joined range lies outside of the file")


def _parquet_files(folder: Path) -> Sequence[bytes]:
    path, found = folder / "seed", []
    for num_rows in (1, 90):
        write_file(path, _COLUMNS, file_samples([1] * num_rows))
        found.append(path.read_bytes())
    return found


TARGETS: dict[str, Target] = {
    **{name: _format(name) for name in FORMAT_NAMES},
    "index": Target(
        _indexes, lambda seed, randomly: (seed[0], damaged(seed[1], randomly)), _read_index, 5000
    ),
    "parquet": Target(_parquet_files, damaged, _read_footer, 1000),
    "manifest": Target(_dataset, _damaged_manifest, _read_manifest, 500),
    "workload": Target(_workloads, damaged_yaml, _read_workload, 200),
    "overrides": Target(lambda folder: _WORDS, _damaged_words, _override, 100),
    "summary": _of_run("summary.json", damaged_json, 300),
    "runs": _of_run("summary.json", damaged_json, 300, of="runs"),
    "config": _of_run("config.yaml", damaged_yaml, 300),
    "steps": _of_run("steps.0.npy", damaged, 1000),
    "host": _of_run("host.0.jsonl", damaged_lines, 700),
    "calibration": Target(_calibration, damaged_json, _predict, 2000),
    "searches": Target(_searches, damaged_json, _read_searches, 1500),
    "cells": Target(_cells, damaged_lines, _read_cells, 1500),
}


# --- one input ------------------------------------------------------------------------------------


def _quietly(words: list[str], status: int | None = 0) -> None:
    """Run a command; look at what it would have shown."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = run(words)
    if status is not None and found != status:
        raise Finding(f"{words} gave {found}: {err.getvalue()}")
    said = out.getvalue() + err.getvalue()
    if ACTS.search(said):
        raise Finding(f"a control character reaches the terminal: {said[:500]!r}")
    for line in err.getvalue().splitlines():
        if not line.startswith(("dlemu: ", "page: ")) or len(line) > MOST_LETTERS:
            raise Finding(f"stderr has {line[:500]!r}, {len(line)} letters")


class _Watch:
    """Raises a Finding for files opened outside of a folder while it is entered."""

    def __init__(self, folder: Path) -> None:
        known = ("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/usr/", "/etc/localtime")
        self._known = (str(folder), str(ROOT), sys.prefix, sys.base_prefix, *sys.path[1:], *known)
        self.strangers: list[str] = []
        self.on = False
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event == "open" and isinstance(arguments[0], (str, bytes)):
            path = os.path.normpath(os.fsdecode(arguments[0]))
            if os.path.isabs(path) and not path.startswith(self._known):
                self.strangers.append(path)


def _on_long(number: int, frame: object) -> None:
    raise Finding(f"it takes more than {MOST_SECONDS:g} s of CPU time")


def examine(target: Target, folder: Path, made: Any, watch: _Watch) -> str | None:
    """Return what is wrong with how an input was taken, None if nothing is."""
    watch.strangers.clear()
    watch.on = True
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    try:
        target.parse(folder, made)
    except DlemuError as error:
        str(error)
    except (Exception, KeyboardInterrupt) as error:
        return described(error)
    finally:
        watch.on = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return f"it opened {watch.strangers[:3]}" if watch.strangers else None


def described(error: BaseException) -> str:
    """Return an exception with the lines of dlemu that it came through, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(str(ROOT))][1:]
    lines = [f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in ours]
    return "\n".join([*lines[:4], *lines[4:][-4:], f"{type(error).__name__}: {error}"[:500]])


def make(target: str, seeds: Sequence[Any], seed: int, number: int) -> Any:
    """Return input number so many of a target."""
    randomly = Randomly(f"{seed}/{target}/{number}")
    return TARGETS[target].damage(randomly.choice(seeds), randomly)


# --- many inputs ----------------------------------------------------------------------------------


def _work(name: str, words: argparse.Namespace, seconds: float, reached: Any, base: Path) -> None:
    """Run one target in this process and a folder of its own; exit with _FOUND if it has findings.

    `reached` is told the number of the input that it is at.
    """
    faulthandler.enable()
    folder = base / name
    folder.mkdir()
    os.chdir(folder)
    found: set[str] = set()
    seeds = TARGETS[name].seeds(folder)
    watch = _Watch(folder)
    signal.signal(signal.SIGVTALRM, _on_long)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, resource.RLIM_INFINITY))
    short = max(1, round(words.share * TARGETS[name].inputs))
    most = words.inputs or (short if seconds == math.inf else sys.maxsize)
    end = time.monotonic() + seconds
    parent = os.getppid()
    for number in range(words.first, words.first + most):
        reached.value = number
        if time.monotonic() > end or os.getppid() != parent:
            break
        problem = examine(TARGETS[name], folder, make(name, seeds, words.seed, number), watch)
        kind = re.sub(r"[^\w./]|\d", "", " ".join((problem or "").splitlines()[-2:])[:150])
        if problem is not None and kind not in found:
            found.add(kind)
            print("", again(name, words.seed, number), shown(problem), sep="\n")
        reached.value = number + 1
    sys.exit(_FOUND if found else 0)


def again(name: str, seed: int, number: int) -> str:
    """Return the command that gives a target this very input."""
    return f"python -m tests.fuzz --target '{name}' --seed {seed} --first {number} --inputs 1"


def main(arguments: Sequence[str]) -> int:
    """Run the targets, so many at the same time; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), default=[])
    parser.add_argument("--seconds", type=float, default=math.inf, help="in all")
    parser.add_argument("--inputs", type=int, help="of each target; a minute's, unless named")
    parser.add_argument("--share", type=float, default=1.0, help="of a minute's inputs")
    parser.add_argument("--seed", type=int, default=secrets.randbits(31))
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time")
    words = parser.parse_args(arguments)
    waiting = words.target or list(TARGETS)
    seconds = words.seconds * min(words.jobs, len(waiting)) / len(waiting)
    fork = multiprocessing.get_context("fork")  # for the libraries are loaded
    running: dict[Any, tuple[str, Any, Any]] = {}
    total, failed = 0, False
    # A process that crashes removes nothing, so its folder is removed here.
    with tempfile.TemporaryDirectory(prefix="dlemu-fuzz-") as base:
        while waiting or running:
            while waiting and len(running) < words.jobs:
                name, reached = waiting.pop(0), fork.Value("q", words.first, lock=False)
                given = (name, words, seconds, reached, Path(base))
                process = fork.Process(target=_work, args=given)
                process.start()
                running[process.sentinel] = name, process, reached
            for ended in connection.wait(running):
                name, process, reached = running.pop(ended)
                process.join()
                count, status = reached.value - words.first, process.exitcode
                if status not in (0, _FOUND):
                    print(
                        "", again(name, words.seed, reached.value), f"ended with {status}", sep="\n"
                    )
                total, failed = total + count, failed or status != 0
                told = "" if status else ", nothing found"
                print(f"{name:<14} {count:>9,} inputs{told}", flush=True)
    print(f"{total:,} inputs, seed {words.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
