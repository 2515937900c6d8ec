"""Records decoded while their bytes are read, a window at a time, so that `Records` need not decode them.

    windows of a buffer ──kernels──▶ fields, bodies, properties of regular rows ──▶ `Decoded`, which `Records` gives as its own

If one row is not regular, or differs from its queue's entry, the result is dropped: then there is no `Decoded`, and `Records` decodes
all from the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from storage.compiler import COMPILED, ROWS_WITHOUT_KERNELS
from storage.format.arrays import Memory, as_int64, row_windows, sealed
from storage.format.properties import PropertyMaps
from storage.format.record import HEADERS, MINIMUM_RECORD_SIZE


@dataclass(frozen=True, slots=True)
class Wanted:
    """Parts of records to decode. Other parts can be read later, and are decoded then."""

    fields: frozenset[str] = frozenset()
    """Fields of the fixed header."""
    bodies: bool = False
    """As stored."""
    properties: frozenset[str] = frozenset()
    """Single ones, by name."""
    all_properties: bool = False
    message_ids: bool = False
    topics: bool = False
    """As numbers. Not needed for a queue's records, which all have the same."""
    raw: bool = False
    """The bytes of the records, for parts that are not named here but will be read."""

    def __or__(self, other: Wanted) -> Wanted:
        return Wanted(
            self.fields | other.fields,
            self.bodies or other.bodies,
            self.properties | other.properties,
            self.all_properties or other.all_properties,
            self.message_ids or other.message_ids,
            self.topics or other.topics,
            self.raw or other.raw,
        )

    @staticmethod
    def union(parts: Iterable[Wanted]) -> Wanted:
        whole = Wanted()
        for part in parts:
            whole |= part
        return whole


NOTHING = Wanted()


class LaidWindow(NamedTuple):
    """Ranges that stand in the buffer together."""

    rows: slice
    """Which ranges."""
    end: int
    """Where the last of them ends in the buffer."""
    runs: list[list[int]]
    """What is read in one piece: position in the file, size, place in the buffer."""


class LaidRanges(NamedTuple):
    places: np.ndarray
    """Where each range begins in the buffer of its window."""
    windows: list[LaidWindow]


@dataclass(frozen=True, slots=True)
class WindowLayout:
    """How a reader wants ranges laid out."""

    kernels: Any
    """Compiled functions of `kernels/decode.py`, by name."""
    memory: Memory
    window_bytes: int
    """What a window has at most, or one range."""
    keep: bool
    """Whether the windows stand behind each other in one buffer. Else each begins at its start, and takes the place of the one before,
    which spares the processor's cache.
    """

    def of(self, positions: np.ndarray, sizes: np.ndarray, limit: int, gap_bytes: int) -> LaidRanges:
        """`positions` ascend; nothing behind `limit` is in a run, and of what no range wants only gaps up to `gap_bytes`.

        A window has runs of its own: where ranges overlap, as those of true entries do not, bytes are read twice.
        """
        count = len(positions)
        runs, windows = (self.memory.longs(name, 3 * count).reshape(count, 3) for name in ("runs", "windows"))
        laid = self.kernels.Laid(np.empty(count, np.int64), runs, windows)
        limits = self.kernels.Limits(limit, gap_bytes, self.window_bytes, self.keep)
        run_count, window_count = self.kernels.lay_out(as_int64(positions), as_int64(sizes), limits, laid)
        return LaidRanges(
            laid.places, list(_windows(windows[:window_count].tolist(), runs[:run_count].tolist(), count))
        )


def _windows(windows: list[list[int]], runs: list[list[int]], count: int) -> Iterator[LaidWindow]:
    for (first, first_run, end), (last, last_run, _) in pairwise([*windows, [count, len(runs), 0]]):
        yield LaidWindow(slice(first, last), end, runs[first_run:last_run])


WINDOW_BYTES = 768 << 10
"""Read and decoded at a time: small enough to stay in a core's cache, large enough that calls cost nothing."""
MOST_BYTES = 64 << 20
"""Of records that are decoded together."""
MOST_TOPICS = 64
"""Of records that are decoded together: each record's is looked for among them."""
_HEADER = HEADERS[0]
_NOTHING = np.empty(0, np.int32)
_NO_BYTES = np.empty(0, np.uint8)


class NumberedTopics(NamedTuple):
    """The topics of n records."""

    names: tuple[bytes, ...]
    """Distinct, in the order of their first records."""
    codes: np.ndarray
    """Which of them each record has, int32."""


