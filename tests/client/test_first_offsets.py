"""Where a group begins: as Java's computePullFromWhereWithException decides."""

from __future__ import annotations

import pytest

from spark_mq.client.rebalance import Asked, first_offset
from spark_mq.client.settings import ConsumeFrom


@pytest.mark.parametrize("where", ConsumeFrom)
@pytest.mark.parametrize("is_retry_topic", [False, True])
@pytest.mark.parametrize("stored", [0, 7])
def test_a_stored_offset_wins(where: ConsumeFrom, is_retry_topic: bool, stored: int) -> None:
    assert first_offset(stored, where, is_retry_topic=is_retry_topic) == stored


@pytest.mark.parametrize(
    ("where", "of_topic", "of_retry_topic"),
    [
        (ConsumeFrom.LAST, Asked.END, 0),
        (ConsumeFrom.FIRST, 0, 0),
        (ConsumeFrom.TIMESTAMP, Asked.TIME, Asked.END),
    ],
)
def test_a_new_group_begins_where_it_asks_to(
    where: ConsumeFrom, of_topic: int | Asked, of_retry_topic: int | Asked
) -> None:
    assert first_offset(None, where, is_retry_topic=False) == of_topic
    assert first_offset(None, where, is_retry_topic=True) == of_retry_topic
