"""Is the Meter right in real loops on a GPU? python -m benchmarks.meter_on_gpu FOLDER [key=value …]

    steps=60 repeats=2 rates=0.6,0.9,2.0 json=meter_on_gpu.json

Two networks are trained on files in FOLDER (2.4 GB, written first) through `dlemu.make_loader`: a
3D U-Net, and a small one whose kernels are so short that launching them takes longest. Each by two
loops: pipelined (pinned memory, copies on a stream of their own, the host at most one step ahead)
and synchronous (copied by the training thread, the loss taken in every step). Reads of
the drive are held to `rates` times what the GPU asks for (as root, by a cgroup).

The truth is a clock of this program's own: AU = (n - 1) c / (T - T1), c being the step's time with
its data on the GPU, timed alone just before. Where launching takes longest, c is the time that it
took in this very loop, for a host launches up to half as fast from one minute to the next. Beside
it, of the same steps, what the Meter says: timed by the device, the same without `computing` around
the model, and by the host's clock.
"""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dlemu
from benchmarks.harness import describe_machine, markdown
from tests.lab.cgroups import throttled_reads

WARM_UP = 10
NUM_ALONE = 20
"""Steps that time a network alone."""


def unet(torch: Any) -> Any:
    """Return a 3D U-Net with 16 channels in its first level."""
    nn = torch.nn

    def block(before: int, after: int) -> Any:
        layers = []
        for channels in (before, after):
            layers += [nn.Conv3d(channels, after, 3, padding=1), nn.InstanceNorm3d(after)]
            layers += [nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    class UNet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, channels: tuple[int, ...] = (16, 32, 64, 128, 256)) -> None:
            super().__init__()
            pairs = list(itertools.pairwise(channels))
            self.first = block(1, channels[0])
            self.down = nn.ModuleList(block(a, b) for a, b in pairs)
            self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in reversed(pairs))
            self.join = nn.ModuleList(block(2 * a, a) for a, _ in reversed(pairs))
            self.last = nn.Conv3d(channels[0], 3, 1)

        def forward(self, x: Any) -> Any:
            found = [self.first(x)]
            for down in self.down:
                found.append(down(nn.functional.max_pool3d(found[-1], 2)))
            x = found.pop()
            for up, join in zip(self.up, self.join, strict=True):
                x = join(torch.cat([up(x), found.pop()], 1))
            return self.last(x)

    return UNet()


def small(torch: Any) -> Any:
    """Return a network of many short kernels."""
    nn = torch.nn
    layers = [nn.Conv3d(1, 8, 3, stride=4), nn.ReLU()]
    for _ in range(24):
        layers += [nn.Conv3d(8, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU()]
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Net:
    """A network and the samples that it takes."""

    name: str
    make: Callable[[Any], Any]
    side: int
    batch_size: int
    file_bytes: int
    launch_bound: bool
    steps_factor: int
    """Times so many steps: short ones are soon over."""


NETS = [
    Net("3D U-Net", unet, 128, 4, 8_000_000, False, 1),
    Net("small", small, 64, 1, 1_000_000, True, 3),
]


class Training:
    """One network on the GPU."""

    def __init__(self, torch: Any, net: Net) -> None:
        self.torch, self.net = torch, net
        self.shape = (net.batch_size, 1, net.side, net.side, net.side)
        self.model = net.make(torch).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, foreach=False)
        for _ in range(WARM_UP):
            self.step(self.random())

    def step(self, data: Any) -> Any:
        """Queue forward, backward and the optimizer for (batch, bytes) on the GPU."""
        with self.torch.autocast("cuda", self.torch.bfloat16):
            loss = self.model(data.view(self.shape).float() / 255).float().square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def time_alone(self) -> float:
        """Return the seconds of a step whose data lies on the GPU."""
        torch = self.torch
        data = self.random()
        self.step(data)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(NUM_ALONE):
            self.step(data)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000 / NUM_ALONE

    def random(self) -> Any:
        shape = (self.net.batch_size, self.net.side**3)
        return self.torch.randint(0, 256, shape, dtype=self.torch.uint8, device="cuda")


@dataclass
class Clock:
    """The experiment's own: when the loop began, ended its first step, and ended."""

    begin: float = 0.0
    first: float = 0.0
    end: float = 0.0
    launching: float = 0.0
    """Seconds of the host in the steps after the first one."""

    def launch(self, training: Training, data: Any) -> Any:
        begin = time.perf_counter()
        loss = training.step(data)
        if self.first:
            self.launching += time.perf_counter() - begin
        return loss


