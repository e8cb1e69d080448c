"""Every command that a page, a result or an error names is one that dlemu takes.

Those of a page run in its order, in an empty folder. tests/cli/test_help.py runs those of
the help.

Rows of workloads are a fraction of what they are (`SHARES`), and commands that would take long get
words more (`SMALLER`); all else stands as on the page. What needs MPI, a second host or a GPU is
composed with all its keys, and not run.
"""

import os
import re
import shlex
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from dlemu.cli.commands import COMMANDS
from dlemu.cli.help import own_keys
from dlemu.cli.main import run
from dlemu.cli.words import parse, with_command_first
from dlemu.config import compose, published
from dlemu.config.compose import known_workloads, named
from dlemu.config.keys import all_keys
from dlemu.dataset import rule
from dlemu.plugins import named_by
from dlemu.report.stored import find_results
from dlemu.sizing import first
from tests.lab.golden import FOLDER, REFUSALS
from tests.lab.object_server import moto_server
from tests.lab.pages import PAGES, ROOT, Command, commands_of, shrink

SHARES = {
    **{"record_length_bytes": 1e-3, "record_length_bytes_stdev": 1e-3},
    **{"record_length_bytes_resize": 1e-2, "computation_time": 5e-3},
    **{"num_samples_per_file": 0.02, "time_between_checkpoints": 0},
    **{"vocab_size": 1 / 64, "hidden_size": 1 / 64, "ffn_hidden_size": 1 / 64},
    **{"model_size_bytes": 1e-4, "batch_size": 0.3},
}
"""So much is taken of these numbers of the installed rows."""
SMALLER = {
    "try": ["seconds=10", "max_bytes=1MiB"],
    "size": [
        "metric.max_cached_share=1",
        "size.confirm=1",
        "size.max_accelerators=2",
        "train.epochs=1",
    ],
    "paths": ["seconds=0.01", "io_sizes=16KiB", "workers=1", "file_size=2MiB"],
    "load": ["readers=2"],
    "load target": ["load.scale=1e-5"],
    "checkpoint": ["checkpoint.num_checkpoints_write=2", "checkpoint.num_checkpoints_read=2"],
}
"""Words more of commands that would take long; files of so few bytes come from memory."""
_MOST_FILES, _MOST_OBJECTS = 340, 40
_STEPS, _MEMORY = 10, 1 << 18
"""Of an epoch by the rule, instead of 500; bytes of the host that the rule goes by."""
_LAUNCHER = re.compile(
    r"(sudo sh examples/practice_cluster.sh \d+( \d+mbit)? -- )?mpirun( --allow-run-as-root)? "
    r"-n \d+( --host [\w:,]+)? --bind-to none|dlemu watch"
)
_BUCKET = "http://127.0.0.1:5000"
_RUNNERS = ("torchrun", "mpirun", "accelerate", "python")
_OF_OTHERS = ("pip", "mpirun")
_TRAIN = """\
import torch
data = torch.utils.data.TensorDataset(torch.zeros(64, 8))
for epoch in range(2):
    for batch in torch.utils.data.DataLoader(data, batch_size=4):
        pass
"""


