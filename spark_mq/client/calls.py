"""Requests made of typed headers and bodies, and answers read back into them.

    answer = await remoting.ask(address, make_call(RequestCode.GET_MAX_OFFSET, MaxOffsetRequest(topic=…, queue_id=0)))
    end = read_answer_header(OffsetAnswer, answer, address, RequestCode.GET_MAX_OFFSET).queue_offset

Pure. What cannot be read raises MalformedResponseError.
"""

from __future__ import annotations

from typing import TypeVar

from spark_mq.client.errors import MalformedResponseError, request_text
from spark_mq.remoting import (
    Body,
    BodyError,
    Header,
    HeaderError,
    RemotingCommand,
    WireBody,
    make_request,
    read_body,
    read_header,
    write_body,
    write_header,
)

H = TypeVar("H", bound=Header)
B = TypeVar("B", bound=WireBody)


def make_call(code: int, header: Header | None = None, body: WireBody | Body = b"") -> RemotingCommand:
    """The request of that code."""
    fields = None if header is None else write_header(header, code)
    return make_request(code, fields, write_body(body) if isinstance(body, WireBody) else body)


def read_answer_header(header_class: type[H], answer: RemotingCommand, address: str, code: int) -> H:
    """The answer's header; `code` is that of the request."""
    try:
        return read_header(header_class, answer)
    except HeaderError as error:
        raise MalformedResponseError(address, request_text(code), error.describe()) from None


def read_answer_body(body_class: type[B], answer: RemotingCommand, address: str, code: int) -> B:
    """The answer's body; an empty one is a body without values, as Java's servers leave empty tables out."""
    try:
        return read_body(body_class, answer.body or b"{}")
    except BodyError as error:
        raise MalformedResponseError(address, request_text(code), error.describe()) from None
