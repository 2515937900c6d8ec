"""Records of the timer's topic, decoded, and the messages that they become when their slot is due; n records at a time.

A delivered record is the parked one with its own topic and queue, and three more properties:

    TIMER_OUT_MS       when it was due, as the sender said
    TIMER_ENQUEUE_MS   when it was entered in the wheel
    TIMER_DEQUEUE_MS   when it left it

REAL_TOPIC and REAL_QID stay: Java removes them from the object after the text is made. A rolled record goes to the timer's queue
again, with these and TIMER_ROLL_TIMES. Java: TimerMessageStore.convert, convertMessage, doPut, MessageClientIDSetter.getUniqID.

A killed timer, or a broker's that is stopped while it delivers, may have put messages after its last checkpoint. They are found in the
commit log, so that nothing is put twice. The properties of each such record show from which unit of the timer log it came: real
topic, unique key, TIMER_OUT_MS, and TIMER_ENQUEUE_MS, the unit's write time (in Java, for a message without a unit: the greatest
long). So the next timer reads once the records that are not older than the checkpoint's read time. Messages without a unique key, which
no client sends, are not distinguished.

A timer of ours that ended normally, and found no put later than now (by a clock that went back), leaves a seal: the
checkpoint as it wrote it last, in ROOT/spark_mq/timer_seal. While the checkpoint is the same, no other process has delivered, and there
is nothing to look for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import NameIllegalError
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import joined
from storage.format.delay import TimerCheckpoint, encode_timer_checkpoint
from storage.format.properties import (
    PROPERTIES_LIMIT_BYTES,
    closed,
    decode_property_maps,
    encoded_property,
    with_crc_room,
)
from storage.format.record import BLANK_SIZE, MINIMUM_RECORD_SIZE
from storage.format.record_batch import Records
from storage.log.commit_log import CommitLog, LogFile
from storage.names import RETRY_PREFIX, RETRY_TOPIC_LENGTH_LIMIT, TOPIC_LENGTH_LIMIT, validate_path_element
from storage.rules.delays import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELETED_KEY,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
)
from storage.rules.inner_messages import InnerMessages, timer_record_limit

TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
_WHOLE_NUMBER = r"^[+-]?0*[0-9]{1,19}$"  # a longer number fits no long


class TimerRecords(NamedTuple):
    """n records of the timer's topic; columns of equal length."""

    records: Records
    out_ms: np.ndarray
    """int64: when it is due; 0 if unreadable."""
    topics: pa.Array
    """string: the real topic; null if there is none."""
    queue_ids: np.ndarray
    """int32; −1 if unreadable."""
    keys: pa.Array
    """string: topic + "+" + unique key; null without one."""
    deleted_keys: pa.Array
    """string: the key by which it names the message that it deletes; null for a message."""
    roll_times: np.ndarray
    """int64: how often it was rolled."""
    rules: Mapping[int, str]
    """Row → why it cannot be delivered. Java's timer stops at such a record forever."""

    @property
    def is_deletion(self) -> np.ndarray:
        """Which rows only delete another one."""
        return np.asarray(self.deleted_keys.is_valid().to_numpy(zero_copy_only=False))

    @property
    def names(self) -> pa.Array:
        """What tells them apart; null without a unique key. A deletion often has the unique key of the message that it deletes."""
        return pc.binary_join_element_wise(self.keys, self.deleted_keys.fill_null(""), "\x01")

    @property
    def is_sound(self) -> np.ndarray:
        """Which rows violate no rule."""
        sound = np.ones(len(self.records), bool)
        sound[list(self.rules)] = False
        return sound

    def take(self, rows: np.ndarray) -> TimerRecords:
        """The rows of a mask."""
        if rows.all():
            return self
        kept, numbers = pa.array(rows), np.cumsum(rows) - 1
        return TimerRecords(
            self.records.take(rows),
            self.out_ms[rows],
            self.topics.filter(kept),
            self.queue_ids[rows],
            self.keys.filter(kept),
            self.deleted_keys.filter(kept),
            self.roll_times[rows],
            {int(numbers[row]): rule for row, rule in self.rules.items() if rows[row]},
        )


