"""How a bucket is reached: what the keys of a job say, and the environment of AWS's tools."""

import os
from urllib.parse import urlsplit

from pydantic import SecretStr

from dlemu.config.sections import StorageSection
from dlemu.errors import WorkloadError
from dlemu.storage.s3.location import Access

_AWS = "https://s3.{region}.amazonaws.com"
_REGION = "us-east-1"


def access_of(storage: StorageSection | None = None) -> Access:
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
    return Access(endpoints, region, key_id, secret, token, *limits)


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
