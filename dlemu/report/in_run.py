"""What else a run's document has: its cache, checkpoints, hosts, the path of its bytes, wear."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from dlemu.config.types import facts_of_loader
from dlemu.host.wear import WearFields, has_writes
from dlemu.judge.summary import place_of
from dlemu.report.blocks import (
    Axis,
    Block,
    Column,
    Document,
    Lines,
    Look,
    Plot,
    Table,
    axis_from_zero,
    axis_of_numbers,
    dotted,
    table_of,
)
from dlemu.report.words import sentence, text_of
from dlemu.report.words.caches import origin_at
from dlemu.report.words.limits import latencies
from dlemu.terminal import is_verbose
from dlemu.units import counted, format_bytes, format_rate, format_seconds

_HALF_FULL = 0.5
"""The report shows links that were used to at least this share of their rate."""
_CARRIED = 0.1
"""Share of the bytes read that a host's network must have received to be worth a line."""
_MOST_NAMED = 4
"""Hosts that are named one by one."""
_MIN_WAIT_SECONDS = 0.01
"""Shorter waits for a checkpoint are not shown."""
_OWN = 1.5
"""More bytes of the drive than this for a byte of the files were not written for these files."""
_PATHS = {
    "p2pdma": "by P2PDMA straight to the GPU",
    "nvidia_fs": "by nvidia-fs straight to the GPU",
    "compat": "by cuFile's compat mode, through the host: not GPUDirect Storage",
    "host": "through the host's memory",
}


def host_lines(document: Document) -> Iterator[str]:
    """Yield the path of the bytes, the storage, the network, the hosts' start, requests, wear."""
    measured = document.get("measured") or {}
    if facts_of_loader(document.get("data_loader") or "").by_dali and "path_bytes" in measured:
        yield _path(measured["path"], measured["path_bytes"])
    if "status" not in document and measured:
        yield _storage(measured)
    yield from _network(place_of(document), measured.get("hosts") or ())
    yield from _start(measured.get("hosts") or ())
    if requests := measured.get("objects"):
        yield _objects(requests)
    if (wear := measured.get("wear")) and belongs_to(wear):
        yield wear_line(wear)


def _path(mode: str, taken: Document) -> str:
    """Return the paths that the bytes took to memory, for the loader that may use cuFile."""
    parts = [
        f"{format_bytes(taken[name])} {how}" for name, how in _PATHS.items() if taken.get(name)
    ]
    guess = ", shares estimated from cuFile's operations" if taken.get("estimated") else ""
    return f"path: {mode} ({'; '.join(parts)}{guess})"


def _storage(measured: Document) -> str:
    """Return what the storage gave to a training loop, which has no limit that would say it."""
    given, hosts = measured["storage_read_bytes"], measured["hosts"]
    if given is None:
        return "storage: no counter tells what it gave"
    seconds = max(host["seconds"] for host in hosts)
    parts = [
        f"storage: gave {format_bytes(given)} while epochs ran, {format_rate(given / seconds)}"
    ]
    parts += [
        f"{host['device']} of host {host['host']} was busy {100 * host['device_busy_share']:.0f}% "
        "of the time"
        for host in hosts[:_MOST_NAMED]
        if host["device"] is not None
    ]
    if (share := measured["page_cache_share"]) is not None:
        parts.append(f"{100 * share:.0f}% of the bytes came from memory")
    return "; ".join(parts)


