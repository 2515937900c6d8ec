"""What rounds have left on the brokers: the rows as Apache's consumer finds them, and what became of every half message."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from spark_mq.client.admin import Admin
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import MessageQueue
from storage import open_store
from tests.support.java_broker import RunningBroker, wait_until
from tests.support.live_writer import TASKS, is_rolled_back, key
from tests.support.served import served

from .live_cluster import TOPIC, Cluster

HALVES, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
CHECKER = "CID_RMQ_SYS_TRANS"
TASK_DIGITS = 20
"""Of a unique key: those that all rows of one run of a task have, and no others."""

Message = dict[str, Any]


class Verdict(NamedTuple):
    """What was counted. `text` says it."""

    text: str
    messages: list[Message]


def judge(cluster: Cluster, directory: Path, batches: int, rows: int, *, is_exact: bool, has_ends: bool) -> Verdict:
    """What Apache's consumer finds. Raises AssertionError unless each row is there that is not rolled back, and no other; where
    that is promised once, and each task's rows in order.
    """
    lines = cluster.release.consume_all(directory / "consumed.jsonl", cluster.brokers[0], [TOPIC], lookUps=0)
    messages = [line for line in lines if line["type"] == "message"]
    counts = Counter(line["keys"] for line in messages)
    expected = {
        key(batch, task, row)
        for batch in range(batches)
        for task in range(TASKS)
        for row in range(rows)
        if not (has_ends and is_rolled_back(row))
    }
    lost, strange = expected - set(counts), set(counts) - expected
    doubled = {name: count for name, count in counts.items() if count > 1}
    places: dict[tuple[str, int, str], list[tuple[int, int]]] = defaultdict(list)
    for line in messages:
        source, _, row = line["keys"].rpartition("-")
        places[_broker_of(line), line["queueId"], source].append((line["queueOffset"], int(row)))
    disordered = [
        where for where, found in places.items() if [row for _, row in sorted(found)] != sorted(r for _, r in found)
    ]
    text = f"{len(expected)} rows: lost {len(lost)}, doubled {len(doubled)}, strange {len(strange)}, out of order {len(disordered)}"
    if lost or strange or (is_exact and (doubled or disordered)):
        raise AssertionError(f"{text}; {sorted(lost)[:5]} {sorted(strange)[:5]} {sorted(doubled)[:5]}")
    used = len({_broker_of(line) for line in messages})
    assert used == len(cluster.brokers), f"rows lie at {used} brokers"
    return Verdict(text, messages)


def _broker_of(line: Message) -> str:
    """Address and port, as the message's id has them."""
    return str(line["offsetMsgId"][:16])


def judge_halves(cluster: Cluster, messages: list[Message], rows: int) -> str:
    """What became of the half messages. Raises AssertionError unless all have ended, each row that is seen was a half, and nothing is
    seen of a task that has died before all of its rows were stored.
    """
    halves: set[str] = set()
    given_up: set[str] = set()
    with Admin(ClientSettings((cluster.name_server,))) as admin:
        for number, broker in enumerate(cluster.brokers):
            queue = MessageQueue(HALVES, cluster.name(number), 0)
            wait_until(
                lambda queue=queue: admin.group_offset(CHECKER, queue) == admin.max_offset(queue),  # type: ignore[misc]
                f"no half is open at {queue.broker_name}",
                180,
            )
            halves |= _unique_keys(broker, HALVES)
            given_up |= _unique_keys(broker, GIVEN_UP)
    seen = {line["uniqKey"] for line in messages}
    stored = Counter(name[:TASK_DIGITS] for name in halves)
    partly = {task for task, count in stored.items() if count < rows}
    half_done = sorted(name for name in seen if name[:TASK_DIGITS] in partly)
    unseen = halves - seen
    text = (
        f"{len(halves)} halves: committed {len(seen)}, given up {len(given_up - seen)}, "
        f"rolled back {len(unseen - given_up)}; {len(stored)} runs of tasks, {len(partly)} of them died before their rows were stored"
    )
    assert seen <= halves, f"{text}; seen, and no half: {sorted(seen - halves)[:5]}"
    assert given_up <= halves, text
    assert not half_done, f"{text}; half-done tasks are seen: {half_done[:5]}"
    return text


def _unique_keys(broker: RunningBroker, topic: str) -> set[str]:
    with open_store(broker.store) as store:
        return {message.properties["UNIQ_KEY"] for message in served(store, topic, 0)}
