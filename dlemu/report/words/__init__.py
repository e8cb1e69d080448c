"""The words of findings: a table with the sentence of each kind, made from its figures.

Nobody else has sentences about results, and nobody takes them apart. A sentence is the end of a
line or a part of it, joined by "; ", so it begins with a small letter and has no full stop.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from dlemu.config.published import word
from dlemu.findings import Finding, Kind, Tell, Weight, note, weighing
from dlemu.report.words.caches import CACHES
from dlemu.report.words.checkpoints import CHECKPOINTS
from dlemu.report.words.contract import CONTRACT
from dlemu.report.words.datasets import DATASETS
from dlemu.report.words.doctor import DOCTOR
from dlemu.report.words.hosts import HOSTS, aged
from dlemu.report.words.jobs import JOBS
from dlemu.report.words.limits import ADVICE, EVIDENCE, either
from dlemu.report.words.notes import NOTES
from dlemu.report.words.progress import PROGRESS
from dlemu.report.words.rules import RULES
from dlemu.report.words.searches import SEARCHES
from dlemu.report.words.tools import TOOLS
from dlemu.terminal import Say
from dlemu.units import counted, format_bytes, format_rate, format_seconds

Fields = Mapping[str, Any]
"""Finding.fields, as documents have them."""

_MOST_LETTERS = 70
"""Of the names of keys in a verdict's line."""


def sentence(finding: Finding | Fields) -> str:
    """Return what a finding says.

    One of a later version, whose kind or figures are not known here, is shown by its figures.
    """
    fields = finding.fields if isinstance(finding, Finding) else finding
    figures = fields["figures"]
    try:
        text = SENTENCES[fields["kind"]](SimpleNamespace(**figures))
    except (KeyError, AttributeError, TypeError, ValueError):
        text = f"{fields['kind']} ({', '.join(f'{name}={each}' for name, each in figures.items())})"
    # A finding of one of several runs, or of an earlier version, says it itself.
    is_inside = fields["kind"] in ("of_run", "as_written")
    return f"BUT {text}" if fields["weight"] == "weakens" and not is_inside else text


def told(kind: Kind, **figures: Any) -> str:
    """Return what a note of this kind says with these figures."""
    return sentence(note(kind, **figures))


def telling(say: Say) -> Tell:
    """Return what says findings by their sentences."""
    return lambda finding: say(sentence(finding))


def sentences(document: Fields, *weights: Weight) -> list[str]:
    """Return what those of a document's findings say that have one of these weights."""
    return [sentence(each) for each in weighing(document, *weights)]


def text_of(told: Fields | str) -> str:
    """Return what a field of a document says; earlier versions stored the text itself."""
    return told if isinstance(told, str) else sentence(told)


def note_lines(document: Fields) -> list[str]:
    """Return a document's `notes` as lines; those of loaders, and what is as written, are texts."""
    return list(map(note_line, document.get("notes") or ()))


def note_line(note: Fields | str) -> str:
    """Return a note as a line."""
    return f"note: {text_of(note)}"


def cache_line(opened: Finding) -> str:
    """Return what is said of a cache before the first epoch."""
    return f"cache: {sentence(opened)}"


def warning(finding: Finding) -> str:
    """Return what is said before the runs, and noted in their document."""
    return f"warning: {sentence(finding)}"


def evidence_of(limit: Fields) -> str:
    """Return what a limit was concluded from, as one line."""
    return "; ".join(map(sentence, limit["evidence"]))


def advice_of(limit: Fields) -> str:
    """Return what to try, as one line, as `evidence_of` does; "" if there is nothing."""
    advice = limit.get("advice") or ()
    last = [each for each in advice if each["kind"] == "not_the_storage"]
    ways = [sentence(each) for each in advice if each not in last]
    return "; ".join([either(*ways), *map(sentence, last)]) if ways else ""


# --- parts of sentences ---------------------------------------------------------------------------


_CACHES = {False: "in the drive, its controller or a server", True: "of the server"}
"""That may have served what was read again: of files, and of objects."""
_PAST_MEMORY = {
    "drive": "a data folder on a drive: this one lies in memory",
    "larger_dataset_or_drop": "a dataset of five times the memory, or drop the page cache before "
    "the loop",
    "odirect": "reader.odirect=true",
    "larger_dataset": "a dataset of five times the memory",
    "cold_epoch": "a cold epoch (output.drop_caches=true)",
    "cold_epochs": "cold epochs (output.drop_each_epoch=true)",
}
"""What makes a run read its storage."""


def _left_out(f: Any) -> str:
    return f"the excluded first step{' and the stalls for checkpoints' * f.leaves_out_stalls}"


