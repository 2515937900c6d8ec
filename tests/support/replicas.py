"""Who has acknowledged what, as a test asks a master's replicas."""

from __future__ import annotations

import threading

from storage.ha.replicas import Replicas, Snapshot


def holders(known: Snapshot, end: int) -> int:
    """How many replicas, the master not counted, have acknowledged all bytes before this place of the log."""
    return sum(replica.acknowledged >= end for replica in known)


def await_holder(replicas: Replicas, end: int, seconds: float) -> bool:
    """Waits until one has; whether it did before the time was over."""
    there = threading.Event()
    stop = replicas.listen(lambda known: there.set() if holders(known, end) else None)
    try:
        return holders(replicas.snapshot(), end) > 0 or there.wait(seconds)
    finally:
        stop()
