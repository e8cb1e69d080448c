"""The commands of dlemu: read the words, call what does the work, print. An error is one line."""

import logging
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlemu.cli.commands import COMMANDS, Command, usage
from dlemu.cli.output import CommandOutput, json_text
from dlemu.cli.words import (
    DRY_RUN,
    Words,
    before_command,
    parse,
    refusal,
    with_command_first,
)
from dlemu.config.compose import (
    compose_words,
    known_workloads,
    named,
    no_workload,
    refuse_misnamed,
    sweeps,
    value_of_word,
    without_secrets,
)
from dlemu.config.source import WordSource, taken_from_here
from dlemu.errors import DlemuError, LostRankError, WorkloadError, did_you_mean, system_line
from dlemu.plugins import is_url, named_by, own_version
from dlemu.ranks.ending import INTERRUPTED, Interrupts
from dlemu.ranks.mpi import make_world
from dlemu.ranks.world import Alone, PeerError, World
from dlemu.terminal import (
    Answer,
    all_taken,
    answer,
    begin_log,
    complain,
    keep_stdout,
    log_to,
    open_streams,
    say,
    set_mode,
)

if TYPE_CHECKING:
    from dlemu.storage.place import Place

_MEANT = {
    **{"version": "--version", "list": "help workloads", "bench": "run", "benchmark": "run"},
    **{"workloads": "help workloads", "wear": "doctor --wear"},
}
"""Other tools' names of a command, and earlier ones of dlemu's own."""
_FAILURES = (DlemuError, OSError, MemoryError, RecursionError)
"""Errors that end a command, and one job of several, with a line."""
_REMEDIES = ("name input that is nested less deeply", "ask for less at once, or free memory")
"""Against a recursion that is too deep, and where memory is short."""
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
                return 0 if all_taken() else 1
            with make_world() as world:
                interrupts.speaks, interrupts.cause = world.rank == 0, world.cause
                status = _run_command(arguments[0], arguments[1:], world)
            return status if all_taken() else status or 1
        except PeerError as error:
            if not error.is_interrupt:
                return 1  # the rank that failed prints why
            if interrupts.speaks:  # an interrupted one is silent
                complain(str(error))
            return INTERRUPTED
        except KeyboardInterrupt:
            return interrupts.say()
        except _FAILURES as error:
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
        if isinstance(error, FileNotFoundError) and not _has_working_directory():
            return "the working directory is gone; cd to another"
        return system_line(error)
    why = str(error) or "this host has not enough memory for that"
    remedy = _REMEDIES[isinstance(error, MemoryError)]
    return f"{type(error).__name__}: {why}; {remedy}"


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
        return Answer(f"dlemu {own_version()}")
    own = before_command(words)
    if name in COMMANDS and {"--help", "-h", "--help-all"} & {*own}:
        return _help_on([name, *own])
    return None


def _help_on(words: Sequence[str]) -> Answer:
    """Return the help on a command or on keys; without a word, on all commands."""
    if not words or words[0] in ("-h", "--help", "--help-all"):
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


# --- a command ------------------------------------------------------------------------------------


_OF_MODELS = ("checkpoint", "predict")
"""Commands that take a model alone."""
_THAT_LOOK = (*_OF_MODELS, "run", "size")
"""Commands that refuse another workload's dataset where they look at it, or read none."""


_WITHOUT_FILES = ("predict", "datasize", "steptime")
"""Commands that read no dataset: of files of another tool in FOLDER they are told the sizes."""


def call(name: str, words: Sequence[str], world: World) -> int:
    """Do a command; return the exit status. All ranks call it."""
    command = COMMANDS[name]
    if command.measures and world.num_ranks > 1:
        if world.rank == 0:
            complain(
                f"this command measures from one process, and {world.num_ranks} ranks were "
                "started: start it without mpirun; dlemu run measures with all ranks"
            )
        return 1
    if command.function and not command.by_ranks:
        if world.rank != 0:
            return 0
        world = Alone()
    with keep_stdout(command.keeps_stdout or "--json" in before_command(words)):
        if not command.function:
            return _Job(name, command).call(words, world)
        parsed = world.on_first(lambda: parse(words, command.options))
        output = world.on_first(lambda: CommandOutput.of(name, parsed))
        function = named_by(command.function)
        found = function(parsed, world) if command.by_ranks else function(parsed)
        return output.take(found, world)


