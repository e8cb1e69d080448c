"""The content of samples: reproducible anywhere, and of no use to deduplication or compression."""

import hashlib

import numpy as np
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlemu.datagen.assemble import Content

PAGE = 4096


def content_of(seed: int, sample: int, num_bytes: int, offset: int = 0) -> NDArray[np.uint8]:
    out = np.empty(num_bytes, np.uint8)
    Content(seed).fill(out, sample, offset)
    return out


@given(
    sample=st.integers(0, 2**34 - 1),
    offset=st.integers(0, 3 * 2**20),
    num_bytes=st.integers(0, 20_000),
    shift=st.integers(0, 15),
)
def test_any_slice_agrees_with_the_whole(
    sample: int, offset: int, num_bytes: int, shift: int
) -> None:
    content = Content(3)
    whole = np.empty(offset + num_bytes, np.uint8)
    content.fill(whole, sample)
    out = np.full(shift + num_bytes + 8, 0xEE, np.uint8)

    content.fill(out[shift : shift + num_bytes], sample, offset)

    assert np.array_equal(out[shift : shift + num_bytes], whole[offset:])
    assert set(out[:shift]) | set(out[shift + num_bytes :]) == {0xEE}, "nothing else is touched"


def test_the_bytes_are_those_of_every_version() -> None:
    """Datasets outlive versions: who changes this must change the manifest's version too."""
    digest = hashlib.sha256()
    for seed, sample, offset in ((0, 0, 0), (0, 1, 0), (7, 123_456_789, 5_000_001)):
        digest.update(content_of(seed, sample, 3 * PAGE + 5, offset).tobytes())

    assert digest.hexdigest() == EXPECTED


EXPECTED = "fb374d1f45c5e49a77a4302e62ffa3a6f03711820a81ebe14751176ab56ba97d"


def test_neither_deduplication_nor_compression_helps() -> None:
    """Of files whose payloads begin at odd places, as those of TFRecord do."""
    data = [content_of(0, sample, 257 * PAGE - sample)[sample:].tobytes() for sample in range(9)]
    pages = [each[at : at + PAGE] for each in data for at in range(0, 256 * PAGE, PAGE)]
    assert len({*pages}) == len(pages) == 9 * 256
    whole = b"".join(data)
    assert len(whole) / len(zstandard.compress(whole, 9)) < 1.01
