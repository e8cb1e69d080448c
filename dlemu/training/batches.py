"""What a batch of any DataLoader holds: its samples, and the bytes of its arrays."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def batch_length(batch: object) -> int | None:
    """Return the first axis of a batch's first array, or the length of a list; None: unknown."""
    for array in _arrays(batch):
        return int(array.shape[0]) if len(array.shape) else None
    is_list = isinstance(batch, Sequence) and not isinstance(batch, (str, bytes))
    return len(batch) if is_list and isinstance(batch, Sequence) else None


def batch_bytes(batch: object) -> int:
    """Return the bytes of a batch's arrays, as they are in memory; 0 where there are none."""
    return sum(int(array.nbytes) for array in _arrays(batch))


def _arrays(batch: object) -> Iterator[Any]:
    if hasattr(batch, "shape") and hasattr(batch, "nbytes"):
        yield batch
    elif isinstance(batch, Mapping):
        for each in batch.values():
            yield from _arrays(each)
    elif isinstance(batch, (list, tuple)):
        for each in batch:
            yield from _arrays(each)
