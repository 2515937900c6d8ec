"""All errors of this client, as one tree.

    ClientError
      ClientSettingError              a setting with a value that makes no sense
      ClientClosedError               it was closed, or belongs to the process before a fork
      GroupTakenError                 a second member of one group in one instance
      NameServerUnreachableError      none of the name servers answers; retriable
      TopicRouteNotFoundError         the name servers know no broker of the topic
      BrokerNotFoundError             no known route names the broker; retriable
      NoBrokerError                   no broker is registered at all; retriable
      BrokerUnreachableError          no connection, or it broke; retriable
        TlsError                      one side speaks TLS and the other does not, or a certificate is refused
        FrameRefusedError             the server sent bytes that are no frame
      RequestTimeoutError             no answer in time; retriable
      ReplyTimeoutError               a request was stored, and nobody has replied in time; retriable
      WaitedInVainError               repeated until the time was over; retriable as its cause
      MalformedResponseError          an answer that does not fit its request
        TornAnswerError               an answer to a pull with cut or other records; retriable
      RequestIllegalError             a request that is too large for a frame
      ResponseError                   the server refused; retriable by its code
        AccessDeniedError             … with NO_PERMISSION
      TopicHalfDeletedError           a topic that some brokers have deleted and others have not
      MessageQueueNotFoundError       the topic has no queue to send to or to read
      MessageRefusedError             a message that no broker takes: it was not sent
      TooManyInFlightError            back-pressure: too much waits for answers; retriable
      SeekError                       an offset outside of the queue
      SendForbiddenError              a hook forbids a send
      SendFailedError                 no try of a send succeeded

Classes are declarations, as `storage/errors.py` explains. None of them holds a key, a token or a signature.

Java: MQClientException, MQBrokerException, RemotingConnectException, RemotingTimeoutException and their siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from spark_mq.remoting import RequestCode
from storage.errors import DescribedError, cause_and_cure
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

_NOT_LOST = "No message is lost by it; failOnDataLoss does not matter here"


class ClientError(DescribedError):
    """Base of all errors of the client. The text is one line: what happened, and what to do."""

    condition = "SPARK_MQ_CLIENT_ERROR"

    def __str__(self) -> str:
        return cause_and_cure(self.describe(), self.hint)


class ClientSettingError(ClientError, ValueError):
    """A setting with a value that makes no sense. The value of a secret is never given."""

    template = "{setting}={value!r}: {rule}"
    setting: str
    value: object
    rule: str


class ClientClosedError(ClientError):
    """A call of something that was closed, or that the process inherited by a fork."""

    template = "{what}: {reason}"
    hint = "Open a new one. What was opened before a fork belongs to the parent process."
    what: str
    reason: str


class GroupTakenError(ClientError):
    """A second producer or consumer of the same group in one client instance."""

    template = "a {kind} of group {group} is already open in client {client_id}"
    hint = "Use the one that is open, another group, or another instance_name."
    group: str
    kind: str
    client_id: str


class NameServerUnreachableError(ClientError):
    """No name server answered; `tries` holds each address with what happened there."""

    condition = "SPARK_MQ_NAME_SERVER_UNREACHABLE"
    retriable = True
    template = "no name server answers ({tried})"
    hint = "Check the addresses, that a name server runs there, and that this machine reaches it."
    spark_cure = "check the option nameServer, that a name server runs there, and that this machine reaches it"
    tries: Sequence[tuple[str, str]]

    def __post_init__(self) -> None:
        self.tries = tuple(self.tries)

    @property
    def tried(self) -> str:
        return "; ".join(f"{address}: {reason}" for address, reason in self.tries)


class TopicRouteNotFoundError(ClientError):
    """The name servers know no broker that has the topic. `remark` is what a name server said."""

    condition = "SPARK_MQ_TOPIC_ROUTE_NOT_FOUND"
    template = "topic {topic} has no route at name server {address}[: {said}]"
    hint = "Check the topic's name, or create the topic. A new broker's topics are known after its first registration."
    topic: str
    address: str
    remark: str | None

    @property
    def said(self) -> str:
        return _first_line(self.remark)


class BrokerNotFoundError(ClientError):
    """No known route gives an address of the broker with that id."""

    condition = "SPARK_MQ_BROKER_UNREACHABLE"
    retriable = True
    template = "no route gives an address of broker {broker_name} with id {broker_id}"
    hint = "The broker is not registered now: see whether it runs, and whether it registers at this name server."
    spark_note = _NOT_LOST
    broker_name: str
    broker_id: int


class NoBrokerError(ClientError):
    """The name server answers, and knows no broker."""

    condition = "SPARK_MQ_BROKER_UNREACHABLE"
    retriable = True
    template = "no broker is registered at the name server"
    hint = "See whether the brokers run, and whether they register at this name server."
    spark_note = _NOT_LOST


class BrokerUnreachableError(ClientError):
    """No connection to a server (a broker or a name server), or the connection broke before the answer."""

    condition = "SPARK_MQ_BROKER_UNREACHABLE"
    retriable = True
    template = "{address}: {reason}"
    hint = "Check that the server runs and that this machine reaches the address that it registers."
    spark_note: ClassVar[str | None] = _NOT_LOST
    address: str
    reason: str


class TlsError(BrokerUnreachableError):
    """The TLS handshake failed: a plain server, a refused certificate, or files that cannot be read."""

    condition = "SPARK_MQ_TLS_FAILED"
    retriable = False
    template = "{address}: TLS failed: {reason}"
    hint = (
        "Use TLS exactly where the server does (tls.server.mode). A self-signed certificate needs ca_file,"
        " or verify=False where that risk is taken."
    )
    spark_cure = (
        "Set tls=true exactly where the server speaks TLS (tls.server.mode). A self-signed certificate needs tlsCaFile, "
        "or tlsVerify=false where that risk is taken"
    )
    spark_note = None


class FrameRefusedError(BrokerUnreachableError):
    """The bytes that came over the connection are no frame of this protocol. The connection was closed."""

    condition = "SPARK_MQ_ILLEGAL_ANSWER"
    retriable = False
    template = "{address} sent what is no frame: {reason}"
    hint = "Check that the port is a RocketMQ remoting port, and whether the server wants TLS."
    spark_note = None


class RequestTimeoutError(ClientError):
    """No answer within the time-out. The server may or may not have carried out the request."""

    condition = "SPARK_MQ_BROKER_UNREACHABLE"
    retriable = True
    template = "[{address}: ]no answer to {what} within {timeout_ms} ms"
    hint = "Check the server's load and log, and what lies between; or allow more time."
    spark_note = _NOT_LOST
    what: str
    timeout_ms: int
    address: str | None = None


class ReplyTimeoutError(ClientError):
    """A request is stored, and no reply to it has come within its time-out. Java: RequestTimeoutException."""

    retriable = True
    template = "no reply to the request of topic {topic} within {timeout_ms} ms (CORRELATION_ID {correlation_id})"
    hint = "Check that a consumer of the topic runs, that it replies, and that its replies are not refused; or allow more time."
    topic: str
    timeout_ms: int
    correlation_id: str


class WaitedInVainError(ClientError):
    """A request was repeated until its time was over; `cause` is how the last try ended. Never the cause of another one."""

    cause: ClientError
    what: str
    waited_ms: int

    def __post_init__(self) -> None:
        if isinstance(self.cause, WaitedInVainError):
            self.cause = self.cause.cause
        self.condition = self.cause.condition
        self.retriable = self.cause.retriable

    def describe(self) -> str:
        return f"waited {self.waited_ms / 1_000:.1f} s for {self.what}; the last try: {self.cause.describe()}"

    def advice(self) -> tuple[str, ...]:
        return self.cause.advice()


class RequestIllegalError(ClientError):
    """A request that is not sent, because no server could read its frame; mostly its body is too large."""

    template = "{what} was not sent: {reason}"
    hint = "Make the message or the batch smaller."
    what: str
    reason: str


class MalformedResponseError(ClientError):
    """An answer that does not fit its request: a missing or bad header field, or a body that cannot be read."""

    condition = "SPARK_MQ_ILLEGAL_ANSWER"
    template = "{address}: the answer to {what} cannot be read: {reason}"
    hint = "Check that a name server or broker of RocketMQ 4.9 to 5.3 answers at that address, and that nothing between changes it."
    address: str
    what: str
    reason: str


class TornAnswerError(MalformedResponseError):
    """An answer to a pull whose records are cut, or are not those of the requested offsets. A broker of Apache answers so for a moment,
    while it deletes the first file of its log.
    """

    hint = "Try again: a broker of Apache answers so for a moment, while it deletes the first file of its log."
    retriable = True


_NOT_SUPPORTED = (
    "is a name server there? a broker answers so to what only name servers know, and an older server to a newer request"
)


class ResponseError(ClientError):
    """A server's answer with another code than those the caller expects. `what` names the request."""

    condition = "SPARK_MQ_BROKER_REFUSED"
    template = "{address} answered {code_text} to {what}[ topic {topic}][ group {group}][: {said}]"
    hint = "The remark is the server's own; its log says more."
    code: int
    remark: str | None
    address: str
    what: str
    topic: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        self.retriable = self.code in RETRIABLE_CODES

    @property
    def code_text(self) -> str:
        """The code with its name, where it has one."""
        try:
            return f"{self.code} ({ResponseCode(self.code).name})"
        except ValueError:
            return str(self.code)

    @property
    def said(self) -> str:
        return _first_line(self.remark)

    def cure(self) -> str | None:
        """The hint for this code as the answer to this request; the class's hint if nothing more is known."""
        if self.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return _NOT_SUPPORTED
        if self.code == ResponseCode.SYSTEM_ERROR and self.what.startswith("CHECK_CLIENT_CONFIG"):
            return "enablePropertyFilter=true in the broker's broker.conf lets it filter by SQL92"
        return self.hint


