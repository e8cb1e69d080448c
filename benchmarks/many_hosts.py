"""Jobs of many hosts: python -m benchmarks.many_hosts [part=run|barrier|start|costs] [most=1250].

The product's own ranks, between which messages are simulated: see tests/lab/many_hosts.py. Messages
and bytes are counted. Times of barriers follow from the costs of a message (`part=costs` measures
the CPU's share of them on this host), so only their growth says something.
"""

import resource
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.harness import describe_machine, markdown
from dlemu.results.metrics import measure_sums
from dlemu.results.sums import Sums
from dlemu.run.gathering import gather_sums
from dlemu.workload.model import load_workload
from dlemu.world.links import Tree
from dlemu.world.messages import Stream, Word, decode, encode
from tests.lab.many_hosts import Costs, ManyHosts, SimulatedRank, replay_on

FAN_OUTS = (4, 8, 16, 32, 64, 5000)
NUM_ROUNDS = 9


def run(most: int) -> None:
    """10,000 accelerators: 500 steps, and the sums gathered."""
    workload = load_workload("unet3d_h100")

    def work(world: SimulatedRank) -> tuple[Sums | None, float, int]:
        steps = replay_on(world, accelerators=8, num_steps=500)
        ended, before = world.hosts.now(), world.traffic.received_bytes
        sums = gather_sums(workload, world, [steps])
        return sums, world.hosts.now() - ended, world.traffic.received_bytes - before

    begin, cpu = time.perf_counter(), time.process_time()
    hosts = ManyHosts(most)
    sums, seconds, received = hosts.run(work)[0]
    assert sums is not None
    metrics = measure_sums(sums)
    took, used = time.perf_counter() - begin, time.process_time() - cpu
    print(f"{metrics.num_accelerators:,} accelerators, {most:,} hosts, 500 steps of 1 s")
    print(f"took {took:.0f} s, {used:.0f} CPU-s, {_peak():.0f} MB; AU {metrics.au_percentage:.3f}%")
    print(f"rank 0 received {received / 1e6:.2f} MB of sums, in {1e3 * seconds:.1f} simulated ms")


def barrier(most: int) -> None:
    """From the last arrival to the last release, for several fan-outs."""

    def meet(world: SimulatedRank) -> list[tuple[float, float]]:
        times = []
        for _ in range(NUM_ROUNDS):
            arrived = world.hosts.now()
            world.barrier()
            times.append((arrived, world.hosts.now()))
        return times

    rows = []
    for num_hosts in _sizes(most):
        row = [f"{num_hosts:,}"]
        for fan_out in FAN_OUTS:
            with _fan_out(fan_out):
                hosts = ManyHosts(num_hosts)
                rounds = zip(*hosts.run(meet), strict=True)
            took = [max(out for _, out in one) - max(come for come, _ in one) for one in rounds]
            row.append(f"{1e3 * median(took):.2f}")
        rows.append(row)
    names = [f"{fan} below each" if fan < most else "all below rank 0" for fan in FAN_OUTS]
    print(f"barrier, simulated ms; {Costs()}\n")
    print(markdown(["hosts", *names], rows))


def start(most: int) -> None:
    """What ranks send and receive until they have met, eight a host."""
    rows = []
    for num_hosts in _sizes(most):
        hosts = ManyHosts(num_hosts, 8)
        hosts.run(lambda world: world.all_gather((world.host_index, 4242, 8)))
        first = hosts.nodes[0].traffic
        rows.append(
            [
                f"{8 * num_hosts:,}",
                f"{first.sent + first.received}",
                f"{max(node.traffic.sent + node.traffic.received for node in hosts.nodes)}",
                f"{(first.sent_bytes + first.received_bytes) / 8 / num_hosts:.0f}",
                f"{(first.sent_bytes + first.received_bytes) / 1e6:.2f}",
                f"{1e3 * hosts.now():.1f}",
            ]
        )
    columns = ("messages of rank 0", "most of a rank", "bytes of rank 0 a rank", "MB of rank 0")
    print(markdown(["ranks", *columns, "simulated ms"], rows))


def costs(most: int) -> None:
    """The CPU time of a message over TCP on this host."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there = server.accept()[0]
    here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sender, receiver, poll = Stream(here), Stream(there), select.epoll()
    poll.register(there, select.EPOLLIN)
    took: dict[str, list[float]] = {"send": [], "receive": []}
    for _ in range(20_000):
        begin = time.thread_time()
        sender.send(encode(Word.ARRIVED))
        sent = time.thread_time()
        poll.poll(-1)
        decode(receiver.read()[0])
        took["send"].append(sent - begin)
        took["receive"].append(time.thread_time() - sent)
    print({name: f"{1e6 * median(each):.1f} µs" for name, each in took.items()})
    here.close()
    there.close()


@contextmanager
def _fan_out(number: int) -> Iterator[None]:
    before, Tree.FAN_OUT = Tree.FAN_OUT, number
    try:
        yield
    finally:
        Tree.FAN_OUT = before


def _sizes(most: int) -> Iterator[int]:
    for number in (1, 4, 17, 64, 250, 1250):
        if number <= most:
            yield number


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


PARTS: dict[str, Callable[[int], None]] = {
    "run": run,
    "barrier": barrier,
    "start": start,
    "costs": costs,
}


def main(arguments: list[str]) -> None:
    """Run the part."""
    given = dict(argument.split("=", 1) for argument in arguments)
    print(f"{describe_machine()}\n")
    PARTS[given.get("part", "run")](int(given.get("most", 1250)))


if __name__ == "__main__":
    main(sys.argv[1:])
