"""Everything that can go wrong between this client and a cluster, as one tree.

    ClientError
      ClientSettingError(setting, value, rule)            a setting that nobody can follow
      ClientClosedError(what, reason)                     it was closed, or belongs to the process before a fork
      GroupTakenError(group, kind, client_id)             a second member of one group in one instance
      NameServerUnreachableError(tries)                   none of the name servers answers; retriable
      TopicRouteNotFoundError(topic, …)                   the name servers know no broker of the topic
      BrokerNotFoundError(broker_name, …)                 no known route names the broker; retriable
      BrokerUnreachableError(address, reason)             no connection, or it broke; retriable
        TlsError(address, reason)                         one side speaks TLS and the other does not, or a certificate is refused
        FrameRefusedError(address, reason)                the server sent what is no frame
      RequestTimeoutError(what, timeout_ms, address)      no answer in time; retriable
      WaitedInVainError(cause, what, waited_ms)           asked again and again, until the time was over; retriable as its cause
      MalformedResponseError(address, …)                  an answer that does not fit its request
      RequestIllegalError(what, reason)                   a request that no frame can carry: it is too large
      ResponseError(code, remark, address, …)             the server refused; retriable by its code
        AccessDeniedError                                 … with NO_PERMISSION
      MessageQueueNotFoundError(topic, …)                 the topic has no queue to send to or to read
      MessageRefusedError(topic, what, rule)              a message that no broker takes: it was not sent
      TooManyInFlightError(count, size_bytes)             back-pressure: too much waits for answers; retriable
      SeekError(queue, offset, first, end)                an offset outside of the queue
      SendFailedError(topic, tries)                       no try of a send succeeded

Each error carries its values as attributes, says which server, topic and code, and where somebody can do something
about it, `hint` says what. `retriable` tells whether the same call may succeed later without anybody changing
anything. All of them survive pickling, so that an error crosses from a worker to the driver whole. None of them
holds a key, a token or a signature.

Java: MQClientException, MQBrokerException, RemotingConnectException, RemotingTimeoutException and their siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from spark_mq.remoting import RequestCode
from storage.errors.base import DescribedError, cause_and_cure
from storage.rules.response_codes import ResponseCode

RETRIABLE_CODES = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
"""Codes that a server gives for a while only: busy, starting or stopping, a flow limit, going away."""

_CLOSED_HINT = "Open a new one. What was opened before a fork belongs to the parent process."


class ClientError(DescribedError):
    """Base of all errors of the client. The text is one line: what happened, and what to do."""

    def __str__(self) -> str:
        return cause_and_cure(self.describe(), self.hint)


class ClientSettingError(ClientError, ValueError):
    """A setting with a value that makes no sense. The value of a secret is never given."""

    def __init__(self, setting: str, value: object, rule: str) -> None:
        super().__init__(setting, value, rule)
        self.setting = setting
        self.value = value
        self.rule = rule

    def describe(self) -> str:
        return f"{self.setting}={self.value!r}: {self.rule}"


class ClientClosedError(ClientError):
    """A call of something that was closed, or that the process inherited by a fork."""

    hint: str | None = _CLOSED_HINT

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def describe(self) -> str:
        return f"{self.what}: {self.reason}"


class GroupTakenError(ClientError):
    """A second producer or consumer of the same group in one client instance."""

    hint = "Use the one that is open, another group, or another instance_name."

    def __init__(self, group: str, kind: str, client_id: str) -> None:
        super().__init__(group, kind, client_id)
        self.group = group
        self.kind = kind
        self.client_id = client_id

    def describe(self) -> str:
        return f"a {self.kind} of group {self.group} is already open in client {self.client_id}"


class NameServerUnreachableError(ClientError):
    """No name server answered; `tries` holds each address with what happened there."""

    retriable: ClassVar[bool] = True
    hint = "Check the addresses, that a name server runs there, and that this machine reaches it."

    def __init__(self, tries: Sequence[tuple[str, str]]) -> None:
        super().__init__(tuple(tries))
        self.tries = tuple(tries)

    def describe(self) -> str:
        told = "; ".join(f"{address}: {reason}" for address, reason in self.tries)
        return f"no name server answers ({told})"


class TopicRouteNotFoundError(ClientError):
    """The name servers know no broker that has the topic. `remark` is what a name server said."""

    hint = "Check the topic's name, or create the topic. A new broker's topics are known after its first registration."

    def __init__(self, topic: str, address: str, remark: str | None) -> None:
        super().__init__(topic, address, remark)
        self.topic = topic
        self.address = address
        self.remark = remark

    def describe(self) -> str:
        return f"topic {self.topic} has no route at name server {self.address}" + _said(self.remark)


class BrokerNotFoundError(ClientError):
    """No known route gives an address of the broker with that id."""

    retriable: ClassVar[bool] = True
    hint = "The broker is not registered now: see whether it runs, and whether its name server is the one asked."

    def __init__(self, broker_name: str, broker_id: int) -> None:
        super().__init__(broker_name, broker_id)
        self.broker_name = broker_name
        self.broker_id = broker_id

    def describe(self) -> str:
        return f"no route gives an address of broker {self.broker_name} with id {self.broker_id}"


class BrokerUnreachableError(ClientError):
    """No connection to a server (a broker or a name server), or the connection broke before the answer."""

    retriable: ClassVar[bool] = True
    hint: str | None = "Check that the server runs and that this machine reaches the address that it registers."

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def describe(self) -> str:
        return f"{self.address}: {self.reason}"


class TlsError(BrokerUnreachableError):
    """The TLS handshake failed: a plain server, a refused certificate, or files that cannot be read."""

    retriable: ClassVar[bool] = False
    hint = (
        "Use TLS exactly where the server does (tls.server.mode). A self-signed certificate needs ca_file,"
        " or verify=False where that risk is taken."
    )

    def describe(self) -> str:
        return f"{self.address}: TLS failed: {self.reason}"


class FrameRefusedError(BrokerUnreachableError):
    """What came over the connection is no frame of this protocol. The connection was closed."""

    retriable: ClassVar[bool] = False
    hint = "Check that the port is a RocketMQ remoting port, and whether the server wants TLS."

    def describe(self) -> str:
        return f"{self.address} sent what is no frame: {self.reason}"


class RequestTimeoutError(ClientError):
    """No answer within the time-out. The server may or may not have done what was asked."""

    retriable: ClassVar[bool] = True
    hint = "Check the server's load and log, and what lies between; or allow more time."

    def __init__(self, what: str, timeout_ms: int, address: str | None = None) -> None:
        super().__init__(what, timeout_ms, address)
        self.what = what
        self.timeout_ms = timeout_ms
        self.address = address

    def describe(self) -> str:
        of = "" if self.address is None else f"{self.address}: "
        return f"{of}no answer to {self.what} within {self.timeout_ms} ms"


class WaitedInVainError(ClientError):
    """A question was asked again until its time was over; `cause` is how the last try ended. Never the cause of another one."""

    def __init__(self, cause: ClientError, what: str, waited_ms: int) -> None:
        cause = cause.cause if isinstance(cause, WaitedInVainError) else cause
        super().__init__(cause, what, waited_ms)
        self.cause: ClientError = cause
        self.what = what
        self.waited_ms = waited_ms

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        """As its cause."""
        return bool(self.cause.retriable)

    def describe(self) -> str:
        return f"waited {self.waited_ms / 1_000:.1f} s for {self.what}; the last try: {self.cause.describe()}"


class RequestIllegalError(ClientError):
    """A request that is not sent, because no server could read its frame; mostly its body is too large."""

    hint = "Make the message or the batch smaller."

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def describe(self) -> str:
        return f"{self.what} was not sent: {self.reason}"


class MalformedResponseError(ClientError):
    """An answer that does not fit its request: a missing or bad header field, or a body that cannot be read."""

    hint = "Check that a name server or broker of RocketMQ 4.9 to 5.3 answers at that address, and that nothing between changes it."

    def __init__(self, address: str, what: str, reason: str) -> None:
        super().__init__(address, what, reason)
        self.address = address
        self.what = what
        self.reason = reason

    def describe(self) -> str:
        return f"{self.address}: the answer to {self.what} cannot be read: {self.reason}"


_NOT_SUPPORTED = (
    "is a name server there? a broker answers so to what only name servers know, and an older server to a newer request"
)


class ResponseError(ClientError):
    """A server's answer with another code than those the caller expects. `what` names the request."""

    hint = "The remark is the server's own; its log says more."

    def __init__(
        self, code: int, remark: str | None, address: str, what: str, topic: str | None = None, group: str | None = None
    ) -> None:
        super().__init__(code, remark, address, what, topic, group)
        self.code = code
        self.remark = remark
        self.address = address
        self.what = what
        self.topic = topic
        self.group = group

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        """Whether the code says that the server refuses for a while only."""
        return self.code in RETRIABLE_CODES

    def cure(self) -> str:
        """What to do about this code as the answer to this request; the class's hint where nothing more is known."""
        if self.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return _NOT_SUPPORTED
        if self.code == ResponseCode.SYSTEM_ERROR and self.what.startswith("CHECK_CLIENT_CONFIG"):
            return "enablePropertyFilter=true in the broker's broker.conf lets it filter by SQL92"
        return self.hint

    def describe(self) -> str:
        of_topic = "" if self.topic is None else f" topic {self.topic}"
        of_group = "" if self.group is None else f" group {self.group}"
        return f"{self.address} answered {code_text(self.code)} to {self.what}{of_topic}{of_group}" + _said(self.remark)


