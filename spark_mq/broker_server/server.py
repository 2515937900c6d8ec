"""A broker that runs: listeners and pools in front of `Broker`, which answers.

    running = await RunningBroker.start(configuration)
    … running.address …
    await running.close()

Requests run in the threads of their pools; what the broker wants done with connections (`take_events`) is done on the event loop.
Java: BrokerController.start and shutdown.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from concurrent.futures import TimeoutError as AnswerTimeoutError
from functools import partial

from spark_mq.broker.broker import Broker
from spark_mq.broker.connections import (
    AskClients,
    ClientConnection,
    Close,
    Outcome,
    RegisterTopics,
    RunAgain,
    Tell,
    Waiting,
)
from spark_mq.broker.request_table import REQUEST_TABLE, Pool
from spark_mq.broker_server.batch_server import BatchServer
from spark_mq.broker_server.duties import Duties
from spark_mq.broker_server.gate import Gate
from spark_mq.broker_server.registration import Registration
from spark_mq.broker_server.settings import VIP_PORTS_BELOW, Configuration
from spark_mq.remoting import RemotingCommand, RemotingError, make_response
from spark_mq.remoting_server.peer import Peer
from spark_mq.remoting_server.pools import RequestPool, watermark
from spark_mq.remoting_server.processors import Processor, Processors
from spark_mq.remoting_server.server import RemotingServer
from storage import open_store
from storage.epoch_times import current_time_ms
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService

_CONNECTION = "connection"
_WATERMARK_SECONDS = 1
_LOCK_TIMEOUT_MS = 30_000  # a sink or job may be at work; another broker is not waited for
_LOG = logging.getLogger(__name__)
_WATERMARK_LOG = logging.getLogger("spark_mq.watermark")


class RunningBroker:
    """One broker, on the event loop that it was started on."""

    def __init__(self, configuration: Configuration, service: PutService) -> None:
        """`service` has the store; it is closed at the end."""
        self._loop = asyncio.get_running_loop()
        self._configuration = configuration
        self._service = service
        self._remoting = RemotingServer(configuration.server, configuration.tls, on_close=self._peer_left)
        self.broker = Broker(service, wake=self._wake, access=configuration.access.rules)
        """What answers."""
        self._gate = Gate(self.broker.parts)
        self._peers: dict[ClientConnection, Peer] = {}
        self._is_woken = False
        self._pools = {pool: RequestPool(configuration.pool(pool)) for pool in Pool}
        self.broker.parts.pool_load = lambda pool: (self._pools[pool].size, self._pools[pool].head_wait_ms())
        process = configuration.process
        self._duties = Duties(
            service,
            self.broker,
            check_interval_ms=process.check_interval_ms,
            clean_interval_ms=process.clean_interval_ms,
        )
        self._batches = BatchServer(service, committed=self.broker.heed_batch)
        port = configuration.server.listen_port
        self._registration = Registration(
            self.broker.parts, configuration.client, port + 1, process.register_period_ms, process.register_timeout_ms
        )
        self._timer: asyncio.TimerHandle | None = None
        self.address = ("", 0)
        """Where it listens."""

    @classmethod
    async def start(cls, configuration: Configuration) -> RunningBroker:
        """A broker that takes requests, and that name servers know.

        Raises ListenError, ConfigurationError, and what `open_store` raises: StoreLockedError where another process has the store.
        """
        service = await asyncio.to_thread(_opened, configuration)
        try:
            running = cls(configuration, service)
        except BaseException:
            service.close()
            raise
        try:
            await running._begin()
        except BaseException:
            await running.close()
            raise
        return running

    async def _begin(self) -> None:
        server = self._configuration.server
        self.address = await self._remoting.listen(server.bind_address, server.listen_port, self._processors())
        port = server.listen_port - VIP_PORTS_BELOW
        await self._remoting.listen(server.bind_address, port, self._processors(is_fast_port=True))
        self._duties.start()
        await asyncio.to_thread(self._batches.start)
        await asyncio.to_thread(self._registration.start)
        self._print_watermark()

    async def close(self) -> None:
        """Leaves the name servers, answers what has come, hangs up, and closes the store cleanly."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            await asyncio.to_thread(self._registration.close)
            await self._remoting.close()
        finally:
            await asyncio.to_thread(self._close_store)

    def _close_store(self) -> None:
        try:
            self._batches.close()
            self._duties.close()
            self.broker.close(current_time_ms())
        finally:
            self._service.close()

    @property
    def connection_count(self) -> int:
        """How many peers are connected."""
        return self._remoting.connection_count

    # Requests, in the threads of their pools.

    def _processors(self, *, is_fast_port: bool = False) -> Processors:
        rows = ((code, row) for code, row in REQUEST_TABLE.items() if row.is_on_fast_port or not is_fast_port)
        return Processors({code: Processor(self._answer, self._pools[row.pool]) for code, row in rows})

    def _answer(self, command: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        self._gate.check(command, peer.host)
        connection = self._connection(peer)
        return self._settled(self.broker.answer(connection, command, current_time_ms()), command)

    def _settled(self, outcome: Outcome, command: RemotingCommand) -> RemotingCommand | None:
        if isinstance(outcome, AskClients):
            return self._asked(outcome)
        return None if isinstance(outcome, Waiting) else outcome

    def _asked(self, asked: AskClients) -> RemotingCommand:
        """Clients are asked at the same time, and waited for in the thread of the pool."""
        waiting = [
            peer.request(command, asked.timeout_ms) if (peer := self._peers.get(connection)) is not None else None
            for connection, command in asked.questions
        ]
        answers: list[RemotingCommand | None] = []
        for future in waiting:
            try:
                answers.append(None if future is None else future.result(asked.timeout_ms / 1_000 + 1))
            except (AnswerTimeoutError, TimeoutError, RemotingError) as error:
                _LOG.info("a client was not asked: %s", error)
                answers.append(None)
        return asked.answer(tuple(answers))

    def _connection(self, peer: Peer) -> ClientConnection:
        found = peer.attributes.get(_CONNECTION)
        if isinstance(found, ClientConnection):
            return found
        port = int(peer.address.rpartition(":")[2])
        host = ipaddress.ip_address(peer.host.partition("%")[0]).packed + port.to_bytes(4, "big")
        made = peer.attributes.setdefault(_CONNECTION, ClientConnection(host, peer.address))
        assert isinstance(made, ClientConnection)
        self._peers[made] = peer
        if not peer.is_open:  # it has left before it was known
            self._peers.pop(made, None)
        return made

    def _run_again(self, again: RunAgain, peer: Peer) -> None:
        outcome = self.broker.answer_again(again.connection, again.command, current_time_ms())
        response = self._settled(outcome, again.command)
        if response is not None:
            peer.respond(again.command, response)

    # Events, on the loop.

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._remoting.call_soon(self._do_events)

    def _do_events(self) -> None:
        self._is_woken = False
        for event in self.broker.take_events():
            if isinstance(event, RegisterTopics):
                self._registration.soon()
                continue
            peer = self._peers.get(event.connection)
            if peer is None:
                continue
            if isinstance(event, Tell):
                peer.send_oneway(event.command)
            elif isinstance(event, Close):
                peer.close("its client was silent for too long")
            elif isinstance(event, RunAgain):
                self._submit_again(event, peer)

    def _submit_again(self, again: RunAgain, peer: Peer) -> None:
        def refuse(remark: str) -> None:
            peer.respond(again.command, make_response(again.command, ResponseCode.SYSTEM_BUSY, remark))

        pool = self._pools[REQUEST_TABLE[again.command.code].pool]
        if not pool.submit(partial(self._run_again, again, peer), refuse):
            refuse("[OVERLOAD]system busy, start flow control for a while")

    def _peer_left(self, peer: Peer) -> None:
        connection = peer.attributes.get(_CONNECTION)
        if isinstance(connection, ClientConnection):
            self._peers.pop(connection, None)
            self.broker.closed(connection)

    def _print_watermark(self) -> None:
        if _WATERMARK_LOG.isEnabledFor(logging.INFO):
            _WATERMARK_LOG.info("%s", watermark(self._remoting.pools))
        self._timer = self._loop.call_later(_WATERMARK_SECONDS, self._print_watermark)


def _opened(configuration: Configuration) -> PutService:
    store = open_store(
        configuration.process.store_path_root_dir,
        config=configuration.store,
        read_only=False,
        create=True,
        lock_timeout_ms=_LOCK_TIMEOUT_MS,
        holder="broker",
        store_host=configuration.store_host,
        broker_name=configuration.broker_name,
    )
    try:
        return PutService(store)
    except BaseException:
        store.close()
        raise
