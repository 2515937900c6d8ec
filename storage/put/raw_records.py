"""What a follower appends: bytes of its master's log, as they come, and the records that are whole among them.

    append_raw(bytes)* ─▶ whole_records: sizes, place, sums ─▶ enter_raw: synced under SYNC_FLUSH, queues, index, readable

Nothing of a record is acknowledged before it was held against its sums. What is no record is cut, and so is what is cut off in the
middle when the follower connects again. Java: DefaultMessageStore.appendToCommitLog, which checks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from storage.errors import CorruptRecordError
from storage.format.record import BLANK, BLANK_SIZE, MAGIC_BLANK
from storage.log.commit_log import CommitLog, RecordIdentity
from storage.log.dispatch import DISPATCHED, DispatchBatch, dispatch
from storage.names import can_be_path_element


class RawRecords(NamedTuple):
    """Whole records that follow each other, and the place behind them, or behind the filler that follows them."""

    end: int
    last_record: RecordIdentity | None
    batches: Sequence[DispatchBatch]


@dataclass(frozen=True, slots=True)
class RawCheck:
    """How records of another log are held against what a record must be."""

    log: CommitLog
    delays_ms: tuple[int, ...]
    check_crc: bool = True

    def whole_records(self, start: int, end: int) -> RawRecords:
        """The whole records from `start`, where one begins, up to `end`, behind the last byte that is there.

        Raises CorruptRecordError for what cannot be one.
        """
        batches: list[DispatchBatch] = []
        last = None
        while start < end:
            walk = self.log.walk(start, check_crc=self.check_crc, wanted=DISPATCHED, limit=end)
            for offsets, records in walk:
                named = records.column("commitlog_offset")
                if (named != offsets).any():
                    row = int((named != offsets).argmax())
                    raise CorruptRecordError("physical offset", 0, int(offsets[row]), int(named[row]))
                batch = dispatch(offsets, records, self.delays_ms)
                illegal = [topic for topic in batch.topics if not can_be_path_element(topic)]
                if illegal:
                    raise CorruptRecordError("topic", 0, "a name that a directory can have", illegal[0])
                batches.append(batch)
                last = RecordIdentity(int(offsets[-1]), int(batch.store_times_ms[-1]))
            if walk.failure is not None:
                raise walk.failure
            start = walk.end
            behind = self._behind_filler(start, end)
            if behind is None:
                break
            start = behind
        return RawRecords(start, last, batches)

    def _behind_filler(self, place: int, end: int) -> int | None:
        """The place behind the filler that stands there; None where no whole one does."""
        if place + BLANK_SIZE > end:
            return None
        file = self.log.files[self.log.file_index(place)]
        size, magic = BLANK.unpack(self.log.bytes_at(place, BLANK_SIZE))
        if magic == 0 and size == 0:
            raise CorruptRecordError("magic", place - file.start, "a record", "zeros", file=file.path)
        if magic != MAGIC_BLANK:
            return None
        if size != file.end - place:
            raise CorruptRecordError("blank filler", place - file.start, file.end - place, size, file=file.path)
        return file.end if file.end <= end else None