def _network(place: Document, hosts: Sequence[Document]) -> Iterator[str]:
    """Yield what the network of the host with the fullest link did, where that matters.

    It does if a link was half full, or if the data came over it: no drive is seen under the data
    folder, and the interfaces received what was read. They do not where the server is on this very
    host, for example: its bytes go over `lo`, which is not counted.
    """
    ways, found = ("received", "sent"), []
    for host in hosts:
        if use := host.get("network"):
            full = max(use[f"{way}_share"] or 0.0 for way in ways)
            most = max(use[f"{way}_bytes_per_second"] for way in ways)
            came = use["received_bytes_per_second"] >= _CARRIED * host["read_bytes_per_second"]
            local = host.get("device") or place.get("in_memory")
            if full >= _HALF_FULL or (came and not local):
                found.append((full, most, host["host"], use))
    if not found:
        return
    full, _, name, use = max(found, key=lambda each: each[:2])
    rates = " and ".join(f"{way} {format_rate(use[f'{way}_bytes_per_second'])}" for way in ways)
    link = f"the rate of {use['nic']} is unknown; set client.nic_gbps=..."
    if use["gbps"] is not None:
        link = f"{use['nic']}: {100 * full:.0f}% of {use['gbps']:g} Gb/s"
    yield f"network: host {name} {rates}; {link}"


def _start(hosts: Sequence[Document]) -> Iterator[str]:
    """Yield how long each of several hosts took from its launch to the first step."""
    each = [(host.get("start_seconds"), host["host"]) for host in hosts]
    known = sorted((seconds, name) for seconds, name in each if seconds is not None)
    if len(known) < 2:
        return
    until = "from launch to the first step"
    if len(known) > _MOST_NAMED:
        (least, _), (most, name) = known[0], known[-1]
        yield f"start: {least:.1f} to {most:.1f} s {until}, the longest on host {name}"
    else:
        named = ", ".join(f"host {name} {seconds:.1f} s" for seconds, name in known)
        yield f"start: {named} {until}"


def _objects(found: Document) -> str:
    """Return the requests to a bucket in one line."""
    parts = [latencies(found["gets"], found["p50_seconds"], found["p99_seconds"])]
    slow = f" ({found['slow_downs']:,} after 503)" if found["slow_downs"] else ""
    parts.append(f"{found['retries']:,} sent again{slow}")
    share = found["received_bytes"] / max(1, found["needed_bytes"])
    parts.append(
        f"{format_bytes(found['received_bytes'])} received for "
        f"{format_bytes(found['needed_bytes'])} needed ({share:.3f})"
    )
    if (cpu := found["cpu_seconds_per_GB"]) is not None:
        parts.append(f"{cpu:.2f} CPU-s/GB")
    return f"objects: {'; '.join(parts)}"


def checkpoint_lines(fields: Document | None) -> Iterator[str]:
    """Yield what checkpoints cost; of a run that did not end only that is known."""
    if fields is None:
        return
    if "number" not in fields:
        yield f"checkpoints: none was due, {sentence(fields['due'])}"
        return
    ended = "num_bytes" in fields
    if ended:
        yield _written(fields)
    yield (
        f"AU including all stalls {fields['au_with_stalls_percentage']:.2f}%: accelerators waited "
        f"{format_seconds(fields['total_stall_seconds'])} for "
        f"{counted(fields['number'], 'checkpoint')}"
    )
    during, otherwise = fields["au_while_writing_percentage"], fields["au_otherwise_percentage"]
    if during is not None:
        others = "there are no others" if otherwise is None else f"{otherwise:.2f}% in the others"
        yield (
            f"AU while a checkpoint was written {during:.2f}% "
            f"({counted(fields['steps_while_writing'], 'step')}), {others}"
        )
    read, written = fields.get("device_read_bytes"), fields.get("device_written_bytes")
    if ended and read is not None and written is not None and read + written:
        yield (
            f"checkpoint drive {', '.join(fields['devices'])}: {read / 1e6:,.0f} MB read and "
            f"{written / 1e6:,.0f} MB written in the epochs, by any process, "
            f"{100 * written / (read + written):.0f}% of them writes"
        )


