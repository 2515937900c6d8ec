"""A name server's handlers by request code. No sockets, no clock, no files.

    server = NameServer(configuration, started_ms=now_ms)
    answer = server.answer(request, Caller(channel, "127.0.0.1"), now_ms)
    notices = server.settle()        # after each of: answer, close_channel, scan

A request that cannot be decoded, or that is refused, is answered with the reason; nothing is raised. Brokers that leave are removed by
`settle`, all at once, as in Java. Not thread-safe.

Java: NamesrvController, BatchUnregistrationService. Departures: only this host may change settings and texts, and others with a
signature (`remoting_server/administration.py`); if networks are configured, brokers may register from these only. A text or a setting
that cannot be written to its file is not taken, and the answer says so.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from spark_mq.namesrv.registration import (
    Expired,
    Registered,
    Registration,
    RegistrationRules,
    check_name,
    check_queues,
    check_topics,
    departure_of,
    expired,
    register,
    registered_over,
    renew,
    sign_of,
    unregister,
)
from spark_mq.namesrv.settings import Configuration
from spark_mq.namesrv.tables import (
    ORDER_TOPIC_NAMESPACE,
    BrokerAddress,
    BrokerGroup,
    KvConfig,
    MinBrokerIdNotice,
    RouteTables,
)
from spark_mq.remoting import (
    REQUEST_HEADERS,
    Header,
    ProtocolVersion,
    RemotingCommand,
    RequestCode,
    WireBody,
    make_response,
    read_body,
    read_header,
    write_body,
    write_header,
)
from spark_mq.remoting.routes import (
    AddWritePermissionAnswer,
    BrokerAddressRequest,
    BrokerData,
    BrokerMemberGroupAnswer,
    DataVersionAnswer,
    KvConfigAnswer,
    KvTable,
    QueueData,
    RegisterBrokerAnswer,
    RegisterBrokerBody,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
    WipeWritePermissionAnswer,
    read_compressed,
)
from spark_mq.remoting_server.administration import answered, changed_settings, check_may_administer
from spark_mq.remoting_server.peer import Caller, not_supported
from storage.format.typed_json import DataVersion
from storage.names import BROKER_MEMBER_TOPIC_PREFIX, MASTER_ID
from storage.rules.response_codes import RequestRefusedError, ResponseCode, with_advice
from storage.tables.topics import PERM_WRITE

ZONE_NAME = "__ZONE_NAME"
ZONE_MODE = "__ZONE_MODE"
ADMIN_CODES = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
    }
)
"""Requests of operators: refused to other hosts unless signed."""
CLIENT_POOL = "Client"
DEFAULT_POOL = "Default"
"""The queues of requests, as Java's watermarks name them: of those for routes, and of all others."""
_CRC_MASK = 0x7FFF_FFFF
_UNIT = 1
_UNIT_SUBSCRIBED = 2
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class State:
    """The state of a running name server.

    `save_texts` and `save_settings` write their files, and raise OSError where that fails.
    """

    configuration: Configuration
    started_ms: int
    kv_config: KvConfig
    save_texts: Callable[[str], None]
    save_settings: Callable[[Mapping[str, str]], None]
    tables: RouteTables = field(default_factory=RouteTables)
    departures: list[BrokerAddressRequest] = field(default_factory=list)
    """Brokers that have left, until the next batch."""
    notices: list[MinBrokerIdNotice] = field(default_factory=list)
    """Notices to brokers that no caller has taken yet."""


class Ask(NamedTuple):
    """A request whose header was read."""

    request: RemotingCommand
    header: Any
    channel: Hashable
    now_ms: int
    host: str = ""
    """The IP address of who asks."""

    def answer(self, header: Header | None = None, body: WireBody | None = None) -> RemotingCommand:
        """SUCCESS. Without a header there are no extFields, as in Java."""
        fields = None if header is None else write_header(header)
        content = b"" if body is None else write_body(body)
        return make_response(self.request, ResponseCode.SUCCESS, None, fields, content)

    @property
    def ext_fields(self) -> Mapping[str, str]:
        """All fields of the request, the untyped ones too."""
        return self.request.ext_fields or {}


