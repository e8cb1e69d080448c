"""What stands in cuFile's way is recognised before cuFile is touched, with the remedy."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlemu.storage.gpu import cufile
from dlemu.storage.gpu.cufile import availability, expected_mode


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("vendor", "kind", "found"),
    [
        ("0x10de", "0x030200", True),
        ("0x10de", "0x0c0330", False),  # the USB controller of a graphics card
        ("0x1af4", "0x030000", False),  # a virtual screen
    ],
)
def test_a_gpu_is_listed_without_its_driver(
    vendor: str, kind: str, found: bool, tmp_path: Path
) -> None:
    write(tmp_path / "pci" / "0000:01:00.0" / "vendor", f"{vendor}\n")
    write(tmp_path / "pci" / "0000:01:00.0" / "class", f"{kind}\n")
    assert cufile.lists_gpu(tmp_path / "pci", tmp_path) is found


def host(
    root: Path,
    folder: Path,
    *,
    file_system: str = "ext4",
    modules: str = "nvme 1 0\n",
    device: str = "nvme/nvme0/nvme0n1",
    kernel: str = "6.8.0-1021-nvidia",
    driver: str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release",
) -> Path:
    """Lay out the files of /proc, /sys and /run of a host with the folder on one drive."""
    number = os.stat(folder).st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    mount = f"27 1 {name} / / rw,relatime shared:1 - {file_system} /dev/nvme0n1 rw\n"
    write(root / "proc/self/mountinfo", "22 27 0:21 / /proc rw - proc proc rw\n" + mount)
    write(root / "proc/modules", modules)
    write(root / "proc/sys/kernel/osrelease", f"{kernel}\n")
    write(root / "proc/driver/nvidia/version", f"{driver}\n")
    write(root / f"run/udev/data/b{name}", "E:ID_FS_TYPE=ext4\n")
    (root / f"sys/devices/pci0000:00/{device}").mkdir(parents=True)
    (root / "sys/dev/block").mkdir(parents=True)
    (root / f"sys/dev/block/{name}").symlink_to(root / f"sys/devices/pci0000:00/{device}")
    return root


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a drive; pytest's own may be on tmpfs."""
    path = Path(__file__).parent
    if os.major(os.stat(path).st_dev) == 0:
        pytest.skip(f"{path} is on no block device")
    yield path


def test_a_missing_udev_entry_is_named_with_the_command_that_writes_it(
    tmp_path: Path, folder: Path
) -> None:
    root = host(tmp_path, folder)
    number = os.stat(folder).st_dev
    entry = root / f"run/udev/data/b{os.major(number)}:{os.minor(number)}"
    entry.unlink()
    entry.parent.rmdir()

    found = availability(folder, root=root)

    assert (found.usable, found.mode) == (False, None)
    _, command = str(found.reasons[-1]).split(f"{entry} is missing; in a container mount ")
    subprocess.run(["sh", "-c", command.partition("or as root: ")[2]], check=True)
    assert "E:ID_FS_TYPE=ext4" in entry.read_text().splitlines(), "the command writes it"


def test_all_that_stands_in_the_way_is_named_before_the_driver_can_hang(
    tmp_path: Path, folder: Path
) -> None:
    root = host(tmp_path, folder, file_system="tmpfs")

    def reasons() -> set[str]:
        found = map(str, availability(folder, root=root).reasons)
        return {reason for reason in found if "libcufile" not in reason}

    tmpfs = f"{folder} is on tmpfs, which cuFile never reads; use a folder on a drive"
    no_modules = (
        "/proc/modules is missing (a kernel without modules), and cuFile would wait for it for "
        "ever; run on a host whose kernel has CONFIG_MODULES"
    )
    assert reasons() == {tmpfs}
    (root / "proc/modules").unlink()
    assert reasons() == {no_modules, tmpfs}


@pytest.mark.parametrize(
    ("change", "version", "mode"),
    [
        ({}, 1200, "p2pdma"),
        ({"modules": "nvme 1 0\nnvidia_fs 262144 0 - Live 0x0\n"}, 1200, "nvidia-fs"),
        ({"modules": "not_nvidia_fs 1 0\n"}, 1200, "p2pdma"),
        ({}, 1120, "compat"),
        ({"kernel": "6.1.0-30-amd64"}, 1200, "compat"),
        ({"kernel": "6.2.0-1-generic"}, 1200, "p2pdma"),
        ({"device": "virtio0/block/vda"}, 1200, "compat"),
        ({"driver": "NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release"}, 1200, "compat"),
        ({"driver": "NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  R"}, 1200, "compat"),
    ],
)
def test_the_expected_path_follows_the_kernel_the_driver_and_the_drive(
    tmp_path: Path, folder: Path, change: dict[str, str], version: int, mode: str
) -> None:
    root = host(tmp_path, folder, **change)

    assert expected_mode(folder, version, root) == mode


def test_only_prefer_allows_compatibility_mode(tmp_path: Path) -> None:
    for mode, allows in (("require", False), ("prefer", True)):
        assert cufile.config(mode, tmp_path)["properties"]["allow_compat_mode"] is allows  # type: ignore[arg-type]


def test_the_library_is_found_and_a_driver_that_does_not_open_gives_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it hangs, refuses or opens depends on the host; it never takes this process along."""
    if (path := cufile.find_library()) is None:
        pytest.skip("libcufile.so.0 is not installed (pip install nvidia-cufile)")
    assert os.path.isabs(path), "another process has to find it too"
    assert cufile.library_version(path) >= 1000
    monkeypatch.chdir(tmp_path)
    problem = cufile.probe(path, "require", timeout=5.0)
    assert problem is None or problem.startswith("cuFile's driver did not open")
    assert list(tmp_path.iterdir()) == [], "no log is left"


@pytest.mark.parametrize(("code", "begin"), [(0, ""), (5001, "cuFile's driver did not open: ")])
def test_a_driver_that_opens_has_no_problem(
    code: int, begin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], 0, f"opened {code} 0\n")
    monkeypatch.setattr("dlemu.storage.gpu.cufile.subprocess.run", lambda *_, **__: done)
    problem = cufile.probe(f"a library of {code}", "require")
    assert (problem is None) is (code == 0) and (problem or "").startswith(begin)


def test_what_is_no_cufile_is_reported(tmp_path: Path) -> None:
    (tmp_path / "libcufile.so.0").write_bytes(b"not a library")

    assert cufile.probe(str(tmp_path / "libcufile.so.0"), "prefer") == (
        "cuFile's driver crashed on opening (exit status 1)"
    )
