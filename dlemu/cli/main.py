"""The commands of dlemu: read the words, call what does the work, print. An error is one line."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from dlemu.cli.words import Words, parse
from dlemu.errors import DlemuError, LostRankError, WorkloadError, did_you_mean
from dlemu.terminal import complain, open_streams, say, shown_line
from dlemu.units import counted
from dlemu.workload.compose import compose_words, known_workloads
from dlemu.world.ending import Interrupts
from dlemu.world.mpi import make_world
from dlemu.world.world import PeerError, World

USAGE = """\
dlemu - how many GPUs will this storage feed?

  dlemu COMMAND [workload=NAME] [key=value ...] [--config-dir FOLDER] [--cfg job] [--help]

  datasize   how large the dataset must be, and which rule says so
  datagen    write the dataset (under mpirun: by all ranks)
  verify     check a dataset: dlemu verify FOLDER [--full] [--repair]
  run        replay the workload, report samples/s, AU, PASS or FAIL, and why
  size       find the most accelerators that this storage feeds, by measurement
  predict    the same by arithmetic, from a drive's rates or a calibration
  calibrate  measure this host and the storage, for predict
  report     show runs again: dlemu report FOLDER... [--html FILE] [--json]
  paths      compare the data paths to memory and to the GPU: dlemu paths target=FOLDER
  doctor     what this host can do, and what is missing: dlemu doctor [FOLDER]

  JOB="workload=unet3d_h100 dataset.data_folder=/mnt/nvme/unet3d dataset.num_files_train=auto"
  dlemu datasize $JOB num_accelerators=8
  dlemu datagen  $JOB num_accelerators=8
  mpirun -n 8 --bind-to none dlemu run $JOB

