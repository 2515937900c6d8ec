"""While a sync of the log is stalled under SYNC_FLUSH nobody reads what it has not brought to the disk; then the power goes.

Who reads more has consumed what is gone after the power loss, and what comes later gets the same queue offsets (apache/rocketmq#8239).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from storage import MessageStore, StoreConfig, open_store
from storage.files.file_system import LocalWriter
from storage.files.local_file_system import LocalFileSystem
from storage.pending import PutStatus
from storage.rules.inner_messages import InnerMessage
from storage.service.put_service import PutService
from storage.settings.nouns import FlushConfig
from tests.support.crash_disk import Disk
from tests.support.crash_file_system import CrashFileSystem
from tests.support.gated_disk import PATIENCE_S, Gate
from tests.support.served import served

pytestmark = [pytest.mark.crash, pytest.mark.slow]

QUEUES = 2
POWER_LOSSES = 12


class _StallingWriter(LocalWriter):
    def __init__(self, writer: LocalWriter, gate: Gate) -> None:
        super().__init__(writer.path)
        self._writer = writer
        self._gate = gate
        self.write = writer.write  # type: ignore[method-assign]

    def sync(self) -> None:
        self._gate.pass_through()
        self._writer.sync()

    def close(self) -> None:
        self._writer.close()
        super().close()


class StallingDisk(CrashFileSystem):
    """A disk that forgets, with a gate before each sync of a file of the log. Reading and writing threads may use it at once."""

    def __init__(self, root: str, disk: Disk | None = None, boot: int = 1) -> None:
        super().__init__(root, disk, boot)
        self.gate = Gate()
        self._noting = threading.RLock()

    def open_for_writing(self, path: str) -> LocalWriter:
        writer = super().open_for_writing(path)
        return _StallingWriter(writer, self.gate) if "/commitlog/" in path else writer

    def sync(self, path: str) -> None:
        with self._noting:
            super().sync(path)


class Consumed(NamedTuple):
    """A message that somebody was served."""

    queue_id: int
    queue_offset: int
    name: str


def consume(store: MessageStore) -> set[Consumed]:
    return {Consumed(one.queue_id, one.queue_offset, one.body.decode()) for one in served(store, "T")}


def message(number: int) -> InnerMessage:
    name = f"m{number}"
    return InnerMessage(topic="T", queue_id=number % QUEUES, body=name.encode(), properties={"KEYS": name})


def open_sync(root: Path | str, files: LocalFileSystem) -> MessageStore:
    config = replace(StoreConfig.tiny(), flush=FlushConfig("SYNC_FLUSH", sync_flush_timeout=1))
    return open_store(root, config=config, read_only=False, create=True, file_system=files)


def read_beside(root: str) -> set[Consumed]:
    with open_store(root, config=StoreConfig.tiny()) as other:
        found = consume(other)
        other.refresh()
        return found | consume(other)


class Stalled(NamedTuple):
    """What is known when the power goes."""

    acknowledged: set[str]
    consumed: set[Consumed]
    disk: Disk


def stall_a_service(files: StallingDisk) -> Stalled:
    """Forty messages by a service, the last twenty with the sync stalled."""
    consumed: set[Consumed] = set()
    service = PutService(open_sync(files.root, files))
    acknowledged = set()
    for number in range(40):
        if number == 20:
            service.flush()
            files.gate.close()
        if service.put_inner([message(number)]).status is PutStatus.PUT_OK:
            acknowledged.add(f"m{number}")
        with service.exclusive() as store:
            consumed |= consume(store)
        consumed |= read_beside(files.root)
    disk = deepcopy(files.disk)
    files.gate.open()
    service.close()
    return Stalled(acknowledged, consumed, disk)


def stall_an_owner(files: StallingDisk) -> Stalled:
    """Twenty messages by a store's owner, and one whose put does not come back because its sync is stalled."""
    store = open_sync(files.root, files)
    for number in range(20):
        store.put_inner([message(number)])
    files.gate.close()
    with ThreadPoolExecutor(1) as owner:
        stalled = owner.submit(store.put_inner, [message(20), message(21), message(22)])
        files.gate.wait_for_somebody()
        consumed = read_beside(files.root) | consume(store)
        disk = deepcopy(files.disk)
        assert not stalled.done()
        files.gate.open()
        stalled.result(PATIENCE_S)
    store.close()
    return Stalled({f"m{number}" for number in range(20)}, consumed, disk)


WRITERS: dict[str, Callable[[StallingDisk], Stalled]] = {"a service": stall_a_service, "an owner": stall_an_owner}


@pytest.mark.parametrize("stall", WRITERS.values(), ids=WRITERS)
def test_what_was_consumed_is_there_after_the_power_loss_and_no_offset_is_used_twice(
    tmp_path: Path, stall: Callable[[StallingDisk], Stalled]
) -> None:
    root = tmp_path / "store"
    root.mkdir()
    stalled = stall(StallingDisk(str(root)))
    assert {one.name for one in stalled.consumed} == {f"m{number}" for number in range(20)}, "synced, and no others"
    assert stalled.acknowledged <= {one.name for one in stalled.consumed}
    lost = 0
    for number in range(POWER_LOSSES):
        files = CrashFileSystem(str(root), stalled.disk.after_power_loss(random.Random(f"stall {number}")), boot=2)
        with open_sync(root, files) as store:
            found = consume(store)
            assert stalled.consumed <= found
            lost += len(found) == len(stalled.consumed)
            for later in range(100, 104):
                store.put_inner([message(later)])
            assert stalled.consumed <= consume(store)
            places = [(one.queue_id, one.queue_offset) for one in consume(store)]
            assert len(places) == len(set(places))
    assert lost, "the power loss takes what was not synced"


def test_what_a_killed_writer_had_not_synced_is_synced_before_it_is_read(tmp_path: Path) -> None:
    """Recovery enters it into queues; a reader that got it must not lose it to a power loss in the middle of the recovery."""
    root = tmp_path / "store"
    root.mkdir()
    files = StallingDisk(str(root))
    stalled = stall_a_service(files)
    killed = CrashFileSystem(str(root), deepcopy(stalled.disk))
    readable: list[tuple[int, set[Consumed]]] = []

    class Read(CrashFileSystem):
        """Somebody reads after each write to a queue."""

        def record(self, operation: object) -> None:
            super().record(operation)  # type: ignore[arg-type]
            if "/consumequeue/" in operation.path and operation.kind == "write":  # type: ignore[attr-defined]
                readable.append((len(self.operations), read_beside(self.root)))

    recovering = Read(str(root), deepcopy(killed.disk))
    open_sync(root, recovering).close()
    assert readable, "recovery enters what was not dispatched"
    disks = {count: deepcopy(disk) for count, _, disk in recovering.states() if count in dict(readable)}
    for count, seen in readable:
        for number in range(3):
            lost = disks[count].after_power_loss(random.Random(f"recovery {count} {number}"))
            after = CrashFileSystem(str(root), lost, boot=2)
            with open_sync(root, after) as store:
                assert seen <= consume(store)
