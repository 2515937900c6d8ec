"""Groups: who is in them, how far they are, made, deleted, and set elsewhere. Java: DefaultMQAdminExtImpl."""

from __future__ import annotations

from collections.abc import Iterable

from spark_mq.client.broker_calls import ask_all, masters, one_of_each
from spark_mq.client.calls import make_call, read_answer_body
from spark_mq.client.errors import ClientError, ResponseError, TopicRouteNotFoundError
from spark_mq.client.instance import ClientInstance
from spark_mq.client.topic_calls import TopicCalls
from spark_mq.remoting import Header, MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.administration import (
    ClientConnection,
    ConsumerConnection,
    ConsumeStats,
    DeleteGroupRequest,
    OffsetWrapper,
    ProducerConnection,
    SubscriptionGroupTable,
)
from spark_mq.remoting.consumers import (
    ConsumerGroupRequest,
    ConsumerList,
    ConsumerRunningInfo,
    ConsumerRunningInfoRequest,
    ConsumeStatsRequest,
    GroupRequest,
    OffsetTable,
    ProducerGroupRequest,
    ResetOffsetRequest,
)
from spark_mq.remoting.routes import TopicList
from storage.format.table_entries import SubscriptionGroupConfig
from storage.names import MASTER_ID, dead_letter_topic, retry_topic, validate_group
from storage.rules.response_codes import ResponseCode

_RUNNING_INFO_MS = 10_000  # so long the broker waits for the client


