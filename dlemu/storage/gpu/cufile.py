"""Reads from storage into GPU memory through NVIDIA's cuFile, and proves which path the bytes took.

A call of cuFile looks the same whichever path it took: PCI peer-to-peer DMA; the nvidia-fs kernel
module; or "compatibility mode", a POSIX read into host memory and a copy. Only cuFile's counters
tell them apart, and `Driver.path_bytes` reads those.

A thin layer over `libcufile.so.0` with ctypes, which releases the interpreter's lock during a call.
Names, layouts and error numbers are those of cufile.h, versions 1.15 and 1.20.

Whether cuFile can read a folder here, and by which path, is checked without using it in this
process: a driver that cannot work hangs, crashes, or silently reads through host memory. See
docs/gds.md.
"""

import ctypes
import functools
import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dlemu.errors import RunError, system_error
from dlemu.host.devices import PROC, is_there, listed, read_mounts, read_text
from dlemu.storage.counted import PathBytes
from dlemu.storage.files import direct_unit
from dlemu.storage.gpu.cuda import Closable
from dlemu.units import PAGE_BYTES

Gds = Literal["require", "prefer"]

INSTALL = "pip install 'dlemu[gds]', or install the CUDA toolkit's libcufile"
_VARIABLE = "CUFILE_ENV_PATH_JSON"


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
    return is_there(dev / "nvidiactl") or any(
        read_text(each / "vendor").strip() == vendor
        and read_text(each / "class").startswith(display_class)
        for each in listed(pci)
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
    if os.major(number) == 0 or is_there(entry):
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
    if not is_there(root / "proc/modules"):
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


class _Descriptor(ctypes.Structure):
    """CUfileDescr_t for a Linux file descriptor; its union has the size of a pointer."""

    _fields_ = (("type", ctypes.c_int), ("fd", ctypes.c_longlong), ("fs_ops", ctypes.c_void_p))


_OPAQUE_FD = 1

_TRANSFER: tuple[type, list[type]] = (
    ctypes.c_ssize_t,
    [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong, ctypes.c_longlong],
)
_FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "cuFileDriverOpen": (CufileError, []),
    "cuFileDriverClose_v2": (CufileError, []),
    "cuFileSetStatsLevel": (CufileError, [ctypes.c_int]),
    "cuFileStatsStart": (CufileError, []),
    "cuFileStatsReset": (CufileError, []),
    "cuFileGetStatsL3": (CufileError, [ctypes.c_void_p]),
    "cuFileHandleRegister": (CufileError, [ctypes.c_void_p, ctypes.c_void_p]),
    "cuFileHandleDeregister": (None, [ctypes.c_void_p]),
    "cuFileBufRegister": (CufileError, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]),
    "cuFileBufDeregister": (CufileError, [ctypes.c_void_p]),
    "cuFileRead": _TRANSFER,
    "cuFileWrite": _TRANSFER,
}


@functools.cache
def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path, use_errno=True)
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            # 1.15 introduced the counters that prove the path.
            raise RunError(
                f"{path} has no {name}: it is older than cuFile 1.15; {INSTALL}"
            ) from None
        function.restype, function.argtypes = result, arguments
    return library


STATS_BYTES = 16 * 1024
"""More than any version's CUfileStatsLevel3_t: 5000 bytes up to 1.18, 5112 since 1.19."""

_TOTALS = 96  # bytes read and written, in CUfileStatsLevel1_t, with which the structure begins
_MAX_GPUS, _GPU_NUMBERS = 16, 31  # of 64 bits each
_GPU_READS, _GPU_WRITES = 7, 20  # n_p2p_*, n_nvfs_*, n_posix_*, one after another


def decode_stats(stats: bytes, version: int) -> PathBytes:
    """Return the bytes of all reads and writes by path.

    cuFile counts bytes in total, but operations by path. If several paths were taken, the bytes are
    divided in proportion to the operations. `stats` is a CUfileStatsLevel3_t of that version.

    Raises:
        RunError: bytes were moved and no path was counted, so the layout is unknown.
    """
    # 1.19 added 112 bytes, about readv and writev, before the GPUs.
    start = 1144 if version >= 1190 else 1032
    (num_gpus,) = struct.unpack_from("=I", stats, start - 8)
    gpus = np.frombuffer(stats, np.uint64, _MAX_GPUS * _GPU_NUMBERS, start)
    gpus = gpus.reshape(_MAX_GPUS, _GPU_NUMBERS)[:num_gpus]
    shares = [0.0, 0.0, 0.0]  # P2PDMA, nvidia-fs, POSIX: the counters' order
    estimated = False
    totals = struct.unpack_from("=QQ", stats, _TOTALS)
    for total, place in zip(totals, (_GPU_READS, _GPU_WRITES), strict=True):
        counts: list[int] = gpus[:, place : place + 3].sum(axis=0).tolist()
        if total and not any(counts):
            raise RunError(
                f"cuFile {version} moved {total} bytes and counted no path; its statistics have a "
                "layout unknown to dlemu"
            )
        if total:
            shares = [s + total * c / sum(counts) for s, c in zip(shares, counts, strict=True)]
            estimated = estimated or sum(count > 0 for count in counts) > 1
    p2pdma, nvidia_fs, compat = map(round, shares)
    return PathBytes(p2pdma, nvidia_fs, compat, estimated=estimated)


