"""The folder of a search: the one that is named, an unfinished one of the same search, a new one.

While a search in a folder of its own making is unfinished, `unfinished.json` there says what it
searches for. The same command finds it and goes on.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlemu.errors import DAMAGE, DlemuError, WorkloadError
from dlemu.results.folders import hold
from dlemu.results.records import write_json
from dlemu.run.job import Say
from dlemu.storage.regular import read_regular
from dlemu.workload.model import Workload
from dlemu.world.world import World

_PARENT = Path("outputs") / "size"
_NAME = "unfinished.json"


@dataclass(frozen=True)
class HeldSearch:
    """The folder of a search, held by this process."""

    folder: Path
    wanted: dict[str, Any] | None = field(default=None, repr=False)
    """What is searched for; None: the folder was named, nothing needs to find it."""

    def begin(self) -> None:
        """Note that the search has runs, and has not ended."""
        path = self.folder / _NAME
        if self.wanted is not None and not path.exists():
            write_json(path, self.wanted)

    def end(self) -> None:
        """Note that the search has ended."""
        (self.folder / _NAME).unlink(missing_ok=True)


@contextmanager
def hold_search(workload: Workload, world: World, say: Say) -> Iterator[HeldSearch]:
    """Yield the folder for a search: output.folder, else the newest unfinished one, else a new one.

    Raises:
        WorkloadError: the folder cannot be made, or another command holds it.
    """
    with ExitStack() as stack:
        if workload.output.folder is not None:
            yield HeldSearch(stack.enter_context(hold(workload.output.folder, "size")))
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
        yield HeldSearch(folder, wanted)


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
    for path in _PARENT.glob(f"*/{_NAME}"):
        with suppress(OSError, DlemuError, *DAMAGE):
            if json.loads(read_regular(path)) == wanted:
                found.append((path.stat().st_mtime, path.parent))
    return [folder for _, folder in sorted(found, reverse=True)]
