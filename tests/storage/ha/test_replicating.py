"""Our master and our follower over a socket: logs byte for byte, whatever breaks in between."""

from __future__ import annotations

import errno
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from storage import StoreConfig, open_store
from storage.errors import OffsetOutOfRangeError, StoreNotWritableError, StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.record import BLANK, INNER_BATCH, MAGIC_BLANK, encode_record
from storage.format.replication import (
    Decoded,
    Dialect,
    EpochEntry,
    Frame,
    Report,
    SlaveHandshake,
    decode_from_master,
    encode_from_master,
    encode_from_slave,
)
from storage.ha.epochs import load_epochs
from storage.ha.follower import FollowerStatus, Following, MasterAddress, MasterAsks, open_following, promote
from storage.ha.listener import ListenerSettings, LogReader, ReplicationListener, Replicator
from storage.ha.sessions import Timing
from storage.log.commit_log import read_checkpoint
from storage.recovery.verify import verify
from storage.service.put_service import PutService
from storage.settings.nouns import FlushConfig
from storage.tables.topics import TopicConfig, TopicTable
from tests.format.test_replication import captured, values_of
from tests.support.message_builder import make_message
from tests.support.replicas import await_holder, holders
from tests.support.waiting import wait_until

PATIENCE = 30.0
QUICK = Timing(heartbeat_ms=200, housekeeping_ms=5_000)
TINY = StoreConfig.tiny()


class Master:
    """A store that is put into, and served."""

    def __init__(self, root: Path, *, config: StoreConfig = TINY, batch_bytes: int = 32_768, port: int = 0) -> None:
        self.root = root
        self.service = PutService(open_store(root, read_only=False, create=True, config=config))
        store = self.service.store
        self.reader = LogReader(
            lambda: store.layout.commit_log(store.writer.file_system),
            lambda: self.service.dispatched_end,
            self.service.settings.log_file_size_bytes,
        )
        settings = ListenerSettings(port=port, timing=QUICK, batch_bytes=batch_bytes)
        self.listener = ReplicationListener(self.reader, settings)
        self.service.log_grew = self.listener.wake
        self.listener.start()

    @property
    def address(self) -> str:
        return self.listener.address

    @property
    def end(self) -> int:
        return self.service.dispatched_end

    def put(self, count: int, *, topic: str = "orders", size: int = 300, seed: int = 1) -> None:
        rng = random.Random(seed)
        bodies = [rng.randbytes(rng.randrange(1, size)) for _ in range(count)]
        keys = [f"key-{number}" for number in range(count)]
        self.service.put_batch(
            pa.RecordBatch.from_pydict({"topic": [topic] * count, "body": pa.array(bodies, pa.binary()), "keys": keys})
        )

    def close(self) -> None:
        self.listener.close()
        self.service.close()


def following(root: Path, address: str | MasterAddress, *, config: StoreConfig = TINY, **options: object) -> Following:
    return open_following(str(root), address, config=config, timing=QUICK, reconnect_ms=50, **options)  # type: ignore[arg-type]


def until(follower: Following, end: int) -> None:
    assert follower.follower.wait(lambda status: status.end >= end, PATIENCE), follower.follower.status


def assert_same_logs(one: Path, other: Path, end: int) -> None:
    """All bytes up to the end, and nothing behind it in the replica."""
    for path in sorted((other / "commitlog").iterdir()):
        start = int(path.name)
        theirs, ours = (one / "commitlog" / path.name).read_bytes(), path.read_bytes()
        assert ours[: end - start] == theirs[: end - start], path.name
        assert not any(ours[max(0, end - start) :])


def assert_sound(root: Path) -> None:
    marks = read_checkpoint(LocalFileSystem(), str(root))
    with open_store(root, config=TINY) as store:
        report = verify(store.log, store.queues, store.index, marks, store.plan, delays_ms=(1_000,))
    assert report.findings == ()


def queue_files(root: Path) -> dict[str, bytes]:
    files = (root / "consumequeue").rglob("*")
    return {str(path.relative_to(root)): path.read_bytes() for path in files if path.is_file()}


def assert_replica(master: Path, replica: Path, end: int) -> None:
    assert_same_logs(master, replica, end)
    assert queue_files(replica) == queue_files(master)
    assert_sound(replica)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    made = Master(tmp_path / "master")
    with closing(made):
        yield made


