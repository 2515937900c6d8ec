"""Many records at once: every column says what the one-record decoder says, and nothing else passes for a record."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecordError
from storage.format.properties import decode_properties, decode_property_maps
from storage.format.record import (
    COMPRESSED,
    MAGIC_V1,
    MAGIC_V2,
    MINIMUM_RECORD_SIZE,
    Message,
    chain,
    decode_record,
    encode_record,
    find_candidates,
    host_text,
)
from storage.format.record_batch import Records, gather_bytes
from tests.oracle.damage import files, walk
from tests.support.fixture_stores import FIXTURE_NAMES, Fixture
from tests.support.message_builder import make_message

FIXED = [
    *("size_bytes", "magic", "body_crc", "queue_id", "flag", "queue_offset", "commitlog_offset", "sys_flag"),
    *("born_time_ms", "store_time_ms", "reconsume_times", "prepared_transaction_offset"),
]


def assert_same(records: Records, messages: list[Message]) -> None:
    """Every field of every row, fixed and variable, as the scalar decoder has it."""
    assert len(records) == len(messages)
    assert records.is_whole.all()
    assert records.crc_agrees().all()
    for name in FIXED:
        assert records.column(name).tolist() == [getattr(message, name) for message in messages], name
    assert records.column("body_size_bytes").tolist() == [len(message.body) for message in messages]
    assert records.topics().to_pylist() == [message.topic.encode() for message in messages]
    assert records.bodies().to_pylist() == [message.body for message in messages]
    assert records.plain_bodies().to_pylist() == [message.plain_body for message in messages]
    assert records.raw_properties().to_pylist() == [message.raw_properties for message in messages]
    assert records.host_texts("born_host").to_pylist() == [host_text(message.born_host) for message in messages]
    assert records.host_texts("store_host").to_pylist() == [host_text(message.store_host) for message in messages]
    assert records.message_ids().to_pylist() == [message.msg_id for message in messages]
    maps = decode_property_maps(records.raw_properties()).map_array().to_pylist()
    assert [dict(pairs) for pairs in maps] == [decode_properties(message.raw_properties) for message in messages]


@pytest.fixture(scope="module")
def records_of(pristine_store: Callable[[str], Fixture]) -> Callable[[str], list[bytes]]:
    """`records_of(name)`: the bytes of every record of a fixture, in log order."""

    def collect(name: str) -> list[bytes]:
        found = []
        for file in files(pristine_store(name).root):
            data = file.read_bytes()
            for record in walk(file):
                position = record.commitlog_offset - int(file.name)
                found.append(data[position : position + record.size_bytes])
        return found

    return collect


def laid_out(records: list[bytes], gap: bytes = b"") -> tuple[np.ndarray, np.ndarray]:
    """A buffer with the records one behind the other, and where they begin."""
    starts = np.cumsum([len(gap)] + [len(record) + len(gap) for record in records])[:-1]
    return np.frombuffer(gap + b"".join(record + gap for record in records), np.uint8), starts


def message_of(record: bytes) -> Message:
    message = decode_record(record)
    assert isinstance(message, Message)
    return message


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_all_records_of_a_store_at_once(name: str, records_of: Callable[[str], list[bytes]]) -> None:
    records = records_of(name)
    assert_same(Records(*laid_out(records)), [message_of(record) for record in records])


def test_batches_of_any_size_and_mixture(records_of: Callable[[str], list[bytes]]) -> None:
    kinds = records_of("clean") + 20 * records_of("ipv6")
    chosen = random.Random(5)
    for size in [1, 1, 2, 3, 10, 100, 500]:
        records = chosen.sample(kinds, size)
        messages = [message_of(record) for record in records]
        whole = Records(*laid_out(records, gap=b"between"))
        assert_same(whole, messages)
        rows = np.array(sorted(chosen.sample(range(size), size // 2)), np.int64)
        assert_same(whole.take(rows), [messages[row] for row in rows])
        assert_same(Records(whole.buffer, whole.positions).take(rows), [messages[row] for row in rows])


def test_no_records_are_no_rows() -> None:
    assert_same(Records(np.zeros(200, np.uint8), np.empty(0, np.int64)), [])


@pytest.mark.parametrize(
    ("plain_sizes", "parts"),
    [
        ([], [(0, 0)]),
        ([None, None], [(0, 2)]),
        ([60, None, 40, None], [(0, 4)]),
        ([60, None, 41, None], [(0, 2), (2, 4)]),
        ([None, 500, None, 500, 1, 99, 1], [(0, 3), (3, 4), (4, 6), (6, 7)]),
    ],
)
def test_bodies_are_decompressed_in_parts_of_so_many_bytes(
    plain_sizes: list[int | None], parts: list[tuple[int, int]]
) -> None:
    """None: a body that is not compressed, and is taken whatever its size."""
    plain = [b"plain" if size is None else bytes([row]) * size for row, size in enumerate(plain_sizes)]
    messages = [
        make_message(body=body if size is None else zlib.compress(body), sys_flag=0 if size is None else COMPRESSED)
        for body, size in zip(plain, plain_sizes, strict=True)
    ]
    records = Records(*laid_out([encode_record(message) for message in messages], gap=bytes(100)))
    found = [((rows.start, rows.stop), bodies.to_pylist()) for rows, bodies in records.plain_parts(100)]
    assert found == [(part, plain[slice(*part)]) for part in parts]
    assert records.plain_bodies().to_pylist() == plain


def scalar_verdict(record: bytes, *, check_crc: bool) -> bool:
    try:
        return isinstance(decode_record(record, check_crc=check_crc), Message)
    except CorruptRecordError:
        return False


@given(st.data())
def test_a_changed_record_is_whole_for_both_decoders_or_for_none(data: st.DataObject) -> None:
    sys_flags = data.draw(st.lists(st.sampled_from([0, 0x10, 0x20, 0x30]), min_size=1, max_size=5))
    records = []
    for sys_flag in sys_flags:
        magic = data.draw(st.sampled_from([MAGIC_V1, MAGIC_V2]))
        body = data.draw(st.binary(max_size=20))
        record = bytearray(encode_record(make_message(body=body, sys_flag=sys_flag, magic=magic, properties=b"a\1b\2")))
        for _ in range(data.draw(st.integers(0, 2))):
            place = data.draw(st.integers(0, len(record) - 1))
            record[place] = data.draw(st.sampled_from([0, 1, 5, 0x10, 0x30, 0x7F, 0x80, 0xFF]))
        records.append(bytes(record))
    buffer, starts = laid_out(records)
    found = Records(buffer, starts)
    tails = [buffer[start:].tobytes() for start in starts]
    assert found.is_whole.tolist() == [scalar_verdict(tail, check_crc=False) for tail in tails]
    whole = found.take(found.is_whole)
    expected = [scalar_verdict(tails[row], check_crc=True) for row in np.flatnonzero(found.is_whole)]
    assert whole.crc_agrees().tolist() == expected
    messages = [decode_record(tails[row], check_crc=False) for row in np.flatnonzero(found.is_whole)]
    assert whole.bodies().to_pylist() == [message.body for message in messages if isinstance(message, Message)]


@given(st.binary(min_size=MINIMUM_RECORD_SIZE, max_size=400), st.integers(0, 3), st.sampled_from([MAGIC_V1, MAGIC_V2]))
def test_any_bytes_have_a_verdict(data: bytes, step: int, magic: int) -> None:
    buffer = np.frombuffer(data, np.uint8).copy()
    positions = np.arange(0, len(buffer) - MINIMUM_RECORD_SIZE + 1, step + 1)
    for position in positions[::7]:
        buffer[position : position + 8] = np.frombuffer(bytes([0, 0, 0, 120]) + magic.to_bytes(4, "big"), np.uint8)
    found = Records(buffer, positions).is_whole
    assert found.tolist() == [scalar_verdict(buffer[at:].tobytes(), check_crc=False) for at in positions]


@pytest.mark.parametrize("topic", ["T", "To", "Topi", "TopicNam", "TopicName", "T" * 127, "Ü" * 20, ""])
def test_a_record_agrees_with_its_entry_and_with_no_other(topic: str) -> None:
    others = [topic + "x", topic[:-1], topic[:-1] + "y", "x" + topic[1:], topic[: len(topic) // 2] + "z", "TopicName"]
    messages = [make_message(name, queue_id, properties=b"a\1b\2") for name in [topic, *others] for queue_id in (0, 1)]
    buffer, starts = laid_out([encode_record(message) for message in messages])
    sizes = np.array([message.size_bytes for message in messages])
    found = Records(buffer, starts).agree(np.zeros(len(starts), np.int64), sizes, topic.encode(), 1)
    assert found.tolist() == [(message.topic, message.queue_id) == (topic, 1) for message in messages]
    right = int(np.flatnonzero(found)[0])
    for place, size in [(0, 1), (1, 0), (-1, 0), (0, -1)]:
        changed = Records(buffer, starts).agree(np.full(len(starts), place), sizes + size, topic.encode(), 1)
        assert not changed[right]


def naive_candidates(data: bytes, start: int, end: int) -> list[int]:
    magics = {MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big")}
    return [at for at in range(start, end) if data[at + 4 : at + 8] in magics]


fragments = st.lists(
    st.sampled_from([bytes.fromhex(text) for text in ("daa320a7", "daa320ab", "daa320", "da", "a320a7", "00", "07da")]),
    max_size=30,
).map(b"".join)


@given(fragments, st.data())
def test_candidates_are_all_the_places_before_a_magic(data: bytes, drawn: st.DataObject) -> None:
    start = drawn.draw(st.integers(0, len(data)))
    end = drawn.draw(st.integers(start, len(data)))
    found = find_candidates(np.frombuffer(data, np.uint8), start, end)
    assert found.tolist() == naive_candidates(data, start, end)


def naive_chain(starts: list[int], sizes: list[int], begin: int) -> tuple[list[int], int]:
    followed, position = [], begin
    size_at = {start: (number, size) for number, (start, size) in enumerate(zip(starts, sizes, strict=True))}
    while position in size_at:
        number, size = size_at[position]
        followed.append(number)
        position += size
    return followed, position


@given(
    st.lists(st.integers(1, 9), max_size=40),
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60)), max_size=20),
    st.integers(0, 5),
)
def test_a_chain_follows_records_and_passes_over_what_stands_inside_them(
    sizes: list[int], others: list[tuple[int, int]], begin: int
) -> None:
    ends = list(itertools.accumulate(sizes, initial=0))
    candidates = dict(others) | dict(zip(ends[:-1], sizes, strict=True))
    starts = sorted(candidates)
    claimed = [candidates[start] for start in starts]
    found, end = chain(np.array(starts, np.int64), np.array(claimed, np.int64), begin)
    assert (found.tolist(), end) == naive_chain(starts, claimed, begin)


def test_a_body_full_of_records_is_one_record(pristine_store: Callable[[str], Fixture]) -> None:
    inner = b"".join(encode_record(make_message(queue_offset=number)) for number in range(5))
    outer = [encode_record(make_message(body=inner)) for _ in range(3)]
    buffer, starts = laid_out(outer)
    candidates = find_candidates(buffer, 0, len(buffer) - MINIMUM_RECORD_SIZE + 1)
    assert len(candidates) == 3 * 6
    sizes = Records(buffer, candidates).column("size_bytes").astype(np.int64)
    followed, end = chain(candidates, sizes, 0)
    assert (candidates[followed].tolist(), end) == (starts.tolist(), len(buffer))


def test_every_field_of_a_message_is_compared_here() -> None:
    checked = {*FIXED, "topic", "body", "raw_properties", "properties", "born_host", "store_host"}
    assert checked == {item.name for item in fields(Message)}


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (0, 101), (90, 2**31 - 1), (200, 220)])
def test_a_byte_string_outside_of_its_buffer_is_refused(start: int, end: int) -> None:
    starts, ends = np.array([0, start], np.int64), np.array([20, end], np.int64)
    with pytest.raises(ValueError, match="outside of the buffer of 100 bytes"):
        gather_bytes(np.zeros(100, np.uint8), starts, ends)
