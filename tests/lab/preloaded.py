"""A library that stands between programs and the C library: a file system that refuses a call."""

import shutil
import subprocess
from pathlib import Path

import pytest

_NO_FOLDER_SYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/stat.h>

static int refused(int descriptor)
{
    struct stat found;
    return fstat(descriptor, &found) == 0 && S_ISDIR(found.st_mode);
}

#define REFUSING(name)                                                   \\
    int name(int descriptor)                                             \\
    {                                                                    \\
        if (refused(descriptor)) {                                       \\
            errno = NUMBER;                                              \\
            return -1;                                                   \\
        }                                                                \\
        int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, #name);        \\
        return real(descriptor);                                         \\
    }

REFUSING(fsync)
REFUSING(fdatasync)
"""


def without_folder_sync(folder: Path, number: int) -> Path:
    """Return a library for LD_PRELOAD with which fsync of a folder fails with this errno.

    The test skips where no C compiler is there.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) makes the library")
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(_NO_FOLDER_SYNC)
    words = ["-shared", "-fPIC", f"-DNUMBER={number}", "-o", str(library), str(source), "-ldl"]
    subprocess.run([compiler, *words], check=True, capture_output=True)
    return library
