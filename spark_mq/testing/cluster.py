"""A cluster for tests: a name server, brokers and slaves on loopback, in threads of this process or in processes of their own.

Threads are the default: they start in a tenth of a second, cost hardly any memory beside the imports, and a debugger sees both sides.
No thread can be killed as a process is, so `Cluster(processes=True)` has a child process for each broker, and `kill()` sends SIGKILL.
Both have a clock that a test moves.

Everything ends with the `with` block: clients, servers, and the directory of the stores. A child ends with its parent too.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from spark_mq.client.admin import AsyncAdmin, NewTopic
from spark_mq.client.calls import make_call, read_answer_body
from spark_mq.client.errors import ClientError, TopicRouteNotFoundError
from spark_mq.client.event_loop import run
from spark_mq.client.message import Message, MessageExt
from spark_mq.client.producer import Producer
from spark_mq.client.pulls import Pull, PullStatus, pulled_messages, subscription
from spark_mq.client.send_results import SendResult
from spark_mq.client.settings import ClientSettings, ProducerSettings
from spark_mq.namesrv.server import RunningNameServer
from spark_mq.namesrv.settings import Configuration as NameServerSettings
from spark_mq.remoting import RequestCode
from spark_mq.remoting.administration import HaRuntimeInfo
from spark_mq.remoting_server.server import ListenError
from spark_mq.testing.ports import free_ports
from spark_mq.testing.servers import (
    Broker,
    BrokerInProcess,
    BrokerInThread,
    ClusterError,
    MovedClock,
    configuration_of,
    on_own_loop,
)
from storage.format.delay import SCHEDULE_TOPIC
from storage.names import MASTER_ID, address_text
from storage.rules.delays import REAL_TOPIC

_HOST = "127.0.0.1"
_TRIES = 20
"""Of other ports, where another process takes one first."""
_READY_S, _LOOK_S = 60.0, 0.02
_PRODUCER = "test-cluster"
_TOOLS_GROUP = "TOOLS_CONSUMER"  # every broker has it
_PULL_LIMIT = 32
_LEVEL = "scheduleMessageOffset_"
"""A broker's figures of a delay level. Java: ScheduleMessageService.buildRunningStats."""
_SETTINGS: Mapping[str, object] = {
    "brokerIP1": _HOST,
    "mappedFileSizeCommitLog": 16 << 20,  # the files are small, as a temporary directory may lie in memory
    "mappedFileSizeConsumeQueue": 200_000,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "timerWheelEnable": True,
    "transactionCheckInterval": 24 * 60 * 60 * 1_000,  # so that `advance` alone makes it ask
    "fileReservedTime": 876_000,  # hours: a clock that is moved deletes nothing
    "diskMaxUsedSpaceRatio": 95,
    "waitTimeMillsInSendQueue": 20_000,  # a busy machine would make refusals of slowness
    "waitTimeMillsInPullQueue": 20_000,
    "osPageCacheBusyTimeOutMills": 20_000,
}
_ITS_OWN = frozenset(
    {"bindAddress", "brokerIP1", "brokerId", "brokerName", "listenPort", "namesrvAddr", "storePathRootDir"}
)


class ClusterBroker:
    """One broker of a cluster: a master, or a slave of the master with the same `name`."""

    def __init__(self, cluster: Cluster, name: str, broker_id: int) -> None:
        self._cluster = cluster
        self.name = name
        self.broker_id = broker_id
        """0 is the master's."""
        self.port = 0
        self._node: Broker | None = None

    def __repr__(self) -> str:
        state = "running" if self.is_running else "not running"
        return f"ClusterBroker({self.name!r}, {self.broker_id}, {self.address!r}, {state})"

    @property
    def is_master(self) -> bool:
        """Whether it takes messages."""
        return self.broker_id == MASTER_ID

    @property
    def address(self) -> str:
        """`host:port`; a restart keeps it."""
        return address_text(_HOST, self.port)

    @property
    def store(self) -> Path:
        """Its store's directory, which `storage.open_store` and a Spark query with `path` can read, also while it runs."""
        return self._cluster.directory / f"{self.name}-{self.broker_id}"

    @property
    def is_running(self) -> bool:
        """Whether it takes requests."""
        return self._node is not None and self._node.is_running

    def kill(self) -> None:
        """SIGKILL: it saves nothing, and tells no one. Raises ClusterError unless the cluster has `processes=True`."""
        if self._node is not None:
            self._node.kill()
            self._node = None

    def stop(self) -> None:
        """A clean end, as by SIGTERM. One that was stopped or killed stays as it is.

        Raises ClusterError for a process that has ended by itself.
        """
        node, self._node = self._node, None
        if node is not None:
            node.stop()

    def restart(self) -> None:
        """Start it on its store and its port, after a clean end if it runs. It is registered when this returns."""
        if self.is_running:
            self.stop()
        else:
            self.kill()  # what is left of a process that has ended by itself
        self._cluster._start(self)

    def _catch_up(self, offset_ms: int) -> None:
        if self._node is not None:
            self._node.catch_up(offset_ms)


