"""A running controller: sockets, clock and files around `Controller`.

    running = await RunningController.start(configuration)
    … running.address …
    await running.close()

Handlers run on the event loop: a decision waits for its sync, and there are few of them. Those of one controller of several run in a
thread of their own, because a decision waits for the others. Java: ControllerManager, DLedgerController.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import posixpath
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from spark_mq.controller.controller import REQUEST_POOL, Controller
from spark_mq.controller.journal import FILE_NAME, LOCK_NAME, Journal, open_journal
from spark_mq.controller.quorum import Failure, Quorum, begin_log, begun_log_path
from spark_mq.controller.settings import LOG_PREFIX, Configuration, ControllerSettings
from spark_mq.dledger.files import MemberFiles
from spark_mq.dledger.runner import Runner
from spark_mq.remoting import RemotingCommand, RequestCode, make_request, write_body, write_header
from spark_mq.remoting_server.administration import AdministeredServer, save_settings
from spark_mq.remoting_server.member_lines import MemberLines
from spark_mq.remoting_server.peer import Caller, Peer
from spark_mq.remoting_server.pools import PoolSettings, Processor, Processors, RequestPool
from storage.errors import ConfigurationError, StoreLockedError
from storage.files.local_file_system import LocalFileSystem
from storage.names import address_text

_USED = ".before"
"""The suffix of a journal from which a log was begun."""
_NOTICE_MS = 3_000
_TICK_SECONDS = 0.1
_LONGEST_TICK_MS = 1_000
_LOG = logging.getLogger(__name__)


class PatientClock:
    """Milliseconds that this process was at work: a stretch in which its loop did not turn counts for at most a second.

    A controller that was frozen, or whose disk was slow, has read no heartbeats; brokers must not expire for that. Departure: Java uses
    the wall clock.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._ticked_at = seconds()
        self._ms = 0.0
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)

    def now_ms(self) -> int:
        """The time, to a tenth of a second."""
        return int(self._ms)

    def _tick(self) -> None:
        now = self._seconds()
        self._ms += min((now - self._ticked_at) * 1_000, _LONGEST_TICK_MS)
        self._ticked_at = now
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)

    def close(self) -> None:
        """Stops it."""
        self._timer.cancel()


