"""The commands for a workload: what each does, and what it returns to be shown.

All ranks call a command; rank 0 returns what it has found, the others None. What only one command
needs is imported when it is called.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlemu.cli.output import CommandResult, show
from dlemu.cli.progress import show_files, show_progress, shows
from dlemu.cli.words import Words
from dlemu.config.compose import named
from dlemu.config.model import Drive, Workload
from dlemu.config.published import word
from dlemu.errors import WorkloadError
from dlemu.ranks.world import World
from dlemu.report.words import telling
from dlemu.report.words.tools import steps_comment
from dlemu.storage.place import path_of, place_of
from dlemu.terminal import complain, detail, say

if TYPE_CHECKING:
    from dlemu.run.live import Live


def datasize(workload: Workload, world: World, words: Words) -> CommandResult:
    """print the size of the dataset that the rules ask for, both terms, and which one won"""
    from dlemu.datagen.survey import how_written
    from dlemu.dataset.rule import required_size

    document = required_size(workload, world).document
    if world.rank == 0 and document["command"]:
        number, looks = int(str(document["num_files"])), bool(words.others)
        document["command"], why_none = how_written(workload, number, looks=looks)
        document |= {"why_none": why_none} if why_none else {}
    return CommandResult(document, [workload], apart=False)


def datagen(workload: Workload, world: World, words: Words) -> CommandResult | None:
    """write the dataset; killed at any moment and started again, it continues"""
    with _interrupted(lambda: "this goes on after the files so far", "datagen", words, world):
        return _generate(workload, world)


@contextmanager
def _interrupted(what: Callable[[], str], name: str, words: Words, world: World) -> Iterator[None]:
    """After Ctrl-C, have rank 0 say which command goes on, and `what` that does."""
    try:
        yield
    except KeyboardInterrupt:
        ranks = "" if world.num_ranks == 1 else f"mpirun -n {world.num_ranks} --bind-to none "
        if world.rank == 0:
            command = shlex.join(["dlemu", name, *words.as_typed])
            say(f"interrupted; {what()}: {ranks}{command}")
        raise


def _generate(workload: Workload, world: World) -> CommandResult | None:
    """Write the dataset."""
    from dlemu.datagen.write import generate
    from dlemu.dataset.rule import resolve_auto
    from dlemu.judge.header import introduced
    from dlemu.report.words.places import facts_of, lines_of

    workload = resolve_auto(workload, world)
    folder, done = workload.data_folder, [0]

    def count(state: Any) -> None:
        done[0] = state.bytes_done
        if progress is not None:
            progress(state)

    with (
        watched(world, folder, drive=workload.drive, written=lambda: done[0])
        if workload.place.has_paths
        else nullcontext(),  # the drives of its servers are not this host's
        show_files("datagen", on=shows(workload, world)) as progress,
    ):
        manifest = generate(
            workload,
            world=world,
            on_begin=lambda: say(
                lines_of(facts_of(introduced(workload, host=world.host, num_hosts=world.num_hosts)))
            ),
            on_progress=count,
        )
    files = {"kind": "dataset", "place": str(folder), "about": manifest.describe().fields}
    return CommandResult(files, apart=False) if world.rank == 0 else None


@contextmanager
def watched(
    world: World, *folders: Path, drive: Drive | None, written: Callable[[], int]
) -> Iterator[None]:
    """Watch what is written to the drives under folders; with -v rank 0 says it at the end.

    All ranks call it. `written()` returns on rank 0 the bytes of the files of all ranks.
    """
    from dlemu.host.wear import WearWatch, combine_hosts, has_writes
    from dlemu.report.in_run import wear_line

    watch = WearWatch(*folders)
    first = world.local_rank == 0
    if first:
        watch.start()
    yield
    num_bytes = written() if world.rank == 0 else 0
    hosts = world.gather(watch.finish(file_bytes=num_bytes) if first else None)
    if hosts is not None:
        wear = combine_hosts(hosts, endurance=None if drive is None else drive.endurance)
        if has_writes(wear):
            detail(wear_line(wear))


def verify(workload: Workload | None, world: World, words: Words) -> CommandResult | None:
    """check a data folder by its manifest; --full its content too, --repair mends it"""
    from dlemu.datagen.verify import verify as find_faults

    folder, access = _folder_to_verify(workload, world, words)
    full, repair = ("--full" in words.options), ("--repair" in words.options)
    with show_files("verify", on=shows(workload, world)) as progress:
        faults = find_faults(
            folder, full=full, repair=repair, world=world, on_progress=progress, access=access
        )
    bad = [fault.path for fault in faults if not (fault.repaired or fault.harmless)]
    found = {"kind": "verify", "place": str(folder), "full": full, "problems": bad}
    found |= {"faults": list(map(asdict, faults))}
    return CommandResult(found, apart=False) if world.rank == 0 else None


def _folder_to_verify(workload: Workload | None, world: World, words: Words) -> tuple[Path, Any]:
    """Return the data folder, and how its place is reached."""
    if workload is not None:
        return workload.data_folder, world.on_first(lambda: workload.access)
    folder = path_of(words.others[0])
    return folder, world.on_first(lambda: place_of(folder).reach())


def run(workload: Workload, world: World, words: Words) -> CommandResult | None:
    """replay the workload; PASS or FAIL, samples/s, AU, and the limit"""
    from dlemu.run.live import Live

    live = Live()

    def what() -> str:
        there = "" if live.folder is None else f"its records are in {live.folder}; "
        return f"{there}this runs it again"

    if {"--json", "--csv"} & words.options.keys() and not workload.workflow.train:
        raise WorkloadError("--json and --csv print a run; workflow.train=false makes none")
    with _interrupted(what, "run", words, world):
        return _run(workload, world, live)


def _run(workload: Workload, world: World, live: "Live") -> CommandResult | None:
    """Write the dataset if that is asked for, and run."""
    from dlemu.run.job import check_job, run_job
    from dlemu.run.protocol import run_protocol

    if workload.workflow.generate_data:
        if workload.workflow.train:
            check_job(workload, world)
        written = _generate(workload, world)
        if not workload.workflow.train:
            return written
        if written is not None:
            show(written.document, apart=False)
    if not workload.workflow.train:
        if world.rank == 0:
            say("nothing was done: workflow.train and workflow.generate_data are false")
        return None

    def on_the_way(folder: Path, summary: Any) -> None:
        show(in_folder(folder, summary), is_last=False)

    several = workload.division == "closed" or workload.runs > 1 or workload.warmup
    found: tuple[Path, Any] | None
    with show_progress("run", live.now, on=shows(workload, world)):
        if several:
            found = run_protocol(workload, world=world, say=say, on_run=on_the_way, live=live)
        else:
            outcome = run_job(workload, world=world, say=say, live=live, on_cut=on_the_way)
            found = None if outcome is None else (outcome.folder, outcome.summary)
    return found and CommandResult(in_folder(*found), [workload])


def in_folder(folder: Path, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document with the folder of its files."""
    return {"folder": str(folder), **document}


