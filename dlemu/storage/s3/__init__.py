"""Objects in a bucket of an S3 server: requests with bounded retries, and their totals.

Where data lies in a bucket (s3://bucket/prefix), and how its servers are reached, stands here. Only
`store` knows the library, obstore, which is imported on demand. It is not fork-safe, so workers are
threads, and each process makes its own stores. `objects` reads files by such requests.
"""

from dataclasses import dataclass, field
from pathlib import Path, PosixPath
from typing import Self

from dlemu.errors import WorkloadError

SCHEME = "s3://"


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


def object_path(url: str, key: str = "dataset.data_folder") -> ObjectPath:
    """Return the place that s3://bucket/prefix names; `key` is that of the URL.

    Raises:
        WorkloadError: it is no such URL.
    """
    scheme, is_url, rest = url.partition("://")
    path = ObjectPath(rest.strip("/"))
    if scheme != "s3" or not is_url:
        raise WorkloadError(
            f"{key}={url}: buckets are read by s3:// only, got {scheme}://; a server with another "
            "protocol may have a gateway for S3"
        )
    if not path.parts or ".." in path.parts:
        raise WorkloadError(f"{key}={url} must be s3://BUCKET/PREFIX")
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


def in_bucket(folder: Path) -> bool:
    """Return whether a data folder lies in a bucket."""
    return isinstance(folder, ObjectPath)
