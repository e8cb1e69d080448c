"""A training loop of one's own, measured: a small model instead of the emulated accelerator.

    python examples/training_loop.py FOLDER

Writes 67 MB below FOLDER, trains on it for two epochs, and prints samples/s and the share of the
time in which the model computed. `Meter.epoch` takes any iterable, also your own DataLoader.
"""

import sys
from pathlib import Path

import torch

import dlemu


def main(folder: Path) -> int:
    """Generate below `folder`, train, print the report; return the exit status."""
    workload = dlemu.load_workload(
        "cosmoflow_h100",
        {
            "dataset.data_folder": str(folder),
            "dataset.num_files_train": 168,  # steps enough for a verdict
            "dataset.record_length_bytes": 400_000,
            "dataset.record_length_bytes_stdev": 10_000,
            "dataset.record_length_bytes_resize": 65_536,
            "reader.batch_size": 4,
            "reader.read_threads": 2,
        },
    )
    dlemu.generate(workload, world=dlemu.Alone())
    model = torch.nn.Sequential(
        torch.nn.Linear(65_536, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    device = "cuda" if torch.cuda.is_available() else None
    model.to(device or "cpu")
    meter = dlemu.Meter(workload)
    with dlemu.make_loader(workload, rank=0, num_ranks=1) as loader:
        for epoch in range(2):
            for batch in meter.epoch(loader, epoch, device=device):
                # One array (batch, bytes), whose memory is reused: this makes a copy of its own.
                inputs = torch.from_numpy(batch.data).to(device or "cpu").float() / 255
                with meter.computing():
                    loss = model(inputs).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
    print(meter.report())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
