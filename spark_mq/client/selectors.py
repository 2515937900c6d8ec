"""Which queue a message goes to, where the program says by what. Pure.

    producer.send(message, selector=by_hash, arg=order_id)

A selector takes the topic's writable queues, the message and the argument of the send, and gives one of the queues. It runs in
the caller's thread. Java: SelectMessageQueueByHash, SelectMessageQueueByRandom. Not supported: SelectMessageQueueByMachineRoom,
which selects nothing in Java either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from spark_mq.client.message import Message, MessageQueue
from storage.format.java_hash import queue_of_hash, string_hash

QueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


def by_hash(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
    """By Java's hash of the argument: equal arguments go to one queue, the same one that a Java producer takes."""
    return queues[queue_of_hash(java_hash(arg), len(queues))]


def by_random(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
    """Any of them."""
    return random.choice(queues)


def java_hash(value: object) -> int:
    """`hashCode` of a String, an Integer (within 32 bits), a Long (beyond) or a Boolean. Raises TypeError for anything else."""
    if isinstance(value, str):
        return string_hash(value)
    if isinstance(value, bool):
        return 1231 if value else 1237
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        if -(1 << 31) <= value < 1 << 31:
            return value
        folded = (value ^ value >> 32) & 0xFFFFFFFF
        return folded - (1 << 32) if folded >= 1 << 31 else folded
    raise TypeError(f"a queue is selected by a str, a bool or an int of 64 bits, not by {value!r:.80}")
