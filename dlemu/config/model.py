"""What a job asks for: frozen models with DLIO's key names; unknown keys are refused.

Fields hold what the user wrote; what follows from them is a property. DLIO's keys that have no
effect here are accepted and listed in `Workload.ignored`.
"""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from dlemu.config.checkpoint_sections import CheckpointSection, ModelSection
from dlemu.config.compose import (
    compose,
    datasheet,
    known_workloads,
    named,
    no_workload,
    set_key,
)
from dlemu.config.dlio import IGNORED, is_of_checkpoints, other_benchmark, translated
from dlemu.config.refusal import NO_KEYS, describe, group_of, known_keys, missing_key
from dlemu.config.sections import (
    CacheSection,
    ClientSection,
    DaliSection,
    DatasetSection,
    MetricSection,
    OriginSection,
    OutputSection,
    PredictSection,
    ReaderSection,
    ServerSection,
    SizeSection,
    SteptimeSection,
    StorageSection,
    TrainSection,
    WorkflowSection,
)
from dlemu.config.source import WordSource
from dlemu.config.types import (
    PLANS,
    RUNS,
    WRITES,
    Bandwidth,
    FullName,
    Names,
    Natural,
    Positive,
    Section,
    Size,
    Switch,
    Use,
)
from dlemu.config.types import FormatName as FormatName
from dlemu.errors import WorkloadError, did_you_mean
from dlemu.plugins import is_url
from dlemu.storage.place import Place, path_of, place_of
from dlemu.units import parse_bytes, unmistakable, with_unit

_memory = BeforeValidator(lambda value: with_unit(value, least=2**20, units=("MiB", "GiB")))
_memory_again = PlainSerializer(lambda value: unmistakable(value, 2**20))
_endurance = BeforeValidator(lambda value: with_unit(value, least=10**9, units=("TB", "PB")))
_endurance_again = PlainSerializer(lambda value: unmistakable(value, 10**9))


class Drive(Section):
    """A drive by its datasheet or by a measurement; bandwidths in bytes per second."""

    name: str = "drive"
    """As it is shown."""
    read_bandwidth: Bandwidth | None = None
    """Sequential reads; this is what a prediction computes with."""
    write_bandwidth: Bandwidth | None = None
    """Sequential writes; what a prediction of checkpoints computes with."""
    random_read_iops: Annotated[float, Field(gt=0, le=10**12)] | None = None
    """Random reads of 4 KiB per second, and the most of other sizes; None: no limit."""
    random_write_iops: Annotated[float, Field(gt=0, le=10**12)] | None = None
    """Random writes of 4 KiB per second; for the reader only."""
    capacity: Annotated[Size, Field(gt=0, le=10**18)] | None = None
    """Bytes that it holds; for `dlemu doctor --wear`."""
    endurance: Annotated[
        Annotated[Size, _endurance, _endurance_again, Field(gt=0, le=10**21)] | None,
        Use(by="datagen run checkpoint doctor"),
    ] = None
    """Bytes that hosts may write to it in its life (TBW), as 14PB, or as 1DWPD over five
    years; for the line on wear."""
    interface: str | None = None
    """Such as "PCIe 5.0 x4"; for the reader only."""
    source: str | None = None
    """Where the rates come from; for the reader only."""

    @model_validator(mode="before")
    @classmethod
    def _writes_per_day(cls, value: Any) -> Any:
        """Take an endurance of 1DWPD as the bytes that it is in the five years of a warranty."""
        found = value.get("endurance") if isinstance(value, dict) else None
        if not (isinstance(found, str) and found.upper().endswith("DWPD")):
            return value
        if value.get("capacity") is None:
            raise ValueError(f"drive.endurance={found} needs drive.capacity; set it, or write 14PB")
        capacity = value["capacity"]
        capacity = parse_bytes(capacity) if isinstance(capacity, str) else capacity
        days = 5 * 365
        return value | {"endurance": round(float(found[:-4]) * days * capacity)}

    @property
    def read_rate(self) -> int:
        """read_bandwidth. Raises WorkloadError if it is not given."""
        if self.read_bandwidth is None:
            raise WorkloadError(
                "drive.read_bandwidth is not set; give the drive's rate (drive.read_bandwidth=7GB)"
            )
        return self.read_bandwidth


