"""The text of `dlemu checkpoint`, from the fields of summary.json: also for stored results."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from dlemu.checkpoint.outcome import (
    IN_MEMORY,
    Entry,
    from_memory,
    waited_share,
    young_interval,
)
from dlemu.results.header import header
from dlemu.results.judgement import EXIT_STATUS
from dlemu.results.wear import belongs_to, wear_line
from dlemu.units import counted, format_bytes, format_rate, format_seconds

Summary = Mapping[str, Any]
_MINUTES = (5, 15, 30, 60)
_KINDS = (("save", "saves"), ("load", "loads"))


def both_units(num_bytes: float) -> str:
    """Return bytes in binary and decimal units: "104.7 GiB (112 GB)"."""
    return f"{format_bytes(num_bytes)} ({format_rate(num_bytes).removesuffix('/s')})"


def introduction(summary: Summary) -> str:
    """Return the first lines: model, checkpoint, and storage and host, where they are known."""
    told, (least, most) = summary["checkpoint"], summary["checkpoint"]["num_bytes_of_accelerators"]
    share = "" if least == most else f" to {both_units(most)}"
    hosts, uneven = told["num_bytes_of_hosts"], ""
    if len(hosts) > 1:
        uneven = f"; a host {format_bytes(min(hosts))} to {format_bytes(max(hosts))}"
    _, *place = header({"place": summary.get("place")}).splitlines()
    folder = f", in {told['folder']}" if told["folder"] else ""
    return "\n".join(
        [
            f"model:    {summary['model']['name']}, {summary['shape']}",
            f"writes:   {_written(summary)} in {counted(told['num_files'], 'file')}{folder}",
            f"share:    {both_units(least)}{share} an accelerator{uneven}",
            *place,
        ]
    )


def _written(summary: Summary) -> str:
    """Return what is written: "104.7 GiB (112 GB)", with the part of the model and the scale."""
    told = summary["checkpoint"]
    size = both_units(told["num_bytes"])
    own, whole = summary["num_accelerators"], summary["num_accelerators_of_model"]
    if own < whole:
        share = 100 * told["num_bytes"] / told["num_bytes_of_model"]
        size = (
            f"{own} of {counted(whole, 'accelerator')}: {size} of "
            f"{format_bytes(told['num_bytes_of_model'])}, {share:.3g}%"
        )
    scale = told["scale"]
    return size if scale == 1 else f"{size}, each file at {scale:g} of its size"


def render(summary: Summary) -> str:
    """Return the whole report of a command that ended."""
    told = summary["checkpoint"]
    saves = told["saves"]
    lines = [
        headline(summary),
        "",
        *_table(summary),
        "",
        *_details(told),
        *_wear(summary),
        *(cost_lines(_mean(saves), told.get("mtbf_seconds")) if saves else ()),
        *_limits(summary),
        *_notes(summary),
        verdict_line(summary),
    ]
    return "\n".join(lines)


def headline(summary: Summary) -> str:
    """Return who wrote how much, in one line."""
    return (
        f"{summary['workload']}: {counted(summary['num_accelerators'], 'emulated accelerator')} on "
        f"{counted(summary['num_ranks'], 'rank')}, {counted(summary['num_hosts'], 'host')}; "
        f"{_written(summary)}"
    )


def remarks(summary: Summary) -> list[str]:
    """Return the lines of the report that are no tables, without the verdict."""
    told = summary["checkpoint"]
    saves, mtbf = told["saves"], told.get("mtbf_seconds")
    return [
        *_limits(summary),
        *_details(told),
        *_wear(summary),
        *([_young(_mean(saves), mtbf)] if saves and mtbf else ()),
        *_notes(summary),
    ]


def _notes(summary: Summary) -> Iterator[str]:
    """Yield the notes; first, that figures of a part are not those of the whole."""
    part = describe_part(summary)
    if part != summary["model"]["name"]:
        yield f"note: every duration and cost is that of {part}; the whole takes longer"
    yield from (f"note: {note}" for note in summary["notes"])


def _wear(summary: Summary) -> list[str]:
    wear = summary["measured"]["wear"]
    return [wear_line(wear)] if belongs_to(wear) else []


def _mean(entries: Sequence[Entry]) -> float:
    return fmean(entry["seconds"] for entry in entries)


def _table(summary: Summary) -> Iterator[str]:
    """Yield the table of durations and rates, and then each single duration."""
    yield f"{'':<28}" + "".join(f"{head:>12}" for head in ("mean", "min", "max", "stdev"))
    yield f"{'':<28}" + "  ----------" * 4
    for title, cells in figures(summary):
        yield f"{title:<28}" + "".join(f"{cell:>12}" for cell in cells)
    told = summary["checkpoint"]
    for kind, name in _KINDS:
        if told[name]:
            each = " ".join(f"{entry['seconds']:.2f}" for entry in told[name])
            yield f"each {kind} (s): {each}"


def figures(summary: Summary) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of the table: a title; mean, min, max and stdev."""
    for kind, name in _KINDS:
        entries = summary["checkpoint"][name]
        if not entries:
            continue
        seconds = [entry["seconds"] for entry in entries]
        rates = [entry["num_bytes"] / entry["seconds"] for entry in entries]
        rows = (
            (f"{kind} (s)", seconds),
            ("  rank 0 alone (s)", [entry["rank0_seconds"] for entry in entries]),
            (f"{kind} (GB/s)", [rate / 1e9 for rate in rates]),
            (f"{kind} (GiB/s)", [rate / 2**30 for rate in rates]),
        )
        for title, values in rows:
            cells = (fmean(values), min(values), max(values), pstdev(values))
            yield title, [f"{cell:.3f}" for cell in cells]


