"""Every bit of a small store is wrong once: who reads it notices, or gets what was there, or is served something else without a word.

A trial flips one bit. The store is opened and read, audited, opened for writing (which recovers it), read again and put to.

    detected         an error, a finding of the audit, a report of the recovery; what is served is not what it was
    repaired         noticed, or in the way of a reader; after the recovery everything is served as before
    harmless         nothing that anyone reads is another
    silently wrong   a reader gets something else, and nobody says a word

What was served is compared field by field, but for the checksum of the body, which no reader is given. Besides, those bits are counted
for which a reader alone, who asks neither the audit nor a recovery, is served another message.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from storage import MessageStore
from storage.dispatch.recovery_plan import RecoveryReport
from storage.errors import StorageError
from storage.log.commit_log import read_checkpoint
from storage.recovery.verify import verify
from storage.tables.topics import TopicTable
from tests.torture.kind import Kind, Outcome
from tests.torture.small_stores import INDEX_SLOTS, STORES, WITH_PROPERTY_CRC, SmallStore, UnsyncedFiles
from tests.torture.store_fields import FREE, fields_of, kind_of
from tests.torture.store_picture import Picture, all_served, asked, has_another

DETECTED, REPAIRED, HARMLESS, SILENT = "detected", "repaired", "harmless", "silently wrong"
CLASSES = (DETECTED, REPAIRED, HARMLESS, SILENT)
ALONE, ALONE_CHECKING = "served wrong", "served wrong with verifyCrc"
STRIPES = 59
"""A round takes every so manieth bit; a prime, so that all bits of a byte have their turn."""
_FREE_STEP = 509
"""Of free space only every so manieth bit counts: nearly all of a store is free space."""


class Bit(NamedTuple):
    """One bit of a store's file."""

    path: str
    """Below ROOT."""
    byte: int
    mask: int
    field: str
    """KIND OF FILE/FIELD."""


@dataclass
class Bench:
    """A small store at `root` whose bits are flipped one at a time, and which is put right each time."""

    store: SmallStore
    root: Path
    files: dict[str, bytes] = field(default_factory=dict)
    bits: list[Bit] = field(default_factory=list)
    _directories: dict[str, int] = field(default_factory=dict)

    @classmethod
    def make(cls, store: SmallStore, directory: Path) -> Bench:
        """The store, made in a new directory, and the bits that are looked at."""
        bench = cls(store, directory / "store")
        store.make(bench.root, store.config)
        for path, file in bench._walk():
            bench.files[path] = file.read_bytes()
        for directory_path, _, _ in os.walk(bench.root):
            bench._directories[directory_path] = os.stat(directory_path).st_mtime_ns
        looked_at = sorted(path for path in bench.files if path.startswith(store.looked_at))
        bench.bits = [bit for path in looked_at for bit in _bits(path, bench.files[path])]
        return bench

    def _walk(self) -> Iterator[tuple[str, Path]]:
        for directory, _, names in os.walk(self.root):
            for name in names:
                file = Path(directory, name)
                yield str(file.relative_to(self.root)), file

    def put_right(self) -> None:
        """Every file and directory as it was made, also the times that a hint compares."""
        found = dict(self._walk())
        for path, file in found.items():
            if path not in self.files:
                file.unlink()
        for path, content in self.files.items():
            file = self.root / path
            if path not in found:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            elif file.read_bytes() != content:
                with file.open("r+b") as stream:  # the same file: a hint knows its number
                    stream.write(content)
                    stream.truncate()
        for directory, _, _ in list(os.walk(self.root, topdown=False)):
            if directory not in self._directories:
                shutil.rmtree(directory)
        for directory, modified_ns in self._directories.items():
            if os.stat(directory).st_mtime_ns != modified_ns:
                os.utime(directory, ns=(modified_ns, modified_ns))

    def flip(self, bit: Bit) -> None:
        with (self.root / bit.path).open("r+b") as file:
            file.seek(bit.byte)
            file.write(bytes([self.files[bit.path][bit.byte] ^ bit.mask]))


