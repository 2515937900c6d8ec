"""What a broker makes of a send depends on the release that is named: batches, and priorities, since 5.4."""

from __future__ import annotations

import pytest

from spark_mq.broker.put_plan import PRIORITY, PutRules, by_priority, plan_batch
from spark_mq.remoting.messages import BatchedMessage, encode_batch
from storage import StoreConfig
from storage.rules.inner_messages import InnerMessage
from storage.tables.topics import TopicConfig

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("5.3.3", {"UNIQ_KEY": "of-the-batch", "WAIT": "true", "MSG_REGION": "R", "CLUSTER": "DefaultCluster"}),
        ("5.4.0", {"UNIQ_KEY": "own", "WAIT": "true"}),
        ("5.5.0", {"UNIQ_KEY": "own", "WAIT": "true"}),
    ],
)
def test_records_of_a_batch_have_the_requests_properties_up_to_5_3(version: str, expected: dict[str, str]) -> None:
    """MessageExtEncoder.encode(MessageExtBatch)."""
    body = encode_batch([BatchedMessage(b"1", b"UNIQ_KEY\x01own\x02WAIT\x01true\x02", 0)])
    properties = {"UNIQ_KEY": "of-the-batch", "MSG_REGION": "R"}
    message = InnerMessage(topic="T", queue_id=0, body=body, properties=properties, born_time_ms=1)
    rules = PutRules(StoreConfig().of_version(version), HOST, 1)
    (encoded,) = plan_batch(message, TopicConfig("T"), rules).messages
    assert encoded.properties == expected


@pytest.mark.parametrize(
    ("properties", "queue_id", "keeps"),
    [
        ({PRIORITY: "0"}, 0, True),
        ({PRIORITY: "2"}, 2, True),
        ({PRIORITY: "9"}, 3, True),
        ({PRIORITY: "+1"}, 1, True),
        ({PRIORITY: "-1"}, 2, True),
        ({PRIORITY: "high"}, 2, True),
        ({PRIORITY: "2147483648"}, 2, True),
        ({PRIORITY: "0", "DELAY": "3"}, 2, False),
        ({PRIORITY: "0", "TIMER_DELIVER_MS": "3"}, 2, False),
        ({PRIORITY: "0", "__SHARDINGKEY": "k"}, 2, False),
        ({PRIORITY: "0", "TRAN_MSG": "true"}, 2, False),
        ({PRIORITY: "0", "TRAN_MSG": "false"}, 0, True),
    ],
)
def test_a_priority_is_the_queue_of_a_message_of_no_other_type(
    properties: dict[str, str], queue_id: int, keeps: bool
) -> None:
    """SendMessageProcessor.sendMessage, TopicMessageType.parseFromMessageProperty."""
    found = by_priority(InnerMessage(topic="T", queue_id=2, body=b"m", properties=properties, born_time_ms=1), 4)
    assert (found.queue_id, PRIORITY in found.properties) == (queue_id, keeps)