def _with_all(f: Any) -> str:
    which = "both" if f.leaves_out_stalls else "that step"
    return f"AU including {which} {f.delivered_au_percentage:.2f}%"


def _remedy(f: Any) -> str:
    if hasattr(f, "steps"):
        return f"an epoch of {counted(f.steps, 'step')} gives a verdict"
    if not f.keys:
        return (
            "compute took longer than asked, which edition v2.0 credits; metric.edition=v1.0 does "
            "not"
        )
    return f"{' '.join(f'{key}={value}' for key, value in f.keys.items())} gives a verdict"


def _is_own(f: Any) -> bool:
    """Return whether a finding is of a watched job; those of earlier versions do not say it."""
    return getattr(f, "own", False)


def _unlike(f: Any) -> str:
    """Return the names of the keys, and the demands where they differ."""
    keys = ", ".join(_some(list(dict.fromkeys(map(_short, f.keys)))))
    if not hasattr(f, "row_bytes_per_second"):
        return f"unlike {f.row}: {keys}"
    own, row = f.demand_bytes_per_second, format_rate(f.row_bytes_per_second)
    demand = "without bound" if own is None else format_rate(own)
    return f"unlike {f.row}: demand {demand}, not {row} ({keys})"


def _short(key: str) -> str:
    """Return a key by its last name; the value of a distribution by that of its key."""
    *above, leaf = key.split(".")
    return f"{above[-1]}" if leaf in ("mean", "stdev", "type") and above else leaf


def _some(names: Sequence[str]) -> list[str]:
    """Return the first names, and how many more there are where the line would be too long.

    Of names that begin with another one, as record_length_bytes_stdev, that one is enough.
    """
    names = [name for name in names if not any(name.startswith(f"{each}_") for each in names)]
    fit = sum(len(", ".join(names[:end])) <= _MOST_LETTERS for end in range(1, len(names) + 1))
    return names[:fit] + ([f"{len(names) - fit} more"] if fit < len(names) else [])


def _keys_unlike(f: Any) -> str:
    each = []
    for key, (new, was) in f.keys.items():
        own, published = (word(key.removesuffix(".mean"), value) for value in (new, was))
        each.append(f"{own} ({published.partition('=')[2]})")
    return f"unlike {f.row}: {', '.join(each)}"


def _workers_make(f: Any) -> str:
    many = f.accelerators > 1
    who = f"each of {f.accelerators} PyTorch DataLoaders" if many else "a PyTorch DataLoader"
    workers = counted(f.read_threads, "worker")
    host = f"host {f.host}" if hasattr(f, "host") else "this host"
    makes = f"{who} on {host} makes at most {f.samples_per_second:,.0f} samples/s with {workers}"
    if f.au_percentage >= 100:
        return f"{makes}: enough for AU 100%"
    needs = f"no number of workers is enough on {counted(f.cpus, 'CPU')}"
    if f.enough is not None:
        needs = f"{f.enough} workers are enough"
    return f"{makes}: AU {f.au_percentage:.0f}% whatever the storage; {needs}"


def _ended_early(f: Any) -> str:
    after = f"after {f.done} of {counted(f.planned, f.unit)}"
    return f"failed {after}: {f.error}" if f.failed else f"{f.error or 'not ended'} {after}"


def _cached_share_unknown(f: Any) -> str:
    why = "the servers' memory is not seen here" if f.in_bucket else "a note below says why"
    return (
        "metric.max_cached_share: how many bytes came from memory is not known here, so whether at "
        f"most {f.bound:g} did cannot be checked ({why})"
    )


def _from_memory(f: Any) -> str:
    allowed = "" if f.bound is None else f", max_cached_share={f.bound:g} as set"
    return f"{100 * f.share:.0f}% of the bytes came from memory, not from storage{allowed}"


def _not_steady(f: Any) -> str:
    """Return how the rate of a storage that was the limit changed."""
    levels, last = f.levels, f.levels[-1]
    rates = [level["bytes_per_second"] for level in levels]
    if f.trend == "varies":
        seconds = last["begin"] + last["seconds"]
        return (
            f"not steady: {format_rate(min(rates))} to {format_rate(max(rates))}, in "
            f"{len(levels)} levels over {format_seconds(seconds)}"
        )
    text = (
        f"not steady: {format_rate(rates[0])} for the first {format_seconds(last['begin'])}, then "
        f"{format_rate(rates[1])}"
    )
    if last["au_percentage"] is not None:
        text += f"; AU of the last {format_seconds(last['seconds'])} {last['au_percentage']:.0f}%"
    return text


