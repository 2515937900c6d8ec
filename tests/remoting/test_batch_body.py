"""The body of a batch. The bytes are those of Apache's MessageDecoder.encodeMessages (rocketmq-common 5.3.3)."""

from __future__ import annotations

import pytest

from spark_mq.remoting import RequestCode, decode_frame
from spark_mq.remoting.messages import BatchedMessage, decode_batch, encode_batch, with_batch_properties
from storage.errors import MessageIllegalError
from tests.support.captures import captured_frames

MESSAGES = [
    BatchedMessage(b"hello", b"k\x01v\x02WAIT\x01true\x02", -7),
    BatchedMessage(b"", b"WAIT\x01false\x02", 3),
]
JAVA_BYTES = bytes.fromhex(
    "000000290000000000000000fffffff90000000568656c6c6f000e6b01760257414954017472756502"
    "0000002100000000000000000000000300000000000b574149540166616c736502"
)


def test_a_clients_batch_is_read_and_written() -> None:
    """MessageDecoder.encodeMessage, decodeMessage."""
    assert decode_batch(JAVA_BYTES) == MESSAGES
    assert encode_batch(MESSAGES) == JAVA_BYTES


def test_the_batches_of_a_java_client_are_written_as_they_were() -> None:
    bodies = [
        decode_frame(one.data).body for one in captured_frames() if one.said["code"] == RequestCode.SEND_BATCH_MESSAGE
    ]
    assert len(bodies) == 3
    for body in bodies:
        messages = decode_batch(memoryview(body))
        assert len(messages) > 1
        assert encode_batch(messages) == body


def test_properties_that_sixteen_bits_cannot_measure_are_refused() -> None:
    """MessageDecoder.encodeMessage, which casts the length to a short."""
    longest = BatchedMessage(b"", b"p" * 32_767)
    assert decode_batch(encode_batch([longest, MESSAGES[0]])) == [longest, MESSAGES[0]]
    with pytest.raises(MessageIllegalError, match="properties is 32768, the limit is 32767"):
        encode_batch([BatchedMessage(b"", b"p" * 32_768)])


def test_size_magic_and_crc_are_read_over() -> None:
    """MessageExtEncoder.encode(MessageExtBatch), which reads the three and looks at none."""
    assert decode_batch(b"\xff" * 12 + JAVA_BYTES[12:]) == MESSAGES


def test_a_batch_that_is_cut_anywhere_is_refused() -> None:
    for length in (*range(1, 41), *range(42, len(JAVA_BYTES))):
        with pytest.raises(ValueError, match="does not end within the batch"):
            decode_batch(JAVA_BYTES[:length])


@pytest.mark.parametrize("position", [16, 25])
def test_a_negative_length_is_refused(position: int) -> None:
    """MessageExtEncoder.encode(MessageExtBatch), where ByteBuffer.position throws."""
    with pytest.raises(ValueError, match="does not end within the batch"):
        decode_batch(JAVA_BYTES[:position] + b"\xff\xff" + JAVA_BYTES[position + 2 :])


@pytest.mark.parametrize(
    ("own", "shared", "joined"),
    [
        (b"a\x01b\x02", b"c\x01d\x02", b"a\x01b\x02c\x01d\x02"),
        (b"a\x01b", b"c\x01d\x02", b"a\x01b\x02c\x01d\x02"),
        (b"", b"c\x01d\x02", b"c\x01d\x02"),
        (b"a\x01b", b"", b"a\x01b"),
    ],
)
def test_an_open_property_string_is_closed_where_something_follows(own: bytes, shared: bytes, joined: bytes) -> None:
    """MessageExtEncoder.encode(MessageExtBatch): needAppendLastPropertySeparator."""
    assert with_batch_properties(own, shared) == joined
