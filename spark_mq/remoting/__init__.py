"""RocketMQ's remoting protocol without sockets: one codec for clients, servers and tools. Pure.

    command.py              RemotingCommand: one request or answer, as a value; its header as bytes
    frames.py               a command as bytes, and bytes as commands; the waiting requests of one connection;
                            `request_runs.py` reads many requests that look alike
    headers_and_bodies.py   how typed headers and bodies are read and written
    request_types.py        the typed header and body of each code, which are declared by subject: `messages.py`, `consumers.py`,
                            `routes.py`, `administration.py`, `controllers.py`
    codes.py                request codes, languages, versions; answers: `storage/rules/response_codes.py`
    errors.py               errors

Begin with `command.py`.
"""

from __future__ import annotations

from spark_mq.remoting.codes import LanguageCode, ProtocolVersion, RequestCode
from spark_mq.remoting.command import Body, HeaderEncoding, RemotingCommand, make_request, make_response
from spark_mq.remoting.errors import (
    BodyError,
    ConnectionClosedError,
    FrameError,
    FrameIllegalError,
    HeaderError,
    RemotingError,
)
from spark_mq.remoting.frames import (
    DEFAULT_LIMITS,
    Answer,
    Broken,
    Connection,
    Event,
    FrameLimits,
    FrameReader,
    Request,
    SentRequest,
    Unawaited,
    decode_frame,
    encode_frame,
)
from spark_mq.remoting.headers_and_bodies import (
    Header,
    HeaderTemplate,
    read_body,
    read_body_list,
    read_header,
    write_body,
    write_body_list,
    write_header,
)
from spark_mq.remoting.request_types import ANSWER_BODIES, ANSWER_HEADERS, REQUEST_BODIES, REQUEST_HEADERS
from storage.format.typed_json import MessageQueue, WireBody

__all__ = [
    "ANSWER_BODIES",
    "ANSWER_HEADERS",
    "DEFAULT_LIMITS",
    "REQUEST_BODIES",
    "REQUEST_HEADERS",
    "Answer",
    "Body",
    "BodyError",
    "Broken",
    "Connection",
    "ConnectionClosedError",
    "Event",
    "FrameError",
    "FrameIllegalError",
    "FrameLimits",
    "FrameReader",
    "Header",
    "HeaderEncoding",
    "HeaderError",
    "HeaderTemplate",
    "LanguageCode",
    "MessageQueue",
    "ProtocolVersion",
    "RemotingCommand",
    "RemotingError",
    "Request",
    "RequestCode",
    "SentRequest",
    "Unawaited",
    "WireBody",
    "decode_frame",
    "encode_frame",
    "make_request",
    "make_response",
    "read_body",
    "read_body_list",
    "read_header",
    "write_body",
    "write_body_list",
    "write_header",
]