@dataclass(frozen=True)
class _Job:
    """A command for a workload: all ranks call its function, once rank 0 has composed it."""

    name: str
    about: Command

    def call(self, words: Sequence[str], world: World) -> int:
        """Return the exit status, with --multirun the worst of all jobs."""
        jobs = world.on_first(lambda: self._compose(words, world))
        if jobs is None:
            return 1
        output = world.on_first(lambda: CommandOutput.of(self.name, jobs[0][1]))
        first, parsed = jobs[0]
        if self.name == "predict" and "--cfg" not in parsed.options:
            from dlemu.cli.jobs import predict

            return output.take(predict([job for job, _ in jobs], world, parsed), world)
        if len(jobs) == 1:
            return self._do(first, parsed, output, world)
        return self._do_all(jobs, output, world)

    def _do_all(
        self, jobs: Sequence[tuple[Any, Words]], output: CommandOutput, world: World
    ) -> int:
        """Do several jobs, also behind one that fails; return the exit status.

        Of several ranks, those that do not fail are still in that job: the sweep ends there.
        """
        from dlemu.report.present import worst

        failures: dict[Path, str] = {}
        status = 0
        for workload, parsed in jobs:
            folder = Path(workload.output.folder or "")
            try:
                status = worst([status, self._do(workload, parsed, output, world)])
                failures[folder] = ""
            except _FAILURES as error:
                status, failures[folder] = 1, _line(error, world)
                if world.num_ranks > 1:
                    self._show_across(failures, jobs[0][1], world)
                    raise
                complain(failures[folder])
        self._show_across(failures, jobs[0][1], world)
        return status

    def _show_across(self, failures: dict[Path, str], words: Words, world: World) -> None:
        """Print one table of several jobs, unless they only said what they would do."""
        if world.rank == 0 and not {"--cfg", DRY_RUN} & words.options.keys():
            from dlemu.cli.report import show_across

            show_across(failures)

    def _do(self, workload: Any, words: Words, output: CommandOutput, world: World) -> int:
        """Do one job; return the exit status."""
        if workload is not None and "--cfg" in words.options:
            if world.rank == 0:
                self._show(workload, as_json="--json" in words.options)
            return 0
        if workload is not None:
            log_to(workload.output.log)
        if DRY_RUN in words.options:
            from dlemu.cli.dry import dry_run

            return output.take(dry_run(self.name, workload, world), world)
        function = named_by(f"dlemu.cli.jobs:{self.name}")
        status = output.take(function(workload, world, words), world)
        from dlemu.storage.files import NOT_SYNCED

        for folder in NOT_SYNCED if world.rank == 0 else ():
            say(
                f"note: {folder}: its file system does not sync folders; names may be lost when "
                "power fails"
            )
        return status

    def _show(self, workload: Any, *, as_json: bool) -> None:
        """Print all keys with their values."""
        from dlemu.judge.records import dump_workload

        if not as_json:
            say(Answer(dump_workload(workload).rstrip("\n")))
            return
        answer(json_text(workload.model_dump(mode="json", exclude={"given", "ignored"})))

    def _compose(self, words: Sequence[str], world: World) -> list[tuple[Any, Words]] | None:
        """Return workload and words of each job; None, after a line on stderr, if one is wrong."""
        try:
            parsed = parse(words, ("--config-dir", "--cfg", *self.about.options), for_job=True)
            if self.about.without_workload and not parsed.overrides:
                if len(parsed.others) != 1:
                    raise WorkloadError("one data folder is needed: dlemu verify FOLDER")
                return [(None, parsed)]
            rows = _table(parsed) if self.name == "predict" else _jobs(parsed)
            jobs = [(self._workload(row, world), row) for row in rows]
            if "--cfg" not in parsed.options:
                begin_log(jobs[0][0].output.log, [self.name, *without_secrets(words)])
        except DlemuError as error:
            complain(str(error))
            return None
        ignored = dict.fromkeys(key for workload, _ in jobs for key in workload.ignored)
        if ignored and "--cfg" not in parsed.options:
            say(f"ignored: {', '.join(ignored)}")
        if "--cfg" not in parsed.options:
            taken = chain.from_iterable(taken_from_here(workload) for workload, _ in jobs)
            for part, place in dict.fromkeys(taken):
                say(f"{part}: taken from the working directory, {place}")
        return jobs

    def _workload(self, words: Words, world: World) -> Any:
        from dlemu.config.keys import idle_keys
        from dlemu.config.model import check_workload

        folder = self._folder(words)
        overrides = words.overrides
        if self.name == "checkpoint" and folder is not None:
            overrides, folder = [*overrides, f"checkpoint.checkpoint_folder={folder}"], None
        if self.name == "checkpoint" and not {"model", "workload"} & words.values.keys():
            refuse_misnamed(words.values)
            known = ", ".join(named("model"))
            raise WorkloadError(
                f"no model is named; write model=NAME or FILE.yaml (known: {known})"
            )
        if folder is not None and self.name == "calibrate":
            from dlemu.datagen.survey import dataset_below

            folder = dataset_below(_reached(folder, words), words.values.get("workload", ""))
        source = WordSource.USER
        if folder is not None and "workload" not in words.values:
            from dlemu.datagen.survey import find_workload

            own_format = words.values.get("dataset.format", "")
            name = find_workload(folder, own_format, _reached(folder, words).access)
            overrides, source = [*overrides, f"workload={name}"], WordSource.FOUND
        if words.options.get("--cfg", "job") != "job":
            raise WorkloadError(f"--cfg must be job, got {words.options['--cfg']!r}")
        tree = compose_words(overrides, words.path("--config-dir"), source)
        workload = check_workload(tree, self.name, source)
        model = words.values.get("model", "")
        if self.name not in _OF_MODELS and workload.made_from == model in named("model"):
            raise WorkloadError(f"{no_workload(model, known_workloads())}; take dlemu checkpoint")
        if folder is not None:
            from dlemu.datagen.survey import as_it_is

            looks = self.name in _WITHOUT_FILES
            workload = as_it_is(workload, folder, words.values, looks=looks)
        elif "workload" in words.values and self.name not in _THAT_LOOK:
            from dlemu.datagen.survey import refuse_other

            refuse_other(workload)
        if self.name == "checkpoint":
            return _for_checkpoints(workload)
        if not self.about.replays:
            return workload
        idle = idle_keys(workload, self.name, world.num_hosts)
        return workload.model_copy(update={"ignored": (*workload.ignored, *idle)})

    def _folder(self, words: Words) -> Path | None:
        """Return the data folder, or the URL of one, that stands there as a word of its own."""
        if not words.others:
            return None
        word = words.others[0]
        if self.name == "checkpoint" and word in named("model"):
            raise WorkloadError(f"{word!r} is no folder and no key=value; write model={word}")
        is_new = "/" in word or (self.about.makes_folder and word not in known_workloads())
        if not (is_new or Path(word).is_dir()):
            wanted = f"workload={word}" if word in known_workloads() else "key=value, or create it"
            raise WorkloadError(f"{word!r} is no folder and no key=value; write {wanted}")
        if len(words.others) > 1:
            raise WorkloadError(f"one data folder is needed, got {', '.join(words.others)}")
        known = self.about.makes_folder or is_url(word) or "workload" in words.values
        if not (known or Path(word).exists()):
            raise WorkloadError(f"{word} is not there; create or mount it, or name another folder")
        what, keys = "data folder", ["dataset.data_folder", "storage.storage_root"]
        if self.name == "checkpoint":
            what, keys = "folder of checkpoints", ["checkpoint.checkpoint_folder"]
        for key in keys:
            other = words.values.get(key, word)
            if Path(other).absolute() != Path(word).absolute():
                raise WorkloadError(f"{word} is the {what}, and {key}={other}; keep one")
        if not is_url(word):
            return Path(word)
        from dlemu.storage.place import path_of  # slow: NumPy

        return path_of(word, keys[0])


