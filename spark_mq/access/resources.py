"""What requests touch, and what they do there.

    Topic:orders     one topic        Topic:*    every topic
    Topic:ord*       a prefix         *          everything

Java: ResourceType, ResourcePattern, Resource, Action.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple, TypeVar

_E = TypeVar("_E", bound=Enum)
_ALL = "*"


class ResourceType(Enum):
    """What a request touches. Nothing touches a namespace: Java has the name."""

    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(Enum):
    """What it does there."""

    ALL = "All"
    """Stands in entries: every action."""
    ANY = "Any"
    """Java has the name; no entry may have it."""
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Pattern(IntEnum):
    """How a name is meant; the closest one comes first."""

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


class Resource(NamedTuple):
    """One resource, or those that a pattern covers."""

    type: ResourceType
    name: str = ""
    pattern: Pattern = Pattern.LITERAL

    @property
    def key(self) -> str:
        """As it is written: `Topic:ord*`."""
        if self.type is ResourceType.ANY:
            return _ALL
        return f"{self.type.value}:{self.name}{'' if self.pattern is Pattern.LITERAL else _ALL}"

    def covers(self, other: Resource) -> bool:
        """Whether the other, which is one resource, is meant too."""
        if self.type is ResourceType.ANY:
            return True
        if self.type is not other.type:
            return False
        return other.name == self.name if self.pattern is Pattern.LITERAL else other.name.startswith(self.name)


def parse_resource(key: str | None) -> Resource | None:
    """What a key means, None if it is none.

    Departure: a key without a name, or with an asterisk in its middle, is none. Java takes `a*b*` for `a*`.
    """
    type_name, _, name = (key or "").strip().partition(":")
    if type_name == _ALL and not name:
        return Resource(ResourceType.ANY, "", Pattern.ANY)
    kind = by_name(ResourceType, type_name)
    if kind is None or not name or _ALL in name[:-1]:
        return None
    if kind is ResourceType.ANY or name == _ALL:
        return Resource(kind, "", Pattern.ANY)
    return Resource(kind, name[:-1], Pattern.PREFIXED) if name.endswith(_ALL) else Resource(kind, name)


def by_name(kind: type[_E], name: str | None) -> _E | None:
    """The member whose value is the name, in any case; None if there is none. Java: getByName."""
    wanted = (name or "").lower()
    return next((member for member in kind if member.value.lower() == wanted), None)


class Need(NamedTuple):
    """A resource of a request that must allow one of the actions.

    `field` names it: an attribute of the typed header, or one of the ways below; None where the type alone does.
    """

    type: ResourceType
    field: str | None
    actions: tuple[Action, ...]
    separator: str | None = None
    """Between names, where the field may hold several."""


BODY = "body"
"""The body names it, or several."""
MESSAGE = "message"
"""The message does whose place in the log the header has: the topic that it was sent to."""


class Demand(NamedTuple):
    """One resource, of which one of the actions must be allowed."""

    resource: Resource
    actions: tuple[Action, ...]
