"""The words of searches, tries, calibrations: what each will take, does next, and why it ends."""

from collections.abc import Callable, Mapping
from typing import Any

from dlemu.report.words.hosts import aged
from dlemu.units import counted, format_bytes, format_rate, format_seconds


def _enough(f: Any) -> str:
    way = "in a bucket, write another one" if f.writes_another else "extend it"
    by = f"; {way}: {f.command}" if f.command else ""
    return (
        f"{counted(f.num_files, 'file')} are enough for {f.most_accelerators}; "
        f"{f.num_more_files:,} more are enough for {f.wanted_accelerators}{by}"
    )


def _run_of_a_search(f: Any) -> str:
    cached = f", {f.cached_share:.0%} from memory" if (f.cached_share or 0.0) >= 0.05 else ""
    whole = f.au_with_stalls_percentage
    stalls = "" if whole is None else f" ({whole:.2f}% with stalls)"
    reached = f"{f.au_percentage:.2f}%{stalls}"
    number, noun = counted(f.num_accelerators, "accelerator").split()
    return (
        f"{number:>4} {noun}: AU {reached:>7}, {f.samples_per_second:.2f} samples/s, "
        f"{format_rate(f.bytes_per_second)}{cached}, limit: {f.limit}, {format_seconds(f.seconds)}"
    )


def _trying(f: Any) -> str:
    best = "" if f.most_passed is None else f", best so far {f.most_passed:,} PASS"
    trying = counted(f.num_accelerators, "accelerator")
    return f"run {f.number} of about {f.num_runs}, trying {trying}{best}"


def _probed(f: Any) -> str:
    with_cache = f.with_cache_bytes_per_second
    cached = (
        ""
        if with_cache is None
        else f" from the origin, and {format_rate(with_cache)} with the cache"
    )
    return (
        f"{f.target}: {f.num_readers} readers at once get {format_rate(f.bytes_per_second)}"
        f"{cached}, as much as {f.num_accelerators:.1f} accelerators take at AU "
        f"{100 * f.needed_au:g}%"
    )


def _full_takes(f: Any) -> str:
    kind = " (quick: the dataset of the benchmark's rule has no room here)" if f.is_quick else ""
    measuring = f"measures for about {format_seconds(f.seconds)}{kind}"
    if not f.written_bytes:
        return measuring
    writing = f"writes {format_bytes(f.written_bytes)} in about {format_seconds(f.write_seconds)}"
    return f"{writing}, then {measuring}"


def _try_reads(f: Any) -> str:
    what = f"{f.num_files:,} files, {format_bytes(f.num_bytes)}"
    done = f"{f.folder}: {what}, there already" if f.folder else f"writing {what}"
    return f"{f.workload}: {done}"