def _datasheet(value: object) -> object:
    """Return the datasheet of a drive that is given by name, or else the value as it is."""
    return datasheet(value) if isinstance(value, str) else value


NamedDrive = Annotated[Drive, BeforeValidator(_datasheet), Names(lambda: named("drive"))]


class Workload(Section):
    """One job: a dataset, how it is read, and the accelerators that read it."""

    name: Annotated[FullName, Use(by=f"{PLANS} steptime checkpoint", closed=True)]
    """Name of the workload, and of the folder below outputs/ for its results."""
    workflow: Annotated[WorkflowSection, Use(by="run")] = WorkflowSection()
    dataset: Annotated[DatasetSection, Use(by=WRITES)]
    reader: Annotated[ReaderSection, Use(by=RUNS)] = ReaderSection()
    train: Annotated[TrainSection, Use(by=RUNS)] = TrainSection()
    metric: Annotated[MetricSection, Use(by=f"{RUNS} report")] = MetricSection()
    storage: Annotated[
        StorageSection,
        Use(
            by="datagen run size verify",
            when=lambda job: not job.has_paths or job.saves_to_servers,
        ),
    ] = StorageSection()
    output: Annotated[OutputSection, Use(by=RUNS, closed=True)] = OutputSection()
    dali: Annotated[DaliSection, Use(by=RUNS, when=lambda job: job.by_dali)] = DaliSection()
    size: Annotated[SizeSection, Use(by="size", closed=True)] = SizeSection()
    predict: Annotated[PredictSection, Use(by="predict", closed=True)] = PredictSection()
    steptime: Annotated[SteptimeSection, Use(by="steptime", closed=True)] = SteptimeSection()
    cache: Annotated[CacheSection, Use(by="run size")] = CacheSection()
    client: Annotated[ClientSection, Use(by="run size predict")] = ClientSection()
    server: Annotated[ServerSection, Use(by="size predict", closed=True)] = ServerSection()
    origin: Annotated[OriginSection, Use(by="run size")] = OriginSection()
    checkpoint: Annotated[
        CheckpointSection, Use(by="run size checkpoint", when=lambda job: job.saves)
    ] = CheckpointSection()
    model: Annotated[
        ModelSection, Use(by="run size checkpoint predict", when=lambda job: job.saves)
    ] = ModelSection()
    """The model of checkpoints: a row of workloads/model/ by its name, a file, or its keys."""
    drive: Annotated[NamedDrive | None, Use(by="predict size doctor", closed=True)] = None
    """A datasheet of workloads/drive/ by its name, or the rates themselves."""
    drives: Annotated[Positive, Use(by="predict size", closed=True)] = 1
    """Number of such drives (`dlemu predict`)."""
    accelerators_per_rank: Annotated[
        Positive,
        Use(by="datasize datagen run", when=lambda job: job.any_number, closed=True),
    ] = 1
    """Emulated accelerators of each rank, unless num_accelerators is set."""
    num_accelerators: Annotated[
        Positive | None, Use(by="datasize datagen run checkpoint", closed=True)
    ] = None
    """Emulated accelerators over all ranks, spread evenly; None: accelerators_per_rank of each."""
    num_hosts: Annotated[
        Positive,
        Use(by="datasize datagen run size predict", when=lambda job: job.counts_hosts, closed=True),
    ] = 1
    """Number of hosts, for a command that is not started on all of them (datasize, predict)."""
    host_memory: Annotated[
        Annotated[Size, _memory, _memory_again, Field(gt=0, le=2**50)] | None,
        Use(by="datasize datagen run size", when=lambda job: job.counts_memory, closed=True),
    ] = None
    """Memory of each host; None: what the host has."""
    division: Annotated[Literal["open", "closed"], Use(by="run checkpoint", closed=True)] = "open"
    """`closed` holds runs and checkpoints to the rules of MLPerf Storage's closed division."""
    runs: Annotated[Positive, Use(by="run", closed=True)] = 1
    """Runs that count, one after the other."""
    warmup: Annotated[Natural, Use(by="run", closed=True)] = 0
    """Runs before those that count."""
    progress: Annotated[Switch, Use(by=f"{WRITES} verify checkpoint", closed=True)] = "on"
    """Show on stderr how far a command is: a line on a terminal, elsewhere a line every 10 s."""
    ignored: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Keys that were given and have no effect here."""
    given: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Keys that the user overrode, for the closed division's check."""
    made_from: str = ""
    """What `workload=` asked for: a published name, or the absolute path of a YAML file."""
    _source: WordSource = PrivateAttr(default=WordSource.USER)

    def __init__(self, **values: Any) -> None:
        """Check the values of all keys.

        Raises:
            WorkloadError: a key is unknown, or a value is refused.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise WorkloadError(describe(error, Workload, IGNORED)) from error

    @property
    def source(self) -> WordSource:
        """Who said `made_from`."""
        return self._source

    @property
    def data_folder(self) -> Path:
        """The dataset's folder.

        Raises:
            WorkloadError: dataset.data_folder is not set.
        """
        folder, storage = self.dataset.data_folder, self.storage
        if not folder:
            raise WorkloadError(
                "dataset.data_folder is not set; add dataset.data_folder=/path/on/the/storage"
            )
        if is_url(folder):
            return path_of(folder)
        if storage.storage_type == "s3":  # DLIO: the bucket, and the names in it
            return path_of(f"s3://{storage.storage_root.removeprefix('s3://')}/{folder}")
        return Path(storage.storage_root, folder)

    @property
    def place(self) -> Place:
        """Where the data folder lies, as far as that is known without asking; else a folder.

        Raises:
            WorkloadError: its URL names no place.
        """
        return place_of(self.data_folder if self.dataset.data_folder else Path())

    @property
    def workers_of_rank(self) -> int:
        """Workers, at least 1, of a rank with accelerators_per_rank accelerators.

        reader.preprocess_time is that of so many which compute at once.
        """
        return max(1, self.reader.read_threads * self.accelerators_per_rank)

    @property
    def access(self) -> Any:
        """How the data folder's place is reached, by keys and environment; None of a folder.

        Call it on rank 0 only: launchers do not forward the environment to other hosts.

        Raises:
            WorkloadError: a value is missing or refused.
        """
        return self.place.reach(self.storage)

    def reach(self) -> Place:
        """Return the place of the data folder as it is reached. Call and raises as `access`."""
        return place_of(self.data_folder, self.access)

    @property
    def num_files(self) -> int:
        """Number of files. "auto" must have been replaced by a number (dataset/settle)."""
        assert self.dataset.num_files_train != "auto", "replaced before anything reads it"
        return self.dataset.num_files_train

    @property
    def hands_over(self) -> bool:
        """Whether a run puts each batch into one array."""
        reader = self.reader
        decodes = reader.decode == "library"
        return reader.hands_over and (decodes or not self.dataset.file_format.in_columns)

    @property
    def plain_workers(self) -> bool:
        """Whether workers do what those of a plain DataLoader do."""
        return self.reader.cost == "dataloader" and self.reader.loader.is_dataloader

    @property
    def starts_workers(self) -> bool:
        """Whether a run takes as long to start its workers as a job."""
        reader = self.reader
        starts = self.plain_workers or reader.worker_start_time is not None
        return starts and reader.loader.is_dataloader and reader.read_threads > 0

    @property
    def drops_each_epoch(self) -> bool:
        """Whether each epoch begins without the dataset in the page cache, not the first alone."""
        asked = self.output.drop_each_epoch
        return self.metric.edition == "v3.0" if asked is None else asked

    @property
    def demand(self) -> float:
        """Bytes per second that one accelerator takes at full utilisation."""
        seconds = self.train.computation_time.mean
        return math.inf if seconds == 0 else self.bytes_per_step / seconds

    @property
    def streamed(self) -> bool:
        """Whether files hold several samples and are read from end to end."""
        dataset = self.dataset
        way = self.reader.access or dataset.file_format.ways[0]
        return dataset.num_samples_per_file > 1 and way == "stream"

    @property
    def by_tf_data(self) -> bool:
        """Whether the order of reading is that of tf.data."""
        return self.reader.loader.by_tf_data

    @property
    def bytes_per_step(self) -> float:
        """Mean bytes of one accelerator's batch."""
        return self.reader.batch_size * self.dataset.mean_bytes

    @property
    def batches_in_flight(self) -> int:
        """Batches of an accelerator that are in memory at once.

        The one in use, those read ahead, and, in a pipelined loop, the next one: the loop takes it
        while it computes.
        """
        return 1 + self.train.steps_ahead + self.reader.batches_ahead

    def with_keys(self, keys: Mapping[str, object]) -> "Workload":
        """Return a copy with these values of dotted keys; a group of keys joins the group there.

        Raises:
            WorkloadError: a key is unknown or a value out of bounds.
        """
        groups = {key.partition(".")[0] for key in keys}
        # A drive may be a name, which only the whole takes.
        own = {name: getattr(self, name, None) for name in groups - {"drive"}}
        kinds = {name: type(value) for name, value in own.items() if isinstance(value, Section)}
        if kinds.keys() == groups:
            tree = self.model_dump(include=groups)
            for key, value in keys.items():
                set_key(tree, key, value)
            with suppress(ValidationError):
                changed = {name: kind.model_validate(tree[name]) for name, kind in kinds.items()}
                return _checked(self.model_copy(update=changed))
        # The whole tells which key of DLIO's is meant, or what is wrong with it.
        tree = self.model_dump(exclude={"ignored"})
        for key, value in keys.items():
            set_key(tree, key, value)
        again = check_workload(tree, source=self._source)
        return again.model_copy(update={"ignored": self.ignored})


