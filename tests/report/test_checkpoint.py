"""What checkpoints cost. The golden files hold the whole texts."""

import pytest

from dlemu.checkpoint.plan import predict_checkpoint
from dlemu.config.model import load_model
from dlemu.report.checkpoint import present_predicted_checkpoint
from dlemu.report.text import render_text


def costs_of(seconds: float, mtbf: float | None) -> str:
    """Return the text of a prediction whose checkpoint takes so many seconds."""
    keys = {"drive": "d7_ps1010", "checkpoint.mtbf": mtbf}
    document = predict_checkpoint(load_model("llama3_8b", keys))
    document["save"]["seconds"] = seconds
    return render_text(present_predicted_checkpoint(document))


@pytest.mark.parametrize(
    ("seconds", "mtbf", "line"),
    [
        (12.5, 10_000, "one every 8:20 is best; checkpoints and lost work then cost 5% of"),
        (4.999, 10, "one every 10 s is best; checkpoints and lost work then cost 100% of"),
        (0.036, 0.01, "the job never ends: a checkpoint alone takes 36 ms"),
    ],
)
def test_what_failures_cost(seconds: float, mtbf: float, line: str) -> None:
    assert line in costs_of(seconds, mtbf)


@pytest.mark.parametrize(
    ("seconds", "shares"),
    [
        (299.9, ["100%", "33%", "17%", "8.3%"]),
        (901, ["too", "long", "too", "long", "50%", "25%"]),
    ],
)
def test_a_share_needs_no_exponent(seconds: float, shares: list[str]) -> None:
    [row] = [line for line in costs_of(seconds, None).splitlines() if "costs, of" in line]
    assert row.split()[4:] == shares
