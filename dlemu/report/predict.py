"""Predictions of `dlemu predict`, and the calibrations of a host that they may rest on."""

from collections.abc import Callable, Iterator, Sequence

from dlemu.report.blocks import Block, Column, Document, Facts, Lines, Table, Verdict, table_of
from dlemu.report.sizing import REAL, lines_of_real, range_of
from dlemu.report.words import text_of, told
from dlemu.units import counted, format_bytes, format_rate, format_seconds

_BASIS = {
    "server": "from the server's rate",
    "datasheet": "from the datasheet alone; the host counts as unlimited",
    "host": "host calibrated, drive from its datasheet",
    "both": "host and drive calibrated",
}
_FIGURE = {"drive": "the drive", "host": "the host", "either": "the host or the drive"}
"""What limits a published run."""


def present_prediction(found: Document) -> list[Block]:
    """Return number, range, AU, rate and limit, and what they rest on."""
    least = "at least " if found["at_least"] else ""
    asked, running = found["asked_accelerators"], max(1, found["num_accelerators"])
    band = range_of(found) + (" (extrapolated)" if found["extrapolated"] else "")
    low, high = (format_rate(found[name]) for name in ("read_low", "read_high"))
    rows = [
        ("accelerators", f"{least}{found['num_accelerators']}", band)
        if asked is None
        else ("most that pass", f"{least}{found['real_accelerators']:.1f}", band),
        (
            f"AU at {running} (%)",
            f"{found['au_percentage']:.2f}",
            f"{found['au_low']:.2f} to {found['au_high']:.2f}",
        ),
        (f"read at {running}", format_rate(found["read_bytes_per_second"]), f"{low} to {high}"),
    ]
    if "minutes" in found:
        minutes = f"{found['minutes_low']:.2f} to {found['minutes_high']:.2f}"
        rows.append(("minutes of a pass", f"{found['minutes']:.2f}", minutes))
    storage = _storage(found)
    of, required = f"of {found['workload']}", f"{found['threshold']:g}%"
    if asked is None:
        number = counted(found["num_accelerators"], "accelerator")
        line = f"{storage} feeds {least}{number} {of} at AU {required} or more"
    else:
        number = counted(running, "accelerator")
        line = f"{number} {of} on {storage}: AU {found['au_percentage']:.2f}%, {required} required"
    return [
        Verdict(f"predicted: {line}; limit: {found['limit']}"),
        *_published(found),
        Table(("", "predicted", "range"), rows),
        Lines([*_real(found), *_notes(found), *_dataloader(found)]),
        *_needed(found.get("needs")),
    ]


def _needed(needs: Document | None) -> Iterator[Block]:
    """Yield what the number asked about needs, and how many drives give that."""
    if needs is not None:
        yield Lines([_of_needs(needs)])
        yield _drives_that_give(needs)


def present_needs(found: Document) -> list[Block]:
    """Return what accelerators ask of a storage, and how many drives of each kind give that."""
    columns = (f"by the rule (AU {found['threshold']:g}%)", "bare (AU 100%)")
    both, hosts = (found["rule"], found["bare"]), found["num_hosts"]
    size = format_bytes(found["bytes_of_a_read"])
    figures: dict[str, Callable[[Document], str]] = {
        "read": lambda each: format_rate(each["read_bytes_per_second"]),
        f"reads of {size} each second": lambda each: f"{each['reads_per_second']:,.0f}",
        "samples/s": lambda each: f"{each['samples_per_second']:,.0f}",
        f"each of {counted(hosts, 'host')}": lambda e: format_rate(e["host_bytes_per_second"]),
        "its network, with headers": lambda each: f"{each['host_gbps']:.1f} Gb/s",
    }
    rows = [(title, *map(text, both)) for title, text in figures.items()]
    data = found["dataset"]
    lines = [
        f"dataset by the benchmark's rule: {data['num_files']:,} files, "
        f"{format_bytes(data['num_bytes'])} (decided by "
        + ("500 steps an epoch)" if data["decided_by"] == "steps" else f"5 x {data['memory']})")
    ]
    if (saved := found["checkpoint"]) is not None:
        within = "checkpoint.max_seconds" if saved["asked"] else "5% of that time"
        lines.append(
            f"a checkpoint of {format_bytes(saved['num_bytes'])} every "
            f"{format_seconds(saved['every_seconds'])}: "
            f"{format_rate(saved['write_bytes_per_second'])} writes it in {within}"
        )
    return [
        Verdict(f"needed: {_of_needs(found)}"),
        Table(("", *columns), rows),
        _drives_that_give(found),
        Lines([*lines, "drives: by their datasheets; the host counts as unlimited"]),
    ]


