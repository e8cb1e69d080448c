"""The commands of dlemu: read the words, call what does the work, print. An error is one line."""

import errno
import logging
import os
import sys
from collections.abc import Sequence

from dlemu.cli.command import call
from dlemu.cli.commands import COMMANDS, usage
from dlemu.cli.words import refusal, with_command_first
from dlemu.errors import DlemuError, LostRankError, WorkloadError, did_you_mean
from dlemu.ranks.ending import Interrupts
from dlemu.ranks.mpi import make_world
from dlemu.ranks.world import PeerError, World
from dlemu.terminal import Answer, complain, open_streams, say, set_mode

_MEANT = {
    **{"version": "--version", "list": "help workloads", "bench": "run", "benchmark": "run"},
    **{"workloads": "help workloads", "wear": "doctor --wear"},
}
"""What others call a command, or what dlemu itself has called it."""
_REMEDIES = {
    errno.ENOENT: "; create it, or name another",
    errno.EACCES: "; name a place that you may use",
    errno.EPERM: "; name a place that you may use",
    errno.EROFS: "; name a place that can be written to",
    errno.ENOSPC: "; make room, or name a place with more",
}
_MODES = {"-q": "quiet", "--quiet": "quiet", "-v": "verbose", "--verbose": "verbose"}


def run(arguments: Sequence[str]) -> int:
    """Run one command; return the exit status."""
    with Interrupts() as interrupts:
        open_streams()
        # Without a home folder it tells at length where it keeps its fonts.
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        world: World | None = None
        try:
            arguments = with_command_first(_without_modes(arguments))
            text = _answer(arguments)
            if text is not None:
                say(text)
                return 0
            with make_world() as world:
                interrupts.speaks, interrupts.cause = world.rank == 0, world.cause
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
            remedy = _REMEDIES.get(error.errno or 0, "")
            return f"{error.filename}: {error.strerror or error}{remedy}"
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


def _answer(arguments: Sequence[str]) -> Answer | None:
    """Return what is asked for with --help or --version, None where it is work."""
    name, *words = arguments or ["--help"]
    if name in ("--help", "-h", "help"):
        return _help_on(words)
    if name in ("--version", "-V"):
        from importlib.metadata import version

        return Answer(f"dlemu {version('dlemu')}")
    if name in COMMANDS and {"--help", "-h", "--help-all"} & {*words}:
        return _help_on([name, *words])
    return None


def _help_on(words: Sequence[str]) -> Answer:
    """Return the help on a command or on keys; without a word, on all commands."""
    if not words or words[0].startswith("-"):
        return Answer(usage())
    from dlemu.cli.help import help_of, help_on, workloads

    if words[0] in COMMANDS:
        return Answer(help_of(words[0], whole="--help-all" in words))
    return workloads(words[1:]) if words[0] == "workloads" else Answer(help_on(words))


def _run_command(name: str, words: Sequence[str], world: World) -> int:
    if name in COMMANDS:
        return call(name, words, world)
    if world.rank == 0:
        meant = _MEANT.get(name)
        hint = f"; did you mean dlemu {meant}?" if meant else did_you_mean(name, COMMANDS)
        known = f"unknown command {name}{hint} (dlemu --help lists them)"
        complain(refusal(name) or known)
    return 1
