"""Checkpoints by DLIO's own code, one for each line on stdin; `make peers` has what it needs.

    .venv-peers/bin/python -m benchmarks.dlio_checkpoint FOLDER BYTES

Each answer is a line of JSON: the file; seconds and CPU seconds until DLIO has written, and until
the drive has it (DLIO 2.0.0 does not sync). DLIO's bytes are zeros.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PYTHON = Path(".venv-peers/bin/python")


@contextlib.contextmanager
def dlio_checkpoints(folder: Path, num_bytes: int) -> Iterator[Callable[[], dict[str, Any]]]:
    """Yield what lets DLIO write a checkpoint, and returns the answer."""
    command = [str(PYTHON), "-m", "benchmarks.dlio_checkpoint", str(folder), str(num_bytes)]
    keys: dict[str, Any] = {"stdin": -1, "stdout": -1, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **keys) as child:
        assert child.stdin is not None and child.stdout is not None
        asked, answers = child.stdin, child.stdout
        if "ready\n" not in answers:
            raise SystemExit(f"{' '.join(command)} did not start")

        def write() -> dict[str, Any]:
            print(file=asked, flush=True)
            told: dict[str, Any] = json.loads(answers.readline())
            return told

        try:
            yield write
        finally:
            asked.close()


def main(folder: str, num_bytes: str) -> None:
    from dlio_benchmark.utils.utility import DLIOMPI

    DLIOMPI.get_instance().initialize()  # before the next modules are imported
    from dlio_benchmark.checkpointing.pytorch_checkpointing import PyTorchCheckpointing
    from dlio_benchmark.utils.config import ConfigArguments

    keys = ConfigArguments.get_instance()
    keys.checkpoint_folder, keys.model_size = folder, int(num_bytes)
    keys.optimization_groups, keys.layer_parameters = [], []
    checkpointing = PyTorchCheckpointing.get_instance()
    print("ready", flush=True)
    for step, _ in enumerate(sys.stdin, 1):
        begin, cpu = time.perf_counter(), time.process_time()

        def since() -> tuple[float, float]:
            return time.perf_counter() - begin, time.process_time() - cpu  # noqa: B023

        checkpointing.checkpoint(1, step)
        written = since()
        [path] = Path(folder).glob(f"model-1-{step}-*.pt")
        with path.open("rb") as file:
            os.fsync(file.fileno())
        told = {"path": str(path), "written": written, "on the drive": since()}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
