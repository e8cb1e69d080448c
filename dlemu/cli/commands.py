"""The commands: what each is for, what it takes, and examples that run as they stand.

`dlemu --help`, the help of each command and the completion are made of this table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dlemu.cli.words import DRY_RUN, FOR_SCRIPTS

AIMS = {
    "measure": "Measure",
    "size": "Size",
    "look": "Look",
    "prepare": "Prepare",
}
"""What a user wants, in the order of the help."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of dlemu, as the help shows it and `cli.main` calls it."""

    aim: str
    """A key of AIMS."""
    line: str
    """What it does, in one line."""
    words: str
    """Behind its name; a second way to call it in a second line."""
    examples: Sequence[str] = ()
    about: str = ""
    """What else a user needs to know."""
    keys: str = ""
    """The keys that most users need, the most important first; "" where all are shown."""
    options: Sequence[str] = ()
    replays: bool = False
    """Whether it replays a workload: keys without effect are then printed."""
    without_workload: bool = False
    """Whether a data folder alone is enough; the workload is then None."""
    makes_folder: bool = False
    """Whether the folder may be missing yet."""
    function: str = ""
    """Of a command without a workload, which rank 0 alone does: MODULE:NAME, called with the words.
    Without it, all ranks call the function of the command's name in dlemu/cli/jobs.py."""
    arguments: str = ""
    """Its own keys: the `Arguments` that this names, module and class."""
    by_ranks: bool = False
    """Whether all ranks call its function, with the words and the world."""
    keeps_stdout: bool = False
    """Whether stdout is that of the program which it runs: what dlemu says goes to stderr."""
    measures: bool = False
    """Whether it measures from one process, which rank 0 must not do alone for all."""


_DATA = "workload=cosmoflow_h100 dataset.data_folder=data/cosmoflow dataset.num_files_train=340"
_KEYS_AND = "workload=NAME [key=value ...]"
_OR_FOLDER = "[FOLDER] [workload=NAME] [key=value ...]"

