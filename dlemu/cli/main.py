"""The commands of dlemu: read the words, call what does the work, print. An error is one line."""

import logging
import os
import sys
from collections.abc import Sequence

from dlemu.cli.command import DRY_RUN, Command, Tool
from dlemu.cli.spellings import refusal
from dlemu.cli.words import FOR_SCRIPTS
from dlemu.errors import DlemuError, LostRankError, WorkloadError, did_you_mean
from dlemu.terminal import Answer, complain, open_streams, say, set_mode
from dlemu.workload.compose import known_workloads
from dlemu.world.ending import Interrupts
from dlemu.world.mpi import make_world
from dlemu.world.world import PeerError, World

USAGE = """\
dlemu - how many GPUs will this storage feed?

  dlemu COMMAND [FOLDER] [workload=NAME] [key=value ...] [options]

  FOLDER is the data folder: its dataset says which workload it was written for.

  try        a first answer for a folder in three minutes: dlemu try FOLDER
  datasize   how large the dataset must be, and which rule says so
  datagen    write the dataset (under mpirun: by all ranks)
  verify     check a dataset: dlemu verify FOLDER [--full] [--repair]
  run        replay the workload, report samples/s, AU, PASS or FAIL, and why
  size       find the most accelerators that this storage feeds, by measurement
  predict    the same by arithmetic, from a drive's rates or a calibration
  calibrate  measure this host and the storage, for predict
  workloads  what each published workload asks of storage, and which of them feel the drive
  checkpoint write and read a model's checkpoints: dlemu checkpoint model=llama3_8b ...
  steptime   time real training steps on this host's GPU, for train.computation_time
  report     show results again: dlemu report [FOLDER...] [--html FILE] [--json] [--trace FILE]
  compare    results side by side, and what differs: dlemu compare A B [compare.max_loss=5%]
  paths      compare the data paths to memory and to the GPU: dlemu paths FOLDER
  wear       what drives count of their wear: dlemu wear FOLDER, or drive.endurance=14PB
  load       how long an inference server waits for a model's files: dlemu load model=llama2_70b
  doctor     what this host can do, and what is missing: dlemu doctor [FOLDER]
  completion what makes a shell complete dlemu's words: dlemu completion bash|zsh
  help       dlemu help COMMAND, dlemu help KEY, dlemu help keys

  JOB="workload=unet3d_h100 dataset.data_folder=/mnt/nvme/unet3d dataset.num_files_train=auto"
  dlemu datasize $JOB num_accelerators=8
  dlemu datagen  $JOB num_accelerators=8
  mpirun -n 8 --bind-to none dlemu run $JOB

Workloads: {workloads},
or the path of a YAML file (DLIO's as they are). --cfg job shows all keys with their values.
Options: -h --help, -q --quiet (verdict and errors only), -v --verbose, -V --version.
For scripts: run, size, predict, datasize and paths take --json, --csv FILE and --label TEXT.
Exit status: 0 passed, 1 error or no verdict, 2 the AU is under the threshold."""

_MODES = {"-q": "quiet", "--quiet": "quiet", "-v": "verbose", "--verbose": "verbose"}


def run(arguments: Sequence[str]) -> int:
    """Run one command; return the exit status."""
    with Interrupts() as interrupts:
        open_streams()
        # Without a home folder it tells at length where it keeps its fonts.
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        world: World | None = None
        try:
            arguments = _without_modes(arguments)
            text = _answer(arguments)
            if text is not None:
                say(Answer(text))
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
        if error.filename is not None:
            return f"{error.filename}: {error.strerror or error}"
        gone = isinstance(error, FileNotFoundError) and not _has_working_directory()
        return (
            "the working directory is gone; cd to another" if gone else error.strerror or f"{error}"
        )
    why = str(error) or "this host has not enough memory for that"
    return f"{type(error).__name__}: {why}"


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _without_modes(arguments: Sequence[str]) -> list[str]:
    """Set how much is printed by -q and -v; return the other words."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    modes = {_MODES[word] for word in arguments[:end] if word in _MODES}
    set_mode(**dict.fromkeys(modes, True))
    if len(modes) > 1:
        raise WorkloadError("-q and -v exclude each other; give one of them")
    return [word for word in arguments[:end] if word not in _MODES] + [*arguments[end:]]


def _answer(arguments: Sequence[str]) -> str | None:
    """Return what is asked for with --help or --version, None where it is work."""
    name, *words = arguments or ["--help"]
    if name in ("--help", "-h", "help"):
        return _help_on(words)
    if name in ("--version", "-V"):
        from importlib.metadata import version

        return f"dlemu {version('dlemu')}"
    if name in COMMANDS and {"--help", "-h", "--help-all"} & {*words}:
        return _help_on([name, *words])
    return None


def _help_on(words: Sequence[str]) -> str:
    """Return the help on a command or on keys; without a word, on all commands."""
    if not words or words[0].startswith("-"):
        return _usage()
    if words[0] in COMMANDS:
        return COMMANDS[words[0]].help(whole="--help-all" in words)
    from dlemu.cli.help import help_on

    return help_on(words, COMMANDS)


def _usage() -> str:
    return USAGE.format(workloads=", ".join(known_workloads()))


def _run_command(name: str, words: Sequence[str], world: World) -> int:
    if name in COMMANDS:
        return COMMANDS[name](words, world)
    if world.rank == 0:
        hint = did_you_mean(name, COMMANDS)
        known = f"unknown command {name}{hint} (dlemu --help lists them)"
        complain(refusal(name) or known)
    return 1


COMMANDS: dict[str, Command | Tool] = {
    "try": Tool("dlemu.cli.try_", measures=True),
    "datasize": Command("datasize", FOR_SCRIPTS),
    "datagen": Command("datagen", (DRY_RUN,), makes_folder=True),
    "verify": Command("verify", ("--full", "--repair"), without_workload=True),
    "run": Command("run", (DRY_RUN, *FOR_SCRIPTS), replays=True),
    "size": Command("size", (DRY_RUN, *FOR_SCRIPTS), replays=True),
    "predict": Command("predict", FOR_SCRIPTS),
    "calibrate": Command("calibrate"),
    "checkpoint": Command("checkpoint", (DRY_RUN, "--verify", "--json")),
    "steptime": Command("steptime", measures=True),
    "workloads": Tool("dlemu.cli.workloads"),
    "report": Tool("dlemu.cli.report"),
    "compare": Tool("dlemu.cli.compare"),
    "paths": Tool("dlemu.cli.paths", measures=True),
    "wear": Tool("dlemu.cli.wear"),
    "load": Tool("dlemu.cli.load", measures=True),
    "doctor": Tool("dlemu.cli.doctor"),
    "completion": Tool("dlemu.cli.completion"),
}
