"""A query's options with the names of topics and group as brokers know them: option namespace. Pure. Java: NamespaceUtil.

Rows, checkpoints and lags have these names too, so that the brokers' own stores can carry a checkpoint on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from spark_mq.client.namespaces import with_namespace
from spark_mq.source.offsets import NamedQueue
from spark_mq.source.starting_offsets import AtOffsets

if TYPE_CHECKING:
    from spark_mq.source.options import SourceOptions

_FLAGS = re.compile(r"^(\(\?[aimsux]+\))+")
_Limit = TypeVar("_Limit")


def in_namespace(options: SourceOptions) -> SourceOptions:
    """The options with the names of topics and of the group as brokers know them."""
    namespace = options.namespace
    if namespace is None:
        return options
    pattern = options.subscribe_pattern
    return replace(
        options,
        topic=options.topic and with_namespace(namespace, options.topic),
        subscribe=tuple(with_namespace(namespace, topic) for topic in options.subscribe),
        subscribe_pattern=pattern and _pattern(namespace, pattern),
        assign=frozenset(_named(namespace, queue) for queue in options.assign),
        starting_offsets=_at(namespace, options.starting_offsets),
        ending_offsets=_at(namespace, options.ending_offsets),
        starting_offsets_by_timestamp=_by_name(namespace, options.starting_offsets_by_timestamp),
        ending_offsets_by_timestamp=_by_name(namespace, options.ending_offsets_by_timestamp),
        consumer_group=options.consumer_group and with_namespace(namespace, options.consumer_group),
    )


def _pattern(namespace: str, pattern: re.Pattern[str]) -> re.Pattern[str]:
    """Flags may stand at the beginning of a pattern only; they are among its flags anyway, and none of the namespace's."""
    return re.compile(f"(?-i:{re.escape(namespace)}%)(?:{_FLAGS.sub('', pattern.pattern)})", pattern.flags)


def _named(namespace: str, queue: NamedQueue) -> NamedQueue:
    return queue._replace(topic=with_namespace(namespace, queue.topic))


def _by_name(namespace: str, by_queue: Mapping[NamedQueue, int] | None) -> Mapping[NamedQueue, int] | None:
    return by_queue and {_named(namespace, queue): value for queue, value in by_queue.items()}


def _at(namespace: str, limit: _Limit) -> _Limit:
    if not isinstance(limit, AtOffsets):
        return limit
    return replace(limit, offsets=_by_name(namespace, limit.offsets) or {})
