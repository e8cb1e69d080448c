"""`dlemu wear`: what drives count of their own wear, and the write rate that they sustain."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dlemu.cli.scripts import json_text
from dlemu.cli.words import Words
from dlemu.config.model import Drive, NamedDrive
from dlemu.config.sections import Arguments, Share, Use
from dlemu.errors import WorkloadError
from dlemu.host.devices import BlockDevice, devices_under, mount_under
from dlemu.host.drive_counters import Lifetime, lifetime
from dlemu.host.wear import WearWatch, combine_hosts
from dlemu.judge.wear import Sustained, has_writes, sustained, wear_line
from dlemu.ranks.world import World
from dlemu.report.text import answer_of
from dlemu.report.tools import present_wear
from dlemu.terminal import answer, detail, say


class Endurance(Arguments):
    """How long a drive's endurance is to last."""

    years: Annotated[float, Field(gt=0, le=1000)] = 5.0
    """Years in which the endurance is used up."""
    duty: Share = 1.0
    """Share of the time in which the drive is written at that rate, as 0.5 or 50%."""
    drive: Annotated[NamedDrive | None, Use(by="")] = None


def main(words: Words) -> int:
    """Run `dlemu wear`; return the exit status."""
    asked = Endurance(**words.tree("wear"))
    drives = [lifetime(device) for device in _devices(words.folder)]
    rate = _sustained(asked, drives)
    if not drives and rate is None:
        raise WorkloadError(
            "nothing to show; name a folder (dlemu wear FOLDER) or a drive's endurance "
            "(drive.endurance=14PB)"
        )
    document = {"kind": "wear", "drives": drives, "sustained": rate}
    say(answer_of(present_wear(document)))
    if "--json" in words.options:
        answer(json_text(document))
    return 0


def _devices(path: Path | None) -> list[BlockDevice]:
    """Return the drives that a folder or a device's name means; none without a word."""
    if path is None:
        return []
    if not path.exists():
        here = sorted(disk.name for disk in Path("/sys/block").glob("[!lrz]*"))
        drives = (
            f"; this host has {', '.join(here)}" if here and path.parent == Path("/dev") else ""
        )
        raise WorkloadError(
            f"{path} is not there; name a folder or a drive such as /dev/nvme0n1{drives}"
        )
    devices = devices_under(path)
    if not devices:
        mount = mount_under(path)
        kind = mount.kind if mount else "unknown file system"
        raise WorkloadError(f"no drive is seen under {path} ({kind}), so nothing counts its wear")
    return devices


def _sustained(asked: Endurance, drives: Sequence[Lifetime]) -> Sustained | None:
    """Return the rate that one drive sustains; None where no endurance is given."""
    sheet = asked.drive
    if sheet is None or sheet.endurance is None:
        return None
    capacity = drives[0]["capacity_bytes"] if drives else sheet.capacity
    return sustained(sheet.endurance, capacity=capacity, years=asked.years, duty=asked.duty)


@contextmanager
def watched(
    world: World, *folders: Path, drive: Drive | None, written: Callable[[], int]
) -> Iterator[None]:
    """Watch what is written to the drives under folders; with -v rank 0 says it at the end.

    All ranks call it. `written()` returns on rank 0 the bytes of the files of all ranks.
    """
    watch = WearWatch(*folders)
    first = world.local_rank == 0
    if first:
        watch.start()
    yield
    num_bytes = written() if world.rank == 0 else 0
    hosts = world.gather(watch.finish(file_bytes=num_bytes) if first else None)
    if hosts is not None:
        found = [each for each in hosts if each is not None]
        wear = combine_hosts(found, endurance=None if drive is None else drive.endurance)
        if has_writes(wear):
            detail(wear_line(wear))
