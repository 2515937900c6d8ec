"""Messages that requests name by key or place: whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_mq.broker.broker import Broker
from spark_mq.broker.message_handlers import message_in, named_topic
from spark_mq.remoting.messages import ConsumeDirectlyRequest, EndTransactionRequest, ViewMessageRequest
from storage import open_store
from storage.format.arrays import string_hash
from storage.format.record import decode_offset_message_id
from storage.service.put_service import PutService
from storage.settings.load import parse_config
from tests.broker.peers import BrokerPeers, FakeClock

CONF = (
    b"brokerName=b\nbrokerIP1=127.0.0.1\nmappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\n"
    b"maxHashSlotNum=100\nmaxIndexNum=400\n"
)


@contextmanager
def running(root: Path, clock: FakeClock) -> Iterator[Broker]:
    store = open_store(root, config=parse_config(CONF), read_only=False, create=True, clock=clock)
    with PutService(store, starts_duties=False) as service, Broker(service, clock=clock, steady=clock) as broker:
        yield broker


def sent(peers: BrokerPeers, topic: str, properties: str, flag: int = 0) -> str:
    """The message id that the broker answers."""
    told = ("p", topic, "TBW102", 1, 0, flag, peers.now_ms(), 0, properties, 0, "false", 0, "false")
    answer = peers.ask("c", 310, dict(zip("abcdefghijklm", told, strict=True)), topic.encode())
    assert answer.code == 0, answer.remark
    return (answer.ext_fields or {})["msgId"]


def test_a_query_by_key_gives_messages_of_its_topic_alone(tmp_path: Path) -> None:
    """The index hashes texts of two topics to one value: a user who may read one topic would read the other."""
    assert string_hash("TAa#k") == string_hash("TBB#k")
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        for topic in ("TAa", "TBB"):
            sent(peers, topic, "KEYS\x01k\x02")
        times = {"beginTimestamp": 0, "endTimestamp": 1 << 62}
        answer = peers.ask("c", 12, {"topic": "TBB", "key": "k", "maxNum": 32, **times})
        assert answer.code == 0
        assert message_in(bytes(answer.body)).topic == "TBB"
        assert message_in(bytes(answer.body)).size_bytes == len(answer.body)


@pytest.mark.parametrize(
    ("properties", "flag"),
    [("", 0), ("DELAY\x013\x02", 0), ("TRAN_MSG\x01true\x02PGROUP\x01p\x02", 4), ("REAL_TOPIC\x01Other\x02", 0)],
    ids=["plain", "delayed", "half", "forged"],
)
def test_a_message_at_a_place_is_the_topics_that_it_was_sent_to(tmp_path: Path, properties: str, flag: int) -> None:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        message_id = sent(BrokerPeers(broker, clock), "T", properties, flag)
        _, _, place = decode_offset_message_id(message_id)
        end = EndTransactionRequest(
            topic="Other",
            producer_group="p",
            half_queue_offset=0,
            half_commitlog_offset=place,
            commit_or_rollback=8,
            message_id="m",
        )
        direct = ConsumeDirectlyRequest(consumer_group="g", message_id=message_id, topic="Other")
        for header in (ViewMessageRequest(topic="Other", commitlog_offset=place), end, direct):
            assert named_topic(broker.parts.store.served, header) == "T"
        for nowhere in (place + 1, -1, 1 << 40):
            assert named_topic(broker.parts.store.served, ViewMessageRequest(commitlog_offset=nowhere)) is None
        assert (
            named_topic(broker.parts.store.served, ConsumeDirectlyRequest(consumer_group="g", message_id="none"))
            is None
        )
