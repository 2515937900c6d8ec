"""When compiled kernels are used, and where their code comes from.

    kernels = COMPILED.for_rows(count)        for_rows() where a part is done of rows that were counted
    if kernels is not None: ... the kernel, which says where it does not know a row
    ... else, and for rows that no kernel knows: the exact path, which is what tests hold kernels against

`SPARK_MQ_KERNELS`  unset   after so many rows that loading them pays, if compiled code is there; else another process compiles it
                    off     never
                    on      from the first row on; this process compiles where nothing is there
                    check   the same, and every access to memory is held against its bounds; for tests

A process with few rows never waits for a compiler. Compiled code lies in `$XDG_CACHE_HOME/spark_mq` (`~/.cache/spark_mq`), which only
the user may write: whatever can write there can run code in this process. Without Numba, without such a directory, or on a processor
that Numba does not know, everything works without kernels; one line in the log (`storage.kernels`) says why.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

ENVIRONMENT = "SPARK_MQ_KERNELS"
Mode = Literal["auto", "off", "on", "check"]

KERNELS = "storage.format.kernels"
ROWS_THAT_PAY = 500_000
"""Loading Numba and compiled code costs a process 0.3 s and makes a row up to 0.6 µs cheaper. A process that has handled so many rows
is likely to handle as many more."""
ROWS_WITHOUT_KERNELS = 64
"""A server's reads come one by one, and none of them must wait while kernels are loaded."""
ROWS_BETWEEN_LOOKS = 100_000
"""How many rows pass before this process looks again whether another process has compiled the kernels."""
ATTEMPT_S = 600
"""How long no process starts to compile again after one did."""
NICENESS = 15
UNUSED_DAYS = 30

_LOG = logging.getLogger("storage.kernels")


def mode_of_environment() -> Mode:
    """The mode that the environment sets. A word that is no mode counts as `off`, and is logged."""
    text = os.environ.get(ENVIRONMENT, "auto").strip().lower() or "auto"
    for mode in get_args(Mode):
        if text == mode:
            return mode
    _LOG.warning("%s=%s is none of off, on, check: no kernels are used", ENVIRONMENT, text)
    return "off"


class Unusable(Exception):
    """Why no kernels are used."""


