"""`dlemu run`: one run, or several in a row."""

from typing import Any

from dlemu.cli.words import Words
from dlemu.terminal import Answer, say
from dlemu.world.world import World


def run(workload: Any, world: World, words: Words) -> int:
    """replay the workload; PASS or FAIL, samples/s, AU, and what bound it"""
    from dlemu.cli.datasets import datagen
    from dlemu.results.judgement import EXIT_STATUS
    from dlemu.results.text import render_run, verdict_line
    from dlemu.run.job import check_job, run_job

    if workload.workflow.generate_data:
        if workload.workflow.train:
            check_job(workload, world)
        datagen(workload, world, words)
    if not workload.workflow.train:
        return 0
    if workload.division == "closed" or workload.runs > 1 or workload.warmup:
        from dlemu.run.protocol import run_protocol

        return run_protocol(workload, world=world, say=say)
    outcome = run_job(workload, world=world, say=say)
    status = 0
    if outcome is not None:
        verdict = verdict_line(workload, outcome.metrics, outcome.summary)
        say(Answer(f"\n{render_run(workload, outcome.metrics, outcome.summary)}", verdict))
        say(f"results: {outcome.folder}")
        status = EXIT_STATUS[outcome.summary["verdict"]]
    return world.broadcast(status)
