"""Consumers of ours go on when the broker under them is killed and comes back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.listeners import ConsumeStatus
from spark_mq.client.message import MessageExt
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PullSettings, PushSettings
from tests.support.java_broker import Oracle, free_ports, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.long]


def test_after_a_brokers_crash_every_message_comes_and_order_holds(oracle: Oracle, tmp_path: Path) -> None:
    got: list[str] = []
    in_order: list[tuple[int, int]] = []
    pulled: list[str] = []

    def listen(messages: Sequence[MessageExt], context: Any) -> ConsumeStatus:
        got.extend(message.message_id for message in messages)
        return ConsumeStatus.SUCCESS

    def listen_in_order(messages: Sequence[MessageExt], context: Any) -> ConsumeStatus:
        time.sleep(0.01)
        in_order.extend((message.queue_id, message.queue_offset) for message in messages)
        return ConsumeStatus.SUCCESS

    store, port = tmp_path / "s", free_ports()
    with oracle.namesrv() as name_server:
        settings = ClientSettings(
            (name_server,), heartbeat_broker_interval_ms=2_000, poll_name_server_interval_ms=2_000
        )
        push = PushSettings(consume_from=ConsumeFrom.FIRST)
        with oracle.broker(store, name_server, port=port, flushDiskType="SYNC_FLUSH") as broker:
            sent = [line["msgId"] for line in oracle.send(tmp_path / "sent", broker, "Crash", queues=4, count=400)]
            concurrent = PushConsumer(settings, "crash-concurrent", listen, options=push)
            orderly = PushConsumer(settings, "crash-orderly", orderly_listener=listen_in_order, options=push)
            puller = PullConsumer(settings, "crash-pull", PullSettings(consume_from=ConsumeFrom.FIRST))
            for consumer in (concurrent, orderly):
                consumer.subscribe("Crash")
                consumer.start()
            puller.assign(puller.queues("Crash"))
            wait_until(lambda: len(in_order) > 50, "consumers at work")
            pulled += [message.message_id for message in puller.poll(limit=100)]
            broker.kill()
        pulled += [message.message_id for message in puller.poll(1_000)]  # nothing is raised while the broker is away
        time.sleep(3)
        with oracle.broker(store, name_server, port=port, flushDiskType="SYNC_FLUSH") as broker:
            more = [line["msgId"] for line in oracle.send(tmp_path / "more", broker, "Crash", count=100, seed=2)]
            wanted = {*sent, *more}
            wait_until(lambda: wanted <= set(got), "every message, by the concurrent listener", 90)
            wait_until(lambda: len(set(in_order)) == 500, "every message, by the orderly listener", 90)
            deadline = time.monotonic() + 60
            while not wanted <= set(pulled) and time.monotonic() < deadline:
                pulled += [message.message_id for message in puller.poll(1_000)]
            for number in range(4):
                offsets = [offset for queue_id, offset in in_order if queue_id == number]
                assert list(dict.fromkeys(offsets)) == list(range(125))
            puller.commit()
            for consumer in (concurrent, orderly, puller):
                consumer.close()
            for group in ("crash-concurrent", "crash-orderly", "crash-pull"):
                stored = {number: broker.consumer_offset("Crash", group, number) for number in range(4)}
                wait_until(
                    lambda group=group: {broker.consumer_offset("Crash", group, each) for each in range(4)} == {125},
                    f"the offsets of {group}, which were {stored}",
                )
    assert Counter(pulled) == Counter(wanted)
