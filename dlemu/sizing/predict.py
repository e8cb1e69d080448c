"""Predicts how many accelerators a storage feeds: the formula's answer, always with its range."""

import math
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from dlemu.config.compose import named
from dlemu.config.model import Drive, Workload
from dlemu.config.published import real_h100s, word
from dlemu.errors import WorkloadError
from dlemu.findings import Finding, note
from dlemu.host.same import age_of, identity_of, what_differs
from dlemu.judge.folders import make, versions
from dlemu.judge.records import write_json
from dlemu.report.words import sentence
from dlemu.run.workers import TwoRates, workers_of
from dlemu.sizing import formula
from dlemu.sizing.formula import Calibration, Prediction, PredictionInput, Published, Reads
from dlemu.sizing.needs import OF_A_HOST, needs_of
from dlemu.storage.files import read_regular
from dlemu.units import ceil_div, each_once


@dataclass(frozen=True, kw_only=True)
class Predicted(Prediction):
    """The prediction for one workload and drive; `dlemu.show` makes text and a table of it."""

    workload: Workload
    drive: Drive
    """One of the `workload.drives` drives; without a rate where only the server's is known."""
    published: Published | None = None
    """What a published DLIO run would show; None: the cores of a host are not known."""

    calibration: Mapping[str, Any] | None = None
    """How old the calibration is, and what differs on this host: a finding; None: there is none."""
    needs: dict[str, Any] | None = None
    """What predict.accelerators ask of a storage, as `needs_of` tells it; None: not asked for."""
    pass_bytes: float | None = None
    """Bytes that the accelerators read in one pass; None: predict.minutes is not asked for."""
    dataloader: Mapping[str, Any] = field(default_factory=dict)
    """What `dataloader_of` tells."""

    @classmethod
    def of(
        cls,
        found: Prediction,
        *,
        workload: Workload,
        drive: Drive,
        published: "Published | None" = None,
        calibration: Mapping[str, Any] | None = None,
        needs: dict[str, Any] | None = None,
        pass_bytes: float | None = None,
        dataloader: Mapping[str, Any],
    ) -> "Predicted":
        """Return a prediction with what it is for."""
        return cls(
            num_accelerators=found.num_accelerators,
            low=found.low,
            high=found.high,
            real_accelerators=found.real_accelerators,
            at_least=found.at_least,
            au_percentage=found.au_percentage,
            au_low=found.au_low,
            au_high=found.au_high,
            read_bytes_per_second=found.read_bytes_per_second,
            read_low=found.read_low,
            read_high=found.read_high,
            limit=found.limit,
            feeds=found.feeds,
            calibrated=found.calibrated,
            extrapolated=found.extrapolated,
            workload=workload,
            drive=drive,
            published=published,
            calibration=calibration,
            needs=needs,
            pass_bytes=pass_bytes,
            dataloader=dataloader,
        )

    @property
    def minutes(self) -> float | None:
        """Minutes of one pass; None: predict.minutes is not asked for."""
        return self.pass_bytes and self.pass_bytes / self.read_bytes_per_second / 60

    @property
    def document(self) -> dict[str, object]:
        """The content of predict.json."""
        workload, reads = self.workload, Reads.of(self.workload)
        found = {
            "kind": "prediction",
            "workload": workload.name,
            "threshold": 100 * workload.metric.au,
            "demand_bytes_per_second": reads.num_bytes / workload.train.computation_time.mean,
            "bytes_of_a_read": reads.size,
            "bound_by_iops": self.drive.read_bandwidth is not None
            and reads.rate_of(self.drive) < self.drive.read_rate,
            "basis": self._basis,
            "num_hosts": workload.num_hosts,
            "link_gbps": workload.client.nic_gbps,
            "server_bytes_per_second": workload.server.read_bandwidth,
            "compared_accelerators": formula.EXTRAPOLATED_ABOVE,
            "asked_accelerators": workload.predict.accelerators,
            "drive": self.drive.name,
            "drives": workload.drives,
            **{field.name: getattr(self, field.name) for field in dataclass_fields(Prediction)},
            "published": None if self.published is None else vars(self.published),
            "calibration": self.calibration,
            "dataloader": dict(self.dataloader),
            "real_h100s": real_h100s(
                workload, self.real_accelerators, self.limit, at_least=self.at_least
            ),
        }
        if self.needs is not None:
            found["needs"] = self.needs
        if self.pass_bytes is not None:
            found |= {
                "pass_bytes": self.pass_bytes,
                "minutes": self.minutes,
                "minutes_low": self.pass_bytes / self.read_high / 60,
                "minutes_high": self.pass_bytes / self.read_low / 60,
            }
        return found

    @property
    def _basis(self) -> str:
        """What the prediction rests on: "server", "datasheet", "host" or "both"."""
        if self.drive.read_bandwidth is None:
            return "server"
        if not self.calibrated:
            return "datasheet"
        return "host" if self.workload.drive is not None else "both"


