"""`dlemu run`: one run, or several in a row."""

from typing import Any

from dlemu.cli.progress import show_progress, shows
from dlemu.cli.words import Words
from dlemu.terminal import say
from dlemu.world.world import World


def run(workload: Any, world: World, words: Words) -> int:
    """replay the workload; PASS or FAIL, samples/s, AU, and what bound it"""
    from dlemu.cli.datasets import datagen
    from dlemu.results.judgement import EXIT_STATUS
    from dlemu.results.text import render_run
    from dlemu.run.job import check_job, run_job
    from dlemu.run.live import Live

    if workload.workflow.generate_data:
        if workload.workflow.train:
            check_job(workload, world)
        datagen(workload, world, words)
    if not workload.workflow.train:
        return 0
    live = Live()
    if workload.division == "closed" or workload.runs > 1 or workload.warmup:
        from dlemu.run.protocol import run_protocol

        with show_progress("run", live.now, on=shows(workload, world)):
            return run_protocol(workload, world=world, say=say, live=live)
    with show_progress("run", live.now, on=shows(workload, world)):
        outcome = run_job(workload, world=world, say=say, live=live)
    status = 0
    if outcome is not None:
        say(f"\n{render_run(workload, outcome.metrics, outcome.summary)}")
        say(f"results: {outcome.folder}")
        status = EXIT_STATUS[outcome.summary["verdict"]]
    return world.broadcast(status)
