"""A disk that fails for a process when a test says so: a library that is loaded before the C library's calls (LD_PRELOAD).

    disk = PreloadedDisk.built(tmp_path, tmp_path / "store")     skips the test where there is no C compiler
    with disk.loaded():     processes that are started here have it
        …
    disk.fails("sync")      fsync and fdatasync below the directory: EIO, after which the system calls the pages clean
    disk.fails("write")     write and pwrite: EIO
    disk.fails("full")      write, pwrite and fallocate: ENOSPC
    disk.is_well()

A second word is a part of the path: `disk.fails("sync", "/commitlog/")`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int error_of(int descriptor, int is_sync) {
    char order[512], path[4096], link[64];
    const char *root = getenv("FAILING_DISK_ROOT"), *file = getenv("FAILING_DISK_ORDER");
    if (!root || !file) return 0;
    int opened = syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC);
    if (opened < 0) return 0;
    ssize_t size = syscall(SYS_read, opened, order, sizeof order - 1);
    syscall(SYS_close, opened);
    if (size <= 0) return 0;
    order[size] = 0;
    char *part = strchr(order, ' ');
    if (part) *part++ = 0;
    if (strcmp(order, is_sync ? "sync" : "write") && (is_sync || strcmp(order, "full"))) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    if (strncmp(path, root, strlen(root)) || (part && !strstr(path, part))) return 0;
    return strcmp(order, "full") ? EIO : ENOSPC;
}

#define FAIL(descriptor, is_sync) do { int e = error_of(descriptor, is_sync); if (e) { errno = e; return -1; } } while (0)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int d, const void *b, size_t n, off_t o) { FAIL(d, 0); return REAL(pwrite)(d, b, n, o); }
ssize_t pwrite64(int d, const void *b, size_t n, off64_t o) { FAIL(d, 0); return REAL(pwrite64)(d, b, n, o); }
ssize_t write(int d, const void *b, size_t n) { FAIL(d, 0); return syscall(SYS_write, d, b, n); }
int fsync(int d) { FAIL(d, 1); return REAL(fsync)(d); }
int fdatasync(int d) { FAIL(d, 1); return REAL(fdatasync)(d); }

static int no_room(int descriptor) { return error_of(descriptor, 0) == ENOSPC ? ENOSPC : 0; }
int posix_fallocate(int d, off_t o, off_t n) { int e = no_room(d); return e ? e : REAL(posix_fallocate)(d, o, n); }
int posix_fallocate64(int d, off64_t o, off64_t n) { int e = no_room(d); return e ? e : REAL(posix_fallocate64)(d, o, n); }
"""


@dataclass(frozen=True, slots=True)
class PreloadedDisk:
    """What lies below a directory, for the processes that are started within `loaded`."""

    library: Path
    order: Path
    root: Path

    @classmethod
    def built(cls, place: Path, root: Path) -> PreloadedDisk:
        """Of all that lies below `root`. Skips the test where nothing compiles C."""
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler")
        source, library = place / "failing_disk.c", place / "failing_disk.so"
        source.write_text(_SOURCE, "ascii")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
        return cls(library, place / "failing_disk.order", root)

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Processes that are started meanwhile have this disk."""
        root, order = str(self.root), str(self.order)
        told = {"LD_PRELOAD": str(self.library), "FAILING_DISK_ROOT": root, "FAILING_DISK_ORDER": order}
        with mock.patch.dict(os.environ, told):
            yield

    def fails(self, how: str, part: str = "") -> None:
        """From now on, until it is well."""
        new = self.order.with_suffix(".new")
        new.write_text(f"{how} {part}".strip(), "utf-8")
        new.rename(self.order)

    def is_well(self) -> None:
        """From now on."""
        self.order.unlink(missing_ok=True)
