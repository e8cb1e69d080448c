"""A place of one's own: any file system that fsspec knows, as my_place:PLACE://PROTOCOL/PATH.

Its contract is checked, a dataset is written, compared and read there, by:

    cd examples
    python -m dlemu.contract my_place:PLACE://file/tmp
    FOLDER=my_place:PLACE://file/tmp/speech
    dlemu datagen workload=speech.yaml dataset.data_folder=$FOLDER
    dlemu verify $FOLDER
    dlemu run workload=speech.yaml dataset.data_folder=$FOLDER reader.data_loader=threads
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO, Any

import fsspec

from dlemu.storage.files import PARTIAL
from dlemu.storage.place import Place


class Fsspec(Place):
    kind = "fsspec"
    word = "a file system of fsspec"
    shape = "PROTOCOL/PATH"
    needs = ("fsspec", "fsspec")

    def open(self, name: str) -> IO[bytes]:
        file: IO[bytes] = self._system.open(self._path(name), "rb")
        return file

    def list(self, below: str) -> Iterator[tuple[str, int]]:
        start = len(self._path("")) + 1
        for path, entry in self._system.find(self._path(below), detail=True).items():
            yield path[start:], entry["size"]

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        path = self._path(name)
        self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            with self._system.open(path + PARTIAL, "wb") as file:
                for piece in pieces:
                    file.write(piece)
            self._system.mv(path + PARTIAL, path)
        except BaseException:
            self.delete(name + PARTIAL)
            raise

    def delete(self, *names: str) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._system.rm_file(self._path(name))
            with suppress(OSError):  # the first that is not empty ends it
                while name := name.rpartition("/")[0]:
                    self._system.rmdir(self._path(name))

    @property
    def _system(self) -> Any:
        return fsspec.filesystem(self.path.parts[0])  # the same object each time

    def _path(self, name: str) -> str:
        return "/" + "/".join((*self.path.parts[1:], name)).rstrip("/")


PLACE = Fsspec
