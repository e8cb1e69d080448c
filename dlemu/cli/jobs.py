"""The commands for a workload: what each does, and what it prints.

What only one command needs is imported when it is called.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlemu.cli.progress import show_files, show_progress, shows
from dlemu.cli.scripts import (
    DATASIZE,
    PREDICT,
    RUN,
    SIZE,
    Script,
    datasize_row,
    json_text,
    predict_row,
    run_document,
    run_row,
    size_row,
)
from dlemu.cli.words import Words
from dlemu.config.compose import named
from dlemu.config.model import Drive, Workload, access_of
from dlemu.config.published import word
from dlemu.errors import WorkloadError
from dlemu.ranks.world import World
from dlemu.run.live import Live
from dlemu.storage.s3.location import Access, in_bucket, object_path
from dlemu.terminal import Answer, answer, detail, say, shown_line, terminal_width
from dlemu.units import counted

if TYPE_CHECKING:
    from dlemu.sizing.answers import Sized


def datasize(workload: Workload, world: World, words: Words) -> int:
    """print the size of the dataset that the rules ask for, both terms, and which one won"""
    from dlemu.dataset.rule import required_size
    from dlemu.report.text import answer_of
    from dlemu.report.tools import present_datasize

    script = world.on_first(lambda: Script.of(words, DATASIZE))
    size = required_size(workload, world)
    if world.rank == 0:
        say(answer_of(present_datasize(size.document)))
        script.tell(size.document, [datasize_row(size)])
    return 0


def datagen(workload: Workload, world: World, words: Words) -> int:
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


def _generate(workload: Workload, world: World) -> int:
    """Write the dataset; return the exit status."""
    from dlemu.datagen import generate
    from dlemu.dataset.rule import resolve_auto
    from dlemu.judge.header import introduction

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


def verify(workload: Workload | None, world: World, words: Words) -> int:
    """check a data folder by its manifest; --full its content too, --repair mends it"""
    from dlemu.datagen import verify as find_faults

    folder, access = _folder_to_verify(workload, world, words)
    full, repair = ("--full" in words.options), ("--repair" in words.options)
    with show_files("verify", on=shows(workload, world)) as progress:
        faults = find_faults(
            folder, full=full, repair=repair, world=world, on_progress=progress, access=access
        )
    if world.rank == 0:
        for fault in faults:
            again = ", written again" if fault.repaired else ""
            say(Answer(shown_line(f"{fault.path}: {fault.problem}{again}")))
        checked = "sizes and content" if full else "sizes"
        bad = any(not (fault.repaired or fault.harmless) for fault in faults)
        again = (
            f"; {shlex.join(['dlemu', 'verify', str(folder), '--repair'])} writes them again"
            if bad
            else ""
        )
        say(Answer(f"{folder}: {_found(faults)}; {checked} were checked{again}"))
    return 0 if all(fault.repaired or fault.harmless for fault in faults) else 1


def _folder_to_verify(
    workload: Workload | None, world: World, words: Words
) -> tuple[Path, Access | None]:
    """Return the data folder, and how its bucket is reached if it lies in one."""
    if workload is not None:
        return workload.data_folder, world.on_first(lambda: workload.access)
    named = words.others[0]
    if "://" not in named:
        return Path(named), None
    return object_path(named), world.on_first(access_of)


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


def run(workload: Workload, world: World, words: Words) -> int:
    """replay the workload; PASS or FAIL, samples/s, AU, and the limit"""
    live = Live()

    def what() -> str:
        there = "" if live.folder is None else f"its records are in {live.folder}; "
        return f"{there}this runs it again"

    with _interrupted(what, "run", words, world):
        return _run(workload, world, words, live)


def _run(workload: Workload, world: World, words: Words, live: Live) -> int:
    """Write the dataset if that is asked for, and run; return the exit status."""
    from dlemu.cli.report import show, show_on_the_way
    from dlemu.judge.judgement import EXIT_STATUS
    from dlemu.run.job import check_job, run_job

    def for_scripts() -> Script:
        script = Script.of(words, RUN)
        if script.is_asked and not workload.workflow.train:
            raise WorkloadError("--json and --csv tell of a run; workflow.train=false makes none")
        return script

    script = world.on_first(for_scripts)
    if workload.workflow.generate_data:
        if workload.workflow.train:
            check_job(workload, world)
        _generate(workload, world)
    if not workload.workflow.train:
        if world.rank == 0 and not workload.workflow.generate_data:
            say("nothing was done: workflow.train and workflow.generate_data are false")
        return 0
    if workload.division == "closed" or workload.runs > 1 or workload.warmup:
        from dlemu.run.protocol import run_protocol

        def tell(folder: Any, summary: Any, outcomes: Any) -> None:
            show(folder, summary)
            row = run_row(workload, folder, summary, [each.summary for each in outcomes])
            script.tell(run_document(folder, summary), [row])

        with show_progress("run", live.now, on=shows(workload, world)):
            return run_protocol(
                workload, world=world, say=say, on_run=show_on_the_way, on_end=tell, live=live
            )
    with show_progress("run", live.now, on=shows(workload, world)):
        outcome = run_job(workload, world=world, say=say, live=live, on_cut=show_on_the_way)
    status = 0
    if outcome is not None:
        show(outcome.folder, outcome.summary)
        script.tell(
            run_document(outcome.folder, outcome.summary),
            [run_row(workload, outcome.folder, outcome.summary)],
        )
        status = EXIT_STATUS[outcome.summary["verdict"]]
    return world.broadcast(status)


def size(workload: Workload, world: World, words: Words) -> int:
    """find the most emulated accelerators that this storage feeds, by measured search"""
    from dlemu.sizing.answers import document_of

    script = world.on_first(lambda: Script.of(words, SIZE))
    live = Live()
    with show_progress("size", live.now, on=shows(workload, world)):
        answers = size_storage(workload, world, words.as_typed, live)
    if world.rank == 0:
        script.tell(document_of(answers), [size_row(answer) for answer in answers])
    return 2 if any(answer.num_accelerators == 0 for answer in answers) else 0


def size_storage(
    workload: Workload, world: World, typed: Sequence[str] = (), live: Live | None = None
) -> "list[Sized]":
    """Size every target and workload; rank 0 shows each answer and writes tables and pictures.

    `typed` are the words behind `dlemu size`, for the command that resumes.
    """
    from dlemu.library import keep
    from dlemu.report.sizing import present_answer, present_table
    from dlemu.report.text import answer_of
    from dlemu.sizing.measured import size_all

    def resume(folder: Path) -> str:
        named = any(word.lstrip("+").startswith("output.folder=") for word in typed)
        more = [] if named else [f"output.folder={folder}"]
        return shlex.join(["dlemu", "size", *typed, *more])

    def show(answers: "list[Sized]") -> None:
        say(answer_of(present_answer(answers[-1].fields), apart=True))
        keep(answers, say)

    answers = size_all(workload, world, say, on_answer=show, go_on=resume, live=live)
    if world.rank == 0:
        if len(answers) > 1:
            table = present_table([answer.fields for answer in answers])
            say(answer_of(table, apart=True))
        say(f"results: {answers[0].folder}")
    return answers


def predict(workload: Workload, world: World, words: Words) -> int:
    """say what a storage would feed, from a drive's rates or a calibration, with its error"""
    return predict_all([workload], world, words)


