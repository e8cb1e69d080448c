"""The proof of the path is decoded for each layout, and bytes reach the GPU whole."""

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from dlemu.errors import RunError
from dlemu.storage.counted import PathBytes
from dlemu.storage.gpu import cuda, cufile
from dlemu.storage.gpu.cuda import DeviceMemory, GpuContext
from dlemu.storage.gpu.cufile import (
    STATS_BYTES,
    Availability,
    CufileError,
    DeviceBuffer,
    DeviceFile,
    Driver,
    availability,
    decode_stats,
)

Paths = tuple[int, int, int]
"""Operations by PCI P2PDMA, nvidia-fs and POSIX."""


Count = tuple[int, int, list[tuple[Paths, Paths]]]
"""Bytes read and written, and each GPU's operations of reading and writing."""


def stats(
    version: int, read_bytes: int, write_bytes: int, gpus: list[tuple[Paths, Paths]]
) -> bytes:
    """Lay out a CUfileStatsLevel3_t member by member, as cufile.h of that version has it."""
    level_1 = [0] * 12 + [read_bytes, write_bytes] + [0] * 8
    level_1 += [0] * 14 if version >= 1190 else []  # readv and writev
    level_1 += [0] * 30 + [0] * 12  # batches: 15 pairs, 12 numbers
    level_2 = level_1 + [0] * 64  # two histograms
    text = struct.pack(f"={len(level_2)}QI4x", *level_2, len(gpus))
    for reads, writes in gpus:
        text += b"\x11" * 16 + struct.pack(
            "=29Q", *[7] * 5, *reads, *[0] * 5, *[9] * 5, *writes, *[0] * 3, *[0] * 5
        )
    size = 1024 + 112 * (version >= 1190) + 8 + 248 * len(gpus)
    assert len(text) == size, "as a compiler that reads the header lays it out"
    return text.ljust(STATS_BYTES, b"\0")


NONE = (0, 0, 0)


