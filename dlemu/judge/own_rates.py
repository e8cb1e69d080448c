"""How steadily bytes are read or written by what is no run: by those alone who count them."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from dlemu.judge.steady import Piece, Steadiness, steadiness

_PERIOD = 1.0
_SHORTEST = 0.5
"""Seconds between two looks: closer ones tell no rate."""
Moved = tuple[float, float]
"""Seconds of a clock, and the bytes that were moved until then."""


class OwnRates:
    """Looks about once a second at `count()`, the bytes that were read or written until now.

    Counters of drives would not do: they count the bytes of other programs as well, and of several
    targets on one drive those of all.
    """

    def __init__(self, count: Callable[[], float]) -> None:
        self._count = count
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
        """Return how steady the rate was; None: no byte was counted, or it was too short."""
        return steadiness(pieces_of(self.moved))

    def _look_on(self) -> None:
        while not self._ended.wait(_PERIOD):
            self._look()

    def _look(self) -> None:
        self.moved.append((time.perf_counter(), self._count()))


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
