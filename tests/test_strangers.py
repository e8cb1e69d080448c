"""Folders of strangers are data: no command imports, resolves or writes what a stored file says.

Each text of each stored document is, in turn, all that a stranger could put there; then the
commands that open such a folder look at it. Python's own audit events tell what they import and
where they write.
"""

import copy
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml

import dlemu
from dlemu.checkpoint.folder import RECORD, CheckpointRecord
from dlemu.cli.main import run
from dlemu.config import compose
from dlemu.config.compose import set_key
from dlemu.config.model import load_workload
from dlemu.config.sections import POLICIES
from dlemu.config.types import LOADERS
from dlemu.datagen.manifest import WritePlan
from dlemu.datagen.target import PLAN
from dlemu.dataset.layout import layout_of
from dlemu.errors import DAMAGE, DlemuError, RunError
from dlemu.formats import FORMATS
from dlemu.judge.records import dump_workload, read_config
from dlemu.loaders.cache.folder import MARK
from dlemu.report.stored import read_result
from dlemu.report.words import telling
from dlemu.terminal import silent
from dlemu.tools.paths.sweep import run_paths
from tests.fuzz import ACTS
from tests.lab.commands import QUICK, SMALL, Printed, ran, small_job
from tests.lab.stored import STORED, observation, write_host
from tests.tools.paths.conftest import plan

PLANTED = "dlemu_planted"
SECRET = "a-word-of-the-environment"
PUBLISHED = Path(__file__).parent / "data"
Field = tuple[str | int, ...]


# --- what is watched ------------------------------------------------------------------------------

