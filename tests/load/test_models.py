"""The files of models are the published ones, and the arithmetic is bytes / rate."""

import pytest

from dlemu.load.measure import Load, document_of
from dlemu.load.models import find_drive, find_model, known_drives


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
    model = find_model("llama2_70b")
    rows = document_of(Load(model=model))["by_datasheet"]
    assert [rows[0]["seconds"], rows[-1]["seconds"]] == pytest.approx([9.514, 250.8], rel=1e-3)
    [two] = document_of(Load(model=model, drive=find_drive("d3_s4520"), drives=2))["by_datasheet"]
    assert two["seconds"] == pytest.approx(rows[-1]["seconds"] / 2)