Handler: TypeAlias = Callable[[State, Ask], RemotingCommand]
"""The handler of a request. It may raise RequestRefusedError, HeaderError, BodyError, ConfigurationError and OSError."""


class NameServer:
    """One name server. `save_texts` keeps a file's content, `save_settings` changes one's lines; OSError where they cannot."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        started_ms: int,
        kv_config: KvConfig | None = None,
        save_texts: Callable[[str], None] = lambda text: None,
        save_settings: Callable[[Mapping[str, str]], None] = lambda changes: None,
    ) -> None:
        self.state = State(configuration, started_ms, kv_config or KvConfig(), save_texts, save_settings)

    def answer(self, request: RemotingCommand, caller: Caller, now_ms: int) -> RemotingCommand:
        """The answer to any request of any client."""
        handler = HANDLERS.get(request.code)
        if handler is None:
            return not_supported(request)
        return answered(request, lambda: self._done(handler, request, caller, now_ms))

    def _done(self, handler: Handler, request: RemotingCommand, caller: Caller, now_ms: int) -> RemotingCommand:
        if request.code in ADMIN_CODES:
            administrator = self.state.configuration.name_server.administrator
            check_may_administer(request, caller.host, administrator)
        if request.code in REGISTRATION_CODES:
            self._check_may_register(caller.host)
        header = read_header(REQUEST_HEADERS[request.code], request)
        return handler(self.state, Ask(request, header, caller.channel, now_ms, caller.host))

    def _check_may_register(self, host: str) -> None:
        """Raises RequestRefusedError for who is in none of the named networks."""
        if not self.state.configuration.name_server.may_register(host):
            remark = f"{host} is in none of the networks from which brokers register here (registrationNetworks)"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)

    def close_channel(self, channel: Hashable) -> None:
        """A connection is gone: the brokers that had registered over it leave."""
        self._leave(registered_over(self.state.tables, channel))

    def scan(self, now_ms: int) -> list[Expired]:
        """Remove brokers that were silent for too long; returns their connections, for closing."""
        found = expired(self.state.tables, now_ms)
        self._leave([one.who for one in found])
        return found

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits for `settle`."""
        return not self.state.departures and not self.state.notices

    def settle(self) -> list[MinBrokerIdNotice]:
        """Remove the brokers that have left since the last call; returns the notices to others."""
        state = self.state
        departures, state.departures = state.departures, []
        if departures:
            for header in departures:
                _LOG.info("broker %s (%s) leaves", header.broker_name, header.broker_address)
            notifies = state.configuration.name_server.notifies_min_id
            state.notices += unregister(state.tables, departures, notifies_min_id=notifies)
        notices, state.notices = state.notices, []
        return notices

    def _leave(self, brokers: list[BrokerAddress]) -> None:
        found = [departure_of(self.state.tables, who) for who in brokers]
        self.state.departures += [header for header in found if header is not None]


# What brokers ask: to be known, to stay known, to be forgotten. Java: DefaultRequestProcessor.


