"""GPU memory and copies between it and the host, through the CUDA driver API alone.

`libcuda.so.1` comes with NVIDIA's driver. Uses the primary context, as PyTorch, CuPy and DALI do in
the same process, so that memory addresses can be exchanged with them.
"""

import ctypes
import functools
import mmap
from collections.abc import Sequence
from time import perf_counter
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import RunError
from dlemu.units import PAGE_BYTES, round_up

# The functions in use, with the types of their arguments; all return a CUresult. The ending _v2 is
# the interface with 64-bit sizes.
_FUNCTIONS: dict[str, list[type]] = {
    "cuInit": [ctypes.c_uint],
    "cuDriverGetVersion": [ctypes.c_void_p],
    "cuDeviceGetCount": [ctypes.c_void_p],
    "cuDeviceGet": [ctypes.c_void_p, ctypes.c_int],
    "cuDeviceGetName": [ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
    "cuDeviceGetPCIBusId": [ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
    "cuDevicePrimaryCtxRetain": [ctypes.c_void_p, ctypes.c_int],
    "cuDevicePrimaryCtxRelease_v2": [ctypes.c_int],
    "cuCtxSetCurrent": [ctypes.c_void_p],
    "cuMemAlloc_v2": [ctypes.c_void_p, ctypes.c_size_t],
    "cuMemFree_v2": [ctypes.c_uint64],
    "cuMemHostRegister_v2": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint],
    "cuMemHostUnregister": [ctypes.c_void_p],
    "cuMemHostAlloc": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint],
    "cuMemFreeHost": [ctypes.c_void_p],
    "cuMemcpyHtoD_v2": [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t],
    "cuMemcpyDtoH_v2": [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t],
    "cuGetErrorString": [ctypes.c_int, ctypes.c_void_p],
}


@functools.cache
def _library() -> ctypes.CDLL:
    """Load the driver's library; raise RunError if there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RunError(
            f"no GPU: {error}",
            remedy="install NVIDIA's driver, or start the container with --gpus all",
        ) from None
    for name, arguments in _FUNCTIONS.items():
        getattr(library, name).argtypes = arguments
    return library


def _call(name: str, *arguments: object) -> None:
    """Call a function of the driver; raise RunError if it fails. Other threads run meanwhile."""
    library = _library()
    result = getattr(library, name)(*arguments)
    if result:
        text = ctypes.c_char_p()
        library.cuGetErrorString(result, ctypes.byref(text))
        raise RunError(f"{name} failed: {(text.value or b'unknown error').decode()} ({result})")


def num_gpus() -> int:
    """Return how many GPUs this process may use.

    Raises:
        RunError: there is no driver, or it finds no GPU.
    """
    _call("cuInit", 0)
    count = ctypes.c_int()
    _call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


def gpu_name(number: int) -> str:
    """Return the model of a GPU: "NVIDIA H100 80GB HBM3".

    Raises:
        RunError: there is no driver, or no such GPU.
    """
    name = ctypes.create_string_buffer(256)
    _call("cuDeviceGetName", name, len(name), number)
    return name.value.decode(errors="replace")


def pci_address(number: int) -> str:
    """Return a GPU's address on the PCI bus as /sys has it: "0000:3b:00.0". Raises as above."""
    address = ctypes.create_string_buffer(32)
    _call("cuDeviceGetPCIBusId", address, len(address), number)
    return address.value.decode().lower()


def driver_version() -> tuple[int, int]:
    """Return the newest CUDA version that the driver supports, as (13, 0).

    Raises:
        RunError: there is no driver.
    """
    version = ctypes.c_int()
    _call("cuDriverGetVersion", ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


class Closable:
    """Something that must be closed, in a `with` statement or by `close`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class GpuContext(Closable):
    """One GPU's primary context.

    CUDA has a current context per thread: each thread must call `use` before it reads or copies.
    """

    def __init__(self, index: int = 0) -> None:
        count = num_gpus()
        if not 0 <= index < count:
            raise RunError(f"GPU {index} does not exist; this process may use {count}")
        device = ctypes.c_int()
        _call("cuDeviceGet", ctypes.byref(device), index)
        self._device = device.value
        self.name = gpu_name(self._device)
        self._context = ctypes.c_void_p()
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self.use()

    def use(self) -> None:
        """Make this GPU's context the current one of the calling thread."""
        _call("cuCtxSetCurrent", self._context)

    def close(self) -> None:
        _call("cuDevicePrimaryCtxRelease_v2", self._device)


class DeviceMemory(Closable):
    """Memory of the calling thread's current GPU; its address is a multiple of 4096."""

    def __init__(self, num_bytes: int) -> None:
        base = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(base), num_bytes + PAGE_BYTES)
        self._base = base.value
        self.address = round_up(self._base)
        self.num_bytes = num_bytes

    def fill(self, source: int, num_bytes: int) -> None:
        """Copy from the host address `source`; return when the copy is done."""
        _call("cuMemcpyHtoD_v2", self.address, source, num_bytes)

    def drain(self, target: int, num_bytes: int) -> None:
        """Copy to the host address `target`; return when the copy is done."""
        _call("cuMemcpyDtoH_v2", target, self.address, num_bytes)

    def close(self) -> None:
        _call("cuMemFree_v2", self._base)


_LOCKED_BYTES, _NUM_LOCKS = 1 << 26, 5
"""Of memory whose locking is timed, and how often."""


class Pinned:
    """Locks the pages of host arrays in memory, so that a GPU can copy them asynchronously."""

    def __init__(self, arrays: Sequence[NDArray[np.uint8]]) -> None:
        self._gpu = GpuContext()
        self._addresses: list[int] = []
        for array in arrays:
            first, end = np.lib.array_utils.byte_bounds(array)
            try:
                _call("cuMemHostRegister_v2", first, end - first, 0)
            except RunError as error:
                self.close()
                raise RunError(f"{error}; raise `ulimit -l`, or do without pin") from None
            self._addresses.append(first)

    def close(self) -> None:
        """Unlock the memory; may be called more than once."""
        while self._addresses:
            _call("cuMemHostUnregister", self._addresses.pop())


class HostMemory(Closable):
    """Page-aligned host memory; after `pin` the GPU copies to and from it directly."""

    def __init__(self, num_bytes: int) -> None:
        self.view = memoryview(mmap.mmap(-1, num_bytes))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.view))
        self._pinned = False

    def pin(self) -> None:
        _call("cuMemHostRegister_v2", self.address, len(self.view), 0)
        self._pinned = True

    def close(self) -> None:
        if self._pinned:
            _call("cuMemHostUnregister", self.address)
            self._pinned = False


def page_lock_time() -> float:
    """Return the seconds in which CUDA makes 1 GB of page-locked host memory, in 0.15 s.

    They are the fewest of a few: what else the host does adds to them.

    Raises:
        RunError: there is no GPU, or no memory may be locked.
    """
    times = []
    with GpuContext():
        for _ in range(_NUM_LOCKS):
            address, begin = ctypes.c_void_p(), perf_counter()
            _call("cuMemHostAlloc", ctypes.byref(address), _LOCKED_BYTES, 0)
            times.append(perf_counter() - begin)
            _call("cuMemFreeHost", address)
    return min(times) / _LOCKED_BYTES * 1e9
