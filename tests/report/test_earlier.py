"""What earlier versions have written is shown: tests/data/earlier, made by the versions named.

220ebcf is of November 22, 2026, the oldest that is read; 55662266 of November 26, 2026.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from dlemu.judge.earlier import sizing_of_today, summary_of_today
from dlemu.judge.records import read_sizing
from dlemu.report.stored import read_result
from dlemu.report.words import advice_of, evidence_of, sentences
from tests.lab.commands import Printed

EARLIER = Path(__file__).parents[1] / "data" / "earlier"

FIRST_LINES = {
    "220ebcf_run": "PASS: AU 80.17%, required 0.01% (edition v1.0, loop rule, hand-over none); BUT "
    "100% of the bytes came from memory, not from storage; BUT 24,096 bytes were read",
    "220ebcf_run_ck": "PASS: AU 86.02%, required 0.01%",
    "220ebcf_runs": "FAIL: samples/s are up to ",
    "220ebcf_size": "unet3d feeds at least 3 H100s of 3D U-Net at AU 50% or more; nothing that was "
    "tried failed, so it may feed more; a quick search",
    "220ebcf_checkpoint": "a checkpoint of unet3d takes 4.91 ms; one every 30 minutes costs "
    "0.00027% of the time; BUT the folder lies in memory (tmpfs): there is no drive",
    "55662266_run": "NO VERDICT: AU 75.02%, required 0.01% (edition v1.0, loop rule, hand-over "
    "none); 100.0% of the bytes came from memory, at most 20% may (metric.max_cached_share); take "
    "a data folder on a drive: this one lies in memory; BUT 24,096 bytes were read for a sample",
    "55662266_run_ck": "NO VERDICT: AU 78.03%, required 0.01%",
    "55662266_runs": "NO VERDICT: run 1: NO VERDICT, 100.0% of the bytes came from memory",
    "55662266_size": "unet3d feeds at least 3 H100s of 3D U-Net at AU 50% or more; nothing that "
    "was tried failed, so it may feed more; a quick search; BUT 24,552 bytes were read",
    "55662266_try": "d1 cannot feed one H100 of 3D U-Net, by arithmetic: no run was made; one "
    "needs 2.86 GB/s, this storage gives 1.68 GB/s",
    "55662266_checkpoint": "a checkpoint of unet3d takes 6.46 ms; one every 30 minutes",
    "55662266_paths": "fastest: page cache, 922 MB/s by sequential reads of 64.0 KiB, 1 worker",
    "55662266_load": "the files load in 161 ms: 267 MB/s by odirect with 2 readers",
    "55662266_calibrate": "calibrated: unet3d_h100, reader.data_loader=pytorch",
}
FIRST_LINES |= {
    "220ebcf_paths": "fastest: page cache, 964 MB/s by sequential reads of 64.0 KiB, 1 worker",
    "220ebcf_calibrate": "calibrated: unet3d_h100, reader.data_loader=pytorch",
}
STATUS = {"FAIL": 2, "NO VERDICT": 1}


@pytest.mark.parametrize("name", FIRST_LINES)
def test_it_is_shown_as_text_as_json_and_on_a_page(
    name: str, printed: Printed, tmp_path: Path
) -> None:
    line = FIRST_LINES[name]
    status, page = STATUS.get(line.partition(":")[0], 0), tmp_path / "page.html"
    assert printed("report", EARLIER / name, status=status).startswith(line)
    document = json.loads(printed("report", EARLIER / name, "--json", status=status))
    kinds = {"run_ck": "run", "size": "sizing", "try": "sizing", "calibrate": "calibration"}
    kind = name.partition("_")[2]
    assert document["kind"] == kinds.get(kind, kind)
    printed("report", EARLIER / name, "--html", page, status=status)
    assert "</html>" in page.read_text()


@pytest.mark.parametrize("kind", ["run", "runs", "size", "checkpoint"])
def test_versions_are_compared(kind: str, printed: Printed) -> None:
    text = printed("compare", EARLIER / f"220ebcf_{kind}", EARLIER / f"55662266_{kind}")
    assert "B against A" in text and "unet3d" in text


def test_all_of_them_are_listed(printed: Printed) -> None:
    lines = printed("report", EARLIER).splitlines()
    assert all(any(f"/{name}" in line for line in lines) for name in FIRST_LINES)


def test_what_told_of_a_limit_and_of_checkpoints_stays_as_it_was_written(printed: Printed) -> None:
    for version in ("220ebcf", "55662266"):
        folder = EARLIER / f"{version}_run_ck"
        written = json.loads((folder / "summary.json").read_text())
        found = read_result(folder).document
        assert evidence_of(found["limit"]) == written["limit"]["evidence"]
        assert advice_of(found["limit"]) == written["limit"]["advice"]
        due = "one after epoch 5 and every 2 epochs"
        assert written["checkpoints"]["every"] == due and "every" not in found["checkpoints"]
        assert found["checkpoints"]["due"]["figures"] == {"text": due}
        assert sentences(found, "reason", "weakens", "remark") == [
            *written["reasons"],
            *written["remarks"],
        ]
        status = STATUS.get(written["verdict"], 0)
        assert f"none was due, {due}" in printed("report", folder, status=status)


def test_an_answer_has_what_its_runs_tell_of_what_it_lacks() -> None:
    """At AU 93.47 % three accelerators read 46.2 MB/s, 24,547 bytes a sample."""
    (answer,) = read_sizing(EARLIER / "220ebcf_size")["answers"]
    assert answer["demand_bytes_per_second"] == pytest.approx(46.2e6 / 3 / 0.9347, rel=1e-3)
    assert answer["sample_bytes"] == pytest.approx(46.2e6 / 1882.6, rel=1e-3)
    assert (answer["low"], answer["high"], answer["bound"]) == (3, None, None)
    assert {each["kind"] for each in answer["points"][0]["evidence"]} == {"as_written"}


def test_a_first_answer_has_its_range() -> None:
    _, resnet, cosmoflow = read_sizing(EARLIER / "55662266_try")["answers"]
    assert (resnet["low"], resnet["num_accelerators"], resnet["high"]) == (8, 9, 10)
    assert resnet["is_computed"] and cosmoflow["is_computed"]
    (evidence,) = resnet["evidence"]
    assert evidence["figures"]["text"].startswith("vda gave 1.66 GB/s while it was read from")


def test_a_list_of_answers_is_a_document_of_several() -> None:
    alone = json.loads((EARLIER / "220ebcf_size" / "sizing.json").read_text())
    several = sizing_of_today([alone, alone | {"target": "d2", "at_least": False, "points": []}])
    assert [each["target"] for each in several["answers"]] == ["unet3d", "d2"]
    assert several["answers"][1]["high"] == 3 and several["answers"][1]["sample_bytes"] == 0.0
    assert sizing_of_today(several) == several


@pytest.mark.parametrize("name", FIRST_LINES)
def test_what_is_of_today_stays(name: str) -> None:
    for path in sorted((EARLIER / name).glob("s*.json")):
        convert: Any = sizing_of_today if path.name == "sizing.json" else summary_of_today
        once = convert(json.loads(path.read_text()))
        assert convert(once) == once


@pytest.mark.parametrize("name", ["paths.json", "calibration.own.json"])
@pytest.mark.parametrize("text", ["[1]", "{}", "[]", '{"calibrations": []}', "{"])
def test_files_of_others_with_the_names_of_tools_are_no_results(
    name: str, text: str, printed: Printed, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    said = printed("report", tmp_path, status=1)
    assert str(tmp_path) in said and "Traceback" not in said