class AccessDeniedError(ResponseError):
    """The server does not permit it: unknown user, wrong secret, missing right, or a topic without that permission."""

    condition = "SPARK_MQ_BROKER_ACCESS_DENIED"
    hint = "Check access key and secret key, the rights of that user (mqadmin listAcl), and the topic's permissions."


class TopicHalfDeletedError(ClientError):
    """Some brokers have deleted a topic and another has failed; `cause` is its error."""

    template = "topic {topic} is deleted at {done}, and not at {address}: {said}"
    hint = "Delete it again when that broker answers; until then its consumers get TOPIC_NOT_EXIST from the others."
    topic: str
    done: str
    cause: ClientError
    address: str

    @property
    def said(self) -> str:
        return self.cause.describe()


class MessageQueueNotFoundError(ClientError):
    """A topic has a route, but no queue of it can be written or read."""

    condition = "SPARK_MQ_TOPIC_ROUTE_NOT_FOUND"
    template = "topic {topic}: {reason}"
    hint = "Check the topic's permissions (mqadmin topicRoute), and that a master of its brokers is registered."
    topic: str
    reason: str


class MessageRefusedError(ClientError, ValueError):
    """A message, or a batch, that breaks a rule before it is sent; `what` is the part that does. Nothing was sent.

    Java: Validators.checkMessage, Message.putUserProperty, MessageBatch.generateFromList.
    """

    template = "a message to topic {topic!r} was not sent: {what}: {rule}"
    topic: str
    what: str
    rule: str


