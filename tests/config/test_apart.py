"""Folders of one command are compared with each other before anything is made."""

from pathlib import Path

import pytest

from dlemu.config.model import load_workload
from dlemu.errors import WorkloadError

FOLDERS = {
    "data": "dataset.data_folder",
    "out": "output.folder",
    "log": "output.log",
    "cache": "cache.folder",
    "origin": "cache.origin",
    "saved": "checkpoint.checkpoint_folder",
}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("data=a", "out=a/train/run"),
        ("data=a", "saved=a/train/"),
        ("data=a", "log=a/train/log"),
        ("data=a", "cache=a"),
        ("data=a", "out=link"),
        ("cache=a", "saved=a/ck"),
        ("cache=a", "out=a"),
        ("cache=a", "data=a/data"),
        ("cache=a", "origin=a/b"),
        ("cache=a", "log=a/log"),
        ("saved=a", "out=a/run"),
        ("saved=a", "cache=a"),
    ],
)
def test_one_that_holds_another_is_refused(one: str, other: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    pairs = [each.split("=") for each in (one, other)]
    keys = {FOLDERS[key]: str(tmp_path / place) for key, place in pairs}
    with pytest.raises(WorkloadError, match="whose files dlemu counts and removes") as error:
        load_workload("unet3d_h100", keys)
    assert all(f"{key}={place.rstrip('/')}" in str(error.value) for key, place in keys.items())


@pytest.mark.parametrize(
    "places",
    [
        "data=a out=a/results log=a/log saved=a/ck",
        "data=a origin=a cache=c out=out saved=out/ck",
        "data=s3://a/b saved=s3://a/b/ck out=out",
    ],
)
def test_others_are_taken(places: str, tmp_path: Path) -> None:
    pairs = (each.split("=") for each in places.split())
    keys = {
        FOLDERS[key]: place if "://" in place else str(tmp_path / place) for key, place in pairs
    }
    load_workload("unet3d_h100", keys)
