"""The log of a search: each run is kept when it ends, so that an interrupted search continues.

<search>.jsonl   first line: the settings that the runs depend on; then one line a run
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dlemu.errors import DAMAGE, RunError, WorkloadError, in_short
from dlemu.results.records import JsonLines
from dlemu.sizing.search import Point
from dlemu.workload.model import Workload
from dlemu.world.world import World

_SECTIONS = ("dataset", "reader", "train", "metric", "dali", "cache", "origin")
# A search may ask for a larger dataset; another threshold needs no other runs.
_MAY_CHANGE = {"dataset.num_files_train", "metric.au"}

_POINT = TypeAdapter(Point)


class SearchLog:
    """The runs of one search, in a file that survives a full disk and `kill -9` at any moment."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Read the log; the first run creates its file."""
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