def predict(workload: Workload) -> Predicted:
    """Predict the most accelerators that a storage feeds, with the range of the error.

        workload = dlemu.load_workload("unet3d_h100", {"drive": "d7_ps1010", "drives": 4})
        print(dlemu.predict(workload).num_accelerators)

    The rates come from the keys drive, drives and server.read_bandwidth, or from
    predict.calibration, a file of `dlemu calibrate`. No storage is read. Where output.folder is
    set, predict.json is written there.

    Raises:
        WorkloadError: no drive is given, the calibration does not fit, a number is not above 0, or
            predict.minutes is asked for without a number of files.
        RunError: predict.json cannot be written.
    """
    asked, needs = workload.predict.accelerators, None
    if workload.predict.minutes and asked is None:
        workload = workload.with_keys({"predict.accelerators": OF_A_HOST})
    drive, calibration = needed_rates(workload)
    job = PredictionInput.of(workload, drive)
    if asked is not None and not workload.predict.minutes:
        needs = needs_of(workload)
    found = formula.predict(job, calibration)
    number = max(1, asked or found.num_accelerators)
    predicted = Predicted.of(
        found,
        workload=workload,
        drive=drive,
        needs=needs,
        published=_published(workload, job, calibration),
        pass_bytes=_pass_bytes(workload) if workload.predict.minutes else None,
        calibration=None if calibration is None else _age_of(calibration).fields,
        dataloader=dataloader_of(workload, calibration, ceil_div(number, workload.num_hosts)),
    )
    keep(workload, predicted.document)
    return predicted


def dataloader_of(
    workload: Workload, calibration: Calibration | None, accelerators: int
) -> dict[str, Any]:
    """Return what a DataLoader makes for each of a host's accelerators, whatever the storage.

    Of the calibrated host; without a calibration of this one, as far as it was timed before. {}: it
    is not known, or the workload asks for none.
    """
    if calibration is None:
        return workers_of(workload, accelerators, timed=False)
    if (known := calibration.workers) is None:
        return {}
    rates = TwoRates(known.cpus, known.one, known.all)
    here = calibration.host in ("", socket.gethostname())
    found = workers_of(workload, accelerators, rates=rates)
    return found if here or not found else {**found, "host": calibration.host}


def keep(workload: Workload, document: Mapping[str, object]) -> None:
    """Write predict.json, where output.folder is set. Raises RunError."""
    if workload.output.folder is not None:
        with make(Path(workload.output.folder)) as folder:
            write_json(folder / "predict.json", document)


def _published(
    workload: Workload, job: PredictionInput, calibration: Calibration | None
) -> Published | None:
    """Return what a published run would show, where the cores of its hosts are known.

    Raises:
        WorkloadError: predict.host_cpus is given, and nobody published such a dataset.
    """
    asked = workload.predict.host_cpus
    cpus = asked or (None if calibration is None else calibration.host_cpus)
    found = None if cpus is None else formula.published(workload, job, cpus)
    if found is not None or asked is None:
        return found
    known = each_once(format for format, _ in formula.DLIO_CORE_SECONDS)
    raise WorkloadError(
        f"predict.host_cpus={asked} asks for a published figure, and none is known for "
        f"dataset.format={workload.dataset.format}, only for {known}; leave it out"
    )


