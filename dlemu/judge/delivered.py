"""The bytes that storage delivered, by the best counter; the other bytes came from memory.

Drives count their reads, and NFS mounts count those of the server. Elsewhere there is only
`read_bytes` of /proc/PID/io. File systems differ in what they count there (by their source code;
FUSE was measured as well):

- On a block device the kernel counts each request of a process (submit_bio), also of a drive that
  is not seen here.
- Lustre, Ceph, SMB and 9p do not count what a kernel thread fetched or completed for the process,
  and Lustre no O_DIRECT. BeeGFS counts by its own mode. NFS counted no buffered reads from Linux
  5.18 to 6.2. FUSE and virtiofs count nothing in newer kernels (6.18: with and without O_DIRECT).
  Overlay counts as the file system below. Here the count is true, but may not be complete.
- ZFS counts what its cache in memory served as well, and GPFS is closed: these counts say nothing.

No counter sees what the file system's own cache, or the server's memory, delivered.
"""

from dlemu.host.intervals import IntervalSummary

_IN_MEMORY = ("tmpfs", "ramfs")
_COUNT_ALL = ("btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "ntfs3", "vfat", "xfs")
_COUNT_SOME = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "lustre", "nfs", "nfs4", "overlay", "smb3",
    "virtiofs",
)  # fmt: skip
_VOUCHED = 0.95
"""A count that may not be complete is used if it has this share of the bytes read."""


def stored_bytes(epoch: IntervalSummary, file_system: str) -> int | None:
    """Return the bytes that storage delivered in an epoch, None where no counter tells.

    It is the smallest of the counts, as drives and mounts serve other processes, too.
    """
    if file_system in _IN_MEMORY:
        return 0
    processes = epoch.process_read_bytes
    if epoch.devices and file_system.startswith("fuse"):  # drives that are watched behind it
        return epoch.device_read_bytes
    if not epoch.devices and epoch.network_read_bytes is None:
        return processes if file_system in _COUNT_ALL else None
    counts = [epoch.storage_read_bytes]
    if processes or epoch.devices:  # on NFS a count of 0 may mean that nothing was counted
        counts.append(processes)
    return min((num for num in counts if num is not None), default=None)


def vouched_bytes(epoch: IntervalSummary, file_system: str, *, read: int) -> int | None:
    """Return the bytes that storage delivered at least, if they are nearly all bytes read."""
    counted = epoch.process_read_bytes
    some = file_system.partition(".")[0] in _COUNT_SOME  # "fuse.sshfs"
    return counted if some and counted is not None and counted >= _VOUCHED * read else None


def how_known(file_system: str, *, known: bool) -> str:
    """Return the note on how the share from memory is known, or why it is not."""
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
