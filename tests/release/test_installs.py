"""What is told of installs: the pin to blame, what follows from torch, and how much is fetched."""

import configparser
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from release import pip, resolve
from release.cut import ABOUT_THE_SOURCE, different, unready
from release.fetch import announcement
from release.fresh import steps
from release.pins import following
from release.pip import ROOT, Resolved, not_source, user_environment
from release.resolve import INSTALLS, UNION, blame
from tests.mutants import tracked

CONFLICT = """\
ERROR: Cannot install cuda-toolkit[cufile]==13.0.3.0 because these package versions conflict.

The conflict is caused by:
    cuda-toolkit[cufile] 13.0.3.0 depends on nvidia-cufile==1.15.1.6.*; extra == "cufile"
    The user requested (constraint) nvidia-cufile==1.20.0.107
"""
MISSING = """\
ERROR: Could not find a version that satisfies the requirement h5py>=3.10 (from versions: 3.1.0)
ERROR: No matching distribution found for h5py>=3.10
"""
PINS = "h5py==99.0\nnvidia-cufile==1.20.0.107\nnumpy==2.4.6\n"


def test_the_pin_is_named_and_who_asks_for_another() -> None:
    pin, asker = blame(CONFLICT, PINS)
    assert pin == "pin nvidia-cufile==1.20.0.107"
    assert asker.startswith("cuda-toolkit[cufile] 13.0.3.0 depends on nvidia-cufile==1.15.1.6.*")


def test_a_pin_that_no_index_has_is_named() -> None:
    assert blame(MISSING, PINS) == ["pin h5py==99.0"]


def test_without_pins_pip_s_own_words_are_shown() -> None:
    assert blame(MISSING, "") == MISSING.splitlines()


def test_no_network_is_no_conflict() -> None:
    said = "WARNING: Retrying after connection broken by 'SSLError(...)'\nERROR: nothing found\n"
    assert blame(said + MISSING, PINS)[0].startswith("PyPI cannot be reached: ")


