"""What to try in a job of the user's own: its loader's arguments in the place of dlemu's keys."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlemu.findings import note

Fields = Mapping[str, Any]
_ARGUMENTS = {"dali": ("num_threads", "prefetch_queue_depth")}
"""Of a loader's kind: workers, and batches that each has ready; of all others DataLoader's."""
_OF_WORKERS = ("raise_read_threads", "raise_read_threads_or_depth", "raise_gets_in_flight")
_OF_KEYS = ("key", "set_key", "more_servers")


def advice_for(
    advice: Sequence[Fields], loader: Fields, *, by_gpu: bool = True
) -> list[dict[str, Any]]:
    """Return a limit's advice for a loader as the hook describes it; each is a finding's fields.

    `by_gpu`: whether the job computes on a GPU: pinned memory is of use to no other.
    """
    found: dict[str, dict[str, Any]] = {}
    for each in advice:
        for own in _own(each, loader, ("pin_memory",) * by_gpu + ("persistent_workers",)):
            found.setdefault(str(own), own)
    return list(found.values())


def _own(advice: Fields, loader: Fields, switches: Sequence[str]) -> Iterator[dict[str, Any]]:
    workers, ahead = _ARGUMENTS.get(loader.get("kind", ""), ("num_workers", "prefetch_factor"))
    kind, figures = advice["kind"], advice["figures"]
    if kind in _OF_WORKERS:
        yield note("raise_argument", argument=workers, now=loader.get("num_workers")).fields
        if loader.get("num_workers"):  # without workers there is nothing ahead
            yield note("raise_argument", argument=ahead, now=loader.get("prefetch_factor")).fields
    elif kind not in _OF_KEYS:
        yield dict(advice)
    elif figures.get("key") == "reader.data_loader":  # batches are made, and come late to the loop
        for argument in switches:
            if loader.get("num_workers") and loader.get(argument) is False:
                yield note("set_argument", argument=argument, value=True).fields
    elif figures.get("key") == "reader.decode":
        yield note("decode_less").fields
