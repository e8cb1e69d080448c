"""Models whose files an inference server reads once, and the seconds that a drive needs for them.

Sizes are those of the published weights. Of the Llama models the shards follow from the shapes of
their tensors, by the rule of Hugging Face's `save_pretrained`: a shard takes tensors in their order
until the next one would exceed the limit. For Llama 2 70B this gives the 15 published files, and
`total_size` of its model.safetensors.index.json, to the byte.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dlemu.errors import WorkloadError, did_you_mean
from dlemu.workload.compose import CONFIGS, read_yaml
from dlemu.workload.model import Drive


@dataclass(frozen=True)
class Model:
    """The files of a model's weights."""

    name: str
    files: tuple[int, ...]
    """Bytes of each file."""
    datatype: str
    source: str

    @property
    def num_bytes(self) -> int:
        return sum(self.files)


@dataclass(frozen=True, kw_only=True)
class _Llama:
    """Shapes of a Llama model; all weights have 2 bytes."""

    layers: int
    hidden: int
    ffn: int
    keys: int
    """Rows of the projections to keys and values: num_key_value_heads x head size."""
    vocabulary: int
    shard: int
    """Largest shard, bytes."""
    rotary: int = 0
    """Bytes of the rotary frequencies that early checkpoints keep in each layer."""

    def tensors(self) -> Iterator[int]:
        """Yield the bytes of the tensors in their order."""
        square, keys, wide = (self.hidden * rows * 2 for rows in (self.hidden, self.keys, self.ffn))
        norm = 2 * self.hidden
        yield 2 * self.vocabulary * self.hidden
        for _ in range(self.layers):
            yield from (square, keys, keys, square, self.rotary, wide, wide, wide, norm, norm)
        yield from (norm, 2 * self.vocabulary * self.hidden)

    def shards(self) -> tuple[int, ...]:
        """Return the bytes of the files."""
        files = [0]
        for tensor in self.tensors():
            if files[-1] and files[-1] + tensor > self.shard:
                files.append(0)
            files[-1] += tensor
        return tuple(files)


_HF = "Hugging Face, "
_SHAPES: dict[str, tuple[_Llama, str, str]] = {
    "llama2_70b": (
        _Llama(
            layers=80, hidden=8192, ffn=28672, keys=1024, vocabulary=32000, shard=10**10, rotary=256
        ),
        "fp16",
        f"{_HF}meta-llama/Llama-2-70b-hf",
    ),
    "llama3_8b": (
        _Llama(layers=32, hidden=4096, ffn=14336, keys=1024, vocabulary=128256, shard=5 * 10**9),
        "bf16",
        f"{_HF}meta-llama/Llama-3.1-8B",
    ),
    "llama3_70b": (
        _Llama(layers=80, hidden=8192, ffn=28672, keys=1024, vocabulary=128256, shard=5 * 10**9),
        "bf16",
        f"{_HF}meta-llama/Llama-3.1-70B",
    ),
    "llama3_405b": (
        _Llama(layers=126, hidden=16384, ffn=53248, keys=1024, vocabulary=128256, shard=5 * 10**9),
        "bf16",
        f"{_HF}meta-llama/Llama-3.1-405B",
    ),
}
_OF_ONE_FILE: dict[str, tuple[int, str, str]] = {
    "resnet50": (102_228_128, "fp32", "torchvision: 25,557,032 parameters x 4 B"),
    "bert_large": (1_340_000_000, "fp32", f"{_HF}bert-large-uncased, rounded"),
    "sdxl": (6_940_000_000, "fp16", f"{_HF}stabilityai/stable-diffusion-xl-base-1.0, rounded"),
    "gptj_6b": (24_200_000_000, "fp32", f"{_HF}EleutherAI/gpt-j-6b, rounded"),
    "dlrm_dcnv2": (
        97_700_000_000,
        "fp32",
        "MLPerf Inference, DLRM-DCNv2: embedding tables, rounded",
    ),
}


def models() -> dict[str, Model]:
    """Return the known models by name."""
    sharded = [
        Model(name, shape.shards(), datatype, source)
        for name, (shape, datatype, source) in _SHAPES.items()
    ]
    single = [
        Model(name, (num_bytes,), datatype, source)
        for name, (num_bytes, datatype, source) in _OF_ONE_FILE.items()
    ]
    return {model.name: model for model in [*single, *sharded]}


def find_model(name: str) -> Model:
    """Return a model by its name.

    Raises:
        WorkloadError: there is none of that name.
    """
    known = models()
    if name not in known:
        hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
        raise WorkloadError(f"model {name} is not known{hint}; or name files: files=FILE,FILE")
    return known[name]


def find_drive(name: str) -> Drive:
    """Return a drive by the name of its datasheet.

    Raises:
        WorkloadError: there is none of that name.
    """
    known = {path.stem: path for path in sorted((CONFIGS / "drive").glob("*.yaml"))}
    if name not in known:
        hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
        raise WorkloadError(f"drive {name} is not known{hint}")
    return Drive.model_validate(read_yaml(known[name]))


def known_drives() -> list[str]:
    """Return the names of the datasheets, the fastest drive first."""
    names = [path.stem for path in (CONFIGS / "drive").glob("*.yaml")]
    return sorted(names, key=lambda name: -find_drive(name).read_rate)
