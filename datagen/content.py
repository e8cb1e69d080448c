"""The bytes of a sample: a pure function of (seed, sample, offset) that no storage can compress.

To draw every byte at random would take longer than to write it. Here each block of 4096 bytes is
a block of a random pool, which stays in the CPU's cache, XORed with a key that no other block of
the dataset has. So no two pages of the dataset are equal, wherever in a file a payload starts:
deduplication and compression find nothing, and it costs no more than a copy.
"""

import threading

import numpy as np
from numpy.typing import NDArray

from dlemu.units import ceil_div

_BLOCK_BYTES = 4096
_WORDS = _BLOCK_BYTES // 8
_POOL_BLOCKS = 256  # 1 MiB, which fits the CPU's cache
_FEW_BLOCKS, _NEIGHBOURS = 64, 64
_BLOCK_BITS = 30  # samples up to 4 TiB, and 2^34 of them

# MurmurHash3's finaliser (Appleby 2011): every bit of the block's number changes every bit of the
# key, and different numbers have different keys.
_MULTIPLIERS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT = np.uint64(33)


class Content:
    """The content of a dataset's samples. Threads may share it."""

    def __init__(self, seed: int) -> None:
        # NumPy guarantees a bit generator's raw output to be the same in every version.
        pool = np.random.PCG64(seed).random_raw(_POOL_BLOCKS * _WORDS)
        self._pool = pool.astype("<u8").reshape(_POOL_BLOCKS, _WORDS)
        self._made = threading.local()  # of each thread: a `group` of samples, and their `keys`

    def fill(self, out: NDArray[np.uint8], sample: int, offset: int = 0) -> None:
        """Fill `out`, uint8 (bytes,) and contiguous, with the sample's bytes from `offset` on."""
        first, skip = divmod(offset, _BLOCK_BYTES)
        num_blocks = ceil_div(skip + len(out), _BLOCK_BYTES)
        assert 0 <= sample < 1 << 64 - _BLOCK_BITS and first + num_blocks <= 1 << _BLOCK_BITS
        keys = self._keys_of(sample, first, num_blocks)
        block = done = 0
        while done < len(out):
            at = (first + block) % _POOL_BLOCKS
            count = min((len(out) - done) // _BLOCK_BYTES, _POOL_BLOCKS - at)
            if skip or not count:  # the end of the first block, or the start of the last
                words = (self._pool[at] ^ keys[block]).astype("<u8", copy=False)
                part = words.view(np.uint8)[skip:][: len(out) - done]
                out[done : done + len(part)] = part
                done, block, skip = done + len(part), block + 1, 0
                continue
            end = done + count * _BLOCK_BYTES
            # `out` may be unaligned: NumPy handles that faster than a copy would.
            words = out[done:end].view("<u8").reshape(count, _WORDS)
            np.bitwise_xor(self._pool[at : at + count], keys[block : block + count, None], words)
            done, block = end, block + count

    def _keys_of(self, sample: int, first: int, count: int) -> NDArray[np.uint64]:
        """Return the keys of a sample's blocks, uint64 (count,)."""
        if first or count > _FEW_BLOCKS:
            return _keys(np.array((sample << _BLOCK_BITS) + first, np.uint64), count)
        # NumPy takes as long for one small sample as for 64, so the keys of 64 are made at once.
        group, place = divmod(sample, _NEIGHBOURS)
        made = self._made
        if getattr(made, "group", None) != group:
            samples = np.arange(group * _NEIGHBOURS, (group + 1) * _NEIGHBOURS, dtype=np.uint64)
            made.keys = _keys(samples[:, None] << np.uint64(_BLOCK_BITS), _FEW_BLOCKS)
            made.group = group
        keys: NDArray[np.uint64] = made.keys[place]
        return keys


def _keys(first: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """Return the keys of `count` blocks from number `first` on, uint64 (*first's shape, count)."""
    keys: NDArray[np.uint64] = np.add(first, np.arange(count, dtype=np.uint64))
    for multiplier in _MULTIPLIERS:
        keys ^= keys >> _SHIFT
        keys *= multiplier
    keys ^= keys >> _SHIFT
    return keys
