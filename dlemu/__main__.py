"""`python -m dlemu`, and the `dlemu` command."""

import sys


def main() -> int:
    """Run the command line; return its exit status."""
    from dlemu.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