_CHANGES = (
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "os.symlink",
    "os.link",
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND
_seen: list[str] = []
_own: list[Path] = []
"""Where the command that is watched may write; while it is empty nothing is watched."""


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note an import of what was planted, and each change outside the command's own folders."""
    if not _own:
        return
    # importlib.import_module has no event of its own, but it opens the module's file.
    place = str(arguments[0]) if event in ("import", "open") else ""
    if place.rpartition("/")[2].split(".")[0] == PLANTED:
        _seen.append(f"{event} {place}")
    is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
    if (is_write or event in _CHANGES) and isinstance(arguments[0], str | bytes | Path):
        path = Path(os.path.abspath(os.fsdecode(arguments[0])))
        is_of_python = (
            path.parts[:2] in (("/", "dev"), ("/", "proc")) or "__pycache__" in path.parts
        )
        is_there = event == "os.mkdir" and path.is_dir()
        if not (is_of_python or is_there or any(path.is_relative_to(own) for own in _own)):
            _seen.append(f"{event} {path}")


sys.addaudithook(_watch)


# --- what strangers write -------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """A working directory with a module, and a workload that uses all its rights."""

    here: Path
    workload: Path


_HOSTILE = f"""
name: "x-${{oc.env:DLEMU_SECRET}}"
dataset: {{format: "{PLANTED}:FORMAT", num_files_train: 56, record_length_bytes: 20000}}
reader: {{data_loader: "{PLANTED}:LOADER"}}
output: {{log: OUTSIDE/log, folder: OUTSIDE/results}}
checkpoint: {{checkpoint_folder: OUTSIDE/checkpoints}}
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    here, outside = tmp_path / "here", tmp_path / "outside"
    for folder in (here, outside):
        folder.mkdir()
        (folder / f"{PLANTED}.py").write_text("FORMAT = LOADER = POLICY = function = 1\n")
    workload = outside / "w.yaml"
    workload.write_text(_HOSTILE.replace("OUTSIDE", str(outside)))
    monkeypatch.chdir(here)
    monkeypatch.setenv("DLEMU_SECRET", SECRET)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for registry in (FORMATS, LOADERS, POLICIES):
        monkeypatch.setattr(registry, "_loaded", {**registry._loaded})
    return Planted(here, workload)


def texts(planted: Planted, folder: Path) -> tuple[list[str], list[str]]:
    """Return what a text of a document is in turn: what acts, and what is shown at worst."""
    link = folder / "link.yaml"
    if not link.is_symlink():
        link.symlink_to(planted.workload)
    acts = [f"{PLANTED}:FORMAT", "x-${oc.env:DLEMU_SECRET}", str(planted.workload)]
    return acts, [
        PLANTED,
        f"../{planted.workload.parent.name}/w.yaml",
        str(link),
        "<script>alert(1)</script>[bold]x[/bold]",
        "\x1b[2J\x9b31m\nline",
        "x" * 20_000,
    ]


def fields_of(tree: Any, above: Field = ()) -> Iterator[Field]:
    """Yield where a document has a text, or nothing where a text may be; of a list the first."""
    items: Any = tree.items() if isinstance(tree, dict) else enumerate(tree[:1])
    for key, value in items:
        if isinstance(value, dict | list):
            yield from fields_of(value, (*above, key))
        elif value is None or isinstance(value, str):
            yield (*above, key)


class _QuickLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The product's, parsed in C where PyYAML has it: it reads a thousand files of keys here."""


_QuickLoader.yaml_implicit_resolvers = compose._Loader.yaml_implicit_resolvers


def read(file: Path) -> Any:
    """Return a document; of one by line, each line by its number."""
    text = file.read_text()
    if file.suffix == ".jsonl":
        return dict(enumerate(map(json.loads, text.splitlines())))
    return yaml.load(text, _QuickLoader) if file.suffix == ".yaml" else json.loads(text)


def write(file: Path, tree: Any) -> None:
    """Write what `read` has returned; all JSON is YAML."""
    lines = tree.values() if file.suffix == ".jsonl" else [tree]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def with_text(tree: Any, field: Field, text: str) -> Any:
    changed = inner = copy.deepcopy(tree)
    for key in field[:-1]:
        inner = inner[key]
    inner[field[-1]] = text
    return changed


# --- the documents, and the commands that open them -----------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A stored document, and who opens it."""

    make: Callable[[Path], object]
    """Writes the folder."""
    file: str
    """The document in it: YAML, JSON, or JSON by line."""
    commands: Sequence[str]
    """F is the folder, OUT where a command may write, DATA a dataset of dlemu's."""
    more: Sequence[Field] = ()
    """Fields that it may have as well."""
    is_composed: bool = False
    """Whether it holds keys: each field then gets a text that acts and one that is shown, by turns,
    and one that imports or opens something each that acts."""


_LOOK = (
    "report F",
    "compare F F",
    "report F --html OUT/page.html",
    "notebook F",
    "report F --json",
)
_OPEN = (
    *("run F --dry-run", "size F --dry-run", "datagen F --dry-run", "loader F", "calibrate F"),
    *("run F workload=unet3d_h100 --dry-run", "verify F", "verify F workload=unet3d_h100"),
    *("doctor F reader.data_loader=threads", "help F", "try F output.folder=OUT/try"),
    *(
        "paths F --dry-run",
        "checkpoint F model=unet3d --dry-run",
        "load files=F/dlemu.json output=OUT/load",
    ),
    *("run F --cfg job", "run F --dry-run division=closed"),
)


_LOOK_OVER_TIME = ("report F --html OUT/page.html", "notebook F", "report F --trace OUT/trace.json")
_UNFINISHED = (f"datagen F {' '.join(SMALL)} --dry-run", "verify F", "datagen F")
_COMPOSE = (*_OPEN[:6], "run F --cfg job", "datagen F --cfg job", "run F --cfg job")
"""Commands that take the workload of a dataset."""


_SMALL = {key: int(value) for key, _, value in (word.partition("=") for word in SMALL[1:])}


def _beside(folder: Path) -> None:
    """Have a dataset's manifest name a workload that lies in it."""
    tree = json.loads((folder / "dlemu.json").read_text())
    (folder / "dlemu.json").write_text(json.dumps({**tree, "workload": str(folder / "w.yaml")}))
    (folder / "w.yaml").write_text(dump_workload(load_workload("unet3d_h100", _SMALL)))


def _dlio(config: str, folder: Path) -> None:
    shutil.copytree(PUBLISHED / "dlio_2.0.0", folder, ignore=shutil.ignore_patterns(".hydra"))
    (folder / config).mkdir()
    workload = yaml.safe_load((PUBLISHED / "mlperf_unet3d_h100.yaml").read_text())
    (folder / config / "config.yaml").write_text(yaml.safe_dump({"workload": workload}))


def _calibration(folder: Path) -> None:
    folder.mkdir()
    STORED["calibration.json"](folder / "summary.json")


def _host(folder: Path) -> None:
    STORED["run"](folder)
    write_host(folder, 0, [observation(float(each), each, each) for each in (100, 101, 103)], 0.0)


def _paths(folder: Path) -> None:
    target = folder.with_name("target")
    target.mkdir()
    run_paths(plan(target, output=folder), telling(silent))


def _cache_mark(folder: Path) -> None:
    folder.mkdir()
    mark = {"data_folder": "/mnt/d1", "dataset": {"format": "npz"}, "may_be_lost_after_boot": "1"}
    (folder / MARK).write_text(json.dumps(mark))


def _checkpoints_mark(folder: Path) -> None:
    folder.mkdir()
    record = CheckpointRecord("unet3d", 10, 1.0, "dlio", (("global_rank0.pt", 500),), (1,))
    (folder / RECORD).write_text(json.dumps(asdict(record)))


def _plan(folder: Path) -> None:
    """Have a dataset that was not finished."""
    layout = layout_of(load_workload("unet3d_h100", _SMALL))
    (folder / "dlemu.json").unlink()
    (folder / PLAN).parent.mkdir()
    (folder / PLAN).write_bytes(WritePlan(dataset=layout, workload="unet3d_h100").to_json())


GROUPS: Sequence[Field] = (("model",), ("drive",), ("hydra",), ("defaults",))
"""Of a workload: a name or a file may stand for the keys of a group."""
SEARCH = f"size {' '.join(SMALL)} dataset.data_folder=DATA output.folder=F --dry-run"
PATHS = ("paths TARGET output.folder=F --dry-run", "paths F output.folder=F --dry-run")
CACHED = (
    f"run {' '.join(SMALL)} dataset.data_folder=DATA cache.folder=F --dry-run",
    *("verify F", "checkpoint model=unet3d checkpoint.checkpoint_folder=F --dry-run"),
)
CHECKPOINTS = (
    *("checkpoint model=unet3d checkpoint.checkpoint_folder=F --dry-run", "report F"),
    f"run {' '.join(SMALL)} dataset.data_folder=DATA checkpoint.checkpoint_folder=F --dry-run",
    CACHED[0],
)
PREDICT = "predict workload=unet3d_h100 predict.calibration=F/summary.json"
KINDS = {
    "keys of a run": Kind(STORED["run"], "config.yaml", _LOOK, GROUPS, True),
    "run": Kind(STORED["run"], "summary.json", _LOOK),
    "failed run": Kind(STORED["broken"], "summary.json", _LOOK),
    "several runs": Kind(STORED["several"], "summary.json", _LOOK[2:5]),
    "one of several": Kind(STORED["several"], "run.1/config.yaml", _LOOK[2:5]),
    "checkpoints": Kind(STORED["checkpoint"], "summary.json", _LOOK),
    "search": Kind(STORED["size"], "sizing.json", (*_LOOK, SEARCH)),
    "keys of DLIO": Kind(partial(_dlio, ".hydra"), ".hydra/config.yaml", _LOOK, GROUPS, True),
    "run of DLIO": Kind(partial(_dlio, ".hydra"), "summary.json", _LOOK),
    "keys of mlpstorage": Kind(
        partial(_dlio, "dlio_config"), "dlio_config/config.yaml", _LOOK, GROUPS, True
    ),
    "calibration": Kind(_calibration, "summary.json", (*_LOOK, PREDICT)),
    "dataset": Kind(lambda folder: None, "dlemu.json", _OPEN, (), True),
    "dataset that is not finished": Kind(_plan, PLAN, (*_UNFINISHED, *_OPEN[:5])),
    "counters of a host": Kind(_host, "host.0.jsonl", _LOOK_OVER_TIME),
    "cells": Kind(_paths, "cells.jsonl", PATHS),
    "paths": Kind(_paths, "summary.json", (*_LOOK, *PATHS)),
    "mark of a cache": Kind(_cache_mark, MARK, CACHED),
    "mark of checkpoints": Kind(_checkpoints_mark, RECORD, CHECKPOINTS),
    "workload of a dataset": Kind(_beside, "w.yaml", _COMPOSE, GROUPS, True),
}
ACTING = {
    *("format", "data_loader", "policy", "log", "folder", "checkpoint_folder", "origin", "name"),
    *("workload", "model", "drive", "defaults", "record_length_bytes_distribution"),
}
"""Fields that name a part, a file or a folder."""
IN_DATASET = ("dataset", "workload of a dataset", "dataset that is not finished")


def _do(words: Sequence[str]) -> None:
    """Do what a command does, or what Python and a notebook ask for."""
    if words[0] not in ("loader", "notebook"):
        run(words)
        return
    with suppress(DlemuError, *DAMAGE):
        if words[0] == "loader":
            with dlemu.make_loader(Path(words[1])) as loader:
                next(iter(loader))
        else:
            print(dlemu.show(read_result(Path(words[1])))._repr_html_())


@contextmanager
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let what measures for long end as soon as it has looked at its folder."""
    with monkeypatch.context() as patched:

        def ends(*_: object, **__: object) -> None:
            raise RunError("measured enough")

        patched.setattr("dlemu.sizing.first._Try.find", ends)
        patched.setattr("dlemu.sizing.calibrate.calibrate_host", lambda *_: iter(()))
        patched.setattr("dlemu.tools.paths.sweep.memory_rate", lambda: 8e9)
        # Nested documents of strangers are refused for their depth elsewhere.
        patched.setattr(compose, "_Loader", _QuickLoader)
        yield


@pytest.mark.parametrize("name", KINDS)
def test_what_a_folder_says_is_not_done(
    name: str,
    planted: Planted,
    data: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, dataset = KINDS[name], data.partition("=")[2]
    folder, out, target = tmp_path / "theirs", planted.here / "out", tmp_path / "target"
    if name in IN_DATASET:
        shutil.copytree(dataset, folder)
    with _quick(monkeypatch):
        kind.make(folder)
    file = folder / kind.file
    tree = read(file)
    words = cycle(each.split() for each in kind.commands)
    places = {"F": str(folder), "DATA": dataset, "TARGET": str(target)}
    acts, shows = texts(planted, folder)
    acting, others, every = cycle(acts), cycle(shows), cycle([*acts, *shows])
    bad: list[str] = []

    def tell(command: Sequence[str]) -> Iterator[str]:
        """Yield what is wrong with a command."""
        out.mkdir(exist_ok=True)
        _own[:] = [out, folder / "dlemu-try", folder / "dlemu_paths.probe", target]
        try:
            _do(command)
        except Exception as error:  # whatever it is, a user would see a traceback
            yield f"raised {error!r}"
        finally:
            _own.clear()
            sys.modules.pop(PLANTED, None)
            for registry in (FORMATS, LOADERS, POLICIES):
                registry._loaded.pop(f"{PLANTED}:FORMAT", None)
        said = "".join(capsys.readouterr())
        files = [each.read_text(errors="replace") for each in out.rglob("*") if each.is_file()]
        shutil.rmtree(out)
        yield from _seen
        _seen.clear()
        if SECRET in "".join([said, *files]):
            yield "tells the environment"
        if ACTS.search(said) or any("<script>alert" in text for text in files):
            yield "lets a text act"

    with _quick(monkeypatch):
        for field in dict.fromkeys([*fields_of(tree), *kind.more]):
            some = [next(every)]
            if kind.is_composed:
                some = [*(acts if field[-1] in ACTING else [next(acting)]), next(others)]
            for text in some:
                write(file, with_text(tree, field, text))
                command = [
                    re.sub(r"\b(F|DATA|TARGET)\b", lambda found: places[found[0]], each)
                    for each in next(words)
                ]
                command = [each.replace("OUT", str(out)) for each in command]
                where = f"{field} = {text[:60]!r}: {' '.join(command)}"
                bad += [f"{where}: {each}" for each in tell(command)]
    assert not bad, "\n".join([f"{len(bad)} of {name}", *bad])


# --- and what is said instead ---------------------------------------------------------------------


def test_a_dataset_with_a_workload_of_its_own_gets_values_alone(
    planted: Planted, data: str, tmp_path: Path, printed: Printed
) -> None:
    """The workload beside it imports, resolves, logs, and makes folders; a run does nothing."""
    folder = shutil.copytree(data.partition("=")[2], tmp_path / "theirs")
    _beside(folder)
    hostile, own = yaml.safe_load(planted.workload.read_text()), folder / "w.yaml"
    before = {*tmp_path.rglob("*")} - {*planted.here.rglob("*")}
    for key, value, what in [
        ("name", hostile["name"], "an interpolation, 'x-${oc.env:DLEMU_SECRET}'"),
        ("output.log", "log", "output.log='log'"),
        ("checkpoint.checkpoint_folder", "c", "checkpoint.checkpoint_folder='c'"),
        ("dataset.format", "own:F", "dataset.format='own:F'"),
        ("data_reader.data_loader", "own:L", "data_reader.data_loader='own:L'"),
        (
            "storage.storage_options.endpoint_url",
            "http://a",
            "storage.storage_options.endpoint_url",
        ),
        ("drive", str(planted.workload), "drive="),
        ("steptime.model", "own:step", "steptime.model='own:step'"),
        ("train.network", "own:step", "train.network='own:step'"),
        ("defaults", ["../outside/w", "_self_"], "defaults: '../outside/w'"),
        ("hydra", {"searchpath": ["file:///"]}, "settings of Hydra"),
    ]:
        tree: dict[str, Any] = {"dataset": {"format": "npz", "num_files_train": 56}}
        set_key(tree, key, value)
        own.write_text(yaml.safe_dump(tree))
        said = printed("run", folder, "output.folder=out", status=1)
        assert f"dlemu: {own} was found by a dataset and has {what}" in said
        assert said.endswith(f"workload={own}, if it is yours\n")
    assert {*tmp_path.rglob("*")} - {*planted.here.rglob("*")} == before
    own.write_text("defaults: [unet3d_h100, _self_]\ndataset: {data_folder: elsewhere}\n")
    assert "unet3d" in printed("run", folder, *SMALL[1:], "--cfg", "job")


def test_a_word_of_the_user_allows_what_a_dataset_may_not(
    planted: Planted, tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = planted.here / "own_format.py"
    shutil.copy(Path(__file__).parents[1] / "examples" / "my_format.py", own)
    word, folder = "dataset.format=own_format:FORMAT", tmp_path / "data"
    words = [*SMALL, word, "dataset.record_length_bytes_stdev=0"]
    here = f"{word.partition('=')[2]}: taken from the working directory, {own}\n"
    assert here in printed("datagen", folder, *words)
    monkeypatch.setattr(FORMATS, "_loaded", {})
    said = printed("run", folder, "--dry-run", status=1)
    assert said.endswith(f"if it is a module of yours, say so: add {word}\n")
    quick = [each for each in QUICK if not each.startswith(("workload=", "dataset."))]
    assert here in printed("run", folder, word, *quick, "output.folder=run")
    monkeypatch.setattr(FORMATS, "_loaded", {})
    own.unlink()
    found = printed("report", "run", "metric.au=0.0002")
    assert "PASS" in found
    shutil.copytree("run", "other")
    config = Path("other/config.yaml")
    config.write_text(config.read_text().replace("own_format:FORMAT", "npz"))
    assert "own_format:FORMAT" in printed("compare", "run", "other")


def test_a_result_keeps_the_mean_of_a_file_of_sizes_that_is_gone(
    tmp_path: Path, printed: Printed
) -> None:
    sizes = tmp_path / "sizes"
    sizes.write_text("10000\n30000\n")
    job = small_job(tmp_path, dataset__record_length_bytes_distribution=str(sizes))
    folder = ran(job).folder
    before = json.loads(printed("report", folder, "metric.au=0.0002", "--json"))
    sizes.unlink()
    again = json.loads(printed("report", folder, "metric.au=0.0002", "--json"))
    assert again["metric"] == before["metric"]
    mean = read_config(folder, {}).dataset.mean_bytes
    assert (
        mean
        == pytest.approx(job.dataset.mean_bytes, rel=0.2)
        != load_workload("unet3d_h100").dataset.mean_bytes
    )
