"""What a slave answers: no sends, pulls where slaveReadEnable says so, and no offset corrected that its master may have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from spark_mq.broker.broker import Broker
from spark_mq.broker.requests import ClientConnection
from spark_mq.client.calls import make_call
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.remoting import messages as wire
from spark_mq.remoting.consumers import ResetOffsetRequest
from storage import open_store
from storage.delay.timer_store import TimerMetrics
from storage.format.delay import TimerCheckpoint, decode_timer_checkpoint, encode_timer_checkpoint
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE, TOPICS_FILE
from storage.tables.masters import COPIES, REQUEST_MODES_FILE, TIMER_METRICS_FILE

ANN = ClientConnection(bytes([127, 0, 0, 1, 0, 0, 0, 9]), "127.0.0.1:9")
TOPIC = "T"


@contextmanager
def slave(root: Path, *, reads: bool = True) -> Iterator[Broker]:
    """Its log has one message, in queue 0."""
    tiny = StoreConfig.tiny()
    with open_store(root, config=tiny, read_only=False, create=True) as store:
        store.put(TOPIC, b"from the master", queue_id=0)
    mode, pull = replace(tiny.mode, broker_role="SLAVE"), replace(tiny.pull, slave_read_enable=reads)
    config = replace(tiny, mode=mode, pull=pull)
    store = open_store(root, config=config, read_only=False, holder="broker", writes_as="follower")
    with PutService(store) as service, Broker(service, is_slave=True) as broker:
        yield broker


def answer(broker: Broker, command: RemotingCommand) -> RemotingCommand:
    found = broker.answer(ANN, command, 1_000)
    assert isinstance(found, RemotingCommand)
    return found


def pull(offset: int) -> RemotingCommand:
    header = wire.PullMessageRequest(
        consumer_group="G",
        topic=TOPIC,
        queue_id=0,
        queue_offset=offset,
        max_messages=32,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription="*",
        sub_version=0,
    )
    return make_call(RequestCode.PULL_MESSAGE, header)


def test_a_send_is_refused_at_the_door(tmp_path: Path) -> None:
    header = wire.SendMessageRequest(
        producer_group="P",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=0,
        sys_flag=0,
        born_time_ms=1,
        flag=0,
    )
    with slave(tmp_path / "store") as broker:
        end = broker.parts.store.service.log_end
        assert answer(broker, make_call(RequestCode.SEND_MESSAGE, header, b"x")).code == ResponseCode.SYSTEM_BUSY
        assert broker.parts.store.service.log_end == end


def test_pulls_are_served_where_it_may(tmp_path: Path) -> None:
    with slave(tmp_path / "store") as broker:
        found = answer(broker, pull(0))
        assert found.code == ResponseCode.SUCCESS
        assert b"from the master" in bytes(found.body)
    with slave(tmp_path / "other", reads=False) as broker:
        assert answer(broker, pull(0)).code == ResponseCode.SYSTEM_BUSY


def test_an_offset_that_the_master_may_have_is_not_corrected(tmp_path: Path) -> None:
    with slave(tmp_path / "store") as broker:
        found = answer(broker, pull(7))
        assert found.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (found.ext_fields or {})["nextBeginOffset"] == "7"


def test_offsets_are_not_reset_at_a_slave(tmp_path: Path) -> None:
    """Java: AdminBrokerProcessor.resetOffsetInner. The master's would take their place, and the operator had been told otherwise."""
    header = ResetOffsetRequest(group="G", topic=TOPIC, queue_id=0, queue_offset=0, time_ms=-1, is_force=True)
    with slave(tmp_path / "store") as broker:
        found = answer(broker, make_call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header))
        assert (found.code, found.remark) == (ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
        assert broker.parts.offsets.offset("G", TOPIC, 0) == -1


def test_of_copied_offsets_the_greater_one_counts(tmp_path: Path) -> None:
    with slave(tmp_path / "store") as broker:
        broker.parts.offsets.commit("G", TOPIC, 0, 5, 1_000)
        text = '{"offsetTable":{"T@G":{0:3,1:9}}}'
        broker.parts.store.service.take_over("consumerOffset.json", ConsumerOffsets.load(text).to_text())
        broker.on_table_copied("consumerOffset.json")
        assert [broker.parts.offsets.offset("G", TOPIC, queue) for queue in (0, 1)] == [5, 9]


def test_of_a_topic_that_the_master_has_deleted_no_offset_stays(tmp_path: Path) -> None:
    """One of the same name would be read from there on once this slave is the master: Java's slave takes the master's offsets whole."""
    with slave(tmp_path / "store") as broker:
        parts, service = broker.parts, broker.parts.store.service
        for topic in (TOPIC, "U"):
            parts.offsets.commit("G", topic, 0, 100, 1_000)
        broker.save_offsets()
        known = service.settings.topics
        service.take_over(TOPICS_FILE, known.without_topic(TOPIC, now_ms=1_000).to_text())
        broker.on_table_copied(TOPICS_FILE)
        found = service.state(OFFSETS_FILE, ConsumerOffsets.load)
        assert found is not None
        assert [found.get(topic, "G", 0) for topic in (TOPIC, "U")] == [None, 100]
        service.take_over(TOPICS_FILE, known.to_text())
        broker.on_table_copied(TOPICS_FILE)
        service.take_over(OFFSETS_FILE, ConsumerOffsets.load('{"offsetTable":{"T@G":{0:3}}}').to_text())
        broker.on_table_copied(OFFSETS_FILE)
        assert [parts.offsets.offset("G", topic, 0) for topic in (TOPIC, "U")] == [3, 100]


def test_what_slaves_copy_beside_the_log_is_answered(tmp_path: Path) -> None:
    page = encode_timer_checkpoint(TimerCheckpoint(7, 1, 2, 3, 4, 5, 6))
    with slave(tmp_path / "store") as broker:
        asked = [make_call(code) for code in (60, 61, 402, 1007)]
        checkpoint, metrics, modes, epochs = [answer(broker, each) for each in asked]
        assert bytes(checkpoint.body) == bytes(56)
        assert TimerMetrics.load(bytes(metrics.body).decode()).counts == {}
        assert bytes(modes.body) == b'{"messageRequestModeMap":{}}'
        assert (epochs.code, epochs.remark) == (1, "this request only for controllerMode ")
        broker.parts.server.timer_page = lambda: page
        for name, copy in (
            (TIMER_METRICS_FILE, '{"dataVersion":{"counter":1},"timingCount":{"T":{"count":3,"timeStamp":9}}}'),
            (REQUEST_MODES_FILE, '{"messageRequestModeMap":{"T":{"G":{"mode":"POP","popShareQueueNum":1}}}}'),
        ):
            taken = COPIES[name](copy, None)
            assert taken is not None
            assert COPIES[name](copy, taken) is None
            broker.parts.store.service.take_over(name, taken)
        checkpoint, metrics, modes, _ = [answer(broker, each) for each in asked]
        assert decode_timer_checkpoint(bytes(checkpoint.body)).master_queue_offset == 3
        assert TimerMetrics.load(bytes(metrics.body).decode()).counts == {"T": 3}
        assert b'"popShareQueueNum":1' in bytes(modes.body)


@pytest.mark.parametrize("is_slave", [True, False])
def test_907_says_which_it_is(tmp_path: Path, is_slave: bool) -> None:
    with slave(tmp_path / "store") as broker:
        broker.parts.store.is_slave = is_slave
        found = answer(broker, make_call(RequestCode.GET_BROKER_HA_STATUS))
        assert (b'"master":true' in bytes(found.body)) is not is_slave
