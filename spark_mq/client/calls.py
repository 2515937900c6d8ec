"""Requests from typed headers and bodies, signing, retries, and typed answers.

    answer = await remoting.ask(address, make_call(RequestCode.GET_MAX_OFFSET, MaxOffsetRequest(topic=…, queue_id=0)))
    end = read_answer_header(OffsetAnswer, answer, address, RequestCode.GET_MAX_OFFSET).queue_offset

An answer that cannot be decoded raises MalformedResponseError. No event loop is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from spark_mq.client.errors import ClientError, MalformedResponseError, ResponseError, WaitedInVainError, request_text
from spark_mq.client.settings import Credentials
from spark_mq.remoting import (
    Body,
    BodyError,
    Header,
    HeaderEncoding,
    HeaderError,
    RemotingCommand,
    WireBody,
    make_request,
    read_body,
    read_header,
    write_body,
    write_header,
)
from spark_mq.remoting.command import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, request_signature
from storage.epoch_times import steady_time_ms

H = TypeVar("H", bound=Header)
B = TypeVar("B", bound=WireBody)
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 100, 1_000
_STORE_CLOSED = "store getMessage return null"
T = TypeVar("T")


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


def signed(command: RemotingCommand, credentials: Credentials) -> RemotingCommand:
    """The request with access key, token and signature among its fields; a signature that it had is replaced. Java: AclClientRPCHook.

    In the ROCKETMQ encoding fields without a value are left out: a server reads null from them and signs the word "null", so that
    it refuses what Java's client signs.
    """
    is_empty_null = command.encoding is HeaderEncoding.ROCKETMQ
    given = (command.ext_fields or {}).items()
    fields = {name: value for name, value in given if name != SIGNATURE and (value or not is_empty_null)}
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        fields[SECURITY_TOKEN] = credentials.security_token
    proof = request_signature(command._replace(ext_fields=fields), credentials.secret_key)
    return command._replace(ext_fields={**fields, SIGNATURE: proof})


def may_pass(error: ClientError) -> bool:
    """Whether the same request may succeed later; a broker that stops says SYSTEM_ERROR for a moment."""
    is_closed_store = isinstance(error, ResponseError) and _STORE_CLOSED in (error.remark or "")
    return error.retriable or is_closed_store


def patiently(
    ask: Callable[[], T],
    timeout_ms: int,
    what: str,
    *,
    passes: Callable[[ClientError], bool] = may_pass,
    between: Callable[[], object] | None = None,
    longest_pause_ms: int = LONGEST_PAUSE_MS,
    clock: Callable[[], int] = steady_time_ms,
) -> T:
    """Call `ask` until it answers, fails with an error that cannot pass, or the time is over. One rule for source and sink.

    `ask` looks up the server's address each time, because the server may have moved. `what` says what is waited for. `between` is
    called before each repetition. Raises WaitedInVainError, and what does not pass.

    Only for questions whose second asking changes nothing. A send whose answer was lost is none: what the broker holds is looked for
    first (`spark_mq/sink/exact_commit.py`).
    """
    began_ms, pause_ms = clock(), FIRST_PAUSE_MS
    while True:
        try:
            return ask()
        except ClientError as error:
            if not passes(error):
                raise
            if clock() - began_ms + pause_ms > timeout_ms:
                raise WaitedInVainError(error, what, clock() - began_ms) from None
        time.sleep(pause_ms / 1_000)
        pause_ms = min(2 * pause_ms, longest_pause_ms)
        if between is not None:
            between()