def _register_broker(state: State, ask: Ask) -> RemotingCommand:
    """103."""
    header, body = ask.header, ask.request.body
    if header.body_crc32 and zlib.crc32(body) & _CRC_MASK != header.body_crc32:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    zone_name = ask.ext_fields.get(ZONE_NAME)
    heard = f"{ask.request.version} {state.configuration.name_server.deletes_topics}"
    sign = sign_of(state.tables, {**ask.ext_fields, "": heard}, body)
    repeated = Registration(header, TopicConfigTable(), ask.channel, None, zone_name, sign)
    result = renew(state.tables, repeated, ask.now_ms) or _register_anew(state, ask, repeated)
    if result.other_address is not None:
        text = "%s says that broker %s (id %d) is at %s; until now it is alive at %s. One of both has a wrong name or address"
        where = header.broker_address, result.other_address
        _LOG.warning(text, ask.host or "a caller", header.broker_name, header.broker_id, *where)
    if result.notice is not None:
        state.notices.append(result.notice)
    gives_order = state.configuration.name_server.returns_order_topics
    order = state.kv_config.namespace(ORDER_TOPIC_NAMESPACE) if gives_order else None
    answer = RegisterBrokerAnswer(ha_server_address=result.ha_server_address, master_address=result.master_address)
    return ask.answer(answer, None if order is None else KvTable(table=order))


def _register_anew(state: State, ask: Ask, repeated: Registration) -> Registered:
    header = ask.header
    topics, filter_servers = _registered_topics(ask)
    registration = repeated._replace(topics=topics, filter_servers=filter_servers)
    settings = state.configuration.name_server
    rules = RegistrationRules(settings.deletes_topics, settings.notifies_min_id)
    is_new = BrokerAddress(header.cluster_name, header.broker_address) not in state.tables.live
    result = register(state.tables, registration, ask.now_ms, rules)
    if result is None:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "register broker failed")
    if is_new:
        _LOG.info("broker %s (%s) registers", header.broker_name, header.broker_address)
    return result


def _unregister_broker(state: State, ask: Ask) -> RemotingCommand:
    """104."""
    if len(state.departures) >= state.configuration.name_server.unregister_queue_capacity:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, None)
    state.departures.append(ask.header)
    return ask.answer()


def _query_data_version(state: State, ask: Ask) -> RemotingCommand:
    """322."""
    who = BrokerAddress(ask.header.cluster_name, ask.header.broker_address)
    given = read_body(DataVersion, ask.request.body)
    is_changed = state.tables.is_changed(who, given)
    state.tables.hear_of(who, ask.now_ms)
    return ask.answer(DataVersionAnswer(changed=is_changed), state.tables.data_version(who))


def _hear_heartbeat(state: State, ask: Ask) -> RemotingCommand:
    """904."""
    state.tables.hear_of(BrokerAddress(ask.header.cluster_name, ask.header.broker_address), ask.now_ms)
    return ask.answer()


def _member_group(state: State, ask: Ask) -> RemotingCommand:
    """901."""
    group = state.tables.member_group(ask.header.cluster_name, ask.header.broker_name)
    return ask.answer(None, BrokerMemberGroupAnswer(group=group))


def _registered_topics(ask: Ask) -> tuple[TopicConfigTable, tuple[str, ...] | None]:
    """The topics and filter servers of a registration; a broker before 3.0.11 says nothing of the latter."""
    body, version = ask.request.body, ask.request.version
    if version < ProtocolVersion.V3_0_11:
        return (read_body(TopicConfigTable, body) if body else TopicConfigTable(data_version=DataVersion())), None
    if not body:
        return TopicConfigTable(data_version=DataVersion()), ()
    read = read_compressed(body, version) if ask.header.compressed else read_body(RegisterBrokerBody, body)
    return read.topic_config_table, read.filter_servers


BROKER_REQUESTS: Mapping[int, Handler] = {
    RequestCode.REGISTER_BROKER: _register_broker,
    RequestCode.UNREGISTER_BROKER: _unregister_broker,
    RequestCode.QUERY_DATA_VERSION: _query_data_version,
    RequestCode.BROKER_HEARTBEAT: _hear_heartbeat,
    RequestCode.GET_BROKER_MEMBER_GROUP: _member_group,
}
REGISTRATION_CODES = BROKER_REQUESTS.keys() - {RequestCode.GET_BROKER_MEMBER_GROUP}
"""Requests of brokers that change the tables: answered to hosts of `registrationNetworks` alone."""


