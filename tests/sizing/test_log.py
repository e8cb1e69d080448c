"""The log of a search: what was measured stays, whatever becomes of the disk or the process."""

from dataclasses import replace
from pathlib import Path

import pytest

from dlemu.config.model import load_workload
from dlemu.errors import RunError, WorkloadError
from dlemu.ranks.world import Alone
from dlemu.sizing.answers import SizingRecord, settings_of
from dlemu.sizing.search import Point

SETTINGS = {"num_ranks": 1, "reader.read_threads": 4}
POINT = Point(3, 91.0, 9.0, 1e6)


def test_a_search_goes_on_after_its_last_run(tmp_path: Path) -> None:
    record = SizingRecord(tmp_path)
    assert record.open("a", SETTINGS) == [] and not list(tmp_path.iterdir()), "nothing is left"
    runs = [replace(POINT, num_accelerators=number) for number in range(3)]
    for number, run in enumerate(runs):
        record.add("a", run)
        again = SizingRecord(tmp_path)
        assert again.open("a", SETTINGS) == runs[: number + 1]
        assert again.open("b", SETTINGS) == []
    with pytest.raises(WorkloadError, match=r"holds runs with reader\.read_threads=4, now it is 5"):
        SizingRecord(tmp_path).open("a", SETTINGS | {"reader.read_threads": 5})
    content = (tmp_path / "sizing.json").read_text()
    for damage in (
        content.rstrip()[:-1],
        content.replace("91.0", '"x"'),
        content.replace("91.0", "NaN"),
    ):
        (tmp_path / "sizing.json").write_text(damage)
        with pytest.raises(RunError, match=r"sizing\.json is damaged: .*; remove it, and the"):
            SizingRecord(tmp_path)


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
