"""The bytes of samples, and of files, in pieces: the format decides what comes next.

The bytes of a sample are a function of (seed, sample, offset) that no storage can compress.
"""

import functools
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dlemu.formats import Crc, FileSamples, Sink, crc32c
from dlemu.storage.files import aligned_buffer
from dlemu.units import PAGE_BYTES, ceil_div

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
    """The content of a dataset's samples. Threads may share it.

    To draw every byte at random would take longer than to write it. Here each block of 4096 bytes
    is a block of a random pool, which stays in the CPU's cache, XORed with a key that no other
    block of the dataset has. So no two pages of the dataset are equal, wherever in a file a payload
    starts: deduplication and compression find nothing, and it costs no more than a copy.
    """

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


PIECE_BYTES = 1 << 20
"""Bytes that are made, checked and written at once: many for a drive, few for the CPU's cache."""
_JOINED_BYTES, _JOINED_AGAIN = 1 << 18, 1 << 16
"""From so many bytes on, two checksums are joined faster than the second one is computed: of a
payload, and of one that is as long as that before it, as most are.
"""

Put = Callable[[NDArray[np.uint8], int], None]
"""`put(piece, offset)` writes or compares a piece at an offset, a multiple of PAGE_BYTES."""


def piece_buffer() -> NDArray[np.uint8]:
    """Return memory for a piece, aligned for O_DIRECT."""
    return np.frombuffer(aligned_buffer(PIECE_BYTES), np.uint8)


