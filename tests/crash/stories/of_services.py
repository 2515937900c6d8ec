"""Puts of many threads, and the flushes in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

from storage.dispatch.writer import DerivedSync
from storage.log.writer import LogSync, NextFile
from storage.pending import PutStatus
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.settings.nouns import FlushConfig
from tests.crash.stories.life import START_MS, Life, bodies
from tests.support.group_logs import FakeGroupLog

_PATIENCE_S = 10
_TINY = StoreConfig.tiny()
_OF_A_GROUP = replace(_TINY, mode=replace(_TINY.mode, enable_dleger_commit_log=True, d_leger_self_id="n0"))


def putting_through_a_service(directory: Path) -> list[str]:
    """A put waits for its sync."""
    life = Life(directory, sync_flush=True)
    service = PutService(life.open(), starts_duties=False)
    life.disk.begin()
    ask(service, b"first")
    waiting = service._commits.request(service._writer.log_end)
    waiting.add_done_callback(lambda _: life.disk.mark("answer"))
    service.sync_turn()
    told = life.disk.told()
    assert waiting.done()
    assert bodies(service.store) == [b"first"]
    service.close()
    return told


def putting_to_a_groups_log(directory: Path) -> list[str]:
    """A majority takes the entry while the put waits for it."""
    life = Life(directory, sync_flush=True, config=_OF_A_GROUP)
    log = _ToldLog(life)
    service = PutService(life.open(group=log), starts_duties=False)
    life.disk.begin()
    put = service.put_later(InnerMessages.of([message(b"first")]))
    service.append_waiting()
    waiting = service._commits.request(service._writer.log_end)
    waiting.add_done_callback(lambda _: life.disk.mark("answer"))
    assert bodies(service.store) == []
    service.sync_turn()
    told = life.disk.told()
    assert waiting.done()
    assert put().status is PutStatus.PUT_OK
    assert bodies(service.store) == [b"first"]
    service.close()
    log.files.close()
    return told


class _ToldLog(FakeGroupLog):
    """Its majority takes entries when they are waited for."""

    def __init__(self, life: Life) -> None:
        super().__init__(life.root)
        self.commits = False
        self._disk = life.disk

    def propose(self, bodies: Sequence[bytes], place: int) -> None:
        super().propose(bodies, place)
        self._disk.mark("entry proposed")

    def wait(self, end: int, seconds: float | None = None) -> bool:
        self._disk.mark("majority")
        self.commit()
        assert self.committed_end >= end
        return True


def putting_beside_a_sync(directory: Path) -> list[str]:
    """Two messages are put, the second while the sync for the first is under way; then the one for the second comes."""
    life = Life(directory, sync_flush=True)
    service = PutService(life.open(), starts_duties=False)
    ask(service, b"first")
    life.disk.begin()
    with _amid(LogSync, "_sync", lambda: ask(service, b"second")):
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
    ask(service, b"first")
    life.disk.begin()
    with _amid(DerivedSync, "run", lambda: ask(service, b"second")):
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
    ask(service, b"first")
    assert bodies(service.store) == []
    life.wait_until(START_MS + 20_000)
    service.pool_turn()
    assert bodies(service.store) == [b"first"]
    service.log_turn()
    told = life.disk.told()
    service.close()
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


def making_the_next_file_ahead(directory: Path) -> list[str]:
    """The log's next file is made; a put needs it meanwhile, and waits for it."""
    life = Life(directory)
    service = PutService(life.open(), starts_duties=False)
    ask(service, b"first" * 500)
    waits, wait, tell = threading.Event(), NextFile.wait, Future.set_result
    put = threading.Thread(target=ask, args=(service, b"second" * 400), daemon=True)

    def begin_to_wait(file: NextFile) -> None:
        waits.set()
        wait(file)

    def tell_it(made: Future[None], result: None) -> None:
        life.disk.mark("waiting puts notified")
        tell(made, result)

    def need_it() -> None:
        put.start()
        assert waits.wait(_PATIENCE_S)

    life.disk.begin()
    with (
        _amid(NextFile, "_create", need_it),
        mock.patch.object(NextFile, "wait", begin_to_wait),
        mock.patch.object(Future, "set_result", tell_it),
    ):
        service.next_file_turn()
    put.join(_PATIENCE_S)
    assert not put.is_alive(), "it waits for a file that is there"
    told = life.disk.told()
    assert bodies(service.store) == [b"first" * 500, b"second" * 400]
    service.close()
    return told


def closing_a_service(directory: Path) -> list[str]:
    """A put waits for its sync, and the log's next file is there and not begun."""
    life = Life(directory, sync_flush=True)
    service = PutService(life.open(), starts_duties=False)
    ask(service, b"first" * 500)
    service.next_file_turn()
    waiting = service._commits.request(service._writer.log_end)
    waiting.add_done_callback(lambda _: life.disk.mark("answer"))
    life.disk.begin()
    service.close()
    told = life.disk.told()
    assert waiting.done()
    with life.open(create=False) as again:
        assert bodies(again) == [b"first" * 500]
        assert again.plan.was_clean
    return told


def ask(service: PutService, body: bytes) -> None:
    """Put it, and wait for nothing."""
    assert service.put_inner([message(body)]).status is PutStatus.PUT_OK


def message(body: bytes) -> InnerMessage:
    properties = {"KEYS": body[:6].decode(), "WAIT": "false"}
    return InnerMessage(topic="A", queue_id=0, body=body, properties=properties, born_time_ms=START_MS)


@contextmanager
def _amid(cls: type, name: str, act: Callable[[], None]) -> Iterator[None]:
    """Somebody does something behind the first call of a method, before it returns."""
    original, acts = getattr(cls, name), [act]

    def call(self: object) -> object:
        result = original(self)
        if acts:
            acts.pop()()
        return result

    with mock.patch.object(cls, name, call):
        yield