class RunningController(AdministeredServer):
    """One controller, on the event loop that it was started on."""

    def __init__(self, configuration: Configuration, journal: Journal | None) -> None:
        """Without a journal it is one of several."""
        super().__init__(configuration)
        settings = configuration.controller
        self._opened = ExitStack()
        """What is closed at its end."""
        self._clock = PatientClock()
        self._quorum = None if journal is not None else Quorum(self._decide_later, self._serves_now)
        self._pool = RequestPool(
            PoolSettings(REQUEST_POOL, settings.request_queue_capacity, 0 if self._quorum is None else 1)
        )
        decides = journal or self._quorum
        assert decides is not None
        self.controller = Controller(
            configuration,
            state=decides.state,
            keep=decides.append,
            save_settings=partial(save_settings, settings.config_store_path),
            standing=None if self._quorum is None else self._quorum.standing,
        )
        """The controller; for the thread that decides: the loop's, or the pool's."""
        self._sent: dict[str, _SentNotice] = {}
        self._begun_count = self._scanned_since = 0
        """How often it has begun to serve; and that count when the timer of the masters' scan was started."""
        self._is_closing = False

    @classmethod
    async def start(cls, configuration: Configuration) -> RunningController:
        """A controller that takes requests.

        Raises ListenError, ConfigurationError (another one has the directory), OSError, and StateFileError or StoreRefusedError for a
        damaged journal or log.
        """
        settings = configuration.controller
        with ExitStack() as opened:
            journal = await asyncio.to_thread(_opened_journal, settings, opened)
            running = cls(configuration, journal)
            running._opened = opened.pop_all()
        try:
            await running._listen(configuration)
        except BaseException:
            await running.close()
            raise
        running._later("brokers", running._scan_brokers)
        running._later("masters", running._scan_masters)
        return running

    @property
    def failure(self) -> Failure | None:
        """Why it decides nothing more, and must be started again."""
        return None if self._quorum is None else self._quorum.failure

    async def close(self) -> None:
        """Answers what has come, and hangs up: no broker is gone by that. Every decision is on the disk already."""
        self._is_closing = True
        try:
            await super().close()
        finally:
            self._clock.close()
            self._pool.close()
            await asyncio.to_thread(self._opened.close)

    async def _listen(self, configuration: Configuration) -> None:
        settings, server = configuration.controller, configuration.server
        processors = Processors(default=Processor(self._answer, self._pool))
        if self._quorum is not None:
            processors = Processors(await asyncio.to_thread(self._join, self._quorum, settings), processors.default)
        self.address = await self._remoting.listen(server.bind_address, server.listen_port, processors)
        host, port = self.address
        own = settings.own_peer
        self.controller.address = address_text(host, port) if own is None else own.address

    def _join(self, quorum: Quorum, settings: ControllerSettings) -> dict[int, Processor]:
        """Become a member of the group. The returned processors answer other members, and callers looking for the leader, meanwhile."""
        lines = MemberLines({each.peer_id: each.address for each in settings.members})
        self._opened.callback(lambda: lines.close().result())
        files = MemberFiles(settings.log_path, file_size_bytes=settings.file_size_bytes)
        runner = Runner(
            settings.member,
            files,
            lines.ask,
            quorum.on_committed,
            quorum.on_role_changed,
            on_failed=quorum.on_failed,
            unapplied=quorum.unapplied,
        )
        self._opened.callback(runner.close)
        quorum.use(runner)
        runner.start()
        at_once = Processor(
            self._answer_at_once, RequestPool(PoolSettings("ControllerMetadata", settings.request_queue_capacity))
        )
        return {**lines.processors(runner.handle), RequestCode.CONTROLLER_GET_METADATA_INFO: at_once}

    # Deciding: on the loop, or in the pool's thread.

    def _decide(self, call: Callable[[], None]) -> None:
        """For the loop's thread."""
        if self._quorum is None:
            call()
        elif not self._pool.submit(call, lambda remark: False) and not self._is_closing:
            self._loop.call_later(_TICK_SECONDS, self._decide, call)

    def _decide_later(self, seconds: float, call: Callable[[], None]) -> None:
        """For any thread."""

        def act() -> None:
            if seconds:
                self._loop.call_later(seconds, self._decide, call)
            else:
                self._decide(call)

        self._remoting.call_soon(act)

    def _serves_now(self) -> None:
        """Brokers have time to be heard before masters are looked for, also by a scan that waits already. Java: RoleChangeHandler."""
        self._begun_count += 1
        self._remoting.call_soon(partial(self._begin_scans, self._begun_count))

    def _begin_scans(self, count: int) -> None:
        self._scanned_since = count
        self._later("masters", self._scan_masters)

    # Events. A scan has the time at which it was queued: heartbeats may wait behind it, and their brokers are alive.

    def _answer(self, request: RemotingCommand, peer: Peer) -> RemotingCommand:
        answer = self.controller.answer(request, Caller(peer, peer.host), self._clock.now_ms())
        self._tell()
        return answer

    def _answer_at_once(self, request: RemotingCommand, peer: Peer) -> RemotingCommand:
        """On the loop, beside the thread that decides: notices are for that one."""
        return self.controller.answer(request, Caller(peer, peer.host), self._clock.now_ms())

    def _peer_left(self, peer: Peer) -> None:
        if not self._is_closing:
            self._decide(partial(self._forget, peer, self._clock.now_ms()))

    def _forget(self, peer: Peer, now_ms: int) -> None:
        self.controller.close_channel(peer, now_ms)
        self._tell()

    def _scan_brokers(self) -> None:
        self._decide(partial(self._look_for_brokers, self._clock.now_ms()))
        self._later("brokers", self._scan_brokers)

    def _look_for_brokers(self, now_ms: int) -> None:
        for gone in self.controller.scan_brokers(now_ms):
            if isinstance(gone.channel, Peer):
                gone.channel.close("its broker was silent for too long")
        self._tell()

    def _scan_masters(self) -> None:
        self._decide(partial(self._look_for_masters, self._scanned_since, self._clock.now_ms()))
        self._later("masters", self._scan_masters)

    def _look_for_masters(self, since: int, now_ms: int) -> None:
        if since != self._begun_count:
            return
        self.controller.scan_masters(now_ms)
        self._tell()

    def _later(self, what: str, scan: Callable[[], None]) -> None:
        if self._is_closing:
            return
        settings = self.controller.configuration.controller
        interval_ms = settings.broker_scan_interval_ms if what == "brokers" else settings.master_scan_interval_ms
        self._call_later(what, interval_ms, scan)

    # Notices to brokers.

    def _tell(self) -> None:
        """One-way, each within 3 s; a newer one takes the place of one that is on its way. Who is not reached asks later."""
        for notice in self.controller.take_notices():
            fields, epoch = write_header(notice.header), notice.header.master_epoch or 0
            command = make_request(
                RequestCode.NOTIFY_BROKER_ROLE_CHANGED, fields, write_body(notice.body), is_oneway=True
            )
            _LOG.info("master is %s: telling %s", notice.header.master_address, ", ".join(notice.addresses))
            for address in notice.addresses:
                before = self._sent.get(address)
                if before is not None and before.epoch < epoch:
                    before.future.cancel()
                self._sent[address] = _SentNotice(epoch, self._send_to_broker(address, command, _NOTICE_MS))
        for address in [address for address, sent in self._sent.items() if sent.future.done()]:
            del self._sent[address]


