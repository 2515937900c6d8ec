"""The compressed body of a broker's registration, for those that say `compressed=true` (103).

zlib of, each with its size or count in 4 bytes big-endian before it:

    | data version, JSON | count | topic, text … | filter servers, JSON | count | mapping, JSON … |

The text of a topic is `name read write perm filterType attributes`, attributes as JSON; its flags and order are lost. The mappings of
static topics are there from version 5.0 on. Java: RegisterBrokerBody, TopicConfig.encode and decode.

A broker 5.3.3 with `compressedRegister` compresses, but says `compressed=false`, which no name server can read.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping

from spark_mq.remoting.body_fields import WireBody, read_body, read_texts, write_body, write_texts
from spark_mq.remoting.codes import ProtocolVersion
from spark_mq.remoting.errors import BodyError
from spark_mq.remoting.frames import DEFAULT_LIMITS, Buffer
from spark_mq.remoting.route_bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigData,
    TopicConfigTable,
    TopicQueueMappingInfo,
)
from spark_mq.remoting.wire_class import fits
from storage.format.fastjson import quoted

_SIZE = struct.Struct(">i")
_BODY = RegisterBrokerBody.__name__
_FIELDS_LEAST = 5
_NUMBER = re.compile(r"-?[0-9]{1,10}", re.ASCII)


class _Attributes(WireBody):
    """A map that stands in a text without an object around it."""

    pairs: Mapping[str, str]


def write_compressed(body: RegisterBrokerBody) -> bytes:
    """The body as a broker of 5.0 or later compresses it."""
    table = body.topic_config_table
    servers = write_texts(body.filter_servers)
    mappings = (table.topic_queue_mapping_info_map or {}).values()
    parts = [
        _sized(write_body(table.data_version or DataVersion())),
        _SIZE.pack(len(table.topic_config_table)),
        *(_sized(_topic_text(topic).encode()) for topic in table.topic_config_table.values()),
        _sized(servers),
        _SIZE.pack(len(mappings)),
        *(_sized(write_body(mapping)) for mapping in mappings),
    ]
    return zlib.compress(b"".join(parts), 9)


def read_compressed(
    body: Buffer, version: int = ProtocolVersion.V5_3_3, limit_bytes: int = DEFAULT_LIMITS.frame_bytes
) -> RegisterBrokerBody:
    """The body that a broker of that version has compressed.

    Raises BodyError, also where more than `limit_bytes` come out of it: no more memory than that is taken.
    """
    stream = _Stream(_inflated(body, limit_bytes))
    data_version = read_body(DataVersion, stream.sized())
    topics = [_topic(stream.sized()) for _ in stream.counted()]
    servers = read_texts("filterServerList", stream.sized() or b"[]")
    has_mappings = version >= ProtocolVersion.V5_0_0
    mappings = [read_body(TopicQueueMappingInfo, stream.sized()) for _ in stream.counted()] if has_mappings else []
    table = TopicConfigTable(
        topic_config_table={topic.topic_name or "": topic for topic in topics},
        data_version=data_version,
        topic_queue_mapping_info_map={mapping.topic or "": mapping for mapping in mappings},
    )
    return RegisterBrokerBody(topic_config_table=table, filter_servers=servers)


def _sized(content: bytes) -> bytes:
    return _SIZE.pack(len(content)) + content


def _topic_text(topic: TopicConfigData) -> str:
    attributes = ",".join(f"{quoted(name)}:{quoted(value)}" for name, value in topic.attributes.items())
    numbers = f"{topic.read_queue_count} {topic.write_queue_count} {topic.perm}"
    return f"{topic.topic_name} {numbers} {topic.topic_filter_type} {{{attributes}}}"


def _topic(text: bytes) -> TopicConfigData:
    """A topic from its text. As in Java attributes that are no JSON, as those with a blank in them, count as none."""
    fields = text.decode("utf-8", "replace").split(" ")
    if len(fields) < _FIELDS_LEAST:
        raise BodyError(_BODY, "topicConfigTable", text, f"a topic has at least {_FIELDS_LEAST} words")
    name, read, write, perm, filter_type, *rest = fields
    try:
        pairs = read_body(_Attributes, f'{{"pairs":{rest[0] if rest else "{}"}}}'.encode()).pairs
    except BodyError:
        pairs = {}
    return TopicConfigData(
        topic_name=name,
        read_queue_count=_number(read),
        write_queue_count=_number(write),
        perm=_number(perm),
        topic_filter_type=filter_type,
        attributes=pairs,
    )


def _number(text: str) -> int:
    if _NUMBER.fullmatch(text) and fits(int(text), 32):
        return int(text)
    raise BodyError(_BODY, "topicConfigTable", text, "a number of 32 bits is expected")


def _inflated(body: Buffer, limit_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(bytes(body), limit_bytes)
    except zlib.error as error:
        raise BodyError(_BODY, "", bytes(body[:16]), f"it is not zlib's: {error}") from None
    if not inflater.eof:
        rule = f"the limit is {limit_bytes} bytes" if inflater.unconsumed_tail else "it ends too early"
        raise BodyError(_BODY, "", f"{len(content)} bytes", rule)
    return content


class _Stream:
    """What was compressed, read from its beginning on."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def sized(self) -> bytes:
        size = self._number()
        if size > len(self._content) - self._position:
            raise BodyError(_BODY, f"byte {self._position}", size, "it ends before that")
        self._position += size
        return self._content[self._position - size : self._position]

    def counted(self) -> Iterator[int]:
        """Once for each of so many; each takes four bytes at least, so that no count is taken at its word."""
        count = self._number()
        if count > (len(self._content) - self._position) // _SIZE.size:
            raise BodyError(_BODY, f"byte {self._position}", count, "it ends before that many")
        return iter(range(count))

    def _number(self) -> int:
        try:
            (number,) = _SIZE.unpack_from(self._content, self._position)
        except struct.error:
            raise BodyError(_BODY, f"byte {self._position}", None, "a number of 4 bytes is expected") from None
        if number < 0:
            raise BodyError(_BODY, f"byte {self._position}", number, "it must not be negative")
        self._position += _SIZE.size
        return int(number)
