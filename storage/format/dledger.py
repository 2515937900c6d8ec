"""DLedger's files: the entries of its log, the units of its index, its checkpoint, and a member's term.

    entry     | magic 4 | size 4 | index 8 | term 8 | pos 8 | channel 4 | chain CRC 4 | body CRC 4 | body size 4 | body |
    index     | magic 4 | pos 8 | size 4 | index 8 | term 8 |       unit n, at 32 n, is of entry n
    filler    | −1 4 | rest of the file 4 |                         at a data file's end, where the next entry does not fit

Big-endian. `size` counts the head, `pos` is the entry's own place. A broker's entry holds one record of its commit log; a batch makes
several entries. The record names the place of its own first byte, 48 behind the entry's. No broker sets channel and CRCs: they are 0.
A checkpoint is a Java properties file with committedIndex and endIndex, written every three seconds. So is `currterm`, with the term
that a member has seen last and whom it voted for in it.

This package's own file beside them, for entries that have no sums of their own:

    base      | index 8 | begin 8 | 0 8 | 0 4 | unit CRC 4 |             the log is known from begin to this index
    sum       | index 8 | term 8 | durable index 8 | entry CRC 4 | unit CRC 4 |    unit n is of the n-th entry behind the base

Java: DLedgerEntry, DLedgerEntryCoder, MmapFileList, DLedgerMmapFileStore, MemberState (DLedger 0.3).
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np

from storage.errors import CorruptRecordError
from storage.format.arrays import struct_of, view_at
from storage.format.record import MINIMUM_RECORD_SIZE, chain, find_candidates

ENTRY_MAGIC = 1
FILLER_MAGIC = -1
FILLER_SIZE = 8  # at least this much stays free for the filler at a file's end
FILLER = struct.Struct(">ii")
"""A filler, and the beginning of an entry: magic and size."""

ENTRY_HEAD = np.dtype(
    [
        ("magic", ">i4"),
        ("size_bytes", ">i4"),
        ("entry_index", ">i8"),
        ("term", ">i8"),
        ("place", ">i8"),
        ("channel", ">i4"),
        ("chain_crc", ">i4"),
        ("body_crc", ">i4"),
        ("body_size_bytes", ">i4"),
    ]
)
ENTRY_HEAD_SIZE = ENTRY_HEAD.itemsize
assert ENTRY_HEAD_SIZE == 48
_HEAD_STRUCT = struct_of(ENTRY_HEAD)

INDEX_UNIT = np.dtype(
    [("magic", ">i4"), ("place", ">i8"), ("size_bytes", ">i4"), ("entry_index", ">i8"), ("term", ">i8")]
)
INDEX_UNIT_SIZE = INDEX_UNIT.itemsize
assert INDEX_UNIT_SIZE == 32
_INDEX_STRUCT = struct_of(INDEX_UNIT)

_SUM = struct.Struct(">qqqII")
SUM_SIZE = _SUM.size
assert SUM_SIZE == 32, "a page holds whole units"


class EntryHead(NamedTuple):
    """The head of one entry. Java: DLedgerEntry."""

    magic: int
    size_bytes: int
    entry_index: int
    term: int
    place: int
    channel: int
    chain_crc: int
    body_crc: int
    body_size_bytes: int


class EntryNumber(NamedTuple):
    """Which entry of the group's log one is."""

    entry_index: int
    term: int


class IndexUnit(NamedTuple):
    """Where one entry is. Java: DLedgerEntryCoder.encodeIndex."""

    magic: int
    place: int
    size_bytes: int
    entry_index: int
    term: int


class EntrySum(NamedTuple):
    """The CRC-32 of one entry, head and body, and up to where the log was durable when it was written."""

    entry_index: int
    term: int
    durable_index: int
    entry_crc: int


class LogBase(NamedTuple):
    """The entries whose sums are not needed any more: they were durable."""

    end_index: int
    begin_index: int


class Entries(NamedTuple):
    """Sound entries that follow each other in a buffer."""

    positions: np.ndarray
    """Where each one's head begins."""
    heads: np.ndarray

    @property
    def record_positions(self) -> np.ndarray:
        return self.positions + ENTRY_HEAD_SIZE


def encode_entry_head(head: EntryHead) -> bytes:
    """The bytes of a head."""
    return _HEAD_STRUCT.pack(*head)


def encode_index_unit(unit: IndexUnit) -> bytes:
    """The bytes of a unit of the index."""
    return _INDEX_STRUCT.pack(*unit)


def decode_index_unit(buffer: bytes | memoryview) -> IndexUnit:
    """One unit of the index; the caller looks whether it is the one that it wants."""
    return IndexUnit(*_INDEX_STRUCT.unpack(buffer))


def encode_base(base: LogBase) -> bytes:
    """The first unit of a file of sums."""
    return encode_sum(EntrySum(base.end_index, base.begin_index, 0, 0))


def encode_sum(found: EntrySum) -> bytes:
    """A unit with its own CRC."""
    unit = _SUM.pack(*found, 0)[:-4]
    return unit + zlib.crc32(unit).to_bytes(4)


