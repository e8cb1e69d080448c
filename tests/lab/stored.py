"""Results of every kind on a host that never was: the same bytes on every machine.

Each is made by the product's own functions from steps and counters that are made up (most of them
in stored.yaml): what they print follows from the code alone. `STORED` writes them, `RENDERED` has
the text of what a command shows and keeps in no file.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dlemu.checkpoint.files import ReadTimes, WriteTimes
from dlemu.checkpoint.outcome import (
    Conditions,
    Entry,
    RankReport,
    dlio_metric,
    entry_of,
    limit_of,
    verdict_of,
)
from dlemu.checkpoint.plan import ShardPlan, planned
from dlemu.cli.paths import cells_csv
from dlemu.cli.scripts import RUN, SIZE, append_rows, rows_of
from dlemu.config.model import load_model, load_workload
from dlemu.findings import Finding, note, remark
from dlemu.host.devices import DeviceCounters
from dlemu.host.intervals import IntervalSummary, Observation, PlaceCounts
from dlemu.host.network import NetworkCounters, NicCounters
from dlemu.host.processes import HostCpu, ProcessCounters
from dlemu.host.wear import combine_hosts
from dlemu.judge.evidence import HostReport, combine
from dlemu.judge.metrics import measure_sums
from dlemu.judge.outcome import Outcome, judge_runs, row_of, with_metrics, without_threshold
from dlemu.judge.records import STEP, write_config, write_steps, write_summary
from dlemu.judge.summary import RunRow
from dlemu.judge.sums import RankName, Rule, sum_all
from dlemu.ranks.world import Alone
from dlemu.report.paths import present_paths
from dlemu.report.predict import present_calibration
from dlemu.report.sizing import present_sizing, write_table
from dlemu.report.text import render_text
from dlemu.report.tools import present_load, present_steptime
from dlemu.report.words.tools import steps_comment
from dlemu.run.job import complete_summary
from dlemu.sizing.answers import First, Sized, Target, document_of
from dlemu.sizing.formula import Calibration
from dlemu.sizing.predict import dataloader_of
from dlemu.sizing.search import Point
from dlemu.storage.counted import NUM_BINS, PathBytes, bin_of
from dlemu.storage.probe import Probe
from dlemu.tools.model_load import Load, find_model
from dlemu.tools.model_load import document_of as load_document
from dlemu.tools.paths.blocks import DataPath
from dlemu.tools.paths.cells import Cell
from dlemu.tools.paths.sweep import document_of as paths_document
from dlemu.tools.steptime.job import StepTimes
from dlemu.tools.steptime.measure import Timed
from dlemu.tools.steptime.steps import Preprocessing
from tests.lab.limits import limit_lines

GIB = 1 << 30
DATA = "/mnt/d1/unet3d"
MADE: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
SYSTEM, VERSIONS = MADE["system"], MADE["versions"]


# --- runs -----------------------------------------------------------------------------------------


def _steps(wait: float, epochs: int = 2, accelerators: int = 4, steps: int = 12) -> Any:
    """Return records in which all wait alike for a batch, and more for the first one."""
    rows = np.zeros((epochs, steps, accelerators), STEP)
    rows["epoch"] = np.arange(epochs)[:, None, None]
    rows["step"] = np.arange(steps)[:, None]
    rows["accelerator"] = np.arange(accelerators)
    rows["num_samples"], rows["num_reads"], rows["num_bytes"] = 7, 7, 7 * 140 * 2**20
    rows["wait"] = wait + 0.01 * rows["epoch"]
    rows["wait"][:, 0] += 1.0
    rows["compute"] = rows["computation_time"] = 1.0
    rows["read"], rows["decode"], rows["hand_over"] = 4.0 * min(1.0, wait + 0.5), 0.2, 0.1
    took = rows["wait"] + rows["compute"]
    rows["start"] = 100.0 + took.cumsum(axis=1) - took + 20.0 * rows["epoch"]
    return rows


def counted_interval(seconds: float, read: int, **changes: Any) -> IntervalSummary:
    """Return what a host with CPUs to spare counted while so many bytes were read."""
    read_bytes = {"device_read_bytes": read, "process_read_bytes": read}
    return IntervalSummary(seconds=seconds, **(read_bytes | MADE["interval"] | changes))


def store_run(
    folder: Path,
    *,
    wait: float,
    stored: float = 1.0,
    start: int = 0,
    seed: int = 0,
    error: str = "",
    keys: dict[str, object] | None = None,
    watched: Sequence[PlaceCounts] = (),
) -> Outcome:
    """Write a run on one host whose drive gives 6 GB/s; `stored` is its share of the bytes."""
    same = {"dataset.data_folder": DATA, "train.epochs": 2, "train.computation_time": 1.0}
    workload = load_workload("unet3d_h100", same | {"train.seed": 10 + seed} | (keys or {}))
    steps = _steps(wait)
    read = int(steps["num_bytes"].sum()) // 2
    seconds = float((steps["wait"] + steps["compute"])[0, :, 0].sum())
    seen = counted_interval(
        seconds,
        int(stored * read),
        devices={"nvme1n1": 0.99 if wait > 0.2 else 0.6},
        process_rchar=read,
        host_cpu_share=0.3,
        process_cpu_seconds=20.0,
        runqueue_seconds=0.2,
        max_pss_bytes=3 * GIB,
        device_reads={"nvme1n1": int(stored * read)},
    )
    rate = stored * read / seconds
    host = HostReport(
        host="node1",
        epochs=[seen, seen],
        probe=Probe(16, rate, 64, 1.02 * rate),
        num_workers=16,
        resident_before=0.0,
        direct=False,
        file_system="xfs",
        watched=list(watched),
    )
    begun: Any = MADE["run"] | {
        "workload": workload.name,
        "data_loader": workload.reader.data_loader,
        "decode": workload.reader.decode,
        "loop": workload.train.loop,
        "start": _time(start),
        "versions": VERSIONS,
        "system": [SYSTEM],
    }
    folder.mkdir(parents=True)
    write_config(folder, workload)
    write_steps(folder, 0, steps)
    sums = sum_all([(RankName(), steps.ravel())], Rule.of(workload))
    metrics = measure_sums(sums)
    if error:
        begun |= {"status": "failed", "error": error, "end": _time(start + 60)}
        write_summary(folder, begun)
        return Outcome(folder, metrics, begun)
    reads = np.zeros((2, NUM_BINS))
    reads[:, bin_of(0.4 * wait + 0.2)], reads[:, bin_of(0.6 * wait + 0.4)] = 320, 16
    paths = PathBytes(host=2 * read)
    gathered = combine(workload, [host], sums, paths, reads=reads.tolist())
    summary = complete_summary(begun, gathered, metrics)
    summary = with_metrics({**summary, "end": _time(start + 60)}, workload, metrics)
    write_summary(folder, summary)
    return Outcome(folder, metrics, summary)


def store_own_job(folder: Path) -> None:
    """Write a job that dlemu watch has run: a run's numbers, and what was seen of the job."""
    outcome = store_run(folder, wait=0.5)
    document = without_threshold({**outcome.summary, "workload": "train"})
    write_summary(folder, {**document, "watched": MADE["watched"]})


