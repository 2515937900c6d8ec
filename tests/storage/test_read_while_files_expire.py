"""Files expire under a reader's eyes, right before each of its looks at the disk in turn: it sees all that stays, or that the offset is
out of range, and no error of a file.

Which files go is what a broker deletes (DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService): the oldest of the log,
then those of queues and index that point to nothing any more. Readers are other processes, so nothing tells them.
"""

from __future__ import annotations

import builtins
import errno
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from jobs.verify_store import verify_store
from spark_mq.cli.message_lines import dump_queue
from spark_mq.conditions import DataLossError
from storage import MessageStore, StoreConfig, open_store
from storage.errors import OffsetOutOfRangeError
from storage.files import file_system, local_file_system
from storage.files.file_system import LocalFile, Scratch
from storage.files.local_file_system import LocalFileSystem
from storage.put.put import PutResult
from storage.queues.ext import ConsumeQueueExt
from storage.retention import ExpiryPlan, Occasion, plan_expiry
from storage.settings.nouns import RetentionConfig
from tests.spark.in_process import next_batch, open_stream, plan_batch, rows_of
from tests.support.fixture_stores import Fixture
from tests.support.shares import one_in

TINY = StoreConfig.tiny()
NOW_MS = 1_700_000_000_000
QUEUES = (("A", 0), ("A", 1), ("B", 0))
Place = tuple[str, int, int]


class Expiring(NamedTuple):
    """A store, what was put into it, and what of it expires."""

    root: Path
    puts: list[PutResult]
    plan: ExpiryPlan

    @property
    def log_paths(self) -> set[str]:
        return {file.path for file in self.plan.log_files}

    @property
    def all_paths(self) -> set[str]:
        of_queues = {path for queue in self.plan.queues for path in queue.paths}
        return self.log_paths | of_queues | set(self.plan.index_paths)

    @property
    def stays(self) -> set[Place]:
        """What can be read when the files are gone."""
        return places(put for put in self.puts if put.commitlog_offset >= self.plan.minimum)


def places(puts: Iterable[Any]) -> set[Place]:
    return {(put.topic, put.queue_id, put.queue_offset) for put in puts}


@pytest.fixture(scope="module")
def expiring(tmp_path_factory: pytest.TempPathFactory) -> Expiring:
    home = tmp_path_factory.mktemp("expiring")
    (home / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in TINY.settings.items()), "utf-8")
    root = home / "store"
    with open_store(root, config=TINY, read_only=False, create=True, clock=lambda: NOW_MS) as store:
        puts = [
            store.put(topic, b"%d" % number * 60, queue_id=number % 2, keys=f"k{number}", queue_count=2)
            for number in range(60)
            for topic in (["A", "B"] if number % 4 == 0 else ["A"])
        ]
    with open_store(root) as store:
        all_old = Occasion(("it is a test",), whatever_age=True)
        config = RetentionConfig(delete_file_batch_max=5)
        plan = plan_expiry(store, LocalFileSystem(), config, all_old, now_ms=NOW_MS)
    expiring = Expiring(root, puts, plan)
    assert len(plan.log_files) == 5
    assert 0 < len(expiring.stays) < len(puts)
    assert plan.index_paths
    assert any(queue.paths for queue in plan.queues)
    return expiring


def sweep(gone: set[str], read: Callable[[], None], refusal: type[Exception] | None = None) -> int:
    """Let the files vanish before each look of `read`'s; returns how often it was refused, at most as often as it is by `refusal`."""
    looks = refusals = 0
    while True:
        with vanishing(gone.__contains__, looks) as counting:
            try:
                read()
            except Exception as error:
                if refusal is None or not isinstance(error, refusal):
                    raise
                refusals += 1
        if counting.left >= 0:
            assert looks > 2, "it does not look at the disk"
            return refusals
        looks += 1


