"""Which failed sends go once more. Codes and errors: DefaultMQProducer and MQClientAPIImpl of 5.3.3."""

from __future__ import annotations

import pytest

from spark_mq.client import errors
from spark_mq.client.send_results import SendStatus, goes_again, is_network_failure, stored_status
from spark_mq.client.settings import RETRIED_CODES
from storage.rules.response_codes import ResponseCode

NETWORK = [
    errors.BrokerUnreachableError("b:1", "refused"),
    errors.TlsError("b:1", "plain"),
    errors.RequestTimeoutError("SEND", 3000, "b:1"),
    errors.BrokerNotFoundError("b", 0),
]
OTHERS = [
    errors.MalformedResponseError("b:1", "SEND", "no msgId"),
    errors.FrameRefusedError("b:1", "the header size is 9 of 8 bytes"),
    errors.RequestIllegalError("SEND", "too large"),
    errors.ClientClosedError("producer", "closed"),
    errors.TopicRouteNotFoundError("T", "n:1", None),
]


def refusal(code: int) -> errors.ResponseError:
    return errors.response_error(code, "no", "b:1", "SEND", "T")


def test_who_waits_is_served_again_after_java_s_eight_codes_and_where_a_queue_has_moved() -> None:
    again = {code for code in range(3_000) if goes_again(refusal(code), is_waited_for=True)}
    assert set(RETRIED_CODES) == {17, 14, 1, 2, 16, 204, 205, 1500}
    assert again == {*RETRIED_CODES, 501}


def test_who_does_not_wait_gets_every_refusal_at_once_but_that_a_queue_has_moved() -> None:
    """Then nothing is stored, and there is a broker that takes it."""
    assert [code for code in range(3_000) if goes_again(refusal(code), is_waited_for=False)] == [501]


@pytest.mark.parametrize("error", NETWORK, ids=lambda error: type(error).__name__)
def test_after_a_network_failure_everybody_is_served_again(error: errors.ClientError) -> None:
    assert is_network_failure(error)
    assert goes_again(error, is_waited_for=True)
    assert goes_again(error, is_waited_for=False)


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
def test_what_another_try_would_not_mend_is_not_tried_again(error: errors.ClientError) -> None:
    assert not goes_again(error, is_waited_for=True)
    assert not goes_again(error, is_waited_for=False)


def test_the_codes_can_be_chosen() -> None:
    assert goes_again(refusal(29), is_waited_for=True, retried_codes={29})
    assert not goes_again(refusal(2), is_waited_for=True, retried_codes={29})


def test_four_codes_say_that_the_message_is_stored() -> None:
    """MQClientAPIImpl.processSendResponse."""
    stored = {code: status.name for code in range(3_000) if (status := stored_status(code)) is not None}
    assert stored == {0: "SEND_OK", 10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT"}
    assert all(ResponseCode[name.replace("SEND_OK", "SUCCESS")] == code for code, name in stored.items())
    assert stored_status(0) is SendStatus.SEND_OK
