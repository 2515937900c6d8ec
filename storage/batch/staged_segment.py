"""Staged segments: records that a task has written beside the log, for one commit to take over.

    0                data_size_bytes   + columns_size_bytes
    | records        | columns         | what an earlier use of the file left |

    columns: length of the head (4 bytes) · head (JSON, padded with blanks to 8 bytes) · tags_codes · queue_codes · sizes_bytes ·
             key_counts · key_hashes · transaction_states, of half messages; all little-endian

A segment without records has the columns of commits, whose records are made of the half messages in another segment (`open_runs`).

Files lie in ROOT/spark_mq/staged/SINK/ and come from a pool of used ones, because new pages of the page cache are the most expensive
part of a write. So a file's length means nothing: the content is described by its `StagedSegment`, which travels in a
commit message and is part of the intent. A finished segment is on the disk, including its directory entry. Nothing here is RocketMQ's;
no broker looks into ROOT/spark_mq/.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from isal import isal_zlib

from storage.batch.ledger import Batch
from storage.errors import CorruptRecordError, StagedRowsGoneError
from storage.failpoints import reach
from storage.files.file_system import LocalWriter, ReadableFile
from storage.files.local_file_system import LocalFileSystem
from storage.files.syncs import EarlyFileSync
from storage.format.record import TRANSACTION_COMMIT
from storage.format.record_block import BlockColumns, RecordParts, RecordRun, UnjoinedBlock
from storage.put.half_ends import CommitsOfHalves
from storage.tables.surroundings import own_directory, refuse_links

SUFFIX = ".segment"
POOL_FILES = 64
POOL_BYTES = 4 << 30
"""The pool's limits; files given back beyond either are deleted."""

_STAGED = "spark_mq/staged"
_POOL = "pool"
_PATH = re.compile(r"[0-9a-f]{16}/[0-9]+-[0-9a-zA-Z-]{1,200}\.segment")
_ALIGNMENT = 8
_CHECK_CHUNK = 4 << 20
_MANY_BYTES = 16 << 20
_THREADS = 2


class StagedSegment(NamedTuple):
    """The description of a finished segment; small, and as JSON a list."""

    path: str
    """SINK/BATCH-….segment, relative to ROOT/spark_mq/staged."""
    rows: int
    data_size_bytes: int
    columns_size_bytes: int
    data_crc: int
    columns_crc: int
    first_unique_key: str
    last_unique_key: str
    has_records: bool = True
    """Else it has the columns of commits, whose records are made of the batch's half messages."""

    @classmethod
    def from_json(cls, values: Any) -> StagedSegment:
        """From the list of its values; ValueError for another value, or a path that leads elsewhere.

        An earlier version did not write the last value. It refuses a list with it: it would make records of columns.
        """
        kinds = (str, int, int, int, int, int, str, str, bool)
        if not isinstance(values, list) or [type(value) for value in values] not in (list(kinds), list(kinds[:-1])):
            raise ValueError(f"a staged segment is a list of {len(kinds)} values, found {values!r:.200}")
        segment = cls(*values)
        if not _PATH.fullmatch(segment.path):
            raise ValueError(f"{segment.path!r:.200} is no path of a staged segment")
        if min(segment[1:4]) < 0:
            raise ValueError(f"{segment.path}: a size is negative")
        if not segment.has_records and segment.data_size_bytes:
            raise ValueError(
                f"{segment.path}: a staged segment without records has {segment.data_size_bytes} bytes of them"
            )
        return segment


def sink_digest(sink_id: str, query_id: str) -> bytes:
    """8 bytes that identify a sink and its query: as hex its directory and the start of its intents' names."""
    return hashlib.sha256(json.dumps([sink_id, query_id]).encode()).digest()[:8]


def staged_directory(root: str) -> str:
    return f"{root}/{_STAGED}"


def list_segments(
    file_system: LocalFileSystem, root: str, sink_directory: str | None = None
) -> Iterator[tuple[str, int]]:
    """Path (as in `StagedSegment`) and length of every file that a task, of one sink or of any, has staged or is staging."""
    directory = staged_directory(root)
    for sink in file_system.list_directory(directory):
        if sink.is_directory and sink.name != _POOL and sink_directory in (None, sink.name):
            for entry in file_system.list_directory(f"{directory}/{sink.name}"):
                yield f"{sink.name}/{entry.name}", entry.size_bytes


