"""The messages of a range of one queue, pulled from its broker with several requests in flight; and a task's split for it.

Pulls start at the master. After a failure that can pass (a broken connection, a busy broker, no answer) the pull is repeated, also at
the queue's slaves, until nothing has come for `timeout_ms`; no try goes beyond that. While tries fail, the name servers are asked for
the broker's address. Records that are cut are such a failure, too (`PulledRecordError` says why a broker sends them). A slave's
answer about the ends of a queue is ignored: it may be behind its master.

A broker that deletes a file of its log passes over its messages. So offsets without a message are judged (`offsets.has_expired`)
before the slice that lacks them is given. A slice is of one broker, and only that broker can say why it passed over offsets. Where
the reader has left it meanwhile, the slice is read again. A slave deletes files of its own, so its answer is never proof of a loss:
what it may have deleted is read from the master, and so is the rest of the task. A reader that judges nothing
takes slices with such offsets from the master alone, because the archiver judges them later and asks the master.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.calls import may_pass, patiently
from spark_mq.client.errors import (
    BrokerNotFoundError,
    ClientError,
    MalformedResponseError,
    TornAnswerError,
    WaitedInVainError,
    request_text,
)
from spark_mq.client.settings import ClientSettings
from spark_mq.conditions import DataLossError, named_for_spark, warn_of_losses
from spark_mq.remoting import Body, RemotingCommand, RequestCode
from spark_mq.source.cluster_questions import (
    Addresses,
    ClusterQuestions,
    addresses_of,
    compaction_request,
    exchange,
    is_compacted,
)
from spark_mq.source.offsets import QueueId, has_expired
from spark_mq.source.pulled_records import (
    FirstRecord,
    PulledPart,
    PulledRecordError,
    first_hole,
    first_record,
    slice_of,
)
from spark_mq.source.pulls import (
    EVERYTHING,
    Again,
    Ask,
    Ended,
    Found,
    Lost,
    Misfit,
    Nothing,
    Part,
    PullRequests,
    PullTerms,
    PullWindow,
    no_news,
    outcome_of,
    pull_answer,
)
from spark_mq.source.rows import RowRequest, to_batches
from storage.errors import CorruptMessageError
from storage.format.arrays import Memory
from storage.format.record import MINIMUM_RECORD_SIZE
from storage.format.window_decoder import Wanted
from storage.names import MASTER_ID
from storage.queues.scan import SLICE_BYTES, SLICE_ROWS, QueueSlice
from storage.rules.response_codes import ResponseCode

DEPTH = 16
"""Pulls in flight."""
ANSWER_TIMEOUT_MS = 10_000
"""After so long without any answer a broker counts as silent, and the pulls are sent again; sooner where the time is short and there
are slaves to ask."""
AWAY_SECONDS = 30
"""So long a slave is read after the master failed, before its advice to go back is followed: a frozen master costs time at each try."""
LOOK_AGAIN_SECONDS = 2.0
"""Between two questions where the broker is."""
SLICE_OFFSETS = 8 * SLICE_ROWS
"""A slice has no more offsets, also where most have no message for a filtered query: what they lack is judged before it has expired."""
_WHAT = request_text(RequestCode.PULL_MESSAGE)


class _Answer(NamedTuple):
    """The records that a broker gave, and its address: a master's id may move to another machine."""

    address: str
    body: Body


_Waiter = tuple[Ask, Callable[[Ask, RemotingCommand], int]]
"""An ask, and what takes its answer and returns the id of the broker that it suggests."""


