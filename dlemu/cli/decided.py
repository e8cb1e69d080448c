"""What follows from the keys of a job: the lines that -v prints before the work begins."""

from dlemu.units import counted, format_bytes, format_rate, format_seconds
from dlemu.workload.model import Workload
from dlemu.workload.objects import in_bucket


def decided(workload: Workload) -> str:
    """Return what a job reads, how, and what it asks for, one subject a line."""
    return "\n".join(
        f"{name:<12}{text}"
        for name, text in (
            ("overrides", ", ".join(workload.given) or "none"),
            ("dataset", _dataset(workload)),
            ("reading", _reading(workload)),
            ("read-ahead", _ahead(workload)),
            ("training", _training(workload)),
            ("passes at", f"AU {100 * workload.metric.au:g}%, edition {workload.metric.edition}"),
        )
    )


def _dataset(workload: Workload) -> str:
    dataset = workload.dataset
    files = dataset.num_files_train
    number = "as many files as the rule asks for" if files == "auto" else counted(files, "file")
    return (
        f"{number}, {dataset.format}, {counted(dataset.num_samples_per_file, 'sample')} each of "
        f"{format_bytes(dataset.mean_bytes)} in the mean, in {dataset.data_folder or 'no folder'}"
    )


def _reading(workload: Workload) -> str:
    reader = workload.reader
    size = (
        reader.piece_bytes if workload.dataset.num_samples_per_file == 1 else reader.transfer_size
    )
    cache = {True: "O_DIRECT", "auto": "O_DIRECT where it works", False: "the page cache"}
    how = f"reads of {format_bytes(size)}, {reader.io_depth} at a time, through "
    how += cache[reader.odirect]
    if workload.dataset.data_folder and in_bucket(workload.data_folder):
        how = f"{counted(reader.gets_in_flight, 'GET')} in flight each"
    if reader.decode == "library":
        how = f"the format's library, through {cache[reader.odirect]}"
    hand = "each batch put into one array" if workload.hands_over else "bytes dropped"
    why = "" if reader.hand_over else f", the default for {reader.data_loader}"
    return (
        f"loader {reader.data_loader}, {counted(reader.num_streams, 'reader')} an accelerator, "
        f"{how}; {hand}{why}"
    )


def _ahead(workload: Workload) -> str:
    in_flight = format_bytes(workload.batches_in_flight * workload.bytes_per_step)
    return (
        f"batches ahead of training: {workload.reader.batches_ahead}; "
        f"{in_flight} in memory for each accelerator"
    )


def _training(workload: Workload) -> str:
    seconds = workload.train.computation_time.mean
    asks = format_rate(workload.demand) if seconds else "as much as it can get"
    return (
        f"loop {workload.train.loop}, batches of {workload.reader.batch_size}, "
        f"{format_seconds(seconds)} of computing each; an accelerator asks for {asks}"
    )
