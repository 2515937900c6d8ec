"""All that the readers of a small store are served: messages, look-ups, positions, tables; and whatever they are told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from storage import Message, MessageStore
from storage.errors import StorageError
from storage.format.record import decode_record
from storage.queues.scan import scan_queue
from storage.tables.consumer_groups import ConsumerOffsets, SubscriptionGroupTable
from storage.tables.masters import DelayOffsets
from storage.tables.topics import TopicTable

_TABLES: Mapping[str, Callable[[str, str], object]] = {
    "topics.json": TopicTable.load,
    "subscriptionGroup.json": SubscriptionGroupTable.load,
    "consumerOffset.json": ConsumerOffsets.load,
    "delayOffset.json": DelayOffsets.load,
}
_KEYS = (("orders", "k1"), ("orders", "k2"), ("orders", "k3"), ("TopicTx", "key158"), ("TopicTx", "key63_键"))
_A_TIME_MS = 1_795_000_000_020
_T = TypeVar("_T")


class Picture(NamedTuple):
    """All that a reader is served, and what he is told."""

    served: Mapping[str, object]
    """By what was asked for; an error stands for itself."""
    signs: tuple[str, ...]


def asked(
    open_it: Callable[[], MessageStore], ask: Callable[[MessageStore], tuple[dict[str, object], list[str]]]
) -> Picture:
    try:
        with open_it() as store:
            served, signs = ask(store)
            return Picture(served, tuple(signs))
    except StorageError as error:
        return Picture({}, (repr(error),))


def has_another(now: Picture, before: Picture, part: str) -> bool:
    """Whether in place of a message another one is served; one that is left out does not count."""
    for name, messages in now.served.items():
        if name.startswith(part) and isinstance(messages, dict):
            known = before.served.get(name)
            if not isinstance(known, dict) or any(known.get(offset) != one for offset, one in messages.items()):
                return True
    return False


def all_served(store: MessageStore) -> tuple[dict[str, object], list[str]]:
    signs: list[str] = []
    served: dict[str, object] = {}
    if store.recovery is None and store.plan.failure is not None:
        signs.append(str(store.plan.failure))

    def ask(name: str, question: Callable[[], _T]) -> _T | None:
        try:
            return question()
        except StorageError as error:
            served[f"{name} error"] = type(error).__name__
            signs.append(repr(error))
            return None

    for topic in store.topics():
        for queue_id in store.queue_ids(topic):
            queue = f"{topic}/{queue_id}"
            ends = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            served[f"queue {queue}"] = ends
            served[f"messages {queue}"] = ask("messages", partial(_got, store, topic, queue_id, *ends))
            served[f"checked {queue}"] = ask("checked", partial(_scanned, store, topic, queue_id, *ends))
            served[f"time {queue}"] = ask("time", partial(store.offset_by_time, topic, queue_id, _A_TIME_MS))
    for topic, key in _KEYS:
        served[f"key {topic} {key}"] = ask("key", partial(_found, store, topic, key))
    for name, load in _TABLES.items():
        served[f"table {name}"] = ask("table", partial(store.state, name, load))
    return served, signs


def _got(store: MessageStore, topic: str, queue_id: int, start: int, end: int) -> dict[int, object]:
    """By queue offset; what is left out is not in it."""
    found = store.get(topic, queue_id, start, 32).messages if end > start else ()
    if len(found) == end - start:
        return {offset: _content(message) for offset, message in enumerate(found, start)}
    ones = {offset: store.get(topic, queue_id, offset, 1) for offset in range(start, end)}
    return {
        offset: _content(one.messages[0])
        for offset, one in ones.items()
        if one.messages and one.next_begin_offset == offset + 1  # else it is a later one
    }


def _scanned(store: MessageStore, topic: str, queue_id: int, start: int, end: int) -> dict[int, object]:
    queue = store.queues.get(topic, queue_id)
    assert queue is not None
    found: dict[int, object] = {}
    for part in scan_queue(queue, store.log, store.log_end, start, end, verify_crc=True):
        for offset, position in zip(part.queue_offsets.tolist(), part.records.positions.tolist(), strict=True):
            message = decode_record(part.records.buffer.data, position, check_crc=False)
            assert isinstance(message, Message)
            found[offset] = _content(message)
    return found


def _found(store: MessageStore, topic: str, key: str) -> list[object]:
    return [_content(message) for message in store.messages_by_key(topic, key)]


def _content(message: Message) -> tuple[object, ...]:
    return (
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.commitlog_offset,
        message.flag,
        message.sys_flag,
        message.born_time_ms,
        message.born_host,
        message.store_time_ms,
        message.store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        message.body,
        message.raw_properties,
    )
