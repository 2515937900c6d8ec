"""What masters and slaves of Apache's said to each other, decoded and encoded again; and what neither says."""

from __future__ import annotations

import random

import pytest

from storage.errors import CorruptRecordError
from storage.format.record import NeedMoreBytes
from storage.format.replication import (
    MOST_BODY_BYTES,
    Decoded,
    Dialect,
    EpochEntry,
    Frame,
    MasterHandshake,
    Report,
    SlaveHandshake,
    decode_epochs,
    decode_from_master,
    decode_from_slave,
    encode_epochs,
    encode_from_master,
    encode_from_slave,
    encode_header,
)
from tests.support.places import VECTORS

CONNECTIONS = [(Dialect.DEFAULT, 0), (Dialect.DEFAULT, 1), *((Dialect.CONTROLLER, number) for number in range(4))]
Value = Report | SlaveHandshake | MasterHandshake | Frame


def captured(dialect: Dialect, number: int, direction: str) -> bytes:
    return (VECTORS / "replication" / f"{dialect.value}.c{number}.{direction}.bin").read_bytes()


def values_of(dialect: Dialect, data: bytes, *, of_master: bool) -> list[Value]:
    decode = decode_from_master if of_master else decode_from_slave
    found: list[Value] = []
    while data:
        decoded = decode(dialect, data)
        if isinstance(decoded, NeedMoreBytes):
            assert len(data) < decoded.size_bytes
            break
        found.append(decoded.value)
        data = data[decoded.size_bytes :]
    assert not data
    return found


def encoded(dialect: Dialect, value: Value) -> bytes:
    if isinstance(value, Report | SlaveHandshake):
        return encode_from_slave(dialect, value)
    return encode_from_master(value)


@pytest.mark.parametrize(("dialect", "number"), CONNECTIONS)
@pytest.mark.parametrize("direction", ["s2c", "c2s"])
def test_what_was_captured_is_encoded_as_it_was(dialect: Dialect, number: int, direction: str) -> None:
    data = captured(dialect, number, direction)
    values = values_of(dialect, data, of_master=direction == "s2c")
    assert b"".join(encoded(dialect, value) for value in values) == data
    assert values


@pytest.mark.parametrize(
    ("number", "frames", "heartbeats", "reports", "span"),
    [(0, 105, 4, 106, (0, 132_736)), (1, 103, 3, 104, (132_736, 261_108))],
)
def test_the_captured_frames_follow_each_other(
    number: int, frames: int, heartbeats: int, reports: int, span: tuple[int, int]
) -> None:
    found = values_of(Dialect.DEFAULT, captured(Dialect.DEFAULT, number, "s2c"), of_master=True)
    place = span[0]
    for frame in found:
        assert isinstance(frame, Frame)
        assert frame.commitlog_offset == place
        place += len(frame.body)
    assert (len(found), sum(not value.body for value in found if isinstance(value, Frame))) == (frames, heartbeats)
    said = values_of(Dialect.DEFAULT, captured(Dialect.DEFAULT, number, "c2s"), of_master=False)
    offsets = [value.max_offset for value in said if isinstance(value, Report)]
    assert (len(offsets), offsets[0], offsets[-1], place) == (reports, *span, span[1])
    assert offsets == sorted(offsets)


def test_the_captured_handshakes_say_who_and_which_epochs() -> None:
    slaves, masters = [], []
    for number in range(4):
        slaves += values_of(Dialect.CONTROLLER, captured(Dialect.CONTROLLER, number, "c2s"), of_master=False)[:1]
        masters += values_of(Dialect.CONTROLLER, captured(Dialect.CONTROLLER, number, "s2c"), of_master=True)[:1]
    assert [slave.broker_id for slave in slaves if isinstance(slave, SlaveHandshake)] == [2, 1, 2, 1]
    assert all(isinstance(master, MasterHandshake) for master in masters)
    assert [master.epochs for master in masters if isinstance(master, MasterHandshake)][1] == (
        EpochEntry(1, 0),
        EpochEntry(2, 6430),
    )


@pytest.mark.parametrize(("dialect", "number"), [(Dialect.DEFAULT, 0), (Dialect.CONTROLLER, 1)])
@pytest.mark.parametrize("of_master", [True, False])
def test_a_value_that_is_not_whole_says_how_much_it_needs(dialect: Dialect, number: int, of_master: bool) -> None:
    data = captured(dialect, number, "s2c" if of_master else "c2s")
    decode = decode_from_master if of_master else decode_from_slave
    first = decode(dialect, data)
    assert isinstance(first, Decoded)
    for length in range(first.size_bytes):
        needed = decode(dialect, data[:length])
        assert isinstance(needed, NeedMoreBytes)
        assert length < needed.size_bytes <= first.size_bytes


@pytest.mark.parametrize("size", [-1, -12, MOST_BODY_BYTES + 1, 2**31 - 1])
def test_a_frame_of_a_size_that_no_frame_has_is_refused_before_its_body_comes(size: int) -> None:
    with pytest.raises(CorruptRecordError, match="body size"):
        decode_from_master(Dialect.DEFAULT, encode_header(0, size))


@pytest.mark.parametrize("state", [0, 3, 4, -1, 2**31 - 1])
def test_a_state_that_has_no_header_is_refused(state: int) -> None:
    data = state.to_bytes(4, "big", signed=True) + bytes(60)
    for decode in (decode_from_master, decode_from_slave):
        with pytest.raises(CorruptRecordError, match="state"):
            decode(Dialect.CONTROLLER, data)


@pytest.mark.parametrize("size", [-12, 5, 12_012])
def test_a_handshake_has_at_most_a_thousand_whole_epochs(size: int) -> None:
    data = (1).to_bytes(4, "big") + size.to_bytes(4, "big", signed=True) + bytes(12)
    with pytest.raises(CorruptRecordError, match="epochs"):
        decode_from_master(Dialect.CONTROLLER, data)


def test_any_bytes_are_a_value_or_need_more_or_are_refused() -> None:
    rng = random.Random(7)
    for _ in range(3_000):
        data = rng.randbytes(rng.randrange(60))
        for dialect in Dialect:
            for decode in (decode_from_master, decode_from_slave):
                try:
                    found = decode(dialect, data)
                except CorruptRecordError:
                    continue
                assert (
                    found.size_bytes > len(data) if isinstance(found, NeedMoreBytes) else found.size_bytes <= len(data)
                )


def test_the_epoch_file_is_javas() -> None:
    content = b"1\n1725254278\n1-0\n"
    assert decode_epochs(content) == (EpochEntry(1, 0),)
    assert encode_epochs([EpochEntry(1, 0)]) == content
    assert decode_epochs(b"1\n0\n7-7000\n") == (EpochEntry(7, 7000),)  # 0 = not checked


@pytest.mark.parametrize(
    "content", [b"", b"1", b"x\ny\nz", b"2\n0\n1-0\n", b"1\n5\n1-0\n", b"1\n0\n1-0-3\n", b"1\n0\n\xff\n"]
)
def test_an_epoch_file_that_is_not_whole_is_told(content: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        decode_epochs(content)
