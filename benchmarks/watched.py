"""A watched job beside its emulation, from what was stored; and what watching costs a job.

    python -m benchmarks.watched table [FILE]     cells and loops as docs/fidelity.md shows them
    python -m benchmarks.watched loops [KIND ...] AU of each kind of loop, by watch and by itself
    python -m benchmarks.watched held [REPEATS]   a job with a slow first step on a drive held back
    python -m benchmarks.watched cost [PAIRS [STEPS]]  wall time of a small job with and without
    python -m benchmarks.watched hook [PAIRS]     the same within one process, on a GPU if there is

`table` prints for each job the AU that `dlemu watch` told, the AU that `dlemu run` gave with the
workload that watch wrote, and that by the script's own figures, where it prints its data time.
`loops` runs the jobs of `benchmarks.watched_job`. `held` needs root.
`cost` runs a loop of 10 ms steps in turn with and without, 500 of them where STEPS is left out, and
prints the median of the ratios, and how much longer the first 30 steps took than the others.
`hook` does so without starting the job anew: what the hook costs, and nothing else of the host.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import watched_job
from benchmarks.watched_job import KINDS
from tests.lab.bench import folder_on_disk
from tests.lab.cgroups import throttled

STORED = Path(__file__).with_name("data") / "watched_h200.json"
LOOPS = Path(__file__).with_name("data") / "watched_loops.json"
_LOOPS_HEAD = "| loop | | own stopwatch | dlemu watch | |\n|---|---|--:|--:|--:|"
_DLEMU = (sys.executable, "-m", "dlemu")
_TORCHRUN = ("-m", "torch.distributed.run")
_JOB = """
import statistics, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
held = torch.ones(1 << 28)  # 1 GiB, as a job has more memory than this loop
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
if torch.cuda.is_available():
    model.cuda()(torch.zeros(4, 8).cuda()).sum().backward()
