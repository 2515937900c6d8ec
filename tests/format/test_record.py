"""One record at a time: the broker's bytes decode and encode to themselves, and nothing else passes for one; compressed bodies, ids."""

from __future__ import annotations

import hashlib
import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from storage.errors import CorruptRecordError
from storage.format.record import (
    MAGIC_V1,
    MAGIC_V2,
    MINIMUM_RECORD_SIZE,
    PLAIN_BODY_LIMIT_BYTES,
    EndOfFile,
    Message,
    NeedMoreBytes,
    compress,
    decode_offset_message_id,
    decode_record,
    decompress,
    encode_offset_message_id,
    encode_record,
    hex_strings,
    host_text,
)
from tests.oracle.damage import files, walk
from tests.support.fixture_stores import FIXTURE_NAMES, Fixture, golden_lines
from tests.support.message_builder import make_message

# Every field that the format leaves without a check, and where it lies in a record with IPv4 hosts.
UNPROTECTED = {
    "queue_id": range(12, 16),
    "flag": range(16, 20),
    "queue_offset": range(20, 28),
    "commitlog_offset": range(28, 36),
    "sys_flag": range(36, 40),
    "born_time_ms": range(40, 48),
    "born_host": range(48, 56),
    "store_time_ms": range(56, 64),
    "store_host": range(64, 72),
    "reconsume_times": range(72, 76),
    "prepared_transaction_offset": range(76, 84),
}
PACKAGED = {
    "plain V1": make_message(body=b"some body", properties={"TAGS": "TagA", "KEYS": "a b"}),
    "plain V2": make_message(topic="T" * 130, body=b"some body", properties={"a": "b"}, magic=MAGIC_V2),
    "no body, no properties": make_message(body=b""),
    "IPv6 born": make_message(sys_flag=0x10, properties={"a": "b"}),
    "IPv6 store": make_message(sys_flag=0x20, properties={"a": "b"}),
    "IPv6 both": make_message(sys_flag=0x30, properties={"a": "b"}),
}


