"""`dlemu compare`: results side by side, and whether one is worse than CI allows."""

import re
from collections.abc import Sequence
from pathlib import Path

from dlemu.cli.scripts import json_text
from dlemu.cli.values import read_values
from dlemu.cli.words import parse
from dlemu.errors import WorkloadError
from dlemu.report.compare import compare_folders, losses, present_compare
from dlemu.report.text import answer_of
from dlemu.terminal import Answer, answer, keep_stdout, say, shown_line

HELP = """\
dlemu compare A B... [compare.max_loss=5%] [--json]

Show results of one workload side by side: folders of runs, of several runs (runs=5), or of sizings.
Then how far each differs from the first, with the noise of the difference where runs=5 tells it,
and what else differs: hosts, kernel, drives, mount options, versions, keys.

  compare.max_loss=5%   exit with 2 where a result has lost more than that against the first one:
                        samples/s of runs, accelerators of sizings
  --json                one JSON document, and nothing else on stdout

Exit status: 0, 1 on an error, 2 where a result has lost more than compare.max_loss.
"""
WORDS = ("--json",)
_MAX_LOSS = "compare.max_loss"
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")


def main(arguments: Sequence[str]) -> int:
    """Run `dlemu compare` with its arguments; return the exit status."""
    words = parse(arguments, WORDS)
    percent = read_values(words.values, KEYS).get(_MAX_LOSS)
    if len(words.others) < 2:
        raise WorkloadError("dlemu compare needs two folders of results: dlemu compare A B")
    with keep_stdout("--json" in words.options):
        max_loss = None if percent is None else percent / 100
        documents = compare_folders(list(map(Path, words.others)), max_loss)
        lost = [shown_line(line) for document in documents for line in losses(document)]
        if "--json" in words.options:
            answer(json_text(documents[0] if len(documents) == 1 else documents))
        else:
            for number, document in enumerate(documents):
                say(answer_of(present_compare(document), apart=number > 0))
        if max_loss is not None:
            text = "\n".join(lost) or f"no result lost more than {_MAX_LOSS}={percent:g}%"
            say(Answer(f"\n{text}", text))
    return 2 if lost else 0


def _percent(text: str) -> float:
    found = _PERCENT.fullmatch(text.strip())
    if found is None or float(found[1]) > 100:
        raise ValueError("must be 0% to 100%, such as 5%")
    return float(found[1])


KEYS = {_MAX_LOSS: _percent}
"""How each key's value is read."""