@cache
def use_of(key: str) -> Use:
    """Return what a dotted key, or a group of them, is used for, by its field and its group's."""
    model: type[BaseModel] | None = Workload
    found = Use(by="", closed=False)
    for part in key.split("."):
        if model is None or part not in model.model_fields:
            break
        field = model.model_fields[part]
        if own := next((each for each in field.metadata if isinstance(each, Use)), None):
            said = {name: value for name, value in vars(own).items() if value is not None}
            found = replace(found, **said)
        model = group_of(field.annotation)
    return found


def read_by(key: str) -> list[str]:
    """Return the commands that read a key."""
    return (use_of(key).by or "").split()


def _keys_of(command: str) -> set[str]:
    return {key for key in known_keys(Workload) if command in read_by(key)}


_OF_DATASETS = ("run", "size", "calibrate", "datasize", "datagen")
"""Commands that need a dataset."""


def check_workload(
    tree: Mapping[str, Any], command: str = "", source: WordSource = WordSource.USER
) -> Workload:
    """Return the workload that a tree of plain values describes: a composed config, a DLIO file.

    Where a key is unknown, those that `command` reads are named rather than others. `source` is who
    said the name of its file, for those who compose that again.
    """
    if command in _OF_DATASETS and is_of_checkpoints(tree):
        name = tree.get("made_from") or tree.get("name") or "FILE"
        raise WorkloadError(
            f"{name} describes a model whose checkpoints are written, and no dataset; take dlemu "
            f"checkpoint workload={name}, or set dataset.format and dataset.num_files_train"
        )
    if about := other_benchmark(tree):
        raise WorkloadError(
            f"{tree.get('made_from') or 'the file'} is of {about}; name the file of a training "
            "workload, or a name (dlemu help workloads lists them)"
        )
    raw = translated(tree)
    try:
        workload = Workload.model_validate(raw)
    except WorkloadError as error:
        if not isinstance(error.__cause__, ValidationError):
            raise  # a drive that is not there
        text = describe(error.__cause__, Workload, IGNORED, lambda: _keys_of(command))
        name, missing = str(raw["name"]), missing_key(error.__cause__)
        made = raw.get("made_from") or name
        if missing == "dataset.format" and name in named("model"):
            text = f"{no_workload(name, known_workloads())}; take dlemu checkpoint"
        elif not _is_of_jobs(raw):
            text = f"{made} is no workload{_held_by(tree)}; {_LEAST}"
        elif missing == "dataset.format":
            text += "; add dataset.format=npz, or that of your files (dlemu help dataset.format)"
        elif missing == "dataset":
            text = f"{made} is no workload: it has no group of keys dataset, with format= and more"
        raise WorkloadError(text) from None
    workload._source = source
    return _checked(workload)


