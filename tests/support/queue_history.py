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

import json
from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from storage import Message, MessageStore
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


NOTHING = -1
"""As a place in the log: nothing is served at this queue offset."""


class Answer(Enum):
    """What a producer was told."""

    OK = "ok"
    REFUSED = "refused"
    """An error that promises that nothing was stored."""
    UNKNOWN = "unknown"
    """No answer, or an error that promises nothing."""


@dataclass
class Sent:
    """One request of a producer. Who asks again with the same key makes another one of it."""

    key: str
    """Unique but for a producer's retries; stands in the message as KEYS."""
    topic: str
    queue_id: int | None
    """None: the store chooses."""
    body: bytes
    producer: str = ""
    answer: Answer = Answer.UNKNOWN
    queue_offset: int | None = None
    """Where it stands in its queue, if the answer said so. Of a half message and of one that is delayed, where it waits."""
    commitlog_offset: int | None = None
    transaction: str | None = None
    """None, "prepared", "committed" or "rolled back", as its producer wants it."""
    end_answer: Answer = Answer.UNKNOWN
    """To the request to commit or to roll back; of a delayed message: OK when its delivery was reported."""
    commits_asked: int = 0
    """Who commits twice may find two messages, with Java as here."""
    is_delayed: bool = False
    """It waits under a system topic before it comes to its own."""
    is_durable: bool = False
    """What the answer says was promised to be on the disk."""
    is_end_durable: bool = False
    """Likewise what `end_answer` says."""
    floor: int | None = None
    """No record of it lies before this place in the log, as far as that is known."""

    @property
    def is_plain(self) -> bool:
        """It comes to its topic at once, and there it stays."""
        return self.transaction is None and not self.is_delayed


class Seen(NamedTuple):
    """What a reader was served at one offset of a queue."""

    topic: str
    queue_id: int
    queue_offset: int
    commitlog_offset: int
    """NOTHING: the offset lies between the queue's ends, and nothing is served there."""
    key: str
    body: bytes
    disagreement: str = ""
    """What the log, read by other means, says of this place instead; empty where it says the same."""
    is_torn: bool = False
    """A power loss took a part of the record, where no checksum reaches: it is nobody's."""

    def __str__(self) -> str:
        return (
            f"{self.key or 'a message without key'} at offset {self.queue_offset} of {self.topic} queue {self.queue_id}"
        )


