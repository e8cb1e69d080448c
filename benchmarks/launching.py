"""What makes a launch-bound step longer? python -m benchmarks.launching FOLDER [key=value …]

    net=cosmoflow seconds=1.2 rounds=5 json=launching.json
    python -m benchmarks.launching table JSON     the table of a stored measurement

One network trains on the GPU, its data there. Each turn adds one thing that a training loop has,
for `seconds`; the turns are interleaved, `rounds` times. Told of a step, medians over the rounds:

step      from its first kernel to its last, by CUDA events
launch    the host's time to queue it
cpu       of that, CPU time of the training thread and of autograd's, which launches backward
delay     time that both were ready and had no core
off       launch less cpu and delay: waiting for Python's lock, and for each other

If cpu grows, the same instructions run slower: cold caches, shared memory bandwidth, lower clocks.
If `off` grows, the thread waits. "graph" turns replay the step as one CUDA graph: no launches.
On a host without a GPU a small input is trained on the CPU, to try the program.
"""

import contextlib
import json
import mmap
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fidelity_real import Net, Real
from benchmarks.harness import describe_machine, markdown

_NUM_READERS = 4
_FILE_BYTES = 2**28
_PIECE_BYTES = 2**20
_PAUSE = 0.004

Figures = dict[str, float]


def read_file(path: str, ready: Any, ends: Any) -> None:
    """Read a file with O_DIRECT from begin to end, again and again."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    memory = mmap.mmap(-1, _PIECE_BYTES)
    ready.release()
    while not ends.is_set():
        for at in range(0, _FILE_BYTES, _PIECE_BYTES):
            os.preadv(file, [memory], at)
    os.close(file)


def copy_memory(_path: str, ready: Any, ends: Any) -> None:
    """Copy 64 MiB, again and again: memory bandwidth without Python's lock of the trainer."""
    source = np.ones(2**26, np.uint8)
    target = np.empty_like(source)
    ready.release()
    while not ends.is_set():
        np.copyto(target, source)


def count(_path: str, ready: Any, ends: Any) -> None:
    """Hold Python's lock as long as Python allows."""
    number = 0
    ready.release()
    while not ends.is_set():
        number += 1


@contextlib.contextmanager
def beside(work: Callable[[str, Any, Any], None], path: str, *, threads: bool) -> Iterator[None]:
    """Run `work` in some threads of this process, or in processes, while the block runs."""
    context: Any = threading if threads else multiprocessing.get_context("spawn")
    make = threading.Thread if threads else context.Process
    ready, ends = context.Semaphore(0), context.Event()
    number = 1 if work is count else _NUM_READERS
    workers = [make(target=work, args=(path, ready, ends), daemon=True) for _ in range(number)]
    for worker in workers:
        worker.start()
    try:
        for _ in workers:
            ready.acquire()
        yield
    finally:
        ends.set()
        for worker in workers:
            worker.join()


def nothing() -> None:
    pass


def sleeping() -> None:
    time.sleep(_PAUSE)


def spinning() -> None:
    end = time.perf_counter() + _PAUSE
    while time.perf_counter() < end:
        pass


