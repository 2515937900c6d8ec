"""Namespaces: `ns%topic`, with `%RETRY%` or `%DLQ%` in front of it all. Pure. Java: NamespaceUtil.

System topics and groups have no namespace. Brokers know nothing of namespaces: the names simply are longer.
"""

from __future__ import annotations

from storage.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic

_SEPARATOR = "%"


def with_namespace(namespace: str | None, name: str) -> str:
    """A topic's or group's name as brokers know it; as it is where it has the namespace already."""
    if not namespace or not name or is_system_topic(name) or is_system_group(name):
        return name
    prefix, rest = _split(name)
    return name if rest.startswith(namespace + _SEPARATOR) else f"{prefix}{namespace}{_SEPARATOR}{rest}"


def without_namespace(namespace: str | None, name: str) -> str:
    """A topic's or group's name as the program knows it; as it is where it has another namespace or none."""
    if not namespace:
        return name
    prefix, rest = _split(name)
    return prefix + rest.removeprefix(namespace + _SEPARATOR)


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
