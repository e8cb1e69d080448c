"""Predicts how many accelerators a storage feeds: the formula's answer, always with its range."""

from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path

from dlemu.config.compose import named
from dlemu.config.model import Drive, Workload
from dlemu.config.published import word
from dlemu.errors import WorkloadError
from dlemu.judge.folders import make
from dlemu.judge.records import write_json
from dlemu.sizing import formula
from dlemu.sizing.calibration_file import Calibration
from dlemu.sizing.formula import Prediction, PredictionInput, Published, Reads
from dlemu.storage.regular import read_regular
from dlemu.units import each_once

_OF_A_HOST = 8
"""Accelerators of a pass, where predict.minutes is asked for without predict.accelerators."""


@dataclass(frozen=True, kw_only=True)
class Predicted(Prediction):
    """The prediction for one workload and drive; `dlemu.show` makes text and a table of it."""

    workload: Workload
    drive: Drive
    """One of the `workload.drives` drives; without a rate where only the server's is known."""
    published: Published | None = None
    """What a published DLIO run would show; None: the cores of a host are not known."""

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
    def document(self) -> dict[str, object]:
        """The content of predict.json."""
        workload, reads = self.workload, Reads.of(self.workload)
        found = {
            "kind": "prediction",
            "workload": workload.name,
            "threshold": 100 * workload.metric.au,
            "demand_bytes_per_second": reads.num_bytes / workload.train.computation_time.mean,
            "bytes_of_a_read": reads.size,
            "bound_by_iops": self.drive.read_bandwidth is not None
            and reads.rate_of(self.drive) < self.drive.read_rate,
            "basis": self._basis,
            "num_hosts": workload.num_hosts,
            "link_gbps": workload.client.nic_gbps,
            "server_bytes_per_second": workload.server.read_bandwidth,
            "compared_accelerators": formula.EXTRAPOLATED_ABOVE,
            "asked_accelerators": workload.predict.accelerators,
            "drive": self.drive.name,
            "drives": workload.drives,
            **{field.name: getattr(self, field.name) for field in dataclass_fields(Prediction)},
            "published": None if self.published is None else vars(self.published),
        }
        if workload.predict.minutes:
            found |= {
                "pass_bytes": self.pass_bytes,
                "minutes": self.minutes,
                "minutes_low": self._minutes(self.read_high),
                "minutes_high": self._minutes(self.read_low),
            }
        return found

    @property
    def _basis(self) -> str:
        """What the prediction rests on: "server", "datasheet", "host" or "both"."""
        if self.drive.read_bandwidth is None:
            return "server"
        if not self.calibrated:
            return "datasheet"
        return "host" if self.workload.drive is not None else "both"


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
    job = PredictionInput.of(workload, drive)
    prediction, figure = formula.predict(job, calibration), _published(workload, job, calibration)
    predicted = Predicted(**vars(prediction), workload=workload, drive=drive, published=figure)
    keep(workload, predicted.document)
    return predicted


def keep(workload: Workload, document: dict[str, object]) -> None:
    """Write predict.json, where output.folder is set.

    Raises:
        RunError: it cannot be written.
    """
    if workload.output.folder is not None:
        with make(Path(workload.output.folder)) as folder:
            write_json(folder / "predict.json", document)


def _published(
    workload: Workload, job: PredictionInput, calibration: Calibration | None
) -> Published | None:
    """Return what a published run would show, where the cores of its hosts are known.

    Raises:
        WorkloadError: predict.host_cpus is given, and nobody published such a dataset.
    """
    asked = workload.predict.host_cpus
    cpus = asked or (None if calibration is None else calibration.host_cpus)
    if cpus is None:
        return None
    if (host := formula.host_with_dlio(workload, cpus)) is not None:
        return formula.published(job, host, cpus)
    if asked is None:
        return None
    known = each_once(name.partition(",")[0] for name in formula.DLIO_CORE_SECONDS)
    raise WorkloadError(
        f"predict.host_cpus={asked} asks for a published figure, and none is known for "
        f"dataset.format={workload.dataset.format}, only for {known}; leave it out"
    )


def needed_rates(workload: Workload) -> tuple[Drive, Calibration | None]:
    """Return the drive to predict for, and the host's calibration; None: not given.

    Raises:
        WorkloadError: no drive is given, or the calibration does not fit.
    """
    drive, calibration = known_rates(workload)
    if drive is None:
        file = workload.predict.calibration
        none = "" if file is None else f", and predict.calibration {file} read none"
        last = "a calibration that read the drive (predict.calibration=FILE)"
        raise WorkloadError(
            f"drive is not set{none}; name a datasheet (drive=NAME, one of "
            f"{', '.join(named('drive'))}), give its rate (drive.read_bandwidth=7GB), or "
            f"{last if file is None else 'calibrate again with dataset.data_folder'}"
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
    steps = dataset.num_files_train * dataset.num_samples_per_file / workload.reader.batch_size
    if most != -1:
        steps = min(steps, most * (workload.predict.accelerators or _OF_A_HOST))
    return steps * Reads.of(workload).num_bytes


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
    found, reader = Calibration.parse(text, path=str(path)), workload.reader
    for key, measured, asked in (
        ("workload", found.workload, workload.name),
        ("reader.data_loader", found.loader, reader.data_loader),
        ("reader.odirect", found.odirect, reader.odirect is True),
        ("dataset.record_length_bytes", found.sample_bytes, workload.dataset.mean_bytes),
        ("reader.read_threads", found.read_threads, reader.read_threads),
    ):
        if measured not in (None, asked):
            raise WorkloadError(
                f"predict.calibration {path} was measured with {word(key, measured)}, here it is "
                f"{word(key, asked)}; measure this job with dlemu calibrate"
            )
    return found
