"""Cold start: drops the dataset from each host's page cache."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlemu.config.model import Workload
from dlemu.dataset.layout import Layout
from dlemu.errors import DatasetError, system_line
from dlemu.findings import note
from dlemu.host.devices import mount_under
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World
from dlemu.report.words import sentence
from dlemu.storage.pagecache import Pages, drop, drop_all_caches, look
from dlemu.units import ceil_div

_SAMPLED = 4096
"""Of a larger dataset each host looks at so many files; if none is cached, none is dropped."""
_CHANCE = 0.001
"""Probability that more is cached than the printed bound, if no sampled file is."""
_SAY_SECONDS = 5.0


@dataclass(frozen=True)
class ColdStart:
    """Drops a dataset from every host's page cache; the ranks of a host share the work."""

    workload: Workload
    layout: Layout
    world: World
    watchdog: Watchdog
    say: Callable[[str], object]
    direct: bool
    """Whether this rank reads with O_DIRECT, which does not use the page cache."""

    def make(self) -> None:
        """Drop the dataset, and say how much of it stayed. All ranks call it.

        Raises:
            DatasetError: a file is missing, is no file or cannot be opened.
            RunError: output.drop_all_caches is set, and this process is not allowed to.
        """
        workload, world, output = self.workload, self.world, self.workload.output
        if not workload.place.has_page_cache:  # the memory of a server may hold it
            return
        mine = range(world.local_rank, self.layout.num_files, world.num_local_ranks)
        if output.drop_all_caches:
            if world.local_rank == 0:
                with self.watchdog.phase("dropping all caches"):
                    drop_all_caches()
            world.barrier()
            return
        if not output.drop_caches:
            return
        if workload.cache.origin is not None:
            with self.watchdog.phase(
                "dropping the origin from the page cache", self.watchdog.longest_at
            ):
                dropped = _named(lambda: drop(self._behind(mine), at=self.watchdog.at))
            self._say_dropped(dropped, of_origin=True)
        if all(world.all_gather(self.direct)) and "output.drop_caches" not in workload.given:
            self.say(sentence(note("cold_start_left_out")))
            return
        begin = time.perf_counter()
        if self.layout.num_files > _SAMPLED:
            kept = self._where_some_are_cached(mine)
            if kept is None:
                return
            mine = kept
        with self.watchdog.phase(
            "dropping the dataset from the page cache", self.watchdog.longest_at
        ):
            paths, show = self._paths(workload.data_folder, mine), self._progress(len(mine))
            dropped = _named(lambda: drop(paths, at=self.watchdog.at, each_second=show))
        self._say_dropped(dropped, seconds=time.perf_counter() - begin)

    def _where_some_are_cached(self, mine: range) -> range | None:
        """Look at some of many files; return `mine` if this host has cached some, else no file.

        None if no host has cached any.
        """
        world, num_files, dog = self.world, self.layout.num_files, self.watchdog
        num = min(len(mine), ceil_div(_SAMPLED, world.num_local_ranks))
        sample = random.sample(mine, num)  # each run draws other files
        with dog.phase("looking for cached files", dog.longest_at):
            paths = self._paths(self.workload.data_folder, sample)
            seen = _named(lambda: look(paths, at=dog.at))
        by_rank = world.all_gather((world.host_index, seen))
        looked_at = sum(pages.num_files for host, pages in by_rank if host == 0)
        if not _any_cached([pages for _, pages in by_rank]):
            most = 1 - _CHANCE ** (1 / looked_at)
            found = note(
                "nothing_to_drop",
                num_looked_at=looked_at,
                most_cached_share=most,
                num_files=num_files,
                confidence=1 - _CHANCE,
            )
            self.say(sentence(found))
            return None
        here = _any_cached([pages for host, pages in by_rank if host == world.host_index])
        return mine if here else range(0)

    def _paths(self, folder: Path, files: Sequence[int]) -> Iterator[str]:
        return (f"{folder}/{self.layout.path(file)}" for file in files)

    def _behind(self, files: Sequence[int]) -> Iterator[str]:
        """Yield the paths in cache.origin of these files; none if they are not seen there.

        The process of a cache that is mounted reads them through the page cache of this host, which
        would pass for hits.
        """
        folder = self.workload.data_folder.absolute()
        origin, mount = Path(self.workload.cache.origin or ""), mount_under(folder)
        folders = [origin]
        if mount is not None and folder.is_relative_to(mount.point):
            folders.append(origin / folder.relative_to(mount.point))
        found = next((each for each in folders if (each / self.layout.path(0)).exists()), None)
        if found is not None:
            yield from (path for path in self._paths(found, files) if Path(path).exists())

    def _say_dropped(
        self, dropped: Pages, *, of_origin: bool = False, seconds: float = 0.0
    ) -> None:
        """Say what all ranks have dropped."""
        everyone = self.world.gather(dropped)
        if everyone is None:
            return
        pages = sum(each.pages for each in everyone)
        stayed = sum(each.resident for each in everyone)
        found = note(
            "dropped_from_page_cache",
            num_files=sum(each.num_files for each in everyone),
            of_origin=of_origin,
            seconds=seconds if seconds > _SAY_SECONDS else None,
            stayed_share=stayed / pages if pages else None,
        )
        self.say(sentence(found))

    def _progress(self, num_files: int) -> Callable[[int], None]:
        """Return what shows the progress of rank 0's host, every few seconds."""
        begin, ranks = time.perf_counter(), self.world.num_local_ranks
        last = begin

        def show(num_done: int) -> None:
            nonlocal last
            now = time.perf_counter()
            if now - last < _SAY_SECONDS or not num_done:
                return
            last = now
            left = (now - begin) * (num_files / num_done - 1)
            done, whole = num_done * ranks, num_files * ranks
            found = note("dropping_files", num_done=done, num_files=whole, seconds_left=left)
            self.say(sentence(found))

        return show


def _any_cached(seen: Sequence[Pages]) -> bool:
    """Return whether pages are in memory, or may be where the kernel does not tell."""
    return any(pages.resident or pages.unknown for pages in seen)


def _named(work: Callable[[], Pages]) -> Pages:
    """Return what `work` returns; raise DatasetError with the file that cannot be opened."""
    try:
        return work()
    except FileNotFoundError as error:
        raise DatasetError(
            f"{error.filename} is missing; dlemu verify tells what else is"
        ) from None
    except OSError as error:
        raise DatasetError(system_line(error)) from None
