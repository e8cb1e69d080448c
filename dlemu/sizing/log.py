"""What a search keeps, so that it continues after any end: sizing.json, written after each run.

status        "incomplete" until all searches have answers; then "complete", or "failed"
answers       of the searches that have ended
unfinished    by "<target>.<workload>", the runs of the others
settings      by the same names, what the runs depend on
wanted        what is searched for, in a folder that nobody named: the same command finds it
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from dlemu.config.model import Workload
from dlemu.errors import DAMAGE, DlemuError, WorkloadError, in_short
from dlemu.judge.folders import Record, hold
from dlemu.judge.records import SIZING, check_writable, conditions_of, damaged, read_sizing
from dlemu.ranks.world import World
from dlemu.run.job import Say
from dlemu.sizing.answers import Sized, document_of
from dlemu.sizing.search import Point
from dlemu.storage.regular import read_regular

_PARENT = Path("outputs") / "size"
_SECTIONS = ("dataset", "reader", "train", "metric", "dali", "cache", "origin")
# A search may ask for a larger dataset; another threshold needs no other runs.
_MAY_CHANGE = {"dataset.num_files_train", "metric.au"}

_POINT = TypeAdapter(Point)


class SizingRecord:
    """The document of the searches in a folder, on rank 0. It survives `kill -9` at any moment."""

    def __init__(
        self, folder: Path, wanted: dict[str, Any] | None = None, *, tried: Path | None = None
    ) -> None:
        """Read what an earlier command has left there; nothing is written before the first run.

        `wanted`: what is searched for, if somebody has to find it. `tried`: as in `document_of`.

        Raises:
            RunError: it is damaged, or cannot be written.
        """
        check_writable(folder / SIZING)
        self.folder, self._wanted = folder, {} if wanted is None else {"wanted": wanted}
        self._document = document_of([], tried)
        before = self._document | {"settings": {}} | read_sizing(folder)
        ended = {f"{each['target']}.{each['workload']}": each for each in before["answers"]}
        self._searches: dict[str, Any] = ended | before["unfinished"]
        self._settings = before["settings"]
        self._record = Record(folder, self._document, name=SIZING)

    def open(self, name: str, settings: Mapping[str, Any]) -> list[Point]:
        """Return the runs of a search that were made before.

        Raises:
            WorkloadError: they were made with other settings.
            RunError: the document is damaged.
        """
        wanted = json.loads(json.dumps(settings))
        try:
            found = dict(self._settings.get(name, wanted))
            points = [_POINT.validate_python(each) for each in self._points(name)]
        except DAMAGE as error:
            raise damaged(self.folder / SIZING, in_short(error)) from None
        for key in {**wanted, **found}:
            if found.get(key) != wanted.get(key):
                raise WorkloadError(
                    f"output.folder {self.folder} holds runs with {key}={found.get(key)}, "
                    f"now it is {wanted.get(key)}; name another output.folder, or set it back"
                )
        self._settings[name] = wanted
        return points

    def _points(self, name: str) -> list[Any]:
        return list(self._searches.get(name, {"points": ()})["points"])

    def add(self, name: str, *new: Point) -> None:
        """Keep the runs of a search that has no answer yet: none as it begins."""
        points = [*self._points(name), *map(asdict, new)]
        conditions = conditions_of(self.folder, name)
        self._searches[name] = {"points": points, "conditions": conditions}
        self._write("incomplete")

    def conclude(self, answer: Sized, *, is_last: bool) -> None:
        """Keep an answer."""
        self._searches.pop(answer.name, None)
        self._searches[answer.name] = answer.fields
        self._write("complete" if is_last else "incomplete")

    def _write(self, status: str) -> None:
        ended = {name: each for name, each in self._searches.items() if "workload" in each}
        self._document |= {
            "status": status,
            "answers": list(ended.values()),
            "unfinished": {n: each for n, each in self._searches.items() if n not in ended},
            "settings": self._settings,
            **self._wanted,
        }
        if status == "complete":
            self._document.pop("wanted", None)
        self._record.write()

    @contextmanager
    def failing(self) -> Iterator[Self]:
        """Note why the searches did not end, if one has begun."""
        try:
            yield self
        except BaseException as error:
            if "settings" in self._document:
                self._record.fail(error)
            raise


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
def hold_search(workload: Workload, world: World, say: Say) -> Iterator[SizingRecord]:
    """Yield the record for a search, in a held folder.

    That is output.folder, else the newest with the same search that has not ended, else a new one.

    Raises:
        WorkloadError: the folder cannot be made, or another command holds it.
        RunError: sizing.json there is damaged, or cannot be written.
    """
    with ExitStack() as stack:
        if workload.output.folder is not None:
            folder = stack.enter_context(hold(workload.output.folder, "size"))
            yield stack.enter_context(SizingRecord(folder).failing())
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
        yield stack.enter_context(SizingRecord(folder, wanted).failing())


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
    for path in _PARENT.glob(f"*/{SIZING}"):
        with suppress(OSError, DlemuError, *DAMAGE):
            if json.loads(read_regular(path)).get("wanted") == wanted:
                found.append((path.stat().st_mtime, path.parent))
    return [folder for _, folder in sorted(found, reverse=True)]
