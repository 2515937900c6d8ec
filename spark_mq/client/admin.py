"""Administration of a cluster. Java: DefaultMQAdminExt, MQAdminImpl, mqadmin.

    with Admin(ClientSettings("ns1:9876;ns2:9876")) as admin:
        admin.create_topic(NewTopic("orders", 4, 4))
        for queue, offsets in admin.topic_stats("orders").items():
            print(queue, offsets.min_offset, offsets.max_offset)

A request to several brokers goes to all of them at once. When all have answered, the first error is raised: a part of the answers is
never returned as the whole.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from spark_mq.client.calls import make_call, read_answer_body, read_answer_header
from spark_mq.client.consumer_calls import QueueCalls
from spark_mq.client.errors import (
    ClientError,
    ClientSettingError,
    MalformedResponseError,
    ResponseError,
    TopicHalfDeletedError,
    TopicRouteNotFoundError,
    request_text,
)
from spark_mq.client.event_loop import run, spawn
from spark_mq.client.instance import ClientInstance
from spark_mq.client.message import MessageExt, decode_records
from spark_mq.client.pulls import Pull, PullResult, PullStatus, subscription
from spark_mq.client.routes import LOGICAL_PREFIX, TopicRoute, read_address
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import Header, MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.administration import (
    BrokerConsumeStatsRequest,
    BrokerStats,
    BrokerStatsRequest,
    ClientConnection,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    CreateTopicRequest,
    DeleteGroupRequest,
    OffsetWrapper,
    ProducerConnection,
    QueueTimeSpan,
    SubscriptionGroupTable,
    TopicOffset,
    TopicRequest,
    TopicStatsTable,
)
from spark_mq.remoting.codes import ProtocolVersion
from spark_mq.remoting.command import UNIQUE_KEY_QUERY
from spark_mq.remoting.consumers import (
    ConsumerGroupRequest,
    ConsumerList,
    ConsumerRunningInfo,
    ConsumerRunningInfoRequest,
    ConsumeStatsRequest,
    ConsumeTimeSpanRequest,
    GroupRequest,
    OffsetTable,
    ProducerGroupRequest,
    ResetOffsetRequest,
)
from spark_mq.remoting.messages import QueryMessageAnswer, QueryMessageRequest, ViewMessageRequest
from spark_mq.remoting.routes import ClusterInfo, DeleteTopicRequest, KvTable, TopicList
from storage.errors import CorruptRecordError
from storage.format.record import Message as Record
from storage.format.record import decode_offset_message_id
from storage.format.typed_json import SubscriptionGroupConfig, TopicConfig
from storage.names import (
    MASTER_ID,
    address_text,
    dead_letter_topic,
    retry_topic,
    same_address,
    validate_group,
    validate_topic,
)
from storage.rules.response_codes import ResponseCode
from storage.rules.topics import AUTO_CREATE_TOPIC

_READ_WRITE = 6
_RUNNING_INFO_MS = 10_000  # so long the broker waits for the client
_END_OF_TIME = 0x7FFF_FFFF_FFFF_FFFF
_QUERY_TIMEOUTS = 3  # Java gives an index look-up three times as long
_WHOLE_BROKER_TIMEOUTS = 8  # mqadmin brokerConsumeStats waits for 50 s
_NEVER_COUNTED = "not exist"
TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group in whose name operators pull; every broker knows it. Java: MixAll.TOOLS_CONSUMER_GROUP."""
T = TypeVar("T")
P = ParamSpec("P")


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
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """Messages that brokers found, and the time up to which their index is complete."""

    messages: tuple[MessageExt, ...]
    index_time_ms: int


def _on_any_loop(kind: type[T]) -> type[T]:
    """The calls of a class with an `_instance` may be awaited on any event loop. They run on the client's, which has the sockets."""
    for name, call in inspect.getmembers(kind, inspect.iscoroutinefunction):
        if not name.startswith("_"):
            setattr(kind, name, _passed_on(call))
    return kind