def test_a_replica_has_the_masters_bytes_queues_and_keys(master: Master, tmp_path: Path) -> None:
    master.put(40)  # three files
    with following(tmp_path / "replica", master.address) as replica:
        until(replica, master.end)
        for number in range(5):
            master.put(7, topic=f"topic-{number % 2}", seed=number)
            until(replica, master.end)
        end = master.end
        wait_until(lambda: holders(master.listener.replicas.snapshot(), end) == 1, "it is acknowledged")
        assert [each.is_in_sync(end, 100) for each in master.listener.replicas.snapshot()] == [True]
        with open_store(tmp_path / "replica", config=TINY) as reader:  # read while it follows
            assert reader.get("orders", queue_id=0, offset=0, max_count=3).messages
            assert [found.body for found in reader.query("orders", "key-3")]
    wait_until(lambda: master.listener.replicas.snapshot() == (), "it is gone")
    master.service.flush()
    assert_replica(master.root, tmp_path / "replica", end)


def test_a_follower_goes_on_where_it_was(master: Master, tmp_path: Path) -> None:
    for number in range(6):
        master.put(9, seed=number)
        with following(tmp_path / "replica", master.address) as replica:
            until(replica, master.end)
    assert_replica(master.root, tmp_path / "replica", master.end)


def test_a_master_that_goes_and_comes_is_followed(tmp_path: Path) -> None:
    first = Master(tmp_path / "master")
    port = int(first.address.rpartition(":")[2])
    first.put(5)
    with following(tmp_path / "replica", first.address) as replica:
        until(replica, first.end)
        first.close()
        with closing(Master(tmp_path / "master", port=port)) as again:
            again.put(30, seed=2)
            until(replica, again.end)
            end = again.end
    assert_replica(tmp_path / "master", tmp_path / "replica", end)


def large(file_size: int) -> StoreConfig:
    return replace(TINY, commit_log=replace(TINY.commit_log, mapped_file_size_commit_log=file_size))


@pytest.mark.parametrize("batch_bytes", [100, 1_000, 32_768])
def test_messages_larger_than_a_frame_arrive_whole(tmp_path: Path, batch_bytes: int) -> None:
    config = large(1 << 20)
    with closing(Master(tmp_path / "master", config=config, batch_bytes=batch_bytes)) as master:
        master.put(20, size=200_000)
        with following(tmp_path / "replica", master.address, config=config) as replica:
            until(replica, master.end)
        end = master.end
    assert_same_logs(tmp_path / "master", tmp_path / "replica", end)


def test_a_message_of_four_mebibytes_is_cut_in_frames(tmp_path: Path) -> None:
    config = large(8 << 20)
    with closing(Master(tmp_path / "master", config=config)) as master:
        rows = {
            "topic": ["large"] * 3,
            "body": pa.array([bytes([65 + n]) * ((4 << 20) - n) for n in range(3)], pa.binary()),
        }
        with following(tmp_path / "replica", master.address, config=config) as replica:
            master.service.put_batch(pa.RecordBatch.from_pydict(rows))
            until(replica, master.end)
        end = master.end
    assert_same_logs(tmp_path / "master", tmp_path / "replica", end)


def test_a_sinks_store_is_served_beside_its_writer(tmp_path: Path) -> None:
    with open_store(tmp_path / "master", read_only=False, create=True, config=TINY) as store:
        store.put("orders", b"one")
        replicator = Replicator(open_store(tmp_path / "master", config=TINY), ListenerSettings(timing=QUICK))
        replicator.start()
        with closing(replicator), following(tmp_path / "replica", replicator.listener.address) as replica:
            until(replica, store.log_end)
            for number in range(30):
                store.put("orders", b"x" * number * 9)
            until(replica, store.log_end)
            end = store.log_end
    assert_same_logs(tmp_path / "master", tmp_path / "replica", end)


# What keeps a slave from going on is said


@contextmanager
def asking(address: str, offset: int) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        connection.sendall(encode_from_slave(Dialect.DEFAULT, Report(offset)))
        yield connection


@pytest.mark.parametrize(("offset", "reason"), [(17, "no record"), (2**40, "has not"), (-7, "place -7")])
def test_a_slave_that_cannot_go_on_is_hung_up_on_and_named(master: Master, offset: int, reason: str) -> None:
    master.put(3)
    with asking(master.address, offset) as connection:
        assert connection.recv(100) == b""
    assert reason in master.listener.refusals[-1].reason
    assert holders(master.listener.replicas.snapshot(), 0) == 0