def records_of(fixture: Fixture) -> Iterator[tuple[Path, bytes, int, int]]:
    """(file, its bytes, position, size) of every record, as the tool that damages stores finds them."""
    for file in files(fixture.root):
        data = file.read_bytes()
        for record in walk(file):
            yield file, data, record.commitlog_offset - int(file.name), record.size_bytes


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_every_record_of_the_broker_decodes_and_encodes_to_itself(
    name: str, pristine_store: Callable[[str], Fixture]
) -> None:
    fixture = pristine_store(name)
    counts: dict[str, tuple[int, int]] = {}
    for file, data, position, size in records_of(fixture):
        message = decode_record(data, position)
        assert isinstance(message, Message)
        assert (message.size_bytes, message.commitlog_offset) == (size, int(file.name) + position)
        assert encode_record(message) == data[position : position + size]
        messages, of_version_2 = counts.get(file.name, (0, 0))
        counts[file.name] = messages + 1, of_version_2 + (message.magic == MAGIC_V2)
    golden = {
        line["file"]: (line["messages"], line["messagesV2"])
        for line in golden_lines(fixture.golden, "commitlogFile")
        if line["messages"]
    }
    assert {file: count for file, count in counts.items() if file in golden} == golden


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_the_blank_filler_stands_where_the_broker_put_it(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    for line in golden_lines(fixture.golden, "commitlogFile"):
        file = fixture.root / "commitlog" / line["file"]
        if line["stoppedBy"] == "blank":
            assert decode_record(file.read_bytes(), line["blankAt"]) == EndOfFile(line["blankSize"])


def test_the_fixtures_hold_every_kind_of_record(pristine_store: Callable[[str], Fixture]) -> None:
    kinds = {
        (message.magic, message.sys_flag & 0x30, message.sys_flag & 0xC)
        for name in ("clean", "ipv6")
        for _, data, position, _ in records_of(pristine_store(name))
        if isinstance(message := decode_record(data, position), Message)
    }
    assert {
        (magic, hosts, transaction)
        for magic in (MAGIC_V1, MAGIC_V2)
        for hosts in (0, 0x10, 0x20, 0x30)
        for transaction in (0, 0x4, 0x8, 0xC)
    } <= kinds


def one_of_each_kind(fixture: Fixture) -> dict[tuple[object, ...], bytes]:
    """A short record for each version, kind of hosts, compression, and whether there are body and properties."""
    found: dict[tuple[object, ...], bytes] = {}
    for _, data, position, size in records_of(fixture):
        message = decode_record(data, position)
        assert isinstance(message, Message)
        kind = message.magic, message.sys_flag & 0x731, bool(message.body), bool(message.raw_properties)
        if kind not in found or size < len(found[kind]):
            found[kind] = data[position : position + size]
    return found


@pytest.mark.parametrize("name", ["clean", "ipv6"])
def test_a_record_cut_at_any_byte_asks_for_the_rest(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    for record in one_of_each_kind(pristine_store(name)).values():
        for length in range(len(record)):
            expected = NeedMoreBytes(len(record) if length >= 8 else 8)
            assert decode_record(record[:length]) == expected
            assert decode_record(memoryview(b"before" + record[:length]), 6) == expected


@pytest.mark.parametrize("name", ["clean", "ipv6"])
def test_a_record_whose_end_was_lost_is_corrupt_or_lacks_only_unprotected_bytes(
    name: str, pristine_store: Callable[[str], Fixture]
) -> None:
    for record in one_of_each_kind(pristine_store(name)).values():
        whole = decode_record(record)
        assert isinstance(whole, Message)
        for length in range(len(record)):
            torn = record[:length].ljust(len(record), b"\0")
            try:
                outcome = decode_record(torn)
            except CorruptRecordError:
                continue
            if torn == record:
                assert outcome == whole
            else:  # only the body is under a CRC: lost bytes of the properties stay unseen, as with Java
                assert isinstance(outcome, Message)
                assert replace(outcome, raw_properties=b"") == replace(whole, raw_properties=b"")


@pytest.mark.parametrize("message", PACKAGED.values(), ids=PACKAGED.keys())
def test_a_flipped_bit_is_found_out_or_lies_in_a_field_that_the_format_does_not_protect(message: Message) -> None:
    record = encode_record(message)
    assert decode_record(record) == message
    shift = {"store_time_ms": 12 if message.sys_flag & 0x10 else 0}
    header_size = 88 + 12 * (bool(message.sys_flag & 0x10) + bool(message.sys_flag & 0x20))
    topic_start = header_size + len(message.body) + (2 if message.magic == MAGIC_V2 else 1)
    properties_start = topic_start + len(message.topic.encode()) + 2
    allowed: dict[int, str] = {}
    for name, places in UNPROTECTED.items():
        begins = places.start
        if name in ("store_time_ms", "store_host", "reconsume_times", "prepared_transaction_offset"):
            begins += shift["store_time_ms"]
        if name in ("reconsume_times", "prepared_transaction_offset"):
            begins += 12 if message.sys_flag & 0x20 else 0
        size = 20 if len(getattr(message, name) if name.endswith("host") else b"") == 20 else len(places)
        allowed |= dict.fromkeys(range(begins, begins + size), name)
    allowed |= dict.fromkeys(range(topic_start, topic_start + len(message.topic.encode())), "topic")
    allowed |= dict.fromkeys(range(properties_start, len(record)), "raw_properties")
    if not message.body:
        allowed |= dict.fromkeys(range(8, 12), "body_crc")
    for place in range(len(record)):
        for bit in range(8):
            flipped = bytearray(record)
            flipped[place] ^= 1 << bit
            try:
                outcome = decode_record(bytes(flipped))
            except CorruptRecordError:
                continue
            if isinstance(outcome, NeedMoreBytes):
                assert place < 4
                assert outcome.size_bytes > len(record)
            else:
                assert isinstance(outcome, Message)
                assert differing(outcome, message) <= {allowed.get(place, "none")}


def differing(left: Message, right: Message) -> set[str]:
    return {
        item.name for item in fields(left) if item.compare and getattr(left, item.name) != getattr(right, item.name)
    }


@pytest.mark.parametrize(
    ("changed", "at", "field"),
    [
        (b"\0\0\0\0", 4, "magic"),
        (struct.pack(">i", MINIMUM_RECORD_SIZE - 1), 0, "size"),
        (struct.pack(">i", -1), 0, "size"),
        (struct.pack(">i", 5), 8, "body CRC"),
        (struct.pack(">i", -1), 84, "body length"),
        (struct.pack(">i", 2**31 - 1), 84, "body length"),
        (b"\xff", 92, "topic length"),
        (b"\x7f", 92, "topic length"),
        (b"\x05", 92, "properties length"),
        (b"\x7f\xff", 99, "properties length"),
    ],
)
def test_the_error_names_the_field_that_is_wrong(changed: bytes, at: int, field: str) -> None:
    record = bytearray(encode_record(make_message(properties={"a": "b"})))
    record[at : at + len(changed)] = changed
    with pytest.raises(CorruptRecordError) as raised:
        decode_record(b"before" + record, 6)
    assert (raised.value.field, raised.value.position) == (field, 6)


def test_the_crc_is_checked_unless_told_otherwise_and_never_of_an_empty_body() -> None:
    wrong = replace(make_message(), body_crc=1)
    assert decode_record(encode_record(wrong), check_crc=False) == wrong
    with pytest.raises(CorruptRecordError):
        decode_record(encode_record(wrong))
    empty = replace(make_message(body=b""), body_crc=1)
    assert decode_record(encode_record(empty)) == empty


def test_a_negative_properties_length_counts_as_none_as_with_java() -> None:
    record = bytearray(encode_record(make_message()))
    record[-2:] = b"\xff\xff"
    message = decode_record(bytes(record))
    assert isinstance(message, Message)
    assert (message.raw_properties, message.properties) == (b"", {})


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", struct.pack(">II", 120, MAGIC_V1), struct.pack(">II", 140, MAGIC_V2)]),
    st.booleans(),
)
@example(struct.pack(">iI", -1, 0xCBD43194), b"", True)
def test_any_bytes_end_in_one_of_the_four_ways(data: bytes, head: bytes, check_crc: bool) -> None:
    try:
        outcome = decode_record(head + data, check_crc=check_crc)
    except CorruptRecordError:
        return
    assert isinstance(outcome, Message | EndOfFile | NeedMoreBytes)
    if isinstance(outcome, NeedMoreBytes):
        assert outcome.size_bytes > len(head + data)


@given(
    topic=st.text(max_size=40),
    body=st.binary(max_size=100),
    raw=st.binary(max_size=60),
    sys_flag=st.integers(0, 0x7FF),
    magic=st.sampled_from([MAGIC_V1, MAGIC_V2]),
    queue_offset=st.integers(0, 2**63 - 1),
    place=st.integers(0, 2**63 - 1),
)
def test_what_is_encoded_decodes_to_the_same(
    topic: str, body: bytes, raw: bytes, sys_flag: int, magic: int, queue_offset: int, place: int
) -> None:
    if len(topic.encode()) > 127:
        topic = topic[:30]
    message = make_message(topic, 3, queue_offset, place, body=body, properties=raw, sys_flag=sys_flag, magic=magic)
    record = encode_record(message)
    assert len(record) == message.size_bytes
    assert decode_record(record) == message


@pytest.mark.parametrize(
    ("host", "text"),
    [
        (bytes([127, 0, 0, 1]) + struct.pack(">i", 10911), "127.0.0.1:10911"),
        (bytes([255, 254, 0, 9]) + struct.pack(">i", 0), "255.254.0.9:0"),
        (bytes(15) + b"\1" + struct.pack(">i", 10911), "0:0:0:0:0:0:0:1:10911"),
        (bytes.fromhex("20010db8000000000000ff0000428329") + struct.pack(">i", 9), "2001:db8:0:0:0:ff00:42:8329:9"),
    ],
)
def test_hosts_read_as_java_prints_them(host: bytes, text: str) -> None:
    assert host_text(host) == text


COMPRESSORS: dict[int, Callable[[bytes], bytes]] = {
    0x000: zlib.compress,
    0x100: lz4.frame.compress,
    0x200: zstandard.ZstdCompressor().compress,
    0x300: zlib.compress,
}


def test_bodies_of_the_java_client_come_out_as_they_were_sent(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("clean")
    logs = {int(file.name): file.read_bytes() for file in (fixture.root / "commitlog").iterdir()}
    kinds = set()
    for line in golden_lines(fixture.golden, "message"):
        if "compressType" in line:
            start = max(start for start in logs if start <= line["physicalOffset"])
            message = decode_record(logs[start], line["physicalOffset"] - start)
            assert isinstance(message, Message)
            plain = decompress(message.body, message.sys_flag)
            assert (len(plain), hashlib.sha256(plain).hexdigest()) == (line["plainBodyLen"], line["plainBodySha256"])
            kinds.add(line["compressType"])
    assert kinds == {"ZLIB", "LZ4", "ZSTD"}


@pytest.mark.parametrize("kind", COMPRESSORS)
@given(st.binary(max_size=300))
def test_every_type_comes_out_again(kind: int, plain: bytes) -> None:
    assert decompress(COMPRESSORS[kind](plain), kind | 1) == plain


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_a_body_cut_anywhere_is_corrupt(kind: int) -> None:
    body = COMPRESSORS[kind](bytes(range(256)) * 2)
    for length in range(len(body)):
        with pytest.raises(CorruptRecordError):
            decompress(body[:length], kind | 1)


@pytest.mark.parametrize("kind", COMPRESSORS)
@given(st.binary(max_size=60))
def test_other_bytes_are_corrupt_or_happen_to_be_of_the_type(kind: int, body: bytes) -> None:
    with suppress(CorruptRecordError):
        assert isinstance(decompress(body, kind | 1), bytes)


@pytest.mark.parametrize("kind", [0x400, 0x500, 0x600, 0x700])
def test_an_unknown_type_is_corrupt(kind: int) -> None:
    with pytest.raises(CorruptRecordError):
        decompress(b"body", kind | 1)


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_a_body_that_grows_beyond_the_limit_is_corrupt_before_it_has_grown(kind: int) -> None:
    bomb = COMPRESSORS[kind](bytes(4 * PLAIN_BODY_LIMIT_BYTES))
    assert len(bomb) < 4 << 20, "a broker takes it"
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="at most 67108864 bytes"):
            decompress(bomb, kind | 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * PLAIN_BODY_LIMIT_BYTES


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_a_body_of_many_steps_comes_out_whole_and_what_stands_behind_it_is_passed_over(kind: int) -> None:
    plain = Random(5).randbytes(40_000)
    assert decompress(COMPRESSORS[kind](plain) + b"behind", kind | 1) == plain


@pytest.mark.parametrize("compression", [0x100, 0x200, 0x300])
def test_what_a_client_compresses_is_read_again(compression: int) -> None:
    body = b"a body that is long enough " * 200
    compressed = compress(body, compression)
    assert len(compressed) < len(body)
    assert decompress(compressed, 1 | compression) == body


def test_there_are_three_ways_to_compress() -> None:
    with pytest.raises(ValueError, match="0x400 is no compression type"):
        compress(b"body", 0x400)


@pytest.mark.parametrize("name", ["clean", "ipv6"])
def test_ids_are_those_of_apaches_decoder(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    lengths = set()
    for line in golden_lines(pristine_store(name).golden, "message"):
        address, port, commitlog_offset = decode_offset_message_id(line["msgId"])
        assert commitlog_offset == line["physicalOffset"]
        assert port == int(line["storeHost"].rpartition(":")[2])
        assert encode_offset_message_id(address, port, commitlog_offset) == line["msgId"]
        lengths.add(len(address))
    assert lengths == ({4, 16} if name == "ipv6" else {4})


def test_the_producer_was_answered_the_same_ids(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("clean")
    assert fixture.sent is not None
    sent = [json.loads(line) for line in fixture.sent.read_text("utf-8").splitlines()]
    ids = [line["offsetMsgId"] for line in sent if line.get("offsetMsgId")]
    assert len(ids) > 100
    places = {line["physicalOffset"] for line in golden_lines(fixture.golden, "message")}
    for answered in ids:
        for message_id in answered.split(","):
            address, port, commitlog_offset = decode_offset_message_id(message_id)
            assert (address, port) == (bytes([127, 0, 0, 1]), 10911)
            assert commitlog_offset in places


@given(
    st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16),
    st.integers(0, 65535),
    st.integers(0, 2**63 - 1),
)
def test_an_id_holds_its_three_parts(address: bytes, port: int, commitlog_offset: int) -> None:
    encoded = encode_offset_message_id(address, port, commitlog_offset)
    assert encoded == encoded.upper()
    assert decode_offset_message_id(encoded) == (address, port, commitlog_offset)
    assert decode_offset_message_id(encoded.lower()) == (address, port, commitlog_offset)


@pytest.mark.parametrize(
    "text", ["", "7F", "7F00000100002A9F000000000000000", "G" * 32, " " * 32, "7F 0" * 8, "é" * 32]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_offset_message_id(text)


@pytest.mark.parametrize("shape", [(0, 4), (1, 0), (3, 1), (5, 16)])
def test_rows_of_bytes_become_hex(shape: tuple[int, int]) -> None:
    rows = np.arange(shape[0] * shape[1], dtype=np.uint8).reshape(shape) * 7
    assert hex_strings(rows).to_pylist() == [row.tobytes().hex().upper() for row in rows]


def test_a_negative_offset_is_written_as_java_writes_a_long() -> None:
    """A record's physical offset is under no checksum. Java: MessageDecoder.createMessageId, ByteBuffer.putLong."""
    encoded = encode_offset_message_id(bytes([127, 0, 0, 1]), 10911, -2)
    assert encoded == "7F000001" + "00002A9F" + "FFFFFFFFFFFFFFFE"
    assert decode_offset_message_id(encoded) == (bytes([127, 0, 0, 1]), 10911, -2)
