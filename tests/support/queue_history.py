"""What producers asked a store for and what they were told, what consumers were served, and whether a store agrees with all of it.

The history is kept outside of the store, event by event as lines of JSON where a process may be killed. `judge` holds what a store
serves against it, rule by rule; who calls it decides which rules a crash may break.

    LOST         acknowledged, and not there
    DUPLICATED   one queue offset or one record twice; a message more often than it was asked for
    PHANTOM      a reader was served it, and it is gone or another one stands there; or nobody has sent it
    HOLE         an offset of a queue at which nothing is served
    ORDER        two messages of one producer stand in a queue in another order than they were sent
    POINTER      an entry that points at another message; a message elsewhere or with other bytes than was said
    TRANSACTION  prepared or rolled back, and visible; committed, and not

A message whose outcome is unknown may be there or not, and once for each time that it was asked for.
Java: the rules are those of OpenChaos' queue checker, and of apache/rocketmq#8239.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from storage import Message, MessageStore
from tests.support.queue_events import NOTHING, Answer, History, Seen, Sent, stands_as_told
from tests.support.raw_log import RawLog

__all__ = ["NOTHING", "Answer", "History", "Rule", "Seen", "Sent", "Violation", "judge", "see"]


class Rule(Enum):
    """What can be broken."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    PHANTOM = "phantom"
    HOLE = "hole"
    ORDER = "order"
    POINTER = "wrong pointer"
    TRANSACTION = "transaction"


class Violation(NamedTuple):
    """One rule that is broken."""

    rule: Rule
    text: str
    is_loss: bool = False
    """What nobody promised to be on the disk is gone: a power loss under ASYNC_FLUSH explains that, and nothing else does."""

    def __str__(self) -> str:
        return f"{self.rule.value}: {self.text}"


def see(store: MessageStore) -> list[Seen]:
    """Everything that a reader is served, queue by queue, those of system topics too.

    Each message is held against its record in the log, read by `raw_log.py`.
    """
    log = RawLog(store.log.directories)
    seen: list[Seen] = []
    for topic in store.topics():
        for queue_id in store.queue_ids(topic):
            offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            while offset < end:
                served = list(_served(store, topic, queue_id, offset, 1_000)) or [(offset, None)]
                seen += [_seen(log, topic, queue_id, at, message) for at, message in served]
                offset += len(served)
    return seen


def _served(
    store: MessageStore, topic: str, queue_id: int, offset: int, count: int
) -> Iterator[tuple[int, Message | None]]:
    """(offset, message) of what one `get` went over. Where it left something out, each offset is asked for alone."""
    result = store.get(topic, queue_id, offset, count)
    covered = result.next_begin_offset - offset
    if covered == len(result.messages):
        yield from enumerate(result.messages, offset)
    elif covered == 1 or count == 1:  # it goes on over what it cannot serve
        yield offset, result.messages[0] if result.messages and covered == 1 else None
    else:
        for at in range(offset, result.next_begin_offset):
            yield from _served(store, topic, queue_id, at, 1)


def _seen(log: RawLog, topic: str, queue_id: int, queue_offset: int, message: Message | None) -> Seen:
    if message is None:
        return Seen(topic, queue_id, queue_offset, NOTHING, "", b"")
    record = log.record_at(message.commitlog_offset)
    if record is not None and record.is_torn:
        return Seen(topic, queue_id, queue_offset, message.commitlog_offset, record.key, message.plain_body, "", True)
    served = (topic, queue_id, queue_offset, message.properties.get("KEYS", ""), message.body)
    stands = None if record is None else (record.topic, record.queue_id, record.queue_offset, record.key, record.body)
    disagreement = "" if served == stands else f"the log has {'nothing sound' if stands is None else stands!r} there"
    return Seen(topic, queue_id, queue_offset, message.commitlog_offset, served[3], message.plain_body, disagreement)


def judge(history: History, seen: Sequence[Seen], *, log_minimum: int = 0) -> list[Violation]:
    """Where a store that serves `seen` (all of it, `see`) contradicts the history.

    `log_minimum` is where the store's log begins: what stood before has expired, and is not missed. Topics to which nobody in
    the history has sent are held to the rules that need no history.
    """
    return [
        *_of_queues(seen, log_minimum),
        *_of_producers(history, seen, log_minimum),
        *_of_consumers(history, seen, log_minimum),
        *_of_order(history, seen),
    ]


