"""Disks that fail for a while below servers of ours: nothing acknowledged is lost, and all go on by themselves when the disk does."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from spark_mq.broker.admin_handlers import runtime_info
from spark_mq.broker_server import supervised
from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.settings import read_configuration
from spark_mq.broker_server.supervised import Rests, SupervisedBroker
from spark_mq.client.admin import Admin
from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.errors import ClientError
from spark_mq.client.settings import ClientSettings
from spark_mq.conditions import SparkMqError
from spark_mq.remoting import Header, RemotingCommand, RequestCode, make_request, write_header
from spark_mq.remoting.controllers import ApplyBrokerIdRequest
from spark_mq.remoting.routes import KvConfigRequest, PutKvConfigRequest
from spark_mq.sink.commit import commit_rows
from storage import open_store
from storage.errors import StoreNotWritableError
from storage.rules.response_codes import ResponseCode
from storage.tables.topics import PERM_READ, PERM_WRITE
from tests.broker_server.test_failed_store import Running
from tests.broker_server.test_killed_batches import Broker
from tests.broker_server.test_killed_masters import Sending, assert_held_by_all, group
from tests.sink.test_sink_tasks import bodies, options_of, stage, texts
from tests.support.controlled_brokers import TOPIC
from tests.support.controller_process import controller_process
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import our_name_server, start_broker, start_name_server
from tests.support.preloaded_disk import PreloadedDisk

SYNC = "flushDiskType=SYNC_FLUSH\n"
LONG = pytest.mark.long


# The supervisor, without a disk


class Disk:
    """What the stub broker's disk says when it is tried, and how often that was."""

    def __init__(self) -> None:
        self.tries = 0
        self.trouble: Exception | None = None

    def tried(self, _: Running) -> None:
        self.tries += 1
        if self.trouble is not None:
            raise self.trouble


def supervised_with(
    monkeypatch: pytest.MonkeyPatch, disk: Disk, story: Callable[[SupervisedBroker], Any], root: Path
) -> None:
    monkeypatch.setattr(supervised, "RunningBroker", Running)
    monkeypatch.setattr(supervised, "_try_disk", disk.tried)
    for name in ("_LOOK_SECONDS", "_LEAST_REST_SECONDS", "_TRY_SECONDS"):
        monkeypatch.setattr(supervised, name, 0.001)
    configuration = read_configuration(f"brokerName=b\nstorePathRootDir={root}\n".encode(), None, {})

    async def told() -> None:
        broker = await SupervisedBroker.start(configuration)
        await story(broker)
        await broker.close()

    asyncio.run(told())


async def until(met: Callable[[], bool]) -> None:
    for _ in range(5_000):
        if met():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to that")


def test_a_broker_whose_store_has_failed_is_started_anew_when_its_disk_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    disk.trouble = OSError(5, "Input/output error")

    async def story(broker: SupervisedBroker) -> None:
        first: Any = broker.running
        changed = object()
        first.configuration = changed
        first.failure = "of a sync"
        await until(lambda: disk.tries >= 5)
        assert broker.running is first, "it serves reads while its disk is away"
        assert not first.is_closed
        assert first.tells == 1, "name servers hear that it takes nothing"
        disk.trouble = None
        await until(lambda: broker.running is not None and broker.running is not first)
        again: Any = broker.running
        assert first.is_closed
        assert again.configuration is changed, "operators' settings are those of the one before"
        await until(lambda: again.reopened_after == "of a sync")

    supervised_with(monkeypatch, disk, story, tmp_path)
    said = [record.getMessage().removeprefix(f"{tmp_path} ") for record in caplog.records]
    assert said == [
        "takes nothing more (of a sync): it is opened again when its disk answers",
        "is not opened yet: [Errno 5] Input/output error",
        "is open again, and takes messages",
    ]