def test_nothing_is_resolved_where_pypi_is_not_reached(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> Iterator[dict[str, str]]:
        raise OSError("no route to host")

    monkeypatch.setattr(resolve, "relayed", contextmanager(refused))
    monkeypatch.setattr(resolve, "interpreters", dict)
    assert resolve.main([]) == resolve.UNKNOWN
    told = capsys.readouterr().out
    assert told == "PyPI cannot be reached, so nothing was resolved: no route to host\n"


def test_a_user_has_none_of_the_wheels_that_lie_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nclient-cert = /me.pem\nfind-links = /wheels\nextra-index-url = file:/x\n"
    )
    monkeypatch.delenv("PIP_CLIENT_CERT", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    monkeypatch.setenv("PIP_CONSTRAINT", "/bound.txt")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    found = user_environment()
    assert found["PIP_CLIENT_CERT"] == "/me.pem" and found["https_proxy"] == "http://proxy:3128"
    assert found["PIP_CONFIG_FILE"] == "/dev/null"
    assert not {"PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PYTHONPATH"} & set(
        found
    )


def test_every_install_that_a_page_names_is_resolved() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = set(setup["options.extras_require"])
    tests = setup["options.extras_require"]["test"]
    (within,) = re.findall(r"dlemu\[(.*)\]", tests)
    assert extras == {*UNION.split(","), *within.split(",")}
    assert extras <= {name for each in INSTALLS for name in each.split(",")}
    for page in (ROOT / "README.md", ROOT / "Dockerfile", *(ROOT / "docs").glob("*.md")):
        for named in re.findall(r"(?:\.|dlemu|\.whl\)?)\[([a-z\d,-]+)\]'?", page.read_text()):
            assert extras >= set(named.split(",")), f"{page.name}: {named}"


def test_what_follows_from_torch_and_dali() -> None:
    items: list[dict[str, Any]] = [
        {
            "name": "torch",
            "requires_dist": [
                "jinja2",
                'cuda-toolkit[cufile]==13.0.3; platform_system == "Linux"',
                'pyyaml; extra == "pyyaml"',
            ],
        },
        {
            "name": "cuda-toolkit",
            "requires_dist": [
                'nvidia-cufile==1.15.*; extra == "cufile"',
                'nvidia-npp==13.*; extra == "npp"',
            ],
        },
        *({"name": name} for name in ("nvidia_cufile", "nvidia_npp", "Jinja2", "PyYAML")),
        {"name": "nvidia-dali-cuda130", "requires_dist": ["nvidia-nvtiff-cu13==0.8.*", "gast"]},
        *({"name": name} for name in ("nvidia-nvtiff-cu13", "gast")),
    ]
    assert following(items) == {"cuda-toolkit", "nvidia-cufile", "nvidia-nvtiff-cu13"}


def test_nothing_that_follows_from_torch_is_pinned() -> None:
    pinned = [line.partition("==")[0] for line in pip.PINS.read_text().split()]
    follow = re.compile(r"triton|cuda-|nvidia-(?!dali|ml-py)")
    assert [name for name in pinned if follow.match(name)] == []
    assert pinned == sorted(pinned, key=str.lower) and len(pinned) == len(set(pinned))


def test_how_much_is_fetched_and_how_to_fetch_less() -> None:
    def found(torch: str, *others: str) -> Resolved:
        packages = [{"metadata": {"name": name, "version": "1"}} for name in others]
        torch_s = {"metadata": {"name": "torch", "version": torch}}
        return Resolved({"install": [torch_s, *packages]}, "")

    cuda = announcement(found("2.13.0", "nvidia-cublas"), {"torch": 10**9, "nvidia-cublas": 10**9})
    assert cuda.startswith("2 packages to fetch: 2,000 MB; PyTorch 2.13.0 brings CUDA")
    assert "make demo TORCH=no" in cuda
    cpu = announcement(found("2.13.0+cpu"), {"torch": 2 * 10**8, "other": None})
    assert cpu == (
        "2 packages to fetch: 200 MB, and 1 of unknown size; PyTorch 2.13.0+cpu for CPUs"
    )


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ("", ".venv"),
        ("PYTHON=python3", ".venv"),
        ("PYTHON=python3.13", ".venv-python3.13"),
        ("PYTHON=/opt/python3.12/bin/python3.12", ".venv-python3.12"),
    ],
)
def test_a_python_that_is_named_has_an_environment_of_its_own(words: str, folder: str) -> None:
    # The make that runs the tests hands its own words down.
    handed = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "PYTHON", "VENV"}
    environment = {name: value for name, value in os.environ.items() if name not in handed}
    done = subprocess.run(
        ["make", "-n", "-B", "demo", *words.split()],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert f" {folder}/bin/dlemu datagen" in f" {done.stdout.replace(chr(10), ' ')}"


CHANGES = "## Unreleased\n\n## 0.2.0 - 2026-12-01\n\nWhat it gives.\n"


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        (CHANGES, None),
        (CHANGES.replace("0.2.0", "0.1.0"), "has no section: ## 0.2.0 - "),
        (CHANGES.replace(" - 2026-12-01", ""), "the section has no date"),
        (CHANGES.replace("Unreleased\n", "Unreleased\n\n- A line.\n"), "stands under Unreleased"),
        (CHANGES + "- A line.\n" * 60, "has 62 lines; at most 60"),
    ],
)
def test_what_a_release_must_have(changes: str, wrong: str | None, tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text("[metadata]\nversion = 0.2.0\n")
    (tmp_path / "CHANGELOG.md").write_text(changes)
    told = list(unready("0.2.0", tmp_path))
    assert told == [] if wrong is None else wrong in told[0]
    assert any("setup.cfg has version 0.2.0" in each for each in unready("0.3.0", tmp_path))


def test_the_tests_that_a_release_leaves_out_are_there() -> None:
    for each in ABOUT_THE_SOURCE:
        path, _, name = each.partition("::")
        assert (ROOT / "tests" / path).exists()
        assert not name or f"def {name}(" in (ROOT / "tests" / path).read_text()


def test_files_that_wheel_and_sdist_install_are_compared(tmp_path: Path) -> None:
    for name, text in (("one", "1"), ("other", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.py").write_text("")
        (tmp_path / name / "unlike.py").write_text(text)
        (tmp_path / name / f"only_{name}.py").write_text("")
    found = different(tmp_path / "one", tmp_path / "other")
    assert found == ["only_one.py", "only_other.py", "unlike.py"]


def test_what_a_fresh_machine_is_given_stands_in_the_readme() -> None:
    given = " ".join(commands for _, commands in steps(quick=False))
    assert "pip install -c constraints.txt ." in given
    assert "pip install -c constraints.txt '.[torch,mpi,plot]'" in given
    assert "make demo TORCH=no" in given


def test_a_build_has_every_tracked_file_but_hidden_ones_at_the_top(tmp_path: Path) -> None:
    """Files in `.hydra` are tests' data; without them tests of an sdist fail."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout, so nothing says which files belong to it")
    wanted = {name for name in tracked(ROOT) if not name.startswith(".")}
    assert any("/.hydra/" in name for name in wanted)
    left_out = {
        name
        for name in wanted
        for part in (Path(name), *Path(name).parents[:-1])
        if not_source(str((ROOT / part).parent), [part.name])
    }
    assert left_out == set()
    assert not_source(str(ROOT), [".git", ".venv", "build", "docs"]) == {".git", ".venv", "build"}