_LEAST = (
    "a workload has at least dataset.format, dataset.num_files_train, reader.batch_size and "
    "train.computation_time (dlemu run workload=unet3d_h100 --cfg job shows all keys of one)"
)
_MOST_SHOWN = 3
"""Keys of a file of another tool that a line names."""


def _is_of_jobs(raw: Mapping[str, Any]) -> bool:
    """Return whether a file itself says something of a dataset, or of how it is read."""
    groups = ((name, raw.get(name)) for name in ("dataset", "reader"))
    said = {f"{name}.{key}" for name, keys in groups if isinstance(keys, dict) for key in keys}
    return not said.isdisjoint({*known_keys(Workload)} - {*raw.get("given", ())})


def _held_by(tree: Mapping[str, Any]) -> str:
    """Return what a file has that is no workload: ": it has services", or "" where it is nothing.

    A name that is nearly that of a group of keys is followed by the group's.
    """
    given = {key.partition(".")[0] for key in tree.get("given", ())}
    keys = [str(key)[:40] for key in tree if key not in {"name", *NO_KEYS, *given}]
    more = " and more" if len(keys) > _MOST_SHOWN else ""
    groups = ("dataset", "reader", "train")
    hints = (did_you_mean(key, groups, cutoff=0.85) for key in keys if key not in groups)
    meant = next((f" ({hint.removeprefix('; ')})" for hint in hints if hint), "")
    return f": it has {', '.join(keys[:_MOST_SHOWN])}{more}{meant}" if keys else ""


