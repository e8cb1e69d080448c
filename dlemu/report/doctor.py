"""`dlemu doctor`: what this host can do, and the remedy for what is missing."""

from collections.abc import Mapping
from typing import Any

from dlemu.report.blocks import Block, Command, Table, Verdict


def present_doctor(document: Mapping[str, Any]) -> list[Block]:
    """Return the blocks of `wanted`, `problems`, and `checks` with the fields of `Check`."""
    wanted, problems, checks = (document[name] for name in ("wanted", "problems", "checks"))
    answer = Verdict(f"{wanted} can run here", "pass")
    if problems:
        answer = Verdict(f"{wanted} cannot run here: {'; '.join(problems)}", "fail")
    heads = ("check", "state", "found")
    rows = [(each["name"], each["state"], each["found"]) for each in checks]
    return [
        answer,
        Table(heads=heads, texts=heads, rows=rows),
        *(Command(each["name"], each["remedy"]) for each in checks if each["remedy"]),
    ]