def run_pipelined(
    training: Training, batches: Iterator[Any], meter: dlemu.Meter, clock: Clock
) -> None:
    torch = training.torch
    shape = (training.net.batch_size, training.net.side**3)
    pinned = [torch.empty(shape, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    data = [torch.empty(shape, dtype=torch.uint8, device="cuda") for _ in range(2)]
    copies, compute = torch.cuda.Stream(), torch.cuda.current_stream()
    copied, ended = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
    clock.begin = time.perf_counter()
    for number, batch in enumerate(batches):
        slot = number % 2
        if number > 1:
            ended[slot].synchronize()
        pinned[slot].numpy()[:] = batch.data
        with torch.cuda.stream(copies):
            data[slot].copy_(pinned[slot], non_blocking=True)
            copied[slot].record()
        compute.wait_event(copied[slot])
        with meter.computing():
            clock.launch(training, data[slot])
        ended[slot].record()
        if number == 0:
            torch.cuda.synchronize()
            clock.first = time.perf_counter()
    torch.cuda.synchronize()
    clock.end = time.perf_counter()


def run_synchronous(
    training: Training, batches: Iterator[Any], meter: dlemu.Meter, clock: Clock
) -> None:
    torch = training.torch
    clock.begin = time.perf_counter()
    for number, batch in enumerate(batches):
        data = torch.from_numpy(batch.data).to("cuda")
        with meter.computing():
            loss = clock.launch(training, data)
        loss.item()
        if number == 0:
            clock.first = time.perf_counter()
    torch.cuda.synchronize()
    clock.end = time.perf_counter()


LOOPS = {"pipelined": run_pipelined, "synchronous": run_synchronous}


def workload_of(net: Net, folder: Path, num_steps: int) -> dlemu.Workload:
    return dlemu.load_workload(
        "unet3d_h100",
        {
            "dataset.data_folder": str(folder / net.name.replace(" ", "_")),
            "dataset.num_files_train": num_steps * net.batch_size,
            "dataset.record_length_bytes": net.file_bytes,
            "dataset.record_length_bytes_stdev": 0,
            "dataset.record_length_bytes_resize": net.side**3,
            "reader.batch_size": net.batch_size,
            # Little is read ahead in the step that is left out.
            "reader.read_threads": 2,
            "reader.prefetch_size": 1,
            "reader.odirect": True,
            "train.epochs": 1,
        },
    )


def measure(training: Training, workload: dlemu.Workload, loop: str) -> dict[str, float]:
    """Return what each clock says of one epoch."""
    clock, alone = Clock(), training.time_alone()
    device, host = dlemu.Meter(workload), dlemu.Meter(workload)
    with dlemu.make_loader(workload) as loader:
        batches = host.epoch(device.epoch(loader, 0, device="cuda"), 0)
        LOOPS[loop](training, batches, device, clock)
    metrics, seen = device.metrics(), host.metrics()
    assert metrics is not None and seen is not None
    [epoch] = metrics.epochs
    steps = epoch.num_steps - 1
    computed = clock.launching if training.net.launch_bound else steps * alone
    return {
        "alone_ms": 1e3 * alone,
        "own": 100 * computed / (clock.end - clock.first),
        "device": epoch.au_percentage,
        "unmarked": epoch.au_percentage + 100 * epoch.overhead_share,
        "host": seen.au_percentage,
        "wait": 100 * epoch.wait_share,
        "overhead": 100 * epoch.overhead_share,
        "whole": epoch.seconds,
        "own_whole": clock.end - clock.begin,
    }


def cost_of_metering(training: Training) -> float:
    """Return the host's seconds that the Meter adds to a step: what is left beside the launches."""
    data, num_steps = training.random(), 300
    meter = dlemu.Meter(dlemu.load_workload("unet3d_h100"))
    clock = Clock(first=1.0)
    begin = time.perf_counter()
    for _ in meter.epoch(range(num_steps), 0, device="cuda"):
        with meter.computing():
            clock.launch(training, data)
    return (time.perf_counter() - begin - clock.launching) / num_steps


HEADER = [
    *("network", "loop", "rate / demand", "own clock, AU %", "Meter, device", "off"),
    *("without `computing`", "host's clock", "waiting %", "loop's own work %"),
]


def row_of(net: str, loop: str, rate: float, found: list[dict[str, float]]) -> list[str]:
    def mean(name: str) -> float:
        return statistics.mean(one[name] for one in found)

    off = [one["device"] - one["own"] for one in found]
    return [
        *(net, loop, f"{rate:g}", f"{mean('own'):.1f}", f"{mean('device'):.1f}"),
        f"{min(off):+.2f} … {max(off):+.2f}",
        *(f"{mean(name):.1f}" for name in ("unmarked", "host", "wait", "overhead")),
    ]


def main(words: list[str]) -> None:
    import torch

    keys = {"steps": "60", "repeats": "2", "rates": "0.6,0.9,2.0", "json": "meter_on_gpu.json"}
    folder = Path(words[0])
    keys |= dict(word.split("=", 1) for word in words[1:])
    rates = [float(rate) for rate in keys["rates"].split(",")]
    torch.backends.cudnn.benchmark = True
    print(f"{describe_machine()}; {torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows, results = [], []
    for net in NETS:
        workload = workload_of(net, folder, net.steps_factor * int(keys["steps"]))
        begin = time.perf_counter()
        dlemu.generate(workload, world=dlemu.Alone())
        print(f"{net.name}: written in {time.perf_counter() - begin:.0f} s", flush=True)
        training = Training(torch, net)
        alone = training.time_alone()
        demand = net.batch_size * net.file_bytes / alone
        print(
            f"{net.name}: a step takes {1e3 * alone:.2f} ms with its data on the GPU, and asks for "
            f"{demand / 1e6:.0f} MB/s",
            flush=True,
        )
        if net.launch_bound:
            cost = cost_of_metering(training)
            print(f"the Meter takes {1e6 * cost:.0f} µs of the host in a step", flush=True)
        found: dict[tuple[float, str], list[dict[str, float]]] = {}
        for repeat in range(int(keys["repeats"])):
            for rate in rates:
                for loop in LOOPS:
                    with throttled_reads(workload.data_folder, int(rate * demand)) as group:
                        group.enter()
                        one = measure(training, workload, loop)
                    found.setdefault((rate, loop), []).append(one)
                    results.append(
                        {"net": net.name, "rate": rate, "loop": loop, "repeat": repeat, **one}
                    )
                    told = ", ".join(f"{name} {value:.2f}" for name, value in one.items())
                    print(f"{net.name}, {loop}, {rate:g}: {told}", flush=True)
                    Path(keys["json"]).write_text(json.dumps(results, indent=1))
        rows += [
            row_of(net.name, loop, rate, found[rate, loop]) for loop in LOOPS for rate in rates
        ]
    print(f"\n{markdown(HEADER, rows)}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