def check_staged(file_system: LocalFileSystem, paths: Iterable[str]) -> None:
    """Raises StagedRowsGoneError for the first missing file. Their names are unique."""
    for path in paths:
        if not file_system.exists(path):
            raise StagedRowsGoneError(path)


def delete_orphans(
    file_system: LocalFileSystem, root: str, sink_directory: str, batch_id: int, keep: Collection[str]
) -> int:
    """Delete files of attempts at this batch and earlier ones, except the paths in `keep`. Returns how many.

    Call it when the batch is done and its sink's attempts are useless. The files do not go to the pool: a forgotten attempt may
    still be writing.
    """
    count = 0
    for path, _ in list_segments(file_system, root, sink_directory):
        if _PATH.fullmatch(path) and batch_of(path) <= batch_id and path not in keep:
            with suppress(FileNotFoundError):
                file_system.unlink(f"{staged_directory(root)}/{path}")
                count += 1
    return count


def remove_directory(file_system: LocalFileSystem, root: str, sink_directory: str) -> None:
    """Delete the directory of a sink that stages nothing more; a nonempty one stays."""
    file_system.remove_directory(f"{staged_directory(root)}/{sink_directory}")


def remove_staging(file_system: LocalFileSystem, root: str) -> None:
    """Delete the remains of tasks in ROOT/spark_mq if no store was made: the pool, and empty directories."""
    staged = staged_directory(root)
    for entry in file_system.list_directory(f"{staged}/{_POOL}"):
        with suppress(FileNotFoundError):
            file_system.unlink(f"{staged}/{_POOL}/{entry.name}")
    for entry in file_system.list_directory(staged):
        file_system.remove_directory(f"{staged}/{entry.name}")
    for directory in (staged, own_directory(root)):
        file_system.remove_directory(directory)


def batch_of(path: str) -> int:
    """The batch id in a segment's path."""
    return int(path.rpartition("/")[2].partition("-")[0])


class SegmentPool:
    """Reusable files with useless content. Any number of processes may take and give back at once."""

    def __init__(self, file_system: LocalFileSystem, root: str) -> None:
        self._file_system = file_system
        self._staged = staged_directory(root)
        self.directory = f"{self._staged}/{_POOL}"

    def take(self, path: str, *, is_short: bool = False) -> bool:
        """Move a used file, the longest there is, to `path`, relative to the staged directory; False if there is none.

        `is_short`: the shortest, for a caller that will write little.
        """
        pooled = self._file_system.list_directory(self.directory)
        for entry in sorted(pooled, key=lambda entry: entry.size_bytes, reverse=not is_short):
            with suppress(FileNotFoundError):  # another process was faster
                self._file_system.rename(f"{self.directory}/{entry.name}", f"{self._staged}/{path}")
                # Else a power loss could leave both names, and the pool's would be overwritten.
                self._file_system.sync(self.directory)
                return True
        return False

    def give_back(self, path: str) -> None:
        """Take back a file that no intent on the disk names any more. Does nothing if it is gone already."""
        source = f"{self._staged}/{path}"
        if not self._file_system.exists(source):
            return
        with suppress(FileNotFoundError):
            pooled = self._file_system.list_directory(self.directory)
            if len(pooled) >= POOL_FILES or sum(entry.size_bytes for entry in pooled) >= POOL_BYTES:
                self._file_system.unlink(source)
                return
            if not self._file_system.exists(self.directory):
                self._file_system.make_directories(self.directory)
            self._file_system.rename(source, f"{self.directory}/{path.replace('/', '-')}")


