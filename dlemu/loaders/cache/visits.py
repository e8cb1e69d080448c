"""Which files a host's workers visit in an epoch, in order.

A visit is one worker's reading of one file: from opening it to closing it. A file of one sample is
visited once an epoch. A stream visits each of its files once; where any sample of a file can be
read alone, each batch visits it anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dlemu.dataset.layout import Layout, Samples
from dlemu.dataset.plan import EpochPlan


@dataclass(frozen=True)
class Visits:
    """The visits of an epoch on one host, by their numbers: in the order of the steps."""

    files: Samples
    """(visits,): the file of each visit."""
    num_samples: Samples
    """(visits,): the samples that are read in it."""
    plan: EpochPlan
    """The epoch's plan, with the visit of each sample; -1 for those of other hosts."""


def find_visits(
    plan: EpochPlan, layout: Layout, accelerators: Sequence[int], *, num_streams: int
) -> Visits:
    """Return the visits of these accelerators' workers, `num_streams` of each."""
    own = np.asarray(sorted(accelerators), np.int64)
    if plan.sequence is None:
        return _of_batches(plan, layout, own)
    # In an interleaved plan each stream has its own range, and takes part in every step.
    return _of_streams(plan, layout, own, 1 if plan.starts is not None else num_streams)


def _of_batches(plan: EpochPlan, layout: Layout, own: Samples) -> Visits:
    """Each batch visits the files of its samples; neighbours in one file are one visit."""
    files = layout.file_of(plan.samples[:, own])
    begins = np.ones(files.shape, bool)
    begins[..., 1:] = files[..., 1:] != files[..., :-1]
    numbers = np.full(plan.samples.shape, -1, np.int64)
    numbers[:, own] = (np.cumsum(begins.ravel()) - 1).reshape(files.shape)
    return _visits(plan, files.ravel(), numbers[:, own].ravel(), numbers)


def _of_streams(plan: EpochPlan, layout: Layout, own: Samples, every: int) -> Visits:
    """Each stream visits file after file; a visit may last for several batches.

    A stream makes the batch of each `every`-th step.
    """
    assert plan.sequence is not None
    places, steps, accelerators, begins = [], [], [], []
    for accelerator in own.tolist():
        for bounds in plan.ranges(accelerator):
            lengths = bounds[:, 1] - bounds[:, 0]
            step = np.repeat(np.arange(len(bounds)), lengths)
            offset = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            place = np.repeat(bounds[:, 0], lengths) + offset
            order = np.argsort(place, kind="stable")
            place, step = place[order], step[order]
            file = layout.file_of(plan.sequence[place])
            begin = np.ones(len(place), bool)
            # The next stream's steps are others, and begin with one of the first.
            later = np.diff(step)
            new_stream = (np.diff(place) != 1) | (later < 0) | (later % every != 0)
            begin[1:] = (file[1:] != file[:-1]) | new_stream
            places.append(place)
            steps.append(step)
            accelerators.append(np.full(len(place), accelerator))
            begins.append(begin)
    place, step, begin = (np.concatenate(each) for each in (places, steps, begins))
    first = np.flatnonzero(begin)
    ordered = np.lexsort((place[first], np.concatenate(accelerators)[first], step[first]))
    rank = np.empty(len(first), np.int64)
    rank[ordered] = np.arange(len(first))
    own_numbers = rank[np.cumsum(begin) - 1]
    numbers = np.full(len(plan.sequence), -1, np.int64)
    numbers[place] = own_numbers
    return _visits(plan, layout.file_of(plan.sequence[place]), own_numbers, numbers)


def _visits(plan: EpochPlan, files: Samples, own: Samples, numbers: Samples) -> Visits:
    num_samples = np.bincount(own)
    of_visit = np.empty(len(num_samples), np.int64)
    of_visit[own] = files
    return Visits(of_visit, num_samples, replace(plan, visits=numbers))
