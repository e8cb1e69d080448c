"""The doctor tells all that it finds: a folder that is read-only or missing, a bucket, Slurm."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from dlemu.report.words import sentence
from dlemu.storage.place import path_of, place_of
from dlemu.tools import doctor_places
from dlemu.tools.doctor import Wanted, examined
from tests.lab.commands import Printed
from tests.lab.drives import mounted
from tests.lab.object_server import Moto, moto_server


def checks_of(folder: Path) -> dict[str, tuple[str, str]]:
    found = examined(folder, Wanted(data_loader="threads"))
    return {each["name"]: (each["state"], sentence(each["found"])) for each in found["checks"]}


def test_a_folder_that_is_missing_hides_no_other_finding(tmp_path: Path, printed: Printed) -> None:
    found = checks_of(tmp_path / "none")
    assert found["folder"] == ("missing", f"{tmp_path / 'none'} is not a folder")
    assert "memory" in found and "NumPy" in found
    said = printed("doctor", tmp_path / "none", "reader.data_loader=threads", status=1)
    assert "threads cannot run here: folder: " in said and "create or mount it" in said


def test_a_read_only_mount_is_a_finding(tmp_path: Path) -> None:
    with mounted(tmp_path / "fixed", "ro") as folder:
        found = checks_of(folder)
    assert found["O_DIRECT"][0] == "note" and "not tried" in found["O_DIRECT"][1]
    assert "file system" in found


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[Moto]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    with moto_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        yield server


def test_a_bucket_is_reached_and_left_as_it_was(moto: Moto, printed: Printed) -> None:
    folder = path_of("s3://training/below")
    missing = checks_of(folder)
    assert missing["bucket"][0] == "missing" and "objects" not in missing
    urlopen(Request(f"{moto.url}/training", method="PUT")).close()
    found = checks_of(folder)
    assert found["bucket"][0] == found["objects"][0] == "ok"
    assert "holds nothing yet" in found["bucket"][1] and moto.url in found["bucket"][1]
    assert list(place_of(folder).list("")) == []
    printed("doctor", "s3://training/below", "reader.data_loader=threads")


SRUN = """#!/bin/sh
printf 'MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n\\tpmix\\n'
"""


@pytest.mark.parametrize(
    ("default", "state", "told"),
    [
        (
            "MpiDefault              = none",
            "note",
            "takes --mpi=pmi2 and --mpi=pmix; without it: none",
        ),
        ("MpiDefault              = pmi2", "ok", "without it: pmi2"),
        ("slurmctld is down", "note", "without it: unknown, for slurmctld does not answer"),
    ],
)
def test_slurm_is_asked_what_it_takes(
    default: str, state: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"srun": SRUN, "scontrol": f"#!/bin/sh\necho '{default}'\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (check,) = doctor_places.slurm()
    assert (check.name, check.state) == ("Slurm", state) and told in sentence(check.found)
    remedy = sentence(check.remedy) if check.remedy else ""
    assert ("srun --mpi=pmi2 with MPICH" in remedy) == (state == "note")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert list(doctor_places.slurm()) == []


def test_servers_bound_a_checkpoint(printed: Printed) -> None:
    rates = ["server.read_bandwidth=60GB", "server.write_bandwidth=30GB"]
    alone = printed("predict", "model=llama3_70b", *rates)
    assert "takes 32.6 s on the servers" in alone and "30 GB/s" in alone
    both = printed("predict", "model=llama3_70b", "drive=d7_ps1010", "drives=8", rates[1])
    assert "takes 32.6 s on 8 x D7-PS1010" in both
