"""Two sinks take turns at one store, and what must be true of it wherever that was cut off."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from uuid import uuid4

from storage.batch.intent import DeadLetterFile
from storage.batch.ledger import Batch
from storage.batch.staged_segment import sink_digest
from tests.crash.sink_store import SinkStore, assert_holds_exactly, found_rows, is_whole
from tests.support.stage_rows import BatchRows

CLOSE = None
_TOPICS = ("orders", "bills")
_LETTER = b"a row that is no message"


def _rows(sink_id: str, batch_id: int, *counts: int) -> BatchRows:
    return BatchRows(Batch(sink_id, f"query-of-{sink_id}", batch_id), counts, _TOPICS)


STEPS: tuple[BatchRows | None, ...] = (
    _rows("first", 0, 7, 5),
    _rows("second", 0, 12),
    _rows("first", 1, 9, 14),
    CLOSE,
    _rows("first", 2, 3),
    _rows("second", 1, 30, 6),
    _rows("first", 3, 11, 4),
)
BATCHES = [step for step in STEPS if step is not None]
WITH_LETTERS = BATCHES[2]
"""This batch brings a file of dead letters along."""


def run(store: SinkStore, note: Callable[[str], None], begin: Callable[[int], None] = lambda number: None) -> None:
    """All steps. `begin` hears the number of each batch, `note` "acknowledged NUMBER" when its commit has returned."""
    numbers = iter(range(len(BATCHES)))
    for step in STEPS:
        if step is CLOSE:
            store.close()
        else:
            number = next(numbers)
            begin(number)
            commit(store, step)
            note(f"acknowledged {number}")


def commit(store: SinkStore, rows: BatchRows) -> bool:
    """What the sink does with one batch; returns whether the store held it already."""
    letters = _stage_letters(store) if rows is WITH_LETTERS else ()
    return store.commit(rows, dead_letters=letters).already_done


def check(store: SinkStore, marks: Collection[str], note: Callable[[str], None] = lambda text: None) -> None:
    """A new process finds the store. What was acknowledged or "decided NUMBER" is whole, the rest whole or not there at all; then the
    sinks go on, and everything is there exactly once.

    `note` hears the same marks of what is certain from now on.
    """
    with store.open() as opened:
        found = found_rows(opened)
        there = {number for number, rows in enumerate(BATCHES) if is_whole(found, rows)}
        opened.release()
    for number, rows in enumerate(BATCHES):
        for mark in (f"acknowledged {number}", f"decided {number}"):
            assert number in there or mark not in marks, f"{rows.batch} was {mark.split()[0]}, and is not there"
    for number in sorted(there):
        note(f"decided {number}")
    for number in _replayed({number for number in there if f"acknowledged {number}" in marks}, there):
        was_there = commit(store, BATCHES[number])
        note(f"acknowledged {number}")
        assert was_there == (number in there), f"{BATCHES[number].batch}: taken for {'done' if was_there else 'new'}"
        there.add(number)
    store.close()
    if BATCHES.index(WITH_LETTERS) in there:
        assert store.file_system.read_file(_letters_path(store)) == _LETTER
    assert_holds_exactly(store.root, [BATCHES[number] for number in there])


def _replayed(acknowledged: Collection[int], there: Collection[int]) -> list[int]:
    """What Spark brings after a restart: of each sink the last acknowledged batch, and the one that follows.

    Where that one is there, it had begun, so Spark knows that the one before it is done, and does not bring that again.
    """
    replayed: list[int] = []
    for sink_id in ("first", "second"):
        numbers = [number for number, rows in enumerate(BATCHES) if rows.batch.sink_id == sink_id]
        done = [number for number in numbers if number in acknowledged]
        following = numbers[len(done) : len(done) + 1]
        replayed += following if set(following) & set(there) else done[-1:] + following
    return sorted(replayed)


def _letters_path(store: SinkStore) -> str:
    """Where dead letters belong."""
    return _letters(store, "0").final


def _letters(store: SinkStore, attempt: str) -> DeadLetterFile:
    batch = WITH_LETTERS.batch
    sink = sink_digest(batch.sink_id, batch.query_id).hex()
    return DeadLetterFile.of(f"{store.root}/letters", sink, batch.batch_id, 0, attempt)


def _stage_letters(store: SinkStore) -> Sequence[tuple[str, str]]:
    """(staged path, final path) of an attempt's dead letters, durably staged."""
    files, directory = store.file_system, f"{store.root}/letters"
    letters = _letters(store, str(uuid4()))
    files.make_directories(directory)
    files.create_file(letters.staged, 0)
    files.write(letters.staged, 0, _LETTER)
    files.sync(letters.staged)
    files.sync(directory)
    return [letters]