def test_the_unit_of_the_file_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: 4096 everywhere, which a drive of larger sectors refuses."""
    path = tmp_path / "a"
    path.write_bytes(bytes(65536))
    monkeypatch.setattr(cufile, "direct_unit", lambda path: 16384)
    driver, buffer = Mock(), Mock(num_bytes=65536)
    driver.library.cuFileRead.return_value = 16384
    with DeviceFile(driver, path) as file:
        assert file.read(buffer, 16384, 16384, 4096) == 16384
        with pytest.raises(RunError, match="multiples of 16384, got 4096 bytes at 0"):
            file.read(buffer, 4096, 0)
        with pytest.raises(RunError, match="multiples of 16384"):
            file.read(buffer, 16384, 4096)
    with DeviceFile(driver, path, unit=4096) as file:
        assert file.read(buffer, 4096, 4096) == 16384


@pytest.mark.parametrize("version", [1150, 1190, 1200])
@pytest.mark.parametrize(
    ("count", "found"),
    [
        ((12345, 0, [(NONE, NONE), ((5, 0, 0), NONE)]), PathBytes(p2pdma=12345)),
        ((12345, 0, [(NONE, NONE), ((0, 5, 0), NONE)]), PathBytes(nvidia_fs=12345)),
        ((12345, 0, [(NONE, NONE), ((0, 0, 5), NONE)]), PathBytes(compat=12345)),
        # Reads and writes by one path each are exact; mixed ones are dealt out by operations.
        ((1000, 90, [((3, 0, 0), (0, 0, 2))]), PathBytes(p2pdma=1000, compat=90)),
        ((1000, 90, [((3, 0, 1), (0, 0, 2))]), PathBytes(p2pdma=750, compat=340, estimated=True)),
        ((0, 0, []), PathBytes()),
    ],
)
def test_each_path_is_counted_apart(version: int, count: Count, found: PathBytes) -> None:
    assert decode_stats(stats(version, *count), version) == found


def test_a_layout_that_counts_no_path_is_an_error_and_not_a_direct_read() -> None:
    with pytest.raises(RunError, match="layout unknown"):
        decode_stats(stats(1150, 4096, 0, []), 1150)


def test_the_mode_names_every_path_taken() -> None:
    assert PathBytes().mode == "none"
    assert (PathBytes(p2pdma=1) + PathBytes(host=2)).mode == "p2pdma+host"
    assert (PathBytes(compat=1, estimated=True) + PathBytes(compat=2)) == PathBytes(
        compat=3, estimated=True
    )


def test_without_cufile_the_driver_says_why_in_one_line() -> None:
    if availability("/dev/shm").usable:
        pytest.skip("/dev/shm is no tmpfs")

    with pytest.raises(RunError, match=r"^cuFile cannot read /dev/shm: [^\n]*tmpfs[^\n]*$"):
        Driver("/dev/shm")


class _FakeLibrary:
    """Answers every call alike, and keeps which settings each one met."""

    def __init__(self, failing: str = "") -> None:
        self.failing, self.met = failing, dict[str, str | None]()

    def __getattr__(self, name: str) -> Callable[..., CufileError]:
        def call(*arguments: object) -> CufileError:
            self.met[name] = os.environ.get(VARIABLE)
            return CufileError(5001 if name == self.failing else 0, 0)

        return call


VARIABLE = "CUFILE_ENV_PATH_JSON"


def fake(monkeypatch: pytest.MonkeyPatch, failing: str = "") -> _FakeLibrary:
    library = _FakeLibrary(failing)
    monkeypatch.setattr(cufile, "availability", lambda *_, **__: Availability("compat", ()))
    monkeypatch.setattr(cufile, "find_library", lambda: "libcufile.so.0")
    monkeypatch.setattr(cufile, "library_version", lambda path: 1200)
    monkeypatch.setattr(cufile, "_load", lambda path: library)
    return library


@pytest.mark.parametrize("users", ["/etc/mine.json", None])
@pytest.mark.parametrize("failing", ["", "cuFileDriverOpen", "cuFileDriverClose_v2"])
def test_the_users_own_settings_are_left_alone(
    users: str | None, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if users is not None:
        monkeypatch.setenv(VARIABLE, users)
    library = fake(monkeypatch, failing)
    with suppress(RunError):
        Driver("/").close()
    ours = library.met["cuFileDriverOpen"]
    assert ours is not None and ours != users, "dlemu's own hold while cuFile is open"
    assert not Path(ours).parent.exists(), "nothing is left"
    assert os.environ.get(VARIABLE) == users


def test_settings_that_changed_meanwhile_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/etc/mine.json")
    fake(monkeypatch)
    with Driver("/"):
        monkeypatch.setenv(VARIABLE, "/etc/another.json")
    assert os.environ[VARIABLE] == "/etc/another.json"


# --- on a GPU -------------------------------------------------------------------------------------

NUM_BYTES = 9 * 1024 * 1024 + 4321  # more than cuFile's bounce buffer, and not aligned


@pytest.fixture(scope="module")
def gpu() -> Iterator[GpuContext]:
    try:
        found = GpuContext()
    except RunError as error:
        pytest.skip(str(error))
    with found:
        yield found


@pytest.fixture(scope="module")
def data_file(gpu: GpuContext) -> Iterator[Path]:
    """A file of random bytes on the drive of the checkout: pytest's own folder may be tmpfs."""
    folder = Path(__file__).parents[3] / "build"
    folder.mkdir(exist_ok=True)
    path = folder / "test_cufile.data"
    path.write_bytes(np.random.default_rng(7).bytes(NUM_BYTES))
    yield path
    path.unlink()


