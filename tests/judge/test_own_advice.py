"""A job of the user's own is advised by its loader's arguments, never by keys of dlemu."""

import re

import pytest

from dlemu.findings import Finding, note
from dlemu.judge.own_advice import advice_for
from dlemu.report.words import advice_of

TORCH = {
    **{"kind": "torch", "num_workers": 4, "prefetch_factor": 2},
    **{"pin_memory": False, "persistent_workers": True},
}
ALONE = TORCH | {"num_workers": 0, "prefetch_factor": None}
DALI = {"kind": "dali", "num_workers": 3, "prefetch_factor": 2}
THREADS = note("raise_read_threads", read_threads=4)
DEPTH = note("raise_read_threads_or_depth", read_threads=4, io_depth=8)
LOADER = note("set_key", key="reader.data_loader", value="threads")
DECODE = note("key", key="reader.decode", value="raw")
DIRECT = note("key", key="reader.odirect", value="true")
GETS = note("raise_gets_in_flight", gets_in_flight=8, read_threads=4)
CORES = [note("more_cores", or_hosts=False), DECODE, DIRECT, note("not_the_storage")]


@pytest.mark.parametrize(
    ("advice", "loader", "told"),
    [
        ([THREADS, LOADER], TORCH, "raise num_workers (now 4), raise prefetch_factor (now 2), "
         "or set pin_memory=True"),
        ([DEPTH], ALONE, "raise num_workers (now 0)"),
        ([THREADS, LOADER], DALI, "raise num_threads (now 3), or raise "
         "prefetch_queue_depth (now 2)"),
        ([GETS, note("more_servers")], TORCH, "raise num_workers (now 4), or raise prefetch_factor "
         "(now 2)"),
        (CORES, TORCH, "use more cores, or do less a sample in the workers: decode or resize "
         "before training; this does not measure the storage"),
        ([note("more_drives")], TORCH, "use more or faster drives"),
    ],
)  # fmt: skip
def test_advice_names_the_loaders_own_arguments(
    advice: list[Finding], loader: dict[str, object], told: str
) -> None:
    own = advice_for([each.fields for each in advice], loader)
    said = advice_of({"advice": own})
    assert said == told
    assert not re.search(r"\b(reader|storage|train)\.", said)


def test_memory_is_pinned_for_a_gpu_alone() -> None:
    loader = TORCH | {"persistent_workers": False}
    told = [advice_for([LOADER.fields], loader, by_gpu=on) for on in (True, False)]
    pinned, kept = (advice_of({"advice": own}) for own in told)
    assert pinned == "set pin_memory=True, or set persistent_workers=True"
    assert kept == "set persistent_workers=True"
