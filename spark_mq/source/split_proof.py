"""What a task must see before it may call anything expired: the store that the driver saw when it planned the task.

The driver takes a `StoreProof` a split, the task checks it each time that it opens the files. What a machine does not see is not lost,
whatever failOnDataLoss says: StoreNotSharedError. A store that has changed under the query fails the task too where it cannot be told
from another one (a topic was made again, a recovery has cut the log); the query, planned anew, then finds out what was lost.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_mq.source.offsets import QueueId
from storage import MessageStore
from storage.errors import StoreNotSharedError
from storage.files.os_errors import host_name
from storage.log.commit_log import CommitLog
from storage.log.fingerprint import LogFingerprint, difference, record_head
from storage.queues.consume_queue import ConsumeQueue


class QueueMark(NamedTuple):
    """An entry of the queue, and where in the log its message ends."""

    queue_offset: int
    message_end: int


class QueueSight(NamedTuple):
    """What a task sees of a queue: `message_end` is where the message of the mark's entry ends, None where no entry is."""

    has_files: bool
    first_offset: int
    message_end: int | None


class StoreProof(NamedTuple):
    """What the driver saw: the log, how far it reaches, and the last entry that a split reads. None: not known."""

    log: LogFingerprint | None = None
    log_end: int = 0
    queue: QueueMark | None = None


NO_PROOF = StoreProof()


def proof_of(store: MessageStore, log: LogFingerprint | None, queue: QueueId, end: int) -> StoreProof:
    """The proof for a split of the queue that ends before offset `end`; `log` is the store's fingerprint now."""
    found = store.last_message_end(queue.topic, queue.queue_id, end)
    return StoreProof(log, store.log_end, None if found is None else QueueMark(*found))


def check_sight(proof: StoreProof, root: str, log: CommitLog, queue: ConsumeQueue) -> None:
    """Raises StoreNotSharedError unless these are the files that the driver saw; OffsetOutOfRangeError where one expires meanwhile.

    The queue's files must have been listed before the log's: then an entry that is gone is one of an expired message.
    """
    if proof.log is None:
        return
    reason = difference(proof.log, log.files, lambda place: record_head(log, place))
    if reason is None:
        reason = queue_difference(proof, queue.directory, _sight_of(queue, proof.queue), log.minimum)
    if reason is not None:
        raise StoreNotSharedError(host_name(), root, reason)


def queue_difference(proof: StoreProof, directory: str, sight: QueueSight, log_minimum: int) -> str | None:
    """Why the queue is not the one that the driver saw, in words; None if it is. Pure.

    `log_minimum` is the first place of the log, which is the same log. A queue's file expires when all its messages have.
    """
    if not sight.has_files:
        if log_minimum >= proof.log_end:  # all that the driver saw has expired
            return None
        return f"{directory} holds no file of the queue, though the log that the driver saw is there"
    mark = proof.queue
    if mark is None or sight.message_end == mark.message_end:
        return None
    if sight.message_end is not None:
        return (
            f"the entry of offset {mark.queue_offset} in {directory} points to another message than the driver saw: "
            "the directory is another store's, or its topic was deleted and made again"
        )
    if mark.queue_offset < sight.first_offset and mark.message_end <= log_minimum:
        return None
    return f"{directory} does not hold the entry of offset {mark.queue_offset}, which the driver saw"


def _sight_of(queue: ConsumeQueue, mark: QueueMark | None) -> QueueSight:
    has_files = bool(queue.file_starts)
    found = queue.last_message_end(mark.queue_offset, mark.queue_offset + 1) if has_files and mark is not None else None
    return QueueSight(has_files, queue.first_file_offset, None if found is None else found[1])
