"""A batch of rows as a send request. Pure. Java: DefaultMQProducerImpl.sendKernelImpl, SendMessageRequestHeaderV2, MessageBatch.

A batch of one row is an ordinary send (310) with the row's own properties and flag, any other a batch (320). What a row for a retry
topic says of its tries goes into the header. Departure: the envelope of a batch has no UNIQ_KEY. Java's has one; a broker writes it
behind each message's own, so that consumers see one id for all of them.
"""

from __future__ import annotations

from spark_mq.client.calls import make_call
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.messages import SendMessageRequest, decode_batch
from storage.names import RETRY_PREFIX
from storage.rules.retries import MAX_RECONSUME_TIMES, RECONSUME_TIMES
from storage.rules.topics import AUTO_CREATE_TOPIC

DEFAULT_TOPIC_QUEUE_COUNT = 4
"""Queues of a topic that a broker makes when it is sent to. Java: DefaultMQProducer.defaultTopicQueueNums."""

_WAIT = "WAIT\x01true\x02"


def send_request(
    queue: MessageQueue, body: bytes | memoryview, row_count: int, sys_flag: int, *, group: str, born_time_ms: int
) -> RemotingCommand:
    """The request that has these items stored in that queue."""
    is_batch = row_count > 1
    properties, flag, content = _WAIT, 0, body
    tries: dict[str, str] = {}
    if not is_batch:
        (row,) = decode_batch(body)
        properties, flag, content = row.raw_properties.decode("utf-8") + _WAIT, row.flag, row.body
        if queue.topic.startswith(RETRY_PREFIX):
            properties, tries = _taken_out(properties, (RECONSUME_TIMES, MAX_RECONSUME_TIMES))
    header = SendMessageRequest(
        producer_group=group,
        topic=queue.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_count=DEFAULT_TOPIC_QUEUE_COUNT,
        queue_id=queue.queue_id,
        sys_flag=sys_flag,
        born_time_ms=born_time_ms,
        flag=flag,
        properties=properties,
        reconsume_times=int(tries.get(RECONSUME_TIMES, "0")),
        unit_mode=False,
        max_reconsume_times=int(tries[MAX_RECONSUME_TIMES]) if MAX_RECONSUME_TIMES in tries else None,
        is_batch=is_batch,
        broker_name=queue.broker_name,
    )
    return make_call(RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2, header, content)


def _taken_out(properties: str, names: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """The property string without those names, and what they say."""
    kept, said = [], {}
    for entry in properties.split("\x02"):
        name, _, value = entry.partition("\x01")
        if name in names:
            said[name] = value
        else:
            kept.append(entry)
    return "\x02".join(kept), said
