"""`python -m dlemu`, and the `dlemu` command."""

import gc
import os
import signal
import sys


def main() -> int:
    """Run the command line; return its exit status."""
    # NumPy starts a thread for each CPU to multiply matrices, and each spins for 0.1 s. dlemu
    # multiplies none, and starts many processes at once on the CPUs that it measures.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(200_000, 20, 100)
    try:
        from dlemu.cli.main import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # before `run` handles it
        from dlemu.terminal import complain

        complain("interrupted")
        status = 130
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # from now on, it would show a traceback
    if status:
        from dlemu.ranks.ending import end_soon

        end_soon(status)
    from dlemu.ranks.mpi import leave

    return leave(status)


if __name__ == "__main__":
    sys.exit(main())
