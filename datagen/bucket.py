"""Datasets are written into a bucket by whole objects, so no journal is needed.

Whoever starts again lists what is there (LIST, which a run never does), and computes the checksums
of it once more.

    .dlemu/recipe.json  the plan of an unfinished dataset, as in a folder; written first
    train/... index/... the objects
    dlemu.files.npy     sizes and checksums, as in a folder
    dlemu.json          written last: where it is, the dataset is complete
"""

import dataclasses
import io
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload
from dlemu.datagen.assemble import Content
from dlemu.datagen.manifest import (
    FILE_TYPE,
    FILES,
    MANIFEST,
    Manifest,
    Plan,
    read_manifest,
    read_plan,
)
from dlemu.datagen.prepare import PLAN, choose_layout, refuse_strays
from dlemu.datagen.target import WORK, Bucket, FileMaker, OnProgress, work_through
from dlemu.dataset.layout import Layout, layout_of
from dlemu.errors import DatasetError
from dlemu.ranks.world import World
from dlemu.storage.s3.location import ObjectPath


def generate_objects(
    workload: Workload,
    *,
    world: World,
    on_progress: OnProgress | None,
    on_begin: Callable[[], None],
) -> Manifest:
    """Do what `write.generate` does, in a bucket, with the access of rank 0."""
    folder, access = workload.data_folder, world.on_first(lambda: workload.access)
    assert isinstance(folder, ObjectPath) and access is not None
    bucket, layout = Bucket(folder, access), layout_of(workload)
    complete, there = world.on_first(lambda: _begin(bucket, layout, workload.made_from))
    if world.rank == 0:
        on_begin()
    if complete is not None:
        return complete
    content = Content(layout.seed)
    writers = [_Writer(each, layout, content, there) for each in bucket.of_workers(layout, world)]
    work_through(
        np.arange(layout.num_files),
        writers,
        num_bytes=int(layout.all_sizes()[0].sum()),
        world=world,
        on_progress=on_progress,
    )
    parts = world.gather({file: crc for writer in writers for file, crc in writer.crcs.items()})
    if parts is not None:
        _finish(bucket, layout, parts, workload.made_from)
    manifest = world.on_first(lambda: read_manifest(bucket.path, bucket.access))
    if manifest is None:
        raise DatasetError(f"{bucket.path / MANIFEST} has vanished: somebody removed it")
    return dataclasses.replace(manifest, files_written=int((~there).sum()))


class _Writer(FileMaker):
    """Writes the objects that are not there yet, and keeps the checksums of all."""

    def __init__(
        self, bucket: Bucket, layout: Layout, content: Content, there: NDArray[np.bool_]
    ) -> None:
        super().__init__(bucket, layout, content)
        self._there = there
        self.crcs: dict[int, int] = {}

    def do(self, file: int) -> None:
        if self._there[file]:
            self.crcs[file] = self.made(file, lambda data, offset, num_bytes: None)
            return
        self.write_indexes(file)
        self.crcs[file] = self.write_file(file)


def _begin(
    bucket: Bucket, wanted: Layout, workload: str
) -> tuple[Manifest | None, NDArray[np.bool_]]:
    """Write the plan; return which files an earlier datagen has completed, (files,).

    If the dataset is complete, its manifest is returned and nothing is written.
    """
    there = np.ones(wanted.num_files, np.bool_)
    manifest = read_manifest(bucket.path, bucket.access)
    plan = None if manifest else read_plan(bucket.path / WORK / PLAN, bucket.access)
    choose_layout(bucket.path, wanted, manifest, plan)
    if manifest is None:
        listing = bucket.listing(wanted)
        refuse_strays(bucket.path, listing, wanted, known=plan is not None)
        there = (listing.found[0] == wanted.all_sizes()).all(axis=0)
        if plan is None:
            bucket.put(f"{WORK}/{PLAN}", Plan(wanted, None, workload or None).to_json())
    return manifest, there


def _finish(bucket: Bucket, layout: Layout, parts: list[dict[int, int]], of: str) -> None:
    """Write the manifest, and remove the plan."""
    sizes = layout.all_sizes()[0]
    files = np.zeros(len(sizes), FILE_TYPE)
    files["bytes"] = sizes
    for part in parts:
        files["crc32c"][list(part)] = list(part.values())
    array = io.BytesIO()
    np.save(array, files)
    bucket.put(FILES, array.getbuffer())
    manifest = Manifest(layout, files, int(sizes.sum()), workload=of or None)
    bucket.put(MANIFEST, manifest.to_json())
    bucket.delete(f"{WORK}/{PLAN}")
