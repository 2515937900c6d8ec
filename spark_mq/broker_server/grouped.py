"""A broker of a DLedger group: the group elects a leader, which is the master; the broker restarts in each of its roles.

    member (its log, its lines to the others, votes) ──▶ role ──▶ `RunningBroker` on the member's log
        candidate, follower   a slave: it serves reads, enters what is committed, and copies the leader's tables
        leader                an entry of its own term is committed first; then it is the master, and takes messages

The member runs from the start to the close; the broker in front of it is closed and opened again where its role changes. Between two
roles it does not listen. What was appended and is not committed when leadership ends is answered with an error: it may stay or not.

The first entry of a leader's term is a rolled-back message of `TERM_TOPIC`, which enters no queue and no index, here and at Apache's
members. With it all earlier entries are committed (Raft, 5.4.2). Java: DLedgerRoleChangeHandler, BrokerController, DLedgerCommitLog.
Departures: Java adds no such entry, and counts entries of earlier terms by themselves; and it keeps its listeners over a change.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from spark_mq.broker_server.metrics_page import MetricsPage
from spark_mq.broker_server.opening import GroupRole, StorePlace, check_lock
from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.settings import VIP_PORTS_BELOW, Configuration
from spark_mq.broker_server.supervised import Rests
from spark_mq.dledger.files import MemberFiles
from spark_mq.dledger.messages import NO_INDEX, AppendEntryResponse, DLedgerCode, DLedgerMessage
from spark_mq.dledger.runner import ByIndex, Runner
from spark_mq.dledger.state import MOST_PENDING, Role, RoleChanged
from spark_mq.remoting_server.member_lines import MemberLines
from spark_mq.remoting_server.pools import Processors
from spark_mq.remoting_server.server import RemotingServer
from storage.epoch_times import current_time_ms
from storage.errors import StoreNotWritableError
from storage.format.record import (
    BORN_HOST_V6,
    HEADER_STRUCTS,
    STORE_HOST_V6,
    TRANSACTION_ROLLBACK,
    Message,
    encode_record,
)
from storage.names import MASTER_ID
from storage.put.settings import parse_host
from storage.settings.load import DLEDGER_PEER

TERM_TOPIC = "SELF_TEST_TOPIC"
"""A topic that every broker has for itself."""
_LOOK_SECONDS = 1.0
_TERM_SECONDS = 10.0
_TRIM_SECONDS = 2.5
"""How long puts wait for the member's thread to have time for a trim."""
_PLACE = slice(28, 36)
"""A record's own place in the log. Java: MessageDecoder.PHY_POS_POSITION."""
_STAYS = (DLedgerCode.SUCCESS, DLedgerCode.WAIT_QUORUM_ACK_TIMEOUT)
"""After these answers what was proposed stands in this leader's log."""
MOST_PROPOSED = MOST_PENDING - 64
"""Proposals without an answer: fewer than the member takes, as the runs of one put come after each other."""
_GRACE_SECONDS = 2.5
"""How long a leader that closes waits for a majority to have its last entries."""
_IPV4_HOST_BYTES = 8
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class MemberLog:
    """The group's log for the store of one role; a `GroupLog`. `advance` and `lose` are for the member's thread."""

    def __init__(
        self, root: str, runner: Runner, files: MemberFiles, committed: tuple[int, int], term: int | None
    ) -> None:
        """`committed` are index and end of the last committed entry. With a `term` the member leads in it, and its log ends there."""
        self._root = root
        self._runner = runner
        self._files = files
        self._index, self._end = committed
        self.term = term
        self.lost: str | None = None
        """Why nothing more of it is known to be committed; None = it is."""
        self._proposed = 0
        """Proposals without an answer."""
        self._changed = threading.Condition()

    @property
    def leads(self) -> bool:
        return self.term is not None

    @property
    def committed_end(self) -> int:
        return self._end

    def advance(self, index: int, end: int) -> None:
        """The log is committed up to this entry. Of a leader that is none any more it is not known whose entries these are."""
        with self._changed:
            if self.lost is None and index > self._index:
                self._index, self._end = index, end
                self._changed.notify_all()

    def lose(self, reason: str) -> None:
        """Nothing more is known to be committed: another one may lead, the member has failed, or the store closes."""
        with self._changed:
            if self.lost is None:
                self.lost = reason
                self._changed.notify_all()

    @property
    def has_own_queues(self) -> bool:
        """Like `GroupLog.has_own_queues`."""
        return self._files.has_own_queues

    @property
    def is_full(self) -> bool:
        """Like `GroupLog.is_full`."""
        return self._proposed >= MOST_PROPOSED

    def refuse(self) -> None:
        """Like `GroupLog.refuse`."""
        if not self.leads:
            raise StoreNotWritableError(self._root, "another broker leads its DLedger group", "send to the leader")
        self._refuse_if_lost()
        if self._runner.is_handing_over:
            raise StoreNotWritableError(self._root, "it hands the leadership of its DLedger group over", "send again")
        if self.is_full:
            reason = f"{self._proposed} proposals wait for a majority of its DLedger group"
            raise StoreNotWritableError(self._root, reason, "send again later")

    def propose(self, bodies: Sequence[bytes], place: int) -> None:
        """Like `GroupLog.propose`."""
        if not self.leads:
            self.refuse()
        self._refuse_if_lost()
        with self._changed:
            self._proposed += 1
        proposed = self._runner.propose(bodies, self.term, first_place=place, stands=lambda: self.lost is None)
        proposed.add_done_callback(self._answered)

    def _answered(self, done: Future[AppendEntryResponse]) -> None:
        with self._changed:
            self._proposed -= 1
        failed = done.cancelled() or done.exception() is not None
        code = DLedgerCode.INTERNAL_ERROR if failed else _code(done.result())
        if code not in _STAYS:
            self.lose(f"the group has not taken an entry: {code.name}")

    def wait(self, end: int, seconds: float | None = None) -> bool:
        """Like `GroupLog.wait`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._end >= end or self.lost is not None, seconds):
                return False
            if self._end < end:
                self._refuse_if_lost()
            index = self._index
        if self._runner.durable_index < index:
            self._files.sync()
        return True

    def trim(self, minimum: int) -> None:
        """Like `GroupLog.trim`."""
        trimmed = self._runner.trim(minimum)
        wait((trimmed,), _TRIM_SECONDS)
        if trimmed.cancel():
            reason = "the member has had no time to delete files of its log; the next turn tries again"
            raise StoreNotWritableError(self._root, reason)
        try:
            trimmed.result()
        except OSError:
            raise
        except Exception as error:
            raise StoreNotWritableError(self._root, f"the log is not cut at its begin: {error}") from error

    def _refuse_if_lost(self) -> None:
        if self.lost is not None:
            reason = f"this broker's part in its DLedger group has ended: {self.lost}"
            raise StoreNotWritableError(self._root, reason, "send again: the group's leader takes it")


class GroupedBroker:
    """One broker of a group, from `start` to `close`."""

    def __init__(self, configuration: Configuration) -> None:
        self._loop = asyncio.get_running_loop()
        self._configuration = configuration
        self._root = configuration.process.store_path_root_dir
        self.name, self.address = configuration.broker_name, configuration.address
        self.self_id = configuration.own_peer.peer_id
        self._lines = MemberLines({each.peer_id: each.address for each in configuration.group.members})
        self._server = RemotingServer(configuration.server, configuration.tls)
        self.running: RunningBroker | None = None
        """None = between two roles, or its disk does not work."""
        self._page: MetricsPage | None = None
        self._runner: Runner | None = None
        self._files: MemberFiles | None = None
        self._committed = (NO_INDEX, 0)
        self._entered_end = 0
        """Where the log that queues and index have ended when the store was last closed."""
        self._role = RoleChanged(-1, Role.CANDIDATE, None)
        self._log: MemberLog | None = None
        self._failed: BaseException | None = None
        self._failure: str | None = None
        self._place: StorePlace | None = None
        self._rests = Rests(self._loop.time)
        self._due = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="grouped broker", daemon=True)

    @classmethod
    async def start(cls, configuration: Configuration) -> GroupedBroker:
        """Returns when the member takes part in the group; the broker listens a moment later.

        Raises StoreLockedError, ListenError, OSError, and StoreRefusedError or StateFileError for a log that is damaged. Its page of
        metrics is served before it takes part: ListenError or ConfigurationError if it cannot be. So is a port of the broker that is
        taken: the group could elect a leader that no client reaches.
        """
        await asyncio.to_thread(check_lock, configuration)
        found = cls(configuration)
        server = configuration.server
        try:
            for port in (server.listen_port, server.listen_port - VIP_PORTS_BELOW):
                await found._server.check(server.bind_address, port)
            found._page = await asyncio.to_thread(MetricsPage.of, configuration)
            await asyncio.to_thread(found._join)
            await found._listen()
        except BaseException:
            await found.close()
            raise
        found._thread.start()
        return found

    async def close(self) -> None:
        """Closes the store cleanly, then the member."""
        self._closing.set()
        self._due.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
        try:
            await self._stop()
        finally:
            await self._server.close()
            await asyncio.to_thread(self._leave)
            await asyncio.wrap_future(self._lines.close())
            if self._page is not None:
                await asyncio.to_thread(self._page.close)

    @property
    def is_master(self) -> bool:
        """Whether it takes messages now."""
        running, log = self.running, self._log
        return running is not None and log is not None and log.leads and log.lost is None

    # The member

    def _join(self) -> None:
        settings = self._configuration.member
        files = MemberFiles(f"{self._root}/{DLEDGER_PEER}{self.self_id}", file_size_bytes=settings.file_size_bytes)
        index = files.restored().committed_index
        try:
            self._committed = index, files.end_of(index)
            self._entered_end = self._committed[1]
            runner = Runner(
                settings,
                files,
                self._lines.ask,
                ByIndex(partial(self._on_committed, files), partial(self._entered, files)),
                self._on_role_changed,
                on_failed=self._on_failed,
            )
        except BaseException:
            files.close()
            raise
        self._files, self._runner, self._failed = files, runner, None
        runner.start()

    async def _listen(self) -> None:
        processors = Processors(self._lines.processors(self._handle))
        port = self._configuration.own_peer.port
        await self._server.listen(self._configuration.server.bind_address, port, processors)

    def _handle(self, request: DLedgerMessage) -> Future[DLedgerMessage]:
        runner = self._runner
        if runner is not None:
            return runner.handle(request)
        away: Future[DLedgerMessage] = Future()
        away.cancel()
        return away

    def _leave(self) -> None:
        runner, self._runner, self._files = self._runner, None, None
        if runner is not None:
            runner.close()

    # On the member's thread

    def _on_committed(self, files: MemberFiles, index: int) -> None:
        self._committed = index, files.end_of(index)
        log, running = self._log, self.running
        if log is not None:
            log.advance(*self._committed)
        if self._role.role is Role.LEADER and (log is None or not log.leads or log.lost is not None):
            self._due.set()  # what was too late for its term's begin is there now
        if running is not None:
            running.committed()

    def _entered(self, files: MemberFiles, committed: int) -> int:
        """The index of the last committed entry that queues and index have: the checkpoint must not name a later one.

        Apache's broker that starts after a clean stop enters only entries behind the checkpoint's index. Entries before it that its
        queues lack would never reach a consumer. The member commits entries also while no store is open.
        """
        running = self.running
        return files.last_index_by(self._entered_end if running is None else running.dispatched_end, committed)

    def _on_role_changed(self, changed: RoleChanged) -> None:
        _LOG.warning(
            "term %d: %s is %s; the leader is %s", changed.term, self.self_id, changed.role.value, changed.leader_id
        )
        self._role = changed
        log = self._log
        if log is not None and log.leads and (changed.role is not Role.LEADER or changed.term != log.term):
            log.lose(f"in term {changed.term} it is {changed.role.value}")
        self._due.set()

    def _on_failed(self, error: BaseException) -> None:
        self._failed = error
        self._role = RoleChanged(self._role.term, Role.CANDIDATE, None)
        if (log := self._log) is not None:
            log.lose(str(error))
        self._due.set()

    # Roles

    def _work(self) -> None:
        trouble: str | None = None
        while not self._closing.is_set():
            self._due.clear()
            before, trouble, rest_s = trouble, None, _LOOK_SECONDS
            try:
                self._look()
            except Exception as error:  # whatever it is, it is tried again
                if (trouble := str(error)) != before:
                    _LOG.exception("the broker of %s cannot take its role; it tries again", self._root)
                rest_s = self._rests.next_s() if self._failed is None else _LOOK_SECONDS
                self._closing.wait(min(rest_s, _LOOK_SECONDS))
            self._due.wait(rest_s)

    def _look(self) -> None:
        if self._failed is not None:
            self._go_back()
            if self._closing.is_set():
                return
        log, role = self._log, self._role
        if self.running is not None and (failure := self.running.failure) is not None:
            if log is None or log.lost is None:
                _LOG.error("%s takes nothing more (%s): it is opened again", self._root, failure)
                self._failure = failure
                self._closing.wait(self._rests.next_s())
            self._call(self._stop())
            if self._closing.is_set():
                return
        if role.role is Role.LEADER:
            if self.running is None or log is None or log.term != role.term or log.lost is not None:
                self._lead(role.term)
        elif self.running is None or log is None or log.leads:
            self._become(None)

    def _go_back(self) -> None:
        """The member has failed: its files are opened again, which finds out what the disk holds. Not where the logs have parted."""
        error = self._failed
        self._call(self._stop())
        self._leave()
        if not isinstance(error, OSError):
            _LOG.error(
                "%s: the member of the group has stopped, and an operator starts it again: %s", self._root, error
            )
            self._closing.wait()
            return
        self._failure = str(error)
        if self._closing.wait(self._rests.next_s()):
            return
        if self._place is not None:
            self._place.check()
        self._join()

    def _lead(self, term: int) -> None:
        """Serve as the master when an entry of this term is committed. A slave serves reads meanwhile."""
        assert self._runner is not None
        record = term_record(parse_host(self.address, "brokerIP1"), current_time_ms())
        answer = self._runner.propose([record], term, _with_place).result(_TERM_SECONDS)
        code = _code(answer)
        if code is DLedgerCode.SUCCESS:
            self._become(term)
        elif self._role.role is Role.LEADER and self._role.term == term:
            raise StoreNotWritableError(self._root, f"term {term} does not begin yet: {code.name}")

    def _become(self, term: int | None) -> None:
        assert self._runner is not None
        assert self._files is not None
        self._call(self._stop())
        log = self._log = MemberLog(self._root, self._runner, self._files, self._committed, term)
        log.advance(*self._committed)  # what has come meanwhile
        role = self._role
        if term is not None and (role.role is not Role.LEADER or role.term != term):
            log.lose(f"in term {role.term} it is {role.role.value}")
            return
        member = GroupRole(log, MASTER_ID if term is not None else self._configuration.slave_id)
        starting = RunningBroker.start(self._configured(log), None, self._place, member, page=self._page)
        self.running = self._call(starting)
        self._files.own_queues()
        self._place = self._place or self.running.place
        self.running.committed()
        self._rests.opened()
        if self._failure is not None:
            self.running.note_reopened(self._failure)
            self._failure = None
        _LOG.warning("%s of %s is %s", self.self_id, self.name, "slave" if term is None else f"master in term {term}")

    async def _stop(self) -> None:
        running = self.running
        if running is not None:
            self._entered_end = running.dispatched_end  # the member counts by it from here on
            self.running = None
            self._configuration = running.configuration  # with what operators have changed
            log = self._log
            assert log is not None
            ends = self._loop.call_later(_GRACE_SECONDS, log.lose, "it closes, and no majority has its last entries")
            try:
                await running.close()
            except (StoreNotWritableError, OSError) as error:  # the next opening recovers
                _LOG.info("%s: %s", self._root, error)
            finally:
                ends.cancel()
                self._entered_end = running.dispatched_end

    def _configured(self, log: MemberLog) -> Configuration:
        """Its role is the group's; what a group's log has not, as in Java, is switched off."""
        store = self._configuration.store
        mode = replace(store.mode, broker_role="ASYNC_MASTER" if log.leads else "SLAVE")
        flush = replace(store.flush, transient_store_pool_enable=False, warm_maped_file_enable=False)
        commit_log = replace(store.commit_log, enabled_append_prop_crc=False, force_verify_prop_crc=False)
        return replace(self._configuration, store=replace(store, mode=mode, flush=flush, commit_log=commit_log))

    def _call(self, act: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(act, self._loop).result()


def term_record(host: bytes, now_ms: int) -> bytes:
    """The record of a term's first entry, without its place: no consumer sees it."""
    flags = TRANSACTION_ROLLBACK | (BORN_HOST_V6 | STORE_HOST_V6 if len(host) > _IPV4_HOST_BYTES else 0)
    topic = TERM_TOPIC.encode("ascii")
    size = HEADER_STRUCTS[flags & (BORN_HOST_V6 | STORE_HOST_V6)].size + 1 + len(topic) + 2
    return encode_record(
        Message(
            topic=TERM_TOPIC,
            queue_id=0,
            queue_offset=0,
            commitlog_offset=0,
            size_bytes=size,
            flag=0,
            sys_flag=flags,
            born_time_ms=now_ms,
            born_host=host,
            store_time_ms=now_ms,
            store_host=host,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body_crc=0,
            body=b"",
        )
    )


def _with_place(record: bytes, place: int) -> bytes:
    """The record as it stands at that place of the log."""
    return record[: _PLACE.start] + place.to_bytes(8, "big") + record[_PLACE.stop :]


def _code(answer: AppendEntryResponse) -> DLedgerCode:
    try:
        return DLedgerCode(answer.code)
    except ValueError:
        return DLedgerCode.UNKNOWN
