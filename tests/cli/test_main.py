"""The command line: what is typed wrong gets one line that says how to mend it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dlemu import __version__
from dlemu.cli.main import run
from dlemu.workload.compose import known_workloads
from tests.lab import warm
from tests.lab.commands import QUICK, SMALL, dlemu, generate, with_checkout
from tests.lab.waiting import until

DATA = Path(__file__).parents[1] / "data"
OWN = "".join(f"{name}, " for name in known_workloads() if not name.startswith("unet3d"))
KNOWN = OWN + "unet3d_a100, unet3d_b200, unet3d_h100, unet3d_h200, or a file.yaml"
QUOTE = (
    "cannot be parsed; write key=value, and quote what has brackets, commas, blanks or =, "
    "for the shell too: "
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The override that names a small dataset."""
    return generate(tmp_path_factory.mktemp("small"))


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on stderr of a command that exits with 1 and prints nothing else."""
    capsys.readouterr()
    status = run(words)
    said = capsys.readouterr()
    assert (status, said.out) == (1, "")
    assert said.err.startswith("dlemu: ") and said.err.endswith("\n")
    assert said.err.count("\n") == 1, said.err
    return said.err.removeprefix("dlemu: ").rstrip("\n")


WRONG_WORDS = [
    (["rnu"], "unknown command rnu; did you mean run? (dlemu --help lists them)"),
    (["--vers"], "unknown command --vers (dlemu --help lists them)"),
    (["run"], f"workload= is not set; it is one of {KNOWN}"),
    (["run", "workload="], f"workload= is not set; it is one of {KNOWN}"),
    (
        ["run", "workload=unet3d_h1000"],
        f"no workload unet3d_h1000; did you mean unet3d_h100? (known: {KNOWN})",
    ),
    (["run", "workload=/etc/passwd"], f"no workload /etc/passwd (known: {KNOWN})"),
    (["run", "workload=nosuch.yaml"], "workload file nosuch.yaml is not there"),
    (["run", "unet3d_h100"], "'unet3d_h100' is no override; write workload=unet3d_h100"),
    (["run", "reader"], "'reader' is no override; write key=value"),
    (
        ["run", "workload=unet3d_h100", "workload=resnet50_h100"],
        "workload= is set 2 times: unet3d_h100, resnet50_h100; keep one",
    ),
    (["run", "--bogus"], "unknown option --bogus (dlemu --help lists them)"),
    (["run", "-m"], "unknown option -m (dlemu --help lists them)"),
    (["run", "--repair"], "unknown option --repair (dlemu --help lists them)"),
    (["verify", "--ful"], "unknown option --ful; did you mean --full?"),
    (["verify", "--full=yes"], "--full has no value"),
    (["verify"], "one data folder is needed: dlemu verify FOLDER"),
    (["verify", "a", "b"], "one data folder is needed: dlemu verify FOLDER"),
    (["verify", "a", *SMALL], "'a' is no override; write key=value"),
    (
        ["verify", "/nosuch"],
        "/nosuch is no folder; name the data folder, which has train/ in it",
    ),
    (
        ["verify", "/etc"],
        "/etc has no manifest, so nothing says what its files should be; dlemu verify checks what "
        "dlemu datagen wrote: start that again if it was interrupted",
    ),
    (
        ["run", *SMALL, "name=../../x"],
        "name must be part of a file name: no path, no leading dot, no control characters, at most "
        "200 bytes; got '../../x'",
    ),
    (
        ["datagen", *SMALL, "dataset.file_prefix=a/b"],
        "dataset.file_prefix must be part of a file name: no path, no leading dot, no control "
        "characters, at most 200 bytes; got 'a/b'",
    ),
    (["run", "--cfg"], "--cfg needs a value"),
    (["run", *SMALL, "--csv", "--json"], "--csv needs a value"),
    (["run", "--csv", *SMALL], "--csv needs a value"),
    (["run", "--hlep"], "unknown option --hlep; did you mean --help?"),
    (
        ["datagen", *SMALL, ""],
        "a word of the command line is empty: is a shell variable not set?",
    ),
    (
        ["run", "workload=UNET3D_H100"],
        f"no workload UNET3D_H100; did you mean unet3d_h100? (known: {KNOWN})",
    ),
    (["checkpoint", "llama3_8b"], "'llama3_8b' is no override; write model=llama3_8b"),
    (
        ["checkpoint", "/tmp", "model=llama3_8b"],
        "'/tmp' is no override; write checkpoint.checkpoint_folder=/tmp",
    ),
    (
        ["checkpoint", "model=llama3_8b", "model=unet3d"],
        "model= is set 2 times: llama3_8b, unet3d; keep one",
    ),
    (["run", *SMALL, "--cfg", "hydra"], "--cfg must be job, got 'hydra'"),
    (["run", *SMALL, "--config-dir"], "--config-dir needs a value"),
    (["run", *SMALL, "--config-dir", "/nosuch"], "--config-dir /nosuch is no folder"),
    (["report", "--jsn", "x"], "unknown option --jsn; did you mean --json?"),
    (["report", "--html"], "--html needs a value"),
    (["report", "/nosuch"], "/nosuch holds no summary.json; is it a run's folder?"),
    (["report", "/dev/null"], "/dev/null is no folder; name the folder of a run"),
    (["paths", "target=/nosuch"], "target /nosuch is not a folder; create or mount it"),
    (["doctor", "/nosuch"], "/nosuch is not a folder; create or mount it"),
]

WRONG_OVERRIDES = [
    ("reader.batchsize=3", "unknown key reader.batchsize; did you mean reader.batch_size?"),
    ("+x.y=1", "unknown key x"),
    ("+reader.batch_size=0", "reader.batch_size must be at least 1, got 0"),
    ("given=[x]", "unknown key given"),
    ("made_from=x", "unknown key made_from"),
    ("reader..batch_size=4", "override reader..batch_size=4 names no key; write key=value, with a "
     "key such as reader.batch_size"),
    ("name=", "name must be text of at least one character, got ''"),
    ("steptime.batches=[]", "steptime.batches must be 'auto' or a list of at least 1, got ()"),
    ("steptime.side=33", "steptime.side must be a multiple of 32, got 33"),
    ("dataset.parquet.columns=[{name:a,dtype:int}]", "dataset.parquet.columns[0].dtype must be "
     "'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32', 'uint64', 'float16', "
     "'float32', 'float64' or 'list', got 'int'"),
    (f"dataset.record_dims={[1] * 31}".replace(" ", ""), "dataset.record_dims must be a list of at "
     f"most 30, got {[1] * 31}"),
    ("workload.reader.batchsize=1", "unknown key reader.batchsize; did you mean "
     "reader.batch_size?"),
    ("reader.batch_size=0", "reader.batch_size must be at least 1, got 0"),
    ("reader.batch_size=x", "reader.batch_size must be a whole number, got 'x'"),
    ("reader=5", "reader must be a group of keys, got 5"),
    ("reader.read_threads=-1", "reader.read_threads must be at least 0, got -1"),
    ("train.epochs=0", "train.epochs must be at least 1, got 0"),
    ("metric.au=90", "metric.au must be at most 1, got 90"),
    ("division=close", "division must be 'open' or 'closed', got 'close'"),
    ("runs=0", "runs must be at least 1, got 0"),
    ("num_accelerators=0", "num_accelerators must be at least 1, got 0"),
    ("host_memory=-1", "host_memory must be greater than 0, got -1"),
    ("output.drop_caches=maybe", "output.drop_caches must be true or false, got 'maybe'"),
    (
        "drive=nosuch",
        "drive: no datasheet of drive 'nosuch'; known: d3_s4520, d5_p5336, d5_p5336_61tb, "
        "d7_p5520, d7_ps1010; or give its rates",
    ),
    ("a=[1,", f"override a=[1, {QUOTE}\"a='value'\""),
    ("dataset.data_folder='/x", f"override dataset.data_folder='/x {QUOTE}"
     "\"dataset.data_folder='value'\""),
    ("name=/a=b", f"override name=/a=b {QUOTE}\"name='value'\""),
    ("dataset.data_folder=~/x", "dataset.data_folder=~/x: a shell expands no ~ behind =; write "
     "$HOME/x, or ./~/x for a folder of that name"),
    ("output.folder=~", "output.folder=~: a shell expands no ~ behind =; write $HOME, or ./~ for "
     "a folder of that name"),
    ("=3", "override =3 has no key; write key=value"),
    (
        "reader.read_threads=1,2",
        "override reader.read_threads=1,2 has several values; give one, or a list: "
        '"reader.read_threads=[1,2]"',
    ),
    (
        "size.targets=a,b",
        'override size.targets=a,b has several values; give one, or a list: "size.targets=[a,b]"',
    ),
    ("hydra.run.dir=x", "hydra.run.dir has no effect here; output.folder=… is where the results "
     "of a run go"),
    ("dataset.data_folder=${oops}", "unet3d_h100.yaml: Interpolation key 'oops' not found"),
    ("~nosuch", "unet3d_h100.yaml: Could not delete from config. 'nosuch' does not exist."),
    ("~dataset.format", "dataset.format is not set"),
    (
        "dataset.data_folder=null",
        "dataset.data_folder is not set; add dataset.data_folder=/path/on/the/storage",
    ),
    (
        "dataset.data_folder=",
        "dataset.data_folder is not set; add dataset.data_folder=/path/on/the/storage",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("words", "line"), WRONG_WORDS)
def test_a_wrong_word_gets_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(words, capsys) == line


@pytest.mark.parametrize(("override", "line"), WRONG_OVERRIDES)
def test_a_wrong_override_gets_one_line(
    override: str,
    line: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*QUICK, "dataset.data_folder=/nosuch"]
    assert refusal(["run", *words, override], capsys) == line
    assert list(tmp_path.iterdir()) == [], "nothing is left"


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("dataset.data_folder={tmp}/none", "dataset.data_folder {tmp}/none is not there; generate "
         "it: dlemu datagen workload=unet3d_h100 dataset.record_length_bytes=20000 "
         "dataset.record_length_bytes_stdev=5000 dataset.record_length_bytes_resize=2000 "
         "dataset.data_folder={tmp}/none dataset.num_files_train=56"),
        ("dataset.data_folder={tmp}/empty", "{tmp}/empty/train has no npz files (of others: none); "
         "set dataset.format, or generate the dataset: dlemu datagen"),
        ("dataset.data_folder={tmp}/file", "dataset.data_folder {tmp}/file is a "
         "file; name the folder of a dataset"),
        ("dataset.num_files_train=55", "{data} holds a dataset of 56 npz files img_* of 1 sample, "
         "20,000 bytes each (stdev 5,000), uint8, seed 0: dataset.num_files_train is 56, "
         "the workload's is 55; use another dataset.data_folder, or set "
         "dataset.num_files_train=56"),
        ("dataset.num_files_train=57", "{data} holds a dataset of 56 npz files img_* of 1 sample, "
         "20,000 bytes each (stdev 5,000), uint8, seed 0: dataset.num_files_train is 56, "
         "the workload's is 57; extend it with dlemu datagen, or set dataset.num_files_train=56"),
        ("dataset.num_files_train=auto", "{data} has 56 files, dataset.num_files_train=auto asks "
         "for 3,500 (dlemu datasize says why); extend it with dlemu datagen, or set "
         "dataset.num_files_train=56"),
        ("dataset.format=npy", "{data} holds a dataset of 56 npz files img_* of 1 sample, 20,000 "
         "bytes each (stdev 5,000), uint8, seed 0: dataset.format is npz, the workload's is npy; "
         "use another dataset.data_folder, or set dataset.format=npz"),
        ("reader.batch_size=57", "56 samples are too few for 2 steps: a step of 1 accelerator with "
         "batches of 57 takes 57, and the first step is left out of AU; raise "
         "dataset.num_files_train"),
        ("num_accelerators=5", "56 samples are too few for 2 steps: a step of 5 accelerators with "
         "batches of 7 takes 35, and the first step is left out of AU; raise "
         "dataset.num_files_train"),
        ("dataset.record_length_bytes_stdev=500000", "dataset.record_length_bytes_stdev must be at "
         "most about 0.7 of the mean 20000, got 500000: sizes cannot be below zero; set it too, 0 "
         "for equal sizes"),
        ("output.folder={tmp}/file", "output.folder {tmp}/file cannot be written (File exists); "
         "set output.folder"),
        ("output.folder={tmp}/file/x", "output.folder {tmp}/file/x cannot be written (Not a "
         "directory); set output.folder"),
        ("output.folder=/proc/x", "output.folder /proc/x cannot be written (No such file or "
         "directory); set output.folder"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_gets_one_line(
    data: str, override: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    names = {"tmp": str(tmp_path), "data": data.partition("=")[2]}
    words = [*QUICK, data, f"output.folder={tmp_path / 'run'}", override.format(**names)]
    if override.endswith("=auto"):
        words.append("host_memory=1MiB")
    assert refusal(["run", *words], capsys) == line.format(**names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]


def test_a_run_of_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", *SMALL, "workflow.train=false"]) == 0
    nothing = "nothing was done: workflow.train and workflow.generate_data are false\n"
    assert capsys.readouterr().out == nothing


def test_another_dataset_is_never_written_over(
    data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(["datagen", *SMALL, data, "dataset.seed=3"], capsys)
    assert "seed 0: dataset.seed is 0, the workload's is 3; use another" in line


def test_a_folder_that_cannot_be_made_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(["datagen", *SMALL, "dataset.data_folder=/proc/x"], capsys)
    assert line == "/proc/x: No such file or directory"


def test_a_run_is_never_written_over(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", *QUICK, data, f"output.folder={tmp_path}"]
    assert run(words) == 0
    before = sorted(path.read_bytes() for path in tmp_path.iterdir())
    assert refusal(words, capsys) == (
        f"output.folder {tmp_path} holds a run already; name another, or remove it"
    )
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == before


def test_a_missing_mpi_names_its_extra(data: str, tmp_path: Path) -> None:
    """Started as one of two ranks by something whose MPI Python does not have."""
    (tmp_path / "mpi4py.py").write_text("raise ImportError('no MPI library')")
    environment = os.environ | {
        "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}",
        "OMPI_COMM_WORLD_SIZE": "2",
    }
    command = [sys.executable, "-m", "dlemu", "run", *QUICK, data]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1 and "pip install 'dlemu[mpi]'" in done.stderr


def test_as_a_process_it_is_the_same_line_and_status(tmp_path: Path) -> None:
    done = dlemu("run", "workload=unet3d_h100", "reader.batchsize=3", cwd=tmp_path)
    line = "dlemu: unknown key reader.batchsize; did you mean reader.batch_size?\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
    assert list(tmp_path.iterdir()) == []


def test_quoted_values_reach_their_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / "a b=[c],d"
    assert run(["datagen", *SMALL, f"dataset.data_folder='{odd}'"]) == 0
    assert (odd / "dlemu.json").is_file()


def test_help_needs_no_workload(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["help"]):
        assert run(words) == 0
        text = capsys.readouterr().out
        assert "dlemu COMMAND" in text and KNOWN.rpartition(",")[0] in text
    for command in (
        "datasize",
        "datagen",
        "verify",
        "run",
        "size",
        "predict",
        "calibrate",
        "steptime",
    ):
        assert run([command, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"dlemu {command}: ")
    for command in ("report", "paths", "load", "doctor"):
        assert run([command, "-h"]) == 0
        assert capsys.readouterr().out.startswith(f"dlemu {command} ")
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"dlemu {__version__}\n"


def test_no_threads_are_started_to_multiply_matrices() -> None:
    code = "import os, sys, dlemu.__main__ as command; command.main(); import numpy; "
    code += "print(len(os.listdir('/proc/self/task')))"
    words = ["datasize", "workload=unet3d_h100", "num_accelerators=1", "host_memory=1GiB"]
    environment = {key: value for key, value in os.environ.items() if "NUM_THREADS" not in key}
    out = subprocess.check_output([sys.executable, "-c", code, *words], env=environment, text=True)
    assert out.splitlines()[-1] == "1"


def test_plots_without_a_home_say_nothing() -> None:
    program = "from dlemu.cli.main import run; run(['--version']); import matplotlib.figure"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"MPLCONFIGDIR": "/proc/nowhere"},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd "{gone}" && rmdir "{gone}" && {sys.executable} -m dlemu wear .'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    line = "dlemu: the working directory is gone; cd to another\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_help_may_be_cut_short(tmp_path: Path) -> None:
    """As `dlemu --help | head -1` does."""
    command = f"{sys.executable} -m dlemu --help | true"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
    )
    assert done.stderr == ""


def test_the_config_shown_is_a_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", f"workload={DATA / 'mlperf_unet3d_h100.yaml'}", "reader.io_depth=2"]
    assert run([*words, "--cfg", "job"]) == 0
    shown = capsys.readouterr().out
    tree = yaml.safe_load(shown)
    assert tree["reader"]["io_depth"] == 2 and tree["name"] == "mlperf_unet3d_h100"
    (tmp_path / "again.yaml").write_text(shown)
    assert run(["run", f"workload={tmp_path / 'again.yaml'}", "--cfg=job"]) == 0
    assert capsys.readouterr().out == shown


def test_overrides_mean_what_hydra_says(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["workload=resnet50_h100", "+reader.io_depth=4", "~metric", "++train.epochs=9"]
    assert run(["run", *words, "reader={read_threads:3}", "--cfg", "job"]) == 0
    tree = yaml.safe_load(capsys.readouterr().out)
    assert (tree["reader"]["io_depth"], tree["reader"]["read_threads"]) == (4, 3)
    assert tree["reader"]["batch_size"] == 400, "a group that is given joins the workload's"
    assert (tree["metric"]["au"], tree["train"]["epochs"]) == (0.9, 9)


def test_a_workload_may_be_made_from_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "ours.yaml"
    own.write_text("defaults: [unet3d_h100, _self_]\nname: ours\nreader: {batch_size: 2}\n")
    assert run(["run", f"workload={own}", "--cfg", "job"]) == 0
    tree = yaml.safe_load(capsys.readouterr().out)
    assert (tree["name"], tree["reader"]["batch_size"], tree["reader"]["read_threads"]) == (
        "ours",
        2,
        4,
    )


@pytest.mark.parametrize("below", ["", "workload"])
def test_the_peers_files_are_found_in_a_config_dir(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / below).mkdir(exist_ok=True)
    shutil.copy(DATA / "mlperf_unet3d_h100.yaml", tmp_path / below / "unet3d_h100.yaml")
    words = ["datasize", "workload=unet3d_h100", "host_memory=1GiB", "--config-dir", str(tmp_path)]
    assert run(words) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "ignored: model.type"
    assert second.startswith("unet3d_h100: 1 emulated accelerator")


def test_datasize_shows_both_terms(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["workload=unet3d_h100", "num_accelerators=8", "host_memory=256GiB"]
    assert run(["datasize", *words]) == 0
    text = capsys.readouterr().out
    assert "28,000   500 x 7 x 8  <- decides" in text and "9,375.1" in text
    assert "as given" in text and "3,822.9 GiB" in text


def test_verify_names_what_is_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = generate(tmp_path)
    files = sorted((tmp_path / "data" / "train").iterdir())
    assert run(["verify", *SMALL, data, "--full"]) == 0
    assert capsys.readouterr().out.endswith(": no bad files; sizes and content were checked\n")
    files[3].unlink()
    with files[5].open("r+b") as file:
        file.seek(9000)
        file.write(b"!")
    assert run(["verify", *SMALL, data]) == 1
    assert capsys.readouterr().out == (
        f"train/{files[3].name}: is missing\n{tmp_path / 'data'}: 1 bad file; sizes were checked\n"
    )
    assert run(["verify", "--full", *SMALL, data]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == [
        f"train/{files[3].name}",
        f"train/{files[5].name}",
    ]


def test_verify_needs_only_the_folder_and_repairs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(tmp_path)
    folder = tmp_path / "data"
    files = sorted((folder / "train").iterdir())
    whole = [file.read_bytes() for file in files]
    files[3].unlink()
    with files[5].open("r+b") as file:
        file.seek(9000)
        file.write(b"!!!!")
    (folder / "train" / ".DS_Store").touch()
    capsys.readouterr()

    assert run(["verify", str(folder), "--full", "--repair"]) == 0
    assert capsys.readouterr().out == (
        "train/.DS_Store: does not belong to the dataset; nothing reads it\n"
        f"train/{files[3].name}: is missing, written again\n"
        f"train/{files[5].name}: differs from what was written at byte 9000, written again\n"
        f"{folder}: 2 bad files, 2 written again, 1 extra file; sizes and content were checked\n"
    )
    assert [file.read_bytes() for file in files] == whole
    (folder / "train" / ".DS_Store").unlink()
    assert run(["verify", "--full", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}: no bad files; sizes and content were checked\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_and_says_so(number: int, data: str, tmp_path: Path) -> None:
    words = [*QUICK, data, "train.computation_time=600", "output.folder=run"]
    command = [*warm.command(), "run", *words]
    environment = with_checkout()
    process = subprocess.Popen(
        command, stdout=-1, stderr=-1, text=True, cwd=tmp_path, env=environment
    )
    until(lambda: list(tmp_path.glob("run/host.*")), "the first observation")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "dlemu: interrupted\n")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "incomplete"
    done = dlemu("report", "run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "dlemu: run: no verdict (incomplete), no whole epoch of all accelerators: interrupted\n"
    )