@dataclass
class Host:
    """An empty folder that plays the reader's host."""

    folder: Path
    said: Callable[[], str]
    """Returns what was printed since the last call."""
    cleanup: ExitStack
    environment: pytest.MonkeyPatch
    bucket: str = _BUCKET
    """The URL of a server of buckets, once a page has started one."""

    def here(self, word: str) -> str:
        """Return a word with the host's folders below the empty one; mounts are there."""
        for name in re.findall(r"/(?:mnt|models)/[\w-]+", word):
            (self.folder / name[1:]).mkdir(parents=True, exist_ok=True)
        for name in re.findall(r"/path/to/(\w+).yaml", word):
            self._have_dataset(name)
        word = re.sub(r"/(?=(mnt|models|path)/)", f"{self.folder}/", word)
        return word.replace(_BUCKET, self.bucket)

    def _have_dataset(self, name: str) -> None:
        """Give the reader a workload file of this row's name, and the dataset that it names."""
        file = self.folder / "path" / "to" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = (compose.CONFIGS / "workload" / file.name).read_text()
        file.write_text(text.replace("data_folder: null", f"data_folder: {self.folder}/theirs"))
        run(["datagen", f"workload={file}"])

    def words_of(self, command: Command) -> list[str]:
        """Return the words of a command of dlemu for this host."""
        words = [self.here(word) for word in command.words]
        for index, word in enumerate(words):
            key, _, value = word.partition("=")
            if key == "dataset.num_files_train" and value.isdigit():
                most = _MOST_OBJECTS if any("s3://" in each for each in words) else _MOST_FILES
                words[index] = f"{key}={min(most, int(value))}"
        end = words.index("--") if "--" in words else len(words)
        forms = [words[0], *(f"{words[0]} {word.partition('=')[0]}" for word in words)]
        more = [*chain.from_iterable(SMALLER.get(form, ()) for form in forms)]
        if "division=closed" in words and "--dry-run" in words:  # takes no time, and no other keys
            more = []
        return [*words[:end], *more, *words[end:]]

    def do(self, command: Command) -> str:
        """Do with a command what can be done here; return what is wrong with it, "" if nothing."""
        match command.kind:
            case "other":
                return self._do_other(command.all_words)
            case "named":
                return _unknown_of(command)
            case "composed":
                return self._compose(command)
        words = self.words_of(command)
        if self.bucket == _BUCKET and any(word.startswith("s3://") for word in words):
            self._start_server()
            urlopen(Request(f"{self.bucket}/training", method="PUT")).close()
        for word in words[1:]:
            if word.startswith("outputs/") and not Path(word).exists():
                shutil.copytree(find_results(Path("outputs"))[-1], word)
        return self._refusal_of(words)

    def _start_server(self) -> None:
        """Start a server of buckets, as a page says or as its reader has one."""
        self.bucket = self.cleanup.enter_context(moto_server()).url
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            self.environment.setenv(name, "any")
        self.environment.setenv("AWS_ENDPOINT_URL", self.bucket)

    def _refusal_of(self, words: Sequence[str]) -> str:
        """Return the line with which a command is refused; a run that is too slow is none."""
        self.said()
        run(words)
        return "\n".join(re.findall(r"^dlemu: .*", self.said(), re.MULTILINE))

    def _compose(self, command: Command) -> str:
        launcher = " ".join(command.all_words[: command.all_words.index("dlemu")])
        if launcher and not _LAUNCHER.fullmatch(launcher):
            return f"unknown launcher {launcher}"
        name, *words = self.words_of(command)
        if not COMMANDS[name].function:
            return self._refusal_of([name, *words, "--cfg", "job"])
        arguments = named_by(COMMANDS[name].arguments)
        parsed = parse(words, COMMANDS[name].options)
        if parsed.behind:
            return "" if parsed.behind[0] in _RUNNERS else f"what is {parsed.behind[0]}?"
        target = {"target": tuple(",".join(parsed.others).split(","))} if parsed.others else {}
        arguments(**target, **parsed.tree(name))
        return ""

    def _do_other(self, words: Sequence[str]) -> str:
        match words:
            case ["make", *targets]:
                known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
                return f"no target {targets}" * ({*known} < {t for t in targets if "=" not in t})
            case ["cd", folder, "&&", "python", "-m", module, *_]:
                is_there = (ROOT / folder).is_dir() and find_spec(module)
                return "" if is_there else f"no {folder} or {module}"
            case ["python", "-m", module, *_]:
                return "" if find_spec(module) else f"no module {module}"
            case ["moto_server", *_]:
                self._start_server()
                return ""
            case ["curl", "-X", method, url]:
                with urlopen(Request(self.here(url), method=method)) as answer:
                    return "" if answer.status == 200 else str(answer.status)
        return "" if words[0] in _OF_OTHERS else f"what is {words[0]}?"


