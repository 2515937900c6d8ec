"""The threads of a flush: who waits for one, and who does it in turns. Java: ServiceThread, CommitLog.GroupCommitService.

What a turn does, and when it is worth it, is decided elsewhere (`flush.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future


class GroupCommit:
    """Puts that wait for a sync to reach behind them, and whoever tells them how it ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    def request(self, end: int) -> Future[None]:
        """Done when everything before `end` is on the disk; fails with what a sync has failed with. Ends must ascend."""
        waiting: Future[None] = Future()
        with self._lock:
            self._waiting.append((end, waiting))
        return waiting

    def complete(self, synced_end: int) -> None:
        """Everything before that place is on the disk."""
        with self._lock:
            done = []
            while self._waiting and self._waiting[0][0] <= synced_end:
                done.append(self._waiting.popleft()[1])
        for waiting in done:
            waiting.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Nobody who waits will ever hear that all is well."""
        with self._lock:
            failed, self._waiting = self._waiting, deque()
        for _, waiting in failed:
            waiting.set_exception(error)


class Duty:
    """A thread that does something in turns: every `interval_ms` (None = never by itself), and when it is woken.

    `turn` says whether another one may follow. The thread ends with the process, as a killed one's does; `stop` ends it in order.
    """

    def __init__(self, name: str, interval_ms: int | None, turn: Callable[[], bool]) -> None:
        self._interval_s = None if interval_ms is None else interval_ms / 1_000
        self._turn = turn
        self._woken = threading.Event()
        self._stops = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """The next turn comes now, or when the present one is done."""
        self._woken.set()

    def stop(self) -> None:
        """Returns when the present turn is done; none follows."""
        self._stops = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._woken.wait(self._interval_s)
            self._woken.clear()
            if self._stops or not self._turn():
                return


def error_of(act: Callable[[], None]) -> OSError | None:
    """What a sync fails with; None where it does not."""
    try:
        act()
    except OSError as error:
        return error
    return None
