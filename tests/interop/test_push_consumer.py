"""Push consumers of ours at the real broker, with Java's producers, consumers and mqadmin on the other side."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.errors import ResponseError
from spark_mq.client.listeners import ConsumeStatus
from spark_mq.client.message import MessageExt, MessageQueue
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PushSettings
from spark_mq.remoting.consumers import MessageModel
from tests.support.java_broker import Oracle, RunningBroker, send_arguments, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.long]

SETTINGS = {"enablePropertyFilter": "true"}

FIRST = PushSettings(consume_from=ConsumeFrom.FIRST)
MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"


class Group:
    """Consumers of one group and what their listeners got."""

    def __init__(self, broker: RunningBroker, group: str, **settings: Any) -> None:
        self.broker = broker
        self.group = group
        self.settings = settings
        self.got: list[tuple[str, MessageExt, float]] = []
        self._stack = ExitStack()

    def join(
        self,
        name: str,
        topic: str,
        *,
        answer: Any = None,
        orderly: bool = False,
        push: PushSettings = FIRST,
        **subscribed: Any,
    ) -> PushConsumer:
        """A consumer in a client of that name."""

        def listen(messages: Sequence[MessageExt], context: Any) -> ConsumeStatus:
            self.got += [(name, message, time.time()) for message in messages]
            return ConsumeStatus.SUCCESS if answer is None else answer(messages, context)

        settings = ClientSettings((self.broker.name_server,), instance_name=name, **self.settings)
        listeners = {"orderly_listener": listen} if orderly else {"listener": listen}
        consumer = PushConsumer(settings, self.group, options=push, **listeners)
        consumer.subscribe(topic, **subscribed)
        return self._stack.enter_context(consumer)

    def ids(self, name: str | None = None) -> list[str]:
        """Unique ids of what a client got, or all of them, in the order of arrival."""
        return [message.message_id for got_by, message, _ in list(self.got) if name in (None, got_by)]

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def ids_of(sent: list[dict[str, Any]]) -> list[str]:
    return [line["msgId"] for line in sent]


def test_two_of_ours_and_one_of_javas_share_a_topic_and_get_each_message(
    oracle: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    oracle.send(tmp_path / "made", broker, "Shared", queues=6, count=6)
    with Group(broker, "shared-group") as group:
        consumers = [group.join(name, "Shared") for name in ("one", "two")]
        with oracle.client(
            "FailingConsumer", tmp_path / "java", broker, group="shared-group", topics="Shared", succeedAt=0
        ) as java:
            wait_until(lambda: all(owned(each, "Shared") == 2 for each in consumers), "two queues each")
            sent = oracle.send(tmp_path / "sent", broker, "Shared", count=300)
            wanted = set(ids_of(sent))

            def got_by_java() -> list[str]:
                return [line["uniqKey"] for line in java.lines("consumed")]

            wait_until(lambda: wanted <= {*group.ids(), *got_by_java()}, "every message")
            time.sleep(1)
            counted = Counter(each for each in [*group.ids(), *got_by_java()] if each in wanted)
            assert set(counted.values()) == {1}
            shares = [
                sum(each in wanted for each in ids) for ids in (group.ids("one"), group.ids("two"), got_by_java())
            ]
            assert shares == [100, 100, 100]
        wait_until(lambda: sum(owned(each, "Shared") for each in consumers) == 6, "Java's queues are taken over")


def owned(consumer: PushConsumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.assignment())


def test_failed_messages_come_back_after_growing_delays_and_end_as_dead_letters(
    oracle: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    sent = ids_of(oracle.send(tmp_path / "sent", broker, "Retried", queues=2, count=4))
    good = sent[0]

    def answer(messages: Sequence[MessageExt], context: Any) -> ConsumeStatus:
        (message,) = messages
        return ConsumeStatus.SUCCESS if message.message_id == good else ConsumeStatus.LATER

    with Group(broker, "retry-group") as group:
        group.join(
            "one", "Retried", answer=answer, push=PushSettings(consume_from=ConsumeFrom.FIRST, max_reconsume_times=2)
        )
        wait_until(lambda: Counter(group.ids()) == {good: 1, **dict.fromkeys(sent[1:], 3)}, "three tries each")
        dead = MessageQueue("%DLQ%retry-group", "broker-lab", 0)
        wait_until(lambda: end_of(oracle, tmp_path, broker, dead.topic) == 3, "three dead letters")
        for each in sent[1:]:
            tries = [(message, at) for _, message, at in group.got if message.message_id == each]
            assert [message.reconsume_times for message, _ in tries] == [0, 1, 2]
            assert {message.topic for message, _ in tries} == {"Retried"}
            delays = [later - earlier for (_, earlier), (_, later) in pairwise(tries)]
            assert delays[0] > 2.5  # level 3 is three seconds at this broker, level 4 four
            assert delays[1] > 3.5
            assert tries[1][0].properties["ORIGIN_MESSAGE_ID"] == tries[0][0].offset_message_id


def end_of(oracle: Oracle, tmp_path: Path, broker: RunningBroker, topic: str) -> int:
    """How many messages Java's consumer finds in a topic."""
    lines = oracle.consume_all(tmp_path / f"all-{topic.strip('%')}", broker, [topic])
    return sum(line["type"] == "message" for line in lines)


