"""Makes the watchdog's time fly from when a file is there: what hangs is ended at once, however
much time a busy host takes for all else.

For `warm.settings` only, which imports this in a command's own process: {"tests.lab.flying.file":
PATH}.
"""

import os
import time

from dlemu.ranks.watchdog import Watchdog

file = ""
_FASTER = 300.0
"""A second is as long as the watchdog waits unless told otherwise."""
_since: float | None = None


def _now() -> float:
    global _since
    now = time.perf_counter()
    if _since is None and os.path.exists(file):
        _since = now
    return now if _since is None else now + (now - _since) * (_FASTER - 1)


Watchdog.__init__.__kwdefaults__["now"] = _now  # type: ignore[index]
