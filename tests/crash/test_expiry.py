"""The power goes, or the process, at any step of deleting expired files: what was to stay is there, and the next run completes it.

And sinks whose rows have gone are known still: no batch comes twice.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.verify_store import verify_store
from storage import MessageStore, StoreConfig, open_store
from storage.batch.commit import CommitOutcome
from storage.batch.ledger import END, Batch, LedgerStatement, outgoing_ledger_message
from storage.batch.sink_progress import newest_ends
from storage.errors import SinkAheadError, SinkTakenError
from storage.files.local_file_system import LocalFileSystem
from storage.format.record_block import encode_block
from storage.retention import Occasion, apply_expiry, plan_expiry
from storage.settings.nouns import RetentionConfig
from tests.crash.sink_store import SinkStore, rows_of
from tests.support.crash_disk import Disk
from tests.support.crash_file_system import CrashFileSystem
from tests.support.served import served
from tests.support.shares import one_in

pytestmark = [pytest.mark.crash, pytest.mark.slow]

TINY = StoreConfig.tiny()
NOW_MS = 1_700_000_000_000
FULL_DISK = Occasion(("the disk of the log is 99 % full",), whatever_age=True)
SINK = Batch("sink", "query", 7)


def opened(root: Path, files: LocalFileSystem, *, boot: int = 0) -> MessageStore:
    """Its clock goes on from that of earlier boots, and a second a look."""
    clock = itertools.count(NOW_MS + boot * 10_000_000, 1_000).__next__
    return open_store(root, config=TINY, read_only=False, create=not boot, clock=clock, file_system=files)


def append(store: MessageStore, first: int, count: int) -> None:
    numbers = range(first, first + count)
    rows = {
        "topic": ["A"] * count,
        "queue_id": pa.array([number % 2 for number in numbers], pa.int32()),
        "body": [b"%d" % number * 20 for number in numbers],
        "keys": [f"k{number}" for number in numbers],
    }
    store.put_batch(pa.table(rows))


def expire(store: MessageStore, files: LocalFileSystem, occasion: Occasion) -> int:
    """One run; returns the log's first byte that stays."""
    config = RetentionConfig()
    plan = plan_expiry(store, files, config, occasion, now_ms=NOW_MS)
    apply_expiry(store.writer, plan, config, sleep=lambda seconds: None)
    return plan.minimum


def delete_all_that_may_go(store: SinkStore) -> int:
    minimum = -1
    while True:
        with store.open() as opened_store:
            before, minimum = minimum, expire(opened_store, store.file_system, FULL_DISK)
            opened_store.release()
        if minimum == before:
            return minimum


def messages(store: MessageStore) -> set[tuple[int, int, int]]:
    """(queue id, queue offset, place in the log) of all that can be read of topic A."""
    found = [(one.queue_id, one.queue_offset, one.commitlog_offset) for one in served(store, "A")]
    counts = [store.max_offset("A", queue_id) - store.min_offset("A", queue_id) for queue_id in store.queue_ids("A")]
    assert len(found) == sum(counts), "something is served at each offset"
    return set(found)


@pytest.mark.parametrize(
    "crash",
    one_in(2, [lambda disk, number: disk.after_power_loss(random.Random(number)), lambda disk, number: deepcopy(disk)]),
    ids=["power loss", "kill"],
)  # fmt: skip
def test_nothing_that_was_to_stay_is_lost(crash: Callable[[Disk, int], Disk], tmp_path: Path) -> None:
    settings = "".join(f"{name}={value}\n" for name, value in TINY.settings.items())
    (tmp_path / "broker.conf").write_text(settings, "utf-8")
    root = tmp_path / "store"
    with opened(root, LocalFileSystem()) as store:
        row = store.put("A", b"the sink's row", queue_id=0)
        end = outgoing_ledger_message(
            LedgerStatement(END, SINK, 1, last=(row.commitlog_offset, row.unique_key)), now_ms=NOW_MS
        )
        store.writer.append([encode_block(end, store.writer.settings.host)])
        append(store, 0, 150)
        closed = messages(store)
    files = CrashFileSystem(str(root))
    with opened(root, files, boot=1) as store:
        append(store, 150, 8)  # ASYNC_FLUSH: nobody has promised anything of these
        store.release()
    files.mark("appended")
    with opened(root, files, boot=2) as store:
        before = messages(store)
        minimum = expire(store, files, FULL_DISK)
    kept = {message for message in before if message[2] >= minimum}
    assert 0 < len(kept) < len(before)
    deletions = 0
    for number, marks, disk in files.states():
        if "appended" not in marks:
            continue
        step = files.operations[number - 1]
        deletions += step.kind == "unlink" and Path(step.path).name.isdigit()
        if number % (3 if deletions else 9):
            continue
        after = CrashFileSystem(str(root), crash(disk, number), boot=2)
        with opened(root, after, boot=3) as store:
            there = messages(store)
            assert there <= before
            assert there >= (kept if deletions else kept & closed), f"after {step.kind} {step.path}"
            assert [message.batch for message in newest_ends(store.writer)] == [SINK]
            expire(store, after, Occasion(()))
        assert verify_store(str(root)).findings == ()
    assert deletions > 10


def test_a_sink_that_rested_while_its_files_went_is_known(tmp_path: Path) -> None:
    store = SinkStore(SinkStore.make_place(tmp_path))
    resting = [rows_of(number, sink_id="resting", query_id="its-query") for number in range(3)]
    busy = [rows_of(number, sink_id="busy") for number in range(12)]
    for rows in (*resting, *busy):
        store.commit(rows)
    assert store.open_intents == 1, "the last batch may not be on the disk yet"
    for turn in range(2):  # what was written again comes to expire too
        minimum = delete_all_that_may_go(store)
        with open_store(store.root) as opened_store:
            assert opened_store.log.minimum == minimum > 0
        assert store.open_intents == 0
        for number in range(8):
            store.commit(rows_of(number, sink_id=f"other-{turn}"))
    end = store.log_end
    Path(store.root, "spark_mq/hint.json").unlink()  # the next process reads the ledger
    Path(store.root, "config/consumerOffset.json").unlink()  # and nothing else
    Path(store.root, "config/consumerOffset.json.bak").unlink()
    for rows in (resting[2], busy[11]):
        assert store.commit(rows) == CommitOutcome(True, 0)
    for rows in (resting[0], busy[0]):
        with pytest.raises(SinkAheadError):
            store.commit(rows)
    with pytest.raises(SinkTakenError, match="belongs to query its-query"):
        store.commit(rows_of(0, sink_id="resting", query_id="another"))
    assert store.log_end == end
    assert verify_store(store.root).findings == ()
