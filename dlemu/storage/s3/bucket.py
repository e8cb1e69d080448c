"""A bucket as a place: names need no folders, and what was put is there, whole."""

import errno
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, ClassVar

from dlemu.errors import system_error
from dlemu.storage.counted import Get, Got
from dlemu.storage.place import MissingError, Place, Read
from dlemu.storage.s3 import SCHEME, Access, access_of
from dlemu.storage.s3.store import Store, store_of

if TYPE_CHECKING:
    import threading


class Bucket(Place):
    """A prefix in a bucket of S3 servers: s3://bucket/prefix."""

    kind: ClassVar[str] = "s3"
    word: ClassVar[str] = "a bucket"
    shape: ClassVar[str] = "BUCKET/PREFIX"
    needs: ClassVar[tuple[str, str]] = ("obstore", "dlemu[s3]")

    @classmethod
    def reach(cls, keys: Any = None) -> Access:
        return access_of(keys)

    @property
    def servers(self) -> tuple[str, ...]:
        return self._known_access.servers

    @property
    def store(self) -> Store:
        """How the worker reaches it: endpoints are dealt out in turn."""
        return store_of(self._known_access, self.number, self.path.parts[0])

    @property
    def _known_access(self) -> Access:
        known: Access = self.access or access_of()
        return known

    def open(self, name: str) -> IO[bytes]:
        return io.BytesIO(self.whole(name))

    def list(self, below: str) -> Iterator[tuple[str, int]]:
        base = self._key("")
        for key, num_bytes in self.store.sizes(self._key(below).rstrip("/")):
            yield key[len(base) :], num_bytes

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        self.store.put(self._key(name), memoryview(b"".join(pieces)))

    def stream(
        self, name: str, pieces: Iterable[bytes], num_bytes: int, *, part_bytes: int, at_once: int
    ) -> None:
        key = self._key(name)
        self.store.put(key, iter(pieces), num_bytes, part_bytes=part_bytes, at_once=at_once)

    def delete(self, *names: str) -> None:
        for name in names:
            self.store.delete(self._key(name))

    def whole(self, name: str) -> bytes:
        try:
            return self.store.get_whole(self._key(name))
        except MissingError:
            raise system_error(errno.ENOENT, self.path / name) from None

    def get(
        self, name: str, start: int, stop: int | None, *, given_up: "threading.Event | None" = None
    ) -> Got:
        return self.store.get(self._key(name), start, stop, given_up=given_up)

    def getter(self) -> Get:
        get = self.store.get  # bound once, not for each request

        def got(path: str, *extent: Any, **given_up: Any) -> Got:
            return get(path.removeprefix(SCHEME).partition("/")[2], *extent, **given_up)

        return got

    @contextmanager
    def reading(self, name: str) -> Iterator[Read]:
        memory = self.store.get(self._key(name), 0, None).memory

        def read(into: memoryview, offset: int) -> int:
            part = memory[offset : offset + len(into)]
            into[: len(part)] = part
            return len(part)

        yield read

    def _key(self, name: str) -> str:
        """Return the key of a file; of "" that of the folder, with its "/"."""
        return "/".join((*self.path.parts[1:], name))
