"""One life of each operation on a disk that notes down what it is told.

Each story looks at what came of the operation, too: who leaves a step out does not only change an order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from unittest import mock
from uuid import UUID

import pyarrow as pa

import storage.batch.slices
import storage.delay.schedule
import storage.index.writer
from spark_mq.broker.end_transaction import end_transaction, request_for
from spark_mq.broker.send_back import SendBackHandler, SendBackRequest
from storage import MessageStore, StoreConfig, open_store
from storage.batch.commit import commit_batch
from storage.batch.dead_letter_file import DeadLetterFile
from storage.batch.ledger import Batch
from storage.batch.staged_segment import sink_digest
from storage.delay.delay_offsets import FILE_NAME, DelayOffsets
from storage.delay.schedule import deliver_due
from storage.derived.sync import DerivedSync
from storage.files.atomic_file import write_with_backup
from storage.files.failed_sync import note_failed_sync
from storage.format.sys_flag import TRANSACTION_COMMIT
from storage.log.writer import LogSync
from storage.messages.half_messages import HALF_TOPIC, half_message
from storage.messages.inner_messages import InnerMessage
from storage.put_status import PutStatus
from storage.recovery.log_bind import bind_log
from storage.recovery.quarantine import list_quarantines
from storage.retention import Occasion, apply_expiry, plan_expiry
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.settings.nouns import DelayConfig, FlushConfig, RetentionConfig, TransactionConfig
from storage.tables.group_progress import write_group_offsets
from storage.tables.topics import TopicConfig
from storage.transaction.check import check_half_messages
from tests.crash.disk_order import ToldDisk
from tests.support.stage_rows import BatchRows, stage
from tests.support.timed_store import NOW, TimedStore

START_MS = 1_700_000_000_000
FULL_DISK = Occasion(("the disk is full",), whatever_age=True)


class Life:
    """A small store whose clock goes on with every look, on a disk that notes down what it is told."""

    def __init__(self, directory: Path, *, sync_flush: bool = False, config: StoreConfig | None = None) -> None:
        self.root = directory / "store"
        self.disk = ToldDisk(self.root)
        self.config = replace(config or _config(4096), flush=FlushConfig("SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"))
        self._times = itertools.count(START_MS)

    def wait_until(self, now_ms: int) -> None:
        self._times = itertools.count(now_ms)

    def open(self, *, create: bool = True, truncate_damage: bool = False) -> MessageStore:
        return open_store(
            self.root,
            config=self.config,
            read_only=False,
            create=create,
            file_system=self.disk,
            clock=lambda: next(self._times),
            truncate_damage=truncate_damage,
        )


def _config(log_file_size_bytes: int) -> StoreConfig:
    tiny = StoreConfig.tiny()
    return replace(tiny, commit_log=replace(tiny.commit_log, mapped_file_size_commit_log=log_file_size_bytes))


ROOMY = _config(1 << 18)
"""A whole batch finds room in the first log file."""


def put(store: MessageStore, first: int, count: int, *, topic: str = "A") -> None:
    numbers = range(first, first + count)
    columns = {
        "topic": [topic] * count,
        "queue_id": pa.array([0] * count, pa.int32()),
        "body": [b"%d" % number * 20 for number in numbers],
        "keys": [f"k{number}" for number in numbers],
    }
    store.put_batch(pa.record_batch(columns), queue_count=1)


def bodies(store: MessageStore, topic: str = "A", queue_id: int = 0) -> list[bytes]:
    """All that a queue shows."""
    found: list[bytes] = []
    offset = 0
    while (result := store.get(topic, queue_id, offset, 100)).messages:
        found += [message.body for message in result.messages]
        offset = result.next_begin_offset
    return found


def _expected(count: int) -> list[bytes]:
    return [b"%d" % number * 20 for number in range(count)]


# Each story returns what the disk was told while the operation went on.


def putting(directory: Path, *, sync_flush: bool = True) -> list[str]:
    """A store's first messages, over the end of a log file, of a queue file and of an index file."""
    life = Life(directory, sync_flush=sync_flush)
    with life.open() as store:
        life.disk.begin()
        put(store, 0, 1)
        for number in range(1, 22):
            put(store, number, 1)
        told = life.disk.told()
        assert bodies(store) == _expected(22)
    return told