class Assembly(Sink):
    """One file, handed to `put` in pieces of the size of `buffer`; only the last may be shorter.

    Reserved bytes at the start of the file are handed over last.
    """

    def __init__(self, content: Content, buffer: NDArray[np.uint8], put: Put) -> None:
        self._content, self._buffer, self._put = content, buffer, put
        self._memory = memoryview(buffer)  # type: ignore[arg-type]
        self._offset = 0  # in the file, of the buffer's start
        self._used = 0  # bytes of the buffer
        self._crc, self._checked = 0, 0  # of the file up to so many bytes of the buffer
        self._last = 0  # bytes of the last payload
        self._reserved = 0
        self._head = b""

    def write(self, data: bytes) -> None:
        end = self._used + len(data)
        if end > len(self._memory):
            self._copy(np.frombuffer(data, np.uint8))
        else:  # the usual case, in a third of the time
            self._memory[self._used : end] = data
            self._used = end

    def content(self, sample: int, num_bytes: int) -> NDArray[np.uint8]:
        out = np.empty(num_bytes, np.uint8)
        self._content.fill(out, sample)
        return out

    def payload(self, sample: int, num_bytes: int, crc: Crc | None = None, value: int = 0) -> int:
        done, seed = 0, value
        # The payload's own CRC-32C is also most of the file's; to read it twice takes longer.
        again, self._last = num_bytes == self._last, num_bytes
        joins = crc is crc32c and num_bytes >= (_JOINED_AGAIN if again else _JOINED_BYTES)
        if joins:
            self._check()
        while done < num_bytes:
            part = self._room(num_bytes - done)
            self._content.fill(part, sample, done)
            if crc is not None:
                value = crc(part, value)
            if joins:
                self._checked = self._used
            done += len(part)
        if joins:
            shifted = _by_table if again else _shifted
            self._crc = shifted(self._crc ^ seed, num_bytes) ^ value
        return value

    def interleaved(self, file: FileSamples, crc: Crc | None = None, value: int = 0) -> int:
        element, num_samples = file.dtype.itemsize, len(file.samples)
        num_bytes = int(file.sizes[0])
        step = max(1, PIECE_BYTES // (num_samples * element)) * element
        for start in range(0, num_bytes, step):
            rows = np.empty((num_samples, min(step, num_bytes - start)), np.uint8)
            for row, sample in zip(rows, file.samples.tolist(), strict=True):
                self._content.fill(row, sample, start)
            mixed = rows.reshape(num_samples, -1, element).swapaxes(0, 1).reshape(-1)
            if crc is not None:
                value = crc(mixed, value)
            self._copy(mixed)
        return value

    def reserve(self, num_bytes: int) -> None:
        assert self._offset == self._used == 0 and num_bytes % PAGE_BYTES == 0
        self._offset = self._reserved = num_bytes

    def fill(self, data: bytes) -> None:
        assert len(data) == self._reserved
        self._head = data

    def finish(self) -> tuple[int, int]:
        """Hand over the last piece; return the file's bytes and their CRC-32C."""
        num_bytes = self._offset + self._used
        self._hand_over()
        if not self._reserved:
            return num_bytes, self._crc
        behind, self._crc = self._crc, 0
        self._offset = 0
        self.write(self._head)
        self._hand_over()
        return num_bytes, joined_crc(self._crc, behind, num_bytes - self._reserved)

    def _copy(self, data: NDArray[np.uint8]) -> None:
        done = 0
        while done < len(data):
            part = self._room(len(data) - done)
            part[:] = data[done : done + len(part)]
            done += len(part)

    def _room(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return at most `num_bytes` of the buffer, to be filled next."""
        if self._used == len(self._buffer):
            self._hand_over()
        part = self._buffer[self._used : self._used + num_bytes]
        self._used += len(part)
        return part

    def _check(self) -> None:
        """Extend the file's CRC-32C by what is in the buffer and not in it yet."""
        self._crc = crc32c(self._buffer[self._checked : self._used], self._crc)
        self._checked = self._used

    def _hand_over(self) -> None:
        self._check()
        self._put(self._buffer[: self._used], self._offset)
        self._offset += self._used
        self._used = self._checked = 0


_POLYNOMIAL = 0x82F63B78  # Castagnoli; the highest bit is the lowest power
_ONE, _X8 = 1 << 31, 1 << 23  # the polynomials 1 and x^8


def joined_crc(first: int, second: int, num_bytes: int) -> int:
    """Return the CRC-32C of two joined parts from theirs; the second part has `num_bytes` bytes.

    A CRC is a remainder: `first` times x^(8 num_bytes), plus `second` (as in zlib's crc32_combine).
    """
    return _shifted(first, num_bytes) ^ second


def _shifted(crc: int, num_bytes: int) -> int:
    """Return a checksum as it is with so many zero bytes behind: times x^(8 num_bytes)."""
    return _product(_shift(num_bytes), crc)


def _by_table(crc: int, num_bytes: int) -> int:
    """Return what `_shifted` does, from a table for this number of bytes."""
    low, second, third, high = _table(num_bytes)
    return low[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ high[crc >> 24]


@functools.lru_cache(maxsize=256)
def _table(num_bytes: int) -> list[list[int]]:
    """Return what each value of each of a checksum's four bytes becomes; XOR joins them."""
    tables = []
    for place in range(0, 32, 8):
        table = [0]
        for bit in range(place, place + 8):
            one = _shifted(1 << bit, num_bytes)
            table += [one ^ before for before in table]
        tables.append(table)
    return tables


@functools.lru_cache(maxsize=4096)
def _shift(num_bytes: int) -> int:
    """Return the polynomial x^(8 num_bytes)."""
    shift = _ONE
    for number in range(num_bytes.bit_length()):
        if num_bytes >> number & 1:
            shift = _product(shift, _power(number))
    return shift


@functools.cache
def _power(number: int) -> int:
    """Return the polynomial x^(8 2^number)."""
    return _product(_power(number - 1), _power(number - 1)) if number else _X8


def _product(left: int, right: int) -> int:
    """Return the product of two polynomials, modulo Castagnoli's."""
    product, bit = 0, _ONE
    while bit:
        if left & bit:
            product ^= right
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
        bit >>= 1
    return product