def changed_rate(measured: Fields) -> list[str]:
    """Return how the rate of what was measured changed, by its `steady`; [] if it did not."""
    steady = measured.get("steady")
    if steady is None or steady["trend"] == "steady":
        return []
    return [sentence(note("not_steady", trend=steady["trend"], levels=steady["levels"]).fields)]


def calibrated_rate(measured: Fields) -> list[str]:
    """Return which rate a calibration takes of a cold read whose rate changed; [] if it did not."""
    fell = (measured.get("steady") or {}).get("trend") == "fell"
    taken = "the later rate is taken" if fell else "the mean is taken"
    steady = measured.get("steady") or {"trend": "steady", "levels": ()}
    # Nothing is computed there, so AU says nothing.
    levels = [{**level, "au_percentage": None} for level in steady["levels"]]
    changed = changed_rate({"steady": {**steady, "levels": levels}})
    return [f"note: 3/3 was {line}; {taken}" for line in changed]


def _runs_disagree(f: Any) -> str:
    (fewer, more), (faster, slower) = f.num_accelerators, f.bytes_per_second
    why = "it is not steady" if fewer == more else "it is slower with more readers, or not steady"
    return (
        f"with {fewer} the storage gave {format_rate(faster)}, with {more} {format_rate(slower)}: "
        f"{why}"
    )


def fed(phases: Sequence[Fields]) -> str:
    """Return what a storage feeds whose rate changed: "2 accelerators (2.2) for the first 33 s"."""
    numbers = [int(phase["feeds"] + 1e-9) for phase in phases]
    if len(phases) != 2:
        return f"{counted(max(numbers), 'accelerator')} at its best, {min(numbers)} at its worst"
    words = [
        f"{'at least ' if phase['at_least'] else ''}{number}"
        for number, phase in zip(numbers, phases, strict=True)
    ]
    noun = "accelerator" if numbers[0] == 1 else "accelerators"
    first, then = (f"{phase['feeds']:.1f}" for phase in phases)
    seconds = format_seconds(phases[0]["seconds"])
    return f"{words[0]} {noun} ({first}) for the first {seconds}, then {words[1]} ({then})"


def _of_run(f: Any) -> str:
    alike = f" and {f.num_alike} more alike" if f.num_alike else ""
    return f"run {f.run}{alike}: {sentence(f.finding)}"


# --- the table ------------------------------------------------------------------------------------


