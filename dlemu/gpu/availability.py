"""Can cuFile, NVIDIA's GPUDirect Storage library, read a folder here, and by which path?

Answered before anything of cuFile is touched in this process, because a driver that cannot work
hangs, crashes or silently takes the host's memory: see docs/gds.md.
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
from dlemu.host.devices import read_text

Gds = Literal["require", "prefer"]

PROBE_SECONDS = 60.0
"""A driver that opens does so in about a second; one that hangs, spins for ever."""

INSTALL = "pip install nvidia-cufile, or install the CUDA toolkit's libcufile"


class CufileError(ctypes.Structure):
    """CUfileError_t, which functions return by value."""

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
    """Return what an error number of cuFile means."""
    cuda = f", CUDA error {cuda_code}" if cuda_code else ""
    return f"{_MEANING.get(code, 'see cuFile error numbers')} (cuFile error {code}{cuda})"


def find_library() -> str | None:
    """Return the path of libcufile.so.0: the loader's, a CUDA toolkit's, or an NVIDIA wheel's."""
    folders = [Path("/usr/local/cuda/lib64")]
    nvidia = importlib.util.find_spec("nvidia")
    for place in (nvidia.submodule_search_locations or []) if nvidia else []:
        folders += [Path(place, "cufile", "lib"), *sorted(Path(place).glob("cu[0-9]*/lib"))]
    for candidate in ("libcufile.so.0", *(str(folder / "libcufile.so.0") for folder in folders)):
        try:
            ctypes.CDLL(candidate)
        except OSError:
            continue
        # The bare name also finds what PyTorch loaded from its wheel, but in this process alone.
        loaded = re.search(
            r"/\S*/libcufile\.so\S*",
            Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"),
        )
        return loaded[0] if loaded else candidate
    return None


def library_version(path: str) -> int:
    """Return cuFile's version as 1000 x major + 10 x minor: 1150 is 1.15."""
    version = ctypes.c_int()
    ctypes.CDLL(path).cuFileGetVersion(ctypes.byref(version))
    return version.value


def config(gds: Gds, log_folder: Path) -> dict[str, dict[str, object]]:
    """Return the content of cuFile's JSON for this run."""
    return {
        "logging": {"dir": str(log_folder), "level": "ERROR"},
        "profile": {"cufile_stats": 3},
        # Otherwise cuFile splits reads over 1 MiB among its own threads, and a sweep over worker
        # counts compares something else than it says.
        "execution": {"parallel_io": False},
        "properties": {"allow_compat_mode": gds == "prefer", "use_pci_p2pdma": True},
    }


@dataclass(frozen=True)
class Availability:
    """Whether cuFile will read files of one folder, and if not, why."""

    usable: bool
    mode: str | None
    """The path to expect: p2pdma, nvidia-fs or compat. What was taken, only the counters tell."""
    reasons: tuple[RunError, ...]
    """What is in the way, each with its remedy where there is one."""

    @property
    def why(self) -> str:
        """All reasons in one line."""
        return "; ".join(map(str, self.reasons))


def _mount_type(device: str, root: Path) -> str | None:
    """Return the type of the file system that is mounted from device "major:minor"."""
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == device:
            return right.split()[0]
    return None


def _folder_reasons(folder: Path, root: Path) -> list[RunError]:
    """Return why cuFile will not register files of the folder."""
    number = os.stat(folder).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    file_system = _mount_type(device, root) or "unknown"
    if file_system in ("tmpfs", "ramfs", "overlay"):
        problem = f"{folder} is on {file_system}, which cuFile never reads"
        return [RunError(problem, remedy="use a folder on a drive")]
    if os.major(number) == 0:
        return []  # A network file system has no block device; its own driver answers for it.
    entry = root / f"run/udev/data/b{device}"
    if entry.exists():
        return []
    lines = "I:1000000\\nE:ID_FS_USAGE=filesystem\\n"
    lines += f"E:ID_FS_TYPE={file_system}\\nE:ID_FS_VERSION=1.0\\nV:1\\n"
    return [
        RunError(
            f"udev does not know {folder}'s block device: {entry} is missing",
            remedy="in a container mount /run/udev (-v /run/udev:/run/udev:ro), or as root: "
            f"mkdir -p {entry.parent} && printf '{lines}' > {entry}",
        )
    ]


def expected_mode(folder: Path, version: int, root: Path = Path("/")) -> str:
    """Return the path that cuFile should choose for files of the folder."""
    if re.search(r"^nvidia_fs ", read_text(root / "proc/modules"), re.MULTILINE):
        return "nvidia-fs"
    number = os.stat(folder).st_dev
    device = (root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    kernel = re.match(r"(\d+)\.(\d+)", read_text(root / "proc/sys/kernel/osrelease"))
    driver = root / "proc/driver/nvidia/version"
    driver_text = read_text(driver)
    open_driver = re.search(r"Open Kernel Module.*?\s(\d+)\.\d+", driver_text)
    # PCI P2PDMA: cuFile 1.13 (CUDA 12.8), kernel 6.2, NVMe, and the open driver from 565 on.
    direct = (
        version >= 1130
        and kernel is not None
        and (int(kernel[1]), int(kernel[2])) >= (6, 2)
        and "/nvme" in str(device)
        and open_driver is not None
        and int(open_driver[1]) >= 565
    )
    return "p2pdma" if direct else "compat"


# Opens and closes the driver in a process that can be killed: where it hangs, it spins for ever.
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
def probe(library: str, gds: Gds, timeout: float = PROBE_SECONDS) -> str | None:
    """Return why the driver does not open, or None if it does; tried in another process."""
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
    """Say whether cuFile can read files of the folder; `root` is where /proc, /sys and /run lie.

    Nothing is opened in this process. cuFileDriverOpen is tried in another one, and only once the
    cheap reasons are out of the way.
    """
    reasons = []
    library = find_library()
    if library is None:
        reasons.append(RunError("libcufile.so.0 was not found", remedy=INSTALL))
    if not (root / "proc/modules").exists():
        reasons.append(
            RunError(
                "/proc/modules is missing (a kernel without modules), and cuFile would wait for it "
                "for ever",
                remedy="run on a host whose kernel has CONFIG_MODULES",
            )
        )
    reasons += _folder_reasons(Path(folder), root)
    if library is None or reasons:
        return Availability(False, None, tuple(reasons))
    problem = probe(library, gds)
    if problem is not None:
        return Availability(False, None, (RunError(problem),))
    return Availability(True, expected_mode(Path(folder), library_version(library), root), ())
