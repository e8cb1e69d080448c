"""From the words behind a command's name to its function: what all commands have in common."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from dlemu.cli.commands import COMMANDS, Command
from dlemu.cli.words import DRY_RUN, Words, parse
from dlemu.config.compose import (
    compose_words,
    known_models,
    known_workloads,
    no_workload,
    sweeps,
    without_secrets,
)
from dlemu.errors import DlemuError, WorkloadError
from dlemu.ranks.world import World
from dlemu.storage.s3.location import object_path
from dlemu.terminal import Answer, answer, begin_log, complain, keep_stdout, log_to, say

_OF_MODELS = ("checkpoint", "predict")
"""Commands that take a model alone."""
_THAT_LOOK = (*_OF_MODELS, "run", "size")
"""Commands that refuse another workload's dataset where they look at it, or read none."""


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
    if command.function and world.rank != 0:
        return 0
    with keep_stdout("--json" in words):
        if not command.function:
            return _Job(name, command).call(words, world)
        module, _, function = command.function.partition(":")
        return int(getattr(import_module(module), function)(parse(words, command.options)))


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
        if self.name == "predict" and len(jobs) > 1 and "--cfg" not in jobs[0][1].options:
            from dlemu.cli.jobs import predict_several

            return predict_several([workload for workload, _ in jobs], world, jobs[0][1])
        statuses = [self._do(workload, parsed, world) for workload, parsed in jobs]
        if len(jobs) > 1 and world.rank == 0 and not {"--cfg", DRY_RUN} & jobs[0][1].options.keys():
            from dlemu.cli.report import show_across

            show_across([Path(workload.output.folder) for workload, _ in jobs])
        return next(status for status in (1, 2, 0) if status in statuses)

    def _do(self, workload: Any, words: Words, world: World) -> int:
        """Do one job; return the exit status."""
        if workload is not None and "--cfg" in words.options:
            if world.rank == 0:
                self._show(workload, as_json="--json" in words.options)
            return 0
        if workload is not None:
            log_to(workload.output.log)
        if DRY_RUN in words.options:
            from dlemu.cli.dry import dry_run

            return dry_run(self.name, workload, world)
        return int(getattr(import_module("dlemu.cli.jobs"), self.name)(workload, world, words))

    def _show(self, workload: Any, *, as_json: bool) -> None:
        """Print all keys with their values."""
        from dlemu.judge.records import dump_workload

        if not as_json:
            say(Answer(dump_workload(workload).rstrip("\n")))
            return
        from dlemu.cli.scripts import json_text

        answer(json_text(workload.model_dump(mode="json", exclude={"given", "ignored"})))

    def _compose(self, words: Sequence[str], world: World) -> list[tuple[Any, Words]] | None:
        """Return workload and words of each job; None, after a line on stderr, if one is wrong."""
        try:
            parsed = parse(words, ("--config-dir", "--cfg", *self.about.options), for_job=True)
            if DRY_RUN in parsed.options and {"--json", "--csv"} & parsed.options.keys():
                raise WorkloadError(f"{DRY_RUN} prints lines only; leave out --json and --csv")
            if self.about.without_workload and not parsed.overrides:
                if len(parsed.others) != 1:
                    raise WorkloadError("one data folder is needed: dlemu verify FOLDER")
                return [(None, parsed)]
            each = _table(parsed) if self.name == "predict" else _jobs(parsed)
            jobs = [(self._workload(own, world), own) for own in each]
            if "--cfg" not in parsed.options:
                self._begin_log(jobs[0][0].output.log, without_secrets(words))
        except DlemuError as error:
            complain(str(error))
            return None
        ignored = dict.fromkeys(key for workload, _ in jobs for key in workload.ignored)
        if ignored and "--cfg" not in parsed.options:
            say(f"ignored: {', '.join(ignored)}")
        return jobs

    def _begin_log(self, path: str | None, words: Sequence[str]) -> None:
        try:
            begin_log(path, [self.name, *words])
        except OSError as error:
            raise WorkloadError(
                f"output.log {path} cannot be written ({error.strerror}); name another file"
            ) from None

    def _workload(self, words: Words, world: World) -> Any:
        from dlemu.config.keys import Job, idle_keys
        from dlemu.config.model import check_workload

        folder = self._folder(words)
        overrides = words.overrides
        if self.name == "checkpoint" and folder is not None:
            overrides, folder = [*overrides, f"checkpoint.checkpoint_folder={folder}"], None
        if folder is not None and self.name == "calibrate":
            from dlemu.datagen.survey import dataset_below

            folder = dataset_below(folder, words.values.get("workload", ""))
        if folder is not None and "workload" not in words.values:
            from dlemu.datagen.survey import find_workload

            overrides = [*overrides, f"workload={find_workload(folder)}"]
        if words.options.get("--cfg", "job") != "job":
            raise WorkloadError(f"--cfg must be job, got {words.options['--cfg']!r}")
        workload = check_workload(compose_words(overrides, words.path("--config-dir")), self.name)
        model = words.values.get("model", "")
        if self.name not in _OF_MODELS and workload.made_from == model in known_models():
            raise WorkloadError(f"{no_workload(model, known_workloads())}; take dlemu checkpoint")
        if folder is not None:
            from dlemu.datagen.survey import as_it_is

            workload = as_it_is(workload, folder, words.values)
        elif "workload" in words.values and self.name not in _THAT_LOOK:
            from dlemu.datagen.survey import refuse_other

            refuse_other(workload)
        if not self.about.replays:
            return workload
        idle = idle_keys(Job(workload, self.name, world.num_hosts))
        return workload.model_copy(update={"ignored": (*workload.ignored, *idle)})

    def _folder(self, words: Words) -> Path | None:
        """Return the data folder that stands on the command line as a word of its own."""
        if not words.others:
            return None
        word = words.others[0]
        if self.name == "checkpoint" and word in known_models():
            raise WorkloadError(f"{word!r} is no override; write model={word}")
        if "://" in word and self.name != "checkpoint":
            raise WorkloadError(
                f"{word} alone does not say which workload to take; write workload=NAME "
                f"dataset.data_folder={word}"
            )
        is_new = "/" in word or (self.about.makes_folder and word not in known_workloads())
        if not (is_new or Path(word).is_dir()):
            wanted = f"workload={word}" if word in known_workloads() else "key=value"
            raise WorkloadError(f"{word!r} is no override; write {wanted}")
        if len(words.others) > 1:
            raise WorkloadError(f"one data folder is needed, got {', '.join(words.others)}")
        if not (self.about.makes_folder or "workload" in words.values or Path(word).exists()):
            raise WorkloadError(f"{word} is not there; create or mount it, or name another folder")
        what, keys = "data folder", ["dataset.data_folder", "storage.storage_root"]
        if self.name == "checkpoint":
            what, keys = "folder of checkpoints", ["checkpoint.checkpoint_folder"]
        for key in keys:
            other = words.values.get(key, word)
            if Path(other).absolute() != Path(word).absolute():
                raise WorkloadError(f"{word} is the {what}, and {key}={other}; keep one")
        return object_path(word, *keys) if "://" in word else Path(word)


def _table(words: Words) -> list[Words]:
    """Return the words of each row of a table: drives=[1,2,4] and drives=1,2,4 are three."""
    lists = [re.sub(r"^(drives?)=\[(.+)\]$", r"\1=\2", each) for each in words.overrides]
    return [replace(words, overrides=overrides) for overrides in sweeps(lists)]


def _jobs(words: Words) -> list[Words]:
    """Return the words of each job that --multirun asks for, with a folder of its own."""
    if "--multirun" not in words.options:
        return [words]
    base = words.values.get("output.folder", f"outputs/multirun/{time.strftime('%Y%m%d-%H%M%S')}")
    found = []
    for overrides in sweeps(words.overrides):
        own = ",".join(each for each in overrides if each not in words.overrides)
        folder = Path(base, own.replace("/", "_") or "only")
        found.append(replace(words, overrides=[*overrides, f"output.folder={folder}"]))
    return found