def closing(directory: Path) -> list[str]:
    """A store with a batch whose intent stands, and a put."""
    life = Life(directory, config=ROOMY)
    store = life.open()
    commit(life, store, 0)
    put(store, 0, 3)
    life.disk.begin()
    store.close()
    told = life.disk.told()
    with life.open(create=False) as again:  # the lock was given back
        assert bodies(again) == _expected(3)
        assert again.plan.was_clean
    return told


def releasing(directory: Path, *, after_ms: int = 0) -> list[str]:
    life = Life(directory)
    store = life.open()
    put(store, 0, 3)
    life.wait_until(START_MS + 1_000 + after_ms)
    life.disk.begin()
    store.release()
    told = life.disk.told()
    with life.open(create=False) as again:
        assert bodies(again) == _expected(3)
        assert again.recovery is None, "the hint holds"
    return told


def opening_after_a_kill(directory: Path) -> list[str]:
    """After a checkpoint two queue files were lost, and the log ends in a torn record; a batch was decided, and is in the log."""
    life = Life(directory, config=ROOMY)
    store = life.open()
    put(store, 0, 3)
    store.writer.checkpoint()
    put(store, 3, 30)
    commit(life, store, 0)
    tail = store.writer.log_end
    kill(store)
    for path in sorted((life.root / "consumequeue/A/0").iterdir())[1:]:
        life.disk.unlink(str(path))
    life.disk.write(f"{life.root}/commitlog/{0:020d}", tail, b"torn")
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert bodies(again) == _expected(33)
    return told


def opening_after_a_start_of_the_machine(directory: Path) -> list[str]:
    """What was written to the index since the checkpoint may not be on the disk: its files go, and keys are entered again."""
    life = Life(directory)
    store = life.open()
    put(store, 0, 3)
    store.writer.checkpoint()
    put(store, 3, 30)
    kill(store)
    life.disk.boot = 2
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert bodies(again) == _expected(33)
        assert [len(again.query("A", f"k{number}", 10)) for number in (0, 3, 32)] == [1, 1, 1]
    return told


def opening_after_a_failed_sync(directory: Path) -> list[str]:
    life = Life(directory)
    store = life.open()
    put(store, 0, 3)
    note_failed_sync(life.disk, str(life.root), store.writer.unsynced_paths())
    kill(store)
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert bodies(again) == _expected(3)
    return told


def repairing(directory: Path) -> list[str]:
    """A bad record amid others, over several files, behind the checkpoint; a copy of a former attempt was not finished."""
    life = Life(directory)
    store = life.open()
    put(store, 0, 3)
    store.writer.checkpoint()
    put(store, 3, 37)
    place = store.position("A", 0, 5)
    kill(store)
    assert place is not None
    life.disk.write(f"{life.root}/commitlog/{0:020d}", place.commitlog_offset + 95, b"\xff")
    unfinished = f"{life.root}/spark_mq/quarantine/20000101T000000000-{0:020d}"
    life.disk.create_file(f"{unfinished}/commitlog/{0:020d}", 1)
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert bodies(again) == _expected(5)
        assert [kept.intact_records for kept in list_quarantines(life.disk, str(life.root))] == [34]
        assert not Path(unfinished).exists()
    return told


def bridging(directory: Path) -> list[str]:
    """A log file is missing amid others."""
    life = Life(directory)
    with life.open() as store:
        put(store, 0, 60)
    life.disk.unlink(f"{life.root}/commitlog/{4096:020d}")
    life.disk.begin()
    with life.open(create=False, truncate_damage=True) as again:
        told = [word for word in life.disk.told() if "4096" in word or word == "sync commitlog"]
        assert set(bodies(again)) < set(_expected(60))
        assert again.get("A", 0, 59).messages
    return told