def _checked(workload: Workload) -> Workload:
    """Return a workload whose keys go together."""
    if workload.dataset.by_h5py and workload.reader.decode == "raw":
        if "decode" in workload.reader.model_fields_set:
            raise WorkloadError(
                "reader.decode=raw: samples of chunked HDF5 files, or of several datasets, are "
                "found by h5py alone; leave it out"
            )
        reader = workload.reader.model_copy(update={"decode": "library"})
        workload = workload.model_copy(update={"reader": reader})
    _check_dali(workload)
    _check_cost(workload)
    _check_access(workload)
    _check_places(workload)
    return workload


def _check_dali(workload: Workload) -> None:
    """Refuse keys of DALI where another loader reads."""
    gds, device = workload.reader.gds, workload.dali.device
    missing = []
    if not workload.reader.loader.by_dali:
        missing.append("reader.data_loader=dali")
    if device == "cpu":
        missing.append("dali.device=gpu")
    if (gds == "require" and missing) or (gds == "prefer" and len(missing) == 2):
        raise WorkloadError(
            f"reader.gds={gds} has no effect without {' '.join(missing)}: cuFile reads for DALI, "
            f"into a GPU; add {'it' if len(missing) == 1 else 'them'}, or leave reader.gds out"
        )
    if device == "gpu" and "reader.data_loader=dali" in missing:
        raise WorkloadError(
            "dali.device=gpu has no effect without reader.data_loader=dali; add it, or leave "
            "dali.device out"
        )


def _check_cost(workload: Workload) -> None:
    """Refuse what no Dataset of a plain DataLoader does, where its workers are asked for."""
    if not workload.plain_workers:
        return
    reader = workload.reader
    refused = {
        "reader.odirect=true": reader.odirect is True,
        "reader.hand_over=none": not reader.hands_over,
        "reader.check_crc=true": reader.check_crc,
        "cache.folder": workload.cache.folder is not None,
        "dataset.format=parquet": workload.dataset.file_format.in_columns,
        workload.place.word: not workload.place.has_paths,
    }
    for key, is_set in refused.items():
        if is_set:
            raise WorkloadError(
                f"reader.cost=dataloader reads files as a plain Dataset does, which {key} "
                "is not for: leave one of them out; reader.cost=lean takes it"
            )


