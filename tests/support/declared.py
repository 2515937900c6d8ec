"""Valid headers and bodies of every request, made from their declarations.

A value follows from the name of its field, where that is a noun of RocketMQ (`_NOUNS`), else from its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from spark_mq.remoting import (
    ANSWER_BODIES,
    ANSWER_HEADERS,
    REQUEST_BODIES,
    REQUEST_HEADERS,
    Broken,
    Connection,
    HeaderEncoding,
    RemotingCommand,
    encode_frame,
    make_request,
    write_body,
    write_header,
)
from spark_mq.remoting.command import RpcHeader, TopicHeader
from storage.format.typed_json import MessageQueue, WireBody

_NOUNS: Mapping[str, str] = {
    **dict.fromkeys(("topic", "topics", "topic_name", "topic_list", "origin_topic", "stats_key"), "T"),
    **dict.fromkeys(("group", "groups", "group_name", "consumer_group", "compare_group", "filter_groups"), "G"),
    "producer_group": "P",
    **dict.fromkeys(("broker_name", "brokers"), "b"),
    **dict.fromkeys(("cluster", "cluster_name"), "C"),
    **dict.fromkeys(("client_id", "client_ids"), "c@1"),
    **dict.fromkeys(("address", "broker_address", "master_address", "ha_server_address"), "127.0.0.1:10911"),
    **dict.fromkeys(("sub_string", "subscription"), "*"),
    "message_id": "7F00000100002A9F0000000000000000",
    "default_topic": "TBW102",
    "topic_filter_type": "SINGLE_TAG",
    "expression_type": "TAG",
    "subject": "User:ann",
    "username": "ann",
}
"""By the name of a field, or of what a longer name ends with."""

T = TypeVar("T")


def declared(kind: type[T], nouns: Mapping[str, str] = _NOUNS, **values: Any) -> T:
    """A header or body with a value in each field; these where it has fields of these names."""
    hints = get_type_hints(kind, include_extras=True)
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: values[name] if name in values else _value(hints[name], name, nouns) for name in names})


def request_fields(code: int, **values: Any) -> dict[str, str]:
    """The extFields of a request of that code; none where it has no header. What any client may say besides is left out."""
    kind = REQUEST_HEADERS.get(code)
    if kind is None:
        return {}
    besides = {each.name: None for base in (RpcHeader, TopicHeader) if issubclass(kind, base) for each in fields(base)}
    return write_header(declared(kind, **{**besides, **values}), code)


def request_body(code: int, **values: Any) -> bytes:
    """The body of a request of that code; none where it has no typed one."""
    kind = REQUEST_BODIES.get(code)
    return b"" if kind is None else write_body(declared(kind, **values))


def declared_request(code: int, body: bytes | None = None, **values: Any) -> RemotingCommand:
    """A whole request of that code."""
    return make_request(code, request_fields(code, **values) or None, request_body(code) if body is None else body)


def declared_answer(code: int, topic: str = "T", **values: Any) -> tuple[dict[str, str], bytes]:
    """The extFields and the body of an answer to a request of that code, where the topic is that one."""
    nouns = {name: topic if text == "T" else text for name, text in _NOUNS.items()}
    header, body = ANSWER_HEADERS.get(code), ANSWER_BODIES.get(code)
    said = {} if header is None else write_header(declared(header, **values))
    return said, b"" if body is None else write_body(declared(body, nouns, **values))


def _value(hint: Any, name: str, nouns: Mapping[str, str]) -> Any:
    if type(None) in get_args(hint):
        (hint,) = (kind for kind in get_args(hint) if kind is not type(None))
    origin, parts = get_origin(hint), get_args(hint)
    if hint is str:
        return _noun(name, nouns)
    if hint in (bool, float):
        return hint(0)
    if hint is MessageQueue:
        return MessageQueue(nouns["topic"], nouns["broker_name"], 0)
    if isinstance(hint, type) and issubclass(hint, WireBody):
        return declared(hint, nouns)
    if origin is tuple:
        return (_value(parts[0], name, nouns),)
    if origin is not None and issubclass(origin, Mapping):
        return {_value(parts[0], name.removesuffix("_table"), nouns): _value(parts[1], "", nouns)}
    if hint is Any:
        return "x"
    said = hint.__metadata__[0]
    return next(iter(said)).value if isinstance(said, type) else 0


def _noun(name: str, nouns: Mapping[str, str]) -> str:
    parts = name.split("_")
    ends = ("_".join(parts[at:]) for at in range(len(parts)))
    return next((nouns[end] for end in ends if end in nouns), "x")


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
