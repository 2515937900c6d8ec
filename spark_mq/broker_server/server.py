"""A running broker: listeners and pools in front of `Broker`, which answers.

    running = await RunningBroker.start(configuration)
    … running.address …
    await running.close()

Requests run in the threads of their pools; the broker's events for connections (`take_events`) run on the event loop.
Java: BrokerController.start and shutdown.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as AnswerTimeoutError
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from spark_mq.access.acls import BODY, Demand
from spark_mq.access.authorization import check_allowed, demands_of
from spark_mq.access.users import User, authenticate, refused
from spark_mq.broker.broker import Broker, BrokerParts
from spark_mq.broker.broker_store import ServerFacts
from spark_mq.broker.message_handlers import named_topic
from spark_mq.broker.request_table import ADMINISTRATIVE, REQUEST_TABLE, SENDS, Pool
from spark_mq.broker.requests import (
    AskBroker,
    AskClients,
    ClientConnection,
    Close,
    Outcome,
    RegisterTopics,
    RunAgain,
    Tell,
    Waiting,
)
from spark_mq.broker.send_run import RUN_FIELDS
from spark_mq.broker_server.batch_server import BatchServer
from spark_mq.broker_server.controllers import Position, SyncKeeper
from spark_mq.broker_server.duties import Duties
from spark_mq.broker_server.escape_bridge import PROGRESS_FILES, EscapeBridge, Escapes
from spark_mq.broker_server.following import Following
from spark_mq.broker_server.masters import ElectedMaster, KnownMaster, MasterByName
from spark_mq.broker_server.member_group import HAND_BACK_S, TAKE_BACK_S, Group, Member, MemberGroup, take_back
from spark_mq.broker_server.metrics_page import MetricsPage, answers_of
from spark_mq.broker_server.name_servers import OtherBrokers, Registration, SubscribedQueues
from spark_mq.broker_server.opening import (
    ControllerMode,
    GroupRole,
    StorePlace,
    epoch_cache,
    opened_service,
    sent_ha_address,
    serve_slaves,
    slave_infos,
)
from spark_mq.broker_server.settings import VIP_PORTS_BELOW, Configuration
from spark_mq.broker_server.static_topics import MappingCleaning
from spark_mq.remoting import (
    REQUEST_BODIES,
    BodyError,
    HeaderError,
    MessageQueue,
    RemotingCommand,
    RemotingError,
    RequestCode,
    make_response,
    read_body,
    read_header,
)
from spark_mq.remoting.administration import HaConnectionInfo
from spark_mq.remoting.controllers import EpochEntryCache
from spark_mq.remoting.frames import RequestRun
from spark_mq.remoting_server.channel import OVERLOADED
from spark_mq.remoting_server.peer import Peer, is_this_host
from spark_mq.remoting_server.pools import (
    PendingAnswer,
    PendingAnswers,
    Processor,
    Processors,
    RequestPool,
    busy_remark,
)
from spark_mq.remoting_server.server import RemotingServer
from storage.delay.timer_store import METRICS_FILE, TimerMetrics
from storage.epoch_times import current_time_ms
from storage.files.os_errors import is_of_system
from storage.format.replication import SlaveHandshake
from storage.ha.epochs import FollowedEpochs, forget_epoch
from storage.ha.follower import Switching
from storage.ha.listener import ReplicationListener
from storage.ha.replicas import Term
from storage.pending import Pending
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.service.put_service import PutService
from storage.tables.masters import timer_checkpoint_path

REJECTED_CODES = frozenset((*SENDS, RequestCode.CONSUMER_SEND_MSG_BACK))
"""Answered REJECTREQUEST, unread."""
_CONNECTION = "connection"
_WATERMARK_SECONDS = 1
_WATERMARK_POOLS = (
    *(Pool.SEND, Pool.PULL, Pool.QUERY, Pool.LITE_PULL, Pool.END_TRANSACTION),
    *(Pool.CLIENT_MANAGE, Pool.HEARTBEAT, Pool.ADMIN),
)
"""Java's, in its order; its Ack has no pool here, and 0 requests."""
_TOPIC_CODES = frozenset(
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
    )
)
_REGISTERED_WITHIN_S = 2.0
_OF_PRODUCERS_TOO = frozenset({RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT})
_LOG = logging.getLogger(__name__)
_WATERMARK_LOG = logging.getLogger("spark_mq.watermark")


