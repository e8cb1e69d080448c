"""`dlemu` with other settings, in a new interpreter: python tests/lab/settings.py JSON WORD ..."""

import importlib
import json
import os
import sys
from collections.abc import Mapping

QUICK: Mapping[str, object] = {
    "dlemu.storage.probe.longest_seconds": 0.006,
    "dlemu.dataset.rule.cpus_a_process": 1e6,
    "dlemu.run.replay.ceiling_seconds": 0.0,
    "dlemu.cli.progress.plain_seconds": 600.0,
    "dlemu.run.workers.folder": "/dev/null/kept",
    "dlemu.run.workers.SECONDS": 0.02,
}
"""Of all tests. A probe after each short run would take longer than all else; and a busy host would
add plain lines of progress to what a command says. No home's rates of workers are read or written.
A run has one process, on large hosts too, and no steps of its own without reads.
"""


def apply(settings: Mapping[str, object]) -> None:
    """Give modules of dlemu other values: the public names that they have for that."""
    for place, value in settings.items():
        module, _, name = place.rpartition(".")
        setattr(importlib.import_module(module), name, value)


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # as -m has it
    apply(json.loads(sys.argv[1]))
    main = importlib.import_module("dlemu.__main__")
    sys.argv = [str(main.__file__), *sys.argv[2:]]
    sys.exit(main.main())
