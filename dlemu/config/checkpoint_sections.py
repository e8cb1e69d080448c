"""The sections about checkpoints: the model whose state is written, and how it is written.

Names and meanings are DLIO's where DLIO has them; its defaults are named where ours differ.
"""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from dlemu.config.sections import Axis
from dlemu.config.types import (
    DURATION,
    Bandwidth,
    Natural,
    Positive,
    ReadBytes,
    Seconds,
    Section,
    Size,
    Use,
)
from dlemu.plugins import is_url

DataType = Literal["int8", "uint8", "fp16", "bf16", "fp32", "fp64"]
Elements = Annotated[int, Field(ge=1, le=10**9)]


def _unset(value: object) -> object:
    """Take DLIO's -1, and its 0 for a size, as "not set"."""
    return None if isinstance(value, (int, float)) and value <= 0 else value


class ParallelismSection(Section):
    """How the model is split over the accelerators."""

    tensor: Positive = 1
    """Accelerators that share each layer."""
    pipeline: Positive = 1
    """Stages that share the layers between them."""
    data: Annotated[Positive | None, BeforeValidator(_unset)] = None
    """Copies of the model. With `checkpoint.mode=subset` it must be set; else num_accelerators,
    where set, decides. None: 1."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    """ZeRO's stage. 0: one copy saves all. 1, 2: one copy saves the model, and each accelerator its
    share of the optimizer. 3: each accelerator saves its share of both."""


class TransformerSection(Section):
    """The shape of a transformer; all keys are needed where model.num_layers is set."""

    vocab_size: Elements | None = None
    """Words of the vocabulary."""
    hidden_size: Elements | None = None
    """Width of a layer."""
    ffn_hidden_size: Elements | None = None
    """Width of the feed-forward part."""
    num_attention_heads: Elements | None = None
    """Heads of the attention."""
    num_kv_heads: Elements | None = None
    """Heads of the keys and values."""


class ModelSection(Section):
    """The model whose state a checkpoint holds: a transformer, or a number of bytes."""

    name: Annotated[str, Use(closed=True)] = "model"
    """As it is shown."""
    model_size_bytes: Annotated[
        Annotated[Size, Field(ge=1, le=10**15)] | None, BeforeValidator(_unset)
    ] = None
    """Bytes that one accelerator of each pipeline and tensor rank writes as one file; a model
    with num_layers is computed instead."""
    num_layers: Annotated[
        Annotated[int, Field(ge=1, le=100_000)] | None, BeforeValidator(_unset)
    ] = None
    """Layers of the transformer."""
    layer_parameters: Annotated[tuple[Axis, ...], Field(strict=False, max_length=1000)] = ()
    """Bytes of each tensor of a layer, which model.parallelism.tensor divides; instead of
    model.transformer, with model.optimization_groups."""
    optimization_groups: Annotated[tuple[Axis, ...], Field(strict=False, max_length=1000)] = ()
    """Bytes of each group of the optimizer: every accelerator writes two tensors of each, and one
    of all together."""
    model_datatype: DataType = "fp16"
    """Type of a parameter."""
    optimizer_datatype: DataType = "fp32"
    """Type of the optimizer's three values of each parameter."""
    parallelism: ParallelismSection = ParallelismSection()
    transformer: TransformerSection = TransformerSection()

    @model_validator(mode="after")
    def _shape(self) -> Self:
        missing = [name for name, value in self.transformer if value is None]
        if self.layer_parameters and self.optimization_groups:
            return self
        if self.num_layers is not None and missing:
            raise ValueError(
                f"model.num_layers needs model.transformer.{missing[0]}; set it, or set "
                "model.model_size_bytes instead of the layers"
            )
        if self.num_layers is not None and self.heads > self.hidden:
            raise ValueError(
                "model.transformer.num_attention_heads must be at most "
                f"model.transformer.hidden_size, {self.hidden}, got {self.heads}"
            )
        return self

    @property
    def hidden(self) -> int:
        """The width of a layer, 0 without layers."""
        return self.transformer.hidden_size or 0

    @property
    def heads(self) -> int:
        """The heads of the attention, 1 without layers."""
        return self.transformer.num_attention_heads or 1

    @property
    def model_parallelism(self) -> int:
        """Accelerators that hold one copy of the model."""
        return self.parallelism.tensor * self.parallelism.pipeline


_ALONE, _IN_RUNS = Use(by="checkpoint"), Use(by="run size")
_JUDGED = Use(by="checkpoint", closed=True)
_AFTER_EPOCHS = Use(by="run size", when=lambda job: job.saves and job.saves_by_epochs)