def test_a_store_that_cannot_be_opened_is_tried_again_and_nothing_keeps_a_broker_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()

    async def story(broker: SupervisedBroker, *, ends_away: bool) -> None:
        first: Any = broker.running
        monkeypatch.setattr(Running, "cannot_start", OSError(28, "No space left on device"))
        first.failure = "of a write"
        await until(lambda: broker.running is None and first.is_closed)
        assert disk.tries == 1
        if not ends_away:
            monkeypatch.setattr(Running, "cannot_start", None)
            await until(lambda: broker.running is not None)
            assert disk.tries == 1, "the opening tries it"

    for ends_away in (True, False):
        disk.tries = 0
        monkeypatch.setattr(Running, "cannot_start", None)
        supervised_with(monkeypatch, disk, partial(story, ends_away=ends_away), tmp_path)


@asynccontextmanager
async def failing_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A broker whose store fails when a test says so, and which is opened again at once."""
    for name in ("_LOOK_SECONDS", "_LEAST_REST_SECONDS", "_TRY_SECONDS"):
        monkeypatch.setattr(supervised, name, 0.001)
    text = f"brokerName=b\nstorePathRootDir={root}\nlistenPort={free_ports()}\nmappedFileSizeCommitLog=1048576\n"
    broker = await SupervisedBroker.start(read_configuration(text.encode(), None, {}))
    try:
        yield broker
    finally:
        await broker.close()


def put(running: RunningBroker, body: bytes) -> None:
    with running.broker.parts.store.service.exclusive() as store:
        store.put(TOPIC, body)


def fail(running: RunningBroker) -> None:
    with running.broker.parts.store.service.exclusive() as store:
        store.writer.fail(OSError(5, "Input/output error"))


def bodies_in(root: Path) -> list[bytes]:
    with open_store(root) as store:
        return [
            message.body for queue_id in store.queue_ids(TOPIC) for message in store.get(TOPIC, queue_id, 0, 8).messages
        ]


@pytest.mark.parametrize("away", ["store", "store/commitlog"])
@pytest.mark.parametrize("is_serving", [True, False], ids=["serving", "let go of"])
def test_on_an_empty_mount_point_no_new_store_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, away: str, *, is_serving: bool
) -> None:
    """Neither while the store that has failed answers reads, nor after a first opening that failed."""
    root, gone = tmp_path / "store", tmp_path / away

    async def story() -> None:
        async with failing_at_once(root, monkeypatch) as broker:
            first = broker.running
            await asyncio.to_thread(put, first, b"kept")
            start = RunningBroker.start
            with monkeypatch.context() as opening:
                if not is_serving:
                    start = AsyncMock(side_effect=OSError(5, "Input/output error"))
                    opening.setattr(RunningBroker, "start", start)
                    fail(first)
                    await until(lambda: start.await_count > 0)
                gone.rename(tmp_path / "unmounted")
                gone.mkdir()
                if is_serving:
                    fail(first)
            await until(lambda: "is not the directory that was opened first" in caplog.text)
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert broker.running is (first if is_serving else None)
            assert {path.name for path in gone.iterdir()} <= {"spark_mq"}, "a note of what failed, and no store"
            shutil.rmtree(gone)
            (tmp_path / "unmounted").rename(gone)
            await until(lambda: broker.running is not None and broker.running is not first)
            await asyncio.to_thread(put, broker.running, b"after")

    asyncio.run(story())
    said = [text for text in caplog.messages if "is not the directory that was opened first" in text]
    assert len(said) == 1
    assert sorted(bodies_in(root)) == [b"after", b"kept"]


def test_a_store_without_messages_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with failing_at_once(tmp_path / "store", monkeypatch) as broker:
            first = broker.running
            fail(first)
            await until(lambda: broker.running is not None and broker.running is not first)

    asyncio.run(story())


def test_a_log_that_another_process_has_written_is_not_opened_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers reads, and says why it takes nothing, until an operator has seen to it."""

    async def story() -> None:
        async with failing_at_once(tmp_path / "store", monkeypatch) as broker:
            first = broker.running
            await asyncio.to_thread(put, first, b"kept")
            (file,) = (path for path in (tmp_path / "store/commitlog").iterdir() if path.name == "0" * 20)
            shutil.copy(file, tmp_path / "other")
            (tmp_path / "other").replace(file)
            with pytest.raises(StoreNotWritableError, match="another process replaced or deleted"):
                await asyncio.to_thread(put, first, b"lost")
            await until(lambda: "so an operator opens it" in caplog.text)
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert broker.running is first
            parts = first.broker.parts
            figures = runtime_info(parts.store, parts.clients, parts.traffic, parts.server, 0)
            assert "another process replaced" in figures["storeFailure"]

    asyncio.run(story())


