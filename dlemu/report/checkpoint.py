"""`dlemu checkpoint`: its plan, its result, and its prediction from a drive's rates."""

from collections.abc import Iterator, Sequence
from statistics import fmean, pstdev

from dlemu.checkpoint.outcome import IN_MEMORY, Entry, from_memory, waited_share, young_interval
from dlemu.judge.summary import is_at_servers, limit_name, place_of
from dlemu.report.blocks import (
    Block,
    Document,
    Fold,
    Lines,
    Table,
    Tone,
    Verdict,
    measured,
    where_cells,
)
from dlemu.report.in_run import belongs_to, plot_seconds, wear_line
from dlemu.report.words import advice_of, evidence_of, note_lines
from dlemu.report.words.places import Fact, facts_of
from dlemu.units import counted, format_bytes, format_rate, format_seconds

_MINUTES = (5, 15, 30, 60)
_KINDS = (("save", "saves"), ("load", "loads"))
"""Its name, and its key in the document."""


def facts_of_plan(document: Document) -> list[Fact]:
    """Return what will be written: model, checkpoint, and storage and host, where known."""
    key = document["checkpoint"]
    least, most = map(format_bytes, key["num_bytes_of_accelerators"])
    share = f"{least if least == most else f'{least} to {most}'} per accelerator"
    if len(hosts := key["num_bytes_of_hosts"]) > 1:
        share += f"; {format_bytes(min(hosts))} to {format_bytes(max(hosts))} per host"
    size = f"{format_bytes(key['num_bytes'])} ({key['num_bytes']:,} bytes)"
    folder = f", in {key['folder']}" if key["folder"] else ""
    return [
        ("model", f"{_part(document)}, {_shape(document)}"),
        ("writes", f"{size} in {counted(key['num_files'], 'file')}{folder}"),
        ("share", share),
        *facts_of({name: document.get(name) for name in ("num_hosts", "system")}),
    ]


def _shape(document: Document) -> str:
    """Return "8,030,261,248 parameters, fp16 + fp32, 8 accelerators (tensor 8 x ...)"."""
    everyone = counted(document["num_accelerators_of_model"], "accelerator")
    if (parameters := document["parameters"]) is None:
        return everyone
    model = document["model"]
    split = model["parallelism"]
    return (
        f"{parameters['number']:,} parameters, {model['model_datatype']} + "
        f"{model['optimizer_datatype']}, {everyone} (tensor {split['tensor']} x pipeline "
        f"{split['pipeline']} x data {parameters['data']}, ZeRO {split['zero_stage']})"
    )


def present_checkpoint(document: Document) -> list[Block]:
    """Return the blocks of a command that has ended."""
    key, saves = document["checkpoint"], document["checkpoint"]["saves"]
    limits = [
        (kind, limit)
        for kind, limit in (("save", document["limit"]), ("load", document["load_limit"]))
        if limit
    ]
    part = _part(document)
    lines = [
        f"{document['workload']}: "
        f"{counted(document['num_accelerators'], 'emulated accelerator')} on "
        f"{counted(document['num_ranks'], 'rank')}, {counted(document['num_hosts'], 'host')}; "
        f"{format_bytes(key['num_bytes'])}",
        *(f"limit of the {kind}s: {each['name']}. {evidence_of(each)}" for kind, each in limits),
    ]
    if document.get("division") == "closed":
        lines.append(
            f"closed division of {document['edition']}: the rules that dlemu checks are kept"
        )
    if part != document["model"]["name"]:
        lines.append(
            f"note: durations and costs are those of {part}; the whole checkpoint takes longer"
        )
    lines += note_lines(document)
    durations = Table(("", "mean", "min", "max", "stdev"), list(_durations(key)))
    blocks: list[Block] = [_verdict(document), Lines(lines), durations]
    if saves:
        blocks += _costs(_mean(saves), key.get("mtbf_seconds"))
    if saves or key["loads"]:
        found = {kind: _seconds(key[name]) for kind, name in _KINDS}
        blocks.append(plot_seconds("duration of each checkpoint", found))
    advice = dict.fromkeys(filter(None, (advice_of(limit) for _, limit in limits)))
    return [
        *blocks,
        Fold("details", [Lines(list(_details(document)))]),
        measured(document),
        Lines([f"try: {each}" for each in advice]),
    ]