def _of_queues(seen: Sequence[Seen], log_minimum: int) -> Iterator[Violation]:
    """What is wrong with the queues as they stand: HOLE, DUPLICATED, POINTER."""
    queues: dict[tuple[str, int], list[Seen]] = defaultdict(list)
    for one in seen:
        queues[one.topic, one.queue_id].append(one)
        if one.disagreement:
            yield Violation(Rule.POINTER, f"{one} is served from {one.commitlog_offset}, and {one.disagreement}")
    for (topic, queue_id), ones in queues.items():
        counts = Counter(one.queue_offset for one in ones)
        first, last = min(counts), max(counts)
        for offset, count in counts.items():
            if count > 1:
                yield Violation(Rule.DUPLICATED, f"{topic} queue {queue_id} has {count} messages at offset {offset}")
        if first and not log_minimum:
            yield Violation(Rule.HOLE, f"{topic} queue {queue_id} begins at {first}, though nothing has expired")
        empty = {one.queue_offset for one in ones if one.commitlog_offset == NOTHING}
        for offset in sorted(empty | (set(range(first, last)) - set(counts))):
            yield Violation(
                Rule.HOLE, f"{topic} queue {queue_id} serves nothing at offset {offset} of {first} to {last}"
            )
    places: dict[int, Seen] = {}
    for one in seen:
        if one.commitlog_offset != NOTHING and places.setdefault(one.commitlog_offset, one) is not one:
            text = f"the record at {one.commitlog_offset} is {one}, and {places[one.commitlog_offset]}"
            yield Violation(Rule.DUPLICATED, text)


def _of_producers(history: History, seen: Sequence[Seen], log_minimum: int) -> Iterator[Violation]:
    """What producers were told and is not so: LOST, DUPLICATED, POINTER, TRANSACTION, and PHANTOM for what none has sent."""
    asked: dict[str, list[Sent]] = defaultdict(list)
    for sent in history.sent:
        asked[sent.key].append(sent)
    topics = {sent.topic for sent in history.sent}
    found: dict[str, list[Seen]] = defaultdict(list)
    for one in seen:
        if one.key in asked and one.commitlog_offset != NOTHING:
            found[one.key].append(one)
        elif one.topic in topics and one.commitlog_offset != NOTHING and not one.is_torn:
            yield Violation(Rule.PHANTOM, f"{one} was sent by nobody")
    for key, requests in asked.items():
        yield from _of_key(requests, found[key], log_minimum)


def _of_key(requests: list[Sent], found: list[Seen], log_minimum: int) -> Iterator[Violation]:
    """Of one message, asked for once or more often, and all places at which it was seen."""
    bodies, queue_ids = {sent.body for sent in requests}, {sent.queue_id for sent in requests}
    own = [one for one in found if one.topic == requests[0].topic]
    for one in found:
        if one.body not in bodies:
            yield Violation(Rule.POINTER, f"{one} has the body {one.body[:60]!r}, which nobody sent")
    for one in own:
        if one.queue_id not in queue_ids and None not in queue_ids:
            yield Violation(Rule.POINTER, f"{one} was sent to queue {sorted(map(str, queue_ids))}")
    if own and all(sent.answer is Answer.REFUSED for sent in requests):
        yield Violation(Rule.PHANTOM, f"{own[0]} is there, though it was refused")
    elif requests[0].is_plain:
        yield from _of_plain(requests, own, log_minimum)
    elif requests[0].is_delayed:
        yield from _of_delayed(requests, found, own, log_minimum)
    else:
        yield from _of_transaction(requests, found, own, log_minimum)


def _of_plain(requests: list[Sent], own: list[Seen], log_minimum: int) -> Iterator[Violation]:
    missed = []
    for sent in requests:
        if sent.answer is Answer.OK:
            place = next((one for one in own if stands_as_told(one, sent)), None)
            if place is not None:
                own = [one for one in own if one is not place]
            elif not _has_expired(sent, log_minimum):
                missed.append(sent)
    unexplained = len(own) - sum(sent.answer is Answer.UNKNOWN for sent in requests)
    for sent in missed:
        if unexplained > 0:
            text = f"{own[-1]}, place {own[-1].commitlog_offset}, was acknowledged as {_told(sent)}"
            yield Violation(Rule.POINTER, text)
            unexplained -= 1
        else:
            yield Violation(
                Rule.LOST, f"{sent.key}, acknowledged as {_told(sent)}, is not there", is_loss=not sent.is_durable
            )
    if unexplained > 0:
        text = f"{own[-1]} is there {unexplained} times more often than it was asked for"
        yield Violation(Rule.DUPLICATED, text)


