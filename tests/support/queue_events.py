"""What producers asked a store for and what they were told, and what consumers were served: event by event, kept outside of the store.

`queue_history.judge` holds a store against it.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

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
