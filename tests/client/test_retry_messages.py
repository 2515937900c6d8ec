"""A failed message is sent to the retry topic with what Java's consumers say of it."""

from __future__ import annotations

from spark_mq.client.message import retry_message
from tests.client.messages import received


def test_the_new_message_says_where_it_comes_from_and_how_often_it_failed() -> None:
    failed = received(5, reconsume_times=2, TAGS="A", UNIQ_KEY="id", TRAN_MSG="true", own="x")
    made = retry_message(failed, "G", "ns%T", 16)
    assert (made.topic, made.body) == ("%RETRY%G", b"body")
    assert made.properties == {
        "TAGS": "A",
        "UNIQ_KEY": "id",
        "own": "x",
        "ORIGIN_MESSAGE_ID": "id",
        "RETRY_TOPIC": "ns%T",
        "RECONSUME_TIME": "3",
        "MAX_RECONSUME_TIMES": "16",
        "DELAY": "5",
    }


def test_the_first_id_is_kept_over_many_tries() -> None:
    failed = received(5, UNIQ_KEY="second", ORIGIN_MESSAGE_ID="first")
    assert retry_message(failed, "G", "T", 1).properties["ORIGIN_MESSAGE_ID"] == "first"
