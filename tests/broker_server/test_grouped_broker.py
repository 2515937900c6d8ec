"""Three brokers of ours in one DLedger group, in this process: what is acknowledged, by whom, and what is refused."""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_mq.broker_server.grouped import GroupedBroker, MemberLog
from spark_mq.broker_server.settings import Configuration, read_configuration
from spark_mq.client.admin import Admin
from spark_mq.client.errors import ClientError, ResponseError
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings, ProducerSettings
from spark_mq.client.transaction_producer import TransactionListener, TransactionProducer, TransactionState
from spark_mq.dledger.files import MemberFiles
from spark_mq.dledger.state import Role, RoleChanged
from spark_mq.remoting_server.server import ListenError
from spark_mq.testing.servers import on_own_loop
from storage import open_store
from storage.convert import convert
from storage.errors import ConfigurationError, StoreRefusedError
from storage.format.consume_queue import ENTRY
from storage.format.dledger import ENTRY_HEAD_SIZE
from storage.format.record import decode_record
from tests.support.dledger_brokers import going_on_amid_its_close
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import our_name_server

MEMBERS = ("n0", "n1", "n2")
FILE_BYTES = 16_384
NAME = "broker-g"


@dataclass
class Group:
    """The brokers that run, by the ids of their members."""

    home: Path
    name_server: str
    ports: Mapping[str, tuple[int, int]]
    lines: str = ""
    running: dict[str, tuple[GroupedBroker, ExitStack]] = field(default_factory=dict)

    def conf(self, member: str) -> Path:
        peers = ";".join(f"{each}-127.0.0.1:{own}" for each, (_, own) in self.ports.items())
        path = self.home / f"{member}.conf"
        path.write_text(
            f"brokerName={NAME}\nlistenPort={self.ports[member][0]}\nbrokerIP1=127.0.0.1\nnamesrvAddr={self.name_server}\n"
            f"storePathRootDir={self.home / member}\nmappedFileSizeCommitLog={FILE_BYTES}\nmappedFileSizeConsumeQueue=2000\n"
            f"enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerPeers={peers}\ndLegerSelfId={member}\n"
            f"messageDelayLevel=1s 2s\ncleanFileForciblyEnable=false\n{self.lines}",
            "utf-8",
        )
        return path

    def start(self, *members: str) -> None:
        for member in members:
            configuration = read_configuration(self.conf(member).read_bytes(), str(self.conf(member)), {})
            with ExitStack() as opened:
                broker, _ = opened.enter_context(
                    on_own_loop(lambda settings=configuration: GroupedBroker.start(settings), member)  # type: ignore[misc]
                )
                self.running[member] = broker, opened.pop_all()

    def stop(self, *members: str) -> None:
        for member in members:
            self.running.pop(member)[1].close()

    def masters(self) -> list[str]:
        return [each for each, (broker, _) in self.running.items() if broker.is_master]

    def await_master(self) -> str:
        wait_until(lambda: len(self.masters()) == 1, "one of them is master", 40)
        return self.masters()[0]

    def await_known(self, member: str) -> None:
        """Until the name server has the member as master, and all that run."""
        wanted = {f"127.0.0.1:{self.ports[each][0]}" for each in self.running}
        wait_until(lambda: self._known().get(0) == f"127.0.0.1:{self.ports[member][0]}", f"{member} is known", 40)
        wait_until(lambda: wanted <= set(self._known().values()), "all are known", 40)

    def _known(self) -> Mapping[int, str]:
        with suppress(ClientError), Admin(ClientSettings((self.name_server,))) as admin:
            found = admin.cluster_info().broker_address_table.get(NAME)
            return {} if found is None else found.broker_addresses
        return {}

    @property
    def settings(self) -> ClientSettings:
        return ClientSettings((self.name_server,), poll_name_server_interval_ms=200)


@contextmanager
def group(home: Path, *members: str, lines: str = "") -> Iterator[Group]:
    with our_name_server(home) as name_server:
        found = Group(home, name_server.address, {each: (free_ports(), free_ports()) for each in MEMBERS}, lines)
        try:
            found.start(*(members or MEMBERS))
            yield found
        finally:
            found.stop(*list(found.running))