def _passed_on(call: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    @wraps(call)
    async def passed_on(admin: Any, *args: Any, **kwargs: Any) -> T:
        made = call(admin, *args, **kwargs)
        if admin._instance.is_on_its_loop:
            return await made
        return await asyncio.wrap_future(spawn(made))

    return passed_on


@_on_any_loop
class AsyncAdmin(QueueCalls):
    """All calls, to be awaited on any event loop, over a client instance that is shared with producers and consumers.

        async with AsyncAdmin(ClientSettings("ns1:9876")) as admin:
            topics = await admin.topics()

    Names of topics and groups are as brokers know them (`namespace%name`). Every call raises ClientError: no answer in time, no
    connection, no route, a refusal. A call whose task is cancelled is given up; a request that has been sent may still be carried out.
    """

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(ClientInstance.of(settings))
        self._is_closed = False

    @property
    def instance(self) -> ClientInstance:
        """The instance behind it."""
        return self._instance

    async def close(self) -> None:
        """Give the instance back; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            await self._instance.release_async()

    def release(self) -> None:
        """The same for a thread that waits; not on an event loop."""
        if not self._is_closed:
            self._is_closed = True
            self._instance.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Topics and brokers.

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route, queried now."""
        return await self._instance.route(topic, refresh=True)

    async def cluster_info(self) -> ClusterInfo:
        """All brokers with their addresses, and which cluster has which."""
        return await self._instance.name_servers.cluster_info()

    async def topics(self, cluster: str | None = None) -> tuple[str, ...]:
        """The names of all topics, or of a cluster's; sorted."""
        return await self._instance.name_servers.topics(cluster)

    async def topic_stats(self, topic: str, *, address: str | None = None) -> dict[MessageQueue, TopicOffset]:
        """Beginning, end and last store time of each queue (202), at the broker of that address, or at each broker of the topic."""
        addresses = (address,) if address else (await self._instance.route(topic, refresh=True)).read_addresses
        answers = await self._ask_topic(RequestCode.GET_TOPIC_STATS_INFO, topic, addresses)
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

        A broker answers when its name servers have the topic. One that does not answer its broker in time learns it later.
        Raises NameIllegalError before anything is sent.
        """
        attributes = ",".join(f"+{name}={value}" for name, value in (new.attributes or {}).items())
        header = CreateTopicRequest(
            topic=validate_topic(new.topic),
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_count=new.read_queue_count,
            write_queue_count=new.write_queue_count,
            perm=new.perm,
            topic_filter_type=new.filter_type,
            topic_sys_flag=new.sys_flag,
            is_order=new.is_order,
            attributes=attributes,
        )
        addresses = [address] if address is not None else await self._masters(cluster)
        await self._ask_all(addresses, make_call(RequestCode.UPDATE_AND_CREATE_TOPIC, header), topic=new.topic)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete it on the brokers of a cluster, or on all (215), and then at every name server (216).

        A topic that is not there is no error. Brokers do not tell name servers of a deletion. A broker that is not registered now keeps
        the topic, and registers it again when it comes back. Raises TopicHalfDeletedError where some brokers have deleted it and
        others failed; the name servers keep the route then.
        """
        addresses = [address for found in await self._brokers(cluster) for address in found.values()]
        outcomes = await _each_of([self._delete_at(address, topic) for address in addresses])
        failed = {address: each for address, each in zip(addresses, outcomes, strict=True) if each is not None}
        for address, error in failed.items():
            if len(failed) < len(addresses):
                done = ", ".join(each for each in addresses if each not in failed)
                raise TopicHalfDeletedError(topic, done, error, address) from error
            raise error
        header = DeleteTopicRequest(topic=topic, cluster_name=cluster)
        await self._instance.name_servers.ask_each(make_call(RequestCode.DELETE_TOPIC_IN_NAMESRV, header))

    async def runtime_info(self, address: str) -> Mapping[str, str]:
        """A broker's figures (28), as texts by name."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        answer = await self._instance.ask(address, make_call(code))
        return read_answer_body(KvTable, answer, address, code).table

    async def broker_addresses(self, cluster: str | None = None) -> list[str]:
        """An address for each broker of a cluster or of all: its master's, else a slave's."""
        return [read_address(found) for found in await self._brokers(cluster) if found]

    # Groups.

    async def groups(
        self, cluster: str | None = None, *, address: str | None = None
    ) -> dict[str, SubscriptionGroupConfig]:
        """All consumer groups with their settings (201), at the broker of that address, or over the brokers of a cluster or of all.

        Of a group that differs between brokers the last broker's settings.
        """
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        addresses = [address] if address is not None else await self.broker_addresses(cluster)
        answers = await self._ask_all(addresses, make_call(code))
        tables = [read_answer_body(SubscriptionGroupTable, answer, address, code) for address, answer in answers]
        return {name: found for table in tables for name, found in sorted(table.subscription_group_table.items())}

    async def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None, address: str | None = None
    ) -> None:
        """Make the group, or change it, on one broker, on a cluster's masters, or on all masters (200)."""
        validate_group(config.group)
        addresses = [address] if address is not None else await self._masters(cluster)
        command = make_call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
        await self._ask_all(addresses, command, group=config.group)

    async def delete_group(
        self, group: str, *, clean_offset: bool = True, with_topics: bool = True, cluster: str | None = None
    ) -> None:
        """Forget the group on the masters of a cluster or on all (207), with its offsets, and its retry and dead letter topics."""
        header = DeleteGroupRequest(group_name=group, clean_offset=clean_offset)
        command = make_call(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        await self._ask_all(await self._masters(cluster), command, group=group)
        if with_topics:
            for topic in (retry_topic(group), dead_letter_topic(group)):
                await self.delete_topic(topic, cluster=cluster)

    async def topics_of_group(self, group: str) -> tuple[str, ...]:
        """The topics in which the group has offsets (343), over all brokers; sorted."""
        code = RequestCode.QUERY_TOPICS_BY_CONSUMER
        command = make_call(code, GroupRequest(group=group))
        answers = await self._ask_all(await self.broker_addresses(), command, group=group)
        return tuple(sorted({name for address, answer in answers for name in _topics(answer, address)}))

    async def consumer_ids(self, group: str, topic: str) -> tuple[str, ...]:
        """The ids of the group's clients (38), as the brokers of the topic know them; sorted. None of them: empty."""
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        route = await self._instance.route(topic)
        command = make_call(code, ConsumerGroupRequest(consumer_group=group))
        accepted = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)  # the latter: no consumer for this group
        answers = await self._ask_all(route.read_addresses, command, group=group, accepted=accepted)
        found = [
            read_answer_body(ConsumerList, answer, address, code) for address, answer in answers if not answer.code
        ]
        return tuple(sorted({client_id for each in found for client_id in each.client_ids}))

    async def consumer_connection(self, group: str, *, address: str | None = None) -> ConsumerConnection:
        """The group's consumers, and what they subscribe to (203): at the broker of that address, or over all brokers.

        Raises ResponseError 206 where none is online.
        """
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        header = ConsumerGroupRequest(consumer_group=group)
        addresses = (address,) if address else await self._addresses_of(group)
        answers = await self._of_those_who_know(code, header, group, addresses)
        return joined_connections(
            [read_answer_body(ConsumerConnection, answer, each, code) for each, answer in answers]
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
        """The group's offsets in each queue of its topics, or of one topic (208)."""
        code = RequestCode.GET_CONSUME_STATS
        command = make_call(code, ConsumeStatsRequest(consumer_group=group, topic=topic))
        addresses = await self._addresses_of(group)
        answers = await self._ask_all(addresses, command, topic=topic, group=group)
        bodies = [read_answer_body(ConsumeStats, answer, address, code) for address, answer in answers]
        return {queue: found for body in bodies for queue, found in sorted(body.offset_table.items())}

    async def group_stats(self, address: str, group: str) -> ConsumeStats:
        """What one broker knows of the group's progress, and how fast it reads there (208). Empty where the group has no offset."""
        code = RequestCode.GET_CONSUME_STATS
        answer = await self._instance.ask(
            address, make_call(code, ConsumeStatsRequest(consumer_group=group)), group=group
        )
        return read_answer_body(ConsumeStats, answer, address, code)

    async def all_stats(self, address: str) -> dict[str, tuple[ConsumeStats, ...]]:
        """The progress of all groups of one broker, by topic (317). As long as mqadmin does it waits for the answer."""
        code = RequestCode.GET_BROKER_CONSUME_STATS
        command = make_call(code, BrokerConsumeStatsRequest(is_order=False))
        answer = await self._instance.ask(address, command, timeouts=_WHOLE_BROKER_TIMEOUTS)
        body = read_answer_body(ConsumeStatsList, answer, address, code)
        return {group: stats for table in body.consume_stats for group, stats in sorted(table.items())}

    async def all_offsets(self, address: str) -> bytes:
        """The offsets that all groups have stored at one broker, as its consumerOffset.json has them (43)."""
        code = RequestCode.GET_ALL_CONSUMER_OFFSET
        answer = await self._instance.ask(address, make_call(code), timeouts=_WHOLE_BROKER_TIMEOUTS)
        return bytes(answer.body)

    async def time_spans(self, address: str, topic: str, group: str) -> tuple[QueueTimeSpan, ...]:
        """How old the messages of a topic's queues at one broker are, and the group's next one (303)."""
        code = RequestCode.QUERY_CONSUME_TIME_SPAN
        command = make_call(code, ConsumeTimeSpanRequest(topic=topic, group=group))
        answer = await self._instance.ask(address, command, topic=topic, group=group)
        return read_answer_body(ConsumeTimeSpans, answer, address, code).spans

    async def broker_stats(self, address: str, name: str, key: str) -> BrokerStats | None:
        """What a broker counts, as TOPIC_PUT_NUMS of a topic (315); None of what it never counted since its start."""
        code = RequestCode.VIEW_BROKER_STATS_DATA
        command = make_call(code, BrokerStatsRequest(stats_name=name, stats_key=key))
        try:
            answer = await self._instance.ask(address, command)
        except ResponseError as error:
            if error.code != ResponseCode.SYSTEM_ERROR or _NEVER_COUNTED not in (error.remark or ""):
                raise
            return None
        return read_answer_body(BrokerStats, answer, address, code)

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """The state of one consumer of the group, in its own words (307, passed on by a broker)."""
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
        """Let the group go on at an offset of one queue, which must lie within it (222).

        Raises ValueError for a logical queue of a static topic: brokers would reset the physical queue of its number.
        """
        if queue.broker_name.startswith(LOGICAL_PREFIX):
            rule = f"logical queue {queue.queue_id} of static topic {queue.topic!r} cannot be reset at a broker"
            raise ValueError(f"{rule}: seek and commit with a PullConsumer of group {group!r}")
        header = ResetOffsetRequest(
            group=group, topic=queue.topic, queue_id=queue.queue_id, queue_offset=offset, time_ms=0, is_force=True
        )
        await self._instance.route(queue.topic)
        address = await self._instance.queue_address(queue)
        return await self._reset(header, group, queue.topic, (address,))

    # Messages.

    async def peek(self, queue: MessageQueue, offset: int, limit: int = 32, tags: str = "*") -> PullResult:
        """Messages of a queue from an offset on, as an operator looks at them: no offset is stored, nothing is waited for (11).

        `tags` is "TagA || TagB", which brokers compare by hash.
        """
        pull = Pull(queue, offset, subscription(queue.topic, tags, 0), limit, suspend_ms=0, sends_subscription=True)
        return await self.pull(pull, TOOLS_GROUP)

    async def store_time_ms(self, queue: MessageQueue, offset: int) -> int | None:
        """When the first message at the offset or behind it was stored, by a pull; None where there is none."""
        for _ in range(2):  # an offset before the queue's begin is answered with that begin
            result = await self.peek(queue, offset, 1)
            if result.status is PullStatus.FOUND:
                found = [each.store_time_ms for each in decode_records(result.records) if each.queue_offset >= offset]
                return found[0] if found else None
            if result.next_offset <= offset:
                return None
            offset = result.next_offset
        return None

    async def view_message(self, message_id: str, topic: str | None = None) -> MessageExt:
        """The message of a broker's id, which names its address and its place in the log (33).

        Raises ValueError where it is no such id, ResponseError where nothing is there, MalformedResponseError where the broker gives
        another message: Apache's does for log offset 0 when that file has expired. `topic` is for access control.
        """
        host, port, offset = decode_offset_message_id(message_id)
        address = address_of_id(host, port)
        code = RequestCode.VIEW_MESSAGE_BY_ID
        request = make_call(code, ViewMessageRequest(topic=topic, commitlog_offset=offset))
        answer = await self._instance.ask(address, request, topic=topic)
        (record, *_) = _records(answer, address, code)
        if record.commitlog_offset != offset:
            reason = f"it has the message at {record.commitlog_offset} of the log, not at {offset}"
            raise MalformedResponseError(address, request_text(code), reason)
        return MessageExt.of(record, await self._broker_name(address))

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        limit: int = 32,
        begin_ms: int = 0,
        end_ms: int = _END_OF_TIME,
        address: str | None = None,
    ) -> FoundMessages:
        """Messages of the topic with that key, stored between the times (12), at the broker of that address, or over all brokers."""
        found = await self._query(topic, key, limit, begin_ms, end_ms, is_unique=False, address=address)
        return FoundMessages(
            tuple(each for each in found.messages if key in each.keys and each.record.topic == topic),
            found.index_time_ms,
        )

    async def query_by_unique_key(
        self, topic: str, unique_key: str, *, begin_ms: int = 0, address: str | None = None
    ) -> FoundMessages:
        """Messages with that UNIQ_KEY, as `query_by_key`: one, and after tries on several brokers more.

        Java looks back three days; here it is as far as the index goes, unless `begin_ms` says otherwise.
        """
        found = await self._query(topic, unique_key, 32, begin_ms, _END_OF_TIME, is_unique=True, address=address)
        return FoundMessages(
            tuple(each for each in found.messages if each.message_id == unique_key), found.index_time_ms
        )

    # What the calls have in common.

    async def _delete_at(self, address: str, topic: str) -> None:
        """Delete at one broker. One without a timer answers with a NullPointerException after it has deleted the topic."""
        header = TopicRequest(topic=topic)
        try:
            await self._instance.ask(address, make_call(RequestCode.DELETE_TOPIC_IN_BROKER, header), topic=topic)
        except ResponseError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            timeout_ms = self._instance.settings.question_timeout_ms
            found = await self._instance.invoke(address, make_call(RequestCode.GET_TOPIC_CONFIG, header), timeout_ms)
            if found.code != ResponseCode.TOPIC_NOT_EXIST:
                raise

    async def _ask_topic(
        self, code: RequestCode, topic: str, addresses: tuple[str, ...]
    ) -> list[tuple[str, RemotingCommand]]:
        return await self._ask_all(addresses, make_call(code, TopicRequest(topic=topic)), topic=topic)

    async def _reset(
        self, header: ResetOffsetRequest, group: str, topic: str, addresses: Iterable[str]
    ) -> dict[MessageQueue, int]:
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        answers = await self._ask_all(addresses, make_call(code, header), topic=topic, group=group)
        bodies = [read_answer_body(OffsetTable, answer, address, code) for address, answer in answers]
        return {queue: offset for body in bodies for queue, offset in sorted(body.offset_table.items())}

    async def _addresses_of(self, group: str) -> tuple[str, ...]:
        """Brokers that may know the group: those of its retry topic, else one of each name."""
        try:
            return (await self._instance.route(retry_topic(group))).read_addresses
        except TopicRouteNotFoundError:
            return tuple(await self.broker_addresses())

    async def _of_those_who_know(
        self, code: RequestCode, header: Header, group: str, addresses: Iterable[str]
    ) -> list[tuple[str, RemotingCommand]]:
        """The answers of the brokers that know a client of the group; if none does, raises the first refusal."""
        absent = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)
        accepted = (ResponseCode.SUCCESS, *absent)
        addressed = list(addresses)
        if not addressed:
            raise self._nowhere(group)
        answers = await self._ask_all(addressed, make_call(code, header), group=group, accepted=accepted)
        found = [(address, answer) for address, answer in answers if answer.code == ResponseCode.SUCCESS]
        return found or await self._ask_all(addressed, make_call(code, header), group=group)

    def _nowhere(self, group: str) -> TopicRouteNotFoundError:
        """No broker is known that could know the group."""
        return TopicRouteNotFoundError(retry_topic(group), ", ".join(self._instance.settings.name_servers), None)

    async def _broker_name(self, address: str) -> str:
        """The name of the broker at this address; "" if no name server knows it."""
        name = self._instance.broker_name_at(address)
        if not name:
            brokers = (await self._instance.name_servers.cluster_info()).broker_address_table
            name = next(
                (
                    each
                    for each in brokers
                    if any(same_address(address, known) for known in brokers[each].broker_addresses.values())
                ),
                "",
            )
        return name

    async def _query(
        self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int, *, is_unique: bool, address: str | None
    ) -> FoundMessages:
        code = RequestCode.QUERY_MESSAGE
        query = QueryMessageRequest(
            topic=topic, key=key, max_messages=limit, begin_time_ms=begin_ms, end_time_ms=end_ms
        )
        request = make_call(code, query)
        fields = {**(request.ext_fields or {}), UNIQUE_KEY_QUERY: str(is_unique).lower()}
        # All brokers check the signature of this version's requests alike.
        request = request._replace(ext_fields=fields, version=ProtocolVersion.V4_9_3)
        addresses = (address,) if address else (await self._instance.route(topic)).read_addresses
        accepted = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answers = await self._ask_all(addresses, request, topic=topic, accepted=accepted, timeouts=_QUERY_TIMEOUTS)
        messages: list[MessageExt] = []
        index_time_ms = 0
        for address, answer in answers:
            if answer.code == ResponseCode.SUCCESS:
                header = read_answer_header(QueryMessageAnswer, answer, address, code)
                index_time_ms = max(index_time_ms, header.index_last_update_time_ms)
                name = self._instance.broker_name_at(address)
                messages += [MessageExt.of(record, name) for record in _records(answer, address, code)]
        messages.sort(key=lambda each: each.store_time_ms)
        return FoundMessages(tuple(messages), index_time_ms)

    # Several brokers at once.

    async def _ask_all(
        self,
        addresses: Iterable[str],
        command: RemotingCommand,
        *,
        topic: str | None = None,
        group: str | None = None,
        accepted: tuple[int, ...] = (ResponseCode.SUCCESS,),
        timeouts: int = 1,
    ) -> list[tuple[str, RemotingCommand]]:
        """The answer of each address, within `timeouts` times a request's time-out. Raises the first error after all have answered."""
        distinct, ask = list(dict.fromkeys(addresses)), self._instance.ask
        calls = [
            ask(each, command, topic=topic, group=group, accepted=accepted, timeouts=timeouts) for each in distinct
        ]
        return list(zip(distinct, await all_of(calls), strict=True))

    async def _brokers(self, cluster: str | None) -> list[Mapping[int, str]]:
        """Each broker's addresses by id, of one cluster or of all. Raises ClientSettingError where there is no such cluster."""
        return list(brokers_of(await self.cluster_info(), cluster).values())

    async def _masters(self, cluster: str | None) -> list[str]:
        return [found[MASTER_ID] for found in await self._brokers(cluster) if MASTER_ID in found]