def size(workload: Workload, world: World, words: Words) -> CommandResult | None:
    """find the most emulated accelerators that this storage feeds, by measured search"""
    from dlemu.library import keep
    from dlemu.run.live import Live
    from dlemu.sizing.answers import Sized, document_of
    from dlemu.sizing.measured import size_all

    def tell(answers: list[Sized], is_last: bool) -> None:
        if not is_last:
            show(answers[-1].document, is_last=False)
        keep(answers, say)

    live = Live()
    with (
        _interrupted(lambda: "this goes on after the runs so far", "size", words, world),
        show_progress("size", live.now, on=shows(workload, world)),
    ):
        answers = size_all(workload, world, say, on_answer=tell, live=live)
    if world.rank != 0:
        return None
    folder = answers[0].folder
    say(f"results: {folder}")
    return CommandResult(
        in_folder(folder, document_of(answers)), [each.workload for each in answers]
    )


def predict(workloads: Sequence[Workload], world: World, words: Words) -> CommandResult | None:
    """say what a storage would feed, from a drive's rates or a calibration, with its error

    Several values, such as drives and their numbers, are a workload each and one table.
    """
    from dlemu.sizing import predict as prediction
    from dlemu.sizing.needs import asks_for_needs, needs_of

    if world.rank != 0:
        return None
    first, *others = workloads
    if others and any(
        _asks_for_checkpoints(each) or prediction.asks_for_cache(each) for each in workloads
    ):
        raise WorkloadError(
            "a table of several predictions has no cache and no checkpoints; give one value a key"
        )
    if _asks_for_checkpoints(first):
        from dlemu.checkpoint.plan import predict_checkpoint

        if "--csv" in words.options:
            raise WorkloadError("--csv has no columns for checkpoints; take --json")
        return CommandResult(predict_checkpoint(first), apart=False)
    if prediction.asks_for_cache(first):
        return CommandResult(prediction.predict_cached(first).document, [first, first], apart=False)
    if len({asks_for_needs(each) for each in workloads}) > 1:
        raise WorkloadError(
            "a table is of storages or of what accelerators need; give each a drive"
        )
    if asks_for_needs(first):
        needed = [needs_of(each) for each in workloads]
        found: Mapping[str, Any] = (
            {"kind": "several needs", "answers": needed} if others else needed[0]
        )
        prediction.keep(first, found)
        each_row = [w for w, n in zip(workloads, needed, strict=True) for _ in 2 * n["storages"]]
        return CommandResult(found, each_row, apart=False)
    documents = [prediction.predict(each).document for each in workloads]
    number = first.num_accelerators
    if number is not None and first.predict.accelerators is None:
        complain(
            "num_accelerators has no effect on a prediction, which finds it; "
            f"predict.accelerators={number} tells what {number} need of a storage"
        )
    if not others:
        return CommandResult(documents[0], [first], apart=False)
    table: dict[str, object] = {"kind": "predictions", "answers": documents}
    prediction.keep(first, table)
    return CommandResult(table, workloads, apart=False)


