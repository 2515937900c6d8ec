"""Pulling a range of one queue: which offsets to request next, the requests, and what an answer means. Pure.

Requests carry their own subscription (flag 4): the broker needs no heartbeat of the group, and stores nothing but the group's pull
offset, which shows in its consume statistics. Java: DefaultMQPullConsumerImpl, PullMessageRequestHeader.

A broker returns at most 32 messages or 256 KiB in a pull, fewer from disk, and only its answer says where to continue. In a queue
without gaps the next offsets are known ahead, so the window requests offset, offset + stride, offset + 2 × stride …, each up to the
begin of the next. A short answer leaves a rest. The window requests rests before anything new, the first rest first, in steps of a
stride, so that few parts wait for it; a short answer also lowers the stride. After some full answers the stride is doubled; then the
answer is longer, or it leaves a rest of the usual size.

    request  |---- a ----|---- b ----|---- c ----|
    answered |---- a ----|-- b -|    |---- c ----|
    next                        |-b'-|           |---- d ----|         a, b are given; c waits for b'

If the broker filters, an answer may cover more than its request; offsets of another request are left to that request's answer.

    code                              means                                                                       outcome
    0  FOUND                          records; offsets without one, up to the next, are gaps or did not match     Found
    20 PULL_RETRY_IMMEDIATELY         NO_MATCHED_MESSAGE: nothing up to the next offset matches                   Nothing
                                      MESSAGE_WAS_REMOVING: entries whose records are deleted                     Lost
                                      the next offset is no further: a slave that has no answer                   Again
                                      OFFSET_TOO_SMALL, OFFSET_FOUND_NULL: a slave with offsetCheckInSlave        Lost
    19 PULL_NOT_FOUND                 OFFSET_OVERFLOW_ONE, NO_MESSAGE_IN_QUEUE: the queue ends here               Ended
                                      OFFSET_FOUND_NULL: no entry can be read here                                Lost
    21 PULL_OFFSET_MOVED              OFFSET_TOO_SMALL: the queue begins further on                               Lost
                                      OFFSET_OVERFLOW_BADLY, NO_MESSAGE_IN_QUEUE: the queue ends before here      Ended
                                      OFFSET_RESET: the group was reset, which does not matter here               Again

A consumer that counts messages, and ignores the next offset, pulls the same place for ever if nothing matches. The broker names the
status in the remark; the decision uses numbers wherever possible, so that a different remark changes little.
Java: PullMessageProcessor, DefaultPullMessageResultHandler, GetMessageStatus.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from spark_mq.client.errors import MalformedResponseError, ResponseError, request_text, response_error
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import Body, RemotingCommand, RequestCode, make_request, write_body
from spark_mq.remoting.command import read_header, write_header
from spark_mq.remoting.consumers import CheckClientBody, SubscriptionData
from spark_mq.remoting.errors import HeaderError
from spark_mq.remoting.messages import PullMessageAnswer, PullMessageRequest
from spark_mq.source.offsets import QueueId
from storage.rules.response_codes import ResponseCode

FIRST_STRIDE = 32
"""Messages that a broker gives a pull by default. Java: MessageStoreConfig.maxTransferCountOnMessageInMemory."""
MOST_STRIDE = 1_024
FULL_ANSWERS = 8
"""After so many the stride is doubled."""

T = TypeVar("T")


class Ask(NamedTuple):
    """A pull at `offset` for no message from `end` on."""

    offset: int
    end: int


class Part(NamedTuple, Generic[T]):
    """The offsets [`offset`, `end`), and what their answer brought."""

    offset: int
    end: int
    content: T


class PullWindow(Generic[T]):
    """The range [start, end) of one queue on its way. `depth` asks are in flight at most, and twice as many parts are kept."""

    def __init__(self, start: int, end: int, depth: int, first_stride: int = FIRST_STRIDE) -> None:
        self.position = start
        """Up to where parts were taken."""
        self.end = end
        self._depth = depth
        self._stride = first_stride
        self._full_answers = 0
        self._frontier = start
        self._rests: list[Ask] = []  # a heap
        self._in_flight: set[Ask] = set()
        self._parts: dict[int, Part[T]] = {}

    @property
    def is_done(self) -> bool:
        """Whether all was taken."""
        return self.position >= self.end

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def asks(self) -> list[Ask]:
        """The next asks; they are in flight from here on."""
        asks: list[Ask] = []
        while len(self._in_flight) < self._depth:
            has_room = len(self._in_flight) + len(self._parts) < 2 * self._depth
            if self._rests and (has_room or self._rests[0].offset == self.position):
                offset, end = heappop(self._rests)
                ask = Ask(offset, min(offset + self._stride, end))
                if ask.end < end:
                    heappush(self._rests, Ask(ask.end, end))
            elif not self._rests and has_room and self._frontier < self.end:
                ask = Ask(self._frontier, min(self._frontier + self._stride, self.end))
                self._frontier = ask.end
            else:
                break
            self._in_flight.add(ask)
            asks.append(ask)
        return asks

    def answer(self, ask: Ask, next_offset: int, content: T) -> None:
        """Take the answer to an ask in flight. It covers the offsets up to `next_offset`, which is after the requested offset."""
        self._in_flight.remove(ask)
        end = min(next_offset, ask.end)
        if end < min(ask.end, self.end):
            heappush(self._rests, Ask(end, ask.end))
        self._parts[ask.offset] = Part(ask.offset, end, content)
        self._learn(ask, next_offset)

    def _learn(self, ask: Ask, next_offset: int) -> None:
        covered = next_offset - ask.offset
        if next_offset < ask.end:
            self._stride, self._full_answers = max(1, min(self._stride, covered)), 0
            return
        self._full_answers += 1
        if next_offset > ask.end:  # filtered: one answer covers more than a full one
            self._stride = min(max(self._stride, covered), MOST_STRIDE)
        elif self._full_answers >= FULL_ANSWERS:
            self._stride, self._full_answers = min(2 * self._stride, MOST_STRIDE), 0

    def withdraw(self) -> None:
        """Request everything in flight again: the connection is gone."""
        self._rests += self._in_flight
        heapify(self._rests)
        self._in_flight.clear()

    def again(self, ask: Ask) -> None:
        """Repeat an ask in flight that was not answered."""
        self._in_flight.remove(ask)
        heappush(self._rests, ask)

    def cut(self, end: int) -> None:
        """Move the range's end back: nothing from there on is requested or returned."""
        self.end = max(min(end, self.end), self.position)
        self._frontier = min(self._frontier, self.end)
        self._rests = [Ask(ask.offset, min(ask.end, self.end)) for ask in self._rests if ask.offset < self.end]
        heapify(self._rests)

    def take(self) -> list[Part[T]]:
        """The parts that come next in order, as far as they are there."""
        parts: list[Part[T]] = []
        while self.position < self.end and (part := self._parts.pop(self.position, None)) is not None:
            part = part._replace(end=min(part.end, self.end))
            parts.append(part)
            self.position = part.end
        return parts