SEARCHES: Mapping[str, Callable[[Any], str]] = {
    "may_feed_more": lambda f: f"this storage may feed {f.num_accelerators}: {_enough(f)}",
    "model_spread": lambda f: (
        f"the model is spread over {f.num_accelerators}, and each writes its own files"
    ),
    "search_plan": lambda f: (
        f"about {f.num_runs} runs of {format_seconds(f.seconds_a_run)} each: "
        f"{counted(f.num_steps, 'step')} x {counted(f.num_epochs, 'epoch')}"
    ),
    "too_few_files": lambda f: f"the dataset ended the search: {_enough(f)}",
    "too_many_open_files": lambda f: (
        f"{f.num_accelerators} need {f.num_open_files} open files in a rank, more than a process "
        "may have here; use more ranks or train.processes, or raise the limit as root: ulimit -n "
        f"{f.num_open_files}"
    ),
    # what a search does next, and why
    "confirmed": lambda f: f"{counted(f.num_runs, 'consecutive run')} passed",
    "confirming": lambda f: f"confirming run {f.number} of {f.num_runs}",
    "expected_to_fail": lambda f: (
        f"the estimate is {f.estimate:.2f} accelerators: expected to fail"
    ),
    "near_the_threshold": lambda f: "within the noise of the threshold: once more",
    "not_held_back": lambda f: f"{f.num_accelerators} passed, and no run tells where it ends: more",
    "not_steady_yet": lambda f: "unsteady",
    "one_is_too_slow": lambda f: "one accelerator alone is under the threshold",
    "others_did_better": lambda f: "other runs did better: once more",
    "search_start": lambda f: "start",
    # how far a search is
    "going_on_after": lambda f: (
        f"going on after {counted(f.num_runs, 'run')} in {f.folder}, the last one "
        f"{aged(f.age_seconds)}"
    ),
    "one_drive_twice": lambda f: (
        f"warning: {f.name} and {f.other} share {f.drives}: one drive, twice"
    ),
    "predicted_for": lambda f: (
        f"the prediction for {f.drive} is {f.num_accelerators:.1f} accelerators"
    ),
    "probed": _probed,
    "run_of_a_search": _run_of_a_search,
    "same_search_goes_on": lambda f: (
        f"going on with the same search in {f.folder}, which has not ended "
        f"({aged(f.age_seconds)}); for a new one name another output.folder"
    ),
    "search_begins": lambda f: (
        f"{f.name}: one accelerator reads {format_rate(f.bytes_per_second)} at AU 100%; "
        f"AU {100 * f.needed_au:g}% is required"
    ),
    "trying": _trying,
    # of a try
    "full_needs_files": lambda f: (
        f"needs {f.num_files:,} files even for a quick search, there are {f.have_files:,}"
    ),
    "full_needs_room": lambda f: (
        f"needs {format_bytes(f.needed_bytes)} even for a quick search; "
        f"{format_bytes(f.free_bytes)} are free"
    ),
    "full_takes": _full_takes,
    "no_time_is_left": lambda f: "     no time is left for it",
    "probed_of_try": lambda f: (
        f"     {f.num_readers} readers at once get {format_rate(f.bytes_per_second)}, as much as "
        f"{f.num_accelerators:.1f} accelerators take"
        if f.bytes_per_second
        else f"     {f.num_readers} readers at once got no answer in time: a run tells more"
    ),
    "threads_read_instead": lambda f: (
        f"{f.workload}: {f.why}; here threads read, which take less CPU time"
    ),
    "try_begins": lambda f: (
        f"a first answer for {f.folder}, in about {format_seconds(f.seconds)}, with at most "
        f"{format_bytes(f.most_bytes)} of files in {f.scratch}"
    ),
    "try_reads": _try_reads,
    # of a calibration
    "calibrated": lambda f: f"result: {f.path}\n{f.command}",
    "calibrates_many": lambda f: (
        f"2/3 {counted(f.num_accelerators, 'accelerator')} without computing, from memory"
    ),
    "calibrates_no_target": lambda f: "3/3 left out: dataset.data_folder is not set",
    "calibrates_one": lambda f: (
        f"1/3 one accelerator, {f.num_files:,} files in memory ({format_bytes(f.num_bytes)})"
    ),
    "calibrates_target": lambda f: (
        f"3/3 {counted(f.num_accelerators, 'accelerator')} without computing, from {f.folder}, cold"
    ),
    "target_from_memory": lambda f: (
        f"note: {f.share:.0%} of the bytes of 3/3 came from memory; reader.odirect=true reads past "
        "the page cache, output.drop_caches=true empties it first"
    ),
    # whether storage matters to a workload
    "any_drive_is_enough": lambda f: (
        f"no: {format_rate(f.bytes_per_second)}; any drive is fast enough"
    ),
    "at_most_so_many_drives": lambda f: f"unknown: at most {f.num_drives:.2g} {f.drive} for one",
    "fast_drive_feeds": lambda f: f"yes: one {f.drive} feeds {f.num_accelerators:.3g}",
    "one_needs_drives": lambda f: f"yes: one needs {f.num_drives:.2g} {f.drive}",
    "slow_drive_feeds": lambda f: f"no: one {f.drive} feeds {f.num_accelerators:.0f}",
}