def _time(seconds: int) -> str:
    return f"2026-01-02T03:{4 + seconds // 60:02}:{seconds % 60:02}+00:00"


def store_runs(folder: Path) -> None:
    """Write a warm-up and three runs that count, one of them disturbed."""
    keys: dict[str, object] = {"runs": 3, "warmup": 1}
    rows: list[RunRow] = []
    counting = []
    for number, wait in enumerate((0.4, 0.1, 0.105, 0.2)):
        name = f"run.{number}" if number else "warmup.1"
        each = store_run(folder / name, wait=wait, start=90 * number, seed=number, keys=keys)
        row = row_of(name, each.summary)
        rows.append(RunRow({**row, "gap_seconds": 30.0 if number else None}))
        counting += [each.summary] if number else []
    names = ("system", "num_accelerators", "dataset")
    begun: Any = MADE["several"] | {name: counting[0].get(name) for name in names}
    begun |= {"start": _time(0), "runs": rows}
    write_summary(folder, {**judge_runs(begun, counting), "end": _time(330)})


# --- what hosts did over time ---------------------------------------------------------------------


def observation(time: float, reads: int, queue_ms: int) -> Observation:
    """Return counters that grow evenly; `time` is the host's clock."""
    return Observation(
        time=time,
        label=None,
        devices={
            "sda": DeviceCounters(
                reads, reads * 10**6, int(500 * time) % (1 << 32), queue_ms, 0, 0
            ),
            "sdb": DeviceCounters(0, 0, 0, 0, 0, 0),
        },
        network_read_bytes=None,
        host=HostCpu(time, 3 * time, 0, 0),
        usable_cpus=4.0,
        processes=ProcessCounters(1, 2 * time, int(5e6 * time), None, None),
        throttled_seconds=None,
        pss_bytes=None,
        page_cache_bytes=GIB,
        network=NetworkCounters({"eth0": NicCounters(int(3e6 * time), int(5e5 * time))}),
    )


