"""The examples run as they stand."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlemu.cli.main import run
from dlemu.config.model import load_workload
from tests.lab.commands import QUICK, execute, generate, summary_of
from tests.lab.mpirun import mpirun
from tests.lab.waiting import LONG
from tests.sizing.conftest import no_pictures as no_pictures

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def told_by(script: str, folder: Path, *words: str) -> str:
    """Return what an example prints, which works in a folder."""
    done = execute([sys.executable, str(EXAMPLES / script), str(folder), *words], cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_first_run(tmp_path: Path) -> None:
    told = told_by("first_run.py", tmp_path)
    assert re.search(r"^(PASS|FAIL|NO VERDICT): AU ", told, re.MULTILINE)
    assert "would give a verdict" not in told, "it has steps enough"
    assert told.endswith(f"results: {tmp_path / 'run'}\n")


def test_checkpoints(tmp_path: Path) -> None:
    told = told_by("checkpoint.py", tmp_path, "checkpoint.scale=1e-5")
    assert "at this rate a whole llama3_8b takes " in told


def test_a_training_loop_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # idle ones would spin beside other tests
    told = told_by("training_loop.py", tmp_path)
    assert "cosmoflow_h100: 1 accelerator, 2 epochs of 42 steps" in told


def test_a_workload_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands, but for shorter clips: 32 files of 64 samples would be 1 GB.

    Of samples that are no larger than a page, HDF5 asks for bytes that it has been given before.
    """
    words = [f"workload={EXAMPLES / 'speech.yaml'}", f"dataset.data_folder={tmp_path / 'data'}"]
    words += ["dataset.record_dims=[160,16]", "reader.data_loader=threads", "metric.au=0.0001"]
    words += ["metric.max_cached_share=1"]
    assert run(["datagen", *words]) == 0
    assert run(["run", *words, "train.epochs=1", f"output.folder={tmp_path / 'run'}"]) == 0
    assert "speech: 1 emulated accelerator, 1 epoch of 128 steps" in capsys.readouterr().out


