"""What a timer has put behind its last checkpoint: found in the commit log, so that nothing is put twice.

A timer that is killed, or a broker's that is stopped while it delivers, has put messages that its checkpoint does not know. Each of
these records tells by its properties from which unit of the timer log it came: real topic, unique key, TIMER_OUT_MS, and
TIMER_ENQUEUE_MS, the unit's write time (Java, of a message that never had a unit: the greatest long). So whoever goes on looks once at
the records that are not older than the checkpoint's read time. Messages without a unique key, which no client sends, are not told
apart.

A timer of ours that came to its end, and has not found anything put later than now (by a clock that went back), leaves a seal: the
checkpoint as it wrote it last, in ROOT/spark_mq/timer_seal. As long as the checkpoint is the same nobody else has delivered, and there
is nothing to look for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.delay.timer_records import read_timer_records, whole_numbers
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import TimerCheckpoint, encode_timer_checkpoint
from storage.format.properties import decode_property_maps
from storage.format.record import BLANK_SIZE, MINIMUM_RECORD_SIZE
from storage.format.record_batch import Records
from storage.log.commit_log import CommitLog, LogFile
from storage.rules.delays import TIMER_DEQUEUE_MS, TIMER_ENQUEUE_MS

NEVER_ENTERED = 2**63 - 1
"""TIMER_ENQUEUE_MS of a message that Java delivered without entering it. Java: putMessageToTimerWheel."""
_MARK = f"\x02{TIMER_DEQUEUE_MS}\x01"


def is_sealed(file_system: LocalFileSystem, root: str, checkpoint: TimerCheckpoint) -> bool:
    """Whether the checkpoint is the last one of a timer of ours that came to its end."""
    return file_system.read_file(_seal(root)) == encode_timer_checkpoint(checkpoint)


def seal(file_system: LocalFileSystem, root: str, checkpoint: TimerCheckpoint) -> None:
    """This checkpoint knows everything that was put."""
    if not is_sealed(file_system, root, checkpoint):
        file_system.replace(_seal(root), encode_timer_checkpoint(checkpoint))


def _seal(root: str) -> str:
    return f"{root}/spark_mq/timer_seal"


class PutBefore:
    """Messages that have been put already, each as often as it was; the last of them at `latest_ms`."""

    def __init__(self, names: Iterable[str] = (), latest_ms: int = -1) -> None:
        self._names = Counter(names)
        self.latest_ms = latest_ms

    def __len__(self) -> int:
        return self._names.total()

    def take(self, keys: pa.Array, out_ms: np.ndarray, entered_ms: np.ndarray) -> np.ndarray:
        """Which of these have been put. Each is told once."""
        taken = np.zeros(len(keys), bool)
        if not self._names:
            return taken
        names = _names(keys, out_ms, entered_ms)
        for row in np.flatnonzero(pc.is_in(names, pa.array(list(self._names), pa.string()))).tolist():
            name = names[row].as_py()
            taken[row] = self._names[name] > 0
            self._names[name] -= int(taken[row])
        self._names = +self._names
        return taken


def put_since(log: CommitLog, log_end: int, read_time_ms: int) -> PutBefore:
    """What timers have put into the log out of slots from a time on."""
    names: list[str] = []
    latest_ms = -1
    for _, records in log.walk(_start(log, log_end, read_time_ms), check_crc=False):
        recent = records.take(records.column("store_time_ms") >= read_time_ms)
        for name, put_ms in _names_in(recent) if len(recent) else ():
            if put_ms > read_time_ms:  # else its slot was before
                names.append(name)
                latest_ms = max(latest_ms, put_ms)
    return PutBefore(names, latest_ms)


def _start(log: CommitLog, log_end: int, since_ms: int) -> int:
    """The start of the last file whose first record is older, of the first one if none is."""
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
    for name, time_ms in zip(_names(timed.keys, timed.out_ms, entered_ms).to_pylist(), put_ms.tolist(), strict=True):
        if name is not None:
            yield name, time_ms


def _names(keys: pa.Array, out_ms: np.ndarray, entered_ms: np.ndarray) -> pa.Array:
    """What tells a unit's message; null without a key."""
    return pc.binary_join_element_wise(
        keys, *(pa.array(times).cast(pa.string()) for times in (out_ms, entered_ms)), " "
    )