class Decoded(NamedTuple):
    """The decoded parts of n records, which are all regular and agree with their entries; None for unwanted parts."""

    columns: dict[str, np.ndarray]
    """Fields of the header in native byte order, hosts as V8."""
    bodies: pa.Array | None
    """As stored, binary."""
    properties: dict[str, pa.Array]
    """Single ones, string."""
    maps: PropertyMaps | None
    message_ids: pa.Array | None
    topics: NumberedTopics | None

    def values_of(self, name: str) -> pa.StringArray:
        """The value of a property that was wanted, null where a message has none."""
        return self.properties[name]


class Claims(NamedTuple):
    """The common claims of a queue's entries about their records: topic and queue id."""

    topic: bytes
    queue_id: int


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a reader wants the records of one queue decoded."""

    kernels: Any
    """Compiled functions of `kernels/decode.py`, by name."""
    claims: Claims | None
    """None of records that a walk has found."""
    wanted: Wanted
    memory: Memory

    @property
    def layout(self) -> WindowLayout:
        """How the bytes of records are to be read."""
        return WindowLayout(self.kernels, self.memory, WINDOW_BYTES, self.wanted.raw)

    def decoder(
        self, places: np.ndarray, sizes: np.ndarray, properties: np.ndarray | None = None
    ) -> WindowDecoder | None:
        """For records that entries claim to lie at these places of the log (empty = at any), with these sizes, none of them negative.

        None for those that would take much memory: few do, and what an entry claims may be false.
        """
        return WindowDecoder(self, places, sizes, properties) if int(sizes.sum()) <= MOST_BYTES else None


def decoding_of(rows: int, claims: Claims, wanted: Wanted | None, memory: Memory) -> Decoding | None:
    """How to decode so many rows; None where nothing is wanted, or kernels do not pay."""
    if wanted is None or (kernels := COMPILED.for_rows(rows)) is None:
        return None
    return Decoding(kernels, claims, wanted, memory)


def decode_rows(decoding: Decoding, buffer: np.ndarray, positions: np.ndarray, sizes: np.ndarray) -> Decoded | None:
    """What is wanted of records that stand in one buffer, wherever in the log they lie."""
    decoder = decoding.decoder(np.empty(0, np.int64), sizes)
    if decoder is None:
        return None
    for rows, _ in row_windows(positions, sizes, WINDOW_BYTES):
        decoder.add(buffer, positions, rows)
    return decoder.finish()


class Walked(NamedTuple):
    """Regular records that stand one behind the other in a buffer."""

    positions: np.ndarray
    decoded: Decoded | None


class Walker:
    """Finds the records at the start of a buffer, and decodes the wanted parts."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._memory = Memory()
        self._rows = 0

    def walk(self, buffer: np.ndarray) -> Walked | None:
        """Those from the buffer's beginning up to the first that is not regular.

        None where no kernels are there, or hardly one record is regular.
        """
        kernels = COMPILED.for_rows(self._rows)
        room = len(buffer) // MINIMUM_RECORD_SIZE
        if kernels is None:
            self._rows = room // 8  # a record has some hundred bytes
            return None
        positions, sizes, properties = (self._memory.longs(name, room) for name in ("positions", "sizes", "properties"))
        count = kernels.walk(sealed(buffer), 0, positions, sizes, properties)
        if not count or (
            count < ROWS_WITHOUT_KERNELS and _has_more(buffer, int(positions[count - 1] + sizes[count - 1]))
        ):
            return None
        self._rows = count
        positions, sizes, properties = (column[:count].copy() for column in (positions, sizes, properties))
        decoding = Decoding(kernels, None, self._wanted, self._memory)
        if (decoder := decoding.decoder(np.empty(0, np.int64), sizes, properties)) is None:
            return Walked(positions, None)
        decoder.add(buffer, positions, slice(0, count))
        return Walked(positions, decoder.finish())


def _has_more(buffer: np.ndarray, at: int) -> bool:
    """Whether there is room for what is said to stand there."""
    return 4 <= len(buffer) - at >= int.from_bytes(buffer[at : at + 4].tobytes(), "big")


