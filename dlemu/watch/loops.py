"""The training loop of each rank, from the times at which a job took batches.

A job may iterate over several loaders: one that it trains with, others that it evaluates with
between two batches of the first, others that it takes a batch of in each step as well. It may take
batches before it needs them, or end an epoch early. Here each training step gets its wait and its
body, and what belongs to another loader or to a checkpoint is taken out of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dlemu.judge.records import STEP, Steps
from dlemu.meter import UNUSED
from dlemu.watch.events import Iteration, Process

_OFTEN = 0.2
"""Share of bodies without training above which a loop takes several batches for each step."""
_TOGETHER = 0.5
"""A loader that is asked in this share of another one's steps is a part of them."""
_DRAINED = 0.05
"""A GPU that was idle for this share of its step had done all that was queued."""
_LONGER = 2.0
"""A GPU that computes so many times as long as the host took has not been waited for."""
_LEAST_LAUNCHES = 5

_Values = NDArray[np.float64]
_Span = tuple[float, float]


@dataclass(frozen=True)
class LoaderKey:
    """What tells loaders apart: a job may make a new one for each epoch at the same place."""

    place: str
    dataset: str
    samples: int | None
    batch_size: int | None
    sampler: str
    lane: int = 0
    """Tells apart loaders that are alike and in use at the same time."""

    @classmethod
    def of(cls, described: dict[str, Any]) -> "LoaderKey":
        """Return the key of a loader, from the line that describes it."""
        return cls(
            str(described.get("place", "")),
            str(described.get("dataset", "")),
            described.get("samples"),
            described.get("batch_size"),
            str(described.get("sampler", "")),
        )


@dataclass(kw_only=True)
class Epoch:
    """One pass of a rank's training: arrays are (steps,), times in seconds."""

    begun: float
    ended: float
    wait: _Values
    body: _Values
    samples: NDArray[np.int64]
    by_gpu: bool
    """Whether the GPU's clock tells most of the times."""
    is_whole: bool
    """Whether the loop took all batches of its loader: some, as Lightning's, count them and ask
    for no other."""
    left_out: list[_Span] = field(default_factory=list)
    """Evaluation and checkpoints between two batches of training."""


RoleName = Literal["training", "with training", "evaluation"]
"""What a loader is for."""


@dataclass(kw_only=True)
class Role:
    """What a job did with the loaders of one key."""

    key: LoaderKey
    described: dict[str, Any]
    role: RoleName
    """"training", "with training" or "evaluation"."""
    num_iterations: int
    num_batches: int
    seconds: float


@dataclass(kw_only=True)
class Loop:
    """The training of one process."""

    process: Process
    rank: int
    described: dict[str, Any]
    """The loader that it trains with."""
    epochs: list[Epoch]
    roles: list[Role]
    batches_a_step: float
    """Batches for each step of an optimizer; 0: no optimizer was seen."""
    ahead: int
    """Batches that the loop itself takes before it needs them."""
    launch: float = 0.0
    """Seconds in which the host queued a step; 0: not seen."""
    starts: tuple[float, ...] = ()
    """Seconds in which the loader started a worker, of each iteration that began so."""


def find_loops(processes: Iterable[Process]) -> list[Loop]:
    """Return the training loops of a job, one a process that trained, in the order of ranks."""
    found = [process for process in processes if any(i.taken for i in process.iterations.values())]
    found.sort(key=lambda each: (_number(each.info.get("rank")), each.info.get("time", 0)))
    ranks = [each.info.get("rank") for each in found]
    distinct = None not in ranks and len(set(ranks)) == len(ranks)
    loops = []
    for number, process in enumerate(found):
        rank = _number(ranks[number]) if distinct else number
        loop = _loop_of(process, rank)
        if loop.epochs:
            loops.append(loop)
    return loops


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _loop_of(process: Process, rank: int) -> Loop:
    """Return what a process trained, and what it did with its other loaders."""
    groups = _grouped(process)
    steps = _optimizer_steps(process, groups)
    training = max(groups, key=lambda key: _weight(groups[key], steps[key]))
    own = groups[training]
    roles, partners, others = [], [], []
    for key, iterations in groups.items():
        role: RoleName
        if key == training:
            role = "training"
        elif _is_with(own, iterations):
            role = "with training"
            partners += iterations
        else:
            role = "evaluation"
            others += iterations
        roles.append(_role(process, key, iterations, role))
    epochs, ahead = [], 0
    for number, each in enumerate(own):
        following = own[number + 1].begun if number + 1 < len(own) else process.ended
        spans = [*map(_span, others), *((save.begun, save.ended) for save in process.saves)]
        by_steps = None if partners else _ahead_of(each, following, process.optimizer_steps)
        epoch, more = _epoch_of(each, following, partners, spans, by_steps)
        known = process.loaders.get(each.loader, {}).get("length")
        epoch.is_whole |= known is not None and len(each.taken) >= known
        epochs.append(epoch)
        ahead = max(ahead, more)
    batches = sum(len(each.taken) for each in own)
    with_it = (key for key, iterations in groups.items() if iterations[0] in partners)
    num_steps = steps[training] + sum(steps[key] for key in with_it)
    return Loop(
        process=process,
        rank=rank,
        described=process.loaders.get(own[0].loader, {}),
        epochs=epochs,
        roles=roles,
        batches_a_step=batches / num_steps if num_steps else 0.0,
        ahead=ahead,
        launch=_launch_of(own),
        starts=_starts_of(own, process),
    )


