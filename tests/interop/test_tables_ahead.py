"""A log that ends before what its tables count, with Apache's broker on it: how many of the messages written since a group gets.

Where we have opened the store first, all of them. Where Apache's broker comes first, those that its old offset does not count; delay
levels it corrects when it loads them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.listeners import ConsumeStatus
from spark_mq.client.message import Message, MessageExt
from spark_mq.client.producer import Producer
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.settings import ClientSettings, ConsumeFrom, PushSettings
from storage import open_store
from storage.format.delay import SCHEDULE_TOPIC
from storage.rules.inner_messages import InnerMessage
from storage.tables.topics import TopicConfig
from tests.support.java_broker import Oracle, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.long]
BEFORE, COUNTED = 5, 8


@pytest.mark.parametrize(("we_open_first", "lost"), [(True, 0), (False, COUNTED - BEFORE)])
def test_a_group_gets_what_was_written_after_the_cut(
    oracle: Oracle, tmp_path: Path, we_open_first: bool, lost: int
) -> None:
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\n", "utf-8")
    with open_store(root, config=str(conf), read_only=False, create=True) as store:
        store.save_topic(TopicConfig("Cut", 1, 1))
        for number in range(BEFORE):
            store.put("Cut", b"before %d" % number, queue_id=0)
            parked = {"REAL_TOPIC": "Cut", "REAL_QID": "0", "DELAY": "1"}
            store.put_inner([InnerMessage(topic=SCHEDULE_TOPIC, queue_id=0, body=b"parked", properties=parked)])
    for name, table in (("consumerOffset.json", {"Cut@G": {"0": COUNTED}}), ("delayOffset.json", {"1": COUNTED})):
        (root / "config" / name).write_text(json.dumps({"offsetTable": table}), "utf-8")
    if we_open_first:
        open_store(root, config=str(conf), read_only=False).close()
    got: list[str] = []

    def listen(messages: Sequence[MessageExt], context: Any) -> ConsumeStatus:
        got.extend(message.body.decode() for message in messages)
        return ConsumeStatus.SUCCESS

    with oracle.namesrv() as name_server, oracle.broker(root, name_server) as broker:
        settings = ClientSettings((name_server,))
        with Producer(settings, "P") as producer:
            for number in range(BEFORE):
                assert producer.send(Message("Cut", b"after %d" % number)).queue_offset == BEFORE + number
            producer.send(Message("Cut", b"late", delay_level=1))
        consumer = PushConsumer(settings, "G", listen, options=PushSettings(consume_from=ConsumeFrom.FIRST))
        consumer.subscribe("Cut")
        consumer.start()
        try:
            wait_until(lambda: "late" in got, "the delayed message")
        finally:
            consumer.close()
        assert broker.address
    assert sorted(got) == sorted([*(f"after {number}" for number in range(lost, BEFORE)), "late"])