# Processes on a disk that fails


@contextmanager
def broker_process(
    home: Path, name_server: str, settings: str = "", name: str = "store", disk: PreloadedDisk | None = None
) -> Iterator[str]:
    """Its address; killed at the end. What it says stands in `home`/NAME.log."""
    directory = home / f"of-{name}"
    directory.mkdir()
    port, conf = free_ports(), directory / "broker.conf"
    conf.write_text(
        f"brokerName=b\nlistenPort={port}\nstorePathRootDir={home / name}\nnamesrvAddr={name_server}\n"
        f"brokerIP1=127.0.0.1\nmappedFileSizeCommitLog=1048576\n{settings}",
        "utf-8",
    )
    with ExitStack() as loaded:
        if disk is not None:
            loaded.enter_context(disk.loaded())
        process = start_broker(directory, conf)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def assert_readable(root: Path, acknowledged: Sequence[tuple[int, int, bytes]]) -> None:
    with open_store(root) as store:
        found = [
            (queue_id, offset, store.get(TOPIC, queue_id, offset, 1).messages) for queue_id, offset, _ in acknowledged
        ]
    bodies_of = [(queue_id, offset, *(each.body for each in messages)) for queue_id, offset, messages in found]
    assert [each for each, held in zip(acknowledged, bodies_of, strict=True) if each != held] == []


def permissions(admin: Admin) -> set[int]:
    """Of the topic, as name servers tell clients."""
    try:
        return {queues.perm for queues in admin.route(TOPIC).data.queue_datas}
    except ClientError:
        return set()


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param("write", marks=LONG), "sync", pytest.param("full", marks=LONG)])
def test_a_broker_goes_on_when_its_disk_does(tmp_path: Path, how: str) -> None:
    disk = PreloadedDisk.built(tmp_path, tmp_path / "store")
    with our_name_server(tmp_path) as names, broker_process(tmp_path, names.address, SYNC, disk=disk) as address:
        with Sending(names.address) as sending, Admin(ClientSettings((names.address,))) as admin:
            sending.await_more(20)
            disk.fails(how)
            if how == "full":  # of records it takes no more, and goes on; else it must be opened again
                sending.await_refusal()
            else:
                wait_until(lambda: "storeFailure" in admin.runtime_info(address), "operators hear of it")
                wait_until(lambda: permissions(admin) == {PERM_READ}, "clients hear of it")
            disk.is_well()
            sending.await_more(20)
            if how != "full":
                figures = admin.runtime_info(address)
                assert "storeFailure" not in figures
                assert "after: [Errno 5]" in figures["storeReopened"]
                wait_until(lambda: permissions(admin) == {PERM_READ | PERM_WRITE}, "clients hear that it is back")
        assert_readable(tmp_path / "store", sending.acknowledged)


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param("write", marks=LONG), pytest.param("sync", marks=LONG), "full"])
def test_a_slave_catches_up_when_its_disk_is_well(tmp_path: Path, how: str) -> None:
    """Its master waits for its copies: while it has none that is on its disk, nothing is acknowledged."""
    disk = PreloadedDisk.built(tmp_path, tmp_path / "slave")
    with ExitStack() as opened:
        names = opened.enter_context(our_name_server(tmp_path))
        settings = f"{SYNC}brokerRole=SYNC_MASTER\ntotalReplicas=2\ninSyncReplicas=2\nslaveTimeout=1000\n"
        opened.enter_context(broker_process(tmp_path, names.address, settings, "master"))
        slave = f"{SYNC}brokerRole=SLAVE\nbrokerId=1\n"
        address = opened.enter_context(broker_process(tmp_path, names.address, slave, "slave", disk))
        with Sending(names.address) as sending, Admin(ClientSettings((names.address,))) as admin:
            sending.await_more(20)
            disk.fails(how)
            wait_until(lambda: "followingTrouble" in admin.runtime_info(address), "operators hear of it")
            count = len(sending.acknowledged)
            sending.await_refusal()
            assert len(sending.acknowledged) <= count + 1, "what was on its way when it was asked"
            disk.is_well()
            sending.await_more(20)
            figures = admin.runtime_info(address)
            assert "followingTrouble" not in figures
            if how != "full":  # a full one is waited for, unless a queue or a table was the first that found no room
                assert "storeReopened" in figures
        for name in ("master", "slave"):
            assert_readable(tmp_path / name, sending.acknowledged)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("how", ["write", "sync", "full"])
