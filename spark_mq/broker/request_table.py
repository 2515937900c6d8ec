"""Every request that a broker answers: its typed header, the pool that runs it, and the permissions that it needs.

    code ─▶ row: header class · pool · needs        who answers it: `Broker`

A code without a row is answered with REQUEST_CODE_NOT_SUPPORTED. Names of pools and the lengths of their queues are Java's, and mostly
the numbers of threads, too (BrokerController.registerProcessor).

Departures: Java derives needs from annotations, and so needs nothing if a header has no annotated field; here such codes have needs,
too. If a request names a message by its place in the log, access is checked for the topic of the stored message. Java trusts the topic
in the request.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from spark_mq.access.acls import BODY, MESSAGE, Action, Need, ResourceType
from spark_mq.remoting import REQUEST_HEADERS, Header, RequestCode
from spark_mq.remoting.command import RpcHeader

_CPUS = os.cpu_count() or 1


class Pool(Enum):
    """A pool: its threads, and the limit of its queue. Java: BrokerController.initializeBrokerScheduledTasks."""

    SEND = ("Send", 4, 10_000, 200)
    """A thread takes all sends that wait, and they are one append (`PoolSettings.together`, `storage/service/put_group.py`)."""
    PULL = ("Pull", 16 + 2 * _CPUS, 100_000, 5_000)
    LITE_PULL = ("Lite Pull", 16 + 2 * _CPUS, 100_000, 5_000)
    REPLY = ("Reply", 16 + 2 * _CPUS, 10_000, None)
    QUERY = ("Query", 8 + _CPUS, 20_000, None)
    ADMIN = ("Admin", 16, 10_000, 5_000)
    CLIENT_MANAGE = ("ClientManager", 8, 1_000_000, None)
    CONSUMER_MANAGE = ("ConsumerManager", 8, 1_000_000, None)
    """Java has 32 for each of these two. A thread starts with a request, takes a third of a MiB, and stays; none of them waits."""
    HEARTBEAT = ("Heartbeat", min(32, _CPUS), 50_000, 31_000)
    LOAD_BALANCE = ("LoadBalance", 8, 100_000, None)
    """Java has 32. These may wait for a name server."""
    END_TRANSACTION = ("Transaction", max(8 + 2 * _CPUS, 16), 100_000, 3_000)

    def __init__(self, label: str, threads: int, capacity: int, longest_wait_ms: int | None) -> None:
        self.label = label
        """As a watermark line names it."""
        self.threads = threads
        self.capacity = capacity
        self.longest_wait_ms = longest_wait_ms
        """A request that has waited longer is answered TIMEOUT_CLEAN_QUEUE; None = never. Java: BrokerFastFailure."""


class RequestRow(NamedTuple):
    """The row of a request code."""

    header: type[Header]
    pool: Pool
    needs: tuple[Need, ...]
    is_on_fast_port: bool = True
    """Whether the second listener takes it, which has no pulls."""


def _topic(*actions: Action, field: str = "topic", separator: str | None = None) -> Need:
    return Need(ResourceType.TOPIC, field, actions, separator)


def _group(*actions: Action, field: str = "consumer_group", separator: str | None = None) -> Need:
    return Need(ResourceType.GROUP, field, actions, separator)


def _cluster(*actions: Action) -> Need:
    return Need(ResourceType.CLUSTER, None, actions)


SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
"""Requests whose messages become one append (`Broker.begin`), and that are refused while the log takes none."""
_PULL = (_topic(Action.SUB), _group(Action.SUB))
_C, _P, _A = RequestCode, Pool, Action
_CHANGES_OF_ACCESS = (
    *(_C.UPDATE_AND_CREATE_ACL_CONFIG, _C.DELETE_ACL_CONFIG, _C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG),
    *(_C.AUTH_CREATE_USER, _C.AUTH_UPDATE_USER, _C.AUTH_DELETE_USER),
    *(_C.AUTH_CREATE_ACL, _C.AUTH_UPDATE_ACL, _C.AUTH_DELETE_ACL),
)
_LOOKS_AT_ACCESS = (
    _C.GET_BROKER_CLUSTER_ACL_INFO,
    _C.AUTH_GET_USER,
    _C.AUTH_LIST_USER,
    _C.AUTH_GET_ACL,
    _C.AUTH_LIST_ACL,
)
_NEEDS: Mapping[RequestCode, tuple[Pool, tuple[Need, ...]]] = {
    **dict.fromkeys(SENDS, (_P.SEND, (_topic(_A.PUB),))),
    _C.CONSUMER_SEND_MSG_BACK: (_P.SEND, (_group(_A.SUB, field="group"), _topic(_A.SUB, field=MESSAGE))),
    _C.SEND_REPLY_MESSAGE: (_P.REPLY, (_topic(_A.PUB),)),
    _C.SEND_REPLY_MESSAGE_V2: (_P.REPLY, (_topic(_A.PUB),)),
    _C.RECALL_MESSAGE: (_P.SEND, (_topic(_A.PUB),)),
    _C.PULL_MESSAGE: (_P.PULL, _PULL),
    _C.LITE_PULL_MESSAGE: (_P.LITE_PULL, _PULL),
    _C.QUERY_MESSAGE: (_P.QUERY, (_topic(_A.SUB, _A.GET),)),
    _C.VIEW_MESSAGE_BY_ID: (_P.QUERY, (_topic(_A.GET, field=MESSAGE),)),
    _C.QUERY_CONSUMER_OFFSET: (_P.CONSUMER_MANAGE, (_topic(_A.SUB, _A.GET), _group(_A.SUB, _A.GET))),
    _C.UPDATE_CONSUMER_OFFSET: (_P.CONSUMER_MANAGE, (_topic(_A.SUB, _A.UPDATE), _group(_A.SUB, _A.UPDATE))),
    _C.GET_CONSUMER_LIST_BY_GROUP: (_P.CONSUMER_MANAGE, (_group(_A.SUB, _A.GET),)),
    _C.HEART_BEAT: (_P.HEARTBEAT, (_group(_A.SUB, field=BODY), _topic(_A.SUB, field=BODY))),
    _C.UNREGISTER_CLIENT: (_P.CLIENT_MANAGE, (_group(_A.SUB),)),
    _C.CHECK_CLIENT_CONFIG: (_P.CLIENT_MANAGE, (_group(_A.SUB, field=BODY),)),
    _C.QUERY_ASSIGNMENT: (_P.LOAD_BALANCE, (_group(_A.SUB, _A.GET, field=BODY),)),
    _C.SET_MESSAGE_REQUEST_MODE: (_P.LOAD_BALANCE, (_group(_A.UPDATE, field=BODY), _topic(_A.UPDATE, field=BODY))),
    _C.END_TRANSACTION: (_P.END_TRANSACTION, (_topic(_A.PUB, field=MESSAGE),)),
    _C.LOCK_BATCH_MQ: (_P.ADMIN, (_group(_A.SUB, field=BODY), _topic(_A.SUB, field=BODY))),
    _C.UNLOCK_BATCH_MQ: (_P.ADMIN, (_group(_A.SUB, field=BODY), _topic(_A.SUB, field=BODY))),
    _C.SEARCH_OFFSET_BY_TIMESTAMP: (_P.ADMIN, (_topic(_A.GET),)),
    _C.GET_MAX_OFFSET: (_P.ADMIN, (_topic(_A.GET),)),
    _C.GET_MIN_OFFSET: (_P.ADMIN, (_topic(_A.GET),)),
    _C.GET_EARLIEST_MSG_STORETIME: (_P.ADMIN, (_topic(_A.GET),)),
    _C.UPDATE_AND_CREATE_TOPIC: (_P.ADMIN, (_topic(_A.CREATE),)),
    _C.UPDATE_AND_CREATE_TOPIC_LIST: (_P.ADMIN, (_topic(_A.CREATE, field=BODY),)),
    _C.UPDATE_AND_CREATE_STATIC_TOPIC: (_P.ADMIN, (_topic(_A.CREATE),)),
    _C.GET_ALL_TOPIC_CONFIG: (_P.ADMIN, (_cluster(_A.LIST, _A.GET),)),
    _C.UPDATE_BROKER_CONFIG: (_P.ADMIN, (_cluster(_A.UPDATE),)),
    _C.GET_BROKER_CONFIG: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.GET_BROKER_RUNTIME_INFO: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.GET_ALL_CONSUMER_OFFSET: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (_P.ADMIN, (_group(_A.CREATE, field=BODY),)),
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (_P.ADMIN, (_group(_A.CREATE, field=BODY),)),
    _C.GET_ALL_DELAY_OFFSET: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (_P.ADMIN, (_cluster(_A.LIST, _A.GET),)),
    _C.GET_SUBSCRIPTIONGROUP_CONFIG: (_P.ADMIN, (_group(_A.GET, field="group"),)),
    _C.DELETE_SUBSCRIPTIONGROUP: (_P.ADMIN, (_group(_A.DELETE, field="group_name"),)),
    _C.UPDATE_AND_GET_GROUP_FORBIDDEN: (_P.ADMIN, (_group(_A.UPDATE, field="group"), _topic(_A.UPDATE))),
    _C.GET_TOPIC_STATS_INFO: (_P.ADMIN, (_topic(_A.GET),)),
    _C.GET_TOPIC_CONFIG: (_P.ADMIN, (_topic(_A.GET),)),
    _C.DELETE_TOPIC_IN_BROKER: (_P.ADMIN, (_topic(_A.DELETE),)),
    _C.QUERY_TOPIC_CONSUME_BY_WHO: (_P.ADMIN, (_topic(_A.GET),)),
    _C.QUERY_TOPICS_BY_CONSUMER: (_P.ADMIN, (_group(_A.GET, field="group"),)),
    _C.QUERY_SUBSCRIPTION_BY_CONSUMER: (_P.ADMIN, (_group(_A.GET, field="group"), _topic(_A.GET))),
    _C.QUERY_CONSUME_TIME_SPAN: (_P.ADMIN, (_group(_A.GET, field="group"), _topic(_A.GET))),
    _C.QUERY_CORRECTION_OFFSET: (
        _P.ADMIN,
        (_group(_A.GET, field="compare_group"), _group(_A.GET, field="filter_groups", separator=","), _topic(_A.GET)),
    ),
    _C.QUERY_CONSUME_QUEUE: (_P.ADMIN, (_group(_A.GET), _topic(_A.GET))),
    _C.GET_CONSUME_STATS: (
        _P.ADMIN,
        (_group(_A.GET), _topic(_A.GET), _topic(_A.GET, field="topic_list", separator=";")),
    ),
    _C.GET_BROKER_CONSUME_STATS: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.VIEW_BROKER_STATS_DATA: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.GET_CONSUMER_CONNECTION_LIST: (_P.ADMIN, (_group(_A.GET),)),
    _C.GET_PRODUCER_CONNECTION_LIST: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.GET_ALL_PRODUCER_INFO: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.INVOKE_BROKER_TO_RESET_OFFSET: (_P.ADMIN, (_group(_A.UPDATE, field="group"), _topic(_A.UPDATE))),
    _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (_P.ADMIN, (_group(_A.GET, field="group"), _topic(_A.GET))),
    _C.CLONE_GROUP_OFFSET: (
        _P.ADMIN,
        (_group(_A.UPDATE, field="source_group"), _group(_A.UPDATE, field="destination_group"), _topic(_A.UPDATE)),
    ),
    _C.GET_CONSUMER_RUNNING_INFO: (_P.ADMIN, (_group(_A.GET),)),
    _C.CONSUME_MESSAGE_DIRECTLY: (_P.ADMIN, (_group(_A.SUB), _topic(_A.SUB, field=MESSAGE))),
    _C.RESUME_CHECK_HALF_MESSAGE: (_P.ADMIN, (_topic(_A.UPDATE, field=MESSAGE),)),
    _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.CLEAN_EXPIRED_CONSUMEQUEUE: (_P.ADMIN, (_cluster(_A.UPDATE),)),
    _C.CLEAN_UNUSED_TOPIC: (_P.ADMIN, (_cluster(_A.UPDATE),)),
    _C.DELETE_EXPIRED_COMMITLOG: (_P.ADMIN, (_cluster(_A.UPDATE),)),
    _C.EXCHANGE_BROKER_HA_INFO: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.GET_BROKER_HA_STATUS: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.GET_TIMER_CHECK_POINT: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.GET_TIMER_METRICS: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.GET_ALL_MESSAGE_REQUEST_MODE: (_P.ADMIN, (_cluster(_A.GET),)),
    _C.GET_BROKER_EPOCH_CACHE: (_P.ADMIN, (_cluster(_A.GET),)),
    **dict.fromkeys(_CHANGES_OF_ACCESS, (_P.ADMIN, (_cluster(_A.UPDATE),))),
    **dict.fromkeys(_LOOKS_AT_ACCESS, (_P.ADMIN, (_cluster(_A.GET),))),
}
_NOT_ON_FAST_PORT = frozenset((_C.PULL_MESSAGE, _C.LITE_PULL_MESSAGE))

REQUEST_TABLE: Mapping[int, RequestRow] = MappingProxyType(
    {
        int(code): RequestRow(REQUEST_HEADERS.get(code, RpcHeader), pool, needs, code not in _NOT_ON_FAST_PORT)
        for code, (pool, needs) in _NEEDS.items()
    }
)
"""By the code of the request."""

_CHANGES = frozenset((Action.CREATE, Action.UPDATE, Action.DELETE))
ADMINISTRATIVE = frozenset(
    code
    for code, row in REQUEST_TABLE.items()
    if any(need.type is ResourceType.CLUSTER or set(need.actions) <= _CHANGES for need in row.needs)
)
"""Codes of what operators ask for: of the whole broker, or changes that no client makes as it sends and consumes."""
