"""Records made from columns are the broker's own, byte for byte; what their places make known is written into its fields alone."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.arrays import index_key_hash, string_hash
from storage.format.record import Message, decode_record, encode_record
from storage.format.record_block import (
    OutgoingMessages,
    RecordBlock,
    body_crcs,
    content_sum,
    copy_origins,
    encode_block,
    stamp,
    stamp_halves,
    with_body,
)
from tests.oracle.damage import files, walk
from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.message_builder import HOST_V4, HOST_V6, make_message

V1 = 0xDAA320A7
BOTH_V6 = 0x30
BORN_HOST = 48  # where the client's address stands; ours is the store's
MINIMUM_REBUILT = {"ipv6": 40, "roll": 700}  # 500 of all kinds in the others, but for what only a broker writes


def java_records(fixture: Fixture) -> list[bytes]:
    """The bytes of every record that stands in the log, in order."""
    found = []
    for file in files(fixture.root):
        data = file.read_bytes()
        for record in walk(file):
            position = record.commitlog_offset - int(file.name)
            found.append(data[position : position + record.size_bytes])
    return found


def message_of(record: bytes) -> Message:
    message = decode_record(record)
    assert isinstance(message, Message)
    return message


def can_be_put(message: Message) -> bool:
    """Of the kind that we write: V1, both hosts of one family, never sent back, no commit of a half message."""
    one_family = len(message.born_host) == len(message.store_host)
    return (
        message.magic == V1
        and one_family
        and (message.reconsume_times, message.prepared_transaction_offset) == (0, 0)
        and "INNER_BASE" not in message.properties
    )


def outgoing(messages: list[Message]) -> OutgoingMessages:
    """Their columns; the property strings as they are."""
    queues = tuple(dict.fromkeys((message.topic, message.queue_id) for message in messages))
    keys = [[f"{message.topic}#{key}" for key in message.keys] for message in messages]
    return OutgoingMessages(
        queues=queues,
        queue_codes=np.array([queues.index((message.topic, message.queue_id)) for message in messages], np.int32),
        bodies=pa.array([message.body for message in messages], pa.binary()),
        properties=pa.array([message.raw_properties for message in messages], pa.binary()),
        flags=np.array([message.flag for message in messages], np.int32),
        sys_flags=np.array([message.sys_flag & ~BOTH_V6 for message in messages], np.int32),
        born_times_ms=np.array([message.born_time_ms for message in messages], np.int64),
        tags_codes=np.array([string_hash(message.tags or "") for message in messages], np.int64),
        key_counts=np.array([len(row) for row in keys], np.int32),
        key_hashes=np.array([index_key_hash(key) for row in keys for key in row], np.int32),
    )


def rebuilt(messages: list[Message], host: bytes) -> list[bytes]:
    """The records of messages, put together from columns and stamped."""
    block = encode_block(outgoing(messages), host)
    assert block.columns.row_count == len(messages)
    data = np.full(len(block.data), 0xAA, np.uint8)
    block.read(0, len(data), data)
    ends = np.cumsum(block.columns.sizes_bytes)
    positions = ends - block.columns.sizes_bytes
    rows = range(len(messages))
    for store_time, group in groupby(
        sorted(rows, key=lambda row: messages[row].store_time_ms), lambda row: messages[row].store_time_ms
    ):
        part = np.array(list(group))
        queue_offsets = np.array([messages[row].queue_offset for row in part], np.int64)
        places = np.array([messages[row].commitlog_offset for row in part], np.int64)
        stamp(data, positions[part], queue_offsets, places, store_time, len(host))
    return [data[start:end].tobytes() for start, end in zip(positions.tolist(), ends.tolist(), strict=True)]


def with_born_host(record: bytes, host: bytes) -> bytes:
    return record[:BORN_HOST] + host + record[BORN_HOST + len(host) :]


@pytest.mark.parametrize("name", ["clean", "ext", "ipv6", "roll", "syncflush"])
def test_the_brokers_records_are_made_again_byte_for_byte(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    digests = {
        line["physicalOffset"]: line["recordSha256"]
        for line in golden_lines(fixture.golden, "message")
        if "error" not in line
    }
    by_host: dict[bytes, list[bytes]] = {}
    for record in java_records(fixture):
        message = message_of(record)
        if can_be_put(message):
            by_host.setdefault(message.store_host, []).append(record)
    confirmed = 0
    for host, records in by_host.items():
        messages = [message_of(record) for record in records]
        for made, record, message in zip(rebuilt(messages, host), records, messages, strict=True):
            assert made == with_born_host(record, host)
            whole = with_born_host(made, message.born_host)
            confirmed += hashlib.sha256(whole).hexdigest() == digests.get(message.commitlog_offset)
    assert confirmed >= MINIMUM_REBUILT.get(name, 500), "records that Apache's own listing confirms"
    assert {len(host) for host in by_host} == ({8, 20} if name == "ipv6" else {8})


def test_compressed_bodies_and_every_flag_are_among_the_brokers_records(
    pristine_store: Callable[[str], Fixture],
) -> None:
    """What the comparison above speaks of."""
    put = [message for message in map(message_of, java_records(pristine_store("clean"))) if can_be_put(message)]
    assert {message.sys_flag >> 8 & 7 for message in put if message.sys_flag & 1} == {1, 2, 3}  # LZ4, Zstandard, zlib
    assert any(message.flag for message in put)
    assert any(not message.raw_properties.isascii() for message in put)
    assert len({message.topic for message in put}) > 5


@pytest.mark.parametrize("host", [HOST_V4, HOST_V6], ids=["IPv4", "IPv6"])
def test_queues_may_be_mixed_bodies_and_properties_empty(host: bytes) -> None:
    longest = "x" * 127
    rows = [
        ("T", 0, b"", b""),
        (longest, 2**31 - 1, b"a", b"k\1v\2"),
        ("T", 3, b"b" * 70_000, b""),
        ("T", 0, b"", b"p" * 32_767),
    ]
    flags = BOTH_V6 if len(host) == 20 else 0
    messages = [
        replace(
            make_message(
                topic, queue_id, number, 10**12 + number, body=body, properties=properties, sys_flag=flags | 1
            ),
            flag=-number,
            born_time_ms=number,
            born_host=host,
            store_host=host,
        )
        for number, (topic, queue_id, body, properties) in enumerate(rows)
    ]
    assert rebuilt(messages, host) == [encode_record(message) for message in messages]


def test_no_messages_are_no_bytes() -> None:
    none = outgoing([])
    block = encode_block(none._replace(queues=(("T", 0),)), HOST_V4)
    assert (block.columns.row_count, len(block.data)) == (0, 0)
    stamp(block.data.copy(), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), 0, 8)


def test_columns_for_placing_and_dispatching_come_along() -> None:
    made = [
        make_message("A", 1, body=b"one", properties={"TAGS": "t", "KEYS": "k1 k2"}),
        make_message("B", 0, body=b"two"),
        make_message("A", 1, properties={"KEYS": "k3"}),
    ]
    messages = [message_of(encode_record(message)) for message in made]
    columns = encode_block(outgoing(messages), HOST_V4).columns
    assert [columns.queues[code] for code in columns.queue_codes] == [("A", 1), ("B", 0), ("A", 1)]
    assert columns.sizes_bytes.tolist() == [message.size_bytes for message in messages]
    assert columns.tags_codes.tolist() == [116, 0, 0]  # 't'
    assert columns.key_counts.tolist() == [2, 0, 1]
    assert columns.key_hashes.tolist() == [index_key_hash(key) for key in ("A#k1", "A#k2", "A#k3")]


@given(bodies=st.lists(st.binary(max_size=40), max_size=8), large=st.booleans(), data=st.data())
def test_crcs_are_those_of_the_bodies_wherever_they_lie(bodies: list[bytes], large: bool, data: st.DataObject) -> None:
    array = pa.array(bodies, pa.large_binary() if large else pa.binary())
    start = data.draw(st.integers(0, len(bodies)))
    end = data.draw(st.integers(start, len(bodies)))
    expected = [zlib.crc32(body) & 0x7FFFFFFF for body in bodies]
    assert body_crcs(array.slice(start, end - start)).tolist() == expected[start:end]


@given(bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=8), large=st.booleans(), data=st.data())
def test_slices_of_larger_columns_are_encoded_as_whole_ones(
    bodies: list[bytes], large: bool, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(bodies)))
    kind = pa.large_binary() if large else pa.binary()
    messages = [make_message("T", 0, body=body, properties=body.hex().encode()) for body in bodies]
    columns = outgoing(messages[start:])
    sliced = columns._replace(
        bodies=pa.array(bodies, kind).slice(start),
        properties=pa.array([message.raw_properties for message in messages], kind).slice(start),
    )
    assert encode_block(sliced, HOST_V4).data.tobytes() == encode_block(columns, HOST_V4).data.tobytes()


def spans(positions: Iterable[int], host_size: int) -> set[int]:
    """The bytes that a stamp may change: queue offset and place; store time."""
    store_time = 40 + 8 + host_size
    return {start + byte for start in positions for byte in (*range(20, 36), *range(store_time, store_time + 8))}


@pytest.mark.parametrize("host_size", [8, 20])
def test_a_stamp_touches_nothing_but_its_fields(host_size: int) -> None:
    data = np.full(1_000, 0x55, np.uint8)
    positions = np.array([3, 300, 1_000 - (40 + 16 + host_size)])
    stamp(data, positions, np.full(3, -1), np.full(3, -1), -1, host_size)
    assert set(np.flatnonzero(data != 0x55).tolist()) == spans(positions.tolist(), host_size)


@pytest.mark.parametrize("host", [bytes(range(8)), bytes(range(20))], ids=["IPv4", "IPv6"])
def test_a_record_with_another_body_is_as_if_it_was_encoded_anew(host: bytes) -> None:
    def encoded(body: bytes, born_ms: int) -> RecordBlock:
        one = np.zeros(1, np.int32)
        messages = OutgoingMessages(
            (("T", 3),),
            one,
            pa.array([body], pa.binary()),
            pa.array([b"TAGS\x01a\x02"], pa.binary()),
            one,
            one,
            np.array([born_ms], np.int64),
            np.array([97], np.int64),
            one,
            np.empty(0, np.int32),
        )
        return encode_block(messages.with_crc_room(), host)

    for body in (b"", b"longer than before", b"x"):
        anew, patched = encoded(body, 77), with_body(encoded(b"before", 5), body, 77)
        assert patched.data.tobytes() == anew.data.tobytes()
        assert patched.columns.sizes_bytes.tolist() == anew.columns.sizes_bytes.tolist()


V4, V6 = b"\x7f\0\0\x01\0\0\x2a\x9f", bytes(15) + b"\x01\0\0\x2a\x9f"
OTHERS = {V4: b"\x0a\0\0\x09\0\0\x11\x22", V6: bytes(range(16)) + b"\0\0\x11\x22"}
HOSTS = pytest.mark.parametrize("host", [V4, V6], ids=["IPv4", "IPv6"])


def block(
    host: bytes, *, born_ms: int = 1_000, commits: bool = False, body: bytes = b"body", tag: bytes = b"a"
) -> RecordBlock:
    """Five rows of different lengths."""
    count = 5
    messages = OutgoingMessages(
        (("T", 0), ("U", 3)),
        np.array([0, 1, 0, 1, 0], np.int32),
        pa.array([body * number for number in range(count)], pa.binary()),
        pa.array([b"TAGS\x01%s\x02" % tag] * count, pa.binary()),
        np.zeros(count, np.int32),
        np.full(count, 8 if commits else 0, np.int32),
        np.arange(count, dtype=np.int64) + born_ms,
        np.full(count, 97, np.int64),
        np.zeros(count, np.int32),
        np.empty(0, np.int32),
    )
    encoded = encode_block(messages, host)
    return encoded._replace(data=encoded.data.copy())


def positions(run: RecordBlock) -> np.ndarray:
    return np.asarray(np.cumsum(run.columns.sizes_bytes) - run.columns.sizes_bytes)


def summed(run: RecordBlock) -> int:
    before = run.data.tobytes()
    found = content_sum(run.data, positions(run))
    assert run.data.tobytes() == before, "the buffer is as it was"
    return found


@HOSTS
def test_when_and_at_which_host_a_row_was_staged_does_not_count(host: bytes) -> None:
    assert summed(block(host)) == summed(block(host, born_ms=2_000)) == summed(block(OTHERS[host]))


@HOSTS
def test_where_the_half_of_a_commit_lies_does_not_count(host: bytes) -> None:
    commits = block(host, commits=True)
    stamped = block(host, commits=True)
    stamp_halves(stamped.data, positions(stamped), np.arange(5) * 1_000 + 77)
    assert summed(commits) == summed(stamped)
    assert summed(commits) != summed(block(host)), "a commit is no ordinary row"


@HOSTS
def test_everything_else_counts(host: bytes) -> None:
    run = block(host)
    expected = summed(run)
    longer = 24 if host == V6 else 0
    free = {*range(40, 72 + longer)}
    flags = {*range(36, 40)}  # they say how the record is read
    size = int(run.columns.sizes_bytes[0])
    for at in {*range(size)} - free - flags:
        run.data[at] ^= 1
        assert content_sum(run.data, positions(run)) != expected, f"byte {at}"
        run.data[at] ^= 1
    assert summed(block(host, body=b"bodY")) != expected
    assert summed(block(host, tag=b"b")) != expected


@HOSTS
def test_the_sum_over_parts_is_that_over_the_whole(host: bytes) -> None:
    run = block(host)
    starts = positions(run)
    cut = int(starts[2])
    first = content_sum(run.data[:cut].copy(), starts[:2])
    assert content_sum(run.data[cut:].copy(), starts[2:] - cut, first) == summed(run)
    assert content_sum(np.empty(0, np.uint8), np.empty(0, np.int64), 7) == 7


@HOSTS
def test_rows_that_are_staged_anew_take_over_what_the_log_says_of_their_origin(host: bytes) -> None:
    logged, anew = block(host), block(OTHERS[host], born_ms=9_000)
    for run in (logged, anew):
        stamp(run.data, positions(run), np.arange(5), np.arange(5) * 100, 5_555, len(host))
    assert logged.data.tobytes() != anew.data.tobytes()
    copy_origins(logged.data, anew.data, positions(anew))
    assert logged.data.tobytes() == anew.data.tobytes()
