"""The sum that a record ends in: a broker's digits, byte for byte, and what a broker takes for a right one.

Java: CommitLog.DefaultAppendMessageCallback.doAppend, MessageDecoder.createCrc32, CommitLog.checkMessageAndReturnSize,
MessageUtils.deleteProperty, MessageExtEncoder.encode.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest

from storage.errors import CorruptRecordError
from storage.format.properties import CRC_ROOM, decode_properties, stated_crc, with_crc_room
from storage.format.record import Message, NeedMoreBytes, decode_record, encode_record
from storage.format.record_batch import Records
from storage.format.record_block import encode_block, stamp_crcs
from tests.format.test_record_batch import laid_out
from tests.format.test_record_block import can_be_put, outgoing
from tests.oracle.damage import files, walk
from tests.support.fixture_stores import Fixture
from tests.support.message_builder import make_message

NAME = b"__CRC32#\x01"
TAIL = 20  # bytes of the property: CommitLog.CRC32_RESERVED_LEN


@pytest.fixture(scope="module")
def written(pristine_store: Callable[[str], Fixture]) -> list[bytes]:
    """The bytes of every record that a broker with enabledAppendPropCRC wrote, in order."""
    found = []
    for file in files(pristine_store("propcrc").root):
        data = file.read_bytes()
        for record in walk(file):
            position = record.commitlog_offset - int(file.name)
            found.append(data[position : position + record.size_bytes])
    return found


def all_records(records: Iterable[bytes]) -> Records:
    return Records(*laid_out(list(records)))


def agrees(record: bytes, *, required: bool = True) -> bool:
    return bool(all_records([record]).property_crc_agrees(required=required)[0])


def is_valid(record: bytes) -> bool:
    """By the one-record decoder, as recovery with forceVerifyPropCRC judges."""
    try:
        return isinstance(decode_record(record, force_property_crc=True), Message)
    except CorruptRecordError:
        return False


def record_with(properties: bytes, **fields: object) -> bytes:
    return encode_record(make_message(properties=properties, **fields))  # type: ignore[arg-type]


def digits_of(value: int) -> bytes:
    """MessageDecoder.createCrc32: ten decimal digits, the least significant first."""
    return f"{value:010d}"[::-1].encode()


def sum_of(record: bytes) -> int:
    """UtilAll.crc32 over all but the reserved tail."""
    return zlib.crc32(record[:-TAIL]) & 0x7FFFFFFF


def with_own_sum(properties: bytes) -> bytes:
    """A record whose properties, which end in room, end in its sum."""
    record = record_with(properties)
    return record[: -TAIL + len(NAME)] + digits_of(sum_of(record)) + record[-1:]


# Writing


def test_the_broker_wrote_all_kinds(written: list[bytes]) -> None:
    messages = [decode_record(record) for record in written]
    kinds = {(m.magic, len(m.born_host), len(m.store_host)) for m in messages if isinstance(m, Message)}
    assert len(written) == 147
    assert kinds == {
        (magic, *sizes) for magic in (0xDAA320A7, 0xDAA320AB) for sizes in ((8, 8), (8, 20), (20, 8), (20, 20))
    }


def test_the_digits_are_the_brokers(written: list[bytes]) -> None:
    blank = [record[:-11] + b"0" * 10 + record[-1:] for record in written]
    data, starts = laid_out(blank, gap=b"-")
    data = data.copy()
    stamp_crcs(data, starts, np.array([len(record) for record in blank]))
    assert data.tobytes() == b"-" + b"".join(record + b"-" for record in written)


def test_a_block_with_room_is_the_brokers_records(written: list[bytes]) -> None:
    """From the fields of the messages, with the properties that the broker had of the client."""
    decoded = [decode_record(record) for record in written]
    chosen = [m for m in decoded if isinstance(m, Message) and can_be_put(m) and not m.sys_flag & 12]
    count = 0
    for host, group in groupby(chosen, key=lambda message: message.store_host):
        messages = list(group)
        own = outgoing(messages)._replace(
            born_hosts=np.frombuffer(b"".join(m.born_host for m in messages), f"V{len(host)}"),
            properties=pa.array([message.raw_properties[:-TAIL] for message in messages], pa.binary()),
        )
        block = encode_block(own.with_crc_room(), host)
        assert block.columns.has_crc
        unstamped = [replace(m, queue_offset=0, commitlog_offset=0, store_time_ms=0) for m in messages]
        expected = [encode_record(m)[:-11] + b"0" * 10 + b"\x02" for m in unstamped]
        assert block.data.tobytes() == b"".join(expected)
        count += len(messages)
    assert count >= 50


@pytest.mark.parametrize("wanted", [0, 1, 9, 10, 2_147_483_647, 1_000_000_000])
def test_every_sum_has_ten_digits(wanted: int) -> None:
    """Nought too (apache/rocketmq#8669), and the greatest (#9121)."""
    record = bytearray(record_with(CRC_ROOM.encode(), body=_body_for(wanted, CRC_ROOM.encode())))
    data = np.frombuffer(record, np.uint8)
    stamp_crcs(data, np.zeros(1, np.int64), np.array([len(record)]))
    assert bytes(record[-TAIL:]) == NAME + digits_of(wanted) + b"\x02"
    assert agrees(bytes(record))
    assert is_valid(bytes(record))
    assert stated_crc(decode_properties(bytes(record[-TAIL:]))) == wanted


def _body_for(wanted: int, properties: bytes) -> bytes:
    """Four bytes with which the record has this sum: CRC-32 is linear in each bit, so they solve 32 equations.

    The header holds the body's own CRC as well, but as a number that follows from the same bits.
    """

    def found(bits: int) -> int:
        return zlib.crc32(record_with(properties, body=bits.to_bytes(4, "big"))[:-TAIL])

    base = found(0)
    rows = [(found(1 << bit) ^ base, 1 << bit) for bit in range(32)]
    basis: list[tuple[int, int]] = []
    for value, bits in rows:
        for other, others in basis:
            if value ^ other < value:
                value, bits = value ^ other, bits ^ others
        if value:
            basis = sorted([*basis, (value, bits)], reverse=True)
    for top in (0, 1 << 31):
        rest, solution = base ^ wanted ^ top, 0
        for value, bits in basis:
            if rest ^ value < rest:
                rest, solution = rest ^ value, solution ^ bits
        if not rest:
            return solution.to_bytes(4, "big")
    raise AssertionError(f"no four bytes give {wanted}")


ROOM = CRC_ROOM.encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", ROOM),
        (b"a\x01b\x02", b"a\x01b\x02" + ROOM),
        (b"a\x01b", b"a\x01b\x02" + ROOM),
        (b"__CRC32#\x011234567890\x02", ROOM),
        (b"a\x01b\x02__CRC32#\x011234567890\x02", b"a\x01b\x02" + ROOM),
        (b"__CRC32#\x017\x02a\x01b\x02", b"a\x01b\x02" + ROOM),
        (b"a\x01b\x02__CRC32#\x017", b"a\x01b\x02" + ROOM),
        (b"a\x01b\x02__CRC32#\x017\x02__CRC32#\x018\x02c\x01d\x02", b"a\x01b\x02c\x01d\x02" + ROOM),
        (b"__CRC32#\x01\x02c\x01d\x02", b"c\x01d\x02" + ROOM),
        (b"x__CRC32#\x017\x02", b"x__CRC32#\x017\x02" + ROOM),
        (b"__CRC32#x\x017\x02", b"__CRC32#x\x017\x02" + ROOM),
        (b"a\x01__CRC32#\x01b\x02", b"a\x01__CRC32#\x01b\x02" + ROOM),
        (b"__CRC32#\x02", b"__CRC32#\x02" + ROOM),
        (b"\xff\x01\xfe\x02__CRC32#\x017\x02", b"\xff\x01\xfe\x02" + ROOM),
    ],
)
def test_another_records_sum_goes_and_room_comes(before: bytes, after: bytes) -> None:
    strings = pa.array([b"k\x01v\x02", before, before], pa.large_binary())
    made = with_crc_room(strings)
    assert made.to_pylist() == [b"k\x01v\x02" + ROOM, after, after]
    assert with_crc_room(made) == made
    assert with_crc_room(strings.slice(1, 1)).to_pylist() == [after]