def needed_rates(workload: Workload) -> tuple[Drive, Calibration | None]:
    """Return the drive to predict for, and the host's calibration; None: not given.

    Raises:
        WorkloadError: no drive is given, or the calibration does not fit.
    """
    drive, calibration = known_rates(workload)
    if calibration is not None and "dataset.data_folder" in workload.given:
        _refuse_other_storage(workload, calibration)
    if drive is None and workload.num_accelerators is not None:
        number = workload.num_accelerators
        raise WorkloadError(
            f"num_accelerators has no effect on a prediction, which finds it; "
            f"predict.accelerators={number} tells what {number} need of a storage"
        )
    if drive is None:
        file = workload.predict.calibration
        none = "" if file is None else f", and predict.calibration {file} read none"
        last = "a calibration that read the drive (predict.calibration=FILE)"
        raise WorkloadError(
            f"drive is not set{none}; name a datasheet (drive=NAME, one of "
            f"{', '.join(named('drive'))}), give its rate (drive.read_bandwidth=7GB), or "
            f"{last if file is None else 'calibrate again with dataset.data_folder'}"
        )
    return drive, calibration


def _age_of(calibration: Calibration) -> Finding:
    """Return how old a calibration is, and what differs here."""
    if not calibration.identity:  # an earlier version wrote it
        return note("calibration_age", age_seconds=None, differs=None)
    own = identity_of(None, hosts=[socket.gethostname()], versions=versions())
    then = {name: each for name, each in calibration.identity.items() if name in own}
    other, age = what_differs(then, own), age_of(calibration.measured_at)
    return note("calibration_age", age_seconds=age, differs=other and other.fields)


def _refuse_other_storage(workload: Workload, calibration: Calibration) -> None:
    """Refuse the rate of another drive than that below dataset.data_folder, which is named here.

    Raises:
        WorkloadError: the calibration read another drive, or another dataset.
    """
    if calibration.drive_read_bytes_per_second is None or not calibration.identity:
        return  # the drive's datasheet counts, or it is not known which drive was read
    from dlemu.sizing.answers import identity_of_job  # as few modules as a prediction needs

    now = identity_of_job(workload, [])
    of_host = {"host": calibration.identity.get("host", "")} | versions()
    then = {name: each for name, each in calibration.identity.items() if name not in of_host}
    if why := what_differs(then, {name: each for name, each in now.items() if name not in of_host}):
        raise WorkloadError(
            f"predict.calibration {workload.predict.calibration} is of another storage than "
            f"{workload.data_folder}: {sentence(why)}; measure this one with dlemu calibrate"
        )


def _pass_bytes(workload: Workload) -> float:
    """Return the bytes of one pass over the dataset, or over train.total_training_steps of it.

    Raises:
        WorkloadError: the number of files is not known.
    """
    dataset, most = workload.dataset, workload.train.total_training_steps
    if dataset.num_files_train == "auto":
        raise WorkloadError(
            "predict.minutes needs the size of the dataset, got dataset.num_files_train=auto; "
            "give a number of files, as dlemu datasize tells it"
        )
    steps = dataset.num_files_train * dataset.num_samples_per_file / workload.reader.batch_size
    if most != -1:
        steps = min(steps, most * (workload.predict.accelerators or OF_A_HOST))
    return steps * Reads.of(workload).num_bytes


def known_rates(workload: Workload) -> tuple[Drive | None, Calibration | None]:
    """Return the drive to predict for and the host's calibration; None: not given.

    Where only the server's rate is given, the drive has none.
    """
    calibration, drive = _calibration(workload), workload.drive
    if drive is None and workload.server.read_bandwidth is not None:
        drive = Drive(name="server")
    if calibration is None:
        return drive, None
    if workload.drive is None:
        rate = calibration.drive_read_bytes_per_second
        if rate is None:
            return drive, calibration
        # Not validated: a slow drive's rate looks like a rate whose unit was forgotten.
        name, rate = "calibrated drive", max(1, round(rate))
        return Drive.model_construct(name=name, read_bandwidth=rate), calibration
    # A drive that the user names is another one than was calibrated, on the same host.
    other = {"drive_read_bytes_per_second": None, "drive_limit": None}
    return workload.drive, calibration.model_copy(update=other)


