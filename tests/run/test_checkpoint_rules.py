"""The closed division's rules for checkpoints."""

import re
from pathlib import Path
from typing import Any

import pytest

from dlemu.checkpoint.plan import ShardPlan, Share, share_of
from dlemu.config.model import Workload, load_model
from dlemu.errors import WorkloadError
from dlemu.report.words import sentence
from dlemu.run.checkpoint_rules import check_closed_checkpoints, warnings_of
from tests.lab.commands import Printed

GIB = 1 << 30


def job(keys: dict[str, Any], model: str = "llama3_8b") -> Workload:
    return load_model(model, {"division": "closed", "metric.edition": "v3.0", **keys})


def plan_of(workload: Workload, hosts: int = 1) -> ShardPlan:
    share: Share = share_of(workload.model, workload.num_accelerators, workload.checkpoint.mode)
    each = -(-share.written // hosts)
    parts = [
        (host, range(host * each, min((host + 1) * each, share.written))) for host in range(hosts)
    ]
    return ShardPlan.over(workload, share, parts, range(share.written))


def refusal(workload: Workload, hosts: int = 1, memories: tuple[int, ...] = (GIB,)) -> str:
    with pytest.raises(WorkloadError) as error:
        check_closed_checkpoints(workload, plan_of(workload, hosts), memories * hosts)
    return str(error.value)


@pytest.mark.parametrize("edition", ["v2.0", "v3.0"])
@pytest.mark.parametrize("model", ["llama3_8b", "llama3_70b", "llama3_405b", "llama3_1t"])
def test_the_published_models_are_taken_as_they_are(model: str, edition: str) -> None:
    """With what changes no checkpoint, and in two commands as well."""
    for keys in (
        {},
        {"checkpoint.checkpoint_folder": "/mnt/ck", "checkpoint.mtbf": 3600},
        {"checkpoint.num_checkpoints_read": 0, "output.drop_caches": False},
        {"checkpoint.num_checkpoints_write": 0},
        {"checkpoint.checkpoint_folder": "s3://b/ck", "storage.endpoint_url": "http://s:9000"},
    ):
        workload = job({"metric.edition": edition, **keys}, model)
        check_closed_checkpoints(workload, plan_of(workload), [GIB])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"metric.edition": "v1.0"}, "edition v1.0 has no checkpoints"),
        ({"name": "mine"}, "published models only (rule 4.3.3), not 'mine'"),
        ({"checkpoint.fsync": False}, "checkpoint.fsync=false is not allowed .* (rule 4.3.2)"),
        ({"checkpoint.scale": 0.5}, "checkpoint.scale=0.5 is not allowed .* (rule 4.6.3)"),
        ({"checkpoint.odirect": True}, "checkpoint.odirect=true is not allowed"),
        ({"checkpoint.keep": 1}, "checkpoint.keep=1 is not allowed"),
        ({"checkpoint.time_between_checkpoints": 0}, "(published: 5)"),
        ({"model.num_layers": 31}, "model.num_layers=31 is not allowed (published: 32)"),
        ({"checkpoint.num_checkpoints_write": 5}, "one of them 0 (rule 4.6.3), got 5 and 10"),
        (
            {"checkpoint.num_checkpoints_write": 0, "checkpoint.num_checkpoints_read": 0},
            "got 0 and 0",
        ),
        ({"num_accelerators": 16}, "num_accelerators must be 8 (rule 4.6.1), got 16"),
        (
            {"checkpoint.mode": "subset", "num_accelerators": 4},
            "must be 8 (rule 4.3.5), got 4",
        ),
    ],
)
def test_what_breaks_a_rule_is_named(keys: dict[str, Any], said: str) -> None:
    pattern = re.escape(said).replace(r"\.\*", ".*")
    assert re.search(pattern, refusal(job(keys)))


def test_only_the_8b_model_has_a_subset() -> None:
    subset = {"checkpoint.mode": "subset"}
    check_closed_checkpoints(job(subset), plan_of(job(subset)), [GIB])
    large = job(subset, "llama3_70b")
    assert "not allowed for llama3_70b (rule 4.3.5), leave it out and write all 64" in refusal(
        large
    )
    older = job(subset | {"metric.edition": "v2.0"}, "llama3_70b")
    check_closed_checkpoints(older, plan_of(older), [GIB])


def test_each_host_has_more_than_4_accelerators() -> None:
    said = "each host must have at least 5 accelerators (rule 4.6.2), got 4, 4"
    assert said in refusal(job({}), hosts=2)
    large = job({}, "llama3_70b")
    check_closed_checkpoints(large, plan_of(large, hosts=8), [GIB] * 8)


def test_what_a_host_may_still_hold_is_dropped() -> None:
    """Ten checkpoints of 112 GB are 3 x 349 GiB of memory."""
    kept = job({"output.drop_caches": False})
    plan = plan_of(kept)
    check_closed_checkpoints(kept, plan, [349 * GIB])
    assert "(rule 4.3.1)" in refusal(kept, memories=(350 * GIB,))
    dropped = job({"output.drop_caches": False, "output.drop_all_caches": True})
    check_closed_checkpoints(dropped, plan, [350 * GIB])


def test_conditions_that_dlemu_cannot_check_are_said(tmp_path: Path) -> None:
    keys = {"checkpoint.checkpoint_folder": str(tmp_path / "ck")}
    both = job(keys | {"checkpoint.num_checkpoints_write": 0})
    assert [each.kind for each in warnings_of(both, tmp_path)] == [
        "one_file_system",
        "half_of_a_result",
    ]
    *_, half = warnings_of(both, Path("/proc"))
    assert sentence(half) == (
        "rule 4.7.1: checkpoints were read only; those of another command count with them if the "
        "reads begin within 30 s after the writes"
    )
    assert warnings_of(job(keys), Path("/proc")) == []
    assert warnings_of(both.with_keys({"metric.edition": "v2.0"}), tmp_path) == []
    assert warnings_of(both.with_keys({"division": "open"}), tmp_path) == []


def test_the_command_asks_the_rules(tmp_path: Path, printed: Printed) -> None:
    """Before anything is written; a dry run as well."""
    words = ["checkpoint", "model=llama3_8b", "division=closed", "metric.edition=v3.0"]
    words.append(f"checkpoint.checkpoint_folder={tmp_path / 'ck'}")
    for more in ([], ["--dry-run"]):
        said = printed(*words, "checkpoint.scale=0.0001", *more, status=1)
        assert "checkpoint.scale=0.0001 is not allowed (published: 1) (rule 4.6.3)" in said
    assert not (tmp_path / "ck").exists()