def test_a_slave_of_an_expired_place_is_told_so(master: Master, tmp_path: Path) -> None:
    master.put(60)
    (tmp_path / "master" / "commitlog" / f"{0:020}").unlink()
    with asking(master.address, 4_000) as connection:
        assert connection.recv(100) == b""
    assert "expired" in master.listener.refusals[-1].reason
    with following(tmp_path / "replica", master.address) as replica:  # a new one has what there is
        until(replica, master.end)
        assert replica.service.store.log.minimum == 4_096


def test_any_eight_bytes_are_no_acknowledgement(master: Master) -> None:
    master.put(3)
    with asking(master.address, 0) as connection:
        connection.recv(12)
        connection.sendall(encode_from_slave(Dialect.DEFAULT, Report(2**40)))
        while connection.recv(4096):
            pass
    assert "acknowledges" in master.listener.refusals[-1].reason
    assert holders(master.listener.replicas.snapshot(), 1) == 0


def test_a_silent_stranger_is_hung_up_on_and_never_in_sync(tmp_path: Path) -> None:
    quick = Timing(heartbeat_ms=50, housekeeping_ms=300)
    service = PutService(open_store(tmp_path / "master", read_only=False, create=True, config=TINY))
    reader = LogReader(
        lambda: service.store.layout.commit_log(service.store.writer.file_system), lambda: service.dispatched_end, 4096
    )
    listener = ReplicationListener(reader, ListenerSettings(timing=quick))
    listener.start()
    with closing(service), closing(listener):
        host, _, port = listener.address.rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE) as connection:
            wait_until(listener.replicas.snapshot, "it is seen")
            assert not any(each.is_in_sync(0, 100) for each in listener.replicas.snapshot())
            assert connection.recv(10) == b""
        assert "nothing for too long" in listener.refusals[-1].reason


def test_bytes_that_have_expired_are_never_taken_from_another_file(master: Master) -> None:
    master.put(60)  # three files
    reader = master.reader
    (master.root / "commitlog" / f"{0:020}").unlink()
    reader.look(at_files=True)
    assert reader.minimum == 4_096
    assert reader.cut(100, 500) > 100
    for start in (0, 100, 4_000):
        with pytest.raises(OffsetOutOfRangeError):
            reader.view(start, 50)
    with pytest.raises(OffsetOutOfRangeError):
        reader.view(8_000, 500)  # the end of a file
    assert len(reader.view(4_096, 4_096)) == 4_096


def test_a_follower_without_a_master_says_what_to_look_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with following(tmp_path / "replica", lambda: None) as replica:
        assert replica.follower.wait(lambda status: status.trouble is not None, 10)
    assert "following no master: no name server or controller knows" in caplog.text


def test_a_log_that_was_cut_below_what_a_slave_was_sent_goes_on_to_nobody_there(master: Master, tmp_path: Path) -> None:
    master.put(20)
    with following(tmp_path / "replica", master.address) as replica:
        until(replica, master.end)
        end = master.end
        master.reader._end = lambda: end - 100
        wait_until(lambda: master.listener.refusals, "it is refused")
    assert "which was cut before that" in master.listener.refusals[0].reason


# A master that is not what it says


