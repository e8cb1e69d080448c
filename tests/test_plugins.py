"""Formats and loaders of one's own: what the contract finds, and how they are named."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dlemu.cli.main import run
from dlemu.config.sections import POLICIES
from dlemu.config.types import LOADERS
from dlemu.contract import _OF_LOADERS, faults, main
from dlemu.datagen.manifest import read_manifest
from dlemu.datagen.verify import verify
from dlemu.datagen.write import generate
from dlemu.errors import DatasetError, WorkloadError
from dlemu.formats import FORMATS, FileSamples, Places, Read, Sink
from dlemu.formats.format import Field, Parsed
from dlemu.formats.npy import Npy
from dlemu.plugins import Registry
from dlemu.ranks.world import Alone
from dlemu.report.words import sentence
from dlemu.report.words.contract import PROMISES
from dlemu.sizing.predict import profile
from dlemu.storage.counted import CountedFile
from tests.lab.commands import QUICK, SMALL
from tests.lab.dataset import generated, workload_of

Sizes = NDArray[np.int64]
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of one test are unknown to the next."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.setattr(FORMATS, "_loaded", {})
    monkeypatch.setattr(LOADERS, "_loaded", {})
    monkeypatch.setattr(POLICIES, "_loaded", {})


class Broken(Npy):
    """Keeps no promise about the files that it writes."""

    def file_bytes(self, sizes: Sizes) -> Sizes:
        return sizes.sum(axis=1)  # type: ignore[no-any-return]

    def places(self, sizes: Sizes, *, element_bytes: int = 1) -> Places:
        return Places.in_turn(sizes, 1)

    def parse(self, file: CountedFile, num_samples: int) -> Parsed:
        raise ZeroDivisionError

    def checksum(self) -> Iterator[Field]:
        raise ZeroDivisionError

    def indexes(self, sizes: Sizes) -> tuple[bytes, ...]:
        return (b"",)

    def index_paths(self, path: str) -> tuple[str, ...]:
        return (f"{path}.x",)

    def check_head(self, head: bytes, file_bytes: int) -> None:
        raise ZeroDivisionError


class Gullible(Npy):
    """Takes every file."""

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        return self.places(np.full(num_samples, 1))

    def check_head(self, head: bytes, file_bytes: int) -> None:
        pass


class Mute(Npy):
    def write(self, sink: Sink, file: FileSamples) -> None:
        raise ZeroDivisionError


def test_the_contract_names_what_is_not_kept(tmp_path: Path) -> None:
    parts = (Broken(), Gullible())
    found = [sentence(each) for part in parts for each in faults(part, tmp_path)]
    promises = ("file_bytes", "places", "starts", "parse", "checksum", "index_bytes")
    for promise in (*promises, "check_head` takes", "locate` finds"):
        assert any(fault.startswith(f"`{promise}") for fault in found), promise
    assert sum(fault.startswith("`locate` refuses a file that was cut") for fault in found) == 12
    assert sum(fault.startswith("`locate` refuses another") for fault in found) == 3
    assert sum(fault.startswith("`check_head` refuses") for fault in found) == 5 + 5
    said = "`write` and `indexes` make a file: ZeroDivisionError: ZeroDivisionError"
    assert [*map(sentence, faults(Mute(), tmp_path))] == [said]
    [in_columns] = faults(FORMATS["parquet"], tmp_path)
    assert in_columns.kind == "columns_not_tried"


def test_the_contract_reads_by_a_loader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlemu.contract._END_SECONDS", 0.1)
    (tmp_path / "own.py").write_text(
        "import os\nfrom dlemu.errors import DatasetError\n"
        "from dlemu.loaders.threads import ThreadsLoader\n"
        "class LOADER(ThreadsLoader):\n"
        "    def epoch(self, epoch, plan):\n"
        "        try:\n"
        "            for batches in super().epoch(0, plan):\n"
        "                batches[1].data[-1] = 0\n"
        "                yield batches\n"
        "        except DatasetError:\n"
        "            pass\n"
        "    def pids(self): return [os.getpid()]\n"
        "    @classmethod\n    def lacks(cls): return ['a GPU']\n"
        "    @classmethod\n    def descriptors(cls, workload): return 0, 0\n"
    )
    assert main(["own:LOADER"]) == 1
    lines = capsys.readouterr().out.splitlines()
    ends = " (TypeError: 'NoneType' object does not support item assignment)"
    assert [line.partition(": not of ")[0] for line in lines] == [
        f"own:LOADER: {PROMISES[p]}" for p in _OF_LOADERS
    ]
    assert [line.partition("npz files")[2] for line in lines] == ["", "", ends, *[""] * 6]
    assert main(["own:NONE"]) == 1 and main(["threads:LOADER"]) == 1


def test_a_cache_policy_of_ones_own_is_tried_planned_and_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest file is given up: a cache like `keep`, after the first epoch."""
    (tmp_path / "own.py").write_text(
        "from dlemu.loaders.cache.hits import Lru\n"
        "class POLICY(Lru):\n    def victim(self, files): return next(reversed(files))\n"
        "class Greedy(Lru):\n    def admits(self, size, *, used, capacity): return True\n"
        "class Lost(Lru):\n    def victim(self, files): return -1\n"
    )
    assert main(["own:POLICY", "lru", "keep"]) == 0
    for name, error in (("Lost", "KeyError"), ("Greedy", "StopIteration")):
        assert main([f"own:{name}"]) == 1
        line = f"own:{name}: `admits` and `victim` plan an epoch: {error}"
        assert line in capsys.readouterr().out
    assert profile("own:POLICY", 0.3).mean() == pytest.approx(0.3, abs=0.02)
    words = [*QUICK, "cache.folder=cache", "cache.capacity=0.5", "dataset.data_folder=data"]
    words += ["workflow.generate_data=true", "output.folder=run"]
    assert run(["run", *words, "cache.policy=own:POLICY"]) == 0
    assert "cache.policy=own:POLICY" in capsys.readouterr().out
    assert run(["run", *words, "cache.policy=own:Lost", "output.folder=lost"]) == 1
    said = capsys.readouterr().err
    assert "cache.policy=own:Lost cannot plan an epoch (KeyError" in said
    assert run(["run", *words, "cache.policy=own:NONE"]) == 1
    assert "cache.policy=own:NONE cannot be used (AttributeError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("", "has no attribute 'FORMAT'"),
        ("FORMAT = 3", "3 is no Format"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (
            "from dlemu.formats import Format\nclass Mine(Format): pass\nFORMAT = Mine()",
            # As Python 3.11 says it, or 3.12.
            "Can't instantiate abstract class Mine with.* abstract methods '?locate'?, '?write'?",
        ),
    ],
)
def test_what_is_no_format_gets_one_line(code: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(code)
    with pytest.raises(WorkloadError, match=r"^dataset.format=own:FORMAT cannot be used") as error:
        workload_of(tmp_path, format="own:FORMAT")
    assert re.search(line, str(error.value))
    assert str(error.value).endswith("; python -m dlemu.contract says what it lacks")


def test_a_module_is_taken_only_where_the_command_names_it(tmp_path: Path) -> None:
    name = "examples.my_format"
    sys.path.insert(0, str(ROOT))
    workload = generated(tmp_path / "data", format=name, num_samples_per_file=3)
    assert verify(tmp_path / "data", full=True) == []
    FORMATS._loaded.clear()
    with pytest.raises(DatasetError, match=f"is of format '{name}', which dlemu does not know"):
        read_manifest(tmp_path / "data")
    assert generate(workload, world=Alone()).files_written == 0


def test_a_package_registers_its_own(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("class Part: pass\nPART = Part()\n")
    (tmp_path / "theirs-1.dist-info").mkdir()
    entries = "[dlemu.parts]\nnamed = theirs:PART\n"
    (tmp_path / "theirs-1.dist-info" / "entry_points.txt").write_text(entries)
    sys.path.insert(0, str(tmp_path))
    parts = Registry("dlemu.parts", object, "PART", "", own="dlemu.errors:DlemuError")
    assert [*parts] == ["own", "named"] and parts.trusts("named")
    assert type(parts["named"]).__name__ == "Part"
    with pytest.raises(ValueError, match="must be 'own' or 'named', or the dotted path of a modul"):
        parts["other"]


def test_the_example_is_a_format_and_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "examples")
    assert main(["my_format:FORMAT"]) == 0
    words = ["dataset.format=my_format:FORMAT", f"dataset.data_folder={tmp_path / 'data'}"]
    words.append("dataset.record_length_bytes_stdev=0")
    assert run(["datagen", *SMALL, *words]) == 0
    assert len(list(tmp_path.glob("data/train/*.counted"))) == 56
    (tmp_path / "own.py").write_text("from dlemu.loaders.threads import ThreadsLoader as LOADER")
    sys.path.insert(0, str(tmp_path))
    words += ["reader.data_loader=own:LOADER", f"output.folder={tmp_path / 'run'}"]
    assert run(["run", *QUICK, *words]) == 0
    assert "56 my_format:FORMAT files" in capsys.readouterr().out
    assert run(["run", *QUICK, *words[:3], "reader.data_loader=own:NONE"]) == 1
    assert "reader.data_loader=own:NONE cannot be used (AttributeError" in capsys.readouterr().err
    (tmp_path / "less.py").write_text(
        "from dlemu.loaders import Loader\nclass LOADER:\n    def epoch(self): pass\n"
        "class Half(Loader):\n    def epoch(self): pass\n"
    )
    for each in ("less:LOADER", "less:Half"):
        assert run(["run", *QUICK, *words[:3], f"reader.data_loader={each}"]) == 1
        line = f"reader.data_loader={each} cannot be used: it must be a subclass of dlemu.loaders."
        assert line in capsys.readouterr().err
    assert main(["nosuch"]) == 1 and main(["own:LOADER"]) == 0