def test_a_controlled_broker_gives_way_and_comes_back(tmp_path: Path, how: str) -> None:
    disk = PreloadedDisk.built(tmp_path, tmp_path / "store-1")
    with group(tmp_path) as brokers:
        with disk.loaded():
            brokers.start(1, flushDiskType="SYNC_FLUSH")
        brokers.await_set({1})
        brokers.start(2, flushDiskType="SYNC_FLUSH")
        first = brokers.await_set({1, 2})
        assert first.master_id == 1
        with Sending(brokers.name_server.address) as sending:
            sending.await_more(20)
            brokers.await_copied(TOPIC)
            disk.fails(how)
            if how == "full":
                sending.await_refusal()
            else:
                brokers.await_master_after(first.master_epoch)
            disk.is_well()
            brokers.await_set({1, 2})
            sending.await_more(20)
            last = brokers.await_set({1, 2})
        assert how == "full" or last.master_id == 2
    assert_held_by_all(tmp_path, {1, 2}, sending.acknowledged)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sync", pytest.param("write", marks=LONG), pytest.param("full", marks=LONG)])
def test_name_server_and_controller_keep_what_is_told_when_their_disk_is_well(tmp_path: Path, how: str) -> None:
    """While it fails they answer with an error, and go by what they had."""
    home = tmp_path / "home"
    home.mkdir()
    disk = PreloadedDisk.built(tmp_path, home)
    with disk.loaded(), controller_process(home) as controller, name_server_process(home) as address:
        assert put_text(address, "before").code == ResponseCode.SUCCESS
        assert apply_id(controller.address, 1).code == ResponseCode.SUCCESS
        disk.fails(how)
        for _ in range(2):
            assert put_text(address, "refused").code == ResponseCode.SYSTEM_ERROR
            assert apply_id(controller.address, 2, "refused").code == ResponseCode.SYSTEM_ERROR
        disk.is_well()
        assert kept_text(address) == "before"
        assert put_text(address, "after").code == ResponseCode.SUCCESS
        assert apply_id(controller.address, 2).code == ResponseCode.SUCCESS
        assert kept_text(address) == "after"
        controller.kill()
        controller.start()
        assert apply_id(controller.address, 2, "other").code != ResponseCode.SUCCESS, "the id is another broker's"
        assert apply_id(controller.address, 2).code == ResponseCode.SUCCESS
    assert json.loads((home / "kv.json").read_text()) == {"configTable": {"N": {"k": "after"}}}


