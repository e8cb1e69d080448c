"""The relay gives pip what an index has: each thing is fetched once, wheels only in part."""

import hashlib
import io
import json
import re
import sys
import threading
import urllib.error
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from release import relay
from release.pip import Resolved, resolve, user_environment
from release.relay import Relay, relayed
from release.resolve import blame

PYTHON = "{}.{}".format(*sys.version_info[:2])
LARGE = 300_000


def wheel(name: str, version: str, requires: str = "", padding: int = 0) -> bytes:
    """Return a wheel, with so many bytes of content before its metadata."""
    data, folder = io.BytesIO(), f"{name}-{version}.dist-info"
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(f"{name}.py", b"#" * padding)
        asked = f"Requires-Dist: {requires}\n" if requires else ""
        told = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{asked}"
        archive.writestr(f"{folder}/METADATA", told)
        archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{folder}/RECORD", "")
    return data.getvalue()


class Index:
    """An index on this host, without metadata beside its wheels; it counts what is asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        """Bytes of each wheel that went out."""
        self.kind = "application/vnd.pypi.simple.v1+json"
        self.fails = 0
        """So many questions are refused before one is answered."""
        self.wheels = {
            f"{name}-{version}-py3-none-any.whl": wheel(name, version, *more)
            for name, version, *more in (
                ("numpy", "2.0"),
                ("one", "1.0", "two==1.5"),
                ("one", "2.0", "two==1.5", LARGE),
                ("two", "1.5"),
                ("two", "3.0"),
            )
        }

    def answer(self, path: str, asked_range: str | None) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body."""
        name = path.rstrip("/").rpartition("/")[2]
        self.asked[name] += 1
        if self.fails:
            self.fails -= 1
            return 503, {}, b"too many at once"
        if (data := self.wheels.get(name)) is not None:
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked_range or "")
            assert found is not None, "a wheel is asked for in parts"
            part = data[int(found[1]) : int(found[2]) + 1]
            self.sent[name] += len(part)
            where = f"bytes {found[1]}-{int(found[1]) + len(part) - 1}/{len(data)}"
            return 206, {"Content-Range": where}, part
        files = [
            {
                "filename": file,
                "url": f"../../files/{file}",
                "hashes": {"sha256": hashlib.sha256(data).hexdigest()},
            }
            for file, data in self.wheels.items()
            if file.startswith(f"{name}-")
        ]
        if not files:
            return 404, {}, b""
        page = {"meta": {"api-version": "1.0"}, "name": name, "files": files}
        return 200, {"Content-Type": self.kind}, json.dumps(page).encode()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index that listens, and to which pip's environment leads."""
    found = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = found.answer(self.path, self.headers["Range"])
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(relay, "_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(relay, "_WHOLE", LARGE // 10)
    monkeypatch.setattr(relay, "_BLOCK", 4096)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_address[1]}/simple")
        yield found
        server.shutdown()


def asked_of_pip(way: dict[str, str], *words: str) -> Resolved:
    return resolve(["--ignore-installed", *words], Path(sys.executable), way)


def test_pip_finds_what_the_index_has_and_each_thing_is_fetched_once(index: Index) -> None:
    with relayed(user_environment(), {}, [PYTHON]) as way:
        for _ in range(2):
            found = asked_of_pip(way, "one")
            assert found.versions == {"one": "2.0", "two": "1.5"}, found.said
        told = found.report
    assert told is not None
    hashes = {each["download_info"]["archive_info"]["hash"] for each in told["install"]}
    assert hashes == {
        f"sha256={hashlib.sha256(index.wheels[name]).hexdigest()}"
        for name in ("one-2.0-py3-none-any.whl", "two-1.5-py3-none-any.whl")
    }
    pages = {name: times for name, times in index.asked.items() if not name.endswith(".whl")}
    assert pages == {"numpy": 1, "one": 1, "two": 1}
    assert index.asked["two-1.5-py3-none-any.whl"] == 1
    assert 0 < index.sent["one-2.0-py3-none-any.whl"] < LARGE // 4, "its content is not fetched"


def test_what_is_asked_for_next_is_fetched_ahead(index: Index) -> None:
    known = Relay(user_environment()["PIP_INDEX_URL"], {"one": "1.0"}, [PYTHON])
    try:
        known.fetch_ahead("one")
        # No pip has asked: the relay reads itself that `one` needs `two` 1.5.
        for name in ("one-1.0-py3-none-any.whl", "two-1.5-py3-none-any.whl"):
            url = f"{user_environment()['PIP_INDEX_URL'].removesuffix('/simple')}/files/{name}"
            assert b"Name: " + name[:3].encode() in known.metadata(url)
        assert index.asked["one-1.0-py3-none-any.whl"] == 1
        assert not index.asked["one-2.0-py3-none-any.whl"], "its pin says which one"
    finally:
        known.stop()


def test_a_pin_that_fits_nothing_is_named_as_without_a_relay(index: Index, tmp_path: Path) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text("two==3.0\n")
    with relayed(user_environment(), {"two": "3.0"}, [PYTHON]) as way:
        found = asked_of_pip(way, "-c", str(pins), "one==1.0")
        missing = asked_of_pip(way, "three")
    assert found.report is None and missing.report is None
    pin, asker = blame(found.said, pins.read_text())
    assert pin == "pin two==3.0" and asker == "one 1.0 depends on two==1.5"
    assert "No matching distribution found for three" in missing.said


def test_an_index_that_refuses_some_is_asked_again(index: Index) -> None:
    index.fails = 2
    known = Relay(user_environment()["PIP_INDEX_URL"], {}, [PYTHON])
    try:
        assert [each["filename"] for each in known.page("numpy")["files"]]
        assert index.asked["numpy"] == 3
        index.fails = 3
        with pytest.raises(urllib.error.HTTPError, match="503"):
            known.page("one")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            known.page("one")
        assert index.asked["one"] == 3, "what failed is not asked for again"
    finally:
        known.stop()


def test_an_index_of_another_kind_is_asked_by_pip_itself(index: Index) -> None:
    index.kind = "text/html"
    own = user_environment()
    with relayed(own, {}, [PYTHON]) as way:
        assert way == own


def test_an_index_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_PAUSES", ())
    with pytest.raises(OSError), relayed({"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}, {}, []):
        pytest.fail("nothing can be resolved")


def test_what_the_index_cannot_give_is_an_error_for_pip(index: Index) -> None:
    with relayed(user_environment(), {}, [PYTHON]) as way:
        index.fails = 100
        with pytest.raises(urllib.error.HTTPError, match="502"):
            urllib.request.urlopen(f"{way['PIP_INDEX_URL']}/two/")
        index.fails = 0
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{way['PIP_INDEX_URL']}/three/")
