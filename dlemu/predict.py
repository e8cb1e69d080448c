"""`dlemu predict`: the closed form's answer with its error band, never a bare number."""

from dataclasses import asdict
from pathlib import Path

from dlemu.errors import WorkloadError
from dlemu.prediction import (
    EXTRAPOLATED_ABOVE,
    Calibration,
    CalibrationFile,
    Prediction,
    PredictionInput,
    predict,
)
from dlemu.records import write_json
from dlemu.units import format_rate
from dlemu.workload import Drive, Workload


def predict_storage(workload: Workload) -> tuple[Prediction, str]:
    """Return a workload's prediction and its text; writes predict.json where output.folder is set.

    Raises:
        WorkloadError: no drive is named, or the calibration does not fit.
    """
    drive, calibration = known_rates(workload)
    if drive is None:
        raise WorkloadError(
            "drive is not set; name a datasheet (drive=d7_ps1010), give its rate "
            "(drive.read_bandwidth=7GB), or a calibration that read the drive "
            "(predict.calibration=FILE)"
        )
    prediction = predict(PredictionInput.of(workload, drive), calibration)
    if workload.output.folder is not None:
        folder = Path(workload.output.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WorkloadError(
                f"output.folder {folder} cannot be written ({error.strerror}); set output.folder"
            ) from None
        fields = {"workload": workload.name, "drive": drive.name, "drives": workload.drives}
        write_json(folder / "predict.json", fields | asdict(prediction))
    return prediction, render_prediction(workload, drive, prediction)


def render_prediction(workload: Workload, drive: Drive, prediction: Prediction) -> str:
    """Return a prediction as text: number, band, AU, rate, limit, and what it rests on."""
    p = prediction
    asked = workload.predict.accelerators is not None
    mark = " (extrapolated)" if p.extrapolated else ""
    source = "from the datasheet alone, the host taken as unlimited"
    if p.calibrated:
        source = "host and drive calibrated"
        if workload.drive is not None:
            source = "host calibrated, drive by its datasheet"
    most = (
        f"most that pass           {p.real_accelerators:>10.1f}   {p.low} to {p.high}"
        if asked
        else f"accelerators             {p.num_accelerators:>10}   {p.low} to {p.high}   "
        f"(N* {p.real_accelerators:.1f})"
    )
    running = max(1, p.num_accelerators)
    lines = [
        f"{workload.name} on {workload.drives} x {drive.name}, {source}",
        "",
        f"{'':<25}{'predicted':>10}   range",
        most + mark,
        f"{f'AU at {running} (%)':<25}{p.au_percentage:>10.2f}   "
        f"{p.au_low:.2f} to {p.au_high:.2f}   (threshold {100 * workload.metric.au:g})",
        f"{f'read at {running}':<25}{format_rate(p.read_bytes_per_second):>10}   "
        f"{format_rate(p.read_low)} to {format_rate(p.read_high)}",
        "",
        f"limit: {p.limit}",
    ]
    if p.extrapolated:
        lines.append(
            f"extrapolated: the barrier was never compared above {EXTRAPOLATED_ABOVE} accelerators"
        )
    if not p.calibrated:
        lines.append("dlemu calibrate measures the host and narrows the range")
    return "\n".join(lines)


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
    return workload.drive, calibration.model_copy(update={"drive_read_bytes_per_second": None})


def _calibration(workload: Workload) -> Calibration | None:
    """Return the calibration of this very job, None where predict.calibration names no file."""
    if workload.predict.calibration is None:
        return None
    path = Path(workload.predict.calibration)
    try:
        text = path.read_text()
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