class Fake:
    """A master that sends what a test says."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"

    def serve(self, *frames: Frame) -> int:
        """Of one connection; returns the first report."""
        connection, _ = self._server.accept()
        with connection:
            asked = int.from_bytes(connection.recv(8), "big")
            for frame in frames:
                connection.sendall(encode_from_master(frame))
            connection.settimeout(PATIENCE)
            connection.recv(4096)  # a report, or the end
        return asked

    def play(self, data: bytes) -> None:
        """To one connection all that another master has sent: its handshake, and behind the first report the rest."""
        connection, _ = self._server.accept()
        with connection:
            connection.settimeout(PATIENCE)
            assert connection.recv(16)
            handshake = decode_from_master(Dialect.CONTROLLER, data)
            assert isinstance(handshake, Decoded)
            connection.sendall(data[: handshake.size_bytes])
            assert connection.recv(12)
            connection.sendall(data[handshake.size_bytes :])
            while connection.recv(4096):
                pass

    def close(self) -> None:
        self._server.close()


def log_of(tmp_path: Path, count: int = 6) -> bytes:
    with open_store(tmp_path / "other", read_only=False, create=True, config=TINY) as store:
        for number in range(count):
            store.put("orders", b"body %d" % number)
        end = store.log_end
    return (tmp_path / "other" / "commitlog" / f"{0:020}").read_bytes()[:end]


def troubled(word: str) -> Callable[[FollowerStatus], bool]:
    return lambda status: status.trouble is not None and word in status.trouble


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda data: data[:90] + b"\xff" + data[91:], "no record"),  # a body
        (lambda data: data[:4] + bytes(4) + data[8:], "no record"),  # a magic number
        (lambda data: bytes(200), "zeros"),
        (lambda data: data[:28] + (77).to_bytes(8, "big") + data[36:], "physical offset"),
        (lambda data: BLANK.pack(100, MAGIC_BLANK) + bytes(92), "blank filler"),
    ],
    ids=["body", "magic", "zeros", "place", "filler"],
)
def test_bytes_that_are_no_records_are_neither_kept_nor_acknowledged(
    tmp_path: Path, spoil: Callable[[bytes], bytes], word: str
) -> None:
    data = log_of(tmp_path)
    with closing(Fake()) as fake, following(tmp_path / "replica", fake.address) as replica:
        fake.serve(Frame(0, spoil(data)))
        assert replica.follower.wait(troubled(word), PATIENCE), replica.follower.status
        assert fake.serve(Frame(0, data)) == 0
    written = (tmp_path / "replica" / "commitlog" / f"{0:020}").read_bytes()
    assert written[: len(data)] == data
    assert not any(written[len(data) :])


def test_a_frame_that_ends_inside_a_record_is_cut_when_the_connection_breaks(tmp_path: Path) -> None:
    data = log_of(tmp_path)
    first = int.from_bytes(data[:4], "big")
    with closing(Fake()) as fake, following(tmp_path / "replica", fake.address) as replica:
        host_end = first + 50

        def one(asked_for: int, *frames: Frame) -> None:
            connection, _ = fake._server.accept()
            with connection:
                assert int.from_bytes(connection.recv(8), "big") == asked_for
                for frame in frames:
                    connection.sendall(encode_from_master(frame))
                assert connection.recv(8)  # a report of what has come

        one(0, Frame(0, data[:host_end]))
        one(first, Frame(first, data[first:]))
        until(replica, len(data))
    assert (tmp_path / "replica" / "commitlog" / f"{0:020}").read_bytes()[: len(data)] == data


def test_who_has_messages_of_his_own_follows_nobody_by_mistake(master: Master, tmp_path: Path) -> None:
    with open_store(tmp_path / "own", read_only=False, create=True, config=TINY) as store:
        store.put("orders", b"mine")
    with pytest.raises(StoreRefusedError, match="followed no master"):
        following(tmp_path / "own", master.address)


def test_nobody_writes_to_a_replica_until_it_is_promoted(master: Master, tmp_path: Path) -> None:
    master.put(10)
    root = tmp_path / "replica"
    with following(root, master.address) as replica:
        until(replica, master.end)
    with pytest.raises(StoreRefusedError, match="follows"):
        open_store(root, read_only=False, config=TINY)
    assert promote(str(root), config=TINY)
    assert not promote(str(root), config=TINY)
    with open_store(root, read_only=False, config=TINY) as store:
        placed = store.put("orders", b"mine", queue_id=0)
        assert store.get("orders", queue_id=0, offset=placed.queue_offset).messages[0].body == b"mine"
    assert_sound(root)


def test_under_sync_flush_the_master_sends_what_is_synced(tmp_path: Path) -> None:
    config = replace(TINY, flush=FlushConfig("SYNC_FLUSH"))
    with closing(Master(tmp_path / "master", config=config)) as master:
        with following(tmp_path / "replica", master.address, config=config) as replica:
            master.put(20)
            until(replica, master.end)
            assert replica.service.store.writer.synced_end == master.end
        end = master.end
    assert_same_logs(tmp_path / "master", tmp_path / "replica", end)


@pytest.mark.parametrize("has_expired", [False, True])
def test_a_new_follower_that_knows_where_the_log_begins_asks_for_all_of_it(
    master: Master, tmp_path: Path, has_expired: bool
) -> None:
    """As it must of a Java master, which sends its last file to who asks for 0."""
    master.put(60)
    start = 0
    if has_expired:
        (master.root / "commitlog" / f"{0:020}").unlink()
        start = 4_096
    data = b"".join(path.read_bytes() for path in sorted((master.root / "commitlog").iterdir()))
    with closing(Fake()) as fake:
        with following(tmp_path / "replica", fake.address, asks=MasterAsks(lambda: (start, master.end))) as replica:
            asked = fake.serve(Frame(start or 1, data[0 if start else 1 : 1_500]))
            assert asked == (start or 1)
        with following(tmp_path / "other", master.address, asks=MasterAsks(lambda: (start, master.end))) as other:
            until(other, master.end)
    assert replica.follower.status.end > start
    assert_same_logs(master.root, tmp_path / "replica", replica.follower.status.end)
    assert_same_logs(master.root, tmp_path / "other", master.end)
    assert_sound(tmp_path / "other")


def test_a_new_follower_of_an_empty_master_is_in_sync_with_it(master: Master, tmp_path: Path) -> None:
    with following(tmp_path / "replica", master.address, asks=MasterAsks(lambda: (-1, 0))) as replica:
        assert await_holder(master.listener.replicas, 0, PATIENCE)
        assert replica.follower.status.trouble is None
        master.put(20)
        until(replica, master.end)
    assert_replica(master.root, tmp_path / "replica", master.end)


def test_a_follower_that_was_away_past_the_expiry_says_so(tmp_path: Path) -> None:
    data = log_of(tmp_path)
    with closing(Fake()) as fake:
        with following(tmp_path / "replica", fake.address) as replica:
            fake.serve(Frame(0, data))
        bounds = (100_000, 200_000)
        with following(tmp_path / "replica", fake.address, asks=MasterAsks(lambda: bounds)) as replica:
            assert fake.serve(Frame(len(data))) == len(data)
            assert replica.follower.wait(troubled("expired"), PATIENCE), replica.follower.status
            assert replica.follower.status.is_hopeless


def test_a_promoted_replica_has_entries_for_the_topics_that_it_has_queues_of(master: Master, tmp_path: Path) -> None:
    """The log alone was copied. A topic that its next row makes would have 8 queues, and no consumer reads the others."""
    wide = TopicConfig("wide", 11, 11)
    master.service.make_topic(wide)
    rows = {"topic": ["wide"] * 11, "body": pa.array([b"m"] * 11, pa.binary()), "queue_id": list(range(11))}
    master.service.put_batch(pa.RecordBatch.from_pydict(rows))
    with following(tmp_path / "replica", master.address) as replica:
        until(replica, master.end)
    assert promote(str(tmp_path / "replica"), config=TINY)
    with open_store(tmp_path / "replica", config=TINY, read_only=False) as store:
        assert store.settings.topics.topics["wide"] == wide
        assert store.put("wide", b"m", queue_id=6).queue_offset == 1


# A master with batch queues


def test_a_batch_in_the_masters_log_ends_the_following_and_is_not_kept(tmp_path: Path) -> None:
    """Java's slave enters it into a batch queue. In a plain queue it would be one message, and hide those in it."""
    data = log_of(tmp_path)
    batch = make_message("Batches", 1, 7, len(data), body=b"batch", sys_flag=INNER_BATCH)
    with closing(Fake()) as fake, following(tmp_path / "replica", fake.address) as replica:
        assert fake.serve(Frame(0, data)) == 0
        until(replica, len(data))
        fake.serve(Frame(len(data), encode_record(batch)))
        assert replica.follower.wait(troubled("BatchCQ"), PATIENCE), replica.follower.status
        assert replica.follower.status.is_hopeless
        assert isinstance(replica.follower.error, StoreRefusedError)
        place = f"record at {len(data)} of the log is a batch, at offset 7 of queue 1 of topic Batches"
        assert place in str(replica.follower.error)
    assert_same_logs(tmp_path / "other", tmp_path / "replica", len(data))
    assert_sound(tmp_path / "replica")
    assert not (tmp_path / "replica" / "consumequeue" / "Batches").exists()
    with open_store(tmp_path / "replica", config=TINY, read_only=False, holder="follower") as store:
        assert store.log_end == len(data)