def _drives_that_give(needs: Document) -> Table:
    return table_of(
        needs["storages"],
        Column("drive", "drive", text=True),
        Column("reads", "read_bytes_per_second", format_rate),
        Column("drives by the rule", "rule"),
        Column("bare", "bare"),
        Column("to hold the dataset", "to_hold"),
    )


def _of_needs(found: Document) -> str:
    rate = format_rate(found["rule"]["read_bytes_per_second"])
    number = counted(found["num_accelerators"], "accelerator")
    return f"{number} of {found['workload']} ask {rate} at AU {found['threshold']:g}%"


def present_several_needs(document: Document) -> list[Block]:
    """Return what several workloads ask of a storage, one below the other."""
    return [block for each in document["answers"] for block in present_needs(each)]


def _storage(found: Document) -> str:
    """Return "4 x D7-PS1010 behind a server of 20 GB/s"."""
    drives = [] if found["basis"] == "server" else [f"{found['drives']} x {found['drive']}"]
    rate = found["server_bytes_per_second"]
    return " behind ".join([*drives, *([f"a server of {format_rate(rate)}"] if rate else [])])


def _published(found: Document) -> Iterator[Block]:
    """Yield what a published run would show, where the cores of a host are known."""
    if (figure := found["published"]) is not None:
        yield Lines(
            [
                f"a published DLIO run, with {counted(figure['host_cpus'], 'core')} a host, would "
                f"show about {figure['num_accelerators']} ({range_of(figure)}); limit: "
                f"{_FIGURE[figure['figure']]}"
            ]
        )


def present_predictions(document: Document) -> list[Block]:
    """Return predictions of several drives or workloads in one table."""
    found = document["answers"]
    best = max(found, key=lambda each: float(each["real_accelerators"]))
    table = table_of(
        found,
        Column("workload", "workload"),
        Column("storage", _storage, text=True),
        Column("accelerators", "num_accelerators"),
        Column("N*", "real_accelerators", ".2f"),
        Column("range", range_of),
        Column("AU (%)", "au_percentage", ".2f", spare=2),
        Column("read", "read_bytes_per_second", format_rate, spare=1),
        Column("limit", "limit", text=True),
        *([Column("minutes of a pass", "minutes", ".2f")] if "minutes" in best else ()),
        *([Column("published DLIO run", _shown_by_dlio)] if best["published"] else ()),
    )
    number = f"{counted(int(best['real_accelerators']), 'accelerator')} of {best['workload']}"
    notes = dict.fromkeys(note for each in found for note in _notes(each))
    required = f"{best['threshold']:g}%"
    line = f"predicted: {_storage(best)} feeds the most, {number} at AU {required} or more"
    loaders = [f"{each['workload']}: {line}" for each in found for line in _dataloader(each)]
    return [Verdict(line), table, Lines([REAL, *notes, *dict.fromkeys(loaders)])]


def _shown_by_dlio(found: Document) -> str | None:
    figure = found["published"]
    return figure and f"{figure['num_accelerators']}, {range_of(figure)}"


def _real(found: Document) -> list[str]:
    """Return what N* is, where the storage is the limit, so that the figure is its own."""
    if found["asked_accelerators"] is not None or found["limit"] != "storage":
        return []
    return [f"{REAL}; here {found['real_accelerators']:.2f}", *lines_of_real(found)]


def _dataloader(found: Document) -> list[str]:
    """Return what a DataLoader makes whatever the storage, where it is asked for and known."""
    makes = found.get("dataloader")
    return [told("workers_make", **makes)] if makes else []


