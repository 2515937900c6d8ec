"""Queues and index built again from the log are what they were."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs import rebuild_queues as job
from jobs.rebuild_queues import rebuild_queues
from jobs.verify_store import verify_store
from spark_mq.cli.message_lines import dump_queue
from storage import MessageStore, open_store
from storage.errors import StoreDamagedError, StoreNotWritableError
from storage.files.local_file_system import LocalFileSystem
from storage.log.commit_log import read_checkpoint, write_checkpoint
from tests.support.fixture_stores import Fixture, golden_lines

pytestmark = pytest.mark.slow

FixtureStore = Callable[[str], Fixture]


def messages_of(root: Path) -> list[dict[str, Any]]:
    with open_store(root) as store:
        return [line for queue in store.queues for line in dump_queue(store, queue.topic, queue.queue_id)]


def assert_golden(fixture: Fixture) -> None:
    assert verify_store(str(fixture.root)).findings == ()
    assert messages_of(fixture.root) == list(golden_lines(fixture.golden, "message"))
    with open_store(fixture.root) as store:
        for line in golden_lines(fixture.golden, "queue"):
            queue = line["topic"], line["queueId"]
            if line["messageTotal"]:  # a queue of nothing but expired entries is not made again
                assert (store.min_offset(*queue), store.max_offset(*queue)) == (line["minOffset"], line["maxOffset"])
        for line in golden_lines(fixture.golden, "query"):
            hits = store.query(line["topic"], line["key"], line["maxNum"], begin_ms=line["begin"], end_ms=line["end"])
            assert {hit.commitlog_offset for hit in hits} >= set(line["physicalOffsets"])


def test_a_recovery_tells_how_far_it_is(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("crashed")
    rebuild_queues(str(fixture.root))
    shutil.rmtree(fixture.root / "consumequeue")
    (fixture.root / "abort").touch()
    told: list[tuple[int, int]] = []
    with open_store(fixture.root, read_only=False, on_progress=lambda done, total: told.append((done, total))) as store:
        total = store.log_end - store.log.minimum
    assert told
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert all(0 <= done < of <= total for done, of in told)


@pytest.mark.parametrize("name", ["clean", "roll", "expired", "ipv6"])
def test_they_are_what_they_were(fixture_store: FixtureStore, name: str) -> None:
    fixture = fixture_store(name)
    report = rebuild_queues(str(fixture.root))
    assert report.added_entries == len(list(golden_lines(fixture.golden, "message")))
    assert not (fixture.root / "spark_mq" / "rebuild").exists()
    assert not (fixture.root / "abort").exists()
    assert_golden(fixture)


def test_a_broken_queue_is_mended(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("clean")
    queue = fixture.root / "consumequeue" / "TopicA" / "0" / f"{0:020d}"
    queue.write_bytes(queue.read_bytes()[:20] * (queue.stat().st_size // 20))
    assert verify_store(str(fixture.root)).findings != ()
    assert job.main([str(fixture.root)]) == 0
    assert_golden(fixture)


def test_a_damaged_log_is_refused_and_nothing_changes(fixture_store: FixtureStore) -> None:
    root = fixture_store("damaged").root
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(StoreDamagedError):
        rebuild_queues(str(root))
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_damage_in_an_old_file_is_refused_and_the_old_queues_come_back(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("clean")
    log = fixture.root / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[88] ^= 0xFF  # the first record's body
    log.write_bytes(data)
    with pytest.raises(StoreDamagedError):
        rebuild_queues(str(fixture.root))
    assert len(messages_of(fixture.root)) == len(list(golden_lines(fixture.golden, "message")))


def test_a_failed_rebuilding_puts_everything_back(fixture_store: FixtureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = fixture_store("clean")
    calls = []

    def fails_the_second_time(path: str, **options: Any) -> MessageStore:
        calls.append(path)
        if len(calls) == 2:
            raise StoreNotWritableError(path, "disk full")
        return open_store(path, **options)

    monkeypatch.setattr(job, "open_store", fails_the_second_time)
    with pytest.raises(StoreNotWritableError):
        rebuild_queues(str(fixture.root))
    assert not (fixture.root / "spark_mq" / "rebuild").exists()
    assert_golden(fixture)


def test_of_two_rebuildings_at_a_time_one_steps_back(
    fixture_store: FixtureStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture = fixture_store("clean")
    opened = []

    def rebuilds_once_more(path: str, **options: Any) -> MessageStore:
        opened.append(path)
        if len(opened) == 2:  # the first run has moved the queues away, and its lock on the store is free
            assert job.main([str(fixture.root)]) == 75
            assert "nothing done: " in capsys.readouterr().out
        return open_store(path, **options)

    monkeypatch.setattr(job, "open_store", rebuilds_once_more)
    assert job.main([str(fixture.root)]) == 0
    assert len(opened) == 3
    assert_golden(fixture)


def test_a_killed_rebuilding_is_completed_by_whoever_opens_the_store(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("clean")
    file_system, root = LocalFileSystem(), str(fixture.root)
    open_store(root, read_only=False).close()
    checkpoint = read_checkpoint(file_system, root)
    write_checkpoint(file_system, root, checkpoint._replace(logics_msg_timestamp=0, index_msg_timestamp=0))
    job._move(fixture.root, fixture.root / "spark_mq" / "rebuild")
    (fixture.root / "abort").touch()  # killed while it built
    open_store(root, read_only=False).close()
    assert_golden(fixture)
