"""Damaged input for everything that is parsed; and whether what is wrong would be noticed."""

import random
import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests import fuzz
from tests.lab.waiting import LONG
from tests.test_layers import ROOT

BAD = {
    "raises": "raise KeyError('x')",
    "crashes": "os.abort()",
    "prints": "t.shown = t.shown_line = str; f._quietly(['no\\x1b'], status=None)",
    "opens": "open('/etc/hostname').close()",
    "spins": "[None for _ in iter(int, 1)]",
    "takes memory": "bytearray(3 << 30)",
}


SHARE = 0.06
"""Of a minute's inputs, which is enough for a suite; make fuzz goes on as long as it is told."""


def test_damaged_input_gets_an_answer() -> None:
    """What this finds, the command that it prints shows again."""
    command = [sys.executable, "-m", "tests.fuzz", "--seed", "0", "--share", str(SHARE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    for name, target in fuzz.TARGETS.items():
        assert (
            f"\n{name:<14} {round(SHARE * target.inputs):>9,} inputs, nothing found"
            in f"\n{done.stdout}"
        )


def test_what_must_not_be_is_found() -> None:
    targets = "".join(
        f"def parse(folder, data): {code}\n"
        f"f.TARGETS[{kind!r}] = f.Target(lambda folder: [b''], lambda *_: b'', parse, 5)\n"
        for kind, code in BAD.items()
    )
    code = (
        "import os, sys, dlemu.terminal as t, tests.fuzz as f\n"
        "f.MOST_SECONDS = 0.2\n"
        f"f.TARGETS = {{}}\n{targets}"
        "sys.exit(f.main(['--seed', '7']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=LONG
    )
    assert done.returncode == 1, done.stdout + done.stderr
    for kind in BAD:
        again = f"python -m tests.fuzz --target '{kind}' --seed 7 --first 0 --inputs 1"
        assert again in done.stdout, kind
    assert "nothing found" not in done.stdout


def test_an_input_follows_from_its_number(tmp_path: Path) -> None:
    for name in ("npy", "index", "overrides", "calibration", "searches"):
        seeds = fuzz.TARGETS[name].seeds(tmp_path)
        made = [[fuzz.make(name, seeds, 5, number) for number in range(40)] for _ in range(2)]
        assert made[0] == made[1]
        assert len({repr(each) for each in made[0]}) > 20, "inputs differ"


def test_damage_reaches_every_place() -> None:
    tree = {"a": [1, {"b": "x"}], "c": None}
    made = [fuzz.damaged_tree(tree, random.Random(seed)) for seed in range(300)]
    assert tree == {"a": [1, {"b": "x"}], "c": None}, "the seed stays"
    assert any(each.get("c") for each in made if isinstance(each, dict))
    assert any("a" not in each for each in made if isinstance(each, dict))


@settings(max_examples=150)
@given(
    text=st.one_of(
        st.text(max_size=60),
        st.from_regex(
            r"\{'descr': '[<>|=]?[a-zA-Z]\d{0,3}', 'fortran_order': (True|False|0), "
            r"'shape': \((-?\d{1,30}, ?){0,70}\)\}",
            fullmatch=True,
        ),
        st.sampled_from(["(" * 9000, "[" * 5000 + "]" * 5000, "{" * 99, "-" * 9000 + "1"]),
    )
)
def test_npy_headers_of_anything(text: str) -> None:
    encoded = text.encode("latin1", errors="ignore")
    header = b"\x93NUMPY\1\0" + len(encoded).to_bytes(2, "little") + encoded
    fuzz.check("npy", header + bytes(100), 1)
    fuzz.check("npy", header + bytes(100), 3)