HAS_SUBSCRIPTION = 4
"""Java: PullSysFlag.FLAG_SUBSCRIPTION."""
MOST_BYTES = 262_144
"""Said to brokers, which ignore it up to 5.3.3."""


class PullFilter(NamedTuple):
    """The broker's filter: tags (by their hashes alone, so the reader compares texts again) or properties by SQL92."""

    expression: str = "*"
    type: str = "TAG"


EVERYTHING = PullFilter()


@dataclass(frozen=True, slots=True)
class PullTerms:
    """Settings of a query's pulls, the same for all its splits. Its repr shows no secret."""

    settings: ClientSettings
    group: str
    filter: PullFilter = EVERYTHING
    timeout_ms: int = 120_000
    """Longest time that a task tries to reach a broker before it fails."""
    may_leave_master: bool = False
    """Whether it goes on at a slave where the master suggests that; it does where the master does not answer."""


class PullRequests:
    """The requests of one queue: fields that are the same for all are written once."""

    def __init__(self, queue: QueueId, terms: PullTerms) -> None:
        header = PullMessageRequest(
            consumer_group=terms.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=0,
            max_messages=0,
            sys_flag=HAS_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_ms=0,
            subscription=terms.filter.expression,
            sub_version=0,
            expression_type=terms.filter.type,
            max_message_bytes=MOST_BYTES,
            broker_name=queue.broker_name,
            is_logical=False,
        )
        self._fields = write_header(header)

    def request(self, ask: Ask) -> RemotingCommand:
        """A pull that the broker answers at once."""
        fields = {**self._fields, "queueOffset": str(ask.offset), "maxMsgNums": str(ask.end - ask.offset)}
        return make_request(RequestCode.PULL_MESSAGE, fields)