class Cluster:
    """A cluster that runs in the `with` block, or from `start` to `close`.

    `brokers` masters with `slaves` slaves each. With slaves a send is answered when all of them have the message (SYNC_MASTER).
    `processes`: a child process for each broker, for `kill()`. `settings` are lines of broker.conf for all brokers, by Java's names; a
    topic is made by the first message to it unless they have `autoCreateTopicEnable: False`. `directory` is where stores lie, and stay;
    without it they lie in a temporary directory that goes with the cluster.

    One thread at a time calls it. Raises ClusterError, ConfigurationError for settings that no broker takes.
    """

    def __init__(
        self,
        brokers: int = 1,
        slaves: int = 0,
        *,
        processes: bool = False,
        settings: Mapping[str, object] | None = None,
        directory: str | Path | None = None,
    ) -> None:
        if brokers < 1 or slaves < 0:
            raise ClusterError(f"a cluster has at least 1 broker and 0 slaves, not {brokers} and {slaves}")
        if reserved := sorted(_ITS_OWN & (settings or {}).keys()):
            raise ClusterError(f"settings: the cluster chooses {', '.join(reserved)} for each broker")
        replicates = (
            {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 1 + slaves, "slaveReadEnable": True} if slaves else {}
        )
        self._settings = {name: _text(value) for name, value in {**_SETTINGS, **replicates, **(settings or {})}.items()}
        self._processes = processes
        self._slaves = slaves
        self._given_directory = None if directory is None else Path(directory)
        self._directory: Path | None = None
        self._name_server: str | None = None
        self._clock = MovedClock()
        self._admin: AsyncAdmin | None = None
        self._producer: Producer | None = None
        self._open = ExitStack()
        self._loading: dict[ClusterBroker, BrokerInProcess] = {}
        """Processes that are no broker yet."""
        names = [f"broker-{number}" for number in range(brokers)]
        self.brokers = tuple(ClusterBroker(self, name, number) for number in range(1 + slaves) for name in names)
        """Masters first, then slaves."""

    # From beginning to end

    def start(self) -> Self:
        """All runs, and is registered at the name server, when this returns."""
        if self._directory is not None:
            raise ClusterError("the cluster runs already")
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def _begin(self) -> None:
        if self._given_directory is None:
            made = tempfile.TemporaryDirectory(prefix="spark_mq-cluster-")
            self._open.callback(made.cleanup)
            self._directory = Path(made.name)
        else:
            self._directory = self._given_directory.absolute()
            self._directory.mkdir(parents=True, exist_ok=True)
        self._open.callback(self._end_loading)
        for broker in self.brokers if self._processes else ():
            self._loading[broker] = self._process_of(broker)
        configuration = NameServerSettings.of(
            {
                "listenPort": "0",
                "kvConfigPath": str(self._directory / "kvConfig.json"),
                "configStorePath": str(self._directory / "namesrv.properties"),
            }
        )
        serving = on_own_loop(lambda: RunningNameServer.start(configuration), "name server")
        running, _ = self._open.enter_context(serving)
        self._name_server = address_text(*running.address)
        for broker in self.brokers:  # the last one stops first: slaves before their master
            self._open.callback(broker.stop)
            self._start(broker)
        self._admin = AsyncAdmin(self.client_settings)
        self._open.callback(self._admin.release)
        for master in (each for each in self.brokers if each.is_master and self._slaves):
            self._await(partial(self._has_slaves, master), f"{master} has its slaves")

    def close(self) -> None:
        """End everything; a second call does nothing. Raises ClusterError where a broker's process had ended by itself."""
        opened, self._open = self._open, ExitStack()
        try:
            opened.close()
        finally:
            self._directory = self._name_server = self._admin = self._producer = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # Where it is

    @property
    def name_server(self) -> str:
        """The name server's `host:port`."""
        if self._name_server is None:
            raise ClusterError("the cluster does not run: use it in a with block, or call start()")
        return self._name_server

    @property
    def client_settings(self) -> ClientSettings:
        """For producers, consumers and admins of `spark_mq.client`."""
        return ClientSettings((self.name_server,))

    @property
    def directory(self) -> Path:
        """Where the stores lie."""
        if self._directory is None:
            raise ClusterError("the cluster does not run: it has no directory")
        return self._directory

    # Brokers

    def kill(self, broker: int = 0) -> None:
        """SIGKILL to a broker, by its place in `brokers`. Raises ClusterError unless the cluster has `processes=True`."""
        self.brokers[broker].kill()

    def restart(self, broker: int = 0) -> None:
        """Start a broker again, by its place in `brokers`: on its store and port, after a clean end if it runs."""
        self.brokers[broker].restart()

    def _start(self, broker: ClusterBroker) -> None:
        """On its port, or a free one where it has none yet."""
        is_first = not broker.port
        for tries_left in reversed(range(_TRIES)):
            if is_first:
                broker.port = free_ports()
            try:
                broker._node = self._started(broker)
                return
            except ListenError:
                if not is_first or not tries_left:
                    raise

    def _process_of(self, broker: ClusterBroker) -> BrokerInProcess:
        return BrokerInProcess(self.directory / f"{broker.name}-{broker.broker_id}.log")

    def _end_loading(self) -> None:
        while self._loading:
            self._loading.popitem()[1].kill()

    def _started(self, broker: ClusterBroker) -> Broker:
        own = {
            "brokerName": broker.name,
            "listenPort": str(broker.port),
            "namesrvAddr": self.name_server,
            "storePathRootDir": str(broker.store),
        }
        if not broker.is_master:
            own |= {"brokerRole": "SLAVE", "brokerId": str(broker.broker_id)}
        settings = {**self._settings, **own}
        for warning in configuration_of(settings).store.warnings:
            warnings.warn(f"settings: {warning.partition(': ')[2]}", stacklevel=6)  # it names a line of no file
        if self._processes:
            process = self._loading.pop(broker, None) or self._process_of(broker)
            return process.begin(settings, self._clock.offset_ms)
        return BrokerInThread(settings, self._clock.offset_ms)

    def _has_slaves(self, master: ClusterBroker) -> bool:
        code = RequestCode.GET_BROKER_HA_STATUS
        answer = run(self._asking.instance.ask(master.address, make_call(code)))
        return read_answer_body(HaRuntimeInfo, answer, master.address, code).in_sync_slave_count >= self._slaves

    @property
    def _asking(self) -> AsyncAdmin:
        if self._admin is None:
            raise ClusterError("the cluster does not run: use it in a with block, or call start()")
        return self._admin

    # Topics and messages

    def create_topic(self, topic: str, queues: int = 4, *, attributes: Mapping[str, str] | None = None) -> None:
        """Make a topic with so many queues on each running master. Clients find it when this returns."""
        run(self._asking.create_topic(NewTopic(topic, queues, queues, attributes=attributes)))
        masters = sum(broker.is_master and broker.is_running for broker in self.brokers)

        def has_route() -> bool:
            with suppress(TopicRouteNotFoundError):
                return len(run(self._asking.route(topic)).publish_queues) >= masters * queues
            return False

        self._await(has_route, f"topic {topic} has {masters * queues} queues")

    def send(self, topic: str, *bodies: bytes | str, **fields: Any) -> list[SendResult]:
        """Send a message for each body, in their order; texts are sent as UTF-8.

        `fields` are those of `spark_mq.client.Message`: tags, keys, properties, delay_level, deliver_time_ms. Raises ClientError.
        """
        if self._producer is None:
            patient = ProducerSettings(send_timeout_ms=30_000)  # a machine that runs tests may be busy
            self._producer = Producer(self._asking.instance.settings, _PRODUCER, patient)
            self._open.callback(self._producer.close)
        made = [Message(topic, body.encode() if isinstance(body, str) else body, **fields) for body in bodies]
        return [self._producer.send(message) for message in made]

    def messages(self, topic: str, count: int | None = None, *, timeout_s: float = 30.0) -> list[MessageExt]:
        """The topic's messages, by broker, queue and offset, whatever groups have consumed.

        With `count` it waits until there are so many, or more. Raises ClusterError where they do not come in time, and
        TopicRouteNotFoundError without `count` where there is no such topic.
        """
        return self._waited_for(lambda: run(self._pulled(topic)), count, timeout_s, f"messages of topic {topic}")

    def delayed(self, topic: str, count: int | None = None, *, timeout_s: float = 30.0) -> list[MessageExt]:
        """Messages for that topic whose delay level is not over, as `messages` gives them.

        A group's failed messages wait for its topic `%RETRY%GROUP`. Messages with a time (`deliver_time_ms`) are not among them.
        """
        return self._waited_for(
            lambda: run(self._parked(topic)), count, timeout_s, f"delayed messages for topic {topic}"
        )

    def _waited_for(
        self, look: Callable[[], list[MessageExt]], count: int | None, timeout_s: float, what: str
    ) -> list[MessageExt]:
        if count is None:
            return look()
        found: list[MessageExt] = []

        def has_them() -> bool:
            with suppress(TopicRouteNotFoundError):  # retry topics and others are made by their first message
                found[:] = look()
            return len(found) >= count

        self._await(has_them, lambda: f"{count} {what}, there are {len(found)}", timeout_s)
        return found

    async def _pulled(self, topic: str) -> list[MessageExt]:
        admin, wanted = self._asking, subscription(topic, "*", 1)
        found: list[MessageExt] = []
        for queue in (await admin.route(topic)).subscribe_queues:
            offset, end = await asyncio.gather(admin.min_offset(queue), admin.max_offset(queue))
            while offset < end:
                pull = Pull(queue, offset, wanted, _PULL_LIMIT, suspend_ms=0, sends_subscription=True)
                result = await admin.pull(pull, _TOOLS_GROUP)
                if result.status is PullStatus.NO_NEW_MESSAGE or result.next_offset <= offset:
                    break
                found += pulled_messages(result, queue, wanted, lambda record: record.topic)
                offset = result.next_offset
        return found

    async def _parked(self, topic: str) -> list[MessageExt]:
        admin = self._asking
        delivered: dict[tuple[str, int], int] = {}
        for broker in self.brokers:
            if broker.is_master and broker.is_running:
                for name, value in (await admin.runtime_info(broker.address)).items():
                    if name.startswith(_LEVEL):  # of levels that have delivered: its offset, the queue's end
                        delivered[broker.name, int(name.removeprefix(_LEVEL)) - 1] = int(value.partition(",")[0])
        return [
            message
            for message in await self._pulled(SCHEDULE_TOPIC)
            if message.properties.get(REAL_TOPIC) == topic
            and message.queue_offset >= delivered.get((message.broker_name, message.queue_id), 0)
        ]

    # Time

    def now_ms(self) -> int:
        """The brokers' time, in milliseconds since 1970."""
        return self._clock()

    def advance(self, seconds: float) -> None:
        """Move the brokers' clock forward. What became due is delivered when this returns, and open transactions were checked once.

        Due are messages of delay levels and retries, and messages with a time. Store times of later messages follow the moved clock;
        clients and the name server keep the machine's. A consumer gets what was delivered a moment later.
        """
        if seconds < 0:
            raise ClusterError(f"the clock goes forward only, not by {seconds} s")
        self._clock.offset_ms += round(seconds * 1_000)
        for broker in self.brokers:
            broker._catch_up(self._clock.offset_ms)

    def _await(self, is_met: Callable[[], bool], what: str | Callable[[], str], timeout_s: float = _READY_S) -> None:
        until = time.monotonic() + timeout_s
        failure: ClientError | None = None
        while True:
            try:
                if is_met():
                    return
            except ClientError as error:
                failure = error
            if time.monotonic() >= until:
                text = what if isinstance(what, str) else what()
                trouble = "" if failure is None else f" ({failure})"
                raise ClusterError(f"after {timeout_s:g} s not yet: {text}{trouble}") from failure
            time.sleep(_LOOK_S)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
