"""Datasets in a bucket: written, checked and written again, by whole objects.

An object is there whole or not at all, so no journal is needed. Whoever starts again lists what is
there (LIST, which a run never does), and computes the checksums of it once more.

    .dlemu/recipe.json  the plan of an unfinished dataset, as in a folder; written first
    train/... index/... the objects
    dlemu.files.npy     sizes and checksums, as in a folder
    dlemu.json          written last: where it is, the dataset is complete
"""

import dataclasses
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.datagen.assemble import Assembly, piece_buffer
from dlemu.datagen.content import Content
from dlemu.datagen.listing import WORK
from dlemu.datagen.manifest import (
    FILE_TYPE,
    FILES,
    MANIFEST,
    Manifest,
    Plan,
    read_manifest,
    read_plan,
)
from dlemu.datagen.prepare import PLAN
from dlemu.datagen.recipe import Recipe
from dlemu.datagen.work import FILES_IN_FLIGHT, OnProgress, Stopped, Worker, work_through
from dlemu.dataset.layout import Samples
from dlemu.errors import DatasetError, RunError
from dlemu.formats import format_of
from dlemu.host.limits import memory_bytes
from dlemu.objects.store import Store, store_of
from dlemu.units import counted, format_bytes
from dlemu.workload.model import Workload
from dlemu.workload.objects import Access, ObjectPath
from dlemu.world.world import World

_SHARE_OF_MEMORY = 4
"""Objects that are being written may take one part in so many of a host's memory."""


@dataclass(frozen=True)
class Bucket:
    """A dataset's place in a bucket, and how it is reached."""

    folder: ObjectPath
    access: Access

    @classmethod
    def shared(cls, workload: Workload, world: World) -> "Bucket":
        """Return the place of a workload's dataset, with rank 0's access; all ranks call it."""
        folder, access = workload.data_folder, world.on_first(lambda: workload.access)
        assert isinstance(folder, ObjectPath) and access is not None
        return cls(folder, access)

    def store(self, number: int) -> Store:
        """Return the store of worker `number` of the job."""
        return store_of(self.access, number, self.folder.bucket)

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Write an object; `name` is below the folder."""
        self.store(0).put((self.folder / name).key, memoryview(data))

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the objects below train/ and index/, by their names there."""
        base = self.folder.key
        start = len(base) + 1 if base else 0
        return {
            key[start:]: size
            for tree in ("train", "index")
            for key, size in self.store(0).sizes((self.folder / tree).key)
        }


def generate_objects(
    workload: Workload,
    *,
    world: World,
    on_progress: OnProgress | None,
    on_begin: Callable[[], None],
) -> Manifest:
    """Do what `write.generate` does, in a bucket."""
    bucket, wanted = Bucket.shared(workload, world), Recipe.of(workload)
    complete = world.on_first(lambda: _complete(bucket, wanted))
    if world.rank == 0:
        on_begin()
    if complete is not None:
        return complete
    there = world.on_first(lambda: _begin(bucket, wanted, workload.made_from))
    crcs = _work(_Writer, _Task(bucket, wanted, there=there), world, on_progress)
    parts = world.gather({file: crc for file, (crc, _) in crcs.items()})
    if parts is not None:
        _finish(bucket, wanted, parts, workload.made_from)
    written = sum(world.all_gather(sum(is_new for _, is_new in crcs.values())))
    manifest = world.on_first(lambda: read_manifest(bucket.folder, bucket.access))
    if manifest is None:
        raise DatasetError(f"{bucket.folder / MANIFEST} has vanished: somebody removed it")
    return dataclasses.replace(manifest, files_written=written)


def _complete(bucket: Bucket, wanted: Recipe) -> Manifest | None:
    """Return the manifest if the dataset is there; refuse another one."""
    manifest = read_manifest(bucket.folder, bucket.access)
    tree, other = wanted.to_tree(), "use another dataset.data_folder, or set"
    if manifest is not None:
        if manifest.recipe.differing(tree) == ["num_files"]:
            other = f"a dataset in a bucket is not extended; {other}"
        manifest.recipe.refuse(tree, bucket.folder, what="a dataset", remedy=other)
    return manifest


