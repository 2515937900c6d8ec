"""Answers that say "stored, but not as safely as the broker is configured"."""

from __future__ import annotations

import pytest

from spark_mq.conditions import NotConfirmedError
from spark_mq.sink.sends import refuse_unsafe, statuses_text


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
