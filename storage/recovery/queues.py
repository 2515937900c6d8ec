"""The queues in a recovery: what is stale is cut, what is missing entered, what lost files built again. Java: ConsumeQueue.recover,
truncateDirtyLogicFiles, and CommitLog's recovery, which dispatches what it walks over.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable

import numpy as np

from storage.dispatch.recovery_plan import RecoveryPlan, RecoveryReport
from storage.files.local_file_system import LocalFileSystem
from storage.format.consume_queue import may_be_torn
from storage.log.dispatch import DispatchBatch, QueueEntries, queue_entries
from storage.names import validate_path_element
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.order import joined, put_in_order
from storage.queues.store import ConsumeQueueStore
from storage.queues.writer import ConsumeQueueWriter


class QueueWriters:
    """The writers of the queues that a recovery touches: those cut when it is made, the others as records come that they lack."""

    def __init__(
        self,
        file_system: LocalFileSystem,
        queues: ConsumeQueueStore,
        plan: RecoveryPlan,
        file_size_bytes: int,
        log_minimum: int,
        report: RecoveryReport,
        followed: Collection[tuple[str, int]],
    ) -> None:
        """`followed` names the queues behind whose end something stands."""
        self._file_system = file_system
        self._queues = queues
        self._plan = plan
        self._file_size_bytes = file_size_bytes
        self._report = report
        self._writers: dict[tuple[str, int], ConsumeQueueWriter] = {}
        self._held: dict[tuple[str, int], QueueEntries] = {}
        self.broken: set[tuple[str, int]] = set()
        self._log_minimum = log_minimum
        self._checks_units = queues.writes_ext and not plan.was_clean
        for name, end in plan.visible_ends.items():
            if plan.written_ends[name] > end or (not plan.was_clean and name in followed):
                self._truncate(*name, end)

    def _truncate(self, topic: str, queue_id: int, end: int) -> None:
        writer = self._writer(topic, queue_id)
        self._report.cut_entries += writer.truncate(end)
        if end and not writer.queue.file_starts:  # nothing is left that could be continued
            writer.sync()
            self._writers[topic, queue_id] = self._writer_from(writer.queue, 0)

    def _writer(self, topic: str, queue_id: int) -> ConsumeQueueWriter:
        name = topic, queue_id
        if name not in self._writers:
            queue = self._queues.get_or_make(validate_path_element("topic", topic), queue_id)
            self._writers[name] = self._writer_from(queue, self._plan.visible_ends.get(name, 0))
        return self._writers[name]

    def _writer_from(self, queue: ConsumeQueue, end: int) -> ConsumeQueueWriter:
        size = queue.file_size_bytes or self._file_size_bytes
        ext = self._queues.ext_writer(self._file_system, queue.topic, queue.queue_id)
        return ConsumeQueueWriter(self._file_system, queue, end, size, rebuilt=end == 0, ext=ext)

    def append(self, batch: DispatchBatch, start: int, only: Collection[tuple[str, int]] | None = None) -> None:
        """Enter the records of a batch that lie at or behind `start`, of all queues or `only` of these."""
        if not len(batch) or int(batch.commitlog_offsets[-1]) < start:
            return
        for new in queue_entries(batch, self._may_change_queues(batch, start)):
            if only is not None and (new.topic, new.queue_id) not in only:
                continue
            if "\0" in new.topic:
                self._report.torn_records += len(new.entries)
                continue
            late = new.entries["commitlog_offset"] >= start
            if late.any():
                self._enter(new, new.rows(late), start)

    def _enter(self, new: QueueEntries, late: QueueEntries, start: int) -> None:
        writer = self._writer(new.topic, new.queue_id)
        if self._checks_units and (end := writer.end_of_sound_units(late)) < writer.end:
            self._report.cut_entries += writer.truncate(end)
        fresh = self._in_order(writer, late)
        first = int(late.queue_offsets[0])
        next_offset = int(fresh.queue_offsets[0]) if len(fresh.queue_offsets) else first
        if (next_offset > writer.end and start > self._log_minimum) or first < writer.queue.first_file_offset:
            self.broken.add((new.topic, new.queue_id))
        writer.mend_last(new)
        writer.append(fresh)

    def _in_order(self, writer: ConsumeQueueWriter, late: QueueEntries, *, is_all: bool = False) -> QueueEntries:
        """Of these records and the one that was held before them, those that the queue lacks, with the queue offsets that are theirs.

        A last one of which that is not known yet is held.
        """
        name = late.topic, late.queue_id
        rows = joined(self._held.pop(name, None), late)
        rows = rows.rows(rows.entries["commitlog_offset"] + rows.entries["size_bytes"] > writer.greatest_end)
        begins_at_0 = self._log_minimum == 0 and not writer.queue.file_starts
        previous = writer.end - 1 if writer.end or begins_at_0 else None
        found = put_in_order(rows, previous, is_all=is_all)
        if found.held is not None:
            self._held[name] = found.held
        self._report.misnumbered.extend(found.misnumbered)
        return found.rows

    def enter_held(self) -> None:
        """No record follows: those that are held are entered where they say."""
        for name, held in list(self._held.items()):
            writer = self._writer(*name)
            del self._held[name]
            writer.append(self._in_order(writer, held, is_all=True))

    def _may_change_queues(self, batch: DispatchBatch, start: int) -> np.ndarray:
        """The records of those queues that lack one of them, that they do not continue, or whose last entry is torn: after a crash,
        of very few.
        """
        is_late = batch.is_queued & (batch.commitlog_offsets >= start)
        rows = np.flatnonzero(is_late)
        codes, first, numbers = np.unique(batch.queue_codes[rows], return_index=True, return_inverse=True)
        known = np.array([self._known(batch.queue_name(code)) for code in codes.tolist()], np.int64).reshape(-1, 4)
        ends, greatest_ends, first_file_offsets, maybe_torn = known.T
        offsets = batch.queue_offsets[rows[first]]
        changes = (offsets < first_file_offsets) | ((offsets > ends) & (start > self._log_minimum))
        record_ends = batch.commitlog_offsets[rows] + batch.sizes_bytes[rows]
        is_new = record_ends > greatest_ends[numbers]
        is_torn = (
            (record_ends == greatest_ends[numbers]) & (maybe_torn[numbers] == 1) & ~may_be_torn(batch.tags_codes[rows])
        )
        changes[numbers[is_new | is_torn]] = True
        changes |= self._checks_units
        is_late[rows] = changes[numbers]
        return is_late

    def _known(self, name: tuple[str, int]) -> tuple[int, int, int, bool]:
        """Of a queue its end, where in the log its last message ends, the offset at which its first file begins, and whether its last
        entry may be torn.
        """
        maybe_torn = name in self._plan.maybe_torn
        if writer := self._writers.get(name):
            return writer.end, writer.greatest_end, writer.queue.first_file_offset, maybe_torn
        queue = self._queues.get(*name)
        first = queue.first_file_offset if queue is not None else 0
        return self._plan.visible_ends.get(name, 0), self._plan.last_places.get(name, -1), first, maybe_torn

    def rebuild_broken_queues(self, whole_log: Iterable[DispatchBatch]) -> None:
        """A queue whose new records did not continue it lost files, or all: build it again."""
        if not self.broken:
            return
        for name in self.broken:
            writer = self._writers[name]
            writer.truncate(0)
            self._writers[name] = self._writer_from(writer.queue, 0)
        self._report.misnumbered[:] = [
            found for found in self._report.misnumbered if (found.topic, found.queue_id) not in self.broken
        ]
        for batch in whole_log:
            for new in queue_entries(batch):
                if (new.topic, new.queue_id) in self.broken:
                    writer = self._writers[new.topic, new.queue_id]
                    writer.append(self._in_order(writer, new))
        self.enter_held()
        self._report.rebuilt_queues.extend(sorted(self.broken))

    def finish(self) -> None:
        """Sync what was written, and note it in the report."""
        paths = set()
        for (topic, queue_id), writer in self._writers.items():
            paths |= writer.paths | writer.directories()
            writer.paths.clear()
            self._report.queue_ends[topic, queue_id] = writer.end
            self._report.dispatched_end = max(self._report.dispatched_end, writer.greatest_end)
            self._report.added_entries += writer.appended
            self._report.holes.extend((topic, queue_id, *hole) for hole in writer.holes)
        self._file_system.sync_all(paths)
        self._file_system.sync(posixpath.dirname(self._queues.directory))
