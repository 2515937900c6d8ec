"""A query's position in every queue, and its JSON.

A queue is (topic, broker name, queue id). Its offset is the *next* queue offset to read, so that `start`
(inclusive) and `end` (exclusive) of a batch are two such positions. RocketMQ's topics have no identity, so a
position keeps beside it the place of the record before it; a recreated topic shows there.

Two JSON shapes, both `topic → broker → queue id`:

    checkpoint  {"TopicA": {"broker-a": {"0": {"next": 12, "before": [4096, 1700000000000]}}}}
    user        {"TopicA": {"broker-a": {"0": 12}}}   or, with one broker, {"TopicA": {"0": 12}}

Spark compares texts to decide whether there is new data, so the checkpoint's text is a function of the position alone:
topics and brokers are sorted as text, queue ids as numbers, and a queue that did not move keeps its `before`, even if
that record has expired since.

Spark: KafkaSourceOffset, JsonUtils.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, ItemsView, Iterator, Mapping
from typing import Any, NamedTuple

from spark_mq.conditions import OffsetJsonError, names

EARLIEST = -2
LATEST = -1
MAX_OFFSET = 2**63 - 1

RecordPlace = tuple[int, int]
"""(commitlog_offset, store_time_ms) of a record: enough to recognise it, for nothing else stands there."""

_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,9}")  # one spelling a queue, or two keys could mean the same one
_MAX_QUEUE_ID = 2**31 - 1


def has_expired(hole: int, first_from: Callable[[int], int | None], is_compacted: Callable[[], bool]) -> bool:
    """Whether offsets from `hole` on, for which a broker gave no message, may have had messages that expired. Pure.

    A broker deletes a file of its log, and moves the minimum of one queue after the other later. Meanwhile it passes over entries
    whose records are gone, and answers with the messages behind them. So the minimum does not decide. Messages expire from the
    front: while one before the hole is there, none behind it has expired, and the queue never had a message in the hole.

    `first_from(offset)` asks, now, for the offset of the first message at or behind an offset; None if there is none, or if that
    cannot be said. It must ask the broker that passed over the hole. `is_compacted` asks, last, whether the broker keeps only the
    newest message of each key: then any offset may have none, and nothing has expired. Java: DefaultMessageStore.getMessage,
    CleanCommitLogService, CleanConsumeQueueService, CompactionStore.
    """
    step = 1
    while hole > 0:
        at = max(hole - step, 0)
        found = first_from(at)
        if found is not None and found < hole:
            return False
        if at == 0:
            break
        step *= 2
    return not is_compacted()


class QueueId(NamedTuple):
    """One consume queue of a cluster. Sorts as the checkpoint's text does."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}/{self.queue_id}"


class NamedQueue(NamedTuple):
    """A queue as a user names it; without a broker it means the only one."""

    topic: str
    broker_name: str | None
    queue_id: int

    def __str__(self) -> str:
        broker_name = "?" if self.broker_name is None else self.broker_name
        return f"{self.topic}/{broker_name}/{self.queue_id}"


class QueueOffset(NamedTuple):
    """A position in one queue: the next offset to read, and the record before it.

    `before` is None where there is no such record to be seen: at the queue's minimum, or behind a gap.
    """

    next: int
    before: RecordPlace | None = None