def bodies(found: Group, member: str, topic: str) -> dict[tuple[int, int], bytes]:
    """What a member's store shows, by queue and offset."""
    with open_store(found.home / member, config=str(found.conf(member))) as store:
        return {
            (queue_id, message.queue_offset): message.body
            for queue_id in store.queue_ids(topic)
            for message in all_of(store, topic, queue_id)
        }


def all_of(store: Any, topic: str, queue_id: int) -> Iterator[Any]:
    offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    while offset < end:
        got = store.get(topic, queue_id, offset)
        yield from got.messages
        offset = got.next_begin_offset


class Commits(TransactionListener):
    """Commits each message at once."""

    def execute(self, message: Message, transaction_id: str, arg: Any) -> TransactionState:
        return TransactionState.COMMIT

    def check(self, message: Any) -> TransactionState:
        return TransactionState.COMMIT


@pytest.mark.slow
def test_the_leader_takes_messages_of_all_kinds_and_each_member_has_them_in_its_queues(tmp_path: Path) -> None:
    with group(tmp_path) as found:
        leader = found.await_master()
        found.await_known(leader)
        sent = {}
        with Producer(found.settings, "G") as producer:
            for number in range(120):
                result = producer.send(Message("T", b"m%d" % number * 20, keys=f"k{number}"))
                sent[result.queue.queue_id, result.queue_offset] = b"m%d" % number * 20
            batch = producer.send_batch([Message("B", b"b%d" % number) for number in range(5)])
            producer.send(Message("D", b"later", delay_level=1))
        with TransactionProducer(found.settings, "GT", Commits()) as transactions:
            transactions.send_in_transaction(Message("X", b"half"))
        for member in MEMBERS:
            wait_until(lambda member=member: bodies(found, member, "T") == sent, f"{member} has all", 20)  # type: ignore[misc]
            wait_until(lambda member=member: list(bodies(found, member, "D").values()) == [b"later"], "delivered", 20)  # type: ignore[misc]
            wait_until(lambda member=member: list(bodies(found, member, "X").values()) == [b"half"], "committed", 20)  # type: ignore[misc]
            assert sorted(bodies(found, member, "B").values()) == [b"b%d" % number for number in range(5)]
        assert batch.queue_offset == 0
        with open_store(tmp_path / leader, config=str(found.conf(leader))) as store:
            assert [each.body for each in store.messages_by_key("T", "k77")] == [b"m77" * 20]
        others = [each for each in MEMBERS if each != leader]
        found.stop(leader)
        second = found.await_master()
        assert second in others
        found.await_known(second)
        with Producer(found.settings, "G") as producer:
            result = producer.send(Message("T", b"after"))
        assert result.queue_offset == 1 + max(at for queue, at in sent if queue == result.queue.queue_id)
        sent[result.queue.queue_id, result.queue_offset] = b"after"
        found.start(leader)
        for member in MEMBERS:  # a follower hears within a second what is committed
            wait_until(lambda member=member: bodies(found, member, "T") == sent, f"{member} follows", 30)  # type: ignore[misc]
    for member in MEMBERS:
        assert bodies(found, member, "T") == sent
        assert_entries_name_their_places(tmp_path / member / f"dledger-{member}")


def assert_entries_name_their_places(directory: Path) -> None:
    """Each entry holds one record, which names the place behind the entry's head, as Java's append hook writes it."""
    files = MemberFiles(str(directory), file_size_bytes=FILE_BYTES)
    try:
        found = files.restored()
        for index in range(found.begin_index, found.end_index + 1):
            entry = files.entry(index)
            record = decode_record(memoryview(entry.body or b""))
            assert record.commitlog_offset == entry.place + ENTRY_HEAD_SIZE  # type: ignore[union-attr]
    finally:
        files.close()


