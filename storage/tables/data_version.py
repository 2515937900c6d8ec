"""The version that stands in each state file, by which name servers and slaves notice a change.

Java: DataVersion. Outside controller mode `stateVersion` is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.tables.document import integer, section


@dataclass(frozen=True, slots=True)
class DataVersion:
    """`counter` changes so far, the last one at `timestamp_ms`.

    Two tables are the same if all three numbers are.
    """

    counter: int = 0
    timestamp_ms: int = 0
    state_version: int = 0

    def raised(self, now_ms: int) -> DataVersion:
        """The version after one more change (Java: nextVersion)."""
        return DataVersion(self.counter + 1, now_ms)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], file: str | None = None) -> DataVersion:
        """The `dataVersion` of a state file's document; a missing one or a missing number is 0."""
        found = section(document, "dataVersion", file)
        return cls(
            counter=integer(found, "counter", 0, file),
            timestamp_ms=integer(found, "timestamp", 0, file),
            state_version=integer(found, "stateVersion", 0, file),
        )

    def to_document(self) -> dict[str, int]:
        """The fields in the order of a broker's file."""
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }
