"""Predicts how many accelerators a storage feeds: the formula's answer, always with its range."""

from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path

from dlemu.errors import WorkloadError
from dlemu.results.folders import make
from dlemu.results.records import write_json
from dlemu.sizing import formula
from dlemu.sizing.calibration_file import Calibration, CalibrationFile
from dlemu.sizing.formula import Prediction, PredictionInput
from dlemu.storage.regular import read_regular
from dlemu.units import counted, format_rate, html_table
from dlemu.workload.model import Drive, Workload

_OF_A_HOST = 8
"""Accelerators of a pass, where predict.minutes is asked for without predict.accelerators."""

_PUBLISHED = {
    "drive": "a figure published for this is the drive's: the host moves more",
    "host": "a figure published for this is the host's, not the drive's: the drives give more than "
    "DLIO moves with these cores",
    "either": "a figure published for this may be the host's and not the drive's: DLIO may need "
    "all of these cores",
}


@dataclass(frozen=True, kw_only=True)
class Predicted(Prediction):
    """The prediction for one workload and drive.

    `str` gives the text that `dlemu predict` shows; a notebook shows a table.
    """

    workload: Workload
    drive: Drive
    """One of the `workload.drives` drives; without a rate where only the server's is known."""

    @property
    def pass_bytes(self) -> float | None:
        """Bytes that the accelerators read in one pass; None: predict.minutes is not asked for."""
        return _pass_bytes(self.workload) if self.workload.predict.minutes else None

    @property
    def minutes(self) -> float | None:
        """Minutes of one pass; None: predict.minutes is not asked for."""
        return self._minutes(self.read_bytes_per_second)

    def _minutes(self, bytes_per_second: float) -> float | None:
        return None if self.pass_bytes is None else self.pass_bytes / bytes_per_second / 60

    @property
    def fields(self) -> dict[str, object]:
        """The content of predict.json."""
        found = {
            "workload": self.workload.name,
            "drive": self.drive.name,
            "drives": self.workload.drives,
            **{field.name: getattr(self, field.name) for field in dataclass_fields(Prediction)},
        }
        if self.workload.predict.minutes:
            found |= {
                "pass_bytes": self.pass_bytes,
                "minutes": self.minutes,
                "minutes_low": self._minutes(self.read_high),
                "minutes_high": self._minutes(self.read_low),
            }
        return found

    def __str__(self) -> str:
        """Return number, range, AU, rate and limit, and what they rest on."""
        head = f"{self.workload.name} on {self._storage()}"
        rows = [f"{name}{value:>{35 - len(name)}}   {band}" for name, value, band in self._rows()]
        lines = [f"{head}, {self._source()}", "", *rows, "", f"limit: {self.limit}"]
        lines += self._compared()
        if self.at_least:
            lines.append(
                "at least: what was measured was held back by something other than the storage, so "
                "there may be more"
            )
        if self.published_figure is not None:
            lines.append(_PUBLISHED[self.published_figure])
        if self.extrapolated:
            lines.append(
                "extrapolated: the barrier was never compared above "
                f"{formula.EXTRAPOLATED_ABOVE} accelerators"
            )
        if not self.calibrated and self.published_figure is None:
            lines.append("dlemu calibrate measures the host, which is taken as unlimited here")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the prediction as a table, for notebooks."""
        (_, *head), *rows = self._rows()
        return html_table([(self.workload.name, *head), *rows, ("limit", self.limit, "")])

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return name, predicted value and range of each figure, below a head."""
        at_least = "at least " if self.at_least else ""
        band = f"{self.low} or more" if self.high is None else f"{self.low} to {self.high}"
        if self.workload.predict.accelerators is not None:
            most = ("most that pass", f"{at_least}{self.real_accelerators:.1f}", band)
        else:
            # N* only where the storage is the limit.
            real = f"   (N* {self.real_accelerators:.1f})" if self.limit == "storage" else ""
            most = ("accelerators", f"{at_least}{self.num_accelerators}", f"{band}{real}")
        if self.extrapolated:
            most = (*most[:2], f"{most[2]} (extrapolated)")
        running = max(1, self.num_accelerators)
        rows = [
            ("", "predicted", "range"),
            most,
            (
                f"AU at {running} (%)",
                f"{self.au_percentage:.2f}",
                f"{self.au_low:.2f} to {self.au_high:.2f}   "
                f"(threshold {100 * self.workload.metric.au:g})",
            ),
            (
                f"read at {running}",
                format_rate(self.read_bytes_per_second),
                f"{format_rate(self.read_low)} to {format_rate(self.read_high)}",
            ),
        ]
        if self.pass_bytes is not None:
            low, high = self._minutes(self.read_high), self._minutes(self.read_low)
            read = f"{self.pass_bytes / 1e9:.4g} GB, read once"
            rows.append(
                ("minutes of a pass", f"{self.minutes:.2f}", f"{low:.2f} to {high:.2f}   ({read})")
            )
        return rows

    def _storage(self) -> str:
        workload, rate = self.workload, self.workload.server.read_bandwidth
        known = self.drive.read_bandwidth is not None
        drives = [f"{workload.drives} x {self.drive.name}"] if known else []
        server = [] if rate is None else [f"a server of {format_rate(rate)}"]
        return " behind ".join([*drives, *server])

    def _compared(self) -> list[str]:
        """Return what each resource feeds, if a server or the hosts' links are among them."""
        workload = self.workload
        gbps = workload.client.nic_gbps
        if gbps is None and workload.server.read_bandwidth is None:
            return []
        fed = ", ".join(f"{name} {number:.1f}" for name, number in sorted(self.feeds.items()))
        lines = [f"accelerators that each feeds: {fed}"]
        if gbps is not None:
            links = f"{counted(workload.num_hosts, 'host')} x {gbps:g} Gb/s"
            asked = format_rate(workload.demand)
            lines.append(
                f"one accelerator asks for {asked}, {800 * workload.demand / (gbps * 1e9):.0f}% of "
                f"a host's links ({links})"
            )
        return lines

    def _source(self) -> str:
        """Return what the prediction rests on."""
        if self.drive.read_bandwidth is None:
            host = "the host taken as unlimited" if not self.calibrated else "host calibrated"
            return f"by the server's rate, {host}"
        if self.published_figure is not None:
            cpus = self.workload.predict.host_cpus
            return f"drive by its datasheet, hosts of {cpus} cores that run DLIO"
        if not self.calibrated:
            return "from the datasheet alone, the host taken as unlimited"
        if self.workload.drive is not None:
            return "host calibrated, drive by its datasheet"
        return "host and drive calibrated"