def test_no_strings_are_none() -> None:
    assert with_crc_room(pa.array([], pa.binary())).to_pylist() == []


# Reading


def test_every_record_of_the_broker_agrees(written: list[bytes]) -> None:
    records = all_records(written)
    for required in (True, False):
        assert records.property_crc_agrees(required=required).all()
    assert all(is_valid(record) for record in written)


def test_every_flipped_bit_is_noticed(written: list[bytes]) -> None:
    """In V1 and V2 records, with IPv4 and IPv6 hosts; by both decoders."""
    for record in (written[0], next(r for r in written if r[7] == 0xAB and r[39] & 0x30 == 0x30)):
        flipped = []
        for bit in range(8 * len(record)):
            changed = bytearray(record)
            changed[bit // 8] ^= 1 << bit % 8
            flipped.append(bytes(changed))
        assert not any(is_valid(changed) for changed in flipped)
        padded = [changed + bytes(300) for changed in flipped]
        records = all_records(padded)
        whole = records.is_whole
        assert np.count_nonzero(whole) > 7 * len(record)
        assert not records.take(whole).property_crc_agrees(required=True).any()


def test_every_bit_before_the_sum_is_noticed_also_where_nobody_asks_for_it(written: list[bytes]) -> None:
    record = written[0]
    end_of_others = len(record) - TAIL - 1  # behind stands the separator by which the property is known
    for bit in range(8 * 8, 8 * end_of_others):
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        records = all_records([bytes(changed)])
        if records.is_whole[0]:
            assert not records.property_crc_agrees(required=False)[0], bit // 8


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"a\x01b\x02",
        b"__CRC32#",
        b"__CRC32#\x01",
        b"__CRC32#\x02",
        b"x__CRC32#\x011234567890\x02",
        b"CRC32#\x011\x02",
    ],
)
def test_a_record_without_the_property_is_none_only_where_it_is_required(properties: bytes) -> None:
    record = record_with(properties)
    assert not agrees(record)
    assert not is_valid(record)
    assert agrees(record, required=False)
    assert isinstance(decode_record(record), Message)
    with pytest.raises(CorruptRecordError) as raised:
        decode_record(record, force_property_crc=True)
    assert (raised.value.field, raised.value.found) == ("property CRC", "none")