def _starts_of(iterations: Sequence[Iteration], process: Process) -> tuple[float, ...]:
    """Return how long a loader took to start a worker, of each iteration that started them."""
    found: list[float] = []
    loaders = set[int]()
    for each in iterations:
        described = process.loaders.get(each.loader, {})
        workers, kept = described.get("num_workers"), described.get("persistent_workers")
        if each.opened is not None and workers and not (kept and each.loader in loaders):
            found.append((each.opened - each.begun) / workers)
        loaders.add(each.loader)
    return tuple(found)


def _launch_of(iterations: Iterable[Iteration]) -> float:
    """Return how long the host took to queue a step on the GPU, 0 where that was not seen.

    It is seen where the GPU had waited for the batch, so that it began with the host, and still
    computed long after the host had asked for the next one. A loop that waits for the GPU within
    its step, as one that reads each loss, shows no such steps.
    """
    launches, late = [], 0
    for each in iterations:
        on_gpu = _on_gpu(each)
        for number, (begin, end) in enumerate(_host_bodies(each)):
            idle, busy = on_gpu.get(number, (0.0, 0.0))
            if number and idle > _DRAINED * busy > 0:
                late += 1
                launches += [end - begin] if busy > _LONGER * (end - begin) else []
    if len(launches) < max(_LEAST_LAUNCHES, late / 2):
        return 0.0
    return float(np.quantile(launches, 0.25))  # others waited for a core, or for Python's lock


def _on_gpu(iteration: Iteration) -> dict[int, _Span]:
    """Return by batch how long the GPU had nothing to do, and how long it then had its step.

    Of short waits of the host, the GPU told some. In the others it was idle for the same share.
    """
    host = dict(enumerate(np.subtract(iteration.taken, iteration.asked).tolist()))
    untold = [number for number, (idle, _) in iteration.on_gpu.items() if idle < 0]
    longest = max((host.get(number, 0.0) for number in untold), default=0.0)
    told = [
        (idle, host[number])
        for number, (idle, _) in iteration.on_gpu.items()
        if idle >= 0 and 0 < number < len(host) and host[number] <= longest
    ]
    whole = sum(waited for _, waited in told)
    share = min(1.0, sum(idle for idle, _ in told) / whole) if whole else 1.0
    found = dict(iteration.on_gpu)
    for number in untold:
        busy = found[number][1]
        idle = share * host.get(number, 0.0)
        found[number] = (idle, busy) if busy < 0 else (min(idle, busy), busy - min(idle, busy))
    return found


def _grouped(process: Process) -> dict[LoaderKey, list[Iteration]]:
    """Return the iterations that gave batches by the key of their loader, in order of time."""
    groups: dict[LoaderKey, list[Iteration]] = {}
    for each in sorted(process.iterations.values(), key=lambda one: one.begun):
        if each.taken:
            key = LoaderKey.of(process.loaders.get(each.loader, {}))
            while (before := groups.get(key)) and before[-1].last_sign > each.begun:
                key = replace(key, lane=key.lane + 1)
            groups.setdefault(key, []).append(each)
    return groups


def _role(process: Process, key: LoaderKey, iterations: list[Iteration], role: RoleName) -> Role:
    return Role(
        key=key,
        described=process.loaders.get(iterations[0].loader, {}),
        role=role,
        num_iterations=len(iterations),
        num_batches=sum(len(each.taken) for each in iterations),
        seconds=sum(end - begin for begin, end in map(_span, iterations)),
    )


