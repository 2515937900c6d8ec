"""Requests as frames, and the requests in what came over one connection, for decoders of servers."""

from __future__ import annotations

from collections.abc import Iterator

from spark_mq.remoting import (
    Broken,
    Connection,
    HeaderEncoding,
    RemotingCommand,
    encode_frame,
)
from tests.support.declared import declared_request


def frame(command: RemotingCommand) -> bytes:
    """The command as bytes."""
    return b"".join(map(bytes, encode_frame(command)))


def request_frame(code: int, number: int, body: bytes | None = None, **values: object) -> bytes:
    """As its declaration says, with these values, in either encoding by turns."""
    return frame(declared_request(code, body, **values)._replace(encoding=list(HeaderEncoding)[number % 2]))


def commands_of(content: bytes) -> Iterator[RemotingCommand]:
    """The requests that come."""
    for event in Connection[None]().feed(content):
        if not isinstance(event, Broken) and not event.command.is_response:
            yield event.command
