"""Data folders in a bucket: s3://bucket/prefix, the servers that hold it, and the keys to them."""

import os
from dataclasses import dataclass, field
from pathlib import Path, PosixPath
from typing import Self
from urllib.parse import urlsplit

from pydantic import SecretStr

from dlemu.errors import WorkloadError
from dlemu.workload.sections import StorageSection

SCHEME = "s3://"
_AWS = "https://s3.{region}.amazonaws.com"
_REGION = "us-east-1"


class ObjectPath(PosixPath):
    """The name of an object, or the start of the names of many: s3://bucket/prefix.

    It is a Path, so that what joins and shows paths needs to know nothing of buckets. No file
    system has it: `exists` and `is_dir` are always false.
    """

    def __str__(self) -> str:
        return f"{SCHEME}{super().__str__()}"

    def absolute(self) -> Self:
        return self

    def resolve(self, strict: bool = False) -> Self:
        return self

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self.parts[0]

    @property
    def key(self) -> str:
        """Name of the object in its bucket."""
        return "/".join(self.parts[1:])


def object_path(url: str) -> ObjectPath:
    """Return the place that s3://bucket/prefix names.

    Raises:
        WorkloadError: it is no such URL.
    """
    scheme, is_url, rest = url.partition("://")
    path = ObjectPath(rest.strip("/"))
    if scheme != "s3" or not is_url:
        raise WorkloadError(
            f"dataset.data_folder={url}: buckets are read by s3:// only, got {scheme}://; a server "
            "with another protocol may have a gateway for S3"
        )
    if not path.parts or ".." in path.parts:
        raise WorkloadError(f"dataset.data_folder={url} must be s3://BUCKET/PREFIX")
    return path


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

    @classmethod
    def of(cls, storage: StorageSection | None = None) -> Self:
        """Return what the keys say; what they leave open, AWS's variables in the environment say.

        Raises:
            WorkloadError: an endpoint is no URL, or one half of the credentials is missing.
        """
        storage = storage or StorageSection()
        told, endpoints = os.environ.get, storage.endpoint_url
        region = storage.region or told("AWS_REGION") or told("AWS_DEFAULT_REGION") or _REGION
        if not endpoints:
            named = told("AWS_ENDPOINT_URL_S3") or told("AWS_ENDPOINT_URL") or ""
            endpoints = tuple(named.split(",")) if named else (_AWS.format(region=region),)
        for endpoint in endpoints:
            _check_endpoint(endpoint)
        key_id, secret = map(_revealed, (storage.access_key_id, storage.secret_access_key))
        token = ""
        if not (key_id or secret):
            key_id, secret = told("AWS_ACCESS_KEY_ID", ""), told("AWS_SECRET_ACCESS_KEY", "")
            token = told("AWS_SESSION_TOKEN", "")
        if bool(key_id) != bool(secret):
            missing = "storage.secret_access_key" if key_id else "storage.access_key_id"
            raise WorkloadError(
                f"{missing} is not set, its other half is; set both keys, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY in the environment of rank 0"
            )
        limits = storage.get_seconds, storage.retries
        return cls(endpoints, region, key_id, secret, token, *limits)


def _revealed(secret: SecretStr | None) -> str:
    return "" if secret is None else secret.get_secret_value()


def _check_endpoint(endpoint: str) -> None:
    """Refuse what is no plain URL of a server; a password in it would be shown."""
    try:
        parts = urlsplit(endpoint)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if "@" in endpoint:
        raise WorkloadError(
            "storage.endpoint_url must not have a user or a password; set storage.access_key_id "
            "and storage.secret_access_key"
        )
    if not fits:
        raise WorkloadError(
            f"storage.endpoint_url must be URLs such as http://10.0.0.7:9000, got {endpoint[:80]!a}"
        )


def in_bucket(folder: Path) -> bool:
    """Return whether a data folder lies in a bucket."""
    return isinstance(folder, ObjectPath)