def test_a_batch_that_a_killed_follower_has_written_and_not_cut_is_cut_by_the_next_opening(tmp_path: Path) -> None:
    data = log_of(tmp_path)
    properties = {"INNER_NUM": "1", "INNER_BASE": "7"}
    batch = make_message("Batches", 1, 7, len(data), properties=properties, sys_flag=INNER_BATCH)
    record = encode_record(batch)
    with closing(Fake()) as fake, following(tmp_path / "replica", fake.address) as replica:
        assert fake.serve(Frame(0, data)) == 0
        until(replica, len(data))
    with open_store(tmp_path / "replica", config=TINY, read_only=False, holder="follower") as store:
        store.writer.append_raw(len(data), record)
        store.writer.fail(StoreNotWritableError(store.root, "it was killed"))  # it leaves `abort`
    last = max((tmp_path / "replica" / "commitlog").iterdir())
    assert record in last.read_bytes()
    assert opened_end(tmp_path / "replica") == len(data)
    assert_same_logs(tmp_path / "other", tmp_path / "replica", len(data))
    assert_sound(tmp_path / "replica")
    assert promote(str(tmp_path / "replica"), config=TINY)


def opened_end(root: Path) -> int | str:
    """The end of a follower's log, or why it is not opened."""
    try:
        with open_store(root, config=TINY, read_only=False, holder="follower") as store:
            return store.log_end
    except StoreRefusedError as error:
        return str(error)


