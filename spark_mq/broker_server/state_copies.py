"""A follower's copies of its master's state files: topics, groups, offsets.

    topics, groups ─▶ stored · offsets ─▶ the master's log end ─▶ held until the own log is there ─▶ log synced ─▶ stored

The log arrives in milliseconds, these files each 10 s; at once when messages of an unknown topic have come. The entry of a topic that a
master has no time to send is made of its queues (`storage/recovery/topics_behind.py`).
Offsets are stored after the messages that they count, never before: an offset ahead of the log would skip messages after a promotion.
Departure: Java stores them at once, and copies once a minute; each 10 s in controller mode. Java: SlaveSynchronize.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from spark_mq.broker_server.masters import Master, MasterPlace
from spark_mq.client.errors import ClientError, ResponseError
from storage.errors import StorageError, StoreRefusedError
from storage.ha.follower import Following
from storage.service.put_service import PutService
from storage.tables.document import OFFSETS_FILE, TOPICS_FILE
from storage.tables.masters import (
    COPIES,
    DELAYS_FILE,
    REQUEST_MODES_FILE,
    TIMER_CHECKPOINT_FILE,
    TIMER_METRICS_FILE,
    Copy,
    copied_topics_end,
    note_copied_topics,
    place_of_copy,
    timer_checkpoint_path,
)
from storage.tables.topics import MAPPINGS_FILE
from storage.transaction.progress import has_progress

PERIOD_S = 10.0
_OF_LOG = (OFFSETS_FILE, DELAYS_FILE, TIMER_CHECKPOINT_FILE)
_NOT_EVERYWHERE = {TIMER_METRICS_FILE, TIMER_CHECKPOINT_FILE, REQUEST_MODES_FILE}
"""Masters before 5.0, and those without a timer, have none."""
_LOOK_S = 0.05
_GLANCE_S = 0.5
"""Interval of the look for messages of topics without entries."""
_LAST_S = 2.0
_LOG = logging.getLogger(__name__)


class _Held(NamedTuple):
    """Offsets that a master has said, until the own log has all of what they count."""

    place: MasterPlace
    end: int
    """The master's log end after it sent the files."""
    own_end: int
    """The own log end at that time."""
    answers: Mapping[str, str]
    own_delays: bytes | None
    """The own offsets of the delay levels before the request to the master."""


