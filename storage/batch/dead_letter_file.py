"""The two names of a task's file of dead letters: the hidden one it is written under, and the one that its batch's commit gives it.

    DIRECTORY/.SINK-BATCH-PARTITION-ATTEMPT.staged      written and synced by a task
    DIRECTORY/SINK-BATCH-PARTITION.parquet              renamed by the commit, or by whoever finishes the batch later

SINK is `sink_digest` in hex. An intent names both, and whoever opens the store follows it. So an intent's names are held to this shape:
nothing but a staged file of the intent's own batch is ever renamed, and only within its directory.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from storage.batch.staged_segment import sink_digest

_STAGED = re.compile(r"\.(?P<batch>[0-9a-f]{16}-[0-9]+)-(?P<partition>[0-9]+)-[0-9a-zA-Z-]{1,200}\.staged")


class DeadLetterFile(NamedTuple):
    """Both names, whole paths; as JSON a list."""

    staged: str
    final: str

    @classmethod
    def of(cls, directory: str, sink_directory: str, batch_id: int, partition: int, attempt: str) -> DeadLetterFile:
        """`sink_directory` is the hex `sink_digest`, `attempt` what no other attempt ever has."""
        name = f"{sink_directory}-{batch_id}-{partition}"
        return cls(f"{directory}/.{name}-{attempt}.staged", f"{directory}/{name}.parquet")

    @classmethod
    def from_json(cls, values: Any, sink_id: str, query_id: str, batch_id: int) -> DeadLetterFile:
        """From the list of its values; ValueError where it is none, or where the names are not those of this batch's dead letters."""
        if not isinstance(values, list) or [type(value) for value in values] != [str, str]:
            raise ValueError(f"dead letters are a list of two paths, found {values!r:.200}")
        file = cls(*values)
        directory, _, name = file.staged.rpartition("/")
        found = _STAGED.fullmatch(name)
        batch = f"{sink_digest(sink_id, query_id).hex()}-{batch_id}"
        if (
            found is None
            or found["batch"] != batch
            or file.final != f"{directory}/{batch}-{found['partition']}.parquet"
        ):
            raise ValueError(
                f"{file.staged!r:.200} and {file.final!r:.200} are no names of dead letters of batch {batch_id}"
            )
        return file