def _begin(bucket: Bucket, wanted: Recipe, workload: str) -> frozenset[str]:
    """Write the plan; return the names of the objects that an earlier datagen has completed."""
    path = bucket.folder / WORK / PLAN
    plan, found = read_plan(path, bucket.access), bucket.sizes()
    if plan is None and found:
        more = len(found) - 1
        others = f" (and {counted(more, 'other object')})" if more else ""
        raise DatasetError(
            f"{bucket.folder / min(found)}{others} is there, and no {MANIFEST}, so nobody knows "
            "what it is; use another dataset.data_folder, or remove it"
        )
    if plan is None:
        bucket.put(f"{WORK}/{PLAN}", Plan(wanted, None, workload or None).to_json())
        return frozenset()
    other = "use another dataset.data_folder, or finish that one with"
    plan.recipe.refuse(wanted.to_tree(), bucket.folder, what="an unfinished dataset", remedy=other)
    return frozenset(name for name, size in _sized(wanted) if found.get(name) == size)


def _sized(recipe: Recipe) -> Iterable[tuple[str, int]]:
    """Yield the name and the bytes of each object of a dataset."""
    for file, sizes in enumerate(recipe.all_sizes().T.tolist()):
        names = (recipe.layout.path(file), *recipe.layout.index_paths(file))
        yield from zip(names, sizes, strict=True)


def _finish(bucket: Bucket, recipe: Recipe, parts: list[dict[int, int]], of: str) -> None:
    """Write the manifest, and remove the plan."""
    sizes = recipe.file_sizes()
    files = np.zeros(len(sizes), FILE_TYPE)
    files["bytes"] = sizes
    for part in parts:
        files["crc32c"][list(part)] = list(part.values())
    array = io.BytesIO()
    np.save(array, files)
    bucket.put(FILES, array.getbuffer())
    manifest = Manifest(recipe, files, int(sizes.sum()), workload=of or None)
    bucket.put(MANIFEST, manifest.to_json())
    bucket.store(0).delete((bucket.folder / WORK / PLAN).key)


@dataclass(frozen=True)
class _Task:
    """What the workers of all ranks do together."""

    bucket: Bucket
    recipe: Recipe
    files: Samples | None = None
    """Numbers of the files that it is about; None: all."""
    there: frozenset[str] = frozenset()
    """Names of the objects that need not be written."""
    crcs: NDArray[np.uint32] | None = None
    """The checksums in the manifest, where there is one."""


class _ObjectWorker(Worker):
    """Makes files in memory, one after the other."""

    def __init__(self, task: _Task, content: Content, number: int) -> None:
        super().__init__()
        self._task, self._recipe, self._content = task, task.recipe, content
        self._bucket, self._store = task.bucket, task.bucket.store(number)
        self._format = format_of(self._recipe.layout)
        self._buffer = piece_buffer()
        self._memory = np.empty(0, np.uint8)
        self.found: dict[int, Any] = {}
        """What it tells of files, by their numbers."""

    def make(self, file: int) -> tuple[NDArray[np.uint8], int]:
        """Return a file's bytes, valid until the next call, and their CRC-32C."""
        samples = self._recipe.file_samples(file)
        num_bytes = int(self._format.file_bytes(samples.sizes[None])[0])
        if len(self._memory) < num_bytes:
            self._memory = np.empty(num_bytes, np.uint8)
        assembly = Assembly(self._content, self._buffer, self._keep)
        self._format.write(assembly, samples)
        made, crc = assembly.finish()
        assert made == num_bytes
        return self._memory[:made], crc

    def _keep(self, piece: NDArray[np.uint8], offset: int) -> None:
        if self.stopped:
            raise Stopped
        self._memory[offset : offset + len(piece)] = piece

    def wanted_crc(self, file: int) -> int:
        """Return the checksum of a file in the manifest."""
        assert self._task.crcs is not None
        return int(self._task.crcs[file])

    def put(self, name: str, data: memoryview) -> None:
        """Write an object."""
        self._store.put((self._bucket.folder / name).key, data)

    def put_indexes(self, file: int) -> None:
        """Write a file's indexes, if the format has some."""
        recipe = self._recipe
        for name, index in zip(recipe.layout.index_paths(file), recipe.indexes(file), strict=True):
            self.put(name, memoryview(index))


