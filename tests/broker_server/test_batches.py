"""A sink with `path=` beside a broker of ours: its batches are committed by the broker that has the store, once, and so it is told.

The sink's tasks and commit are driven without Spark.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import jobs.delete_expired_files
from spark_mq.broker_server import batch_server
from spark_mq.broker_server.server import RunningBroker
from spark_mq.client.admin import Admin
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.conditions import SparkMqError
from spark_mq.hand_over import local_socket
from spark_mq.hand_over.local_socket import SOCKET_NAME, broker_note, connect, receive_frame
from spark_mq.hand_over.messages import HandOver, StagedCommit
from spark_mq.sink.commit import abort_rows, commit_rows, hand_over
from storage import open_store
from storage.batch.intent import load_intents
from storage.batch.ledger import GROUP_PREFIX, QUEUE_ID, UNNAMED_PREFIX, Batch
from storage.batch.ledger import TOPIC as LEDGER_TOPIC
from storage.batch.staged_segment import StagedBatch
from storage.errors import StoreServedError
from storage.files.local_file_system import LocalFileSystem, save_loose
from storage.put.settings import parse_host
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.sink_notes import load_batch_notes
from storage.transaction.progress import TransactionCounts
from tests.sink.test_sink_tasks import bodies, commit, options_of, stage, texts
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import our_name_server

from .test_running_broker import running

FILES = LocalFileSystem()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@contextmanager
def broker_and_producer(tmp_path: Path, root: Path, settings: str = "") -> Iterator[tuple[RunningBroker, Producer]]:
    with our_name_server(tmp_path) as names:
        own = ClientSettings((names.address,))
        with running(root, free_ports(), names.address, settings) as broker, Producer(own, "G") as producer:
            yield broker, producer


def served(root: Path, text: str, *words: str) -> None:
    """It is told that the broker has not taken the batch, and why."""
    assert text.startswith("[SPARK_MQ_STORE_SERVED] store "), text
    for word in words:
        assert word in text


def test_a_batch_goes_into_the_store_that_the_broker_has_open(tmp_path: Path, root: Path) -> None:
    options = options_of(str(root))
    with broker_and_producer(tmp_path, root) as (broker, producer):
        commit(options, stage(options, bodies("a", "b")), stage(options, bodies("c"), partition=1))
        producer.send(Message("T", b"after"))
        assert texts(str(root)) == ["a", "b", "c", "after"]
        again = stage(options, bodies("a", "b"), attempt=7), stage(options, bodies("c"), partition=1, attempt=8)
        commit(options, *again)
        assert texts(str(root)) == ["a", "b", "c", "after"], "the ledger knows the batch"
        port = broker.address[1]
    with open_store(root) as store:
        hosts = {message.store_host for queue_id in range(8) for message in store.get("T", queue_id, 0, 8).messages}
    assert hosts == {parse_host(f"127.0.0.1:{port}", "storeHost")}, (
        "so staged, though the store held no record that says it"
    )
    assert not (root / "abort").exists()
    assert not (root / "spark_mq" / SOCKET_NAME).exists()
    commit(options, stage(options, bodies("d"), batch_id=1), batch_id=1)
    commit(options, stage(options, bodies("d"), batch_id=1, attempt=8), batch_id=1)
    assert texts(str(root)) == ["a", "b", "c", "after", "d"]
    assert len(load_intents(FILES, str(root))) == 1, "that of the last batch, until the log is synced"


def test_consumers_and_name_servers_hear_of_it(tmp_path: Path, root: Path) -> None:
    options = options_of(str(root), topic="New", queueNum="1")
    with our_name_server(tmp_path) as names:
        settings = ClientSettings((names.address,))
        with running(root, free_ports(), names.address), Admin(settings) as admin:
            commit(options, stage(options, bodies("a", "b")))
            wait_until(lambda: "New" in admin.topics(), "the name server knows the topic", 10)
            assert list(admin.max_offsets("New").values()) == [2]


def test_what_the_sink_keeps_beside_the_rows_is_kept(tmp_path: Path, root: Path) -> None:
    """Its consumer offset, which the broker must not write over, its note, and counts of what waits for an end."""
    options = options_of(str(root), transactional="true", producerGroup="P")
    with broker_and_producer(tmp_path, root) as (broker, producer):
        queue = producer.send(Message("Other", b"x")).queue
        commit(options, stage(options, [{"body": b"a", "transaction_state": text} for text in ("commit", "unknown")]))
        with broker.broker.parts.clients.lock:
            broker.broker.parts.offsets.commit("G", "Other", queue.queue_id, 1, 5)
        broker.broker.save_offsets()
        assert texts(str(root)) == ["a"]
    offsets = ConsumerOffsets.load((root / "config" / "consumerOffset.json").read_text())
    assert offsets.get(LEDGER_TOPIC, GROUP_PREFIX + "sink", QUEUE_ID) == 1
    assert offsets.get("Other", "G", queue.queue_id) == 1
    (note,) = load_batch_notes(FILES, str(root))["sink"]
    assert (note.rows, note.topics["T"].messages, "Other" in note.topics) == (3, 1, False)
    with open_store(root) as store:
        counts = store.state("transactionMetrics", TransactionCounts.load)
    assert counts is not None
    assert counts.counts["T"] == 1


def test_dead_letters_appear_with_their_batch(tmp_path: Path, root: Path) -> None:
    dead = tmp_path / "dead"
    options = options_of(str(root), onInvalidRow="deadLetter", deadLetterPath=str(dead))
    with broker_and_producer(tmp_path, root):
        commit(options, stage(options, [{"body": b"a"}, {"body": None}]))
        assert texts(str(root)) == ["a"]
        (name,) = os.listdir(dead)
        assert name.endswith(".parquet")
        commit(options, stage(options, [{"body": b"a"}, {"body": None}], attempt=1))
        assert os.listdir(dead) == [name], "what the repeated batch has staged is gone"


def test_an_error_has_the_name_that_it_has_without_a_broker(tmp_path: Path, root: Path) -> None:
    options = options_of(str(root))
    with broker_and_producer(tmp_path, root):
        commit(options, stage(options, bodies("a")))
        with pytest.raises(SparkMqError, match=r"\[SPARK_MQ_SINK_TAKEN\] .* belongs to query query"):
            commit(options, stage(options, bodies("b"), query_id="other"))
        (tmp_path / "link").symlink_to(root)
        linked = options_of(str(tmp_path / "link"))
        staged = stage(linked, bodies("b"), batch_id=1)
        os.unlink(root / "spark_mq" / "staged" / staged.segments[0].path)
        with pytest.raises(SparkMqError, match=r"\[SPARK_MQ_STORE_NOT_FOUND\] .*link/spark_mq/staged/"):
            commit(linked, staged, batch_id=1)
        commit(linked, stage(linked, bodies("b"), batch_id=1), batch_id=1)
        assert texts(str(root)) == ["a", "b"]


def test_rows_that_were_staged_before_the_broker_moved_are_taken_and_later_ones_name_its_new_address(
    tmp_path: Path, root: Path
) -> None:
    options, hosts = options_of(str(root)), []
    with broker_and_producer(tmp_path / "first", root) as (broker, _):
        commit(options, stage(options, bodies("a")))
        staged = stage(options, bodies("b"), batch_id=1)
        hosts += [parse_host("{}:{}".format(*broker.address), "storeHost")] * 2
    with broker_and_producer(tmp_path / "second", root) as (broker, _):
        commit(options, staged, batch_id=1)
        commit(options, stage(options, bodies("b"), batch_id=1, attempt=8), batch_id=1)
        commit(options, stage(options, bodies("c"), batch_id=2), batch_id=2)
        hosts.append(parse_host("{}:{}".format(*broker.address), "storeHost"))
    assert texts(str(root)) == ["a", "b", "c"]
    with open_store(root) as store:
        found = [message for queue_id in range(8) for message in store.get("T", queue_id, 0, 8).messages]
    assert [each.store_host for each in sorted(found, key=lambda each: each.commitlog_offset)] == hosts
    assert hosts[0] != hosts[2]


def test_an_option_that_names_another_address_than_the_brokers_is_refused(tmp_path: Path, root: Path) -> None:
    options = options_of(str(root), storeHost="10.1.2.3:4711")
    with broker_and_producer(tmp_path, root):
        with pytest.raises(SparkMqError, match=r"\[SPARK_MQ_STORE_CONFIGURATION\] .*give storeHost=127\.0\.0\.1:"):
            commit(options, stage(options, bodies("a")))
        with open_store(root) as store:
            assert store.log_end == 0


def request(root: Path, **changes: Any) -> HandOver:
    empty = StagedCommit(StagedBatch(Batch("s", "q", 0), ()), None)
    values = {"commit": empty, "directory": local_socket.directory_identity(str(root)), "patience_ms": 0, **changes}
    return HandOver(**values)


def test_a_batch_of_another_directory_is_refused(tmp_path: Path, root: Path) -> None:
    with broker_and_producer(tmp_path, root), pytest.raises(StoreServedError, match="of another directory"):
        hand_over(str(root), request(root, directory=(1, 2)), None)


def _says(sink: threading.Thread, refusing: str, user: int) -> bool:
    """What either side finds, of which one is to refuse the other."""
    return (threading.current_thread() is sink) == (refusing == "broker")


def test_another_users_batch_is_refused_by_either_side(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(str(root))
    here = threading.current_thread()
    with broker_and_producer(tmp_path, root):
        staged = stage(options, bodies("a"))
        for refusing, words in (("sink", "and this process by user"), ("broker", "are not taken")):
            monkeypatch.setattr(local_socket, "is_own_user", partial(_says, here, refusing))
            with pytest.raises(SparkMqError) as caught:
                commit(options, staged)
            served(root, str(caught.value), f"user {os.geteuid()}", words)
        monkeypatch.undo()
        commit(options, staged)
        assert texts(str(root)) == ["a"]


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\4nope", b"\0", b""], ids=repr
)
def test_whatever_else_is_said_there_harms_nobody(tmp_path: Path, root: Path, sent: bytes) -> None:
    options = options_of(str(root))
    with broker_and_producer(tmp_path, root) as (_, producer):
        with connect(str(root), 5) as stranger:
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            answer = receive_frame(stranger, 4_096, 5) if sent == b"\0\0\0\2{}" else None
            assert answer is None or "its batch is refused" in answer["error"]["text"]
            assert sent != b"\0\0\0\2{}" or answer is not None
        producer.send(Message("T", b"before"))
        commit(options, stage(options, bodies("a")))
        assert texts(str(root)) == ["before", "a"]


def test_one_that_says_nothing_does_not_keep_the_broker_from_its_end(tmp_path: Path, root: Path) -> None:
    with broker_and_producer(tmp_path, root):
        silent = connect(str(root), 5)
    assert silent.recv(10) == b""
    silent.close()


def test_too_many_connections_are_closed_and_the_batch_comes_later(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_server, "MOST_CONNECTIONS", 2)
    options = options_of(str(root))
    with broker_and_producer(tmp_path, root):
        idle = [connect(str(root), 5) for _ in range(3)]
        assert idle[-1].recv(10) == b""
        sink = threading.Thread(target=commit, args=(options, stage(options, bodies("a"))))
        sink.start()
        for one in idle:
            one.close()
        sink.join()
        assert texts(str(root)) == ["a"]


def test_many_sinks_at_once_and_a_producer_get_all_their_messages_in(tmp_path: Path, root: Path) -> None:
    big, sent = "x" * 3_000_000, 0
    with broker_and_producer(tmp_path, root) as (broker, producer):
        host = "{}:{}".format(*broker.address)
        options = options_of(str(root), storeHost=host)
        staged = {
            name: [stage(options, bodies(f"{name}{number}{big}"), partition=number, sink_id=name) for number in (0, 1)]
            for name in "pqr"
        }
        sinks = [threading.Thread(target=commit, args=(options, *parts)) for parts in staged.values()]
        for sink in sinks:
            sink.start()
        while any(sink.is_alive() for sink in sinks):
            producer.send(Message("T", b"mine"))
            sent += 1
        for sink in sinks:
            sink.join()
    found = [text[:2] for text in texts(str(root)) if text != "mine"]
    assert sorted(found) == ["p0", "p1", "q0", "q1", "r0", "r1"]
    assert len(texts(str(root))) == 6 + sent
    notes = load_batch_notes(FILES, str(root))
    assert {name: notes[name][0].topics["T"].messages for name in "pqr"} == dict.fromkeys("pqr", 2), "of its own alone"


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_lost_answer_is_no_second_batch(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool, flush: str
) -> None:
    options = options_of(str(root))
    lost: list[object] = []

    def receive(*arguments: Any) -> dict[str, Any] | None:
        document = receive_frame(*arguments)
        if document is not None and "done" in document and not lost:
            lost.append(document)
            return None
        return document

    sink = "sink" if is_named else UNNAMED_PREFIX + "1"
    with broker_and_producer(tmp_path, root, f"flushDiskType={flush}\n") as (_, producer):
        producer.send(Message("T", b"before"))
        staged = stage(options, bodies("a", "b"), sink_id=sink, query_id=sink)
        monkeypatch.setattr(local_socket, "receive_frame", receive)
        commit_rows(options, [staged], 0, mirrored=is_named)
        assert lost
        assert texts(str(root)) == ["before", "a", "b"]


def test_a_batch_waits_its_turn_and_no_longer_than_it_may(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_server, "BEAT_SECONDS", 0.01)
    options = options_of(str(root), lockTimeout="50ms")
    goes_on = threading.Event()
    with broker_and_producer(tmp_path, root) as (broker, _):
        broker._batches._commits.submit(goes_on.wait)
        staged = stage(options, bodies("a"))
        with pytest.raises(SparkMqError, match=r"\[SPARK_MQ_STORE_LOCKED\] .* its broker, after waiting \d+ ms"):
            commit(options, staged)
        goes_on.set()
        abort_rows(options, [staged])
        assert texts(str(root)) == []
        commit(options, staged)
        assert texts(str(root)) == ["a"]


@pytest.mark.parametrize("left", ["nothing", "socket", "host"])
def test_a_broker_that_cannot_be_reached_is_named(tmp_path: Path, root: Path, left: str) -> None:
    options = options_of(str(root), lockTimeout="50ms")
    with open_store(root, read_only=False, create=True, holder="broker"):
        words = f"it has no socket at {root}/spark_mq/{SOCKET_NAME}"
        if left == "socket":
            local_socket.listen(str(root), "127.0.0.1:10911").close()
            words = f"no process listens at {root}/spark_mq/{SOCKET_NAME}"
        if left == "host":
            local_socket.listen(str(root), "127.0.0.1:10911").close()
            note = broker_note(str(root))
            assert note is not None
            text = json.dumps(note._replace(host="far", boot_id="another")._asdict())
            save_loose(FILES, str(root / "spark_mq" / "broker.json"), text.encode())
            words = "it runs on host far, and this is"
        staged = stage(options, bodies("a"))
        with pytest.raises(SparkMqError) as caught:
            commit(options, staged)
        served(root, str(caught.value), words, f"process {os.getpid()} ")
    commit(options, staged)
    assert texts(str(root)) == ["a"], "without a broker what one has left does not matter"


def test_a_broker_without_a_socket_serves_its_clients(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "spark_mq").mkdir(parents=True)
    (root / "spark_mq" / SOCKET_NAME).write_text("no socket")
    options = options_of(str(root), lockTimeout="1ms")
    with broker_and_producer(tmp_path, root) as (_, producer):
        assert "is no socket, and is left as it is" in caplog.text
        producer.send(Message("T", b"a"))
        with pytest.raises(SparkMqError) as caught:
            commit(options, stage(options, bodies("b")))
        served(root, str(caught.value))
    assert texts(str(root)) == ["a"]


def test_a_broker_begins_when_a_sink_is_done_and_a_sink_goes_on_when_a_broker_has_ended(root: Path) -> None:
    store = open_store(root, read_only=False, create=True)
    threading.Timer(0.2, store.close).start()
    with running(root, free_ports()) as broker:
        host = "{}:{}".format(*broker.address)
    options = options_of(str(root), storeHost=host)
    commit(options, stage(options, bodies("a")))
    assert texts(str(root)) == ["a"]


def test_a_job_steps_back_at_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(root, free_ports()):
        assert jobs.delete_expired_files.main([str(root), "--lock-timeout", "1h"]) == 75
    assert "nothing done: store " in capsys.readouterr().out


def test_a_sink_that_asks_for_the_disk_is_answered_when_the_log_is_there(tmp_path: Path, root: Path) -> None:
    options = options_of(str(root), flushDiskType="SYNC_FLUSH")
    with broker_and_producer(tmp_path, root, "flushDiskType=ASYNC_FLUSH\nflushIntervalCommitLog=60000\n") as (
        broker,
        _,
    ):
        commit(options, stage(options, bodies("a")))
        writer = broker.broker.parts.store.service.store.writer
        assert writer.synced_end == writer.log_end > 0
