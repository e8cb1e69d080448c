"""A server of byte ranges, and S3's of moto: how many requests came, and faults on demand.

`RangeServer` is no S3 server: it gives the files of a folder by sendfile, checks no signature, and
answers neither LIST nor HEAD. It is for rates:

    python -m tests.lab.object_server FOLDER [PORT [ADDRESS]]

`moto_server` is for correctness only.
"""

import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_PIECE = 1 << 20
_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
REFUSED = b"<Error><Code>SlowDown</Code></Error>"


@dataclass
class Faults:
    """What the next requests for objects meet."""

    refuse: int = 0
    """So many are answered 503 SlowDown."""
    cut: int = 0
    """So many answers end in the middle of their body."""
    hang: threading.Event | None = None
    """Requests wait until it is set."""
    hang_after: int = 0
    """So many are answered before."""

    def meets(self, what: str) -> bool:
        """Return whether a request meets one of so many."""
        left = getattr(self, what)
        setattr(self, what, max(0, left - 1))
        return bool(left > 0)


@dataclass
class Seen:
    """Requests that have come."""

    methods: Counter[str] = field(default_factory=Counter)
    """GET, HEAD, PUT, POST, DELETE, and LIST, which S3 spells as a GET of a bucket."""
    keys: Counter[str] = field(default_factory=Counter)
    """GETs of each object, by its path: "/bucket/name"."""
    ranges: int = 0
    """GETs that asked for a range."""

    def clear(self) -> None:
        self.methods.clear()
        self.keys.clear()
        self.ranges = 0

    def note(self, method: str, path: str, query: str, *, ranged: bool) -> None:
        lists = method == "GET" and ("list-type" in query or path.strip("/").count("/") == 0)
        self.methods["LIST" if lists else method] += 1
        if method == "GET" and not lists:
            self.keys[path] += 1
            self.ranges += ranged


class RangeServer(ThreadingHTTPServer):
    """Serves the files of a folder as the objects of any bucket: /BUCKET/NAME."""

    request_queue_size = 1024

    def __init__(self, folder: Path, *, port: int = 0, address: str = "127.0.0.1") -> None:
        super().__init__((address, port), _Handler)
        self.folder, self.seen, self.faults = folder, Seen(), Faults()
        self.lock = threading.Lock()
        self.url = f"http://{address}:{self.server_port}"

    def __enter__(self) -> "RangeServer":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: RangeServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        seen, faults = self.server.seen, self.server.faults
        path, _, query = self.path.partition("?")
        wanted = self.headers.get("Range")
        with self.server.lock:
            seen.note("GET", path, query, ranged=wanted is not None)
            refused = faults.meets("refuse")
            cut = not refused and faults.meets("cut")
            answered = seen.methods["GET"] <= faults.hang_after
        if faults.hang is not None and not answered:
            faults.hang.wait()
        if refused:
            self._begin(503, len(REFUSED))
            self.wfile.write(REFUSED)
            return
        try:
            file = os.open(self.server.folder / path.strip("/").partition("/")[2], os.O_RDONLY)
        except OSError:
            self._begin(404, 0)
            return
        try:
            self._give(file, wanted, cut)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            os.close(file)

    def _give(self, file: int, wanted: str | None, cut: bool) -> None:
        """Answer with a file, or a range of it; `cut`: with half of that."""
        size = os.fstat(file).st_size
        start, stop, more = 0, size, {"ETag": '"0"', "Last-Modified": _DATE}
        if wanted is not None:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(size, int(last) + 1)
            more["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self._begin(200 if wanted is None else 206, stop - start, **more)
        if cut:
            stop = start + (stop - start) // 2
            self.close_connection = True
        while start < stop:
            start += os.sendfile(self.connection.fileno(), file, start, min(_PIECE, stop - start))
        if cut:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def _begin(self, status: int, length: int, **more: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()

    def do_HEAD(self) -> None:
        self.server.seen.methods["HEAD"] += 1
        self.send_error(405)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@dataclass
class Moto:
    """moto's S3 server in threads of this process."""

    url: str
    seen: Seen
    faults: Faults


@contextmanager
def moto_server() -> Iterator[Moto]:
    """Yield an S3 server whose buckets are in memory."""
    from moto.moto_api._internal.models import moto_api_backend
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    inner = DomainDispatcherApplication(create_backend_app)
    moto, lock = Moto("", Seen(), Faults()), threading.Lock()

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        with lock:
            ranged = "HTTP_RANGE" in environ
            moto.seen.note(method, environ["PATH_INFO"], query, ranged=ranged)
            refused = moto.faults.meets("refuse")
        if refused:
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [REFUSED]
        answer: Iterable[bytes] = inner(environ, start)
        return answer

    class Silent(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Silent)
    moto.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield moto
    finally:
        server.shutdown()
        moto_api_backend.reset()  # buckets are this process's: the next server would have them


def main(folder: str, port: str = "0", address: str = "127.0.0.1") -> None:
    """Serve a folder until stdin ends; print the URL first."""
    with RangeServer(Path(folder), port=int(port), address=address) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
