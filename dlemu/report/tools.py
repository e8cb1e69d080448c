"""What the commands around a run answer: datasize, doctor, load, steptime, wear and workloads."""

import math
import shlex
from collections.abc import Iterator, Sequence

from dlemu.host.wear import is_binary
from dlemu.report import words
from dlemu.report.blocks import (
    Block,
    Column,
    CommandLine,
    Document,
    Facts,
    Fold,
    Lines,
    Table,
    Verdict,
    table_of,
)
from dlemu.report.words import sentence, text_of
from dlemu.units import (
    counted,
    each_once,
    format_bytes,
    format_drive_bytes,
    format_rate,
    format_seconds,
)

# --- dlemu datasize -------------------------------------------------------------------------------


def present_datasize(found: Document) -> list[Block]:
    """Return files and bytes, both terms of the rule, and the command that writes the files."""
    number = counted(found["num_accelerators"], "accelerator")
    memory = f"{text_of(found['memory']['about'])} / {format_bytes(found['sample_bytes'])} a sample"
    terms = (
        ("500 steps an epoch", "steps", f"500 x {found['batch_size']} x {number}"),
        ("5 x memory", "memory", f"5 x {memory}"),
    )
    rows = [
        (
            name,
            f"{math.ceil(found[f'samples_for_{term}']):,}",
            f"{how}{'  <- decides' if found['decided_by'] == term else ''}",
        )
        for name, term, how in terms
    ]
    each = f"{counted(found['samples_per_file'], 'sample')}, {found['format']}"
    blocks: list[Block] = [
        Verdict(
            f"{found['workload']} with "
            f"{counted(found['num_accelerators'], 'emulated accelerator')} needs "
            f"{counted(found['num_files'], 'file')}, {_total(found)}"
        ),
        Table(("rule", "samples", "from"), rows, texts=("from",)),
        Lines([f"a file: {each}"]),
    ]
    if why := found["excess"] or found.get("why_none"):
        return [*blocks, Lines([why])]
    if not found["has_folder"]:
        here = "written below the working directory; name a folder on the storage instead:"
        blocks.append(Lines([here]))
    return [*blocks, CommandLine("", found["command"])]


def _total(found: Document) -> str:
    """Return the bytes, how many of them are read, and what small files take, if they differ."""
    num_bytes, blocks = found["num_bytes"], found["block_bytes"]
    share = found["sample_bytes"] / found["stored_sample_bytes"]
    read = "" if share == 1 else f", of which {format_bytes(num_bytes * share)} are read"
    total = f"{format_bytes(num_bytes)}{read}"
    if num_bytes > blocks / 2:
        return total
    return f"{total}; {format_bytes(blocks)} on a drive with blocks of 4 KiB"


# --- dlemu datagen, dlemu verify, --dry-run -------------------------------------------------------


def present_dataset(document: Document) -> list[Block]:
    """Return what a folder holds now."""
    return [Verdict(f"{document['place']}: {text_of(document['about'])}")]


def present_verify(document: Document) -> list[Block]:
    """Return what is wrong with which file: the fields of `Fault`, and how many are."""
    faults, place = document["faults"], document["place"]
    bad = [fault for fault in faults if fault["file"] is not None]
    repaired = sum(fault["repaired"] for fault in bad)
    found = [
        counted(len(bad), "bad file") if bad else "no bad files",
        f"{repaired:,} written again" if repaired else "",
        counted(len(faults) - len(bad), "extra file") if len(faults) > len(bad) else "",
    ]
    checked = "sizes and content were checked" if document["full"] else "sizes were checked"
    line = f"{place}: {each_once(found)}; {checked}"
    if repaired < len(bad):
        line += f"; {shlex.join(['dlemu', 'verify', place, '--repair'])} writes them again"
    elif document["problems"]:
        line += f"; move what is extra out of {shlex.quote(place)}, and verify again"
    again = {True: ", written again", False: ""}
    lines = [f"{f['path']}: {text_of(f['problem'])}{again[f['repaired']]}" for f in faults]
    return [*map(Verdict, lines), Verdict(line, "fail" if document["problems"] else "pass")]


