"""What all tests begin with."""

import signal


def pytest_configure() -> None:
    """Let Ctrl-C reach what tests start.

    A shell starts background jobs with SIGINT ignored, children inherit that, and whoever ignores a
    signal from the start rightly goes on ignoring it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