def _calibration(workload: Workload) -> Calibration | None:
    """Return the calibration of exactly this job; None: predict.calibration is not set."""
    if workload.predict.calibration is None:
        return None
    path = Path(workload.predict.calibration)
    try:
        found = Calibration.model_validate_json(read_regular(path, error=WorkloadError))
    except ValidationError as error:
        first = error.errors()[0]
        key = "".join(f", {part}" for part in first["loc"])
        raise WorkloadError(
            f"{path} is not a calibration{key}: {first['msg']}; write it with dlemu calibrate"
        ) from None
    except OSError as error:
        raise WorkloadError.of_system(
            error,
            f"predict.calibration {path}",
            "cannot be read",
            "write it with dlemu calibrate",
        ) from None
    reader = workload.reader
    for key, measured, asked in (
        ("workload", found.workload, workload.name),
        ("reader.data_loader", found.loader, reader.data_loader),
        ("reader.odirect", found.odirect, reader.odirect is True),
        ("dataset.record_length_bytes", found.sample_bytes, workload.dataset.mean_bytes),
        ("reader.read_threads", found.read_threads, reader.read_threads),
    ):
        if measured not in (None, asked):
            raise WorkloadError(
                f"predict.calibration {path} was measured with {word(key, measured)}, here it is "
                f"{word(key, asked)}; measure this job with dlemu calibrate"
            )
    return found


# --- a cache before an origin ---------------------------------------------------------------------
#
#     cold = min(origin, what the cache can be written with)    policy keep: until it is full
#     warm = min(origin / (1 - h), cache / h)                   readers of both overlap
#
# h is the hit share along a warm epoch (`profile`): it is highest at the start. So both hold for a
# part of an epoch, and what takes the drive's place in `formula` is the rate at which the whole
# epoch has the AU that is asked. Derivations: docs/cache.md.

_NUM_PARTS = 200
Shares = NDArray[np.float64]


SupplyLimit = Literal["origin", "cache writes", "cache"]
"""Which of the rates decides."""


@dataclass(frozen=True)
class Supply:
    """What an origin and the cache before it give together."""

    hits: float
    """Share (0-1) of a warm epoch's bytes that the cache serves."""
    cold: Shares
    """Least seconds for a byte, along the epoch in equal parts of its reads."""
    warm: Shares
    cold_limit: SupplyLimit
    warm_limit: SupplyLimit


def supply_of(
    workload: Workload, *, origin: float, reads: float, writes: float, part: float = 1.0
) -> Supply:
    """Return what an origin and a cache with these rates, in bytes per second, give.

    `math.inf` is a rate that is no limit; `part` is that of the dataset which an epoch reads.
    """
    reader, cache = workload.reader, workload.cache
    shuffled = (reader.file_shuffle, reader.sample_shuffle) != ("off", "off")
    anew = shuffled and workload.train.seed_change_epoch
    hits = profile(cache.policy, capacity_share(workload), shuffled=anew, part=part)
    if cache.fill == "off" or cache.policy == "none":
        writes = math.inf
    filling = min(origin, writes)
    slower: SupplyLimit = "cache writes" if writes < origin else "origin"
    cold = np.full(hits.size, 1 / filling)
    misses_by: tuple[float, SupplyLimit] = (filling, slower)
    if cache.policy == "keep":  # it is written until it is full, and not again
        full = round(capacity_share(workload) / part * hits.size)
        cold[full:] = 1 / origin
        if cold[:full].sum() < cold[full:].sum():
            slower = "origin"
        misses_by = origin, "origin"
    share = float(hits.mean())
    by_misses = (1 - share) / misses_by[0] > share / reads
    return Supply(
        hits=share,
        cold=cold,
        # In each part the slower of both decides: what it leaves idle, no other part can use.
        warm=np.maximum((1 - hits) / misses_by[0], hits / reads),
        cold_limit=slower,
        warm_limit=misses_by[1] if by_misses else "cache",
    )


@dataclass(frozen=True)
class CachedPrediction:
    """The predictions for a cold and a warm epoch; `dlemu.show` makes text of it."""

    workload: Workload
    drive: Drive
    """One of the cache's drives."""
    supply: Supply
    cold: Predicted
    warm: Predicted

    @property
    def document(self) -> dict[str, object]:
        """The content of predict.json; the supply is the mean over an epoch, in bytes/s."""
        workload = self.workload
        return {
            "kind": "cached prediction",
            "workload": workload.name,
            "drive": self.drive.name,
            "drives": workload.drives,
            "origin_bytes_per_second": workload.origin.read_bandwidth,
            "policy": workload.cache.policy,
            "capacity_share": capacity_share(workload),
            "hit_share": self.supply.hits,
            "cold_supply_limit": self.supply.cold_limit,
            "warm_supply_limit": self.supply.warm_limit,
            "cold_supply_bytes_per_second": 1 / float(self.supply.cold.mean()),
            "warm_supply_bytes_per_second": 1 / float(self.supply.warm.mean()),
            "cold": self.cold.document,
            "warm": self.warm.document,
        }


