"""Property strings: what Java's MessageDecoder reads from them, one message at a time and many at once."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage.format.properties import (
    COLUMN_PROPERTIES,
    EARLIER_LIFE,
    MADE_ANEW,
    MapEntries,
    decode_properties,
    decode_property_maps,
    encode_columns,
    encoded_size,
    leading_properties,
)
from storage.format.record import Message, decode_record
from tests.oracle.damage import files, walk
from tests.support.fixture_stores import Fixture, golden_lines

READ = {
    b"": {},
    b"a\1b\2": {"a": "b"},
    b"a\1b": {"a": "b"},  # the last separator may be missing
    b"a\1b\2c\1d\2": {"a": "b", "c": "d"},
    b"a\1b\1c\2": {"a": "b\1c"},  # the first 0x01 splits
    b"a\1\1\2": {"a": "\1"},
    b"a\1b\2a\1c\2": {"a": "c"},  # of equal names the last wins
    b"a\1b\2x\1y\2a\1c\2": {"a": "c", "x": "y"},
    b"a\2": {},
    b"a\1\2": {},
    b"\1b\2": {},
    b"\1\2": {},
    b"\2\2\2": {},
    b"\1\1\1": {},
    b"a\2b\1c\2": {"b": "c"},
    b"a\1b\2\2c\1d": {"a": "b", "c": "d"},
    b"a\1b\2a\1\2": {"a": "b"},  # an entry without a value is no entry, so it does not win
    b"\0\1\0\2": {"\0": "\0"},
    b"a\1b\2\0\0": {"a": "b"},  # lost bytes
    b"a\1b\0c\2": {"a": "b\0c"},
    "名\1値\2😀\1é\2".encode(): {"名": "値", "😀": "é"},
}
# What `new String(bytes, UTF_8)` of a JDK 17 makes of bytes that are none.
MALFORMED = {
    "80": "\ufffd",
    "c0af": "\ufffd\ufffd",
    "c328": "\ufffd(",
    "e28228": "\ufffd(",
    "e282": "\ufffd",
    "eda0": "\ufffd",
    "eda080": "\ufffd",
    "edbfbf": "\ufffd",
    "eda08061": "\ufffda",
    "edb080eda080": "\ufffd\ufffd",
    "f09f98": "\ufffd",
    "f0808080": "\ufffd\ufffd\ufffd\ufffd",
    "f4908080": "\ufffd\ufffd\ufffd\ufffd",
    "f8888080": "\ufffd\ufffd\ufffd\ufffd",
    "fefe": "\ufffd\ufffd",
    "e0809f": "\ufffd\ufffd\ufffd",
    "61e28261": "a\ufffda",
    "f09f61": "\ufffda",
    "41c3e282ac": "A\ufffd€",
    "f09fc3a9": "\ufffdé",
    "ffc3a9": "\ufffdé",
}


def decoded_together(rows: list[bytes]) -> list[dict[str, str]]:
    return [dict(pairs) for pairs in decode_property_maps(pa.array(rows, pa.binary())).map_array().to_pylist()]


@pytest.mark.parametrize(("raw", "properties"), READ.items(), ids=repr)
def test_a_property_string_reads_as_java_reads_it(raw: bytes, properties: dict[str, str]) -> None:
    assert decode_properties(raw) == properties
    assert decode_properties(memoryview(raw)) == properties
    assert decoded_together([raw]) == [properties]
    assert decoded_together([b"x\1y\2", raw, b"", raw, b"x\1y"]) == [
        {"x": "y"}, properties, {}, properties, {"x": "y"}
    ]  # fmt: skip


@pytest.mark.parametrize(("raw", "text"), MALFORMED.items())
def test_malformed_text_is_replaced_as_java_replaces_it(raw: str, text: str) -> None:
    malformed = bytes.fromhex(raw)
    row = b"name\1" + malformed + b"\2" + malformed + b"\1value\2"
    expected = {"name": text, text: "value"}
    assert decode_properties(row) == expected
    assert decoded_together([b"a\1b\2", row]) == [{"a": "b"}, expected]


@pytest.mark.parametrize("name", ["clean", "torn", "ipv6"])
def test_the_brokers_properties_read_as_its_own_classes_read_them(
    name: str, pristine_store: Callable[[str], Fixture]
) -> None:
    fixture = pristine_store(name)
    golden = {
        line["physicalOffset"]: line["properties"]
        for line in golden_lines(fixture.golden, "message")
        if "error" not in line
    }
    rows: dict[int, bytes] = {}
    for file in files(fixture.root):
        data = file.read_bytes()
        for record in walk(file):
            message = decode_record(data, record.commitlog_offset - int(file.name))
            assert isinstance(message, Message)
            rows[record.commitlog_offset] = message.raw_properties
    known = [offset for offset in rows if offset in golden]
    assert len(known) == len(golden)
    expected = [golden[offset] for offset in known]
    assert [decode_properties(rows[offset]) for offset in known] == expected
    assert decoded_together([rows[offset] for offset in known]) == expected


pieces = st.sampled_from(
    [b"\1", b"\2", b"\0", b"a", b"name", b"WAIT", b"true", b"\xc3\xa9", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80"]
)
irregular = st.lists(pieces, max_size=12).map(b"".join)
words = st.sampled_from([b"a", b"WAIT", b"UNIQ_KEY", b"true", "é".encode(), "名前".encode(), b"\0"])
regular = st.lists(st.tuples(words, words), max_size=6).map(
    lambda pairs: b"".join(name + b"\1" + value + b"\2" for name, value in pairs)
)


@given(st.lists(irregular, max_size=12), st.data())
@example([b"\1", b"\2"], None)
def test_irregular_rows_together_read_as_each_one(rows: list[bytes], data: st.DataObject | None) -> None:
    assert_together_as_alone(rows, data)


@given(st.lists(regular, max_size=12), st.data())
def test_regular_rows_together_read_as_each_one(rows: list[bytes], data: st.DataObject) -> None:
    assert_together_as_alone(rows, data)


@given(st.lists(regular | irregular, max_size=12), st.data())
def test_mixed_rows_together_read_as_each_one(rows: list[bytes], data: st.DataObject) -> None:
    assert_together_as_alone(rows, data)


def assert_together_as_alone(rows: list[bytes], data: st.DataObject | None) -> None:
    expected = [decode_properties(row) for row in rows]
    assert decoded_together(rows) == expected
    start = data.draw(st.integers(0, len(rows))) if data else 0
    maps = decode_property_maps(pa.array(rows, pa.binary())[start:])
    for name in ("a", "WAIT", "UNIQ_KEY", "名前", "\0", "absent", "\ufffd"):
        assert maps.values_of(name).to_pylist() == [properties.get(name) for properties in expected[start:]]
    together = maps.map_array()
    together.validate(full=True)
    assert [dict(pairs) for pairs in together.to_pylist()] == expected[start:]
    assert all(len(dict(pairs)) == len(pairs) for pairs in together.to_pylist())


@given(st.binary(max_size=60))
def test_any_bytes_read_as_something(raw: bytes) -> None:
    properties = decode_properties(raw)
    assert all(name and value for name, value in properties.items())
    assert decoded_together([raw]) == [properties]


def test_thousands_of_equal_names_are_read_in_one_go() -> None:
    """Not by a search for each among those behind it, which took a minute for a few records."""
    raw = [(f"name{row}\1v\2" + "a\1b\2" * 200_000).encode() for row in range(2)]
    maps = decode_property_maps(pa.array(raw, pa.binary()))
    assert maps.values_of("a").to_pylist() == ["b", "b"]
    whole = getattr(maps, "maps", maps)
    assert [dict(found) for found in whole.map_array().to_pylist()] == [
        {f"name{row}": "v", "a": "b"} for row in range(2)
    ]


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


@pytest.mark.parametrize("maps", [None, ("a\x01b\x02", "")])
def test_a_text_that_all_rows_have_stands_where_its_column_would(maps: tuple[str, str] | None) -> None:
    laid = None if maps is None else texts(*maps)
    columns = {
        "U": texts("u", "v"),
        "A": "1",
        "B": texts("x", None),
        "C": "2",
        "D": "3",
        "E": texts("y", "z"),
        "F": "4",
    }
    same = {name: texts(value, value) if isinstance(value, str) else value for name, value in columns.items()}
    assert encode_columns({"L": "l"}, columns, laid).equals(encode_columns({"L": "l"}, same, laid))


def test_the_size_of_leading_properties_is_that_of_their_bytes() -> None:
    leading = leading_properties("régio", True, "DefaultCluster")
    assert leading["TRACE_ON"] == "true"
    (raw,) = encode_columns(leading, {"UNIQ_KEY": texts("U")}, None).to_pylist()
    assert encoded_size(leading) == len(raw) - len(b"UNIQ_KEY\x01U\x02")
