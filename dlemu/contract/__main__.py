"""`python -m dlemu.contract`."""

import sys

from dlemu.contract import main

sys.exit(main(sys.argv[1:]))
