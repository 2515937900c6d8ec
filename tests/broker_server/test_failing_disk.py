"""Disks that fail for a while below servers of ours: nothing acknowledged is lost, and all go on by themselves when the disk does."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker_server import supervised
from spark_mq.broker_server.settings import read_configuration
from spark_mq.broker_server.supervised import SupervisedBroker
from spark_mq.client.admin import Admin
from spark_mq.client.errors import ClientError
from spark_mq.client.settings import ClientSettings
from spark_mq.sink.commit import commit_rows
from storage import open_store
from storage.tables.topics import PERM_READ, PERM_WRITE
from tests.broker_server.test_failed_store import Running
from tests.broker_server.test_killed_batches import Broker
from tests.broker_server.test_killed_masters import Sending, assert_held_by_all, group
from tests.sink.test_sink_tasks import bodies, options_of, stage, texts
from tests.support.controlled_brokers import TOPIC
from tests.support.java_broker import free_ports, wait_until
from tests.support.name_server import our_name_server
from tests.support.own_servers import start_broker
from tests.support.preloaded_disk import PreloadedDisk

SYNC = "flushDiskType=SYNC_FLUSH\n"
FAILURES = ["write", "sync", "full"]


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
    while not met():
        await asyncio.sleep(0.001)


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
    disk, starts = Disk(), 0

    async def story(broker: SupervisedBroker) -> None:
        first: Any = broker.running
        monkeypatch.setattr(Running, "cannot_start", OSError(28, "No space left on device"))
        first.failure = "of a write"
        await until(lambda: broker.running is None and first.is_closed)
        assert disk.tries == 1
        if starts:
            monkeypatch.setattr(Running, "cannot_start", None)
            await until(lambda: broker.running is not None)
            assert disk.tries == 1, "the opening tries it"

    for starts in (0, 1):
        disk.tries = 0
        monkeypatch.setattr(Running, "cannot_start", None)
        supervised_with(monkeypatch, disk, story, tmp_path)


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
        found = [(queue_id, offset, store.get(TOPIC, queue_id, offset, 1).messages) for queue_id, offset, _ in acknowledged]
    bodies_of = [(queue_id, offset, *(each.body for each in messages)) for queue_id, offset, messages in found]
    assert [each for each, held in zip(acknowledged, bodies_of, strict=True) if each != held] == []


def permissions(admin: Admin) -> set[int]:
    """Of the topic, as name servers tell clients."""
    try:
        return {queues.perm for queues in admin.route(TOPIC).data.queue_datas}
    except ClientError:
        return set()


@pytest.mark.slow
@pytest.mark.parametrize("how", FAILURES)
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
