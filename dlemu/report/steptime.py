"""`dlemu steptime`: the times of training steps, and what to know of them."""

from collections.abc import Iterator, Mapping
from typing import Any

from dlemu.report.blocks import Block, Lines, Table, Verdict
from dlemu.units import format_rate, format_seconds

Fields = Mapping[str, Any]

_TIMES = ("mean", "median", "p05", "p95", "stdev")


def present_steptime(document: Fields) -> list[Block]:
    """Return the blocks of `StepTimes.document`."""
    batches = document["batches"]
    own = next(each for each in batches if each["batch"] == document["batch"])
    return [
        Verdict(
            f"{document['model']} on {document['environment']['device']}: "
            f"{format_seconds(own['mean_seconds'])} a step of batch {own['batch']}, "
            f"{_per_second(own)} samples/s"
        ),
        Table(
            heads=(
                *("batch", "mean ms", *_TIMES[1:]),
                *("samples/s", "TFLOP/s", "storage at AU 100 %", "launch"),
            ),
            spare=("p05", "p95", "TFLOP/s"),
            rows=[_cells(each, document["sample_bytes"]) for each in batches],
        ),
        Lines(list(_remarks(document, own))),
    ]


def _cells(batch: Fields, sample_bytes: float) -> list[str]:
    tera = batch["flop_per_step"] / batch["mean_seconds"] / 1e12
    return [
        str(batch["batch"]),
        *(f"{1e3 * batch[f'{name}_seconds']:.4g}" for name in _TIMES),
        _per_second(batch),
        f"{tera:.3g}" if tera else "-",
        format_rate(batch["batch"] / batch["mean_seconds"] * sample_bytes),
        format_seconds(batch["launch_seconds"]) + " (bound)" * batch["launch_bound"],
    ]


def _per_second(batch: Fields) -> str:
    rate = batch["batch"] / batch["mean_seconds"]
    return f"{rate:,.4g}" if rate < 1000 else f"{rate:,.0f}"


def _remarks(document: Fields, own: Fields) -> Iterator[str]:
    if fit := document["fit"]:
        yield (
            f"t = {1e3 * fit['a']:.3g} ms + {1e3 * fit['b']:.4g} ms x batch (no mean is further "
            f"from it than {100 * fit['residual']:.1f} %)"
        )
    bound = [str(each["batch"]) for each in document["batches"] if each["launch_bound"]]
    if bound:
        yield (
            f"batch {', '.join(bound)}: launch-bound, the GPU waits for the host; in a loop such a "
            "step takes longer (docs/fidelity.md); steptime.graph=true has no such limit"
        )
    if document["skipped_batches"]:
        skipped = ", ".join(map(str, document["skipped_batches"]))
        yield f"out of memory, skipped: batch {skipped}"
    if given := document["published"]:
        yield (
            f"{given['name']} says {format_seconds(given['seconds'])} for batch {given['batch']}; "
            f"measured at batch {own['batch']}: {format_seconds(own['mean_seconds'])}"
        )
    if prepared := document["preprocessing"]:
        yield from _preprocessing(prepared, document["accelerators"], own)


def _preprocessing(prepared: Fields, accelerators: int, own: Fields) -> Iterator[str]:
    """Yield what a worker needs for a sample, and whether the steps need more of them."""
    mean, workers = prepared["mean_seconds_together"], prepared["workers"]
    yield (
        f"preprocessing a sample: {format_seconds(prepared['mean_seconds_alone'])} in one process, "
        f"{format_seconds(mean)} in {workers} at once; these prepare {workers / mean:,.0f} "
        "samples/s"
    )
    trained = accelerators * own["batch"] / own["mean_seconds"]
    if workers / mean < trained:
        yield (
            f"the training step takes {trained:,.0f} samples/s: preprocessing is slower; it needs "
            f"{trained * mean:.1f} cores' work (reader.read_threads)"
        )
