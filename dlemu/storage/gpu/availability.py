"""Can cuFile, NVIDIA's GPUDirect Storage library, read a folder here, and by which path?

This is checked without using cuFile in this process: a driver that cannot work hangs, crashes, or
silently reads through host memory. See docs/gds.md.
"""

import ctypes
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dlemu.errors import RunError
from dlemu.host.devices import PROC, read_mounts, read_text

Gds = Literal["require", "prefer"]

INSTALL = "pip install nvidia-cufile, or install the CUDA toolkit's libcufile"


class CufileError(ctypes.Structure):
    """CUfileError_t, which cuFile's functions return by value."""

    _fields_ = (("err", ctypes.c_int), ("cu_err", ctypes.c_int))


_MEANING = {
    5001: "the driver cannot start without compatibility mode: neither nvidia-fs nor P2PDMA works",
    5008: "GPUDirect Storage does not support this file",
    5009: "GPUDirect Storage does not support this GPU",
    5011: "the CUDA driver refused",
    5018: "files of this type are not supported",
    5027: "cuFile does not know the file's block device or file system",
    5030: "an internal error",
    5033: "no CUDA driver was found",
    5036: "no more GPU memory can be pinned",
    5049: "compatibility mode is off and there is no direct path",
}


def describe(code: int, cuda_code: int = 0) -> str:
    """Return the meaning of a cuFile error number, with the numbers."""
    cuda = f", CUDA error {cuda_code}" if cuda_code else ""
    return f"{_MEANING.get(code, 'see cuFile error numbers')} (cuFile error {code}{cuda})"


def lists_gpu(pci: Path = Path("/sys/bus/pci/devices"), dev: Path = Path("/dev")) -> bool:
    """Return whether the kernel lists a GPU of NVIDIA's, with or without a driver for it."""
    display_class, vendor = "0x03", "0x10de"
    return (dev / "nvidiactl").exists() or any(
        read_text(each / "vendor").strip() == vendor
        and read_text(each / "class").startswith(display_class)
        for each in pci.glob("*")
    )


def find_library() -> str | None:
    """Return the path of libcufile.so.0; None if it is not installed.

    Looked for where the dynamic loader does, then in the CUDA toolkit, then in NVIDIA's wheels.
    """
    folders = [Path("/usr/local/cuda/lib64")]
    nvidia = importlib.util.find_spec("nvidia")
    for place in (nvidia.submodule_search_locations or []) if nvidia else []:
        folders += [Path(place, "cufile", "lib"), *sorted(Path(place).glob("cu[0-9]*/lib"))]
    for candidate in ("libcufile.so.0", *(str(folder / "libcufile.so.0") for folder in folders)):
        try:
            ctypes.CDLL(candidate)
        except OSError:
            continue
        # A bare name may work in this process alone, where PyTorch has loaded its own wheel.
        loaded = re.search(r"/\S*/libcufile\.so\S*", read_text(PROC / "self" / "maps"))
        return loaded[0] if loaded else candidate
    return None


def library_version(path: str) -> int:
    """Return cuFile's version as 1000 × major + 10 × minor: 1150 is 1.15."""
    version = ctypes.c_int()
    ctypes.CDLL(path).cuFileGetVersion(ctypes.byref(version))
    return version.value


def config(gds: Gds, log_folder: Path) -> dict[str, dict[str, object]]:
    """Return the content of the JSON file with cuFile's settings; "prefer" allows compat mode."""
    return {
        "logging": {"dir": str(log_folder), "level": "ERROR"},
        "profile": {"cufile_stats": 3},
        # Otherwise cuFile splits reads over 1 MiB among its own threads, and a sweep over numbers
        # of workers does not compare what it claims to.
        "execution": {"parallel_io": False},
        "properties": {"allow_compat_mode": gds == "prefer", "use_pci_p2pdma": True},
    }


@dataclass(frozen=True)
class Availability:
    """Whether cuFile can read files of one folder, and if not, why."""

    mode: str | None
    """The path to expect: p2pdma, nvidia-fs or compat; None if cuFile is not usable. Which path was
    taken, only cuFile's counters show."""
    reasons: tuple[RunError, ...]

    @property
    def usable(self) -> bool:
        return not self.reasons

    @property
    def why(self) -> str:
        """All reasons in one line."""
        return "; ".join(map(str, self.reasons))