class RunningBroker:
    """One broker, on the event loop that it was started on."""

    _owns_page = False
    """Whether it has made its page of metrics itself, and closes it."""

    def __init__(
        self,
        configuration: Configuration,
        service: PutService,
        mode: ControllerMode | None = None,
        member: GroupRole | None = None,
        clock: Callable[[], int] = current_time_ms,
        page: MetricsPage | None = None,
    ) -> None:
        """`service` has the store; it is closed at the end. `member` of a DLedger group's broker. `clock` gives milliseconds.
        `page` shows its metrics, which are counted only then.
        """
        is_slave = configuration.is_slave
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._configuration = configuration
        self._service = service
        self.place = StorePlace.of(service.store)
        self._page = page
        metrics = None if page is None else page.metrics
        self._remoting = RemotingServer(
            configuration.server, configuration.tls, on_close=self._peer_left, on_answered=answers_of(metrics)
        )
        self._facts = _Facts(self)
        self._facts.metrics = metrics
        self.broker = Broker(
            service,
            wake=self._wake,
            clock=clock,
            access=configuration.access.rules,
            is_slave=is_slave,
            server=self._facts,
        )
        """The broker that answers."""
        self._gate = Gate(self.broker.parts)
        self._peers: dict[ClientConnection, Peer] = {}
        self._is_woken = False
        gathers = {Pool.SEND: service.append_waiting}
        self._pools = {pool: RequestPool(configuration.pool(pool), gathers.get(pool)) for pool in Pool}
        self._queues: SubscribedQueues | None = None
        if configuration.client is not None:
            store = self.broker.parts.store
            self._queues = SubscribedQueues(
                configuration.client, lambda: store.config.clients.load_balance_poll_name_server_interval
            )
        self._others = OtherBrokers(configuration.client, configuration.process.forward_timeout_ms)
        process = configuration.process
        self._stands_in = self._is_closing = False
        self.group: MemberGroup | None = None
        """The group of brokers, if slaves may stand in for a missing master."""
        escapes = None
        replication = configuration.store.replication
        is_plain = mode is None and member is None
        if configuration.client is not None and is_plain and replication.enable_slave_acting_master:
            parts = self.broker.parts
            own = Member(service.settings.cluster, parts.store.broker_name, process.broker_id, parts.store.address)
            self.group = MemberGroup(own, configuration.client, self._on_group)
            if is_slave and replication.enable_remote_escape:
                client = configuration.client
                escapes = Escapes(service, lambda name: EscapeBridge(own, client, partial(self._may_escape, name)))
        self._duties = Duties(
            service,
            self.broker,
            check_interval_ms=process.check_interval_ms,
            clean_interval_ms=process.clean_interval_ms,
            clean_mappings=MappingCleaning(self.broker.parts, self._others).turn,
            escapes=escapes,
            relieve=partial(relieve, service, self._pools[Pool.SEND]) if configuration.process.fails_fast else None,
            clock=clock,
        )
        self._batches = (
            None
            if is_slave or member is not None  # a batch is written past the group
            else BatchServer(
                service, committed=self.broker.on_batch_appended, store_offsets=self.broker.store_group_offsets
            )
        )
        self._mode, self._member = mode, member
        self.keeper: SyncKeeper | None = None
        """A master's, in controller mode."""
        known = None
        self.following: Following | None = None
        """The slave's duties."""
        if member is not None and is_slave:
            self.following = Following(
                service, self.broker, configuration, MasterByName.of(configuration), copies_log=False
            )
        elif mode is not None and is_slave:
            master = ElectedMaster.of(configuration, mode.role.term.master_address or "")
            switching = Switching(SlaveHandshake(mode.role.own_id), FollowedEpochs(mode.epochs), mode.diverged)
            self.following = Following(service, self.broker, configuration, master, switching)
        elif is_slave:
            known = KnownMaster.of(configuration)
            self.following = Following(service, self.broker, configuration, known)
        self._facts.ha_address = sent_ha_address(configuration, self.broker.parts.store.ip)
        self.replication: ReplicationListener | None = None
        """The server for slaves."""
        self._registration = Registration(
            self.broker.parts,
            configuration.client,
            process,
            broker_id=registered_id(process.broker_id, mode, member),
            epoch=0 if mode is None else mode.role.term.epoch,
            on_master=None if known is None else known.tell,
        )
        self._timer: asyncio.TimerHandle | None = None
        self.address = ("", 0)
        """The listen address."""

    @classmethod
    async def start(
        cls,
        configuration: Configuration,
        mode: ControllerMode | None = None,
        place: StorePlace | None = None,
        member: GroupRole | None = None,
        clock: Callable[[], int] = current_time_ms,
        page: MetricsPage | None = None,
    ) -> RunningBroker:
        """A broker that takes requests, and that name servers know. `place` as of `opened_store`.

        `page` is that of a process whose broker changes its role; without one the broker makes its own if the configuration has one.
        Raises ListenError, ConfigurationError, and what `open_store` raises: StoreLockedError where another process has the store.
        """
        service = await asyncio.to_thread(opened_service, configuration, mode, place, member, clock)
        own: MetricsPage | None = None
        try:
            if page is None:
                own = await asyncio.to_thread(MetricsPage.of, configuration)
            running = cls(configuration, service, mode, member, clock, page or own)
        except BaseException:
            if own is not None:
                own.close()
            service.close()
            raise
        running._owns_page = own is not None
        try:
            await running._begin()
        except BaseException:
            await running.close()
            raise
        return running

    async def _begin(self) -> None:
        if self._member is None:
            self.replication = listener = serve_slaves(
                self._service,
                self._configuration,
                None if self._mode is None else self._mode.epochs,
                self.broker.parts.clients.slave_hosts.__contains__,
            )
            self._keep_in_sync(listener)  # before anything is taken: who is in sync must be waited for
        may_deliver_elsewhere = False
        if self.group is not None and self.following is None:
            self._facts.takes_back = may_deliver_elsewhere = await asyncio.to_thread(self._take_back)
        server = self._configuration.server
        self.address = await self._remoting.listen(server.bind_address, server.listen_port, self._processors())
        port = server.listen_port - VIP_PORTS_BELOW
        await self._remoting.listen(server.bind_address, port, self._processors(is_fast_port=True))
        if self._page is not None:
            self._page.show(self.broker, self._clock)
        self._duties.start(delivers=not may_deliver_elsewhere)
        if self._batches is not None:
            await asyncio.to_thread(self._batches.start)
        if self._mode is not None and self.following is not None:
            self.following.start()
        await asyncio.to_thread(self._registration.start, waits=self._mode is None)
        if self._mode is None and self.following is not None:  # name servers have said where the master is
            self.following.start()
        if self.group is not None:
            self.group.start()
        if may_deliver_elsewhere:  # until they know that this master is back: then it goes on where they have ended
            await asyncio.sleep(HAND_BACK_S)
            await asyncio.to_thread(self._take_back)
            self._facts.takes_back = False
            self._duties.start()
        self._print_watermark()

    def _take_back(self) -> bool:
        """Take over the offsets that slaves kept while this master was gone. Returns whether a slave may deliver what is due."""
        assert self.group is not None
        assert self._configuration.client is not None
        escapes = self._configuration.store.replication.enable_remote_escape
        has_slaves = take_back(
            self._service,
            self._configuration.client,
            self.group,
            self.broker.on_table_copied,
            takes_timer=escapes,
            patience_s=TAKE_BACK_S if escapes else 0.0,
        )
        return has_slaves and escapes

    def _may_escape(self, name: str) -> bool:
        """Whether what is due here may go to other masters: the master is gone, and what it had delivered is known by that file of it.

        Name servers that have lost their tables may not know a master that serves this slave its log.
        """
        following = self.following
        if following is None or not self._stands_in or self._is_closing:
            return False
        if following.follower is None or following.follower.status.is_connected:
            return False
        return following.knows_progress(name)

    def _on_group(self, group: Group) -> None:
        process = self._configuration.process
        self._service.acks.alive = group.alive_with(process.broker_id)
        if (stands_in := group.stands_in(process.broker_id)) != self._stands_in:
            self._stands_in = stands_in
            _LOG.info("the master is gone: it stands in" if stands_in else "it stands in for no master any more")
            escapes = self._configuration.store.replication.enable_remote_escape
            if stands_in and escapes and self.following is not None:
                for name, what in PROGRESS_FILES.items():
                    if not self.following.knows_progress(name):
                        _LOG.warning(
                            "%s: what is due waits for the master: its progress was never copied, so all would be "
                            "delivered again",
                            what,
                        )
            self._registration.soon()  # who comes back is found by the answer; whose topics count changes, too

    def _keep_in_sync(self, listener: ReplicationListener) -> None:
        mode = self._mode
        if mode is not None and mode.role.is_master:
            behind_ms = self._configuration.store.replication.ha_max_time_slave_not_catchup
            self.keeper = SyncKeeper(
                self._service, listener.replicas, mode.role, mode.controllers, mode.doubt, behind_ms
            )
            self.keeper.start()

    def position(self) -> Position:
        """The log's end, for controllers."""
        end = self._service.log_end
        return Position(-1 if self._mode is None else self._mode.epochs.last_epoch, end, self._service.confirm_offset)

    def committed(self) -> None:
        """More of its DLedger group's log is committed. For any thread."""
        self._service.committed()

    @property
    def dispatched_end(self) -> int:
        """The log offset up to which queues and index have the log."""
        return self._service.dispatched_end

    @property
    def failure(self) -> str | None:
        """Why it takes nothing more until its store is opened again: as a master, or as a slave from its master. None = it does."""
        if (failure := self._service.failure) is not None:
            return str(failure)
        return None if self.following is None else self.following.failure

    @property
    def fails_by_disk(self) -> bool:
        """Whether `failure` is the operating system's, so that the disk may heal it. What else it is, an opening may make worse."""
        failure = self._service.failure
        if failure is None and self.following is not None:
            failure = self.following.error
        return is_of_system(failure)

    @property
    def configuration(self) -> Configuration:
        """The configuration of the start, with operators' changes since."""
        return replace(self._configuration, store=self.broker.parts.store.config)

    def catch_up(self) -> None:
        """Deliver and check what is due by the clock, in the caller's thread, as `Duties.catch_up`."""
        self._duties.catch_up()

    def tell_name_servers(self) -> None:
        """Register now, because the broker's permissions have changed."""
        self._registration.soon()

    @property
    def unknown_to(self) -> tuple[str, ...]:
        """The name servers that have not taken its last registration; they are tried again."""
        return self._registration.missing

    def note_reopened(self, failure: str) -> None:
        """The failure after which its store was opened again, for operators."""
        self._facts.store_reopened = f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}, after: {failure}"

    def on_term(self, term: Term) -> None:
        """A new term from the controller that changes no role."""
        if self.keeper is not None:
            self.keeper.on_term(term)

    async def close(self) -> None:
        """Leaves the name servers, answers what has come, hangs up, and closes the store cleanly."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._is_elected:  # another one may be master: nothing is taken or acknowledged any more
                self._service.acks.close()
                await asyncio.to_thread(self._service.refuse_puts)
            if self.group is not None:
                await asyncio.to_thread(self.group.close)
            if not self._is_elected:
                await asyncio.to_thread(self._registration.close)
                await self._remoting.close()
            else:
                leaving = asyncio.to_thread(self._registration.close)
                await asyncio.gather(leaving, self._remoting.close(), asyncio.to_thread(self._close_writers))
        finally:
            await asyncio.to_thread(self._close_store)

    @property
    def _is_elected(self) -> bool:
        """Whether a controller or a DLedger group says what it is."""
        return self._mode is not None or self._member is not None

    def _close_writers(self) -> None:
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()
        self._duties.close()

    def _close_store(self) -> None:
        files = self._service.store.writer.file_system
        # The last one first, each also where one before it fails: a batch must not outlive the store.
        with ExitStack() as closing:
            if self._page is not None and self._owns_page:
                closing.callback(self._page.close)
            closing.callback(self._service.close)
            closing.callback(lambda: self.broker.close(self._clock()))
            closing.callback(self._close_writers)
            closing.callback(self._others.close)
            if self._queues is not None:
                closing.callback(self._queues.close)
            if self.following is not None:
                closing.callback(self.following.close)
            if self.replication is not None:
                closing.callback(self.replication.close)
            closing.callback(self._service.acks.close)  # no slave will acknowledge any more: end all waits
            if self.keeper is not None:
                closing.callback(self.keeper.close)
            if self._page is not None:
                closing.callback(self._page.hide)
        if self._mode is not None and self._service.failure is None:
            forget_epoch(files, self._service.root)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Where Prometheus reads its metrics; None without metricsExporterType=PROM."""
        return None if self._page is None else self._page.address

    @property
    def connection_count(self) -> int:
        """Number of connected peers."""
        return self._remoting.connection_count

    # Requests, in the threads of their pools.

    def _processors(self, *, is_fast_port: bool = False) -> Processors:
        rows = ((code, row) for code, row in REQUEST_TABLE.items() if row.is_on_fast_port or not is_fast_port)
        table = {code: Processor(self._answer, self._pools[row.pool]) for code, row in rows}
        rejects = partial(takes_none, self._service)
        sends = Processor(self._answer, self._pools[Pool.SEND], rejects, self._answer_run)
        table |= dict.fromkeys(REJECTED_CODES, sends)
        table |= dict.fromkeys(_TOPIC_CODES, Processor(self._answer_when_registered, self._pools[Pool.ADMIN]))
        if self._mode is not None:
            table[RequestCode.NOTIFY_BROKER_ROLE_CHANGED] = Processor(self._on_notice, self._pools[Pool.ADMIN])
        table[RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE] = Processor(self._on_min_id, self._pools[Pool.ADMIN])
        return Processors(table, run_fields=RUN_FIELDS)

    def _on_notice(self, command: RemotingCommand, peer: Peer) -> None:
        """1008 names a new master. Any client may send it, so ask the controller."""
        assert self._mode is not None
        self._mode.doubt()

    def _on_min_id(self, command: RemotingCommand, peer: Peer) -> RemotingCommand:
        """905: another broker has the lowest id. Any client may send it, so ask the name server."""
        if self.group is not None:
            self.group.soon()
        return make_response(command, ResponseCode.SUCCESS)

    def _answer(self, command: RemotingCommand, peer: Peer) -> RemotingCommand | PendingAnswer | None:
        self._gate.check(command, peer.host)
        connection = self._connection(peer)
        started = self.broker.begin(connection, command, self._clock())
        if isinstance(started, Pending):
            return started.then(lambda outcome: self._settled(outcome(), command, peer))
        return self._settled(started, command, peer)

    def _answer_when_registered(self, command: RemotingCommand, peer: Peer) -> RemotingCommand | PendingAnswer | None:
        """A change of topics is answered when each name server that can be reached knows it, so that a client finds its new topic.

        Java: BrokerController.registerIncrementBrokerData, which waits for registerBrokerTimeoutMills. Departure: a name server that
        does not answer is waited for once, for two seconds, and then not again until it answers: the client would give up.
        """
        store = self.broker.parts.store
        before = store.topics_version, store.mappings_version
        answer = self._answer(command, peer)
        if (store.topics_version, store.mappings_version) != before:
            self._registration.wait_for_topics(_REGISTERED_WITHIN_S)
        return answer

    def _answer_run(self, run: RequestRun, peer: Peer) -> PendingAnswers | None:
        if not self._gate.lets_all_send:
            return None
        return self.broker.begin_run(self._connection(peer), run, self._clock())

    def _settled(
        self, outcome: Outcome, command: RemotingCommand, peer: Peer, *, was_suspended: bool = False
    ) -> RemotingCommand | None:
        """The answer; None where it comes later, or never."""
        if isinstance(outcome, AskBroker):

            def heard(answer: RemotingCommand) -> None:
                self._respond(outcome.settle(answer), command, peer, was_suspended=was_suspended)

            self._others.ask(outcome, heard)
            return None
        if isinstance(outcome, AskClients):
            return self._answered_by_clients(outcome)
        return None if isinstance(outcome, Waiting) else outcome

    def _answered_by_clients(self, questions: AskClients) -> RemotingCommand:
        """Send all requests to clients at once, and wait for the answers in the pool's thread."""
        waiting = [
            peer.request(command, questions.timeout_ms) if (peer := self._peers.get(connection)) is not None else None
            for connection, command in questions.questions
        ]
        answers: list[RemotingCommand | None] = []
        for future in waiting:
            try:
                answers.append(None if future is None else future.result(questions.timeout_ms / 1_000 + 1))
            except (AnswerTimeoutError, TimeoutError, RemotingError) as error:
                _LOG.info("a client did not answer: %s", error)
                answers.append(None)
        return questions.answer(tuple(answers))

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
        if peer.is_full:
            busy = make_response(again.command, ResponseCode.SYSTEM_BUSY, OVERLOADED)
            peer.respond(again.command, busy, was_suspended=True)
            return
        outcome = self.broker.answer_again(again.connection, again.command, self._clock())
        self._respond(outcome, again.command, peer, was_suspended=True)

    def _respond(self, outcome: Outcome, command: RemotingCommand, peer: Peer, *, was_suspended: bool = False) -> None:
        if (response := self._settled(outcome, command, peer, was_suspended=was_suspended)) is not None:
            peer.respond(command, response, was_suspended=was_suspended)

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
        def refuse(remark: str) -> bool:
            busy = make_response(again.command, ResponseCode.SYSTEM_BUSY, remark)
            peer.respond(again.command, busy, was_suspended=True)
            return True  # the client pulls again, as after any pull

        pool = self._pools[REQUEST_TABLE[again.command.code].pool]
        if not pool.submit(partial(self._run_again, again, peer), refuse):
            refuse(OVERLOADED)

    def _peer_left(self, peer: Peer) -> None:
        connection = peer.attributes.get(_CONNECTION)
        if isinstance(connection, ClientConnection):
            self._peers.pop(connection, None)
            self.broker.closed(connection)

    def _print_watermark(self) -> None:
        if _WATERMARK_LOG.isEnabledFor(logging.INFO):
            for line in watermarks(self._pools):
                _WATERMARK_LOG.info("%s", line)
        self._timer = self._loop.call_later(_WATERMARK_SECONDS, self._print_watermark)


