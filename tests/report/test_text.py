"""Blocks on a terminal: as wide as it is, with every word whole where that can be."""

from collections.abc import Sequence

import pytest

from dlemu.report.blocks import Table
from dlemu.report.text import render_text

TABLE = Table(
    heads=("run", "verdict", "from memory (%)", "samples/s", "epochs under the threshold"),
    rows=[
        ("warmup.1", "NO VERDICT", "0.0", "1,018,000,000.81", "epoch 1 (71.43%), epoch 2 (70.92%)"),
        ("run.1", "FAIL", "12.5", "23.56", ""),
    ],
    texts=("verdict", "epochs under the threshold"),
    spare=("epochs under the threshold", "from memory (%)"),
)


@pytest.mark.parametrize(
    ("width", "gone"), [(100, []), (80, []), (55, TABLE.spare[:1]), (42, TABLE.spare)]
)
def test_a_table_breaks_no_word_and_leaves_out_what_may_be_spared(
    width: int, gone: Sequence[str]
) -> None:
    text = render_text([TABLE], width=width)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    assert {"warmup.1", "VERDICT", "1,018,000,000.81", "FAIL", "samples/s"} <= set(words)
    note = f"left out, for lack of columns: {', '.join(gone)};" if gone else "(70.92%)"
    assert note in " ".join(words)