def finishing(directory: Path) -> list[str]:
    """A commit was killed amid its rows; whoever opens the store next goes on."""
    life = Life(directory, config=ROOMY)
    store = life.open()
    commit(life, store, 0)
    with mock.patch.object(storage.batch.slices, "reach", killed_at("amid-slice")), suppress(Killed):
        commit(life, store, 1)
    kill(store)
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert again.finished_batches == 1
        assert sum(again.max_offset("orders", queue_id) for queue_id in range(4)) == 8
    return told


def mending(directory: Path) -> list[str]:
    """A power loss has taken the end of a row's record, its properties, while the batch's intent stands."""
    life = Life(directory, config=ROOMY)
    store = life.open()
    commit(life, store, 0)
    [row] = store.get("orders", 0, 0).messages[:1]
    kill(store)
    life.disk.write(f"{life.root}/commitlog/{0:020d}", row.commitlog_offset + row.size_bytes - 8, bytes(8))
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert again.get("orders", 0, 0).messages[0].properties == row.properties
    return told


def opening_after_a_kill_amid_the_index(directory: Path) -> list[str]:
    """The writer was killed behind an index file's header and before its slots."""
    life = Life(directory)
    store = life.open()
    put(store, 0, 3)
    with mock.patch.object(storage.index.writer, "reach", killed_at("amid-index")), suppress(Killed):
        put(store, 3, 3)
    kill(store)
    life.disk.begin()
    with life.open(create=False) as again:
        told = life.disk.told()
        assert [len(again.query("A", f"k{number}", 10)) for number in range(6)] == [1] * 6
    return told


class Killed(BaseException):
    """What stands for SIGKILL inside this process."""


def killed_at(place: str) -> Callable[[str], None]:
    def reach(name: str) -> None:
        if name == place:
            raise Killed

    return reach


def kill(store: MessageStore) -> None:
    """The process is gone, and what it wrote is there."""
    store.writer.close()
    store._writer = None
    store._give_back()


def rows_of(batch_id: int, count: int = 4) -> BatchRows:
    return BatchRows(Batch("sink", "query", batch_id), (count,), ("orders",))


def commit(
    life: Life,
    store: MessageStore,
    batch_id: int,
    *,
    mirrored: bool = True,
    dead_letters: bool = False,
    letters_are_gone: bool = False,
) -> None:
    rows = rows_of(batch_id)
    segments = stage(life.disk, str(life.root), life.config, rows, queue_count=4)
    letters = []
    if dead_letters:
        letters = [
            DeadLetterFile.of(f"{life.root}/letters", sink_digest("sink", "query").hex(), batch_id, 0, str(UUID(int=7)))
        ]
        if not letters_are_gone:
            life.disk.create_file(letters[0].staged, 1)
    commit_batch(store.writer, rows.batch, segments, topics={"orders": 4}, mirrored=mirrored, dead_letters=letters)


def committing(directory: Path, *, sync_flush: bool = False, mirrored: bool = True) -> list[str]:
    """A store's second batch, with dead letters."""
    life = Life(directory, config=ROOMY, sync_flush=sync_flush)
    with life.open() as store:
        commit(life, store, 0)
        life.disk.begin()
        commit(life, store, 1, mirrored=mirrored, dead_letters=True)
        told = life.disk.told()
    return told


def committing_first(directory: Path) -> list[str]:
    """A store's first batch: its topic, its ledger and its log are made."""
    life = Life(directory, config=ROOMY)
    with life.open() as store:
        life.disk.begin()
        commit(life, store, 0)
        told = life.disk.told()
    return told


def queue_turn(directory: Path) -> list[str]:
    """The first turn is thorough."""
    life = Life(directory)
    with PutService(life.open(), starts_duties=False) as service:
        messages = [InnerMessage(topic="A", queue_id=0, body=b"x", properties={"KEYS": "k"}, born_time_ms=START_MS)]
        assert service.put_inner(messages).status is PutStatus.PUT_OK
        assert bodies(service.store) == [b"x"], "readable before it is synced"
        life.disk.begin()
        service.log_turn()
        service.queue_turn()
        told = life.disk.told()
    return told