def present_plan(document: Document) -> list[Block]:
    """Return what a command would do."""
    return [Facts(document["facts"])]


# --- dlemu doctor ---------------------------------------------------------------------------------


def present_doctor(document: Document) -> list[Block]:
    """Return the blocks of `wanted`, `problems`, and `checks` with the fields of `Check`."""
    reader, problems, checks = (document[name] for name in ("wanted", "problems", "checks"))
    wanted = reader["data_loader"]
    wanted += "" if reader["gds"] == "off" else f" with reader.gds={reader['gds']}"
    wanted += " with dali.device=gpu" if reader["on_gpu"] else ""
    answer = Verdict(f"{wanted} can run here", "pass")
    if problems:
        why = "; ".join(f"{each['name']}: {sentence(each['found'])}" for each in problems)
        answer = Verdict(f"{wanted} cannot run here: {why}", "fail")
    rows = ({**each, "check": each["name"], "found": sentence(each["found"])} for each in checks)
    columns = (Column(name, name, text=True) for name in ("check", "state", "found"))
    return [
        answer,
        table_of(rows, *columns),
        *(CommandLine(e["name"], sentence(e["remedy"])) for e in checks if e["remedy"]),
    ]


# --- dlemu load -----------------------------------------------------------------------------------


def present_load(document: Document) -> list[Block]:
    """Return how long a model's files take to load: measured, and by datasheets."""
    name = document["model"] or "the files"
    size = f"{format_bytes(document['model_bytes'])} in {counted(document['num_files'], 'file')}"
    about = f", {document['datatype']} ({document['source']})" if document["model"] else ""
    what = Lines([f"{name}: {size}{about}"])
    sheets = table_of(
        document["by_datasheet"],
        Column("drives", _drives),
        Column("read rate", "read_bytes_per_second", format_rate),
        Column("load", "seconds", format_seconds),
        title="by datasheet, without a measurement",
    )
    once = Lines(
        ["A loaded model stays in memory and reads nothing more: only loading uses storage."]
    )
    if "cells" not in document:
        fast, slow = (
            choose(document["by_datasheet"], key=lambda row: row["seconds"])
            for choose in (min, max)
        )
        line = f"{name} loads in {format_seconds(fast['seconds'])} from {_drives(fast)}"
        if fast != slow:
            line += f", in {format_seconds(slow['seconds'])} from {_drives(slow)}"
        measure = f"dlemu load model={document['model']} target=FOLDER"
        return [Verdict(line), what, sheets, once, CommandLine("measure it", measure)]
    return [
        _load_verdict(name, document),
        what,
        Lines([_cold(document)]),
        table_of(
            document["cells"],
            Column("way", "way"),
            Column("readers", "readers"),
            Column("seconds", "seconds", format_seconds),
            Column("rate", "bytes_per_second", format_rate),
            Column("of the drive", "share_of_drive", ".0%"),
            Column("CPU-s per GB", lambda c: 1e9 * c["cpu_seconds"] / c["num_bytes"], ".2f"),
        ),
        *([Lines(changed)] if (changed := _changed_rates(document["cells"])) else []),
        Fold("datasheets", [sheets, once]),
    ]


def _changed_rates(cells: Sequence[Document]) -> list[str]:
    """Return how the drive's rate changed, a line for each cell in which it did."""
    return [
        f"{cell['way']}, {counted(cell['readers'], 'reader')}: {line}"
        for cell in cells
        for line in words.changed_rate(cell)
    ]


def _drives(row: Document) -> str:
    return f"{row['drives']} x {row['drive']}"


def _load_verdict(name: str, document: Document) -> Verdict:
    best = max(document["cells"], key=lambda cell: cell["bytes_per_second"])
    part = ", computed from a part" if document["scale"] < 1 else ""
    loads = "loads" if document["model"] else "load"
    return Verdict(
        f"{name} {loads} in {format_seconds(best['whole_model_seconds'])}{part}: "
        f"{format_rate(best['bytes_per_second'])} by {best['way']} with "
        f"{counted(best['readers'], 'reader')}, {best['share_of_drive']:.0%} of the "
        f"drive's {format_rate(document['drive_bytes_per_second'])} "
        f"({text_of(document['drive_source'])})"
    )


