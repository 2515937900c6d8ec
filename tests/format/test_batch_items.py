"""Columns become the bytes of a send batch, which the codec of single batches reads and writes as Apache's."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_mq.remoting.messages import BatchedMessage, decode_batch, encode_batch
from storage.format.batch_items import encode_items, item_ends

MESSAGES = [
    BatchedMessage(b"hello", b"k\x01v\x02WAIT\x01true\x02", -7),
    BatchedMessage(b"", b"WAIT\x01false\x02", 3),
    BatchedMessage(b"x" * 5000, b"", 0),
    BatchedMessage(b"\x00\xff", b"p" * 32_767, 2**31 - 1),
]


def encoded(messages: list[BatchedMessage], kind: pa.DataType) -> bytes:
    items = encode_items(
        pa.array([message.body for message in messages], kind),
        pa.array([message.raw_properties for message in messages], kind),
        np.array([message.flag for message in messages], np.int32),
    )
    assert items.ends.tolist() == item_ends(items.data.tobytes())
    return items.data.tobytes()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_columns_become_the_bytes_that_single_messages_become(kind: pa.DataType) -> None:
    assert encoded(MESSAGES, kind) == encode_batch(MESSAGES)
    assert decode_batch(encoded(MESSAGES, kind)) == MESSAGES


def test_no_message_is_no_byte() -> None:
    assert encoded([], pa.binary()) == b""


def test_slices_of_columns_are_encoded_by_their_own_offsets() -> None:
    bodies = pa.array([b"no", b"a", b"bc"], pa.large_binary()).slice(1)
    properties = pa.array([b"no", b"no", b"", b"n\x01v\x02"], pa.large_binary()).slice(2)
    data = encode_items(bodies, properties, np.array([1, 2], np.int32)).data.tobytes()
    assert decode_batch(data) == [BatchedMessage(b"a", b"", 1), BatchedMessage(b"bc", b"n\x01v\x02", 2)]


@pytest.mark.parametrize("length", [1, 21, 40])
def test_a_batch_that_is_cut_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="does not end within the batch"):
        item_ends(encode_batch(MESSAGES)[:length])
