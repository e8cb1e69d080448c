"""The bytes of sample i: a pure function of (seed, sample, offset), random to every storage.

Random numbers made one by one cost more than writing them. Here a pool that stays in the CPU's
cache is combined with a key, which no other 4096 bytes of any sample of the dataset have. So no two
pages of the set are alike, wherever in its file a payload starts: deduplication and compression
find nothing, at the price of a copy.
"""

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 4096
_WORDS = _BLOCK_BYTES // 8
_POOL_BLOCKS = 256  # 1 MiB; a larger pool would drop out of the CPU's cache
_BLOCK_BITS = 30  # samples up to 4 TiB, and 2^34 of them

# MurmurHash3's finaliser (Appleby 2011): every bit of the number reaches every bit of the key, and
# different numbers have different keys.
_MULTIPLIERS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT = np.uint64(33)


class Content:
    """The content of a dataset's samples. Threads may share it."""

    def __init__(self, seed: int) -> None:
        # A bit generator's raw output is the same in every NumPy, by its compatibility policy.
        pool = np.random.PCG64(seed).random_raw(_POOL_BLOCKS * _WORDS)
        self._pool = pool.astype("<u8").reshape(_POOL_BLOCKS, _WORDS)

    def fill(self, out: NDArray[np.uint8], sample: int, offset: int = 0) -> None:
        """Fill `out`, contiguous, with the sample's bytes from `offset` on."""
        done = 0
        while done < len(out):
            block, skip = divmod(offset + done, _BLOCK_BYTES)
            rest = out[done:]
            if skip == 0 and len(rest) >= _BLOCK_BYTES and rest.ctypes.data % 8 == 0:
                part = rest[: len(rest) // _BLOCK_BYTES * _BLOCK_BYTES]
                self._fill_blocks(part, sample, block)
            else:
                num_blocks = min(-(-(skip + len(rest)) // _BLOCK_BYTES), _POOL_BLOCKS)
                blocks = np.empty(num_blocks * _BLOCK_BYTES, np.uint8)
                self._fill_blocks(blocks, sample, block)
                part = rest[: len(blocks) - skip]
                part[:] = blocks[skip : skip + len(part)]
            done += len(part)

    def _fill_blocks(self, out: NDArray[np.uint8], sample: int, first: int) -> None:
        """Fill whole blocks, the first of which has this number in its sample."""
        words = out.view("<u8").reshape(-1, _WORDS)
        assert 0 <= sample < 1 << 64 - _BLOCK_BITS and first + len(words) <= 1 << _BLOCK_BITS
        keys = _keys((sample << _BLOCK_BITS) + first, len(words))
        done = 0
        while done < len(words):
            at = (first + done) % _POOL_BLOCKS
            part = slice(done, done + min(len(words) - done, _POOL_BLOCKS - at))
            pool = self._pool[at : at + part.stop - done]
            np.bitwise_xor(pool, keys[part, None], out=words[part])
            done = part.stop


def _keys(first: int, count: int) -> NDArray[np.uint64]:
    """Return the keys of `count` blocks, numbered from `first` on over all samples."""
    keys = np.arange(first, first + count, dtype=np.uint64)
    for multiplier in _MULTIPLIERS:
        keys ^= keys >> _SHIFT
        keys *= multiplier
    keys ^= keys >> _SHIFT
    return keys
