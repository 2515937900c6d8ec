"""The exit codes of `spark-mq` and of jobs, and which error ends a process with which; users read them in docs/command-line.md.

Apache's tools end with 0 or −1 (255), whatever went wrong.
"""

from __future__ import annotations

from spark_mq.conditions import OptionError
from storage.errors import StoreLockedError

DONE = 0
FAILED = 1
"""Refused or failed; or something was found that somebody has to look at."""
USAGE = 2
"""The command line is not right: argparse's and click's code."""
BUSY = 75
"""A broker or another process holds the store: the same command may succeed later. sysexits.h: EX_TEMPFAIL."""
INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, as shells have it."""


def exit_code_of(error: BaseException) -> int:
    """FAILED, unless the error is one of those that have a code of their own."""
    if isinstance(error, StoreLockedError):
        return BUSY
    is_of_the_command_line = isinstance(error, OptionError) and error.option.startswith("--")  # else Spark's, as path
    return USAGE if is_of_the_command_line else FAILED
