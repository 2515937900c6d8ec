"""What a request may say that means harm: the broker says why it is refused, and nothing in it fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_mq.broker.broker import Broker
from storage import open_store
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.settings.java_properties import parse_properties
from storage.settings.load import parse_config
from storage.tables.topics import QUEUE_COUNT_LIMIT
from tests.broker.peers import BrokerPeers, FakeClock
from tests.broker.test_broker_duties import CONF, running

TOPIC = {
    "topic": "T",
    "defaultTopic": "TBW102",
    "readQueueNums": 1,
    "writeQueueNums": 1,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
}


@pytest.fixture
def peers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[BrokerPeers]:
    clock = FakeClock()
    with running(tmp_path / "store", clock) as broker:
        yield BrokerPeers(broker, clock)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("count", [2**31 - 1, QUEUE_COUNT_LIMIT + 1, -1])
@pytest.mark.parametrize("field", ["readQueueNums", "writeQueueNums"])
def test_a_topic_of_more_queues_than_anybody_can_count_is_refused(peers: BrokerPeers, field: str, count: int) -> None:
    assert peers.ask("admin", 17, TOPIC | {field: count}).code == ResponseCode.INVALID_PARAMETER
    body = b'{"topicConfigList":[{"topicName":"T","readQueueNums":1,"writeQueueNums":1,"%s":%d}]}'
    assert peers.ask("admin", 18, {}, body % (field.encode(), count)).code == ResponseCode.INVALID_PARAMETER
    assert peers.ask("anybody", 202, {"topic": "T"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_topic_may_have_as_many_queues_as_the_limit_says(peers: BrokerPeers) -> None:
    assert peers.ask("admin", 17, TOPIC | {"readQueueNums": QUEUE_COUNT_LIMIT}).code == ResponseCode.SUCCESS


def test_a_group_of_more_retry_queues_than_a_topic_may_have_is_refused(peers: BrokerPeers) -> None:
    body = b'{"groupName":"G","retryQueueNums":2147483647}'
    assert peers.ask("admin", 200, {}, body).code == ResponseCode.INVALID_PARAMETER
    assert peers.ask("admin", 225, {}, b'{"groupConfigList":[%s]}' % body).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("value", ["²", "--5", "9" * 5_000, "-2", "x", ""])
def test_an_attribute_that_is_no_number_is_refused_with_its_range(peers: BrokerPeers, value: str) -> None:
    peers.ask("admin", 17, TOPIC)
    answer = peers.ask("admin", 17, TOPIC | {"attributes": f"+reserve.time={value}"})
    assert (answer.code, (answer.remark or "")[:22]) == (ResponseCode.SYSTEM_ERROR, "value is not in range(")


@pytest.mark.parametrize("name", ["..", "../../config", "/etc", "a\x00b", "x" * 300])
def test_a_topic_that_no_directory_can_be_named_after_is_not_deleted(peers: BrokerPeers, name: str) -> None:
    assert peers.ask("admin", 215, {"topic": name}).code == ResponseCode.INVALID_PARAMETER


def test_settings_that_many_operators_change_at_once_all_stand_in_the_file(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(CONF)
    store = open_store(tmp_path / "store", config=parse_config(CONF, str(conf)), read_only=False, create=True)
    names = ("maxTransferCountOnMessageInMemory", "maxTransferBytesOnMessageInMemory", "defaultQueryMaxNum")
    wanted = [(name, str(turn)) for turn in range(100, 140) for name in names]
    with PutService(store, starts_duties=False) as service, Broker(service) as broker:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda pair: broker.parts.store.change_settings(dict([pair]), 1), wanted))
        settings = broker.parts.store.config.settings
    found = {each.key: each.value for each in parse_properties(conf.read_bytes())}
    assert {name: found[name] for name in names} == {name: settings[name] for name in names}
    assert found.keys() >= {"brokerName", *names}