class _Facts(ServerFacts):
    """A running broker's facts besides its `Broker`."""

    def __init__(self, running: RunningBroker) -> None:
        self._running = running

    def pool_load(self, pool: Pool) -> tuple[int, int]:
        found = self._running._pools[pool]
        return found.size, found.head_wait_ms()

    def following_trouble(self) -> str | None:
        following = self._running.following
        return None if following is None else following.trouble

    def slaves(self) -> Sequence[HaConnectionInfo]:
        running = self._running
        if running.replication is None:
            return ()
        return slave_infos(running.replication, running._service.sendable_end)

    def timer_page(self) -> bytes:
        service = self._running._service
        return service.store.writer.file_system.read_file(timer_checkpoint_path(service.root)) or b""

    def timing_counts(self) -> Mapping[str, int]:
        table = self._running._service.state(METRICS_FILE, TimerMetrics.load)
        return {} if table is None else table.counts

    def subscribed_queues(
        self, topic: str, own: Callable[[str], Sequence[MessageQueue] | None]
    ) -> Sequence[MessageQueue] | None:
        queues = self._running._queues
        return own(topic) if queues is None else queues.of(topic)

    def unsupported(self) -> Mapping[int, int]:
        return self._running._remoting.unsupported_counts

    def epochs(self) -> EpochEntryCache | None:
        running, mode = self._running, self._running._mode
        if mode is None:
            return None
        cluster, name = (
            running._configuration.store.identity.broker_cluster_name,
            running.broker.parts.store.broker_name,
        )
        return epoch_cache(mode.epochs.entries, cluster, name, mode.role.own_id, running._service.log_end)


