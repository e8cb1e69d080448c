"""Damaged files: the line names the file, and what helps depends on who wrote it."""

import ast
import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dlemu.api import make_loader
from dlemu.config.model import Workload
from dlemu.datagen.survey import find_dataset
from dlemu.dataset.layout import Layout
from dlemu.errors import FROM_SOURCE, VERIFY, DatasetError, DlemuError
from dlemu.ranks.world import Alone
from dlemu.run.job import run_job
from tests.lab.dataset import flip, generated

ROOT = Path(__file__).parents[2]
NUM_FILES, SAMPLE_BYTES = 20, 6000


def cut(path: Path) -> None:
    """Leave the first third of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


def damage_header(path: Path) -> None:
    """Change the file's first byte."""
    flip(path, 0, 0xFF)


def dataset_of(tmp_path: Path, format: str, decode: str, *, foreign: bool) -> Workload:
    """Return a job over a dataset of dlemu's, or over the same files without their manifest."""
    keys = {
        "reader.data_loader": "threads",
        "reader.decode": decode,
        "train.computation_time": 0.0001,
        "output.folder": str(tmp_path / "out"),
    }
    shape = {"num_files_train": NUM_FILES, "record_length_bytes": float(SAMPLE_BYTES)}
    workload = generated(tmp_path / "data", keys, format=format, **shape)
    if foreign:
        for each in (tmp_path / "data").glob("dlemu*"):
            each.unlink()
    return workload


def damaged_by(workload: Workload, damage: Callable[[Path], None]) -> tuple[Path, Layout]:
    """Damage a file of a dataset that was found; return its path, and the dataset's layout."""
    layout = find_dataset(workload, Alone()).layout
    path = workload.data_folder / layout.path(7)
    damage(path)
    return path, layout


def refused(read: Callable[[], object], path: Path) -> str:
    """Return the remedy of the error; its line names the file, once."""
    with pytest.raises(DatasetError) as raised:
        read()
    line = str(raised.value)
    assert line.startswith(str(path)) and line.count(str(path)) == 1 and line.count(";") == 1, line
    assert line == f"{raised.value.problem}; {raised.value.remedy}"
    return raised.value.remedy


@pytest.mark.parametrize("foreign", [False, True], ids=["own", "of others"])
@pytest.mark.parametrize("damage", [cut, damage_header])
@pytest.mark.parametrize("decode", ["raw", "library"])
@pytest.mark.parametrize("format", ["npy", "npz", "hdf5", "tfrecord"])
def test_what_helps_against_a_damaged_file(
    tmp_path: Path, format: str, decode: str, damage: Callable[[Path], None], foreign: bool
) -> None:
    workload = dataset_of(tmp_path, format, decode, foreign=foreign)
    path, layout = damaged_by(workload, damage)
    remedy = refused(lambda: run_job(workload, layout=layout), path)
    assert remedy == (FROM_SOURCE if foreign else VERIFY)
    told = json.loads((tmp_path / "out" / "summary.json").read_text())["error"]
    assert str(path) in told and told.endswith(remedy)


@pytest.mark.parametrize("foreign", [False, True], ids=["own", "of others"])
def test_a_loop_of_ones_own_is_told_the_same(tmp_path: Path, foreign: bool) -> None:
    workload = dataset_of(tmp_path, "npy", "raw", foreign=foreign)
    path, _ = damaged_by(workload, cut)
    with closing(make_loader(workload)) as loader:
        remedy = refused(lambda: [*loader], path)
    assert remedy == (FROM_SOURCE if foreign else VERIFY)


def test_what_cannot_be_read_in_place_keeps_its_own_remedy(tmp_path: Path) -> None:
    workload = dataset_of(tmp_path, "npz", "raw", foreign=True)
    path, layout = damaged_by(
        workload, lambda path: np.savez_compressed(path, x=np.zeros(SAMPLE_BYTES, np.uint8))
    )
    assert refused(lambda: run_job(workload, layout=layout), path) == "use np.savez"


def test_no_place_names_a_file_and_drops_the_remedy() -> None:
    """An error that is raised anew as "PLACE: error" is `error.within(PLACE)`."""
    found = []
    for path in (each for top in ("dlemu", "datagen") for each in (ROOT / top).rglob("*.py")):
        for handler in ast.walk(ast.parse(path.read_text())):
            if not isinstance(handler, ast.ExceptHandler) or handler.type is None:
                continue
            if not re.search(r"\b(Dlemu|Dataset|Run|Workload)Error\b", ast.unparse(handler.type)):
                continue
            raised = (each.exc for each in ast.walk(handler) if isinstance(each, ast.Raise))
            made = (one for one in raised if isinstance(one, ast.Call) and not one.keywords)
            texts = (each for one in made for each in ast.walk(one))
            parts = (each.values for each in texts if isinstance(each, ast.JoinedStr))
            found += [path for each in parts if _is_prefixed(each, handler.name)]
    assert not found


def _is_prefixed(parts: list[ast.expr], name: str | None) -> bool:
    """Return whether an f-string is "SOMETHING: {name}"."""
    *_, before, last = [None, None, *parts]
    is_error = isinstance(last, ast.FormattedValue) and ast.unparse(last.value) == name
    return is_error and isinstance(before, ast.Constant) and str(before.value).endswith(": ")


class _OfNumber(DlemuError):
    """An error whose arguments are others."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}", remedy="take another")
        self.number = number


def test_an_error_keeps_its_remedy_where_a_place_is_named() -> None:
    met = _OfNumber(7).within("a.npy", "not this").within("b")
    assert isinstance(met, _OfNumber) and met.number == 7
    assert str(met) == "b: a.npy: number 7; take another" and met.remedy == "take another"
    assert str(DlemuError("cut").within("a.npy", "copy it")) == "a.npy: cut; copy it"
    assert str(DlemuError("a.npy is cut").within("a.npy")) == "a.npy is cut"
    assert str(_OfNumber(7).mended_by("")) == "number 7"
