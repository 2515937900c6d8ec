"""Requests to create, change, delete and list consumer groups and their online clients.

Java: AdminBrokerProcessor (200, 201, 203, 204, 207, 225, 328, 343, 345, 352, 353), SubscriptionGroupManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from spark_mq.broker.broker_store import BrokerStore
from spark_mq.broker.client_tables import Clients, KnownClient, subscriptions_by_topic
from spark_mq.broker.entries import AttributeRefusedError, changed_attributes, page_of
from spark_mq.broker.group_offsets import GroupOffsets
from spark_mq.broker.requests import Handler, Request, timed
from spark_mq.broker.traffic import Traffic
from spark_mq.remoting import RemotingCommand, RequestCode, read_body
from spark_mq.remoting.administration import (
    ClientConnection,
    ConsumerConnection,
    DeleteGroupRequest,
    GroupForbidden,
    GroupPageAnswer,
    GroupPageRequest,
    GroupSubscription,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from spark_mq.remoting.consumers import (
    ConsumerGroupRequest,
    GroupForbiddenRequest,
    GroupRequest,
    GroupTopicRequest,
    ProducerGroupRequest,
)
from spark_mq.remoting.routes import TopicList
from storage.errors import NameIllegalError
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import validate_group
from storage.rules.response_codes import ResponseCode
from storage.tables.topics import QUEUE_COUNT_LIMIT


class GroupHandlers:
    """Answers what operators ask of groups."""

    def __init__(self, store: BrokerStore, clients: Clients, offsets: GroupOffsets, traffic: Traffic) -> None:
        self._store = store
        self._clients = clients
        self._offsets = offsets
        self._traffic = traffic

    def table(self) -> Mapping[int, Handler]:
        """Handlers by request code."""
        code = RequestCode
        return {
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._timed(self.update),
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self._timed(self.update_list),
            code.DELETE_SUBSCRIPTIONGROUP: self.delete,
            code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            code.GET_SUBSCRIPTIONGROUP_CONFIG: self.config,
            code.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbid,
            code.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            code.GET_PRODUCER_CONNECTION_LIST: self.producers,
            code.GET_ALL_PRODUCER_INFO: self.all_producers,
            code.QUERY_TOPICS_BY_CONSUMER: self.topics_of,
            code.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
        }

    def _timed(self, handler: Handler) -> Handler:
        """The handler, with its duration in the broker's metrics if there are any."""
        if (metrics := self._traffic.metrics) is None:
            return handler

        return timed(handler, lambda _, took_ms, is_done: metrics.groups_changed(took_ms, is_done=is_done))

    def update(self, request: Request) -> RemotingCommand:
        """200."""
        return self._save(request, [read_body(SubscriptionGroupConfig, request.body)] if request.body else [])

    def update_list(self, request: Request) -> RemotingCommand:
        """225."""
        return self._save(request, read_body(SubscriptionGroupList, request.body).groups)

    def _save(self, request: Request, wanted: Sequence[SubscriptionGroupConfig]) -> RemotingCommand:
        """Departures: a name that no group may have is refused by any release, and more retry queues than a topic may have. Java takes
        either up to 5.3; from 5.4 on it refuses the name of any group before it saves one.
        """
        groups = self._store.groups
        try:
            for group in wanted:
                validate_group(group.group, self._store.config.release.longest_group)
            for group in wanted:
                known = groups.get(group.group)
                if group.retry_queue_count > QUEUE_COUNT_LIMIT:
                    remark = f"a group can have {QUEUE_COUNT_LIMIT} retry queues, not {group.retry_queue_count}"
                    return request.answer(ResponseCode.INVALID_PARAMETER, remark)
                attributes = changed_attributes(None if known is None else known.attributes, group.attributes, {})
                self._store.service.save_group(replace(group, attributes=attributes))
        except NameIllegalError as refused:
            return request.answer(ResponseCode.INVALID_PARAMETER, str(refused))
        except AttributeRefusedError as refused:
            return request.answer(ResponseCode.SYSTEM_ERROR, str(refused))
        return request.answer()

    def delete(self, request: Request) -> RemotingCommand:
        """207; with `clean_offset` its offsets too."""
        header: DeleteGroupRequest = request.header
        self._store.service.delete_group(header.group_name)
        with self._clients.lock:
            self._traffic.forget(group=header.group_name)
        if header.clean_offset:
            with self._clients.lock:
                self._offsets.forget_group(header.group_name)
        return request.answer()

    def forbid(self, request: Request) -> RemotingCommand:
        """353: forbid a topic to a group, or allow all its topics again; a request without a value only reads the state."""
        header: GroupForbiddenRequest = request.header
        service = self._store.service
        bits = max(0, service.forbidden.get(header.group, {}).get(header.topic, 0))
        if header.readable is not None:
            bits = bits & ~1 if header.readable else bits | 1
            service.forbid(header.group, header.topic, bits)
        readable = not self._store.is_forbidden(header.group, header.topic)
        return request.answer(remark="", body=GroupForbidden(group=header.group, topic=header.topic, readable=readable))

    def all_groups(self, request: Request) -> RemotingCommand:
        """201: all groups, or the page that the request asks for; the departures are those of `TopicHandlers.all_topics`."""
        header: GroupPageRequest = request.header
        table = self._store.service.group_table
        groups, forbidden, total = dict(self._store.groups), table.forbidden, None
        if header.group_seq is not None:
            total = GroupPageAnswer(total_group_num=len(groups))
            groups = page_of(groups, table.version, header.group_seq, header.data_version, header.max_group_num)
            forbidden = {group: topics for group, topics in forbidden.items() if group in groups}
        body = SubscriptionGroupTable(
            subscription_group_table=groups, forbidden_table=forbidden, data_version=table.version
        )
        return request.answer(header=total, body=body)

    def config(self, request: Request) -> RemotingCommand:
        """352. Asking makes the group where the broker may make it."""
        header: GroupRequest = request.header
        found = self._store.find_group(header.group)
        if found is None:
            return request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return request.answer(body=found)

    # Who is online

    def consumers(self, request: Request) -> RemotingCommand:
        """203."""
        header: ConsumerGroupRequest = request.header
        with self._clients.lock:
            group = self._clients.consumers.groups.get(header.consumer_group)
            if group is None:
                remark = f"the consumer group[{header.consumer_group}] not online"
                return request.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark)
            body = ConsumerConnection(
                connections=_connections(group.clients.values()),
                subscription_table=subscriptions_by_topic(group),
                consume_type=group.consume_type,
                message_model=group.message_model,
                consume_from_where=group.consume_from_where,
            )
        return request.answer(body=body)

    def producers(self, request: Request) -> RemotingCommand:
        """204."""
        header: ProducerGroupRequest = request.header
        with self._clients.lock:
            group = self._clients.producers.groups.get(header.producer_group)
            if group is None:
                remark = f"the producer group[{header.producer_group}] not exist"
                return request.answer(ResponseCode.SYSTEM_ERROR, remark)
            body = ProducerConnection(connections=_connections(group.values()))
        return request.answer(body=body)

    def all_producers(self, request: Request) -> RemotingCommand:
        """328."""
        with self._clients.lock:
            groups = {
                name: tuple(
                    ProducerInfo(
                        client_id=client.client_id,
                        remote_ip=f"/{client.connection.address}",
                        language=client.language,
                        version=client.version,
                        last_update_time_ms=self._clients.shown_ms(client.seen_ms),
                    )
                    for client in clients.values()
                )
                for name, clients in self._clients.producers.groups.items()
            }
        return request.answer(body=ProducerTable(data=groups))

    def topics_of(self, request: Request) -> RemotingCommand:
        """343: topics in which the group has offsets."""
        header: GroupRequest = request.header
        with self._clients.lock:
            topics = tuple(sorted(self._offsets.topics_of(header.group)))
        return request.answer(body=TopicList(topics=topics, broker_address=self._store.address))

    def subscription(self, request: Request) -> RemotingCommand:
        """345."""
        header: GroupTopicRequest = request.header
        with self._clients.lock:
            found = self._clients.consumers.subscription(header.group, header.topic or "")
        return request.answer(body=GroupSubscription(group=header.group, topic=header.topic, subscription=found))


def _connections(clients: Iterable[KnownClient]) -> tuple[ClientConnection, ...]:
    return tuple(
        ClientConnection(
            client_id=client.client_id,
            client_address=client.connection.address,
            language=client.language,
            version=client.version,
        )
        for client in clients
    )