class CheckpointSection(Section):
    """Checkpoints: what is written, how, and when in a run."""

    checkpoint_folder: Annotated[str | None, Use(closed=True)] = None
    """Where checkpoints go: each in a folder global_epoch<e>_step<s> below it. s3://bucket/prefix:
    they are objects, which are reached by the keys of `storage`."""
    num_checkpoints_write: Annotated[Natural, _ALONE] = 10
    """Checkpoints that `dlemu checkpoint` writes; 0: read those of an earlier command."""
    num_checkpoints_read: Annotated[Natural, _ALONE] = 10
    """Checkpoints that it reads, after all are written; 0: none."""
    time_between_checkpoints: Annotated[
        Seconds, BeforeValidator(lambda value: _unset(value) or 0.0), _ALONE
    ] = 0.0
    """Seconds of pause before each of them (MLPerf Storage: 5)."""
    mode: Literal["default", "subset"] = "default"
    """`subset`: write the files of the first num_accelerators only (8, if it is not set), of as
    many as model.parallelism says."""
    keep: Positive | None = None
    """Newest checkpoints that stay on the drive; older ones are deleted outside the measured time.
    None: all, as DLIO does."""
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor on the size of each file, for drives that are too small; results say so."""
    fsync: bool = True
    """Wait for the drive at the end of each file and folder (DLIO: false)."""
    odirect: bool | Literal["auto"] = False
    """Write and read past the page cache; `auto` falls back to buffered calls with a note."""
    piece_bytes: ReadBytes = 1_048_576
    """Bytes of one write or read call; of an object's parts and ranges, at least 8 MiB."""
    io_depth: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads that write or read each file; requests of each object that are under way."""
    rank_sync: Annotated[bool, _ALONE] = False
    """Rank 0's duration, which DLIO reports, includes the wait for the other ranks."""
    verify: Annotated[bool, _ALONE] = False
    """Compare every byte that is read."""
    writer: Annotated[Literal["dlemu", "dcp"], _ALONE] = "dlemu"
    """Who writes. `dcp`: torch.distributed.checkpoint writes tensors of the same bytes."""
    max_seconds: Annotated[
        Annotated[float, DURATION, Field(gt=0, le=1_000_000)] | None, _JUDGED
    ] = None
    """Longest mean duration of a written checkpoint that passes; None: none fails."""
    mtbf: Annotated[Annotated[float, DURATION, Field(gt=0, le=10**9)] | None, _JUDGED] = None
    """Mean time between failures of the whole job (as 3h, 30min, 10800), for Young's interval."""
    checkpoint_after_epoch: Annotated[Positive, _AFTER_EPOCHS] = 1
    """In a run: the epoch after which the first checkpoint is written."""
    epochs_between_checkpoints: Annotated[Positive, _AFTER_EPOCHS] = 1
    """In a run: epochs from one checkpoint to the next."""
    steps_between_checkpoints: Annotated[Positive | None, BeforeValidator(_unset), _IN_RUNS] = None
    """In a run: steps from one checkpoint to the next within an epoch; None: one at its end."""
    asynchronous: Annotated[bool, _IN_RUNS] = False
    """In a run: copy the state to memory first, and write it while the next steps go on."""
    staging_bandwidth: Annotated[
        Bandwidth, Use(by="run size", when=lambda job: job.saves and job.saves_asynchronously)
    ] = 20_000_000_000
    """Bytes per second at which an accelerator copies its state to memory before that (about what
    PCIe 4.0 x16 carries)."""

    @model_validator(mode="after")
    def _fit_objects(self) -> Self:
        for name, value in (("odirect", True), ("fsync", False), ("writer", "dcp")):
            if is_url(self.checkpoint_folder or "") and getattr(self, name) == value:
                raise ValueError(
                    f"checkpoint.{name}={str(value).lower()} has no meaning for objects, which are "
                    "stored when their requests are answered; leave it out, or name a folder"
                )
        return self

    @model_validator(mode="after")
    def _reach_the_writer(self) -> Self:
        for name in ("odirect", "piece_bytes", "io_depth", "verify"):
            value = getattr(self, name)
            if self.writer == "dcp" and value != type(self).model_fields[name].default:
                raise ValueError(
                    f"checkpoint.{name}={str(value).lower()} has no effect with "
                    "checkpoint.writer=dcp, where torch opens and writes the files; leave one of "
                    "them out"
                )
        return self
