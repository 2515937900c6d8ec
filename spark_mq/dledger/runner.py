"""A member that runs: one thread calls it and carries out its effects, another one syncs its disk. Sockets are the owner's.

    handle, propose, a peer's answer, a finished sync ──▶ events ──▶ the member's thread ──▶ files, ask, on_committed, …
                                                                           └─ what it wrote ──▶ the sync thread ──▶ synced

All that is written while a sync runs shares the next one. The checkpoint is saved by the sync thread, too.

A failure of the disk, or of a callback, ends the runner, and so does a leader that wants to replace what is committed here: waiting
futures get the error, `on_failed` gets it, and nothing is said any more. Then only `close` may be called; another runner on new
`MemberFiles` goes on. Java: DLedgerServer, which goes on.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple

from spark_mq.dledger.files import MemberFiles
from spark_mq.dledger.member import Member
from spark_mq.dledger.messages import AppendEntryResponse, DLedgerCode, DLedgerMessage, DLedgerRequestCode, LedgerEntry
from spark_mq.dledger.pushing import Stamp
from spark_mq.dledger.state import (
    Answer,
    Append,
    Ask,
    Committed,
    Cut,
    Diverged,
    DLedgerSettings,
    Effect,
    Restart,
    RoleChanged,
    SaveVote,
)
from storage.errors import CorruptRecordError

AskPeer = Callable[[str, DLedgerRequestCode, DLedgerMessage, int], "Future[DLedgerMessage | None]"]
"""Peer, code, body, timeout in ms → the answer; None, an error or silence: there was none. It must not wait."""
CHECKPOINT_MS = 3_000
"""checkPointInterval"""
_APPLIED_TOGETHER = 1_000
MOST_UNAPPLIED = 10_000
_LOOK_SECONDS = 0.01
_LOG = logging.getLogger(__name__)
_Event = Callable[[], "list[Effect]"]


class RunnerEndedError(RuntimeError):
    """The member does not run any more."""


class DivergedError(RuntimeError):
    """A leader wants to replace what is committed here: the logs have not begun with the same entries, or a majority has lost them."""


class ByIndex(NamedTuple):
    """`call` gets the index up to which entries are committed, and not the entries."""

    call: Callable[[int], None]
    entered: Callable[[int], int] = lambda committed: committed
    """The last entry, of those up to a committed one, that the owner's own files have: the checkpoint counts no later one."""