def _details(told: Summary) -> Iterator[str]:
    for kind, name in _KINDS:
        entries: Sequence[Entry] = told[name]
        if entries:
            yield f"{kind}: {_parts(entries)}; {_slowest(entries)}"
    if told["saves"]:
        cpu = sum(
            entry["parts"]["generation"] * told["num_accelerators"] for entry in told["saves"]
        )
        per_gb = cpu / (sum(entry["num_bytes"] for entry in told["saves"]) / 1e9)
        yield (
            f"bytes: made beside the writing, {per_gb:.2f} CPU-s a GB; the writers waited for "
            f"them {100 * waited_share(told['saves']):.1f}% of the time"
        )
    if told["loads"]:
        yield _cache(told)
        if told["verified"]:
            yield "verified: every byte that was read is the one that was written"
        yield _who_reads(told)


def _parts(entries: Sequence[Entry]) -> str:
    """Return the shares of the mean accelerator's time: "open 0.1%, write 61.0%, fsync 38.9%"."""
    whole = max(1e-9, sum(entry["mean_seconds"] for entry in entries))
    names = [name for name in entries[0]["parts"] if name not in ("generation", "waited")]
    sums = {name: sum(entry["parts"][name] for entry in entries) for name in names}
    shown = [f"{name} {100 * value / whole:.1f}%" for name, value in sums.items() if value]
    return ", ".join(shown)


def _slowest(entries: Sequence[Entry]) -> str:
    latest = max(entries, key=lambda entry: entry["seconds"])
    slowest = latest["slowest"]
    return (
        f"the slowest was accelerator {slowest['accelerator']} (rank {slowest['rank']} on host "
        f"{slowest['host']}) with {format_seconds(latest['seconds'])}, the mean of all then "
        f"{format_seconds(latest['mean_seconds'])}"
    )


def _cache(told: Summary) -> str:
    share, memory = told["cached_share"], told["host_memory_bytes"]
    lay = "an unknown part" if share is None else f"{100 * share:.2f}%"
    found = from_memory(told["loads"])
    came = "" if found is None else f"; of the bytes read, {100 * found:.1f}% came from memory"
    per_host = max(told["num_bytes_of_hosts"]) * len({entry["step"] for entry in told["loads"]})
    rule = "under" if per_host < 3 * memory else "at least"
    return (
        f"page cache: before the reads {lay} of the pages lay in memory{came} ("
        f"{format_bytes(per_host)} a host are {rule} 3 x {format_bytes(memory)} of memory)"
    )