def _asks_for_checkpoints(workload: Workload) -> bool:
    """Return whether a model was named, or the job is one of checkpoints alone."""
    alone = workload.workflow.checkpoint and not workload.workflow.train
    return alone or "model" in workload.given or workload.made_from in named("model")


def calibrate(workload: Workload, world: World, words: Words) -> Iterator[CommandResult]:
    """measure what this host can move and how fast the storage is, for dlemu predict"""
    from dlemu.run.live import Live
    from dlemu.sizing.calibrate import calibrate_host

    live = Live()
    with show_progress("calibrate", live.now, on=shows(workload, world)):
        yield from map(CommandResult, calibrate_host(workload, world, say, live))


def checkpoint(workload: Workload, world: World, words: Words) -> CommandResult | None:
    """write a model's checkpoints, read them back, and say how long each takes"""
    from dlemu.checkpoint.command import run_checkpoints
    from dlemu.checkpoint.crew import Progress
    from dlemu.report.checkpoint import facts_of_plan
    from dlemu.report.words import telling
    from dlemu.run.checkpoint_rules import check_closed, warnings_of
    from dlemu.run.protocol import warned

    if "--verify" in words.options:
        workload = workload.with_keys({"checkpoint.verify": True})
    check_closed(workload, world)
    progress = Progress()
    with show_progress("checkpoint", progress.now, on=shows(workload, world)):
        found = run_checkpoints(
            workload,
            world=world,
            tell=telling(say),
            on_begin=lambda summary: show(
                {"kind": "plan", "facts": facts_of_plan(summary)}, apart=False, is_last=False
            ),
            warn=lambda results: warned(warnings_of(workload, results)),
            progress=progress,
        )
    return found and CommandResult(in_folder(*found))


def steptime(workload: Workload, world: World, words: Words) -> CommandResult:
    """time real training steps on this host's GPU; write a workload with their times"""
    from dlemu.tools.steptime.job import measure_steps

    document, path = measure_steps(workload, telling(say), steps_comment)
    folder = workload.dataset.data_folder or "/path/on/the/storage"
    use = f"dlemu run workload={path} {word('dataset.data_folder', folder)}"
    return CommandResult({"kind": "steptime", **in_folder(path.parent, document), "command": use})