def served(store: MessageStore) -> set[Place]:
    found: set[Place] = set()
    for topic, queue_id in QUEUES:
        offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        while offset < end:
            got = store.get(topic, queue_id, offset)
            found |= places(got.messages)
            assert got.next_begin_offset > offset
            offset = got.next_begin_offset
    return found


@pytest.mark.parametrize("what", one_in(2, ["all_paths", "log_paths"]))
def test_opening_following_and_getting_never_fails_and_serves_all_that_stays(expiring: Expiring, what: str) -> None:
    def read() -> None:
        with open_store(expiring.root) as store:
            assert expiring.stays <= served(store) <= places(expiring.puts)
            store.refresh()
            assert expiring.stays <= served(store)

    sweep(getattr(expiring, what), read)


def test_a_key_that_stays_is_found_and_one_that_goes_is_found_or_not(expiring: Expiring) -> None:
    with open_store(expiring.root) as store:
        end = store.log_end
    stays = {f"k{number}" for number in range(60) if ("A", number % 2, number // 2) in expiring.stays}
    assert 0 < len(stays) < 60

    def read() -> None:
        with open_store(expiring.root) as store:
            assert store.log_end == end
            for key in ("k0", "k30", "k58"):
                found = [message.keys for message in store.query("A", key)]
                assert found == [[key]] or (key not in stays and not found), key

    sweep(expiring.all_paths, read)


@pytest.mark.slow
def test_positions_by_time_and_size_never_fail(expiring: Expiring) -> None:
    def read() -> None:
        with open_store(expiring.root) as store:
            for queue in QUEUES:
                end = store.max_offset(*queue)
                assert store.offset_by_time(*queue, NOW_MS + 10**6) == end
                first = store.offset_by_time(*queue, 0)
                assert first <= min(offset for *name, offset in expiring.stays if tuple(name) == queue)
                assert 0 < store.size_between(*queue, 0, end) < 1_000 * end
                assert store.offset_at_size(*queue, 0, 10**9) == end
                assert store.position(*queue, end - 1) is not None
                assert store.position(*queue, 0) is None or first == 0

    sweep(expiring.all_paths, read)


@pytest.mark.slow
def test_an_audit_and_a_message_by_its_place_are_out_of_range_at_worst(expiring: Expiring) -> None:
    def audit() -> None:
        assert verify_store(str(expiring.root)).records == len(expiring.puts)

    def look_up() -> None:
        with open_store(expiring.root) as store:
            for put in expiring.puts[::-7]:
                assert store.message_by_commitlog_offset(put.commitlog_offset).unique_key == put.unique_key

    assert sweep(expiring.log_paths, look_up, OffsetOutOfRangeError) > 0
    derived = expiring.all_paths - expiring.log_paths
    assert sweep(derived, audit, OffsetOutOfRangeError) > 0


@pytest.mark.slow
def test_a_dump_is_out_of_range_at_worst_and_tells_what_stays(expiring: Expiring) -> None:
    def read() -> None:
        with open_store(expiring.root) as store:
            for topic, queue_id in QUEUES:
                lines = dump_queue(store, topic, queue_id)
                told = {(topic, queue_id, line["cqOffset"]) for line in lines if "error" not in line}
                assert {place for place in expiring.stays if place[:2] == (topic, queue_id)} <= told

    assert sweep(expiring.log_paths, read, OffsetOutOfRangeError) == 0
    assert sweep(expiring.all_paths, read, OffsetOutOfRangeError) > 0


@pytest.mark.parametrize("what", one_in(2, ["log_paths", "all_paths"]))
@pytest.mark.parametrize("tolerant", [True, False])
def test_a_task_that_comes_too_late_says_that_data_is_lost_or_passes_it_over(
    expiring: Expiring, what: str, tolerant: bool
) -> None:
    splits = plan_batch(expiring.root, topic="A", failOnDataLoss=str(not tolerant).lower())

    def read() -> None:
        found = {(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows_of(splits)}
        assert {place for place in expiring.stays if place[0] == "A"} <= found

    assert (sweep(getattr(expiring, what), read, None if tolerant else DataLossError) > 0) != tolerant


@pytest.mark.slow
def test_a_stream_that_tolerates_losses_goes_on_with_all_that_stays(expiring: Expiring) -> None:
    def read() -> None:
        reader = open_stream(
            expiring.root, topic="A", startingOffsets="earliest", maxOffsetsPerTrigger="25", failOnDataLoss="false"
        )
        found, start, position = set(), None, reader.initialOffset()
        while position != start:
            start, (position, rows) = position, next_batch(reader, position)
            found |= {(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows}
        reader.stop()
        assert {place for place in expiring.stays if place[0] == "A"} <= found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of what it passes over
        sweep(expiring.all_paths, read)


def test_extension_files_that_vanish_hide_no_message(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("ext")
    files = {str(path) for path in (fixture.root / "consumequeue_ext").rglob("*") if path.is_file()}
    assert files
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        topic, queue_id, tag, expected = next(
            (topic, queue_id, messages[0].tags, messages)
            for topic in store.topics()
            for queue_id in store.queue_ids(topic)
            if (messages := store.get(topic, queue_id, store.min_offset(topic, queue_id), tags="TagA").messages)
        )

        def read() -> None:
            found = store.get(topic, queue_id, store.min_offset(topic, queue_id), tags=tag)
            assert found.messages == expected

        sweep(files, read)


def test_an_extension_file_that_went_between_list_and_open_has_no_units(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000").write_bytes(bytes(range(100)))
    with vanishing(lambda path: path.endswith("0"), 1):
        ext = ConsumeQueueExt(LocalFileSystem(), str(tmp_path))
    assert ext.unit(-(2**63)) is None


def test_a_reader_keeps_what_it_has_mapped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 1_000)
    opened = LocalFile(str(path))
    os.unlink(path)
    positions, sizes = np.array([5, 70_000, 250_000]), np.array([100, 20, 30])
    buffer, starts = opened.gather(positions, sizes, Scratch())
    for position, size, start in zip(positions, sizes, starts, strict=True):
        assert bytes(buffer[start : start + size]) == (bytes(range(256)) * 1_000)[position : position + size]
    assert opened.data_ranges(100) == [(100, 256_000)]
    assert opened.data_ranges(256_000) == []


class _CountingOs:
    """`os`, but for the functions through which a reader meets a name."""

    def __init__(self, is_gone: Callable[[str], bool], looks: int) -> None:
        self._is_gone = is_gone
        self.left = looks

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def look(self, path: str) -> None:
        self.left -= 1
        if self.left < 0 and self._is_gone(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def open(self, path: str, *rest: Any) -> int:
        self.look(path)
        return os.open(path, *rest)

    def stat(self, path: str) -> os.stat_result:
        self.look(path)
        return os.stat(path)

    @contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        self.look(path)
        with os.scandir(path) as entries:
            yield (entry for entry in entries if self.left >= 0 or not self._is_gone(entry.path))


@contextmanager
def vanishing(is_gone: Callable[[str], bool], looks: int) -> Iterator[_CountingOs]:
    """Within it another process unlinks the paths right before this one looks at the disk for the n-th time.

    Each way to the disk that a reader has leads through two modules. Here their `os` is replaced by one that counts the looks. Nothing
    is really deleted, so one store serves for all n: files are gone for who opens or lists, and maps stay. `left` is below zero if it
    came to that.
    """
    counting = _CountingOs(is_gone, looks)

    def counted_open(path: str, *rest: Any) -> Any:
        counting.look(path)
        return builtins.open(path, *rest)

    with pytest.MonkeyPatch.context() as patch:
        for module in (file_system, local_file_system):
            patch.setattr(module, "os", counting)
        patch.setattr(local_file_system, "open", counted_open, raising=False)
        yield counting