@pytest.mark.slow
def test_without_a_majority_nothing_is_acknowledged_and_nothing_is_shown(tmp_path: Path) -> None:
    with group(tmp_path) as found:
        leader = found.await_master()
        found.await_known(leader)
        with Producer(found.settings, "G", ProducerSettings(retries=0)) as producer:
            first = producer.send(Message("T", b"first"))
            found.stop(*(each for each in MEMBERS if each != leader))
            for waits in (True, False):
                with pytest.raises(ClientError):
                    producer.send(Message("T", b"never", wait_stored=waits))
        place = first.queue.queue_id, first.queue_offset
        assert bodies(found, leader, "T") == {place: b"first"}
        wait_until(lambda: not found.masters(), "the leader steps down", 30)
        found.start(*(each for each in MEMBERS if each != leader))
        found.await_master()
        wait_until(lambda: bodies(found, leader, "T")[place] == b"first", "it is there still", 20)


@pytest.mark.slow
def test_without_a_majority_sends_are_answered_in_time_while_delayed_messages_are_due(tmp_path: Path) -> None:
    with group(tmp_path) as found:
        leader = found.await_master()
        found.await_known(leader)
        with Producer(found.settings, "G", ProducerSettings(retries=0, send_timeout_ms=20_000)) as producer:
            producer.send(Message("T", b"first"))
            producer.send(Message("D", b"later", delay_level=1))
            found.stop(*(each for each in MEMBERS if each != leader))
            for _ in range(2):  # the delayed one is due at the second
                with pytest.raises(ResponseError, match="in-sync replicas not enough"):
                    producer.send(Message("T", b"never"))
            found.stop(leader)  # it does not wait for the others


@pytest.mark.slow
def test_a_member_whose_disk_fails_gives_way_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with group(tmp_path) as found:
        leader = found.await_master()
        found.await_known(leader)
        with Producer(found.settings, "G", ProducerSettings(retries=0)) as producer:
            first = producer.send(Message("T", b"first"))
            broken = found.running[leader][0]._files
            assert broken is not None

            def fail(entries: object) -> None:
                raise OSError(errno.EIO, "Input/output error")

            monkeypatch.setattr(broken, "append", fail)
            with pytest.raises(ClientError):
                producer.send(Message("T", b"never"))
            wait_until(lambda: found.running[leader][0]._files is not broken, "it has opened its files again", 30)
            found.await_known(found.await_master())  # the same one, if it was back in time
            last = producer.send(Message("T", b"second"))
        sent = {(each.queue.queue_id, each.queue_offset): body for each, body in ((first, b"first"), (last, b"second"))}
        for member in MEMBERS:
            wait_until(lambda member=member: bodies(found, member, "T") == sent, f"{member} has all", 30)  # type: ignore[misc]


@pytest.mark.slow
def test_a_member_that_lost_its_log_gets_it_from_the_leader(tmp_path: Path) -> None:
    with group(tmp_path) as found:
        leader = found.await_master()
        found.await_known(leader)
        sent = {}
        with Producer(found.settings, "G") as producer:
            for number in range(100):
                result = producer.send(Message("T", b"m%d" % number * 30))
                sent[result.queue.queue_id, result.queue_offset] = b"m%d" % number * 30
        member = next(each for each in MEMBERS if each != leader)
        found.stop(member)
        vote = (tmp_path / member / f"dledger-{member}" / "currterm").read_bytes()
        shutil.rmtree(tmp_path / member)
        (tmp_path / member / f"dledger-{member}").mkdir(parents=True)
        (tmp_path / member / f"dledger-{member}" / "currterm").write_bytes(vote)
        found.start(member)
        with Producer(found.settings, "G") as producer:
            result = producer.send(Message("T", b"next"))
            sent[result.queue.queue_id, result.queue_offset] = b"next"
        wait_until(lambda: bodies(found, member, "T") == sent, "it has all again", 30)


