"""Property strings: what Java's MessageDecoder reads from them, one message at a time and many at once."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage.format.properties import decode_properties, decode_property_maps
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
