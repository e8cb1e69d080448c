"""The runs of a search, kept as soon as they are measured, so that it can go on after any end.

<search>.jsonl   first line: the settings that a run depends on; then one line a run
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dlemu.errors import DAMAGE, RunError, WorkloadError, in_short
from dlemu.sizing import Point
from dlemu.workload import Workload
from dlemu.world import World

_SECTIONS = ("dataset", "reader", "train", "metric", "dali")
# A larger dataset may be written because the search asked for one.
_MAY_CHANGE = {"dataset.num_files_train", "metric.au"}

_POINT = TypeAdapter(Point)


class SearchLog:
    """The runs of one search, in a file that survives `kill -9` at any moment."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open the log, or begin it.

        Raises:
            WorkloadError: its runs were made with other settings.
            RunError: it cannot be written, or is no log.
        """
        self.path = path
        self.points: list[Point] = []
        settings = json.loads(json.dumps(settings))
        try:
            lines = (
                path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
            )
            # What was cut short by the end is no line.
            whole = [line for line in lines if line.endswith("\n")]
            if whole:
                self._check(json.loads(whole[0])["settings"], settings)
                self.points = [_POINT.validate_json(line) for line in whole[1:]]
            path.write_text("".join(whole), encoding="utf-8")
        except OSError as error:
            raise RunError(f"{path} cannot be written ({error.strerror})") from None
        except DAMAGE as error:
            raise RunError(f"{path} is no log of a search ({in_short(error)}); remove it") from None
        if not whole:
            self._write({"settings": settings})

    def append(self, point: Point) -> None:
        """Keep a run.

        Raises:
            RunError: the disk is full or read-only.
        """
        self.points.append(point)
        self._write(asdict(point))

    def _write(self, value: Mapping[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(value) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"{self.path} cannot be written ({error.strerror})") from None

    def _check(self, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        for key in {**wanted, **found}:
            if found.get(key) != wanted.get(key):
                raise WorkloadError(
                    f"output.folder {self.path.parent} holds runs with {key}={found.get(key)}, "
                    f"now it is {wanted.get(key)}; name another output.folder, or set it back"
                )


def settings_of(workload: Workload, world: World) -> dict[str, Any]:
    """Return, by dotted key, what the runs of a search depend on."""
    tree = workload.model_dump(mode="json", include=set(_SECTIONS))
    settings: dict[str, Any] = {"num_ranks": world.num_ranks, "num_hosts": world.num_hosts}
    for section, keys in tree.items():
        settings |= {f"{section}.{key}": value for key, value in keys.items()}
    return {key: value for key, value in settings.items() if key not in _MAY_CHANGE}
