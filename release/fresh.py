"""The README on a machine that has nothing: an empty Debian, an ordinary user, PyPI.

    python -m release.fresh [SUITE ...] [--keep] [--quick]

For each suite (bookworm has Python 3.11, trixie 3.13) debootstrap makes a folder, into which only
what the README asks for is added: Python, make, git and certificates. There a user who is not root
clones the last commit, gives the README's two commands that install, and tries a small drive (a
loop device with ext4); then `make demo TORCH=no` and `make demo`; --quick adds `make quick`.
Each step prints its seconds and the MB that the folder has grown by.

Root is needed. All mounts and processes end with the namespace that they are in; the folder goes,
but for --keep. Nothing of this host's pip is there, only the variables that lead to PyPI and the
certificates that they name.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from release.pip import ROOT, user_environment

SUITES = ("bookworm", "trixie")
PACKAGES = "ca-certificates,git,make,python3,python3-venv"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
DRIVE_MB = 1536
"""Enough for `try` at its smallest, 1 GiB of files."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release.fresh", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="bookworm, trixie, sid ...")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    parser.add_argument("--quick", action="store_true", help="run `make quick` there as well")
    asked = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("root is needed: debootstrap, mount and chroot")
    for tool, package in (
        ("debootstrap",) * 2,
        ("unshare", "util-linux"),
        ("mkfs.ext4", "e2fsprogs"),
    ):
        if shutil.which(tool) is None:
            parser.error(f"{tool} is missing: apt-get install {package}")
    failed = [suite for suite in asked.suites or SUITES if not _try_suite(suite, asked)]
    print(f"FAILED: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


def _try_suite(suite: str, asked: argparse.Namespace) -> bool:
    folder = Path(tempfile.mkdtemp(prefix=f"dlemu-fresh-{suite}."))
    try:
        machine = _Machine(suite, folder)
        return machine.prepare() and all(machine.step(*step) for step in steps(asked.quick))
    finally:
        if asked.keep:
            print(f"{suite}: {folder} is left")
        else:
            shutil.rmtree(folder)


def steps(quick: bool) -> list[tuple[str, str]]:
    """Return (name, commands of a shell) in order; the installs are the README's own."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first, full = re.findall(r"^    (pip install -c constraints\.txt .*)$", readme, re.MULTILINE)
    (venv,) = re.findall(r"^    (python3 -m venv .*)$", readme, re.MULTILINE)
    inside = "cd ~/dlemu && . ~/dlemu-venv/bin/activate && "
    found = [
        ("clone", "git clone --quiet /source.bundle ~/dlemu && cd ~/dlemu && git log --oneline -1"),
        (f"{venv}; {first}", f"cd ~/dlemu && {venv} && {first}"),
        ("dlemu try", f"{inside}dlemu try /mnt/drive seconds=20 max_bytes=1GiB"),
        (full, inside + full),
        ("dlemu doctor", f"{inside}dlemu doctor /mnt/drive"),
        ("make demo TORCH=no", "cd ~/dlemu && make demo TORCH=no"),
        # What was fetched into one environment lies in pip's cache.
        ("make demo", "cd ~/dlemu && rm -rf ~/dlemu-venv && make demo"),
    ]
    return found + [("make quick", "cd ~/dlemu && make quick")] * quick


class _Machine:
    """A folder with a Debian, and a shell of its user in namespaces of its own."""

    def __init__(self, suite: str, folder: Path) -> None:
        self.suite, self.folder = suite, folder
        self.root = folder / "root"
        self.environment = user_environment() | {"HOME": "/home/user", "USER": "user"}

    def prepare(self) -> bool:
        """Make the machine: packages, a user, certificates, the source, a drive."""
        began = time.monotonic()
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", self.suite]
        with (self.folder / "debootstrap.log").open("w") as log:
            done = subprocess.run([*command, str(self.root), MIRROR], stdout=log, stderr=log)
        if done.returncode != 0:
            print(f"{self.suite}: debootstrap failed:\n{Path(log.name).read_text()[-2000:]}")
            return False
        shutil.copy("/etc/resolv.conf", self.root / "etc" / "resolv.conf")
        for name, value in self.environment.items():
            if Path(value).is_file() and name != "PIP_CONFIG_FILE":  # certificates
                copy = f"/usr/local/share/{name.lower()}.pem"
                shutil.copy(value, self.root / copy[1:])
                self.environment[name] = copy
        bundle = self.root / "source.bundle"
        image = self.folder / "drive.img"
        with image.open("wb") as file:
            file.truncate(DRIVE_MB * 2**20)
        for words in (
            ["git", "-C", str(ROOT), "bundle", "create", "--quiet", str(bundle), "HEAD"],
            ["chmod", "644", str(bundle)],
            ["chroot", str(self.root), "useradd", "--create-home", "--shell", "/bin/bash", "user"],
            ["mkfs.ext4", "-q", "-E", "root_owner=1000:1000", str(image)],
        ):
            subprocess.run(words, check=True)
        self._tell("debootstrap", began, 0)
        return True

    def step(self, name: str, commands: str) -> bool:
        """Run commands as the user, and tell how long it took; False if they failed."""
        began, size = time.monotonic(), self._megabytes()
        print(f"{self.suite}$ {name}", flush=True)
        inside = shlex.join(
            [
                *("chroot", "--userspec=user:user", str(self.root), "/usr/bin/env", "-i"),
                *(f"{name}={value}" for name, value in self.environment.items()),
                *("/bin/bash", "-ec", commands),
            ]
        )
        root = shlex.quote(str(self.root))
        mounts = (
            f"mount -t proc proc {root}/proc && mount --rbind /sys {root}/sys && "
            f"mount --rbind /dev {root}/dev && mount -t tmpfs -o mode=1777 tmpfs {root}/dev/shm && "
            f"mkdir -p {root}/mnt/drive && "
            f"mount -o loop {shlex.quote(str(self.folder / 'drive.img'))} {root}/mnt/drive"
        )
        namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc"]
        done = subprocess.run([*namespace, "/bin/sh", "-c", f"{mounts} && {inside}"])
        self._tell(name, began, size)
        if done.returncode != 0:
            print(f"{self.suite}: FAILED with {done.returncode}: {name}", flush=True)
        return done.returncode == 0

    def _tell(self, name: str, began: float, size: int) -> None:
        seconds, grown = time.monotonic() - began, self._megabytes() - size
        print(f"{self.suite}: {name}: {seconds:.0f} s, {grown:,} MB on the disk\n", flush=True)

    def _megabytes(self) -> int:
        done = subprocess.run(
            ["du", "-sx", "--block-size=1000000", str(self.root)], capture_output=True, text=True
        )
        return int(done.stdout.split()[0])


if __name__ == "__main__":
    sys.exit(main())
