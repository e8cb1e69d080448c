"""Real ranks on several GPUs beside as many emulated: python -m benchmarks.fidelity_ranks FOLDER

    nets=resnet50,unet3d rates=0.6,0.9,1.2 ranks=2 repeats=3 loader=pytorch json=ranks.json

R: a process for each GPU trains its share; DistributedDataParallel exchanges gradients by NCCL in
each step. E: `accelerators_per_rank=2`, one sleep for each, which meet at the end of a step. c is
the time of a step with its data on the GPU, gradients exchanged, mean of the ranks; "one GPU" is
the step without the exchange. All else is as in `fidelity`, whose table shows it too.
"""

import json
import os
import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dlemu
from benchmarks.fidelity import run_emulated, workload_of
from benchmarks.fidelity_real import Net, Real
from benchmarks.fidelity_table import Cell, Run, table
from benchmarks.machine import describe_machine
from tests.lab.cgroups import throttled_reads

_STEPS_ALONE = 40


class Rank:
    """One training process and its GPU; rank 0 also emulates, and keeps the results."""

    def __init__(self, rank: int, folder: Path, keys: Mapping[str, str]) -> None:
        import torch
        from torch import distributed

        self.rank, self.folder, self.keys = rank, folder, keys
        self.num = int(keys["ranks"])
        self.world = distributed
        self.cuda = torch.cuda.is_available()
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if self.cuda else "gloo", rank=rank, world_size=self.num
        )
        self.meet = distributed.new_group(backend="gloo")  # waiting in NCCL would occupy the GPU
        self.runs: list[Run] = []

    def gathered(self, value: Any) -> list[Any]:
        values = [None] * self.num
        self.world.all_gather_object(values, value, group=self.meet)
        return values

    def train(self, net: Net) -> None:
        """Run all cells of a network."""
        real = Real(net, rank=self.rank)
        one, _ = real.time_alone(_STEPS_ALONE)
        real.parallel()
        for repeat in range(int(self.keys["repeats"])):
            for rate in map(float, self.keys["rates"].split(",")):
                found = self.gathered(real.time_alone(_STEPS_ALONE))
                c = tuple(statistics.fmean(column) for column in zip(*found, strict=True))
                if self.rank == 0:
                    exchange = c[0] / one - 1
                    print(f"{net.label}: one GPU {1e3 * one:.2f} ms, exchange {exchange:+.2%}")
                self.measure(real, Cell(net=net.label, loader=self.keys["loader"], rate=rate),
                             repeat, (c[0], c[1]))  # fmt: skip

    def measure(self, real: Real, cell: Cell, repeat: int, c: tuple[float, float]) -> None:
        net = real.net
        steps = min(net.steps_at(cell.rate), net.samples // (self.num * net.batch))
        workload = workload_of(
            net, self.folder, cell.loader, cell.rate, net.sample_bytes
        ).with_keys({"train.total_training_steps": steps})
        if self.rank == 0:
            dlemu.generate(workload, world=dlemu.Alone())
        demand = self.num * net.batch * workload.dataset.mean_bytes / c[0]
        for arm in "ER" if repeat % 2 else "RE":
            pids = self.gathered(os.getpid())
            with ExitStack() as stack:
                if self.rank == 0 and cell.rate:
                    folder = workload.data_folder
                    group = stack.enter_context(throttled_reads(folder, int(cell.rate * demand)))
                    for pid in pids:
                        group.enter(pid)
                self.world.barrier(self.meet)
                found: dict[str, Any] = {}
                if arm == "R":
                    with dlemu.make_loader(
                        workload, rank=self.rank, num_ranks=self.num, pin=self.cuda
                    ) as loader:
                        found = real.train(iter(loader))
                elif self.rank == 0:
                    found = run_emulated(real, workload, c, accelerators=range(self.num))
                every = [each for each in self.gathered(found) if each]
            known: dict[str, Any] = {"c": c[0], "stdev": c[1], "batch": self.num * net.batch}
            known |= {key: statistics.fmean(each[key] for each in every) for key in every[0]}
            known["num_steps"] = every[0]["num_steps"]
            self.runs.append(Run(cell=cell, arm=arm, repeat=repeat, **known))
        if self.rank == 0:
            told = ", ".join(f"{run.arm} {run.au:.2f}" for run in self.runs[-2:])
            print(f"{cell.net}, {cell.rate:g}: {told}; c {1e3 * c[0]:.2f} ms", flush=True)


def rank_main(rank: int, folder: str, keys: Mapping[str, str]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29571", "GLOO_SOCKET_IFNAME": "lo"}
    process = Rank(rank, Path(folder), keys)
    for label in keys["nets"].split(","):
        process.train(Net.named(label))
        if rank == 0:
            stored = {"machine": describe_machine(), "runs": [asdict(run) for run in process.runs]}
            Path(keys["json"]).write_text(json.dumps(stored))
    if rank == 0:
        print(f"\n{table(process.runs)}")
    process.world.destroy_process_group()


def main(words: list[str]) -> None:
    from torch import multiprocessing

    processes: Any = multiprocessing
    keys = {
        "nets": "resnet50,unet3d",
        "rates": "0.6,0.9,1.2",
        "ranks": "2",
        "repeats": "3",
        "loader": "pytorch",
        "json": "ranks.json",
    }
    keys |= dict(word.split("=", 1) for word in words if "=" in word)
    [folder] = [word for word in words if "=" not in word]
    Path(folder).mkdir(parents=True, exist_ok=True)
    processes.spawn(rank_main, (folder, keys), nprocs=int(keys["ranks"]))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
