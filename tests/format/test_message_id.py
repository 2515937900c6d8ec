"""Offset message ids: what the broker answered, and back."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.record import decode_offset_message_id, encode_offset_message_id, hex_strings
from tests.support.fixture_stores import Fixture, golden_lines


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
