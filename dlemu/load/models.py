"""Models whose files an inference server reads once: the rows of workloads/weights/.

Sizes are those of the published weights. Of the Llama models the shards follow from the shapes of
their tensors, by the rule of Hugging Face's `save_pretrained`: a shard takes tensors in their order
until the next one would exceed the limit. For Llama 2 70B this gives the 15 published files, and
`total_size` of its model.safetensors.index.json, to the byte.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dlemu.errors import WorkloadError, did_you_mean
from dlemu.workload.compose import datasheet, named, read_yaml
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


def known_models() -> list[str]:
    """Return the names of the models in workloads/weights/."""
    return list(named("weights"))


def find_model(name: str) -> Model:
    """Return a model by its name.

    Raises:
        WorkloadError: there is none of that name.
    """
    known = named("weights")
    if name not in known:
        hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
        raise WorkloadError(f"model {name} is not known{hint}; or name files: files=FILE,FILE")
    row = read_yaml(known[name])
    files = _Llama(**row["shapes"]).shards() if "shapes" in row else tuple(row["files"])
    return Model(name, files, row["datatype"], row["source"])


def find_drive(name: str) -> Drive:
    """Return a drive by the name of its datasheet. Raises ValueError: there is none."""
    return Drive.model_validate(datasheet(name))


def known_drives() -> list[str]:
    """Return the names of the datasheets, the fastest drive first."""
    return sorted(named("drive"), key=lambda name: -find_drive(name).read_rate)
