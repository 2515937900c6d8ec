"""Whether a store's queues and checkpoint speak of a log: the proof that a log outside of ROOT is this store's.

A queue's entry names a record: its place and size, and by the queue it stands in, topic, queue id and queue offset. A checkpoint names
the store time of a record. Another store's log has other records there. Reads only.
"""

from __future__ import annotations

from typing import NamedTuple

from storage.ends.recovery_plan import RecoveryPlan
from storage.errors import StorageError
from storage.format.checkpoint import Checkpoint
from storage.format.consume_queue import is_entry, is_pre_blank
from storage.log.commit_log import CommitLog
from storage.names import MULTI_DISPATCH_PREFIX
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.store import ConsumeQueueStore

_QUEUES_LOOKED_AT = 16


class _Entry(NamedTuple):
    queue_offset: int
    commitlog_offset: int
    size_bytes: int


def find_disagreement(
    log: CommitLog, queues: ConsumeQueueStore, plan: RecoveryPlan, checkpoint: Checkpoint
) -> str | None:
    """What speaks against a log being this store's, in words; None where all that can be compared agrees.

    Compared are the last entry of each queue (after an unclean stop the last one that a crash has left whole) and the checkpoint's
    time. Where the log has records, one entry at least must name one of them.
    """
    if plan.damage is not None:
        return plan.damage.describe()
    if plan.gaps:
        return plan.gaps[0].error().describe()
    agreeing = 0
    for queue in _ordinary(queues):
        name = (queue.topic, queue.queue_id)
        written, visible = plan.written_ends.get(name, 0), plan.visible_ends.get(name, 0)
        found = [
            _names_its_record(log, queue, entry)
            for end in dict.fromkeys((visible, written))
            if (entry := _entry_before(queue, end)) is not None and entry.commitlog_offset >= log.minimum
        ]
        agreeing += any(found)
        if found and not any(found) and (plan.was_clean or _points_into(log, plan, queue, written)):
            return f"{queue.topic} queue {queue.queue_id} ends with an entry for a record that the log does not have"
    if plan.log_end > log.minimum and not agreeing:
        return "no queue has an entry for any of the log's records"
    time_ms = checkpoint.physic_msg_timestamp
    if time_ms > 0 and not _holds_time(log, time_ms):
        return f"the checkpoint names a record that was stored at {time_ms} ms, and the log has none of that time"
    return None


def is_another_log(log: CommitLog, queues: ConsumeQueueStore) -> bool:
    """A cheap look at a few queues, for each opening: whether they have entries, and none names a record of the log.

    Of each queue it looks at more than the last entry, for a crash may have left that without its record.
    """
    looked_at = 0
    for queue in _ordinary(queues)[:_QUEUES_LOOKED_AT]:
        end, back = queue.written_end(), 1
        while (entry := _entry_before(queue, end - back + 1)) is not None and entry.commitlog_offset >= log.minimum:
            looked_at += 1
            if _names_its_record(log, queue, entry):
                return False
            back *= 2
    return looked_at > 0


def _ordinary(queues: ConsumeQueueStore) -> list[ConsumeQueue]:
    return [queue for queue in queues if not queue.topic.startswith(MULTI_DISPATCH_PREFIX)]


def _entry_before(queue: ConsumeQueue, end: int) -> _Entry | None:
    """The entry before a queue offset; None where there is none, or one that only fills room."""
    if end <= queue.first_file_offset:
        return None
    entry = queue.entries(end - 1, end)
    if not len(entry) or not is_entry(entry)[0] or is_pre_blank(entry)[0]:
        return None
    return _Entry(end - 1, int(entry["commitlog_offset"][0]), int(entry["size_bytes"][0]))


def _names_its_record(log: CommitLog, queue: ConsumeQueue, entry: _Entry) -> bool:
    try:
        message = log.message_at(entry.commitlog_offset, log.files[-1].end if log.files else 0)
    except StorageError:
        return False
    claimed = (queue.topic, queue.queue_id, entry.queue_offset, entry.size_bytes)
    return claimed == (message.topic, message.queue_id, message.queue_offset, message.size_bytes)


def _points_into(log: CommitLog, plan: RecoveryPlan, queue: ConsumeQueue, end: int) -> bool:
    """Whether a queue's last entry is for a place before the log's end: no crash explains that it names no record."""
    entry = _entry_before(queue, end)
    return entry is not None and entry.commitlog_offset < plan.log_end


def _holds_time(log: CommitLog, store_time_ms: int) -> bool:
    """Whether a record of that store time is in the log; store times are taken to ascend from file to file."""
    for file in reversed(log.files):
        for number, (_, records) in enumerate(log.walk(file.start, check_crc=False)):
            times = records.column("store_time_ms")
            if number == 0 and int(times[0]) > store_time_ms:
                break  # an earlier file
            if bool((times == store_time_ms).any()):
                return True
            if int(times[-1]) > store_time_ms:
                return False
    return False