@dataclass(slots=True)
class _Held:
    """What was taken of [`start`, `end`) from one broker, to be given as a slice."""

    start: int
    end: int = field(init=False)
    address: str = ""
    parts: list[PulledPart] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0

    def __post_init__(self) -> None:
        self.end = self.start

    def takes(self, part: Part[_Answer]) -> bool:
        """Add a part, unless it is another broker's."""
        offset, end, (address, body) = part
        if self.end > self.start and address != self.address:
            return False
        self.end, self.address = end, address
        if len(body):
            self.parts.append(PulledPart(offset, end, body))
            self.rows += min(end - offset, len(body) // MINIMUM_RECORD_SIZE)
            self.size_bytes += len(body)
        return True

    @property
    def is_full(self) -> bool:
        is_long = self.end - self.start >= SLICE_OFFSETS
        return self.rows >= SLICE_ROWS or self.size_bytes >= SLICE_BYTES or is_long


class PullReader:
    """One queue's messages, from whichever of its brokers answers. `close` ends its connection."""

    def __init__(
        self,
        queue: QueueId,
        addresses: Mapping[int, str],
        terms: PullTerms,
        *,
        fail_on_data_loss: bool = True,
        verify_crc: bool = False,
        judges_holes: bool = True,
        asks_leniently: bool = False,
        wanted: Wanted | None = None,
    ) -> None:
        """`wanted`: the parts of messages that the query needs. Without `judges_holes` the reader ignores offsets that the master
        passes over. With `asks_leniently` it raises no refusal where the broker does not say whether the topic is compacted.
        """
        self._queue = queue
        self._addresses = dict(sorted(addresses.items()))
        self._terms = terms
        self._requests = PullRequests(queue, terms)
        self._looks = PullRequests(queue, replace(terms, filter=EVERYTHING))
        self._strict = fail_on_data_loss
        self._asks_strictly = fail_on_data_loss and not asks_leniently
        self._judges_holes = judges_holes
        self._verify_crc = verify_crc
        self._wanted = wanted
        self._memory = Memory()
        self._broker_id = next(iter(self._addresses), MASTER_ID)
        self._connection: BlockingConnection[_Waiter] | None = None
        self._failures = 0
        self._last_news = self._last_slice = time.monotonic()
        self._torn_slices = 0
        """How often the slice that comes next was torn."""
        self._answer_timeout_ms = max(min(ANSWER_TIMEOUT_MS, terms.timeout_ms // max(len(self._addresses), 1)), 1)
        self._suggestions_count = True
        self._master_error: ClientError | None = None
        self._back_at = 0.0
        self._addresses_due = 0.0
        self._windows: list[PullWindow[_Answer]] = []
        """Those that have asks in flight over the connection."""
        self._looked_at: set[str] = set()
        """Addresses of the brokers by which a hole is judged."""
        self._told: list[tuple[int, int]] = []
        """Offsets whose loss was reported."""
        self._read_again_from = -1
        self._is_compacted: bool | None = None
        self._not_known = ""
        """Why it is unknown whether the topic is compacted."""

    def slices(self, start: int, end: int) -> Iterator[QueueSlice]:
        """The messages at offsets [start, end), in order.

        Raises DataLossError where some are gone and that is not tolerated, CorruptMessageError for a wrong sum that is looked for,
        and the client's errors.
        """
        window, held = self._open_window(start, end), _Held(start)
        waiting: deque[Part[_Answer]] = deque()
        self._note_slice()
        while waiting or held.end > held.start or not window.is_done:
            is_whole = False
            if waiting:
                is_whole = not held.takes(waiting[0])
                if not is_whole:
                    waiting.popleft()
            elif taken := window.take():  # some may have come with a look's answer
                waiting.extend(taken)
            elif not window.is_done:
                self._exchange(window, partial(self._take, window))
            if not is_whole and not held.is_full and (waiting or not window.is_done):
                continue
            try:
                pulled = self._slice(held) if held.parts else None
            except TornAnswerError as error:
                self._wait_for_whole(error)
                is_right = False
            else:
                offsets = np.empty(0, np.int64) if pulled is None else pulled.queue_offsets
                is_right = self._judge(held, window.end, offsets)
            if not is_right:
                window, held = self._open_window(held.start, window.end), _Held(held.start)
                waiting.clear()
                continue
            if pulled is not None:
                yield pulled
            held = _Held(held.end)
            self._note_slice()  # the reader's own time is no silence
        if window.in_flight:  # of what was cut off
            self.close()

    def _open_window(self, start: int, end: int) -> PullWindow[_Answer]:
        """The only one from here on."""
        if any(window.in_flight for window in self._windows):
            self.close()
        window: PullWindow[_Answer] = PullWindow(start, end, DEPTH)
        self._windows = [window]
        return window

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _slice(self, held: _Held) -> QueueSlice:
        try:
            pulled = slice_of(held.parts, self._queue.topic.encode(), self._queue.queue_id, self._wanted, self._memory)
        except PulledRecordError as error:
            raise error.at(held.address) from None
        if self._verify_crc:
            for _, corrupt in pulled.records.corrupt_sums(force_property_crc=False):
                raise corrupt
        return pulled

    def _judge(self, held: _Held, end: int, offsets: np.ndarray) -> bool:
        """Report which messages of a slice have expired and are not among the offsets that were given; `end` is the range's.

        Returns False if the slice must be read again. Then no loss of it was reported.
        """
        is_filtered = self._terms.filter != EVERYTHING
        at = held.start
        while at < held.end and (hole := first_hole(offsets, at, held.end)) is not None:
            low, high = hole
            if told := [stop for begin, stop in self._told if begin <= low < stop]:
                at = max(told)
                continue
            is_masters = held.address == self._addresses.get(MASTER_ID)
            if not self._judges_holes:
                return is_masters or self._read_again(held.start, from_master=True)
            self._looked_at.clear()
            is_there = is_filtered and self._first_from(low) == low  # it did not match
            is_lost = not is_there and has_expired(low, self._first_from, self._is_compacted_topic)
            if is_lost and (is_filtered or high == held.end):
                high = max(high, min(self._first_from(low) or end, end))
            if (is_lost and not is_masters) or self._looked_at - {held.address}:
                return self._read_again(held.start, from_master=is_lost and not is_masters)
            if not is_lost:  # nor has anything behind it
                break
            what = ", as far as they matched" if is_filtered else ""
            self._lose(f"offsets [{low}, {high}) expired before they were read{what}{self._not_known}")
            self._told.append((low, high))
            at = high
        return True

    def _read_again(self, start: int, *, from_master: bool) -> bool:
        """The slice that begins at `start` is to be read again: where the reader is by now. From the master, as all that comes, if it
        is the one to ask, or if the brokers have changed once more. Returns False.
        """
        if from_master or self._read_again_from == start:
            self._addresses = {number: at for number, at in self._addresses.items() if number == MASTER_ID}
            if self._broker_id != MASTER_ID:
                self.close()
                self._broker_id = MASTER_ID
        self._read_again_from = start
        return False

    def _first_from(self, offset: int) -> int | None:
        """The offset of the first message at or behind an offset, whatever the query filters; None if there is none."""
        window: PullWindow[_Answer] = PullWindow(offset, offset + 1, 1)
        self._windows.append(window)
        found: list[int | None] = []

        def take(ask: Ask, command: RemotingCommand) -> int:
            address = self._addresses[self._broker_id]
            record = first_record(offset, command, address, self._queue, self._terms.group)
            found.append(record.queue_offset if isinstance(record, FirstRecord) else None)
            window.answer(ask, ask.end, _Answer(address, b""))
            self._looked_at.add(address)
            self._note_answer()
            return self._broker_id

        while not window.is_done:
            self._exchange(window, take, self._looks)
            window.take()
        self._windows.remove(window)
        return found[-1]

    def _is_compacted_topic(self) -> bool:
        """Whether the broker keeps only the newest message of each key. The master says so: no, at a slave.

        Where no broker says so, that is an error. If loss is tolerated, the text of the loss says it.
        """
        if self._broker_id != MASTER_ID or self._not_known:
            return False
        if self._is_compacted is None:
            try:
                what = f"the configuration of topic {self._queue.topic}"
                self._is_compacted = patiently(self._ask_compacted, self._terms.timeout_ms, what)
            except ClientError as error:
                if self._asks_strictly:
                    raise
                self._not_known = f" (or its topic is compacted, which is not known: {error.describe()})"
                return False
        return self._is_compacted

    def _ask_compacted(self) -> bool:
        connection: BlockingConnection[int] = BlockingConnection(self._address(), self._terms.settings)
        try:
            self._looked_at.add(connection.address)
            (answer,) = exchange(connection, [compaction_request(self._queue.topic)], self._answer_timeout_ms)
        finally:
            connection.close()
        return is_compacted(answer)

    def _exchange(
        self,
        window: PullWindow[_Answer],
        take: Callable[[Ask, RemotingCommand], int],
        requests: PullRequests | None = None,
    ) -> None:
        """Send what the window asks for, and take the answers that come next, also those to another window's asks."""
        try:
            if self._connection is None:
                settings = self._terms.settings
                patience_ms = min(settings.connect_timeout_ms, self._left_ms())
                self._connection = BlockingConnection(
                    self._address(), replace(settings, connect_timeout_ms=patience_ms)
                )
            connection = self._connection
            made = requests or self._requests
            connection.send([(made.request(ask), (ask, take)) for ask in window.asks()])
            suggested = self._broker_id
            for (ask, taken_by), command in connection.receive(min(self._answer_timeout_ms, self._left_ms())):
                suggested = taken_by(ask, command)
        except ClientError as error:
            at_slave = self._broker_id != MASTER_ID and MASTER_ID in self._addresses
            if not at_slave and not may_pass(error):  # what a slave refuses the master may give
                raise
            self._leave()
            self._wait_or_raise(error)
        else:
            is_looking = requests is not None  # the same broker that was read
            if not is_looking and suggested != self._broker_id and self._may_go_to(suggested):
                self._leave()
                self._broker_id = suggested

    def _take(self, window: PullWindow[_Answer], ask: Ask, command: RemotingCommand) -> int:
        """One answer. Returns the broker id that it suggests. Raises an error that may pass where the answer says nothing."""
        address = self._addresses[self._broker_id]
        if command.code == ResponseCode.TOPIC_NOT_EXIST and self._broker_id == MASTER_ID:
            if not window.is_done:
                self._lose(f"its topic is gone; offset {window.position} was to be read")
            window.cut(window.position)
            window.answer(ask, ask.end, _Answer(address, b""))
            return self._broker_id
        answer = pull_answer(command, address, self._queue, self._terms.group)
        match outcome_of(ask.offset, answer):
            case Found(next_offset):
                window.answer(ask, next_offset, _Answer(address, answer.body))
            case Nothing(next_offset):
                window.answer(ask, next_offset, _Answer(address, b""))
            case Lost(next_offset, reason) if self._broker_id == MASTER_ID:
                self._lose(f"{reason}; offset {ask.offset} was to be read")
                self._told.append((ask.offset, next_offset))
                window.answer(ask, next_offset, _Answer(address, b""))
            case Ended(maximum, reason) if self._broker_id == MASTER_ID:
                if maximum < window.end:
                    self._lose(f"{reason}, before offset {window.end} that was planned when the query looked")
                window.cut(maximum)
                window.answer(ask, ask.end, _Answer(address, b""))
            case Lost(_, reason) | Ended(_, reason) | Again(reason):
                window.again(ask)
                raise no_news(reason, address, self._queue, self._terms.group)
            case Misfit(reason):
                raise MalformedResponseError(address, _WHAT, reason)
        self._note_answer()
        return answer.suggested_broker_id

    def _note_answer(self) -> None:
        self._failures, self._last_news = 0, time.monotonic()
        if self._broker_id == MASTER_ID:
            self._master_error = None

    def _note_slice(self) -> None:
        self._torn_slices, self._last_news = 0, time.monotonic()
        self._last_slice = self._last_news

    def _wait_for_whole(self, error: TornAnswerError) -> None:
        """A slice is to be read again, as after tries that failed: its answers are no news."""
        self._failures, self._last_news = self._torn_slices, self._last_slice
        self._torn_slices += 1
        self._leave()
        self._wait_or_raise(error)

    def _lose(self, loss: str) -> None:
        text = f"queue {self._queue}: {loss}"
        if self._strict:
            raise DataLossError(text)
        warn_of_losses([text])

    def _address(self) -> str:
        if self._broker_id not in self._addresses:
            raise BrokerNotFoundError(self._queue.broker_name, self._broker_id)
        return self._addresses[self._broker_id]

    def _may_go_to(self, broker_id: int) -> bool:
        if broker_id == MASTER_ID:
            return MASTER_ID in self._addresses and time.monotonic() >= self._back_at
        return self._terms.may_leave_master and self._suggestions_count and broker_id in self._addresses

    def _leave(self) -> None:
        """Close the connection; requests in flight are repeated over the next one."""
        self.close()
        for window in self._windows:
            window.withdraw()

    def _left_ms(self) -> int:
        """The time for a try, at least 1 ms."""
        left = self._last_news + self._terms.timeout_ms / 1000 - time.monotonic()
        return max(round(1000 * left), 1)

    def _wait_or_raise(self, error: ClientError) -> None:
        """Choose whom to ask next, after a while that grows; the master's last error when the time is over."""
        self._failures += 1
        if self._broker_id == MASTER_ID:
            self._back_at = time.monotonic() + AWAY_SECONDS
            if self._master_error is None or self._left_ms() > 1:  # not that of a try that had no time
                self._master_error = error
        self._suggestions_count = self._suggestions_count and self._broker_id == MASTER_ID
        pause = 0.0 if self._failures == 1 else min(0.1 * 2 ** (self._failures - 2), 2.0)
        if time.monotonic() + pause - self._last_news > self._terms.timeout_ms / 1000:
            waited_ms = round(1_000 * (time.monotonic() - self._last_news))
            raise WaitedInVainError(self._master_error or error, f"messages of queue {self._queue}", waited_ms)
        time.sleep(pause)
        if self._failures > 1:
            self._look_up_addresses()
        ids = list(self._addresses)
        if self._broker_id in ids:
            self._broker_id = ids[(ids.index(self._broker_id) + 1) % len(ids)]

    def _look_up_addresses(self) -> None:
        """The master's and those that are known may have changed; no other slave is taken in, and none goes while it is away."""
        if time.monotonic() < self._addresses_due:
            return
        found = addresses_now(self._queue.broker_name, self._terms.settings, self._left_ms())
        self._addresses_due = time.monotonic() + LOOK_AGAIN_SECONDS
        wanted = {MASTER_ID, *self._addresses}
        self._addresses |= {number: address for number, address in found.items() if number in wanted}


@dataclass(frozen=True, slots=True)
class PullSplit:
    """Ranges of offsets of one queue, ascending, and its broker's addresses by broker id, the master's is 0."""

    terms: PullTerms
    queue: QueueId
    broker_rank: int
    addresses: tuple[tuple[int, str], ...]
    ranges: tuple[tuple[int, int], ...]
    request: RowRequest

    def read(self) -> Iterator[pa.RecordBatch]:
        """The messages as Arrow batches of the request's schema, in queue order.

        Messages that are gone since the split was planned are data loss (`SPARK_MQ_DATA_LOSS`), or passed over where the request
        tolerates that. A broker that cannot be reached is not: `SPARK_MQ_BROKER_UNREACHABLE`, after its slaves were tried and the
        time is over. A corrupt message is an error that names it (`SPARK_MQ_CORRUPT_RECORD`), or a row of a permissive request.
        """
        with named_for_spark():
            verify_crc = self.request.verify_crc and not self.request.permissive
            strict = self.request.fail_on_data_loss
            reader = PullReader(
                self.queue,
                dict(self.addresses),
                self.terms,
                fail_on_data_loss=strict,
                judges_holes=self.request.judges_holes,
                asks_leniently=self.request.asks_leniently,
                verify_crc=verify_crc,
                wanted=self.request.wanted,
            )
            try:
                for start, end in self.ranges:
                    slices = reader.slices(start, end)
                    yield from to_batches(slices, self.queue, self.broker_rank, self.request, None)
            except CorruptMessageError as error:
                raise error.of_broker(self.queue.broker_name) from None
            finally:
                reader.close()


def addresses_now(broker_name: str, settings: ClientSettings, timeout_ms: int) -> Addresses:
    """The broker's addresses by broker id; none if no name server answers in time. The name servers share the time."""
    share_ms = max(timeout_ms // (2 * len(settings.name_servers)), 1)  # half to connect to each, half for its answer
    hurried = replace(
        settings,
        connect_timeout_ms=min(settings.connect_timeout_ms, share_ms),
        request_timeout_ms=min(settings.request_timeout_ms, share_ms),
    )
    questions = ClusterQuestions(hurried)
    try:
        return addresses_of(questions.cluster_info()).get(broker_name, {})
    except ClientError:  # the error of the pull is the one to tell
        return {}
    finally:
        questions.close()