class QueueOffsets(Mapping[QueueId, QueueOffset]):
    """A query's position: one `QueueOffset` a queue. Immutable, iterates in the order of its text."""

    __slots__ = ("_by_queue", "_tree")

    def __init__(self, by_queue: Mapping[QueueId, QueueOffset] | None = None) -> None:
        self._by_queue = {queue: (by_queue or {})[queue] for queue in sorted(by_queue or ())}
        self._tree: dict[str, dict[str, dict[str, dict[str, Any]]]] | None = None

    def __eq__(self, other: object) -> bool:
        return self._by_queue == other._by_queue if isinstance(other, QueueOffsets) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, queue: QueueId) -> QueueOffset:
        return self._by_queue[queue]

    def __iter__(self) -> Iterator[QueueId]:
        return iter(self._by_queue)

    def __len__(self) -> int:
        return len(self._by_queue)

    def __contains__(self, queue: object) -> bool:
        return queue in self._by_queue

    def items(self) -> ItemsView[QueueId, QueueOffset]:
        return self._by_queue.items()

    def __repr__(self) -> str:
        return f"QueueOffsets({json.dumps(self.to_json_dict())})"

    def next_offsets(self) -> dict[QueueId, int]:
        """The next offset to read of every queue, without the identities."""
        return {queue: position.next for queue, position in self._by_queue.items()}

    def is_moved(self, queue: QueueId, end: int) -> bool:
        """Whether the queue's next offset is another than this one, or the queue is new."""
        position = self._by_queue.get(queue)
        return position is None or position.next != end

    def moved_to(
        self,
        ends: Mapping[QueueId, int],
        record_before: Callable[[QueueId, int], RecordPlace | None],
        *,
        broken: Collection[QueueId] = (),
    ) -> QueueOffsets:
        """The position with exactly the queues of `ends`, at these next offsets.

        `record_before(queue, offset)` is called only for queues that moved and for `broken` ones (another
        topic stands there now): these must not look unmoved when the new queue happens to end at the same
        offset.
        """
        moved = {}
        for queue, end in ends.items():
            if self.is_moved(queue, end) or queue in broken:
                moved[queue] = QueueOffset(end, record_before(queue, end))
            else:
                moved[queue] = self._by_queue[queue]
        return QueueOffsets(moved)

    def to_json_dict(self) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
        """The checkpoint's shape, its keys already in order: `json.dumps` of equal positions is equal. Not to be changed."""
        if self._tree is None:
            self._tree = self._as_tree()
        return self._tree

    def _as_tree(self) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
        tree: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
        for queue, position in self._by_queue.items():
            before = None if position.before is None else list(position.before)
            queues = tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
            queues[str(queue.queue_id)] = {"next": position.next, "before": before}
        return tree

    @classmethod
    def from_json_dict(cls, tree: object, source: str = "offset") -> QueueOffsets:
        """The inverse of `to_json_dict`. Raises OffsetJsonError, which names the place inside the JSON."""
        by_queue = {}
        for topic, brokers in _items(tree, source, ""):
            at_topic = _pointer("", topic)
            for broker_name, queues in _items(brokers, source, at_topic):
                at_broker = _pointer(at_topic, broker_name)
                for queue_text, leaf in _items(queues, source, at_broker):
                    at_queue = _pointer(at_broker, queue_text)
                    queue_id = _queue_id(queue_text, source, at_queue)
                    by_queue[QueueId(topic, broker_name, queue_id)] = _position(leaf, source, at_queue)
        return cls(by_queue)


def parse_positions(text: str, option: str, *, lowest: int = 0) -> dict[NamedQueue, int]:
    """A number a queue out of a user's JSON: offsets (`lowest=EARLIEST` admits the two sentinels) or ms.

    A checkpoint's `{"next": …}` is accepted where the broker is named, so that an offset can be copied out of
    a query's progress; its `before` is not looked at. Raises OffsetJsonError.
    """
    positions: dict[NamedQueue, int] = {}
    for topic, brokers in _items(load_json(text, option), option, ""):
        at_topic = _pointer("", topic)
        for name, value in _items(brokers, option, at_topic):
            at_name = _pointer(at_topic, name)
            if not isinstance(value, dict):
                queue = NamedQueue(topic, None, _queue_id(name, option, at_name))
                positions[queue] = _number(value, option, at_name, lowest)
                continue
            for queue_text, leaf in value.items():
                at_queue = _pointer(at_name, queue_text)
                queue = NamedQueue(topic, name, _queue_id(queue_text, option, at_queue))
                if isinstance(leaf, dict) and lowest < 0:
                    positions[queue] = _position(leaf, option, at_queue).next
                else:
                    positions[queue] = _number(leaf, option, at_queue, lowest)
    return positions