class WindowDecoder:
    """Decodes the rows of one buffer in their order, some at a time."""

    def __init__(
        self, decoding: Decoding, places: np.ndarray, sizes: np.ndarray, properties: np.ndarray | None = None
    ) -> None:
        """`properties` says where those of each row begin, of rows that a walk has found."""
        kernels, wanted = decoding.kernels, decoding.wanted
        self._kernels = kernels
        self._claims = decoding.claims
        self._topic = sealed(np.frombuffer(b"" if decoding.claims is None else decoding.claims.topic, np.uint8))
        self._places = sealed(places)
        self._sizes = sealed(sizes)
        self._properties = np.empty(len(sizes), np.int64) if properties is None else properties
        self._done = 0
        self._is_regular = True
        count, room = len(sizes), int(sizes.sum())
        self._fields = _Fields(kernels, wanted.fields, count)
        self._bodies = _Bodies(kernels, count, room) if wanted.bodies else None
        self._ids = np.empty(32 * count, np.uint8) if wanted.message_ids else None
        self._topics = _Topics(kernels, count) if wanted.topics else None
        has_properties = bool(wanted.properties) or wanted.all_properties
        self._texts = _Properties(kernels, wanted, count, room, decoding.memory) if has_properties else None

    def add(self, buffer: np.ndarray, positions: np.ndarray, rows: slice) -> bool:
        """Decode these rows, whose bytes stand in the buffer where `positions` (of all rows) says. Whether all were regular so far."""
        kernels, first, last = self._kernels, rows.start, rows.stop
        if not self._is_regular:
            return False
        given = kernels.Rows(sealed(buffer), sealed(positions), self._sizes, self._places, self._properties)
        self._is_regular = (
            first == self._done
            and last <= min(len(positions), len(self._sizes))
            and (self._claims is None or kernels.check(given, first, last, self._topic, self._claims.queue_id))
            and (self._texts is None or self._texts.add(given, first, last))
        )
        if not self._is_regular:
            return False
        self._done = last
        self._fields.add(given, first, last)
        if self._bodies is not None and not self._bodies.add(given, first, last):
            self._is_regular = False
            return False
        if self._ids is not None:
            kernels.message_ids(given, first, last, self._ids)
        if self._topics is not None:
            self._is_regular = self._topics.add(given, first, last)
        return self._is_regular

    def finish(self) -> Decoded | None:
        """What was wanted; None where a row is not regular, or was not given."""
        count = len(self._sizes)
        if not self._is_regular or self._done < count:
            return None
        texts, maps = self._texts.arrays(count) if self._texts is not None else ({}, None)
        return Decoded(
            self._fields.columns(),
            self._bodies.array(count) if self._bodies is not None else None,
            texts,
            maps,
            _ids_of(self._ids, count) if self._ids is not None else None,
            self._topics.numbered if self._topics is not None else None,
        )


class _FieldNames(NamedTuple):
    """Fields of one kind, and where they stand in the header."""

    names: list[str]
    positions: np.ndarray


@lru_cache
def _by_kind(fields: frozenset[str]) -> tuple[_FieldNames, ...]:
    """Those of 64 bits, of 32, and hosts."""
    kinds = [[name for name in sorted(fields) if is_kind(_HEADER[name])] for is_kind in (_is_long, _is_int, _is_host)]
    return tuple(
        _FieldNames(names, np.array([_HEADER.fields[name][1] for name in names], np.int64))  # type: ignore[index]
        for names in kinds
    )


class _Fields:
    def __init__(self, kernels: Any, fields: frozenset[str], count: int) -> None:
        self._kernels = kernels
        kinds = _by_kind(fields)
        self._names = [kind.names for kind in kinds]
        longs, ints, hosts = (kind.positions for kind in kinds)
        self._wanted = kernels.Fields(
            longs,
            np.empty((len(longs), count), np.int64),
            ints,
            np.empty((len(ints), count), np.int32),
            hosts,
            np.empty((len(hosts), count), np.int64),
        )

    def add(self, given: Any, first: int, last: int) -> None:
        if any(self._names):
            self._kernels.fields(given, first, last, self._wanted)

    def columns(self) -> dict[str, np.ndarray]:
        longs, ints, hosts = self._names
        columns = dict(zip(longs, self._wanted.longs, strict=True))
        columns |= {
            name: column.view(_HEADER[name].newbyteorder("="))
            for name, column in zip(ints, self._wanted.ints, strict=True)
        }
        return columns | {name: column.view("V8") for name, column in zip(hosts, self._wanted.hosts, strict=True)}


def _is_long(layout: np.dtype) -> bool:
    return layout.kind != "V" and layout.itemsize == 8


def _is_int(layout: np.dtype) -> bool:
    return layout.kind != "V" and layout.itemsize == 4


def _is_host(layout: np.dtype) -> bool:
    return layout.kind == "V"


