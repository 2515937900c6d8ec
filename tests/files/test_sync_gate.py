"""One sync at a time, and none that says all is well behind one that failed."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from storage.files.syncs import SyncGate


def test_syncs_come_one_after_the_other() -> None:
    gate, together, inside = SyncGate(), threading.Barrier(8), []

    def sync() -> None:
        inside.append(1)
        assert len(inside) == 1
        inside.clear()

    def come() -> None:
        together.wait(60)
        for _ in range(200):
            gate.run(sync)

    with ThreadPoolExecutor(8) as threads:
        for ended in [threads.submit(come) for _ in range(8)]:
            ended.result()


def test_behind_a_sync_that_failed_none_is_done() -> None:
    gate, done = SyncGate(), []

    def fails() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        gate.run(fails)
    for _ in range(2):
        with pytest.raises(OSError, match=r"an earlier sync failed .*No space left") as raised:
            gate.run(lambda: done.append(1))
        assert raised.value.errno == errno.EIO
    assert done == []
