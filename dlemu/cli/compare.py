"""`dlemu compare`: results side by side, and whether one is worse than CI allows."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from dlemu.cli.scripts import json_text
from dlemu.cli.words import Words
from dlemu.config.sections import Arguments
from dlemu.errors import WorkloadError
from dlemu.report.compare import compare_folders, losses, present_compare
from dlemu.report.text import answer_of
from dlemu.terminal import Answer, answer, say, shown_line

_MAX_LOSS = "compare.max_loss"
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")


def _percent(text: object) -> float:
    found = _PERCENT.fullmatch(str(text).strip())
    if found is None or float(found[1]) > 100:
        raise ValueError(f"must be 0% to 100%, such as 5%, got {text}")
    return float(found[1])


class Allowed(Arguments):
    """What a result may have lost against the first one."""

    max_loss: Annotated[float, BeforeValidator(_percent)] | None = None
    """Exit with 2 where a result has lost more than that, as 5%: samples/s of runs, accelerators of
    sizings."""


def main(words: Words) -> int:
    """Run `dlemu compare`; return the exit status."""
    percent = Allowed(**words.tree("compare")).max_loss
    if len(words.others) < 2:
        raise WorkloadError("dlemu compare needs two folders of results: dlemu compare A B")
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