def delivering(directory: Path, *, was_killed: bool = False) -> list[str]:
    """One message is due; or was put by a delivery that was killed before it said so."""
    life = Life(directory, config=replace(StoreConfig.tiny(), delay=DelayConfig("1s 5s 10s")))
    with life.open() as store:
        parked = {"UNIQ_KEY": "K", "DELAY": "1", "REAL_TOPIC": "A", "REAL_QID": "0"}
        message = InnerMessage(
            topic="SCHEDULE_TOPIC_XXXX", queue_id=0, body=b"late", properties=parked, born_time_ms=START_MS
        )
        store.put_inner([message])
        store.save_state(FILE_NAME, DelayOffsets().with_offsets({1: 0}, now_ms=START_MS).to_text())
        life.wait_until(START_MS + 10_000)
        life.disk.begin()
        if was_killed:
            with mock.patch.object(storage.delay.schedule, "reach", killed_at("after-delivery")), suppress(Killed):
                deliver_due(store, START_MS + 10_000)
            life.disk.begin()
        report = deliver_due(store, START_MS + 10_000)
        told = life.disk.told()
        assert report.found_delivered == was_killed
        assert bodies(store) == [b"late"]
        assert deliver_due(store, START_MS + 10_000).delivered == {}
    return told


def timing(directory: Path) -> list[str]:
    """Two messages are entered, and one of them is delivered."""
    root = directory / "store"
    disk = ToldDisk(root)
    timed = TimedStore(root, files=disk)
    timed.park("first", NOW + 1_000)
    timed.deliver(NOW)
    timed.park("soon", NOW + 5_000)
    timed.park("later", NOW + 20_000)
    disk.begin()
    timed.deliver(NOW + 10_000)
    told = disk.told()
    assert timed.delivered == ["first", "soon"]
    timed.store.close()
    return told


def timing_alone(directory: Path) -> list[str]:
    """A message is due, and none is to be entered: the seal of the timer before still holds."""
    root = directory / "store"
    disk = ToldDisk(root)
    timed = TimedStore(root, files=disk)
    timed.park("first", NOW + 5_000)
    timed.deliver(NOW)
    disk.begin()
    timed.deliver(NOW + 10_000)
    told = disk.told()
    assert timed.delivered == ["first"]
    timed.store.close()
    return told


def checking(directory: Path) -> list[str]:
    """One half committed, one rolled back, one put back, one given up."""
    life = Life(directory, config=replace(StoreConfig.tiny(), transaction=TransactionConfig(transaction_check_max=1)))
    with life.open() as store:
        halves = [
            half_message(
                InnerMessage(
                    topic="A", queue_id=0, body=answer.encode(), properties={"UNIQ_KEY": answer}, born_time_ms=START_MS
                ),
                "P",
            )
            for answer in ("unknown",)
        ]
        store.put_inner(halves)
        check_half_messages(lambda: nullcontext(store), lambda half: half.body.decode(), START_MS + 100_000)
        store.put_inner(
            [
                half_message(
                    InnerMessage(
                        topic="A",
                        queue_id=0,
                        body=answer.encode(),
                        properties={"UNIQ_KEY": answer},
                        born_time_ms=START_MS,
                    ),
                    "P",
                )
                for answer in ("commit", "rollback", "unknown2")
            ]
        )
        life.disk.begin()
        report = check_half_messages(
            lambda: nullcontext(store), lambda half: half.body.decode().rstrip("2"), START_MS + 200_000
        )
        told = life.disk.told()
        assert (report.committed, report.rolled_back, report.put_back, report.discarded) == (1, 1, 1, 1)
        assert bodies(store) == [b"commit"]
    return told


def extending(directory: Path) -> list[str]:
    """Units of two extension files."""
    tiny = _config(4096)
    queues = replace(tiny.consume_queue, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=100)
    life = Life(directory, config=replace(tiny, consume_queue=queues))
    with life.open() as store:
        life.disk.begin()
        for number in range(6):
            put(store, number, 1)
        told = [word for word in life.disk.told() if "consumequeue" in word]
        assert bodies(store) == _expected(6)
        assert (
            store.queues.ext("A", 0)
            .tags_codes(store.queues.get("A", 0).entries(0, 6)["tags_code"].astype("i8"))
            .tolist()
            == [0] * 6
        )
    return told


