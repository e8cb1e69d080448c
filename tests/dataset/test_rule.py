"""How many files a job needs, by its accelerators and memory; datasets that are too small."""

import re
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dlemu
from dlemu.config.model import Workload, load_workload
from dlemu.dataset import rule
from dlemu.dataset.layout import layout_of
from dlemu.dataset.rule import (
    SizeCheck,
    TotalMemory,
    accelerators_of,
    dataset_size,
    measure_memory,
    num_accelerators,
    required_size,
    resolve_auto,
)
from dlemu.errors import DatasetError, WorkloadError
from dlemu.ranks.world import Alone
from dlemu.report.words import sentence

GIB = 1 << 30
NAMES = ["unet3d_h100", "resnet50_h100", "cosmoflow_h100"]


class Hosts(Alone):
    """Ranks of several hosts, of which rank 0 asks: the host and the memory of each."""

    def __init__(self, *ranks: tuple[int, int]) -> None:
        super().__init__()
        self.num_ranks, self.num_hosts = len(ranks), len({host for host, _ in ranks})
        self.all_gather = Mock(return_value=[*ranks])  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "host_memory_bytes", lambda: (64 * GIB, "MemTotal"))


def job(**keys: object) -> Workload:
    return load_workload("unet3d_h100", keys)


ALONE, TWO = [(0, 64 * GIB)], [(0, 64 * GIB), (1, 64 * GIB)]


@pytest.mark.parametrize(
    ("ranks", "keys", "gib", "text"),
    [
        ([(0, 64 * GIB), (0, 64 * GIB), (1, 32 * GIB)], {}, 96, "96.0 GiB (of 2 hosts)"),
        (ALONE, {}, 64, "64.0 GiB (MemTotal)"),
        (ALONE, {"num_hosts": 3}, 192, "3 x 64.0 GiB (MemTotal)"),
        (TWO, {"num_hosts": 3}, 128, "128.0 GiB (of 2 hosts)"),  # the hosts are there
        (TWO, {"host_memory": 8 * GIB}, 16, "2 x 8.0 GiB (host_memory, as given)"),
        (TWO, {"host_memory": 8 * GIB, "num_hosts": 5}, 40, "5 x 8.0 GiB (host_memory, as given)"),
    ],
)
def test_memory_is_added_up_over_hosts_and_counted_once_a_host(
    ranks: list[tuple[int, int]], keys: dict[str, object], gib: int, text: str
) -> None:
    memory = measure_memory(job(**keys), Hosts(*ranks))
    assert memory.num_bytes == gib * GIB and memory.about and sentence(memory.about) == text
    found = num_accelerators(job(accelerators_per_rank=4), Hosts(*ranks))
    assert found == 4 * len(ranks)


@given(st.integers(1, 40), st.integers(0, 100))
def test_ranks_share_accelerators_evenly_and_rank_0_has_some(num_ranks: int, total: int) -> None:
    shares = [accelerators_of(rank, num_ranks, total) for rank in range(num_ranks)]
    assert [number for share in shares for number in share] == list(range(total))
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1
    assert lengths[0] == max(lengths)


def test_more_files_than_there_may_be_are_explained() -> None:
    keys = {"dataset.num_files_train": "auto", "host_memory": "16GiB"}
    workload = load_workload("dlrm_h100", keys)
    told = dlemu.show(required_size(workload, Alone())).splitlines()
    assert told[0].endswith(" 80.0 GiB; 640.0 GiB on a drive with blocks of 4 KiB")
    excess = (
        "167,772,160 files are more than dataset.num_files_train may be, 100,000,000: a file has "
        "1 sample of 512 B; set dataset.num_samples_per_file=2"
    )
    assert told[-1] == excess
    with pytest.raises(WorkloadError, match=f"^dataset.num_files_train=auto: {excess}$"):
        resolve_auto(workload, Alone())
    enough = workload.with_keys({"dataset.num_samples_per_file": 2})
    assert resolve_auto(enough, Alone()).num_files == 83_886_080


def test_what_is_not_given_is_the_workloads_or_this_hosts() -> None:
    size = dataset_size(job(accelerators_per_rank=4, num_hosts=2))
    assert (size.num_accelerators, size.memory.num_bytes) == (4, 2 * 64 * GIB)
    size = dataset_size(job(num_accelerators=3, host_memory=GIB))
    assert (size.num_accelerators, size.memory.num_bytes) == (3, GIB)


