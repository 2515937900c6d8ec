"""Hooks around a request and around a send. Java: RPCHook, SendMessageHook, SendMessageContext, AbortProcessException.

A hook stops a request by raising `AbortProcessError`, which becomes the answer. Any other error of a send hook is logged, and the
message goes on as if the hook were not there; one of an RPC hook is answered with SYSTEM_ERROR, after the request or in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Protocol, TypeVar

from spark_mq.broker.send_request import SendRequest
from storage.format.record import host_text
from storage.names import is_retry_or_dead_letter_topic, is_system_group, is_system_topic
from storage.rules.response_codes import ResponseCode

_LOG = logging.getLogger(__name__)
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class AbortProcessError(Exception):
    """Raised by a hook: answer the request so, and do nothing more with it."""

    def __init__(self, code: int, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class MessageType(Enum):
    """What kind of message a send brings. Java: MessageType."""

    NORMAL = "Normal"
    HALF = "Trans"
    DELAY = "Delay"
    ORDER = "Order"


@dataclass(slots=True)
class SendMessageContext:
    """What hooks are told; those after the put see what came of it. Java: SendMessageContext."""

    namespace: str
    producer_group: str
    topic: str
    """As requested, not where it went."""
    queue_id: int
    body_length: int
    properties: Mapping[str, str]
    """As requested, without what the broker adds."""
    born_host: str
    born_time_ms: int
    request_time_ms: int
    region_id: str
    broker_address: str
    unique_key: str
    message_type: MessageType
    msg_id: str | None = None
    queue_offset: int | None = None
    code: int | None = None
    error_message: str | None = None
    is_stored: bool | None = None
    """None until the put; then which of SEND_SUCCESS and SEND_FAILURE its statistics are."""
    message_count: int = 0
    size_bytes: int = 0
    """Of the records, or of the body where they were not stored."""
    commercial_owner: str | None = None
    commercial_message_count: int = 0
    """The size in units of `commercialSizePerMsg`, rounded up."""
    commercial_times: int = 0
    account_auth_type: str | None = None
    account_owner_parent: str | None = None
    account_owner_self: str | None = None


def context_of(
    request: SendRequest, queue_id: int, properties: Mapping[str, str], region_id: str, broker_host: bytes, now_ms: int
) -> SendMessageContext:
    """What hooks are told of a request that goes to a queue. Java: AbstractSendMessageProcessor.buildMsgContext."""
    return SendMessageContext(
        namespace=namespace_of(request.topic),
        producer_group=request.producer_group,
        topic=request.topic,
        queue_id=queue_id,
        body_length=len(request.body or b""),
        properties=properties,
        born_host=request.client_address,
        born_time_ms=request.born_time_ms,
        request_time_ms=now_ms,
        region_id=region_id,
        broker_address=host_text(broker_host),
        unique_key=properties.get("UNIQ_KEY", ""),
        message_type=message_type(properties),
        commercial_owner=request.ext_fields.get("Owner"),
        account_auth_type=request.ext_fields.get("AUTH_TYPE"),
        account_owner_parent=request.ext_fields.get("OWNER_PARENT"),
        account_owner_self=request.ext_fields.get("OWNER_SELF"),
    )


class SendMessageHook(Protocol):
    """Called for every send that a broker looks at."""

    def send_message_before(self, context: SendMessageContext) -> None: ...

    def send_message_after(self, context: SendMessageContext) -> None: ...


class RpcHook(Protocol):
    """Called for every request that a broker does not turn away unread: sends, send backs, ends of transactions.

    Threads may call it at once. The response is None where there is no answer.
    """

    def before_request(self, remote_address: str, request: Any) -> None: ...

    def after_response(self, remote_address: str, request: Any, response: Any) -> None: ...


def message_type(properties: Mapping[str, str]) -> MessageType:
    """Java: AbstractSendMessageProcessor.buildMsgContext."""
    if "__SHARDINGKEY" in properties:
        return MessageType.ORDER
    if not properties.keys().isdisjoint(("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")):
        return MessageType.DELAY
    return MessageType.HALF if is_true(properties.get("TRAN_MSG")) else MessageType.NORMAL


def is_true(text: str | None) -> bool:
    """Java: Boolean.parseBoolean."""
    return text is not None and text.lower() == "true"


def namespace_of(resource: str) -> str:
    """What stands before the first % of a user's topic or group. Java: NamespaceUtil.getNamespaceFromResource."""
    if is_system_topic(resource) or is_system_group(resource):
        return ""
    name = resource.split("%", 2)[2] if is_retry_or_dead_letter_topic(resource) else resource
    namespace, separator, _ = name.partition("%")
    return namespace if separator else ""


def answer_between(
    hooks: Sequence[RpcHook],
    remote_address: str,
    request: _Request,
    answer: Callable[[_Request], _Response],
    failed: Callable[[int, str | None], _Response],
) -> _Response:
    """The answer, with the RPC hooks around it, each called once. `failed` makes a response of a code and a remark.

    An error of a hook is the answer: AbortProcessError as it says, any other as SYSTEM_ERROR; hooks after a request are called also
    where one before it failed. Java: NettyRemotingAbstract.buildProcessRequestHandler.
    """
    try:
        failure = _run(partial(hook.before_request, remote_address, request) for hook in hooks)
        response = answer(request) if failure is None else failed(ResponseCode.SYSTEM_ERROR, None)
        failure = _run(partial(hook.after_response, remote_address, request, response) for hook in hooks) or failure
    except AbortProcessError as abort:
        return failed(abort.code, abort.message)
    if failure is not None:
        return failed(ResponseCode.SYSTEM_ERROR, f"{type(failure).__name__}, {failure}")
    return response


def _run(calls: Iterable[Callable[[], None]]) -> Exception | None:
    """RPC hooks in order, up to one that fails: its error. Raises AbortProcessError."""
    try:
        for call in calls:
            call()
    except AbortProcessError:
        raise
    except Exception as error:  # a stranger's code, whatever it raises, is answered
        return error
    return None


def run_before(hooks: Sequence[SendMessageHook], context: SendMessageContext) -> None:
    """All hooks in order. Raises the first AbortProcessError. Java: executeSendMessageHookBefore."""
    for hook in hooks:
        try:
            hook.send_message_before(context)
        except AbortProcessError:
            raise
        except Exception:  # a stranger's code, whatever it raises, decides over no message
            _LOG.exception("a hook before a send to %s failed", context.topic)


def run_after(hooks: Sequence[SendMessageHook], context: SendMessageContext) -> None:
    """All hooks in order; what is stored cannot be aborted any more. Java: executeSendMessageHookAfter."""
    for hook in hooks:
        try:
            hook.send_message_after(context)
        except Exception:  # as before
            _LOG.exception("a hook after a send to %s failed", context.topic)