# What clients and tools ask: where topics and brokers are. Java: ClientRequestProcessor, DefaultRequestProcessor.


def _topic_route(state: State, ask: Ask) -> RemotingCommand:
    """105."""
    settings = state.configuration.name_server
    topic = ask.header.topic
    is_ready = ask.now_ms - state.started_ms >= settings.wait_seconds_for_service * 1_000
    if settings.waits_for_service and not is_ready:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "name server not ready")
    found = route(state.tables, topic, supports_acting_master=settings.supports_acting_master)
    if found is None:
        remark = with_advice(f"No topic route info in name server for the topic: {topic}")
        raise RequestRefusedError(ResponseCode.TOPIC_NOT_EXIST, remark)
    if settings.order_message_enable:
        found = replace(found, order_topic_conf=state.kv_config.get(ORDER_TOPIC_NAMESPACE, topic))
    zone = ask.ext_fields.get(ZONE_NAME, "")
    if zone.strip() and ask.ext_fields.get(ZONE_MODE, "").lower() == "true":
        return ask.answer(None, in_zone(found, zone))
    is_standard = ask.request.version >= ProtocolVersion.V4_9_4 or bool(ask.header.accept_standard_json_only)
    body = write_body(found, is_standard_json=is_standard)
    return make_response(ask.request, ResponseCode.SUCCESS, body=body)


def _cluster_info(state: State, ask: Ask) -> RemotingCommand:
    """106."""
    return ask.answer(None, state.tables.cluster_info())


def _all_topics(state: State, ask: Ask) -> RemotingCommand:
    """206."""
    if not state.configuration.name_server.enable_all_topic_list:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "disable")
    return ask.answer(None, all_topics(state.tables))


def _topics_of_cluster(state: State, ask: Ask) -> RemotingCommand:
    """224."""
    return _topic_list(state, ask, lambda tables: topics_of_cluster(tables, ask.header.cluster))


def _system_topics(state: State, ask: Ask) -> RemotingCommand:
    """304."""
    return ask.answer(None, system_topics(state.tables))


def _unit_topics(state: State, ask: Ask) -> RemotingCommand:
    """311."""
    return _topic_list(state, ask, unit_topics)


def _unit_subscribed_topics(state: State, ask: Ask) -> RemotingCommand:
    """312."""
    return _topic_list(state, ask, unit_subscribed_topics)


def _unit_subscribed_topics_of_no_unit(state: State, ask: Ask) -> RemotingCommand:
    """313."""
    return _topic_list(state, ask, unit_subscribed_topics_of_no_unit)


def _topic_list(state: State, ask: Ask, listed: Callable[[RouteTables], TopicList]) -> RemotingCommand:
    if not state.configuration.name_server.enable_topic_list:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "disable")
    return ask.answer(None, listed(state.tables))


ROUTE_REQUESTS: Mapping[int, Handler] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _topic_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: _cluster_info,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _all_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: _topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: _unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _unit_subscribed_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _unit_subscribed_topics_of_no_unit,
}


# Where a topic's queues are (105): the brokers that have it, slaves that stand in for a master, brokers of a client's zone.
# Java: RouteInfoManager.pickupTopicRouteData, ZoneRouteRPCHook.


def route(tables: RouteTables, topic: str, *, supports_acting_master: bool = False) -> TopicRouteData | None:
    """A topic's route; None where no broker has it.

    With `supports_acting_master` the lowest id of brokers without a master is shown as 0, where nothing can be written to them and
    they allow it. The topics by which brokers find each other show who is really there.
    """
    queues = tables.topics.get(topic)
    if not queues:
        return None
    groups = [group for name in queues if (group := tables.groups.get(name)) is not None]
    if not groups:
        return None
    stands_in = supports_acting_master and not topic.startswith(BROKER_MEMBER_TOPIC_PREFIX)
    return TopicRouteData(
        queue_datas=tuple(queues.values()),
        broker_datas=tuple(_shown(group, queues[group.broker_name], stands_in=stands_in) for group in groups),
        filter_server_table=_filter_servers(tables, groups),
        topic_queue_mapping_by_broker=tables.mappings.get(topic),
    )


