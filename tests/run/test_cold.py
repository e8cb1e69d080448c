"""A cold start: whom it asks, what it drops, and what it says of it; a mounted cache, watched."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from dlemu.config.model import Workload, load_workload
from dlemu.dataset.layout import layout_of
from dlemu.host.devices import Mount
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import Alone
from dlemu.report.words import note_lines
from dlemu.run import cold
from dlemu.run.cold import ColdStart
from dlemu.run.job import run_job
from dlemu.storage.pagecache import Pages
from tests.lab.cgroups import throttled
from tests.lab.commands import small_job, summary_of
from tests.lab.drives import own_drive
from tests.lab.mounted_cache import rclone_cache

LARGE = 20_000
ROOT_MOUNT = Mount("1", "0", "8:1", "/", "/", "rw", "ext4", "/dev/sda1", "rw")


class OneOf(Alone):
    """A rank of several on two hosts, which are as it is itself unless `others` says otherwise."""

    def __init__(self, rank: int, num_local_ranks: int, others: Callable[[Any], list[Any]]) -> None:
        super().__init__()
        self.rank, self.local_rank, self.num_local_ranks = rank, rank, num_local_ranks
        self.all_gather = lambda value: [value, *others(value)]  # type: ignore[method-assign]


class Cache:
    """A page cache, and what is done to it."""

    def __init__(self, *, tells: bool = True) -> None:
        """Hold no page of any file; `tells`: the kernel says so."""
        self.tells = tells
        self.looked_at: list[str] = []
        self.dropped: list[str] = []

    def look(self, paths: Iterable[str], *, at: Callable[[str], object]) -> Pages:
        return self._count(paths, self.looked_at)

    def drop(self, paths: Iterable[str], **_: object) -> Pages:
        return self._count(paths, self.dropped)

    def _count(self, paths: Iterable[str], into: list[str]) -> Pages:
        taken = list(paths)
        into += taken
        if not self.tells:
            return Pages(len(taken), unknown=len(taken))
        return Pages(len(taken), 0, len(taken))


def workload(num_files: int = LARGE, **keys: object) -> Workload:
    given = {key.replace("__", "."): value for key, value in keys.items()}
    fixed = {"dataset.data_folder": "/data", "dataset.num_files_train": num_files}
    return load_workload("resnet50_h100", fixed | given)


def start(
    cache: Cache,
    monkeypatch: pytest.MonkeyPatch,
    *,
    num_files: int = LARGE,
    direct: bool = False,
    world: Alone | None = None,
    drop: Callable[..., Pages] | None = None,
    **keys: object,
) -> list[str]:
    """Make a cold start on a faked cache; return what it says."""
    said: list[str] = []
    job, world = workload(num_files, **keys), world or Alone()
    monkeypatch.setattr(cold, "look", cache.look)
    monkeypatch.setattr(cold, "drop", drop or cache.drop)
    dog = Watchdog(1e9, world)
    ColdStart(job, layout_of(job), world, dog, said.append, direct).make()
    return said


def test_half_a_million_files_are_not_opened_where_none_is_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most 2 µs a file: one in 122 is opened, which takes some 10 µs."""
    cache = Cache()
    said = start(cache, monkeypatch, num_files=500_000)
    assert len(cache.looked_at) == len(set(cache.looked_at)) == 4096 and not cache.dropped
    assert said == [
        "cold start: nothing to drop, none of 4,096 files is in the page cache; at most 0.17% of "
        "500,000 are (with 99.9% confidence)"
    ]
    # What is said holds: with 0.17 % cached, a sample misses them all once in a thousand times.
    assert (1 - 0.0017) ** 4096 < 0.001 < (1 - 0.0016) ** 4096


def test_other_files_are_looked_at_in_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Cache(), Cache()
    for each in runs:
        start(each, monkeypatch)
    both = set(runs[0].looked_at) & set(runs[1].looked_at)
    assert 4096 * 4096 / LARGE / 2 < len(both) < 4096 * 4096 / LARGE * 2, "as chance has it"


def test_files_are_dropped_where_the_kernel_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tells=False)
    said = start(cache, monkeypatch)
    assert len(cache.dropped) == LARGE
    assert said == [
        "cold start: 20,000 files dropped from the page cache, an unknown part of their pages "
        "stayed"
    ]