class SegmentWriter:
    """Writes one segment. The file appears with the first block; `finish` or `discard` ends it."""

    def __init__(self, file_system: LocalFileSystem, root: str, sink_directory: str, name: str) -> None:
        """`sink_directory` is the hex `sink_digest`, `name` BATCH-…, unique for each attempt, without suffix."""
        self._file_system = file_system
        self._root = root
        self._directory = f"{staged_directory(root)}/{sink_directory}"
        self.path = f"{sink_directory}/{name}{SUFFIX}"
        if not _PATH.fullmatch(self.path):
            raise ValueError(f"{self.path!r} is no path of a staged segment")
        self._full_path = f"{staged_directory(root)}/{self.path}"
        self._pool = SegmentPool(file_system, root)
        self._file: LocalWriter | None = None
        self._sync: EarlyFileSync | None = None
        self._columns: list[BlockColumns] = []
        self._size = 0
        self._crc = 0
        self._first: str | None = None
        """The unique key of the first record; for commits that of the first half."""
        self._last: str | None = None

    @property
    def row_count(self) -> int:
        return sum(columns.row_count for columns in self._columns)

    def append(self, block: UnjoinedBlock) -> None:
        """Append the block's records."""
        if not block.columns.row_count:
            return
        if self._file is None or self._sync is None:
            self._file, self._sync = self._open()
        for piece in block.parts.pieces():
            self._crc = isal_zlib.crc32(piece, self._crc)
            self._file.write(self._size, piece)
            self._size += len(piece)
            reach("amid-staging")
            self._sync.note(len(piece))
        self._note(block.columns, block.parts, 0, block.columns.row_count - 1)

    def append_commits(self, halves: UnjoinedBlock, columns: BlockColumns) -> None:
        """Store the columns of these halves' commits, whose records are made of the halves in another segment."""
        if not columns.row_count:
            return
        if self._file is None:
            self._file, self._sync = self._open(is_short=True)
        rows = np.flatnonzero(halves.columns.transaction_states == TRANSACTION_COMMIT)
        self._note(columns, halves.parts, int(rows[0]), int(rows[-1]))

    def _note(self, columns: BlockColumns, records: RecordParts, first: int, last: int) -> None:
        """Count rows with these columns; the first and last row have the keys of these records."""
        self._columns.append(columns)
        if self._first is None:
            self._first = records.unique_key(first)
        self._last = records.unique_key(last)

    def finish(self) -> StagedSegment | None:
        """Sync the segment and describe it; None, and no file, if nothing was appended."""
        if self._file is None or self._sync is None or self._first is None or self._last is None:
            return None
        columns = encode_columns(_concatenated(self._columns))
        self._file.write(self._size, columns)
        self._sync.finish()
        self._file.close()
        self._file = self._sync = None
        self._file_system.sync(self._directory)
        reach("after-staging")
        return StagedSegment(
            self.path,
            self.row_count,
            self._size,
            len(columns),
            self._crc,
            isal_zlib.crc32(columns),
            self._first,
            self._last,
            has_records=self._size > 0,
        )

    def discard(self) -> None:
        """Drop what was written; the file goes to the pool."""
        if self._file is not None and self._sync is not None:
            self._sync.give_up()
            self._file.close()
            self._file = self._sync = None
            self._pool.give_back(self.path)

    def _open(self, *, is_short: bool = False) -> tuple[LocalWriter, EarlyFileSync]:
        refuse_links(self._file_system, self._root)
        if self._file_system.exists(self._full_path):
            raise FileExistsError(f"{self._full_path} is another attempt's")
        # A killed process may have made it.
        for directory in (self._directory.rpartition("/")[0], self._directory):
            self._file_system.make_directories(directory)
        if not self._pool.take(self.path, is_short=is_short):
            self._file_system.create_file(self._full_path, 0)
        file = self._file_system.open_for_writing(self._full_path)
        return file, EarlyFileSync(file)