class Trainer:
    """The network, its step as launches and as a CUDA graph, and a batch in pinned memory."""

    def __init__(self, net: Net) -> None:
        self.real = Real(net)
        self.graph = Real(net, graph=True) if self.real.cuda else self.real
        torch = self.real.torch
        shape = (net.batch, net.sample_bytes)
        self.batch = torch.zeros(shape, dtype=torch.uint8, pin_memory=self.real.cuda)
        self.copies = torch.cuda.Stream() if self.real.cuda else None
        self.copied = torch.empty(shape, dtype=torch.uint8, device=self.real.device)

    def copy(self) -> None:
        """Copy a batch to the GPU, as the loop of `fidelity` does."""
        torch = self.real.torch
        if self.copies is None:
            self.copied.copy_(self.batch)
            return
        with torch.cuda.stream(self.copies):
            self.copied.copy_(self.batch, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        torch.cuda.current_stream().wait_event(event)

    def measure(self, before: Callable[[], None], seconds: float, *, graph: bool) -> Figures:
        """Train for some seconds, at most one step ahead; `before` runs before each step."""
        real = self.graph if graph else self.real
        launches: list[float] = []
        begins: list[Any] = []
        ends: list[Any] = []
        cpu, begin = 0, time.perf_counter()
        first = launch_threads()
        while len(ends) < 4 or time.perf_counter() - begin < seconds:
            before()
            at, used = time.perf_counter(), time.thread_time_ns()
            begins.append(real.mark())
            real.step(real.alone)
            ends.append(real.mark())
            cpu += time.thread_time_ns() - used
            launches.append(time.perf_counter() - at)
            if real.cuda and len(ends) > 1:
                ends[-2].synchronize()
        real.finish()
        last = launch_threads()
        autograd = last["autograd"] - first["autograd"]
        steps = [real.between(*pair) for pair in zip(begins[2:], ends[2:], strict=True)]
        launch, used_by_both = statistics.fmean(launches), (cpu + autograd) / len(ends) / 1e9
        delay = (last["delay"] - first["delay"]) / len(ends) / 1e9
        return {
            "step": statistics.fmean(steps),
            "launch": launch,
            "cpu": used_by_both,
            "delay": delay,
            "off": launch - used_by_both - delay,
        }


def launch_threads() -> dict[str, int]:
    """Return nanoseconds so far: autograd's CPU time, and both threads' waits for a core."""
    found = {"autograd": 0, "delay": 0}
    own = threading.get_native_id()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            is_autograd = (task / "comm").read_text().startswith("pt_autograd")
            cpu, delay, _ = map(int, (task / "schedstat").read_text().split())
            found["autograd"] += cpu * is_autograd
            found["delay"] += delay * (is_autograd or int(task.name) == own)
    return found


def turns(trainer: Trainer, path: str, seconds: float) -> Iterator[tuple[str, Figures]]:
    """Measure each turn once."""
    for graph in (False, True) if trainer.real.cuda else (False,):
        of = "graph: " if graph else ""

        def take(before: Callable[[], None] = nothing, graph: bool = graph) -> Figures:
            return trainer.measure(before, seconds, graph=graph)

        yield f"{of}alone", take()
        yield f"{of}a batch is copied to the GPU", take(trainer.copy)
        yield f"{of}4 ms of sleep before each step", take(sleeping)
        yield f"{of}4 ms of spinning before each step", take(spinning)
        with beside(read_file, path, threads=False):
            yield f"{of}4 processes read", take()
        with beside(read_file, path, threads=True):
            yield f"{of}4 threads read", take()
            yield f"{of}4 threads read, 4 ms of sleep", take(sleeping)
        with beside(copy_memory, path, threads=False):
            yield f"{of}4 processes copy memory", take()
        with beside(count, path, threads=True):
            yield f"{of}a thread of Python counts", take()


def table(stored: Mapping[str, Any]) -> str:
    """Return medians over the rounds, and the step over that of the turn alone."""
    rounds: dict[str, list[Figures]] = stored["turns"]
    rows = []
    for name, found in rounds.items():
        base = rounds["graph: alone" if name.startswith("graph") else "alone"]
        ratio = statistics.median(a["step"] / b["step"] for a, b in zip(found, base, strict=True))
        values = [statistics.median(each[key] for each in found) for key in found[0]]
        rows.append([name, *(f"{1e3 * value:.2f}" for value in values), f"{ratio:.2f}"])
    heads = ["", *(f"{key}, ms" for key in next(iter(rounds.values()))[0]), "step / alone"]
    return markdown(heads, rows)


def main(words: list[str]) -> None:
    keys = {"net": "cosmoflow", "seconds": "1.2", "rounds": "5", "json": "launching.json"}
    keys |= dict(word.split("=", 1) for word in words if "=" in word)
    places = [word for word in words if "=" not in word]
    if places[0] == "table":
        print(table(json.loads(Path(places[1]).read_text())))
        return
    folder = Path(places[0])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "read.bin"
    path.write_bytes(np.random.default_rng(0).bytes(_FILE_BYTES))
    trainer = Trainer(Net.named(keys["net"]))
    rounds: dict[str, list[Figures]] = {}
    try:
        for number in range(int(keys["rounds"])):
            for name, found in turns(trainer, str(path), float(keys["seconds"])):
                rounds.setdefault(name, []).append(found)
            print(f"round {number + 1}", flush=True)
            stored = {"machine": describe_machine(), "net": keys["net"], "turns": rounds}
            Path(keys["json"]).write_text(json.dumps(stored))
    finally:
        path.unlink()
    print(table(stored))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