def test_of_equal_names_the_last_states_the_sum() -> None:
    record = with_own_sum(b"__CRC32#\x017\x02" + ROOM)
    assert agrees(record)
    assert is_valid(record)
    assert agrees(record, required=False)


def test_the_property_may_stand_anywhere_but_the_sum_is_over_all_but_the_last_20_bytes() -> None:
    """What Java does, though it never writes so."""
    properties = b"__CRC32#\x017\x02a\x01bcdefghijklmnopqrst\x02"
    right, wrong = (record_with(properties, body=_body_for(wanted, properties)) for wanted in (7, 8))
    assert (agrees(right), is_valid(right)) == (True, True)
    assert (agrees(wrong), is_valid(wrong)) == (False, False)
    assert agrees(wrong, required=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0000000000", 0),
        (b"1", 1),
        (b"21", 12),
        (b"7463847412", 2_147_483_647),
        (b"8463847412", None),  # one more: an int overflows, and what is negative counts as missing
        (b"6927694924", 0),  # 2^32
        (b"7927694924", 1),
        (b"9999999999", 9_999_999_999 - 2 * 2**32),
        (b":", 10),  # a character less "0"
        (b"/1", 9),
        (b"/", None),  # −1
        ("Ā".encode(), 0x100 - 0x30),
        ("🚀".encode(), ((0xDE80 - 0x30) * 10 + 0xD83D - 0x30)),
        (b"00000000000000000000000000000001", pow(10, 31, 2**32)),
    ],
)
def test_a_stated_sum_is_read_as_javas_int(text: bytes, value: int | None) -> None:
    """CommitLog.checkMessageAndReturnSize: from the last character on, times ten, plus the character less "0"."""
    expected = value if value is None or value < 2**31 else None
    assert stated_crc(decode_properties(b"a\x01b\x02__CRC32#\x01" + text + b"\x02")) == expected


def test_a_sum_that_overflowed_agrees_as_with_java() -> None:
    record = with_own_sum(b"a\x01b\x02" + ROOM)
    stated = sum_of(record)
    overflowing = record[:-11] + digits_of(stated + 2**32) + b"\x02"
    assert agrees(overflowing)
    assert is_valid(overflowing)


def test_rows_of_all_kinds_are_judged_each_by_itself(written: list[bytes]) -> None:
    good, bad = written[0], written[1][:-2] + (b"0" if written[1][-2:-1] != b"0" else b"1") + b"\x02"
    without, odd = record_with(b"a\x01b\x02"), record_with(b"__CRC32#\x017\x02a\x01b\x02")
    records = all_records([good, bad, without, odd, good])
    assert records.property_crc_agrees(required=True).tolist() == [True, False, False, False, True]
    assert records.property_crc_agrees(required=False).tolist() == [True, False, True, True, True]
    assert all_records([]).property_crc_agrees(required=True).tolist() == []


def test_a_record_that_goes_on_is_not_judged(written: list[bytes]) -> None:
    assert decode_record(written[0][:-1], force_property_crc=True) == NeedMoreBytes(len(written[0]))