def write_host(folder: Path, rank: int, observations: list[Observation], unix: float) -> None:
    """Write host.<rank>.jsonl of a host whose clock shows 0 at a Unix time."""
    lines = [{"time": 7.0, "unix_time": unix + 7.0}, *map(asdict, observations)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"host.{rank}.jsonl").write_text(text)


# --- checkpoints ----------------------------------------------------------------------------------


def _entry(step: int, seconds: Sequence[float], *, reads: bool = False) -> Entry:
    """Return a checkpoint of eight accelerators on one host."""
    size = 112_000_000_000 // len(seconds)
    worked = []
    for number, each in enumerate(seconds):
        written = WriteTimes(num_bytes=size, write=0.6 * each, fsync=0.4 * each, waited=0.0)
        read = ReadTimes(num_bytes=size, read=each)
        worked.append((number, each, read if reads else written))
    num_read = 8 * size if reads else 0
    seen = counted_interval(max(seconds), num_read, devices={"nvme1n1": 0.98})
    report = RankReport(0, "node1", worked, seen, num_read)
    return entry_of(step, [report], max(seconds) + 0.5)


_MODEL = load_model(
    "llama3_8b",
    {
        "checkpoint.checkpoint_folder": "/mnt/d1/checkpoints",
        "checkpoint.mtbf": "12h",
        "checkpoint.max_seconds": 30,
    },
)


def _checkpoint() -> dict[str, Any]:
    workload = _MODEL
    saves = [_entry(step, (24.0, *(20.0 + step,) * 7)) for step in (1, 2)]
    loads = [_entry(step, (16.0,) * 8, reads=True) for step in (1, 2)]
    conditions = Conditions(file_system="xfs", bypasses=True, fsync=True, cached_share=0.0)
    plan = planned(workload, ShardPlan.of(workload, Alone()))
    told: dict[str, Any] = {"odirect": True, "shared": True}
    told |= {"foreign_share": 0.0, "cached_share": 0.0}
    told |= {"saves": saves, "loads": loads, "host_memory_bytes": 256 * GIB}
    begun: dict[str, Any] = MADE["checkpoint"]
    return begun | {
        "start": _time(0),
        "versions": VERSIONS,
        "system": [SYSTEM],
        **plan,
        "checkpoint": {**plan["checkpoint"], **told},
        "metric": dlio_metric(saves, loads, rank_sync=False),
        "measured": {"wear": combine_hosts([])},
        "limit": limit_of("save", saves, conditions),
        "load_limit": limit_of("load", loads, conditions),
        "verdict": verdict_of(saves, loads, _MODEL.checkpoint.max_seconds),
        "status": "complete",
        "end": _time(120),
    }


