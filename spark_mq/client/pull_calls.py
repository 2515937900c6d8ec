"""A pull as a request, and its answer as a result. Pure. Java: MQClientAPIImpl.pullMessage, processPullResponse."""

from __future__ import annotations

from spark_mq.client.calls import make_call, read_answer_header
from spark_mq.client.errors import request_text, response_error
from spark_mq.client.pulls import Pull, PullResult, PullStatus
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.remoting.message_headers import PullMessageAnswer, PullMessageRequest
from storage.rules.response_codes import ResponseCode

_STATUSES = {int(status.value): status for status in PullStatus}


def pull_command(pull: Pull, group: str, *, at_master: bool = True) -> RemotingCommand:
    """The request: 361 for a lite pull, else 11. The group is as brokers know it."""
    says_what = pull.sends_subscription
    header = PullMessageRequest(
        consumer_group=group,
        topic=pull.queue.topic,
        queue_id=pull.queue.queue_id,
        queue_offset=pull.offset,
        max_messages=pull.limit,
        sys_flag=pull.sys_flag(at_master=at_master),
        commit_offset=pull.committed_offset or 0,
        suspend_timeout_ms=pull.suspend_ms,
        subscription=pull.subscription.expression if says_what else None,
        sub_version=pull.subscription_version(),
        expression_type=pull.subscription.expression_type,
        max_message_bytes=pull.limit_bytes,
        broker_name=pull.queue.broker_name,
    )
    return make_call(RequestCode.LITE_PULL_MESSAGE if pull.is_lite else RequestCode.PULL_MESSAGE, header)


def pull_result(answer: RemotingCommand, pull: Pull, group: str, address: str) -> PullResult:
    """What the broker gave. Raises ResponseError where it refused, MalformedResponseError where it makes no sense."""
    code = RequestCode.LITE_PULL_MESSAGE if pull.is_lite else RequestCode.PULL_MESSAGE
    status = _STATUSES.get(answer.code)
    if status is None:
        raise response_error(answer.code, answer.remark, address, request_text(code), pull.queue.topic, group)
    header = read_answer_header(PullMessageAnswer, answer, address, code)
    return PullResult(
        status,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggested_broker_id,
        header.offset_delta or 0,
        answer.body if answer.code == ResponseCode.SUCCESS else b"",
    )
