"""How far `dlemu checkpoint` is, for the thread that shows it."""

import time
from typing import Any

from dlemu.checkpoint.crew import Crew
from dlemu.units import format_bytes, format_rate


class Progress:
    """What is being done, and how many bytes of it are done by all ranks; `str` is the line."""

    def __init__(self) -> None:
        self.does("starting")

    def does(self, doing: str, crew: Crew[Any] | None = None, num_bytes: int = 0) -> None:
        """Show this from now on; `num_bytes` are those that the crew works through."""
        self._before = 0 if crew is None else crew.bytes_done
        self._num_bytes, self._begun = num_bytes, time.perf_counter()
        self._doing, self._crew = doing, crew

    def __str__(self) -> str:
        seconds = time.perf_counter() - self._begun
        if self._crew is None or seconds < 1:
            return self._doing
        done = max(0, self._crew.bytes_done - self._before)
        return (
            f"{self._doing}, {format_bytes(done)} of {format_bytes(self._num_bytes)}, "
            f"{format_rate(done / seconds)}"
        )
