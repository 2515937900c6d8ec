"""What a batch's answer means under each guarantee, and what `acks=all` makes of one that is not safe."""

from __future__ import annotations

import pytest

from spark_mq.client.errors import BrokerUnreachableError, ClientError, FrameRefusedError, RequestTimeoutError
from spark_mq.client.settings import RETRIED_CODES
from spark_mq.conditions import NotConfirmedError
from spark_mq.sink.sends import Verdict, refuse_unsafe, statuses_text, verdict_of, verdict_of_call, verdict_of_failure


@pytest.mark.parametrize("code", [0, 10, 11, 12])
@pytest.mark.parametrize("is_exact", [True, False])
def test_four_codes_mean_stored(code: int, is_exact: bool) -> None:
    assert verdict_of(code, is_exact=is_exact) is Verdict.STORED


@pytest.mark.parametrize("code", [2, 14, 215, 1500])
@pytest.mark.parametrize("is_exact", [True, False])
def test_a_broker_that_is_busy_has_not_stored_it(code: int, is_exact: bool) -> None:
    """NettyRemotingAbstract.processRequestCommand, BrokerFastFailure, SendMessageProcessor.handlePutMessageResult."""
    assert verdict_of(code, is_exact=is_exact) is Verdict.AGAIN


def test_under_exactly_once_every_other_code_is_a_refusal_that_is_known_or_a_doubt() -> None:
    others = {code: verdict_of(code, is_exact=True) for code in range(2_100)}
    for code in (0, 10, 11, 12, 2, 14, 215, 1500):
        del others[code]
    assert {code for code, verdict in others.items() if verdict is Verdict.REFUSED} == {3, 13, 16, 17, 26, 29}
    assert set(others.values()) == {Verdict.REFUSED, Verdict.DOUBT}


@pytest.mark.parametrize("code", sorted(RETRIED_CODES))
def test_under_at_least_once_a_code_is_tried_again_where_javas_producer_tries_again(code: int) -> None:
    assert verdict_of(code, is_exact=False) is Verdict.AGAIN
    assert verdict_of(13, is_exact=False) is Verdict.REFUSED


@pytest.mark.parametrize("error", [BrokerUnreachableError("a:1", "gone"), RequestTimeoutError("a send", 3000, "a:1")])
def test_without_an_answer_one_guarantee_sends_again_and_the_other_does_not(error: ClientError) -> None:
    assert verdict_of_failure(error, is_exact=False) is Verdict.AGAIN
    assert verdict_of_failure(error, is_exact=True) is Verdict.DOUBT


def test_an_answer_that_is_no_frame_is_not_asked_for_again() -> None:
    error = FrameRefusedError("a:1", "its length is 1213486160")
    assert verdict_of_failure(error, is_exact=False) is Verdict.REFUSED
    assert verdict_of_failure(error, is_exact=True) is Verdict.DOUBT, "what was sent before may be stored"


@pytest.mark.parametrize(
    ("code", "remark", "verdict"),
    [
        (0, None, Verdict.STORED),
        (1, "OS_PAGE_CACHE_BUSY", Verdict.AGAIN),
        (1, "look message by offset failed, 4711", Verdict.REFUSED),
        (1, "Find prepared transaction message failed", Verdict.REFUSED),
        (2, "[REJECTREQUEST]system busy", Verdict.AGAIN),
        (11, None, Verdict.AGAIN),
        (13, "The message is illegal", Verdict.REFUSED),
        (26, "subscription group not exist, g", Verdict.REFUSED),
        (604, None, Verdict.REFUSED),
    ],
)
def test_a_call_about_one_row_is_done_by_0_alone(code: int, remark: str | None, verdict: Verdict) -> None:
    """AbstractSendMessageProcessor.consumerSendMsgBack, EndTransactionProcessor (11: the broker is a slave by now)."""
    assert verdict_of_call(code, remark) is verdict


@pytest.mark.parametrize(
    ("code", "status"), [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"), (12, "FLUSH_SLAVE_TIMEOUT")]
)
def test_an_answer_without_the_disk_or_a_slave_is_an_error_that_names_broker_rows_and_status(
    code: int, status: str
) -> None:
    with pytest.raises(NotConfirmedError, match=f"broker broker-a has stored 7 rows and answers {status}") as caught:
        refuse_unsafe({0: 3, code: 7}, "broker-a")
    assert "acks=stored" in str(caught.value)


def test_an_answer_that_all_is_well_is_none() -> None:
    refuse_unsafe({0: 3}, "broker-a")


def test_statuses_are_told_with_their_rows() -> None:
    assert statuses_text({12: 4, 0: 3}) == "SEND_OK 3, FLUSH_SLAVE_TIMEOUT 4"
    assert statuses_text({}) == "no rows"
