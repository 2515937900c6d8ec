"""Records of a few messages, one behind the other, not stamped yet: what `record_block.encode_block` makes of columns.

Of clients and stores with IPv4 addresses. Java: MessageExtEncoder.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from isal import isal_zlib

from storage.format.java_hash import CRC_MASK
from storage.format.record import HEADER_STRUCTS, MAGIC_V1, MAGIC_V2
from storage.format.record_block import encoded_name

_HEADER = HEADER_STRUCTS[0]


class Described(Protocol):
    """What a record holds, but for places and store time."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def raw_properties(self) -> bytes: ...
    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_time_ms(self) -> int: ...
    @property
    def born_host(self) -> bytes | None: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def prepared_transaction_offset(self) -> int: ...


def join_records(messages: Iterable[Described], host: bytes) -> tuple[bytes, list[int]]:
    """The records of a store at `host`, and the size of each."""
    pieces: list[bytes] = []
    sizes: list[int] = []
    names: dict[str, tuple[int, bytes]] = {}
    for message in messages:
        topic, body, properties = message.topic, message.body, message.raw_properties
        if (named := names.get(topic)) is None:
            encoded = topic.encode()
            name = encoded_name(encoded)
            named = names[topic] = MAGIC_V1 if len(name) == len(encoded) + 1 else MAGIC_V2, name
        magic, name = named
        size = _HEADER.size + len(body) + len(name) + 2 + len(properties)
        sizes.append(size)
        header = _HEADER.pack(
            size,
            magic,
            isal_zlib.crc32(body) & CRC_MASK,
            message.queue_id,
            message.flag,
            0,
            0,
            message.sys_flag,
            message.born_time_ms,
            message.born_host or host,
            0,
            host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            len(body),
        )
        pieces += (header, body, name, len(properties).to_bytes(2, "big"), properties)
    return b"".join(pieces), sizes
