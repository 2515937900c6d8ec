"""Named points at which a test kills the process: `SPARK_MQ_FAILPOINT=name` or `name:n` for the n-th time it is reached.

The process ends by SIGKILL, as in a crash: nothing is flushed, no handler runs. With `SPARK_MQ_FAILPOINT_PAUSE=PATH` it instead creates
that file, which holds its process id, and waits until it is killed or PATH.go exists. A process that finds the file passes.
Without the first variable nothing happens.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

ENVIRONMENT = "SPARK_MQ_FAILPOINT"
ENVIRONMENT_PAUSE = "SPARK_MQ_FAILPOINT_PAUSE"

COMMIT = (
    "before-intent",
    "after-intent",
    "amid-slice",
    "amid-records",
    "after-records",
    "after-slice",
    "after-queues",
    "after-index",
    "before-end",
    "after-end",
    "after-mirror",
    "after-commit",
    "before-drop",
    "after-drop",
    "before-release",
)
"""The points of a commit, in the order in which it passes them."""
TRANSACTIONS = ("after-halves", "before-ops")
"""The additional points of a commit of transactions."""
STAGING = ("amid-staging", "after-staging")
"""The points of a staging task."""
UPKEEP = (
    "file-staged",
    "file-replaced",
    "state-backed-up",
    "abort-set",
    "before-cut",
    "log-cut",
    "queues-recovered",
    "index-recovered",
    "hint-dropped",
    "before-records",
    "log-file-made",
    "queue-file-made",
    "ext-file-made",
    "index-file-made",
    "amid-index",
    "log-synced",
    "before-pool-write",
    "checkpoint-written",
    "hint-saved",
    "before-abort-drop",
    "after-abort-drop",
    "file-expired",
    "log-expired",
    "queues-expired",
)
"""The points of a writer's other work: small files replaced, recovery, files that roll, checkpoint, release, close, expiry."""

LIVE_STAGING = ("live-amid-staging", "live-after-staging")
"""The points of a task that stages rows for running brokers."""
LIVE_COMMIT = (
    "live-before-intent",
    "live-after-intent",
    "live-connected",
    "live-amid-send",
    "live-after-send",
    "live-after-done",
    "live-after-announce",
    "live-after-drop",
    "live-after-rows-dropped",
)
"""The points of a commit that sends rows to brokers, in order."""
LIVE_REDO = ("live-attempt-saved", "live-fenced", "live-looked", "live-attempt-settled")
"""The points of an attempt that follows another one, before it sends."""
LIVE_TRANSACTIONS = ("live-amid-halves", "live-halves-stored", "live-amid-ends")
"""The points of a task that sends transactions to running brokers, in order."""

_reached: dict[str, int] = {}
_POLL_SECONDS = 0.02


def reach(name: str) -> None:
    """End the process here if the environment names this point."""
    setting = os.environ.get(ENVIRONMENT)
    if setting is None:
        return
    wanted, _, time_text = setting.partition(":")
    if wanted != name:
        return
    _reached[name] = _reached.get(name, 0) + 1
    if _reached[name] != int(time_text or 1):
        return
    pause = os.environ.get(ENVIRONMENT_PAUSE)
    if pause is None:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        with suppress(FileExistsError):
            _wait_at(pause)


def _wait_at(pause: str) -> None:
    """Create the file, and wait for PATH.go. FileExistsError if another process has waited there."""
    with open(f"{pause}.{os.getpid()}", "w", encoding="ascii") as file:
        file.write(str(os.getpid()))
    try:
        os.link(file.name, pause)  # complete at once, and for one process only
    finally:
        os.unlink(file.name)
    while not os.path.exists(f"{pause}.go"):
        time.sleep(_POLL_SECONDS)