Workloads: {workloads},
or the path of a YAML file (DLIO's as they are). --cfg job shows all keys with their values.
Exit status: 0 passed, 1 error or no verdict, 2 the AU is under the threshold."""


def run(arguments: Sequence[str]) -> int:
    """Run one command; return the exit status."""
    with Interrupts() as interrupts:
        open_streams()
        world: World | None = None
        try:
            text = _answer(arguments)
            if text is not None:
                say(text)
                return 0
            with make_world() as world:
                interrupts.speaks = world.rank == 0
                status = _run_command(arguments[0], arguments[1:], world)
            sys.stdout.flush()
            return status
        except PeerError:
            return 1  # the rank that failed prints why
        except KeyboardInterrupt:
            return interrupts.say()
        except BrokenPipeError:
            # The program that read our output has ended; the flush at exit must not fail, too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except (DlemuError, OSError, MemoryError, RecursionError) as error:
            complain(_line(error, world))
            return 1


def _line(error: Exception, world: World | None) -> str:
    """Return what is shown of an error. Of several ranks, the one that met it is named."""
    if isinstance(error, DlemuError):
        # All ranks meet a wrong workload alike; a lost rank is named already.
        is_of_rank = not isinstance(error, WorkloadError | LostRankError)
        if world is None or world.num_ranks == 1 or not is_of_rank:
            return str(error)
        return f"rank {world.rank} on host {world.host}: {error}"
    if isinstance(error, OSError):
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{error.strerror or error}"
    why = str(error) or "this host has not enough memory for that"
    return f"{type(error).__name__}: {why}"


def _answer(arguments: Sequence[str]) -> str | None:
    """Return what is asked for with --help or --version, None where it is work."""
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        return _usage()
    if arguments[0] == "--version":
        from importlib.metadata import version

        return f"dlemu {version('dlemu')}"
    name, *words = arguments
    if name in _COMMANDS and ("--help" in words or "-h" in words):
        return _COMMANDS[name].help(name)
    return None


def _usage() -> str:
    return USAGE.format(workloads=", ".join(known_workloads()))


def _run_command(name: str, words: Sequence[str], world: World) -> int:
    if name in _COMMANDS:
        return _COMMANDS[name](words, world)
    if world.rank == 0:
        hint = did_you_mean(name, _COMMANDS)
        complain(f"unknown command {name}{hint} (dlemu --help lists them)")
    return 1


@dataclass(frozen=True)
class Tool:
    """A command without a workload: a module with HELP and `main(words)`, for rank 0 alone."""

    module: str

    def help(self, name: str) -> str:
        """Return its usage."""
        return str(import_module(self.module).HELP).rstrip()

    def __call__(self, words: Sequence[str], world: World) -> int:
        """Return the exit status."""
        return int(import_module(self.module).main(words)) if world.rank == 0 else 0


@dataclass(frozen=True)
class Command:
    """A command for a workload: all ranks call `function`, once rank 0 has composed it."""

    function: Callable[[Any, World, Words], int]
    options: tuple[str, ...] = ()
    reads: str = ""
    """The command's name if it replays the workload: keys without effect are then printed."""
    takes_folder: bool = False
    """Whether a data folder may be given instead of a workload, which is then None."""

    def help(self, name: str) -> str:
        """Return what the command does, and the usage of all commands."""
        return f"dlemu {name}: {self.function.__doc__}\n\n{_usage()}"

    def __call__(self, words: Sequence[str], world: World) -> int:
        """Return the exit status."""
        composed = world.on_first(lambda: self._compose(words, world))
        if composed is None:
            return 1
        workload, parsed = composed
        if workload is not None and "--cfg" in parsed.options:
            from dlemu.results.records import dump_workload

            if world.rank == 0:
                say(dump_workload(workload).rstrip("\n"))
            return 0
        return self.function(workload, world, parsed)

    def _compose(self, words: Sequence[str], world: World) -> tuple[Any, Words] | None:
        """Return the workload and the words; None, after a line on stderr, if they are wrong."""
        try:
            parsed = parse(words, ("--config-dir", "--cfg", *self.options), deletes=True)
            if self.takes_folder and (parsed.others or not parsed.overrides):
                if len(parsed.others) != 1 or parsed.overrides:
                    raise WorkloadError(
                        "one data folder is needed, and no key: dlemu verify FOLDER"
                    )
                return None, parsed
            workload = self._workload(parsed, world)
        except DlemuError as error:
            complain(str(error))
            return None
        if workload.ignored and "--cfg" not in parsed.options:
            say(f"ignored: {', '.join(workload.ignored)}")
        return workload, parsed

    def _workload(self, words: Words, world: World) -> Any:
        from dlemu.workload.idle import idle_keys
        from dlemu.workload.model import check_workload

        if words.others:
            word = words.others[0]
            wanted = f"workload={word}" if word in known_workloads() else "key=value"
            raise WorkloadError(f"{word!r} is no override; write {wanted}")
        if words.options.get("--cfg", "job") != "job":
            raise WorkloadError(f"--cfg must be job, got {words.options['--cfg']!r}")
        folder = words.options.get("--config-dir")
        tree = compose_words(words.overrides, None if folder is None else Path(folder))
        workload = check_workload(tree)
        if not self.reads:
            return workload
        idle = idle_keys(workload, command=self.reads, num_hosts=world.num_hosts)
        return workload.model_copy(update={"ignored": (*workload.ignored, *idle)})


# --- the commands ---------------------------------------------------------------------------------
# Their docstrings are shown by `dlemu COMMAND --help`.


def _datasize(workload: Any, world: World, words: Words) -> int:
    """print the size of the dataset that the rules ask for, both terms, and which one won"""
    from dlemu.dataset.rule import required_size

    size = required_size(workload, world)
    if world.rank == 0:
        say(str(size))
    return 0


def _datagen(workload: Any, world: World, words: Words) -> int:
    """write the dataset; killed at any moment and started again, it continues"""
    from dlemu.cli.progress import show_progress
    from dlemu.datagen import generate
    from dlemu.dataset.rule import resolve_auto

    workload = resolve_auto(workload, world)
    with show_progress("datagen", quiet=world.rank != 0) as progress:
        manifest = generate(workload, world=world, on_progress=progress)
    if world.rank == 0:
        say(f"{workload.data_folder}: {manifest.describe()}")
    return 0


def _verify(workload: Any, world: World, words: Words) -> int:
    """check a data folder by its manifest; --full its content too, --repair mends it"""
    from dlemu.cli.progress import show_progress
    from dlemu.datagen import verify

    folder = Path(words.others[0]) if workload is None else workload.data_folder
    full, repair = ("--full" in words.options), ("--repair" in words.options)
    with show_progress("verify", quiet=world.rank != 0) as progress:
        faults = verify(folder, full=full, repair=repair, world=world, on_progress=progress)
    if world.rank == 0:
        for fault in faults:
            again = ", written again" if fault.repaired else ""
            say(shown_line(f"{fault.path}: {fault.problem}{again}"))
        say(f"{folder}: {_found(faults)}; {'sizes and content' if full else 'sizes'} were checked")
    return 0 if all(fault.repaired or fault.harmless for fault in faults) else 1


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


def _run(workload: Any, world: World, words: Words) -> int:
    """replay the workload; PASS or FAIL, samples/s, AU, and what bound it"""
    from dlemu.results.judgement import EXIT_STATUS
    from dlemu.results.text import render_run
    from dlemu.run.job import check_job, run_job

    if workload.workflow.generate_data:
        if workload.workflow.train:
            check_job(workload, world)
        _datagen(workload, world, words)
    if not workload.workflow.train:
        return 0
    if workload.division == "closed" or workload.runs > 1 or workload.warmup:
        from dlemu.run.protocol import run_protocol

        return run_protocol(workload, world=world, say=say)
    outcome = run_job(workload, world=world, say=say)
    status = 0
    if outcome is not None:
        say(f"\n{render_run(workload, outcome.metrics, outcome.summary)}")
        say(f"results: {outcome.folder}")
        status = EXIT_STATUS[outcome.summary["verdict"]]
    return world.broadcast(status)


def _size(workload: Any, world: World, words: Words) -> int:
    """find the most emulated accelerators that this storage feeds, by measured search"""
    from dlemu.sizing.measured import size_storage

    return size_storage(workload, world, say)


def _predict(workload: Any, world: World, words: Words) -> int:
    """say what a storage would feed, from a drive's rates or a calibration, with its error"""
    from dlemu.sizing.predict import predict

    if world.rank == 0:
        say(str(predict(workload)))
    return 0


def _calibrate(workload: Any, world: World, words: Words) -> int:
    """measure what this host can move and how fast the storage is, for dlemu predict"""
    from dlemu.sizing.calibrate import calibrate_host

    return calibrate_host(workload, world, say)


_COMMANDS: dict[str, Command | Tool] = {
    "datasize": Command(_datasize),
    "datagen": Command(_datagen),
    "verify": Command(_verify, ("--full", "--repair"), takes_folder=True),
    "run": Command(_run, reads="run"),
    "size": Command(_size, reads="size"),
    "predict": Command(_predict),
    "calibrate": Command(_calibrate),
    "report": Tool("dlemu.cli.report"),
    "paths": Tool("dlemu.cli.paths"),
    "doctor": Tool("dlemu.cli.doctor"),
}