data = TensorDataset(torch.zeros(4 * int(sys.argv[1]), 8))
begin = time.perf_counter()
ends = [begin]
for (x,) in DataLoader(data, batch_size=4, num_workers=1):
    optimizer.zero_grad()
    model(x.to(model.weight.device)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    ends.append(time.perf_counter())
whole = time.perf_counter() - begin
steps = [after - before for before, after in zip(ends, ends[1:])]
print(whole, sum(steps[:30]) - 30 * statistics.median(steps))
"""


_HELD_STEPS, _HELD_BATCH, _HELD_BYTES, _HELD_SECONDS = 60, 4, 500_000, 0.05
_HELD_JOB = """
import sys, time, torch
from pathlib import Path
from torch.utils.data import DataLoader, Dataset
folder, batch, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
class Files(Dataset):
    def __init__(self):
        self.files = sorted(map(str, Path(folder).iterdir()))
    def __len__(self):
        return len(self.files)
    def __getitem__(self, number):
        return torch.frombuffer(bytearray(Path(self.files[number]).read_bytes()), dtype=torch.uint8)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(Files(), batch_size=batch, shuffle=True, num_workers=2)
for number, x in enumerate(loader):
    time.sleep(seconds if number else 3.0)
    optimizer.step()
"""
"""Its first step takes 3 s."""


def table(path: Path = STORED) -> None:
    """Print the stored cells: each job, and beside it its emulation under the same throttle."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    print(stored["what"])
    cells = {(cell["script"], cell["cell"]): cell for cell in stored["cells"]}
    print("| script | held to | AU: job | emulated | | whole: job | emulated | | by the script |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for (script, name), job in cells.items():
        if "-R" not in name:
            continue
        made = cells.get((script, name.replace("-R", "-E")))
        rate = job["rate_bytes_per_second"]
        row = [stored["scripts"][script], "not held" if rate is None else f"{rate / 1e6:.1f} MB/s"]
        for key in ("au_percentage", "whole_au_percentage"):
            row.append(f"{job[key]:.1f}")
            row += ["", ""] if made is None else _beside(made[key], job[key])
        print(f"| {' | '.join([*row, _by_the_script(job)])} |")
    if path == STORED:
        print(f"\n{_LOOPS_HEAD}")
        _print_loops(json.loads(LOOPS.read_text(encoding="utf-8")))


def _beside(emulated: float, real: float) -> list[str]:
    return [f"{emulated:.1f}", f"{emulated - real:+.1f}"]


def _by_the_script(cell: Mapping[str, Any]) -> str:
    """Return the AU by the data time that a script prints for each step; "" if it prints none."""
    if "own_time_seconds" not in cell:
        return ""
    waited, whole = (sum(cell[f"own_{name}_seconds"][1:]) for name in ("data", "time"))
    return f"{100 * (1 - waited / whole):.1f}"


def loops(kinds: Sequence[str] = ()) -> None:
    """Print for each kind of loop the AU of the job's own stopwatch, and that of dlemu watch."""
    print(f"load {os.getloadavg()[0]:.1f}\n{_LOOPS_HEAD}")
    made = {}
    for name in kinds or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            launcher = [*_TORCHRUN, "--nproc-per-node", "2"] if name == "ddp" else []
            words = [*launcher, watched_job.__file__, name, f"{folder}/own.json"]
            _watch(Path(folder), [sys.executable, *words])
            own, with_other = json.loads(Path(folder, "own.json").read_text())
            made[name] = [own, 100 - _waited(Path(folder))]
            if name == "ddp":
                made[f"{name}, barrier"] = [with_other, _au(Path(folder), "au_percentage")]
        _print_loops({each: made[each] for each in made if each.startswith(name)})
    if not kinds:
        LOOPS.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def _print_loops(found: Mapping[str, Sequence[float]]) -> None:
    """Print a row of each kind of loop: AU by the job's own stopwatch and by dlemu watch."""
    for name, (own, seen) in found.items():
        kind, _, by = name.partition(", ")
        what = (KINDS[kind].__doc__ or "").partition("\n")[0].rstrip(".")
        what += "; waits for the other rank count as well" if by else ""
        print(f"| {kind} | {what} | {own:.2f} | {seen:.2f} | {seen - own:+.2f} |")


def _waited(folder: Path) -> float:
    """Return the percentage of their steps, without the first, that ranks waited for batches."""
    found = []
    for file in sorted((folder / "out").glob("steps.*.npy")):
        steps = np.load(file)
        for epoch in np.unique(steps["epoch"]):
            rows = steps[(steps["epoch"] == epoch) & (steps["step"] > 0)]
            parts = [float(rows[part].sum()) for part in ("wait", "compute", "barrier")]
            found.append(100 * parts[0] / sum(parts))
    return statistics.fmean(found)


def _watch(folder: Path, command: Sequence[str], enter: Callable[[], None] | None = None) -> None:
    """Run a command under dlemu watch, whose results go to folder/out."""
    words = [*_DLEMU, "watch", f"output.folder={folder}/out", "--", *command]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=enter)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _au(folder: Path, name: str) -> float:
    """Return the mean over the epochs of a run in folder/out."""
    summary: dict[str, Any] = json.loads((folder / "out/summary.json").read_text())
    return statistics.fmean(epoch[name] for epoch in summary["per_epoch"])


def held(repeats: int = 3) -> None:
    """Print the AU of a job on a drive held to 0.6 of its demand, and of its emulation there."""
    print("| | AU: job | emulated | | whole: job | emulated | |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    with folder_on_disk() as folder:
        data = folder / "data"
        data.mkdir()
        for number in range(_HELD_STEPS * _HELD_BATCH):
            (data / f"{number:04}.raw").write_bytes(os.urandom(_HELD_BYTES))
        rate = round(0.6 * _HELD_BATCH * _HELD_BYTES / _HELD_SECONDS)
        for number in range(repeats):
            job, made = folder / f"job{number}", folder / f"made{number}"
            for each in (job, made):
                each.mkdir()
            (job / "job.py").write_text(_HELD_JOB)
            words = [str(job / "job.py"), str(data), str(_HELD_BATCH), str(_HELD_SECONDS)]
            with throttled((folder, rate)) as group:
                _evict(data)
                _watch(job, [sys.executable, *words], group.enter)
                _evict(data)
                run = ["run", f"workload={job}/out/workload.yaml", f"output.folder={made}/out"]
                subprocess.run([*_DLEMU, *run], capture_output=True, preexec_fn=group.enter)
            row = []
            for name in ("au_percentage", "whole_epoch_au_percentage"):
                row += [f"{_au(job, name):.1f}", *_beside(_au(made, name), _au(job, name))]
            print(f"| {number + 1} | {' | '.join(row)} |")


def _evict(folder: Path) -> None:
    """Have the next reads come from the drive."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cost(pairs: int = 5, steps: int = 500) -> None:
    """Print what watching costs, each pair's runs one after the other, in turn."""
    ratios, extra = [], []
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.py"
        job.write_text(_JOB, encoding="utf-8")
        bare = [sys.executable, str(job), str(steps)]
        for number in range(pairs):
            watch = [*_DLEMU, "watch", f"output.folder={folder}/{number}", "--", *bare]
            order = [watch, bare] if number % 2 else [bare, watch]
            found = {}
            for command in order:
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[command is watch] = [float(word) for word in done.stdout.split()]
            ratios.append(found[True][0] / found[False][0])
            extra.append(found[True][1] - found[False][1])
            print(f"pair {number}: {found[True][0]:.3f} s with, {found[False][0]:.3f} s without")
    print(
        f"with / without, {pairs} pairs of {steps} steps: median {statistics.median(ratios):.4f}, "
        f"{min(ratios):.4f} to {max(ratios):.4f}; "
        f"the first 30 steps, median {1e3 * statistics.median(extra):+.1f} ms"
    )


def hook(pairs: int = 12) -> None:
    """Print what the hook alone costs a loop of 10 ms steps: short blocks with and without in turn.

    One iterator gives the batches of all blocks. Of a GPU there are two loops: the host sleeps in
    each step, or it reads each loss and so waits for a GPU that computes.
    """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    by_gpu = torch.cuda.is_available()
    device = "cuda" if by_gpu else "cpu"
    data = TensorDataset(torch.zeros(1 << 20, 8))
    batches = iter(DataLoader(data, batch_size=4, num_workers=2, pin_memory=by_gpu))
    model: Any = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    square = torch.zeros(4096, 4096, device=device)

    def step(products: int) -> None:
        (x,) = next(batches)
        optimizer.zero_grad()
        for _ in range(products):
            torch.mm(square, square)
        loss = model(x.to(device, non_blocking=True)).sum()
        loss.backward()
        optimizer.step()
        if products:
            loss.item()
        else:
            time.sleep(_HOOK_STEP)

    def block(products: int) -> tuple[float, float]:
        """Return seconds of a step, and those of the loop's own CPU time."""
        for _ in range(3):
            step(products)
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(_HOOK_STEPS):
            step(products)
        if by_gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - wall) / _HOOK_STEPS, (time.thread_time() - cpu) / _HOOK_STEPS

    kinds = {"the host sleeps": 0}
    if by_gpu:
        block(1)
        kinds["the host waits for the GPU"] = max(1, round(_HOOK_STEP / block(1)[0]))
    with tempfile.TemporaryDirectory() as folder:
        for kind, products in kinds.items():
            found = []
            for number in range(pairs):
                work, with_first = partial(block, products), number % 2 == 1
                one = _hooked(folder, batches, work, on=with_first)
                other = _hooked(folder, batches, work, on=not with_first)
                found.append((other, one) if with_first else (one, other))
            walls = [watched[0] / bare[0] for bare, watched in found]
            cpu = statistics.median(watched[1] - bare[1] for bare, watched in found)
            bare = statistics.median(bare[0] for bare, _ in found)
            print(
                f"{device}, {kind}, {1e3 * bare:.1f} ms a step, {pairs} pairs of "
                f"{_HOOK_STEPS} steps: with / without, median {statistics.median(walls):.4f} "
                f"({min(walls):.4f} to {max(walls):.4f}); CPU time a step {1e6 * cpu:+.0f} µs"
            )


def _hooked(
    folder: str, batches: Any, work: Callable[[], tuple[float, float]], *, on: bool
) -> tuple[float, float]:
    """Return what `work` returns, with the hook around its batches or without."""
    if not on:
        return work()
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import dataloader

    from dlemu.watch import hook as hooked

    plain = dataloader.DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__
    watch = hooked._Watch(hooked._Journal(folder))
    hooked._wrap_torch_loader(dataloader, watch)
    ends = register_optimizer_step_post_hook(watch.ended)
    batches._dlemu_loop = hooked._Loop(watch, 1, 0)
    try:
        return work()
    finally:
        ends.remove()
        dataloader.DataLoader.__iter__ = plain[0]  # type: ignore[method-assign]
        dataloader._BaseDataLoaderIter.__next__ = plain[1]  # type: ignore[method-assign]


_HOOK_STEPS, _HOOK_STEP = 40, 0.01


if __name__ == "__main__":
    what, *given = sys.argv[1:] or ["table"]
    if what == "cost":
        cost(*map(int, given))
    elif what == "hook":
        hook(*map(int, given))
    elif what == "loops":
        loops(given)
    elif what == "held":
        held(*map(int, given))
    else:
        table(*map(Path, given))
