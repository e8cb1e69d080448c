"""All GPUs of a host at once, one rank each: python -m benchmarks.gpus FOLDER [key=value …]

    rounds=3 cases=NAME,… json=gpus.json
    python -m benchmarks.gpus table JSON...     the table of stored runs

`mpirun -n NUM_GPUS dlemu run` of UNet3D and ResNet-50, round after round. Files of UNet3D have
16 MB, so that no drive is the limit. What the GPUs did is read from NVML while a run goes on.
On a host without a GPU two ranks run the case `sleep`, to try the program.
"""

import json
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Asked, describe_machine, in_turn, markdown, spread, tell
from tests.lab.mpirun import mpirun

NETS: dict[str, list[str]] = {
    "unet3d": [
        "workload=unet3d_h100",
        "dataset.record_length_bytes=16000000",
        "dataset.record_length_bytes_stdev=0",
        "dataset.num_files_train=140",
        "train.epochs=2",
    ],
    "resnet50": ["workload=resnet50_h100", "dataset.num_files_train=16", "train.epochs=1"],
}
_DALI = ["reader.data_loader=dali", "dali.device=gpu"]
CASES: dict[str, list[str]] = {
    "sleep": [],
    "compute": ["train.compute=gpu"],
    "dali-host": [*_DALI, "reader.gds=off"],
    "dali-cufile": [*_DALI, "reader.gds=prefer"],
}
_PACE = 0.1
"""Seconds between two looks at the GPUs."""


@contextmanager
def watched() -> Iterator[list[tuple[list[int], list[int]]]]:
    """Note what share of the time (%) each GPU is busy, and its bytes in use, during the block."""
    seen: list[tuple[list[int], list[int]]] = []
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(number)
            for number in range(pynvml.nvmlDeviceGetCount())
        ]
    except Exception:  # no GPU, no driver or no package
        yield seen
        return
    ends = threading.Event()

    def look() -> None:
        while not ends.wait(_PACE):
            busy = [pynvml.nvmlDeviceGetUtilizationRates(each).gpu for each in handles]
            used = [int(pynvml.nvmlDeviceGetMemoryInfo(each).used) for each in handles]
            seen.append((busy, used))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ends.set()
        thread.join()


def measure(folder: Path, net: str, case: str, ranks: int) -> dict[str, Any]:
    """Run a case once; return what its summary and NVML say."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    words = [*NETS[net], f"dataset.data_folder={folder / net}", *CASES[case]]
    command = [sys.executable, "-m", "dlemu", "run", *words, f"output.folder={out}"]
    with watched() as seen:
        done = subprocess.run(
            mpirun(ranks, "--bind-to", "none", *command), capture_output=True, text=True
        )
    found: dict[str, Any] = {"net": net, "case": case, "rc": done.returncode}
    if not (out / "summary.json").exists():
        raise SystemExit(f"{net} {case}:\n{done.stdout}{done.stderr}")
    summary = json.loads((out / "summary.json").read_text())
    metric = summary["metric"]
    found |= {
        "au": metric["train_au_percentage"],
        "samples_per_second": metric["train_throughput_samples_per_second"],
        "verdict": metric["train_au_meet_expectation"],
        "path": summary["measured"]["path"],
    }
    found["busy"] = [statistics.fmean(each) for each in zip(*(b for b, _ in seen), strict=True)]
    found["most_bytes"] = [max(each) for each in zip(*(used for _, used in seen), strict=True)]
    tell([net, case, found["verdict"], str(found["au"][-1])])
    return found


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return a line for each net and case: median, least and most of the rounds' last epochs."""
    rows = []
    for net, case in dict.fromkeys((run["net"], run["case"]) for run in runs):
        own = [run for run in runs if (run["net"], run["case"]) == (net, case)]
        busy = zip(*(run["busy"] for run in own), strict=True)
        used = zip(*(run["most_bytes"] for run in own), strict=True)
        rows.append(
            [
                *(net, case, str(len(own))),
                spread([run["au"][-1] for run in own]),
                spread([run["samples_per_second"][-1] for run in own], ",.1f"),
                " and ".join(f"{statistics.median(each):.0f}" for each in busy),
                " and ".join(f"{statistics.median(each) / 2**20:,.0f}" for each in used),
                ", ".join(dict.fromkeys(run["path"] for run in own)),
            ]
        )
    heads = ["net", "case", "runs", "AU (%)", "samples/s", "GPUs busy (%)", "memory (MiB)", "path"]
    return markdown(heads, rows)


def main(words: list[str]) -> None:
    if words[:1] == ["table"]:
        print(
            table([run for path in words[1:] for run in json.loads(Path(path).read_text())["runs"]])
        )
        return
    folder, asked = Path(words[0]), Asked(words[1:], "rounds", "cases", "json")
    folder.mkdir(parents=True, exist_ok=True)
    with watched() as seen:
        threading.Event().wait(3 * _PACE)
    ranks = len(seen[0][0]) if seen else 2
    cases = asked.names("cases", CASES if seen else ["sleep"])
    for net, keys in NETS.items():
        command = ["dlemu", "datagen", *keys, f"dataset.data_folder={folder / net}"]
        if not (folder / net).exists():
            subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
    sides = {
        f"{net} {case}": lambda net=net, case=case: measure(folder, net, case, ranks)
        for net in NETS
        for case in cases
    }
    machine = f"{describe_machine()}; {ranks} ranks"
    found = in_turn(sides, asked.value("rounds", 3))
    runs = [run for each in found.values() for run in each]
    stored = {"machine": machine, "runs": runs}
    Path(asked.value("json", "gpus.json")).write_text(json.dumps(stored))
    print(f"{machine}\n\n{table(runs)}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
