"""What all tests begin with."""

import signal

import pytest

from tests.lab import warm

SHORT_PROBES = {
    "dlemu.run.monitor._PROBE_SECONDS": 0.3,
    "dlemu.sizing.start._PROBE_SECONDS": 0.1,
}
"""A probe after each short run would take longer than all else; no such test is about its rate."""


def pytest_configure() -> None:
    """Let Ctrl-C reach what tests start.

    A shell starts background jobs with SIGINT ignored, children inherit that, and whoever ignores a
    signal from the start rightly goes on ignoring it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def short_probes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe storage for a moment only, here and in warm processes, but where the clock is read."""
    if request.node.get_closest_marker("clock") is None:
        for name, seconds in SHORT_PROBES.items():
            monkeypatch.setattr(name, seconds)
        monkeypatch.setattr(warm, "settings", SHORT_PROBES)
