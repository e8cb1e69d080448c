"""A finding is a value: its kind, how much it weighs, and its figures.

What judges a result returns findings. They are stored as they are, and printed with --json.
`report.words` alone has their sentences.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, cast

Weight = Literal["reason", "weakens", "remark", "note"]
"""What a finding does to a verdict. A reason decides it; what weakens it says that the storage
itself was not measured; a remark belongs in its line; a note does not."""

Kind = Literal[
    # why a run has no verdict, or several fail
    "bytes_not_read",
    "cached_share_unknown",
    "cached_too_much",
    "ended_early",
    "first_step_too_slow",
    "gap_too_long",
    "limit_unknown",
    "not_repeatable",
    "reads_hidden",
    "run_undecided",
    "run_under_threshold",
    "uncounted_too_much",
    "failed_after_the_end",
    # what makes it another test than the published one
    "cached_share_allowed",
    "dataset_under_rule",
    "drive_is_memory",
    "from_memory",
    "from_memory_unknown",
    "host_memory_given",
    "links",
    "near_threshold",
    "not_steady",
    "origin_emulated",
    "through_proxy",
    "tls_not_verified",
    "other_loader",
    "other_sample_size",
    "unlike_row",
    # notes on it
    "keys_unlike_row",
    "read_ahead",
    "runs_disagree",
    "second_reads_faster",
    "workers_make",
    # what limited it
    "cap_above_drive",
    "ceiling",
    "allreduce_took",
    "compute_overran",
    "compute_unequal",
    "cpus",
    "cpus_unknown",
    "device_busy",
    "explains",
    "explains_rest",
    "host_cpus",
    "late_batches",
    "latencies",
    "link_full",
    "lost",
    "lost_by_cause",
    "held_back",
    "mostly_from_memory",
    "mostly_uncounted",
    "nothing_failed",
    "other_programs",
    "page_cache_served",
    "probe_below_one",
    "read_amplified",
    "readers_queued",
    "segments_resent",
    "segments_unordered",
    "slow_rank",
    "steal",
    "steps_while_writing",
    "storage_gave",
    "storage_gives_more",
    "target_in_memory",
    "unexplained",
    "waited_for_reads",
    # what to try
    "as_asked",
    "the_jobs_own",
    "decode_less",
    "end_other_programs",
    "faster_links",
    "fewer_accelerators",
    "fewer_accelerators_a_host",
    "key",
    "leave_cores",
    "look_at_cpus",
    "look_at_neighbours",
    "look_at_rank",
    "more_cores",
    "more_drives",
    "more_hosts",
    "more_servers",
    "not_the_storage",
    "other_checkpoint_drives",
    "own_cpus",
    "raise_argument",
    "raise_gets_in_flight",
    "raise_read_threads",
    "raise_read_threads_or_depth",
    "set_argument",
    "set_key",
    "use_fewer_accelerators_a_host",
    # what a search will take, and why it ends early
    "may_feed_more",
    "model_spread",
    "search_plan",
    "too_few_files",
    "too_many_open_files",
    # how far searches, tries and calibrations are, what comes next and why; whether storage matters
    "any_drive_is_enough",
    "at_most_so_many_drives",
    "calibrated",
    "calibrates_many",
    "calibrates_no_target",
    "calibrates_one",
    "calibrates_target",
    "comes_next",
    "confirmed",
    "confirming",
    "expected_to_fail",
    "fast_drive_feeds",
    "full_needs_files",
    "full_needs_room",
    "full_takes",
    "going_on_after",
    "most_accelerators_here",
    "near_the_threshold",
    "no_time_is_left",
    "not_held_back",
    "not_steady_yet",
    "one_drive_twice",
    "one_is_too_slow",
    "one_needs_drives",
    "others_did_better",
    "predicted_for",
    "probed",
    "probed_of_try",
    "run_of_a_search",
    "same_search_goes_on",
    "search_begins",
    "search_start",
    "slow_drive_feeds",
    "target_from_memory",
    "target_not_the_limit",
    "threads_read_instead",
    "try_begins",
    "try_reads",
    "trying",
    "written_in_first_run",
    # notes on what was counted
    "bound_to_cpus",
    "counters_contradict",
    "data_in_memory",
    "no_odirect",
    "storage_by_process_count",
    "storage_unknown",
    # what limited checkpoints, and what to try
    "folder_in_memory",
    "host_cpus_busy",
    "look_at_path",
    "make_bytes_sooner",
    "more_cpus",
    "read_from_memory",
    "read_past_memory",
    "slow_accelerator",
    "time_in_calls",
    "waited_for_bytes",
    "writes_ended_in_memory",
    # rules of the closed division
    "cached_share_too_large",
    "caches_not_dropped",
    "checkpoint_missing",
    "checkpoints_not_dropped",
    "distributed_result",
    "files_missing",
    "half_of_a_result",
    "hosts_too_small",
    "hosts_unequal",
    "key_not_allowed",
    "model_of_no_edition",
    "no_subset",
    "no_warmup",
    "one_file_system",
    "other_accelerators",
    "other_checkpoints",
    "other_number_of_files",
    "other_runs",
    "prefetch_too_large",
    "too_few_runs",
    "value_not_allowed",
    # what a run says while it goes on
    "cold_start_left_out",
    "demand",
    "demand_without_bound",
    "dropped_from_page_cache",
    "dropping_files",
    "epoch_ended",
    "no_series",
    "nothing_to_drop",
    "read_in_tf_data_order",
    "samples_left_out",
    # what checkpoints say while they go on, and notes on them
    "checkpoint_taken",
    "checkpoints_by_epochs",
    "checkpoints_by_steps",
    "checkpoints_planned",
    "checkpoint_without_odirect",
    "earlier_checkpoints_removed",
    "not_read_back",
    # what a job says before its first run, and between runs
    "run_of_runs",
    "unfinished_run_kept",
    # what a command that ends, or that was stopped, has left
    "files_left",
    "left_of_stopped",
    # what the doctor finds, and what to do about it
    "bucket_listed",
    "cpus_usable",
    "dali_version",
    "direct_aligned",
    "direct_not_opened",
    "drive_queue",
    "file_system",
    "gds_by_host",
    "gds_expected",
    "gpu_driver",
    "gpus",
    "memory_by",
    "mpi_versions",
    "no_answer",
    "no_drive_under",
    "no_folder",
    "no_mpirun",
    "not_installed",
    "not_in_kernel",
    "not_loaded",
    "not_needed",
    "not_tried",
    "not_written",
    "object_differs",
    "object_read",
    "page_cache_dropped",
    "ranks_meet",
    "sleeps_end_late",
    "slurm_takes",
    "version_unknown",
    "ask_scontrol",
    "create_folder",
    "direct_costs_cpu",
    "direct_falls_back",
    "drive_unknown",
    "free_cpus",
    "generating_writes",
    "install",
    "load_nvidia_fs",
    "load_without_p2pdma",
    "many_ranks_need_hash",
    "may_starve",
    "own_pages_are_enough",
    "p2pdma_needs_open",
    "ranks_are_alone",
    "ranks_may_not_start",
    "reading_needs_no_right",
    "see_nvidia_smi",
    # what `dlemu load`, `paths` and `steptime` do, leave out and measure
    "drive_by_datasheet",
    "drive_by_probe",
    "drive_by_reading",
    "files_there_already",
    "names_of_one_file",
    "way_left_out",
    "way_read",
    "writing_model",
    "blocks_too_small",
    "cell_measured",
    "cells_planned",
    "path_left_out",
    "rank_bound",
    "target_attached",
    "writing_files",
    "batch_begins",
    "batch_timed",
    "faster_layout",
    "gpu_not_watched",
    "out_of_memory",
    "preprocessing_begins",
    "steps_on_cpu",
    "batch_skipped",
    # hosts: why something of a drive is not known, and whether earlier figures are of this storage
    "identity_differs",
    "identity_unknown",
    "oldest_cell",
    "search_is_old",
    "block_device_uncounted",
    "capacity_unknown",
    "counters_refused",
    "counters_silent",
    "device_not_here",
    "endurance_unset",
    "no_drive_seen",
    "no_drive_under_folder",
    "no_file_written",
    "no_flash_counter",
    "no_nvme",
    "nothing_written",
    "too_few_steps",
    "too_little_for_pace",
    "too_little_for_ratio",
    "unit_unknown",
    "fuse_process_unseen",
    "no_cache_drive",
    "origin_on_cache_drive",
    "origin_uncounted",
    "calibration_age",
    "cells_of_others",
    "of_drive",
    "search_of_others",
    # what a user's part does not keep of its contract
    "columns_not_tried",
    "cut_file_taken",
    "other_number_taken",
    "part_is_sound",
    "part_raises",
    "promise_broken",
    "zeros_taken",
    # caches in front of a dataset, and loaders
    "cache_emptied",
    "cache_on_data_drive",
    "cache_opened",
    "emulated_at",
    "gds_through_host",
    # a real job that was measured
    "loop_measured",
    "loop_shares",
    "batch_is_the_workloads",
    "dataset_is_the_workloads",
    "deviation_is_the_workloads",
    "job_seen",
    "files_not_seen",
    "files_of_folder",
    "files_seen_open",
    "format_not_seen",
    "preprocessing_not_seen",
    "launch_not_seen",
    "checkpoint_seen",
    "checkpoint_keys",
    "evaluation_seen",
    # datasets: what was written, what is wrong with a file, how large they must be
    "dataset_written",
    "file_cut",
    "file_differs",
    "file_ignored",
    "file_missing",
    "file_partial",
    "file_replaced",
    "file_stray",
    "file_unreadable",
    "other_checksum",
    "hosts_memory",
    "memory_needs_files",
    "steps_need_files",
    "still",
    # notes on a loop of one's own
    "compute_between_batches",
    "compute_by_the_host",
    "sample_bytes_unknown",
    # of any kind
    "of_run",
    "as_written",
]
"""`of_run` is a finding of one of several runs: `run` and `finding`. `as_written` is the `text` of
a document of an earlier version, which had sentences."""


@dataclass(frozen=True)
class Finding:
    """What was found. Figures are plain values, as JSON has them; None: not known, or no bound."""

    kind: Kind
    weight: Weight
    figures: Mapping[str, Any]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return the finding of these fields."""
        return cls(fields["kind"], fields["weight"], fields["figures"])

    @property
    def fields(self) -> dict[str, Any]:
        """Its JSON form: `kind`, `weight`, and `figures` by their names."""
        return asdict(self)


Tell = Callable[[Finding], None]
"""Takes what is to be said: `report.words` has the words of it."""


def reason(kind: Kind, **figures: Any) -> Finding:
    """Return what decides a verdict."""
    return Finding(kind, "reason", figures)


def weakens(kind: Kind, **figures: Any) -> Finding:
    """Return what weakens a verdict: something else than the storage was measured."""
    return Finding(kind, "weakens", figures)


def remark(kind: Kind, **figures: Any) -> Finding:
    """Return what belongs in a verdict's line."""
    return Finding(kind, "remark", figures)


def note(kind: Kind, **figures: Any) -> Finding:
    """Return what is worth a line of its own."""
    return Finding(kind, "note", figures)


def as_written(text: str) -> Finding:
    """Return a note that is a text already: a version, or the line of an error."""
    return note("as_written", text=text)


def fields_of(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return the JSON form of findings."""
    return [each.fields for each in findings]


def weighing(document: Mapping[str, Any], *weights: Weight) -> list[Mapping[str, Any]]:
    """Return the findings of a document that have one of these weights, in their order."""
    found = cast(Iterable[Mapping[str, Any]], document["findings"])
    return [each for each in found if each["weight"] in weights]