# Sends are refused at once while the log takes none: at the door, and out of their queue. One put may hold the log for as long as a
# disk takes; behind it every other send would wait, and its client with it. What has waited for too long is refused by the pool
# itself (`remoting_server/pools.py`). Java: SendMessageProcessor.rejectRequest, BrokerFastFailure.cleanExpiredRequest.


def takes_none(service: PutService) -> bool:
    """Whether one put has held the log for longer than osPageCacheBusyTimeOutMills, or the transient store pool is full."""
    return service.is_os_page_cache_busy or service.is_pool_deficient


def relieve(service: PutService, sends: RequestPool) -> None:
    """The sends that wait are refused, if one put has held the log for too long."""
    if sends.size and service.is_os_page_cache_busy:
        sends.refuse_all(partial(busy_remark, "PCBUSY_CLEAN_QUEUE"))


def watermarks(pools: Mapping[Pool, RequestPool]) -> list[str]:
    """Waiting requests of each pool, and the wait of the first: a line each. Java: BrokerController.printWaterMark."""
    found = [(pool.label, pools[pool].size, pools[pool].head_wait_ms()) for pool in _WATERMARK_POOLS]
    lines = [*found[:-1], ("Ack", 0, 0), found[-1]]
    return [f"[WATERMARK] {label} Queue Size: {size} SlowTimeMills: {wait_ms}" for label, size, wait_ms in lines]


