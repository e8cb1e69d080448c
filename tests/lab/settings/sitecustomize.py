"""Gives modules of dlemu other constants, in each Python that starts with this folder on its path.

DLEMU_TEST_SETTINGS has them as JSON: name and value. A module gets them when it is imported, so
that none is imported for their sake.
"""

import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_SETTINGS: dict[str, dict[str, object]] = {}
for _place, _value in json.loads(os.environ.get("DLEMU_TEST_SETTINGS", "{}")).items():
    _module, _, _name = _place.rpartition(".")
    _SETTINGS.setdefault(_module, {})[_name] = _value


class _Finder:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _SETTINGS else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_set(module: ModuleType) -> None:
            execute(module)
            vars(module).update(_SETTINGS[name])

        spec.loader.exec_module = execute_and_set  # type: ignore[method-assign]
        return spec


if _SETTINGS:
    sys.meta_path.insert(0, _Finder)