class _Writer(_ObjectWorker):
    """Writes the objects that are not there yet; tells checksums, and whether it wrote them."""

    def do(self, file: int) -> None:
        data, crc = self.make(file)
        self.bytes_done += len(data)
        layout = self._recipe.layout
        name = layout.path(file)
        is_new = not self._task.there.issuperset((name, *layout.index_paths(file)))
        if is_new:
            self.put_indexes(file)
            self.put(name, data.data)
        self.found[file] = crc, is_new


class _Checker(_ObjectWorker):
    """Reads objects, compares them with what was generated, and tells names and problems."""

    def do(self, file: int) -> None:
        layout, recipe = self._recipe.layout, self._recipe
        for name, index in zip(layout.index_paths(file), recipe.indexes(file), strict=True):
            self._compare(name, np.frombuffer(index, np.uint8), file)
        data, crc = self.make(file)
        self._compare(layout.path(file), data, file)
        if crc != self.wanted_crc(file):
            problem = "is as generated, but the manifest has another checksum for it"
            self._tell(layout.path(file), problem, file)
        self.bytes_done += len(data)

    def _compare(self, name: str, wanted: NDArray[np.uint8], file: int) -> None:
        try:
            got = self._store.get((self._bucket.folder / name).key, 0, None).memory
        except DatasetError:  # it is missing, and has been named by the sizes
            return
        found = np.frombuffer(got, np.uint8)
        if len(found) != len(wanted):  # named by the sizes, too
            return
        if not np.array_equal(found, wanted):
            at = int(np.argmax(found != wanted))
            problem = f"differs from what was written at byte {at}"
            self._tell(name, problem, file)

    def _tell(self, name: str, problem: str, file: int) -> None:
        self.found.setdefault(file, []).append((name, problem))


class _Repairer(_ObjectWorker):
    """Writes bad objects again; tells of files that would have another checksum."""

    def do(self, file: int) -> None:
        data, crc = self.make(file)
        if crc != (wanted := self.wanted_crc(file)):
            self.found[file] = f"its checksum would be {crc}, not {wanted}"
            return
        self.put_indexes(file)
        self.put(self._recipe.layout.path(file), data.data)
        self.bytes_done += len(data)


def check_objects(
    bucket: Bucket, manifest: Manifest, world: World, on_progress: OnProgress | None
) -> list[tuple[str, str, int]]:
    """Return name, problem and file of the objects with other bytes than were generated."""
    found = world.all_gather(_work(_Checker, _task_of(bucket, manifest), world, on_progress))
    return [
        (name, problem, file)
        for part in found
        for file, problems in part.items()
        for name, problem in problems
    ]


def repair_objects(
    bucket: Bucket, manifest: Manifest, bad: list[int], world: World, on_progress: OnProgress | None
) -> dict[int, str]:
    """Write bad files again; return those that would have another checksum."""
    task = dataclasses.replace(_task_of(bucket, manifest), files=np.unique(bad))
    refused = world.all_gather(_work(_Repairer, task, world, on_progress))
    return {file: why for part in refused for file, why in part.items()}


def _task_of(bucket: Bucket, manifest: Manifest) -> _Task:
    return _Task(bucket, manifest.recipe, crcs=manifest.files["crc32c"])


def _work(
    kind: type[_ObjectWorker], task: _Task, world: World, on_progress: OnProgress | None
) -> dict[int, Any]:
    """Let all ranks do a task; return what the workers of this rank tell, by file.

    There are as many of them as there is memory for their files.
    """
    sizes = task.recipe.file_sizes()
    largest, room = int(sizes.max()), memory_bytes() // _SHARE_OF_MEMORY // world.num_local_ranks
    if largest > room:
        raise RunError(
            f"an object of {format_bytes(largest)} is made in memory, of which a rank may take "
            f"{format_bytes(room)} here; use smaller files or fewer ranks on a host"
        )
    content, first = Content(task.recipe.layout.seed), world.rank * FILES_IN_FLIGHT
    number = min(FILES_IN_FLIGHT, room // max(1, largest))
    workers = [kind(task, content, first + each) for each in range(number)]
    files = np.arange(len(sizes)) if task.files is None else task.files
    num_bytes = int(sizes[files].sum())
    work_through(files, workers, num_bytes=num_bytes, world=world, on_progress=on_progress)
    return {file: told for worker in workers for file, told in worker.found.items()}
