"""What clients and tools ask of a name server: where topics and brokers are. Java: ClientRequestProcessor, DefaultRequestProcessor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from spark_mq.namesrv import topic_lists
from spark_mq.namesrv.broker_requests import ZONE_NAME
from spark_mq.namesrv.kv_config import ORDER_TOPIC_NAMESPACE
from spark_mq.namesrv.routes import in_zone, route
from spark_mq.namesrv.state import Ask, Handler, State
from spark_mq.namesrv.tables import RouteTables
from spark_mq.remoting import ProtocolVersion, RemotingCommand, RequestCode, make_response, write_body
from spark_mq.remoting.route_bodies import TopicList
from storage.rules.response_codes import RequestRefusedError, ResponseCode, with_advice

ZONE_MODE = "__ZONE_MODE"


def topic_route(state: State, ask: Ask) -> RemotingCommand:
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


def cluster_info(state: State, ask: Ask) -> RemotingCommand:
    """106."""
    return ask.answer(None, state.tables.cluster_info())


def all_topics(state: State, ask: Ask) -> RemotingCommand:
    """206."""
    if not state.configuration.name_server.enable_all_topic_list:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "disable")
    return ask.answer(None, topic_lists.all_topics(state.tables))


def topics_of_cluster(state: State, ask: Ask) -> RemotingCommand:
    """224."""
    return _topic_list(state, ask, lambda tables: topic_lists.topics_of_cluster(tables, ask.header.cluster))


def system_topics(state: State, ask: Ask) -> RemotingCommand:
    """304."""
    return ask.answer(None, topic_lists.system_topics(state.tables))


def unit_topics(state: State, ask: Ask) -> RemotingCommand:
    """311."""
    return _topic_list(state, ask, topic_lists.unit_topics)


def unit_subscribed_topics(state: State, ask: Ask) -> RemotingCommand:
    """312."""
    return _topic_list(state, ask, topic_lists.unit_subscribed_topics)


def unit_subscribed_topics_of_no_unit(state: State, ask: Ask) -> RemotingCommand:
    """313."""
    return _topic_list(state, ask, topic_lists.unit_subscribed_topics_of_no_unit)


def _topic_list(state: State, ask: Ask, listed: Callable[[RouteTables], TopicList]) -> RemotingCommand:
    if not state.configuration.name_server.enable_topic_list:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "disable")
    return ask.answer(None, listed(state.tables))


ROUTE_REQUESTS: Mapping[int, Handler] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: topic_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: cluster_info,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: all_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: unit_subscribed_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: unit_subscribed_topics_of_no_unit,
}