def predict_all(workloads: Sequence[Workload], world: World, words: Words) -> int:
    """Predict, for each of several values such as drives and their numbers in one table."""
    from dlemu.report.predict import present_cached, present_prediction, present_predictions
    from dlemu.report.text import answer_of
    from dlemu.sizing.predict import asks_for_cache, keep, predict_cached
    from dlemu.sizing.predict import predict as foretell

    if world.rank != 0:
        return 0
    first, *others = workloads
    if others and any(_asks_for_checkpoints(each) or asks_for_cache(each) for each in workloads):
        raise WorkloadError(
            "a table of several predictions has no cache and no checkpoints; give one value a key"
        )
    if _asks_for_checkpoints(first):
        _predict_checkpoint(first, words)
        return 0
    script = Script.of(words, PREDICT)
    cached = predict_cached(first) if asks_for_cache(first) else None
    each = [cached.cold, cached.warm] if cached else list(map(foretell, workloads))
    found = (cached or each[0]).document
    blocks = present_cached(found) if cached else present_prediction(found)
    if others:
        documents = [one.document for one in each]
        found, blocks = (
            {"kind": "predictions", "answers": documents},
            present_predictions(documents),
        )
        keep(first, found)
    say(answer_of(blocks))
    script.tell(found, list(map(predict_row, each)))
    return 0


