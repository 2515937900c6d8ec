"""RocketMQ's remoting protocol without sockets: one codec for clients, servers and tools. Pure.

    command.py              RemotingCommand: one request or answer, as a value; its header as bytes; typed headers and bodies
    frames.py               a command as bytes, and bytes as commands; the waiting requests of one connection;
                            many requests that look alike are read as columns
    request_types.py        the typed header and body of each code, which are declared by subject: `messages.py`, `consumers.py`,
                            `routes.py`, `administration.py`, `controllers.py`
    codes.py                request codes, languages, versions; answers: `storage/rules/response_codes.py`
    errors.py               errors

Begin with `command.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_mq.remoting.codes import LanguageCode, ProtocolVersion, RequestCode
    from spark_mq.remoting.command import (
        DEFAULT_LIMITS,
        Body,
        FrameLimits,
        Header,
        HeaderEncoding,
        HeaderTemplate,
        RemotingCommand,
        make_request,
        make_response,
        read_body,
        read_body_list,
        read_header,
        write_body,
        write_body_list,
        write_header,
    )
    from spark_mq.remoting.errors import (
        BodyError,
        ConnectionClosedError,
        FrameError,
        FrameIllegalError,
        HeaderError,
        RemotingError,
    )
    from spark_mq.remoting.frames import (
        Answer,
        Broken,
        Connection,
        Event,
        FrameReader,
        Request,
        SentRequest,
        Unawaited,
        decode_frame,
        encode_frame,
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

if not TYPE_CHECKING:
    # Who needs a code or an error does not wait for the classes of all headers and bodies.
    _MODULES = {
        "ANSWER_BODIES": "spark_mq.remoting.request_types",
        "ANSWER_HEADERS": "spark_mq.remoting.request_types",
        "Answer": "spark_mq.remoting.frames",
        "Body": "spark_mq.remoting.command",
        "BodyError": "spark_mq.remoting.errors",
        "Broken": "spark_mq.remoting.frames",
        "Connection": "spark_mq.remoting.frames",
        "ConnectionClosedError": "spark_mq.remoting.errors",
        "DEFAULT_LIMITS": "spark_mq.remoting.command",
        "Event": "spark_mq.remoting.frames",
        "FrameError": "spark_mq.remoting.errors",
        "FrameIllegalError": "spark_mq.remoting.errors",
        "FrameLimits": "spark_mq.remoting.command",
        "FrameReader": "spark_mq.remoting.frames",
        "Header": "spark_mq.remoting.command",
        "HeaderEncoding": "spark_mq.remoting.command",
        "HeaderError": "spark_mq.remoting.errors",
        "HeaderTemplate": "spark_mq.remoting.command",
        "LanguageCode": "spark_mq.remoting.codes",
        "MessageQueue": "storage.format.typed_json",
        "ProtocolVersion": "spark_mq.remoting.codes",
        "REQUEST_BODIES": "spark_mq.remoting.request_types",
        "REQUEST_HEADERS": "spark_mq.remoting.request_types",
        "RemotingCommand": "spark_mq.remoting.command",
        "RemotingError": "spark_mq.remoting.errors",
        "Request": "spark_mq.remoting.frames",
        "RequestCode": "spark_mq.remoting.codes",
        "SentRequest": "spark_mq.remoting.frames",
        "Unawaited": "spark_mq.remoting.frames",
        "WireBody": "storage.format.typed_json",
        "decode_frame": "spark_mq.remoting.frames",
        "encode_frame": "spark_mq.remoting.frames",
        "make_request": "spark_mq.remoting.command",
        "make_response": "spark_mq.remoting.command",
        "read_body": "spark_mq.remoting.command",
        "read_body_list": "spark_mq.remoting.command",
        "read_header": "spark_mq.remoting.command",
        "write_body": "spark_mq.remoting.command",
        "write_body_list": "spark_mq.remoting.command",
        "write_header": "spark_mq.remoting.command",
    }

    def __dir__() -> list[str]:
        """All public names, including those that are not loaded yet."""
        return sorted(__all__)

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            found = getattr(import_module(_MODULES[name]), name)
            globals()[name] = found
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