@given(
    st.sampled_from(NAMES), st.integers(1, 10_000), st.integers(2**30, 2**46), st.integers(1, 2000)
)
@settings(max_examples=100, deadline=None)
def test_neither_bound_is_missed_by_less_than_a_file(
    name: str, accelerators: int, memory: int, per_file: int
) -> None:
    keys = {"dataset.num_samples_per_file": per_file, "dataset.record_length_bytes_stdev": 0}
    workload = load_workload(name, keys)
    size = dataset_size(workload, num_accelerators=accelerators, host_memory=memory)
    assert size.num_samples >= 500 * workload.reader.batch_size * accelerators
    assert size.num_bytes >= 5 * memory * (1 - 1e-12)
    wanted = max(size.samples_for_steps, size.samples_for_memory)
    assert size.num_samples - per_file < wanted


def enough(num_files: int, *, memory: int = 0, **keys: object) -> SizeCheck:
    """Return a dataset of so many files: UNet3D, batches of 7, with 4 batches read ahead."""
    given = {key.replace("__", "."): value for key, value in keys.items()}
    least = {"dataset.data_folder": "/mnt/d", "dataset.num_files_train": num_files}
    workload = load_workload("unet3d_h100", least | given)
    assert workload.reader.batch_size == 7 and workload.batches_in_flight == 5
    return SizeCheck(workload, layout_of(workload), TotalMemory(memory))


def asked_for(dataset: SizeCheck, accelerators: int, *, expected: float) -> int:
    """Return the files that a refusal asks for."""
    with pytest.raises(DatasetError) as error:
        dataset.check(accelerators, expected=expected)
    found = re.search(r"dataset\.num_files_train=(\d+)", str(error.value))
    assert found is not None, str(error.value)
    return int(found[1])


@pytest.mark.parametrize(
    ("expected", "ahead"),
    [
        (1.0, 4),  # no fewer than those that are to be tried
        (8.0, 10),  # a quarter more than where the search may end
        (1000.0, 20),  # what is expected is an estimate: at most five times as many
    ],
)
def test_a_dataset_is_asked_for_with_more_accelerators_in_view(expected: float, ahead: int) -> None:
    whole = enough(100)
    assert asked_for(whole, 4, expected=expected) == 500 * 7 * ahead
    quick = enough(100, size__quick=True)
    assert asked_for(quick, 4, expected=expected) == 10 * 5 * 7 * ahead


def test_a_dataset_in_a_bucket_is_not_extended_but_written_anew() -> None:
    small = enough(10, dataset__data_folder="s3://bucket/d")
    with pytest.raises(DatasetError) as refused:
        small.check(4, expected=1.0)
    bound = small.bound(1.0)
    assert bound.writes_another and "extend" not in str(refused.value)
    for said in (str(refused.value), f"write another one: {bound.command}"):
        line = r"write another one: dlemu datagen .*s3://bucket/d_(\d+) dataset.num_files_train=\1"
        assert re.search(line, said)


def test_the_smallest_dataset_that_is_enough_is_taken() -> None:
    for quick, least in ((False, 500 * 7 * 4), (True, 10 * 5 * 7 * 4)):
        enough(least, size__quick=quick).check(4, expected=1000)
        assert enough(least, size__quick=quick).most_accelerators == 4
        assert enough(least - 1, size__quick=quick).most_accelerators == 3
        with pytest.raises(DatasetError):
            enough(least - 1, size__quick=quick).check(4, expected=1)


def test_memory_asks_for_files_too_but_not_of_a_quick_search() -> None:
    samples = 5 * 1024 * GIB / 146_600_628
    assert asked_for(enough(3500, memory=1024 * GIB), 1, expected=1) == int(samples) + 1
    with pytest.raises(DatasetError, match=r"1 accelerator \(5 x memory\), /mnt/d has 3,500;"):
        enough(3500, memory=1024 * GIB).check(1, expected=1)
    enough(3500, memory=1024 * GIB, size__quick=True).check(1, expected=1)


def test_what_is_read_ahead_is_a_share_of_the_epochs_steps() -> None:
    dataset = enough(7 * 100)
    assert [dataset.num_steps(number) for number in (1, 2, 3)] == [100, 50, 33]
    assert dataset.read_ahead_share(2) == pytest.approx(5 / 50)
    assert enough(7 * 100, train__total_training_steps=20).num_steps(1) == 20
