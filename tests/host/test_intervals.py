"""An interval's summary is the difference of its ends; only levels look at what lies between."""

from dataclasses import replace

import pytest

from dlemu.host.devices import DeviceCounters
from dlemu.host.intervals import (
    IntervalSummary,
    Observation,
    summarize_interval,
)
from dlemu.host.network import NetworkCounters, NicCounters
from dlemu.host.processes import HostCpu, ProcessCounters

FIRST = Observation(
    time=100.0,
    label="epoch 0 start",
    devices={
        "nvme0n1": DeviceCounters(
            10, 1000, busy_ms=500, queue_ms=2**32 - 1000, in_flight=1, written_bytes=0
        ),
        "nvme1n1": DeviceCounters(
            0, 0, busy_ms=2**32 - 100, queue_ms=0, in_flight=0, written_bytes=0
        ),
    },
    network_read_bytes=None,
    host=HostCpu(busy=50.0, idle=900.0, iowait=7.0, steal=1.0),
    usable_cpus=4.0,
    processes=ProcessCounters(3, 10.0, 5000, 4000, 1.5),
    throttled_seconds=1.0,
    pss_bytes=None,
    page_cache_bytes=None,
    network=NetworkCounters({"eth0": NicCounters(100, 50)}, 10, 20, 0, 1),
)
LAST = Observation(
    time=110.0,
    label="epoch 0 end",
    devices={
        "nvme0n1": DeviceCounters(
            30, 21000, busy_ms=8000, queue_ms=39000, in_flight=2, written_bytes=0
        ),
        "nvme1n1": DeviceCounters(
            5, 10000, busy_ms=900, queue_ms=5000, in_flight=0, written_bytes=0
        ),
        "plugged in since": DeviceCounters(9, 9, 9, 9, 9, 9),
    },
    network_read_bytes=None,
    host=HostCpu(busy=70.0, idle=915.0, iowait=6.99, steal=6.0),
    usable_cpus=4.0,
    processes=ProcessCounters(4, 24.0, 45000, 36000, 2.0),
    throttled_seconds=1.25,
    pss_bytes=None,
    page_cache_bytes=None,
    network=NetworkCounters({"eth0": NicCounters(1100, 80)}, 30, 50, 2, 5),
)
NOTHING = ProcessCounters(0, None, None, None, None)


def test_a_summary_is_the_difference_of_its_ends() -> None:
    between = replace(FIRST, label=None, pss_bytes=777)
    later = replace(between, pss_bytes=555)

    assert summarize_interval([FIRST, between, later, LAST]) == IntervalSummary(
        seconds=10.0,
        devices={"nvme0n1": 0.75, "nvme1n1": 0.1},
        device_read_bytes=30000,
        network_read_bytes=None,
        process_read_bytes=32000,
        process_rchar=40000,
        host_cpu_share=0.5,
        host_steal_share=0.125,
        usable_cpus=4.0,
        process_cpu_seconds=14.0,
        runqueue_seconds=0.5,
        throttled_seconds=0.25,
        max_pss_bytes=777,
        device_reads={"nvme0n1": 20000, "nvme1n1": 10000},
        network=NetworkCounters({"eth0": NicCounters(1000, 30)}, 20, 30, 2, 4),
    )


def test_what_follows_from_a_summary() -> None:
    summary = summarize_interval([FIRST, LAST])

    assert summary.process_cpu_share == pytest.approx(14 / 40)
    assert summary.max_pss_bytes is None, "never measured"


def test_storage_is_asked_in_the_order_of_how_well_it_knows() -> None:
    def storage(first: Observation, last: Observation) -> int | None:
        return summarize_interval([first, last]).storage_read_bytes

    assert storage(FIRST, LAST) == 30000
    first, last = replace(FIRST, devices={}), replace(LAST, devices={})
    assert storage(first, last) == 32000
    last = replace(last, network_read_bytes=500)
    assert storage(first, last) == 32000
    assert storage(replace(first, network_read_bytes=0), last) == 500
    assert storage(replace(first, network_read_bytes=500), last) == 0, "0 bytes is an answer"
    assert storage(replace(first, processes=NOTHING), replace(last, processes=NOTHING)) is None


def test_a_counter_that_begins_anew_tells_nothing() -> None:
    """After a remount, a new cgroup, a driver that is loaded again."""
    counted = replace(LAST, network_read_bytes=500)

    summary = summarize_interval([counted, replace(FIRST, time=120.0, network_read_bytes=0)])

    assert (summary.network_read_bytes, summary.throttled_seconds) == (None, None)
    assert (summary.devices, summary.device_read_bytes, summary.storage_read_bytes) == (
        {},
        None,
        None,
    )
    assert summary.network == NetworkCounters({}, None, None, None, None)


def test_what_was_never_told_stays_none() -> None:
    nothing = replace(
        FIRST, devices={}, host=None, processes=NOTHING, throttled_seconds=None, network=None
    )

    summary = summarize_interval([nothing, replace(nothing, time=101.0)])

    assert summary == IntervalSummary(1.0, {}, *(None,) * 6, 4.0, *(None,) * 3, max_pss_bytes=None)
    assert summary.process_cpu_share is None
