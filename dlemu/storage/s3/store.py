"""One bucket at one server, by obstore: requests with a time limit and bounded retries.

obstore's own retries are off where requests are counted: it tells nobody of them.
"""

import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import lru_cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from dlemu.errors import VERIFY, DatasetError, RunError, WorkloadError
from dlemu.storage.counted import Got
from dlemu.storage.place import MissingError
from dlemu.storage.s3 import SCHEME, Access
from dlemu.units import ceil_div

if TYPE_CHECKING:
    from obstore.store import S3Config

T = TypeVar("T")

_CONNECT_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_PART_BYTES = 16 << 20
"""Bytes of a part of a large object that is written; S3 wants 5 MiB to 5 GiB."""
_MOST_PARTS = 10_000
_PARTS_AT_ONCE = 4
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,80})</Code>")
_ALL_HOSTS = "*,0.0.0.0/0,::/0"
"""Names and addresses that go past a proxy: all. No option of the library leaves the environment's
proxies out, but one that is set takes their place."""
_NO_PROXY = {"proxy_url": "http://127.0.0.1:9", "proxy_excludes": _ALL_HOSTS}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_ANY = "storage.verify_tls=false takes any"
_CA = f"storage.ca_file=FILE names one's own (AWS_CA_BUNDLE, SSL_CERT_FILE), {_ANY}"
_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_SLOW_DOWN = {429, 503}
_REMEDIES = {
    301: "set storage.region to the bucket's, and storage.endpoint_url to its server",
    400: "see whether storage.region is the bucket's, and the server gives ranges of objects",
    405: "see whether storage.endpoint_url names an S3 server",
    409: "wait until the other command that writes there has ended",
    413: "the server takes no objects of that size; lower the size of files or parts",
    501: "see whether storage.endpoint_url names an S3 server",
    507: "make room, or name another bucket",
}
"""By the status of an answer that another try would not change."""


