"""Where the rows of a task or a commit can go: the queues of topics, asked for once, and the addresses of brokers."""

from __future__ import annotations

from contextlib import suppress
from typing import Self

from spark_mq.client.calls import may_pass, patiently
from spark_mq.client.errors import (
    BrokerNotFoundError,
    BrokerUnreachableError,
    ClientError,
    MessageQueueNotFoundError,
    TopicRouteNotFoundError,
)
from spark_mq.client.event_loop import run
from spark_mq.client.instance import ClientInstance
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import MessageQueue
from spark_mq.sink.body_limits import BodyLimit, ask_for_limits, limit_of
from spark_mq.sink.live_options import LiveSinkOptions
from spark_mq.sink.live_request import DEFAULT_TOPIC_QUEUE_COUNT
from storage.names import MASTER_ID, in_one_form
from storage.rules.topics import AUTO_CREATE_TOPIC


class LiveRoutes:
    """Routes of one task or commit. A context manager: its client ends with it."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        create_topic: bool,
        retry_timeout_ms: int,
        max_message_size: int | None = None,
    ) -> None:
        """A cluster that is away, as one whose broker restarts, is waited for, up to the time-out. `max_message_size` as the option."""
        self._settings = settings
        self._default_queue_count = DEFAULT_TOPIC_QUEUE_COUNT if create_topic else None
        self._retry_timeout_ms = retry_timeout_ms
        self._max_message_size = max_message_size
        self._instance = ClientInstance.of(settings)
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._names: dict[str, str] = {}
        self._limits: dict[str, BodyLimit] = {}

    def queues_of(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that may be written, or those that it will get, as this was asked first.

        Raises TopicRouteNotFoundError for a topic that is not there; WaitedInVainError.
        """
        if topic not in self._queues:
            what = f"the route of topic {topic}"

            def ask() -> tuple[MessageQueue, ...]:
                asked = self._instance.publish_queues(topic, default_queue_count=self._default_queue_count)
                return run(asked, self._patience_ms, what)

            self._queues[topic] = patiently(ask, self._retry_timeout_ms, what, passes=_may_be_routed)
        return self._queues[topic]

    def queue_at(self, topic: str, place: int) -> MessageQueue:
        """The queue at a place among the topic's."""
        return self.queues_of(topic)[place]

    def body_limit(self, topic: str) -> BodyLimit:
        """How large a body the brokers of the topic's queues take, as they said when this was asked first."""
        if topic not in self._limits:
            names = {queue.broker_name for queue in self.queues_of(topic)}
            asking = ask_for_limits(self._instance, names)
            self._limits[topic] = limit_of(
                run(asking, self._patience_ms, "the brokers' limits"), self._max_message_size
            )
        return self._limits[topic]

    def address_of(self, broker_name: str, topic: str) -> str:
        """The address of the master of that name, as the route of a topic of it says now. Raises BrokerNotFoundError."""
        return run(self._address_of(broker_name, topic), self._patience_ms, f"the address of broker {broker_name}")

    async def _address_of(self, broker_name: str, topic: str) -> str:
        for known in (topic, AUTO_CREATE_TOPIC):  # a topic that nobody has sent to yet has no route
            with suppress(TopicRouteNotFoundError):
                await self._instance.route(known, refresh=True)
                break
        try:
            return await self._instance.broker_address(broker_name)
        except BrokerNotFoundError:  # what was consumed there may be of a topic that is gone
            brokers = (await self._instance.name_servers.cluster_info()).broker_address_table
            if broker_name in brokers and MASTER_ID in brokers[broker_name].broker_addresses:
                return brokers[broker_name].broker_addresses[MASTER_ID]
            raise

    def broker_at(self, address: str) -> str:
        """The name of the broker whose address that is. One that restarts is waited for. Raises WaitedInVainError."""

        spelt = in_one_form(address)

        def ask() -> str:
            info = run(self._instance.name_servers.cluster_info(), self._patience_ms, "the cluster's brokers")
            for name, broker in info.broker_address_table.items():
                self._names |= dict.fromkeys(map(in_one_form, broker.broker_addresses.values()), name)
            if spelt not in self._names:
                raise BrokerUnreachableError(address, "no broker of the cluster is registered there")
            return self._names[spelt]

        known = self._names.get(spelt)
        return known or patiently(ask, self._retry_timeout_ms, f"the name of the broker at {address}")

    def close(self) -> None:
        """Give the client back."""
        self._instance.release()

    @property
    def _patience_ms(self) -> int:
        """The client bounds each of its waits; this is for what it does one after another."""
        return 2 * self._settings.question_timeout_ms + self._settings.connect_timeout_ms

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _may_be_routed(error: ClientError) -> bool:
    """Not a topic that no broker has; a topic without queues, and a cluster without brokers, may be starting."""
    if isinstance(error, TopicRouteNotFoundError):
        return error.topic == AUTO_CREATE_TOPIC
    return isinstance(error, MessageQueueNotFoundError) or may_pass(error)


def live_routes(options: LiveSinkOptions) -> LiveRoutes:
    """As the options say."""
    settings, timeout_ms = options.client_settings(), options.retry_timeout
    return LiveRoutes(
        settings,
        create_topic=options.create_topic,
        retry_timeout_ms=timeout_ms,
        max_message_size=options.max_message_size,
    )