def _who_reads(told: Summary) -> str:
    if len(told["num_bytes_of_hosts"]) == 1:
        return "readers: one host, so each accelerator reads what its own host has written"
    if not told["shared"]:
        return (
            "readers: the hosts do not see each other's files, so each reads its own; what a "
            "remap takes must be added"
        )
    return f"readers: {100 * told['foreign_share']:.0f}% read what another host has written"


def cost_lines(seconds: float, mtbf: float | None) -> Iterator[str]:
    """Yield what checkpoints of so many seconds cost, and Young's interval if mtbf is given."""
    intervals, shares = zip(*costs(seconds), strict=True)
    yield "one every" + "".join(f"{cell:>13}" for cell in intervals)
    yield "  costs  " + "".join(f"{cell:>13}" for cell in shares)
    if mtbf:
        yield _young(seconds, mtbf)


def costs(seconds: float) -> list[tuple[str, str]]:
    """Return some intervals, and the share of the time that checkpoints then take."""
    return [
        (f"{minutes} min", _percent(share) if share <= 1 else "too long")
        for minutes, share in ((each, seconds / (60 * each)) for each in _MINUTES)
    ]


def _young(seconds: float, mtbf: float) -> str:
    best = young_interval(seconds, mtbf)
    # Beside the checkpoints half an interval is lost with each failure.
    lost = seconds / best + best / 2 / mtbf
    failures = f"Young: with a failure every {format_seconds(mtbf)}"
    if lost >= 1:
        return f"{failures} the job never ends: a checkpoint alone takes {format_seconds(seconds)}"
    return (
        f"{failures} the best is one every {format_seconds(best)}; checkpoints and lost work then "
        f"cost {_percent(lost)} of the time"
    )


def _percent(share: float) -> str:
    """Return "0.68%", "12%", "100%"; no exponent at the upper end."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def _limits(summary: Summary) -> Iterator[str]:
    for kind, limit in (("save", summary["limit"]), ("load", summary["load_limit"])):
        if limit:
            yield f"limit of the {kind}s: {limit['name']}. {limit['evidence']}"
            if limit["advice"]:
                yield f"try: {limit['advice']}"


def verdict_line(summary: Summary) -> str:
    """Return the answer in one line: the duration, and what it costs every 30 minutes."""
    told = summary["checkpoint"]
    saves, entries = told["saves"], told["saves"] or told["loads"]
    if not entries:
        return f"{summary['workload']}: nothing was written or read"
    seconds = _mean(entries)
    what = f"{describe_part(summary)} takes {format_seconds(seconds)} here"
    if not saves:
        what = f"{describe_part(summary)} is read in {format_seconds(seconds)} here"
    elif seconds <= 1800:
        what += f"; one every 30 minutes is {_percent(seconds / 1800)} of the time"
    bound, verdict = told.get("max_seconds"), summary["verdict"]
    what = f"{verdict}: {what}; at most {bound:g} s wanted" if verdict else what
    return "; ".join([what, *_not_the_drive(summary)])


def _not_the_drive(summary: Summary) -> Iterator[str]:
    """Yield what the verdict's line says where memory took or gave the bytes."""
    limit = summary["limit"] if summary["checkpoint"]["saves"] else summary["load_limit"]
    if limit and limit["name"] == IN_MEMORY:
        yield f"BUT {limit['evidence']}"
    if memory := (summary.get("place") or {}).get("memory"):
        yield f"BUT the drive is memory ({memory})"


def describe_part(summary: Summary) -> str:
    """Return the model, with the part of it and the scale."""
    told, name = summary["checkpoint"], str(summary["model"]["name"])
    if summary["num_accelerators"] < summary["num_accelerators_of_model"]:
        name = (
            f"{name} ({summary['num_accelerators']} of {summary['num_accelerators_of_model']} "
            f"ranks: {format_bytes(told['num_bytes'])} of "
            f"{format_bytes(told['num_bytes_of_model'])})"
        )
    return name if told["scale"] == 1 else f"{name} at scale {told['scale']:g}"


def exit_status(summary: Summary) -> int:
    """Return 0, 2 where checkpoint.max_seconds was exceeded, 1 where memory took the bytes."""
    return EXIT_STATUS.get(summary["verdict"], 0)
