"""Outgoing properties: the encoded string is what readers decode, and no row sets what brokers and clients set."""

from __future__ import annotations

import pyarrow as pa
import pytest

from storage.format.properties import (
    COLUMN_PROPERTIES,
    EARLIER_LIFE,
    MADE_ANEW,
    MapEntries,
    decode_properties,
    encode_columns,
    encoded_size,
    leading_properties,
)

MAP = pa.map_(pa.string(), pa.string())

# MessageConst.STRING_HASH_SET of RocketMQ 5.3.3: what Message.putUserProperty refuses.
REFUSED_BY_JAVA = """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
    ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME
    POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID
    REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC
    TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL
    __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32#
""".split()  # noqa: SIM905


def texts(*values: str | None) -> pa.Array:
    return pa.array(values, pa.large_string())


def test_names_that_javas_client_refuses_are_reserved() -> None:
    assert len(REFUSED_BY_JAVA) == 51
    assert set(REFUSED_BY_JAVA) <= {*MADE_ANEW, *COLUMN_PROPERTIES, *EARLIER_LIFE}


def test_no_name_is_reserved_for_two_reasons() -> None:
    assert len({*MADE_ANEW, *COLUMN_PROPERTIES, *EARLIER_LIFE}) == len(MADE_ANEW) + len(COLUMN_PROPERTIES) + len(
        EARLIER_LIFE
    )


def test_reserved_and_transient_names_are_told_from_an_applications() -> None:
    names = ["a", "TAGS", "tags", "__RMQ.TRANSIENT.X", "__RMQ.TRANSIENT", "UNIQ_KEY", "DELAY", "DELAY_"]
    entries = MapEntries.of(pa.array([[(name, "1") for name in names[:3]], [(name, "1") for name in names[3:]]], MAP))
    reserved = [name for name, is_reserved in zip(names, entries.is_reserved, strict=True) if is_reserved]
    assert reserved == ["TAGS", "__RMQ.TRANSIENT.X", "UNIQ_KEY", "DELAY"]
    assert entries.entries_of("TAGS").tolist() == [1]
    assert entries.entries_of("__SHARDINGKEY").tolist() == []


MAPS = [
    [("a", "1"), ("b", "2")],
    None,
    [],
    [("n", None), ("ü", "😀"), ("m", None)],
    [("only", "v")],
    [("twice", "1"), ("twice", "2")],
]
ENCODED = ["a\x011\x02b\x012\x02", "", "", "ü\x01😀\x02", "only\x01v\x02", "twice\x011\x02twice\x012\x02"]


@pytest.mark.parametrize("start", range(len(MAPS) + 1))
@pytest.mark.parametrize("end", range(len(MAPS) + 1))
def test_a_slice_of_maps_is_encoded_row_by_row_without_nulls(start: int, end: int) -> None:
    maps = pa.array(MAPS, MAP)[start:end]
    assert MapEntries.of(maps).encode().to_pylist() == ENCODED[start:end]


def test_a_null_row_hides_the_entries_that_lie_under_it() -> None:
    maps = pa.MapArray.from_arrays(
        [0, 1, 2, 3], ["a", "b", "c"], ["1", "2", "3"], MAP, mask=pa.array([False, True, False])
    )
    assert MapEntries.of(maps).encode().to_pylist() == ["a\x011\x02", "", "c\x013\x02"]


def test_filtered_entries_stay_in_their_rows() -> None:
    entries = MapEntries.of(pa.array(MAPS[:1] * 3, MAP))
    kept = entries.filter(pa.array([True, False, False, False, False, True]).to_numpy(zero_copy_only=False))
    assert kept.encode().to_pylist() == ["a\x011\x02", "", "b\x012\x02"]
    assert kept.rows.tolist() == [0, 2]


@pytest.mark.parametrize("tags", [None, ("x", "y", "z"), ("x", None, "z"), (None, None, None)])
@pytest.mark.parametrize("keys", [None, ("k", "l", "m n"), (None, None, "k")])
@pytest.mark.parametrize("with_maps", [False, True])
def test_columns_become_properties_in_order_where_they_are_not_null(
    tags: tuple[str | None, ...] | None, keys: tuple[str | None, ...] | None, with_maps: bool
) -> None:
    unique = ("U0", "U1", "U2")
    leading = leading_properties("r", False, "c")
    columns = {"UNIQ_KEY": texts(*unique), "TAGS": tags and texts(*tags), "KEYS": keys and texts(*keys)}
    maps = texts("a\x01b\x02", "", "c\x01d\x02") if with_maps else None
    encoded = encode_columns(leading, columns, maps).to_pylist()
    for row, raw in enumerate(encoded):
        expected = {"MSG_REGION": "r", "TRACE_ON": "false", "CLUSTER": "c", "WAIT": "true", "UNIQ_KEY": unique[row]}
        for name, values in (("TAGS", tags), ("KEYS", keys)):
            if values is not None and values[row] is not None:
                expected[name] = values[row]
        expected |= {0: {"a": "b"}, 2: {"c": "d"}}.get(row, {}) if with_maps else {}
        assert raw == b"".join(f"{name}\x01{value}\x02".encode() for name, value in expected.items())
        assert list(decode_properties(raw).items()) == list(expected.items())


def test_the_size_of_leading_properties_is_that_of_their_bytes() -> None:
    leading = leading_properties("régio", True, "DefaultCluster")
    assert leading["TRACE_ON"] == "true"
    (raw,) = encode_columns(leading, {"UNIQ_KEY": texts("U")}, None).to_pylist()
    assert encoded_size(leading) == len(raw) - len(b"UNIQ_KEY\x01U\x02")
