"""A first run: write a small dataset, replay it, and read what the report says.

    python examples/first_run.py FOLDER

FOLDER must lie on the storage. The dataset of 84 MB has enough steps for a verdict, but far too few
bytes for a true answer; `dlemu datasize` prints how many are needed.
"""

import sys
from pathlib import Path

import dlemu
from dlemu.report.run import present_run
from dlemu.report.text import render_text


def main(folder: Path) -> int:
    """Generate below `folder`, run, print the report; return the exit status."""
    workload = dlemu.load_workload(
        "unet3d_h100",
        {
            "dataset.data_folder": str(folder / "data"),
            "dataset.num_files_train": 574,
            # A thousandth of UNet3D's samples, and a tenth of the seconds that an H100 takes.
            "dataset.record_length_bytes": 146_600,
            "dataset.record_length_bytes_stdev": 68_341,
            "dataset.record_length_bytes_resize": 2_097,
            "train.computation_time": 0.0323,
            # Read past the page cache where that is possible, and once, so that it is cold.
            "reader.odirect": "auto",
            "train.epochs": 1,
            "output.folder": str(folder / "run"),
        },
    )
    with dlemu.make_world() as world:
        dlemu.generate(workload, world=world)
        outcome = dlemu.run_job(workload, world=world)
        if outcome is not None:
            print(render_text(present_run(outcome.summary)))
            print(f"results: {outcome.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
