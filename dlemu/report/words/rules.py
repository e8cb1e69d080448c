"""The words of the closed division's rules: what a job may not do, and what dlemu cannot check."""

from collections.abc import Callable, Mapping
from typing import Any

from dlemu.config.published import word
from dlemu.units import format_bytes


def _by(f: Any) -> str:
    """Return " (rule 3.6.2)" in the edition whose rules have numbers."""
    return f" (rule {f.rule})" if f.rule else ""


def _value_not_allowed(f: Any) -> str:
    published = word(f.key, f.published).partition("=")[2]
    return f"{word(f.key, f.value)} is not allowed (published: {published}){_by(f)}, leave it out"


def _least(f: Any) -> str:
    if f.least_steps is not None:
        return f"{f.least_steps} steps"
    return f"{f.least_memory_multiple} x memory"


def _files_missing(f: Any) -> str:
    rule = f"rule {f.rule}: " if f.rule else ""
    return (
        f"dataset.num_files_train must be at least {f.num_files_needed} ({rule}{_least(f)}), got "
        f"{f.num_files}, generate with dataset.num_files_train=auto"
    )


LABEL = "MLPerf-Storage-style, not an MLPerf result"
"""What a result by the rules is, in each document of several runs."""

RULES: Mapping[str, Callable[[Any], str]] = {
    "cached_share_too_large": lambda f: (
        f"metric.max_cached_share must be at most {f.most:g}, got {f.value:g}, leave it out"
    ),
    "caches_not_dropped": lambda f: (
        f"{f.key} must be true in edition {f.edition}, which wants cold caches before every "
        f"{f.before_every}, got false, leave it out"
    ),
    "checkpoint_missing": lambda f: (
        f"workflow.checkpoint must be true in edition {f.edition}, whose UNet3D writes a "
        "checkpoint, got false, add workflow.checkpoint=true "
        "checkpoint.checkpoint_folder=/path/on/the/storage"
    ),
    "checkpoints_not_dropped": lambda f: (
        f"output.drop_caches must be true{_by(f)} where a host writes at most "
        f"{f.least_memory_multiple} x its memory of {format_bytes(f.memory_bytes)}, here "
        f"{format_bytes(f.num_bytes)}, got false, leave it out"
    ),
    "distributed_result": lambda f: (
        f"rule {f.rule}: {f.num_hosts} hosts are a distributed result; a single-host one takes one"
    ),
    "files_missing": _files_missing,
    "half_of_a_result": lambda f: (
        f"rule {f.rule}: checkpoints were {f.here} only; those of another command count with them "
        f"if the reads begin within {f.most_seconds} s after the writes"
    ),
    "hosts_too_small": lambda f: (
        f"each host must have at least {f.least} accelerators{_by(f)}, got "
        f"{', '.join(map(str, f.num_accelerators))}, start the ranks on fewer hosts"
    ),
    "hosts_unequal": lambda f: (
        f"accelerators of each host must be equal (rule {f.rule}), got "
        f"{', '.join(map(str, f.num_accelerators))}, start as many ranks on each host, or set "
        f"num_accelerators={f.equal_total}"
    ),
    "key_not_allowed": lambda f: f"{f.key} is not allowed{_by(f)}, leave it out",
    "model_of_no_edition": lambda f: (
        f"rule {f.rule}: edition v3.0 has {', '.join(f.models)}, not {f.name}"
    ),
    "no_subset": lambda f: (
        f"checkpoint.mode=subset is not allowed for {f.name}{_by(f)}, leave it out and write all "
        f"{f.num_accelerators} accelerators"
    ),
    "no_warmup": lambda f: (
        f"warmup must be at least 1 in edition {f.edition}, got {f.warmup}, add warmup=1"
    ),
    "one_file_system": lambda f: (
        f"rule {f.rule}: {f.data_folder} and the results in {f.results} are on one file system; "
        "set output.folder to another"
    ),
    "other_accelerators": lambda f: (
        f"num_accelerators must be {f.needed}{_by(f)}, got {f.num_accelerators}, leave it out"
    ),
    "other_checkpoints": lambda f: (
        f"checkpoint.num_checkpoints_write and checkpoint.num_checkpoints_read must be "
        f"{f.most_written} and {f.most_read}, or one of them 0{_by(f)}, got {f.num_written} and "
        f"{f.num_read}, leave them out"
    ),
    "other_number_of_files": lambda f: (
        f"dataset.num_files_train must be {f.num_files_needed} (rule {f.rule}: what dlemu datasize "
        f"says, {_least(f)}), got {f.num_files}, set "
        f"dataset.num_files_train={f.num_files_needed}, the folder may hold more"
    ),
    "other_runs": lambda f: (
        f"warmup and runs must be 1 and {f.num_runs} (rule {f.rule}: 6 runs, the first is the "
        f"warm-up), got {f.warmup} and {f.runs}, add warmup=1 runs={f.num_runs}"
    ),
    "prefetch_too_large": lambda f: (
        f"reader.prefetch_size must be at most {f.most}{_by(f)}, got {f.value}, set "
        f"reader.prefetch_size={f.most}"
    ),
    "too_few_runs": lambda f: (
        f"runs must be at least {f.num_runs}, got {f.runs}, add runs={f.num_runs}"
    ),
    "value_not_allowed": _value_not_allowed,
}