@pytest.mark.parametrize("cached_here", [True, False])
def test_the_ranks_of_a_host_share_its_files(
    cached_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank of this host finds files cached, or one of another host does."""
    looked_at, dropped = [], []
    for rank in range(4):
        cache = Cache()

        def others(value: Any) -> list[Any]:
            if not isinstance(value, tuple):
                return [value]
            return [(0 if cached_here else 1, Pages(1024, 7, 1024)), (1, Pages(1024, 0, 1024))]

        start(cache, monkeypatch, world=OneOf(rank, 4, others))
        assert len(cache.looked_at) == 1024
        looked_at += cache.looked_at
        dropped += cache.dropped
    assert len(set(looked_at)) == 4096
    assert len(dropped) == len(set(dropped)) == (LARGE if cached_here else 0)


def test_o_direct_makes_a_cold_start_needless(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache()
    assert start(cache, monkeypatch, num_files=100, direct=True) == [
        "cold start: left out, O_DIRECT reads past the page cache; output.drop_caches=true drops "
        "the files all the same"
    ]
    assert not cache.looked_at and not cache.dropped
    start(cache, monkeypatch, num_files=100, direct=True, output__drop_caches=True)
    assert len(cache.dropped) == 100, "it was asked for"
    assert not cache.looked_at, "few files are dropped at once"

    cache = Cache()
    assert start(cache, monkeypatch, output__drop_caches=False) == [], "it was asked not to"
    assert not cache.looked_at and not cache.dropped
    # One rank that reads through the page cache is enough.
    world = OneOf(0, 1, lambda value: [False] if value is True else [value])
    start(cache, monkeypatch, num_files=100, direct=True, world=world)
    assert len(cache.dropped) == 100


def test_who_waits_is_told_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("dlemu.run.cold.time.perf_counter", lambda: now[0])

    def drop(paths: Iterable[str], *, each_second: Callable[[int], object], **_: object) -> Pages:
        for _second in range(12):
            now[0] += 1
            each_second(int(now[0] - 100) * 20)
        return Pages(500, 0, 500)

    world = OneOf(0, 2, lambda value: [value])
    said = start(Cache(), monkeypatch, num_files=1000, world=world, drop=drop)
    assert said == [
        "cold start: about 200/1,000 files, 20 s left",
        "cold start: about 400/1,000 files, 15 s left",
        "cold start: 500 files dropped from the page cache in 12 s, 0.0% of their pages stayed",
    ]


def test_a_watched_origin_is_cold_too_even_for_direct_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount's process reads it through the page cache, whatever training does."""
    monkeypatch.setattr(cold, "mount_under", lambda folder: ROOT_MOUNT)
    layout = layout_of(workload(8))
    paths = [tmp_path / "mounted/data" / layout.path(file) for file in (0, 5)]
    paths[0].parent.mkdir(parents=True)
    for path in paths:
        path.touch()
    cache = Cache()
    keys: Any = {"cache__origin": str(tmp_path), "dataset__data_folder": "/mounted/data"}

    said = start(cache, monkeypatch, num_files=8, direct=True, **keys)

    assert cache.dropped == [str(path) for path in paths]
    assert said[0].startswith("cold start: 2 files of cache.origin dropped from the page cache")
    assert "left out" in said[1]


MB = 10**6
SLOW, FAST = 50 * MB, 500 * MB


def test_a_fuse_cache_between_two_drives(tmp_path: Path) -> None:
    point = tmp_path / "mounted"
    point.mkdir()
    with own_drive(64 * MB) as origin, own_drive(64 * MB) as cache:
        sizes = {"num_files_train": 12, "record_length_bytes": 2 * MB}
        keys = {f"dataset__{key}": value for key, value in sizes.items()}
        keys |= {"dataset__record_length_bytes_stdev": 0, "reader__batch_size": 1}
        job = small_job(origin, **keys, reader__read_threads=2, train__epochs=3)
        with (
            throttled((origin, SLOW), (cache, FAST)) as group,
            rclone_cache(origin, cache, point, enter=group.enter),
        ):
            places = {"dataset.data_folder": str(point / "data"), "cache.origin": str(origin)}
            places |= {"output.folder": str(tmp_path / "run")}
            job = job.with_keys({**places, "cache.devices": [str(cache)]})
            said: list[str] = []
            run_job(job, world=Alone(), say=said.append)

    assert any("12 files of cache.origin dropped from the page cache" in line for line in said)
    seen = summary_of(tmp_path / "run")
    cached, read = seen["measured"]["cache"], 12 * 2 * MB
    assert cached["read_bytes_per_epoch"][0] >= read
    # rclone tells the kernel to forget what it has read, and reads some of it again: 1.5 times is
    # usual (its own counters in /proc say the same).
    assert read <= cached["origin_bytes_per_epoch"][0] <= 3 * read
    assert cached["hit_share_per_epoch"][0] < 0.01
    assert cached["hit_share_per_epoch"][1:] == pytest.approx([1, 1], abs=0.01)
    assert read <= cached["cache_write_bytes_per_epoch"][0] <= 1.1 * read
    fill = cached["cache_write_bytes_per_epoch"][0] / cached["origin_bytes_per_epoch"][0]
    assert cached["fill_ratio_per_epoch"] == [fill, None, None]
    assert cached["daemon_cpu_seconds_per_epoch"][0] > 0
    assert cached["seconds_per_epoch"][0] > 0.9 * read / SLOW, "the origin's rate holds the first"
    assert seen["measured"]["page_cache_share_per_epoch"][0] < 0.01
    assert not [line for line in note_lines(seen) if "no drive is seen" in line]
