"""`dlemu steptime`: the time of a training step on this host's GPU."""

from typing import Any

from dlemu.cli.words import Words
from dlemu.terminal import say
from dlemu.world.world import World


def steptime(workload: Any, world: World, words: Words) -> int:
    """time real training steps on this host's GPU; write a workload with their times"""
    from dlemu.steptime.job import measure_steps
    from dlemu.workload.commands import word

    if world.rank != 0:
        return 0
    answer, path = measure_steps(workload, say)
    say("\n" + "\n".join(answer.lines()))
    say(f"\nresults: {path.parent}: {path.name}, {path.with_suffix('.json').name}")
    folder = workload.dataset.data_folder or "/path/on/the/storage"
    say(f"use it: dlemu run workload={path} {word('dataset.data_folder', folder)}")
    return 0