def _asks_for_checkpoints(workload: Workload) -> bool:
    """Return whether a model was named, or the job is one of checkpoints alone."""
    alone = workload.workflow.checkpoint and not workload.workflow.train
    return alone or "model" in workload.given or workload.made_from in named("model")


def _predict_checkpoint(workload: Workload, words: Words) -> None:
    from dlemu.checkpoint.plan import predict_checkpoint
    from dlemu.report.checkpoint import present_predicted_checkpoint
    from dlemu.report.text import answer_of

    if "--csv" in words.options:
        raise WorkloadError("--csv has no columns for checkpoints; take --json")
    found = predict_checkpoint(workload)
    say(answer_of(present_predicted_checkpoint(found)))
    if "--json" in words.options:
        answer(json_text(found))


def calibrate(workload: Workload, world: World, words: Words) -> int:
    """measure what this host can move and how fast the storage is, for dlemu predict"""
    from dlemu.report.predict import present_calibration
    from dlemu.report.text import answer_of
    from dlemu.sizing.calibrate import calibrate_host

    def show(found: Any) -> None:
        say(answer_of(present_calibration(found.model_dump(), workload.demand), apart=True))

    live = Live()
    with show_progress("calibrate", live.now, on=shows(workload, world)):
        calibrate_host(workload, world, say, live, on_found=show)
    return 0


def checkpoint(workload: Workload, world: World, words: Words) -> int:
    """write a model's checkpoints, read them back, and say how long each takes"""
    from dlemu.checkpoint.command import run_checkpoints
    from dlemu.checkpoint.crew import Progress
    from dlemu.judge.judgement import EXIT_STATUS
    from dlemu.report.checkpoint import present_checkpoint, present_plan
    from dlemu.report.text import answer_of, render_text

    if "--verify" in words.options:
        workload = workload.with_keys({"checkpoint.verify": True})
    progress = Progress()
    with show_progress("checkpoint", lambda: str(progress), on=shows(workload, world)):
        found = run_checkpoints(
            workload,
            world=world,
            say=say,
            on_begin=lambda summary: say(
                render_text(present_plan(summary), width=terminal_width())
            ),
            progress=progress,
        )
    if found is None:
        return 0
    folder, summary = found
    say(answer_of(present_checkpoint(summary), apart=True))
    say(f"results: {folder}")
    if "--json" in words.options:
        answer(json_text(run_document(folder, summary)))
    return EXIT_STATUS.get(summary["verdict"], 0)


def steptime(workload: Workload, world: World, words: Words) -> int:
    """time real training steps on this host's GPU; write a workload with their times"""
    from dlemu.report.blocks import Command
    from dlemu.report.text import answer_of
    from dlemu.report.tools import present_steptime
    from dlemu.tools.steptime.job import measure_steps

    document, path = measure_steps(workload, say)
    folder = workload.dataset.data_folder or "/path/on/the/storage"
    use = f"dlemu run workload={path} {word('dataset.data_folder', folder)}"
    blocks = [Command("results", str(path.parent)), Command("use it", use)]
    say(answer_of([*present_steptime(document), *blocks], apart=True))
    return 0
