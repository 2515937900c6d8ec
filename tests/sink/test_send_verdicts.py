"""What a batch's answer means, under each guarantee."""

from __future__ import annotations

import pytest

from spark_mq.client.errors import BrokerUnreachableError, ClientError, RequestTimeoutError
from spark_mq.client.send_retries import RETRIED_CODES
from spark_mq.sink.send_verdicts import Verdict, verdict_of, verdict_of_failure


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
    assert {code for code, verdict in others.items() if verdict is Verdict.REFUSED} == {3, 13, 16, 17, 29}
    assert set(others.values()) == {Verdict.REFUSED, Verdict.DOUBT}


@pytest.mark.parametrize("code", sorted(RETRIED_CODES))
def test_under_at_least_once_a_code_is_tried_again_where_javas_producer_tries_again(code: int) -> None:
    assert verdict_of(code, is_exact=False) is Verdict.AGAIN
    assert verdict_of(13, is_exact=False) is Verdict.REFUSED


@pytest.mark.parametrize("error", [BrokerUnreachableError("a:1", "gone"), RequestTimeoutError("a send", 3000, "a:1")])
def test_without_an_answer_one_guarantee_sends_again_and_the_other_does_not(error: ClientError) -> None:
    assert verdict_of_failure(error, is_exact=False) is Verdict.AGAIN
    assert verdict_of_failure(error, is_exact=True) is Verdict.DOUBT
