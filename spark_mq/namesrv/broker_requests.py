"""What brokers ask of a name server: to be known, to stay known, to be forgotten. Java: DefaultRequestProcessor."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping

from spark_mq.namesrv.kv_config import ORDER_TOPIC_NAMESPACE
from spark_mq.namesrv.registration import Registered, Registration, RegistrationRules, register, renew, sign_of
from spark_mq.namesrv.state import Ask, Handler, State
from spark_mq.namesrv.tables import BrokerAddress
from spark_mq.remoting import ProtocolVersion, RemotingCommand, RequestCode, read_body
from spark_mq.remoting.registration_body import read_compressed
from spark_mq.remoting.route_bodies import (
    BrokerMemberGroupAnswer,
    DataVersion,
    KvTable,
    RegisterBrokerBody,
    TopicConfigTable,
)
from spark_mq.remoting.route_headers import DataVersionAnswer, RegisterBrokerAnswer
from storage.rules.response_codes import RequestRefusedError, ResponseCode

ZONE_NAME = "__ZONE_NAME"
_CRC_MASK = 0x7FFF_FFFF
_LOG = logging.getLogger(__name__)


def register_broker(state: State, ask: Ask) -> RemotingCommand:
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
        told = "%s says that broker %s (id %d) is at %s; until now it is alive at %s. One of both has a wrong name or address"
        where = header.broker_address, result.other_address
        _LOG.warning(told, ask.host or "somebody", header.broker_name, header.broker_id, *where)
    if result.notice is not None:
        state.notices.append(result.notice)
    is_told = state.configuration.name_server.returns_order_topics
    order = state.kv_config.namespace(ORDER_TOPIC_NAMESPACE) if is_told else None
    answer = RegisterBrokerAnswer(ha_server_address=result.ha_server_address, master_address=result.master_address)
    return ask.answer(answer, None if order is None else KvTable(table=order))


def _register_anew(state: State, ask: Ask, repeated: Registration) -> Registered:
    header = ask.header
    topics, filter_servers = _registered_topics(ask)
    told = repeated._replace(topics=topics, filter_servers=filter_servers)
    settings = state.configuration.name_server
    rules = RegistrationRules(settings.deletes_topics, settings.notifies_min_id)
    is_new = BrokerAddress(header.cluster_name, header.broker_address) not in state.tables.live
    result = register(state.tables, told, ask.now_ms, rules)
    if result is None:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "register broker failed")
    if is_new:
        _LOG.info("broker %s (%s) registers", header.broker_name, header.broker_address)
    return result


def unregister_broker(state: State, ask: Ask) -> RemotingCommand:
    """104."""
    if len(state.departures) >= state.configuration.name_server.unregister_queue_capacity:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, None)
    state.departures.append(ask.header)
    return ask.answer()


def query_data_version(state: State, ask: Ask) -> RemotingCommand:
    """322."""
    who = BrokerAddress(ask.header.cluster_name, ask.header.broker_address)
    given = read_body(DataVersion, ask.request.body)
    is_changed = state.tables.is_changed(who, given)
    state.tables.hear_of(who, ask.now_ms)
    return ask.answer(DataVersionAnswer(changed=is_changed), state.tables.data_version(who))


def hear_heartbeat(state: State, ask: Ask) -> RemotingCommand:
    """904."""
    state.tables.hear_of(BrokerAddress(ask.header.cluster_name, ask.header.broker_address), ask.now_ms)
    return ask.answer()


def member_group(state: State, ask: Ask) -> RemotingCommand:
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
    RequestCode.REGISTER_BROKER: register_broker,
    RequestCode.UNREGISTER_BROKER: unregister_broker,
    RequestCode.QUERY_DATA_VERSION: query_data_version,
    RequestCode.BROKER_HEARTBEAT: hear_heartbeat,
    RequestCode.GET_BROKER_MEMBER_GROUP: member_group,
}
REGISTRATION_CODES = BROKER_REQUESTS.keys() - {RequestCode.GET_BROKER_MEMBER_GROUP}
"""What changes who is there: answered to hosts of `registrationNetworks` alone."""
