"""The words of hosts: drives and their wear, and whether earlier figures are of this storage."""

from collections.abc import Callable, Mapping
from typing import Any

from dlemu.units import format_bytes, format_seconds


def aged(seconds: float | None) -> str:
    """Return "12:05 old"; times of a day are stored to the second, so none is younger than that."""
    return "of unknown age" if seconds is None else f"{format_seconds(max(1, round(seconds)))} old"


def _file_system(f: Any) -> str:
    return f.file_system or "unknown file system"


def _counters_refused(f: Any) -> str:
    return (
        f"asking {f.path} needs CAP_SYS_ADMIN; run as root, or read the counters with "
        f"sudo nvme smart-log {f.path} before and after"
    )


HOSTS: Mapping[str, Callable[[Any], str]] = {
    # of which storage, dataset and host earlier figures are
    "identity_differs": lambda f: "; ".join(
        f"{name} {now}, was {then}" for name, (now, then) in f.keys.items()
    ),
    "identity_unknown": lambda f: "nothing tells of which drive, dataset and host",
    "oldest_cell": lambda f: f"the oldest cell in {f.file} that is taken is {aged(f.age_seconds)}",
    "search_is_old": lambda f: (
        f"{f.folder} has this search, but {aged(f.age_seconds)}; a new one begins; to go on with "
        f"that one: output.folder={f.folder}"
    ),
    # why a figure of a drive's wear is not known
    "block_device_uncounted": lambda f: "the kernel does not count its writes",
    "capacity_unknown": lambda f: "unknown capacity",
    "counters_refused": _counters_refused,
    "counters_silent": lambda f: (
        f"{f.path} does not answer ({f.error}); try nvme smart-log {f.path}"
    ),
    "device_not_here": lambda f: f"{f.path} is not here; a container needs --device={f.path}",
    "endurance_unset": lambda f: "drive.endurance is not set",
    "no_drive_seen": lambda f: "no drive is seen",
    "no_drive_under_folder": lambda f: f"no drive is seen under the folder ({_file_system(f)})",
    "no_file_written": lambda f: "no file was written",
    "no_flash_counter": lambda f: (
        "the drive has neither log C0h of OCP nor a log CAh that is known"
    ),
    "no_nvme": lambda f: f"{f.drive} is no NVMe drive (smartctl -A /dev/{f.drive} may tell more)",
    "nothing_written": lambda f: "nothing was written",
    "too_few_steps": lambda f: f"log CAh counts in steps of 32 MiB, and {f.least} are needed",
    "too_little_for_pace": lambda f: f"{format_bytes(f.bytes)} are too little for a pace",
    "too_little_for_ratio": lambda f: (
        f"{format_bytes(f.bytes)} were written, and less than {format_bytes(f.least)} give no ratio"
    ),
    "unit_unknown": lambda f: (
        f"the unit of log C0h is unknown: it grew by {f.grown:,} while {f.bytes:,} bytes were "
        "written, so WAF is not reported"
    ),
    # what the counters of a cache do not tell
    "fuse_process_unseen": lambda f: (
        f"the process of the FUSE mount {f.mount} is not seen: another user's, "
        "or in another container; run as that user or as root for its CPU time"
    ),
    "no_cache_drive": lambda f: f"no drive is seen under cache.devices {', '.join(f.devices)}",
    "origin_on_cache_drive": lambda f: (
        f"cache.origin {f.origin} and cache.devices lie on one drive ({', '.join(f.drives)}): its "
        "reads cannot be told apart, so the hit share is not known; watch two drives"
    ),
    "origin_uncounted": lambda f: (
        f"cache.origin {f.origin} ({_file_system(f)}) has no drive and no NFS mount that counts, "
        "so the hit share is not known"
    ),
}
