"""The content of samples: reproducible anywhere, and of no use to deduplication or compression."""

import hashlib

import numpy as np
import pytest
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


@pytest.mark.parametrize("size", [1_000, 114_660, 5_000_001])
def test_no_compression_helps(size: int) -> None:
    content, parts = Content(1), []
    for sample in range(8_000_000 // size):
        part = np.empty(size, np.uint8)
        content.fill(part, sample)
        parts.append(part.tobytes())
    data = b"".join(parts)

    assert len(data) / len(zstandard.compress(data, 3)) < 1.01
    assert len(data) / len(zstandard.compress(data, 9)) < 1.01


@pytest.mark.parametrize("start", [0, 44, 50, 183, 4095])
def test_no_page_comes_twice_wherever_payloads_start(start: int) -> None:
    """80 MiB of files whose payloads begin at odd places, as those of TFRecord do."""
    content, seen, num_pages = Content(0), set(), 0
    for sample in range(40):
        data = np.zeros(start + 2 * 2**20 - sample * 1111, np.uint8)
        content.fill(data[start:], sample)
        payload_pages = data[-(-start // PAGE) * PAGE :]
        for at in range(0, len(payload_pages) - PAGE + 1, PAGE):
            seen.add(payload_pages[at : at + PAGE].tobytes())
            num_pages += 1

    assert num_pages > 20_000
    assert len(seen) == num_pages


def test_samples_and_seeds_differ_in_every_eighth_byte() -> None:
    """Not only somewhere: parts of a page are deduplicated, too."""
    first, other_sample = content_of(0, 5, PAGE), content_of(0, 6, PAGE)
    other_seed = content_of(1, 5, PAGE)

    for other in (other_sample, other_seed):
        words = first.view(np.uint64) == other.view(np.uint64)
        assert not words.any()
