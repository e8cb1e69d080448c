"""Which checkpoint interval does this drive allow? Write a small part of a model, and compute it.

    python examples/checkpoint.py FOLDER [KEY=VALUE ...]

FOLDER must lie on the drive. The files have a thousandth of their size; leave checkpoint.scale out
for the real ones. The rate that was measured gives the duration of the whole checkpoint.
"""

import json
import subprocess
import sys
from pathlib import Path

SHARE_OF_THE_TIME = 0.01


def main(folder: Path, more: list[str]) -> int:
    """Write checkpoints below `folder`, print the answer; return the exit status."""
    words = [
        "model=llama3_8b",
        "checkpoint.scale=0.001",
        "checkpoint.num_checkpoints_write=3",
        "checkpoint.num_checkpoints_read=3",
        "checkpoint.time_between_checkpoints=0",
        f"checkpoint.checkpoint_folder={folder / 'checkpoints'}",
        f"output.folder={folder / 'results'}",
        *more,
    ]
    done = subprocess.run([sys.executable, "-m", "dlemu", "-q", "checkpoint", *words])
    if done.returncode:
        return done.returncode
    told = json.loads((folder / "results" / "summary.json").read_text())
    own = told["checkpoint"]
    seconds = told["metric"]["save_checkpoint_duration_mean_seconds"] / own["scale"]
    print(
        f"at this rate a whole {told['model']['name']} takes {seconds:.0f} s: one every "
        f"{seconds / SHARE_OF_THE_TIME / 60:.0f} minutes is {100 * SHARE_OF_THE_TIME:g}% of the "
        f"time; limit {told['limit']['name']}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