def test_a_queues_messages_come_in_order_one_at_a_time_also_over_a_hand_over(
    oracle: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    at_work: Counter[int] = Counter()
    overlaps: list[int] = []
    fails = Counter[str]()

    def answer(messages: Sequence[MessageExt], context: Any) -> ConsumeStatus:
        (message,) = messages
        at_work[message.queue_id] += 1
        overlaps.extend([message.queue_id] if at_work[message.queue_id] > 1 else [])
        time.sleep(0.01)
        fails[message.message_id] += 1
        at_work[message.queue_id] -= 1
        is_failed = message.queue_offset % 50 == 7 and fails[message.message_id] == 1
        return ConsumeStatus.LATER if is_failed else ConsumeStatus.SUCCESS

    with oracle.java_running(
        "Send", tmp_path / "sent", *arguments(broker, "Ordered", queues=4, count=800, interval=10)
    ) as sending:
        wait_until(lambda: (tmp_path / "sent").exists(), "the first message is sent")
        with Group(broker, "ordered-group") as group:
            quick = PushSettings(consume_from=ConsumeFrom.FIRST, suspend_ms=50)
            first = group.join("one", "Ordered", answer=answer, orderly=True, push=quick)
            wait_until(lambda: len(group.got) > 100, "the first consumes")
            second = group.join("two", "Ordered", answer=answer, orderly=True, push=quick)
            wait_until(lambda: (owned(first, "Ordered"), owned(second, "Ordered")) == (2, 2), "two queues each")
            wait_until(lambda: len(group.ids("two")) > 50, "the second consumes")
            second.close()
            wait_until(lambda: owned(first, "Ordered") == 4, "the first has all again")
            wait_until(lambda: sending.poll() is not None, "all is sent")
            wait_until(lambda: len(set(group.ids())) == 800, "every message is consumed", 90)
    assert overlaps == []
    for number in range(4):
        in_order = [message.queue_offset for _, message, _ in group.got if message.queue_id == number]
        assert list(dict.fromkeys(in_order)) == list(range(200))
        # Only failed messages came twice: what a hand-over left was stored before the lock was given back.
        assert {offset for offset, count in Counter(in_order).items() if count > 1} <= set(range(7, 200, 50))


def arguments(broker: RunningBroker, topic: str, **options: str | int) -> list[str]:
    return [f"{name}={value}" for name, value in {**send_arguments(broker, topic), **options}.items()]


def test_an_orderly_message_that_failed_too_often_is_a_dead_letter_and_the_queue_goes_on(
    oracle: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    sent = ids_of(oracle.send(tmp_path / "sent", broker, "OrderedDead", queues=1, count=3))

    def answer(messages: Sequence[MessageExt], context: Any) -> ConsumeStatus:
        return ConsumeStatus.LATER if messages[0].message_id == sent[1] else ConsumeStatus.SUCCESS

    with Group(broker, "ordered-dead") as group:
        push = PushSettings(consume_from=ConsumeFrom.FIRST, max_reconsume_times=2, suspend_ms=100)
        group.join("one", "OrderedDead", answer=answer, orderly=True, push=push)
        wait_until(lambda: group.ids() == [sent[0], sent[1], sent[1], sent[1], sent[2]], "the last message")
        wait_until(lambda: end_of(oracle, tmp_path, broker, "%DLQ%ordered-dead") == 1, "a dead letter")


def test_each_client_of_a_broadcast_gets_everything_and_goes_on_where_its_file_says(
    oracle: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    push = PushSettings(
        model=MessageModel.BROADCASTING, consume_from=ConsumeFrom.FIRST, offset_directory=tmp_path / "offsets"
    )
    sent = ids_of(oracle.send(tmp_path / "sent", broker, "Broadcast", queues=2, count=20))
    with Group(broker, "broadcast-group") as group:
        for name in ("one", "two"):
            group.join(name, "Broadcast", push=push)
        wait_until(lambda: sorted(group.ids()) == sorted(sent * 2), "every message twice")
        assert [Counter(group.ids(name)) for name in ("one", "two")] == [Counter(sent)] * 2
    more = ids_of(oracle.send(tmp_path / "more", broker, "Broadcast", count=6, seed=2))
    with Group(broker, "broadcast-group") as group:
        group.join("one", "Broadcast", push=push)
        wait_until(lambda: len(group.got) >= 6, "the new ones")
        time.sleep(1)
        assert sorted(group.ids()) == sorted(more)


def test_tags_and_sql_choose_messages(oracle: Oracle, broker: RunningBroker, tmp_path: Path) -> None:
    sent = oracle.send(tmp_path / "sent", broker, "Chosen", queues=2, count=60)
    tagged = sorted(line["msgId"] for line in sent if line.get("tags") in ("TagA", "TagC"))
    by_sql = sorted(line["msgId"] for line in sent if line.get("tags") == "TagB" and int(line["n"]) > 29)
    with Group(broker, "tag-group") as tags, Group(broker, "sql-group") as sql:
        tags.join("one", "Chosen", expression="TagA || TagC")
        sql.join("one", "Chosen", expression="TAGS = 'TagB' AND n > 29", expression_type="SQL92")
        wait_until(lambda: sorted(tags.ids()) == tagged and sorted(sql.ids()) == by_sql, "what was chosen")
        time.sleep(1)
        assert (sorted(tags.ids()), sorted(sql.ids())) == (tagged, by_sql)


def test_an_sql_expression_that_the_broker_refuses_is_said_at_the_start(
    oracle: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    oracle.send(tmp_path / "sent", broker, "Refused", queues=1, count=1)
    with Group(broker, "refused-group") as group, pytest.raises(ResponseError, match=r"SUBSCRIPTION_PARSE_FAILED|23"):
        group.join("one", "Refused", expression="a > 'x'", expression_type="SQL92")


def test_mqadmin_sees_the_offsets_and_how_the_consumer_is_doing(
    oracle: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    oracle.send(tmp_path / "sent", broker, "Watched", queues=2, count=50)
    with Group(broker, "watched-group") as group:
        consumer = group.join("one", "Watched")
        wait_until(lambda: len(group.got) == 50, "every message")
        status = oracle.java(
            MQADMIN, "consumerStatus", "-n", broker.name_server, "-g", "watched-group", "-i", consumer.client_id, "-s"
        )
        assert "#Consumer MQ Detail#" in status
        assert "consume-watched-group" in status  # a thread of the listener's pool
    progress = oracle.java(MQADMIN, "consumerProgress", "-n", broker.name_server, "-g", "watched-group")
    rows = [line.split() for line in progress.splitlines() if line.startswith("Watched")]
    assert [row[2:6] for row in rows] == [["0", "25", "25", "0"], ["1", "25", "25", "0"]] or [
        row[3:5] for row in rows
    ] == [["25", "25"], ["25", "25"]]


def test_mqadmin_resets_a_running_consumer_and_hands_it_a_message(
    oracle: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    sent = oracle.send(tmp_path / "sent", broker, "Reset", queues=1, count=10)
    with Group(broker, "reset-group") as group:
        consumer = group.join("one", "Reset")
        wait_until(lambda: len(group.got) == 10, "every message")
        ends = ["-n", broker.name_server, "-g", "reset-group"]
        oracle.java(MQADMIN, "resetOffsetByTime", *ends, "-t", "Reset", "-s", str(1))
        wait_until(lambda: len(group.got) == 20, "every message once more")
        told = oracle.java(
            MQADMIN, "queryMsgByUniqueKey", *ends, "-t", "Reset", "-i", sent[3]["msgId"], "-d", consumer.client_id
        )
        assert "CR_SUCCESS" in told
        assert group.ids()[20:] == [sent[3]["msgId"]]


def test_a_namespace_is_in_all_names_that_the_broker_knows_and_in_none_that_the_program_sees(
    oracle: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    sent = ids_of(oracle.send(tmp_path / "sent", broker, "space%Named", queues=1, count=3))
    failed = threading.Event()

    def answer(messages: Sequence[MessageExt], context: Any) -> ConsumeStatus:
        is_first = not failed.is_set()
        failed.set()
        return ConsumeStatus.LATER if is_first else ConsumeStatus.SUCCESS

    with Group(broker, "named-group", namespace="space") as group:
        consumer = group.join("one", "Named", answer=answer)
        wait_until(lambda: len(group.got) == 4, "the retry too")
        assert set(group.ids()) == set(sent)
        assert {message.topic for _, message, _ in group.got} == {"Named"}
        assert consumer.assignment() == [
            MessageQueue("%RETRY%named-group", "broker-lab", 0),
            MessageQueue("Named", "broker-lab", 0),
        ]
    wait_until(lambda: broker.consumer_offset("space%Named", "space%named-group") == 3, "the broker's table")