def shown_by(notebook: Path) -> list[Any]:
    """Run the code cells of a notebook, one after the other; return what each one shows."""
    cells = [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]
    names: dict[str, Any] = {}
    shown = []
    for number, cell in enumerate(cells):
        tree = ast.parse("".join(cell["source"]), f"cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        shown.append(value)
    return shown


@pytest.mark.usefixtures("no_pictures")
def test_the_notebook_runs_and_shows_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, prediction, needed, answer, points, _ = shown_by(EXAMPLES / "sizing.ipynb")
    for table, word in (
        (prediction, "limit: storage"),
        (needed, "<- decides".replace("<", "&lt;")),
        (answer, "CosmoFlow"),
    ):
        assert "<table>" in table._repr_html_() and word in table._repr_html_()
    assert points
    assert str(answer).splitlines()[0] not in capsys.readouterr().out, "each answer is shown once"
    assert list(tmp_path.iterdir()) == [], "it removes what it has written"


def test_the_notebook_is_stored_without_what_it_shows() -> None:
    for cell in json.loads((EXAMPLES / "sizing.ipynb").read_text())["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


def test_a_step_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ["workload=unet3d_h100", "steptime.model=my_step:dense", "steptime.device=cpu"]
    words += ["steptime.steps=3", "steptime.seconds=0", f"output.folder={tmp_path / 'out'}"]
    assert run(["steptime", *words]) == 0
    assert (
        load_workload(tmp_path / "out" / "unet3d_measured_cpu.yaml").train.computation_time.mean > 0
    )


# --- launchers and images: their lines are those of the installed version -------------------------


def accepted(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Fail if dlemu does not take a command line, all keys with their values."""
    assert run([*words, "--cfg", "job"]) == 0, capsys.readouterr()


def test_the_job_of_kubernetes(capsys: pytest.CaptureFixture[str]) -> None:
    job = yaml.safe_load((EXAMPLES / "mpijob.yaml").read_text())["spec"]
    launcher, worker = (
        job["mpiReplicaSpecs"][name]["template"]["spec"] for name in ("Launcher", "Worker")
    )
    (started,), (serving,) = launcher["containers"], worker["containers"]
    assert started["image"] == serving["image"]
    words = started["command"]
    at = words.index("dlemu")
    accepted(words[at + 1 :], capsys)
    ranks = int(words[words.index("-n") + 1])
    assert ranks == job["slotsPerWorker"] * job["mpiReplicaSpecs"]["Worker"]["replicas"]
    # The installed mpirun takes the options: one rank of each says so.
    assert words[0] == "mpirun"
    start = [*mpirun(ranks)[:1], *words[1:at], "--oversubscribe", "echo", "here"]
    told = subprocess.run(start, capture_output=True, text=True, timeout=LONG)
    assert told.stdout.split() == ["here"] * ranks, told.stderr
    mounted = {each["name"]: each["mountPath"] for each in serving["volumeMounts"]}
    assert mounted["shm"] == "/dev/shm" and {each["name"] for each in worker["volumes"]} == {
        *mounted
    }
    assert serving["command"] == _told_by_image("examples/Dockerfile.sshd", "CMD")
    below = [word for word in words[at:] if word.partition("=")[0].endswith("folder")]
    assert all(word.partition("=")[2].startswith(mounted["data"]) for word in below)


def _told_by_image(name: str, word: str) -> Any:
    """Return the words of the last line that begins with `word`."""
    lines = re.findall(rf"^{word} (\[.*\])$", (ROOT / name).read_text(), re.MULTILINE)
    return json.loads(lines[-1])


def test_the_image_s_own_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    name = "Dockerfile"
    assert _told_by_image(name, "ENTRYPOINT") == ["dlemu"]
    assert run(_told_by_image(name, "CMD")) == 0
    program, *words = _told_by_image(name, "HEALTHCHECK CMD")
    assert program == "dlemu" and run(words) == 0
    assert re.search(r"^FROM dlemu$", (EXAMPLES / "Dockerfile.sshd").read_text(), re.MULTILINE)
    for engine, form in (
        ("docker", ""),
        ("podman", " --format docker"),
        ("buildah", " --format docker"),
    ):
        words = ["make", "-s", "-n", "image", f"ENGINE={engine}"]
        told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert " ".join(told.split()) == f"{engine} build{form} -t dlemu ."


@pytest.mark.parametrize("name", ["Dockerfile", "examples/Dockerfile.sshd"])
def test_each_step_of_an_image_is_a_script_of_sh(name: str) -> None:
    joined = (ROOT / name).read_text().replace("\\\n", " ")
    steps = re.findall(r"^RUN (.*)$", joined, re.MULTILINE)
    assert steps
    for step in steps:
        assert subprocess.run(["sh", "-n", "-c", step]).returncode == 0, step


def test_the_job_of_slurm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """srun starts what stands behind its options; here dlemu keeps the words that it is given."""
    for script, lines in (
        ("srun", 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"'),
        (
            "venv/bin/dlemu",
            f'for word; do echo "$word"; done >> {tmp_path}/words; echo >> {tmp_path}/words',
        ),
    ):
        path = tmp_path / script
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
    given = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "VENV": f"{tmp_path}/venv"}
    subprocess.run(["sh", EXAMPLES / "slurm.sh"], env=given | {"SLURM_JOB_ID": "7"}, check=True)
    commands = (tmp_path / "words").read_text().split("\n\n")[:-1]
    assert [each.split()[0] for each in commands] == ["datagen", "run"]
    for each in commands:
        accepted(each.split(), capsys)


@pytest.mark.parametrize("rate", ["", "200mbit"])
def test_a_practice_cluster(rate: str, tmp_path: Path) -> None:
    """Two hosts by other names, as mpirun of hosts starts them; nothing of them stays."""
    if os.geteuid() != 0:
        pytest.skip("only root may make network namespaces")
    if missing := [name for name in ("ip", "tc", "nsenter", "unshare") if not shutil.which(name)]:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install iproute2 util-linux")
    launcher, *_ = mpirun(2, "true")
    job = [*QUICK, generate(tmp_path), f"output.folder={tmp_path / 'run'}", "train.epochs=1"]
    ranks = [launcher, "-n", "2", "--host", "node1:1,node2:1", "--bind-to", "none"]
    words = ["sh", str(EXAMPLES / "practice_cluster.sh"), "2", *filter(None, [rate]), "--"]
    tried = subprocess.run([*words[:2], "1", "--", "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no network namespaces here: {tried.stderr.strip()}")
    done = execute([*words, *ranks, sys.executable, "-m", "dlemu", "run", *job], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    hosts = [host["host"] for host in summary_of(tmp_path / "run")["measured"]["hosts"]]
    assert sorted(hosts) == ["node1", "node2"]
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert "practice" not in spaces.stdout
    wrong = subprocess.run([*words[:2], "x", "--", "true"], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stderr) == (2, "HOSTS must be a number above 0, got x\n")