@pytest.mark.slow
def test_the_checkpoint_of_a_stopped_member_counts_no_entry_that_its_queues_lack(tmp_path: Path) -> None:
    """Apache's broker that goes on from the directory enters what stands behind the checkpoint's place alone."""
    with group(tmp_path) as found:
        leader = found.await_master()
        found.await_known(leader)
        member = next(each for each in MEMBERS if each != leader)
        broker = found.running[member][0]
        with Producer(found.settings, "G") as producer:

            def send(count: int) -> None:
                for _ in range(count):
                    producer.send(Message("T", b"m"))

            def go_on() -> None:
                before = broker._committed
                send(6)
                wait_until(lambda: broker._committed[0] >= before[0] + 6, "the member commits them", 30)

            send(3)
            wait_until(lambda: len(bodies(found, member, "T")) == 3, "it follows", 30)
            going_on_amid_its_close(broker, go_on)
            found.stop(member)
        files = MemberFiles(f"{tmp_path / member}/dledger-{member}", file_size_bytes=FILE_BYTES)
        try:
            counted, end = files.end_of(files.restored().committed_index), files.restored().end_place
        finally:
            files.close()
        assert counted == end_of_queues(tmp_path / member) < end
        found.start(member)
        wait_until(lambda: len(bodies(found, member, "T")) == 9, "it has all again", 30)


def end_of_queues(store: Path) -> int:
    """Where the last record ends that the queues' files name."""
    units = [np.frombuffer(path.read_bytes(), ENTRY) for path in (store / "consumequeue").rglob("0*") if path.is_file()]
    return max(int((each["commitlog_offset"] + each["size_bytes"]).max(initial=0)) for each in units)


@pytest.mark.slow
def test_its_store_is_written_by_nobody_else_and_made_plain(tmp_path: Path) -> None:
    with group(tmp_path) as found:
        leader = found.await_master()
        found.await_known(leader)
        with Producer(found.settings, "G") as producer:
            sent = {}
            for number in range(40):
                result = producer.send(Message("T", b"m%d" % number))
                sent[result.queue.queue_id, result.queue_offset] = b"m%d" % number
    for conf in (str(found.conf(leader)), None):
        with pytest.raises(StoreRefusedError, match="DLedger"):
            open_store(found.home / leader, config=conf, read_only=False)
    convert(str(tmp_path / leader), str(tmp_path / "plain"), config=str(found.conf(leader)))
    with open_store(tmp_path / "plain", read_only=False) as store:
        plain = {
            (each, message.queue_offset): message.body
            for each in store.queue_ids("T")
            for message in all_of(store, "T", each)
        }
        assert plain == sent
        assert store.put("T", b"more", queue_id=0).queue_offset == len([1 for queue, _ in sent if queue == 0])


@pytest.mark.parametrize(
    ("line", "key", "text"),
    [
        ("enableControllerMode=true\ncontrollerAddr=127.0.0.1:1", "enableControllerMode", "excludes it"),
        ("dLegerGroup=", "dLegerGroup", "it is missing"),
        ("dLegerPeers=", "dLegerPeers", "it is missing"),
        ("dLegerPeers=n0:1", "dLegerPeers", "a peer is id-host:port"),
        ("dLegerSelfId=n7", "dLegerSelfId", "no peer of dLegerPeers has that id"),
        ("dLegerSelfId=na\ndLegerPeers=na-127.0.0.1:1", "dLegerSelfId", "a letter and a number"),
        ("namesrvAddr=", "namesrvAddr", "it is missing"),
        ("storePathDLedgerCommitLog=/elsewhere", "storePathDLedgerCommitLog", "storePathRootDir alone"),
    ],
)
def test_settings_that_make_no_member_are_refused(line: str, key: str, text: str) -> None:
    sound = (
        "enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerPeers=n0-127.0.0.1:1;n1-127.0.0.1:2\ndLegerSelfId=n0\n"
        "namesrvAddr=127.0.0.1:9876\n"
    )
    assert read_configuration(sound.encode(), None, {}).slave_id == 1
    with pytest.raises(ConfigurationError, match=text) as error:
        read_configuration(f"{sound}{line}\n".encode(), None, {})
    assert error.value.key == key


