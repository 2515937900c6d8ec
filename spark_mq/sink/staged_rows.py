"""A task's rows, staged as ready-made send batches, for one commit to send.

    0        table_start                                                        size_bytes
    | bodies | length of the head (4) · head (JSON) · ranks of all rows (8 each, little-endian) |

    head: {"queues": [[topic, broker, id] …], "batches": [[queue, body bytes, rows, sysFlag] …]}, in the order in which they were cut;
          where rows wait, each batch says as a fifth number whether it is such a row (a version that cannot read this sends nothing)

A finished file is on the disk, with its directory entry. Its `StagedFile` says what it holds; that value travels in the commit
message and stands in the intent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from isal import isal_zlib

from spark_mq.remoting import MessageQueue
from spark_mq.sink.journal import StagedFile
from storage.errors import CorruptRecordError, StagedRowsGoneError
from storage.failpoints import reach
from storage.files.file_system import LocalWriter
from storage.files.local_file_system import LocalFileSystem
from storage.files.syncs import EarlyFileSync

_LENGTH_BYTES = 4
_CHUNK_BYTES = 4 << 20


class StagedBatch(NamedTuple):
    """One send batch in a staged file."""

    queue: MessageQueue
    start: int
    """The begin of its body in the file."""
    size_bytes: int
    sys_flag: int
    ranks: np.ndarray
    """int64: the rank of each row in its task."""
    waits: bool = False
    """One row, which its broker may put elsewhere first (`send_plan.py`)."""


class StagedWriter:
    """Writes one task's file. It appears with the first batch; `finish` or `discard` ends it."""

    def __init__(self, files: LocalFileSystem, directory: str, name: str) -> None:
        self._files = files
        self._directory = directory
        self._name = name
        self._path = f"{directory}/{name}"
        self._writer: LocalWriter | None = None
        self._sync: EarlyFileSync | None = None
        self._position = 0
        self._crc = 0
        self._queues: dict[MessageQueue, int] = {}
        self._batches: list[tuple[int, int, int, int, int]] = []
        self._ranks: list[np.ndarray] = []

    def append(
        self, queue: MessageQueue, body: bytes, sys_flag: int, ranks: np.ndarray, *, waits: bool = False
    ) -> None:
        """One more batch."""
        if self._writer is None or self._sync is None:
            self._files.make_directories(self._directory)
            self._files.create_file(self._path, 0)
            self._writer = self._files.open_for_writing(self._path)
            self._sync = EarlyFileSync(self._writer)
        code = self._queues.setdefault(queue, len(self._queues))
        self._writer.write(self._position, body)
        self._sync.note(len(body))
        self._crc = isal_zlib.crc32(body, self._crc)
        self._position += len(body)
        self._batches.append((code, len(body), len(ranks), sys_flag, int(waits)))
        self._ranks.append(ranks.astype("<i8"))
        reach("live-amid-staging")

    def finish(self) -> StagedFile | None:
        """Write the table and put all of it on the disk; None where no batch came."""
        if self._writer is None or self._sync is None:
            return None
        width = 5 if any(waits for *_, waits in self._batches) else 4
        batches = [one[:width] for one in self._batches]
        head = json.dumps({"queues": list(self._queues), "batches": batches}).encode()
        table = len(head).to_bytes(_LENGTH_BYTES, "little") + head + np.concatenate(self._ranks).tobytes()
        self._writer.write(self._position, table)
        self._sync.finish()  # before it is let go: a full disk may say so only now, and `discard` then takes the file away
        self._files.sync(self._directory)
        self._writer.close()
        self._writer = self._sync = None
        reach("live-after-staging")
        size = self._position + len(table)
        rows = sum(map(len, self._ranks))
        return StagedFile(self._name, rows, size, self._position, self._crc, isal_zlib.crc32(table))

    def discard(self) -> None:
        """Give up what was written and is not finished."""
        if self._writer is not None and self._sync is not None:
            self._sync.give_up()
            self._writer.close()
            self._writer = self._sync = None
            self._files.unlink(self._path)


class StagedReader:
    """One staged file, read by the commit; a context manager is not needed: nothing stays open."""

    def __init__(self, files: LocalFileSystem, directory: str, staged: StagedFile) -> None:
        """Raises StagedRowsGoneError where it is not there, CorruptRecordError where it is not what the task has written."""
        self._files = files
        self._path = f"{directory}/{staged.name}"
        self.staged = staged
        if not files.exists(self._path):
            raise StagedRowsGoneError(self._path)
        self.batches = self._read_table()

    def check(self) -> None:
        """Raises CorruptRecordError unless all bodies are those that the task has written."""
        crc = 0
        for start in range(0, self.staged.table_start, _CHUNK_BYTES):
            crc = isal_zlib.crc32(self.read(start, min(_CHUNK_BYTES, self.staged.table_start - start)), crc)
        if crc != self.staged.data_crc:
            raise CorruptRecordError("staged rows", 0, self.staged.data_crc, crc)

    def read(self, start: int, size_bytes: int) -> bytes:
        """Bytes of the file."""
        file = self._files.open_file(self._path)
        try:
            data = file.view(start, size_bytes).tobytes()
        finally:
            file.close()
        if len(data) != size_bytes:
            raise CorruptRecordError("staged rows", start, f"{size_bytes} bytes", len(data))
        return data

    def _read_table(self) -> tuple[StagedBatch, ...]:
        staged = self.staged
        table = self.read(staged.table_start, staged.size_bytes - staged.table_start)
        if isal_zlib.crc32(table) != staged.table_crc:
            raise CorruptRecordError("table of staged rows", staged.table_start, staged.table_crc, "another sum")
        try:
            return _decode_table(table, staged)
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
            wanted = "a table of this version"
            raise CorruptRecordError("table of staged rows", staged.table_start, wanted, str(error)) from None


def _decode_table(table: bytes, staged: StagedFile) -> tuple[StagedBatch, ...]:
    """The batches of a table whose sum is right. What JSON and NumPy raise says that it is another's."""
    head_size = int.from_bytes(table[:_LENGTH_BYTES], "little")
    head = json.loads(table[_LENGTH_BYTES : _LENGTH_BYTES + head_size])
    ranks = np.frombuffer(table, "<i8", offset=_LENGTH_BYTES + head_size)
    numbers = np.array(head["batches"], np.int64)
    if numbers.ndim != 2 or numbers.shape[1] not in (4, 5):
        raise ValueError("its batches have other fields")
    if numbers.shape[1] == 4:
        numbers = np.column_stack([numbers, np.zeros(len(numbers), np.int64)])
    if (numbers[numbers[:, 4] != 0, 2] != 1).any():
        raise ValueError("of the rows that wait some are not alone")
    queues = [MessageQueue(str(topic), str(broker), int(queue_id)) for topic, broker, queue_id in head["queues"]]
    if (numbers < 0).any() or (numbers[:, 1].sum(), numbers[:, 2].sum()) != (staged.table_start, len(ranks)):
        raise ValueError("the sizes of its batches do not add up")
    if len(ranks) != staged.rows:
        raise ValueError(f"it has {len(ranks)} rows, not {staged.rows}")
    return tuple(_batches(queues, numbers.tolist(), ranks))


def _batches(queues: list[MessageQueue], table: list[list[int]], ranks: np.ndarray) -> Iterator[StagedBatch]:
    start = first = 0
    for code, size_bytes, rows, sys_flag, waits in table:
        yield StagedBatch(queues[code], start, size_bytes, sys_flag, ranks[first : first + rows], bool(waits))
        start, first = start + size_bytes, first + rows