class SendForbiddenError(ClientError):
    """A CheckForbiddenHook of the program forbids a send; its own error is the cause."""

    template = "a message to topic {topic} was not sent: hook {hook} forbids it: {reason}"
    hint = "The hook is the program's own: see what it checks."
    topic: str
    hook: str
    reason: str


class TooManyInFlightError(ClientError):
    """Too many messages wait for answers: `max_in_flight` messages or `max_in_flight_bytes`."""

    retriable = True
    template = "{count} messages of {size_bytes} bytes in all are in flight: the message was not sent"
    hint = "Send slower, wait for results, or raise max_in_flight and max_in_flight_bytes."
    count: int
    size_bytes: int


class SeekError(ClientError):
    """An offset that lies outside of its queue, which begins at `first` and ends before `end`."""

    template = "offset {offset} lies outside of {queue}, which has offsets {first} to {end}"
    hint = "Seek to the queue's beginning or end, or to a time."
    queue: object
    offset: int
    first: int
    end: int


class SendFailedError(ClientError):
    """All tries of a send failed; `tries` holds each broker's name with its error, in the order of the tries.

    It is retriable if the last try failed for a reason that may pass.
    """

    topic: str
    tries: Sequence[tuple[str, Exception]]

    def __post_init__(self) -> None:
        self.tries = tuple(self.tries)
        self.retriable = bool(self.tries) and bool(getattr(self.tries[-1][1], "retriable", False))

    def describe(self) -> str:
        tried = "; ".join(f"{broker}: {_cause(error)}" for broker, error in self.tries)
        return f"a message to topic {self.topic} was not sent, {len(self.tries)} tries ({tried})"


def _cause(error: Exception) -> str:
    return error.describe() if isinstance(error, DescribedError) else _first_line(str(error))


def _first_line(text: str | None) -> str:
    return next(iter((text or "").splitlines()), "")


def no_address(error: ValueError) -> str:
    """Why no connection can be made to what a name server gave as an address."""
    said = error.rule if isinstance(error, ClientSettingError) else str(error)
    return f"no connection: that is no address: {said}"


def request_text(code: int) -> str:
    """The name and number of a request."""
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