class AccessDeniedError(ResponseError):
    """The server does not permit it: unknown user, wrong secret, missing right, or a topic without that permission."""

    hint = "Check access key and secret key, the rights of that user (mqadmin listAcl), and the topic's permissions."


class MessageQueueNotFoundError(ClientError):
    """A topic has a route, but no queue of it can be written or read."""

    hint = "Check the topic's permissions (mqadmin topicRoute), and that a master of its brokers is registered."

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(topic, reason)
        self.topic = topic
        self.reason = reason

    def describe(self) -> str:
        return f"topic {self.topic}: {self.reason}"


class MessageRefusedError(ClientError, ValueError):
    """A message, or a batch, that breaks a rule before it is sent; `what` is the part that does. Nothing was sent.

    Java: Validators.checkMessage, Message.putUserProperty, MessageBatch.generateFromList.
    """

    def __init__(self, topic: str, what: str, rule: str) -> None:
        super().__init__(topic, what, rule)
        self.topic = topic
        self.what = what
        self.rule = rule

    def describe(self) -> str:
        return f"a message to topic {self.topic!r} was not sent: {self.what}: {self.rule}"


class TooManyInFlightError(ClientError):
    """So much waits for its answer that no more is taken (yet): `max_in_flight` messages or `max_in_flight_bytes`."""

    retriable: ClassVar[bool] = True
    hint = "Send slower, wait for results, or raise max_in_flight and max_in_flight_bytes."

    def __init__(self, count: int, size_bytes: int) -> None:
        super().__init__(count, size_bytes)
        self.count = count
        self.size_bytes = size_bytes

    def describe(self) -> str:
        return f"{self.count} messages of {self.size_bytes} bytes in all are in flight: the message was not sent"


