"""Which resource bound a run: a table of evidence, each row one clear case.

tests/golden/limits.txt has what each says.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.config.model import load_workload
from dlemu.judge.bottleneck import HostEvidence, find_limit
from dlemu.judge.metrics import measure
from dlemu.judge.summary import Summary
from tests.lab.limits import CASES, evidence, host, probe, steps_of
from tests.lab.shown import verdict_of

WORKLOAD = load_workload("unet3d_h100")
READER_AS_IT_IS = evidence().reader


@pytest.mark.parametrize("case", CASES)
def test_the_limit_is_what_the_evidence_says(case: str) -> None:
    changes, name = CASES[case]
    limit = find_limit(evidence(**changes))
    assert limit.name == name, limit.evidence
    assert limit.evidence and "\n" not in limit.evidence
    if name in ("none", "unclear"):
        assert limit.explains is None
    else:
        assert limit.explains is not None
        assert 0.5 <= limit.explains <= 1
    for key, value in changes.get("reader", READER_AS_IT_IS).model_dump(exclude_unset=True).items():
        assert f"reader.{key}={str(value).lower()}" not in limit.advice, "it is set already"


def test_what_more_readers_would_get_is_told() -> None:
    limit = find_limit(evidence(hosts=[host(probe=probe(8))], steps=steps_of(9.0, read=40.0)))
    assert limit.explains == pytest.approx(1 - (1 / 6 - 1 / 8) / (1 / 6 - 1 / 60))


shares = st.none() | st.floats(0, 1)


@settings(max_examples=400, deadline=None)
@given(
    waits=st.lists(st.floats(0, 2), min_size=1, max_size=4),
    compute=st.floats(1, 1.5),
    read=st.floats(0, 10),
    decode=st.floats(0, 10),
    reading=st.floats(0, 1),
    cached=shares,
    hosts=st.lists(
        st.builds(
            host,
            cpu_share=shares,
            host_cpu_share=shares,
            host_steal_share=shares,
            device_busy_share=shares,
            runqueue_seconds=st.none() | st.floats(0, 800),
            throttled_seconds=st.none() | st.floats(0, 100),
            probe=st.none() | st.builds(probe, st.floats(0.001, 20), st.floats(0.001, 20)),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_storage_is_blamed_only_where_nothing_else_can_be(
    waits: list[float],
    compute: float,
    read: float,
    decode: float,
    reading: float,
    cached: float | None,
    hosts: list[HostEvidence],
) -> None:
    steps = steps_of(*waits, compute=compute, read=read, decode=decode)
    seen = evidence(steps=steps, hosts=hosts, read_seconds=800 * reading, page_cache_share=cached)
    limit = find_limit(seen)
    summary = Summary(limit={"name": limit.name, "evidence": ""})
    line = verdict_of(WORKLOAD, measure(steps), summary)
    assert ("this storage feeds" in line) == (limit.name == "storage")
    assert limit.explains is None or limit.explains >= 0.5
    if limit.name != "storage":
        assert "drives" not in limit.advice
        return
    assert seen.losses.parts.read >= 0.5 * seen.losses.parts.total
    assert cached is None or cached <= 0.5
    for each in hosts:
        assert each.cpu_share is None or each.cpu_share <= 0.85
        assert (each.cpu_share, each.runqueue_seconds) != (None, None)
        making = seen.losses.making_seconds / len(hosts)
        for lacked in (each.runqueue_seconds, each.throttled_seconds):
            assert lacked is None or lacked <= 0.5 * making / seen.losses.parts.waited * (
                seen.losses.parts.total * (1 + 1e-9)
            )
    probes = [each.probe for each in hosts if each.probe is not None]
    if len(probes) == len(hosts):
        given_to_all = sum(each.read_bytes_per_second for each in hosts)
        workers = 8 * len(hosts)
        in_reads = given_to_all / max(1 - (1 - reading) ** workers, 1e-3)
        wanted = given_to_all / (1 - seen.losses.parts.total)
        few, many = sum(probe.few for probe in probes), sum(probe.many for probe in probes)
        own = max(in_reads, min(few, 1.3 * in_reads))
        half = 2 / (1 / own + 1 / wanted) if wanted > own else 0.0
        assert many <= max(1.15 * own, half) * (1 + 1e-9)
