"""A running name server: sockets, clock and files around `NameServer`.

    running = await RunningNameServer.start(configuration)
    … running.address …
    await running.close()

Handlers run on the event loop: they only work in memory, except rare changes of texts and settings, which wait for their file.
Java: NamesrvController. Departure: a broker's silence is measured with a monotonic clock; if Java's clock is set forward by two
minutes, all routes are gone.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from spark_mq.namesrv.name_server import CLIENT_POOL, DEFAULT_POOL, NameServer
from spark_mq.namesrv.settings import Configuration
from spark_mq.namesrv.tables import KvConfig, MinBrokerIdNotice, parse_kv_config
from spark_mq.remoting import RemotingCommand, RequestCode, make_request, write_header
from spark_mq.remoting_server.administration import AdministeredServer, save_settings
from spark_mq.remoting_server.peer import Caller, Peer
from spark_mq.remoting_server.pools import PoolSettings, Processor, Processors, RequestPool, watermark
from storage.epoch_times import steady_time_ms
from storage.files.local_file_system import LocalFileSystem, read_table, write_with_backup

_NOTICE_MS = 300
_WATERMARK_MS = 1_000
_LOG = logging.getLogger(__name__)
_WATERMARK_LOG = logging.getLogger("spark_mq.watermark")


class RunningNameServer(AdministeredServer):
    """One name server, on the event loop that it was started on."""

    def __init__(self, configuration: Configuration, kv_config: KvConfig) -> None:
        super().__init__(configuration)
        settings = configuration.name_server
        self._name_server = NameServer(
            configuration,
            started_ms=steady_time_ms(),
            kv_config=kv_config,
            save_texts=partial(_save_texts, settings.kv_config_path),
            save_settings=partial(save_settings, settings.config_store_path),
        )
        self._is_settling = False

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
        self._call_later("scan", self._name_server.state.configuration.name_server.scan_interval_ms, self._scan)

    def _print_watermark(self) -> None:
        if _WATERMARK_LOG.isEnabledFor(logging.INFO):
            _WATERMARK_LOG.info("%s", watermark(self._remoting.pools))
        self._call_later("watermark", _WATERMARK_MS, self._print_watermark)

    # Notices to brokers.

    def _tell(self, notice: MinBrokerIdNotice) -> None:
        """One-way, each within 300 ms."""
        header = notice.header
        _LOG.info("%s has the lowest id now: telling %s", header.min_broker_address, ", ".join(notice.addresses))
        command = make_request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, write_header(header))
        for address in notice.addresses:
            self._send_to_broker(address, command, _NOTICE_MS)


def _save_texts(path: str, text: str) -> None:
    write_with_backup(path, text)
