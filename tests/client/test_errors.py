"""Errors of the client: texts that say where, values that survive pickling, and who may try again."""

from __future__ import annotations

import pickle

import pytest

from spark_mq.client import errors
from spark_mq.client.errors import ClientError, response_error

TIMEOUT = errors.RequestTimeoutError("HEART_BEAT", 3000, "b:10911")

EXAMPLES: list[tuple[ClientError, bool, str]] = [
    (errors.ClientSettingError("name_servers", "x", "no port"), False, "name_servers='x': no port"),
    (errors.ClientClosedError("client 1@2", "it is closed"), False, "client 1@2: it is closed"),
    (errors.GroupTakenError("g", "producer", "1@2"), False, "a producer of group g is already open in client 1@2"),
    (
        errors.NameServerUnreachableError([("a:1", "refused"), ("b:2", "no answer")]),
        True,
        "(a:1: refused; b:2: no answer)",
    ),
    (
        errors.TopicRouteNotFoundError("T", "a:1", "No topic route"),
        False,
        "topic T has no route at name server a:1: No",
    ),
    (errors.BrokerNotFoundError("b-0", 0), True, "broker b-0 with id 0"),
    (errors.NoBrokerError(), True, "no broker is registered at the name server"),
    (errors.BrokerUnreachableError("b:1", "refused"), True, "b:1: refused"),
    (errors.TlsError("b:1", "plain"), False, "b:1: TLS failed: plain"),
    (errors.FrameRefusedError("b:1", "length -1"), False, "b:1 sent what is no frame: length -1"),
    (TIMEOUT, True, "b:10911: no answer to HEART_BEAT within 3000 ms"),
    (
        errors.ReplyTimeoutError("T", 3000, "id-1"),
        True,
        "no reply to the request of topic T within 3000 ms (CORRELATION_ID id-1)",
    ),
    (
        errors.SendForbiddenError("T", "Quota", "too much"),
        False,
        "topic T was not sent: hook Quota forbids it: too much",
    ),
    (
        errors.WaitedInVainError(
            errors.WaitedInVainError(TIMEOUT, "a queue", 1), "broker b-0 (where queues end)", 120_049
        ),
        True,
        "waited 120.0 s for broker b-0 (where queues end); the last try: b:10911: no answer to HEART_BEAT",
    ),
    (errors.MalformedResponseError("b:1", "PULL_MESSAGE", "no offset"), False, "b:1: the answer to PULL_MESSAGE"),
    (errors.TornAnswerError("b:1", "PULL_MESSAGE", "cut"), True, "b:1: the answer to PULL_MESSAGE cannot be read: cut"),
    (
        errors.ResponseError(17, "no\nmore", "b:1", "GET", "T"),
        False,
        "b:1 answered 17 (TOPIC_NOT_EXIST) to GET topic T: no",
    ),
    (errors.ResponseError(2, None, "b:1", "GET", None, "g"), True, "b:1 answered 2 (SYSTEM_BUSY) to GET group g"),
    (errors.AccessDeniedError(16, "check signature failed.", "b:1", "GET"), False, "check signature failed."),
    (errors.RequestIllegalError("SEND_MESSAGE", "too large"), False, "SEND_MESSAGE was not sent: too large"),
    (
        errors.TopicHalfDeletedError("T", "b:1", TIMEOUT, "b:10911"),
        False,
        "topic T is deleted at b:1, and not at b:10911: b:10911: no answer to HEART_BEAT",
    ),
    (errors.MessageQueueNotFoundError("T", "no queue"), False, "topic T: no queue"),
    (errors.MessageRefusedError("T", "body", "it is empty"), False, "topic 'T' was not sent: body: it is empty"),
    (errors.TooManyInFlightError(3, 9), True, "3 messages of 9 bytes in all are in flight"),
    (errors.SeekError("T/0", 9, 1, 5), False, "offset 9 lies outside of T/0, which has offsets 1 to 5"),
    (errors.SendFailedError("T", [("b-0", TIMEOUT)]), True, "T was not sent, 1 tries (b-0: b:10911: no answer"),
]


@pytest.mark.parametrize(("error", "retriable", "told"), EXAMPLES, ids=[str(error) for error, _, _ in EXAMPLES])
def test_an_error_says_where_and_survives_pickling(error: ClientError, retriable: bool, told: str) -> None:
    assert told in str(error)
    assert error.retriable is retriable
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


def test_every_error_of_the_tree_has_an_example_and_a_line_on_the_page() -> None:
    classes = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, ClientError)}
    assert {type(error) for error, _, _ in EXAMPLES} == classes - {ClientError}
    assert all(each.__name__ in (errors.__doc__ or "") for each in classes)


@pytest.mark.parametrize(
    ("code", "remark", "is_denied"),
    [
        (16, "User:u is not found.", True),
        (1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured", True),
        (1, "java.lang.NullPointerException", False),
        (17, None, False),
    ],
)
def test_refusals_of_both_access_controls_are_denials(code: int, remark: str | None, is_denied: bool) -> None:
    assert isinstance(response_error(code, remark, "b:1", "SEND"), errors.AccessDeniedError) is is_denied
