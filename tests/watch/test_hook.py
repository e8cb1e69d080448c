"""What the hook finds in objects of a job."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from dlemu.watch import hook


@pytest.mark.parametrize("inner", [None, "dataset", "reader"], ids=["itself", "Subset", "timm's"])
def test_the_files_that_a_dataset_names_are_found_behind_wrappers(
    tmp_path: Path, inner: str | None
) -> None:
    names = [str(tmp_path / f"{number}.jpg") for number in range(600)]
    (tmp_path / "0.jpg").write_bytes(b"x")
    dataset = SimpleNamespace(samples=[(name, 0) for name in names], root=str(tmp_path))
    if inner is not None:
        dataset = SimpleNamespace(**{inner: dataset})
    found = hook._files_of(dataset)
    assert found["root"] == str(tmp_path) and found["num_files"] == 600
    assert found["files"][:2] == [names[0], names[2]], "some of them, evenly drawn"
    assert hook._files_of(SimpleNamespace()) == {}


def test_the_shards_of_a_pipeline_are_files_and_urls_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"x")
    shards = [str(tmp_path / "a.tar"), str(tmp_path / "b.tar")]
    pipeline = [SimpleNamespace(urls=shards), len]
    assert hook._files_of(SimpleNamespace(pipeline=pipeline))["files"] == shards
    remote = [SimpleNamespace(urls=["https://host/a.tar"])]
    assert hook._files_of(SimpleNamespace(pipeline=remote)) == {}


def test_a_checkpoint_into_an_open_file_has_its_bytes() -> None:
    lines: list[str] = []
    watch: Any = SimpleNamespace(journal=SimpleNamespace(write=lines.append))

    def save(what: bytes, where: IO[bytes]) -> int:
        return where.write(what)

    file = io.BytesIO(b"before")
    file.seek(0, io.SEEK_END)
    assert hook._saving(save, watch)(bytes(500), file) == 500
    kind, _, _, size, path = lines[0].split(" ", 4)
    assert (kind, size, path) == ("C", "500", '""')