def read_timer_records(records: Records, max_message_size: int) -> TimerRecords:
    """Decode whole records of the timer's topic."""
    properties = decode_property_maps(records.raw_properties())
    topics, unique_keys = properties.values_of(REAL_TOPIC), properties.values_of("UNIQ_KEY")
    out_ms = whole_numbers(properties.values_of(TIMER_OUT_MS), pa.int64())
    queue_ids = whole_numbers(properties.values_of(REAL_QUEUE_ID), pa.int32())
    deleted_keys = properties.values_of(TIMER_DELETED_KEY)
    is_message = deleted_keys.is_null().to_numpy(zero_copy_only=False)
    sizes, largest = records.column("size_bytes"), timer_record_limit(max_message_size)
    refused = {
        f"its {TIMER_OUT_MS} is no whole number": out_ms.is_null().to_numpy(zero_copy_only=False),
        f"it has more than {largest} bytes": sizes > largest,
        f"its {REAL_QUEUE_ID} is no whole number": is_message & queue_ids.is_null().to_numpy(zero_copy_only=False),
        f"its {REAL_TOPIC} is missing or no topic": is_message & ~_are_topics(topics),
    }
    rules: dict[int, str] = {}
    for rule, rows in refused.items():
        rules = dict.fromkeys(np.flatnonzero(rows).tolist(), rule) | rules
    roll_times = whole_numbers(properties.values_of(TIMER_ROLL_TIMES), pa.int32())
    return TimerRecords(
        records,
        _filled(out_ms, 0),
        topics,
        _filled(queue_ids, -1).astype(np.int32),
        pc.binary_join_element_wise(topics, unique_keys, "+"),
        deleted_keys,
        _filled(roll_times, 0),
        rules,
    )


class LastRolls:
    """The greatest roll count of each message that was put back; a message that is put back stays the same message."""

    def __init__(self, parts: Iterable[TimerRecords]) -> None:
        """`parts` are all records of the queue."""
        rolled = [part.take(part.roll_times > 0) for part in parts]
        table = pa.table(
            {
                "name": pa.chunked_array([_names(part) for part in rolled], pa.string()),
                "rolls": pa.chunked_array([pa.array(part.roll_times, pa.int64()) for part in rolled], pa.int64()),
            }
        ).drop_null()
        found = table.group_by("name", use_threads=False).aggregate([("rolls", "max")])
        self._names = found["name"].combine_chunks()
        self._rolls = found["rolls_max"].to_numpy()

    def are_older(self, timed: TimerRecords) -> np.ndarray:
        """Which rows have a later copy in the queue."""
        rows = pc.index_in(_names(timed), self._names)
        is_rolled = rows.is_valid().to_numpy(zero_copy_only=False)
        older = np.zeros(len(is_rolled), bool)
        older[is_rolled] = timed.roll_times[is_rolled] < self._rolls[rows.drop_null().to_numpy()]
        return older


def _names(timed: TimerRecords) -> pa.Array:
    """Names that identify messages; null without a key."""
    return pc.binary_join_element_wise(timed.names, pa.array(timed.out_ms).cast(pa.string()), " ")


def due_messages(
    timed: TimerRecords, is_rolled: np.ndarray, entered_ms: np.ndarray, now_ms: int, *, appends_crc: bool = False
) -> tuple[InnerMessages, np.ndarray]:
    """For each record its message, or where `is_rolled` the record itself again; and which of them a record can hold.

    `entered_ms` is when each was entered in the wheel. The results for rows that violate a rule, and for deletions that are not
    rolled, are meaningless.
    """
    messages = InnerMessages.of_records(timed.records)
    rolled = pa.array(is_rolled)
    rolls = pa.array(timed.roll_times + 1, mask=~is_rolled).cast(pa.large_string())
    properties = _with_properties(
        messages.properties,
        {
            TIMER_ENQUEUE_MS: pa.array(entered_ms).cast(pa.large_string()),
            TIMER_ROLL_TIMES: rolls,
            TIMER_DEQUEUE_MS: pa.repeat(pa.scalar(str(now_ms), pa.large_string()), len(is_rolled)),
        },
    )
    if appends_crc:
        properties = with_crc_room(properties)
    due = messages._replace(
        topics=pc.if_else(rolled, TIMER_TOPIC, timed.topics),
        queue_ids=np.where(is_rolled, 0, timed.queue_ids).astype(np.int32),
        properties=properties,
        prepared_transaction_offsets=np.zeros(len(is_rolled), np.int64),
    )
    return due, pc.binary_length(properties).to_numpy() <= PROPERTIES_LIMIT_BYTES


