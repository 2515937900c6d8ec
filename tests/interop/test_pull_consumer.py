"""Pull consumers of ours at the real broker, with Java's producer and mqadmin on the other side."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from spark_mq.client.errors import ClientSettingError, SeekError
from spark_mq.client.message import MessageExt, MessageQueue
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PullSettings
from tests.support.java_broker import Oracle, RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.long]

SETTINGS = {"enablePropertyFilter": "true"}

FIRST = PullSettings(consume_from=ConsumeFrom.FIRST)


def consumer_of(broker: RunningBroker, group: str, name: str = "one", pull: PullSettings = FIRST) -> PullConsumer:
    return PullConsumer(ClientSettings((broker.name_server,), instance_name=name), group, pull)


def taken(consumer: PullConsumer, count: int, timeout_seconds: float = 30) -> list[MessageExt]:
    """So many messages by polls."""
    messages: list[MessageExt] = []
    deadline = time.monotonic() + timeout_seconds
    while len(messages) < count and time.monotonic() < deadline:
        messages += consumer.poll(1_000)
    return messages


def test_assigned_queues_are_read_sought_and_committed(oracle: Oracle, broker: RunningBroker, tmp_path: Path) -> None:
    sent = oracle.send(tmp_path / "sent", broker, "Assigned", queues=2, count=200)
    middle_ms = 0
    with consumer_of(broker, "assign-group") as consumer:
        queues = consumer.queues("Assigned")
        assert queues == [MessageQueue("Assigned", "broker-lab", number) for number in range(2)]
        consumer.assign(queues)
        messages = taken(consumer, 200)
        assert Counter(message.message_id for message in messages) == Counter(line["msgId"] for line in sent)
        assert [consumer.committed(queue) for queue in queues] == [0, 0]
        consumer.commit()
        assert [consumer.committed(queue) for queue in queues] == [100, 100]
        assert (consumer.begin_offset(queues[0]), consumer.end_offset(queues[0])) == (0, 100)
        consumer.seek(queues[0], 90)
        assert [message.queue_offset for message in taken(consumer, 10)] == list(range(90, 100))
        consumer.seek_to_begin(queues[1])
        assert [message.queue_offset for message in taken(consumer, 100)] == list(range(100))
        consumer.seek_to_end(queues[1])
        assert consumer.poll(500) == []
        of_first = sorted(
            (message for message in messages if message.queue_id == 0), key=lambda each: each.queue_offset
        )
        middle_ms = of_first[50].store_time_ms
        expected = next(message.queue_offset for message in of_first if message.store_time_ms >= middle_ms)
        consumer.seek_to_time(queues[0], middle_ms)
        assert taken(consumer, 100 - expected)[0].queue_offset == expected
        with pytest.raises(SeekError, match="0 to 100"):
            consumer.seek(queues[0], 101)
        with pytest.raises(ClientSettingError, match="not both"):
            consumer.subscribe("Assigned")
        consumer.commit({queues[0]: 42})
    wait_until(lambda: broker.consumer_offset("Assigned", "assign-group", 1) == 100, "queue 1 in the broker's table")
    with consumer_of(broker, "assign-group") as consumer:
        consumer.assign(consumer.queues("Assigned"))
        assert {consumer.committed(queue) for queue in consumer.assignment()} <= {100}


def test_subscribers_share_a_topic_and_an_iteration_goes_on_where_the_last_one_stopped(
    oracle: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    sent = oracle.send(tmp_path / "sent", broker, "Iterated", queues=4, count=40)
    seen: list[str] = []
    with consumer_of(broker, "iterate-group") as consumer:
        consumer.subscribe("Iterated")
        for message in consumer:
            seen.append(message.message_id)
            if len(seen) == 25:
                break
    with consumer_of(broker, "iterate-group") as one, consumer_of(broker, "iterate-group", "two") as two:
        for consumer in (one, two):
            consumer.subscribe("Iterated")
        wait_until(lambda: (len(one.assignment()), len(two.assignment())) == (2, 2), "two queues each")
        rest = [message.message_id for consumer in (one, two) for message in taken(consumer, 15, 8)]
        assert Counter(seen) + Counter(dict.fromkeys(rest, 1)) == Counter(line["msgId"] for line in sent)


def test_tags_and_sql_choose_what_an_assignment_gives(oracle: Oracle, broker: RunningBroker, tmp_path: Path) -> None:
    sent = oracle.send(tmp_path / "sent", broker, "Picked", queues=1, count=60)
    tagged = [line["msgId"] for line in sent if line.get("tags") == "TagA"]
    by_sql = [line["msgId"] for line in sent if int(line["n"]) > 40]
    with consumer_of(broker, "pick-tags") as consumer:
        consumer.assign(consumer.queues("Picked"), "TagA")
        assert [message.message_id for message in taken(consumer, len(tagged))] == tagged
    with consumer_of(broker, "pick-sql") as consumer:
        consumer.assign(consumer.queues("Picked"), "n > 40", expression_type="SQL92")
        assert [message.message_id for message in taken(consumer, len(by_sql))] == by_sql


def test_a_paused_queue_gives_nothing_new_and_the_broker_sees_the_consumer(
    oracle: Oracle, broker: RunningBroker, tmp_path: Path
) -> None:
    oracle.send(tmp_path / "sent", broker, "Paused", queues=1, count=5)
    with consumer_of(broker, "pause-group") as consumer:
        (queue,) = consumer.queues("Paused")
        consumer.assign([queue])
        assert len(taken(consumer, 5)) == 5
        consumer.pause([queue])
        consumer.poll(1_000)
        # The pull that was under way is held by the broker until the next message comes.
        oracle.send(tmp_path / "more", broker, "Paused", count=1, seed=2)
        assert len(taken(consumer, 1)) == 1
        oracle.send(tmp_path / "more2", broker, "Paused", count=3, seed=3)
        assert consumer.poll(3_000) == []
        consumer.resume([queue])
        assert len(taken(consumer, 3)) == 3
        status = oracle.java(
            "org.apache.rocketmq.tools.command.MQAdminStartup",
            *("consumerStatus", "-n", broker.name_server, "-g", "pause-group", "-i", consumer.client_id),
        )
        assert "CONSUME_ACTIVELY" in status