def decode_sums(content: bytes) -> tuple[LogBase, tuple[EntrySum, ...]] | None:
    """The base, and the sums behind it up to the first that is torn; None where not even the base is whole."""
    units: list[EntrySum] = []
    for at in range(0, len(content) - SUM_SIZE + 1, SUM_SIZE):
        *values, crc = _SUM.unpack_from(content, at)
        follows = len(units) < 2 or values[0] == units[-1].entry_index + 1
        if zlib.crc32(content[at : at + SUM_SIZE - 4]) != crc or not follows:
            break
        units.append(EntrySum(*values))
    return (LogBase(units[0].entry_index, units[0].term), tuple(units[1:])) if units else None


def decode_entry_head(buffer: bytes | memoryview, place: int, before: EntryNumber | None) -> EntryHead:
    """The head of the entry at a place of the log. Raises CorruptRecordError, at position 0, for what a broker cuts off there."""
    head = EntryHead(*_HEAD_STRUCT.unpack_from(buffer))
    rules = (
        ("entry's magic", ENTRY_MAGIC, head.magic),
        ("entry's size", head.body_size_bytes + ENTRY_HEAD_SIZE, head.size_bytes),
        ("entry's place", place, head.place),
        ("entry's index", head.entry_index if before is None else before.entry_index + 1, head.entry_index),
        ("entry's term", head.term if before is None else max(before.term, head.term), head.term),
    )
    for field, expected, found in rules:
        if expected != found:
            raise CorruptRecordError(field, 0, expected, found)
    return head


def entries_in(window: np.ndarray, place: int, before: EntryNumber | None) -> Entries:
    """The entries of records at a window's head that lie in it completely and follow each other; `place` is the window's, `before` the
    entry that it continues (None = unknown).

    Their records are not checked, but have their magic and the size that the entry says.
    """
    last = len(window) - MINIMUM_RECORD_SIZE + 1
    positions = find_candidates(window, ENTRY_HEAD_SIZE, last) - ENTRY_HEAD_SIZE
    heads = view_at(window, positions, ENTRY_HEAD)
    sizes = heads["size_bytes"].astype(np.int64)
    record_sizes = view_at(window, positions + ENTRY_HEAD_SIZE, np.dtype(">i4")).astype(np.int64)
    sound = (heads["magic"] == ENTRY_MAGIC) & (heads["place"] == positions + place)
    sound &= (sizes == record_sizes + ENTRY_HEAD_SIZE) & (
        sizes == heads["body_size_bytes"].astype(np.int64) + ENTRY_HEAD_SIZE
    )
    sound &= positions + sizes <= len(window)
    positions, heads, sizes = positions[sound], heads[sound], sizes[sound]
    follow, _ = chain(positions, sizes, 0)
    positions, heads = positions[follow], heads[follow]
    if len(positions):
        first = EntryNumber(int(heads["entry_index"][0]) - 1, int(heads["term"][0])) if before is None else before
        indexes = np.concatenate(([first.entry_index], heads["entry_index"].astype(np.int64)))
        terms = np.concatenate(([first.term], heads["term"].astype(np.int64)))
        follows = (np.diff(indexes) == 1) & (np.diff(terms) >= 0)
        if not follows.all():
            count = int(np.argmin(follows))
            positions, heads = positions[:count], heads[:count]
    return Entries(positions, heads)


def place_of_next(end: int, size_bytes: int, file_size_bytes: int) -> int:
    """Where an entry of that size begins behind a log that ends at `end`: there, or in the next file, and a filler ends this one.

    The caller has checked that an entry of that size fits into a file. Java: MmapFileList.preAppend.
    """
    left = file_size_bytes - end % file_size_bytes
    return end if size_bytes + FILLER_SIZE <= left else end + left


def committed_index(checkpoint: bytes) -> int | None:
    """The index up to which the group had every entry on a majority of its members, as a checkpoint says; None if it does not."""
    return _number(_properties(checkpoint).get("committedIndex"))


def encode_checkpoint(end_index: int, committed: int) -> bytes:
    """The content of a checkpoint."""
    return f"endIndex={end_index}\ncommittedIndex={committed}\n".encode("ascii")


class Vote(NamedTuple):
    """A member's durable promise: the last term that it has seen, and whom it voted for in it."""

    term: int
    voted_for: str | None


def encode_vote(vote: Vote) -> bytes:
    """The content of `currterm`."""
    return f"currTerm={vote.term}\nvoteLeader={vote.voted_for or ''}\n".encode("latin-1")


def decode_vote(content: bytes) -> Vote | None:
    """The vote in `currterm`; None where the file has no term, and must not be taken for one of a member that never voted."""
    found = _properties(content)
    term = _number(found.get("currTerm"))
    return None if term is None else Vote(term, found.get("voteLeader") or None)


def _properties(content: bytes) -> dict[str, str]:
    rows = (line.partition("=") for line in content.decode("latin-1").splitlines() if not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in rows}


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
