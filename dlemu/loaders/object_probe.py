"""How fast a bucket is, by a short reading of its objects."""

from collections.abc import Iterator, Sequence

import numpy as np

from dlemu.errors import DlemuError
from dlemu.loaders.objects import RANGE_BYTES
from dlemu.objects.store import store_of
from dlemu.storage.probe import rate_of
from dlemu.workload.objects import Access, ObjectPath


def probe_objects(
    access: Access, objects: Sequence[ObjectPath], *, num_readers: int, seconds: float
) -> float | None:
    """Return bytes per second that threads get from the starts of random objects.

    Each has one request outstanding, at the endpoint of its turn. None if nothing could be read.
    """
    turns = iter(range(num_readers))

    def read(generator: np.random.Generator) -> Iterator[int]:
        store = store_of(access, next(turns), objects[0].bucket)
        while True:
            chosen = objects[int(generator.integers(len(objects)))]
            try:
                yield len(store.get(chosen.key, 0, RANGE_BYTES).memory)
            except DlemuError:
                return

    return rate_of(read, num_readers=num_readers, seconds=seconds)
