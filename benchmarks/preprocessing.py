"""Does emulated decoding take the cores that real decoding takes?

    python -m benchmarks.preprocessing FOLDER [workers=1,2,4 rounds=5]

Workers read small samples from memory, and for each decode, crop and resize a JPEG picture
(`examples/my_samples.py`): real. Beside it, in turn:

sleep, alone      `reader.preprocess=sleep` with the time of a picture in one process
sleep, together   the same with its time in as many processes as there are workers
cpu               `reader.preprocess=cpu` with the time that `dlemu steptime` writes

Told are samples/s, the median of the rounds, and the ratio to real of the same round. The loop only
takes batches. A round begins with the time of a picture.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import dlemu
from benchmarks.harness import describe_machine, markdown
from benchmarks.preparing import Preparing
from dlemu.loaders.preprocessing import block_seconds
from dlemu.steptime.preprocessing import time_preprocessing
from dlemu.steptime.steps import UsersFunction

_EXAMPLES = Path(__file__).parents[1] / "examples"
_FUNCTION = "my_samples:picture"
_SAMPLES = 400
_BATCH = 10


def workload_of(folder: Path, workers: int, keys: Mapping[str, object]) -> dlemu.Workload:
    """Return a job of small samples."""
    return dlemu.load_workload(
        "resnet50_h100",
        {
            "dataset.data_folder": str(folder),
            "dataset.num_files_train": 1,
            "dataset.num_samples_per_file": _SAMPLES,
            "dataset.record_length_bytes": 1000,
            "reader.data_loader": "pytorch",
            "reader.batch_size": _BATCH,
            "reader.read_threads": workers,
            **keys,
        },
    )


def samples_per_second(workload: dlemu.Workload) -> float:
    """Return what the loader gives, after the batches that were made while workers started."""
    started = 2 * workload.reader.read_threads
    with dlemu.make_loader(workload) as loader:
        for number, _ in enumerate(loader):
            if number == started:
                begin = time.perf_counter()
    return (number - started) * _BATCH / (time.perf_counter() - begin)


def main(folder: Path, workers: int, rounds: int) -> list[list[str]]:
    """Return the rows of the table for a number of workers."""
    dlemu.generate(workload_of(folder, workers, {}), world=dlemu.Alone())
    prepare = UsersFunction("", _FUNCTION).made("prepares a sample")
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        timed = time_preprocessing(_FUNCTION, workers, 1.0)
        alone, together = float(timed.alone.mean()), float(timed.together.mean())
        ways: Mapping[str, Mapping[str, object]] = {
            "real": {},
            "sleep, alone": {"reader.preprocess_time": alone, "reader.preprocess": "sleep"},
            "sleep, together": {"reader.preprocess_time": together, "reader.preprocess": "sleep"},
            "cpu": {"reader.preprocess_time": timed.key()},
        }
        block_seconds.cache_clear()
        for way, keys in ways.items():
            workload = workload_of(folder, workers, keys)
            if way == "real":
                with Preparing(prepare).by_workers():
                    found[way].append(samples_per_second(workload))
            else:
                found[way].append(samples_per_second(workload))
    real = found["real"]
    return [
        [
            str(workers),
            way,
            f"{statistics.median(rates):,.0f}",
            f"{statistics.median(a / b for a, b in zip(rates, real, strict=True)):.2f}",
        ]
        for way, rates in found.items()
    ]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    asked = dict(word.split("=", 1) for word in sys.argv[2:])
    sys.path.insert(0, str(_EXAMPLES))
    print(describe_machine())
    rows = []
    for count in map(int, asked.get("workers", "1,2,4").split(",")):
        rows += main(Path(sys.argv[1]), count, int(asked.get("rounds", "5")))
    print(markdown(["workers", "preprocessing", "samples/s", "of real"], rows))
