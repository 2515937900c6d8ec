"""How many files and connections this process may have open at a time (`ulimit -n`), and that a server has enough of them.

A server that has next to none starts, and then refuses every connection. So it does not start, and says how many it needs.
Departure: Java's servers start, and accept nothing.
"""

from __future__ import annotations

import resource
from contextlib import suppress

from storage.errors import ConfigurationError

_UNLIMITED = 1 << 20


def raise_file_limit() -> int:
    """As many open files as the process may have, as a JVM takes them; how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # the system's own limit may be lower
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return file_limit()


def file_limit() -> int:
    """How many the process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else _UNLIMITED


def need_files(count: int, who: str) -> int:
    """How many the process may have open: raised to the hard limit where there are fewer than `count`.

    Raises ConfigurationError where even those are too few.
    """
    found = file_limit()
    if found < count:
        found = raise_file_limit()
    if found < count:
        rule = f"this process may open {found} files, and {who} needs {count} at least: raise the limit (ulimit -n {count})"
        raise ConfigurationError(None, None, None, rule)
    return found
