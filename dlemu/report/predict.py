"""Predictions of `dlemu predict`, and the calibrations of a host that they may rest on."""

from collections.abc import Sequence

from dlemu.report.blocks import Block, Column, Document, Facts, Lines, Table, Verdict, table_of
from dlemu.report.sizing import REAL, range_of
from dlemu.units import counted, format_rate, format_seconds

_BASIS = {
    "server": "from the server's rate",
    "published": "drive from its datasheet, hosts that run DLIO",
    "datasheet": "from the datasheet alone; the host counts as unlimited",
    "host": "host calibrated, drive from its datasheet",
    "both": "host and drive calibrated",
}
_PUBLISHED = {
    "drive": "a figure published for this is the drive's: the host moves more",
    "host": "a figure published for this is the host's, not the drive's: the drives give more than "
    "DLIO moves with these cores",
    "either": "a figure published for this may be the host's and not the drive's: DLIO may need "
    "all of these cores",
}


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
    drives = [] if found["basis"] == "server" else [f"{found['drives']} x {found['drive']}"]
    rate = found["server_bytes_per_second"]
    storage = " behind ".join([*drives, *([f"a server of {format_rate(rate)}"] if rate else [])])
    of, required = f"of {found['workload']}", f"{found['threshold']:g}%"
    if asked is None:
        number = counted(found["num_accelerators"], "accelerator")
        line = f"{storage} feeds {least}{number} {of} at AU {required} or more"
    else:
        number = counted(running, "accelerator")
        line = f"{number} {of} on {storage}: AU {found['au_percentage']:.2f}%, {required} required"
    return [
        Verdict(f"predicted: {line}; limit: {found['limit']}"),
        Table(("", "predicted", "range"), rows),
        Lines(_notes(found)),
    ]


def _notes(found: Document) -> list[str]:
    """Return what the figures rest on, and what to know about them."""
    lines = []
    if found["asked_accelerators"] is None and found["limit"] == "storage":  # else N* is not its
        lines.append(f"{REAL}; here {found['real_accelerators']:.2f}")
    more = f", {found['host_cpus']} cores each" if found["basis"] == "published" else ""
    if found["basis"] == "server":
        more = "; host calibrated" if found["calibrated"] else "; the host counts as unlimited"
    lines.append(f"basis: {_BASIS[found['basis']]}{more}")
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
    if found["published_figure"] is not None:
        lines.append(_PUBLISHED[found["published_figure"]])
    if found["extrapolated"]:
        most = found["compared_accelerators"]
        lines.append(f"extrapolated: the barrier was never compared above {most} accelerators")
    if not found["calibrated"] and found["published_figure"] is None:
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
                f"(cache.policy={found['policy']}), before an origin of {origin}"
            ]
        ),
    ]


def present_calibration(found: Document, demand: float) -> list[Block]:
    """Return the figures of a calibration; an accelerator reads `demand` bytes/s at AU 100%."""

    def rate_of(name: str, own: Sequence[str]) -> str:
        rate, limit = found[f"{name}_read_bytes_per_second"], found[f"{name}_limit"]
        if rate is None:
            return "not measured"
        least = "" if limit in own else "at least "
        taken = f"as much as {rate / demand:.1f} accelerators read"
        return f"{least}{format_rate(rate)}, {taken}; limit: {limit}"

    overhead = f"{format_seconds(found['overhead'])}; limit: {found['overhead_limit']}"
    facts = [
        ("overhead of a step", overhead),
        ("jitter of a step", format_seconds(found["jitter"])),
        ("this host moves", rate_of("host", ("host cpu", "memory"))),
        ("a drive gives", rate_of("drive", ("storage",))),
    ]
    line = f"calibrated: {found['workload']}, reader.data_loader={found['loader']}"
    return [Verdict(line), Facts(facts)]