class Kernels:
    """A module of kernels, imported when it pays. `for_rows` may be called by several threads."""

    def __init__(self, name: str, mode: Mode | None = None) -> None:
        self.name = name
        self._lock = threading.RLock()
        self._helper: subprocess.Popen[bytes] | None = None
        self._is_loading = False
        self.use(mode)

    def use(self, mode: Mode | None) -> None:
        """Set the mode (None = the environment's), and count rows from 0 again."""
        self._mode = mode
        self._module: ModuleType | None = None
        self._refusal: str | None = None
        self._rows = 0
        self._next_look = ROWS_THAT_PAY

    @property
    def mode(self) -> Mode:
        if self._mode is None:
            self._mode = mode_of_environment()
        return self._mode

    def for_rows(self, count: int = 0) -> ModuleType | None:
        """The module if kernels pay for `count` more rows; else None. A call for few rows loads nothing and is not counted."""
        if self._module is not None:
            return self._module
        if self.is_refused:
            return None
        if self.mode == "auto":
            if count < ROWS_WITHOUT_KERNELS:
                return None
            self._rows += count
            if self._rows < self._next_look:
                return None
            self._next_look = self._rows + ROWS_BETWEEN_LOOKS
        self._module = self.load()
        return self._module

    def load(self) -> ModuleType | None:
        """The module, ready to run. None while it is not compiled, and where it never will be (`is_refused`)."""
        if self.is_refused or not self._lock.acquire(blocking=self.mode != "auto"):
            return None  # another thread is loading: this one goes on without
        try:
            self._is_loading = True
            return self._load()
        except Unusable as reason:
            self._refuse(str(reason))
        except Exception as error:  # a compiler or a spoilt cache may raise anything: the exact path does not need them
            self._refuse(f"they cannot be loaded: {type(error).__name__}: {error}")
        finally:
            self._is_loading = False
            self._lock.release()
        return None

    @property
    def is_refused(self) -> bool:
        """Whether there will be no kernels in this process."""
        return self._refusal is not None or self.mode == "off"

    @property
    def refusal(self) -> str | None:
        """The reason; None where kernels work, or nothing has tried to load them."""
        return self._refusal

    def _refuse(self, reason: str) -> None:
        if self._refusal is None:
            _LOG.log(logging.INFO if self.mode == "auto" else logging.WARNING, "no compiled kernels: %s", reason)
        self._refusal = reason

    def _load(self) -> ModuleType | None:
        if self._helper is not None:
            self._helper.poll()  # so that it does not stay as a zombie after it ended
        check_platform()
        try:
            directory: Path | None = self.directory()
        except Unusable:
            if self.mode == "auto":  # each process would compile for seconds
                raise
            directory = None
        if self.mode == "auto" and directory is not None and not is_complete(directory):
            self._compile_elsewhere(directory)
            return None
        check_numba()
        with cached_in(directory):
            try:
                return import_module(self.name)
            except Unusable:
                raise
            except Exception:
                if directory is not None:
                    remove_code(directory)  # one of its files may be spoilt: the next attempt compiles all again
                raise

    def directory(self) -> Path:
        """Where compiled code lies. Raises Unusable."""
        return own_directory(cache_home() / self._digest())

    def _digest(self) -> str:
        """Names what compiled code depends on: sources, versions, processor, and whether bounds are checked."""
        sources = sorted(kernel_sources())
        stamps = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
        versions = [metadata.version(package) for package in ("numba", "llvmlite", "numpy")]
        known = repr((stamps, versions, sys.version, processor(), (self.mode == "check")))
        return "kernels-" + hashlib.sha256(known.encode()).hexdigest()[:24]

    def _compile_elsewhere(self, directory: Path) -> None:
        """Start another process that compiles, once for each user and version; this one looks now and then whether it is done."""
        if self._helper is not None and self._helper.poll() is None:
            return
        if not begin_attempt(directory):
            return
        environment = os.environ | {ENVIRONMENT: "on", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._helper = subprocess.Popen(
            [sys.executable, "-P", "-m", KERNELS],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # not a session of its own: Linux shares processors between sessions first, whatever their niceness
        )

    def after_fork(self) -> None:
        """In a child process: a lock that another thread of its parent held stays locked, and what that thread loaded is half there."""
        self._lock = threading.RLock()
        self._helper = None
        if self._is_loading:
            self._refusal = "the process was forked while they were loaded"


def check_platform() -> None:
    """Raises Unusable where kernels cannot work."""
    if sys.byteorder != "little" or struct.calcsize("P") != 8:
        raise Unusable("they need a little-endian processor of 64 bits")
    for package in ("numba", "llvmlite"):
        if importlib.util.find_spec(package) is None:
            raise Unusable("Numba is not installed: pip install 'spark_mq[fast]' makes reading faster")


def check_numba() -> None:
    """Raises Unusable where Numba is set to compile nothing, or for another processor than this one."""
    from numba import config

    for setting in ("DISABLE_JIT", "CPU_NAME", "CPU_FEATURES"):
        if getattr(config, setting, None):
            raise Unusable(f"NUMBA_{setting} is set, and they are compiled for this processor or not at all")


def processor() -> tuple[str, str]:
    """Name and features of the processor, as the compiler sees it. Raises Unusable where it does not."""
    from llvmlite import binding

    try:
        name, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    except Exception as error:
        raise Unusable(f"the processor is not known to LLVM: {error}") from error
    return name, features


def kernel_sources() -> Iterator[Path]:
    """The files that compiled code is made of, and those of `format` around them, whose layouts and constants are compiled in.

    Raises Unusable where they are none, as in a zip file.
    """
    found = importlib.util.find_spec(KERNELS)
    places = [Path(place) for place in (found.submodule_search_locations or ())] if found is not None else []
    if not places or not all(place.is_dir() for place in places):
        raise Unusable("this package is not installed as files")
    for place in places:
        for folder in (place, place.parent):
            yield from (path for path in folder.iterdir() if path.suffix == ".py")


def cache_home() -> Path:
    """Where compiled code may lie."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(given) if os.path.isabs(given) else Path("~").expanduser() / ".cache"
    return home / "spark_mq"


def own_directory(path: Path) -> Path:
    """A directory that only this user can write to, or replace; made where it is not there. Raises Unusable."""
    try:
        for missing in [place for place in (*reversed(path.parents), path) if not place.exists()]:
            missing.mkdir(mode=0o700, exist_ok=True)
        real = path.resolve(strict=True)
        for place in (real, *real.parents):
            status = place.stat()
            is_ours = status.st_uid == os.geteuid()
            others_write = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
            if place in (real, real.parent) and not (is_ours and not others_write):
                raise Unusable(f"{place} is another user's, or others may write there")
            if not (is_ours or status.st_uid == 0) or (others_write and not status.st_mode & stat.S_ISVTX):
                raise Unusable(f"{place}, above {path.name}, can be changed by other users")
        if not os.access(real, os.R_OK | os.W_OK | os.X_OK):
            raise Unusable(f"{real} cannot be written")
    except (OSError, RuntimeError) as error:
        raise Unusable(f"there is no place for compiled code: {error}") from error
    return real


def is_complete(directory: Path) -> bool:
    """Whether everything has been compiled there."""
    return (directory / "complete").exists()


def begin_attempt(directory: Path) -> bool:
    """Whether this process is the one to start a compiler: none has for a while."""
    attempt = directory / "attempt"
    with suppress(OSError):
        if time.time() - attempt.stat().st_mtime > ATTEMPT_S:
            attempt.unlink()
    try:
        os.close(os.open(attempt, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    return True


@contextmanager
def cached_in(directory: Path | None) -> Iterator[None]:
    """While this context is entered, decorated Numba functions cache their compiled code in `directory`; with None nowhere.

    Cached code is loaded without Numba's registries, which only a compiler needs and which take 0.3 s to load.
    """
    from numba import config
    from numba.core.caching import Cache

    before, load = config.CACHE_DIR, Cache.load_overload
    config.CACHE_DIR = str(directory) if directory is not None else ""
    if hasattr(Cache, "_load_overload") and hasattr(Cache, "_guard_against_spurious_io_errors"):
        Cache.load_overload = _load_overload
    _caching.append(directory)
    try:
        yield
    finally:
        _caching.pop()
        config.CACHE_DIR, Cache.load_overload = before, load


def _load_overload(cache: Any, signature: Any, target: Any) -> Any:
    """Like `numba.core.caching.Cache.load_overload`, but does not refresh the target's registries."""
    with cache._guard_against_spurious_io_errors():
        return cache._load_overload(signature, target)


_caching: list[Path | None] = []


def is_caching() -> bool:
    """Whether what is compiled now is kept."""
    return bool(_caching) and _caching[-1] is not None


def check_cache(place: str) -> None:
    """Raises Unusable where Numba would cache code in another directory than `cached_in` names: other users may be able to write there.

    Environment variables decide that too, and Numba reads them again after a change.
    """
    if Path(place).parent != _caching[-1]:
        raise Unusable(f"Numba keeps compiled code in {place}, not in {_caching[-1]}")


def compile_all() -> None:
    """Compile the kernels into the cache, and note that they are there. For a process of its own."""
    with suppress(OSError):
        os.nice(NICENESS)
    directory = COMPILED.directory()
    if COMPILED.load() is None:
        raise SystemExit(f"no compiled kernels: {COMPILED.refusal}")
    if COMPILED.directory() != directory:
        raise SystemExit("no compiled kernels: their sources were changed meanwhile")
    (directory / "complete").touch(mode=0o600)
    _drop_unused(directory)


def remove_code(directory: Path) -> None:
    """Delete the compiled code, but keep the time of the last attempt."""
    for path in sorted(directory.rglob("*"), reverse=True):
        if path != directory / "attempt":
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()


def _drop_unused(kept: Path) -> None:
    """Delete compiled code of other versions that no process has completed for a while."""
    limit = time.time() - 86_400 * UNUSED_DAYS
    for other in kept.parent.glob("kernels-*"):
        if other != kept and other.stat().st_mtime < limit:
            remove_code(other)
            for path in (other / "attempt", other):
                with suppress(OSError):
                    path.rmdir() if path.is_dir() else path.unlink()


COMPILED = Kernels(f"{KERNELS}.decode")
"""Records to rows."""
os.register_at_fork(after_in_child=COMPILED.after_fork)
