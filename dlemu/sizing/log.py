"""What a search keeps, so that it continues after any end.

<search>.jsonl    first line: the settings that the runs depend on; then one line a run
unfinished.json   in a folder that the search made: what it searches for, until it has ended; the
                  same command finds it and goes on
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dlemu.config.model import Workload
from dlemu.errors import DAMAGE, DlemuError, RunError, WorkloadError, in_short
from dlemu.judge.folders import hold
from dlemu.judge.records import JsonLines, write_json
from dlemu.ranks.world import World
from dlemu.run.job import Say
from dlemu.sizing.search import Point
from dlemu.storage.regular import read_regular

_PARENT = Path("outputs") / "size"
UNFINISHED = "unfinished.json"
_SECTIONS = ("dataset", "reader", "train", "metric", "dali", "cache", "origin")
# A search may ask for a larger dataset; another threshold needs no other runs.
_MAY_CHANGE = {"dataset.num_files_train", "metric.au"}

_POINT = TypeAdapter(Point)


class SearchLog:
    """The runs of one search, in a file that survives a full disk and `kill -9` at any moment."""

    def __init__(
        self, path: Path, settings: Mapping[str, Any], wanted: dict[str, Any] | None = None
    ) -> None:
        """Read the log; the first run creates its file.

        `wanted`: what is searched for, until all searches of the folder have ended.
        """
        self._wanted = wanted
        self._settings = json.loads(json.dumps(settings))
        self._lines = JsonLines(path)
        self.points: list[Point] = []
        if self._lines.values:
            first, *runs = self._lines.values
            try:
                self._check(first["settings"])
                self.points = [_POINT.validate_python(run) for run in runs]
            except DAMAGE as error:
                raise RunError(
                    f"{path} is no log of a search ({in_short(error)}); remove it"
                ) from None

    def append(self, point: Point) -> None:
        """Keep a run."""
        first = () if self._lines.values else ({"settings": self._settings},)
        self._lines.append(*first, asdict(point))
        self.points.append(point)
        if self._wanted is not None:
            write_json(self._lines.path.with_name(UNFINISHED), self._wanted)

    def _check(self, found: Mapping[str, Any]) -> None:
        wanted, folder = self._settings, self._lines.path.parent
        for key in {**wanted, **found}:
            if found.get(key) != wanted.get(key):
                raise WorkloadError(
                    f"output.folder {folder} holds runs with {key}={found.get(key)}, "
                    f"now it is {wanted.get(key)}; name another output.folder, or set it back"
                )


def settings_of(workload: Workload, world: World) -> dict[str, Any]:
    """Return, by dotted key, what the runs of a search depend on."""
    tree = workload.model_dump(mode="json", include=set(_SECTIONS))
    settings: dict[str, Any] = {
        "num_ranks": world.num_ranks,
        "num_hosts": world.num_hosts,
        "host_memory": workload.host_memory,
        "output.drop_caches": workload.output.drop_caches,
    }
    if workload.workflow.checkpoint:
        settings["workflow.checkpoint"] = True
        tree |= workload.model_dump(mode="json", include={"model", "checkpoint"})
    for section, keys in tree.items():
        settings |= {f"{section}.{key}": value for key, value in keys.items()}
    return {key: value for key, value in settings.items() if key not in _MAY_CHANGE}


@contextmanager
def hold_search(
    workload: Workload, world: World, say: Say
) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Yield the folder for a search: output.folder, else the newest unfinished one, else a new one.

    And what is searched for; None: the folder was named, nothing needs to find it.

    Raises:
        WorkloadError: the folder cannot be made, or another command holds it.
    """
    with ExitStack() as stack:
        if workload.output.folder is not None:
            yield stack.enter_context(hold(workload.output.folder, "size")), None
            return
        wanted = _wanted(workload, world)
        for folder in _unfinished(wanted):
            try:
                stack.enter_context(hold(folder, "size"))
            except WorkloadError:  # another dlemu searches there
                continue
            say(
                f"going on with the same search in {folder}, which has not ended; for a new "
                "one name another output.folder"
            )
            break
        else:
            folder = stack.enter_context(hold(None, "size"))
        yield folder, wanted


def _wanted(workload: Workload, world: World) -> dict[str, Any]:
    """Return what tells one search from another: its keys, but not how many files there are."""
    tree = workload.model_dump(mode="json", exclude={"output", "ignored", "given"})
    tree["dataset"].pop("num_files_train")  # a search may ask for a larger dataset
    tree["size"]["targets"] = [str(Path(target).resolve()) for target in workload.size.targets]
    if not workload.size.targets:
        tree["dataset"]["data_folder"] = str(workload.data_folder.resolve())
    searched: dict[str, Any] = json.loads(json.dumps({"num_ranks": world.num_ranks, **tree}))
    return searched


def _unfinished(wanted: dict[str, Any]) -> list[Path]:
    """Return the folders of the same search that has not ended, the newest first."""
    found = []
    for path in _PARENT.glob(f"*/{UNFINISHED}"):
        with suppress(OSError, DlemuError, *DAMAGE):
            if json.loads(read_regular(path)) == wanted:
                found.append((path.stat().st_mtime, path.parent))
    return [folder for _, folder in sorted(found, reverse=True)]