def _optimizer_steps(
    process: Process, groups: dict[LoaderKey, list[Iteration]]
) -> dict[LoaderKey, int]:
    """Return how many steps of optimizers came after batches of each key's loaders."""
    taken = sorted(
        (time, number)
        for number, iterations in enumerate(groups.values())
        for each in iterations
        for time in each.taken
    )
    counts = dict.fromkeys(groups, 0)
    times, keys = [time for time, _ in taken], list(groups)
    for at in np.searchsorted(times, process.optimizer_steps, side="right"):
        if at:
            counts[keys[taken[at - 1][1]]] += 1
    return counts


def _weight(iterations: list[Iteration], steps: int) -> tuple[int, int, int]:
    """Return how likely it is that a job trains with these: the most steps, then gradients."""
    with_grad = sum(sum(each.with_grad) for each in iterations)
    return steps, with_grad, sum(len(each.taken) for each in iterations)


def _is_with(training: list[Iteration], others: list[Iteration]) -> bool:
    """Return whether the others' batches are taken in most steps of the training."""
    times = np.sort(np.array([time for each in others for time in each.taken]))
    bodies = hit = 0
    for each in training:
        bounds = np.searchsorted(times, np.array(each.taken))
        bodies += len(bounds) - 1
        hit += int((np.diff(bounds) > 0).sum())
    return bodies > 0 and hit >= _TOGETHER * bodies


def _span(iteration: Iteration) -> _Span:
    """Return from when to when a job evaluated: to the end of its iterator, if it left early."""
    end = iteration.last_sign
    if iteration.exhausted is None and iteration.gone is not None:
        body = _median_body(iteration)
        end = max(end, min(iteration.gone, end + body))
    return iteration.begun, end


def _median_body(iteration: Iteration) -> float:
    bodies = [after - before for before, after in _host_bodies(iteration)]
    return median(bodies) if bodies else 0.0


def _host_bodies(iteration: Iteration) -> list[_Span]:
    """Return from when to when the job had a batch and asked for no other; the last is left out."""
    return list(zip(iteration.taken, iteration.asked[1:], strict=False))


def _epoch_of(
    iteration: Iteration,
    following: float | None,
    partners: Sequence[Iteration],
    left_out: Sequence[_Span],
    by_steps: int | None,
) -> tuple[Epoch, int]:
    """Return one pass, and how many batches the loop took before it needed them.

    `following` is when the next pass began, or the process ended. `by_steps` is what the steps of
    an optimizer tell of the batches taken ahead.
    """
    begun = min([iteration.begun, *(p.begun for p in partners if _starts(p, iteration))])
    taken, num = np.array(iteration.taken), len(iteration.taken)
    wait = taken - np.array([begun, *iteration.asked[1:]])
    signs = [following, *(partner.exhausted for partner in partners)]
    last = _end_of_last(iteration, [time for time in signs if time is not None])
    ends = np.array([*iteration.asked[1:], taken[-1] if last is None else last])
    body = ends - taken
    for number, (idle, busy) in _on_gpu(iteration).items():
        if 0 < number < num:  # before the first batch, workers start: the host's clock tells
            wait[number] = idle
        if number < num and busy >= 0:
            body[number] = busy
    for partner in partners:
        for asked, got in zip(partner.asked, partner.taken, strict=True):
            number = int(np.searchsorted(taken, asked, side="right")) - 1
            if number >= 0 and got <= ends[number]:
                if number + 1 < num:  # its batch is one of the next step's
                    wait[number + 1] += got - asked
                body[number] -= min(got - asked, body[number])
    inside = [
        (begin, end)
        for begin, end in _joined(left_out)
        if taken[0] <= begin < max(ends[-1], taken[-1])
    ]
    for begin, end in inside:
        number = int(np.searchsorted(taken, begin, side="right")) - 1
        body[number] -= min(max(0.0, min(end, ends[number]) - begin), body[number])
    body, ahead = _settled(body) if by_steps is None else (np.roll(body, -by_steps), by_steps)
    if num > max(1, ahead):
        usual = float(np.median(body[: num - max(1, ahead)]))
        if ahead or last is None:
            body[num - max(1, ahead) :] = usual
        elif iteration.exhausted is None:
            body[-1] = min(body[-1], usual)
            num -= int(body[-1] <= UNUSED * usual)  # it left as soon as it had this batch
    epoch = Epoch(
        begun=begun,
        ended=float(ends[-1]),
        wait=wait[:num],
        body=body[:num],
        samples=np.array(iteration.samples[:num], np.int64),
        by_gpu=2 * len(iteration.on_gpu) > num,
        is_whole=iteration.exhausted is not None,
        left_out=inside,
    )
    return epoch, ahead