def store_checkpoint(folder: Path) -> None:
    """Write what `dlemu checkpoint` keeps of two checkpoints, written and read back."""
    folder.mkdir()
    write_config(folder, _MODEL)
    write_summary(folder, _checkpoint())


# --- searches and first answers -------------------------------------------------------------------


def _as_written(text: str) -> tuple[Finding, ...]:
    return (note("as_written", text=text),)


def sized(**changes: Any) -> Sized:
    """Return the answer of a quick search: 8 accelerators pass, 9 fail."""
    workload = load_workload("unet3d_h100", {"dataset.data_folder": DATA, "size.quick": True})
    points = tuple(
        Point(
            n,
            au,
            n * 25.0,
            2.4e10,
            "storage",
            900.0,
            _as_written("nvme1n1 was busy all the time"),
            0.01,
        )
        for n, au in ((12, 62.8), (9, 83.7), (8, 94.31), (8, 93.96))
    )
    values = MADE["sized"] | {"target": Target("d1", DATA, 1), "workload": workload}
    values |= {"folder": Path("/results/size"), "interval": (8.28, 8.46)}
    values |= {"points": points, "confirmations": points[2:]}
    values["evidence"] = _as_written("nvme1n1 was busy 99% of the time")
    return Sized(**(values | changes))


def _searches() -> list[Sized]:
    """Return an answer, a lower bound, and one of a storage that feeds nothing."""
    found = sized()
    bound: Any = {"num_accelerators": 9, "real_accelerators": None, "interval": None}
    bound |= {"low": 9, "high": None}
    alone = replace(found.points[0], num_accelerators=1, au_percentage=80.0)
    none: Any = {"num_accelerators": 0, "real_accelerators": 0.89, "interval": (0.88, 0.9)}
    none |= {"low": 0, "high": 0}
    return [
        found,
        replace(found, target=Target("d2", DATA, 2), at_least=True, limit="host cpu", **bound),
        replace(found, points=(alone,), confirmations=(), fewest_failed=1, **none),
    ]


def store_sizing(folder: Path) -> None:
    """Write the answers of `dlemu size` for three targets."""
    folder.mkdir()
    (folder / "sizing.json").write_text(json.dumps(document_of(_searches())))


def _table(folder: Path) -> str:
    write_table(folder, document_of(_searches()))
    return (folder / "table.md").read_text()


def _try() -> str:
    fed, bound, none = _searches()
    instead = remark("other_loader", reads="threads", asked="pytorch")
    first = First(**MADE["first"], finding=instead)
    answers = (
        replace(fed, low=7, first=first),
        replace(bound, first=replace(first, commands=())),
        replace(none, first=first),
    )
    return render_text(present_sizing(document_of(answers, Path("/mnt/d1"))))


# --- what others measured -------------------------------------------------------------------------


def store_calibration(path: Path) -> None:
    """Write the file that `dlemu calibrate` writes."""
    calibration = Calibration(**MADE["calibration"])
    path.write_text(json.dumps(calibration.model_dump(mode="json")))


def _calibrate() -> str:
    found = Calibration(**MADE["calibration"]).model_dump()
    workload = load_workload("unet3d_h100")
    found["demand_bytes_per_second"] = workload.demand
    found["dataloader"] = dataloader_of(workload, Calibration(**MADE["calibration"]), 1)
    return render_text(present_calibration(found))


def _steptime() -> str:
    timed = [
        Timed(
            batch=batch,
            layout="channels_last",
            seconds=np.array([0.95, 1.0, 1.0, 1.05]) * (0.02 + 0.05 * batch),
            launch=0.01 if batch > 1 else 0.09,
            flops=1e12 * batch,
            memory=batch * GIB,
            on_gpu=True,
        )
        for batch in (1, 3, 7)
    ]
    answer = StepTimes(
        **MADE["steptime"],
        workload=load_workload("unet3d_h100"),
        timed=timed,
        preprocessing=Preprocessing(
            function="own:sample",
            workers=4,
            alone=np.full(4, 0.2),
            together=np.full(4, 0.25),
            on_core=np.full(4, 0.25),
        ),
    )
    document = {**answer.document(), "command": "dlemu run workload=unet3d_gpu.yaml"}
    return "\n".join([render_text(present_steptime(document)), "", answer.yaml(steps_comment)])


