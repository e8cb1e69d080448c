"""What storage delivered, by whoever can tell; the rest of the bytes came from memory.

Drives count their reads, NFS its server's. Elsewhere `read_bytes` of /proc/PID/io is what is left,
and file systems differ in what they count there (their sources; FUSE was measured, too):

- On a block device the kernel counts each request of a process (submit_bio), seen drive or not.
- Lustre, Ceph, SMB and 9p leave out what a kernel thread fetched or completed for the process, and
  Lustre O_DIRECT; BeeGFS counts by its own mode; NFS counted no buffered reads from Linux 5.18 to
  6.2; FUSE and virtiofs count nothing in newer kernels (6.18: nothing, with O_DIRECT or without);
  overlay is what lies below. What they count is true, but it may not be all.
- ZFS counts what its cache in memory served as well. GPFS is closed. Neither tells anything.

None of them sees what a cache of the file system's own, or the server's memory, delivered.
"""

from dlemu.host.intervals import IntervalSummary

_IN_MEMORY = ("tmpfs", "ramfs")
_COUNT_ALL = ("btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "ntfs3", "vfat", "xfs")
_COUNT_SOME = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "lustre", "nfs", "nfs4", "overlay", "smb3",
    "virtiofs",
)  # fmt: skip
_VOUCHED = 0.95
"""A count that may not be all tells the share from memory if it has this share of the bytes."""


def stored_bytes(epoch: IntervalSummary, file_system: str) -> int | None:
    """Return the bytes that storage delivered in an epoch, None where nobody can tell.

    The least of the witnesses: drives and mounts serve others, too.
    """
    if file_system in _IN_MEMORY:
        return 0
    processes = epoch.process_read_bytes
    if not epoch.devices and epoch.network_read_bytes is None:
        return processes if file_system in _COUNT_ALL else None
    witnesses = [epoch.storage_read_bytes]
    if processes or epoch.devices:  # on NFS no count is no witness
        witnesses.append(processes)
    return min((num for num in witnesses if num is not None), default=None)


def vouched_bytes(epoch: IntervalSummary, file_system: str, *, read: int) -> int | None:
    """Return the bytes that storage delivered at least, if these are nearly all that were read."""
    counted = epoch.process_read_bytes
    some = file_system.partition(".")[0] in _COUNT_SOME  # "fuse.sshfs"
    return counted if some and counted is not None and counted >= _VOUCHED * read else None


def describe(file_system: str, *, known: bool) -> str:
    """Return what a reader of the share from memory must know of who told it."""
    if file_system in _IN_MEMORY:
        return f"the data folder lies in memory ({file_system}): no storage was read"
    name = file_system or "an unknown file system"
    if known:
        return (
            f"no drive is seen under the data folder ({name}): what storage delivered is the "
            "processes' own count (read_bytes), which sees no cache but the page cache"
        )
    return (
        f"no drive is seen under the data folder ({name}), and the processes' own count "
        "(read_bytes) does not tell: how many bytes came from memory is not known"
    )
