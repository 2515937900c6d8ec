"""What of records a reader will ask for, so that it can be decoded in one pass. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """Parts of records. What is not named here can be asked for all the same, and is decoded then."""

    fields: frozenset[str] = frozenset()
    """Of the fixed header."""
    bodies: bool = False
    """As stored."""
    properties: frozenset[str] = frozenset()
    """Single ones, by name."""
    all_properties: bool = False
    message_ids: bool = False
    topics: bool = False
    """As numbers. Those of a queue's records are all the same, and not asked for."""
    raw: bool = False
    """The bytes of the records, for what is not named here and yet will be asked for."""

    def __or__(self, other: Wanted) -> Wanted:
        return Wanted(
            self.fields | other.fields,
            self.bodies or other.bodies,
            self.properties | other.properties,
            self.all_properties or other.all_properties,
            self.message_ids or other.message_ids,
            self.topics or other.topics,
            self.raw or other.raw,
        )

    @staticmethod
    def union(parts: Iterable[Wanted]) -> Wanted:
        whole = Wanted()
        for part in parts:
            whole |= part
        return whole


NOTHING = Wanted()
