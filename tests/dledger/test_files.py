"""A member's files: what is durable when, what recovery finds, what it refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from spark_mq.dledger.files import MemberFiles
from spark_mq.dledger.messages import NO_INDEX, LedgerEntry, make_entry
from spark_mq.dledger.state import Restored
from storage.errors import CorruptRecordError, StateFileError, StoreLockedError, StoreRefusedError
from storage.files.file_system import LocalWriter
from storage.files.local_file_system import LocalFileSystem
from storage.format.dledger import ENTRY_HEAD_SIZE, Vote, encode_checkpoint, encode_vote, place_of_next
from tests.support.crash_disk import EXTREMES
from tests.support.crash_file_system import CrashFileSystem
from tests.support.failing_file_system import FailingFileSystem, Fault
from tests.support.failing_file_system import Step as DiskStep

FILE_BYTES, INDEX_BYTES = 8_192, 320
OUTCOMES = 2
TRIMMED_INDEX = 8


def opened(place: Path, file_system: LocalFileSystem | None = None) -> MemberFiles:
    return MemberFiles(
        str(place / "dledger-n0"),
        file_size_bytes=FILE_BYTES,
        index_file_size_bytes=INDEX_BYTES,
        file_system=file_system,
        most_sums=16,
    )


def made(first: int, count: int, term: int, end: int = 0, seed: int = 7) -> list[LedgerEntry]:
    """Entries behind a log that ends there; some are longer than a page."""
    random, entries = Random(seed), list[LedgerEntry]()
    for index in range(first, first + count):
        body = random.randbytes(random.choice((0, 3, 700, 700, 5_000)))
        end = place_of_next(end, ENTRY_HEAD_SIZE + len(body), FILE_BYTES)
        entries.append(make_entry(index, term, end, body))
        end += entries[-1].size_bytes
    return entries


def log_of(files: MemberFiles) -> list[LedgerEntry]:
    found = files.restored()
    return [files.entry(index) for index in range(found.begin_index, found.end_index + 1)]


def end_of(entries: Sequence[LedgerEntry]) -> int:
    return entries[-1].place + entries[-1].size_bytes if entries else 0


@pytest.fixture
def log(tmp_path: Path) -> list[LedgerEntry]:
    """A log of several files that was stopped in order, all of it committed."""
    entries = made(0, 30, 1)
    files = opened(tmp_path)
    files.append(entries)
    files.save_vote(Vote(1, "n0"))
    files.sync()
    files.save_checkpoint(29)
    files.close()
    return entries


def test_what_was_written_is_read_after_a_restart(tmp_path: Path, log: list[LedgerEntry]) -> None:
    files = opened(tmp_path)
    assert files.restored() == Restored(Vote(1, "n0"), 0, 29, 1, end_of(log), 29)
    assert log_of(files) == log
    files.close()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    files = opened(tmp_path)
    with pytest.raises(StoreLockedError):
        opened(tmp_path)
    files.close()
    opened(tmp_path).close()


# Crashes


class Model(NamedTuple):
    """What is in the files, and the least that is durable."""

    entries: list[LedgerEntry]
    vote: Vote
    durable_end: int = NO_INDEX

    @property
    def end(self) -> int:
        return self.entries[-1].index if self.entries else NO_INDEX


Step = tuple[str, Callable[[MemberFiles], object], Callable[[Model], Model]]


def steps() -> list[Step]:
    first, second = made(0, 14, 1), made(14, 10, 1, end_of(made(0, 14, 1)), 8)
    kept = (first + second)[:18]
    other = made(18, 9, 2, end_of(kept), 9)
    anew = made(60, 1, 3, 11 * FILE_BYTES)
    behind = made(61, 8, 3, end_of(anew), 10)

    def append(entries: list[LedgerEntry]) -> Step:
        return "append", lambda files: files.append(entries), lambda on: on._replace(entries=on.entries + entries)

    sync: Step = "sync", MemberFiles.sync, lambda on: on._replace(durable_end=on.end)
    checkpoint: Step = "checkpoint", lambda files: files.save_checkpoint(8), lambda on: on
    vote: Step = "vote", lambda files: files.save_vote(Vote(2, "n1")), lambda on: on._replace(vote=Vote(2, "n1"))
    cut: Step = "cut", lambda files: files.cut(17), lambda on: on._replace(entries=on.entries[:18], durable_end=17)
    restart: Step = "restart", lambda files: files.restart(anew[0]), lambda on: Model(anew, on.vote, 60)

    trim: Step = (
        "trim",
        lambda files: files.trim(TRIMMED_INDEX),
        lambda on: on,
    )  # a crash may bring back what was deleted
    return [
        *(append(first[:1]), append(first[1:9]), sync, checkpoint, vote, append(first[9:]), append(second), cut),
        *(append(other[:2]), append(other[2:]), sync, trim, restart, append(behind), sync),
    ]


def judge(files: MemberFiles, before: Model, after: Model, what: str) -> None:
    found, entries = files.restored(), log_of(files)
    assert found.vote in (before.vote, after.vote), what
    least = NO_INDEX if what.startswith("restart") else min(before.durable_end, after.durable_end)
    assert found.end_index >= least, what
    if entries:
        is_old = set(entries) <= set(before.entries)
        assert is_old or set(entries) <= set(after.entries), what
        model = before if is_old else after
        assert found.begin_index <= max(TRIMMED_INDEX, model.entries[0].index), what
        assert found.end_index <= model.end, what
    assert found.committed_index <= found.end_index, what


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_each_crash_leaves_what_the_table_of_operations_says(every: int, tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk = CrashFileSystem(str(root))
    files = opened(root, disk)
    models = [(Model([], Vote(0, None)), Model([], Vote(0, None)), "opening")]
    disk.mark("0")
    for name, act, becomes in steps():
        before = models[-1][1]
        models.append((before, becomes(before), name))
        disk.mark(str(len(models) - 1))
        act(files)
        models.append((models[-1][1], models[-1][1], f"{name} done"))
        disk.mark(str(len(models) - 1))
    files.close()
    states = 0
    for count, marks, state in disk.states():
        if not marks or count % every:
            continue
        before, after, what = models[int(marks[-1])]
        for number in range(OUTCOMES + 1):
            extreme = EXTREMES[count % len(EXTREMES)] if not number else ""
            left = state.after_power_loss(Random(100 * count + number), extreme)
            crashed = CrashFileSystem(str(root), left, 2)
            again = opened(root, crashed)
            judge(again, before, after, f"{what}, operation {count}, outcome {number}")
            found = again.restored()
            more = made(found.end_index + 1, 1, 9, found.end_place)
            again.append(more)
            again.close()
            once_more = opened(root, crashed)
            assert log_of(once_more)[-1:] == more
            once_more.close()
            states += 1
    assert states > 400 // every


@pytest.mark.parametrize("kind", [DiskStep.SYNC, DiskStep.SYNC_DIRECTORY])
def test_what_is_found_after_a_failed_sync_outlives_a_loss_of_power(kind: DiskStep, tmp_path: Path) -> None:
    """The pages that the sync has not written count as clean: it is noted, and the next opening writes them again."""
    number, is_met = 0, True
    while is_met:
        number += 1
        root = tmp_path / str(number)
        root.mkdir()
        disk = FailingFileSystem(str(root), seed=number)
        killed = opened(root, disk)
        killed.append(made(0, 3, 1, seed=number))
        killed.close()  # the page cache alone has them
        disk.fault = Fault(frozenset({kind}), errno.EIO, number)
        with suppress(OSError):
            live(root, disk)
        is_met = bool(disk.met)
        disk.take_away()
        if kind is DiskStep.SYNC:
            assert (root / "dledger-n0" / "spark_mq" / "failed_sync.json").exists() == is_met, disk.met
        again = opened(root, disk)
        found, entries = again.restored(), log_of(again)
        again.close()
        for extreme in ("lost", ""):
            left = CrashFileSystem(str(root), disk.disk.after_power_loss(Random(number), extreme), 2)
            after = opened(root, left)
            assert (after.restored(), log_of(after)) == (found, entries), (number, disk.met)
            after.close()
    assert number > 10


def live(root: Path, disk: CrashFileSystem) -> None:
    """Each operation once."""
    files = opened(root, disk)
    try:
        found = files.restored()
        files.append(made(3, 14, 1, found.end_place))
        files.sync()
        files.save_checkpoint(8)
        files.save_vote(Vote(2, "n1"))
        files.append(made(17, 10, 1, files.entry(16).place + files.entry(16).size_bytes))
        files.cut(18)
        files.trim(TRIMMED_INDEX)
        files.restart(made(60, 1, 3, 11 * FILE_BYTES)[0])
    finally:
        files.close()


def test_a_vote_is_durable_when_it_is_saved(tmp_path: Path) -> None:
    disk = CrashFileSystem(str(tmp_path))
    files = opened(tmp_path, disk)
    for term in (1, 2):
        files.save_vote(Vote(term, "n1"))
        left = disk.disk.after_power_loss(Random(term), "lost")
        assert left.content(f"{tmp_path}/dledger-n0/currterm") == encode_vote(Vote(term, "n1"))
    files.close()


def test_a_cut_is_durable_before_anything_is_written_behind_it(tmp_path: Path) -> None:
    disk = CrashFileSystem(str(tmp_path))
    files = opened(tmp_path, disk)
    entries = made(0, 14, 1)
    files.append(entries)
    files.cut(5)
    files.close()
    for seed in range(20):
        crashed = CrashFileSystem(str(tmp_path), disk.disk.after_power_loss(Random(seed)), 2)
        again = opened(tmp_path, crashed)
        assert log_of(again) == entries[:6]
        again.close()
        for path in (tmp_path / "dledger-n0" / "data").iterdir():
            start = int(path.name)
            assert not any(path.read_bytes()[max(end_of(entries[:6]) - start, 0) :]), "nothing of it is left"


def test_what_is_written_behind_a_cut_is_durable(tmp_path: Path) -> None:
    disk = CrashFileSystem(str(tmp_path))
    files = opened(tmp_path, disk)
    entries = made(0, 10, 1)
    other = made(6, 3, 2, end_of(entries[:6]), 8)
    files.append(entries)
    files.cut(5)
    files.append(other)
    files.sync()
    files.close()
    crashed = CrashFileSystem(str(tmp_path), disk.disk.after_power_loss(Random(1), "lost"), 2)
    assert found_in(tmp_path, crashed) == entries[:6] + other


def test_a_log_that_began_anew_knows_nothing_as_committed(tmp_path: Path, log: list[LedgerEntry]) -> None:
    """The index of the log before would vouch for entries that a crash amid the restart has taken away."""
    files = opened(tmp_path)
    anew = made(60, 1, 3, 40 * FILE_BYTES)
    files.restart(anew[0])
    files.close()
    again = opened(tmp_path)
    assert (log_of(again), again.restored().committed_index) == (anew, NO_INDEX)
    again.close()


class SyncedAmidWrites(CrashFileSystem):
    """`meanwhile` is called when a write into such a file is about to reach it."""

    among = ""

    def open_for_writing(self, path: str) -> LocalWriter:
        found = super().open_for_writing(path)
        write = found.write

        def late(position: int, data: bytes | memoryview | np.ndarray) -> None:
            if self.among in path:
                self.meanwhile()
            write(position, data)

        found.write = late  # type: ignore[method-assign]
        return found

    def meanwhile(self) -> None:
        """What another thread does then."""


def test_a_sync_does_not_vouch_for_bytes_that_are_still_being_written(tmp_path: Path) -> None:
    disk = SyncedAmidWrites(str(tmp_path))
    files = opened(tmp_path, disk)
    disk.among = "/data/"
    disk.meanwhile = files.sync  # type: ignore[method-assign]
    entries = made(0, 30, 1)
    for each in entries:
        files.append([each])
    files.sync()
    files.close()
    crashed = CrashFileSystem(str(tmp_path), disk.disk.after_power_loss(Random(1), "lost"), 2)
    assert found_in(tmp_path, crashed) == entries


def found_in(place: Path, file_system: LocalFileSystem) -> list[LedgerEntry] | str:
    """The log, or why it is refused."""
    try:
        files = opened(place, file_system)
    except StoreRefusedError as error:
        return str(error)
    try:
        return log_of(files)
    except CorruptRecordError as error:
        return str(error)
    finally:
        files.close()


def test_an_entry_whose_head_alone_was_written_is_cut_off(tmp_path: Path) -> None:
    files = opened(tmp_path)
    entries = [make_entry(0, 1, 0, b"a" * 3_000), make_entry(1, 1, 3_048, b"b" * 3_000)]
    files.append(entries[:1])
    files.sync()
    files.append(entries[1:])
    files.close()
    overwrite(tmp_path, "data", 4_096, bytes(2_000))
    again = opened(tmp_path)
    assert log_of(again) == entries[:1]
    again.close()
    assert not any((tmp_path / "dledger-n0" / "data" / f"{0:020}").read_bytes()[3_048:])


# Damage


def overwrite(place: Path, folder: str, position: int, content: bytes, start: int = 0) -> None:
    with open(place / "dledger-n0" / folder / f"{start:020}", "r+b") as file:
        file.seek(position)
        file.write(content)


def contents(place: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(place)): path for path in place.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items()}


@pytest.mark.parametrize("at", [0, 12, 29])
def test_damage_in_what_was_durable_is_refused_and_nothing_is_changed(
    at: int, tmp_path: Path, log: list[LedgerEntry]
) -> None:
    entry = log[at]
    start = entry.place // FILE_BYTES * FILE_BYTES
    overwrite(tmp_path, "data", entry.place - start + 8, b"\xff", start)
    before = contents(tmp_path)
    with pytest.raises(StoreRefusedError, match=r"were durable and cannot be read, nothing was changed: .*data/0{10}"):
        opened(tmp_path)
    assert contents(tmp_path) == before


def test_a_checkpoint_above_the_logs_end_is_refused(tmp_path: Path, log: list[LedgerEntry]) -> None:
    (tmp_path / "dledger-n0" / "checkpoint").write_text("committedIndex=31\nendIndex=31\n")
    with pytest.raises(StoreRefusedError, match=r"entries 30 to 31 were durable and cannot be read.*the log ends in"):
        opened(tmp_path)


def test_a_data_file_that_is_missing_is_named(tmp_path: Path, log: list[LedgerEntry]) -> None:
    os.unlink(tmp_path / "dledger-n0" / "data" / f"{FILE_BYTES:020}")
    with pytest.raises(StoreRefusedError, match=f"the log ends with .*data/{0:020}"):
        opened(tmp_path)


def test_the_first_data_file_that_is_missing_is_named(tmp_path: Path, log: list[LedgerEntry]) -> None:
    opened(tmp_path).close()  # now its entries need no sums
    os.unlink(tmp_path / "dledger-n0" / "data" / f"{0:020}")
    with pytest.raises(StoreRefusedError, match="the first entries were durable"):
        opened(tmp_path)


def test_a_wrong_byte_is_named_when_it_is_read(tmp_path: Path, log: list[LedgerEntry]) -> None:
    files = opened(tmp_path)
    overwrite(tmp_path, "data", log[1].place + 31, b"\x05")
    with pytest.raises(CorruptRecordError, match=r"entry's place in .*data/0+ at byte \d+"):
        files.entry(1)
    files.close()


@pytest.mark.parametrize("is_gone", [True, False])
def test_an_index_that_is_lost_is_made_anew(is_gone: bool, tmp_path: Path, log: list[LedgerEntry]) -> None:
    before = contents(tmp_path / "dledger-n0" / "index")
    for path in (tmp_path / "dledger-n0" / "index").iterdir():
        path.unlink() if is_gone else path.write_bytes(bytes(INDEX_BYTES))
    files = opened(tmp_path)
    assert log_of(files) == log
    files.close()
    assert contents(tmp_path / "dledger-n0" / "index") == before


def test_files_of_other_sizes_are_refused(tmp_path: Path, log: list[LedgerEntry]) -> None:
    with pytest.raises(StoreRefusedError, match="has 8192 bytes, and mappedFileSizeForEntryData is 16384"):
        MemberFiles(str(tmp_path / "dledger-n0"), file_size_bytes=16_384, index_file_size_bytes=INDEX_BYTES)
    with pytest.raises(StoreRefusedError, match="has 320 bytes, and mappedFileSizeForEntryIndex is 640"):
        MemberFiles(str(tmp_path / "dledger-n0"), file_size_bytes=FILE_BYTES, index_file_size_bytes=640)
    (tmp_path / "dledger-n0" / "data" / "notes").write_text("mine")
    with pytest.raises(StoreRefusedError, match="data/notes is no file of it"):
        opened(tmp_path)


# Votes


def test_a_term_file_without_a_term_is_refused(tmp_path: Path, log: list[LedgerEntry]) -> None:
    (tmp_path / "dledger-n0" / "currterm").write_text("")
    with pytest.raises(StateFileError, match=r"currterm: it has no term, and this member may have voted"):
        opened(tmp_path)


def test_a_vote_that_javas_crash_has_left_beside_is_taken(tmp_path: Path) -> None:
    place = tmp_path / "dledger-n0"
    place.mkdir()
    (place / "currterm.tmp").write_bytes(encode_vote(Vote(5, "n2")))
    (place / "currterm.bak").write_bytes(encode_vote(Vote(5, None)))
    files = opened(tmp_path)
    assert files.restored().vote == Vote(5, "n2")
    files.close()
    assert (place / "currterm").read_bytes() == encode_vote(Vote(5, "n2"))


# A log that Java wrote last


def test_without_sums_what_is_whole_counts(tmp_path: Path, log: list[LedgerEntry]) -> None:
    (tmp_path / "dledger-n0" / "checkpoint").write_text("committedIndex=20\nendIndex=29\n")
    last = log[-1]
    overwrite(tmp_path, "data", last.place % FILE_BYTES, b"\0\0\0\2", last.place // FILE_BYTES * FILE_BYTES)
    files = opened(tmp_path)
    assert log_of(files) == log[:-1]
    assert files.restored().committed_index == 20
    files.close()
    overwrite(tmp_path, "data", 8, b"\x10")
    (tmp_path / "dledger-n0" / "checkpoint").write_text("committedIndex=20\nendIndex=29\n")
    with pytest.raises(StoreRefusedError, match=r"bad entry's index in .*at byte 0: expected at most 0"):
        opened(tmp_path)


def test_sums_that_are_missing_are_refused(tmp_path: Path, log: list[LedgerEntry]) -> None:
    os.unlink(tmp_path / "dledger-n0" / "spark_mq" / "sums")
    with pytest.raises(StateFileError, match="sums: it is missing or damaged"):
        opened(tmp_path)


def test_the_checkpoint_says_whether_queues_are_apaches_until_they_are_cut(tmp_path: Path) -> None:
    path = f"{tmp_path}/dledger-n0"
    files = MemberFiles(path)
    files.append([make_entry(0, 1, 0, b"x")])
    files.sync()
    assert files.has_own_queues
    files.close()
    Path(f"{path}/checkpoint").write_bytes(encode_checkpoint(0, 0))  # as Apache's member leaves it
    for _ in range(2):
        files = MemberFiles(path)
        assert not files.has_own_queues
        files.save_checkpoint(0)
        files.close()
    files = MemberFiles(path)
    files.own_queues()
    files.close()
    files = MemberFiles(path)
    assert files.has_own_queues
    assert files.restored().committed_index == 0
    files.close()


def test_the_last_entry_that_ends_by_a_place_is_found(tmp_path: Path, log: list[LedgerEntry]) -> None:
    files = opened(tmp_path)
    for last in (0, 1, 17, 29):
        places = {0, *(place + by for entry in log for place in (entry.place, end_of([entry])) for by in (-1, 0, 1))}
        for place in places:
            wanted = max((each.index for each in log[: last + 1] if end_of([each]) <= place), default=NO_INDEX)
            assert files.last_index_by(place, last) == wanted
    assert files.last_index_by(1 << 40, NO_INDEX) == NO_INDEX
    files.trim(20)
    begin = files._begin_index
    assert begin > 0
    assert files.last_index_by(0, 29) == NO_INDEX
    assert files.last_index_by(end_of(log[: begin + 2]), 29) == begin + 1
    assert files.last_index_by(0, begin - 1) == begin - 1, "it is not known where it has ended"
    files.close()
