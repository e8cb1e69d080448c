"""The drives and the process behind a cache that is mounted: what they have moved so far.

A cache product (a FUSE mount, dm-cache, a network mount with a local cache) reads from an origin
and keeps copies on drives of its own. The counters of both tell what a reader of the mount cannot
see: where its bytes came from.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlemu.host.counters import total
from dlemu.host.devices import (
    PROC,
    SYS,
    BlockDevice,
    DeviceCounters,
    Mount,
    counted_devices,
    mount_under,
    network_read_bytes,
    read_text,
)
from dlemu.host.drive_counters import flush
from dlemu.host.processes import ProcessTree


@dataclass(frozen=True)
class PlaceCounts:
    """Counters, or their growth over an epoch; None where nobody counts."""

    origin_read_bytes: int | None = None
    """Read from the origin's drive, or by its network mount from the server."""
    cache_read_bytes: int | None = None
    """Read from the cache's drives."""
    cache_written_bytes: int | None = None
    daemon_cpu_seconds: float | None = None
    """CPU time of the FUSE mount's process and of those that it started."""


class WatchedPlaces:
    """The places behind a data folder, on this host.

    Args:
        folder: the data folder, on the mount of the cache.
        origin: folder or block device of the origin; None: it is not watched.
        devices: folders or block devices of the cache.
    """

    def __init__(
        self,
        folder: Path,
        origin: Path | None,
        devices: Sequence[Path],
        *,
        proc: Path = PROC,
        sys: Path = SYS,
    ) -> None:
        self._proc, self._folders = proc, [path for path in devices if path.is_dir()]
        self._origin = [] if origin is None else counted_devices(origin, proc=proc, sys=sys)
        self._origin_mount = None if origin is None else mount_under(origin, proc=proc)
        found = [counted_devices(each, proc=proc, sys=sys) for each in devices]
        self._cache = list({each.name: each for some in found for each in some}.values())
        self._mount = mount_under(folder, proc=proc)
        self._daemon: ProcessTree | None = None
        self._pid = find_daemon(self._mount, proc=proc)
        if self._pid is not None:
            self._daemon = ProcessTree(proc)
        self._names = (origin, tuple(devices))

    @property
    def shared(self) -> list[str]:
        """Names of the devices that are origin and cache at once: their bytes are mixed."""
        cache = {device.name for device in self._cache}
        return [device.name for device in self._origin if device.name in cache]

    def notes(self) -> Iterator[str]:
        """Yield what cannot be told, each with its reason."""
        origin, devices = self._names
        if self.shared:
            yield (
                f"cache.origin {origin} and cache.devices lie on one drive "
                f"({', '.join(self.shared)}): its reads cannot be told apart, so the hit share is "
                "not known; watch two drives"
            )
        elif origin is not None and self.counts().origin_read_bytes is None:
            kind = self._origin_mount.kind if self._origin_mount else "unknown file system"
            yield (
                f"cache.origin {origin} ({kind}) has no drive and no NFS mount that counts, so the "
                "hit share is not known"
            )
        if devices and not self._cache:
            yield f"no drive is seen under cache.devices {', '.join(map(str, devices))}"
        if self._mount is not None and self._mount.kind.startswith("fuse") and not self._daemon:
            yield (
                f"the process of the FUSE mount {self._mount.point} is not seen: another user's, "
                "or in another container; run as that user or as root for its CPU time"
            )

    def counts(self) -> PlaceCounts:
        """Return the counters now; an origin that shares the cache's drive has none."""
        origin = None if self.shared else _total(self._origin, lambda each: each.read_bytes)
        if origin is None and not self._origin:
            origin = network_read_bytes(self._origin_mount, proc=self._proc)
        if self._daemon is not None and self._pid is not None:
            self._daemon.refresh([self._pid])
        return PlaceCounts(
            origin_read_bytes=origin,
            cache_read_bytes=_total(self._cache, lambda each: each.read_bytes),
            cache_written_bytes=_total(self._cache, lambda each: each.written_bytes),
            daemon_cpu_seconds=self._daemon.counters().cpu_seconds if self._daemon else None,
        )

    def settle(self) -> None:
        """Wait until what was written to the cache has reached its drives."""
        for folder in self._folders:
            flush(folder)


def find_daemon(mount: Mount | None, *, proc: Path = PROC) -> int | None:
    """Return the process that serves a FUSE mount, None if there is none or it is not seen.

    It has /dev/fuse open. Since Linux 6.16 the kernel tells of which mount; before, the process
    that was started with the folder's name is taken, or the only one.
    """
    if mount is None or not mount.kind.startswith("fuse"):
        return None
    connection = f"fuse_connection:\t{mount.number.partition(':')[2]}"
    others = []
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdecimal()):
        told = list(_fuse_files(proc / str(pid)))
        if any(connection in text.splitlines() for text in told):
            return pid
        if told and not any("fuse_connection:" in text for text in told):
            others.append(pid)
    words = {pid: read_text(proc / str(pid) / "cmdline").split("\0") for pid in others}
    named = [pid for pid in others if mount.point in words[pid]]
    return next(iter(named or (others if len(others) == 1 else ())), None)


def _fuse_files(process: Path) -> Iterator[str]:
    """Yield what the kernel tells of each descriptor of /dev/fuse that a process has open."""
    with suppress(OSError):  # it has ended, or is another user's
        for link in (process / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(link) == "/dev/fuse":
                    yield read_text(process / "fdinfo" / link.name)


def _total(
    devices: Sequence[BlockDevice], value: Callable[[DeviceCounters], int | None]
) -> int | None:
    """Return the sum over devices; None if there is none, or one does not count."""
    counters = [device.counters() for device in devices]
    return total([None if each is None else value(each) for each in counters]) if devices else None