def cancelled_rows(keys: pa.Array, deleted_keys: pa.Array, ticks: np.ndarray, is_rolled: np.ndarray) -> np.ndarray:
    """Which messages a deletion in their own slot removes. `ticks` are the slots. Java: TimerDequeueGetMessageService, buildDeleteKey.

    Up to 5.3 a deletion names topic + "+" + unique key; from 5.4 on the unique key alone, unless appendTopicForTimerDeleteKey is set.
    Departure: both forms are compared, as the deletion may be another release's. No topic has a "+".
    """
    is_deletion = deleted_keys.is_valid().to_numpy(zero_copy_only=False)
    deleting = is_deletion & ~is_rolled
    cancelled = np.zeros(len(ticks), bool)
    if deleting.any():
        targets = np.flatnonzero(~is_deletion & ~is_rolled & np.isin(ticks, ticks[deleting]))
        whole = keys.take(pa.array(targets))
        deleted = _of_slot(ticks[deleting], deleted_keys.filter(pa.array(deleting)))
        for form in (whole, pc.replace_substring_regex(whole, r"^[^+]*\+", "")):
            names = _of_slot(ticks[targets], form)
            hit = pc.and_(pc.is_in(names, deleted), names.is_valid()).to_numpy(zero_copy_only=False)
            cancelled[targets[hit]] = True
    return cancelled


def concat_messages(parts: Sequence[InnerMessages]) -> InnerMessages:
    """Concatenate the messages of several log files."""
    if len(parts) == 1:
        return parts[0]
    hosts = [part.born_hosts for part in parts if part.born_hosts is not None]
    width = max(column.itemsize for column in hosts)
    columns = [
        pa.chunked_array(column).combine_chunks()
        if isinstance(column[0], pa.Array)
        else np.concatenate([_wide(values, width) if values.dtype.kind == "V" else values for values in column])
        for column in zip(*parts, strict=True)
    ]
    return InnerMessages._make(columns)


def _wide(hosts: np.ndarray, width: int) -> np.ndarray:
    """Hosts padded with zeros."""
    rows = np.zeros((len(hosts), width), np.uint8)
    rows[:, : hosts.itemsize] = np.ascontiguousarray(hosts).view(np.uint8).reshape(len(hosts), hosts.itemsize)
    return rows.view(f"V{width}")[:, 0]


def _of_slot(ticks: np.ndarray, keys: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.array(ticks).cast(pa.string()), keys, " ")