def _reached(folder: Path, words: Words) -> "Place":
    """Return the place of a data folder, reached by the keys storage.*."""
    from dlemu.config.model import load_workload
    from dlemu.storage.place import place_of

    place = place_of(folder)
    if place.has_paths:
        return place
    given = words.values.items()
    keys = {key: value_of_word(key, text) for key, text in given if key.startswith("storage.")}
    storage = load_workload(min(known_workloads()), keys).storage  # that of any row
    return replace(place, access=place.reach(storage))


_OF_SAMPLES = ("dataset.", "reader.", "train.", "cache.", "dali.")
"""Groups of keys that say what is read of a dataset, and how."""


def _for_checkpoints(workload: Any) -> Any:
    """Return a workload whose given keys without an effect on checkpoints are `ignored`.

    Raises:
        WorkloadError: checkpoints have a key of their own for what such a key says.
    """
    from dlemu.config.keys import all_keys
    from dlemu.config.model import read_by

    given = [key for key in workload.given if key.startswith(_OF_SAMPLES)]
    idle = [key for key in given if "checkpoint" not in read_by(key)]
    for key in idle:
        own = f"checkpoint.{key.rpartition('.')[2]}"
        if key.startswith("reader.") and own in all_keys():
            raise WorkloadError(f"{key} is of reading samples; checkpoints have {own}")
    return workload.model_copy(update={"ignored": (*workload.ignored, *idle)})


def _table(words: Words) -> list[Words]:
    """Return the words of each row of a table: drives=[1,2,4] and drives=1,2,4 are three."""
    lists = [re.sub(r"^(drives?)=\[(.+)\]$", r"\1=\2", each) for each in words.overrides]
    return [replace(words, overrides=overrides) for overrides in sweeps(lists)]


def _jobs(words: Words) -> list[Words]:
    """Return the words of each job that --multirun asks for, with a folder of its own."""
    if "--multirun" not in words.options:
        return [words]
    options = {name: value for name, value in words.options.items() if name != "--multirun"}
    base = words.values.get("output.folder", f"outputs/multirun/{time.strftime('%Y%m%d-%H%M%S')}")
    found = []
    for overrides in sweeps(words.overrides):
        own = ",".join(each for each in overrides if each not in words.overrides)
        folder = Path(base, own.replace("/", "_") or "only")
        overrides = [*overrides, f"output.folder={folder}"]
        found.append(replace(words, overrides=overrides, options=options))
    return found