class SegmentReader:
    """One finished segment as a `RecordRun`. Opening it reads and checks the columns, `verify_data` the records.

    A caller that reads the records from the first to the last gets an error if they have changed: `read` computes their checksum again.
    """

    def __init__(self, file_system: LocalFileSystem, root: str, segment: StagedSegment) -> None:
        """Raises StagedRowsGoneError if the file is missing, CorruptRecordError if its content is not the described one."""
        self.segment = segment
        self._read_end = self._read_crc = 0
        path = f"{staged_directory(root)}/{segment.path}"
        try:
            self._file: ReadableFile = file_system.open_file(path)
        except FileNotFoundError as error:
            raise StagedRowsGoneError(path, segment.rows) from error
        try:
            encoded = self._file.view(segment.data_size_bytes, segment.columns_size_bytes)
            if len(encoded) != segment.columns_size_bytes:
                missing = segment.data_size_bytes + segment.columns_size_bytes
                raise CorruptRecordError("file length", 0, f"at least {missing}", self._file.size_bytes, path)
            self._check_columns(encoded)
            self._columns = decode_columns(encoded)
        except BaseException:
            self.close()
            raise

    @property
    def columns(self) -> BlockColumns:
        return self._columns

    def read(self, start: int, end: int, into: np.ndarray) -> None:
        """Copy bytes [start, end) of the records, not stamped yet.

        Raises CorruptRecordError at the end of a sequential read from 0 if the segment has changed since it was staged.
        """
        into[:] = self._file.view(start, end - start)
        if not start:
            self._read_end = self._read_crc = 0
        if start == self._read_end:
            self._read_end, self._read_crc = end, isal_zlib.crc32(into, self._read_crc)
            if end == self.segment.data_size_bytes:
                self._check_data(self._read_crc)
                self._check_columns(self._file.view(end, self.segment.columns_size_bytes))

    def verify_data(self) -> None:
        """Read all records; raises CorruptRecordError if they are not those that were staged."""
        crc, size = 0, self.segment.data_size_bytes
        for start in range(0, size, _CHECK_CHUNK):
            crc = isal_zlib.crc32(self._file.view(start, min(_CHECK_CHUNK, size - start)), crc)
        self._check_data(crc)

    def _check_data(self, found: int) -> None:
        if found != self.segment.data_crc:
            raise CorruptRecordError("data CRC", 0, self.segment.data_crc, found, self._file.path)

    def _check_columns(self, encoded: np.ndarray) -> None:
        expected, found = self.segment.columns_crc, isal_zlib.crc32(encoded)
        if found != expected:
            raise CorruptRecordError("columns CRC", self.segment.data_size_bytes, expected, found, self._file.path)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encode_columns(columns: BlockColumns) -> bytes:
    """The columns as a segment stores them after its records."""
    document = {
        "rows": columns.row_count,
        "keys": len(columns.key_hashes),
        "hostSize": columns.host_size,
        "queues": columns.queues,
        "halves": columns.transaction_states is not None,
        "crc": columns.has_crc,
    }
    head = json.dumps(document).encode()
    head += b" " * (-(4 + len(head)) % _ALIGNMENT)
    arrays = [getattr(columns, name).astype(dtype, copy=False).tobytes() for name, dtype in _arrays(document)]
    return b"".join((len(head).to_bytes(4, "little"), head, *arrays))


def decode_columns(encoded: np.ndarray) -> BlockColumns:
    """The inverse, without copying. Raises CorruptRecordError for data that this version has not written."""
    try:
        head_end = 4 + int.from_bytes(encoded[:4].tobytes(), "little")
        head = json.loads(encoded[4:head_end].tobytes())
        arrays: dict[str, Any] = {}
        position = head_end
        for name, dtype in _arrays(head):
            count = head["keys"] if name == "key_hashes" else head["rows"]
            arrays[name] = np.frombuffer(encoded, dtype, count, position)
            position += arrays[name].nbytes
        queues = tuple((topic, queue_id) for topic, queue_id in head["queues"])
        return BlockColumns(queues=queues, host_size=head["hostSize"], has_crc=bool(head.get("crc")), **arrays)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptRecordError("columns", 0, "those of a staged segment of this version", error) from error


_ARRAYS = (
    ("tags_codes", "<i8"),
    ("queue_codes", "<i4"),
    ("sizes_bytes", "<i4"),
    ("key_counts", "<i4"),
    ("key_hashes", "<i4"),
)


