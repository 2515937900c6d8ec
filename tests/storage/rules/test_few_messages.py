"""Records of a few messages are those that columns of them make, byte for byte, with the same of everything beside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.format.properties import decode_properties
from storage.format.record import TRANSACTION_PREPARED
from storage.format.record_block import RecordBlock, encode_block
from storage.rules.inner_messages import (
    EncodedMessage,
    InnerMessage,
    columns_of,
    encode_properties,
    few_block,
    outgoing_messages,
    read_back,
)
from storage.rules.sizes import Limits

HOST = bytes((10, 0, 0, 9)) + (10911).to_bytes(4, "big")
CLIENT = bytes((10, 0, 0, 1)) + (4711).to_bytes(4, "big")
DELAYS_MS = (1_000, 5_000)
TEXTS = st.text(st.sampled_from("ab #?%éß漢😀\x01\x02\ud800") | st.characters(codec="utf-8"), max_size=12)
PROPERTIES = st.dictionaries(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "", "own", "é"]), TEXTS, max_size=5)
KEYS = st.lists(st.sampled_from(["a", "b", "same", "é"]), max_size=5).map(" ".join)


def message(topic: str, number: int, properties: dict[str, str], *, sys_flag: int = 0) -> InnerMessage:
    return InnerMessage(
        topic=topic,
        queue_id=number % 3,
        body=b"x" * number,
        properties=properties,
        flag=number - 5,
        sys_flag=sys_flag,
        born_time_ms=1_700_000_000_000 + number,
        born_host=CLIENT,
        reconsume_times=number % 4,
        prepared_transaction_offset=number * 7,
    )


def by_columns(messages: list[EncodedMessage]) -> RecordBlock:
    (outgoing,) = outgoing_messages(columns_of(messages), HOST, DELAYS_MS, Limits())
    return encode_block(outgoing, HOST)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["T", "Orders", "T" * 127, "T" * 128]), PROPERTIES, KEYS), min_size=1, max_size=6
    )
)
def test_few_make_the_records_of_columns(rows: list[tuple[str, dict[str, str], str]]) -> None:
    messages = [
        EncodedMessage.of(message(topic, number, properties | ({"KEYS": keys} if keys else {})))
        for number, (topic, properties, keys) in enumerate(rows)
    ]
    few, columns = few_block(messages, HOST, Limits()), by_columns(messages)
    assert few is not None
    assert few.data.tobytes() == columns.data.tobytes()
    names = [[block.columns.queues[code] for code in block.columns.queue_codes.tolist()] for block in (few, columns)]
    assert names[0] == names[1]
    for name in ("sizes_bytes", "tags_codes", "key_counts", "key_hashes"):
        found, expected = getattr(few.columns, name), getattr(columns.columns, name)
        np.testing.assert_array_equal(found, expected, name)
        assert found.dtype == expected.dtype
    assert (few.columns.host_size, few.columns.is_queued) == (columns.columns.host_size, columns.columns.is_queued)


@given(PROPERTIES)
def test_properties_are_what_a_reader_finds(properties: dict[str, str]) -> None:
    raw = encode_properties(properties)
    assert read_back(raw, properties) == decode_properties(raw)


@pytest.mark.parametrize(
    "seldom",
    [
        message("SCHEDULE_TOPIC_XXXX", 1, {"DELAY": "1"}),
        message("T", 1, {}, sys_flag=TRANSACTION_PREPARED),
        message("T" * 300, 1, {}),
        message("T", 1, {"own": "x" * 40_000}),
        message("Tä", 1, {}),
    ],
    ids=["waits", "half", "topic", "properties", "foreign"],
)
def test_what_is_seldom_is_left_to_columns(seldom: InnerMessage) -> None:
    usual = EncodedMessage.of(message("T", 1, {}))
    assert few_block([usual], HOST, Limits()) is not None
    assert few_block([usual, EncodedMessage.of(seldom)], HOST, Limits()) is None
    assert few_block([usual], bytes(16) + HOST[-4:], Limits()) is None
    assert few_block([usual], HOST, Limits(max_message_size=0)) is None
