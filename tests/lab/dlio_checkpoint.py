"""Checkpoints by DLIO's own code, one for each line on stdin; `make peers` has what it needs.

    .venv-peers/bin/python tests/lab/dlio_checkpoint.py FOLDER BYTES

Each answer is a line of JSON: the file; seconds and CPU seconds until DLIO has written, and until
the drive has it (DLIO 2.0.0 does not sync). DLIO's bytes are zeros.
"""

import json
import os
import sys
import time
from pathlib import Path

from dlio_benchmark.utils.utility import DLIOMPI


def main(folder: str, num_bytes: str) -> None:
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
