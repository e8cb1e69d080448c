"""Predictions with a cache: cold and warm, published caches, and what is missing."""

import math
from pathlib import Path

import pytest

from dlemu.config.model import Workload, load_workload
from dlemu.dataset.layout import Dataset, file_sizes, layout_of
from dlemu.dataset.rule import SizeCheck, measure_memory
from dlemu.errors import WorkloadError
from dlemu.library import size
from dlemu.loaders.cache.folder import CacheFolder, entry_path
from dlemu.ranks.world import Alone
from dlemu.sizing import measured
from dlemu.sizing.answers import Target, find_jobs
from dlemu.sizing.predict import predict_cached
from dlemu.terminal import silent


def test_a_cache_that_keeps_what_it_has_writes_only_until_it_is_full() -> None:
    """A tenth of the cold epoch goes at 2 MB/s, the rest at the origin's 20."""
    keys = {
        "cache.capacity": 0.1,
        "cache.policy": "keep",
        "dataset.record_length_bytes": 200_000,
        "dataset.record_length_bytes_stdev": 0,
        "reader.batch_size": 2,
        "train.computation_time": 0.05,
        "origin.read_bandwidth": "20MB",
        "drive.read_bandwidth": "100MB",
        "drive.write_bandwidth": "2MB",
        "predict.accelerators": 1,
    }
    found = predict_cached(load_workload("unet3d_h100", keys))
    supply = found.document["cold_supply_bytes_per_second"]
    assert supply == pytest.approx(1e6 / (0.1 / 2 + 0.9 / 20), rel=0.01)
    # One asks for 8 MB/s: a tenth of the epoch takes 4 times as long as its steps.
    assert found.cold.au_percentage == pytest.approx(100 / (0.1 * 4 + 0.9), abs=0.01)
    assert found.supply.cold_limit == "cache writes"
    faster = predict_cached(load_workload("unet3d_h100", keys | {"drive.write_bandwidth": "10MB"}))
    assert faster.supply.cold_limit == "origin"
    unfilled = predict_cached(load_workload("unet3d_h100", keys | {"cache.fill": "off"}))
    assert unfilled.supply.cold_limit == "origin", "nothing is written"


def test_the_au_is_that_of_the_number_and_not_of_the_threshold() -> None:
    """4 ask for 12.7 GB/s: the hits at the start of an epoch are more than they can take."""
    keys = {"drive": "d7_ps1010", "origin.read_bandwidth": "10GB", "cache.capacity": 0.8}
    warm = predict_cached(load_workload("unet3d_h100", keys)).warm
    assert (warm.num_accelerators, round(warm.au_percentage, 2)) == (4, 92.14)
    assert warm.read_bytes_per_second == pytest.approx(
        4 * warm.au_percentage / 100 * warm.workload.demand
    )


@pytest.mark.parametrize(
    ("keys", "cached", "rate"),
    [
        ({"cache.warm": True}, 9e9, 5e9),  # a fifth comes from the origin
        ({"cache.warm": True}, 0.0, 1e9),  # it holds nothing to be probed
        ({"cache.warm": True, "drive.read_bandwidth": 2 * 10**9}, 9e9, 2.5e9),
        # Its first four fifths are written: at this rate AU is 90 % as they wait for the cache.
        ({"cache.warm": False, "drive.write_bandwidth": 10**8}, 0.0, 1e8 * (1 - 0.9 * 0.2) / 0.8),
        ({"cache.folder": None, "origin.read_bandwidth": 10**8, "drive": "d7_ps1010"}, 0.0, 1e8),
    ],
)
def test_a_search_starts_at_what_origin_and_cache_give(
    keys: dict[str, object], cached: float, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "probed_rate", lambda *_: 1e9)
    monkeypatch.setattr(measured, "_cache_rate", lambda *_: cached)
    given: dict[str, object] = {
        "dataset.data_folder": "/mnt/slow",
        "dataset.num_files_train": 100_000,
        "cache.folder": "/mnt/nvme/cache",
        "cache.capacity": 0.8,
        "cache.policy": "keep",
        "host_memory": "1GiB",
    }
    workload = load_workload("unet3d_h100", given | keys)
    enough = SizeCheck(workload, layout_of(workload), measure_memory(workload, Alone()))
    target = Target("slow", "/mnt/slow", 1)

    first, expected = measured.first_number(target, enough, Alone(), silent)

    assert expected == pytest.approx(rate / workload.demand / workload.metric.au)
    assert first == math.floor(expected) + 1