def _notes(found: Document) -> list[str]:
    """Return what the figures rest on, and what to know about them."""
    more = ""
    if found["basis"] == "server":
        more = "; host calibrated" if found["calibrated"] else "; the host counts as unlimited"
    lines = [f"basis: {_BASIS[found['basis']]}{more}"]
    if old := found.get("calibration"):
        lines.append(f"calibration: {text_of(old)}")
    if "pass_bytes" in found:
        lines.append(f"a pass reads {found['pass_bytes'] / 1e9:.4g} GB once")
    gbps, rate = found["link_gbps"], found["server_bytes_per_second"]
    if gbps is not None or rate is not None:
        feeds = sorted(found["feeds"].items())
        each = ", ".join(f"{name} {number:.1f}" for name, number in feeds)
        lines.append(f"accelerators that each feeds: {each}")
    if gbps is not None:
        demand = found["demand_bytes_per_second"]
        links = f"{counted(found['num_hosts'], 'host')} x {gbps:g} Gb/s"
        lines.append(
            f"one accelerator reads {format_rate(demand)} at AU 100%, "
            f"{800 * demand / (gbps * 1e9):.0f}% of a host's links ({links})"
        )
    if found["at_least"]:
        lines.append(
            "at least: something other than the storage limited the calibration, so there may be "
            "more"
        )
    if found["bound_by_iops"]:
        size = format_bytes(found["bytes_of_a_read"])
        lines.append(f"reads of {size}: the drive's IOPS bound them, not its bandwidth")
    if found["extrapolated"]:
        most = found["compared_accelerators"]
        lines.append(f"extrapolated: the barrier was never compared above {most} accelerators")
    if not found["calibrated"]:
        lines.append("next: dlemu calibrate measures what this host can move")
    return lines


def present_cached(found: Document) -> list[Block]:
    """Return a cold and a warm epoch with a cache before an origin."""

    def supply_limit(epoch: str) -> str:
        limit = found[epoch]["limit"]
        return str(found[f"{epoch}_supply_limit"] if limit == "storage" else limit)

    table = table_of(
        ("cold", "warm"),
        Column("", lambda epoch: f"{epoch} epoch"),
        Column("hits (%)", lambda e: 100 * found["hit_share"] if e == "warm" else 0.0, ".1f"),
        Column("supply", lambda epoch: found[f"{epoch}_supply_bytes_per_second"], format_rate),
        Column("accelerators", lambda epoch: found[epoch]["num_accelerators"]),
        Column("range", lambda epoch: range_of(found[epoch])),
        Column("AU (%)", lambda epoch: found[epoch]["au_percentage"], ".2f"),
        Column("limit", supply_limit, text=True),
    )
    numbers = [found[epoch]["num_accelerators"] for epoch in ("cold", "warm")]
    required = f"{found['warm']['threshold']:g}%"
    share, origin = 100 * found["capacity_share"], format_rate(found["origin_bytes_per_second"])
    return [
        Verdict(
            f"predicted: feeds {numbers[0]} accelerators of {found['workload']} in a cold epoch, "
            f"{numbers[1]} in a warm one, at AU {required} or more"
        ),
        table,
        Lines(
            [
                f"cache: {share:.0f}% of the dataset on {found['drives']} x {found['drive']} "
                f"(cache.policy={found['policy']}), before an origin of {origin}",
                *_dataloader(found["warm"]),
            ]
        ),
    ]


_TRENDS = {
    "fell": "it was faster at first",
    "rose": "it was slower at first; this is the mean",
    "varies": "it went up and down; this is the mean",
}


def present_calibration(found: Document) -> list[Block]:
    """Return the figures of a calibration, also as accelerators that read as much at AU 100%."""

    def rate_of(name: str, own: Sequence[str]) -> str:
        rate, limit = found[f"{name}_read_bytes_per_second"], found[f"{name}_limit"]
        if rate is None:
            return "not measured"
        least = "" if limit in own else "at least "
        demand = found["demand_bytes_per_second"]  # earlier versions did not store it
        taken = f", as much as {rate / demand:.1f} accelerators read" if demand else ""
        trend = found.get("drive_trend", "steady") if name == "drive" else "steady"
        changed = "" if trend == "steady" else f"; not steady: {_TRENDS.get(trend, trend)}"
        return f"{least}{format_rate(rate)}{taken}; limit: {limit}{changed}"

    overhead = f"{format_seconds(found['overhead'])}; limit: {found['overhead_limit']}"
    barrier = found.get("barrier")
    facts = [
        ("overhead of a step", overhead),
        ("jitter of a step", format_seconds(found["jitter"])),
        *([("barrier of two processes", format_seconds(barrier))] if barrier else []),
        ("this host moves", rate_of("host", ("host cpu", "memory"))),
        ("a drive gives", rate_of("drive", ("storage",))),
    ]
    line = f"calibrated: {found['workload']}, reader.data_loader={found['loader']}"
    return [Verdict(line), Facts(facts), Lines(_dataloader(found))]
