"""`dlemu run`: one run, or several in a row."""

from typing import Any

from dlemu.cli.progress import show_progress, shows
from dlemu.cli.words import Words
from dlemu.terminal import Answer, say
from dlemu.world.world import World


def run(workload: Any, world: World, words: Words) -> int:
    """replay the workload; PASS or FAIL, samples/s, AU, and the limit"""
    from dlemu.cli.datasets import datagen
    from dlemu.cli.scripts import RUN, Script, run_document, run_row, runs_row
    from dlemu.errors import WorkloadError
    from dlemu.results.judgement import EXIT_STATUS
    from dlemu.results.text import render_run, verdict_line
    from dlemu.run.job import check_job, run_job
    from dlemu.run.live import Live

    def for_scripts() -> Script:
        script = Script.of(words, RUN)
        if script.is_asked and not workload.workflow.train:
            raise WorkloadError("--json and --csv tell of a run; workflow.train=false makes none")
        return script

    script = world.on_first(for_scripts)
    if workload.workflow.generate_data:
        if workload.workflow.train:
            check_job(workload, world)
        datagen(workload, world, words)
    if not workload.workflow.train:
        return 0
    live = Live()
    if workload.division == "closed" or workload.runs > 1 or workload.warmup:
        from dlemu.run.protocol import run_protocol

        def tell(folder: Any, summary: Any, outcomes: Any) -> None:
            row = runs_row(workload, folder, summary, outcomes)
            script.tell(run_document(folder, summary), [row])

        with show_progress("run", live.now, on=shows(workload, world)):
            return run_protocol(workload, world=world, say=say, on_end=tell, live=live)
    with show_progress("run", live.now, on=shows(workload, world)):
        outcome = run_job(workload, world=world, say=say, live=live)
    status = 0
    if outcome is not None:
        verdict = verdict_line(workload, outcome.metrics, outcome.summary)
        say(Answer(f"\n{render_run(workload, outcome.metrics, outcome.summary)}", verdict))
        say(f"results: {outcome.folder}")
        script.tell(run_document(outcome.folder, outcome.summary), [run_row(workload, outcome)])
        status = EXIT_STATUS[outcome.summary["verdict"]]
    return world.broadcast(status)
