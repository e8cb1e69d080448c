"""All tests as a user who may do nothing: `make plain`, or with words for pytest behind it.

    python -m tests.plain [-n 2] [tests/...]

The files of this checkout go into a folder of `nobody`, with a home of its own. The tests run there
without a capability, and a filter of system calls refuses what a container's often does: mounts,
namespaces, io_uring, performance counters and BPF. Root starts it, to give all that up; anyone else
has the filter alone. What such a user cannot test is skipped, and says why.
"""

import ctypes
import os
import pwd
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
USER = "nobody"
REFUSED = {
    "x86_64": (0xC000003E, [155, 161, 165, 166, 272, 298, 308, 321]),
    "aarch64": (0xC00000B7, [39, 40, 41, 51, 97, 241, 268, 280]),
}
"""By machine: its name in a filter, and the numbers of pivot_root, chroot, mount, umount2, unshare,
perf_event_open, setns and bpf (Linux: unistd_64.h, asm-generic/unistd.h)."""
REFUSED_EVERYWHERE = [425, 428, 429, 430, 432]
"""io_uring_setup, open_tree, move_mount, fsopen and fsmount have one number on all machines."""
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO of EPERM
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2  # of prctl(2)
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: load a word, jump where it is equal, return


def filter_of(machine: str) -> bytes:
    """Return the BPF program that refuses these calls; each instruction is 8 bytes."""
    arch, numbers = REFUSED[machine]
    refused = [*numbers, *REFUSED_EVERYWHERE]
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, 0)]
    for index, number in enumerate(refused):
        steps.append((_EQUAL, len(refused) - index, 0, number))
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def give_up() -> None:
    """Let this process, and all that it starts, gain no privilege and make none of these calls.

    Raises:
        OSError: the kernel has no such filters.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    program = ctypes.create_string_buffer(filter_of(os.uname().machine))
    whole = struct.pack("HxxxxxxP", (len(program) - 1) // 8, ctypes.addressof(program))
    pointer = ctypes.create_string_buffer(whole)
    for words in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, pointer, 0, 0)):
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def copied(folder: Path) -> Path:
    """Copy what git holds, or would, of this checkout into a new one; return where that is."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        source, target = CHECKOUT / name, folder / "checkout" / name
        if source.exists() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    checkout = folder / "checkout"
    who = ["-c", "user.name=plain", "-c", "user.email=plain@localhost"]
    for step in (["init", "-q"], ["add", "--all"], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *step], cwd=checkout, check=True)
    return checkout


def opened(needed: Sequence[Path], folder: Path) -> list[str]:
    """Return the words in front of a command that show these folders to everyone, and no sibling.

    A Python below /root is closed to others; a mount namespace shows it alone.
    """
    script, hidden = "set -e\n", set()
    for number, path in enumerate(needed):
        closed = [each for each in path.parents if not each.stat().st_mode & stat.S_IXOTH]
        if closed:
            aside = folder / f"aside{number}"
            script += f"mkdir '{aside}'; mount --bind '{path}' '{aside}'\n"
            hidden.add(closed[-1])
    for above in sorted(hidden):
        script += f"mount -t tmpfs -o mode=755 tmpfs '{above}'\n"
    for number, path in enumerate(needed):
        if any(above in path.parents for above in hidden):
            script += f"mkdir -p '{path}'; mount --move '{folder / f'aside{number}'}' '{path}'\n"
    if not hidden:
        return []
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", f'{script}exec "$@"', "sh"]


def main(words: Sequence[str]) -> int:
    """Run the tests; return pytest's status."""
    if os.geteuid() != 0:
        give_up()
        return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=CHECKOUT).returncode
    user = pwd.getpwnam(USER)
    with tempfile.TemporaryDirectory(prefix="dlemu-plain-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        checkout, home = copied(folder), folder / "home"
        home.mkdir()
        (checkout / ".venv").symlink_to(sys.prefix)
        for path in (checkout, home, *checkout.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
        front = opened([Path(sys.base_prefix), Path(sys.prefix)], folder)
        inner = "import tests.plain; tests.plain.as_user()"
        command = [*front, sys.executable, "-c", inner, *words]
        return subprocess.run(command, cwd=checkout, env=environment_of(home)).returncode


def environment_of(home: Path) -> dict[str, str]:
    """Return what such a user has set when he logs in, and the path of these programs."""
    path = f"{Path(sys.prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    names = {"HOME": str(home), "USER": USER, "LOGNAME": USER, "LANG": "C.UTF-8", "PATH": path}
    return names | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(home.parent / "checkout")}


def as_user() -> None:
    """Become that user, without a capability; then become pytest, with these words."""
    user = pwd.getpwnam(USER)
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)  # from root: it takes all capabilities away
    give_up()
    python = sys.executable
    os.execv(python, [python, "-m", "pytest", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
