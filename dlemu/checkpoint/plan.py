"""Who writes and reads what: the files of each accelerator, and the accelerators of each rank.

The sizes are those of MLPerf Storage's DLIO (dlio_benchmark/checkpointing/base_checkpointing.py of
mlcommons/DLIO_local_changes), which follows Megatron-DeepSpeed. Its integer divisions are kept, so
that sizes agree to the byte. A "rank" of DLIO is an accelerator here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dlemu.checkpoint.files import Files
from dlemu.config.checkpoint_sections import ModelSection
from dlemu.config.model import Workload
from dlemu.dataset.rule import accelerators_of
from dlemu.errors import WorkloadError
from dlemu.ranks.world import Alone, World

_BYTES = {"int8": 1, "uint8": 1, "fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}
_SUBSET = 8
"""Accelerators of a subset in MLPerf Storage."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A file of a checkpoint."""

    rank: int
    """The accelerator that writes it."""
    name: str
    """Below the checkpoint's folder."""
    num_bytes: int


@dataclass(frozen=True)
class Share:
    """The accelerators whose files are written, of all that the model is spread over."""

    written: int
    total: int


def share_of(
    model: ModelSection, num_accelerators: int | None, mode: Literal["default", "subset"]
) -> Share:
    """Return how many accelerators write, and how many there are.

    Raises:
        WorkloadError: the number does not fit the model's parallelism, or the model has no bytes.
    """
    if model.num_layers is None and model.model_size_bytes is None:
        raise WorkloadError(
            f"model {model.name} has no size; write model=llama3_8b, or set model.num_layers or "
            "model.model_size_bytes"
        )
    copy, data = model.model_parallelism, model.parallelism.data
    if mode == "subset":
        if data is None:
            raise WorkloadError(
                "checkpoint.mode=subset needs model.parallelism.data: the copies of the model in "
                "the whole job"
            )
        total = copy * data
        written = min(_SUBSET, total) if num_accelerators is None else num_accelerators
        if written > total:
            raise WorkloadError(
                f"num_accelerators must be at most {total}, all of model {model.name}, got "
                f"{written}"
            )
        return Share(written, total)
    total = copy * (data or 1) if num_accelerators is None else num_accelerators
    if total % copy:
        raise WorkloadError(
            f"num_accelerators must be a multiple of {copy} (model.parallelism.tensor "
            f"{model.parallelism.tensor} x pipeline {model.parallelism.pipeline}), got {total}; "
            f"for a part of the model add checkpoint.mode=subset"
        )
    return Share(total, total)


def files_of(
    model: ModelSection, num_accelerators: int, ranks: Iterable[int], *, scale: float = 1.0
) -> list[CheckpointFile]:
    """Return the files that accelerators, some or all, write, in order; some write none.

    `num_accelerators` are all that the model is spread over, also if only some write (subset).
    With a `scale` below 1 each file has that share of its bytes, at least one.
    """
    return [
        CheckpointFile(rank, name, size if scale == 1 else max(1, round(size * scale)))
        for rank in ranks
        for name, size in _files(model, num_accelerators, rank)
        if size
    ]


def num_parameters(model: ModelSection) -> int:
    """Return the parameters of a transformer, 0 for a model without layers."""
    if model.num_layers is None:
        return 0
    shape, hidden = model.transformer, model.hidden
    vocabulary, inner = shape.vocab_size or 0, shape.ffn_hidden_size or 0
    layer = 2 * hidden + hidden * (hidden + 2 * _width_of_kv(model)) + hidden * hidden
    return 2 * vocabulary * hidden + model.num_layers * (layer + 3 * hidden * inner) + hidden


