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


class RangeServer:
    """Serves the files of a folder as the objects of any bucket: /BUCKET/NAME."""

    def __init__(self, folder: Path, *, port: int = 0, address: str = "127.0.0.1") -> None:
        self.seen, self.faults = Seen(), Faults()
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def do_GET(self) -> None:
                outer._answer(self, folder)

            def do_HEAD(self) -> None:
                outer.seen.methods["HEAD"] += 1
                self.send_error(405)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 1024

        self._server = Server((address, port), Handler)
        self.url = f"http://{address}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "RangeServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler, folder: Path) -> None:
        path, _, query = handler.path.partition("?")
        wanted = handler.headers.get("Range")
        with self._lock:
            self.seen.note("GET", path, query, ranged=wanted is not None)
            refused = self.faults.refuse > 0
            self.faults.refuse -= refused
            cut = not refused and self.faults.cut > 0
            self.faults.cut -= cut
            answered = self.seen.methods["GET"] <= self.faults.hang_after
        if self.faults.hang is not None and not answered:
            self.faults.hang.wait()
        if refused:
            _send(handler, 503, b"<Error><Code>SlowDown</Code></Error>")
            return
        try:
            file = os.open(folder / path.strip("/").partition("/")[2], os.O_RDONLY)
        except OSError:
            _send(handler, 404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        try:
            size = os.fstat(file).st_size
            start, stop = 0, size
            if wanted is not None:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(size, int(last) + 1)
            handler.send_response(200 if wanted is None else 206)
            handler.send_header("Content-Length", str(stop - start))
            handler.send_header("ETag", '"0"')
            handler.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            if wanted is not None:
                handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            handler.end_headers()
            handler.wfile.flush()
            if cut:
                stop = start + (stop - start) // 2
                handler.close_connection = True
            while start < stop:
                count = min(_PIECE, stop - start)
                start += os.sendfile(handler.connection.fileno(), file, start, count)
            if cut:
                with suppress(OSError):
                    handler.connection.shutdown(socket.SHUT_RDWR)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True
        finally:
            os.close(file)


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@dataclass
class Moto:
    """moto's S3 server in threads of this process."""

    url: str
    seen: Seen
    faults: Faults


@contextmanager
def moto_server() -> Iterator[Moto]:
    """Yield an S3 server whose buckets are in memory."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    inner = DomainDispatcherApplication(create_backend_app)
    moto, lock = Moto("", Seen(), Faults()), threading.Lock()

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        with lock:
            ranged = "HTTP_RANGE" in environ
            moto.seen.note(method, environ["PATH_INFO"], query, ranged=ranged)
            refused = moto.faults.refuse > 0
            moto.faults.refuse -= refused
        if refused:
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code></Error>"]
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


def main(folder: str, port: str = "0", address: str = "127.0.0.1") -> None:
    """Serve a folder until stdin ends; print the URL first."""
    with RangeServer(Path(folder), port=int(port), address=address) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