def test_a_master_that_has_a_topic_with_batch_queues_is_not_followed(tmp_path: Path) -> None:
    """Its first record there may be a single message, which nothing tells from another topic's."""
    batched = TopicConfig("Batches", attributes={"queue.type": "BatchCQ"})
    table = TopicTable().with_topic(batched, now_ms=1)
    said = MasterAsks(topics=lambda: table)
    with closing(Fake()) as fake, following(tmp_path / "replica", fake.address, asks=said) as replica:
        assert replica.follower.wait(troubled("its master has topic Batches"), PATIENCE), replica.follower.status
        assert replica.follower.status.is_hopeless
        assert not replica.follower.status.is_connected
    assert not list((tmp_path / "replica" / "commitlog").iterdir())


# Masters of a controller


class Elected(Master):
    """A master with epochs."""

    def __init__(
        self, root: Path, epochs: tuple[EpochEntry, ...], knows: Callable[[int], bool] = lambda broker_id: True
    ) -> None:
        self.root = root
        self.service = PutService(open_store(root, read_only=False, create=True, config=TINY))
        store = self.service.store
        reader = LogReader(
            lambda: store.layout.commit_log(store.writer.file_system),
            lambda: self.service.dispatched_end,
            4096,
            epochs=lambda: epochs,
        )
        self.listener = ReplicationListener(
            reader, ListenerSettings(dialect=Dialect.CONTROLLER, timing=QUICK, knows=knows)
        )
        self.service.log_grew = self.listener.wake
        self.listener.start()


def test_a_follower_goes_from_master_to_master_and_is_cut_where_they_part(tmp_path: Path) -> None:
    replica, identity = tmp_path / "replica", SlaveHandshake(7, is_learner=True)
    with closing(Elected(tmp_path / "one", (EpochEntry(1, 0),))) as one:
        one.put(20)
        shared = one.end
        with following(replica, one.address, identity=identity) as follower:
            until(follower, shared)
            (known,) = one.listener.replicas.snapshot()
            assert (known.identity, known.broker_id, known.is_learner) == ("id:7", 7, True)
            one.service.flush()
            shutil.copytree(tmp_path / "one", tmp_path / "two", ignore=shutil.ignore_patterns("lock", "abort"))
            one.put(15, seed=5)  # what the next master never gets
            until(follower, one.end)
    assert load_epochs(LocalFileSystem(), str(replica)) == (EpochEntry(1, 0),)
    with closing(Elected(tmp_path / "two", (EpochEntry(1, 0), EpochEntry(2, shared)))) as two:
        two.put(30, seed=6)
        with following(replica, two.address, identity=identity) as follower:
            until(follower, two.end)
            two.put(5, seed=7)
            until(follower, two.end)
        end = two.end
    assert_replica(tmp_path / "two", replica, end)
    assert load_epochs(LocalFileSystem(), str(replica)) == (EpochEntry(1, 0), EpochEntry(2, shared))