class History:
    """What was asked, in that order, and what was served."""

    def __init__(self, note: Callable[[str], object] = lambda line: None) -> None:
        """`note` is handed a line for each event, before the caller learns of it: `from_lines` takes them all."""
        self.sent: list[Sent] = []
        self.consumed: list[Seen] = []
        self._note = note

    def ask(
        self,
        key: str,
        topic: str,
        queue_id: int | None,
        body: bytes,
        producer: str = "",
        transaction: str | None = None,
        *,
        is_delayed: bool = False,
        floor: int | None = None,
    ) -> Sent:
        """Before a message is put: what comes of it is unknown."""
        sent = Sent(key, topic, queue_id, body, producer, transaction=transaction, is_delayed=is_delayed, floor=floor)
        self.sent.append(sent)
        self._changed(sent)
        return sent

    def acknowledge(
        self,
        sent: Sent,
        queue_offset: int | None = None,
        commitlog_offset: int | None = None,
        queue_id: int | None = None,
        *,
        is_durable: bool = False,
    ) -> None:
        """The put has returned, with these places if it says any."""
        sent.answer, sent.queue_offset, sent.commitlog_offset = Answer.OK, queue_offset, commitlog_offset
        sent.is_durable = is_durable
        if queue_id is not None and sent.is_plain:
            sent.queue_id = queue_id
        self._changed(sent)

    def refuse(self, sent: Sent) -> None:
        """The put has failed and promised that nothing is stored."""
        sent.answer = Answer.REFUSED
        self._changed(sent)

    def promise(self) -> None:
        """All that was acknowledged up to now is on the disk, as a flush or a clean close has said."""
        self._promise(len(self.sent))
        self._note(_line({"promised": len(self.sent)}))

    def _promise(self, count: int) -> None:
        for sent in self.sent[:count]:
            sent.is_durable |= sent.answer is Answer.OK
            sent.is_end_durable |= sent.end_answer is Answer.OK

    def end(self, sent: Sent, transaction: str) -> None:
        """Before a half message is "committed" or "rolled back": what comes of it is unknown."""
        sent.transaction, sent.end_answer, sent.is_end_durable = transaction, Answer.UNKNOWN, False
        sent.commits_asked += transaction == "committed"
        self._changed(sent)

    def ended(self, sent: Sent, answer: Answer = Answer.OK) -> None:
        """The request to end it has returned; of a delayed message: it was delivered, as its store says."""
        sent.end_answer = answer
        self._changed(sent)

    def consume(self, seen: Iterable[Seen]) -> None:
        """A reader was served this, and may have acted on it."""
        for one in seen:
            self.consumed.append(one)
            self._note(_line({"seen": _plain(one._asdict())}))

    def after(self, seen: Sequence[Seen]) -> History:
        """What is known once a store has been recovered and serves `seen`, which is on the disk then: what is there is acknowledged
        with its places, what is not there was never asked for (but for what was promised to be). Nothing was consumed yet.
        """
        places: dict[str, list[Seen]] = defaultdict(list)
        for one in seen:
            places[one.key].append(one)
        known = History()
        for sent in self.sent:
            found = [one for one in places[sent.key] if one.topic == sent.topic or not sent.is_plain]
            if found and sent.is_plain:
                place = next((one for one in found if stands_as_told(one, sent)), found[0])
                places[sent.key].remove(place)  # each request gets one
                known.sent.append(_there(sent, place))
            elif found:
                known.sent.append(_settled(sent, found))
            elif sent.is_durable:
                known.sent.append(replace(sent))
        return known

    @classmethod
    def begun_with(cls, known: History, note: Callable[[str], object]) -> History:
        """One that goes on from what is known; `note` hears all of that first."""
        history = cls(note)
        history.sent, history.consumed = list(known.sent), list(known.consumed)
        for line in history.to_lines():
            note(line)
        return history

    def to_lines(self) -> list[str]:
        """All of it, without newlines."""
        lines = [_sent_line(number, sent) for number, sent in enumerate(self.sent)]
        return lines + [_line({"seen": _plain(one._asdict())}) for one in self.consumed]

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> History:
        """What was noted; a last line that a kill cut off is left out. Raises ValueError for any other bad line."""
        history, broken = cls(), ""
        for line in lines:
            if broken:
                raise ValueError(f"a line of a history that is no JSON: {broken[:200]!r}")
            try:
                noted = json.loads(line)
            except json.JSONDecodeError:
                broken = line
                continue
            history._take(noted)
        return history

    def _take(self, noted: dict[str, Any]) -> None:
        if "promised" in noted:
            self._promise(noted["promised"])
            return
        if "seen" in noted:
            self.consumed.append(Seen(**{**noted["seen"], "body": b64decode(noted["seen"]["body"])}))
            return
        fields = dict(noted["sent"], body=b64decode(noted["sent"]["body"]))
        sent = Sent(**{**fields, "answer": Answer(fields["answer"]), "end_answer": Answer(fields["end_answer"])})
        if noted["number"] < len(self.sent):
            self.sent[noted["number"]] = sent
        else:
            self.sent.append(sent)

    def _changed(self, sent: Sent) -> None:
        number = next(number for number in reversed(range(len(self.sent))) if self.sent[number] is sent)
        self._note(_sent_line(number, sent))


def _there(sent: Sent, place: Seen) -> Sent:
    return replace(
        sent,
        answer=Answer.OK,
        is_durable=True,
        queue_id=place.queue_id,
        queue_offset=place.queue_offset,
        commitlog_offset=place.commitlog_offset,
    )


def _settled(sent: Sent, found: Sequence[Seen]) -> Sent:
    """One that waits, or did: ended if it came to its own topic."""
    own = [one for one in found if one.topic == sent.topic]
    known = replace(sent, answer=Answer.OK, is_durable=True)
    if own:
        wanted = None if sent.transaction is None else "committed"
        commits = max(len(own), sent.commits_asked)
        return replace(known, transaction=wanted, end_answer=Answer.OK, is_end_durable=True, commits_asked=commits)
    if sent.transaction == "committed" and not sent.is_end_durable:
        return replace(known, transaction="prepared", end_answer=Answer.UNKNOWN, commits_asked=0)
    return known


def stands_as_told(one: Seen, sent: Sent) -> bool:
    """Where the answer named no place, any will do."""
    return (
        sent.queue_id in (None, one.queue_id)
        and sent.queue_offset in (None, one.queue_offset)
        and sent.commitlog_offset in (None, one.commitlog_offset)
    )


def _sent_line(number: int, sent: Sent) -> str:
    return _line({"number": number, "sent": _plain(asdict(sent))})


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in fields.items()}


def _plain_value(value: object) -> object:
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    return value.value if isinstance(value, Enum) else value


def _line(noted: dict[str, Any]) -> str:
    return json.dumps(noted, ensure_ascii=True, separators=(",", ":"))
