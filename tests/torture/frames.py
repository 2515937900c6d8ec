"""Requests as frames, and the requests in what came over one connection, for decoders of servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from spark_mq.remoting import (
    REQUEST_HEADERS,
    Broken,
    Connection,
    HeaderEncoding,
    RemotingCommand,
    encode_frame,
    make_request,
)
from spark_mq.remoting.headers_and_bodies import SHORT_NAMED
from storage.format.typed_json import wire_name


def frame(command: RemotingCommand) -> bytes:
    """The command as bytes."""
    return b"".join(map(bytes, encode_frame(command)))


def request_frame(code: int, told: Mapping[str, str], body: bytes, number: int) -> bytes:
    """With what is told that the code's header has, in either encoding by turns."""
    header = REQUEST_HEADERS.get(code)
    names = frozenset() if header is None else _names(header, code)
    known = {name: text for name, text in told.items() if name in names}
    return frame(make_request(code, known or None, body, encoding=list(HeaderEncoding)[number % 2]))


@cache
def _names(header: type[Any], code: int) -> frozenset[str]:
    """Of the header's fields on the wire."""
    is_short = code in SHORT_NAMED
    return frozenset((is_short and each.metadata.get("short")) or wire_name(each) for each in fields(header))


def commands_of(content: bytes) -> Iterator[RemotingCommand]:
    """The requests that come."""
    for event in Connection[None]().feed(content):
        if not isinstance(event, Broken) and not event.command.is_response:
            yield event.command
