"""The rules of MLPerf Storage's closed division for checkpoints.

Edition v3.0 numbers them (Rules.md of mlcommons/storage, chapter 4); v2.0 has most of them without
numbers (its Submission_guidelines.md, "Checkpointing"), v1.0 has no checkpoints. Rule 4.3.4, that
the accelerators' memory holds the checkpoint, follows from rule 4.6.1: with all processes even
accelerators of 80 GB hold it.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from dlemu.checkpoint.plan import ShardPlan
from dlemu.config.compose import named
from dlemu.config.model import Workload, load_model, read_by
from dlemu.config.published import differing
from dlemu.config.source import WordSource
from dlemu.errors import WorkloadError
from dlemu.findings import Finding, note, reason
from dlemu.host.processes import host_memory_bytes
from dlemu.judge.records import plain
from dlemu.ranks.world import World
from dlemu.report.words import sentence

_FIRST_EDITION = "v2.0"
"""Of those with checkpoints, the first."""
_LEAST_PER_HOST = 5
"""Accelerators of each host (rule 4.6.2: more than 4)."""
_SUBSET = 8
"""Accelerators of a subset, and of the only model that v3.0 has one of (rule 4.3.5)."""
_MEMORY_MULTIPLE = 3
"""Bytes that a host must write, in its memories, for a read without a drop (rule 4.3.1)."""
_LONGEST_GAP = 30
"""Seconds from the end of the writes to the start of the reads, where these are another command
(rule 4.7.1)."""
_RULE_OF = {"checkpoint.fsync": "4.3.2"}
_COUNTS = ("checkpoint.num_checkpoints_write", "checkpoint.num_checkpoints_read")


def check_closed_checkpoints(
    workload: Workload, plan: ShardPlan, memories: Sequence[int] = ()
) -> None:
    """Refuse checkpoints that break the closed division's rules, wherever their keys were set.

    `memories`: bytes of memory of each host, in the order of their numbers.

    Raises:
        WorkloadError: names all keys that may not be changed, and all values that are not allowed.
    """
    edition = workload.metric.edition
    if edition < _FIRST_EDITION:
        raise WorkloadError(
            f"division=closed: edition {edition} has no checkpoints; add metric.edition=v3.0, or "
            "use division=open"
        )
    models = sorted(each for each in named("model") if each.startswith("llama3"))
    if workload.name not in models:
        rule = "" if edition == "v2.0" else " (rule 4.3.3)"
        raise WorkloadError(
            f"division=closed takes the published models only{rule}, not {workload.name!r}; write "
            f"model= and one of {', '.join(models)}"
        )
    published = load_model(workload.name, source=WordSource.INSTALLED)
    refusals = [
        *_refused_keys(workload, published),
        *_refused_numbers(workload, published),
        *_refused_accelerators(workload, published, plan),
        *_refused_cache(workload, published, plan, memories),
    ]
    if refusals:
        found = "; ".join(map(sentence, refusals))
        raise WorkloadError(f"division=closed: {found}; or use division=open")


def check_closed(workload: Workload, world: World) -> None:
    """Do so where the division is closed; all ranks call it, before anything is written."""
    if workload.division != "closed":
        return
    plan = ShardPlan.of(workload, world)
    memory = dict(world.all_gather((world.host_index, host_memory_bytes()[0])))
    memories = [memory[host] for host in sorted(memory)]
    world.on_first(lambda: check_closed_checkpoints(workload, plan, memories))


def warnings_of(workload: Workload, results: Path) -> list[Finding]:
    """Return what keeps the rules of edition v3.0 only under a condition that dlemu cannot check.

    `results` is the folder of the results; it is there.
    """
    if workload.division != "closed" or workload.metric.edition != "v3.0":
        return []
    key, found = workload.checkpoint, []
    with suppress(OSError):  # a bucket is on no file system
        folder = Path(key.checkpoint_folder or "")
        if os.stat(folder if folder.exists() else folder.parent).st_dev == os.stat(results).st_dev:
            places = {"data_folder": str(folder), "results": str(results)}
            found.append(note("one_file_system", rule="4.4.2", **places))
    if not (key.num_checkpoints_write and key.num_checkpoints_read):
        here = "written" if key.num_checkpoints_write else "read"
        found.append(note("half_of_a_result", here=here, most_seconds=_LONGEST_GAP, rule="4.7.1"))
    return found


def _rule(workload: Workload, number: str) -> str | None:
    return number if workload.metric.edition == "v3.0" else None


def _refused_keys(workload: Workload, published: Workload) -> Iterator[Finding]:
    """Yield the keys that a submitter may not change; where a bucket lies he may say."""
    apart = {*_COUNTS, "checkpoint.mode"}
    for key, values in differing(workload, published, apart).items():
        if "checkpoint" not in read_by(key) or key.startswith("storage."):
            continue
        value, wanted = map(plain, values)
        rule = _rule(workload, _RULE_OF.get(key, "4.6.3"))
        yield reason("value_not_allowed", key=key, value=value, published=wanted, rule=rule)


def _refused_numbers(workload: Workload, published: Workload) -> Iterator[Finding]:
    """Yield other numbers of checkpoints: each is the published one, or 0 in one of two commands.

    The other of the two writes or reads them.
    """
    rule, key, wanted = _rule(workload, "4.6.3"), workload.checkpoint, published.checkpoint
    written, read = key.num_checkpoints_write, key.num_checkpoints_read
    most = {"most_written": wanted.num_checkpoints_write, "most_read": wanted.num_checkpoints_read}
    allowed = written in (0, most["most_written"]) and read in (0, most["most_read"])
    if not allowed or not (written or read):
        yield reason("other_checkpoints", num_written=written, num_read=read, rule=rule, **most)


def _refused_accelerators(
    workload: Workload, published: Workload, plan: ShardPlan
) -> Iterator[Finding]:
    """Yield numbers of accelerators that are not the model's, and hosts that have too few."""
    total = published.model.model_parallelism * (published.model.parallelism.data or 1)
    got, needed, rule = plan.share.written, total, _rule(workload, "4.6.1")
    if workload.checkpoint.mode == "subset":
        if workload.metric.edition == "v3.0" and total != _SUBSET:
            yield reason("no_subset", name=workload.name, num_accelerators=total, rule="4.3.5")
            return
        needed, rule = _SUBSET, _rule(workload, "4.3.5")
    if got != needed:
        yield reason("other_accelerators", num_accelerators=got, needed=needed, rule=rule)
        return
    hosts = Counter(plan.hosts)
    if min(hosts.values()) < _LEAST_PER_HOST:
        each, rule = [hosts[host] for host in sorted(hosts)], _rule(workload, "4.6.2")
        yield reason("hosts_too_small", num_accelerators=each, least=_LEAST_PER_HOST, rule=rule)


def _refused_cache(
    workload: Workload, published: Workload, plan: ShardPlan, memories: Sequence[int]
) -> Iterator[Finding]:
    """Yield reads of what the page cache may hold."""
    output, key = workload.output, workload.checkpoint
    if output.drop_caches or output.drop_all_caches or not key.num_checkpoints_read:
        return
    number = published.checkpoint.num_checkpoints_write
    for host, num_bytes in plan.bytes_of_hosts().items():
        memory = memories[host] if host < len(memories) else host_memory_bytes()[0]
        if number * num_bytes <= _MEMORY_MULTIPLE * memory:
            rule, each = _rule(workload, "4.3.1"), _MEMORY_MULTIPLE
            written = number * num_bytes
            yield reason(
                "checkpoints_not_dropped",
                num_bytes=written,
                memory_bytes=memory,
                least_memory_multiple=each,
                rule=rule,
            )
            return
