"""Results side by side: their differences, what else differs, and the exit status for CI."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlemu.cli.main import run
from tests.lab.stored import SYSTEM, VERSIONS, store_checkpoint, store_run, store_runs


def changed(folder: Path, wait: float = 0.25, **fields: Any) -> str:
    """Store a run whose steps waited so long for their batches, with other fields."""
    store_run(folder, wait=wait)
    tree = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(tree | fields))
    return str(folder)


def compared(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["compare", *words, "--json"]) == status
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_loss_shows_in_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, slow = changed(tmp_path / "one"), changed(tmp_path / "slow", wait=0.5)
    told = compared(capsys, one, slow, f"{one}/summary.json", "compare.max_loss=5%", status=2)
    rates = [each["figures"]["samples_per_second"]["value"] for each in told["results"]]
    lost = 1 - rates[1] / rates[0]
    assert lost > 0.1 and told["loss"] == pytest.approx([lost, 0.0])
    assert (told["differing_facts"], told["differing_keys"]) == ({}, {})
    slower, same = told["differences"]
    assert slower["samples_per_second"]["share"] == pytest.approx(-lost)
    assert {each["value"] for each in same.values()} == {0.0}
    assert same["samples_per_second"]["within_noise"] is None, "one run knows no noise of runs"
    for words, status in (
        ([one, slow], 0),
        ([one, slow, f"compare.max_loss={100 * lost + 0.1:.2f}%"], 0),
        ([one, slow, f"compare.max_loss={100 * lost - 0.1:.2f}%"], 2),
        ([slow, one, "compare.max_loss=0%"], 0),
    ):
        assert run(["compare", *words]) == status


def test_what_differs_in_hosts_and_keys_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drive = {"name": "nvme0n1", "model": "PM9A3", "firmware": "GDC5"}
    old = [SYSTEM | {"kernel": "6.1", "drives": [drive]}]
    new = [
        SYSTEM | {"kernel": "6.8", "file_system": "ext4", "drives": [drive | {"firmware": "GDC6"}]}
    ]
    before = changed(tmp_path / "before", system=old, versions=VERSIONS | {"dlemu": "0.0.9"})
    after = changed(tmp_path / "after", system=new)
    config = tmp_path / "after" / "config.yaml"
    text = config.read_text().replace("read_threads: 4", "read_threads: 8")
    config.write_text(text.replace("data_folder: ", "data_folder: /elsewhere"))
    told = compared(capsys, before, after)
    assert told["differing_facts"] == {
        "system.kernel": ["6.1", "6.8"],
        "drives.firmware": ["GDC5", "GDC6"],
        "system.file_system": ["xfs", "ext4"],
        "versions.dlemu": ["0.0.9", "1.2.3"],
    }
    assert list(told["differing_keys"]) == ["reader.read_threads", "dataset.data_folder"]
    assert told["differing_keys"]["reader.read_threads"] == [4, 8]
    unknown = changed(tmp_path / "unknown", system=None, versions=None, hostname="")
    assert compared(capsys, unknown, after)["differing_facts"] == {}


def test_several_runs_have_the_noise_of_their_spread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_runs(tmp_path / "several")
    told = compared(capsys, str(tmp_path / "several"), changed(tmp_path / "one"))
    first = told["results"][0]
    assert (first["basis"], first["num_accelerators"]) == ("3 runs", 4)
    rows = json.loads((tmp_path / "several" / "summary.json").read_text())["runs"]
    rates = [row["samples_per_second"] for row in rows if row["name"].startswith("run")]
    figure = first["figures"]["samples_per_second"]
    assert figure["value"] == pytest.approx(np.mean(rates))
    assert figure["error"] == pytest.approx(np.std(rates, ddof=1) / 3**0.5)


def sizing(folder: Path, number: int, real: float | None, **more: Any) -> Path:
    """Write the answer of a search whose runs are gone."""
    point = {
        "num_accelerators": number,
        "au_percentage": 91.0,
        "samples_per_second": 50.0 * number,
        "read_bytes_per_second": 7e9,
        "page_cache_share": None,
    }
    tree = {
        "workload": "unet3d_h100",
        "target": "d1",
        "num_accelerators": number,
        "at_least": real is None,
        "real_accelerators": real,
        "interval": None if real is None else [real - 0.3, real + 0.3],
        "limit": "storage" if real else "host cpu",
        "points": [point],
        "confirmations": [point, point | {"samples_per_second": 50.0 * number + 2}],
    }
    folder.mkdir()
    one = tree | more
    document = {"kind": "sizing", "answers": [one], "unfinished": {}}
    (folder / "sizing.json").write_text(json.dumps(document))
    return folder


def test_sizings_are_compared_by_their_accelerators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sizing(tmp_path / "a", 10, 10.4)
    after = sizing(tmp_path / "b", 9, 9.8)
    bound = sizing(tmp_path / "c", 4, None)
    assert run(["compare", str(before), str(after), str(bound), "compare.max_loss=10%"]) == 2
    text = capsys.readouterr().out
    assert (
        f"LOSS: {bound} has 60.0% fewer accelerators" in text
        and "its number is a lower bound" in text
    )
    assert f"LOSS: {after}" not in text and "at least 4 accelerators" in text
    told = compared(capsys, str(before), str(after))
    found = told["differences"][0]["real_accelerators"]
    assert found["value"] == pytest.approx(-0.6)
    assert found["noise"] == pytest.approx(0.3 * 2**0.5) and found["within_noise"] is False
    assert "page_cache_share" not in told["results"][0]["figures"]


def test_a_damaged_result_and_one_of_another_kind_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = str(sizing(tmp_path / "a", 10, 10.4))
    infinite = str(sizing(tmp_path / "i", 10, float("inf"), interval=[9, 10]))
    other = str(sizing(tmp_path / "b", 10, 10.4, workload="resnet50_h100"))
    damaged = str(sizing(tmp_path / "c", 10, 10.4, confirmations=3))
    dlio = str(Path(__file__).parents[1] / "data" / "dlio_2.0.0")
    for first, second, line in (
        (answer, infinite, f"{infinite} holds a damaged result: its real_accelerators is no fi"),
        (infinite, answer, f"{infinite} holds a damaged result: its real_accelerators is no fi"),
        (answer, other, "a sizing of resnet50_h100"),
        (answer, damaged, f"{damaged} holds a damaged"),
        (answer, dlio, f"{dlio} a run of unet3d_h100"),
    ):
        capsys.readouterr()
        assert run(["compare", first, second]) == 1
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and line in said.err


def test_saves_are_not_compared_with_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_checkpoint(tmp_path / "both")
    tree = json.loads((tmp_path / "both" / "summary.json").read_text())
    for gone, kept in (("saves", "loads"), ("loads", "saves")):
        shutil.copytree(tmp_path / "both", tmp_path / kept)
        entries = tree["checkpoint"] | {gone: []}
        text = json.dumps(tree | {"checkpoint": entries})
        (tmp_path / kept / "summary.json").write_text(text)
    both, loads, saves = (str(tmp_path / name) for name in ("both", "loads", "saves"))
    assert compared(capsys, both, loads)["differences"][0].keys() == {"load_bytes_per_second"}
    assert run(["compare", saves, loads]) == 1
    assert "have no figure in common" in capsys.readouterr().err