def _ahead_of(
    iteration: Iteration, following: float | None, optimizer_steps: Sequence[float]
) -> int | None:
    """Return how many batches a loop took before the first step of its optimizer needed them.

    None where that is not known: a step takes several batches, or a pass has no step for each.
    """
    until = np.inf if following is None else following
    steps = np.sort([time for time in optimizer_steps if iteration.taken[0] <= time <= until])
    before = np.searchsorted(steps, iteration.taken)  # of each batch
    ahead = int((before == 0).sum()) - 1
    own = np.maximum(np.arange(len(before)) - ahead, 0)
    return ahead if len(steps) == len(before) and (before == own).all() else None


def _starts(partner: Iteration, iteration: Iteration) -> bool:
    """Return whether a partner's pass began with this one: its first batch is of the first step."""
    return partner.begun <= iteration.taken[0] and partner.taken[0] >= iteration.begun


def _end_of_last(iteration: Iteration, signs: Sequence[float]) -> float | None:
    """Return when the last step of a pass ended, at the latest; None: nothing shows it.

    `signs` are times at which the process did something else.
    """
    if iteration.exhausted is not None:
        return iteration.exhausted
    last = iteration.taken[-1]
    gone = [] if iteration.gone is None else [iteration.gone]
    return min((time for time in (*signs, *gone) if time >= last), default=None)


def _joined(spans: Iterable[_Span]) -> list[_Span]:
    """Return spans without those inside others, in order."""
    found: list[_Span] = []
    for begin, end in sorted(spans):
        if found and begin < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _settled(body: _Values) -> tuple[_Values, int]:
    """Return bodies such that each step has its own, and how many batches are taken ahead.

    A loop that takes a batch ahead computes each one after it took the next: its bodies are moved
    by one. A loop that takes several batches and then computes them all, as gradients are
    accumulated in some libraries, has one long body after short ones: it is shared out.
    """
    if len(body) < 3 or body.mean() <= 0:
        return body, 0
    empty = body < UNUSED * body.mean()
    ahead = int(empty.argmin())
    if empty.all():
        return body, 0
    if empty[ahead:].mean() > _OFTEN:
        shared, start = body.copy(), 0
        for number, nothing in enumerate(empty):
            if not nothing:
                shared[start : number + 1] = body[start : number + 1].mean()
                start = number + 1
        return shared, 0
    if not ahead:
        return body, 0
    return np.concatenate([body[ahead:], body[:ahead]]), ahead


def steps_of(loops: Sequence[Loop], sample_bytes: float) -> Steps:
    """Return the records of all ranks, shape (steps,) of `records.STEP`.

    Epochs and steps that not all ranks have are left out. `sample_bytes` are those of a sample in
    the files, 0 where they are not known.
    """
    num_epochs = min(len(loop.epochs) for loop in loops)
    parts = []
    for number in range(num_epochs):
        epochs = [loop.epochs[number] for loop in loops]
        num = min(len(epoch.wait) for epoch in epochs)
        if num < 2:
            continue
        waits = np.array([epoch.wait[:num] for epoch in epochs])
        bodies = np.array([epoch.body[:num] for epoch in epochs])
        # A rank that has its batch waits inside its step for the one that has none yet: for as
        # long as that one waits more, and not for what its own step takes longer.
        barrier = np.minimum(waits.max(axis=0) - waits, bodies - bodies.min(axis=0))
        for loop, epoch, late in zip(loops, epochs, barrier, strict=True):
            rows = np.zeros(num, STEP)
            rows["epoch"], rows["step"], rows["accelerator"] = number, np.arange(num), loop.rank
            rows["num_samples"] = epoch.samples[:num]
            rows["num_bytes"] = np.rint(epoch.samples[:num] * sample_bytes)
            rows["wait"], rows["barrier"] = epoch.wait[:num], late
            rows["compute"] = rows["computation_time"] = epoch.body[:num] - late
            lasted = epoch.wait[:num] + epoch.body[:num]
            rows["start"] = epoch.begun + np.concatenate([[0.0], np.cumsum(lasted)[:-1]])
            parts.append(rows)
    return np.concatenate(parts) if parts else np.zeros(0, STEP)
