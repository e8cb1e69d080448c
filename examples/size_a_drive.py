"""Size a drive: write a dataset on it, and find how many emulated H100s it feeds.

    python examples/size_a_drive.py FOLDER [KEY=VALUE ...]

FOLDER should lie on the drive in question. CosmoFlow's samples are made a 20th as large and its
steps ten times as long, so that a tenth of a GB and a slow drive give an answer within minutes;
`size.quick` takes a dataset that small, and the answer says so. Without those keys, and with
`dataset.num_files_train` as `dlemu datasize` tells, it is the true search.
"""

import sys
from pathlib import Path

import yaml

import dlemu


def main(folder: Path, more: list[str]) -> int:
    """Generate below `folder`, search, print the answer; return the exit status."""
    keys: dict[str, object] = {
        "dataset.data_folder": str(folder / "data"),
        "dataset.num_files_train": 800,
        "dataset.record_length_bytes": 141_424,
        "dataset.record_length_bytes_stdev": 3_565,
        "reader.data_loader": "threads",
        "reader.read_threads": 2,
        "train.computation_time": 0.035,
        "train.epochs": 1,
        "train.total_training_steps": 100,
        "size.quick": True,
        "size.confirm": 3,
        "size.max_accelerators": 8,
        "output.folder": str(folder / "results"),
    }
    for word in more:
        key, _, value = word.partition("=")
        keys[key] = yaml.safe_load(value)
    workload = dlemu.load_workload("cosmoflow_h100", keys)
    with dlemu.make_world() as world:
        dlemu.generate(workload, world=world)
        answer = dlemu.size(workload, world=world)
        if world.rank == 0:
            print(answer)
            mark = "at least " if answer.at_least else ""
            print(f"{mark}{answer.num_accelerators}, bound by {answer.limit}")
    return 0 if answer.num_accelerators else 2


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
