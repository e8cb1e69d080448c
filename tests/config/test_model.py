"""What users may write, and the one line they get for what they may not."""

import copy
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.config.compose import read_yaml, set_key
from dlemu.config.keys import all_keys, keys_of_model
from dlemu.config.model import Workload, check_workload, load_workload
from dlemu.config.types import Distribution
from dlemu.dataset.layout import layout_of
from dlemu.errors import WorkloadError
from dlemu.judge.records import dump_workload, read_config, write_config

DATA = Path(__file__).parents[1] / "data"
LEAST: dict[str, Any] = {"dataset": {"format": "npz", "num_files_train": 4}}


def with_key(key: str, value: object) -> dict[str, Any]:
    """Return the least workload with one dotted key more."""
    tree = copy.deepcopy(LEAST)
    set_key(tree, key, value)
    return tree


def refusal(tree: dict[str, Any]) -> str:
    with pytest.raises(WorkloadError) as error:
        check_workload(tree)
    return str(error.value)


def test_every_number_has_a_bound_and_the_line_says_it() -> None:
    """A slip of the keyboard is refused before memory is taken for it."""
    keys = [*all_keys().values(), *keys_of_model(Distribution, "train.computation_time.")]
    numbers = {
        key.name: key.values for key in keys if re.search(r"number|bytes|seconds \(", key.values)
    }
    assert len(numbers) > 60
    assert [name for name, text in numbers.items() if not re.search(r"(to|at most) \d", text)] == []
    for key in ("reader.prefetch_size", "drive.read_bandwidth", "train.computation_time.mean"):
        line = refusal(with_key(key, 10**30))
        assert re.match(rf"{key} must be .*( to|at most) [\d.,e+]+, got (10|1,000|1e)", line), line