def ending_a_transaction(directory: Path) -> list[str]:
    life = Life(directory)
    with life.open() as store:
        properties = {"UNIQ_KEY": "K"}
        message = InnerMessage(topic="A", queue_id=0, body=b"x", properties=properties, born_time_ms=START_MS)
        store.save_topic(TopicConfig("A", 1, 1))
        store.put_inner([half_message(message, "P")])
        half = store.get(HALF_TOPIC, 0, 0).messages[0]
        life.disk.begin()
        response = end_transaction(store, request_for(half, TRANSACTION_COMMIT), START_MS + 1_000)
        assert response is not None
        assert response.code is ResponseCode.SUCCESS
        told = life.disk.told()
        assert bodies(store) == [b"x"]
    return told


def binding(directory: Path) -> list[str]:
    """A store's log lies outside of it."""
    (directory / "log").mkdir()
    config = _config(4096)
    log = replace(config.commit_log, store_path_commit_log=str(directory / "log"))
    life = Life(directory, config=replace(config, commit_log=log))
    life.disk.begin()
    assert bind_log(str(life.root), life.config, life.disk) == (str(directory / "log"),)
    return life.disk.told()


def expiring(directory: Path) -> list[str]:
    """Two log files go, with a queue file and index files; a sink's END goes with them, and is written again."""
    life = Life(directory)
    store = life.open()
    commit(life, store, 0)
    for first in range(0, 60, 10):
        put(store, first, 10)
    config = replace(RetentionConfig(), delete_file_batch_max=2)
    plan = plan_expiry(store, life.disk, config, FULL_DISK, now_ms=START_MS)
    assert (len(plan.log_files), bool(plan.index_paths), any(queue.paths for queue in plan.queues)) == (2, True, True)
    life.disk.begin()
    assert apply_expiry(store.writer, plan, config, sleep=lambda seconds: None) == 1
    told = life.disk.told()
    store.close()
    return told


def sending_back(directory: Path) -> list[str]:
    """The first message that a group gives back."""
    life = Life(directory)
    with life.open() as store:
        place = store.put("A", b"x", queue_count=1)
        life.disk.begin()
        request = SendBackRequest(commitlog_offset=place.commitlog_offset, group="G", delay_level=-1)
        assert SendBackHandler(store, store.config).send_back(request).code is ResponseCode.SUCCESS
        told = life.disk.told()
    return told


def setting_group_offsets(directory: Path) -> list[str]:
    life = Life(directory)
    life.open().close()
    life.disk.begin()
    for offset in (1, 2):
        write_group_offsets(str(life.root), "G", {("A", 0): offset}, now_ms=START_MS, file_system=life.disk)
    return life.disk.told()


def replacing(directory: Path) -> list[str]:
    """A table that is there is replaced; told word by word."""
    disk = ToldDisk(directory / "store")
    path = f"{disk.root}/config/topics.json"
    write_with_backup(path, '{"a": 1}', disk)
    disk.begin()
    write_with_backup(path, '{"a": 2}', disk)
    assert [disk.read_file(name) for name in (path, f"{path}.bak")] == [b'{"a": 2}', b'{"a": 1}']
    return disk.told(replaced=False)


def putting_through_a_service(directory: Path) -> list[str]:
    """A put waits for its sync."""
    life = Life(directory, sync_flush=True)
    service = PutService(life.open(), starts_duties=False)
    life.disk.begin()
    _ask(service, b"first")
    waiting = service._group.request(service._writer.log_end)
    waiting.add_done_callback(lambda _: life.disk.mark("answer"))
    service.sync_turn()
    told = life.disk.told()
    assert waiting.done()
    assert bodies(service.store) == [b"first"]
    service.close()
    return told


