"""Lowers tables that are ahead of the log, when a store is opened for writing, before the first put.

After a power loss, a repair, a restored log or the promotion of a replica, the next messages get queue offsets that the tables count as
done already, so no consumer would get them. These tables are examined, each with its .bak, whose old numbers could come back:

    consumerOffset.json   groups, retry and reviving queues of pop consumers, and how far transactions are checked
    delayOffset.json      delay levels
    timercheck            the timer's place in its queue; spark_mq/followed_timer.json says the same of a master's

`lower_offsets` compares them with the queues' ends, which give the next messages their offsets. It does so at every such opening, so
the next one notices a crash between a cut and its lowering. A valid hint skips it if the files are unchanged: the session that left the
hint has compared them, and has only put since. An unreadable table is left as it is, with a warning: code that needs its numbers
refuses, and a copy put in its place is compared.

`lower_for_cut` runs before a damaged log is cut, or one that its master does not have. It finds what no comparison finds: deliveries
behind the cut, which must be repeated. (Behind a torn tail nothing is counted: a delivery is synced before it is counted.) No later
opening can do that, so there an unreadable table is an error.

Not changed: static topics and batch queues (they count otherwise), multi-dispatch queues (their entries are not made here), the mirrors
of sinks (numbers of batches). A follower's tables are its master's, and wait for its log.
A batch that is decided but not finished is appended afterwards: its missing rows may come after other messages than before the crash,
at offsets that are counted for those. So a group may get some of its rows twice, and loses none.
A queue without a directory begins at 0 again, whatever the log holds of it, and so do its groups: they may get messages twice after
`jobs.rebuild_queues` has rebuilt it. That job itself opens the store without a comparison (`WritesAs`, "rebuilder").

Departure: Java corrects delay levels and the timer when it loads them. It corrects a group's offset at the group's next pull, to the
queue's end of that moment: earlier new messages are skipped. It does not look for deliveries that a cut removes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.batch.ledger import TOPIC as LEDGER_TOPIC
from storage.dispatch.recovery_plan import LoweredOffset
from storage.dispatch.writer import StoreEnds, TableVersions
from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem, read_table
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.properties import decode_property_maps
from storage.format.record_batch import Records
from storage.log.commit_log import CommitLog
from storage.names import MULTI_DISPATCH_PREFIX, QueueName
from storage.rules.delays import DELAY, REAL_TOPIC, TIMER_DEQUEUE_MS, TIMER_ENQUEUE_MS, TIMER_OUT_MS, TIMER_TOPIC
from storage.rules.half_messages import HALF_TOPIC, OP_TOPIC, QUEUE_ID, ended_halves
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from storage.tables.masters import (
    DELAYS_FILE,
    TIMER_CHECKPOINT_FILE,
    DelayOffsets,
    followed_timer_path,
    forget_followed_timer,
    read_followed_timer,
    read_timer_checkpoint,
    timer_checkpoint_path,
    write_timer_checkpoint,
)
from storage.tables.topics import MAPPINGS_FILE

_PARKED = [name.encode() for name in (SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC)]
_NAMED = 5
_LOG = logging.getLogger(__name__)


class _Table(Protocol):
    def to_text(self) -> str: ...


_T = TypeVar("_T", bound=_Table)


class CutDeliveries(NamedTuple):
    """What the records that a cut removes have delivered."""

    by_level: Counter[int | None]
    """Messages of each delay level; None = the level is unknown (Java's broker removes it)."""
    half_offset: int | None
    """The offset of the first half that they end; None if they end none."""
    timer_ms: int | None
    """The time from which the timer's slots are delivered again; None if these records delivered none of them."""

    @classmethod
    def of(cls, batches: Iterable[Records]) -> Self:
        """Reads properties, and the bodies of op messages."""
        by_level: Counter[int | None] = Counter()
        halves, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for records in batches:
            topics = records.topics().cast(pa.large_binary())
            properties = decode_property_maps(records.raw_properties())
            is_delivered = pc.and_(
                properties.values_of(REAL_TOPIC).is_valid(),
                pc.invert(pc.is_in(topics, pa.array(_PARKED, pa.large_binary()))),
            )
            is_timed = pc.and_(
                properties.values_of(TIMER_DEQUEUE_MS).is_valid(), properties.values_of(TIMER_OUT_MS).is_valid()
            )
            levels = properties.values_of(DELAY)
            levels = levels.filter(pc.and_(is_delivered, pc.or_(levels.is_valid(), pc.invert(is_timed))))
            for each in pc.value_counts(levels).to_pylist():
                text = each["values"]
                by_level[int(text) if text is not None and text.isdecimal() else None] += each["counts"]
            is_rolled = pc.equal(topics, TIMER_TOPIC.encode())  # its slot is between its entry and its time
            times.append(_numbers(properties.values_of(TIMER_OUT_MS).filter(pc.and_not(is_timed, is_rolled))))
            times.append(_numbers(properties.values_of(TIMER_ENQUEUE_MS).filter(pc.and_(is_timed, is_rolled))))
            ops = records.take(pc.equal(topics, OP_TOPIC.encode()).to_numpy(zero_copy_only=False))
            halves.append(ended_halves(np.zeros(len(ops), np.int64), ops).half_offsets)
        ended, out_ms = np.concatenate(halves), np.concatenate(times)
        return cls(by_level, int(ended.min()) if len(ended) else None, int(out_ms.min()) if len(out_ms) else None)


def _numbers(texts: pa.Array) -> np.ndarray:
    given = texts.filter(pc.match_substring_regex(texts, "^[0-9]{1,18}$"))
    return np.asarray(given.cast(pa.int64()), np.int64)


def tables_now(root: str, files: LocalFileSystem) -> TableVersions:
    """Versions of the files that `lower_offsets` compares: they show whether one has changed."""
    names = [f"{root}/config/{name}" for name in (OFFSETS_FILE, DELAYS_FILE, MAPPINGS_FILE)]
    paths = [*names, *(f"{name}.bak" for name in names), timer_checkpoint_path(root), followed_timer_path(root)]
    return {path: files.version(path) for path in paths}


def lower_offsets(
    root: str,
    files: LocalFileSystem,
    log: CommitLog,
    ends: StoreEnds,
    *,
    apart: Collection[str],
    now_ms: int,
) -> tuple[LoweredOffset, ...]:
    """Lower offsets beyond the end of their queue; returns those that were. Durable on return.

    Nothing is read if the tables are those that `ends` marks as compared; afterwards it marks them. Log records that wait to be
    confirmed count. `apart` are the static topics and those with batch queues, whose offsets count otherwise. An unreadable table is
    left as it is, with a warning. Only this process may have the store open. Raises OSError.
    """
    if ends.compared_tables == tables_now(root, files):
        return ()
    found = dict(ends.queue_ends)
    if ends.held_from is not None:
        _find_ends(log, ends.held_from, found)

    def end_of(topic: str, queue_id: int) -> int | None:
        counts_otherwise = topic == LEDGER_TOPIC or topic in apart or topic.startswith(MULTI_DISPATCH_PREFIX)
        return None if counts_otherwise else found.get((topic, queue_id), 0)

    def lower_timer() -> list[LoweredOffset]:
        end = found.get((TIMER_TOPIC, 0), 0)
        lowered = _lower_timer(root, files, now_ms, queue_offset=end, master_queue_offset=end)
        followed = read_followed_timer(files, root)
        if followed is not None and followed.queue_offset > end:
            files.replace(followed_timer_path(root), followed._replace(queue_offset=end).to_text().encode())
        return lowered

    lowered: list[LoweredOffset] = []
    each_table: tuple[Callable[[], list[LoweredOffset]], ...] = (
        lambda: _lower_groups(root, files, end_of, now_ms),
        lambda: _lower_levels(
            root, files, lambda level, at: min(at, found.get((SCHEDULE_TOPIC, level - 1), 0)), now_ms
        ),
        lower_timer,
    )
    for lower in each_table:
        try:
            lowered += lower()
        except StateFileError as error:
            reason = str(error).replace("\n", "; ")
            _LOG.warning("%s: a table is not compared with the queues' ends, and stays as it is: %s", root, reason)
    ends.compared_tables = tables_now(root, files)
    return _logged(root, lowered)


def _find_ends(log: CommitLog, start: int, found: dict[QueueName, int]) -> None:
    """Add the queues' ends by the log's records from `start` on."""
    for _, records in log.walk(start, check_crc=False) if log.files else ():
        topics = [topic.decode(errors="replace") for topic in records.topics().to_pylist()]
        names = zip(topics, records.column("queue_id").tolist(), strict=True)
        for name, offset in zip(names, records.column("queue_offset").tolist(), strict=True):
            found[name] = max(found.get(name, 0), offset + 1)


def lower_for_cut(
    root: str, files: LocalFileSystem, batches: Iterable[Records], *, now_ms: int
) -> tuple[LoweredOffset, ...]:
    """Before a log is cut: repeat what the records behind the cut have delivered; returns the lowered offsets.

    A level goes back by the number of its delivered messages. A message of unknown level counts for every level: some may be delivered
    twice, and none is lost. A half that the records end is open again. A master's timer state is forgotten.
    After a crash before the cut the next cut lowers once more. Raises StateFileError, OSError.
    """
    cut = CutDeliveries.of(batches)
    unknown = cut.by_level[None]
    lowered = _lower_levels(root, files, lambda level, offset: max(0, offset - cut.by_level[level] - unknown), now_ms)
    if cut.half_offset is not None:  # all op messages are read again: they end the halves that stay ended
        limits = {(HALF_TOPIC, QUEUE_ID): cut.half_offset, (OP_TOPIC, QUEUE_ID): 0}
        lowered += _lower_groups(root, files, lambda topic, queue_id: limits.get((topic, queue_id)), now_ms)
    if cut.timer_ms is not None:
        lowered += _lower_timer(root, files, now_ms, last_read_time_ms=cut.timer_ms)
    forget_followed_timer(files, root)
    return _logged(root, lowered)


def _logged(root: str, lowered: list[LoweredOffset]) -> tuple[LoweredOffset, ...]:
    if lowered:
        more = f", and {len(lowered) - _NAMED} more" if len(lowered) > _NAMED else ""
        names = "; ".join(map(str, lowered[:_NAMED])) + more
        _LOG.warning("%s: %d offsets were ahead of the log, and are lowered: %s", root, len(lowered), names)
    return tuple(lowered)


def _lower_groups(
    root: str, files: LocalFileSystem, end_of: Callable[[str, int], int | None], now_ms: int
) -> list[LoweredOffset]:
    def lower(table: ConsumerOffsets) -> ConsumerOffsets:
        return table.lowered(end_of, now_ms=now_ms)

    before, after = _lower_file(root, files, OFFSETS_FILE, ConsumerOffsets.load, lower)
    if before is None or after is None:
        return []
    return [
        LoweredOffset(
            OFFSETS_FILE, f"group {group} of {topic} queue {queue_id}", offset, after.offsets[topic, group][queue_id]
        )
        for (topic, group), queues in before.offsets.items()
        for queue_id, offset in queues.items()
        if after.offsets[topic, group][queue_id] != offset
    ]


def _lower_levels(
    root: str, files: LocalFileSystem, right: Callable[[int, int], int], now_ms: int
) -> list[LoweredOffset]:
    def lower(table: DelayOffsets) -> DelayOffsets:
        return table.with_offsets({level: right(level, at) for level, at in table.offsets.items()}, now_ms=now_ms)

    before, after = _lower_file(root, files, DELAYS_FILE, DelayOffsets.load, lower)
    if before is None or after is None:
        return []
    return [
        LoweredOffset(DELAYS_FILE, f"delay level {level}", offset, after.offsets[level])
        for level, offset in before.offsets.items()
        if after.offsets[level] != offset
    ]


def _lower_file(
    root: str, files: LocalFileSystem, name: str, load: Callable[[str, str], _T], lower: Callable[[_T], _T]
) -> tuple[_T | None, _T | None]:
    """Lower the table and its .bak, each if it exists, the .bak first; returns the table before and after."""
    path = f"{root}/config/{name}"
    tables: dict[str, _T] = {}

    def read(text: str, file: str) -> _T:
        tables[file] = table = load(text, file)
        return table

    if read_table(path, read, files.read_file) is None:
        return None, None
    backup = f"{path}.bak"
    if backup not in tables:
        with suppress(StateFileError):  # readers ignore it too
            if content := files.read_file(backup):
                read(content.decode("utf-8", errors="replace"), backup)
    lowered = {each: lower(table) for each, table in tables.items()}
    for each in (backup, path):
        if each in tables and lowered[each] is not tables[each]:
            files.replace(each, lowered[each].to_text().encode())
    used = path if path in tables else backup
    return tables[used], lowered[used]


def _lower_timer(root: str, files: LocalFileSystem, now_ms: int, **limits: int) -> list[LoweredOffset]:
    """Lower fields of the timer's checkpoint to their limits; the raised version shows that it is not the sealed one any more."""
    checkpoint = read_timer_checkpoint(files, root)
    before = {name: getattr(checkpoint, name) for name in limits}
    ahead = {name: limit for name, limit in limits.items() if before[name] > limit}
    if not ahead:
        return []
    version = {"version_time_ms": now_ms, "version_counter": checkpoint.version_counter + 1}
    write_timer_checkpoint(files, root, checkpoint._replace(**version, **ahead))
    return [
        LoweredOffset(TIMER_CHECKPOINT_FILE, f"timer {name.replace('_', ' ')}", before[name], limit)
        for name, limit in ahead.items()
    ]
