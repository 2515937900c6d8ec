"""Which typed body belongs to which code. Records, texts of properties, lists of names and batches of messages are not here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from spark_mq.remoting import admin_bodies as admin
from spark_mq.remoting import client_bodies as client
from spark_mq.remoting import controller_bodies as controller
from spark_mq.remoting import route_bodies as route
from spark_mq.remoting.body_fields import WireBody
from spark_mq.remoting.codes import RequestCode

REQUEST_BODIES: Mapping[int, type[WireBody]] = MappingProxyType(
    {
        RequestCode.HEART_BEAT: client.HeartbeatData,
        RequestCode.CHECK_CLIENT_CONFIG: client.CheckClientBody,
        RequestCode.LOCK_BATCH_MQ: client.LockBody,
        RequestCode.UNLOCK_BATCH_MQ: client.LockBody,
        RequestCode.QUERY_ASSIGNMENT: client.AssignmentQuestion,
        RequestCode.SET_MESSAGE_REQUEST_MODE: client.RequestModeBody,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: client.OffsetTable,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: admin.TopicConfigList,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.SubscriptionGroupConfig,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: admin.SubscriptionGroupList,
        RequestCode.REGISTER_BROKER: route.RegisterBrokerBody,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV: route.TopicRouteData,
        RequestCode.QUERY_DATA_VERSION: route.DataVersion,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: controller.SyncStateSet,
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED: controller.SyncStateSet,
        RequestCode.AUTH_CREATE_USER: admin.UserInfo,
        RequestCode.AUTH_UPDATE_USER: admin.UserInfo,
        RequestCode.AUTH_CREATE_ACL: admin.AclInfo,
        RequestCode.AUTH_UPDATE_ACL: admin.AclInfo,
    }
)
"""By the code of the request."""

ANSWER_BODIES: Mapping[int, type[WireBody]] = MappingProxyType(
    {
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: client.ConsumerList,
        RequestCode.LOCK_BATCH_MQ: client.LockedQueues,
        RequestCode.QUERY_ASSIGNMENT: client.QueueAssignments,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: client.OffsetTable,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: client.ConsumerStatus,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: client.ConsumerStatus,
        RequestCode.GET_CONSUMER_RUNNING_INFO: client.ConsumerRunningInfo,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: client.ConsumeDirectlyResult,
        RequestCode.GET_TOPIC_STATS_INFO: admin.TopicStatsTable,
        RequestCode.GET_CONSUME_STATS: admin.ConsumeStats,
        RequestCode.GET_BROKER_CONSUME_STATS: admin.ConsumeStatsList,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: admin.ConsumerConnection,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: admin.ProducerConnection,
        RequestCode.GET_ALL_PRODUCER_INFO: admin.ProducerTable,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.SubscriptionGroupTable,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: admin.SubscriptionGroupConfig,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: admin.GroupForbidden,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: admin.GroupList,
        RequestCode.VIEW_BROKER_STATS_DATA: admin.BrokerStats,
        RequestCode.QUERY_CONSUME_TIME_SPAN: admin.ConsumeTimeSpans,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: admin.GroupSubscription,
        RequestCode.QUERY_CORRECTION_OFFSET: admin.CorrectionOffsets,
        RequestCode.QUERY_CONSUME_QUEUE: admin.ConsumeQueueEntries,
        RequestCode.AUTH_GET_USER: admin.UserInfo,
        RequestCode.AUTH_GET_ACL: admin.AclInfo,
        RequestCode.GET_BROKER_HA_STATUS: admin.HaRuntimeInfo,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: route.TopicRouteData,
        RequestCode.GET_BROKER_CLUSTER_INFO: route.ClusterInfo,
        RequestCode.GET_BROKER_MEMBER_GROUP: route.BrokerMemberGroupAnswer,
        RequestCode.GET_ALL_TOPIC_CONFIG: route.TopicConfigTable,
        RequestCode.GET_TOPIC_CONFIG: route.TopicConfigData,
        RequestCode.GET_BROKER_RUNTIME_INFO: route.KvTable,
        RequestCode.GET_KVLIST_BY_NAMESPACE: route.KvTable,
        RequestCode.REGISTER_BROKER: route.KvTable,
        RequestCode.QUERY_DATA_VERSION: route.DataVersion,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: controller.SyncStateSet,
        RequestCode.CONTROLLER_ELECT_MASTER: controller.ElectedMasterBody,
        RequestCode.CONTROLLER_REGISTER_BROKER: controller.SyncStateSet,
        RequestCode.CONTROLLER_GET_REPLICA_INFO: controller.SyncStateSet,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: controller.BrokerReplicasInfo,
        RequestCode.GET_BROKER_EPOCH_CACHE: controller.EpochEntryCache,
        **dict.fromkeys(
            (
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
                RequestCode.GET_TOPICS_BY_CLUSTER,
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
                RequestCode.GET_UNIT_TOPIC_LIST,
                RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
                RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
                RequestCode.QUERY_TOPICS_BY_CONSUMER,
            ),
            route.TopicList,
        ),
    }
)
"""By the code of the request. An answer may have no body: an empty set, or a refusal."""