def predict(workload: Workload) -> Predicted:
    """Predict the most accelerators that a storage feeds, with the range of the error.

        workload = dlemu.load_workload("unet3d_h100", {"drive": "d7_ps1010", "drives": 4})
        print(dlemu.predict(workload).num_accelerators)

    The rates come from the keys drive, drives and server.read_bandwidth, or from
    predict.calibration, a file of `dlemu calibrate`. No storage is read. Where output.folder is
    set, predict.json is written there.

    Raises:
        WorkloadError: no drive is given, the calibration does not fit, a number is not above 0, or
            predict.minutes is asked for without a number of files.
        RunError: predict.json cannot be written.
    """
    if workload.predict.minutes:
        _pass_bytes(workload)
        if workload.predict.accelerators is None:
            workload = workload.with_keys({"predict.accelerators": _OF_A_HOST})
    drive, calibration = needed_rates(workload)
    prediction = formula.predict(PredictionInput.of(workload, drive), calibration)
    predicted = Predicted(**vars(prediction), workload=workload, drive=drive)
    if workload.output.folder is not None:
        with make(Path(workload.output.folder)) as folder:
            write_json(folder / "predict.json", predicted.fields)
    return predicted


def needed_rates(workload: Workload) -> tuple[Drive, Calibration | None]:
    """Return the drive to predict for, and the host's calibration; None: not given.

    Raises:
        WorkloadError: no drive is given, or the calibration does not fit.
    """
    drive, calibration = known_rates(workload)
    if drive is None:
        ways = "name a datasheet (drive=d7_ps1010), give its rate (drive.read_bandwidth=7GB), or"
        if calibration is None:
            raise WorkloadError(
                f"drive is not set; {ways} a calibration that read the drive "
                "(predict.calibration=FILE)"
            )
        raise WorkloadError(
            f"drive is not set, and predict.calibration {workload.predict.calibration} read none; "
            f"{ways} calibrate again with dataset.data_folder"
        )
    return drive, calibration


def _pass_bytes(workload: Workload) -> float:
    """Return the bytes of one pass over the dataset, or over train.total_training_steps of it.

    Raises:
        WorkloadError: the number of files is not known.
    """
    dataset, most = workload.dataset, workload.train.total_training_steps
    if dataset.num_files_train == "auto":
        raise WorkloadError(
            "predict.minutes needs the size of the dataset, got dataset.num_files_train=auto; "
            "give a number of files, as dlemu datasize tells it"
        )
    whole = dataset.num_files_train * dataset.num_samples_per_file * dataset.mean_bytes
    if most == -1:
        return whole
    accelerators = workload.predict.accelerators or _OF_A_HOST
    return min(whole, most * accelerators * workload.bytes_per_step)


def known_rates(workload: Workload) -> tuple[Drive | None, Calibration | None]:
    """Return the drive to predict for and the host's calibration; None: not given.

    Where only the server's rate is given, the drive has none.
    """
    calibration, drive = _calibration(workload), workload.drive
    if drive is None and workload.server.read_bandwidth is not None:
        drive = Drive(name="server")
    if calibration is None:
        return drive, None
    if workload.drive is None:
        rate = calibration.drive_read_bytes_per_second
        if rate is None:
            return drive, calibration
        # Not validated: a slow drive's rate looks like a rate whose unit was forgotten.
        name, rate = "calibrated drive", max(1, round(rate))
        return Drive.model_construct(name=name, read_bandwidth=rate), calibration
    # A drive that the user names is another one than was calibrated, on the same host.
    other = {"drive_read_bytes_per_second": None, "drive_limit": None}
    return workload.drive, calibration.model_copy(update=other)


def _calibration(workload: Workload) -> Calibration | None:
    """Return the calibration of exactly this job; None: predict.calibration is not set."""
    if workload.predict.calibration is None:
        return None
    path = Path(workload.predict.calibration)
    try:
        text = read_regular(path, error=WorkloadError)
    except OSError as error:
        raise WorkloadError(
            f"predict.calibration {path} cannot be read ({error.strerror}); "
            "write it with dlemu calibrate"
        ) from None
    found = CalibrationFile.parse(text, path=str(path)).find(
        workload=workload.name,
        loader=workload.reader.data_loader,
        odirect=workload.reader.odirect is True,
    )
    for key, measured, asked in (
        ("dataset.record_length_bytes", found.sample_bytes, workload.dataset.mean_bytes),
        ("reader.read_threads", found.read_threads, workload.reader.read_threads),
    ):
        if measured not in (None, asked):
            raise WorkloadError(
                f"predict.calibration {path} was measured with {key}={measured:g}, not {asked:g}; "
                "measure this job with dlemu calibrate"
            )
    return found
