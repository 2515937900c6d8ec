"""A broker without sockets: takes any request of any client, returns an answer, and collects events for the server.

    broker = Broker(service, wake=loop_wakes)
    outcome = broker.answer(connection, command, now_ms)     # an answer | PARKED | AskClients | AskBroker | None
    for event in broker.take_events(): ...                   # notices to clients, pulls to be run again, topics to be registered
    broker.tick(now_ms)                                      # several times a second: runs what is due
    broker.closed(connection)                                # the connection ended

Thread-safe: many threads may call `answer`; puts run in parallel, other requests take turns. The server keeps the requests that are
answered later. Java: BrokerController, with the processors that it registers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from spark_mq.access.users import AccessRules
from spark_mq.broker.access_handlers import AccessEntries, AccessHandlers
from spark_mq.broker.admin_handlers import AdminHandlers, ReplicaHandlers
from spark_mq.broker.broker_metrics import BrokerMetrics
from spark_mq.broker.broker_store import BrokerStore, ServerFacts
from spark_mq.broker.client_handlers import AssignmentHandlers, ClientHandlers
from spark_mq.broker.client_tables import Clients
from spark_mq.broker.consumer_filters import ConsumerFilters
from spark_mq.broker.gauges import BrokerGauges
from spark_mq.broker.group_handlers import GroupHandlers
from spark_mq.broker.group_offsets import GroupOffsets
from spark_mq.broker.held_pulls import Pulls
from spark_mq.broker.message_handlers import MessageHandlers
from spark_mq.broker.offset_handlers import OffsetHandlers, ProgressHandlers
from spark_mq.broker.plain_access import LOOK_MS, PlainAccessHandlers
from spark_mq.broker.pull import PullHandler
from spark_mq.broker.request_table import REQUEST_TABLE, SENDS
from spark_mq.broker.requests import (
    AskBroker,
    BrokerEvent,
    ClientConnection,
    Close,
    Handler,
    Outcome,
    RegisterTopics,
    Request,
    Tell,
)
from spark_mq.broker.topic_handlers import TopicHandlers
from spark_mq.broker.traffic import Traffic
from spark_mq.remoting import (
    BodyError,
    HeaderEncoding,
    HeaderError,
    RemotingCommand,
    RequestCode,
    make_request,
    make_response,
    read_header,
    write_header,
)
from spark_mq.remoting.frames import RequestRun, RunAnswers
from spark_mq.remoting.messages import CheckTransactionStateRequest
from storage.epoch_times import current_time_ms, is_time, steady_time_ms
from storage.errors import PutRefusedError, StoreNotWritableError, StoreServedError
from storage.format.bloom_filter import BloomFilter, MapsOf
from storage.format.properties import PROPERTIES_LIMIT_BYTES
from storage.format.record import Message, encode_record
from storage.format.typed_json import SubscriptionGroupConfig
from storage.log.dispatch import QueueEntries
from storage.names import retry_topic, validate_group
from storage.pending import Pending
from storage.rules.half_messages import PRODUCER_GROUP, WAIT, TransactionState, real_queue
from storage.rules.inner_messages import encode_properties
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.tables.consumer_groups import FILTERS_FILE, ConsumerFilterTable, ConsumerOffsets
from storage.tables.document import OFFSETS_FILE, TOPICS_FILE
from storage.tables.put_statistics import PutStatistics
from storage.tables.topics import TopicConfig
from storage.transaction.check import Asking, CheckReport, check_half_messages
from storage.transaction.check_plan import CheckRules

_LOG = logging.getLogger(__name__)
EXPIRY_LOOK_MS = 10_000
"""Interval of the search for silent clients. Java: ClientHousekeepingService."""
FILTERS_SAVED_MS = 10_000
"""Interval of saving changed expressions. Java: BrokerController.initializeBrokerScheduledTasks, also the next one."""
PROTECTION_MS = 180_000
"""Interval of the check for groups that read slowly."""


class BrokerParts(NamedTuple):
    """Shared parts of one broker's handlers. Each handler takes the parts that it needs."""

    store: BrokerStore
    clients: Clients
    offsets: GroupOffsets
    pulls: Pulls
    traffic: Traffic
    access: AccessEntries
    server: ServerFacts


