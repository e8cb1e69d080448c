"""Size a drive: write a dataset on it, and find how many emulated H100s it feeds.

    python examples/size_a_drive.py FOLDER [KEY=VALUE ...]

FOLDER must lie on the drive. CosmoFlow's samples are a 20th as large here, and its steps ten times
as long: so a tenth of a GB gives an answer within minutes, on a slow drive too. `size.quick` allows
such a small dataset, and the answer says so. For a true search, leave these keys out and set
`dataset.num_files_train` to the number that `dlemu datasize` prints.
"""

import sys
from pathlib import Path

import yaml

import dlemu


def main(folder: Path, more: list[str]) -> int:
    """Write a dataset below `folder`, search, print the answer; return the exit status."""
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
            print(dlemu.show(answer))
            mark = "at least " if answer.at_least else ""
            print(f"{mark}{answer.num_accelerators}; limit: {answer.limit}")
    return 0 if answer.num_accelerators else 2


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