def _load() -> str:
    asked = Load(model=find_model("llama2_70b"), target=Path("/tmp"))
    document = load_document(asked, MADE["load"])
    return f"{render_text(present_load(document))}\n\n{flat(document)}"


def _paths() -> str:
    rates: list[tuple[DataPath, float]] = [("host_buffered", 2.5), ("host_direct", 6.5)]
    cells = [
        Cell(
            **MADE["paths"],
            path=path,
            io_size=io_size,
            gib_per_second=rate,
            iops=rate * GIB / io_size,
            host_bytes=1000 * io_size,
        )
        for path, rate in rates
        for io_size in (4096, 1 << 20)
    ]
    document = paths_document(cells, Path("none"))
    return f"{render_text(present_paths(document))}\n\n{cells_csv(document['cells'])}"


def _rows(folder: Path) -> str:
    """Return the tables that --csv writes of a run and a search."""
    outcome = replace(store_run(folder / "row", wait=0.5), folder=Path("/results/run"))
    workload = load_workload("unet3d_h100", {"dataset.data_folder": DATA})
    run = {"folder": str(outcome.folder), **outcome.summary}
    append_rows(folder / "run.csv", RUN, rows_of(run, [workload], RUN, "a, b"))
    answers = _searches()
    size = {"folder": "/results/size", **document_of(answers)}
    rows = rows_of(size, [answer.workload for answer in answers], SIZE, "")
    append_rows(folder / "size.csv", SIZE, rows)
    return "\n".join((folder / name).read_text() for name in ("run.csv", "size.csv"))


def flat(tree: Any, name: str = "") -> str:
    """Return JSON as lines "a.b[0].c: value"; a list of plain values is one line."""
    if isinstance(tree, dict) and tree:
        return "\n".join(flat(each, f"{name}.{key}".lstrip(".")) for key, each in tree.items())
    if isinstance(tree, list | tuple) and any(isinstance(each, dict | list) for each in tree):
        return "\n".join(flat(each, f"{name}[{number}]") for number, each in enumerate(tree))
    return f"{name}: {json.dumps(tree)}" if name else json.dumps(tree)


STORED: dict[str, Callable[[Path], object]] = {
    "run": partial(store_run, wait=0.5),
    "faster": partial(store_run, wait=0.1, start=90, seed=1),
    "cached": partial(store_run, wait=0.0, stored=0.5),
    "broken": partial(store_run, wait=0.5, error="rank 1: /mnt/d1/unet3d/img_1.npz is gone"),
    "watched": partial(
        store_run, wait=0.1, watched=(PlaceCounts(40 * GIB, 0, 20 * GIB, 3.5), PlaceCounts(0, GIB))
    ),
    "own_job": store_own_job,
    "several": store_runs,
    "checkpoint": store_checkpoint,
    "size": store_sizing,
    "calibration.json": store_calibration,
    "dlio": partial(shutil.copytree, Path(__file__).parents[1] / "data" / "dlio_2.0.0"),
}
"""By its name, a result of every kind. Each gets the path to write to."""
RENDERED: dict[str, Callable[[Path], str]] = {
    "table": _table,
    "try": lambda folder: _try(),
    "calibrate": lambda folder: _calibrate(),
    "steptime": lambda folder: _steptime(),
    "load": lambda folder: _load(),
    "paths": lambda folder: _paths(),
    "rows": _rows,
    "limits": limit_lines,
}
"""By name, what a command shows and a stored result does not. Each gets an empty folder."""