class Gate:
    """Every request passes here before a broker sees it: who asks, and may he? Thread-safe.

        request ─▶ signed by a user? ─▶ allowed to him? ─▶ broker          with access control
        request ─▶ from this host, if it is an operator's? ─▶ broker       without

    With ACL 1.0 its accounts are checked first; its admins and white addresses may send the requests of operators, too.
    Java: AuthenticationPipeline, AuthorizationPipeline. Departures, where requests must be allowed: one that names nothing, or no
    message that is there, is for SUPER users, but for producers' heartbeats and farewells; one without a proven user is refused,
    whatever name it gives. Without access control only this host may send the requests of operators.
    """

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._rules = parts.access.rules

    @property
    def lets_all_send(self) -> bool:
        """Whether sends pass, whatever they name."""
        rules = self._rules
        return not rules.authenticates and not rules.authorizes and self._parts.access.plain is None

    def check(self, command: RemotingCommand, host: str) -> None:
        """Raises RequestRefusedError unless the caller at that address may ask that. The code must have a row."""
        rules, plain = self._rules, self._parts.access.plain
        try:
            may_do_all = plain is not None and plain.check(command, host)
            user = self._user(command) if rules.authenticates else None
            if rules.authorizes and command.code not in rules.free_codes:
                self._authorize(user, command, host)
            elif command.code in ADMINISTRATIVE and not may_do_all and not is_this_host(host):
                raise refused(f"request {command.code} is answered to this host alone")
        except RequestRefusedError as refusal:
            _LOG.info("request %d from %s is refused: %s", command.code, host, refusal.remark)
            raise

    def _user(self, command: RemotingCommand) -> User | None:
        try:
            return authenticate(self._parts.access.users, command)
        except RequestRefusedError:
            if command.code in self._rules.unsigned_codes:
                return None
            raise

    def _authorize(self, user: User | None, command: RemotingCommand, host: str) -> None:
        if user is None:
            raise refused("Authorization failed. Please verify your access rights and try again.")
        if user.is_super:
            return
        refusal = f"{user.subject} has no permission for request {command.code} from {host}"
        demands = self._demands(command, f"{refusal}, the message that it names is not there.")
        if not demands and command.code not in _OF_PRODUCERS_TOO:
            raise refused(f"{refusal}, it names nothing.")
        check_allowed(user.subject, self._parts.access.acls.acls.get(user.subject, {}), demands, host)

    def _demands(self, command: RemotingCommand, no_message: str) -> tuple[Demand, ...]:
        row, parts = REQUEST_TABLE[command.code], self._parts
        try:
            header = read_header(row.header, command)
            is_in_body = any(need.field == BODY for need in row.needs)
            body = read_body(REQUEST_BODIES[command.code], command.body) if is_in_body else None
        except (HeaderError, BodyError):
            raise refused("parse authorization context error.") from None

        def message_topic() -> str:
            topic = named_topic(parts.store.served, header)
            if topic is None:
                raise refused(no_message)
            return topic

        return demands_of(row.needs, header, body, parts.store.service.settings.cluster, message_topic)


def registered_id(own: int, mode: ControllerMode | None, member: GroupRole | None) -> int:
    """The brokerId at name servers: that of the file, unless the role decides."""
    if mode is not None:
        return mode.role.registered_id
    return own if member is None else member.broker_id
