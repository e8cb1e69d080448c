"""`dlemu size`, `predict` and `calibrate`: how many accelerators a storage feeds."""

from typing import Any

from dlemu.cli.progress import show_progress, shows
from dlemu.cli.words import Words
from dlemu.terminal import Answer, say
from dlemu.world.world import World


def size(workload: Any, world: World, words: Words) -> int:
    """find the most emulated accelerators that this storage feeds, by measured search"""
    from dlemu.cli.scripts import SIZE, Script, size_row
    from dlemu.run.live import Live
    from dlemu.sizing.answers import as_json
    from dlemu.sizing.measured import size_storage

    script = world.on_first(lambda: Script.of(words, SIZE))
    if world.rank == 0:
        _say_what_it_stands_for(workload)

    def tell(answers: list[Any]) -> None:
        script.tell(as_json(answers), [size_row(answer) for answer in answers])

    live = Live()
    with show_progress("size", live.now, on=shows(workload, world)):
        return size_storage(workload, world, say, words.as_typed, on_end=tell, live=live)


def predict(workload: Any, world: World, words: Words) -> int:
    """say what a storage would feed, from a drive's rates or a calibration, with its error"""
    from dlemu.cli.scripts import PREDICT, Script, predict_row
    from dlemu.sizing.cached import asks_for_cache, predict_cached
    from dlemu.sizing.predict import predict as foretell

    if world.rank == 0 and _asks_for_checkpoints(workload):
        _predict_checkpoint(workload, words)
    elif world.rank == 0:
        script = Script.of(words, PREDICT)
        if asks_for_cache(workload):
            both = predict_cached(workload)
            say(Answer(str(both)))
            _say_what_it_stands_for(workload)
            script.tell(both.fields, [predict_row(both.cold), predict_row(both.warm)])
            return 0
        found = foretell(workload)
        say(Answer(str(found)))
        _say_what_it_stands_for(workload)
        script.tell(found.fields, [predict_row(found)])
    return 0


def _asks_for_checkpoints(workload: Any) -> bool:
    """Return whether a model was named, or the job is one of checkpoints alone."""
    from dlemu.workload.compose import known_models

    alone = workload.workflow.checkpoint and not workload.workflow.train
    return alone or "model" in workload.given or workload.made_from in known_models()


def _predict_checkpoint(workload: Any, words: Words) -> None:
    from dlemu.checkpoint.predict import predict_checkpoint
    from dlemu.cli.scripts import json_text
    from dlemu.errors import WorkloadError
    from dlemu.terminal import answer

    if "--csv" in words.options:
        raise WorkloadError("--csv has no columns for checkpoints; take --json")
    found = predict_checkpoint(workload)
    say(Answer(str(found)))
    if "--json" in words.options:
        answer(json_text(found.fields))


def calibrate(workload: Any, world: World, words: Words) -> int:
    """measure what this host can move and how fast the storage is, for dlemu predict"""
    from dlemu.run.live import Live
    from dlemu.sizing.calibrate import calibrate_host

    live = Live()
    with show_progress("calibrate", live.now, on=shows(workload, world)):
        return calibrate_host(workload, world, say, live)


def _say_what_it_stands_for(workload: Any) -> None:
    from dlemu.workload.published import what_it_stands_for

    line = what_it_stands_for(workload)
    if line:
        say(line)
