"""`dlemu datasize`, `datagen` and `verify`: how large a dataset must be, written, checked."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlemu.cli.progress import show_files, shows
from dlemu.cli.words import Words
from dlemu.terminal import Answer, say, shown_line
from dlemu.units import counted
from dlemu.world.world import World

if TYPE_CHECKING:
    from dlemu.workload.objects import Access


def datasize(workload: Any, world: World, words: Words) -> int:
    """print the size of the dataset that the rules ask for, both terms, and which one won"""
    from dlemu.cli.scripts import DATASIZE, Script, datasize_document, datasize_row
    from dlemu.dataset.rule import required_size

    script = world.on_first(lambda: Script.of(words, DATASIZE))
    size = required_size(workload, world)
    if world.rank == 0:
        say(Answer(str(size)))
        script.tell(datasize_document(size), [datasize_row(size)])
    return 0


def datagen(workload: Any, world: World, words: Words) -> int:
    """write the dataset; killed at any moment and started again, it continues"""
    from dlemu.cli.wear import watched
    from dlemu.datagen import generate
    from dlemu.dataset.rule import resolve_auto
    from dlemu.results.header import introduction
    from dlemu.workload.objects import in_bucket

    workload = resolve_auto(workload, world)
    folder, done = workload.data_folder, [0]

    def count(state: Any) -> None:
        done[0] = state.bytes_done
        if progress is not None:
            progress(state)

    with (
        nullcontext()  # the drives of its server are not this host's
        if in_bucket(folder)
        else watched(world, folder, drive=workload.drive, written=lambda: done[0]),
        show_files("datagen", on=shows(workload, world)) as progress,
    ):
        manifest = generate(
            workload,
            world=world,
            on_begin=lambda: say(
                introduction(workload, host=world.host, num_hosts=world.num_hosts)
            ),
            on_progress=count,
        )
    if world.rank == 0:
        say(Answer(f"{workload.data_folder}: {manifest.describe()}"))
    return 0


def verify(workload: Any, world: World, words: Words) -> int:
    """check a data folder by its manifest; --full its content too, --repair mends it"""
    from dlemu.datagen import verify as find_faults

    folder, access = _folder_to_verify(workload, world, words)
    full, repair = ("--full" in words.options), ("--repair" in words.options)
    with show_files("verify", on=shows(workload, world)) as progress:
        faults = find_faults(
            folder,
            full=full,
            repair=repair,
            world=world,
            on_progress=progress,
            access=access,
        )
    if world.rank == 0:
        for fault in faults:
            again = ", written again" if fault.repaired else ""
            say(Answer(shown_line(f"{fault.path}: {fault.problem}{again}")))
        checked = "sizes and content" if full else "sizes"
        say(Answer(f"{folder}: {_found(faults)}; {checked} were checked"))
    return 0 if all(fault.repaired or fault.harmless for fault in faults) else 1


def _folder_to_verify(workload: Any, world: World, words: Words) -> tuple[Path, "Access | None"]:
    """Return the data folder, and how its bucket is reached if it lies in one."""
    from dlemu.workload.objects import Access, object_path

    if workload is not None:
        return workload.data_folder, world.on_first(lambda: workload.access)
    named = words.others[0]
    if "://" not in named:
        return Path(named), None
    return object_path(named), world.on_first(Access.of)


def _found(faults: Sequence[Any]) -> str:
    """Return "2 bad files, 1 written again, 1 extra file"."""
    bad = [fault for fault in faults if not fault.extra]
    repaired = sum(fault.repaired for fault in bad)
    parts = [counted(len(bad), "bad file") if bad else "no bad files"]
    if repaired:
        parts.append(f"{repaired:,} written again")
    if len(faults) > len(bad):
        parts.append(counted(len(faults) - len(bad), "extra file"))
    return ", ".join(parts)
