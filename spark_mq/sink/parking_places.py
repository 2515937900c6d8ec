"""Where a broker may have put a row that waits, and what of a queue's rows is stored when some of them wait. Pure.

A broker decides this at the put, by settings that no client sees. But it knows these places only, and what lies there stays for as
long as the log does, also when the row is delivered:

    the row's own queue                        its time has passed, or the broker is older than the timer
    SCHEDULE_TOPIC_XXXX, a queue a level       delay_level up to 18, and rows for a retry topic; above the broker's last it is its last
    rmq_sys_wheel_timer, queue 0               deliver_at
    %DLQ%GROUP, queue 0                        rows for a retry topic that were tried too often

So a row is stored where its mark is found in one of them, and where it is found in none of them it is not. It may be found more than
once, and in places of other rows: it was delivered, the timer has rolled it, or a consumer has sent it back; each is a copy of what was
put. A level above 18 is refused: brokers let no client read the queue behind the 18th.

Java: HookUtils.handleScheduleMessage, SendMessageProcessor.handleRetryAndDLQ, TopicConfigManager (SCHEDULE_TOPIC_QUEUE_NUM).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from spark_mq.conditions import SentRowsLostError
from spark_mq.remoting import MessageQueue
from spark_mq.sink.send_plan import UNKNOWN_FILE, QueuePlan, difference, expected_rows, queue_text
from storage.format.delay import SCHEDULE_TOPIC
from storage.names import RETRY_PREFIX, dead_letter_topic
from storage.rules.delays import TIMER_TOPIC

MOST_LEVEL = 18
"""Queues of the schedule topic that a client may read. Java: TopicConfigManager.SCHEDULE_TOPIC_QUEUE_NUM."""
_RANK_BITS = 48


def has_waiting(plan: QueuePlan) -> bool:
    """Whether rows of a queue's plan wait."""
    return any(one.batch.waits for one in plan)


def places_of(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Where, besides their own queue, rows that wait may have been put that were sent to these queues."""
    places: dict[MessageQueue, None] = {}
    for queue in queues:
        broker = queue.broker_name
        places |= dict.fromkeys(MessageQueue(SCHEDULE_TOPIC, broker, number) for number in range(MOST_LEVEL))
        places[MessageQueue(TIMER_TOPIC, broker, 0)] = None
        if queue.topic.startswith(RETRY_PREFIX):
            places[MessageQueue(dead_letter_topic(queue.topic.removeprefix(RETRY_PREFIX)), broker, 0)] = None
    return list(places)


def is_place(queue: MessageQueue) -> bool:
    """Whether no row is sent there: rows wait there."""
    return queue.topic in (SCHEDULE_TOPIC, TIMER_TOPIC) or queue.topic.startswith(dead_letter_topic(""))


def rows_stored_or_waiting(queue: MessageQueue, plan: QueuePlan, own: np.ndarray, elsewhere: np.ndarray) -> int:
    """How many of the first expected rows are stored: in their queue or, of those that wait, elsewhere. `own` is in queue order.

    Raises SentRowsLostError where they are no beginning, where a row that does not wait is there twice or not in its turn, and for a
    row of the batch that this directory has not staged.
    """
    expected = expected_rows(plan)
    waits = np.repeat([one.batch.waits for one in plan], [len(one.batch.ranks) for one in plan])
    found = np.concatenate([own, elsewhere])
    if (found["file"] == UNKNOWN_FILE).any():
        raise SentRowsLostError(queue_text(queue), difference(expected, found))
    names, expected_plain = _names(expected), expected[~waits]
    plain = own[np.isin(_names(own), names[~waits])]
    if len(plain) > len(expected_plain) or bool(np.any(plain != expected_plain[: len(plain)])):
        raise SentRowsLostError(queue_text(queue), difference(expected_plain, plain))
    is_there = np.isin(names, _names(found))
    is_there[~waits] = np.arange(len(expected_plain)) < len(plain)
    stored = int(np.argmin(is_there)) if not is_there.all() else len(is_there)
    if is_there[stored:].any():
        raise SentRowsLostError(queue_text(queue), difference(expected, expected[is_there]))
    return stored


def _names(rows: np.ndarray) -> np.ndarray:
    """A number for each row, that no other row of the batch has; of an unknown file a negative one."""
    return np.asarray((rows["file"].astype(np.int64) << _RANK_BITS) | rows["rank"])