def putting_beside_a_sync(directory: Path) -> list[str]:
    """Two messages are put, the second while the sync for the first is under way; then the one for the second comes."""
    life = Life(directory, sync_flush=True)
    service = PutService(life.open(), starts_duties=False)
    _ask(service, b"first")
    life.disk.begin()
    with _amid(LogSync, "_sync", lambda: _ask(service, b"second")):
        service.sync_turn()
    assert bodies(service.store) == [b"first"], "the second was not there when the sync began"
    service.sync_turn()
    told = life.disk.told()
    assert bodies(service.store) == [b"first", b"second"]
    service.close()
    return told


def putting_beside_a_queue_sync(directory: Path) -> list[str]:
    """Likewise while queues are synced: the next turn syncs them again."""
    life = Life(directory)
    service = PutService(life.open(), starts_duties=False)
    _ask(service, b"first")
    life.disk.begin()
    with _amid(DerivedSync, "run", lambda: _ask(service, b"second")):
        service.queue_turn()
    life.wait_until(START_MS + 100_000)
    service.log_turn()
    service.queue_turn()
    told = life.disk.told()
    service.close()
    return told


def putting_into_a_pool(directory: Path) -> list[str]:
    life = Life(directory)
    life.config = replace(life.config, flush=FlushConfig(transient_store_pool_enable=True))
    service = PutService(life.open(), starts_duties=False)
    life.disk.begin()
    _ask(service, b"first")
    assert bodies(service.store) == []
    life.wait_until(START_MS + 20_000)
    service.pool_turn()
    assert bodies(service.store) == [b"first"]
    service.log_turn()
    told = life.disk.told()
    service.close()
    return told


def _ask(service: PutService, body: bytes) -> None:
    properties = {"KEYS": body.decode(), "WAIT": "false"}
    message = InnerMessage(topic="A", queue_id=0, body=body, properties=properties, born_time_ms=START_MS)
    assert service.put_inner([message]).status is PutStatus.PUT_OK


@contextmanager
def _amid(cls: type, name: str, act: Callable[[], None]) -> Iterator[None]:
    """Somebody does something behind the first call of a method, before it returns."""
    original, acts = getattr(cls, name), [act]

    def call(self: object) -> None:
        original(self)
        if acts:
            acts.pop()()

    with mock.patch.object(cls, name, call):
        yield


STORIES: Mapping[str, Callable[[Path], list[str]]] = MappingProxyType(
    {
        "putting under SYNC_FLUSH": putting,
        "putting under ASYNC_FLUSH": partial(putting, sync_flush=False),
        "putting through a service": putting_through_a_service,
        "putting beside a sync of the log": putting_beside_a_sync,
        "putting beside a sync of the queues": putting_beside_a_queue_sync,
        "putting into a pool": putting_into_a_pool,
        "closing": closing,
        "releasing": releasing,
        "releasing after a minute": partial(releasing, after_ms=60_000),
        "opening after a kill": opening_after_a_kill,
        "opening after a start of the machine": opening_after_a_start_of_the_machine,
        "opening after a kill amid the index": opening_after_a_kill_amid_the_index,
        "opening after a failed sync": opening_after_a_failed_sync,
        "opening with a bad record amid others": repairing,
        "opening with a missing log file": bridging,
        "opening after a kill amid a batch": finishing,
        "opening with a torn row": mending,
        "committing under SYNC_FLUSH": partial(committing, sync_flush=True),
        "committing under ASYNC_FLUSH": committing,
        "committing without a consumer offset": partial(committing, mirrored=False),
        "committing a store's first batch": committing_first,
        "the queues' turn": queue_turn,
        "delivering a delay level": delivering,
        "going on with a delivery": partial(delivering, was_killed=True),
        "delivering at a time": timing,
        "delivering at a time, with a seal": timing_alone,
        "checking transactions": checking,
        "ending a transaction": ending_a_transaction,
        "putting with extension units": extending,
        "binding a log": binding,
        "expiring": expiring,
        "sending back": sending_back,
        "setting a group's offsets": setting_group_offsets,
        "replacing a table": replacing,
    }
)
