"""While one put holds the log, sends are refused at once, and none waits behind it. Java: BrokerFastFailure, SendMessageProcessor."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker_server.server import RunningBroker
from spark_mq.remoting import FrameReader, RemotingCommand, encode_frame, make_request
from spark_mq.remoting.frames import RUN_MOST
from storage.rules.inner_messages import InnerMessage
from storage.service.put_group import GROUP_MESSAGES
from tests.broker.test_broker_duties import sent
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports, wait_until

SETTINGS = "osPageCacheBusyTimeOutMills=200\nwaitTimeMillsInSendQueue=600000\n"
BUSY = "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
TAKEN = GROUP_MESSAGES + RUN_MOST
"""By a second thread, before it waits for the log: a group, whose last may be a run."""
WAITING = 2 * TAKEN
REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"


def _kind(answer: RemotingCommand) -> str:
    remark = answer.remark or ""
    return next((kind for kind in (BUSY, REJECTED) if remark.startswith(kind)), f"code {answer.code}")


class Peer:
    """A plain connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, 60)
        self._reader = FrameReader()
        self._next = 0
        self._told: Counter[str] = Counter()

    def send(self, count: int, code: int = 310, flag: int = 0) -> None:
        """So many sends, of which none is waited for."""
        fields, body = sent("T")
        texts = {name: str(value) for name, value in fields.items()}
        for _ in range(count):
            command = make_request(code, texts, body)._replace(opaque=self._next, flag=flag)
            self.sock.sendall(b"".join(bytes(piece) for piece in encode_frame(command)))
            self._next += 1

    def told(self, until: Callable[[Counter[str]], bool]) -> Counter[str]:
        """How many answers of each kind have come, when they are as is wanted."""
        while not until(self._told):
            self._told.update(_kind(each) for each in self._reader.feed(self.sock.recv(1 << 16)))
        return self._told

    def close(self) -> None:
        self.sock.close()


@contextmanager
def held_log(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The next append holds the log until this ends; what is given is set when it has begun."""
    writer = broker.broker.parts.store.service.store.writer
    append, begun, goes_on = writer.append_records, threading.Event(), threading.Event()

    def held(*arguments: Any, **named: Any) -> Any:
        begun.set()
        assert goes_on.wait(60)
        return append(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "append_records", held)
        try:
            yield begun
        finally:
            goes_on.set()


@pytest.mark.parametrize("fails_fast", [True, False])
def test_sends_behind_a_put_that_holds_the_log_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_fast: bool
) -> None:
    settings = SETTINGS + f"brokerFastFailureEnable={str(fails_fast).lower()}\n"
    with running(tmp_path / "store", free_ports(), settings=settings) as broker, closing(Peer(broker.address)) as peer:
        service = broker.broker.parts.store.service
        peer.send(1)
        peer.told(lambda told: told.total() == 1)
        with held_log(broker, monkeypatch) as begun:
            peer.send(1)
            assert begun.wait(60)
            peer.send(WAITING)
            wait_until(lambda: service.is_os_page_cache_busy, "the log is held for too long", 60)
            if fails_fast:
                peer.told(lambda told: told[BUSY] >= WAITING - TAKEN)
            peer.send(1)
            peer.send(1, 36)
            peer.told(lambda told: told[REJECTED] == 2)
        told = peer.told(lambda told: told.total() == 4 + WAITING)
    assert told == {"code 0": 2 + WAITING - told[BUSY], REJECTED: 2, **({BUSY: told[BUSY]} if fails_fast else {})}


def test_one_way_sends_behind_a_put_that_holds_the_log_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put is none of the sends', as that of a commit."""
    with running(tmp_path / "store", free_ports(), settings=SETTINGS) as broker, closing(Peer(broker.address)) as peer:
        served = broker.broker.parts.store.served
        service = broker.broker.parts.store.service
        peer.send(1)
        peer.told(lambda told: told.total() == 1)
        with held_log(broker, monkeypatch) as begun:
            other = InnerMessage(topic="Other", queue_id=0, body=b"other", properties={})
            holding = threading.Thread(target=service.put_inner, args=([other],))
            holding.start()
            assert begun.wait(60)
            wait_until(lambda: service.is_os_page_cache_busy, "the log is held for too long", 60)
            peer.send(10, flag=2)
            peer.send(10, 36, flag=2)
            peer.send(1)
            peer.told(lambda told: told[REJECTED] == 1)
        holding.join(60)
        wait_until(lambda: sum(served.maximum("T", queue) for queue in range(8)) == 11, "all ten are stored", 60)
