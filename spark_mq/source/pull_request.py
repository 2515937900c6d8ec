"""Pull requests of a reader that belongs to no running group, and what comes back. Pure.

A pull carries its own subscription (flag 4), so the broker needs no heartbeat of the group, and nothing is stored but the group's
pull offset, which shows in its consume statistics. Java: DefaultMQPullConsumerImpl, PullMessageRequestHeader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spark_mq.client.errors import MalformedResponseError, ResponseError, request_text, response_error
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode, make_request, write_body
from spark_mq.remoting.consumers import CheckClientBody, SubscriptionData
from spark_mq.remoting.errors import HeaderError
from spark_mq.remoting.headers_and_bodies import read_header, write_header
from spark_mq.remoting.messages import PullMessageAnswer, PullMessageRequest
from spark_mq.source.offsets import QueueId
from spark_mq.source.pull_outcome import PULL_CODES, PullAnswer
from spark_mq.source.pull_window import Ask
from storage.rules.response_codes import ResponseCode

HAS_SUBSCRIPTION = 4
"""Java: PullSysFlag.FLAG_SUBSCRIPTION."""
MOST_BYTES = 262_144
"""Said to brokers, which ignore it up to 5.3.3."""


class PullFilter(NamedTuple):
    """What the broker gives: tags (by their hashes alone, so the reader compares texts again) or properties by SQL92."""

    expression: str = "*"
    type: str = "TAG"


EVERYTHING = PullFilter()


@dataclass(frozen=True, slots=True)
class PullTerms:
    """How a query pulls: the same for all its splits. Its repr shows no secret."""

    settings: ClientSettings
    group: str
    filter: PullFilter = EVERYTHING
    timeout_ms: int = 120_000
    """How long a task tries to reach a broker before it fails."""
    may_leave_master: bool = False
    """Whether it goes on at a slave where the master suggests that; it does where the master does not answer."""


class PullRequests:
    """The requests of one queue: fields that are the same for all are written once."""

    def __init__(self, queue: QueueId, terms: PullTerms) -> None:
        header = PullMessageRequest(
            consumer_group=terms.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=0,
            max_messages=0,
            sys_flag=HAS_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_ms=0,
            subscription=terms.filter.expression,
            sub_version=0,
            expression_type=terms.filter.type,
            max_message_bytes=MOST_BYTES,
            broker_name=queue.broker_name,
            is_logical=False,
        )
        self._fields = write_header(header)

    def request(self, ask: Ask) -> RemotingCommand:
        """A pull that the broker answers at once."""
        fields = {**self._fields, "queueOffset": str(ask.offset), "maxMsgNums": str(ask.end - ask.offset)}
        return make_request(RequestCode.PULL_MESSAGE, fields)


def check_expression(topic: str, group: str, filter_: PullFilter) -> RemotingCommand:
    """Asks a broker whether it can filter by the expression (46): a pull does not tell."""
    data = SubscriptionData(topic=topic, sub_string=filter_.expression, expression_type=filter_.type)
    body = CheckClientBody(client_id="spark_mq", group=group, subscription=data)
    return make_request(RequestCode.CHECK_CLIENT_CONFIG, None, write_body(body))


def pull_answer(command: RemotingCommand, address: str, queue: QueueId, group: str) -> PullAnswer:
    """What a broker answered to a pull. Raises ResponseError where it refused, MalformedResponseError where it makes no sense."""
    what = request_text(RequestCode.PULL_MESSAGE)
    if command.code not in PULL_CODES:
        raise response_error(command.code, command.remark, address, what, queue.topic, group)
    try:
        header = read_header(PullMessageAnswer, command)
    except HeaderError as error:
        raise MalformedResponseError(address, what, str(error)) from None
    return PullAnswer(
        command.code,
        command.remark or "",
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggested_broker_id,
        command.body,
    )


def no_news(reason: str, address: str, queue: QueueId, group: str) -> ResponseError:
    """What an answer amounts to that says nothing of the queue: a broker that is busy."""
    what = request_text(RequestCode.PULL_MESSAGE)
    return ResponseError(ResponseCode.SYSTEM_BUSY, reason, address, what, queue.topic, group)
