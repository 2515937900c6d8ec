"""One way to speak to the Apache broker over sockets, and to a `Broker` without any: the same requests, the same answers."""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from spark_mq.broker.broker import Broker
from spark_mq.broker.requests import (
    AskClients,
    ClientConnection,
    Close,
    Outcome,
    RegisterTopics,
    RunAgain,
    Tell,
    Waiting,
)
from spark_mq.remoting import (
    Answer,
    Connection,
    RemotingCommand,
    Request,
    decode_frame,
    encode_frame,
    make_request,
    make_response,
)

CANNED: Mapping[int, bytes] = {
    307: b'{"jstack":"none","mqTable":{},"properties":{"PROP_CLIENT_VERSION":"V5_3_3"},"statusTable":{},"subscriptionSet":[]}',
    221: b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:7}}',
    309: b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}',
}
"""What a client answers that a broker asks."""
WAIT_S = 30


class Peers(ABC):
    """Clients of one broker, by name; each has one connection. What the broker tells them is kept."""

    def __init__(self) -> None:
        self.notices: defaultdict[str, list[tuple[int, dict[str, str]]]] = defaultdict(list)
        """By client, the codes and extFields of one-way requests of the broker."""
        self.asked: defaultdict[str, list[RemotingCommand]] = defaultdict(list)
        """By client, the requests of the broker that it answered."""

    def ask(
        self, client: str, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """The answer to a request."""
        return self.start(client, code, fields, body).result(WAIT_S)

    def start(
        self, client: str, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b""
    ) -> Future[RemotingCommand]:
        """A request whose answer may come later."""
        texts = None if fields is None else {name: str(value) for name, value in fields.items()}
        return self._start(client, make_request(code, texts, body))

    def until(self, met: Callable[[], bool], timeout_s: float = WAIT_S) -> bool:
        """Whether something comes true in time."""
        deadline = time.monotonic() + timeout_s
        while not met() and time.monotonic() < deadline:
            self.pause(0.05)
        return met()

    @abstractmethod
    def pause(self, seconds: float) -> None: ...

    @abstractmethod
    def now_ms(self) -> int: ...

    @abstractmethod
    def _start(self, client: str, command: RemotingCommand) -> Future[RemotingCommand]: ...

    @abstractmethod
    def hang_up(self, client: str) -> None:
        """Close the client's connection."""

    def _told(self, client: str, command: RemotingCommand) -> RemotingCommand | None:
        """What a client does when the broker asks: notes it, and answers what is no notice."""
        if command.is_oneway:
            self.notices[client].append((command.code, dict(command.ext_fields or {})))
            return None
        self.asked[client].append(command)
        return make_response(command, 0, None, None, CANNED.get(command.code, b""))


class SocketPeers(Peers):
    """Over sockets."""

    def __init__(self, address: str) -> None:
        super().__init__()
        host, port = address.split(":")
        self._address = host, int(port)
        self._clients: dict[str, tuple[socket.socket, Connection[Future[RemotingCommand]]]] = {}
        self._lock = threading.Lock()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def _start(self, client: str, command: RemotingCommand) -> Future[RemotingCommand]:
        opened, connection = self._client(client)
        future: Future[RemotingCommand] = Future()
        with self._lock:
            opened.sendall(b"".join(connection.send_request(command, future).pieces))
        return future

    def _client(self, client: str) -> tuple[socket.socket, Connection[Future[RemotingCommand]]]:
        if client not in self._clients:
            opened = socket.create_connection(self._address, timeout=WAIT_S)
            opened.settimeout(None)
            self._clients[client] = opened, Connection()
            threading.Thread(target=self._read, args=(client,), daemon=True).start()
        return self._clients[client]

    def _read(self, client: str) -> None:
        opened, connection = self._clients[client]
        while data := self._received(opened):
            for event in connection.feed(data):
                match event:
                    case Answer(command, future):
                        future.set_result(command)
                    case Request(command):
                        answer = self._told(client, command)
                        if answer is not None:
                            with self._lock:
                                opened.sendall(b"".join(connection.send_response(answer)))

    @staticmethod
    def _received(opened: socket.socket) -> bytes:
        try:
            return opened.recv(1 << 16)
        except OSError:
            return b""

    def hang_up(self, client: str) -> None:
        opened, _ = self._clients.pop(client)
        opened.shutdown(socket.SHUT_RDWR)
        opened.close()

    def close(self) -> None:
        for client in list(self._clients):
            self.hang_up(client)


class FakeClock:
    """Milliseconds that pass when they are told to."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class BrokerPeers(Peers):
    """Without sockets, but through the bytes of frames in both directions. Time passes in `pause` alone."""

    def __init__(self, broker: Broker, clock: FakeClock) -> None:
        super().__init__()
        self._broker = broker
        self._clock = clock
        self._connections: dict[str, ClientConnection] = {}
        self._ports = iter(range(40_000, 60_000))
        self._parked: dict[int, Future[RemotingCommand]] = {}
        self._opaque = iter(range(1, 1 << 30))
        self.registered: list[tuple[str, ...]] = []
        self.closed: list[str] = []

    def pause(self, seconds: float) -> None:
        self._clock.now_ms += int(seconds * 1_000)
        self._broker.tick(self._clock())
        self._do_events()

    def now_ms(self) -> int:
        return self._clock.now_ms

    def connection(self, client: str) -> ClientConnection:
        if client not in self._connections:
            port = next(self._ports)
            host = bytes([127, 0, 0, 1]) + port.to_bytes(4, "big")
            self._connections[client] = ClientConnection(host, f"127.0.0.1:{port}")
        return self._connections[client]

    def _start(self, client: str, command: RemotingCommand) -> Future[RemotingCommand]:
        future: Future[RemotingCommand] = Future()
        sent = _through_bytes(command._replace(opaque=next(self._opaque)))
        connection = self.connection(client)
        self._settle(sent, self._broker.answer(connection, sent, self._clock()), future)
        self._do_events()
        return future

    def _settle(self, asked: RemotingCommand, outcome: Outcome, future: Future[RemotingCommand]) -> None:
        match outcome:
            case RemotingCommand():
                assert outcome.opaque == asked.opaque
                future.set_result(_through_bytes(outcome))
            case Waiting.PARKED:
                self._parked[asked.opaque] = future
            case AskClients(questions, _, answer):
                answers = tuple(self._told(self._name(to), _through_bytes(question)) for to, question in questions)
                future.set_result(_through_bytes(answer(answers)))

    def _name(self, connection: ClientConnection) -> str:
        return next(name for name, known in self._connections.items() if known is connection)

    def _do_events(self) -> None:
        for event in self._broker.take_events():
            match event:
                case Tell(connection, command):
                    self._told(self._name(connection), _through_bytes(command))
                case RunAgain(connection, command):
                    outcome = self._broker.answer_again(connection, command, self._clock())
                    self._settle(command, outcome, self._parked.pop(command.opaque))
                case RegisterTopics(topics):
                    self.registered.append(topics)
                case Close(connection):
                    self.closed.append(self._name(connection))

    def hang_up(self, client: str) -> None:
        self._broker.closed(self._connections[client])
        self._do_events()
        del self._connections[client]


def _through_bytes(command: RemotingCommand) -> RemotingCommand:
    return decode_frame(b"".join(encode_frame(command)))
