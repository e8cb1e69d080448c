"""Overrides and a workload's file to a checked workload; only this knows Hydra."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlemu.errors import WorkloadError
from dlemu.terminal import refuse_tilde
from dlemu.workload.model import PATH_KEYS, Workload, check_workload, read_yaml

_CONFIGS = Path(__file__).parents[1] / "workloads" / "workload"


def compose(overrides: Sequence[str], config_dir: Path | None = None) -> Workload:
    """Return the workload that Hydra composes from "workload=name" and other overrides.

    Raises:
        WorkloadError: no such workload, an override that cannot be parsed, a key or value refused.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise WorkloadError(f"--config-dir {config_dir} is no folder")
    path = _choose([o.partition("=")[2] for o in overrides if _is(o, "workload")], config_dir)
    # To Hydra a drive's name would be a file to compose; the models look it up.
    drives = [override.partition("=")[2] for override in overrides if _is(override, "drive")]
    others = [_as_typed(o) for o in overrides if not _is(o, "workload") and not _is(o, "drive")]
    given = tuple(_check(override) for override in others)
    tree = _from_hydra(path, others)
    if drives:
        tree["drive"] = drives[-1]
    tree.setdefault("name", path.stem)
    return check_workload(tree | {"given": given})


def known_workloads(config_dir: Path | None = None) -> dict[str, Path]:
    """Return the files that "workload=" takes by name, one's own before the package's."""
    folders = [_CONFIGS]
    if config_dir is not None:
        # DLIO keeps its workloads in workload/ below the folder, or in the folder itself.
        folders += [config_dir / "workload", config_dir]
    found = {path.stem: path for folder in folders for path in folder.glob("*.yaml")}
    return dict(sorted(found.items()))


def _is(override: str, key: str) -> bool:
    return override.startswith(f"{key}=")


def _as_typed(override: str) -> str:
    """Return an override such that Hydra takes a path as it stands, unless it is quoted already.

    Raises:
        WorkloadError: the path begins with a ~ that no shell has expanded.
    """
    from hydra.core.override_parser.types import Quote, QuotedString

    key, _, path = override.partition("=")
    if key.lstrip("+") not in PATH_KEYS or path in ("", "null") or path[0] in "'\"":
        return override
    refuse_tilde(key, path)
    return f"{key}={QuotedString(path, Quote.single).with_quotes()}"


def _choose(names: Sequence[str], config_dir: Path | None) -> Path:
    """Return the file of the one workload that was named."""
    known = known_workloads(config_dir)
    choice = f"{', '.join(known)}, or a file.yaml"
    if not any(names):
        raise WorkloadError(f"workload= is not set; it is one of {choice}")
    if len(names) > 1:
        raise WorkloadError(f"workload= is set {len(names)} times: {', '.join(names)}; keep one")
    name = names[0]
    refuse_tilde("workload", name)
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise WorkloadError(f"workload file {name} is not there")
        return Path(name)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise WorkloadError(f"no workload {name}{hint} (known: {choice})")
    return known[name]


def _check(override: str) -> str:
    """Return the key of an override, if Hydra can parse it and it sets one value."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        key = override.partition("=")[0]
        raise WorkloadError(
            f"override {override} cannot be parsed; write key=value, and quote what has brackets, "
            f"commas, blanks or =, for the shell too: \"{key or 'key'}='value'\""
        ) from None
    key = str(parsed.key_or_group)
    if not key:
        raise WorkloadError(f"override {override} has no key; write key=value")
    if parsed.is_sweep_override():
        raise WorkloadError(
            f'override {override} has several values; give one, or a list: "{key}=[1,2]"'
        )
    if key.partition(".")[0] == "hydra":
        raise WorkloadError(
            f"{key} has no effect here; output.folder=… is where the results of a run go"
        )
    return key


def _from_hydra(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return a workload's file, the files that its `defaults` name below it, and overrides."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    # Every key that the models know may be set, whether a file holds it or not.
    words = [override if override[:1] in "+~" else f"++{override}" for override in overrides]
    node = read_yaml(path)
    GlobalHydra.instance().clear()
    try:
        ConfigStore.instance().store(group="workload", name="chosen", node=node)
        with initialize_config_module("dlemu.workloads", version_base="1.3", job_name="dlemu"):
            config = hydra_compose("config", overrides=["workload@_global_=chosen", *words])
        tree = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        # The lines below the first are Hydra's own advice, which names files that users never saw.
        raise WorkloadError(f"{path.name}: {str(error).splitlines()[0]}") from None
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}