def in_zone(found: TopicRouteData, zone_name: str) -> TopicRouteData:
    """Only the brokers of a zone, and those without a master, whose messages are read from slaves anywhere. Case does not count."""
    stays = {
        data.broker_name: MASTER_ID not in data.broker_addresses or (data.zone_name or "").lower() == zone_name.lower()
        for data in found.broker_datas
    }
    gone = {
        address
        for data in found.broker_datas
        if not stays[data.broker_name]
        for address in data.broker_addresses.values()
    }
    servers = {address: names for address, names in found.filter_server_table.items() if address not in gone}
    return replace(
        found,
        broker_datas=tuple(data for data in found.broker_datas if stays[data.broker_name]),
        queue_datas=tuple(data for data in found.queue_datas if stays.get(data.broker_name, True)),
        filter_server_table=servers,
    )


def _shown(group: BrokerGroup, queues: QueueData, *, stands_in: bool) -> BrokerData:
    data = group.as_body()
    addresses = dict(data.broker_addresses)
    needs_one = stands_in and group.has_acting_master and addresses and MASTER_ID not in addresses
    if not needs_one or queues.perm & PERM_WRITE:
        return data
    acting = addresses.pop(min(addresses))
    return replace(data, broker_addresses={MASTER_ID: acting, **addresses})


def _filter_servers(tables: RouteTables, groups: list[BrokerGroup]) -> dict[str, tuple[str, ...]]:
    if not tables.filter_servers:
        return {}
    return {
        address: found
        for group in groups
        for address in group.addresses.values()
        if (found := tables.filter_servers.get(BrokerAddress(group.cluster, address))) is not None
    }


# Names of topics, for operators and tools. Java: RouteInfoManager.getAllTopicList, getTopicsByCluster and the like.


def all_topics(tables: RouteTables) -> TopicList:
    """Every topic (206)."""
    return TopicList(topics=tuple(tables.topics))


def topics_of_cluster(tables: RouteTables, cluster: str) -> TopicList:
    """The topics that some broker of the cluster has (224); none for an unknown cluster."""
    names = tables.clusters.get(cluster, {}).keys()
    return TopicList(topics=tuple(topic for topic, queues in tables.topics.items() if names & queues.keys()))


def system_topics(tables: RouteTables) -> TopicList:
    """The names of clusters and brokers, which are topics of theirs, and the address of some broker, which knows more (304)."""
    names = {name: None for cluster, brokers in tables.clusters.items() for name in (cluster, *brokers)}
    addresses = (address for group in tables.groups.values() for _, address in sorted(group.addresses.items()))
    return TopicList(topics=tuple(names), broker_address=next(addresses, None))


def unit_topics(tables: RouteTables) -> TopicList:
    """Topics of a unit (311)."""
    return _by_flag(tables, lambda flag: bool(flag & _UNIT))


def unit_subscribed_topics(tables: RouteTables) -> TopicList:
    """Topics that a unit has subscribed to (312)."""
    return _by_flag(tables, lambda flag: bool(flag & _UNIT_SUBSCRIBED))


def unit_subscribed_topics_of_no_unit(tables: RouteTables) -> TopicList:
    """Topics that a unit has subscribed to, and that are of none (313)."""
    return _by_flag(tables, lambda flag: flag & (_UNIT | _UNIT_SUBSCRIBED) == _UNIT_SUBSCRIBED)


def _by_flag(tables: RouteTables, is_meant: Callable[[int], bool]) -> TopicList:
    """By the flags that the topic's first broker has."""
    return TopicList(
        topics=tuple(
            topic
            for topic, queues in tables.topics.items()
            if queues and is_meant(next(iter(queues.values())).topic_sys_flag)
        )
    )