COMMANDS: dict[str, Command] = {
    "run": Command(
        aim="measure",
        line="replay a workload; PASS or FAIL, samples/s, AU, and the limit",
        words=_OR_FOLDER,
        examples=(
            f"dlemu run {_DATA}",
            f"dlemu run {_DATA} num_accelerators=2 train.epochs=2 reader.odirect=true",
        ),
        keys="workload dataset.data_folder dataset.num_files_train num_accelerators train.epochs "
        "reader.data_loader reader.read_threads reader.odirect train.loop reader.hand_over "
        "metric.au runs warmup output.folder output.log",
        options=(DRY_RUN, "--multirun", *FOR_SCRIPTS),
        replays=True,
    ),
    "watch": Command(
        aim="measure",
        line="run your own training job unchanged; its AU, its limit, and a workload of it",
        words="[key=value ...] -- COMMAND",
        examples=("dlemu watch metric.au=90% -- python3 -c 'print(1)'",),
        about="Measures every torch DataLoader, DALI and WebDataset iterator in the command and "
        "its children. Stdin, stdout, signals and the exit status are the command's own; what "
        "dlemu says goes to stderr. Its folder has the run, and workload.yaml to emulate the job "
        "elsewhere. Launchers stand behind the --: dlemu watch -- torchrun --nproc-per-node 8 "
        "train.py.",
        keys="name folder metric.au output.folder",
        function="dlemu.cli.tools:watch",
        arguments="dlemu.watch.command:WatchArguments",
        keeps_stdout=True,
        measures=True,
    ),
    "checkpoint": Command(
        aim="measure",
        line="write a model's checkpoints into a folder, read them back, and time each",
        words="[FOLDER] model=NAME [key=value ...]",
        examples=(
            "dlemu checkpoint data/checkpoints model=unet3d "
            "checkpoint.num_checkpoints_write=2 checkpoint.num_checkpoints_read=2",
            "dlemu checkpoint data/checkpoints model=llama3_8b "
            "checkpoint.scale=0.001 checkpoint.time_between_checkpoints=0 checkpoint.mtbf=3h",
        ),
        keys="model checkpoint.checkpoint_folder num_accelerators checkpoint.mode checkpoint.scale "
        "checkpoint.num_checkpoints_write checkpoint.num_checkpoints_read checkpoint.keep "
        "checkpoint.odirect checkpoint.max_seconds checkpoint.mtbf output.folder output.log",
        options=(DRY_RUN, "--multirun", "--verify", "--json"),
        makes_folder=True,
    ),
    "paths": Command(
        aim="measure",
        line="compare the data paths from folders or drives to memory and to GPUs",
        words="TARGET [key=value ...]\ntarget=TARGET,TARGET... together=true [key=value ...]",
        about="Page cache, O_DIRECT, O_DIRECT with a copy to the GPU, and cuFile (GPUDirect "
        "Storage), side by side. Writes files named dlemu_paths.<n> into a folder and removes "
        "them; a block device is read only. The same command goes on where it was interrupted. "
        "Under mpirun each rank measures its share of the targets, all at the same time.",
        options=(DRY_RUN, *FOR_SCRIPTS),
        function="dlemu.cli.paths:main",
        arguments="dlemu.tools.paths.sweep:Sweep",
        by_ranks=True,
    ),
    "load": Command(
        aim="measure",
        line="how long an inference server waits for a model's files",
        words="model=NAME [FOLDER] [key=value ...]\nFOLDER or files=FILE,FILE... [key=value ...]",
        examples=("dlemu load model=llama2_70b", "dlemu load model=sdxl drive=d7_ps1010"),
        about="The files are read once and cold: before each read they are dropped from the page "
        "cache, and it is checked that none of their pages is left. A model that is named is "
        "written into FOLDER and removed; without a model, what lies in FOLDER is read. Without "
        "FOLDER: by arithmetic, from the datasheets of drives.",
        options=FOR_SCRIPTS,
        function="dlemu.cli.tools:load",
        arguments="dlemu.tools.model_load:Load",
        measures=True,
    ),
    "steptime": Command(
        aim="measure",
        line="time real training steps on this host's GPU; write a workload with their times",
        words=_KEYS_AND,
        examples=(
            "dlemu steptime workload=unet3d_h100",
            "dlemu steptime workload=cosmoflow_h100 steptime.device=cpu steptime.batches=[1] "
            "steptime.side=32 steptime.steps=3 steptime.seconds=0",
        ),
        keys="workload steptime.model steptime.batches steptime.compile steptime.device "
        "steptime.steps steptime.seconds output.folder output.log",
        measures=True,
    ),
    "try": Command(
        aim="size",
        line="a first answer for a folder or a bucket in three minutes",
        words="FOLDER or s3://BUCKET/FOLDER [key=value ...]",
        about="How many accelerators of each of three workloads the storage under a folder feeds, "
        "what limits them, and the command of a full measurement. The files that are read lie in "
        "FOLDER/dlemu-try and are removed in the end; a dataset of dlemu's that is in FOLDER, or "
        "one level below it, is read instead where it fits. dlemu report shows the answer again. "
        "Any key of a workload holds for all of them: reader.data_loader=threads.",
        options=FOR_SCRIPTS,
        function="dlemu.cli.tools:try_folder",
        arguments="dlemu.sizing.first:Trial",
        measures=True,
    ),
    "size": Command(
        aim="size",
        line="find the most accelerators that this storage feeds, by measured search",
        words=_OR_FOLDER,
        examples=(
            f"dlemu size {_DATA} size.quick=true size.confirm=1 train.epochs=2",
            f"dlemu size {_DATA} size.quick=true size.confirm=1 size.max_accelerators=2",
        ),
        keys="workload dataset.data_folder dataset.num_files_train size.quick size.confirm "
        "size.start size.max_accelerators size.targets size.workloads train.epochs "
        "reader.data_loader reader.odirect metric.au output.folder output.log",
        options=(DRY_RUN, "--multirun", *FOR_SCRIPTS),
        replays=True,
    ),
    "predict": Command(
        aim="size",
        line="the same by arithmetic, from a drive's rates or a calibration, with its error",
        words=_KEYS_AND,
        examples=(
            "dlemu predict workload=unet3d_h100 drive=d7_ps1010 drives=4",
            "dlemu predict workload=unet3d_h100 drive.read_bandwidth=7GB predict.accelerators=2",
            "dlemu predict workload=unet3d_h100 drive=d7_ps1010 origin.read_bandwidth=2GB "
            "cache.capacity=0.8",
            "dlemu predict workload=dlrm_dcnv2_h100 drive=d3_s4520 drives=2 predict.minutes=true",
            "dlemu predict workload=unet3d_b200 server.read_bandwidth=60GB client.nic_gbps=100 "
            "num_hosts=4",
        ),
        keys="workload drive drives drive.read_bandwidth predict.calibration predict.accelerators "
        "predict.minutes cache.capacity cache.policy origin.read_bandwidth server.read_bandwidth "
        "client.nic_gbps num_hosts metric.au",
        options=FOR_SCRIPTS,
    ),
    "calibrate": Command(
        aim="size",
        line="measure what this host can move and how fast the storage is, for dlemu predict",
        words=_OR_FOLDER,
        examples=(
            "dlemu calibrate workload=cosmoflow_h100",
            f"dlemu calibrate {_DATA} predict.calibration=cosmoflow.json",
        ),
        keys="workload dataset.data_folder predict.calibration reader.data_loader reader.odirect "
        "output.log",
    ),
    "report": Command(
        aim="look",
        line="show results again, computed anew from their stored steps",
        words="[FOLDER...] [metric.KEY=value ...]",
        about="Runs, also interrupted ones, several runs (runs=5, division=closed), sizings, "
        "checkpoints, calibrations, paths and loads, and the results of DLIO and mlpstorage. "
        "Without a folder, it takes the newest result below outputs/. metric.edition=v2.0 "
        "applies the other definition. Several results end with one table of all.",
        keys="metric.au metric.edition",
        options=("--html", "--json", "--trace"),
        function="dlemu.cli.report:main",
    ),
    "compare": Command(
        aim="look",
        line="results of one workload side by side, and what differs",
        words="A B... [compare.max_loss=5%]",
        about="Folders of runs, of several runs (runs=5), or of sizings. Then how far each differs "
        "from the first, with the noise of the difference where runs=5 tells it, and what else "
        "differs: hosts, kernel, drives, mount options, versions, keys. Exit status: 0, 1 on an "
        "error, 2 where a result has lost more than compare.max_loss.",
        options=("--json",),
        function="dlemu.cli.report:compare",
        arguments="dlemu.cli.report:Allowed",
    ),
    "doctor": Command(
        aim="prepare",
        line="what this host and a folder can do, and the remedies; --wear: the drives' wear",
        words="[FOLDER or s3://BUCKET] [reader.KEY=value ...]\n"
        "--wear [FOLDER or /dev/DRIVE] [key=value ...]",
        examples=(
            "dlemu doctor . reader.data_loader=threads",
            "dlemu doctor --wear .",
            "dlemu doctor --wear drive=d5_p5336_61tb wear.years=5 wear.duty=50%",
        ),
        about="Exit status 0 when the loader can run. With --wear: the bytes that hosts have "
        "written to the drives under a folder and those that went to flash, write amplification "
        "(WAF), and the share of their life that is used. A drive's own counters need root and "
        "NVMe. With the drive's endurance, the write rate that uses it up in some years.",
        keys="drive drive.endurance drive.capacity",
        options=("--wear", "--json"),
        function="dlemu.cli.tools:doctor",
        arguments="dlemu.tools.doctor:DoctorArguments",
    ),
    "datasize": Command(
        aim="prepare",
        line="how large the dataset must be, and which rule says so",
        words=_KEYS_AND,
        examples=(
            "dlemu datasize workload=unet3d_h100 num_accelerators=8",
            "dlemu datasize workload=unet3d_h100 num_accelerators=8 host_memory=256GiB num_hosts=2",
        ),
        keys="workload num_accelerators host_memory num_hosts",
        options=FOR_SCRIPTS,
    ),
    "datagen": Command(
        aim="prepare",
        line="write the dataset; killed at any moment and started again, it continues",
        words=_OR_FOLDER,
        examples=(
            f"dlemu datagen {_DATA}",
            "dlemu datagen workload=unet3d_h100 dataset.data_folder=data/unet3d "
            "dataset.num_files_train=16 dataset.record_length_bytes=4MB "
            "dataset.record_length_bytes_stdev=1MB",
        ),
        keys="workload dataset.data_folder dataset.num_files_train num_accelerators dataset.format "
        "dataset.num_subfolders_train dataset.record_length_bytes output.log",
        options=(DRY_RUN,),
        makes_folder=True,
    ),
    "verify": Command(
        aim="prepare",
        line="check a data folder by its manifest; --full its content too, --repair mends it",
        words="FOLDER [--full] [--repair]",
        examples=("dlemu verify data/cosmoflow", "dlemu verify data/cosmoflow --full --repair"),
        keys="dataset.data_folder",
        options=("--full", "--repair"),
        without_workload=True,
    ),
    "completion": Command(
        aim="prepare",
        line="print what makes a shell complete dlemu's commands, keys, values and folders",
        words="bash|zsh",
        examples=("dlemu completion bash",),
        about="For bash, write it to ~/.local/share/bash-completion/completions/dlemu; for zsh, "
        "to a file that ~/.zshrc sources behind compinit. For this shell only: source <(dlemu "
        "completion bash).",
        function="dlemu.cli.help:completion",
    ),
}


