"""All that a reader gets of a queue, from its first offset to its end."""

from __future__ import annotations

from storage import MessageStore


def bodies_of(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """The bodies in the queue's order, without blanks at their ends; holes are passed over as a reader passes over them."""
    found, offset = [], 0
    while offset < store.max_offset(topic, queue_id):
        got = store.get(topic, queue_id, offset)
        found += [message.body.strip() for message in got.messages]
        offset = max(got.next_begin_offset, offset + 1)
    return found
