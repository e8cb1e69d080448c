"""The wheel and the sdist hold all that dlemu needs, and work outside of the checkout."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import ROOT, copy_tracked, tracked


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build sdist and wheel from a copy, for a build leaves files; return the folder of both."""
    pytest.importorskip("setuptools")
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout, so nothing says which files belong to it")
    copy = tmp_path_factory.mktemp("copy")
    copy_tracked(ROOT, copy)
    out = tmp_path_factory.mktemp("built")
    run(["-c", f"from setuptools import build_meta as b; b.build_sdist({str(out)!r})"], copy)
    with tarfile.open(next(out.glob("*.tar.gz"))) as file:
        # Python 3.11.2, that of Debian 12, knows no filter yet.
        safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        file.extractall(out, **safe)
    (source,) = (path for path in out.iterdir() if path.is_dir())
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run([*words, "--wheel-dir", str(out), str(source)], out)
    with zipfile.ZipFile(next(out.glob("*.whl"))) as wheel:
        wheel.extractall(out / "site")
    return out


def run(words: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_module_and_workload(built: Path) -> None:
    product = ("dlemu/", "datagen/", "workloads/")
    wanted = {name for name in tracked(ROOT) if name.startswith(product)}
    wanted = {name for name in wanted if not (ROOT / name).is_symlink()}
    inside = {name if name.startswith("dlemu/") else f"dlemu/{name}" for name in wanted}
    site = built / "site"
    found = {str(path.relative_to(site)) for path in (site / "dlemu").glob("**/*.*")}
    assert inside == {name for name in found if "__pycache__" not in name}
    assert not [path for path in site.iterdir() if path.name.split("-")[0] != "dlemu"]
    (told,) = site.glob("*.dist-info/entry_points.txt")
    assert "dlemu = dlemu.__main__:main" in told.read_text()


def test_the_wheel_works_in_another_folder(built: Path, tmp_path: Path) -> None:
    code = "import sys, dlemu; from dlemu.cli.main import run; [print(dlemu.__file__)]; "
    code += "sys.exit(max(run(words.split()) for words in sys.argv[1:]))"
    said = run(
        [
            *("-P", "-c", code, "--help", "run --help", "help reader.odirect"),
            *("predict workload=unet3d_h100 drive=d7_ps1010", "completion bash"),
            "datagen workload=cosmoflow_h100 dataset.data_folder=data dataset.num_files_train=2",
        ],
        tmp_path,
        PYTHONPATH=str(built / "site"),
    )
    assert said.startswith(str(built / "site"))
    assert "how many GPUs" in said and "Bypass the page cache" in said and "D7-PS1010" in said
    assert (tmp_path / "data" / "dlemu.json").is_file()


def test_the_sdist_holds_what_a_reader_needs(built: Path) -> None:
    (source,) = built.glob("dlemu-*/")
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "Makefile"):
        assert (source / name).is_file(), f"name {name} in MANIFEST.in"
    assert (source / "tests" / "test_packaging.py").is_file()
    assert (source / "docs" / "keys.md").is_file()
