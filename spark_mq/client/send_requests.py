"""The request of one try of a send: 310, of a batch 320. Pure. Java: SendMessageRequestHeaderV2, MQClientAPIImpl.sendMessage."""

from __future__ import annotations

from spark_mq.client.outgoing_messages import OutgoingMessage
from spark_mq.client.producer_settings import ProducerSettings
from spark_mq.remoting import HeaderTemplate, MessageQueue, RemotingCommand, RequestCode, make_request, write_header
from spark_mq.remoting.message_headers import SendMessageRequest
from storage.epoch_times import current_time_ms

_TEMPLATES_KEPT = 4_096
_VARYING = ("sys_flag", "born_time_ms", "flag", "properties")


def send_code(message: OutgoingMessage) -> int:
    """The code of its request."""
    return RequestCode.SEND_BATCH_MESSAGE if message.is_batch else RequestCode.SEND_MESSAGE_V2


class SendRequests:
    """The requests of one producer group; what is the same for all messages of a queue is written once."""

    def __init__(self, group: str, settings: ProducerSettings) -> None:
        """`group` as brokers know it."""
        self._group = group
        self._settings = settings
        self._templates: dict[tuple[MessageQueue, bool], HeaderTemplate] = {}

    def make(self, message: OutgoingMessage, queue: MessageQueue) -> RemotingCommand:
        """The request that puts the message into that queue, born now."""
        code = send_code(message)
        if message.reconsume_times or message.max_reconsume_times is not None:
            return make_request(code, write_header(self._header(message, queue), code), message.body)
        template = self._templates.get((queue, message.is_batch))
        if template is None:
            if len(self._templates) >= _TEMPLATES_KEPT:
                self._templates.clear()  # somebody names queues that are none
            template = HeaderTemplate(self._header(message, queue), code, _VARYING)
            self._templates[queue, message.is_batch] = template
        fields = template.fill(str(message.sys_flag), str(current_time_ms()), str(message.flag), message.properties)
        return make_request(code, fields, message.body)

    def _header(self, message: OutgoingMessage, queue: MessageQueue) -> SendMessageRequest:
        return SendMessageRequest(
            producer_group=self._group,
            topic=message.topic,
            default_topic=self._settings.template_topic,
            default_topic_queue_count=self._settings.default_queue_count,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag,
            born_time_ms=current_time_ms(),
            flag=message.flag,
            properties=message.properties,
            reconsume_times=message.reconsume_times,
            unit_mode=self._settings.unit_mode,
            max_reconsume_times=message.max_reconsume_times,
            is_batch=message.is_batch,
            broker_name=queue.broker_name,
        )