def _bits(path: str, content: bytes) -> Iterator[Bit]:
    for part in fields_of(path, content, index_slots=INDEX_SLOTS):
        name = f"{kind_of(path)}: {part.name}"
        step = _FREE_STEP if part.name == FREE else 1
        for number in range(8 * part.start, 8 * part.end, step):
            yield Bit(path, number // 8, 1 << number % 8, name)


class Judge:
    """What flipping a bit of one store comes to."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._before = self._read()
        self._findings = self._audit()
        self._after, _ = self._write()
        bench.put_right()

    def flip(self, bit: Bit, outcome: Outcome) -> str:
        """One trial; returns its class."""
        outcome.trials += 1
        self._bench.flip(bit)
        try:
            return self._class_of(bit, outcome)
        except Exception as error:
            error.add_note(
                f"store {self._bench.store.name!r}, bit {bit.mask:#04x} of byte {bit.byte} of {bit.path} ({bit.field})"
            )
            raise
        finally:
            self._bench.put_right()

    def _class_of(self, bit: Bit, outcome: Outcome) -> str:
        read = self._read()
        findings = () if read.signs else self._audit()
        recovered, wrong = self._write()
        where = f"store {self._bench.store.name!r}, bit {bit.mask:#04x} of byte {bit.byte} of {bit.path} ({bit.field})"
        outcome.failures += [f"{where}: {text}" for text in wrong]
        signs = [*read.signs, *(finding for finding in findings if finding not in self._findings), *recovered.signs]
        reads_as_before = read.served == self._before.served
        if recovered.served == self._after.served:
            found = HARMLESS if reads_as_before and not signs else REPAIRED if signs else SILENT
        else:
            found = DETECTED if signs else SILENT
        name = f"{self._bench.store.name} | {bit.field} | "
        outcome.figures[name + found] += 1
        for alone, part in ((ALONE, "messages "), (ALONE_CHECKING, "checked ")):
            if has_another(read, self._before, part):
                outcome.figures[name + alone] += 1
        return found

    def _read(self) -> Picture:
        return asked(lambda: self._bench.store.open(self._bench.root, read_only=True), all_served)

    def _audit(self) -> tuple[str, ...]:
        root = str(self._bench.root)
        try:
            checkpoint = read_checkpoint(UnsyncedFiles(), root)
            with self._bench.store.open(self._bench.root, read_only=True) as store:
                report = verify(
                    store.log,
                    store.queues,
                    store.index,
                    checkpoint,
                    store.plan,
                    delays_ms=store.config.delay.delays_ms,
                    known_topics=_known_topics(store),
                )
                return tuple(f"{finding.kind} {finding.where}" for finding in report.findings)
        except StorageError as error:
            return (repr(error),)

    def _write(self) -> tuple[Picture, list[str]]:
        """What is served after recovery; and what is wrong with a put then."""
        wrong: list[str] = []

        def served(store: MessageStore) -> tuple[dict[str, object], list[str]]:
            found, signs = all_served(store)
            signs += _signs_of(store.recovery)
            if store.finished_batches:
                signs.append("a batch was appended again")
            wrong.extend(_put_one_more(store))
            store.release()
            return found, signs

        return asked(lambda: self._bench.store.open(self._bench.root, read_only=False), served), wrong


def _known_topics(store: MessageStore) -> frozenset[str] | None:
    topics = store.state("topics.json", TopicTable.load)
    return None if topics is None else frozenset(topics.topics)


def _signs_of(report: RecoveryReport | None) -> list[str]:
    """What a recovery says of having found something wrong."""
    if report is None:
        return []
    said = {
        "cut at": report.cut_at,
        "bytes cut": report.cut_bytes,
        "entries cut": report.cut_entries,
        "queues rebuilt": report.rebuilt_queues,
        "holes": report.holes,
        "torn records": report.torn_records,
    }
    return [f"{what}: {value}" for what, value in said.items() if value]


def _put_one_more(store: MessageStore) -> list[str]:
    try:
        expected = store.max_offset("orders", 0)
        placed = store.put("orders", b"one more", keys="more", queue_id=0, queue_count=2)
    except StorageError:
        return []
    served = store.get("orders", 0, placed.queue_offset).messages
    if placed.queue_offset != expected or [one.body for one in served] != [b"one more"]:
        bodies = [one.body for one in served]
        return [f"one more is put to offset {placed.queue_offset} of {expected}, and {bodies} is served there"]
    return []


def sweep(store: SmallStore, directory: Path, stripe: int, stripes: int, outcome: Outcome) -> None:
    """Flip every `stripes`-th bit of a store, from bit `stripe` on: all bits, once each of that many stripes had its turn."""
    directory.mkdir(parents=True)
    bench = Bench.make(store, directory)
    judge = Judge(bench)
    for bit in bench.bits[stripe::stripes]:
        judge.flip(bit, outcome)
    outcome.figures[f"{store.name} | stripe {stripe} of {stripes}"] += 1
    outcome.failures += silent_failures(outcome.figures)


def silent_failures(figures: Mapping[str, int]) -> list[str]:
    """What was silently wrong in fields that a checksum covers."""
    return [f"{name}: {count}" for name, count in figures.items() if _breaks_the_claim(name) and count]


def _breaks_the_claim(name: str) -> bool:
    store, _, rest = name.partition(" | ")
    place, _, what = rest.partition(" | ")
    file, _, part = place.partition(": ")
    if file != "commitlog":
        return False
    return what in (SILENT, ALONE_CHECKING) and (store == WITH_PROPERTY_CRC or part == "body")


def _play_stripe(store: SmallStore, stripe: int, directory: Path) -> Outcome:
    outcome = Outcome()
    sweep(store, directory / "bits", stripe, STRIPES, outcome)
    return outcome


_PARTS = tuple(partial(_play_stripe, store, stripe) for store in STORES.values() for stripe in range(STRIPES))


def play(random: Random, directory: Path) -> Outcome:
    """One round: a stripe of one store."""
    return random.choice(_PARTS)(directory)


def table(figures: Mapping[str, int]) -> str:
    """File × field × class as a table in Markdown. The log with property CRC has lines of its own."""
    plain, checked = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    stripes = Counter[str]()
    for name, count in figures.items():
        store, *rest = name.split(" | ")
        if len(rest) == 2:
            place, what = rest
            (checked if store == WITH_PROPERTY_CRC else plain)[place, what] += count
        else:
            stripes[store] += 1
    gone_through = ", ".join(f"{store} {count}" for store, count in sorted(stripes.items()))
    parts = [
        f"a round takes one of {STRIPES} stripes of a store's bits; gone through: {gone_through}.",
        "",
        "| file: field | bits | " + " | ".join((*CLASSES, ALONE, ALONE_CHECKING)) + " |",
        "| --- |" + " ---: |" * 7,
    ]
    parts += _lines(plain, "")
    parts += _lines(checked, ", with property CRC")
    return "\n".join(parts) + "\n"


def _lines(counts: Counter[tuple[str, str]], suffix: str) -> Sequence[str]:
    places = sorted({place for place, _ in counts})
    return [
        f"| {place}{suffix} | {sum(counts[place, what] for what in CLASSES):,} | "
        + " | ".join(
            f"{counts[place, what]:,}" if counts[place, what] else "" for what in (*CLASSES, ALONE, ALONE_CHECKING)
        )
        + " |"
        for place in places
    ]


KIND = Kind(
    name="bit-flips",
    claim="A wrong bit in a body, and with property CRC one anywhere in a record, is noticed by a reader that checks, and "
    "any wrong bit gives a declared error or none",
    unit="bit flipped",
    play=play,
    render=table,
    parts=_PARTS,
    share=5,
)