# What operators change: topics, permissions, texts, settings. Java: DefaultRequestProcessor.


def _delete_topic(state: State, ask: Ask) -> RemotingCommand:
    """216."""
    state.tables.delete_topic(ask.header.topic, ask.header.cluster_name)
    return ask.answer()


def _register_topic(state: State, ask: Ask) -> RemotingCommand:
    """217. As in Java the answer is SUCCESS too where nothing was done, because a broker is unknown."""
    check_topics(state.tables, [ask.header.topic])
    if ask.request.body:
        queues = read_body(TopicRouteData, ask.request.body).queue_datas
        check_queues(queues)
        state.tables.register_topic(ask.header.topic, queues)
    return ask.answer()


def _wipe_write_permission(state: State, ask: Ask) -> RemotingCommand:
    """205."""
    count = state.tables.wipe_write_permission(ask.header.broker_name)
    return ask.answer(WipeWritePermissionAnswer(wipe_topic_count=count))


def _add_write_permission(state: State, ask: Ask) -> RemotingCommand:
    """327."""
    count = state.tables.add_write_permission(ask.header.broker_name)
    return ask.answer(AddWritePermissionAnswer(add_topic_count=count))


def _put_text(state: State, ask: Ask) -> RemotingCommand:
    """100."""
    header = ask.header
    for kind, name in (("namespace", header.namespace), ("key", header.key)):
        check_name(kind, name)
    _keep_texts(state, state.kv_config.put(header.namespace, header.key, header.value))
    return ask.answer()


def _get_text(state: State, ask: Ask) -> RemotingCommand:
    """101."""
    namespace, key = ask.header.namespace, ask.header.key
    value = state.kv_config.get(namespace, key)
    if value is None:
        remark = f"No config item, Namespace: {namespace} Key: {key}"
        raise RequestRefusedError(ResponseCode.QUERY_NOT_FOUND, remark)
    return ask.answer(KvConfigAnswer(value=value))


def _delete_text(state: State, ask: Ask) -> RemotingCommand:
    """102."""
    _keep_texts(state, state.kv_config.delete(ask.header.namespace, ask.header.key))
    return ask.answer()


def _texts_of_namespace(state: State, ask: Ask) -> RemotingCommand:
    """219."""
    table = state.kv_config.namespace(ask.header.namespace)
    if table is None:
        remark = f"No config item, Namespace: {ask.header.namespace}"
        raise RequestRefusedError(ResponseCode.QUERY_NOT_FOUND, remark)
    return ask.answer(None, KvTable(table=table))


def _keep_texts(state: State, changed: KvConfig) -> None:
    state.save_texts(changed.text())
    state.kv_config = changed


def _update_settings(state: State, ask: Ask) -> RemotingCommand:
    """318."""
    state.configuration = changed_settings(state.configuration, ask.request, state.save_settings)
    return ask.answer()


def _settings(state: State, ask: Ask) -> RemotingCommand:
    """319."""
    return make_response(ask.request, ResponseCode.SUCCESS, body=state.configuration.text().encode())


OPERATOR_REQUESTS: Mapping[int, Handler] = {
    RequestCode.PUT_KV_CONFIG: _put_text,
    RequestCode.GET_KV_CONFIG: _get_text,
    RequestCode.DELETE_KV_CONFIG: _delete_text,
    RequestCode.GET_KVLIST_BY_NAMESPACE: _texts_of_namespace,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _wipe_write_permission,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _add_write_permission,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _register_topic,
    RequestCode.UPDATE_NAMESRV_CONFIG: _update_settings,
    RequestCode.GET_NAMESRV_CONFIG: _settings,
}


HANDLERS: Mapping[int, Handler] = {**BROKER_REQUESTS, **ROUTE_REQUESTS, **OPERATOR_REQUESTS}
"""Handlers by request code; other codes are not supported."""