def content_of(memory: DeviceMemory, num_bytes: int | None = None) -> bytes:
    """Return the first bytes of GPU memory; None means all of it."""
    host = np.empty(memory.num_bytes if num_bytes is None else num_bytes, np.uint8)
    memory.drain(host.ctypes.data, len(host))
    return host.tobytes()


@pytest.fixture
def driver(gpu: GpuContext, data_file: Path) -> Iterator[Driver]:
    found = availability(data_file.parent)
    if not found.usable:
        pytest.skip(found.why)
    with Driver(data_file.parent) as opened:
        yield opened


@pytest.mark.gpu
def test_a_whole_file_arrives_and_the_path_is_told(driver: Driver, data_file: Path) -> None:
    size = -(-NUM_BYTES // 4096) * 4096
    with DeviceMemory(size) as memory, DeviceBuffer(driver, memory.address, size) as buffer:
        before = driver.path_bytes()
        with DeviceFile(driver, data_file) as file:
            assert file.read(buffer, size, 0) == NUM_BYTES, "the file's end cuts the read short"
        assert content_of(memory, NUM_BYTES) == data_file.read_bytes()

        after = driver.path_bytes()
        expected = availability(data_file.parent).mode
        print(f"expected {expected}, taken {after}")
        assert before.mode == "none"
        assert after.mode == expected
        # cuFile counts what was asked of it, the file's last block whole.
        assert sum((after.p2pdma, after.nvidia_fs, after.compat)) == size


@pytest.mark.gpu
def test_what_was_written_from_the_gpu_stands_in_the_file(driver: Driver, data_file: Path) -> None:
    path = data_file.with_suffix(".written")
    content = data_file.read_bytes()[: 2 << 20]
    try:
        path.write_bytes(bytes(len(content)))
        with (
            DeviceMemory(len(content)) as memory,
            DeviceBuffer(driver, memory.address, len(content)) as buffer,
            DeviceFile(driver, path, writable=True) as file,
        ):
            host = np.frombuffer(content, np.uint8)
            memory.fill(host.ctypes.data, len(content))
            assert file.write(buffer, len(content), 0) == len(content)
        assert path.read_bytes() == content
    finally:
        path.unlink()


@pytest.mark.gpu
def test_unaligned_numbers_and_overruns_are_refused(driver: Driver, data_file: Path) -> None:
    with (
        DeviceMemory(8192) as memory,
        DeviceBuffer(driver, memory.address, 8192) as buffer,
        DeviceFile(driver, data_file) as file,
    ):
        with pytest.raises(RunError, match="multiples of 4096"):
            file.read(buffer, 4096, 183)
        with pytest.raises(RunError, match="overrun"):
            file.read(buffer, 8192, 0, 4096)
        with pytest.raises(RunError, match="aligned to 4096"):
            DeviceBuffer(driver, memory.address + 512, 4096)


@pytest.mark.gpu
def test_require_never_takes_the_host_path(gpu: GpuContext, data_file: Path) -> None:
    """Either the driver opens and the bytes go directly, or it does not open."""
    found = availability(data_file.parent, gds="require")
    if not found.usable:
        with pytest.raises(RunError, match="cuFile cannot read"):
            Driver(data_file.parent, "require")
        return
    with Driver(data_file.parent, "require") as driver, DeviceMemory(4096) as memory:
        with (
            DeviceBuffer(driver, memory.address, 4096) as buffer,
            DeviceFile(driver, data_file) as file,
        ):
            file.read(buffer, 4096, 0)
        assert driver.path_bytes().compat == 0


@pytest.mark.gpu
def test_copies_between_host_and_gpu_agree(gpu: GpuContext) -> None:
    assert cuda.num_gpus() >= 1
    assert cuda.driver_version() >= (12, 0)
    with cuda.HostMemory(1 << 20) as host, DeviceMemory(1 << 20) as memory:
        host.pin()
        content = os.urandom(1 << 20)
        host.view[:] = content
        memory.fill(host.address, len(content))
        assert content_of(memory) == content