def row_of(document: Document) -> dict[str, str]:
    """Return the cells of checkpoints in the table across results."""
    key = document["checkpoint"]
    entries = key["saves"] or key["loads"]
    return {
        **where_cells(document, key["folder"].rpartition("/")[2]),
        "workload": f"checkpoint of {document['model']['name']}",
        "verdict": document["verdict"] or (format_seconds(_mean(entries)) if entries else ""),
        "accelerators": str(document["num_accelerators"]),
        "limit": limit_name(document) or limit_name(document, "load_limit"),
    }


def present_predicted_checkpoint(document: Document) -> list[Block]:
    """Return size, durations with their ranges, and costs, from `checkpoint.plan`."""
    save, drives = document["save"], f"{document['drives']} x {document['drive']}"
    drives = "the servers" if document["drive"] == "servers" else drives
    seconds = document["save" if save else "load"]["seconds"]
    verb = "takes" if save else "is read in"
    rows = (
        []
        if save
        else [["save", "unknown", "", "set drive.write_bandwidth or server.write_bandwidth"]]
    )
    for kind, _ in _KINDS:
        if found := document[kind]:
            mean, low, high = map(format_seconds, (found["seconds"], found["low"], found["high"]))
            rows.append([kind, mean, f"{low} to {high}", format_rate(found["bytes_per_second"])])
    return [
        Verdict(f"a checkpoint of {_part(document)} {verb} {format_seconds(seconds)} on {drives}"),
        Lines([f"{format_bytes(document['checkpoint']['num_bytes'])}, from these rates alone"]),
        Table(("", "predicted", "range", "rate"), rows, texts=("range", "rate")),
        *(_costs(seconds, document["checkpoint"]["mtbf_seconds"]) if save else ()),
        Lines(
            [
                f"All accelerators share the drives. A rate may be off by "
                f"{100 * document['relative_error']:.0f}%, the error of reads in published "
                "results; writes were not compared."
            ]
        ),
    ]


def _verdict(document: Document) -> Verdict:
    """Return the answer: the duration, its bound, and what one every 30 minutes costs."""
    key, verdict = document["checkpoint"], document["verdict"]
    entries = key["saves"] or key["loads"]
    if not entries:
        return Verdict(f"{document['workload']}: nothing was written or read")
    seconds = _mean(entries)
    what = f"a checkpoint of {_part(document)} {'takes' if key['saves'] else 'is read in'} "
    what += format_seconds(seconds)
    if verdict:
        what = f"{verdict}: {what}, at most {format_seconds(key['max_seconds'])} allowed"
    parts, weak = [what], []
    limit = document["limit"] if key["saves"] else document["load_limit"]
    if limit and limit["name"] == IN_MEMORY:
        weak.append(f"BUT {evidence_of(limit)}")
    if memory := place_of(document).get("memory"):
        weak.append(f"BUT the drive is memory ({memory})")
    if key["saves"] and seconds <= 1800:
        parts.append(f"one every 30 minutes costs {_percent(seconds / 1800)} of the time")
    tone: Tone = "pass" if verdict == "PASS" else "plain"
    if verdict == "FAIL":
        tone = "fail"
    elif weak or verdict == "NO VERDICT":
        tone = "caution"
    return Verdict("; ".join([*parts, *weak]), tone)


def _part(document: Document) -> str:
    """Return the model, with the part of it and the scale."""
    key, name = document["checkpoint"], str(document["model"]["name"])
    own, whole = document["num_accelerators"], document["num_accelerators_of_model"]
    if own < whole:
        sizes = f"{format_bytes(key['num_bytes'])} of {format_bytes(key['num_bytes_of_model'])}"
        name = f"{name} ({own} of {whole} ranks: {sizes})"
    return name if key["scale"] == 1 else f"{name} at scale {key['scale']:g}"


def _durations(checkpoint: Document) -> Iterator[list[str]]:
    """Yield the rows of the table: a title; mean, min, max and stdev."""
    for kind, name in _KINDS:
        entries = checkpoint[name]
        rates = [entry["num_bytes"] / entry["seconds"] for entry in entries]
        alone = [entry["rank0_seconds"] for entry in entries]
        for title, values, form in (
            (kind, _seconds(entries), format_seconds),
            (f"{kind}, rank 0 alone", alone, format_seconds),
            (f"{kind} rate", rates, format_rate),
        ):
            if values:
                cells = (fmean(values), min(values), max(values), pstdev(values))
                yield [title, *(form(cell) if cell else "0" for cell in cells)]


def _seconds(entries: Sequence[Entry]) -> list[float]:
    return [entry["seconds"] for entry in entries]


