"""Objects in a bucket of an S3 server: requests with bounded retries, and their totals.

How the servers of a bucket (s3://bucket/prefix) are reached stands here. `bucket` is the place, and
only `store` knows the library, obstore, which is imported on demand. It is not fork-safe, so
workers are threads, and each process makes its own stores. `storage.objects` reads by requests.
"""

import os
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dlemu.errors import WorkloadError
from dlemu.storage.files import read_regular

SCHEME = "s3://"
_AWS = "https://s3.{region}.amazonaws.com"
_REGION = "us-east-1"


@dataclass(frozen=True)
class Access:
    """How a bucket is reached. Ranks get it from rank 0; it is never written or shown."""

    endpoints: tuple[str, ...]
    """URLs of the servers; each worker has one of them."""
    region: str
    key_id: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """Of a session; "" without one."""
    get_seconds: float = 60.0
    """A request that takes longer is given up and tried again."""
    retries: int = 8
    """Times that a request is tried again."""
    proxy: str = ""
    """URL of the proxy that requests go through; "": none, whatever the environment says."""
    certificates: bytes = field(default=b"", repr=False)
    """Of authorities, beside the public ones, in PEM."""
    verify_tls: bool = True
    """Whether the certificate of a server is checked."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The endpoints by the names that results show: with the proxy, if there is one."""
        way = f" by the proxy {self.proxy}" if self.proxy else ""
        return tuple(f"{endpoint}{way}" for endpoint in self.endpoints)


def access_of(storage: Any = None) -> Access:
    """Return what the keys `storage.*` say, or none; what they leave open, AWS's variables say.

    Raises:
        WorkloadError: an endpoint is no URL, or one half of the credentials is missing.
    """
    env, keys = os.environ.get, partial(getattr, storage)
    endpoints, proxy = keys("endpoint_url", ()), keys("proxy", None)
    region = keys("region", None) or env("AWS_REGION") or env("AWS_DEFAULT_REGION") or _REGION
    if not endpoints:
        named = env("AWS_ENDPOINT_URL_S3") or env("AWS_ENDPOINT_URL") or ""
        endpoints = tuple(named.split(",")) if named else (_AWS.format(region=region),)
    for endpoint in endpoints:
        _check_url(
            "storage.endpoint_url",
            endpoint,
            "http://10.0.0.7:9000",
            "set storage.access_key_id and storage.secret_access_key",
        )
    key_id, secret = (
        _revealed(keys(name, None)) for name in ("access_key_id", "secret_access_key")
    )
    token = ""
    if not (key_id or secret):
        key_id, secret = env("AWS_ACCESS_KEY_ID", ""), env("AWS_SECRET_ACCESS_KEY", "")
        token = env("AWS_SESSION_TOKEN", "")
    if bool(key_id) != bool(secret):
        missing = "storage.secret_access_key" if key_id else "storage.access_key_id"
        raise WorkloadError(
            f"{missing} is not set, its other half is; set both keys, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment of rank 0"
        )
    if proxy:
        _check_url("storage.proxy", proxy, "http://10.0.0.1:3128", "name a proxy without")
    found = Access(endpoints, region, key_id, secret, token, proxy=proxy or "")
    own = ("get_seconds", "retries", "verify_tls")
    limits = {name: keys(name, getattr(found, name)) for name in own}
    return replace(found, certificates=_certificates(keys("ca_file", None)), **limits)


def _certificates(ca_file: str | None) -> bytes:
    """Return the certificates of private authorities that the key or the environment names."""
    named = {f"storage.ca_file={ca_file}": ca_file} if ca_file else {}
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        named |= {f"{name}={os.environ[name]}": os.environ[name]} if os.environ.get(name) else {}
    for given, path in named.items():
        try:
            content = read_regular(Path(path), error=WorkloadError)
        except OSError as error:
            raise WorkloadError.of_system(
                error, given, "cannot be read", "name a file of certificates in PEM"
            ) from None
        if b"-----BEGIN CERTIFICATE-----" not in content:
            raise WorkloadError(f"{given} holds no certificate in PEM; name another file")
        return content
    return b""


def _revealed(secret: Any) -> str:
    return "" if secret is None else str(secret.get_secret_value())


def _check_url(key: str, url: str, example: str, remedy: str) -> None:
    """Refuse what is no plain URL of a server; a password in it would be shown."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if "@" in url:
        raise WorkloadError(f"{key} must not have a user or a password; {remedy}")
    if not fits:
        raise WorkloadError(f"{key} must be URLs such as {example}, got {url[:80]!a}")
