"""Registrations as brokers of 5.0 or later compress them: the other side of `read_compressed`."""

from __future__ import annotations

import struct
import zlib

from spark_mq.remoting import write_body
from spark_mq.remoting.command import write_texts
from spark_mq.remoting.routes import RegisterBrokerBody
from storage.format.fastjson import quoted
from storage.format.typed_json import DataVersion, TopicConfig

_SIZE = struct.Struct(">i")


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


def _sized(content: bytes) -> bytes:
    return _SIZE.pack(len(content)) + content


def _topic_text(topic: TopicConfig) -> str:
    attributes = ",".join(f"{quoted(name)}:{quoted(value)}" for name, value in topic.attributes.items())
    numbers = f"{topic.read_queue_count} {topic.write_queue_count} {topic.perm}"
    return f"{topic.topic} {numbers} {topic.topic_filter_type} {{{attributes}}}"