def _told(sent: Sent) -> str:
    return f"offset {sent.queue_offset} of {sent.topic} queue {sent.queue_id}, place {sent.commitlog_offset}"


def _has_expired(sent: Sent, log_minimum: int) -> bool:
    """It may have: its place lies before the log, or may lie there."""
    place = sent.floor or 0 if sent.commitlog_offset is None else sent.commitlog_offset
    return log_minimum > place


def _of_delayed(requests: list[Sent], found: list[Seen], own: list[Seen], log_minimum: int) -> Iterator[Violation]:
    asked = sum(sent.answer is not Answer.REFUSED for sent in requests)
    if len(own) > asked:
        yield Violation(Rule.DUPLICATED, f"{own[-1]} was delivered {len(own)} times, and asked for {asked} times")
    for sent in requests:
        if _has_expired(sent, log_minimum):
            continue
        if sent.answer is Answer.OK and not found:
            text = f"{sent.key}, delayed, acknowledged at place {sent.commitlog_offset}, is not there"
            yield Violation(Rule.LOST, text, is_loss=not sent.is_durable)
        elif sent.end_answer is Answer.OK and not own:
            text = f"{sent.key} was delivered to {sent.topic}, and is not there"
            yield Violation(Rule.LOST, text, is_loss=not sent.is_end_durable)


def _of_transaction(requests: list[Sent], found: list[Seen], own: list[Seen], log_minimum: int) -> Iterator[Violation]:
    wanted, commits = requests[-1].transaction, sum(sent.commits_asked for sent in requests)
    if own and not commits:
        yield Violation(Rule.TRANSACTION, f"{own[0]} is visible, and is {wanted}")
    elif len(own) > commits:
        yield Violation(Rule.DUPLICATED, f"{own[-1]} is there {len(own)} times, and was committed {commits} times")
    for sent in requests:
        if _has_expired(sent, log_minimum):
            continue
        if sent.transaction == "committed" and sent.end_answer is Answer.OK and not own:
            text = f"{sent.key} for {sent.topic} is committed, and not visible"
            yield Violation(Rule.TRANSACTION, text, is_loss=not sent.is_end_durable)
        elif sent.transaction == "prepared" and sent.answer is Answer.OK and not found:
            text = f"{sent.key}, prepared, acknowledged at place {sent.commitlog_offset}, is not there"
            yield Violation(Rule.LOST, text, is_loss=not sent.is_durable)


def _of_consumers(history: History, seen: Sequence[Seen], log_minimum: int) -> Iterator[Violation]:
    """What a reader was served, and no reader is served any more: PHANTOM. Each of them once."""
    now = {(one.topic, one.queue_id, one.queue_offset): one for one in seen}
    for was in dict.fromkeys(history.consumed):
        there = now.get((was.topic, was.queue_id, was.queue_offset))
        if there is None or there.commitlog_offset == NOTHING:
            if was.commitlog_offset >= log_minimum:
                yield Violation(Rule.PHANTOM, f"{was} was consumed, and is not there", is_loss=True)
        elif (there.key, there.body, there.commitlog_offset) != (was.key, was.body, was.commitlog_offset):
            yield Violation(Rule.PHANTOM, f"{was} was consumed, and now {there.key} stands there", is_loss=True)


def _of_order(history: History, seen: Sequence[Seen]) -> Iterator[Violation]:
    """In each queue, the messages of one producer stand as they were sent: ORDER. Delayed ones and halves come when they come."""
    turns: dict[str, list[int]] = defaultdict(list)
    for number, sent in enumerate(history.sent):
        if sent.is_plain and sent.answer is not Answer.REFUSED:
            turns[sent.key].append(number)
    last: dict[tuple[str, int, str], tuple[int, Seen]] = {}
    for one in sorted(seen, key=lambda one: (one.topic, one.queue_id, one.queue_offset)):
        numbers = [number for number in turns.get(one.key, ()) if history.sent[number].topic == one.topic]
        if not numbers or one.commitlog_offset == NOTHING:
            continue
        queue = one.topic, one.queue_id, history.sent[numbers[0]].producer
        before = last.get(queue)
        turn = next((number for number in numbers if before is None or number > before[0]), None)
        if turn is None and before is not None:
            yield Violation(
                Rule.ORDER, f"{one} of producer {queue[2]!r} stands behind {before[1]}, and was sent before"
            )
        else:
            last[queue] = turn if turn is not None else numbers[0], one