@contextmanager
def name_server_process(home: Path) -> Iterator[str]:
    port = free_ports()
    process = start_name_server(home, port)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def ask(address: str, code: RequestCode, header: Header) -> RemotingCommand:
    with closing(BlockingConnection[None](address, ClientSettings((address,)))) as connection:
        connection.send([(make_request(code, write_header(header)), None)])
        ((_, answer),) = connection.receive()
    return answer


def put_text(address: str, text: str) -> RemotingCommand:
    return ask(address, RequestCode.PUT_KV_CONFIG, PutKvConfigRequest(namespace="N", key="k", value=text))


def kept_text(address: str) -> str | None:
    answer = ask(address, RequestCode.GET_KV_CONFIG, KvConfigRequest(namespace="N", key="k"))
    return (answer.ext_fields or {}).get("value")


def apply_id(address: str, broker_id: int, code: str = "own") -> RemotingCommand:
    request = ApplyBrokerIdRequest(
        cluster_name="C", broker_name="b", applied_broker_id=broker_id, register_check_code=f"h:{broker_id};{code}"
    )
    return ask(address, RequestCode.CONTROLLER_APPLY_BROKER_ID, request)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sync", pytest.param("write", marks=LONG), pytest.param("full", marks=LONG)])
def test_a_batch_that_fails_in_a_brokers_store_is_there_once(tmp_path: Path, how: str) -> None:
    """Its intent decides, as after a crash: the opening finishes it, or the sink begins it again."""
    disk = PreloadedDisk.built(tmp_path, tmp_path / "store")
    broker = Broker(tmp_path, "SYNC_FLUSH")
    options = options_of(str(broker.root), conf=str(tmp_path / "own.conf"), lockTimeout="60s")
    try:
        with disk.loaded():
            broker.start()
        first = [stage(options, bodies("a"), sink_id="sink", query_id="sink")]
        commit_rows(options, first, 0, mirrored=True)
        staged = [stage(options, bodies("b", "c"), batch_id=1, sink_id="sink", query_id="sink")]
        disk.fails(how, "/commitlog/")
        with pytest.raises((SparkMqError, OSError)):
            commit_rows(options, staged, 1, mirrored=True)
        disk.is_well()
        wait_until(lambda: retried(options), "the broker takes batches again")
        assert sorted(texts(str(broker.root))) == ["a", "b", "c"]
        broker.end()
        assert sorted(texts(str(broker.root))) == ["a", "b", "c"]
    finally:
        broker.kill()


def retried(options: Any) -> bool:
    """As Spark does: it stages the rows again, and commits them as the same batch."""
    staged = [stage(options, bodies("b", "c"), batch_id=1, sink_id="sink", query_id="sink", attempt=9)]
    try:
        commit_rows(options, staged, 1, mirrored=True)
    except (SparkMqError, OSError):
        return False
    return True


@pytest.mark.slow
@pytest.mark.long
def test_a_broker_on_a_full_tmpfs_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """The kernel's own errors, in log, queues and tables."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    settings = f"{SYNC}storePathRootDir={place}/store\ncleanFileForciblyEnable=false\ncleanResourceInterval=500\n"
    try:
        with (
            our_name_server(tmp_path) as names,
            broker_process(tmp_path, names.address, settings),
            Sending(names.address) as sending,
        ):
            for _ in range(2):
                sending.await_more(20)
                with (place / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
                    while True:
                        ballast.write(bytes(4096))
                sending.await_refusal()
                (place / "ballast").unlink()
            sending.await_more(20)
        assert_readable(place / "store", sending.acknowledged)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_store_that_fails_again_soon_rests_longer_each_time_and_one_that_was_quiet_rests_little() -> None:
    now = [0.0]
    rests = Rests(lambda: now[0])
    assert [rests.next_s() for _ in range(3)] == [0.5, 1, 2], "openings that fail"
    rests.opened()
    now[0] += 59
    assert rests.next_s() == 4
    rests.opened()
    now[0] += 60
    assert rests.next_s() == 0.5
    assert [rests.next_s() for _ in range(9)][-1] == 30