class StateCopies:
    """Takes over the master's state files, now and each 10 s, from `start` until `close`."""

    def __init__(
        self,
        service: PutService,
        master: Master,
        period_s: float = PERIOD_S,
        *,
        copied: Callable[[str], None] = lambda name: None,
        copies: Mapping[str, Copy] = COPIES,
        follows: Callable[[], bool] = lambda: True,
        refused: Callable[[StoreRefusedError], None] = lambda error: None,
    ) -> None:
        """`copied` is called with the name of each replaced file. `follows` says whether the log has nothing that the master's has not;
        until then no file that counts messages is requested. `refused` is called if the master has a topic that must not be written.
        """
        self._copies = copies
        self._asked = tuple(name for name in copies if name != MAPPINGS_FILE)  # the topics' answer has the mappings
        self._service = service
        self._master = master
        self._copied = copied
        self._period_s = period_s
        self._follows = follows
        self._refused = refused
        self._held: _Held | None = None
        self._known: set[str] = set()
        """Files with the master's progress that this store has had."""
        self._topics_until = 0
        """The log offset before which all topics have their entries, as far as the master had them."""
        self._has_topics = False
        """Whether the master has answered the last request for its topics."""
        self._unserved: set[tuple[str, int]] = set()
        """Queues without an entry at the last copy."""
        self._seen: tuple[int, object] = 0, None
        self._wants_to_hold = False
        self._copies_at_end = True
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="state copies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def go_on_with(self, service: PutService) -> None:
        """The store was opened anew. By any thread."""
        self._service = service
        self._topics_until = min(self._topics_until, service.log_end)

    def end_soon(self, *, copies: bool = True) -> None:
        """Copy once more if possible, unless `copies` is False, and end."""
        self._copies_at_end = copies
        self._closing.set()

    def close(self, *, copies: bool = True) -> None:
        """The same, and waits for it."""
        self.end_soon(copies=copies)
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        self._topics_until = min(self._noted_end(), self._service.log_end)
        while True:
            self.copy()
            if self._pause():
                break
        if self._copies_at_end:
            self._held = None
            self.copy()
            until = time.monotonic() + _LAST_S
            while self._is_holding() and time.monotonic() < until:
                time.sleep(_LOOK_S)
                self.settle()

    def _pause(self) -> bool:
        """For a period, in which what is held is settled, or until a topic lacks its entry; whether it is closing."""
        until = time.monotonic() + self._period_s
        glance = time.monotonic() + _GLANCE_S
        while (now := time.monotonic()) < until:
            if self._closing.wait(_LOOK_S if self._is_holding() else max(0.0, min(glance, until) - now)):
                return True
            if self._is_holding():
                self.settle()
            if time.monotonic() >= glance:
                glance += _GLANCE_S
                if self._lacks_topics():
                    break
        return self._closing.is_set()

    @property
    def _is_over(self) -> bool:
        return self._closing.is_set() and not self._copies_at_end

    def _is_holding(self) -> bool:
        return self._held is not None or self._wants_to_hold

    def copy(self) -> None:
        """Copy each file. A file that is not available stays as it is, with a warning. Offsets only if none are held, else they would
        never settle."""
        self._has_topics = False
        unserved = self._service.store.unserved_queues()
        for name in self._asked:
            if name not in _OF_LOG and (self._is_over or not self._guarded(name, partial(self._copy, name))):
                break
        else:
            self._wants_to_hold = self._held is None
        if TOPICS_FILE in self._asked and not self._is_over:
            self._guarded("topics without entries", partial(self._make_missing_topics, unserved))
        self.settle()

    # Topics whose messages came without their entries

    def _noted_end(self) -> int:
        store = self._service.store
        return copied_topics_end(store.writer.file_system, store.root) or 0

    def _lacks_topics(self) -> bool:
        """Whether messages of a topic without an entry have come since the last copy."""
        writer = self._service.store.writer
        seen = len(writer.ends.queue_ends), writer.settings.topics
        if seen == self._seen:
            return False
        self._seen = seen
        return not self._service.store.unserved_queues() <= self._unserved

    def _make_missing_topics(self, unserved: set[tuple[str, int]]) -> None:
        """If the master has not sent its topics, make the entries that are missing. What was `unserved` before it was asked and is
        so now, the master has deleted; a queue that has come since may have its entry there.
        """
        if not self._has_topics and self._service.store.unserved_queues():
            with self._service.exclusive() as store:
                made = store.make_missing_topics(self._topics_until)
            if made:
                self._copied(TOPICS_FILE)
        self._unserved = unserved & self._service.store.unserved_queues()

    def settle(self) -> None:
        """Store the offsets that are held, if the own log has come to where the master's was; have some held, if that is due."""
        if self._wants_to_hold and self._follows() and not self._is_over:
            self._wants_to_hold = False
            self._guarded("what counts messages", self._hold)
        held = self._held
        if held is None:
            return
        own_end = self._service.log_end
        if own_end < held.own_end:
            self._held = None  # it was cut: they count what is gone
        elif own_end >= held.end:
            self._held = None
            self._guarded("what counts messages", partial(self._settle, held))

    def _guarded(self, what: str, copy: Callable[[], None]) -> bool:
        """False: the master is not reachable now."""
        try:
            copy()
        except (ClientError, StorageError, OSError, UnicodeDecodeError) as error:
            is_usual = what in _NOT_EVERYWHERE and isinstance(error, ResponseError)
            level = logging.DEBUG if is_usual else logging.WARNING
            _LOG.log(level, "%s of the master is not taken over: %s", what, error)
            if isinstance(error, StoreRefusedError):
                self._refused(error)
            return not isinstance(error, ClientError) or isinstance(error, ResponseError)
        return True

    def _hold(self) -> None:
        place, own_end, own_delays = self._master.place(), self._service.log_end, self._own(DELAYS_FILE)
        if place is None:
            return
        said = {name: self._said(name) for name in _OF_LOG if name in self._copies}
        bounds = self._master.bounds()  # requested last, so that all messages that the offsets count lie before its end
        if bounds is not None and self._master.place() == place:
            answers = {name: answer for name, answer in said.items() if answer is not None}
            self._held = _Held(place, bounds[1], own_end, answers, own_delays)

    def _said(self, name: str) -> str | None:
        """None = the master does not answer that; "" = it has no such file, because it has counted nothing yet."""
        try:
            return self._master.state(name) or ""
        except ResponseError:
            if name not in _NOT_EVERYWHERE:
                raise
            return None

    def _settle(self, held: _Held) -> None:
        if self._master.place() not in (held.place, None):
            return  # the log may be another one's
        self._service.flush()  # what is stored outlives a power loss, so the log must, too
        answers = dict(held.answers)
        if self._own(DELAYS_FILE) != held.own_delays:
            # This store has delivered in the master's place since, so the master's older offsets would deliver that again.
            answers.pop(DELAYS_FILE, None)
        for name, answer in answers.items():
            if not answer:
                self._known.add(name)
            else:
                self._guarded(name, partial(self._store_of_log, name, answer))

    def _store_of_log(self, name: str, answer: str) -> None:
        self._store(name, answer)
        self._known.add(name)

    @property
    def held_for(self) -> int | None:
        """The log end that the own log must have before what was answered counts; None = nothing waits."""
        return None if self._held is None else self._held.end

    def has_taken(self, names: Iterable[str]) -> bool:
        """Whether these files were answered, and are stored."""
        return self._known.issuperset(names)

    def knows_progress(self, name: str) -> bool:
        """Whether the store has once had what the master said in this file of its deliveries: delayOffset.json of the levels,
        timercheck of the timer, consumerOffset.json of half messages. Else all that the log holds would count as not delivered.
        """
        if name not in self._known and self._had_progress(name):
            self._known.add(name)
        return name in self._known

    def _had_progress(self, name: str) -> bool:
        """The same, of an earlier process. A timer that has run here has no copy any more."""
        store = self._service.store
        if name == OFFSETS_FILE:
            return has_progress(store)
        places = {place_of_copy(store.root, name)}
        if name == TIMER_CHECKPOINT_FILE:
            places.add(timer_checkpoint_path(store.root))
        return any(map(store.writer.file_system.exists, places))

    def _copy(self, name: str) -> None:
        service, end = self._service, self._service.log_end
        if (answer := self._master.state(name)) is None:
            return
        # The mappings first, as everywhere: else a static topic were an ordinary one after a crash.
        if name == TOPICS_FILE:
            self._store(MAPPINGS_FILE, answer)
        self._store(name, answer)
        if name == TOPICS_FILE:
            self._has_topics = True
            self._topics_until = min(end, service.log_end)
            note_copied_topics(service.store.writer.file_system, service.store.root, self._topics_until)

    def _own(self, name: str) -> bytes | None:
        """The content of the copy of the master's file of that name; None if there is none."""
        store = self._service.store
        return store.writer.file_system.read_file(place_of_copy(store.root, name))

    def _store(self, name: str, answer: str) -> None:
        store = self._service.store
        with store.tables_lock:
            own = self._own(name)
            text = self._copies[name](answer, None if own is None else own.decode())
            if text is not None:
                self._service.take_over(name, text)
        if text is not None:
            self._copied(name)


def copies_of(following: Following, master: Master) -> StateCopies:
    """Those of a store that follows, not yet started; they go into it as it is open, also when its log was cut."""
    follower = following.follower
    copies = StateCopies(following.service, master, follows=lambda: follower.agrees, refused=follower.refuse)
    following.reopened = copies.go_on_with
    copies.go_on_with(following.service)  # it may have been cut before it was known whom to tell
    return copies