def _written(fields: Document) -> str:
    """Return how many there were, how large and how fast."""
    seconds, size = fields["duration_seconds"], fields["num_bytes"]
    mean = fmean(seconds)
    each = format_seconds(mean)
    if len(seconds) > 1:
        each += f" ({format_seconds(min(seconds))} to {format_seconds(max(seconds))})"
    line = (
        f"checkpoints: {fields['number']}, {sentence(fields['due'])}, "
        f"{'asynchronous' if fields['asynchronous'] else 'synchronous'}; {size:,} bytes each, "
        f"written in {each}, {format_rate(size / max(mean, 1e-9))}"
    )
    if (waited := sum(fields["waited_seconds"])) >= _MIN_WAIT_SECONDS:
        line += f"; {format_seconds(waited)} of waiting for the one before"
    if (remaining := fields["remaining_seconds"]) >= _MIN_WAIT_SECONDS:
        line += f"; the last one was written {format_seconds(remaining)} after the last step"
    return line


def checkpoint_plots(document: Document) -> Iterator[Plot]:
    """Yield the plot of a run's checkpoints; nothing where it took none."""
    fields = document.get("checkpoints") or {}
    if fields.get("stall_seconds"):
        found = {"until it was written": fields["duration_seconds"]}
        found["accelerators waited"] = fields["stall_seconds"]
        yield plot_seconds("each checkpoint", found)


def plot_seconds(title: str, found: Mapping[str, Sequence[float]]) -> Plot:
    """Return a plot of seconds over the number of the checkpoint."""
    looks: tuple[Look, ...] = ("first", "second")
    series = [
        dotted(name, look, range(1, len(seconds) + 1), seconds, joined=False)
        for look, (name, seconds) in zip(looks, found.items(), strict=True)
        if seconds
    ]
    x = axis_of_numbers("checkpoint", 1, max(map(len, found.values())))
    return Plot(title, x, axis_from_zero("seconds", series), series)


# --- wear -----------------------------------------------------------------------------------------


def belongs_to(wear: WearFields) -> bool:
    """Return whether a result's report shows its wear: of one that wrote files; with -v of all."""
    return has_writes(wear) and (wear["file_bytes_written"] != 0 or is_verbose())


def wear_line(wear: WearFields) -> str:
    """Return what was written to the drives, and what that does to them, as one line.

    What is not known is said once, with its reason.
    """
    if not wear["drives"] or wear["block_bytes_written"] is None:
        return f"wear: not known; {text_of(wear['missing']['block_bytes_written'])}"
    if wear["file_bytes_written"] == 0:
        return f"wear: {_written_to(wear)}, none of it into files of this command"
    parts = [_written_to(wear), *_life(wear)]
    parts += [] if wear["waf"] is not None else [f"no WAF: {text_of(wear['missing']['waf'])}"]
    return f"wear: {'; '.join(parts)}"


def _written_to(wear: WearFields) -> str:
    """Return "12.0 GiB written to nvme0n1 (1.01 x the files), 12.3 GiB to its flash, WAF 1.02"."""
    names = ", ".join(drive["name"] for drive in wear["drives"])
    block, host, media = (
        wear["block_bytes_written"],
        wear["host_bytes_written"],
        wear["media_bytes_written"],
    )
    assert block is not None
    # The drive's own count stands first: it has what other hosts wrote to it, too.
    text = f"{format_bytes(block if host is None else host)} written to {names}"
    amplification = wear["file_system_amplification"]
    if amplification is not None:
        others = "; the writes of other programs count" if amplification > _OWN else ""
        text += f" ({amplification:.2f} x the files' bytes{others})"
    if media is not None and wear["waf"] is not None:
        return f"{text}, {format_bytes(media)} to flash, WAF {wear['waf']:.2f}"
    return text


def _life(wear: WearFields) -> list[str]:
    """Return the share of the life that is used, the pace, and the years that are left."""
    parts = []
    if wear["percentage_used"] is not None:
        parts.append(f"{wear['percentage_used']}% of the life used")
    if wear["drive_writes_per_day"] is None:
        return parts
    pace = f"at this pace {wear['drive_writes_per_day']:.3g} drive writes a day"
    if wear["years_left"] is not None:
        new = " left" if wear["percentage_used"] is not None else " for a new drive"
        pace += f", {wear['years_left']:.3g} years{new}"
    return [*parts, pace]


# --- the cache ------------------------------------------------------------------------------------


