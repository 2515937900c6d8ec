"""Enough of the remoting protocol to hand a broker one request and read its answer: JSON headers, a call at a time.

    0        4                 5               8
    | length | serializer (0)  | header length | header (JSON) | body |

Java: RemotingCommand.encode, SendMessageRequestHeader, SendMessageRequestHeaderV2 (whose names are letters).
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_mq.broker.put_plan import CURRENT_VERSION
from storage.rules.inner_messages import encode_properties
from tests.support.broker_handlers import Send

SEND_MESSAGE = 10
SEND_BATCH_MESSAGE = 320
_LETTERS = "abcdefghijklm"


class Answer(NamedTuple):
    """What the broker answered."""

    code: int
    remark: str | None
    fields: dict[str, str]
    """extFields: msgId, queueId, queueOffset, transactionId, MSG_REGION, TRACE_ON, …"""
    body: bytes = b""


def ask(address: str, request: Send) -> tuple[Answer, str]:
    """The answer to a request, and the address that it came from (as the broker sees the client)."""
    return _exchange(address, frame_of(request))


def call(address: str, code: int, fields: Mapping[str, object], body: bytes = b"") -> Answer:
    """The answer to any request, by its code and header fields as they stand in the JSON."""
    header = {
        "code": code,
        "language": "JAVA",
        "version": CURRENT_VERSION,
        "opaque": 1,
        "flag": 0,
        "serializeTypeCurrentRPC": "JSON",
        "extFields": {name: str(value) for name, value in fields.items()},
    }
    answer, _ = _exchange(address, _with_length(header, body))
    return answer


def _exchange(address: str, frame: bytes) -> tuple[Answer, str]:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(frame)
        header, body = _received(connection)
        own = ":".join(map(str, connection.getsockname()))
    return Answer(header["code"], header.get("remark"), header.get("extFields") or {}, body), own


def frame_of(request: Send, opaque: int = 1) -> bytes:
    """The request as a client writes it."""
    fields = {
        "producerGroup": request.producer_group or "cases",
        "topic": request.topic,
        "defaultTopic": request.default_topic,
        "defaultTopicQueueNums": str(request.default_topic_queue_count),
        "queueId": str(request.queue_id),
        "sysFlag": str(request.sys_flag),
        "bornTimestamp": str(request.born_time_ms),
        "flag": str(request.flag),
        "properties": encode_properties(request.properties).decode(),
        "reconsumeTimes": _number(request.reconsume_times),
        "unitMode": str(request.unit_mode).lower(),
        "maxReconsumeTimes": _number(request.max_reconsume_times),
        "batch": str(request.is_batch).lower(),
    }
    if request.is_batch:
        fields = dict(zip(_LETTERS, fields.values(), strict=True))
    if request.logical is not None:
        fields["lo"] = str(request.logical).lower()
    header = {
        "code": SEND_BATCH_MESSAGE if request.is_batch else SEND_MESSAGE,
        "language": "JAVA",
        "version": request.client_version,
        "opaque": opaque,
        "flag": 0,
        "serializeTypeCurrentRPC": "JSON",
        "extFields": {name: value for name, value in fields.items() if value is not None},
    }
    return _with_length(header, request.body or b"")


def _with_length(header: Mapping[str, object], body: bytes) -> bytes:
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    return (4 + len(raw) + len(body)).to_bytes(4, "big") + len(raw).to_bytes(4, "big") + raw + body


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _received(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    frame = _exactly(connection, int.from_bytes(_exactly(connection, 4), "big"))
    length = int.from_bytes(frame[1:4], "big")
    header: dict[str, Any] = json.loads(frame[4 : 4 + length])
    return header, frame[4 + length :]


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionError(f"the broker closed the connection after {len(received)} of {count} bytes")
        received += part
    return received
