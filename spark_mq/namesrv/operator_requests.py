"""What operators change at a name server: topics, permissions, texts, settings. Java: DefaultRequestProcessor."""

from __future__ import annotations

from collections.abc import Mapping

from spark_mq.namesrv.kv_config import KvConfig
from spark_mq.namesrv.limits import check_name, check_queues, check_topics
from spark_mq.namesrv.state import Ask, Handler, State
from spark_mq.remoting import RemotingCommand, RequestCode, make_response, read_body
from spark_mq.remoting.route_bodies import KvTable, TopicRouteData
from spark_mq.remoting.route_headers import (
    AddWritePermissionAnswer,
    KvConfigAnswer,
    WipeWritePermissionAnswer,
)
from spark_mq.remoting_server.administration import changed_settings
from storage.rules.response_codes import RequestRefusedError, ResponseCode

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
"""What operators ask for: refused to other hosts unless it is signed."""


def delete_topic(state: State, ask: Ask) -> RemotingCommand:
    """216."""
    state.tables.delete_topic(ask.header.topic, ask.header.cluster_name)
    return ask.answer()


def register_topic(state: State, ask: Ask) -> RemotingCommand:
    """217. As in Java the answer is SUCCESS too where nothing was done, because a broker is unknown."""
    check_topics(state.tables, [ask.header.topic])
    if ask.request.body:
        queues = read_body(TopicRouteData, ask.request.body).queue_datas
        check_queues(queues)
        state.tables.register_topic(ask.header.topic, queues)
    return ask.answer()


def wipe_write_permission(state: State, ask: Ask) -> RemotingCommand:
    """205."""
    count = state.tables.wipe_write_permission(ask.header.broker_name)
    return ask.answer(WipeWritePermissionAnswer(wipe_topic_count=count))


def add_write_permission(state: State, ask: Ask) -> RemotingCommand:
    """327."""
    count = state.tables.add_write_permission(ask.header.broker_name)
    return ask.answer(AddWritePermissionAnswer(add_topic_count=count))


def put_text(state: State, ask: Ask) -> RemotingCommand:
    """100."""
    header = ask.header
    for kind, name in (("namespace", header.namespace), ("key", header.key)):
        check_name(kind, name)
    _keep_texts(state, state.kv_config.put(header.namespace, header.key, header.value))
    return ask.answer()


def get_text(state: State, ask: Ask) -> RemotingCommand:
    """101."""
    namespace, key = ask.header.namespace, ask.header.key
    value = state.kv_config.get(namespace, key)
    if value is None:
        remark = f"No config item, Namespace: {namespace} Key: {key}"
        raise RequestRefusedError(ResponseCode.QUERY_NOT_FOUND, remark)
    return ask.answer(KvConfigAnswer(value=value))


def delete_text(state: State, ask: Ask) -> RemotingCommand:
    """102."""
    _keep_texts(state, state.kv_config.delete(ask.header.namespace, ask.header.key))
    return ask.answer()


def texts_of_namespace(state: State, ask: Ask) -> RemotingCommand:
    """219."""
    table = state.kv_config.namespace(ask.header.namespace)
    if table is None:
        remark = f"No config item, Namespace: {ask.header.namespace}"
        raise RequestRefusedError(ResponseCode.QUERY_NOT_FOUND, remark)
    return ask.answer(None, KvTable(table=table))


def _keep_texts(state: State, changed: KvConfig) -> None:
    state.save_texts(changed.text())
    state.kv_config = changed


def update_settings(state: State, ask: Ask) -> RemotingCommand:
    """318."""
    state.configuration = changed_settings(state.configuration, ask.request, state.save_settings)
    return ask.answer()


def settings(state: State, ask: Ask) -> RemotingCommand:
    """319."""
    return make_response(ask.request, ResponseCode.SUCCESS, body=state.configuration.text().encode())


OPERATOR_REQUESTS: Mapping[int, Handler] = {
    RequestCode.PUT_KV_CONFIG: put_text,
    RequestCode.GET_KV_CONFIG: get_text,
    RequestCode.DELETE_KV_CONFIG: delete_text,
    RequestCode.GET_KVLIST_BY_NAMESPACE: texts_of_namespace,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write_permission,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write_permission,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,
    RequestCode.UPDATE_NAMESRV_CONFIG: update_settings,
    RequestCode.GET_NAMESRV_CONFIG: settings,
}