class Store:
    """A bucket at one endpoint. Threads may share it; a forked child may not use it."""

    def __init__(self, access: Access, endpoint: str, bucket: str) -> None:
        self._library, self._errors = _import_obstore()
        from obstore.store import S3Store

        self.endpoint, self._bucket, self._proxy = endpoint, bucket, access.proxy
        self._retries, self._seconds = access.retries, access.get_seconds
        config: S3Config = {
            "endpoint": endpoint,
            "region": access.region,
            "virtual_hosted_style_request": False,
            "skip_signature": not access.key_id,
        }
        if access.key_id:
            config["access_key_id"] = access.key_id
            config["secret_access_key"] = access.secret
        if access.token:
            config["session_token"] = access.token
        most = timedelta(seconds=access.get_seconds)
        client: Any = {
            "allow_http": True,
            "timeout": most,
            "connect_timeout": min(timedelta(seconds=_CONNECT_SECONDS), most),
            **({"proxy_url": access.proxy} if access.proxy else _NO_PROXY),
            **({"root_certificate": access.certificates} if access.certificates else {}),
            **({} if access.verify_tls else {"allow_invalid_certificates": True}),
        }
        opened = partial(
            S3Store,
            bucket,
            config=config,
            client_options=client,
        )
        self._store = opened(retry_config={"max_retries": 0, "retry_timeout": most})
        # Here the library tries again: a part can be sent anew, but not all that is made meanwhile.
        long = most * (access.retries + 1)
        self._writes = opened(retry_config={"max_retries": access.retries, "retry_timeout": long})

    def get(
        self, key: str, start: int, stop: int | None, *, given_up: threading.Event | None = None
    ) -> Got:
        """Return the bytes from `start` to `stop` of an object; None: the whole object.

        When nobody wants the answer any more (`given_up`), it is not tried again.

        Raises:
            DatasetError: there is no such object.
            RunError: the server refuses, or has not answered in any of the tries.
        """
        options = {} if stop is None else {"options": {"range": (start, stop)}}

        def ask() -> tuple[memoryview, int, float]:
            begin = perf_counter()
            answer = self._library.get(self._store, key, **options)
            data = memoryview(answer.bytes())
            return data, answer.meta["size"], perf_counter() - begin

        (data, size, seconds), retries, slow = self._tried(ask, "read", key, given_up)
        return Got(data, size, seconds, retries, slow)

    def get_whole(self, key: str) -> bytes:
        """Return a small object. Raises MissingError if there is none, and as `get` does."""
        return bytes(self.get(key, 0, None).memory)

    def put(
        self,
        key: str,
        data: memoryview | Iterator[bytes],
        num_bytes: int = 0,
        *,
        part_bytes: int = 0,
        at_once: int = _PARTS_AT_ONCE,
    ) -> None:
        """Write an object; a large one in parts, several at a time. Raises as `get` does.

        `data`: its bytes, or pieces of `num_bytes` that are made meanwhile; if they raise, there is
        no object. `part_bytes`: of a part, or more where they would be too many.
        """
        size = len(data) if isinstance(data, memoryview) else num_bytes
        part = max(part_bytes or _PART_BYTES, ceil_div(size, _MOST_PARTS))

        def ask() -> None:
            self._library.put(
                self._writes,
                key,
                data,
                use_multipart=size > part,
                chunk_size=part,
                max_concurrency=at_once,
            )

        self._tried(ask, "written", key, retries=0)

    def delete(self, key: str) -> None:
        """Remove an object; it may be missing."""
        self._tried(lambda: self._library.delete(self._store, key), "removed", key)

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the key and the bytes of each object below a prefix, by listing the bucket."""

        def ask() -> list[tuple[str, int]]:
            pages = self._library.list(self._store, prefix=prefix or None, chunk_size=1000)
            return [(each["path"], each["size"]) for page in pages for each in page]

        yield from self._tried(ask, "listed", prefix)[0]

    def _tried(
        self,
        ask: Callable[[], T],
        verb: str,
        key: str,
        given_up: threading.Event | None = None,
        retries: int | None = None,
    ) -> tuple[T, int, int]:
        """Return what `ask` returns, how often it was tried again, and the answers 503 and 429.

        `retries`: times that it is tried again here; None: as often as the keys say.
        """
        given_up, slow = given_up or threading.Event(), 0
        retries = self._retries if retries is None else retries
        for tries in range(retries + 1):
            try:
                return ask(), tries, slow
            except (self._errors.BaseError, OSError, NotImplementedError) as error:
                status, line = _status_of(error)
                slow += status in _SLOW_DOWN
                if status not in _AGAIN and status != 0:
                    raise self._refusal(status, line, verb, key) from None
                if tries == retries or given_up.is_set():
                    tries = max(tries, self._retries - retries)  # those of the library
                    raise self._no_answer(status, line, verb, key, tries + 1) from None
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**tries)
            given_up.wait(pause * random.uniform(0.5, 1.0))
        raise AssertionError

    def _refusal(self, status: int, line: str, verb: str, key: str) -> Exception:
        """Return the error for an answer that another try would not change."""
        name = f"{SCHEME}{self._bucket}/{key}"
        code = _CODE.search(line)
        if "NoSuchBucket" in line:
            return RunError(
                f"{self.endpoint} has no bucket {self._bucket}; make it, or name another"
            )
        if status == 404:
            return MissingError(f"{name} is missing", remedy=VERIFY)
        if status in (401, 403):
            return RunError(
                f"{self.endpoint} refuses {name} ({status}{f' {code[1]}' if code else ''}); check "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of rank 0, or "
                "storage.access_key_id and storage.secret_access_key"
            )
        if status == 416:
            return DatasetError(
                f"{name} is shorter than it should be", remedy="dlemu verify lists such objects"
            )
        return RunError(
            f"{name} cannot be {verb} at {self.endpoint}: {status}{f' {code[1]}' if code else ''}",
            remedy=_REMEDIES.get(status, "see what the server's log says of it"),
        )

    def _no_answer(self, status: int, line: str, verb: str, key: str, tries: int) -> RunError:
        cause = _cause(line)
        if cause == "connection reset" and self.endpoint.startswith("http://"):
            cause += "; if it wants TLS, write https://"
        what = f"answers {status}" if status else f"does not answer ({cause})"
        proxy = f" by the proxy {self._proxy}" if self._proxy else ""
        up = "are the server and the proxy (storage.proxy)" if proxy else "is the server"
        ignored = "" if proxy or status else _ignored_proxy()
        return RunError(
            f"{SCHEME}{self._bucket}/{key} cannot be {verb}: {self.endpoint}{proxy} {what}, in "
            f"each of {tries} tries; {up} up (storage.endpoint_url, storage.get_seconds="
            f"{self._seconds:g}, storage.retries={self._retries})?{ignored}"
        )


def _ignored_proxy() -> str:
    """Return that the environment names a proxy, which is not used; "" if it names none."""
    named = [each for name in _PROXIES for each in (name, name.upper()) if os.environ.get(each)]
    if not named:
        return ""
    return f" {named[0]} of the environment is not used here; storage.proxy=URL sets a proxy"


def _status_of(error: Exception) -> tuple[int, str]:
    """Return the status in an error, 0 without an answer, and its whole text."""
    text = str(error)
    found = _STATUS.search(text)
    if found:
        return int(found[1]), text
    # A server that ignores ranges, or a request that cannot be built: another try changes nothing.
    return (400 if "NotPartial" in text or "NotSupported" in text else 0), text


def _cause(text: str) -> str:
    """Return why there was no answer, in a few words."""
    for mark, words in (
        ("UnknownIssuer", f"its certificate is signed by an unknown authority; {_CA}"),
        ("CaUsedAsEndEntity", f"its certificate is that of an authority; {_CA}"),
        ("NotValidForName", "its certificate is for another name; take that name, or " + _ANY),
        ("Expired", "its certificate has expired; " + _ANY),
        ("NotValidYet", "its certificate is not valid yet; see whether the clocks agree"),
        ("InvalidCertificate", f"its certificate is refused; {_CA}"),
        ("InvalidContentType", "it does not speak TLS there; write http://"),
        ("ConnectionRefused", "connection refused"),
        ("dns error", "no such host"),
        ("kind: Timeout", "time-out"),
        ("TimedOut", "time-out"),
        ("IncompleteBody", "the connection was closed before the last byte"),
        ("ConnectionReset", "connection reset"),
    ):
        if mark in text:
            return words
    return text.partition("\n")[0].rpartition(": ")[2][:80] or "no reason is given"


def _import_obstore() -> tuple[Any, Any]:
    try:
        import obstore
        from obstore import exceptions
    except ModuleNotFoundError as error:
        raise WorkloadError(
            f"a data folder in a bucket needs {error.name}: pip install 'dlemu[s3]'"
        ) from None
    return obstore, exceptions


def store_of(access: Access, number: int, bucket: str) -> Store:
    """Return this process's store for worker `number`: the endpoints are dealt out in turn."""
    return _store_at(access, access.endpoints[number % len(access.endpoints)], bucket)


@lru_cache(maxsize=256)
def _store_at(access: Access, endpoint: str, bucket: str) -> Store:
    return Store(access, endpoint, bucket)
