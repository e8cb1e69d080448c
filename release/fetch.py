"""Install dlemu's checkout with some extras, and say before that how much is fetched.

    .venv/bin/python -m release.fetch EXTRAS

The versions are those of constraints.txt. PyTorch comes from its index of builds for CPUs where
that can be reached, else from the index that pip is configured for: PyPI's build for Linux brings
CUDA, 3 GB. It needs nothing but Python and pip.
"""

import os
import re
import ssl
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import run
from typing import Any

from release.pip import PINS, ROOT, Resolved, canonical, resolve

CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
_PATIENCE = 5.0
"""Seconds until an index counts as one that cannot be reached."""


def main(extras: str) -> int:
    environment = dict(os.environ)
    wanted = [*("-c", str(PINS)), "--editable", f"{ROOT}[{extras}]"]
    index = []
    if _brings_torch(extras) and _reached(f"{CPU_BUILDS}/torch/"):
        index = ["--extra-index-url", CPU_BUILDS]
    done = resolve([*index, *wanted], Path(sys.executable), environment)
    if done.report is None:
        print(done.said, file=sys.stderr)
        return 1
    print(announcement(done, _sizes(done)), flush=True)
    exact = [f"{name}=={version}" for name, version in done.versions.items() if name != "dlemu"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    return run([*pip, *index, *exact, "--editable", str(ROOT)], cwd=ROOT).returncode


def announcement(found: Resolved, sizes: dict[str, int | None]) -> str:
    """Return what is about to be fetched, in MB, and how to fetch less.

    Args:
        found: what pip would install.
        sizes: {name: bytes, or None where the index does not say}.
    """
    known = [size for size in sizes.values() if size is not None]
    unknown = len(sizes) - len(known)
    line = f"{len(sizes)} packages to fetch: {round(sum(known) / 1e6):,} MB"
    line += f", and {unknown} of unknown size" if unknown else ""
    torch = found.versions.get("torch")
    if torch is None:
        return line
    if any(name.startswith("nvidia-cu") for name in found.versions) and "+cpu" not in torch:
        return (
            f"{line}; PyTorch {torch} brings CUDA, because its builds for CPUs "
            f"({CPU_BUILDS}) cannot be reached. `make demo TORCH=no` needs no PyTorch."
        )
    return f"{line}; PyTorch {torch} for CPUs"


def _brings_torch(extras: str) -> bool:
    return bool({"torch", "test"} & set(extras.split(",")))


def _sizes(found: Resolved) -> dict[str, int | None]:
    items = found.report["install"] if found.report else []
    urls = {
        canonical(item["metadata"]["name"]): item["download_info"]["url"]
        for item in items
        if "dir_info" not in item["download_info"]  # the checkout itself
    }
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(urls, pool.map(_size, urls.values()), strict=True))


def _size(url: str) -> int | None:
    if url.startswith("file:"):
        return 0  # it lies here
    try:
        with _open(url) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


def _reached(url: str) -> bool:
    try:
        with _open(url):
            return True
    except (OSError, ValueError):
        return False


def _open(url: str) -> Any:
    """Ask for the head of a file, with pip's certificates where it has its own."""
    names = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    path = next((os.environ[name] for name in names if os.environ.get(name)), None)
    context = ssl.create_default_context(cafile=path)
    request = urllib.request.Request(re.sub("#.*", "", url), method="HEAD")
    return urllib.request.urlopen(request, timeout=_PATIENCE, context=context)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