def test_a_prediction_counts_what_an_epoch_reads() -> None:
    """More accelerators read more of the dataset with so many steps, and find less of it there."""
    keys: dict[str, object] = {
        "origin.read_bandwidth": "3GB",
        "drive.read_bandwidth": "20GB",
        "cache.policy": "lru",
        "cache.capacity": 0.3,
        "dataset.num_files_train": 14_000,
        "dataset.record_length_bytes_stdev": 0,
    }
    whole = predict_cached(load_workload("unet3d_h100", keys))
    assert whole.supply.hits == pytest.approx(0.0503, abs=1e-3)
    limited = keys | {"train.total_training_steps": 500}
    found = predict_cached(load_workload("unet3d_h100", limited))
    number = found.warm.num_accelerators
    assert number == whole.warm.num_accelerators + 1 or found.supply.hits > whole.supply.hits
    hits = []
    for each in (number, number + 1):
        asked = predict_cached(
            load_workload("unet3d_h100", limited | {"predict.accelerators": each})
        )
        hits.append(asked.supply.hits)
        passes = asked.warm.au_percentage >= 100 * asked.workload.metric.au - 0.005
        assert passes is (each == number), "the most that pass with what they read themselves"
    assert hits[0] == pytest.approx(found.supply.hits) and hits[0] > hits[1]
    same = predict_cached(
        load_workload("unet3d_h100", limited | {"train.seed_change_epoch": False})
    )
    assert same.supply.hits in (0.0, 1.0), "one order for all epochs: all fits, or nothing is there"
    unknown = load_workload("unet3d_h100", limited | {"dataset.num_files_train": "auto"})
    with pytest.raises(WorkloadError, match=r"^train.total_training_steps reads a part .*; give a"):
        predict_cached(unknown)


def test_what_a_cache_holds_is_probed(job: Workload, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    workload = job.with_keys({"cache.folder": str(cache), "cache.warm": True})
    dataset = Dataset(workload, layout_of(workload))
    sizes = file_sizes(dataset)
    folder = CacheFolder(workload, dataset.layout, sizes)
    assert measured._cache_rate(dataset) == 0.0
    Path(entry_path(str(cache), 2, 0)).write_bytes(bytes(sizes[2]))
    folder.close()

    assert measured._cache_rate(dataset) > 0.0
    cold = workload.with_keys({"cache.warm": False})
    assert measured._cache_rate(Dataset(cold, dataset.layout)) == 0.0


def test_size_searches_cold_and_warm(tmp_path: Path) -> None:
    """`cache.warm` chooses one of both."""
    keys: dict[str, object] = {
        "dataset.data_folder": str(tmp_path),
        "cache.folder": "/mnt/nvme/cache",
        "train.epochs": 4,
    }
    workload = load_workload("unet3d_h100", keys)
    (cold, first), (warm, second) = find_jobs(workload, lambda text: None)
    assert (cold.name, warm.name) == (f"{tmp_path.name}-cold", f"{tmp_path.name}-warm")
    assert (first.cache.warm, first.train.epochs) == (False, 1)
    assert (second.cache.warm, second.train.epochs) == (True, 4)
    chosen = load_workload("unet3d_h100", keys | {"cache.warm": True})
    (one,) = find_jobs(chosen, lambda text: None)
    assert one[0].name == tmp_path.name
    with pytest.raises(WorkloadError, match=r"dlemu.size gives one answer, and a cache has two"):
        size(workload)
