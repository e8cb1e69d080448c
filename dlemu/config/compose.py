"""A workload's name or file, and overrides, to a tree of keys. Only this knows Hydra.

The command line's overrides are words in Hydra's grammar; the library's are Python values. Hydra is
slow to import and to compose, so only what needs it gets it: files with `defaults` or `${...}`, and
words that are more than a key and a number, a name or a path.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import yaml

from dlemu.config.refusal import NO_KEYS
from dlemu.config.source import OF_FOLDER, WordSource, check_found, refuse_beyond
from dlemu.config.source import PATH_KEYS as PATH_KEYS
from dlemu.errors import WorkloadError, did_you_mean

CONFIGS = Path(__file__).parents[1] / "workloads"

_SECRETS = ("access_key_id", "secret_access_key")
SECRET_KEYS = frozenset(
    f"storage.{above}{name}" for above in ("", "storage_options.") for name in _SECRETS
)
"""Keys whose value is never shown; on the command line it is taken as it stands."""

_PLAIN_WORD = re.compile(
    r"(?!hydra\b|defaults\b)(?P<key>[a-z]\w*(?:\.[a-z]\w*)*)=(?:"
    r"(?P<int>-?(?:0|[1-9]\d*))|(?P<float>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:e-?\d+)?)|"
    r"(?P<text>(?!inf$|nan$)[a-z][\w/.-]*|\d+(?:\.\d+)?(?:%|[KMGTP]i?B(?:/s)?|ms|s|min|h|d)))",
    re.ASCII | re.IGNORECASE,
)
"""Words whose value Hydra's grammar takes for what Python takes it for."""

_NAMED: Mapping[str, object] = {"true": True, "false": False, "null": None}

_DOTTED = re.compile(r"[+~]*\w+(?:[.@]\w+)*")

# Workloads have some hundred values on four levels.
_MOST_BYTES = 100_000
_MOST_VALUES = 10_000
_MOST_KEYS = 1_000
_MOST_LEVELS = 50

# All but the first are raised for a value that does not fit its tag: `!!int ""`, `2001-99-99`.
_NOT_YAML = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError)


_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where PyYAML was built with it: it takes a tenth of the time."""


class _Bounded:
    """Reads 1e6 as a number, which YAML 1.1 takes for text, and bounds merged keys."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)  # type: ignore[misc]
        if len(node.value) > _MOST_KEYS:
            raise ValueError(f"it has a group of more than {_MOST_KEYS:,} keys")


class _Loader(_Bounded, _SafeLoader):  # type: ignore[misc, valid-type]
    pass


class _SlowLoader(_Bounded, yaml.SafeLoader):
    """For names that are no UTF-8, which are written as halves of surrogates; libyaml has none."""


_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
for _each in (_Loader, _SlowLoader):
    _each.yaml_implicit_resolvers = dict(_SafeLoader.yaml_implicit_resolvers)
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"),
        list("-+0123456789"),
    )


def compose(
    name: str | Path,
    overrides: Mapping[str, object],
    group: str = "workload",
    source: WordSource = WordSource.USER,
) -> dict[str, Any]:
    """Return the keys of a row of a group or of a YAML file, with dotted overrides.

    `source` is who says the name; the overrides are a user's.
    """
    name = str(name)
    if source is WordSource.INSTALLED and name not in (known := named(group)):
        raise WorkloadError(no_row(group, name, known))
    path = find(group, name)
    return _composed(path, _read_job(path), [*overrides.items()], source)


