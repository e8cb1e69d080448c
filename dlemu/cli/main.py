"""The commands of dlemu: read the words, call what does the work, print. An error is one line."""

import os
import sys
from collections.abc import Sequence

from dlemu.cli.command import Command, Tool
from dlemu.errors import DlemuError, LostRankError, WorkloadError, did_you_mean
from dlemu.terminal import complain, open_streams, say
from dlemu.workload.compose import known_workloads
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
  steptime   time real training steps on this host's GPU, for train.computation_time
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
        command = _COMMANDS[name]
        text = command.help(name)
        return text if isinstance(command, Tool) else f"{text}\n\n{_usage()}"
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


_COMMANDS: dict[str, Command | Tool] = {
    "datasize": Command("dlemu.cli.datasets:datasize"),
    "datagen": Command("dlemu.cli.datasets:datagen"),
    "verify": Command("dlemu.cli.datasets:verify", ("--full", "--repair"), takes_folder=True),
    "run": Command("dlemu.cli.runs:run", reads="run"),
    "size": Command("dlemu.cli.sizes:size", reads="size"),
    "predict": Command("dlemu.cli.sizes:predict"),
    "calibrate": Command("dlemu.cli.sizes:calibrate"),
    "steptime": Command("dlemu.cli.steptime:steptime"),
    "report": Tool("dlemu.cli.report"),
    "paths": Tool("dlemu.cli.paths"),
    "doctor": Tool("dlemu.cli.doctor"),
}