class Runner:
    """One running member. Every method may be called from any thread, callbacks come from the member's; they must not wait for it."""

    def __init__(
        self,
        settings: DLedgerSettings,
        files: MemberFiles,
        ask: AskPeer,
        on_committed: Callable[[Sequence[LedgerEntry]], None] | ByIndex,
        on_role_changed: Callable[[RoleChanged], None],
        *,
        on_failed: Callable[[BaseException], None] = lambda error: None,
        unapplied: Callable[[], int] = lambda: 0,
        random: Random | None = None,
    ) -> None:
        """The runner closes the files.

        `on_committed` gets each committed entry once, in order, from the log's begin on at each start: empty bodies, too. Their indexes
        follow each other, unless the leader has deleted what this member lacked: then a part is missing, and the owner must look.
        An owner that reads the log's files itself gives it as `ByIndex`, and gets the last index alone.
        `unapplied` says how many of them the owner still keeps: at the start a long log waits for it.
        """
        self._files = files
        self._ask, self._on_committed, self._on_role_changed = ask, on_committed, on_role_changed
        self._on_failed, self._unapplied = on_failed, unapplied
        self._member = Member(settings, files, files.restored(), random or Random(), _now_ms())
        self._applied_index = files.restored().begin_index - 1
        self._events: list[_Event] = []
        self._changed = threading.Condition()
        self._is_closing = False
        self._failure: BaseException | None = None
        self._waiting: set[Future[Any]] = set()
        self._timeouts: list[tuple[int, int]] = []
        self._written_number = self._synced_number = 0
        self._syncing: Future[None] | None = None
        self._sync_thread = ThreadPoolExecutor(1, "dledger-sync")
        self._checkpoint_due_ms = _now_ms() + CHECKPOINT_MS
        self._thread = threading.Thread(target=self._run, name="dledger", daemon=True)

    def start(self) -> None:
        """Begin: the first call of `on_committed` has what was known as committed before."""
        self._thread.start()

    def close(self) -> None:
        """End, in order: what was written is synced, the checkpoint saved, the files closed. Waiting futures get RunnerEndedError."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._sync_thread.shutdown()
        try:
            if self._failure is None:
                self._files.sync()
                committed = self._member.state.committed_index  # all of it is durable now
                self._files.save_checkpoint(self._counted(committed))
        finally:
            self._files.close()

    @property
    def leader_id(self) -> str | None:
        """The leader, as far as this member knows."""
        return self._member.state.leader_id

    def handle(self, request: DLedgerMessage) -> Future[DLedgerMessage]:
        """A request of a peer, or of a client; the answer may come much later."""
        answer: Future[DLedgerMessage] = Future()
        self._post(lambda: self._member.handle(answer, request, _now_ms()), answer)
        return answer

    def propose(
        self,
        bodies: Sequence[bytes],
        term: int | None = None,
        stamp: Stamp | None = None,
        first_place: int | None = None,
        stands: Callable[[], bool] = lambda: True,
    ) -> Future[AppendEntryResponse]:
        """Append entries, all or none, if this member leads, and in this term and at this place of the log if they are given.

        `stands` is asked in the member's thread: False refuses the entries, as NOT_LEADER.

        The answer has a `DLedgerCode`, and of a success index and place of the last entry; `on_committed` has got them before. After
        TERM_CHANGED and WAIT_QUORUM_ACK_TIMEOUT nobody knows yet whether they will stand.
        """
        answer: Future[AppendEntryResponse] = Future()

        def propose() -> list[Effect]:
            state = self._member.state
            if (term is not None and term != state.term) or not stands():
                refusal, effects = DLedgerCode.NOT_LEADER, list[Effect]()
            else:
                made, effects = self._member.propose(answer, bodies, _now_ms(), stamp, first_place)
                refusal = made.code
            if refusal is not DLedgerCode.SUCCESS:
                group, leader = state.settings.group, state.leader_id
                self._answer(
                    answer, AppendEntryResponse(group=group, code=refusal.value, term=state.term, leader_id=leader)
                )
            return effects

        self._post(propose, answer)
        return answer

    @property
    def is_handing_over(self) -> bool:
        """Whether this leader hands over to another member, and takes nothing meanwhile."""
        return self._member.state.transferee is not None

    @property
    def durable_index(self) -> int:
        """The last entry that this disk has."""
        return self._member.state.durable_index

    def trim(self, minimum: int) -> Future[int]:
        """Delete the log's files that end before this place, at which a file begins, as far as their entries are committed.

        The log's new begin; CorruptRecordError, with nothing deleted, where no entry stands at that place.
        If the future is cancelled nothing is deleted; once that has begun it cannot be cancelled.
        """
        begin: Future[int] = Future()

        def trim() -> list[Effect]:
            if not begin.set_running_or_notify_cancel():
                with self._changed:
                    self._waiting.discard(begin)
                return []
            state = self._member.state
            try:
                index = min(self._files.first_index_in(minimum), state.durable_committed_index)
            except CorruptRecordError as error:
                with self._changed:
                    self._waiting.discard(begin)
                begin.set_exception(error)
                return []
            if index > state.begin_index:
                self._member.trimmed(self._files.trim(index))  # an OSError ends the runner, and what waits gets it
            with self._changed:
                self._waiting.discard(begin)
            begin.set_result(state.begin_index)
            return []

        self._post(trim, begin)
        return begin

    # The member's thread

    def _post(self, event: _Event, answer: Future[Any] | None = None) -> None:
        with self._changed:
            if self._failure is None and not self._is_closing:
                if answer is not None:
                    self._waiting.add(answer)
                self._events.append(event)
                self._changed.notify()
                return
        if answer is not None:
            answer.set_exception(self._ended())

    def _run(self) -> None:
        try:
            self._replay(self._member.state.committed_index)
            self._carry_out(self._member.tick(_now_ms()))
            while (events := self._next_events()) is not None:
                for event in events:
                    self._carry_out(event())
                now_ms = _now_ms()
                while self._timeouts and self._timeouts[0][0] <= now_ms:
                    self._carry_out(self._member.answered(heapq.heappop(self._timeouts)[1], None, now_ms))
                if now_ms >= self._member.deadline_ms:
                    self._carry_out(self._member.tick(now_ms))
                self._sync_what_is_written()
        except DivergedError as error:
            _LOG.error("this member of the group stops: %s", error)
            self._failure = error
        except BaseException as error:
            _LOG.exception("%s: this member of the group stops", self._files.directory)
            self._failure = error
        self._end()

    def _next_events(self) -> list[_Event] | None:
        """What has happened, maybe nothing but that time has passed; None at the end."""
        with self._changed:
            due_ms = min(self._member.deadline_ms, self._timeouts[0][0] if self._timeouts else 1 << 62)
            if not self._events and not self._is_closing:
                self._changed.wait(min(max(due_ms - _now_ms(), 0), CHECKPOINT_MS) / 1_000)
            if self._is_closing:
                return None
            events, self._events = self._events, []
            return events

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for each in effects:
            if isinstance(each, Ask):
                self._send(each)
            elif isinstance(each, Answer):
                if isinstance(each.token, Future):
                    self._answer(each.token, each.body)
            elif isinstance(each, Committed):
                self._apply(each.last_index)
            elif isinstance(each, RoleChanged):
                self._on_role_changed(each)
            elif isinstance(each, Diverged):
                raise DivergedError(
                    f"{self._files.directory}: leader {each.leader_id} wants to replace entry {each.entry_index}, which is "
                    "committed here; it is refused"
                )
            else:
                self._write(each)

    def _write(self, order: SaveVote | Append | Cut | Restart) -> None:
        self._files.write(order)
        self._written_number = order.number

    def _send(self, asked: Ask) -> None:
        heapq.heappush(self._timeouts, (_now_ms() + asked.timeout_ms, asked.call))

        def answered(answer: Future[DLedgerMessage | None]) -> None:
            body = None if answer.cancelled() or answer.exception() is not None else answer.result()
            self._post(lambda: self._member.answered(asked.call, body, _now_ms()))

        self._ask(asked.peer, asked.code, asked.body, asked.timeout_ms).add_done_callback(answered)

    def _answer(self, token: Future[Any], body: DLedgerMessage) -> None:
        with self._changed:
            self._waiting.discard(token)
        with suppress(InvalidStateError):  # its caller has given up
            token.set_result(body)

    def _replay(self, last_index: int) -> None:
        """What was committed before the start: a part at a time, so that not all of it is in memory."""
        self._applied_index = max(self._applied_index, self._member.state.begin_index - 1)
        while self._applied_index < last_index and not self._is_closing:
            if isinstance(self._on_committed, ByIndex):
                self._apply(last_index)
            elif self._unapplied() > MOST_UNAPPLIED:
                with self._changed:
                    self._changed.wait(_LOOK_SECONDS)
            else:
                self._apply(min(self._applied_index + _APPLIED_TOGETHER, last_index))

    def _apply(self, last_index: int) -> None:
        begin = max(self._applied_index + 1, self._member.state.begin_index)
        if isinstance(self._on_committed, ByIndex):
            if begin <= last_index:
                self._on_committed.call(last_index)
        else:
            for first in range(begin, last_index + 1, _APPLIED_TOGETHER):
                last = min(first + _APPLIED_TOGETHER - 1, last_index)
                self._on_committed([self._files.entry(index) for index in range(first, last + 1)])
        self._applied_index = max(self._applied_index, last_index)

    def _counted(self, committed: int) -> int:
        """What the checkpoint says of it."""
        owner = self._on_committed
        return owner.entered(committed) if isinstance(owner, ByIndex) else committed

    # The sync thread

    def _sync_what_is_written(self) -> None:
        if self._syncing is not None and self._syncing.done():
            syncing, self._syncing = self._syncing, None
            syncing.result()
        if self._syncing is not None:
            return
        if _now_ms() >= self._checkpoint_due_ms:  # first, else a steady load leaves it no turn
            self._checkpoint_due_ms = _now_ms() + CHECKPOINT_MS
            index = self._counted(self._member.state.durable_committed_index)
            self._syncing = self._sync_thread.submit(self._files.save_checkpoint, index)
            self._syncing.add_done_callback(lambda done: self._post(list))
        elif self._synced_number < self._written_number:
            self._syncing = self._sync_thread.submit(self._files.sync)
            self._syncing.add_done_callback(partial(self._on_synced, self._written_number))

    def _on_synced(self, number: int, done: Future[None]) -> None:
        def synced() -> list[Effect]:
            done.result()
            self._synced_number = number
            return self._member.synced(number, _now_ms())

        self._post(synced)

    # The end

    def _ended(self) -> BaseException:
        error = RunnerEndedError(f"{self._files.directory}: this member has stopped")
        error.__cause__ = self._failure
        return error

    def _end(self) -> None:
        with self._changed:
            self._is_closing = True
            waiting, self._waiting = self._waiting, set()
        for token in waiting:
            with suppress(InvalidStateError):
                token.set_exception(self._ended())
        if self._failure is not None:
            self._on_failed(self._failure)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