def parameters_of(model: ModelSection, share: Share) -> dict[str, int] | None:
    """Return how many parameters a transformer has, and over how many copies they are spread.

    None where only sizes in bytes are known.
    """
    if model.num_layers is None or model.layer_parameters:
        return None
    return {"number": num_parameters(model), "data": share.total // model.model_parallelism}


def _files(model: ModelSection, num_accelerators: int, rank: int) -> Iterator[tuple[str, int]]:
    """Yield name and bytes of each file of a rank."""
    copy, stage = model.model_parallelism, model.parallelism.zero_stage
    data_rank, model_rank = divmod(rank, copy)
    if stage == 0 and data_rank:  # one copy saves for all
        return
    if model.num_layers is None or model.layer_parameters:
        yield f"model_states-{rank}.pt", model.model_size_bytes or 0
    shard = f"zero_pp_rank_{data_rank}_mp_rank_{model_rank}"
    layers = _layers(model, model_rank // model.parallelism.tensor)
    shards = num_accelerators // copy if stage == 3 else 1
    sizes = [(layer, _layer_bytes(model, layer, shards)) for layer in layers]
    whole = sum(size for _, size in sizes)
    if stage in (0, 3):
        yield f"{shard}_model_states.pt", whole
    elif data_rank == 0 and model.parallelism.pipeline > 1:
        for layer, size in sizes:
            yield f"layer_{layer}-model_{model_rank}_model_states.pt", size
    elif data_rank == 0:
        yield f"model_{model_rank}_model_states.pt", whole
    yield f"{shard}_optim_states.pt", _optimizer_bytes(model, num_accelerators)


def _layers(model: ModelSection, stage: int) -> range:
    """Return a pipeline stage's layers: 0 is the embedding, the last two are head and norm."""
    if model.num_layers is None:
        return range(0)
    stages = model.parallelism.pipeline
    each, more = divmod(model.num_layers, stages)
    first = stage * each + min(stage, more) + 1
    stop = first + each + (stage < more)
    if model.layer_parameters:
        return range(first, stop)
    return range(0 if stage == 0 else first, model.num_layers + 3 if stage == stages - 1 else stop)


def _layer_bytes(model: ModelSection, layer: int, shards: int) -> int:
    """Return the bytes of a rank's part of a layer; each tensor is cut by itself."""
    assert model.num_layers is not None
    shape, hidden, cut = model.transformer, model.hidden, model.parallelism.tensor
    if model.layer_parameters:
        return sum(tensor // cut for tensor in model.layer_parameters)
    inner = shape.ffn_hidden_size or 0
    if layer in (0, model.num_layers + 1):
        tensors = [hidden * (shape.vocab_size or 0) // cut]
    elif layer == model.num_layers + 2:
        tensors = [hidden]  # norms are whole on each tensor rank
    else:
        kv = hidden * (hidden + 2 * _width_of_kv(model))
        parts = [kv, hidden * hidden, 2 * hidden * inner, hidden * inner]
        tensors = [hidden, hidden, *(part // cut for part in parts)]
    return _BYTES[model.model_datatype] * sum(tensor // shards for tensor in tensors)


def _optimizer_bytes(model: ModelSection, num_accelerators: int) -> int:
    """Return the bytes of a rank's optimizer: master copy, mean, variance, and small tensors."""
    if model.optimization_groups:
        return 3 * sum(model.optimization_groups)
    ranks = num_accelerators if model.parallelism.zero_stage else model.model_parallelism
    each = num_parameters(model) // ranks
    return 3 * _BYTES[model.optimizer_datatype] * (each + 5 * model.hidden) if each else 0


def _width_of_kv(model: ModelSection) -> int:
    """Return the columns of the keys, and as many of the values."""
    return model.hidden // model.heads * (model.transformer.num_kv_heads or 0)


RATE_ERROR = 0.36
"""Relative error of a drive's rate. It is that of reads in published results (docs/prediction.md);
writes were not compared with published ones."""


@dataclass(frozen=True)
class ShardPlan:
    """The files of a checkpoint, and who plays which accelerator."""

    share: Share
    files: tuple[CheckpointFile, ...]
    """Of all accelerators that write, in their order."""
    accelerators: range
    """Those that this rank plays."""
    hosts: tuple[int, ...]
    """The number of the host of each accelerator that writes."""
    shift: int
    """Added to an accelerator's number for the one whose files it reads; 0 on one host."""

    @classmethod
    def of(cls, workload: Workload, world: World) -> "ShardPlan":
        """Return the plan of a command; all ranks call it. Hosts are filled one after the other.

        Raises:
            WorkloadError: the number of accelerators does not fit the model.
        """
        model, mode = workload.model, workload.checkpoint.mode
        share = world.on_first(lambda: share_of(model, workload.num_accelerators, mode))
        own = (world.host_index, world.local_rank)
        places = sorted(world.all_gather(own))
        parts = [
            (host, accelerators_of(position, len(places), share.written))
            for position, (host, _) in enumerate(places)
        ]
        return cls.over(workload, share, parts, parts[places.index(own)][1])

    @classmethod
    def over(
        cls, workload: Workload, share: Share, parts: Sequence[tuple[int, range]], own: range
    ) -> "ShardPlan":
        """Return the plan for accelerators that are dealt out: `own` to this rank.

        `parts`: the host and the accelerators of each rank, in the order of the accelerators; those
        that write are the first.
        """
        model, scale = workload.model, workload.checkpoint.scale
        files = files_of(model, share.total, range(share.written), scale=scale)
        hosts = tuple(host for host, part in parts for _ in part)[: share.written]
        own = range(own.start, min(own.stop, share.written))
        # By the largest host's number: so nobody reads its own host's, where half are elsewhere.
        shift = max(map(hosts.count, set(hosts))) if len(set(hosts)) > 1 else 0
        return cls(share, tuple(files), own, hosts, shift)

    @property
    def num_bytes(self) -> int:
        """Bytes of a checkpoint."""
        return sum(file.num_bytes for file in self.files)

    def bytes_of_hosts(self) -> dict[int, int]:
        """Return the bytes that the accelerators of each host write, by its number."""
        found = dict.fromkeys(self.hosts, 0)
        for file in self.files:
            found[self.hosts[file.rank]] += file.num_bytes
        return found

    def spread(self) -> tuple[int, int]:
        """Return the least and the most bytes of an accelerator."""
        sizes = [0] * self.share.written
        for file in self.files:
            sizes[file.rank] += file.num_bytes
        return min(sizes), max(sizes)

    def on_own_hosts(self) -> "ShardPlan":
        """Return the plan for hosts that do not see each other's files."""
        return replace(self, shift=0)

    @property
    def foreign_share(self) -> float:
        """Share (0-1) of the accelerators that read files that another host has written."""
        number = len(self.hosts)
        other = (self.hosts[(a + self.shift) % number] != self.hosts[a] for a in range(number))
        return sum(other) / number

    def written_by(self, accelerator: int, step: int) -> Files:
        """Return the files that an accelerator writes for a checkpoint."""
        number = len(self.files)
        return [
            (file.name, file.num_bytes, step * number + index)
            for index, file in enumerate(self.files)
            if file.rank == accelerator
        ]

    def read_by(self, accelerator: int, step: int) -> Files:
        """Return the files that an accelerator reads: those of another host, where there are."""
        return self.written_by((accelerator + self.shift) % len(self.hosts), step)


def planned(workload: Workload, plan: ShardPlan) -> dict[str, Any]:
    """Return the fields of the summary that are known before anything is written."""
    key, total = workload.checkpoint, plan.share.total
    whole = files_of(workload.model, total, range(total), scale=key.scale)
    return {
        "model": workload.model.model_dump(mode="json"),
        "parameters": parameters_of(workload.model, plan.share),
        "num_accelerators": plan.share.written,
        "num_accelerators_of_model": plan.share.total,
        "checkpoint": {
            "folder": key.checkpoint_folder or "",
            "num_accelerators": plan.share.written,
            "num_bytes": plan.num_bytes,
            "num_bytes_of_model": sum(file.num_bytes for file in whole),
            "num_files": len(plan.files),
            "num_bytes_of_accelerators": plan.spread(),
            "num_bytes_of_hosts": list(plan.bytes_of_hosts().values()),
            "scale": key.scale,
            "writer": key.writer,
            "fsync": key.fsync,
            "piece_bytes": key.piece_bytes,
            "io_depth": key.io_depth,
            "verified": key.verify,
            "max_seconds": key.max_seconds,
            "mtbf_seconds": key.mtbf,
        },
    }


def predict_checkpoint(workload: Workload) -> dict[str, Any]:
    """Return the document of a prediction from the rates of drives, without any storage.

    `save` and `load` have the `seconds` of one checkpoint, their range from `low` to `high`, and
    `bytes_per_second`. They follow from `drive` and `drives`, or from the rate of `server` where
    that is less; `save` is None where no write rate is known.

    Raises:
        WorkloadError: no drive is given, or the accelerators do not fit the model.
    """
    drive, server = workload.drive, workload.server
    plan = ShardPlan.of(workload, Alone())
    if not (server.read_bandwidth or (drive and drive.read_bandwidth)):
        raise WorkloadError(
            f"{'drive' if drive is None else 'drive.read_bandwidth'} is not set; name a datasheet "
            "(drive=d7_ps1010) or give its rates "
            "(drive.read_bandwidth=7GB drive.write_bandwidth=3GB), or those of its servers "
            "(server.read_bandwidth=60GB server.write_bandwidth=30GB)"
        )

    def duration(each: int | None, of_servers: int | None) -> dict[str, float] | None:
        known = [rate for rate in (each and workload.drives * each, of_servers) if rate]
        if not known:
            return None
        rate = min(known)
        seconds = plan.num_bytes / rate
        return {
            "seconds": seconds,
            "low": seconds / (1 + RATE_ERROR),
            "high": seconds / (1 - RATE_ERROR),
            "bytes_per_second": rate,
        }

    return {
        "kind": "checkpoint prediction",
        **planned(workload, plan),
        "drive": drive.name if drive else "servers",
        "drives": workload.drives,
        "relative_error": RATE_ERROR,
        "save": duration(drive.write_bandwidth if drive else None, server.write_bandwidth),
        "load": duration(drive.read_bandwidth if drive else None, server.read_bandwidth),
    }
