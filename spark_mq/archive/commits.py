"""Commits to an archive's table, by delta-rs: rows and the progress of their queues in one, or none of both.

A commit is one file of Delta's log, made only where none of that number is there. That is the commit point: before it readers see
nothing of the files, after it all of them and the queues' progress. Two commits that move one queue's progress conflict, whichever
process they come from: the later one fails and has changed nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from spark_mq.archive.data_files import WrittenFile
from spark_mq.conditions import ArchiveError
from spark_mq.source.archive_table import (
    PARTITIONED_BY,
    SCHEMA,
    STATISTICS,
    ArchiveTable,
    Place,
    Progress,
    delta_lake,
    open_delta,
    progress_id,
)
from spark_mq.source.offsets import QueueId
from storage.epoch_times import current_time_ms

_SETTINGS = {"delta.dataSkippingStatsColumns": ",".join(STATISTICS)}
_TRIES = 20
"""Of a commit that meets commits for other queues."""


class ArchiveConflictError(Exception):
    """Another archiver has moved a queue's progress, or another process has removed a file; nothing was committed."""


def open_or_make(place: Place) -> ArchiveTable:
    """The archive there; an empty one is made if there is none. Raises ArchiveError."""
    if open_delta(place) is None:
        lake = delta_lake()
        try:
            lake.DeltaTable.create(
                place.url,
                SCHEMA,
                partition_by=list(PARTITIONED_BY),
                name="spark_mq archive",
                configuration=_SETTINGS,
                storage_options=dict(place.storage) or None,
            )
        except Exception as error:  # another archiver may have made it at the same time
            if open_delta(place) is None:
                raise ArchiveError(place.url, f"no table can be made: {error}") from error
    table = ArchiveTable.open(place)
    add_new_columns(table)
    return table


def add_new_columns(table: ArchiveTable) -> None:
    """Add the columns that this release has and the table does not; in older files they are null."""
    from deltalake import Schema

    there = {each.name for each in table.delta.schema().fields}
    missing = [each for each in Schema.from_arrow(SCHEMA).fields if each.name not in there]
    if missing:
        table.delta.alter.add_columns(missing)


def commit(
    table: ArchiveTable,
    files: Sequence[WrittenFile],
    progress: Mapping[QueueId, Progress],
    what: Mapping[str, str] = {},
) -> int:
    """Commit rows and progress on top of what `table` has shown; returns the version.

    Raises ArchiveConflictError where another archiver has moved one of these queues since that look. After a failure that says nothing
    about the outcome the table is read: a commit that is there counts.
    """
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.transaction import AddAction

    now_ms = current_time_ms()
    adds = [
        AddAction(
            file.path, file.size_bytes, {"topic": file.topic, "day": file.day}, file.modified_ms, True, file.statistics
        )
        for file in files
    ]
    moves = [Transaction(progress_id(queue), to.encoded(), now_ms) for queue, to in sorted(progress.items())]
    properties = CommitProperties(
        app_transactions=moves, custom_metadata={"userMetadata": "spark_mq archive", **what}, max_commit_retries=_TRIES
    )
    try:
        _transaction(table, adds, properties)
    except (DeltaError, CommitFailedError, OSError) as error:
        table.refresh()
        if not _is_there(table, files, progress):
            if isinstance(error, CommitFailedError):
                raise ArchiveConflictError(str(error)) from error
            raise ArchiveError(table.place.url, f"a commit failed, and nothing was archived: {error}") from error
    table.refresh()
    return table.version


def _transaction(table: ArchiveTable, adds: Sequence[Any], properties: Any) -> None:
    table.delta.create_write_transaction(
        adds, "append", table.delta.schema(), list(PARTITIONED_BY), commit_properties=properties
    )


def _is_there(table: ArchiveTable, files: Sequence[WrittenFile], progress: Mapping[QueueId, Progress]) -> bool:
    """Whether a commit is in the table. Names of files are new each time; without a file it is the progress alone."""
    if files:
        return files[0].path in set(table.files())
    return all(table.progress(queue) == to for queue, to in progress.items())


def wait_a_little(tries: int) -> None:
    """Between a conflict and the next plan."""
    time.sleep(min(0.05 * 2**tries, 2.0))
