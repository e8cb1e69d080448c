"""`dlemu size`, `predict` and `calibrate`: how many accelerators a storage feeds."""

from typing import Any

from dlemu.cli.words import Words
from dlemu.terminal import say
from dlemu.world.world import World


def size(workload: Any, world: World, words: Words) -> int:
    """find the most emulated accelerators that this storage feeds, by measured search"""
    from dlemu.sizing.measured import size_storage

    if world.rank == 0:
        _say_what_it_stands_for(workload)
    return size_storage(workload, world, say)


def predict(workload: Any, world: World, words: Words) -> int:
    """say what a storage would feed, from a drive's rates or a calibration, with its error"""
    from dlemu.sizing.predict import predict as foretell

    if world.rank == 0:
        say(str(foretell(workload)))
        _say_what_it_stands_for(workload)
    return 0


def calibrate(workload: Any, world: World, words: Words) -> int:
    """measure what this host can move and how fast the storage is, for dlemu predict"""
    from dlemu.sizing.calibrate import calibrate_host

    return calibrate_host(workload, world, say)


def _say_what_it_stands_for(workload: Any) -> None:
    from dlemu.workload.published import what_it_stands_for

    line = what_it_stands_for(workload)
    if line:
        say(line)
