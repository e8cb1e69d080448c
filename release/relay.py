"""A relay to PyPI, on this host: it fetches ahead, and each thing once for many pips.

pip asks for one package after the other, and where an index has no metadata beside its wheels, for
several pieces of each wheel. The relay reads from the metadata what will be asked for next. What it
hands out is the index's: pages with the same files and checksums, and METADATA out of the wheels.
"""

import base64
import email
import io
import json
import os
import platform
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from release.pip import canonical

_JSON = "application/vnd.pypi.simple.v1+json"
_WHOLE = 4_000_000
"""Bytes up to which a wheel is fetched whole: one answer instead of several."""
_BLOCK = 2**18
_AHEAD = 12
_PATIENCE = 30.0
_PAUSES = (0.5, 2.0)
"""Seconds between attempts."""


class Relay:
    """What was fetched, by address; each is fetched once.

    Args:
        index: address of the index, as of `PIP_INDEX_URL`.
        pins: {canonical name: version}.
        pythons: versions as 3.12, whose wheels are fetched ahead.
    """

    def __init__(self, index: str, pins: dict[str, str], pythons: list[str]) -> None:
        self._index, self._pins = index.rstrip("/"), pins
        self._tags = re.compile("|".join(["py3-none-any", *map(_tag, pythons)]))
        self._known: dict[str, Future[Any]] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(_AHEAD)
        self._context = ssl.create_default_context(cafile=_certificates())

    def page(self, name: str) -> dict[str, Any]:
        """Return the index's page of a package, in the form of PEP 691.

        Raises:
            OSError: no answer, or an error as an answer.
            ValueError: the index answers in HTML.
        """
        page: dict[str, Any]
        page = self._once(f"page {name}", lambda: self._fetch_page(name)).result()
        return page

    def metadata(self, url: str) -> bytes:
        """Return METADATA of a wheel.

        Raises:
            OSError: no answer.
        """
        told: bytes = self._once(f"metadata {url}", lambda: self._fetch_metadata(url)).result()
        return told

    def fetch_ahead(self, name: str, version: str | None = None) -> None:
        """Fetch page and metadata of what pip may soon ask for."""
        self._once(f"ahead {name} {version}", lambda: self._look_at(name, version), self._pool)

    def _once(
        self, key: str, work: Callable[[], Any], pool: ThreadPoolExecutor | None = None
    ) -> Future[Any]:
        with self._lock:
            if (known := self._known.get(key)) is not None:
                return known
            future = self._known[key] = Future()

        def done() -> None:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        if pool is None:
            done()
        else:
            pool.submit(done)
        return future

    def _look_at(self, name: str, version: str | None) -> None:
        files = self.page(name)["files"]
        version = self._pins.get(name, version)
        wheels = [file for file in files if file["filename"].endswith(".whl")]
        wheels = [file for file in wheels if not file.get("yanked") and self._fits(file)]
        if version is None and wheels:
            numbers = [file["filename"].split("-")[1] for file in wheels]
            version = [each for each in numbers if re.fullmatch(r"[\d.]+(post\d+)?", each)][-1]
        for file in wheels:
            if version is not None and _is_version(file["filename"], version):
                self._once(
                    f"metadata {file['url']}",
                    lambda url=file["url"]: self._fetch_metadata(url),  # type: ignore[misc]
                    self._pool,
                )

    def _fits(self, file: dict[str, Any]) -> bool:
        return self._tags.search(file["filename"]) is not None

    def _fetch_page(self, name: str) -> dict[str, Any]:
        with self._open(f"{self._index}/{name}/", Accept=_JSON) as answer:
            if "json" not in answer.headers.get("Content-Type", ""):
                raise ValueError(f"{self._index} answers in HTML")
            page: dict[str, Any] = json.load(answer)
        for file in page["files"]:
            file["url"] = urllib.parse.urljoin(f"{self._index}/{name}/", file["url"])
        return page

    def _fetch_metadata(self, url: str) -> bytes:
        try:
            with self._open(url, Range=f"bytes=0-{_WHOLE - 1}") as answer:
                total = int(answer.headers.get("Content-Range", "/0").rpartition("/")[2])
                wheel: io.IOBase
                if answer.status != 206 or total <= _WHOLE:
                    wheel = io.BytesIO(answer.read())
                else:
                    wheel = io.BufferedReader(_Remote(self, url, total), _BLOCK)
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (
                    each
                    for each in archive.namelist()
                    if re.fullmatch(r"[^/]*\.dist-info/METADATA", each)
                )
                told = archive.read(name)
        except (zipfile.BadZipFile, ValueError) as error:
            raise OSError(f"{url}: {error}") from error
        for each in email.message_from_bytes(told).get_all("Requires-Dist", []):
            exact = re.match(r"([\w.-]+)[^;]*?==\s*([\d.]+\d)(?!\.?\*)", each)
            asked = canonical(re.split(r"[^\w.-]", each, maxsplit=1)[0])
            if "extra ==" not in each or exact:
                self.fetch_ahead(asked, exact[2] if exact else None)
        return told

    def _open(self, url: str, **headers: str) -> Any:
        request = urllib.request.Request(url, headers=headers)
        for pause in _PAUSES:
            try:
                return urllib.request.urlopen(request, timeout=_PATIENCE, context=self._context)
            except OSError as error:  # of a crowd, an index refuses some
                if isinstance(error, urllib.error.HTTPError) and error.code == 404:
                    raise
                time.sleep(pause)
        return urllib.request.urlopen(request, timeout=_PATIENCE, context=self._context)

    def stop(self) -> None:
        """Fetch nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def piece(self, url: str, first: int, end: int) -> bytes:
        """Return the bytes of a file from `first` up to, but without, `end`."""
        with self._open(url, Range=f"bytes={first}-{end - 1}") as answer:
            data: bytes = answer.read()
            return data


class _Remote(io.RawIOBase):
    """A file behind an address, read in pieces."""

    def __init__(self, relay: Relay, url: str, size: int) -> None:
        self._relay, self._url, self._size, self._at = relay, url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, into: Any) -> int:
        end = min(self._at + len(into), self._size)
        data = self._relay.piece(self._url, self._at, end) if end > self._at else b""
        into[: len(data)] = data
        self._at += len(data)
        return len(data)


@contextmanager
def relayed(
    environment: dict[str, str], pins: dict[str, str], pythons: list[str]
) -> Iterator[dict[str, str]]:
    """Yield the environment for pip, in which the index is a relay to the one that was there.

    Raises:
        OSError: the index cannot be reached.
    """
    relay = Relay(environment.get("PIP_INDEX_URL", "https://pypi.org/simple"), pins, pythons)
    try:
        relay.page("numpy")
    except ValueError:  # an index of another kind: pip asks it itself, which takes longer
        yield environment
        return
    for name in pins:
        relay.fetch_ahead(name)
    with _serving(relay) as address:
        yield environment | {"PIP_INDEX_URL": address, "no_proxy": "127.0.0.1"}


@contextmanager
def _serving(relay: Relay) -> Iterator[str]:
    """Serve on a port of this host; yield the index's address for pip."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                self._answer()
            except urllib.error.HTTPError as error:
                self.send_error(404 if error.code == 404 else 502, str(error))
            except (OSError, ValueError) as error:
                self.send_error(502, str(error)[:200].replace("\n", " "))

        def _answer(self) -> None:
            _, kind, *rest = self.path.split("/")
            if kind == "simple":
                page = dict(relay.page(rest[0]))
                page["files"] = [_through(file, address) for file in page["files"]]
                return self._send(json.dumps(page).encode(), _JSON)
            url = base64.urlsafe_b64decode(urllib.parse.unquote(rest[0])).decode()
            if rest[1].endswith(".metadata"):
                return self._send(relay.metadata(url), "application/octet-stream")
            self.send_response(302)
            self.send_header("Location", url)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _send(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"{address}/simple"
        finally:
            server.shutdown()
            relay.stop()


def _through(file: dict[str, Any], address: str) -> dict[str, Any]:
    """Return a file of a page as it is, but a wheel's address leads through the relay."""
    if not file["filename"].endswith(".whl"):
        return file
    at = base64.urlsafe_b64encode(file["url"].encode()).decode()
    return file | {"url": f"{address}/file/{at}/{file['filename']}", "core-metadata": True}


def _tag(python: str) -> str:
    major, minor = python.split(".")
    return rf"(-cp{major}{minor}|-abi3|-none)-[^-]*linux[^-]*{platform.machine()}"


def _is_version(filename: str, version: str) -> bool:
    """A version of two parts may be written with three."""
    zeros = r"(\.0)*$"
    return re.sub(zeros, "", filename.split("-")[1]) == re.sub(zeros, "", version)


def _certificates() -> str | None:
    names = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