def parse_assignment(text: str, option: str) -> frozenset[NamedQueue]:
    """The queues out of `topic → broker → [queue ids]` or `topic → [queue ids]`. Raises OffsetJsonError."""
    queues: set[NamedQueue] = set()
    for topic, brokers in _items(load_json(text, option), option, ""):
        at_topic = _pointer("", topic)
        named: list[tuple[str | None, object, str]]
        if isinstance(brokers, list):
            named = [(None, brokers, at_topic)]
        else:
            named = [(name, ids, _pointer(at_topic, name)) for name, ids in _items(brokers, option, at_topic)]
        for broker_name, queue_ids, pointer in named:
            if not isinstance(queue_ids, list):
                raise OffsetJsonError(option, pointer, "expected a list of queue ids")
            for i, queue_id in enumerate(queue_ids):
                number = _number(queue_id, option, f"{pointer}/{i}", 0, _MAX_QUEUE_ID)
                queues.add(NamedQueue(topic, broker_name, number))
    if not queues:
        raise OffsetJsonError(option, "", "no queue is named")
    return frozenset(queues)


def with_brokers(named: Collection[NamedQueue], brokers: Collection[str], option: str) -> list[QueueId]:
    """The queues that a user's names mean, in the same order, in a cluster of these brokers.

    A name without a broker needs a cluster of one, and no queue may be named twice. Raises OffsetJsonError.
    """
    if len(brokers) > 1 and any(queue.broker_name is None for queue in named):
        raise OffsetJsonError(
            option,
            "",
            f"name the broker of each queue, topic → broker → queue id: there are {len(brokers)}, "
            + names(sorted(brokers)),
        )
    only = next(iter(brokers), "?")
    queues = [
        QueueId(queue.topic, only if queue.broker_name is None else queue.broker_name, queue.queue_id)
        for queue in named
    ]
    if len(set(queues)) != len(queues):
        twice = sorted(str(queue) for queue, count in Counter(queues).items() if count > 1)
        raise OffsetJsonError(option, "", f"named twice, with and without the broker: {names(twice)}")
    return queues


def load_json(text: str, option: str) -> object:
    """`json.loads` that refuses a name given twice in one object. Raises OffsetJsonError."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = sorted(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise OffsetJsonError(option, "", f"given twice in one object: {names(twice)}")
        return found

    try:
        tree: object = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:  # no JSON, a number without end, brackets without end
        raise OffsetJsonError(option, "", f"not JSON: {error}") from error
    return tree


def _pointer(parent: str, key: str) -> str:
    return f"{parent}/{key.replace('~', '~0').replace('/', '~1')}"


def _items(tree: object, source: str, pointer: str) -> list[tuple[str, Any]]:
    if not isinstance(tree, dict):
        raise OffsetJsonError(source, pointer, f"expected an object, found {json.dumps(tree)}")
    return list(tree.items())


def _queue_id(text: str, source: str, pointer: str) -> int:
    if not _QUEUE_ID.fullmatch(text) or int(text) > _MAX_QUEUE_ID:
        raise OffsetJsonError(source, pointer, f"expected a queue id as a decimal number, found {text!r}")
    return int(text)


def _number(value: object, source: str, pointer: str, lowest: int, greatest: int = MAX_OFFSET) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= greatest:
        allowed = "0 or more" if lowest == 0 else f"0 or more, {LATEST} (latest) or {EARLIEST} (earliest)"
        raise OffsetJsonError(source, pointer, f"expected a whole number, {allowed}; found {json.dumps(value)}")
    return value


def _position(leaf: object, source: str, pointer: str) -> QueueOffset:
    fields = dict(_items(leaf, source, pointer))
    if fields.keys() != {"next", "before"}:
        raise OffsetJsonError(source, pointer, 'expected {"next": …, "before": …} and nothing else')
    before = fields["before"]
    if before is not None:
        if not isinstance(before, list) or len(before) != 2:
            raise OffsetJsonError(source, f"{pointer}/before", "expected [commitlog offset, store time in ms] or null")
        before = (
            _number(before[0], source, f"{pointer}/before/0", 0),
            _number(before[1], source, f"{pointer}/before/1", 0),
        )
    return QueueOffset(_number(fields["next"], source, f"{pointer}/next", 0), before)
