"""`dlemu wear`: what drives count of their own wear, and the write rate that they sustain."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dlemu.cli.scripts import json_text
from dlemu.cli.values import Read, number, one_folder, read_values
from dlemu.cli.words import parse
from dlemu.errors import WorkloadError
from dlemu.host.devices import BlockDevice, devices_under, drives_of, mount_under
from dlemu.host.drive_counters import Lifetime, lifetime
from dlemu.host.wear import WearWatch, combine_hosts
from dlemu.report.text import answer_of
from dlemu.report.wear import present_wear
from dlemu.results.wear import Sustained, has_writes, sustained, wear_line
from dlemu.terminal import answer, detail, keep_stdout, say
from dlemu.workload.model import Drive, load_workload
from dlemu.world.world import World

HELP = """\
dlemu wear [FOLDER or /dev/DRIVE] [key=value ...]

Show what the drives under a folder have counted so far: bytes written by hosts and to flash, write
amplification (WAF), share of their life that is used. A drive's own counters need root and NVMe.
With the drive's endurance, compute the write rate that uses it up in some years.

  drive=d5_p5336_61tb      a datasheet of workloads/drive/
  drive.endurance=213PB    bytes that hosts may write to a drive in its life (TBW), instead
  drive.capacity=61.44TB   of a drive; of a FOLDER it is known
  wear.years=5             years in which the endurance is used up
  wear.duty=50%            share of the time in which the drive is written at that rate; 100%
  --json                   print one JSON document, and nothing else

  dlemu wear .
  dlemu wear drive=d5_p5336_61tb wear.years=5 wear.duty=50%
"""


WORDS = ("--json",)
_OF_DRIVE = ("drive", "drive.endurance", "drive.capacity")
_ANY = "cosmoflow_h100"
"""A workload: its keys of drives are read, whatever it is."""


def main(arguments: Sequence[str]) -> int:
    """Run `dlemu wear` with its arguments; return the exit status."""
    words = parse(arguments, WORDS)
    years, duty, sheet = _keys(words.values)
    with keep_stdout("--json" in words.options):
        drives = [lifetime(device) for device in _devices(words.others)]
        rate = _sustained(sheet, drives, years=years, duty=duty)
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


def _keys(values: Mapping[str, str]) -> tuple[float, float, Drive | None]:
    """Return years, duty and the drive that keys name."""
    chosen = read_values(values, KEYS)
    own = {key: value for key, value in chosen.items() if key in _OF_DRIVE}
    drive = load_workload(_ANY, own).drive if own else None
    return chosen.get("wear.years", 5.0), chosen.get("wear.duty", 1.0), drive


def _up_to(most: float) -> Read:
    """Return what reads a number above 0; 50% is 0.5."""

    def read(text: str) -> float:
        found = number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if not 0 < found <= most:
            raise ValueError(f"must be above 0, at most {most:g}")
        return found

    return read


def _devices(others: Sequence[str]) -> list[BlockDevice]:
    """Return the drives that a folder or a device's name means; none without a word."""
    path = one_folder(others)
    if path is None:
        return []
    if not path.exists():
        raise WorkloadError(f"{path} is not there; name a folder or a drive such as /dev/nvme0n1")
    devices = drives_of(path) if path.is_block_device() else devices_under(path)
    if not devices:
        mount = mount_under(path)
        kind = mount.kind if mount else "unknown file system"
        raise WorkloadError(f"no drive is seen under {path} ({kind}), so nothing counts its wear")
    return devices


KEYS: dict[str, Read] = {
    **dict.fromkeys(_OF_DRIVE, str),
    "wear.years": _up_to(1000),
    "wear.duty": _up_to(1),
}
"""How each key's value is read; those of a drive are a workload's."""


def _sustained(
    sheet: Drive | None, drives: Sequence[Lifetime], *, years: float, duty: float
) -> Sustained | None:
    """Return the rate that one drive sustains; None where no endurance is given."""
    if sheet is None or sheet.endurance is None:
        return None
    capacity = drives[0]["capacity_bytes"] if drives else sheet.capacity
    return sustained(sheet.endurance, capacity=capacity, years=years, duty=duty)


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