SENTENCES: Mapping[str, Callable[[Any], str]] = {
    # reasons
    "bytes_not_read": lambda f: (
        f"{f.read_bytes:,.0f} bytes were read per sample, the workload says "
        f"{f.nominal_bytes:,.0f}; set dataset.record_length_bytes={f.read_bytes:.0f}"
    ),
    "cached_share_unknown": _cached_share_unknown,
    "cached_too_much": lambda f: (
        f"{100 * f.share:.1f}% of the bytes came from memory, at most {100 * f.bound:g}% may "
        f"(metric.max_cached_share); take {' or '.join(_PAST_MEMORY[way] for way in f.ways)}"
    ),
    "ended_early": _ended_early,
    "failed_after_the_end": lambda f: f"{f.error}",
    "first_step_too_slow": lambda f: (
        "the first step was so slow that the AU without it is not that of the epoch; "
        f"{_with_all(f)}; {_remedy(f)}"
    ),
    "gap_too_long": lambda f: (
        f"{f.after} began {f.gap_seconds:.0f} s after {f.before} ended; the gap must be shorter "
        f"than a run, {f.run_seconds:.0f} s (rule {f.rule})"
    ),
    "limit_unknown": lambda f: "what limited it, and how much came from memory, is not known",
    "not_repeatable": lambda f: (
        f"samples/s differ by up to {100 * f.share:.1f}% from their mean, {100 * f.most:g}% is "
        "allowed"
    ),
    "reads_hidden": lambda f: (
        f"up to {100 * f.share:.0f}% of the data may be read during {_left_out(f)}, at most "
        f"{100 * f.most:.0f}% is allowed; {_with_all(f)}; {_remedy(f)}"
    ),
    "run_undecided": lambda f: f"run {f.run}: NO VERDICT, {'; '.join(map(sentence, f.findings))}",
    "run_under_threshold": lambda f: (
        f"run {f.run}: AU {f.au_percentage:.2f}%{f' (rule {f.rule})' if f.rule else ''}"
    ),
    "uncounted_too_much": lambda f: (
        f"the drives counted {100 * f.counted_share:.1f}% of the bytes that were read with "
        "O_DIRECT, and no page of the files is in memory: files with holes, or compressed, ask "
        "less of a drive than their size; take files that dlemu datagen has written"
    ),
    # remarks
    "cached_share_allowed": lambda f: f"max_cached_share={f.bound:g} as set",
    "dataset_under_rule": lambda f: (
        f"dataset under the rule: {f.num_files:,} of {counted(f.num_files_needed, 'file')}"
    ),
    "drive_is_memory": lambda f: f"the drive is memory ({f.drive})",
    "from_memory": _from_memory,
    "from_memory_unknown": lambda f: (
        "how many bytes came from memory is not known, so the storage may not have been read"
    ),
    "host_memory_given": lambda f: (
        f"host_memory={format_bytes(f.host_memory_bytes)} as given, not measured"
    ),
    "links": lambda f: (
        f"{counted(f.num_files, 'file')} of those looked at have several names (links)"
    ),
    "near_threshold": lambda f: (
        f"within the run's own noise of the threshold ({f.low_percentage:.2f}% to "
        f"{f.high_percentage:.2f}%); {'more runs decide' if _is_own(f) else 'runs=5 decides'}"
    ),
    "not_steady": _not_steady,
    "through_proxy": lambda f: f"read through the proxy {f.proxy}",
    "tls_not_verified": lambda f: (
        "the servers' certificates were not checked (storage.verify_tls=false): another may have "
        "answered"
    ),
    "other_loader": lambda f: (
        f"read by {f.reads}, which take less CPU time than {f.asked}: that is not installed"
    ),
    "other_sample_size": lambda f: (
        f"{f.read_bytes:,.0f} bytes were read for a sample, nominal are {f.nominal_bytes:,.0f}"
    ),
    "unlike_row": _unlike,
    # notes
    "runs_disagree": _runs_disagree,
    "second_reads_faster": lambda f: (
        f"files that were read for the first time came with {format_rate(f.bytes_per_second)}, "
        f"read again faster: a cache {_CACHES[getattr(f, 'of_objects', False)]}; the answer "
        "is of first reads"
    ),
    "keys_unlike_row": _keys_unlike,
    "workers_make": _workers_make,
    "read_ahead": lambda f: (
        f"read-ahead: up to {100 * f.share:.1f}% of the data may be read during {_left_out(f)}; "
        f"{_with_all(f)}"
    ),
    **EVIDENCE,
    **ADVICE,
    **SEARCHES,
    **NOTES,
    **CHECKPOINTS,
    **RULES,
    **PROGRESS,
    **DOCTOR,
    **DATASETS,
    **JOBS,
    **CACHES,
    **CONTRACT,
    **TOOLS,
    **HOSTS,
    # of any kind
    "as_written": lambda f: f"{f.text}",
    "of_run": _of_run,
    # those that have another one in them
    "batch_skipped": lambda f: f"batch {f.batch}: {sentence(f.why)}, skipped",
    "calibration_age": lambda f: (
        f"{aged(f.age_seconds)}{f'; here {sentence(f.differs)}' if f.differs else ''}"
    ),
    "cells_of_others": lambda f: (
        f"{counted(f.cells, 'cell')} in {f.file} not taken, of something else: "
        f"{sentence(f.differs)}"
    ),
    "memory_needs_files": lambda f: (
        f"{f.multiple} x memory, {sentence(f.memory)}, need {counted(f.needed, 'file')}, there are "
        f"{f.files:,}: {'passes' if f.files >= f.needed else 'fails'}"
    ),
    "steps_need_files": lambda f: (
        f"{f.steps} steps an epoch need {counted(f.needed, 'file')}, there are {f.files:,}: "
        f"{'passes' if f.files >= f.needed else 'fails'}"
    ),
    "still": lambda f: f"{sentence(f.problem)} ({f.error})",
    "of_drive": lambda f: f"{f.drive}: {sentence(f.why)}",
    "search_of_others": lambda f: (
        f"{f.folder} has this search of something else ({sentence(f.differs)}); a new one begins"
    ),
    "checkpoints_planned": lambda f: (
        f"{counted(f.number, 'checkpoint')} of {format_bytes(f.num_bytes)}, {sentence(f.due)}, "
        f"to {f.folder}"
    ),
    "comes_next": lambda f: (
        f"     {'done' if f.num_accelerators is None else f'next {f.num_accelerators}'}: "
        f"{sentence(f.why)}"
    ),
    "written_in_first_run": lambda f: f"     written in the first run: {sentence(f.planned)}",
    "target_not_the_limit": lambda f: (
        f"note: the limit of 3/3 was {f.limit['name']}, so the storage may give more: "
        f"{evidence_of(f.limit)}"
    ),
    "most_accelerators_here": lambda f: (
        f"size.max_accelerators={f.num_accelerators} here: {sentence(f.why)}"
    ),
}
"""The sentence of each kind; `f` has its figures. BUT is set before one that weakens a verdict."""
