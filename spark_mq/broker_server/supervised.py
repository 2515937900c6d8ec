"""A broker that survives a failure of its disk: it closes its store, and opens it again when the disk answers.

    runs ─▶ its store fails ─▶ refuses sends, serves reads; name servers hear that nothing can be written; the disk is tried
         ─▶ the disk answers ─▶ `RunningBroker.close` ─▶ `RunningBroker.start`, which recovers the store ─▶ runs

This works for failures of the disk only. After another failure (another process has written into the log) nothing is opened: reads
continue, and an operator decides. Nothing is opened either while ROOT or the log's directory differs from that of the first start: a
new store on an empty mount point would take messages that belong into the old one.

After a failed write or sync the content of the disk is unknown, and the page cache may differ from it (fsync(2)): only an opening finds
out, as after a crash. So every object that holds the store is created again by the code of an ordinary start; nothing is repaired in
place. Clients connect again. Under a controller `controlled.py` does the same, but lets another broker take over first.

Departure: Java continues after a failed sync, and acknowledges messages that it has lost (apache/rocketmq#2706, #9713); after a failed
write it answers with errors until it is restarted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from spark_mq.broker_server.metrics_page import MetricsPage
from spark_mq.broker_server.opening import check_lock
from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.settings import Configuration
from storage.errors import StorageError

_LOOK_SECONDS = 0.2
_LEAST_REST_SECONDS, _LONGEST_REST_SECONDS = 0.5, 30.0
_TRY_SECONDS = 2.0
"""Longest pause between tries of a disk whose store has failed for the first time in a while."""
_QUIET_SECONDS = 60.0
"""A store that fails again sooner rests longer before it is opened: each opening recovers."""
_LOG = logging.getLogger(__name__)


class Rests:
    """How long a store that has failed rests before it is opened again: longer where it fails again soon, as each opening recovers."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """`seconds` is a monotonic clock."""
        self._seconds = seconds
        self._opened_at: float | None = None
        """None = it was not opened since the last rest."""
        self._rest_s = _LEAST_REST_SECONDS / 2

    def opened(self) -> None:
        """It works again."""
        self._opened_at = self._seconds()

    def next_s(self) -> float:
        """The rest after a failure, or after an opening that has failed."""
        opened_at, self._opened_at = self._opened_at, None
        is_quiet = opened_at is not None and self._seconds() - opened_at >= _QUIET_SECONDS
        self._rest_s = _LEAST_REST_SECONDS if is_quiet else min(self._rest_s * 2, _LONGEST_REST_SECONDS)
        return self._rest_s


class SupervisedBroker:
    """One broker without a controller, from `start` to `close`, on the event loop that it was started on."""

    def __init__(self, configuration: Configuration, running: RunningBroker, page: MetricsPage | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._configuration = configuration
        self._root = configuration.process.store_path_root_dir
        self.running: RunningBroker | None = running
        """None = its store is away."""
        self._page = page
        self._place = running.place
        self.name, self.address = configuration.broker_name, configuration.address
        self._closing = asyncio.Event()
        self._rests = Rests(self._loop.time)
        self._task = asyncio.create_task(self._supervise())

    @classmethod
    async def start(cls, configuration: Configuration) -> SupervisedBroker:
        """A broker that takes requests. Raises what `RunningBroker.start` does: a store that cannot be opened now is an operator's."""
        await asyncio.to_thread(check_lock, configuration)
        page = await asyncio.to_thread(MetricsPage.of, configuration)
        try:
            return cls(configuration, await RunningBroker.start(configuration, page=page), page)
        except BaseException:
            if page is not None:
                await asyncio.to_thread(page.close)
            raise

    async def close(self) -> None:
        """Closes what runs, and opens nothing any more."""
        self._closing.set()
        try:
            await self._task
            if self.running is not None:
                await self.running.close()
        finally:
            if self._page is not None:
                await asyncio.to_thread(self._page.close)

    async def _supervise(self) -> None:
        while not await self._closes_within(_LOOK_SECONDS):
            if self.running is not None and (failure := self.running.failure) is not None:
                if not self.running.fails_by_disk:
                    _LOG.error(
                        "%s takes nothing more (%s): its disk has not failed, so an operator opens it",
                        self._root,
                        failure,
                    )
                    self.running.tell_name_servers()
                    await self._closing.wait()
                    return
                _LOG.error("%s takes nothing more (%s): it is opened again when its disk answers", self._root, failure)
                await self._open_again(self.running, failure)

    async def _open_again(self, failed: RunningBroker, failure: str) -> None:
        least_s = self._rests.next_s()
        failed.tell_name_servers()
        trouble: str | None = None
        rest_s = least_s
        while not await self._closes_within(rest_s):
            rest_s = max(least_s, min(rest_s * 2, _TRY_SECONDS))
            try:
                if self.running is not None:
                    await asyncio.to_thread(self._place.check)  # also trying writes
                    await asyncio.to_thread(_try_disk, failed)
                    await self._let_go(failed)
                self.running = await RunningBroker.start(self._configuration, place=self._place, page=self._page)
            except Exception as error:  # whatever it is, it is tried again
                if str(error) != trouble:
                    trouble = str(error)
                    _LOG.warning("%s is not opened yet: %s", self._root, trouble)
                continue
            self._rests.opened()
            self.running.note_reopened(failure)
            _LOG.warning("%s is open again, and takes messages", self._root)
            return

    async def _let_go(self, failed: RunningBroker) -> None:
        """Close all that holds the store. What operators have changed since the start stays valid."""
        self._configuration = failed.configuration
        self.running = None
        try:
            await failed.close()
        except (StorageError, OSError) as error:
            _LOG.warning("%s: what was in memory is not saved: %s", self._root, error)

    async def _closes_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)
        return self._closing.is_set()


def _try_disk(failed: RunningBroker) -> None:
    with failed.broker.parts.store.service.exclusive() as store:
        store.writer.try_disk()
