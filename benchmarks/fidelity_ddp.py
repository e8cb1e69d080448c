"""Ranks of a data-parallel job for `benchmarks.fidelity`: plain PyTorch's DistributedDataParallel.

A rank is a program of its own, `python -m benchmarks.fidelity_ddp`, with a GPU of its own. It reads
what to do as lines of JSON, and answers each with a line. NCCL adds up the gradients, gloo on a
host without a GPU.
"""

import itertools
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.fidelity_real import Net, Real, Spent, nets, plain_loader
from tests.lab.cgroups import Group

_ALONE_STEPS = 14
"""Steps that time the job alone, its data on the GPUs: as many on each rank, as they meet."""
_LOST_SECONDS = 60.0
"""After which NCCL gives up a rank that is gone."""


class Ranks:
    """The ranks of a job, which live until they are closed."""

    def __init__(self, processes: Sequence["subprocess.Popen[str]"]) -> None:
        self._processes = processes

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def ask(self, **question: Any) -> list[dict[str, Any]]:
        """Have all ranks do something at the same time; return their answers."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"a rank ended with {process.wait(5)}")
            answers.append(json.loads(line))
        return answers

    def enter(self, group: Group) -> None:
        for pid in self.pids:
            group.enter(pid)


@contextmanager
def ranks_of(number: int) -> Iterator[Ranks]:
    """Start the ranks of a job, a GPU each where there are GPUs."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = visible.split(",") if visible else [str(rank) for rank in range(number)]
    cpus = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        processes = []
        for rank in range(number):
            own = cpus[rank * len(cpus) // number : (rank + 1) * len(cpus) // number] or cpus
            env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
            env |= {"WORLD_SIZE": str(number), "CUDA_VISIBLE_DEVICES": gpus[rank % len(gpus)]}
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.fidelity_ddp"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **env},
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, own)
            processes.append(process)
        yield Ranks(processes)


@cache
def _real(label: str) -> Real:
    """Return a network whose gradients all ranks share."""
    import torch

    real = Real(_net(label))
    wrapped: Any = torch.nn.parallel.DistributedDataParallel
    real.training.model = wrapped(real.training.model)
    for _ in range(3):
        real.step(real.alone)
    return real


def _net(label: str) -> Net:
    [net] = [net for net in nets() if net.label == label]
    return net


def _alone(label: str) -> dict[str, float]:
    real = _real(label)
    marks = [real.mark()]
    for number in range(_ALONE_STEPS):
        real.step(real.alone)
        marks.append(real.mark())
        if real.cuda and number:
            marks[-2].synchronize()
    real.finish()
    times = [real.between(a, b) for a, b in itertools.pairwise(marks[2:])]
    return {"c": fmean(times), "stdev": stdev(times), "launch": real.launch_seconds()}


def _train(label: str, folder: str, steps: int, repeat: int, loop: str) -> dict[str, Any]:
    import torch

    net, real = _net(label), _real(label)
    number, rank = net.ranks, int(os.environ["RANK"])
    spent = Spent(net.workers)
    loader = plain_loader(
        net,
        Path(folder),
        steps,
        seed=repeat,
        pin=real.cuda,
        in_one_read=False,
        spent=spent,
        rank=rank,
        num_ranks=number,
    )
    together: Any = torch.distributed
    together.barrier()
    found = real.train(loader, synchronous=loop == "rule")
    asked, made = (each - real.began for each in spent.first())
    return {**found, "spent": spent.total(), "asked": asked, "made": made}


_DOES: dict[str, Callable[..., dict[str, Any]]] = {"alone": _alone, "train": _train}


def _serve() -> None:
    import torch

    together: Any = torch.distributed
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print there
    cuda = torch.cuda.is_available()
    together.init_process_group(
        "nccl" if cuda else "gloo", timeout=timedelta(seconds=_LOST_SECONDS)
    )
    for line in sys.stdin:
        asked = json.loads(line)
        answer = _DOES[asked.pop("what")](**asked)
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    try:
        _serve()
    except Exception:
        traceback.print_exc()
        os._exit(1)  # NCCL's threads may wait for ranks that are gone
