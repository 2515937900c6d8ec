"""This controller as one of several: what the leader decides are entries of a DLedger log, which all of them apply.

    a request ──▶ Controller ──▶ append ──▶ Runner.propose ──▶ a majority has them ──▶ they hold, and are answered
    entries of another leader ──▶ on_committed ──▶ catch_up

An event is an entry of its own, in Java's bytes, so Apache's controllers may be among them. One thread decides, one decision after the
other, from a state that has all entries before: `append` waits for a majority, and a new leader serves when the empty entry with which
it begins is committed. A decision that no majority has answered in time may hold or not: the leader then serves again when another
empty entry is committed behind it, so it decides nothing from a state that may lack one.

Java: DLedgerController, DLedgerControllerStateMachine. Departures: Java goes on after such a decision; and it takes a proposal for
committed though another controller leads since.
"""

from __future__ import annotations

import logging
import posixpath
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from spark_mq.controller.controller import NOT_LEADER, Standing
from spark_mq.controller.state import (
    ControllerState,
    Event,
    WholeState,
    decode_event,
    encode_event,
    event_class_of,
    events_of,
)
from spark_mq.dledger.files import MemberFiles
from spark_mq.dledger.messages import (
    AppendEntryResponse,
    DLedgerCode,
    DLedgerMessage,
    LedgerEntry,
    entry_size,
    is_same,
    make_entry,
)
from spark_mq.dledger.runner import DivergedError, Runner
from spark_mq.dledger.state import Role, RoleChanged
from spark_mq.remoting import BodyError
from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem
from storage.format.dledger import Vote, place_of_next
from storage.rules.response_codes import RequestRefusedError, ResponseCode

_WAIT_SECONDS = 5
_AGAIN_SECONDS = 0.2
_DISK = "when its disk is well again, start it again: it goes on where it was"
_BEGIN = (
    "stop all controllers: a majority of them must begin with the same controller.journal before any of them is started"
)
_COMPARE = "stop it, and compare its log and release with those of the other controllers before you start it again"
_LOG = logging.getLogger(__name__)


class UndecidedError(RequestRefusedError):
    """A decision that may hold or not; its leader does not know."""


class Failure(NamedTuple):
    """Why a controller of several cannot go on, and what an operator can do."""

    text: str
    cure: str


