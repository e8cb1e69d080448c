"""A watched job beside its emulation, from what was stored; and what watching costs a job.

    python -m benchmarks.watched table [FILE]     cells as docs/fidelity.md shows them
    python -m benchmarks.watched cost [PAIRS]     wall time of a small job with and without

`table` prints for each cell the AU that `dlemu watch` told (R) or that `dlemu run` gave with the
workload that watch wrote (E), and the AU by the script's own figures, where it prints its data
time.
`cost` runs a loop of 10 ms steps in turn with and without, and prints the median of the ratios.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STORED = Path(__file__).with_name("data") / "watched_h100.json"
_JOB = """
import time, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.zeros(2000, 8)), batch_size=4, num_workers=1)
begin = time.perf_counter()
for (x,) in loader:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    time.sleep(0.01)
print(time.perf_counter() - begin)
"""


def table(path: Path = STORED) -> None:
    """Print the stored cells."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    print(stored["what"])
    print("| cell | rate | AU by the rule | whole | by the script | samples/s | limit |")
    print("|---|--:|--:|--:|--:|--:|---|")
    for cell in stored["cells"]:
        rate = cell["rate_bytes_per_second"]
        own = ""
        if "own_time_seconds" in cell:
            waited, whole = (sum(cell[f"own_{name}_seconds"][1:]) for name in ("data", "time"))
            own = f"{100 * (1 - waited / whole):.1f}"
        print(
            f"| {cell['cell']} | {'not held' if rate is None else f'{rate / 1e6:.1f} MB/s'} "
            f"| {cell['au_percentage']:.1f} | {cell['whole_au_percentage']:.1f} | {own} "
            f"| {cell['samples_per_second']:.0f} | {cell['limit']} |"
        )


def cost(pairs: int = 5) -> None:
    """Print what watching costs, each pair's runs one after the other."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.py"
        job.write_text(_JOB, encoding="utf-8")
        for number in range(pairs):
            seconds = []
            for words in ([], ["-m", "dlemu", "watch", f"output.folder={folder}/{number}", "--"]):
                command = [sys.executable, str(job)]
                if words:
                    command = [sys.executable, *words, *command]
                begun = time.perf_counter()
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                seconds.append(float(done.stdout))
                print(f"pair {number}: {seconds[-1]:.3f} s of {time.perf_counter() - begun:.1f} s")
            ratios.append(seconds[1] / seconds[0])
    print(
        f"with / without, {pairs} pairs: median {statistics.median(ratios):.4f}, "
        f"{min(ratios):.4f} to {max(ratios):.4f}"
    )


if __name__ == "__main__":
    what, *given = sys.argv[1:] or ["table"]
    if what == "cost":
        cost(*map(int, given))
    else:
        table(*map(Path, given))
