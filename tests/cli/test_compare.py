"""Results side by side: their differences, what else differs, and the exit status for CI."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlemu.cli.main import run
from tests.lab.commands import QUICK, generate


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `one`, a run of three epochs, and `two`, two runs of one epoch."""
    folder = tmp_path_factory.mktemp("compared")
    words = ["run", *QUICK, generate(folder)]
    assert run([*words, "train.epochs=3", f"output.folder={folder / 'one'}"]) == 0
    more = ["train.epochs=1", "runs=2", "warmup=1", f"output.folder={folder / 'two'}"]
    assert run([*words, *more]) in (0, 2)
    return folder


def changed(folder: Path, *, slower: float = 1.0, **summary: Any) -> Path:
    """Return a copy of a run whose steps took so many times as long, with other fields."""
    copy = folder.with_name(f"{folder.name}-{slower:g}-{'-'.join(summary)}")
    shutil.copytree(folder, copy)
    steps = np.load(copy / "steps.0.npy")
    seconds = steps["wait"] + steps["compute"] + steps["barrier"]
    steps["wait"] += (slower - 1) * seconds
    np.save(copy / "steps.0.npy", steps)
    tree = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps(tree | summary))
    return copy


def compared(
    capsys: pytest.CaptureFixture[str], *words: str | Path, status: int = 0
) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["compare", *map(str, words), "--json"]) == status
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_run_and_itself_do_not_differ(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = compared(capsys, place / "one", place / "one" / "summary.json", "compare.max_loss=0%")
    assert (told["loss"], told["differing_facts"], told["differing_keys"]) == ([0.0], {}, {})
    (found,) = told["differences"]
    assert {each["value"] for each in found.values()} == {0.0}
    assert found["samples_per_second"]["within_noise"] is None
    assert found["samples_per_second"]["noise"] is None
    assert found["samples_per_second"]["within_one_run"] >= 0
    assert run(["compare", str(place / "one"), str(place / "one")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("one run each: not comparable, take runs=5\n\nunet3d_h100")
    assert " within one run\n" in text and "A from 3 epochs of one run" in text
    assert "within the noise" not in text and "95% interval" not in text
    assert run(["compare", str(place / "two"), str(place / "one")]) == 0
    assert capsys.readouterr().out.startswith("B: one run: not comparable, take runs=5\n")
    assert run(["compare", str(place / "two"), str(place / "two")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("unet3d_h100") and "B against A, with the 95% interval" in text
    assert "what differs: nothing that is known" in text


def test_a_loss_is_told_by_the_exit_status(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = changed(place / "one", slower=1.25)  # 20 % fewer samples a second
    both = [str(place / "one"), str(slow)]
    assert run(["compare", *both]) == 0
    assert run(["compare", *both, "compare.max_loss=20.1%"]) == 0
    assert "no result lost more than compare.max_loss=20.1%" in capsys.readouterr().out
    assert run(["compare", *both, "compare.max_loss=19.9%"]) == 2
    assert (
        f"\nLOSS: {slow} has 20.0% fewer samples/s than {place / 'one'}, compare.max_loss allows "
        "19.9%\n"
    ) in capsys.readouterr().out
    assert run(["compare", *reversed(both), "compare.max_loss=0%"]) == 0, "it has gained"
    capsys.readouterr()
    told = compared(capsys, both[0], slow, both[0], "compare.max_loss=5%", status=2)
    assert told["loss"] == pytest.approx([0.2, 0.0]) and told["max_loss"] == 0.05
    assert told["differences"][0]["samples_per_second"]["share"] == pytest.approx(-0.2)


def test_what_differs_in_hosts_and_keys_is_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = json.loads((place / "one" / "summary.json").read_text())
    (host,) = tree["system"]
    drive = {"name": "nvme0n1", "model": "PM9A3", "firmware": "GDC5"}
    before = changed(
        place / "one",
        system=[host | {"kernel": "6.1", "governor": "powersave", "drives": [drive]}],
        versions=tree["versions"] | {"dlemu": "0.0.9"},
        place={"file_system": "xfs", "model": "PM9A3"},
    )
    after = changed(
        place / "one",
        slower=2,
        system=[host | {"kernel": "6.8", "drives": [drive | {"firmware": "GDC6"}]}],
        place={"file_system": "ext4", "model": "other"},
    )
    config = after / "config.yaml"
    text = config.read_text().replace("read_threads: 4", "read_threads: 8")
    assert text != config.read_text()
    config.write_text(text.replace("data_folder: ", "data_folder: /elsewhere"))
    told = compared(capsys, before, after)
    dlemu = tree["versions"]["dlemu"]
    assert told["differing_facts"] == {
        "system.kernel": ["6.1", "6.8"],
        "drives.firmware": ["GDC5", "GDC6"],
        "place.file_system": ["xfs", "ext4"],
        "versions.dlemu": ["0.0.9", dlemu],
    } | ({"system.governor": ["powersave", host["governor"]]} if host["governor"] else {})
    assert list(told["differing_keys"]) == ["reader.read_threads", "dataset.data_folder"]
    assert told["differing_keys"]["reader.read_threads"] == [4, 8]
    assert run(["compare", str(before), str(after)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["system.kernel", "6.1", "6.8"] in lines and ["reader.read_threads", "4", "8"] in lines


def test_an_older_run_lacks_facts_and_differs_in_none(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = changed(place / "one", system=None, versions=None, hostname="")
    assert compared(capsys, older, place / "one")["differing_facts"] == {}


def test_several_runs_have_the_noise_of_their_spread(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = compared(capsys, place / "two", place / "one")
    first = told["results"][0]
    assert (first["basis"], first["num_accelerators"]) == ("2 runs", 1)
    rows = json.loads((place / "two" / "summary.json").read_text())["runs"]
    rates = [row["samples_per_second"] for row in rows if row["name"].startswith("run")]
    figure = first["figures"]["samples_per_second"]
    assert figure["value"] == pytest.approx(sum(rates) / 2)
    assert figure["error"] == pytest.approx(abs(rates[0] - rates[1]) / 2)
    assert told["differing_keys"] == {"train.epochs": [1, 3], "runs": [2, 1], "warmup": [1, 0]}


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
    both = [one, one | {"target": "d2", "num_accelerators": number + 1}]
    (folder / "sizing.json").write_text(
        json.dumps({"kind": "sizing", "answers": both if "several" in more else [one]})
    )
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
    assert f"LOSS: {after}" not in text and ">= 4" in text
    told = compared(capsys, before, after)
    found = told["differences"][0]["real_accelerators"]
    assert found["value"] == pytest.approx(-0.6)
    assert found["noise"] == pytest.approx(0.3 * 2**0.5) and found["within_noise"] is False
    assert "page_cache_share" not in told["results"][0]["figures"]


def test_a_sizing_of_several_targets_is_compared_target_by_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sizing(tmp_path / "a", 10, 10.4, several=True)
    after = sizing(tmp_path / "b", 9, 9.8, several=True)
    assert run(["compare", str(before), str(after), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["results"][0]["target"] for each in told] == ["d1", "d2"]
    alone = sizing(tmp_path / "c", 9, 9.8)
    assert run(["compare", str(before), str(alone)]) == 1
    assert "c has no sizing of unet3d_h100 on d2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("page_cache_share_per_epoch", [0.0, float("nan"), 0.0], "its page_cache_share is no"),
        ("page_cache_share", float("inf"), "its page_cache_share is no finite number"),
    ],
)
def test_a_damaged_run_gets_one_line(
    name: str,
    value: object,
    why: str,
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(place / "one", damaged)
    tree = json.loads((damaged / "summary.json").read_text())
    tree["measured"][name] = value
    (damaged / "summary.json").write_text(json.dumps(tree))
    for words in ((place / "one", damaged), (damaged, place / "one")):
        assert run(["compare", *map(str, words)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"dlemu: {damaged} holds a damaged result: ")
        assert why in said.err and said.err.count("\n") == 1


def test_a_damaged_result_and_one_of_another_kind_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = str(sizing(tmp_path / "a", 10, 10.4))
    other = sizing(tmp_path / "b", 10, 10.4, workload="resnet50_h100")
    damaged = sizing(tmp_path / "c", 10, 10.4, confirmations=3)
    for path, line in ((other, "a sizing of resnet50_h100"), (damaged, f"{damaged} holds a dam")):
        assert run(["compare", answer, str(path)]) == 1
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and line in said.err