class Quorum:
    """One of several controllers. `on_committed` and `on_role_changed` are for the log's thread, the rest for the one that decides.

    `decide` makes a call in that thread, after so many seconds.
    """

    def __init__(self, decide: Callable[[float, Callable[[], None]], None], on_lead: Callable[[], None]) -> None:
        """`on_lead` is called when this controller begins to serve."""
        self.state = ControllerState()
        self.applied_index = -1
        self.failure: Failure | None = None
        """Why this controller cannot know what was decided: it decides and applies nothing more."""
        self._decide = decide
        self._on_lead = on_lead
        self._log: Runner | None = None
        self._committed: deque[LedgerEntry] = deque()
        self._role = RoleChanged(-1, Role.CANDIDATE, None)
        self._serving_term: int | None = None

    def use(self, log: Runner) -> None:
        """The log to propose to; once, before anything is called."""
        self._log = log

    def standing(self) -> Standing:
        """Who leads; from any thread."""
        role, term = self._role, self._serving_term
        return Standing(role.leader_id, serves=role.role is Role.LEADER and term == role.term)

    # The log's thread.

    def on_committed(self, entries: Sequence[LedgerEntry]) -> None:
        """A majority has these entries, which follow the ones before."""
        self._committed.extend(entries)
        self._decide(0, self.catch_up)

    def unapplied(self) -> int:
        """How many of them wait for the thread that decides."""
        return len(self._committed)

    def on_role_changed(self, changed: RoleChanged) -> None:
        """Role, term or leader are new."""
        _LOG.warning(
            "term %d: this controller is %s; the leader is %s", changed.term, changed.role.value, changed.leader_id
        )
        self._role = changed
        if changed.role is Role.LEADER:
            self._decide(0, partial(self._begin, changed.term))

    def on_failed(self, error: BaseException) -> None:
        """The log takes nothing more."""
        cure = _DISK if isinstance(error, OSError) else _BEGIN if isinstance(error, DivergedError) else _COMPARE
        self._fail(f"this controller has left the group: {type(error).__name__}: {error}", cure)
        self._role = RoleChanged(self._role.term, Role.CANDIDATE, None)

    # The thread that decides.

    def append(self, events: Sequence[Event]) -> None:
        """Until a majority has the events; the caller applies them.

        Raises RequestRefusedError where another controller leads now, UndecidedError where no majority answers.
        """
        term = self._serving_term
        if term is None or not self._leads_in(term):
            raise RequestRefusedError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)
        bodies = [encode_event(event) for event in events] or [b""]
        code, index = self._proposed(bodies, term)
        if code == DLedgerCode.SUCCESS:
            self._apply_until(index - len(bodies))
            if self.failure is not None:
                raise UndecidedError(ResponseCode.SYSTEM_ERROR, f"it holds, but not here: {self.failure.text}")
            while self._committed and self._committed[0].index <= index:
                self._committed.popleft()
            self.applied_index = index
            return
        self._serving_term = None
        if code in (DLedgerCode.NOT_LEADER, DLedgerCode.TERM_CHANGED):
            raise RequestRefusedError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)
        self._begin(term)
        raise UndecidedError(
            ResponseCode.SYSTEM_ERROR,
            f"it is not known whether it holds: no majority of the controllers has answered ({code.name})",
        )

    def catch_up(self) -> None:
        """Apply what is committed."""
        while self._committed:
            self._apply(self._committed.popleft())

    def _proposed(self, bodies: Sequence[bytes], term: int) -> tuple[DLedgerCode, int]:
        assert self._log is not None
        try:
            answer = self._log.propose(bodies, term).result(_WAIT_SECONDS)
        except Exception as error:
            _LOG.warning("a decision has no answer: %s: %s", type(error).__name__, error)
            return DLedgerCode.TIMEOUT, -1
        return _code(answer), answer.index

    def _apply_until(self, last_index: int) -> None:
        while self._committed and self._committed[0].index <= last_index:
            self._apply(self._committed.popleft())

    def _apply(self, entry: LedgerEntry) -> None:
        if entry.index <= self.applied_index:
            return
        if self.failure is not None:
            return
        if entry.index != self.applied_index + 1:
            missing = f"entry {self.applied_index + 1} of the controllers' log is missing"
            self._fail(f"{missing}: the next one here is {entry.index}", _COMPARE)
            return
        self.applied_index = entry.index
        if not entry.body:
            return
        try:
            if event_class_of(entry.body) in (None, WholeState):
                _LOG.error("entry %d is not applied: its type is none of Java's", entry.index)
                return
            event = decode_event(entry.body)
        except BodyError as error:  # the others may have applied it
            self._fail(f"entry {entry.index} of the controllers' log cannot be read: {error.describe()}", _COMPARE)
            return
        self.state.apply(event)
        _LOG.info("%s", event)

    def _fail(self, text: str, cure: str) -> None:
        """The first failure counts."""
        self._serving_term = None
        if self.failure is None:
            self.failure = Failure(text, cure)
            _LOG.error("%s; %s", text, cure)

    def _begin(self, term: int) -> None:
        """Serve when an entry of this term is committed, and all before it applied."""
        if self._leads_in(term):
            assert self._log is not None
            self._log.propose([b""], term).add_done_callback(
                lambda done: self._decide(0, partial(self._begun, term, done))
            )

    def _begun(self, term: int, done: Future[AppendEntryResponse]) -> None:
        failed = done.cancelled() or done.exception() is not None
        code = DLedgerCode.INTERNAL_ERROR if failed else _code(done.result())
        self.catch_up()
        if not self._leads_in(term) or self.failure is not None:
            return
        if code == DLedgerCode.SUCCESS:
            self._serving_term = term
            self._on_lead()
        else:
            _LOG.warning("term %d does not begin yet: %s", term, code.name)
            self._decide(_AGAIN_SECONDS, partial(self._begin, term))

    def _leads_in(self, term: int) -> bool:
        return self._role.role is Role.LEADER and self._role.term == term


SEED_TERM = 1
"""The term of entries that no leader has proposed; later ones are those of leaders."""


def begun_log_path(path: str) -> str:
    """Where a log is made before it is one."""
    return f"{path}.new"


def begin_log(path: str, file_size_bytes: int, state: ControllerState, files: LocalFileSystem) -> None:
    """Make the log of one of several controllers from a single node's state: the same entries at each controller that has its journal.

    They count as committed, so a leader that does not have them cannot replace them. Commit point: the rename. Raises OSError,
    StateFileError if a log was begun from another journal.
    """
    made = begun_log_path(path)
    log = MemberFiles(made, file_size_bytes=file_size_bytes, file_system=files)
    try:
        place, entries = 0, list[LedgerEntry]()
        for index, event in enumerate(events_of(state)):
            body = encode_event(event)
            place = place_of_next(place, entry_size(body), file_size_bytes)
            entries.append(make_entry(index, SEED_TERM, place, body))
            place += entry_size(body)
        kept = log.restored().end_index + 1
        if any(not is_same(log.entry(index), entry) for index, entry in enumerate(entries[:kept])) or kept > len(
            entries
        ):
            raise StateFileError(made, 0, 0, "it was made from another journal: remove it")
        if entries[kept:]:
            log.append(entries[kept:])
            log.sync()
        log.save_vote(Vote(SEED_TERM + 1, None))
        log.save_checkpoint(len(entries) - 1)
    finally:
        log.close()
    files.rename(made, path)
    files.sync(posixpath.dirname(path))
    _LOG.warning("%s begins with the decisions of a single node: %d entries", path, len(entries))


def _code(answer: DLedgerMessage) -> DLedgerCode:
    try:
        return DLedgerCode(answer.code)
    except ValueError:
        return DLedgerCode.UNKNOWN