@pytest.mark.slow
@pytest.mark.parametrize("below", [0, 2], ids=["listenPort", "the port below"])
def test_a_member_whose_broker_cannot_listen_takes_no_part_in_its_group(tmp_path: Path, below: int) -> None:
    """It could be elected, and the group would have a leader that no client reaches."""
    home = Group(tmp_path, "127.0.0.1:1", {"n0": (free_ports(), free_ports())})
    port = home.ports["n0"][0] - below
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ListenError, match=f"{port}.*in use"):
        home.start("n0")
    assert not (tmp_path / "n0" / "dledger-n0").exists()
    home.start("n0")
    home.await_master()
    home.stop("n0")


def test_a_group_of_one_needs_no_name_server(tmp_path: Path) -> None:
    """It has no slave that must find its leader. Java starts, too."""
    peers = f"dLegerGroup=g\ndLegerPeers=n0-127.0.0.1:{free_ports()}\ndLegerSelfId=n0\nbrokerIP1=127.0.0.1\n"
    own = f"storePathRootDir={tmp_path}\nlistenPort={free_ports()}\nmappedFileSizeCommitLog={FILE_BYTES}\n"
    configuration = read_configuration(f"{own}enableDLegerCommitLog=true\n{peers}".encode(), None, {})
    with on_own_loop(lambda: GroupedBroker.start(configuration), "n0") as (broker, _):
        wait_until(lambda: broker.is_master, "it is master", 40)


class _Ends:
    """Files of entries that are 100 bytes long."""

    def end_of(self, index: int) -> int:
        return 100 * (index + 1)

    def last_index_by(self, end: int, committed: int) -> int:
        return min(end // 100 - 1, committed)


@pytest.mark.slow
def test_a_term_whose_first_entry_is_committed_late_begins_then(tmp_path: Path) -> None:
    async def look() -> None:
        broker = GroupedBroker(lone_configuration(tmp_path))
        broker._role = RoleChanged(3, Role.FOLLOWER, "n1")
        broker._on_committed(_Ends(), 4)  # type: ignore[arg-type]
        assert not broker._due.is_set()
        broker._role = RoleChanged(4, Role.LEADER, "n0")
        broker._on_committed(_Ends(), 5)  # type: ignore[arg-type]
        assert broker._due.is_set()

    asyncio.run(look())


@pytest.mark.slow
def test_a_broker_that_closes_while_its_member_has_failed_opens_nothing_any_more(tmp_path: Path) -> None:
    async def look() -> None:
        broker = GroupedBroker(lone_configuration(tmp_path))
        broker._on_failed(OSError(errno.EIO, "Input/output error"))
        broker._closing.set()
        await asyncio.to_thread(broker._look)
        assert broker._runner is None
        await broker._server.close()
        await asyncio.wrap_future(broker._lines.close())

    asyncio.run(look())


class _Closing:
    """A store that closes, and has entered what ends at 700."""

    dispatched_end = 700

    def __init__(self, broker: GroupedBroker) -> None:
        self.configuration, self.seen, self._broker = broker._configuration, 0, broker

    async def close(self) -> None:
        self.seen = self._broker._entered(_Ends(), 9)  # type: ignore[arg-type]
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.slow
def test_a_checkpoint_amid_a_close_counts_what_the_store_that_closes_has_entered(tmp_path: Path) -> None:
    async def look() -> None:
        broker = GroupedBroker(lone_configuration(tmp_path))
        broker.running = closing = _Closing(broker)  # type: ignore[assignment]
        broker._log = MemberLog("root", None, None, (4, 400), None)  # type: ignore[arg-type]
        await broker._stop()
        assert (closing.seen, broker._entered(_Ends(), 9)) == (6, 6)  # type: ignore[attr-defined, arg-type]

    asyncio.run(look())


def lone_configuration(home: Path) -> Configuration:
    peers = "dLegerGroup=g\ndLegerPeers=n0-127.0.0.1:1;n1-127.0.0.1:2\ndLegerSelfId=n0\nnamesrvAddr=127.0.0.1:9\n"
    return read_configuration(f"storePathRootDir={home}\nenableDLegerCommitLog=true\n{peers}".encode(), None, {})