ALIASES = "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghij"))
MERGES = "".join(
    f"{b}: &{b} {{<<: [{','.join([f'*{a}'] * 9)}]}}\n" for a, b in pairwise("abcdefghij")
)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("a: &a [x,x,x,x,x,x,x,x,x]\n" + ALIASES, "is not YAML: it has more than 10,000 values"),
        ("a: &a {k: 1, l: 2}\n" + MERGES, "is not YAML: it has a group of more than 1,000 keys"),
        ("a: &a {b: *a}", "is nested too deeply for a workload"),
        ("a: " + "[" * 30_000, "is nested too deeply for a workload"),
        ("a: " + "[" * 60 + "]" * 60, "is nested too deeply for a workload"),
        ("a: " + "x" * 100_000, "has more than 100,000 bytes; is it a workload?"),
        ("a: [1\nb: 2", "is not YAML: "),
        ("a: 2001-99-99", "is not YAML: month must be in 1..12"),
        ("a: !!timestamp x", "is not YAML: "),
        ("a: !!bool x", "is not YAML: "),
        ("a: !!python/object/apply:os.getpid []", "is not YAML: could not determine"),
    ],
)
def test_a_file_that_grows_when_it_is_read_is_refused(tmp_path: Path, text: str, end: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(WorkloadError) as error:
        read_yaml(path)
    assert str(error.value).startswith(f"{path} {end}")


def test_numbers_and_references_are_read_as_they_are_meant(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("a: [1e6, 2E-3, 1.5e+2, 12, off, 1e6x]\nb: &b {x: 1}\nc: {<<: *b, y: [*b, *b]}")
    one = {"x": 1}
    assert read_yaml(path) == {
        "a": [1e6, 0.002, 150.0, 12, False, "1e6x"], "b": one, "c": {**one, "y": [one, one]},
    }  # fmt: skip


TIMES: dict[str, tuple[Any, float, float]] = {
    "plain": (0.3, 0.3, 0.0),
    "normal": ({"computation_time": 0.3, "computation_time_stdev": 0.03}, 0.3, 0.03),
    "uniform": ({"min": 0.1, "max": 0.5, "type": "uniform"}, 0.3, 0.4 / math.sqrt(12)),
    "gamma": ({"shape": 9, "scale": 0.1, "type": "gamma"}, 0.9, 0.3),
    "exponential": ({"scale": 0.3, "type": "exponential"}, 0.3, 0.3),
    "poisson": ({"lam": 9, "type": "poisson"}, 9.0, 3.0),
}


@pytest.mark.parametrize("name", TIMES)
def test_times_are_drawn_from_what_was_asked(name: str) -> None:
    asked, mean, stdev = TIMES[name]
    key = "train" if name == "normal" else "train.computation_time"  # the older pair of keys
    time = check_workload(with_key(key, asked)).train.computation_time
    generator = np.random.default_rng(1)
    drawn = np.array([time.draw(generator) for _ in range(20_000)])
    assert drawn.min() >= 0
    assert drawn.mean() == pytest.approx(mean, rel=0.03)
    assert drawn.std() == pytest.approx(stdev, rel=0.03, abs=1e-12)


def test_hdf5_is_configured_as_dlio_does() -> None:
    """DLIO's group `hdf5`; whatever only h5py finds is read by it."""
    least = {"format": "hdf5", "num_files_train": 2, "record_dims": [8, 6]}
    for keys, chunks in (
        ({"hdf5": {"chunk_dims": [1, 4, 6], "num_dset_per_record": 2}}, (1, 4, 6)),
        ({"hdf5": {"chunk_dims": [1, 6], "num_dset_per_record": 8}}, (1, 6)),
        ({"hdf5": {"max_shape": [None, 6], "chunk_dims": []}}, ()),
        ({"compression": "gzip", "compression_level": 4}, ()),
        ({"enable_chunking": True}, ()),
        ({"hdf5": {"num_dset_per_record": 4}}, None),
    ):
        workload = check_workload({"dataset": least | keys})
        assert (workload.dataset.chunks, workload.reader.decode) == (chunks, "library"), keys
        assert layout_of(workload).chunks == chunks
    plain = check_workload({"dataset": least | {"record_element_bytes": 4}})
    assert (plain.reader.decode, plain.ignored) == ("raw", ("dataset.record_element_bytes",))
    assert layout_of(plain).dims == (8, 6)


def test_object_storage_is_configured_as_mlcommons_does() -> None:
    """s3dlio's workers are spawned, and its own way to a folder is O_DIRECT."""
    root = {"storage_root": "s3://bucket/data/", "use_mpi_endpoint_distribution": True}
    uris = {"endpoint_uris": ["http://a:9000", "http://b:9000"]}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"storage_type": "s3dlio", **root, **uris}, "pytorch"),
        ({"storage_type": "s3", "storage_library": "s3dlio", **root, **uris}, "threads"),
        ({"storage_type": "s3", "storage_options": {"storage_library": "s3dlio"}, **root}, "dali"),
    ]
    for storage, loader in cases:
        tree = {"storage": storage, "reader": {"data_loader": loader}}
        workload = check_workload({**with_key("dataset.data_folder", "unet3d"), **tree})
        assert str(workload.data_folder) == "s3://bucket/data/unet3d"
        assert workload.storage.endpoint_url == tuple(storage.get("endpoint_uris", ()))
        spawned = workload.reader.multiprocessing_context == "spawn"
        assert spawned == (loader == "pytorch")
        assert "storage.use_mpi_endpoint_distribution" in workload.ignored
    direct = check_workload({**LEAST, "storage": {"storage_type": "direct_fs"}})
    assert (direct.storage.storage_type, direct.reader.odirect) == ("local_fs", True)


def test_an_unknown_key_is_taken_for_one_that_the_command_reads() -> None:
    for command in ("run", "checkpoint"):
        meant = "reader" if command == "run" else command
        with pytest.raises(WorkloadError, match=rf"did you mean {meant}\.odirect\?"):
            check_workload(with_key("odirect", True), command)


def test_a_changed_copy_keeps_the_rest_and_is_checked_whole() -> None:
    workload = load_workload(DATA / "dlio_hdf5.yaml")
    changed = workload.with_keys({"reader.batch_size": 9})
    assert changed.reader.batch_size == 9
    assert changed.with_keys({"reader.batch_size": workload.reader.batch_size}) == workload
    with pytest.raises(WorkloadError, match=r"^reader\.gds=require has no effect without"):
        workload.with_keys({"reader.gds": "require"})
    with pytest.raises(WorkloadError, match=r"^unknown key reader\.batchsize; did you mean"):
        workload.with_keys({"reader.batchsize": 3})


def test_units_are_those_that_people_write() -> None:
    keys: dict[str, object] = {
        "train.computation_time": "5ms",
        "output.stall_seconds": "3min",
        "metric.au": "90%",
        "drive": "d7_ps1010",
        "drive.read_bandwidth": "7GB/s",
        "drive.endurance": "1DWPD",
    }
    workload = load_workload("unet3d_h100", keys)
    assert workload.train.computation_time == Distribution(mean=0.005)
    assert (workload.output.stall_seconds, workload.metric.au) == (180, 0.9)
    drive = workload.drive
    assert drive is not None and drive.capacity is not None
    assert (drive.read_bandwidth, drive.endurance) == (7 * 10**9, 5 * 365 * drive.capacity)
    for memory, size in (("512GiB", 512 << 30), (5e11, 5 * 10**11), (1 << 39, 1 << 39)):
        assert workload.with_keys({"host_memory": memory}).host_memory == size
    with pytest.raises(WorkloadError, match=r"^runs must be a whole number, 1 to .*, got 5.5$"):
        workload.with_keys({"runs": 5.5})
    assert isinstance(workload.with_keys({"runs": 5.0}).runs, int)


