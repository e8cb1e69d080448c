"""`python -m dlemu`, and the `dlemu` command."""

import os
import signal
import sys


def main() -> int:
    """Run the command line; return its exit status."""
    # NumPy starts a thread for each CPU, to multiply matrices with, and each spins for 0.1 s. Here
    # nobody multiplies matrices, and many processes start at once on the CPUs that are measured.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dlemu.cli import run
    from dlemu.world import leave

    status = run(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # all is said
    return leave(status)


if __name__ == "__main__":
    sys.exit(main())
