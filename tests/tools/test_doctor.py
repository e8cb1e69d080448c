"""What the doctor finds, and whether it says that a loader can run."""

import re
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dlemu.findings import as_written, note
from dlemu.report.words import sentence
from dlemu.tools import doctor
from dlemu.tools.doctor import Check, examine, what_stops

HEALTHY = [
    Check(name, "ok", as_written("1"))
    for name in ("NumPy", "h5py", "PyTorch", "DALI", "GPU", "cuFile")
]


@pytest.mark.parametrize(
    ("absent", "loader", "gds", "stops"),
    [
        ("nothing", "dali", "require", False),
        ("NumPy", "threads", "off", True),
        ("PyTorch", "pytorch", "off", True),
        ("PyTorch", "threads", "off", False),
        ("DALI", "dali", "off", True),
        ("GPU", "dali", "off", False),
        ("GPU", "dali", "require", True),
        ("cuFile", "dali", "prefer", False),
        ("cuFile", "dali", "require", True),
    ],
)
def test_a_loader_needs_its_own_packages_only(
    absent: str, loader: str, gds: str, stops: bool
) -> None:
    found = [Check(c.name, "missing", as_written("?")) if c.name == absent else c for c in HEALTHY]
    assert [each["name"] for each in what_stops(found, loader, gds)] == [absent] * stops
    compat = [*HEALTHY[:-1], Check("cuFile", "note", note("gds_by_host", is_enough=True))]
    stopped = [each["found"]["figures"] for each in what_stops(compat, "dali", gds)]
    assert stopped == [{"is_enough": False}] * (gds == "require")


def test_this_host_is_examined_whole(tmp_path: Path) -> None:
    checks = {check.name: check for check in examine(tmp_path, for_gpu=True)}

    wanted = {
        "Python",
        "CPUs",
        "memory",
        "timer",
        "barrier",
        "page cache",
        "MPI",
        "PyTorch",
        "DALI",
    }
    wanted |= {"GPU", "nvidia-fs", "cuFile", "file system", "O_DIRECT"}
    assert wanted <= checks.keys()
    assert any(name.startswith("drive") for name in checks)
    assert checks["NumPy"].state == checks["h5py"].state == "ok"
    assert re.search(r"sleeps of 3.5 ms end .* late, p99 ", sentence(checks["timer"].found))
    assert re.search(r"2 processes meet within .*, p99 ", sentence(checks["barrier"].found))
    for check in checks.values():
        assert sentence(check.found)
        if check.state != "ok":
            assert check.remedy and sentence(check.remedy), f"{check.name} has no remedy"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "name", "remedy"),
    [
        ("/proc", "O_DIRECT", "generating needs a folder that can be written"),
        ("/dev/shm", "drive", "tmpfs measures memory, use a folder on a drive"),
    ],
)
def test_a_folder_that_will_not_do_is_noted(folder: str, name: str, remedy: str) -> None:
    with ExitStack() as own:
        if folder == "/dev/shm":  # files of others there may be links to a drive
            folder = own.enter_context(TemporaryDirectory(dir=folder))
        check = {check.name: check for check in examine(Path(folder))}[name]
    assert check.state == "note" and check.remedy and remedy in sentence(check.remedy)


@pytest.mark.parametrize(
    ("text", "state", "found"),
    [
        ("[always] madvise never\n", "ok", "always"),
        ("always [madvise] never\n", "ok", "madvise"),
        ("always madvise [never]\n", "note", "never"),
        (None, "note", "not built into this kernel"),
    ],
)
def test_huge_pages_are_as_the_kernel_says(
    tmp_path: Path, text: str | None, state: str, found: str
) -> None:
    setting = tmp_path / "enabled"
    if text is not None:
        setting.write_text(text)
    check = doctor.huge_pages(setting)
    assert (check.state, sentence(check.found)) == (state, found)
    assert ("echo madvise" in sentence(check.remedy) if check.remedy else False) == (
        found == "never"
    )