class Broker:
    """Answers the requests of one store's clients. A context manager that closes it, not the service."""

    def __init__(
        self,
        service: PutService,
        *,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], int] = current_time_ms,
        steady: Callable[[], int] = steady_time_ms,
        memory_bytes: int | None = None,
        access: AccessRules | None = None,
        is_slave: bool = False,
        server: ServerFacts | None = None,
    ) -> None:
        """`wake` is called, by any thread, when there are events to be taken; it must be quick. `clock` gives milliseconds,
        `steady` gives monotonic milliseconds, for silence and waiting;
        `memory_bytes` is the machine's (None: ask it). `access` says what must be signed; the server checks it.
        `is_slave`: it takes no messages, and gives some where slaveReadEnable. `server` knows what only the server around it does.

        Raises StateFileError where a table of the store cannot be read, OSError.
        """
        settings, config = service.settings, service.config
        facts = server or ServerFacts()
        store = BrokerStore(service, clock=clock, memory_bytes=memory_bytes, is_slave=is_slave)
        known_filters = service.state(FILTERS_FILE, ConsumerFilterTable.load)
        filters = ConsumerFilters(
            BloomFilter.of(
                config.filters.max_error_rate_of_bloom_filter, config.filters.expect_consumer_num_use_filter
            ),
            known_filters,
            clock=clock,
            kept_ms=config.filters.filter_data_clean_time_span,
        )
        if known_filters is None:  # the file is there, though empty, as Java's is
            filters.note_unsaved()
        offsets = GroupOffsets(service.state(OFFSETS_FILE, ConsumerOffsets.load))
        offsets.configure(config.clients)
        self.parts = BrokerParts(
            store=store,
            clients=Clients(config.clients, filters, clock=clock, steady=steady),
            offsets=offsets,
            pulls=Pulls(config.pull),
            traffic=Traffic(
                PutStatistics(settings.broker_name, settings.cluster), settings.cluster, service.times, facts.metrics
            ),
            access=AccessEntries(service, access or AccessRules()),
            server=facts,
        )
        store.on_settings_changed += (self._configure, self.parts.clients.configure, self.parts.pulls.configure)
        self._wake = wake
        self._messages = MessageHandlers(store, self.parts.clients, self.parts.traffic)
        self._pulls = PullHandler(store, self.parts.clients, self.parts.pulls, offsets, self.parts.traffic)
        self._handlers = self._handler_table()
        self._topics_seen, self._mappings_seen = service.settings.topics, service.settings.mappings
        self._saving = threading.Lock()
        """Held while offsets are saved, so that none are written over later ones; before all other locks."""
        self._saved_ms = self._looked_ms = self._filters_ms = self._protected_ms = self._accounts_ms = steady()
        self._resources = ExitStack()
        self._resources.enter_context(service.listening(self._arrived))
        self._resources.enter_context(service.mapping(self._maps_of))

    def _handler_table(self) -> Mapping[int, Handler]:
        store, clients, offsets, _, traffic, access, server = self.parts
        return {
            **self._messages.table(),
            **dict.fromkeys((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE), self._pulls.pull),
            **ClientHandlers(store, clients).table(),
            **AssignmentHandlers(store, clients, server).table(),
            **OffsetHandlers(store, clients, offsets).table(),
            **TopicHandlers(store, clients, offsets, traffic).table(),
            **GroupHandlers(store, clients, offsets, traffic).table(),
            **ProgressHandlers(store, clients, offsets, traffic).table(),
            **AdminHandlers(store, clients, traffic, server).table(),
            **ReplicaHandlers(store, server).table(),
            **AccessHandlers(access).table(),
            **({} if access.plain is None else PlainAccessHandlers(access.plain, store).table()),
        }

    def gauges(self, metrics: BrokerMetrics) -> BrokerGauges:
        """What the page of metrics shows."""
        parts = self.parts
        return BrokerGauges(
            parts.store, parts.clients, parts.offsets, parts.server, metrics, self._messages.halves_without_end
        )

    def _configure(self, config: StoreConfig) -> None:
        with self.parts.clients.lock:
            self.parts.offsets.configure(config.clients)

    # Requests

    def answer(self, connection: ClientConnection, command: RemotingCommand, now_ms: int) -> Outcome:
        """The outcome of a request. One-way requests are answered, too: the server drops the answer. Raises nothing."""
        handler = self._handlers.get(command.code)
        if handler is None:
            remark = f" request type {command.code} not supported"
            return make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        return self._run(handler, connection, command, now_ms)

    def begin(self, connection: ClientConnection, command: RemotingCommand, now_ms: int) -> Outcome | Pending[Outcome]:
        """Like `answer`, but a send may return a `Pending` that waits for its put.

        A thread that begins several sends before it waits for an answer puts them in one append.
        """
        if command.code not in SENDS:
            return self.answer(connection, command, now_ms)
        started: list[Pending[RemotingCommand]] = []

        def begin(request: Request) -> Outcome:
            started.append(self._messages.sender.begin(request))
            return None

        refused = self._run(begin, connection, command, now_ms)
        return started[0].then(lambda answer: self._guarded(connection, command, answer)) if started else refused

    def begin_run(self, connection: ClientConnection, run: RequestRun, now_ms: int) -> Pending[RunAnswers] | None:
        """Like `begin` for sends that look alike: all or none. None: nothing was done, and the caller takes them one by one."""
        pending = self._messages.begin_run(connection, run, now_ms)
        return None if pending is None else pending.then(self._run_noted)

    def _run_noted(self, answers: Callable[[], RunAnswers]) -> RunAnswers:
        try:
            return answers()
        finally:
            self.on_batch_appended()

    def answer_again(self, connection: ClientConnection, command: RemotingCommand, now_ms: int) -> Outcome:
        """The answer to a pull that has waited (`RunAgain`). Raises nothing."""
        return self._run(self._pulls.pull_again, connection, command, now_ms)

    def _run(self, handler: Handler, connection: ClientConnection, command: RemotingCommand, now_ms: int) -> Outcome:
        def answer() -> Outcome:
            header = read_header(REQUEST_TABLE[command.code].header, command)
            return handler(Request(connection, command, header, now_ms))

        return self._guarded(connection, command, answer)

    def _guarded(
        self, connection: ClientConnection, command: RemotingCommand, answer: Callable[[], Outcome]
    ) -> Outcome:
        try:
            outcome = answer()
        except (HeaderError, BodyError) as error:
            outcome = make_response(command, ResponseCode.SYSTEM_ERROR, str(error))
        except RequestRefusedError as refused:
            outcome = make_response(command, refused.code, refused.remark)
        except StoreNotWritableError as error:
            outcome = make_response(command, ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        except Exception as error:  # whatever it is, the client is answered and the others go on
            _LOG.exception("request %d of %s failed", command.code, connection.address)
            outcome = make_response(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}, {error}")
        if isinstance(outcome, AskBroker):
            settle = outcome.settle
            outcome = replace(outcome, settle=lambda found: self._guarded(connection, command, lambda: settle(found)))
        if command.is_oneway and isinstance(outcome, RemotingCommand) and outcome.code != ResponseCode.SUCCESS:
            refusal = connection.address, outcome.code, outcome.remark
            _LOG.info("one-way request %d of %s is refused: %d %s", command.code, *refusal)
        self._note_topics()
        if self.parts.clients.events:
            self._wake()
        return outcome

    def on_table_copied(self, name: str) -> None:
        """A table of the master's was taken over; of offsets the greater ones count, none of topics that are gone.

        Raises StateFileError, OSError.
        """
        parts = self.parts
        if (
            name == OFFSETS_FILE
            and (copied := parts.store.service.state(OFFSETS_FILE, ConsumerOffsets.load)) is not None
        ):
            with parts.clients.lock:
                parts.offsets.raise_to(copied)
        self.on_batch_appended()
        if name == TOPICS_FILE:  # before offsets are taken over again
            self.save_offsets()

    def on_batch_appended(self) -> None:
        """A sink's batch was appended, beside all requests: it may have made topics."""
        self._note_topics()
        if self.parts.clients.events:
            self._wake()

    def store_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """A query that reads the store beside the broker has come so far: its group's next offsets by (topic, queue id), in memory
        and in the file. As `write_group_offsets` where no broker runs; while a reset waits they are refused, as of a request.

        Raises NameIllegalError for a new group that is too long for the broker's release, StoreServedError, StoreNotWritableError,
        StateFileError, OSError.
        """
        parts = self.parts
        if group not in parts.store.groups:
            validate_group(group, parts.store.config.release.longest_group)
        with parts.clients.lock:
            if any(parts.offsets.has_reset(group, topic, queue_id) for topic, queue_id in offsets):
                raise StoreServedError(parts.store.service.root, f"a reset of group {group} waits for its next pull")
            entry = parts.store.groups.get(group, SubscriptionGroupConfig(group))
            if retry_topic(group) not in parts.store.topics:
                count = entry.retry_queue_count
                parts.store.service.make_topic(TopicConfig(retry_topic(group), count, count))
            if group not in parts.store.groups:
                parts.store.service.make_group(entry)
            for (topic, queue_id), offset in offsets.items():
                parts.offsets.commit(group, topic, queue_id, offset, parts.store.clock())
        self.on_batch_appended()
        self.save_offsets()

    def _note_topics(self) -> None:
        """Register topics at name servers that a request has made or changed."""
        seen, settings = self._topics_seen, self.parts.store.service.settings
        table, mappings = settings.topics, settings.mappings
        if mappings is not self._mappings_seen:  # of a slave: operators' changes raise the topic's version, too
            self._mappings_seen = mappings
            self.parts.clients.events.append(RegisterTopics(()))
        if table is seen:
            return
        self._topics_seen = table
        known = seen.topics
        if self.parts.store.is_slave:
            with self.parts.clients.lock:
                for gone in known.keys() - table.topics.keys():
                    self.parts.offsets.forget_topic(gone)
        changed = tuple(name for name, config in table.topics.items() if known.get(name) is not config)
        if changed:
            self.parts.clients.events.append(RegisterTopics(changed))

    # Connections and events

    def closed(self, connection: ClientConnection) -> None:
        """A connection ended: its client has left; notify other clients."""
        parts = self.parts
        with parts.clients.lock:
            parts.clients.producers.closed(connection)
            gone, changes = parts.clients.consumers.closed(connection)
            for group in gone:
                parts.clients.filters.unregister(group)
            for change in changes:
                parts.clients.tell_of(change)
        with parts.pulls.held_lock:
            parts.pulls.held.drop([connection])
        if parts.clients.events:
            self._wake()

    def take_events(self) -> list[BrokerEvent]:
        """Events for the server's connections, in order; each is returned once."""
        self._wake_pulls()
        events = self.parts.clients.events
        return [events.popleft() for _ in range(len(events))]

    def _arrived(self, entered: Sequence[QueueEntries]) -> None:
        """Messages can be read: noted where pulls wait for them, no more, for all puts wait meanwhile. In the thread that put them."""
        parts, is_noted = self.parts, False
        for entries in entered:
            name = entries.topic, entries.queue_id
            if parts.pulls.held.has(name):
                parts.pulls.arrivals.note(name, entries.entries["tags_code"])
                is_noted = True
        if is_noted:
            self._wake()

    def _wake_pulls(self) -> None:
        """Run pulls again that wait for what has arrived."""
        parts = self.parts
        if not (arrived := parts.pulls.arrivals.take()):
            return
        now_ms = parts.clients.steady()
        with parts.pulls.held_lock:
            for name, tags_codes in arrived.items():
                parts.clients.run_again(
                    parts.pulls.held.arrived(name, parts.store.served.maximum(*name), tags_codes, now_ms)
                )

    def _maps_of(self, topic: str) -> MapsOf | None:
        """The maker of bit maps for a topic's messages, if they are switched on. Called in the thread that puts."""
        parts = self.parts
        return parts.clients.filters.maps_of(topic) if parts.store.config.filters.enable_calc_filter_bit_map else None

    # Duties

    def tick(self, now_ms: int) -> None:
        """Do what is due: pulls whose time is up, silent clients, offsets to be saved, figures to be sampled. Raises OSError.

        It is due by the steady clock; what is written then has the time `now_ms`.
        """
        parts, steady_ms = self.parts, self.parts.clients.steady()
        with parts.pulls.held_lock:
            parts.clients.run_again(parts.pulls.held.look(steady_ms, parts.store.served.maximum))
        with parts.clients.lock:
            parts.traffic.sample(now_ms, parts.store.service.appended.times)
            if is_time(steady_ms, self._looked_ms, EXPIRY_LOOK_MS):
                self._looked_ms = steady_ms
                silent = dict.fromkeys(
                    (*parts.clients.producers.expire(steady_ms), *parts.clients.consumers.expire(steady_ms))
                )
                parts.clients.events.extend(Close(connection) for connection in silent)
        if is_time(steady_ms, self._saved_ms, parts.store.config.clients.flush_consumer_offset_interval):
            self._saved_ms = steady_ms
            self.save_offsets()
        if is_time(steady_ms, self._filters_ms, FILTERS_SAVED_MS):
            self._filters_ms = steady_ms
            self.save_filters()
        if is_time(steady_ms, self._protected_ms, PROTECTION_MS):
            self._protected_ms = steady_ms
            self._protect()
        if parts.access.plain is not None and is_time(steady_ms, self._accounts_ms, LOOK_MS):
            self._accounts_ms = steady_ms
            parts.access.plain.look()
        if parts.clients.events:
            self._wake()
        self._messages.ender.write_due(now_ms)

    def check_transactions(self, now_ms: int) -> CheckReport:
        """Ask a producer of its group about each half that is old enough; halves without an answer are given up in time.

        The answers are requests: END_TRANSACTION. Raises StorageError, OSError.
        """
        parts = self.parts
        self._messages.ender.write_all(now_ms)
        recording = Asking(threads=1)
        rules = CheckRules.of(parts.store.config)
        report = check_half_messages(
            parts.store.service.exclusive, lambda half: TransactionState.UNKNOWN, now_ms, rules=rules, asking=recording
        )
        for place, _ in report.to_check_again:
            self._ask_producer(parts.store.service.message_by_commitlog_offset(place))
        if parts.clients.events:
            self._wake()
        return report

    def _ask_producer(self, half: Message) -> None:
        parts = self.parts
        with parts.clients.lock:
            connection = parts.clients.producers.any_of(half.properties.get(PRODUCER_GROUP, ""))
        if connection is None:
            _LOG.warning("no producer of group %s is online to check", half.properties.get(PRODUCER_GROUP))
            return
        try:
            parts.clients.events.append(
                Tell(connection, check_request(half, parts.store.broker_name, parts.clients.encoding))
            )
        except PutRefusedError as error:
            _LOG.warning("no producer is checked: %s", error)

    def set_writable(self, *, is_writable: bool) -> None:
        """Whether there is room for messages: as the last look of the retention at the disks said."""
        self._messages.set_writable(is_writable=is_writable)

    def save_offsets(self) -> None:
        """Groups' offsets onto the disk, if any has changed. Raises OSError, StateFileError."""
        store, parts = self.parts.store.service.store, self.parts
        with self._saving:
            # Not within the tables': a heartbeat that makes its group's entry takes theirs within this one.
            with parts.clients.lock:
                if not parts.offsets.take_change():
                    return
                known = parts.offsets.table()
            try:
                with store.tables_lock:
                    store.save_state(OFFSETS_FILE, parts.store.with_own_groups(known).to_text())
            except OSError:
                with parts.clients.lock:
                    parts.offsets.note_unsaved()
                raise

    def save_filters(self) -> None:
        """Groups' expressions onto the disk, if any has changed. Raises OSError."""
        with self.parts.clients.lock:
            table = self.parts.clients.filters.take_change()
        if table is None:
            return
        try:
            self.parts.store.service.store.save_state(FILTERS_FILE, table.to_text())
        except OSError:
            with self.parts.clients.lock:
                self.parts.clients.filters.note_unsaved()
            raise

    def _protect(self) -> None:
        """Switch groups off that read too far behind the log's end, if configured. Java: protectBroker.

        Departure: the entry is saved. Java's is on from the next start, if no other group was saved meanwhile.
        """
        parts, clients = self.parts, self.parts.store.config.clients
        if not clients.disable_consume_if_consumer_read_slowly:
            return
        with parts.clients.lock:
            slow = parts.traffic.behind(clients.consumer_fallbehind_threshold)
        for name, behind in slow.items():
            group = parts.store.find_group(name)
            if group is not None and group.consume_enable:
                _LOG.warning("[PROTECT_BROKER] the consumer[%s] consume slowly, %d bytes, disable it", name, behind)
                parts.store.service.save_group(replace(group, consume_enable=False))

    def close(self, now_ms: int) -> None:
        """Save what is in memory. The service stays open. Raises OSError; all the same it lets go of everything."""
        with ExitStack() as closing:  # the last one first
            closing.callback(self.parts.store.pulled.close)
            closing.callback(self.parts.store.served.close)
            closing.callback(self._close_ender, now_ms)
            closing.callback(self._messages.sender.close)
            closing.callback(self.save_filters)
            closing.callback(self.save_offsets)
            closing.callback(self._resources.close)

    def _close_ender(self, now_ms: int) -> None:
        try:
            self._messages.ender.close(now_ms)
        except StoreNotWritableError as error:
            _LOG.warning("the end of some transactions is not noted; they are checked again: %s", error)

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(self.parts.store.clock())


def check_request(half: Message, broker_name: str, encoding: HeaderEncoding) -> RemotingCommand:
    """The request 39 about a half as it stands in the log. Raises PutRefusedError where it does not say where it was sent to.

    The producer gets the record with the topic and queue that it was sent to, and the half's topic and place in the header; it answers
    by END_TRANSACTION. Departure: the record's store time is that of the half in the log; Java tells that of the one that was put back.
    Java: AbstractTransactionalMessageCheckListener.sendCheckMessage, Broker2Client.checkProducerTransactionState.
    """
    topic, queue_id = real_queue(half)
    properties = encode_properties({**half.properties, WAIT: "false"})  # as Java's message says, and not the log
    if len(properties) > PROPERTIES_LIMIT_BYTES:
        properties = half.raw_properties
    sent = replace(half, topic=topic, queue_id=queue_id, raw_properties=properties)
    sent = replace(sent, size_bytes=len(encode_record(sent)))
    header = CheckTransactionStateRequest(
        topic=half.topic,
        half_queue_offset=half.queue_offset,
        half_commitlog_offset=half.commitlog_offset,
        message_id=half.unique_key,
        transaction_id=half.unique_key,
        offset_message_id=half.msg_id,
        broker_name=broker_name,
    )
    fields, body = write_header(header), encode_record(sent)
    return make_request(RequestCode.CHECK_TRANSACTION_STATE, fields, body, is_oneway=True, encoding=encoding)