def _waited_for(
    call: Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Admin, P], T]:
    """The same call for a thread that waits, with its docstring and arguments."""

    @wraps(call)
    def wait(admin: Admin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(call(admin._admin, *args, **kwargs))

    return wait


class Admin:
    """The calls of AsyncAdmin for a thread that waits; safe for several threads. Each call raises ClientError, none hangs."""

    def __init__(self, settings: ClientSettings) -> None:
        self._admin = AsyncAdmin(settings)

    def close(self) -> None:
        """Give back what it shares; a second call does nothing."""
        self._admin.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Topics and brokers.

    route = _waited_for(AsyncAdmin.route)
    cluster_info = _waited_for(AsyncAdmin.cluster_info)
    broker_addresses = _waited_for(AsyncAdmin.broker_addresses)
    runtime_info = _waited_for(AsyncAdmin.runtime_info)
    topics = _waited_for(AsyncAdmin.topics)
    topic_stats = _waited_for(AsyncAdmin.topic_stats)
    topic_config = _waited_for(AsyncAdmin.topic_config)
    create_topic = _waited_for(AsyncAdmin.create_topic)
    delete_topic = _waited_for(AsyncAdmin.delete_topic)

    # Queues.

    max_offset = _waited_for(AsyncAdmin.max_offset)
    min_offset = _waited_for(AsyncAdmin.min_offset)
    max_offsets = _waited_for(AsyncAdmin.max_offsets)
    min_offsets = _waited_for(AsyncAdmin.min_offsets)
    earliest_time_ms = _waited_for(AsyncAdmin.earliest_time_ms)
    search_offset = _waited_for(AsyncAdmin.search_offset)
    pull = _waited_for(AsyncAdmin.pull)

    # Groups.

    group_offset = _waited_for(AsyncAdmin.group_offset)
    store_group_offset = _waited_for(AsyncAdmin.store_group_offset)
    consume_stats = _waited_for(AsyncAdmin.consume_stats)
    group_stats = _waited_for(AsyncAdmin.group_stats)
    all_stats = _waited_for(AsyncAdmin.all_stats)
    all_offsets = _waited_for(AsyncAdmin.all_offsets)
    time_spans = _waited_for(AsyncAdmin.time_spans)
    broker_stats = _waited_for(AsyncAdmin.broker_stats)
    groups = _waited_for(AsyncAdmin.groups)
    create_group = _waited_for(AsyncAdmin.create_group)
    delete_group = _waited_for(AsyncAdmin.delete_group)
    topics_of_group = _waited_for(AsyncAdmin.topics_of_group)
    consumer_ids = _waited_for(AsyncAdmin.consumer_ids)
    consumer_connection = _waited_for(AsyncAdmin.consumer_connection)
    producer_connection = _waited_for(AsyncAdmin.producer_connection)
    running_info = _waited_for(AsyncAdmin.running_info)
    reset_offsets = _waited_for(AsyncAdmin.reset_offsets)
    reset_queue_offset = _waited_for(AsyncAdmin.reset_queue_offset)

    # Messages.

    peek = _waited_for(AsyncAdmin.peek)
    store_time_ms = _waited_for(AsyncAdmin.store_time_ms)
    view_message = _waited_for(AsyncAdmin.view_message)
    query_by_key = _waited_for(AsyncAdmin.query_by_key)
    query_by_unique_key = _waited_for(AsyncAdmin.query_by_unique_key)


async def all_of(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results of all calls, made at once. Raises the first error, after all have ended."""
    results = []
    for outcome in await _each_of(calls):
        if isinstance(outcome, ClientError):
            raise outcome
        results.append(outcome)
    return results


async def _each_of(calls: Iterable[Awaitable[T]]) -> list[T | ClientError]:
    """The result or the error of each, after all have ended. Raises the first error of another kind."""
    results: list[T | ClientError] = []
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, ClientError):
            raise outcome
        results.append(outcome)
    return results


def brokers_of(info: ClusterInfo, cluster: str | None) -> dict[str, Mapping[int, str]]:
    """Addresses by broker name and id, of one cluster or of all. Pure."""
    names = info.cluster_address_table
    if cluster is not None and cluster not in names:
        known = ", ".join(sorted(names)) or "none"
        raise ClientSettingError("cluster", cluster, f"the name server knows no such cluster; it knows: {known}")
    wanted = None if cluster is None else set(names[cluster])
    table = info.broker_address_table
    return {name: table[name].broker_addresses for name in sorted(table) if wanted is None or name in wanted}


def _topics(answer: RemotingCommand, address: str) -> tuple[str, ...]:
    return read_answer_body(TopicList, answer, address, RequestCode.QUERY_TOPICS_BY_CONSUMER).topics


def joined_connections(bodies: Sequence[ConsumerConnection]) -> ConsumerConnection:
    """What several brokers know of a group, at least one of them, as one. Pure."""
    first = bodies[0]
    return ConsumerConnection(
        connections=_distinct(each for body in bodies for each in body.connections),
        subscription_table={name: found for body in bodies for name, found in body.subscription_table.items()},
        consume_type=first.consume_type,
        message_model=first.message_model,
        consume_from_where=first.consume_from_where,
    )


def _distinct(connections: Iterable[ClientConnection]) -> tuple[ClientConnection, ...]:
    """One for each client: it is connected to many brokers."""
    return tuple({each.client_id: each for each in connections}.values())


def _records(answer: RemotingCommand, address: str, code: int) -> list[Record]:
    try:
        records = decode_records(answer.body)
    except CorruptRecordError as error:
        raise MalformedResponseError(address, request_text(code), error.describe()) from None
    if not records:
        raise MalformedResponseError(address, request_text(code), "success without a record")
    return records


def address_of_id(host: bytes, port: int) -> str:
    """`address:port` as name servers spell it, of what an offset message id says."""
    return address_text(str(ipaddress.ip_address(host)), port)