def _check_access(workload: Workload) -> None:
    """Refuse ways of reading that a format does not have."""
    dataset, reader = workload.dataset, workload.reader
    kind, loader, files = dataset.format, reader.data_loader, dataset.file_format
    many = dataset.num_samples_per_file > 1
    if many and reader.access == "random" and ("random" not in files.ways or workload.by_tf_data):
        how = f"files of reader.data_loader={loader}" if workload.by_tf_data else f"{kind} files"
        raise WorkloadError(
            f"reader.access=random: {how} can only be read from end to end; leave it out, or take "
            "a loader and a format whose samples can be read alone: hdf5, raw, bin, "
            "mmap_indexed_binary"
        )
    if many and reader.access == "stream" and "stream" not in files.ways:
        raise WorkloadError(
            f"reader.access=stream: samples of {kind} files are read alone; leave it out"
        )
    if not files.by_dali and reader.loader.by_dali:
        raise WorkloadError(
            f"reader.data_loader={loader} does not read {kind} files; use pytorch or threads"
        )
    if files.in_columns and workload.by_tf_data:
        raise WorkloadError(
            f"reader.data_loader=tensorflow does not read {kind} files; use pytorch or threads"
        )


def _check_places(workload: Workload) -> None:
    """Refuse URLs of places that cannot be, and those where only a folder can be."""
    if workload.dataset.data_folder:
        place_of(workload.data_folder)  # refuses what names none
    for key, place in (
        ("output.folder", workload.output.folder),
        ("output.log", workload.output.log),
        ("cache.folder", workload.cache.folder),
        ("cache.origin", workload.cache.origin),
    ):
        if place is not None and is_url(place):
            raise WorkloadError(
                f"{key}={place} must be a folder; only dataset.data_folder and "
                "checkpoint.checkpoint_folder may be in a bucket"
            )
    saved = workload.checkpoint.checkpoint_folder or ""
    path_of(saved, "checkpoint.checkpoint_folder")
    if workload.source is not WordSource.FOUND:  # a result is shown, whatever it was
        _check_apart(workload)


def _check_apart(workload: Workload) -> None:
    """Refuse folders of which one would be taken for a part of the other."""
    data, targets = workload.dataset.data_folder, workload.size.targets
    named_ones: list[tuple[str, str | None]] = [
        ("output.folder", workload.output.folder),
        ("output.log", workload.output.log),
        ("cache.folder", workload.cache.folder),
        ("cache.origin", workload.cache.origin),
        ("checkpoint.checkpoint_folder", workload.checkpoint.checkpoint_folder),
        ("dataset.data_folder", str(workload.data_folder) if data else None),
        *(("size.targets", target) for target in targets),
    ]
    places = [
        (key, place, Path(os.path.realpath(place)))
        for key, place in named_ones
        if place and ":/" not in place
    ]
    for (key, place, path), (other, inner, below) in permutations(places, 2):
        whole = path / "train" if key in ("dataset.data_folder", "size.targets") else path
        holds = key not in ("output.folder", "output.log", "cache.origin")
        if {key, other} & _MADE and (path == below or (holds and below.is_relative_to(whole))):
            what = "is" if path == below else "lies in"
            raise WorkloadError(
                f"{other}={inner} {what} {key}={place}, whose files dlemu counts and removes; "
                f"name another {other}"
            )


_MADE = {"output.folder", "output.log", "cache.folder", "checkpoint.checkpoint_folder"}
"""Keys of what dlemu makes."""


def load_workload(
    name: str | Path,
    overrides: Mapping[str, object] | None = None,
    *,
    source: WordSource = WordSource.USER,
) -> Workload:
    """Return a workload by its name ("unet3d_h100") or the path of a YAML file, DLIO's included.

    `overrides` are dotted keys: {"reader.read_threads": 8}. The file and the values mean what they
    mean on the command line: `defaults`, and `${other.key}`. `source` is who says the name; the
    overrides are the caller's own.

    Raises:
        WorkloadError: no such workload, or a key or value that is refused.
    """
    return check_workload(compose(name, overrides or {}, source=source), source=source)


def load_model(
    name: str,
    overrides: Mapping[str, object] | None = None,
    *,
    source: WordSource = WordSource.USER,
) -> Workload:
    """Return the job of checkpoints of a published model ("llama3_8b"), as `model=` does.

    Raises:
        WorkloadError: no such model, or a key or value that is refused.
    """
    return check_workload(compose(name, overrides or {}, "model", source), source=source)