def _missing_for(folder: Path, root: Path) -> RunError | None:
    """Return why cuFile will not register files of the folder; None if it will."""
    number = os.stat(folder).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    mounts = read_mounts(proc=root / "proc")
    file_system = next((mount.kind for mount in mounts if mount.number == device), "unknown")
    if file_system in ("tmpfs", "ramfs", "overlay"):
        problem = f"{folder} is on {file_system}, which cuFile never reads"
        return RunError(problem, remedy="use a folder on a drive")
    entry = root / f"run/udev/data/b{device}"
    # A network file system (major number 0) has no block device that udev could know.
    if os.major(number) == 0 or entry.exists():
        return None
    lines = "I:1000000\\nE:ID_FS_USAGE=filesystem\\n"
    lines += f"E:ID_FS_TYPE={file_system}\\nE:ID_FS_VERSION=1.0\\nV:1\\n"
    return RunError(
        f"udev does not know {folder}'s block device: {entry} is missing",
        remedy="in a container mount /run/udev (-v /run/udev:/run/udev:ro), or as root: "
        f"mkdir -p {entry.parent} && printf '{lines}' > {entry}",
    )


def has_nvidia_fs(root: Path = Path("/")) -> bool:
    """Return whether the kernel module nvidia-fs is loaded."""
    return re.search(r"^nvidia_fs ", read_text(root / "proc/modules"), re.MULTILINE) is not None


def expected_mode(folder: Path, version: int, root: Path = Path("/")) -> str:
    """Return the path that this version of cuFile should choose for files of the folder."""
    if has_nvidia_fs(root):
        return "nvidia-fs"
    number = os.stat(folder).st_dev
    device = (root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    kernel = re.match(r"(\d+)\.(\d+)", read_text(root / "proc/sys/kernel/osrelease"))
    driver = read_text(root / "proc/driver/nvidia/version")
    open_driver = re.search(r"Open Kernel Module.*?\s(\d+)\.\d+", driver)
    # PCI P2PDMA needs cuFile 1.13 (CUDA 12.8), kernel 6.2, NVMe, and NVIDIA's open driver 565.
    direct = (
        version >= 1130
        and kernel is not None
        and (int(kernel[1]), int(kernel[2])) >= (6, 2)
        and "/nvme" in str(device)
        and open_driver is not None
        and int(open_driver[1]) >= 565
    )
    return "p2pdma" if direct else "compat"


# Opens the driver in a process of its own, which can be killed if the driver hangs.
_PROBE = """
import ctypes, sys
class Error(ctypes.Structure):
    _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]
library = ctypes.CDLL(sys.argv[1])
library.cuFileDriverOpen.restype = Error
error = library.cuFileDriverOpen()
print("opened", error.err, error.cu_err)
"""


@functools.cache
def probe(library: str, gds: Gds, timeout: float = 60.0) -> str | None:
    """Return why cuFile's driver does not open, tried in another process; None if it does.

    A driver that works opens in about a second; one that hangs never returns.
    """
    with tempfile.TemporaryDirectory(prefix="dlemu-cufile-") as folder:
        path = Path(folder, "cufile.json")
        path.write_text(json.dumps(config(gds, Path(folder))), encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-c", _PROBE, library],
                env=os.environ | {"CUFILE_ENV_PATH_JSON": str(path)},
                cwd=folder,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            return f"cuFile's driver did not open within {timeout:g} s"
    found = re.search(r"^opened (\d+) (\d+)", done.stdout, re.MULTILINE)
    if found is None:
        return f"cuFile's driver crashed on opening (exit status {done.returncode})"
    code, cuda_code = int(found[1]), int(found[2])
    return f"cuFile's driver did not open: {describe(code, cuda_code)}" if code else None


def availability(
    folder: str | Path, *, gds: Gds = "prefer", root: Path = Path("/")
) -> Availability:
    """Return whether cuFile can read files of the folder; /proc, /sys and /run lie under `root`.

    cuFileDriverOpen is called in another process, and only if nothing else is missing.
    """
    missing = []
    library = find_library()
    if library is None:
        missing.append(RunError("libcufile.so.0 was not found", remedy=INSTALL))
    if not (root / "proc/modules").exists():
        problem = (
            "/proc/modules is missing (a kernel without modules), and cuFile would wait for it"
        )
        remedy = "run on a host whose kernel has CONFIG_MODULES"
        missing.append(RunError(f"{problem} for ever", remedy=remedy))
    if (for_folder := _missing_for(Path(folder), root)) is not None:
        missing.append(for_folder)
    if library is None or missing:
        return Availability(None, tuple(missing))
    if (why := probe(library, gds)) is not None:
        return Availability(None, (RunError(why),))
    return Availability(expected_mode(Path(folder), library_version(library), root), ())
