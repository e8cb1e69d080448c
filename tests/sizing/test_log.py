"""The log of a search: what was measured stays, whatever becomes of the disk or the process."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dlemu.config.model import load_workload
from dlemu.ranks.world import Alone
from dlemu.sizing.log import SearchLog, settings_of
from dlemu.sizing.search import Point

SETTINGS = {"num_ranks": 1, "reader.read_threads": 4}
POINT = Point(3, 91.0, 9.0, 1e6)


def points(number: int) -> list[Point]:
    return [replace(POINT, num_accelerators=each) for each in range(number)]


def written(path: Path, number: int) -> SearchLog:
    log = SearchLog(path, SETTINGS)
    for point in points(number):
        log.append(point)
    return log


def test_a_search_goes_on_after_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    SearchLog(path, SETTINGS)
    assert not path.exists(), "a search that is refused leaves nothing"
    assert written(path, 3).points == points(3)
    content = path.read_bytes()
    assert json.loads(content.splitlines()[0]) == {"settings": SETTINGS}
    for cut in range(1, len(content.splitlines()[-1])):
        path.write_bytes(content[:-cut])
        assert SearchLog(path, SETTINGS).points == points(2 if cut else 3)
    again = SearchLog(path, SETTINGS)
    again.append(points(3)[2])
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("origin.read_bandwidth", 40 * 10**6),
        ("cache.policy", "keep"),
        ("reader.odirect", True),
        ("host_memory", 1 << 30),
        ("output.drop_caches", False),
    ],
)
def test_what_changes_a_run_is_a_setting_of_its_search(key: str, value: object) -> None:
    """Else a search in a named folder would answer with the runs of another storage."""
    keys: dict[str, object] = {"dataset.data_folder": "/mnt/d1"}
    before = settings_of(load_workload("unet3d_h100", keys), Alone())
    after = settings_of(load_workload("unet3d_h100", keys | {key: value}), Alone())
    assert [name for name in after if before.get(name) != after[name]] == [key]
    more = {"dataset.num_files_train": 9, "metric.au": 0.5, "size.confirm": 1}
    assert settings_of(load_workload("unet3d_h100", keys | more), Alone()) == before