class SeekError(ClientError):
    """An offset that lies outside of its queue, which begins at `first` and ends before `end`."""

    hint = "Seek to the queue's beginning or end, or to a time."

    def __init__(self, queue: object, offset: int, first: int, end: int) -> None:
        super().__init__(queue, offset, first, end)
        self.queue = queue
        self.offset = offset
        self.first = first
        self.end = end

    def describe(self) -> str:
        return f"offset {self.offset} lies outside of {self.queue}, which has offsets {self.first} to {self.end}"


class SendFailedError(ClientError):
    """All tries of a send failed; `tries` holds each broker's name with its error, in the order of the tries."""

    def __init__(self, topic: str, tries: Sequence[tuple[str, Exception]]) -> None:
        super().__init__(topic, tuple(tries))
        self.topic = topic
        self.tries = tuple(tries)

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        """Whether the last try failed for a reason that may pass."""
        return bool(self.tries) and bool(getattr(self.tries[-1][1], "retriable", False))

    def describe(self) -> str:
        told = "; ".join(f"{broker}: {_cause(error)}" for broker, error in self.tries)
        return f"a message to topic {self.topic} was not sent, {len(self.tries)} tries ({told})"


def _cause(error: Exception) -> str:
    return error.describe() if isinstance(error, DescribedError) else str(error).partition("\n")[0]


def code_text(code: int) -> str:
    """A response code with its name, where it has one."""
    try:
        return f"{code} ({ResponseCode(code).name})"
    except ValueError:
        return str(code)


def no_address(error: ValueError) -> str:
    """Why nobody can connect to what a name server gave as an address."""
    said = error.rule if isinstance(error, ClientSettingError) else str(error)
    return f"no connection: that is no address: {said}"


def request_text(code: int) -> str:
    """What a request asks for, by name and number."""
    try:
        return f"{RequestCode(code).name} ({code:d})"
    except ValueError:
        return f"request {code:d}"


def response_error(
    code: int, remark: str | None, address: str, what: str, topic: str | None = None, group: str | None = None
) -> ResponseError:
    """The error that an answer's code makes.

    Brokers up to 4.9 refuse with SYSTEM_ERROR and the name of their exception in the remark (ACL 1.0).
    """
    is_acl_1 = code == ResponseCode.SYSTEM_ERROR and "AclException" in (remark or "")
    is_denied = code == ResponseCode.NO_PERMISSION or is_acl_1
    return (AccessDeniedError if is_denied else ResponseError)(code, remark, address, what, topic, group)


def _said(remark: str | None) -> str:
    return f": {remark.splitlines()[0]}" if remark else ""
