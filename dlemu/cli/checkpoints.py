"""`dlemu checkpoint`: writes and reads the checkpoints of a model."""

from typing import Any

from dlemu.cli.progress import show_progress, shows
from dlemu.cli.words import Words
from dlemu.terminal import Answer, say
from dlemu.world.world import World


def checkpoint(workload: Any, world: World, words: Words) -> int:
    """write a model's checkpoints, read them back, and say how long each takes"""
    from dlemu.checkpoint.command import run_checkpoints
    from dlemu.checkpoint.progress import Progress
    from dlemu.checkpoint.text import exit_status, render, verdict_line
    from dlemu.cli.scripts import json_text, run_document
    from dlemu.run.summary import versions
    from dlemu.run.watchdog import Watchdog
    from dlemu.terminal import answer

    if "--verify" in words.options:
        workload = workload.with_keys({"checkpoint.verify": True})
    progress = Progress()
    with (
        Watchdog(workload.output.stall_seconds, world) as watchdog,
        show_progress("checkpoint", lambda: str(progress), on=shows(workload, world)),
    ):
        found = run_checkpoints(
            workload,
            world=world,
            watch=watchdog,
            say=say,
            versions=versions(),
            progress=progress,
        )
    if found is None:
        return 0
    say(Answer(f"\n{render(found.summary)}", verdict_line(found.summary)))
    say(f"results: {found.folder}")
    if "--json" in words.options:
        answer(json_text(run_document(found.folder, found.summary)))
    return exit_status(found.summary)
