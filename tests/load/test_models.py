"""The files of models are the published ones, and the arithmetic is bytes / rate."""

import pytest

from dlemu.load.measure import Load
from dlemu.load.models import find_drive, find_model, known_drives
from dlemu.load.text import arithmetic


def test_llama2_70b_has_the_published_shards() -> None:
    model = find_model("llama2_70b")
    assert model.num_bytes == 137_953_316_864, "total_size of its model.safetensors.index.json"
    own, wide = 9.80, 9.97
    shards = [9.85, own, wide, own, own, own, wide, own, own, own, wide, own, own, 9.50, 0.52]
    assert [round(size / 1e9, 2) for size in model.files] == shards


@pytest.mark.parametrize(
    ("name", "files", "num_bytes"),
    [
        ("llama3_8b", 4, 16_060_522_496),
        ("llama3_70b", 30, 141_107_412_992),
        ("llama3_405b", 191, 811_706_777_600),
        ("sdxl", 1, 6_940_000_000),
    ],
)
def test_the_files_of_other_models(name: str, files: int, num_bytes: int) -> None:
    model = find_model(name)
    assert len(model.files) == files
    assert model.num_bytes == pytest.approx(num_bytes, rel=1e-4)
    assert model.source


def test_a_drive_is_felt_at_load() -> None:
    names = known_drives()
    assert (names[0], names[-1]) == ("d7_ps1010", "d3_s4520")
    lines = arithmetic("llama2_70b", find_model("llama2_70b").num_bytes, Load())
    assert lines[1].endswith("138 GB / 14.5 GB/s = 9.51 s")
    assert lines[-1].endswith("138 GB / 550 MB/s = 251 s")
    two = Load(drive=find_drive("d3_s4520"), drives=2)
    assert arithmetic("m", 10**9, two)[1:] == ["  2 x D3-S4520     1 GB / 1.1 GB/s = 0.909 s"]