class _Bodies:
    def __init__(self, kernels: Any, count: int, room: int) -> None:
        self._kernels = kernels
        self._data = pa.allocate_buffer(room)  # of Arrow's pool: fresh pages would cost as much as the copy
        self._offsets = np.empty(count + 1, np.int32)
        self._offsets[0] = 0
        self._column = kernels.Strings(self._offsets, np.frombuffer(self._data, np.uint8))

    def add(self, given: Any, first: int, last: int) -> bool:
        """Whether they are as they were when they were checked."""
        return bool(self._kernels.bodies(given, first, last, self._column))

    def array(self, count: int) -> pa.Array:
        data = self._data.slice(0, int(self._offsets[count]))
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(self._offsets), data])


class _Topics:
    """The topics of rows that are added at once."""

    def __init__(self, kernels: Any, count: int) -> None:
        self._kernels = kernels
        self._codes = np.empty(count, np.int32)
        self.numbered: NumberedTopics | None = None

    def add(self, given: Any, first: int, last: int) -> bool:
        """Whether they are few."""
        begins, ends = np.empty(MOST_TOPICS, np.int64), np.empty(MOST_TOPICS, np.int64)
        count = self._kernels.number_topics(given, first, last, self._codes, begins, ends)
        if count < 0 or (first, last) != (0, len(self._codes)):
            return False
        places = zip(begins[:count].tolist(), ends[:count].tolist(), strict=True)
        self.numbered = NumberedTopics(tuple(given.buffer[begin:end].tobytes() for begin, end in places), self._codes)
        return True


class _PropertyNames(NamedTuple):
    """Names of single properties, one behind the other."""

    names: list[str]
    data: np.ndarray
    offsets: np.ndarray


@lru_cache
def _sorted_names(properties: frozenset[str]) -> _PropertyNames:
    names = sorted(properties)
    texts = [name.encode() for name in names]
    data = sealed(np.frombuffer(b"".join(texts), np.uint8))
    return _PropertyNames(names, data, np.cumsum([0, *map(len, texts)], dtype=np.int64))


class _Properties:
    def __init__(self, kernels: Any, wanted: Wanted, count: int, room: int, memory: Memory) -> None:
        self._kernels = kernels
        names, data, name_offsets = _sorted_names(wanted.properties)
        self._names = names
        offsets = memory.ints("text offsets", len(names), count + 1)
        offsets[:, 0] = 0
        self._texts = kernels.Texts(
            data,
            name_offsets,
            offsets,
            memory.take("text validity", len(names) * count).reshape(len(names), count),
            memory.take("texts", len(names) * room),
            room,
            np.zeros(len(names), np.uint8),
        )
        empty = kernels.Strings(_NOTHING, _NO_BYTES)
        self._maps = kernels.Maps(_NOTHING, empty, empty, kernels.new_sequence(len(names)))
        if wanted.all_properties:
            entries = min(room // 3, kernels.MAX_ENTRIES * count)
            self._maps = self._maps._replace(
                offsets=_begun(np.empty(count + 1, np.int32)),
                names=kernels.Strings(_begun(memory.ints("name offsets", entries + 1)), memory.take("names", room)),
                values=kernels.Strings(_begun(memory.ints("value offsets", entries + 1)), memory.take("values", room)),
            )

    def add(self, given: Any, first: int, last: int) -> bool:
        return bool(self._kernels.properties(given, first, last, self._texts, self._maps))

    def arrays(self, count: int) -> tuple[dict[str, pa.Array], PropertyMaps | None]:
        texts = {name: self._text(column, count) for column, name in enumerate(self._names)}
        if not len(self._maps.offsets):
            return texts, None
        entries = int(self._maps.offsets[count])
        return texts, PropertyMaps(
            self._maps.offsets, _strings(self._maps.names, entries), _strings(self._maps.values, entries)
        )

    def _text(self, column: int, count: int) -> pa.Array:
        begin = column * self._texts.room
        data = self._texts.data[begin : begin + int(self._texts.offsets[column, count])]
        valid = None
        if self._texts.has_null[column]:
            valid = pa.py_buffer(np.packbits(self._texts.valid[column], bitorder="little"))
        buffers = [valid, pa.py_buffer(self._texts.offsets[column].copy()), pa.py_buffer(data.copy())]
        return pa.Array.from_buffers(pa.string(), count, buffers)


def _begun(offsets: np.ndarray) -> np.ndarray:
    offsets[0] = 0
    return offsets


def _strings(column: Any, count: int) -> pa.Array:
    """A copy, as large as it must be."""
    offsets, data = column.offsets[: count + 1].copy(), column.data[: int(column.offsets[count])].copy()
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _ids_of(characters: np.ndarray, count: int) -> pa.Array:
    offsets = np.arange(0, 32 * count + 1, 32, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(characters)])
