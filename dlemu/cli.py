"""The command line: Hydra composes, pydantic checks, the rest is called. Only this knows Hydra."""

import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from dlemu.errors import DlemuError, RunError, WorkloadError
from dlemu.world import PeerError, World, make_world

USAGE = """\
dlemu - how many GPUs will this storage feed?

  dlemu COMMAND [workload=NAME] [key=value ...] [--config-dir FOLDER] [--cfg job] [--help]

  datasize   how large the dataset must be, and which rule says so
  datagen    write the dataset (under mpirun: by all ranks)
  verify     check the dataset; --full its content too
  run        replay the workload, report samples/s, AU, PASS or FAIL, and why
  size       find the most accelerators that this storage feeds, by measurement
  predict    the same by arithmetic, from a drive's rates or a calibration
  calibrate  measure this host and the storage, for predict
  report     show runs again: dlemu report FOLDER...
  paths      compare the data paths to memory and to the GPU: dlemu paths target=FOLDER
  doctor     what this host can do, and what is missing: dlemu doctor [FOLDER]

  dlemu datasize workload=unet3d_h100 num_accelerators=8 host_memory=256GiB
  dlemu datagen  workload=unet3d_h100 dataset.data_folder=/mnt/nvme dataset.num_files_train=auto
  mpirun -n 8 --bind-to none dlemu run workload=unet3d_h100 dataset.data_folder=/mnt/nvme

Workloads: {workloads}, or the path of a YAML file (DLIO's as they are).
Exit status: 0 passed, 1 error or failed run, 2 the AU is under the threshold.
"""

_SIGNALLED = 130


@dataclass(frozen=True)
class Arguments:
    """What stood on the command line behind the command."""

    overrides: list[str]
    config_dir: Path | None
    full: bool
    show_config: bool
    rest: list[str]