def _cold(document: Document) -> str:
    part = f" (scale={document['scale']:g} of the model)" if document["scale"] < 1 else ""
    read = f"read: {format_bytes(document['num_bytes'])}{part}"
    if all(cell["pages_before"] == 0 for cell in document["cells"]):
        return f"{read}; cold: 0 of {document['num_pages']} pages in the page cache before each"
    return f"{read}; not shown to be cold: the kernel does not say what the page cache holds"


# --- dlemu steptime -------------------------------------------------------------------------------


def present_steptime(document: Document) -> list[Block]:
    """Return the times of training steps, and what to know of them: `StepTimes.document`."""
    batches = document["batches"]
    own = next(each for each in batches if each["batch"] == document["batch"])

    def bound(batch: Document) -> str:
        return f"{format_seconds(batch['launch_seconds'])}{' (bound)' * batch['launch_bound']}"

    def storage(batch: Document) -> float:
        return float(batch["batch"] / batch["mean_seconds"] * document["sample_bytes"])

    return [
        Verdict(
            f"{document['model']} on {document['environment']['device']}: "
            f"{format_seconds(own['mean_seconds'])} a step of batch {own['batch']}, "
            f"{_per_second(own)} samples/s"
        ),
        table_of(
            batches,
            Column("batch", "batch"),
            Column("mean ms", "mean_seconds", _milliseconds),
            Column("median", "median_seconds", _milliseconds),
            Column("p05", "p05_seconds", _milliseconds, spare=1),
            Column("p95", "p95_seconds", _milliseconds, spare=2),
            Column("stdev", "stdev_seconds", _milliseconds),
            Column("samples/s", _per_second),
            Column("TFLOP/s", _tera, ".3g", spare=3),
            Column("storage at AU 100 %", storage, format_rate),
            Column("launch", bound),
        ),
        Lines(list(_remarks(document, own))),
        CommandLine("use it", document["command"]),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def _tera(batch: Document) -> float | None:
    return batch["flop_per_step"] / batch["mean_seconds"] / 1e12 or None


def _per_second(batch: Document) -> str:
    rate = batch["batch"] / batch["mean_seconds"]
    return f"{rate:,.4g}" if rate < 1000 else f"{rate:,.0f}"


def _remarks(document: Document, own: Document) -> Iterator[str]:
    if fit := document["fit"]:
        yield (
            f"t = {1e3 * fit['a']:.3g} ms + {1e3 * fit['b']:.4g} ms x batch (no mean is further "
            f"from it than {100 * fit['residual']:.1f} %)"
        )
    bound = [str(each["batch"]) for each in document["batches"] if each["launch_bound"]]
    if bound:
        yield (
            f"batch {', '.join(bound)}: launch-bound, the GPU waits for the host; in a loop such a "
            "step takes longer: take dlemu.Meter's times (dlemu help training_loops); "
            "steptime.graph=true has no such limit"
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


def _preprocessing(prepared: Document, accelerators: int, own: Document) -> Iterator[str]:
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


# --- dlemu doctor --wear --------------------------------------------------------------------------


def present_wear(document: Document) -> list[Block]:
    """Return the blocks of `drives`, with the fields of Lifetime, and of `sustained` or None."""
    rate = document["sustained"]
    blocks: list[Block] = [] if rate is None else [_endurance(rate)]
    rows = [] if rate is None else list(_rates(rate))
    if len(rows) > 1 or any(pace != "unknown" for *_, pace in rows):
        title = "makers mean either by a petabyte" if len(rows) > 1 else ""
        blocks.append(Table(("a petabyte is", "rate", "drive writes per day"), rows, title))
    for drive in document["drives"]:
        about = [drive["model"], format_drive_bytes(drive["capacity_bytes"])]
        head = f"{drive['name']} ({', '.join(filter(None, about))})"
        blocks.append(Lines([head]) if blocks else Verdict(head))
        blocks.append(Facts(list(_life(drive))))
    return blocks


def _endurance(rate: Document) -> Verdict:
    size, unit = rate["endurance_bytes"] / 1e15, "PB"
    if is_binary(rate["endurance_bytes"]):
        size, unit = rate["endurance_bytes"] / 2**50, "PiB"
    return Verdict(
        f"an endurance of {size:g} {unit} sustains {format_rate(rate['bytes_per_second'])} for "
        f"{rate['years']:g} years, written {100 * rate['duty']:g}% of the time"
    )


def _rates(rate: Document) -> Iterator[tuple[str, str, str]]:
    """Yield the rate in decimal and in binary units; a binary endurance has one meaning."""
    units = [("10^15 bytes", ""), ("2^50 bytes", "binary_")]
    if is_binary(rate["endurance_bytes"]):
        del units[0]
    for meaning, kind in units:
        pace = rate[f"{kind}drive_writes_per_day"]
        shown = format_rate(rate[f"{kind}bytes_per_second"])
        yield meaning, shown, "unknown" if pace is None else f"{pace:.2f}"


def _life(drive: Document) -> Iterator[tuple[str, str]]:
    """Yield what a drive has counted over its life, or why nothing is known."""
    if drive["host_bytes_written"] is None:
        if drive["block_bytes_written"] is not None:
            yield "since the host started", f"{format_bytes(drive['block_bytes_written'])} written"
        yield "own counters", f"unknown: {text_of(drive['missing']['host_bytes_written'])}"
        return
    yield "written by hosts", format_bytes(drive["host_bytes_written"])
    media, source = drive["media_bytes_written"], drive["media_source"]
    known = media is not None
    yield "written to flash", f"{format_bytes(media)} ({source})" if known else "unknown"
    missing = drive["missing"].get("media_bytes_written") or ""
    yield "WAF", f"{drive['waf']:.2f}" if known else f"unknown: {text_of(missing)}"
    yield "life used", f"{drive['percentage_used']}%"
    yield "spare blocks left", f"{drive['available_spare']}%"
    yield "powered on", counted(drive["power_on_hours"] or 0, "hour")
    yield "media errors", f"{drive['media_errors'] or 0:,}"


# --- dlemu help workloads -------------------------------------------------------------------------


def present_workloads(rows: Sequence[Document]) -> list[Block]:
    """Return what each published workload reads; the rows of `sizing.formula`."""

    def of_format(row: Document) -> str:
        return str(row["format"]) + (", random" if row["access"] == "random" else "")

    def step(row: Document) -> str:
        return format_seconds(row["step_seconds"]) + (", measured" if row["step_measured"] else "")

    def reads(number: float) -> str:
        return f"{number:.3g}" if number < 100 else f"{number:,.0f}"

    table = table_of(
        rows,
        Column("workload", "workload"),
        Column("sample", "sample_bytes", format_bytes, spare=4),
        Column("format", of_format, text=True, spare=1),
        Column("batch", "batch_size", ",", spare=2),
        Column("step", step, spare=3),
        Column("read by one accelerator", "bytes_per_second", format_rate),
        Column("reads/s", "reads_per_second", reads, spare=6),
        Column("threshold", "threshold", ".0%", spare=5),
        Column("limited by storage?", lambda row: sentence(row["limited_by_storage"]), text=True),
    )
    real = [
        f"{row['workload']} {each['real_accelerators']:.3g}"
        for row in rows
        if (each := row["real_h100s"]) is not None
    ]
    lines = [
        "feeds, needs: at an AU of 100 %; dlemu predict counts at the threshold, so it says more"
    ]
    if real:
        lines.append(
            "of H100s as measured with PyTorch, bf16, one D7-PS1010 feeds at an AU of 100 %: "
            + ", ".join(real)
        )
    return [table, Lines(lines)]
