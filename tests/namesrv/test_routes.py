"""What a route says: acting masters, zones, ordered topics, and in which form for whom."""

from __future__ import annotations

import pytest

from spark_mq.namesrv.name_server import system_topics, topics_of_cluster
from spark_mq.namesrv.tables import RouteTables
from spark_mq.remoting import ProtocolVersion, RequestCode, read_body
from spark_mq.remoting.routes import QueueData, TopicList, TopicRouteData
from storage.rules.response_codes import with_advice
from tests.namesrv.asking import START_MS, Asked


def test_no_broker_no_route() -> None:
    answer = Asked().ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert answer.remark == with_advice("No topic route info in name server for the topic: T")
    assert (answer.code, answer.ext_fields) == (17, None)


def test_routes_wait_for_brokers_where_that_is_switched_on() -> None:
    asked = Asked(needWaitForService="true", waitSecondsForService="3")
    asked.register()
    for after_ms, code in ((2_999, 1), (3_000, 0)):
        asked.now_ms = START_MS + after_ms
        answer = asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert (answer.code, answer.remark) == (code, "name server not ready" if code else None)


@pytest.mark.parametrize(
    ("supports", "enables", "topic", "shown"),
    [
        ("true", True, "T", {0: "h:1", 2: "h:2"}),
        ("false", True, "T", {1: "h:1", 2: "h:2"}),
        ("true", False, "T", {1: "h:1", 2: "h:2"}),
        ("true", True, "rmq_sys_SYNC_BROKER_MEMBER_b", {1: "h:1", 2: "h:2"}),
    ],
)
def test_the_lowest_slave_stands_in_for_a_master_that_is_gone(
    supports: str, enables: bool, topic: str, shown: dict[int, str]
) -> None:
    asked = Asked(supportActingMaster=supports)
    for broker_id in (0, 1, 2):
        asked.register(broker_id, topics=("Other", topic), enable_acting_master=enables)
    assert asked.addresses(topic) == {0: "h:0", 1: "h:1", 2: "h:2"}
    asked.leave(0)
    assert asked.addresses(topic) == shown


def test_a_slave_does_not_stand_in_where_something_can_be_written() -> None:
    asked = Asked(supportActingMaster="true")
    for broker_id in (0, 1):
        asked.register(broker_id, enable_acting_master=True)
    asked.leave(0)
    asked.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "b"})
    assert asked.addresses() == {1: "h:1"}


def test_a_client_of_a_zone_sees_the_brokers_there_and_those_without_a_master() -> None:
    asked = Asked()
    for name, broker_id, zone in (("b", 0, "East"), ("c", 0, "west"), ("d", 1, "west")):
        fields = {"__ZONE_NAME": zone}
        asked.register(
            broker_id,
            broker_name=name,
            broker_address=f"h:{name}",
            enable_acting_master=True,
            fields=fields,
            channel=name,
        )
    found = asked.route(__ZONE_NAME="EAST", __ZONE_MODE="True")
    assert found is not None
    assert [(data.broker_name, data.zone_name) for data in found.broker_datas] == [("b", "East"), ("d", "west")]
    assert [data.broker_name for data in found.queue_datas] == ["b", "d"]
    for fields in ({"__ZONE_NAME": "east"}, {"__ZONE_MODE": "true"}, {"__ZONE_NAME": " ", "__ZONE_MODE": "true"}):
        found = asked.route(**fields)
        assert found is not None
        assert len(found.broker_datas) == 3


def test_an_ordered_topic_says_how_its_queues_are_spread_where_that_is_switched_on() -> None:
    for value, told in (("true", "b:8"), ("false", None)):
        asked = Asked(orderMessageEnable=value)
        asked.register()
        fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b:8"}
        asked.ask(RequestCode.PUT_KV_CONFIG, fields)
        found = asked.route()
        assert found is not None
        assert found.order_topic_conf == told


def test_a_broker_is_told_of_ordered_topics_unless_that_is_switched_off() -> None:
    for value, body in (("true", b'{"table":{"T":"b:8"}}'), ("false", b"")):
        asked = Asked(returnOrderTopicConfigToBroker=value)
        fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b:8"}
        asked.ask(RequestCode.PUT_KV_CONFIG, fields)
        assert asked.register().body == body