def compose_words(
    overrides: Sequence[str], config_dir: Path | None = None, source: WordSource = WordSource.USER
) -> dict[str, Any]:
    """Return the keys that "workload=NAME" and other words of the command line ask for.

    `source` is who says the name of the workload; all other words are a user's.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise WorkloadError(f"--config-dir {config_dir} is no folder; name one with workload files")
    asked: dict[str, list[str]] = {"workload": [], "model": []}
    words: list[str] = []
    for word in overrides:
        key, _, text = word.partition("=")
        asked.get(key.lstrip("+"), words).append(text if key.lstrip("+") in asked else word)
    # Files that are not there are refused first, for a model may be the only name.
    models = [("model", model_keys(name, config_dir)) for name in asked["model"]][-1:]
    # A named drive first: keys of it change its values.
    pairs = sorted((_pair(word) for word in words), key=lambda pair: pair[0] != "drive")
    for place, (key, value) in enumerate(pairs):
        if key == "drive" and isinstance(value, str):
            pairs[place] = key, str(find("drive", value, config_dir))
    if not any(asked.values()):
        refuse_misnamed(key for key, _ in pairs)
    group = "workload" if asked["workload"] else "model"
    path = _choose(group, asked[group], config_dir)
    return _composed(path, _read_job(path) | dict(models), [*models, *pairs], source)


def refuse_misnamed(keys: Iterable[str]) -> None:
    """Refuse a key that is nearly one that names a job, where none is named.

    Raises:
        WorkloadError: the line has both.
    """
    for key in keys:
        if "." not in key and (hint := did_you_mean(key, ("workload", "model"), cutoff=0.75)):
            raise WorkloadError(f"unknown key {key}{hint}")


def _composed(
    path: Path, tree: dict[str, Any], values: Sequence[tuple[str, object]], source: WordSource
) -> dict[str, Any]:
    """Return a file's keys with the values of dotted keys, one after the other.

    It has a name, the keys that the user gave, and where it was made from.
    """
    if source is WordSource.FOUND:
        check_found(path, tree)
    is_plain = _is_plain(tree) and not any("${" in str(value) for _, value in values)
    if not is_plain:
        tree = _merge(path, tree)
    if source is WordSource.FOUND:
        refuse_beyond(path, leaves(tree), dict(leaves(dict(values))))
        for key in OF_FOLDER:
            (value_of(tree, key.rpartition(".")[0]) or {}).pop(key.rpartition(".")[2], None)
    for key, value in values:
        if key in NO_KEYS:
            raise WorkloadError(f"unknown key {key}")
        if value is _GONE:
            _delete(tree, key)
        else:
            set_key(tree, key, value)
    if not is_plain:
        tree = _resolve(path, tree)
    named_ones = (CONFIGS / "workload", CONFIGS / "model")
    # What `workload=` takes to find this file again, from any folder.
    origin = path.stem if path.parent in named_ones else str(path.absolute())
    given = tuple(dict.fromkeys(key for key, _ in values))
    return {"name": path.stem} | tree | {"given": given, "made_from": origin}


def named(group: str, config_dir: Path | None = None) -> dict[str, Path]:
    """Return the files of a group of rows, such as "model", by name.

    A file in the group's folder below `config_dir` comes first; DLIO keeps workloads in it as well.
    """
    folders = [CONFIGS / group]
    if config_dir is not None:
        folders += [config_dir / group, *([config_dir] if group == "workload" else [])]
    found = {path.stem: path for folder in folders for path in folder.glob("*.yaml")}
    return dict(sorted(found.items()))


known_workloads = partial(named, "workload")
"""Return the files that "workload=" takes by name."""


def datasheet(name: str) -> dict[str, Any]:
    """Return the values of a drive in workloads/drive/, or in a YAML file.

    Raises:
        WorkloadError: there is none of that name.
    """
    return read_yaml(find("drive", name))


def find(group: str, name: str, config_dir: Path | None = None) -> Path:
    """Return the file of a row of a group, by its name or its path.

    Raises:
        WorkloadError: there is none.
    """
    known = named(group, config_dir)
    if not name.endswith((".yaml", ".yml")):
        if name not in known:
            raise WorkloadError(no_row(group, name, known))
        return known[name]
    if not Path(name).is_file():
        raise WorkloadError(
            f"{group} file {name} is not there; write its path, or a name without .yaml"
        )
    return Path(name)


def no_row(group: str, name: str, known: Iterable[str]) -> str:
    """Return the line for a name that no row has; where a workload is meant, others have names."""
    known = list(known)
    parts = name.split(",")
    if len(parts) > 1 and (unknown := [each for each in parts if each not in known]):
        if len(unknown) < len(parts) or all(re.fullmatch(r"\w+", each) for each in parts):
            return no_row(group, unknown[0], known)
    elif len(parts) > 1:
        return (
            f"{group}={name} names {len(parts)}, and one is taken here; start the command for each"
        )
    others = {"model": "a model of checkpoints", "drive": "a drive"} if group == "workload" else {}
    for other, what in others.items():
        if name in named(other):
            hint = f"; did you mean {name}_h100?" if f"{name}_h100" in known else ""
            return f"no workload {name}{hint} ({other}={name} is {what})"
    hint = did_you_mean(name, known)
    if {*known} == {*named("workload")}:
        return f"no workload {name}{hint} (dlemu help workloads lists them; or a file.yaml)"
    return f"no {group} {name}{hint} (known: {', '.join(known)}, or a file.yaml)"


no_workload = partial(no_row, "workload")


def model_keys(name: str, config_dir: Path | None = None) -> dict[str, Any]:
    """Return the keys model.* of a published model, or of a YAML file.

    Raises:
        WorkloadError: there is no such file, or it has no model.
    """
    path = find("model", name, config_dir)
    model = read_yaml(path).get("model")
    if not isinstance(model, dict):
        raise WorkloadError(
            f"{path} has no group of keys model, which says what is written; name a file with one"
        )
    return dict(model)


def set_key(tree: dict[str, Any], key: str, value: object) -> None:
    """Set a dotted key of a tree. A group of keys joins the group that is there.

    Raises:
        WorkloadError: it is a key of a drive that was named, and there is no such drive.
    """
    *sections, leaf = key.split(".")
    for section in sections:
        below = tree.get(section)
        if section == "drive" and isinstance(below, str):  # other values of a named drive
            below = datasheet(below)
        # A copy, for YAML may refer to one group in two places.
        tree[section] = dict(below) if isinstance(below, dict) else {}
        tree = tree[section]
    tree[leaf] = _joined(tree.get(leaf), value)


def _joined(old: object, new: object) -> object:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    return {**old, **{key: _joined(old.get(key), value) for key, value in new.items()}}


def value_of(tree: object, key: str) -> Any:
    """Return the value of a dotted key; None where there is none. Without a key, the tree."""
    for part in filter(None, key.split(".")):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield each dotted key of a tree with its value."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def refuse_tilde(key: str, path: str) -> None:
    """Refuse a path with a ~ that the shell has not expanded, as it does not behind a =."""
    if path == "~" or path.startswith("~/"):
        home = f"$HOME{path[1:]}"
        raise WorkloadError(
            f"{key}={path}: a shell expands no ~ behind =; write {home}, or ./{path} for a folder "
            "of that name"
        )


def _choose(group: str, names: Sequence[str], config_dir: Path | None) -> Path:
    """Return the file of the one workload or model that was named."""
    if not any(names):
        raise WorkloadError(
            "no job is named; write the folder of a dataset, or workload=NAME or FILE.yaml (dlemu "
            "help workloads lists the names)"
        )
    if len(names) > 1:
        raise WorkloadError(f"{group}= is set {len(names)} times: {', '.join(names)}; keep one")
    refuse_tilde(group, names[0])
    return find(group, names[0], config_dir)


def _read_job(path: Path) -> dict[str, Any]:
    """Return the keys of a file, also of one that a run of DLIO has kept: below `workload`."""
    tree = read_yaml(path)
    inner = tree.get("workload")
    if isinstance(inner, dict) and not tree.keys() & {"dataset", "reader", "model", "defaults"}:
        return {key: value for key, value in tree.items() if key != "workload"} | inner
    return tree


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML file's mapping."""
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise WorkloadError(f"{path} has more than {_MOST_BYTES:,} bytes; is it a workload?")
    try:
        tree = _parsed(text)  # from bytes: UTF-8, whatever the locale
        _check_extent(tree)
    except RecursionError:
        raise WorkloadError(
            f"{path} is nested too deeply for a workload; name the file of one"
        ) from None
    except _NOT_YAML as error:
        raise WorkloadError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise WorkloadError(f"{path} holds no keys; a workload has dataset, reader and train")
    return tree


