"""The words of checkpoints: what is planned and done, what limited them, and what to try."""

from collections.abc import Callable, Mapping
from typing import Any

from dlemu.units import counted, format_rate, format_seconds


def _slow_accelerator(f: Any) -> str:
    more = f.bytes_to_mean
    why = "" if more is None else f", with {more:.2f} times the mean bytes"
    return (
        f"accelerator {f.accelerator} on host {f.host} took {format_seconds(f.seconds)}{why}, the "
        f"mean of all {format_seconds(f.mean_seconds)}"
    )


def _time_in_calls(f: Any) -> str:
    shares = " and ".join(f"{100 * share:.0f}% in {name}" for name, share in f.shares.items())
    drive = f.drive_share
    busy = "" if drive is None else f"; the drive was busy {100 * drive:.0f}% of the time"
    return f"the accelerators were {shares} calls{busy}"


def _host_cpus_busy(f: Any) -> str:
    by = "" if f.by_own_threads else ", most of it not by dlemu's own threads"
    return f"the CPUs of host {f.host} were busy {100 * f.share:.0f}% of the time{by}"


CHECKPOINTS: Mapping[str, Callable[[Any], str]] = {
    "checkpoint_taken": lambda f: (
        f"{f.operation} {f.number} of {f.planned}: {format_seconds(f.seconds)}, "
        f"{format_rate(f.bytes_per_second)}"
    ),
    "checkpoint_without_odirect": lambda f: (
        f"checkpoint.odirect=auto: {f.folder} does not take O_DIRECT"
    ),
    "checkpoints_by_epochs": lambda f: (
        f"one after epoch {f.first} and every {counted(f.every, 'epoch')}"
    ),
    "checkpoints_by_steps": lambda f: f"one every {counted(f.every, 'step')}",
    "earlier_checkpoints_removed": lambda f: (
        f"removed: {counted(f.number, 'checkpoint')} of an earlier command"
    ),
    "folder_in_memory": lambda f: f"the folder lies in memory ({f.file_system}): there is no drive",
    "host_cpus_busy": _host_cpus_busy,
    "look_at_path": lambda f: "look at that host's path to the storage",
    "make_bytes_sooner": lambda f: (
        "more CPUs, or fewer accelerators on a host: the drive can take more than was measured"
    ),
    "more_cpus": lambda f: (
        f"more CPUs{', or checkpoint.odirect=true, which copies less' if f.or_odirect else ''}"
    ),
    "not_read_back": lambda f: f"checkpoint.writer={f.writer}: nothing was read back",
    "read_from_memory": lambda f: f"{100 * f.share:.1f}% of what was read lay in memory",
    "read_past_memory": lambda f: "checkpoint.odirect=true reads past it",
    "slow_accelerator": _slow_accelerator,
    "time_in_calls": _time_in_calls,
    "waited_for_bytes": lambda f: (
        f"writers waited {100 * f.share:.1f}% of the time for bytes that were not made yet"
    ),
    "writes_ended_in_memory": lambda f: (
        "without fsync the writes ended in memory, before the drive had them"
    ),
}
