"""The words of a search: what it will take, and why it ends early."""

from collections.abc import Callable, Mapping
from typing import Any

from dlemu.units import counted, format_seconds


def _enough(f: Any) -> str:
    way = "in a bucket, write another one" if f.writes_another else "extend it"
    return (
        f"{counted(f.num_files, 'file')} are enough for {f.most_accelerators}; "
        f"{f.num_more_files:,} more are enough for {f.wanted_accelerators}; {way}: {f.command}"
    )


SEARCHES: Mapping[str, Callable[[Any], str]] = {
    "may_feed_more": lambda f: f"this storage may feed {f.num_accelerators}: {_enough(f)}",
    "model_spread": lambda f: (
        f"the model is spread over {f.num_accelerators}, and each writes its own files"
    ),
    "search_plan": lambda f: (
        f"about {f.num_runs} runs of {format_seconds(f.seconds_a_run)} each: "
        f"{counted(f.num_steps, 'step')} x {counted(f.num_epochs, 'epoch')}"
    ),
    "too_few_files": lambda f: f"the dataset was the limit: {_enough(f)}",
    "too_many_open_files": lambda f: (
        f"{f.num_accelerators} need {f.num_open_files} open files in a rank, more than a process "
        "may have here; use more ranks, or raise the limit as root: ulimit -n "
        f"{f.num_open_files}"
    ),
}