@pytest.mark.parametrize(
    ("key", "value"),
    [("host_memory", "1MB"), ("origin.read_bandwidth", "500kB"), ("drive.endurance", "5MB")],
)
def test_a_small_size_with_its_unit_is_taken_again(key: str, value: str, tmp_path: Path) -> None:
    workload = load_workload("unet3d_h100", {key: value})
    assert workload.with_keys({"train.epochs": 3}).host_memory == workload.host_memory
    write_config(tmp_path, workload)
    sizes = {"host_memory", "origin", "drive"}
    stored = read_config(tmp_path, {})
    assert stored.model_dump(include=sizes) == workload.model_dump(include=sizes)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "auto", "off", "seed", "object", "i4,", "1e400", "9" * 400, "12KiB"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
SECTIONS = {
    name: list(getattr(field.annotation, "model_fields", ()))
    for name, field in Workload.model_fields.items()
}
keys = st.sampled_from(
    [f"{name}.{leaf}" for name, leaves in SECTIONS.items() for leaf in leaves]
    + [f"train.computation_time.{leaf}" for leaf in ("type", "mean", "stdev", "min", "shape")]
    + ["model", "model.name", "output.metric", "data_reader", "train.computation_time_stdev"]
    + [*SECTIONS]
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(keys, plain, min_size=1, max_size=3))
def test_any_tree_is_a_workload_or_one_line(values: dict[str, Any]) -> None:
    tree = copy.deepcopy(LEAST)
    try:
        for key, value in values.items():
            set_key(tree, key, value)
        assert isinstance(check_workload(tree), Workload)
    except WorkloadError as error:
        assert "\n" not in str(error)


@given(
    st.integers(1, 10**6) | st.just("auto"),
    st.floats(1, 1e11),
    st.sampled_from(["off", "seed", "random"]),
    st.lists(st.integers(1, 99), max_size=3),
    st.sampled_from([0.1, {"mean": 0.1, "stdev": 0.2, "type": "gamma"}]),
)
@settings(max_examples=50, deadline=None)
def test_what_is_written_down_is_read_back(
    num_files: int | str, length: float, shuffle: str, dims: list[int], time: object
) -> None:
    keys = {
        "dataset.num_files_train": num_files,
        "dataset.record_length_bytes": length,
        "dataset.record_dims": dims,
        "reader.file_shuffle": shuffle,
        "train.computation_time": time,
        "output.folder": "off",
    }
    workload = load_workload("cosmoflow_h100", keys)
    tree = yaml.safe_load(dump_workload(workload))
    assert check_workload(tree) == workload.model_copy(update={"given": (), "made_from": ""})


@pytest.mark.parametrize(
    ("loader", "workers", "prefetch", "batch_size", "ahead"),
    [
        # PyTorch: each worker makes as many batches ahead as DLIO gives it, rounded up.
        ("pytorch", 4, 2, 7, 4),
        ("pytorch", 4, 4, 7, 4),
        ("pytorch", 4, 5, 7, 8),
        ("pytorch", 4, 0, 7, 4),
        ("pytorch", 0, 2, 7, 0),
        ("threads", 3, 7, 1, 9),
        ("dali", 4, 2, 7, 3),
        ("native_dali", 4, 0, 7, 2),
        # tf.data: these, and two samples of each stream.
        ("tensorflow", 4, 2, 7, 3),
        ("tensorflow", 4, 2, 1, 10),
        ("tensorflow", 0, 0, 1, 2),
    ],
)
def test_as_many_batches_are_read_ahead_as_frameworks_do(
    loader: str, workers: int, prefetch: int, batch_size: int, ahead: int
) -> None:
    keys = {
        "reader.data_loader": loader,
        "reader.read_threads": workers,
        "reader.prefetch_size": prefetch,
        "reader.batch_size": batch_size,
    }
    for loop, early in (("rule", 0), ("pipelined", 1)):
        workload = load_workload("unet3d_h100", {**keys, "train.loop": loop})
        assert workload.reader.batches_ahead == ahead
        assert workload.batches_in_flight == 1 + early + ahead