def _mean(entries: Sequence[Entry]) -> float:
    return fmean(_seconds(entries))


def _costs(seconds: float, mtbf: float | None) -> Iterator[Block]:
    """Yield what checkpoints of so many seconds cost, and Young's interval if mtbf is given."""
    shares = [seconds / (60 * minutes) for minutes in _MINUTES]
    costs = [_percent(share) if share <= 1 else "too long" for share in shares]
    heads = ("one every", *(f"{minutes} min" for minutes in _MINUTES))
    yield Table(heads, [("costs, of the time", *costs)])
    if mtbf:
        yield Lines([_young(seconds, mtbf)])


def _young(seconds: float, mtbf: float) -> str:
    best = young_interval(seconds, mtbf)
    # Beside the checkpoints half an interval is lost with each failure.
    lost = seconds / best + best / 2 / mtbf
    failures = f"with a failure every {format_seconds(mtbf)}"
    if lost >= 1:
        return f"{failures}, the job never ends: a checkpoint alone takes {format_seconds(seconds)}"
    return (
        f"Young's interval: {failures}, one every {format_seconds(best)} is best; checkpoints and "
        f"lost work then cost {_percent(lost)} of the time"
    )


def _percent(share: float) -> str:
    """Return "0.68%", "12%", "100%"; no exponent at the upper end."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def _details(document: Document) -> Iterator[str]:
    key = document["checkpoint"]
    for kind, name in _KINDS:
        if entries := key[name]:
            each = ", ".join(map(format_seconds, _seconds(entries)))
            yield f"each {kind}: {each}"
            yield f"{kind}: {_shares(entries)}; {_slowest(entries)}"
    if saves := key["saves"]:
        cpu = sum(entry["parts"]["generation"] for entry in saves) * key["num_accelerators"]
        per_gb = cpu / (sum(entry["num_bytes"] for entry in saves) / 1e9)
        yield (
            f"generated bytes: {per_gb:.2f} CPU-s per GB; writers waited for them "
            f"{100 * waited_share(saves):.1f}% of the time"
        )
    if key["loads"]:
        if not is_at_servers(document):
            yield _cache(key)
        if key["verified"]:
            yield "verified: every byte read is the byte written"
        yield _readers(key)
    if belongs_to(wear := document["measured"]["wear"]):
        yield wear_line(wear)


def _shares(entries: Sequence[Entry]) -> str:
    """Return the shares of the mean accelerator's time: "open 0.1%, write 61.0%, fsync 38.9%"."""
    whole = max(1e-9, sum(entry["mean_seconds"] for entry in entries))
    names = [name for name in entries[0]["parts"] if name not in ("generation", "waited")]
    sums = {name: sum(entry["parts"][name] for entry in entries) for name in names}
    return ", ".join(f"{name} {100 * value / whole:.1f}%" for name, value in sums.items() if value)


def _slowest(entries: Sequence[Entry]) -> str:
    latest = max(entries, key=lambda entry: entry["seconds"])
    slowest = latest["slowest"]
    return (
        f"slowest: accelerator {slowest['accelerator']} (rank {slowest['rank']} on host "
        f"{slowest['host']}) with {format_seconds(latest['seconds'])}; mean of that checkpoint "
        f"{format_seconds(latest['mean_seconds'])}"
    )


def _cache(checkpoint: Document) -> str:
    share, memory = checkpoint["cached_share"], checkpoint["host_memory_bytes"]
    before = "an unknown share" if share is None else f"{100 * share:.2f}%"
    found = from_memory(checkpoint["loads"])
    came = "" if found is None else f"{100 * found:.1f}% of the bytes read came from memory; "
    steps = {entry["step"] for entry in checkpoint["loads"]}
    per_host = max(checkpoint["num_bytes_of_hosts"]) * len(steps)
    rule = "less than" if per_host < 3 * memory else "at least"
    return (
        f"page cache: {before} of the pages in memory before the reads; {came}a host reads "
        f"{format_bytes(per_host)}, {rule} 3 x its memory of {format_bytes(memory)}"
    )


def _readers(checkpoint: Document) -> str:
    if len(checkpoint["num_bytes_of_hosts"]) == 1:
        return "readers: one host, so each accelerator reads what its own host wrote"
    if not checkpoint["shared"]:
        return (
            "readers: the hosts do not share a file system, so each reads its own files; add the "
            "time of a remap"
        )
    return f"readers: {100 * checkpoint['foreign_share']:.0f}% read what another host wrote"