def test_a_log_without_an_epoch_in_common_is_left_alone(tmp_path: Path) -> None:
    replica, identity = tmp_path / "replica", SlaveHandshake(7)
    with closing(Elected(tmp_path / "one", (EpochEntry(1, 0),))) as one:
        one.put(5)
        with following(replica, one.address, identity=identity) as follower:
            until(follower, one.end)
        end = one.end
    with closing(Elected(tmp_path / "two", (EpochEntry(5, 0),))) as two:
        two.put(9, seed=3)
        with following(replica, two.address, identity=identity) as follower:
            assert follower.follower.wait(troubled("no epoch of this log"), PATIENCE), follower.follower.status
    assert_same_logs(tmp_path / "one", replica, end)


def test_what_an_apache_master_of_a_controller_has_sent_is_followed(tmp_path: Path) -> None:
    """The captured connection of an empty slave."""
    replica, config = tmp_path / "replica", large(131_072)
    data = captured(Dialect.CONTROLLER, 0, "s2c")
    values = values_of(Dialect.CONTROLLER, data, of_master=True)
    log = b"".join(bytes(value.body) for value in values if isinstance(value, Frame))
    with (
        closing(Fake()) as fake,
        following(replica, fake.address, config=config, identity=SlaveHandshake(2)) as follower,
    ):
        fake.play(data)
        until(follower, len(log))
    with open_store(replica, config=config) as store:
        assert store.log.bytes_at(0, len(log)) == log
        assert store.log_end == len(log)
    assert load_epochs(LocalFileSystem(), str(replica)) == (EpochEntry(1, 0),)


def hello(address: str, broker_id: int, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE, (source, 0))
    said = SlaveHandshake(broker_id), Report(0)
    connection.sendall(b"".join(encode_from_slave(Dialect.CONTROLLER, value) for value in said))
    return connection


def test_a_host_of_which_nothing_is_known_takes_no_id_from_a_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Elected(tmp_path / "one", (EpochEntry(1, 0),))) as master:
        settings = replace(master.listener._settings, is_known=lambda host: host == "127.0.0.1")
        monkeypatch.setattr(master.listener, "_settings", settings)
        with hello(master.address, 2, "127.0.0.2") as early:
            assert len(early.recv(32)) == 32
            with hello(master.address, 2) as slave:
                assert len(slave.recv(32)) == 32
                while early.recv(100):  # the known one takes its place
                    pass
                with hello(master.address, 2, "127.0.0.2") as stranger:
                    assert stranger.recv(32) == b""
                assert "from a host that is known" in master.listener.refusals[-1].reason
                (known,) = master.listener.replicas.snapshot()
                assert known.address == "{}:{}".format(*slave.getsockname())


def test_a_broker_has_one_connection_and_a_stranger_none(tmp_path: Path) -> None:
    with closing(Elected(tmp_path / "one", (EpochEntry(1, 0),), lambda broker_id: broker_id == 2)) as master:
        with hello(master.address, 9) as stranger:
            assert stranger.recv(100) == b""
        assert "id 9" in master.listener.refusals[-1].reason
        with hello(master.address, 2) as first:
            assert len(first.recv(32)) == 32
            with hello(master.address, 2) as second:
                assert len(second.recv(32)) == 32
                while first.recv(100):  # heartbeats
                    pass
                assert [known.identity for known in master.listener.replicas.snapshot()] == ["id:2"]


def test_a_full_disk_is_waited_for(master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is acknowledged that has no room, and the store takes what comes when there is some."""
    master.put(20)
    first = master.end
    reserve, is_full = LocalFileSystem.reserve, False

    def reserve_or_not(files: LocalFileSystem, path: str, position: int, length: int) -> None:
        if is_full and path.startswith(str(tmp_path / "replica")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        reserve(files, path, position, length)

    monkeypatch.setattr(LocalFileSystem, "reserve", reserve_or_not)
    with following(tmp_path / "replica", master.address) as replica:
        until(replica, first)
        is_full = True
        master.put(20)
        assert replica.follower.wait(lambda status: "no room" in (status.trouble or ""), PATIENCE)
        assert replica.service.log_end == first
        assert replica.service.failure is None
        is_full = False
        until(replica, master.end)
    assert_same_logs(tmp_path / "master", tmp_path / "replica", master.end)
