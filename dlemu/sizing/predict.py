"""`dlemu predict`: the closed form's answer with its error band, never a bare number."""

from dataclasses import asdict
from pathlib import Path

from dlemu.errors import WorkloadError
from dlemu.results.folders import make
from dlemu.results.records import write_json
from dlemu.sizing.formula import (
    EXTRAPOLATED_ABOVE,
    Calibration,
    CalibrationFile,
    Prediction,
    PredictionInput,
    predict,
)
from dlemu.storage.regular import read_regular
from dlemu.units import format_rate
from dlemu.workload.model import Drive, Workload


def predict_storage(workload: Workload) -> tuple[Prediction, str]:
    """Return a workload's prediction and its text; writes predict.json where output.folder is set.

    Raises:
        WorkloadError: no drive is named, or the calibration does not fit.
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
    prediction = predict(PredictionInput.of(workload, drive), calibration)
    if workload.output.folder is not None:
        fields = {"workload": workload.name, "drive": drive.name, "drives": workload.drives}
        with make(Path(workload.output.folder)) as folder:
            write_json(folder / "predict.json", fields | asdict(prediction))
    return prediction, render_prediction(workload, drive, prediction)


def render_prediction(workload: Workload, drive: Drive, prediction: Prediction) -> str:
    """Return a prediction as text: number, band, AU, rate, limit, and what it rests on."""
    p = prediction
    mark = " (extrapolated)" if p.extrapolated else ""
    running = max(1, p.num_accelerators)
    lines = [
        f"{workload.name} on {workload.drives} x {drive.name}, {_source(workload, p)}",
        "",
        f"{'':<25}{'predicted':>10}   range",
        _most(workload, p) + mark,
        f"{f'AU at {running} (%)':<25}{p.au_percentage:>10.2f}   "
        f"{p.au_low:.2f} to {p.au_high:.2f}   (threshold {100 * workload.metric.au:g})",
        f"{f'read at {running}':<25}{format_rate(p.read_bytes_per_second):>10}   "
        f"{format_rate(p.read_low)} to {format_rate(p.read_high)}",
        "",
        f"limit: {p.limit}",
    ]
    if p.at_least:
        lines.append(
            "at least: what was measured was held back by something other than the storage, so "
            "there may be more"
        )
    if p.published_figure is not None:
        lines.append(_PUBLISHED[p.published_figure])
    if p.extrapolated:
        lines.append(
            f"extrapolated: the barrier was never compared above {EXTRAPOLATED_ABOVE} accelerators"
        )
    if not p.calibrated and p.published_figure is None:
        lines.append("dlemu calibrate measures the host, which is taken as unlimited here")
    return "\n".join(lines)


_PUBLISHED = {
    "drive": "a figure published for this is the drive's: the host moves more",
    "host": "a figure published for this is the host's, not the drive's: the drives give more than "
    "DLIO moves with these cores",
    "either": "a figure published for this may be the host's and not the drive's: DLIO may need "
    "all of these cores",
}


def _source(workload: Workload, prediction: Prediction) -> str:
    """Return what a prediction rests on."""
    if prediction.published_figure is not None:
        return f"drive by its datasheet, hosts of {workload.predict.host_cpus} cores that run DLIO"
    if not prediction.calibrated:
        return "from the datasheet alone, the host taken as unlimited"
    if workload.drive is not None:
        return "host calibrated, drive by its datasheet"
    return "host and drive calibrated"


def _most(workload: Workload, prediction: Prediction) -> str:
    """Return the row of the most accelerators that pass, N* only where storage is the limit."""
    p = prediction
    band = f"{p.low} or more" if p.high is None else f"{p.low} to {p.high}"
    if workload.predict.accelerators is not None:
        most = f"{'at least ' if p.at_least else ''}{p.real_accelerators:.1f}"
        return f"{'most that pass':<20}{most:>15}   {band}"
    number = f"at least {p.num_accelerators}" if p.at_least else str(p.num_accelerators)
    real = f"   (N* {p.real_accelerators:.1f})" if p.limit == "storage" else ""
    return f"{'accelerators':<22}{number:>13}   {band}{real}"


def known_rates(workload: Workload) -> tuple[Drive | None, Calibration | None]:
    """Return the drive that a prediction is for, and the host's calibration; None: not given.

    A drive that is named is another than the one that was calibrated, on the same host.

    Raises:
        WorkloadError: the calibration does not fit.
    """
    calibration = _calibration(workload)
    if calibration is None:
        return workload.drive, None
    if workload.drive is None:
        return calibration.drive, calibration
    other = {"drive_read_bytes_per_second": None, "drive_limit": None}
    return workload.drive, calibration.model_copy(update=other)


def _calibration(workload: Workload) -> Calibration | None:
    """Return the calibration of this very job, None where predict.calibration names no file."""
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