def _parsed(text: str | bytes) -> Any:
    """Return the value of a YAML text.

    Raises:
        RecursionError: it is nested more deeply than any workload; libyaml would end the process.
        YAMLError: it is no YAML; others of _NOT_YAML for a value that does not fit its tag.
    """
    level, data = 0, text.encode(errors="surrogatepass") if isinstance(text, str) else text
    loader = _SlowLoader if _HALF.search(data) else _Loader
    for event in yaml.parse(text, loader):
        if isinstance(event, yaml.CollectionStartEvent):
            level += 1
            if level > _MOST_LEVELS:
                raise RecursionError
        elif isinstance(event, yaml.CollectionEndEvent):
            level -= 1
    return yaml.load(text, loader)


def _check_extent(tree: object) -> None:
    """Refuse a tree that references make endless, or nearly so.

    Raises:
        ValueError: it has too many values; each counts as often as it is referred to.
        RecursionError: it is nested too deeply.
    """
    found = 0
    level: Iterable[object] = [tree]
    for _ in range(_MOST_LEVELS):
        values = list(islice(level, _MOST_VALUES))
        found += len(values)
        if found >= _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values")
        if not values:
            return
        level = chain.from_iterable(map(_inner, values))
    raise RecursionError


def _inner(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return chain(value.keys(), value.values())
    return value if isinstance(value, (list, tuple, set)) else ()


_GONE = object()
"""In the place of a value: the key is deleted, as ~key asks for."""


def _delete(tree: dict[str, Any], key: str) -> None:
    above, _, leaf = key.rpartition(".")
    if (value_of(tree, above) or {}).pop(leaf, _GONE) is _GONE:
        raise WorkloadError(f"~{key}: the workload's file sets no {key}; leave it out")


def _plain_word(override: str) -> tuple[str, object] | None:
    """Return the key and the value of an override, None where only Hydra can tell them."""
    override = override.lstrip("+")
    key, _, text = override.partition("=")
    if key in PATH_KEYS | SECRET_KEYS and text not in ("", "null") and text[0] not in "'\"":
        refuse_tilde(key, text)  # a path is taken as it stands, unless it is quoted
        return key, text
    if not (found := _PLAIN_WORD.fullmatch(override)):
        return None
    if found["int"] is not None and key != "drive":
        return key, int(text)
    if found["float"] is not None and key != "drive":
        return key, float(text)
    return key, text if key == "drive" else _NAMED.get(text.lower(), text)


def value_of_word(key: str, text: str) -> Any:
    """Return the value of a key that is set on the command line, as YAML has it.

    Raises:
        WorkloadError: it is no YAML.
    """
    try:
        return _parsed(text)
    except (*_NOT_YAML, RecursionError):
        raise WorkloadError(f"override {key}={text} cannot be parsed; write key=value") from None


def without_secrets(words: Iterable[str]) -> list[str]:
    """Return words of a command line with secrets, and passwords in URLs, left out."""
    parts = (word.partition("=") for word in words)
    return [
        f"{key}=..."
        if key.lstrip("+").removeprefix("workload.") in SECRET_KEYS
        else key + is_set + re.sub(r"(https?://).*@", r"\1...@", value)
        for key, is_set, value in parts
    ]


def _pair(override: str) -> tuple[str, object]:
    """Return the key and the value of an override, by Hydra's grammar."""
    if (plain := _plain_word(override)) is not None:
        return plain
    parsed = _parse(override)
    key = str(parsed.key_or_group)
    if parsed.is_sweep_override():
        values = override.partition("=")[2]
        raise WorkloadError(
            f"override {override} has several values; for a run of each add --multirun, or give "
            f'one, or a list: "{key}=[{values}]"'
        )
    return key, _GONE if parsed.is_delete() else parsed.value()


def sweeps(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job that several values ask for, as reader.batch_size=1,2.

    Raises:
        WorkloadError: one cannot be parsed.
    """
    choices = []
    for override in overrides:
        (key, _, text), each = override.partition("="), [override]
        group = key.lstrip("+")
        if group in ("workload", "model"):  # a path may have commas
            if len(names := text.split(",")) > 1 and {*names} <= {*named(group)}:
                each = [f"{key}={name}" for name in names]
        elif _plain_word(override) is None:
            parsed = _parse(override)
            if parsed.is_sweep_override():
                each = [f"{key}={value}" for value in parsed.sweep_string_iterator()]
        choices.append(each)
    return [list(job) for job in product(*choices)]


def _parse(override: str) -> Any:
    """Return an override as Hydra parses it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        key = override.partition("=")[0]
        if not _DOTTED.fullmatch(key):
            raise WorkloadError(
                f"override {override} names no key; write key=value, with a key such as "
                "reader.batch_size"
            ) from None
        raise WorkloadError(
            f"override {override} cannot be parsed; write key=value, and quote what has brackets, "
            f"commas, blanks or =, for the shell too: \"{key}='value'\""
        ) from None
    key = str(parsed.key_or_group)
    if not key:
        raise WorkloadError(f"override {override} has no key; write key=value")
    if re.split(r"[./@]", key)[0] == "hydra":
        raise WorkloadError(
            f"{key} is not taken; output.folder=… is where the results of a run go, "
            "output.log=… where its messages go"
        )
    return parsed


def _is_plain(value: object) -> bool:
    """Return whether Hydra would change nothing of a file's keys."""
    if isinstance(value, dict):
        return not value.keys() & {"defaults", "hydra"} and all(
            isinstance(key, str) and _is_plain(inner) for key, inner in value.items()
        )
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return "${" not in value if isinstance(value, str) else isinstance(value, float | int | None)


def _merge(path: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """Return a file's keys, merged with the files that its `defaults` name."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    _check_defaults(path, tree)
    outer = GlobalHydra.instance().hydra  # of a program that uses Hydra itself
    GlobalHydra.instance().clear()
    try:
        with _in_one_line(path):
            ConfigStore.instance().store(group="workload", name="chosen", node=tree)
            with initialize_config_module("dlemu.workloads", version_base="1.3", job_name="dlemu"):
                config = hydra_compose("config", overrides=["workload@_global_=chosen"])
            return _plain(OmegaConf.to_container(config))
    finally:
        GlobalHydra.instance().hydra = outer


def _check_defaults(path: Path, tree: Mapping[str, Any]) -> None:
    """Refuse `defaults` that are no list of names, or of a group and its name.

    Raises:
        WorkloadError: the line shows what it should be.
    """
    defaults = tree.get("defaults", [])
    entries = defaults if isinstance(defaults, list) else [None]
    if all(map(_is_entry, entries)):
        return
    named = defaults if isinstance(defaults, str) else "unet3d_h100"
    raise WorkloadError(
        f"{path.name}: defaults must be a list of names or of group: name, got "
        f"{str(defaults)[:80]!a}; write defaults: [{named[:80]}, _self_]"
    )


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict):
        return isinstance(entry, str)
    ((group, names),) = entry.items() if len(entry) == 1 else ((None, None),)
    names = names if isinstance(names, list) else ["" if names is None else names]
    return isinstance(group, str) and all(isinstance(name, str) for name in names)


def _resolve(path: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with `${other.key}` replaced by what it refers to."""
    from omegaconf import OmegaConf

    with _in_one_line(path):
        return _plain(OmegaConf.to_container(OmegaConf.create(tree), resolve=True))


def _plain(tree: object) -> dict[str, Any]:
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


_HYDRAS_OWN = re.compile(r"\bhydra\.|No match in the defaults list|Could not find 'workload/[^']+/")
"""What Hydra says of the main file of another application."""


@contextmanager
def _in_one_line(path: Path) -> Iterator[None]:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        # The lines below the first are Hydra's own advice, which names files that users never saw.
        why = str(error).splitlines()[0]
        if dated := re.fullmatch(r"Value '(date|datetime)' is not a supported primitive type", why):
            why = (
                f"a value in it is a {dated[1]}, which no key of a workload takes; quote it if it "
                "is a name, or name the file of a workload"
            )
        if unknown := re.fullmatch(r"Interpolation key '(.+)' not found", why):
            why = (
                f"${{{unknown[1]}}} names no key; write ${{oc.env:{unknown[1]}}} for a variable of "
                "the environment, or its value"
            )
        if unset := re.search(r"Environment variable '(.+)' not found", why):
            why = (
                f"the environment has no {unset[1]}; set it, or write ${{oc.env:{unset[1]},VALUE}}"
            )
        if _HYDRAS_OWN.search(why):
            why = (
                "it is a file of a Hydra application, not a workload; name the file of a workload, "
                "as configs/workload/NAME.yaml"
            )
        raise WorkloadError(f"{path.name}: {why}") from None