def whole_numbers(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The numbers, null where Long.parseLong or Integer.parseInt would throw."""
    texts = pc.if_else(pc.match_substring_regex(texts, _WHOLE_NUMBER), texts, None)
    texts = pc.replace_substring_regex(pc.utf8_ltrim(texts, "+"), r"^(-?)0+([0-9])", r"\1\2")
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:  # one is too great: check them one by one
        bound = 1 << (kind.bit_width - 1)
        values = [None if text is None else int(text) for text in texts.to_pylist()]
        return pa.array([value if value is not None and -bound <= value < bound else None for value in values], kind)


def _filled(numbers: pa.Array, otherwise: int) -> np.ndarray:
    return np.asarray(numbers.cast(pa.int64()).fill_null(otherwise).to_numpy(), np.int64)


def _are_topics(topics: pa.Array) -> np.ndarray:
    """Which of them are possible as a topic of a record and of a queue's directory; each different one is checked once."""
    distinct = topics.dictionary_encode()
    sound = np.array([_is_topic(topic) for topic in distinct.dictionary.to_pylist()] + [False])
    return sound[distinct.indices.fill_null(len(sound) - 1).to_numpy()]


def _is_topic(topic: str) -> bool:
    limit = RETRY_TOPIC_LENGTH_LIMIT if topic.startswith(RETRY_PREFIX) else TOPIC_LENGTH_LIMIT
    try:
        validate_path_element("topic", topic)
    except NameIllegalError:
        return False
    return len(topic.encode()) <= limit


def _with_properties(properties: pa.Array, added: Mapping[str, pa.Array]) -> pa.Array:
    """Property strings with these properties set, replacing present ones; a row with null is unchanged."""
    for name, values in added.items():
        properties = _without(properties, name, values.is_valid())
    return joined(closed(properties), *(encoded_property(name, values) for name, values in added.items()))


def _without(properties: pa.Array, name: str, rows: pa.Array) -> pa.Array:
    """Property strings, without a property in some rows."""
    pattern = f"(^|\x02){name}\x01[^\x02]*"
    has = pc.and_(rows, pc.match_substring_regex(properties, pattern)).to_numpy(zero_copy_only=False)
    some = np.flatnonzero(has)
    if not len(some):
        return properties
    kept = pc.replace_substring_regex(properties.take(pa.array(some)), pattern, "")
    kept = pc.replace_substring_regex(kept, "^\x02", "")
    order = np.arange(len(properties))
    order[some] = len(properties) + np.arange(len(some))
    return pa.concat_arrays([properties, kept.cast(pa.large_binary())]).take(pa.array(order))


NEVER_ENTERED = 2**63 - 1
"""TIMER_ENQUEUE_MS of a message that Java delivered without entering it. Java: putMessageToTimerWheel."""
_MARK = f"\x02{TIMER_DEQUEUE_MS}\x01"


def is_sealed(file_system: LocalFileSystem, root: str, checkpoint: TimerCheckpoint) -> bool:
    """Whether the checkpoint is the last one of a timer of ours that ended normally."""
    return file_system.read_file(_seal(root)) == encode_timer_checkpoint(checkpoint)


def seal(file_system: LocalFileSystem, root: str, checkpoint: TimerCheckpoint) -> None:
    """Note that this checkpoint covers everything that was put."""
    if not is_sealed(file_system, root, checkpoint):
        file_system.replace(_seal(root), encode_timer_checkpoint(checkpoint))


def _seal(root: str) -> str:
    return f"{root}/spark_mq/timer_seal"


class PutBefore:
    """Messages that were put already, with their counts; the last of them at `latest_ms`."""

    def __init__(self, names: Iterable[str] = (), latest_ms: int = -1) -> None:
        self._names = Counter(names)
        self.latest_ms = latest_ms

    def __len__(self) -> int:
        return self._names.total()

    def take(self, names: pa.Array, out_ms: np.ndarray, entered_ms: np.ndarray) -> np.ndarray:
        """Which of these (`TimerRecords.names`) were put. Each is found once."""
        taken = np.zeros(len(names), bool)
        if not self._names:
            return taken
        names = _unit_names(names, out_ms, entered_ms)
        for row in np.flatnonzero(pc.is_in(names, pa.array(list(self._names), pa.string()))).tolist():
            name = names[row].as_py()
            taken[row] = self._names[name] > 0
            self._names[name] -= int(taken[row])
        self._names = +self._names
        return taken


def put_since(log: CommitLog, log_end: int, read_time_ms: int) -> PutBefore:
    """The messages that timers have put into the log from slots since a time."""
    names: list[str] = []
    latest_ms = -1
    for _, records in log.walk(_start(log, log_end, read_time_ms), check_crc=False):
        recent = records.take(records.column("store_time_ms") >= read_time_ms)
        for name, put_ms in _names_in(recent) if len(recent) else ():
            if put_ms > read_time_ms:  # else its slot was earlier
                names.append(name)
                latest_ms = max(latest_ms, put_ms)
    return PutBefore(names, latest_ms)


def _start(log: CommitLog, log_end: int, since_ms: int) -> int:
    """The start of the last file whose first record is older, or of the first one."""
    files = [file for file in log.files if file.start < log_end]
    for file in reversed(files):
        if _first_store_time(log, file) < since_ms:
            return file.start
    return files[0].start if files else 0


def _first_store_time(log: CommitLog, file: LogFile) -> int:
    opened = log.open_file(file)
    if opened.size_bytes < MINIMUM_RECORD_SIZE + BLANK_SIZE:
        return 0
    records = Records(opened.view(0, opened.size_bytes), np.zeros(1, np.int64))
    return int(records.column("store_time_ms")[0]) if records.is_whole[0] else 0


def _names_in(records: Records) -> Iterator[tuple[str, int]]:
    """Names of the messages that a timer has put, with TIMER_DEQUEUE_MS."""
    raw = pc.binary_join_element_wise(pa.scalar(b"\x02", pa.binary()), records.raw_properties(), b"")
    marked = pc.match_substring(raw, _MARK).to_numpy(zero_copy_only=False)
    if not marked.any():
        return
    records = records.take(marked)
    timed = read_timer_records(records, max_message_size=2**31)
    properties = decode_property_maps(records.raw_properties())
    entered_ms, put_ms = (
        whole_numbers(properties.values_of(name), pa.int64()).fill_null(-1).to_numpy()
        for name in (TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS)
    )
    for name, time_ms in zip(
        _unit_names(timed.names, timed.out_ms, entered_ms).to_pylist(), put_ms.tolist(), strict=True
    ):
        if name is not None:
            yield name, time_ms


def _unit_names(names: pa.Array, out_ms: np.ndarray, entered_ms: np.ndarray) -> pa.Array:
    """Names that identify the units' messages; null without a key."""
    return pc.binary_join_element_wise(
        names, *(pa.array(times).cast(pa.string()) for times in (out_ms, entered_ms)), " "
    )
