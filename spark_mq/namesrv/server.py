"""A name server that runs: sockets, clock and files around `NameServer`.

    running = await RunningNameServer.start(configuration)
    … running.address …
    await running.close()

Handlers run on the event loop: all but the rare changes of texts and settings, which wait for their file, are a matter of memory.
Java: NamesrvController. Departure: how long a broker is silent is told by a clock that nobody sets; where Java's is set forward by two
minutes all routes are gone.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from spark_mq.client.event_loop import spawn
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.client.settings import ClientSettings
from spark_mq.namesrv.name_server import CLIENT_POOL, DEFAULT_POOL, NameServer
from spark_mq.namesrv.settings import Configuration
from spark_mq.namesrv.tables import KvConfig, MinBrokerIdNotice, parse_kv_config
from spark_mq.remoting import RemotingCommand, RequestCode, make_request, write_header
from spark_mq.remoting_server.administration import save_settings, tell_broker
from spark_mq.remoting_server.peer import Caller, Peer
from spark_mq.remoting_server.pools import PoolSettings, RequestPool, watermark
from spark_mq.remoting_server.processors import Processor, Processors
from spark_mq.remoting_server.server import RemotingServer
from storage.epoch_times import steady_time_ms
from storage.files.atomic_file import read_table, write_with_backup
from storage.files.local_file_system import LocalFileSystem
from storage.names import address_text

_NOTICE_MS = 300
_WATERMARK_SECONDS = 1
_LOG = logging.getLogger(__name__)
_WATERMARK_LOG = logging.getLogger("spark_mq.watermark")


class RunningNameServer:
    """One name server, on the event loop that it was started on."""

    def __init__(self, configuration: Configuration, kv_config: KvConfig) -> None:
        self._loop = asyncio.get_running_loop()
        settings = configuration.name_server
        self._name_server = NameServer(
            configuration,
            started_ms=steady_time_ms(),
            kv_config=kv_config,
            save_texts=partial(_save_texts, settings.kv_config_path),
            save_settings=partial(save_settings, settings.config_store_path),
        )
        self._remoting = RemotingServer(configuration.server, configuration.tls, on_close=self._peer_left)
        self._is_settling = False
        self._client: RemotingClient | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.address = ("", 0)
        """Where it listens."""

    @classmethod
    async def start(cls, configuration: Configuration) -> RunningNameServer:
        """A name server that takes requests. Raises ListenError, ConfigurationError, and StateFileError for a bad file of texts."""
        path = configuration.name_server.kv_config_path
        kept = await asyncio.to_thread(read_table, path, parse_kv_config, LocalFileSystem().read_file)
        running = cls(configuration, kept or KvConfig())
        server = configuration.server
        processors = running._processors(configuration)
        try:
            running.address = await running._remoting.listen(server.bind_address, server.listen_port, processors)
        except BaseException:
            await running.close()
            raise
        running._scan()
        running._print_watermark()
        return running

    @property
    def connection_count(self) -> int:
        """How many peers are connected."""
        return self._remoting.connection_count

    async def close(self) -> None:
        """Answers what has come, and hangs up. Nothing is left to be saved: texts are saved when they change."""
        await self._remoting.close()
        for timer in self._timers.values():
            timer.cancel()
        if self._client is not None:
            await asyncio.wrap_future(spawn(self._client.close()))

    def _processors(self, configuration: Configuration) -> Processors:
        settings = configuration.name_server
        clients = RequestPool(PoolSettings(CLIENT_POOL, settings.client_queue_capacity))
        others = RequestPool(PoolSettings(DEFAULT_POOL, settings.default_queue_capacity))
        routes: dict[int, Processor] = {RequestCode.GET_ROUTEINFO_BY_TOPIC: Processor(self._answer, clients)}
        return Processors(routes, Processor(self._answer, others))

    # Events.

    def _answer(self, request: RemotingCommand, peer: Peer) -> RemotingCommand:
        answer = self._name_server.answer(request, Caller(peer, peer.host), steady_time_ms())
        self._settle_soon()
        return answer

    def _peer_left(self, peer: Peer) -> None:
        self._name_server.close_channel(peer)
        self._settle_soon()

    def _settle_soon(self) -> None:
        if not self._is_settling and not self._name_server.is_settled:
            self._is_settling = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        self._is_settling = False
        for notice in self._name_server.settle():
            self._tell(notice)

    def _scan(self) -> None:
        for gone in self._name_server.scan(steady_time_ms()):
            _LOG.warning("broker %s was silent for %d ms", gone.who.address, gone.silent_ms)
            if isinstance(gone.channel, Peer):
                gone.channel.close("its broker was silent for too long")
        self._settle_soon()
        seconds = self._name_server.state.configuration.name_server.scan_interval_ms / 1_000
        self._timers["scan"] = self._loop.call_later(seconds, self._scan)

    def _print_watermark(self) -> None:
        if _WATERMARK_LOG.isEnabledFor(logging.INFO):
            _WATERMARK_LOG.info("%s", watermark(self._remoting.pools))
        self._timers["watermark"] = self._loop.call_later(_WATERMARK_SECONDS, self._print_watermark)

    # Notices to brokers.

    def _tell(self, notice: MinBrokerIdNotice) -> None:
        """One-way, each within 300 ms; a broker that is not reached asks for itself later."""
        if self._client is None:
            host, port = self.address
            self._client = RemotingClient(ClientSettings((address_text(host, port),)))
        header = notice.header
        _LOG.info("%s has the lowest id now: telling %s", header.min_broker_address, ", ".join(notice.addresses))
        command = make_request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, write_header(header))
        for address in notice.addresses:
            spawn(tell_broker(self._client, address, command, _NOTICE_MS))


def _save_texts(path: str, text: str) -> None:
    write_with_backup(path, text)