class Driver(Closable):
    """cuFile's driver, open in this process with our own settings.

    Open at most one at a time, before anything else opens cuFile, and do not fork afterwards.

    First checks whether it can read files of the folder. gds="require" forbids compatibility mode.

    Raises:
        RunError: cuFile cannot work here; the message has the reason and the remedy.
    """

    def __init__(self, folder: str | Path, gds: Gds = "prefer") -> None:
        found = availability(folder, gds=gds)
        if not found.usable:
            raise RunError(f"cuFile cannot read {folder}: {found.why}")
        path = find_library()
        assert path is not None, "availability has just found it"
        self._gds = gds
        self._version = library_version(path)
        self._folder = Path(tempfile.mkdtemp(prefix="dlemu-cufile-"))
        settings = self._folder / "cufile.json"
        settings.write_text(json.dumps(config(gds, self._folder)), encoding="utf-8")
        # cuFile reads this variable when the driver opens; there is no other way to set options.
        self._settings, self._users = str(settings), os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = self._settings
        try:
            self.library = _load(path)
            self.call("cuFileDriverOpen")
            self.call("cuFileSetStatsLevel", 3)
            self.call("cuFileStatsStart")
            self.call("cuFileStatsReset")  # a driver that was open before leaves its counts
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        """Restore the user's own settings, unless somebody changed them meanwhile."""
        if os.environ.get(_VARIABLE) == self._settings:
            if self._users is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = self._users
        shutil.rmtree(self._folder)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that returns a CUfileError_t; raise RunError if it failed."""
        error = getattr(self.library, name)(*arguments)
        if error.err:
            raise RunError(f"{name} failed: {describe(error.err, error.cu_err)}")

    def path_bytes(self) -> PathBytes:
        """Return all bytes read and written since the driver was opened, by path.

        Raises:
            RunError: bytes went through host memory although `gds` is "require".
        """
        stats = ctypes.create_string_buffer(STATS_BYTES)
        self.call("cuFileGetStatsL3", stats)
        found = decode_stats(stats.raw, self._version)
        if self._gds == "require" and found.compat:
            raise RunError(
                f"reader.gds=require, but cuFile moved {found.compat} bytes through host memory; "
                "see `dlemu doctor`, or set reader.gds=prefer"
            )
        return found

    def close(self) -> None:
        try:
            self.call("cuFileDriverClose_v2")
        finally:
            self._leave()


class DeviceBuffer(Closable):
    """GPU memory that is registered with cuFile, to be read into many times.

    Address and size must be multiples of 4096, else cuFile would silently use the page cache.
    """

    def __init__(self, driver: Driver, address: int, num_bytes: int) -> None:
        if address % PAGE_BYTES or num_bytes % PAGE_BYTES:
            raise RunError(
                f"a buffer for cuFile must be aligned to {PAGE_BYTES} bytes, got {num_bytes} bytes "
                f"at {address:#x}"
            )
        self._driver, self.address, self.num_bytes = driver, address, num_bytes
        driver.call("cuFileBufRegister", address, num_bytes, 0)

    def close(self) -> None:
        self._driver.call("cuFileBufDeregister", self.address)


class DeviceFile(Closable):
    """A file that cuFile reads into GPU memory, or writes from it; opened with O_DIRECT.

    Several threads may use it at once. `unit`: the bytes of which reads and writes are multiples,
    where the caller knows it; None: it is asked (`direct_unit`).

    Raises:
        OSError: the file cannot be opened.
        RunError: cuFile does not accept it.
    """

    def __init__(
        self,
        driver: Driver,
        path: str | Path,
        *,
        writable: bool = False,
        unit: int | None = None,
    ) -> None:
        self._driver, self._path = driver, path
        self.unit = unit or direct_unit(path) or PAGE_BYTES
        self._fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_DIRECT)
        self._handle = ctypes.c_void_p()
        descriptor = _Descriptor(_OPAQUE_FD, self._fd, None)
        try:
            driver.call(
                "cuFileHandleRegister", ctypes.byref(self._handle), ctypes.byref(descriptor)
            )
        except RunError as error:
            os.close(self._fd)
            raise error.within(path) from None

    def read(
        self, buffer: DeviceBuffer, num_bytes: int, file_offset: int, buffer_offset: int = 0
    ) -> int:
        """Read into the buffer; return the bytes read, fewer than asked only at the file's end.

        All numbers are bytes and must be multiples of `unit`, `buffer_offset` of 4096.
        """
        return self._move("cuFileRead", buffer, num_bytes, file_offset, buffer_offset)

    def write(
        self, buffer: DeviceBuffer, num_bytes: int, file_offset: int, buffer_offset: int = 0
    ) -> int:
        """Write from the buffer, like `read`; return the bytes written."""
        return self._move("cuFileWrite", buffer, num_bytes, file_offset, buffer_offset)

    def _move(
        self, name: str, buffer: DeviceBuffer, num_bytes: int, file_offset: int, buffer_offset: int
    ) -> int:
        # In compatibility mode cuFile would read unaligned bytes through the page cache.
        if (num_bytes | file_offset) % self.unit or buffer_offset % PAGE_BYTES:
            raise RunError(
                f"{self._path}: cuFile wants multiples of {self.unit}, got {num_bytes} bytes at "
                f"{file_offset} into the buffer's {buffer_offset}"
            )
        if buffer_offset + num_bytes > buffer.num_bytes:
            raise RunError(
                f"{self._path}: {num_bytes} bytes at {buffer_offset} overrun a buffer of "
                f"{buffer.num_bytes}"
            )
        done: int = getattr(self._driver.library, name)(
            self._handle, buffer.address, num_bytes, file_offset, buffer_offset
        )
        if done == -1:
            number = ctypes.get_errno()
            raise system_error(number, self._path)
        if done < 0:
            raise RunError(f"{name} failed: {describe(-done)}")
        return done

    def close(self) -> None:
        self._driver.library.cuFileHandleDeregister(self._handle)
        os.close(self._fd)
