"""How steadily drives move bytes while something that is no run reads or writes them."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from dlemu.host.devices import devices_under
from dlemu.judge.steady import Piece, Steadiness, steadiness

_PERIOD = 1.0
_SHORTEST = 0.5
"""Seconds between two looks: closer ones tell no rate."""
Moved = tuple[float, float]
"""Seconds of a clock, and the bytes that were moved until then."""


class DriveRates:
    """Looks about once a second at how many bytes the drives under folders have read and written.

    Other programs' bytes count as well; a server or a bucket has no drive here. Who counts the
    bytes gives `count`, which returns those until now: then these alone count.
    """

    def __init__(self, *folders: Path, count: Callable[[], float] | None = None) -> None:
        self._devices, self._count = devices_under(*folders), count
        self.moved: list[Moved] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def steadiness(self) -> Steadiness | None:
        """Return how steady the rate was; None: nothing is counted, or it was too short."""
        return steadiness(pieces_of(self.moved))

    def _look_on(self) -> None:
        while not self._ended.wait(_PERIOD):
            self._look()

    def _look(self) -> None:
        if self._count is not None:
            self.moved.append((time.perf_counter(), self._count()))
            return
        found = [device.counters() for device in self._devices]
        known = [each for each in found if each is not None]
        if known:
            at = sum(each.read_bytes + each.written_bytes for each in known)
            self.moved.append((time.perf_counter(), float(at)))


def pieces_of(moved: Sequence[Moved]) -> list[Piece]:
    """Return the rates between looks, or nothing where no byte was counted."""
    pieces: list[Piece] = []
    since = moved[0] if moved else (0.0, 0.0)
    for at, num_bytes in moved[1:]:
        if num_bytes < since[1]:  # those who counted have ended
            break
        if (seconds := at - since[0]) >= _SHORTEST:
            pieces.append(Piece(seconds, (num_bytes - since[1]) / seconds))
            since = at, num_bytes
    return pieces if any(piece.bytes_per_second for piece in pieces) else []