def usage() -> str:
    """Return what `dlemu --help` shows."""
    width = max(map(len, COMMANDS))
    groups = (
        [title, *(f"  {n:<{width}} {c.line}" for n, c in COMMANDS.items() if c.aim == aim)]
        for aim, title in AIMS.items()
    )
    return _USAGE.format(commands="\n\n".join("\n".join(group) for group in groups))


_USAGE = """\
dlemu - how many GPUs will this storage feed?

  dlemu COMMAND [FOLDER] [workload=NAME] [key=value ...] [options]

  FOLDER is the data folder, or s3://BUCKET/FOLDER: its dataset says which workload is read.
  NAME is one that dlemu help workloads lists, or the path of a YAML file (DLIO's as they are).

{commands}

Help
  dlemu help COMMAND, dlemu help KEY, dlemu help WORD of the output, dlemu help keys
  dlemu help workloads [NAME ...] [--json]: what each asks of storage, and whether storage limits it

  JOB="workload=unet3d_h100 dataset.data_folder=/mnt/nvme/unet3d dataset.num_files_train=auto"
  dlemu datasize $JOB num_accelerators=8
  dlemu datagen  $JOB num_accelerators=8
  mpirun -n 8 --bind-to none dlemu run $JOB

Options: -h --help, -q --quiet (verdict and errors only), -v --verbose, -V --version.
--cfg job shows all keys of a job with their values.
For scripts: run, size, try, predict, datasize, paths and load take --json, --csv FILE and --label.
Exit status: 0 passed, 1 error or no verdict, 2 the AU is under the threshold."""