_MOST_ROWS = 10
"""Epochs of the table; of more, the first ones and the last are shown."""
_HITS = 0.01
"""An epoch with at least this share of hits is a warm one."""
_APART = 0.1
"""Hit shares of a mounted cache's epochs that differ by more are cold and warm ones."""
_YEAR = 365 * 86_400


def present_cache(document: Document) -> list[Block]:
    """Return the blocks of a run's cache; none where there was none."""
    cached = document.get("measured", {}).get("cache")
    if cached is None:
        return []
    of_epochs = [(name, each) for name, each in cached.items() if name.endswith("_per_epoch")]
    epochs = [
        epoch | {name.removesuffix("_per_epoch"): each[number] for name, each in of_epochs}
        for number, epoch in enumerate(document["per_epoch"])
    ]
    is_watched = "fill_ratio_per_epoch" in cached
    emulated = "" if is_watched else cached["emulated_origin"]
    slow = f" (origin emulated {origin_at(emulated)})" if emulated else ""
    lines = list(_watched_lines(epochs) if is_watched else _lines(cached, epochs, slow))
    if is_watched:
        table = _table(epochs, "mounted cache, watched; bytes in MB")
    else:
        table = _table(list(map(_rates, epochs)), f"cache, MB/s{slow}")
    return [table, *([Lines(lines)] if lines else []), *_plots(epochs, slow)]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _megabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.1f}"


_COLUMNS = (
    Column("epoch", "epoch", str),
    Column("AU (%)", "au_percentage", ".2f"),
    Column("samples/s", "samples_per_second", ".2f", spare=3),
    Column("hits (%)", "hit_share", _percent),
    Column("planned (%)", "planned_hit_share", _percent),
    Column("training", "read_bytes", _megabytes),
    Column("origin", "origin_bytes", _megabytes),
    Column("cache read", "cache_read_bytes", _megabytes),
    Column("written", "cache_write_bytes", _megabytes),
    Column("fill", "fill_ratio", ".2f", spare=2),
    Column("daemon CPU (s)", "daemon_cpu_seconds", ".2f", spare=1),
)


def _table(epochs: Sequence[Document], title: str) -> Table:
    """Return the table over epochs, with the columns that they have."""
    table = table_of(
        epochs if len(epochs) <= _MOST_ROWS else [*epochs[: _MOST_ROWS - 1], epochs[-1]],
        *(column for column in _COLUMNS if column.value in epochs[0]),
        title=title,
    )
    if len(epochs) > _MOST_ROWS:
        *first, last = table.rows
        table = replace(table, rows=[*first, ["…"] * len(table.heads), last])
    return table


def _rates(epoch: Document) -> Document:
    """Return an epoch with bytes per second for its bytes."""
    of = {"origin_bytes": epoch["seconds"], "cache_read_bytes": epoch["seconds"]}
    of["cache_write_bytes"] = _settled(epoch)
    return {**epoch, **{name: epoch[name] / seconds for name, seconds in of.items()}}


def _settled(epoch: Document) -> float:
    """Return the seconds of an epoch until all was written."""
    return float(epoch["seconds"] + epoch["settle_seconds"])


def _lines(cached: Mapping[str, Any], epochs: Sequence[Document], slow: str) -> Iterator[str]:
    """Yield what was copied before the epochs, cold and warm AU, and the wear."""
    if preload := cached["preload"]:
        yield _preload(preload, slow)
    if cached["capacity_bytes"]:
        yield f"{_cold_and_warm(cached, epochs)}{slow}"
    if max(epoch["cache_write_bytes"] for epoch in epochs):
        yield f"{_wear(cached, epochs)}{slow}"


