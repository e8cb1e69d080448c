"""Who writes and reads what: the accelerators of each rank, and their files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlemu.checkpoint.shares import (
    CheckpointFile,
    Share,
    all_files,
    describe,
    share_of,
    total_bytes,
)
from dlemu.config.model import Workload
from dlemu.dataset.rule import accelerators_of
from dlemu.errors import WorkloadError
from dlemu.ranks.world import Alone, World

RATE_ERROR = 0.36
"""Relative error of a drive's rate. It is that of reads in published results (docs/prediction.md);
writes were not compared with published ones."""
Files = Sequence[tuple[str, int, int]]
"""Name, bytes and sample (the number of the bytes) of each file of an accelerator."""


@dataclass(frozen=True)
class Plan:
    """The files of a checkpoint, and who plays which accelerator."""

    share: Share
    files: tuple[CheckpointFile, ...]
    """Of all accelerators that write, in their order."""
    accelerators: range
    """Those that this rank plays."""
    hosts: tuple[int, ...]
    """The number of the host of each accelerator that writes."""
    shift: int
    """Added to an accelerator's number for the one whose files it reads; 0 on one host."""

    @classmethod
    def of(cls, workload: Workload, world: World) -> "Plan":
        """Return the plan of a command; all ranks call it. Hosts are filled one after the other.

        Raises:
            WorkloadError: the number of accelerators does not fit the model.
        """
        model, mode = workload.model, workload.checkpoint.mode
        share = world.on_first(lambda: share_of(model, workload.num_accelerators, mode))
        own = (world.host_index, world.local_rank)
        places = sorted(world.all_gather(own))
        parts = [
            (host, accelerators_of(position, len(places), share.written))
            for position, (host, _) in enumerate(places)
        ]
        return cls.over(workload, share, parts, parts[places.index(own)][1])

    @classmethod
    def over(
        cls, workload: Workload, share: Share, parts: Sequence[tuple[int, range]], own: range
    ) -> "Plan":
        """Return the plan for accelerators that are dealt out: `own` to this rank.

        `parts`: the host and the accelerators of each rank, in the order of the accelerators; those
        that write are the first.
        """
        files = all_files(workload.model, share, scale=workload.checkpoint.scale)
        hosts = tuple(host for host, part in parts for _ in part)[: share.written]
        own = range(own.start, min(own.stop, share.written))
        # By the largest host's number: so nobody reads its own host's, where half are elsewhere.
        shift = max(map(hosts.count, set(hosts))) if len(set(hosts)) > 1 else 0
        return cls(share, tuple(files), own, hosts, shift)

    @property
    def num_bytes(self) -> int:
        """Bytes of a checkpoint."""
        return sum(file.num_bytes for file in self.files)

    def bytes_of_hosts(self) -> dict[int, int]:
        """Return the bytes that the accelerators of each host write, by its number."""
        found = dict.fromkeys(self.hosts, 0)
        for file in self.files:
            found[self.hosts[file.rank]] += file.num_bytes
        return found

    def spread(self) -> tuple[int, int]:
        """Return the least and the most bytes of an accelerator."""
        sizes = [0] * self.share.written
        for file in self.files:
            sizes[file.rank] += file.num_bytes
        return min(sizes), max(sizes)

    def on_own_hosts(self) -> "Plan":
        """Return the plan for hosts that do not see each other's files."""
        return replace(self, shift=0)

    @property
    def foreign_share(self) -> float:
        """Share (0-1) of the accelerators that read files that another host has written."""
        number = len(self.hosts)
        other = (self.hosts[(a + self.shift) % number] != self.hosts[a] for a in range(number))
        return sum(other) / number

    def written_by(self, accelerator: int, step: int) -> Files:
        """Return the files that an accelerator writes for a checkpoint."""
        number = len(self.files)
        return [
            (file.name, file.num_bytes, step * number + index)
            for index, file in enumerate(self.files)
            if file.rank == accelerator
        ]

    def read_by(self, accelerator: int, step: int) -> Files:
        """Return the files that an accelerator reads: those of another host, where there are."""
        return self.written_by((accelerator + self.shift) % len(self.hosts), step)


def planned(workload: Workload, plan: Plan) -> dict[str, Any]:
    """Return the fields of the summary that are known before anything is written."""
    key, whole = workload.checkpoint, Share(plan.share.total, plan.share.total)
    return {
        "model": workload.model.model_dump(mode="json"),
        "shape": describe(workload.model, plan.share),
        "num_accelerators": plan.share.written,
        "num_accelerators_of_model": plan.share.total,
        "checkpoint": {
            "folder": key.checkpoint_folder or "",
            "num_accelerators": plan.share.written,
            "num_bytes": plan.num_bytes,
            "num_bytes_of_model": total_bytes(workload.model, whole, scale=key.scale),
            "num_files": len(plan.files),
            "num_bytes_of_accelerators": plan.spread(),
            "num_bytes_of_hosts": list(plan.bytes_of_hosts().values()),
            "scale": key.scale,
            "writer": key.writer,
            "fsync": key.fsync,
            "piece_bytes": key.piece_bytes,
            "io_depth": key.io_depth,
            "verified": key.verify,
            "max_seconds": key.max_seconds,
            "mtbf_seconds": key.mtbf,
        },
    }


def predict_checkpoint(workload: Workload) -> dict[str, Any]:
    """Return the document of a prediction from the rates of drives, without any storage.

    `save` and `load` have the `seconds` of one checkpoint, their range from `low` to `high`, and
    `bytes_per_second`. They follow from `drive` and `drives`; `save` is None where the write rate
    is not known.

    Raises:
        WorkloadError: no drive is given, or the accelerators do not fit the model.
    """
    drive, plan = workload.drive, Plan.of(workload, Alone())
    if drive is None or drive.read_bandwidth is None:
        raise WorkloadError(
            f"{'drive' if drive is None else 'drive.read_bandwidth'} is not set; name a datasheet "
            "(drive=d7_ps1010) or give its rates "
            "(drive.read_bandwidth=7GB drive.write_bandwidth=3GB)"
        )

    def duration(each: int | None) -> dict[str, float] | None:
        if not each:
            return None
        rate = workload.drives * each
        seconds = plan.num_bytes / rate
        return {
            "seconds": seconds,
            "low": seconds / (1 + RATE_ERROR),
            "high": seconds / (1 - RATE_ERROR),
            "bytes_per_second": rate,
        }

    return {
        "kind": "checkpoint prediction",
        **planned(workload, plan),
        "drive": drive.name,
        "drives": workload.drives,
        "relative_error": RATE_ERROR,
        "save": duration(drive.write_bandwidth),
        "load": duration(drive.read_bandwidth),
    }
