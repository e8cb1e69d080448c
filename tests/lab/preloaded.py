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


_OLD_KERNEL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/types.h>

#define REFUSED(type, name, words)                                       \\
    type name words                                                      \\
    {                                                                    \\
        errno = NUMBER;                                                  \\
        return -1;                                                       \\
    }

REFUSED(int, prctl, (int option, ...))
REFUSED(int, madvise, (void *start, size_t length, int advice))
REFUSED(int, statx, (int at, const char *path, int flags, unsigned mask, void *found))

long syscall(long number, ...)
{
    if (number == 451 || number == 434 || number == 332) { /* cachestat, pidfd_open, statx */
        errno = NUMBER;
        return -1;
    }
    va_list rest;
    va_start(rest, number);
    long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long);
    long d = va_arg(rest, long), e = va_arg(rest, long), f = va_arg(rest, long);
    va_end(rest);
    long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a, b, c, d, e, f);
}
"""


def without_folder_sync(folder: Path, number: int) -> Path:
    """Return a library for LD_PRELOAD with which fsync of a folder fails with this errno.

    The test skips where no C compiler is there.
    """
    return _built(folder, number, _NO_FOLDER_SYNC)


def without_new_calls(folder: Path, number: int) -> Path:
    """Return a library for LD_PRELOAD that refuses what old kernels and sandboxes do not have.

    These are cachestat, statx, pidfd_open, prctl and madvise. The test skips as above.
    """
    return _built(folder, number, _OLD_KERNEL)


def _built(folder: Path, number: int, text: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) makes the library")
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(text)
    words = ["-shared", "-fPIC", f"-DNUMBER={number}", "-o", str(library), str(source), "-ldl"]
    subprocess.run([compiler, *words], check=True, capture_output=True)
    return library