@pytest.mark.parametrize(
    ("version", "accepts", "is_standard"),
    [
        (ProtocolVersion.V5_3_3, "false", True),
        (ProtocolVersion.V4_9_4, "false", True),
        (ProtocolVersion.V4_9_4 - 1, "false", False),
        (ProtocolVersion.V4_9_4 - 1, "true", True),
    ],
)
def test_keys_are_quoted_for_clients_that_read_no_other(version: int, accepts: str, is_standard: bool) -> None:
    asked = Asked()
    asked.register()
    fields = {"topic": "T", "acceptStandardJsonOnly": accepts}
    answer = asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, version=version)
    assert (b'{"0":"h:0"}' in answer.body) is is_standard
    assert (b'{0:"h:0"}' in answer.body) is not is_standard


def topics(asked: Asked, code: int, **fields: str) -> tuple[str, ...] | str | None:
    answer = asked.ask(code, fields or None)
    return read_body(TopicList, answer.body).topics if answer.code == 0 else answer.remark


def test_names_of_topics_are_listed_unless_that_is_switched_off() -> None:
    asked = Asked()
    asked.register(0)
    asked.register(0, broker_name="c", broker_address="h:c", cluster_name="D", topics=("T", "V"), channel="c")
    assert topics(asked, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ("T", "U", "V")
    assert topics(asked, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="C") == ("T", "U")
    assert topics(asked, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="unknown") == ()
    assert topics(asked, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == ("C", "b", "D", "c")
    assert system_topics(asked.server.state.tables).broker_address == "h:0"
    off = Asked(enableTopicList="false", enableAllTopicList="false")
    assert topics(off, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == "disable"
    assert topics(off, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="C") == "disable"
    assert topics(off, RequestCode.GET_UNIT_TOPIC_LIST) == "disable"
    assert topics(off, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == ()


def test_topics_of_units_are_listed_by_the_flags_of_their_first_broker() -> None:
    asked = Asked()
    for flag in range(4):
        asked.server.state.tables.put_queues(f"T{flag}", QueueData(broker_name="b", topic_sys_flag=flag))
        asked.server.state.tables.put_queues(f"T{flag}", QueueData(broker_name="c", topic_sys_flag=3))
    assert topics(asked, RequestCode.GET_UNIT_TOPIC_LIST) == ("T1", "T3")
    assert topics(asked, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ("T2", "T3")
    assert topics(asked, RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ("T2",)


def test_empty_tables_have_no_topics() -> None:
    tables = RouteTables()
    assert system_topics(tables) == topics_of_cluster(tables, "C") == TopicList()


def test_a_topic_is_added_and_deleted_by_an_operators_word() -> None:
    asked = Asked()
    asked.register(0)
    data = TopicRouteData(queue_datas=(QueueData(broker_name="b", read_queue_count=2, perm=6),))
    assert asked.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "New"}, data).code == 0
    assert asked.addresses("New") == {0: "h:0"}
    unknown = TopicRouteData(queue_datas=(QueueData(broker_name="b"), QueueData(broker_name="unknown")))
    assert asked.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "Other"}, unknown).code == 0
    assert asked.route("Other") is None
    assert asked.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "x" * 2_000}, data).code == 1
    asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "New", "clusterName": "unknown"})
    assert asked.addresses("New") == {0: "h:0"}
    asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "New", "clusterName": "C"})
    assert asked.route("New") is None
    asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
    assert asked.route("T") is None


def test_permission_to_write_is_taken_and_given_back_until_the_broker_says_otherwise() -> None:
    asked = Asked()
    asked.register(perm=7)
    answer = asked.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"})
    assert (answer.code, answer.ext_fields) == (0, {"wipeTopicCount": "2"})
    assert asked.perm() == 5
    asked.register(perm=7)
    assert asked.perm() == 5
    answer = asked.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "b"})
    assert (answer.code, answer.ext_fields) == (0, {"addTopicCount": "2"})
    assert asked.perm() == 6
    asked.register(perm=7, version=2)
    assert asked.perm() == 7
    answer = asked.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "unknown"})
    assert answer.ext_fields == {"wipeTopicCount": "0"}
