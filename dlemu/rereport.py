"""`dlemu report`: stored runs, their metrics computed anew from the steps."""

from collections.abc import Sequence
from pathlib import Path

from dlemu.errors import RunError
from dlemu.metrics import measure
from dlemu.records import CONFIG, read_steps, read_summary
from dlemu.report import render_run
from dlemu.workload import load_workload


def report_folders(folders: Sequence[Path], overrides: Sequence[str] = ()) -> int:
    """Print the report of each folder's run; return 1 if one of them holds no whole run.

    `overrides` such as "metric.edition=v2.0" apply another definition to the same records.
    """
    status = 0
    keys = dict(_key_value(override) for override in overrides)
    for number, folder in enumerate(folders):
        if number:
            print()
        summary = read_summary(folder)
        print(f"{folder}: {summary.get('status')}")
        if summary.get("status") == "incomplete":
            print("NO VERDICT: the run did not end")
            status = 1
            continue
        if not (folder / CONFIG).is_file():
            raise RunError(f"{folder / CONFIG} is missing; is {folder} a run's folder?")
        if summary.get("status") == "failed" and not list(folder.glob("steps.*.npy")):
            print(f"NO VERDICT: {summary.get('error')}")
            status = 1
            continue
        workload = load_workload(folder / CONFIG, keys)
        metric = workload.metric
        metrics = measure(
            read_steps(folder),
            edition=metric.edition,
            exclude_start_steps=metric.exclude_start_steps,
            exclude_end_steps=metric.exclude_end_steps,
        )
        print(render_run(workload, metrics, summary))
        status = max(status, int(summary.get("status") == "failed"))
    return status


def _key_value(override: str) -> tuple[str, object]:
    import yaml

    key, _, value = override.partition("=")
    return key, yaml.safe_load(value)
