"""Ranges of one queue, read from the store's files by a task. Stateless; opens what it needs.

A task knows only its `QueueSplit`: the reader that planned it lives in another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from spark_mq.conditions import named_for_spark
from spark_mq.source.offsets import QueueId
from spark_mq.source.rows import RowRequest, ShownAs, to_batches
from storage import MessageStore
from storage.errors import (
    CorruptMessageError,
    OffsetOutOfRangeError,
    StoreNotSharedError,
    StoreRefusedError,
)
from storage.files.file_system import Scratch
from storage.files.os_errors import host_name
from storage.files.remote import file_system_of
from storage.format.arrays import string_hash
from storage.format.delay import SCHEDULE_TOPIC
from storage.log.commit_log import LOOKS, CommitLog
from storage.log.fingerprint import LogFingerprint, difference, record_head
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.ext import ConsumeQueueExt
from storage.queues.scan import QueueSlice, TagsWanted, scan_queue
from storage.tables.surroundings import StoreLayout


class QueueMark(NamedTuple):
    """An entry of the queue, and where in the log its message ends."""

    queue_offset: int
    message_end: int


class QueueSight(NamedTuple):
    """A task's view of a queue: `message_end` is the end of the message of the mark's entry, None if there is no entry."""

    has_files: bool
    first_offset: int
    message_end: int | None


class StoreProof(NamedTuple):
    """The driver's view: the log, its end, and the last entry that a split reads. None: unknown.

    A task must see that store before it may call anything expired. The driver takes a proof a split, the task checks it each time
    that it opens the files. A store that this machine does not see is not data loss, whatever failOnDataLoss says:
    StoreNotSharedError. A store that has changed under the query also fails the task if it looks like another store (a topic was made
    again, a recovery has cut the log); when the query is planned again, it finds out what was lost.
    """

    log: LogFingerprint | None = None
    log_end: int = 0
    queue: QueueMark | None = None


NO_PROOF = StoreProof()


@dataclass(frozen=True, slots=True)
class QueueSplit:
    """Ranges of offsets of one queue, ascending, where its store lies, and what proves that a task sees that store.

    `log_end` is the validated log's end.
    """

    layout: StoreLayout
    log_end: int
    queue: QueueId
    broker_rank: int
    ranges: tuple[tuple[int, int], ...]
    request: RowRequest
    proof: StoreProof = NO_PROOF
    shown: ShownAs | None = None
    """None = as it is."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """The messages as Arrow batches of the request's schema, in queue order.

        Messages that expired since the split was planned are data loss (`SPARK_MQ_DATA_LOSS`), or passed over where the request
        tolerates that. A store that this machine does not see is neither: `SPARK_MQ_STORE_NOT_FOUND`. A corrupt message is an error
        that names it (`SPARK_MQ_CORRUPT_RECORD`), or a row of a permissive request.
        """
        files = _SplitFiles(self)
        with named_for_spark():
            try:
                for start, end in self.ranges:
                    yield from to_batches(
                        _slices(files, start, end),
                        self.queue,
                        self.broker_rank,
                        self.request,
                        self.shown,
                        force_property_crc=self.layout.force_property_crc,
                    )
            except CorruptMessageError as error:
                raise error.of_broker(self.queue.broker_name) from None
            finally:
                files.close()


class _SplitFiles:
    """The log and the queue of a split, opened when first needed, and only if they are those that the driver saw."""

    def __init__(self, split: QueueSplit) -> None:
        self.split = split
        self._files = file_system_of(split.layout.root)
        self._scratch = Scratch()
        self._opened: tuple[CommitLog, ConsumeQueue] | None = None

    def open(self) -> tuple[CommitLog, ConsumeQueue]:
        """Raises StoreNotSharedError where this machine sees another store, or none."""
        looks = 0
        while self._opened is None:
            try:
                looks += 1
                opened = self._look()
                check_sight(self.split.proof, self.split.layout.root, *opened)
                self._opened = opened
            except OffsetOutOfRangeError:  # a file expired between two looks
                if looks == LOOKS:
                    raise
            except StoreRefusedError as error:  # the driver has opened it
                raise StoreNotSharedError(host_name(), self.split.layout.root, error.reason) from error
        return self._opened

    def _look(self) -> tuple[CommitLog, ConsumeQueue]:
        layout, name = self.split.layout, self.split.queue
        queue = layout.consume_queue(self._files, name.topic, name.queue_id)
        queue.list_files()  # before the log's
        return layout.commit_log(self._files, self._scratch), queue

    def ext(self) -> ConsumeQueueExt:
        name = self.split.queue
        return self.split.layout.consume_queue_ext(self._files, name.topic, name.queue_id)

    def close(self) -> None:
        """Let go of the files; the next `open` looks again which there are."""
        for opened in self._opened or ():
            opened.close()
        self._opened = None


def _slices(files: _SplitFiles, start: int, end: int) -> Iterator[QueueSlice]:
    split = files.split
    codes = _tags_codes(split.request.tags, split.queue.topic)
    wanted = split.request.wanted
    while start < end:
        log, queue = files.open()
        tags = TagsWanted(codes, files.ext()) if codes is not None else None
        crc = split.request.verify_crc and not split.request.permissive
        try:
            for part in scan_queue(queue, log, split.log_end, start, end, tags=tags, verify_crc=crc, wanted=wanted):
                start = int(part.queue_offsets[-1]) + 1
                yield part
            return
        except OffsetOutOfRangeError as error:
            if split.request.fail_on_data_loss:
                raise
            start = max(start + 1, error.minimum)
            files.close()


def _tags_codes(tags: frozenset[str] | None, topic: str) -> frozenset[int] | None:
    """The codes in entries of messages with these tags; None if entries do not show them.

    Entries of the schedule topic hold the time of delivery in place of the tag's hash.
    """
    return None if tags is None or topic == SCHEDULE_TOPIC else frozenset(string_hash(tag) for tag in tags)


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
    # All of it may have moved into tiered storage.
    has_files = bool(queue.file_starts) or queue.last_file_end_offset > 0
    found = queue.last_message_end(mark.queue_offset, mark.queue_offset + 1) if has_files and mark is not None else None
    return QueueSight(has_files, queue.first_file_offset, None if found is None else found[1])
