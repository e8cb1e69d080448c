"""The words of what a run says while it goes on: the cold start, its demand, its epochs."""

from collections.abc import Callable, Mapping
from typing import Any

from dlemu.report.words.caches import origin_at
from dlemu.units import format_rate, format_seconds


def _dropped(f: Any) -> str:
    share = "an unknown part" if f.stayed_share is None else f"{100 * f.stayed_share:.1f}%"
    took = "" if f.seconds is None else f" in {format_seconds(f.seconds)}"
    return (
        f"cold start: {f.num_files:,} files{' of cache.origin' if f.of_origin else ''} dropped "
        f"from the page cache{took}, {share} of their pages stayed"
    )


def _epoch_ended(f: Any) -> str:
    slow = f" (origin emulated {origin_at(f.emulated_origin)})" if f.emulated_origin else ""
    return (
        f"epoch {f.epoch} of {f.epochs}: {f.num_steps} steps, AU {f.au_percentage:.2f}% on rank 0, "
        f"{f.samples_per_second:.2f} samples/s there{slow}"
    )


PROGRESS: Mapping[str, Callable[[Any], str]] = {
    "cold_start_left_out": lambda f: (
        "cold start: left out, O_DIRECT reads past the page cache; output.drop_caches=true drops "
        "the files all the same"
    ),
    "demand": lambda f: (
        f"demand: {format_rate(f.bytes_per_second)} an accelerator, "
        f"{format_rate(f.whole_bytes_per_second)} in all at AU 100%"
    ),
    "demand_without_bound": lambda f: (
        "demand: no computation time, so as much as the storage gives"
    ),
    "dropped_from_page_cache": _dropped,
    "dropping_files": lambda f: (
        f"cold start: about {f.num_done:,}/{f.num_files:,} files, {format_seconds(f.seconds_left)} "
        "left"
    ),
    "epoch_ended": _epoch_ended,
    "no_series": lambda f: f"no {f.file}: {f.error}",
    "nothing_to_drop": lambda f: (
        f"cold start: nothing to drop, none of {f.num_looked_at:,} files is in the page cache; at "
        f"most {100 * f.most_cached_share:.2f}% of {f.num_files:,} are (with "
        f"{100 * f.confidence:g}% confidence)"
    ),
    "read_in_tf_data_order": lambda f: (
        f"reader.data_loader {f.data_loader}: read by dlemu's threads in tf.data's order"
    ),
    "run_of_runs": lambda f: f"{f.run} of {f.warmup} warm-ups and {f.runs} runs",
    "samples_left_out": lambda f: (
        f"an epoch leaves out {f.left:,} of {f.num_samples:,} samples, which do not fill another "
        f"step of {f.step:,}"
    ),
    "unfinished_run_kept": lambda f: (
        f"{f.folder} holds a run that did not end; it is kept as {f.kept_as}"
    ),
}