def _arrays(head: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return (*_ARRAYS, ("transaction_states", "<i1")) if head.get("halves") else _ARRAYS


def _concatenated(blocks: list[BlockColumns]) -> BlockColumns:
    """The columns of blocks, concatenated; each block has queue codes of its own."""
    codes: dict[tuple[str, int], int] = {}
    queue_codes = []
    for block in blocks:
        of_block = [codes.setdefault(queue, len(codes)) for queue in block.queues]
        queue_codes.append(np.array(of_block, np.int32)[block.queue_codes])
    return BlockColumns(
        tuple(codes),
        np.concatenate(queue_codes),
        np.concatenate([block.sizes_bytes for block in blocks]),
        np.concatenate([block.tags_codes for block in blocks]),
        np.concatenate([block.key_counts for block in blocks]),
        np.concatenate([block.key_hashes for block in blocks]),
        blocks[0].host_size,
        blocks[0].is_queued,
        None
        if blocks[0].transaction_states is None
        else np.concatenate([block.transaction_states for block in blocks]),
        blocks[0].has_crc,
    )


class StagedRuns(NamedTuple):
    """The opened segments of a batch."""

    runs: tuple[RecordRun, ...]
    """One run for each segment, in order."""
    readers: tuple[SegmentReader, ...]

    def verify_data(self) -> None:
        """Read all records, of several segments at once; raises CorruptRecordError if they are not those that were staged."""
        if sum(reader.segment.data_size_bytes for reader in self.readers) < _MANY_BYTES:
            for reader in self.readers:
                reader.verify_data()
        else:
            with ThreadPoolExecutor(_THREADS) as threads:
                list(threads.map(SegmentReader.verify_data, self.readers))


def open_runs(
    file_system: LocalFileSystem, root: str, segments: Iterable[StagedSegment], resources: ExitStack
) -> StagedRuns:
    """Open the segments of a batch, until `resources` end, as the runs that go into the log. Commits without records are made of their
    halves. Raises StagedRowsGoneError, CorruptRecordError.

        halves of task 0 · halves of task 1 · columns of the commits of 0 · of 1    segments
        halves of task 0 · halves of task 1 · commits of 0 · commits of 1           runs

    An earlier version staged commits as records; those runs are unchanged.
    """
    readers = [resources.enter_context(SegmentReader(file_system, root, segment)) for segment in segments]
    return StagedRuns(tuple(_runs(readers)), tuple(readers))


def _runs(readers: Sequence[SegmentReader]) -> Iterable[RecordRun]:
    halves = iter([reader for reader in readers if _commit_count(reader)])
    for reader in readers:
        own = next(halves, None) if reader.columns.transaction_states is None else None
        if reader.segment.has_records:
            yield reader
        else:
            yield _commits(own, reader)


def _commits(halves: SegmentReader | None, commits: SegmentReader) -> CommitsOfHalves:
    wanted = f"the commits of {commits.segment.rows} halves of the batch"
    if halves is None:
        raise CorruptRecordError("columns", 0, wanted, "no such halves", commits.segment.path)
    try:
        return CommitsOfHalves(halves, commits.columns)
    except ValueError as error:
        raise CorruptRecordError("columns", 0, wanted, str(error), commits.segment.path) from error


def _commit_count(reader: SegmentReader) -> int:
    return int(np.count_nonzero(reader.columns.transaction_states == TRANSACTION_COMMIT))


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """What all tasks have staged, and what their rows need."""

    batch: Batch
    segments: Sequence[StagedSegment]
    """Their rows, in order."""
    topics: Mapping[str, int] = field(default_factory=dict)
    """Topics that may be made if they are missing, with their numbers of queues."""
    grown: Mapping[str, int] = field(default_factory=dict)
    """Existing topics that get more queues, with how many."""
    destinations: Collection[tuple[str, int]] = ()
    """The final queues of rows that wait elsewhere first."""
    dead_letters: Sequence[tuple[str, str]] = ()
    """Files of refused rows: where each is staged, and its name once the batch is decided."""
    refused: int = 0
    """How many rows are in them."""
    is_write: bool = False
    """Whether it is a complete write with a name (`writeId`), and no batch of a query."""

    @property
    def row_count(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def came(self) -> int:
        """How many rows the tasks were given. A repeated batch has as many, though other rows may be refused."""
        return self.row_count + self.refused

    @property
    def has_rows(self) -> bool:
        return self.row_count > 0