class _SentNotice(NamedTuple):
    """A notice that is being sent to a broker."""

    epoch: int
    future: concurrent.futures.Future[None]


def _opened_journal(settings: ControllerSettings, opened: ExitStack) -> Journal | None:
    """The journal of a directory that is ours until `opened` closes; None for one controller of several, whose log begins with it."""
    files, directory = LocalFileSystem(), settings.store_path
    files.make_directories(directory)
    try:
        opened.enter_context(files.locked(f"{directory}/{LOCK_NAME}"))
    except StoreLockedError as error:
        by = f": {error.holder}" if error.holder else ""
        raise ConfigurationError(
            None, None, "controllerStorePath", f"{directory}: another controller has it{by}"
        ) from None
    journal = f"{directory}/{FILE_NAME}"
    _refuse_other_logs(settings, files)
    if not settings.is_quorum:
        return open_journal(directory, files)
    if files.exists(journal):
        if not files.exists(settings.log_path):
            begin_log(settings.log_path, settings.file_size_bytes, open_journal(directory, files).state, files)
        files.rename(journal, f"{journal}{_USED}")  # no single node goes on with it: it would give epochs twice
        files.sync(directory)
    return None


def _refuse_other_logs(settings: ControllerSettings, files: LocalFileSystem) -> None:
    """Decisions stand in them that this controller would not know."""
    own = posixpath.basename(settings.log_path)
    begun = begun_log_path(own)
    for entry in files.list_directory(settings.store_path):
        if not entry.name.startswith(LOG_PREFIX) or entry.name == begun:
            continue
        path = f"{settings.store_path}/{entry.name}"
        if not settings.is_quorum:
            rule = f"{path} is the log of one of several controllers: name all of them"
            raise ConfigurationError(None, None, "controllerDLegerPeers", f"{settings.peers!r}: {rule}")
        if entry.name != own:
            rule = f"{path} is the log of another id: a controller keeps its id and its directory"
            raise ConfigurationError(None, None, "controllerDLegerSelfId", f"{settings.self_id!r}: {rule}")