def _unknown_of(command: Command) -> str:
    """Return what a command with words to be filled in names that does not exist."""
    name, *words = with_command_first(command.words)
    if name in ("help", "COMMAND"):
        return ""
    if name not in COMMANDS:
        return f"no command {name}"
    about = COMMANDS[name]
    parsed = parse(words, ("--cfg", *about.options), for_job=not about.function)
    known = all_keys().keys() | {key.name for key in own_keys(name, f"{name}.")}
    known |= {key.removeprefix(f"{name}.") for key in known}
    return "".join(f"no key {key}" for key in parsed.values.keys() - known)


@pytest.fixture
def host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Host]:
    """The installed rows are small, and so is what the rule asks for."""
    shrink(compose.CONFIGS, tmp_path / "rows", SHARES)
    shutil.copytree(ROOT / "examples", tmp_path / "here" / "examples")
    monkeypatch.setattr(compose, "CONFIGS", tmp_path / "rows")
    monkeypatch.setattr(rule, "STEPS_PER_EPOCH", _STEPS)
    monkeypatch.setattr(rule, "host_memory_bytes", lambda: (_MEMORY, "MemTotal"))
    monkeypatch.setattr(first, "_MOST_ACCELERATORS", 2)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path / "here")
    Path("train.py").write_text(_TRAIN)
    # Files that the reader has.
    shutil.copy(tmp_path / "rows" / "workload" / "unet3d_h100.yaml", "mine.yaml")
    weights = tmp_path / "models" / "llama" / "model-1.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(bytes(1 << 16))

    def said() -> str:
        found = capfd.readouterr()
        return found.out + found.err

    with ExitStack() as cleanup:
        for kept in (published._published, all_keys):  # of these rows, and later of the others
            kept.cache_clear()
            cleanup.callback(kept.cache_clear)
        yield Host(tmp_path, said, cleanup, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(
    page: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = []
    for command in commands_of(page.read_text(encoding="utf-8")):
        for name, value in command.variables.items():
            monkeypatch.setenv(name, host.here(value))
        if found := host.do(command):
            wrong.append(f"{page.name}:{command.line}: {command.text}\n    {found}")
    assert not wrong, "\n".join(wrong)


def test_most_commands_of_pages_are_run() -> None:
    """`python -m tests.lab.pages` prints the numbers."""
    kinds = Counter(each.kind for page in PAGES for each in commands_of(page.read_text()))
    assert kinds["run"] > 90 and kinds["composed"] > 15 and kinds["named"] > 100


_PRINTED = re.compile(
    r"(?<!\$ )\bdlemu ([a-z]+)((?: +[\w.]+=\S*[\w)\]}%]| +--[a-z-]+| +[\w.]*/[\w/.]+)+)"
)
"""A command with keys, options or folders in a text."""


def test_a_command_that_results_and_errors_name_is_composed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [path.read_text().replace("\\\n", "") for path in FOLDER.glob("*.txt")]
    told = tomllib.loads(REFUSALS.read_text()).values()
    texts += [line for entries in told for line in entries.values()]
    found = {match for text in texts for match in _PRINTED.findall(text)}
    composed = 0
    for name, rest in sorted(found):
        words = shlex.split(rest)
        rows = known_workloads().keys() | {*named("model")}
        values = [
            word.partition("=")[2] for word in words if word.startswith(("workload=", "model="))
        ]
        if name not in COMMANDS or COMMANDS[name].function or not {*values} <= rows or not values:
            continue
        words = [word for word in words if word not in ("--dry-run", "--json")]
        status = run([name, *words, "--cfg", "job"])
        assert status == 0, f"dlemu {name}{rest}\n{capsys.readouterr().err}"
        composed += 1
    assert composed > 20