def asks_for_cache(workload: Workload) -> bool:
    """Return whether a prediction is asked for a cache."""
    return any(key.startswith(("cache.", "origin.")) for key in workload.given)


def capacity_share(workload: Workload) -> float:
    """Return cache.capacity as a share of the dataset.

    Raises:
        WorkloadError: it is given in bytes, and the number of files is not.
    """
    capacity, files = workload.cache.capacity, workload.dataset.num_files_train
    if capacity <= 1:
        return capacity
    if files == "auto":
        raise WorkloadError(
            "cache.capacity must be a share of the dataset where dataset.num_files_train=auto; "
            "set one of the two to a number: cache.capacity=0.8"
        )
    total = files * workload.dataset.num_samples_per_file * workload.dataset.mean_bytes
    return min(1.0, capacity / total)


def predict_cached(workload: Workload) -> CachedPrediction:
    """Predict cold and warm epochs with a cache of `drives` such drives before an origin.

    Raises:
        WorkloadError: the origin's rate or the cache's drive is not given.
        RunError: predict.json cannot be written.
    """
    origin = workload.origin.read_bandwidth
    if origin is None:
        raise WorkloadError(
            "origin.read_bandwidth is not set: a prediction with a cache needs the rate of the "
            "storage behind it; add origin.read_bandwidth=2GB"
        )
    drive, _ = needed_rates(workload)
    if drive.read_bandwidth is None:
        raise WorkloadError(
            "drive is not set: server.read_bandwidth says nothing of the drive that holds the "
            "cache; name its datasheet (drive=d7_ps1010), or give its rate "
            "(drive.read_bandwidth=7GB)"
        )
    given = partial(
        supply_of,
        workload,
        origin=origin,
        reads=workload.drives * drive.read_rate,
        writes=workload.drives * (drive.write_bandwidth or math.inf),
    )
    cold, warm = (
        _of_its_part(workload, drive, given, slowest)
        for slowest in (attrgetter("cold"), attrgetter("warm"))
    )
    supply = replace(warm[0], cold=cold[0].cold, cold_limit=cold[0].cold_limit)
    found = CachedPrediction(workload, drive, supply, cold[1], warm[1])
    keep(workload, found.document)
    return found


def _of_its_part(
    workload: Workload,
    drive: Drive,
    given: Callable[..., Supply],
    slowest: Callable[[Supply], Shares],
) -> tuple[Supply, Predicted]:
    """Return what a cache gives, and the prediction for it, of the part of a dataset that is read.

    With train.total_training_steps more accelerators read more of it in an epoch, and a cache
    serves less of that: the answer is the most that pass with what they read themselves.
    """

    def with_number(number: int) -> tuple[Supply, Predicted]:
        supply = given(part=part_read(workload, number))
        return supply, _predicted(workload, drive, slowest(supply))

    asked = workload.predict.accelerators
    found = with_number(asked or 1)
    low, high = 1, found[1].num_accelerators + 1
    if asked is not None or part_read(workload, 1) == 1:
        return found
    while high - low > 1:
        middle = (low + high) // 2
        tried = with_number(middle)
        if tried[1].num_accelerators >= middle:
            low, found = middle, tried
        else:
            high = middle
    # With one more accelerator fewer would pass: what passes now is the answer.
    supply, predicted = found
    number = min(low, predicted.num_accelerators)
    return supply, replace(predicted, num_accelerators=number)


def part_read(workload: Workload, num_accelerators: int) -> float:
    """Return the part of a dataset (0-1) that so many accelerators read in an epoch.

    Raises:
        WorkloadError: the steps of an epoch are bounded, and the number of files is not known.
    """
    dataset, most = workload.dataset, workload.train.total_training_steps
    if most == -1:
        return 1.0
    if dataset.num_files_train == "auto":
        raise WorkloadError(
            "train.total_training_steps reads a part of the dataset, whose size is not known with "
            "dataset.num_files_train=auto; give a number of files, as dlemu datasize tells it"
        )
    samples = dataset.num_files_train * dataset.num_samples_per_file
    return min(1.0, most * num_accelerators * workload.reader.batch_size / samples)


