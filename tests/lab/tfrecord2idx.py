"""Write a TFRecord file's index, as the tool of this name in NVIDIA DALI does, which DLIO calls.

DALI is not needed for anything else there; `make peers` puts this beside DLIO in its place.
"""

import struct
import sys

_AROUND = 4 + 4
"""Bytes of the two checksums of a record, after its length and after its data."""


def main(source: str, target: str) -> None:
    """Write a line "offset length" for each record of `source`."""
    with open(source, "rb") as file, open(target, "w") as index:
        offset = 0
        while head := file.read(8):
            length = 8 + struct.unpack("<Q", head)[0] + _AROUND
            index.write(f"{offset} {length}\n")
            offset += length
            file.seek(offset)


if __name__ == "__main__":
    main(*sys.argv[1:])