def _preload(preload: Mapping[str, Any], slow: str) -> str:
    """Return the line about the copying before the epochs."""
    num_bytes, seconds = preload["num_bytes"], preload["seconds"]
    if not num_bytes:
        return "preload: nothing to copy, the cache holds what it can"
    share = preload["read_share"]
    by = "origin's reads" if share >= 0.5 else "cache's writes"
    return (
        f"preload: {counted(preload['num_files'], 'file')}, {format_bytes(num_bytes)} in "
        f"{format_seconds(seconds)}: origin and cache writes {format_rate(num_bytes / seconds)}"
        f"{slow}; {100 * max(share, 1 - share):.0f}% of the time went into the {by}"
    )


def _cold_and_warm(cached: Mapping[str, Any], epochs: Sequence[Document]) -> str:
    """Return the AU of cold and of warm epochs, and from when on the cache saves time."""
    au = [epoch["au_percentage"] for epoch in epochs]
    shares = [epoch["hit_share"] or 0.0 for epoch in epochs]
    cold = f"cold AU {au[0]:.0f}%"
    if max(shares) < _HITS:
        if len(au) == 1:
            return f"{cold}; more epochs (train.epochs) show warm ones"
        return f"{cold}, hits are too rare for the cache to save time"
    is_cold = shares[0] < _HITS and len(au) > 1
    parts = [cold] if is_cold else []
    parts.append(f"warm AU {fmean(au[1:] if is_cold else au):.0f}%")
    if (first := cached["pays_from_epoch"]) is not None:
        later = "" if first <= len(au) else " (assuming later epochs equal the last)"
        parts.append(f"the cache saves time from epoch {first} on{later}")
    elif cached["can_save"]:
        parts.append("the cache saves no time")
    return ", ".join(parts)


def _wear(cached: Mapping[str, Any], epochs: Sequence[Document]) -> str:
    """Return what each epoch writes to the cache's drive, and how long that lasts."""
    first, last = (epochs[number]["cache_write_bytes"] for number in (0, -1))
    text = (
        f"cache's wear: {format_bytes(first)} written to the cache in the first epoch, "
        f"{format_bytes(last)} in the last"
    )
    if not last:
        return text
    rate, churn = last / _settled(epochs[-1]), last / cached["capacity_bytes"]
    text += f", {churn:.2f} of its capacity; {format_rate(rate)} if such epochs follow one another"
    if cached["endurance_bytes"]:
        years = cached["endurance_bytes"] / rate / _YEAR
        return f"{text}, for {years:.3g} years of its drives' life (drive.endurance)"
    return f"{text}; drive.endurance=14PB says for how many years"


def _watched_lines(epochs: Sequence[Document]) -> Iterator[str]:
    """Yield the AU of cold and of warm epochs, where they differ."""
    shares = [epoch["hit_share"] for epoch in epochs]
    au = [epoch["au_percentage"] for epoch in epochs]
    if None not in shares and any(b - a > _APART for a, b in pairwise(shares)):
        yield f"cold AU {au[0]:.0f}%, warm AU {fmean(au[1:]):.0f}%"


def _plots(epochs: Sequence[Document], slow: str) -> Iterator[Plot]:
    numbers = [epoch["epoch"] for epoch in epochs]
    x = axis_of_numbers("epoch", numbers[0], numbers[-1])
    au = [epoch["whole_epoch_au_percentage"] for epoch in epochs]
    hits = [epoch["hit_share"] and 100 * epoch["hit_share"] for epoch in epochs]
    shares = [
        dotted("AU with the first step", "first", numbers, au),
        dotted("bytes from the cache", "second", numbers, hits),
    ]
    title = f"hits and AU over the epochs{slow}"
    yield Plot(title, x, Axis("%", 0.0, 100.0), shares)

    def rates(name: str) -> list[float | None]:
        return [epoch[name] and epoch[name] / epoch["seconds"] / 1e6 for epoch in epochs]

    series = [
        dotted("read from the origin", "first", numbers, rates("origin_bytes")),
        dotted("read from the cache", "second", numbers, rates("cache_read_bytes")),
        dotted("written to the cache", "limit", numbers, rates("cache_write_bytes")),
    ]
    y = axis_from_zero("MB/s, over the epoch's time", series)
    yield Plot(f"origin and cache over the epochs{slow}", x, y, series)