def _predicted(workload: Workload, drive: Drive, slowest: Shares) -> Predicted:
    """Return the prediction for a storage that takes so many seconds a byte along an epoch."""
    drives = workload.drives
    supply = rate_at(slowest, workload.metric.au)
    each = max(1, round(supply / drives))
    stands_for = Drive.model_construct(name=drive.name, read_bandwidth=each)
    _, calibration = needed_rates(workload)
    job = replace(PredictionInput.of(workload, drive), drive_read_bytes_per_second=each)
    found = formula.predict(job, calibration)
    # That rate holds where AU is at the threshold. With this number of accelerators AU is another.
    running = max(1, found.num_accelerators)
    demand = running * job.demand
    got = au_at(slowest, demand) * demand
    there = replace(job, accelerators=running, drive_read_bytes_per_second=got / drives)
    reached = formula.predict(there, calibration)
    found = replace(
        found,
        au_percentage=reached.au_percentage,
        au_low=reached.au_low,
        au_high=reached.au_high,
        read_bytes_per_second=reached.read_bytes_per_second,
        read_low=reached.read_low,
        read_high=reached.read_high,
    )
    makes = dataloader_of(workload, calibration, ceil_div(running, workload.num_hosts))
    return Predicted.of(found, workload=workload, drive=stands_for, dataloader=makes)


def profile(policy: str, capacity: float, *, shuffled: bool = True, part: float = 1.0) -> Shares:
    """Return the hit share (0-1) along a warm epoch, in _NUM_PARTS equal parts of its reads.

    `capacity` is a share of the dataset, `part` that which an epoch reads; all files have one size,
    and the epoch is long after the first. A reshuffled epoch begins with the most hits: the last
    reads of those before are there yet. With `lru`, when v of the dataset (0-1) was read, c-v of
    the 1-v that was not is there, c being the capacity. In one order for all epochs each reads the
    same part; `lru` has given up each file when it is read again, and serves nothing unless all
    fits.
    """
    if policy == "none" or capacity <= 0:
        return np.zeros(_NUM_PARTS)
    if not shuffled:
        capacity, part = capacity / part, 1.0
    if capacity >= 1:
        return np.ones(_NUM_PARTS)
    if policy == "keep":
        return np.full(_NUM_PARTS, capacity)
    if policy != "lru":
        return _simulated(policy, capacity, shuffled=shuffled, part=part)
    if not shuffled:
        return np.zeros(_NUM_PARTS)
    at = part * (np.arange(_NUM_PARTS) + 0.5) / _NUM_PARTS
    return np.maximum(0.0, 1 - (1 - capacity) / (1 - at))


def _simulated(policy: str, capacity: float, *, shuffled: bool, part: float) -> Shares:
    """Return the profile of a policy that has no closed form, of the last of as many epochs as read
    20,000 files eight times."""
    from dlemu.loaders.cache.hits import PlannedCache, planning

    files = np.arange(100 * _NUM_PARTS)
    cache = PlannedCache(policy, round(capacity * len(files)), files**0)
    order = np.random.default_rng(0)
    own = max(1, round(part * 100)) * _NUM_PARTS
    with planning(policy):
        for _ in range(round(8 * len(files) / own)):
            read = order.permutation(files)[:own] if shuffled else files
            found = cache.epoch(read.tolist())
    return found.hits.reshape(_NUM_PARTS, -1).mean(axis=1)  # type: ignore[no-any-return]


def rate_at(slowest: Shares, au: float) -> float:
    """Return the demand, bytes per second, x AU at which AU is `au` (0-1).

    `slowest`: the least seconds for a byte, along an epoch. With one share of hits all along it is
    the rate of the slower of origin and cache.
    """
    if not slowest.any():
        return math.inf
    low, high = 0.0, 1.0 / float(slowest.max())  # a part that waits for nothing has no bound
    while au_at(slowest, high) > au:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if au_at(slowest, middle) > au else (low, middle)
    return au * high


def au_at(slowest: Shares, demand: float) -> float:
    """Return the AU (0-1) at a demand in bytes per second; `slowest` as in `rate_at`."""
    return 1 / float(np.maximum(1.0, slowest * demand).mean())
