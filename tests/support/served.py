"""All that a reader is served."""

from __future__ import annotations

from collections.abc import Iterator

from storage import Message, MessageStore


def served(store: MessageStore, topic: str, queue_id: int | None = None) -> Iterator[Message]:
    """The messages of a queue, or of all queues of the topic, each from its first offset to its end; holes are passed over."""
    for each in store.queue_ids(topic) if queue_id is None else (queue_id,):
        offset, end = store.min_offset(topic, each), store.max_offset(topic, each)
        while offset < end:  # one call reads from one file of the queue
            got = store.get(topic, each, offset, 1_000)
            yield from got.messages
            offset = max(got.next_begin_offset, offset + 1)


def bodies_of(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """The bodies of a queue, without the blanks that a test has filled them up with."""
    return [message.body.strip() for message in served(store, topic, queue_id)]