def check_expression(topic: str, group: str, filter_: PullFilter) -> RemotingCommand:
    """Asks a broker whether it can filter by the expression (46): a pull does not tell."""
    data = SubscriptionData(topic=topic, sub_string=filter_.expression, expression_type=filter_.type)
    body = CheckClientBody(client_id="spark_mq", group=group, subscription=data)
    return make_request(RequestCode.CHECK_CLIENT_CONFIG, None, write_body(body))


def pull_answer(command: RemotingCommand, address: str, queue: QueueId, group: str) -> PullAnswer:
    """A broker's answer to a pull. Raises ResponseError for a refusal, MalformedResponseError for an answer that makes no sense."""
    what = request_text(RequestCode.PULL_MESSAGE)
    if command.code not in PULL_CODES:
        raise response_error(command.code, command.remark, address, what, queue.topic, group)
    try:
        header = read_header(PullMessageAnswer, command)
    except HeaderError as error:
        raise MalformedResponseError(address, what, str(error)) from None
    return PullAnswer(
        command.code,
        command.remark or "",
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggested_broker_id,
        command.body,
    )


def no_news(reason: str, address: str, queue: QueueId, group: str) -> ResponseError:
    """The error for an answer that says nothing about the queue: the broker counts as busy."""
    what = request_text(RequestCode.PULL_MESSAGE)
    return ResponseError(ResponseCode.SYSTEM_BUSY, reason, address, what, queue.topic, group)


PULL_CODES = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)
"""Codes that answer a pull; every other refuses it."""


class PullAnswer(NamedTuple):
    """A broker's answer to a pull: `code` is one of PULL_CODES, `remark` the name of a GetMessageStatus, `body` records."""

    code: int
    remark: str
    next_offset: int
    minimum: int
    maximum: int
    suggested_broker_id: int
    body: Body


class Found(NamedTuple):
    """The visible records of [requested offset, `next_offset`), in the answer's body."""

    next_offset: int


class Nothing(NamedTuple):
    """No message of [requested offset, `next_offset`) is visible."""

    next_offset: int


class Lost(NamedTuple):
    """The messages of [requested offset, `next_offset`) are gone."""

    next_offset: int
    reason: str


class Ended(NamedTuple):
    """The queue ends at `maximum`, at or before the requested offset."""

    maximum: int
    reason: str


class Again(NamedTuple):
    """The answer says nothing of the queue: ask the same again, or another broker."""

    reason: str


class Misfit(NamedTuple):
    """No broker answers so."""

    reason: str


Outcome = Found | Nothing | Lost | Ended | Again | Misfit


def outcome_of(requested: int, answer: PullAnswer) -> Outcome:
    """What the answer says about the queue from the requested offset on."""
    code, remark, next_offset, minimum, maximum, _, body = answer
    if next_offset < 0:
        return Misfit(f"the next offset is {next_offset}")
    if bool(body) != (code == ResponseCode.SUCCESS):
        return Misfit(f"{len(body)} bytes of records with code {code}")
    if remark == "OFFSET_RESET" and not body:
        return Again("the group's offset was reset")
    match code:
        case ResponseCode.SUCCESS if next_offset > requested:
            return Found(next_offset)
        case ResponseCode.SUCCESS:
            return Misfit(f"records, and next offset {next_offset} is not behind {requested}, the requested one")
        case ResponseCode.PULL_RETRY_IMMEDIATELY if next_offset <= requested:
            return Again(remark or "no answer to the pull")
        case ResponseCode.PULL_RETRY_IMMEDIATELY if remark == "MESSAGE_WAS_REMOVING":
            return Lost(next_offset, f"the messages from {requested} to {next_offset} are deleted from the log")
        case ResponseCode.PULL_RETRY_IMMEDIATELY if minimum <= requested and remark != "OFFSET_FOUND_NULL":
            return Nothing(next_offset)
        case _ if next_offset > requested:
            return Lost(next_offset, _beginning(requested, next_offset, minimum, remark))
        case _ if maximum <= requested or next_offset < requested:
            return Ended(min(maximum, requested), f"the queue ends at {maximum}")
    return Again(remark or f"code {code} without news")


def _beginning(requested: int, next_offset: int, minimum: int, remark: str) -> str:
    if minimum > requested:
        return f"the queue begins at {minimum}"
    return f"no entry from {requested} to {next_offset} can be read ({remark})"