class GroupCalls:
    """Calls about groups; topics and groups are as brokers know them (with namespace)."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def groups(self, cluster: str | None = None) -> dict[str, SubscriptionGroupConfig]:
        """All consumer groups with their settings (201); of a group that differs between brokers the last broker's."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        answers = await ask_all(self._instance, await one_of_each(self._instance, cluster), make_call(code))
        tables = [read_answer_body(SubscriptionGroupTable, answer, address, code) for address, answer in answers]
        return {name: found for table in tables for name, found in sorted(table.subscription_group_table.items())}

    async def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None, address: str | None = None
    ) -> None:
        """Make the group, or change it, on one broker, on a cluster's masters, or on all masters (200)."""
        validate_group(config.group)
        addresses = [address] if address is not None else await masters(self._instance, cluster)
        command = make_call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
        await ask_all(self._instance, addresses, command, group=config.group)

    async def delete_group(
        self, group: str, *, clean_offset: bool = True, with_topics: bool = True, cluster: str | None = None
    ) -> None:
        """Forget the group on the masters of a cluster or on all (207), with its offsets, and its retry and dead letter topics."""
        header = DeleteGroupRequest(group_name=group, clean_offset=clean_offset)
        command = make_call(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        await ask_all(self._instance, await masters(self._instance, cluster), command, group=group)
        if with_topics:
            for topic in (retry_topic(group), dead_letter_topic(group)):
                await TopicCalls(self._instance).delete_topic(topic, cluster=cluster)

    async def topics_of_group(self, group: str) -> tuple[str, ...]:
        """The topics in which the group has offsets (343), over all brokers; sorted."""
        code = RequestCode.QUERY_TOPICS_BY_CONSUMER
        command = make_call(code, GroupRequest(group=group))
        answers = await ask_all(self._instance, await one_of_each(self._instance), command, group=group)
        return tuple(sorted({name for address, answer in answers for name in _topics(answer, address)}))

    async def consumer_ids(self, group: str, topic: str) -> tuple[str, ...]:
        """The ids of the group's clients (38), as the brokers of the topic know them; sorted. None of them: empty."""
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        route = await self._instance.route(topic)
        command = make_call(code, ConsumerGroupRequest(consumer_group=group))
        accepted = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)  # the latter: no consumer for this group
        answers = await ask_all(self._instance, route.read_addresses, command, group=group, accepted=accepted)
        found = [
            read_answer_body(ConsumerList, answer, address, code) for address, answer in answers if not answer.code
        ]
        return tuple(sorted({client_id for each in found for client_id in each.client_ids}))

    async def consumer_connection(self, group: str) -> ConsumerConnection:
        """The group's consumers, over all brokers, and what they subscribe to (203). Raises ResponseError 206 where none is online."""
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        header = ConsumerGroupRequest(consumer_group=group)
        answers = await self._of_those_who_know(code, header, group, await self._addresses_of(group))
        bodies = [read_answer_body(ConsumerConnection, answer, address, code) for address, answer in answers]
        first = bodies[0]
        return ConsumerConnection(
            connections=_distinct(each for body in bodies for each in body.connections),
            subscription_table={name: found for body in bodies for name, found in body.subscription_table.items()},
            consume_type=first.consume_type,
            message_model=first.message_model,
            consume_from_where=first.consume_from_where,
        )

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """The group's producers at the brokers of a topic (204). Raises ResponseError where there is none."""
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        route = await self._instance.route(topic)
        header = ProducerGroupRequest(producer_group=group)
        answers = await self._of_those_who_know(code, header, group, route.read_addresses)
        bodies = [read_answer_body(ProducerConnection, answer, address, code) for address, answer in answers]
        return ProducerConnection(connections=_distinct(each for body in bodies for each in body.connections))

    async def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """How far the group is in each queue of its topics, or of one (208)."""
        code = RequestCode.GET_CONSUME_STATS
        command = make_call(code, ConsumeStatsRequest(consumer_group=group, topic=topic))
        addresses = await self._addresses_of(group)
        answers = await ask_all(self._instance, addresses, command, topic=topic, group=group)
        bodies = [read_answer_body(ConsumeStats, answer, address, code) for address, answer in answers]
        return {queue: found for body in bodies for queue, found in sorted(body.offset_table.items())}

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """How one consumer of the group is doing, as it says itself (307, handed on by a broker)."""
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        header = ConsumerRunningInfoRequest(consumer_group=group, client_id=client_id)
        timeout_ms = _RUNNING_INFO_MS + self._instance.settings.request_timeout_ms
        last: ClientError | None = None
        for address in await self._addresses_of(group):
            try:
                answer = await self._instance.remoting.ask(address, make_call(code, header), timeout_ms, group=group)
            except ResponseError as error:
                last = error
                continue
            return read_answer_body(ConsumerRunningInfo, answer, address, code)
        raise last or self._nowhere(group)

    async def reset_offsets(
        self, group: str, topic: str, time_ms: int, *, is_force: bool = True
    ) -> dict[MessageQueue, int]:
        """Let the group go on at a time in all queues of the topic, −1 the end (222); where it now is.

        Brokers with useServerSideResetOffset (5.x's default) do it themselves; older ones tell the consumers, who must be online.
        """
        header = ResetOffsetRequest(group=group, topic=topic, time_ms=time_ms, is_force=is_force)
        return await self._reset(
            header, group, topic, (await self._instance.route(topic, refresh=True)).master_addresses
        )

    async def reset_queue_offset(self, group: str, queue: MessageQueue, offset: int) -> dict[MessageQueue, int]:
        """Let the group go on at an offset of one queue, which must lie within it (222)."""
        header = ResetOffsetRequest(
            group=group, topic=queue.topic, queue_id=queue.queue_id, queue_offset=offset, time_ms=0, is_force=True
        )
        await self._instance.route(queue.topic)
        address = await self._instance.broker_address(queue.broker_name, MASTER_ID)
        return await self._reset(header, group, queue.topic, (address,))

    async def _reset(
        self, header: ResetOffsetRequest, group: str, topic: str, addresses: Iterable[str]
    ) -> dict[MessageQueue, int]:
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        answers = await ask_all(self._instance, addresses, make_call(code, header), topic=topic, group=group)
        bodies = [read_answer_body(OffsetTable, answer, address, code) for address, answer in answers]
        return {queue: offset for body in bodies for queue, offset in sorted(body.offset_table.items())}

    async def _addresses_of(self, group: str) -> tuple[str, ...]:
        """Brokers that may know the group: those of its retry topic, else one of each name."""
        try:
            return (await self._instance.route(retry_topic(group))).read_addresses
        except TopicRouteNotFoundError:
            return tuple(await one_of_each(self._instance))

    async def _of_those_who_know(
        self, code: RequestCode, header: Header, group: str, addresses: Iterable[str]
    ) -> list[tuple[str, RemotingCommand]]:
        """The answers of those brokers where somebody of the group is; the refusal of all, where nobody is anywhere."""
        absent = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)
        accepted = (ResponseCode.SUCCESS, *absent)
        asked = list(addresses)
        if not asked:
            raise self._nowhere(group)
        answers = await ask_all(self._instance, asked, make_call(code, header), group=group, accepted=accepted)
        found = [(address, answer) for address, answer in answers if answer.code == ResponseCode.SUCCESS]
        return found or await ask_all(self._instance, asked, make_call(code, header), group=group)

    def _nowhere(self, group: str) -> TopicRouteNotFoundError:
        """No broker is known that could know the group."""
        return TopicRouteNotFoundError(retry_topic(group), ", ".join(self._instance.settings.name_servers), None)


def _topics(answer: RemotingCommand, address: str) -> tuple[str, ...]:
    return read_answer_body(TopicList, answer, address, RequestCode.QUERY_TOPICS_BY_CONSUMER).topics


def _distinct(connections: Iterable[ClientConnection]) -> tuple[ClientConnection, ...]:
    """One for each client: it is connected to many brokers."""
    return tuple({each.client_id: each for each in connections}.values())
