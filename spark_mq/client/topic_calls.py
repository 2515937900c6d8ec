"""Topics: where they are, how long their queues are, made and deleted. Java: DefaultMQAdminExtImpl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_mq.client.broker_calls import all_addresses, all_of, ask_all, masters, one_of_each
from spark_mq.client.calls import make_call, read_answer_body
from spark_mq.client.errors import ResponseError
from spark_mq.client.instance import ClientInstance
from spark_mq.client.routes import DEFAULT_TOPIC, TopicRoute
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.administration import CreateTopicRequest, TopicOffset, TopicRequest, TopicStatsTable
from spark_mq.remoting.routes import (
    ClusterInfo,
    DeleteTopicRequest,
    KvTable,
)
from storage.format.table_entries import TopicConfig
from storage.names import validate_topic
from storage.rules.response_codes import ResponseCode

_READ_WRITE = 6


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be made, or to become so. Java's mqadmin makes 8 queues too.

    `attributes` are set (`message.type`: NORMAL, FIFO, DELAY, TRANSACTION …); a broker that does not know one refuses.
    """

    topic: str
    read_queue_count: int = 8
    write_queue_count: int = 8
    perm: int = _READ_WRITE
    is_order: bool = False
    attributes: Mapping[str, str] | None = None


class TopicCalls:
    """Calls about topics and brokers; topics are as brokers know them (with namespace)."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def route(self, topic: str) -> TopicRoute:
        """Where the topic's queues are, asked for now."""
        return await self._instance.route(topic, refresh=True)

    async def cluster_info(self) -> ClusterInfo:
        """All brokers with their addresses, and which cluster has which."""
        return await self._instance.name_servers.cluster_info()

    async def topics(self, cluster: str | None = None) -> tuple[str, ...]:
        """The names of all topics, or of a cluster's; sorted."""
        return await self._instance.name_servers.topics(cluster)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Beginning, end and last store time of each queue at each broker (202)."""
        route = await self._instance.route(topic, refresh=True)
        answers = await self._ask_topic(RequestCode.GET_TOPIC_STATS_INFO, topic, route.read_addresses)
        code = RequestCode.GET_TOPIC_STATS_INFO
        bodies = [read_answer_body(TopicStatsTable, answer, address, code) for address, answer in answers]
        return {queue: offsets for body in bodies for queue, offsets in sorted(body.offset_table.items())}

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """The topic as each of its brokers holds it (351), by broker name."""
        route = await self._instance.route(topic, refresh=True)
        names = sorted(name for name, found in route.brokers.items() if found)
        answers = await self._ask_topic(RequestCode.GET_TOPIC_CONFIG, topic, route.read_addresses)
        code = RequestCode.GET_TOPIC_CONFIG
        bodies = [read_answer_body(TopicConfig, answer, address, code) for address, answer in answers]
        return dict(zip(names, bodies, strict=True))

    async def create_topic(self, new: NewTopic, *, cluster: str | None = None, address: str | None = None) -> None:
        """Make the topic, or change it, on one broker, on a cluster's masters, or on all masters (17).

        Raises NameIllegalError before anything is sent.
        """
        attributes = ",".join(f"+{name}={value}" for name, value in (new.attributes or {}).items())
        header = CreateTopicRequest(
            topic=validate_topic(new.topic),
            default_topic=DEFAULT_TOPIC,
            read_queue_count=new.read_queue_count,
            write_queue_count=new.write_queue_count,
            perm=new.perm,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            is_order=new.is_order,
            attributes=attributes,
        )
        addresses = [address] if address is not None else await masters(self._instance, cluster)
        await ask_all(
            self._instance, addresses, make_call(RequestCode.UPDATE_AND_CREATE_TOPIC, header), topic=new.topic
        )

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete it on the brokers of a cluster, or on all (215), and then at every name server (216).

        A topic that is not there is no error. Brokers do not tell name servers of a deletion.
        """
        addresses = await all_addresses(self._instance, cluster)
        await all_of([self._delete_at(address, topic) for address in addresses])
        header = DeleteTopicRequest(topic=topic, cluster_name=cluster)
        await self._instance.name_servers.ask_each(make_call(RequestCode.DELETE_TOPIC_IN_NAMESRV, header))

    async def runtime_info(self, address: str) -> Mapping[str, str]:
        """A broker's figures (28), as texts by name."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        answer = await self._instance.remoting.ask(
            address, make_call(code), self._instance.settings.question_timeout_ms
        )
        return read_answer_body(KvTable, answer, address, code).table

    async def broker_addresses(self, cluster: str | None = None) -> list[str]:
        """An address for each broker of a cluster or of all: its master's, else a slave's."""
        return await one_of_each(self._instance, cluster)

    async def _delete_at(self, address: str, topic: str) -> None:
        """Delete at one broker. One without a timer answers with a NullPointerException after it has deleted the topic."""
        header = TopicRequest(topic=topic)
        ask, timeout_ms = self._instance.remoting.ask, self._instance.settings.question_timeout_ms
        try:
            await ask(address, make_call(RequestCode.DELETE_TOPIC_IN_BROKER, header), timeout_ms, topic=topic)
        except ResponseError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            found = await self._instance.invoke(address, make_call(RequestCode.GET_TOPIC_CONFIG, header), timeout_ms)
            if found.code != ResponseCode.TOPIC_NOT_EXIST:
                raise

    async def _ask_topic(
        self, code: RequestCode, topic: str, addresses: tuple[str, ...]
    ) -> list[tuple[str, RemotingCommand]]:
        return await ask_all(self._instance, addresses, make_call(code, TopicRequest(topic=topic)), topic=topic)