def run(arguments: Sequence[str]) -> int:
    """Run one command; return the exit status."""
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(_usage(), end="")
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"dlemu {version('dlemu')}")
        return 0
    command, *rest = arguments
    try:
        if command not in _COMMANDS:
            import difflib

            near = difflib.get_close_matches(command, _COMMANDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise WorkloadError(f"unknown command {command}{hint} (dlemu --help lists them)")
        if "--help" in rest or "-h" in rest:
            print(f"dlemu {command}: {_COMMANDS[command].__doc__}\n\n{_usage()}", end="")
            return 0
        signal.signal(signal.SIGTERM, _end)
        return _COMMANDS[command](rest)
    except PeerError:
        return 1  # the rank that failed has said why
    except DlemuError as error:
        print(f"dlemu: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dlemu: interrupted", file=sys.stderr)
        return _SIGNALLED
    except BrokenPipeError:
        # What reads our output has ended; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def compose(overrides: Sequence[str], config_dir: Path | None = None) -> Any:
    """Return the checked workload that Hydra composes from overrides.

    Raises:
        WorkloadError: no such workload, an override that cannot be parsed, a key or value refused.
    """
    from dlemu.workload import check_workload

    name = next((o.partition("=")[2] for o in overrides if o.startswith("workload=")), None)
    if name is None:
        raise WorkloadError(f"workload= is not set; one of {', '.join(_workloads(config_dir))}")
    path = _file_of(name, config_dir)
    others = [override for override in overrides if not override.startswith("workload=")]
    # To Hydra a drive's name would be a file to compose; the models look it up.
    drive = next((o.partition("=")[2] for o in others if o.startswith("drive=")), None)
    composed = [override for override in others if not override.startswith("drive=")]
    tree = _from_hydra(name, composed, config_dir) if path is None else _from_file(path, composed)
    if drive is not None:
        tree["drive"] = drive
    tree.setdefault("name", path.stem if path is not None else name)
    tree["given"] = tuple(other.partition("=")[0].lstrip("+~") for other in others)
    return check_workload(tree)


def _from_hydra(name: str, overrides: list[str], config_dir: Path | None) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if name not in _workloads(config_dir):
        from dlemu.workload import load_workload

        load_workload(name)  # refuses, and names the nearest
    # Every key that the models know may be set, whether a file holds it or not.
    words = [override if override[:1] in "+~" else f"++{override}" for override in overrides]
    words.insert(0, f"workload@_global_={name}")
    if config_dir is not None:
        words.append(f"hydra.searchpath=[file://{config_dir.absolute()}]")
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("dlemu.workloads", version_base="1.3", job_name="dlemu"):
            config = hydra_compose("config", overrides=words)
        tree = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise WorkloadError(_first_line(error)) from None
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _from_file(path: Path, overrides: list[str]) -> dict[str, Any]:
    """Return a workload file with Hydra's overrides laid over it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from dlemu.workload import read_yaml

    try:
        config = OmegaConf.create(read_yaml(path))
        for override in OverridesParser.create().parse_overrides(overrides):
            OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)
        tree = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise WorkloadError(_first_line(error)) from None
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _file_of(name: str, config_dir: Path | None) -> Path | None:
    """Return the file that a workload's name stands for, None where Hydra is to find it."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise WorkloadError(f"workload file {name} is not there")
        return path
    if config_dir is not None:
        if not config_dir.is_dir():
            raise WorkloadError(f"--config-dir {config_dir} is no folder")
        # DLIO keeps its workloads in the folder itself or in workload/ below it.
        for path in (config_dir / f"{name}.yaml", config_dir / "workload" / f"{name}.yaml"):
            if path.is_file():
                return path
    return None


def _workloads(config_dir: Path | None = None) -> list[str]:
    folders = [Path(__file__).parent / "workloads" / "workload"]
    if config_dir is not None:
        folders.append(config_dir / "workload")
    return sorted(path.stem for folder in folders for path in folder.glob("*.yaml"))


def _usage() -> str:
    return USAGE.format(workloads=", ".join(_workloads()))


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\n")[0].split())


def _parse(rest: Sequence[str]) -> Arguments:
    """Return the command's arguments; options may stand anywhere, as in Hydra."""
    overrides, others = [], []
    config_dir, full, show = None, False, False
    words = iter(rest)
    for word in words:
        option, _, value = word.partition("=")
        if option in ("--config-dir", "-cd"):
            config_dir = Path(value or next(words, ""))
        elif option in ("--cfg", "-c"):
            value = value or next(words, "")
            if value != "job":
                raise WorkloadError(f"--cfg must be job, got {value!r}")
            show = True
        elif option == "--full":
            full = True
        elif word.startswith("-"):
            raise WorkloadError(f"unknown option {word} (dlemu --help lists them)")
        elif "=" in word or word.startswith("~"):
            overrides.append(word)
        else:
            others.append(word)
    return Arguments(overrides, config_dir, full, show, others)


def _workload(rest: Sequence[str]) -> tuple[Any, Arguments]:
    """Return the workload of a command line, and its options; shows it first if asked to."""
    arguments = _parse(rest)
    if arguments.rest:
        raise WorkloadError(f"{arguments.rest[0]!r} is no override; write key=value")
    workload = compose(arguments.overrides, arguments.config_dir)
    if arguments.show_config:
        from dlemu.records import dump_workload

        print(dump_workload(workload), end="")
        raise SystemExit(0)
    return workload, arguments


def _end(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does: workers stopped, the summary written."""
    raise KeyboardInterrupt


def _datasize(rest: Sequence[str]) -> int:
    """print the size of the dataset that the rules ask for, both terms, and which one won"""
    from dlemu.files import dataset_size
    from dlemu.report import render_datasize
    from dlemu.settle import measure_memory
    from dlemu.world import Alone

    workload, _ = _workload(rest)
    accelerators = workload.num_accelerators or workload.accelerators_per_rank
    memory = measure_memory(workload, Alone())
    size = dataset_size(workload, num_accelerators=accelerators, host_memory=memory.num_bytes)
    print(render_datasize(workload, size, num_accelerators=accelerators, memory=memory.text))
    return 0


def _datagen(rest: Sequence[str]) -> int:
    """write the dataset; killed at any moment and started again, it continues"""
    from dlemu.datagen import generate
    from dlemu.progress import show_progress
    from dlemu.settle import num_accelerators, settle_size

    workload, _ = _workload(rest)
    with make_world() as world:
        accelerators = workload.num_accelerators or num_accelerators(workload, world)
        workload, _, _ = settle_size(workload, world, accelerators=accelerators)
        with show_progress("datagen", quiet=world.rank != 0) as progress:
            manifest = generate(workload, world=world, on_progress=progress)
        if world.rank == 0:
            print(f"{workload.data_folder}: {manifest.describe()}")
    return 0


def _verify(rest: Sequence[str]) -> int:
    """check the sizes of all files, with --full their content, and name each bad one"""
    from dlemu.datagen import verify
    from dlemu.progress import show_progress

    workload, arguments = _workload(rest)
    with make_world() as world:
        with show_progress("verify", quiet=world.rank != 0) as progress:
            faults = verify(
                workload.data_folder, full=arguments.full, world=world, on_progress=progress
            )
        faults = world.broadcast(faults)
        if world.rank == 0:
            for fault in faults:
                print(f"{fault.path}: {fault.problem}")
            what = "sizes and content" if arguments.full else "sizes"
            print(f"{workload.data_folder}: {len(faults)} bad files; {what} were checked")
    return 1 if faults else 0


def _run(rest: Sequence[str]) -> int:
    """replay the workload; PASS or FAIL, samples/s, AU, and what bound it"""
    from dlemu.job import generate_dataset, run_job
    from dlemu.report import render_run
    from dlemu.settle import num_accelerators, settle_size

    workload, _ = _workload(rest)
    with make_world() as world:
        if world.rank == 0 and workload.ignored:
            print(f"ignored: {', '.join(workload.ignored)}")
        if workload.workflow.generate_data:
            settled, _, _ = settle_size(
                workload, world, accelerators=num_accelerators(workload, world)
            )
            generate_dataset(settled, world)
        if not workload.workflow.train:
            return 0
        if workload.division == "closed" or workload.runs > 1 or workload.warmup:
            from dlemu.protocol import run_protocol

            return run_protocol(workload, world=world, say=_say)
        outcome = run_job(workload, world=world, say=_say)
        status = 0
        if outcome is not None:
            print(f"\n{render_run(workload, outcome.metrics, outcome.summary)}")
            print(f"results: {outcome.folder}")
            failed = outcome.summary["status"] != "complete"
            status = 1 if failed else 0 if outcome.passed else 2
        status = world.broadcast(status)
    return status


def _say(text: str) -> None:
    print(text, flush=True)


def _report(rest: Sequence[str]) -> int:
    """show runs again, computed anew from their stored steps"""
    from dlemu.rereport import report_folders

    arguments = _parse(rest)
    if not arguments.rest:
        raise WorkloadError("dlemu report needs the folder of a run: dlemu report outputs/...")
    return report_folders([Path(folder) for folder in arguments.rest], arguments.overrides)


def _module(name: str) -> Callable[[Sequence[str]], int]:
    def main(rest: Sequence[str]) -> int:
        try:
            module = importlib.import_module(f"dlemu.{name}")
        except ModuleNotFoundError as error:
            raise RunError(f"{error.name} is missing; pip install {error.name}") from None
        status: int = module.main(list(rest))
        return status

    main.__doc__ = _ABOUT[name]
    return main


_ABOUT = {
    "paths": "compare the data paths to memory and to the GPU, block size by block size",
    "doctor": "tell what this host can do and what is missing, with the remedy for each",
}


def _with_world(function: Callable[[Any, World], int]) -> Callable[[Sequence[str]], int]:
    def main(rest: Sequence[str]) -> int:
        workload, _ = _workload(rest)
        with make_world() as world:
            return function(workload, world)

    main.__doc__ = function.__doc__
    return main


def _predict(rest: Sequence[str]) -> int:
    """say what a storage would feed, from a drive's rates or a calibration, with its error"""
    from dlemu.predict import predict_storage

    workload, _ = _workload(rest)
    _, text = predict_storage(workload)
    print(text)
    return 0


def _size(workload: Any, world: World) -> int:
    """find the most emulated accelerators that this storage feeds, by measured search"""
    from dlemu.size import size_storage

    return size_storage(workload, world, _say)


def _calibrate(workload: Any, world: World) -> int:
    """measure what this host can move and how fast the storage is, for dlemu predict"""
    from dlemu.calibrate import calibrate_host

    return calibrate_host(workload, world, _say)


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "datasize": _datasize,
    "datagen": _datagen,
    "verify": _verify,
    "run": _run,
    "size": _with_world(_size),
    "predict": _predict,
    "calibrate": _with_world(_calibrate),
    "report": _report,
    "paths": _module("paths"),
    "doctor": _module("doctor"),
}
