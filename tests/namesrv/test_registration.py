"""Who registers what, in which order, and what the tables say then. The rules are those of Java's RouteInfoManager.registerBroker."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest

from spark_mq.namesrv.registration import Registration, RegistrationRules, RouteLimits, register, unregister
from spark_mq.namesrv.tables import RouteTables
from spark_mq.remoting import ProtocolVersion, RemotingCommand, RequestCode, read_body, read_header, write_body
from spark_mq.remoting.routes import (
    BrokerAddressRequest,
    BrokerGroupRequest,
    BrokerMemberGroupAnswer,
    ClusterInfo,
    DataVersionAnswer,
    QueueData,
    RegisterBrokerAnswer,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    TopicConfigTable,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from storage.errors import ConfigurationError
from storage.format.typed_json import DataVersion, TopicConfig
from storage.rules.response_codes import RequestRefusedError
from tests.namesrv.asking import CLUSTER, START_MS, Asked, registered
from tests.support.registrations import write_compressed

HEADER = RegisterBrokerRequest(
    broker_name="b", broker_address="h:0", cluster_name=CLUSTER, ha_server_address="ha:0", broker_id=0
)


def cluster(asked: Asked) -> ClusterInfo:
    return read_body(ClusterInfo, asked.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)


def test_a_master_registers_its_topics() -> None:
    asked = Asked()
    answer = asked.register()
    assert (answer.code, answer.ext_fields, answer.remark, answer.body) == (0, {}, None, b"")
    route = asked.route("T")
    assert route is not None
    assert route.queue_datas == (QueueData(broker_name="b", read_queue_count=16, write_queue_count=16, perm=6),)
    assert route.broker_datas[0].broker_addresses == {0: "h:0"}
    assert route.broker_datas[0].cluster == CLUSTER
    assert cluster(asked).cluster_address_table == {CLUSTER: ("b",)}


def test_a_body_that_is_not_the_sent_one_is_refused() -> None:
    asked = Asked()
    answer = asked.register(body_crc32=7)
    assert (answer.code, answer.remark, answer.ext_fields) == (1, "crc32 not match", {})
    assert asked.register(body_crc32=0).code == 0


def test_a_slave_is_told_of_its_master_and_its_topics_do_not_count() -> None:
    asked = Asked()
    assert asked.register(1, topics=("Slaves", "Too")).ext_fields == {}
    assert asked.route("Slaves") is None
    asked.register(0)
    told = read_header(RegisterBrokerAnswer, asked.register(1))
    assert (told.master_address, told.ha_server_address) == ("h:0", "ha:0")
    assert asked.addresses() == {0: "h:0", 1: "h:1"}


def test_a_topic_that_registers_alone_before_its_broker_is_refused_and_leaves_no_name() -> None:
    asked = Asked()
    answer = asked.register(topics=("T",))
    assert (answer.code, answer.remark) == (1, "register broker failed")
    assert cluster(asked).cluster_address_table == {}
    assert cluster(asked).broker_address_table == {}
    asked.register()
    assert asked.register(topics=("New",), version=2).code == 0
    assert asked.addresses("New") == {0: "h:0"}


def test_equal_versions_change_nothing_but_bring_back_what_is_missing() -> None:
    asked = Asked()
    asked.register(perm=6)
    asked.register(perm=4)
    assert asked.perm() == 6
    asked.register(perm=4, version=2)
    assert asked.perm() == 4
    asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
    assert asked.route("T") is None
    asked.register(perm=6, version=2)
    assert (asked.perm("T"), asked.perm("U")) == (6, 4)


def test_topics_that_are_not_registered_any_more_stay_unless_the_setting_says_otherwise() -> None:
    for value, stays in (("false", True), ("true", False)):
        asked = Asked(deleteTopicWithBrokerRegistration=value)
        asked.register(topics=("T", "U"))
        asked.register(topics=("T", "V"), version=2)
        assert (asked.route("U") is not None) is stays
        assert asked.route("V") is not None


def test_a_topic_that_an_operator_has_registered_goes_with_an_equal_registration_if_the_setting_says_so() -> None:
    asked = Asked(deleteTopicWithBrokerRegistration="true")
    asked.register()
    asked.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "X"}, operators_topic())
    assert asked.route("X") is not None
    asked.register()
    assert asked.route("X") is None


def test_a_slave_that_has_the_lowest_id_now_brings_its_topics_with_an_equal_registration() -> None:
    """What it said before, as one slave of several, did not count."""
    asked = Asked()
    asked.register(0, enable_acting_master=True)
    asked.register(1, enable_acting_master=True, topics=("T", "U", "W"))
    assert asked.route("W") is None
    asked.leave(0)
    asked.register(1, enable_acting_master=True, topics=("T", "U", "W"))
    assert asked.perm("W") == 4


def test_an_address_has_one_id() -> None:
    asked = Asked()
    asked.register(1, broker_address="h:9")
    asked.register(0, broker_address="h:9")
    assert asked.addresses() == {0: "h:9"}


def test_an_older_broker_of_the_same_id_is_answered_as_if_it_were_taken() -> None:
    asked = Asked()
    asked.register(state=5)
    answer = asked.register(state=4, broker_address="h:other", perm=4, version=9)
    assert (answer.code, answer.ext_fields) == (0, {})
    assert (asked.addresses(), asked.perm()) == ({0: "h:0"}, 6)
    asked.register(state=5, broker_address="h:other", perm=4, version=9)
    assert (asked.addresses(), asked.perm()) == ({0: "h:other"}, 4)


def test_the_slave_with_the_lowest_id_registers_topics_only_to_be_read() -> None:
    asked = Asked()
    asked.register(2, enable_acting_master=True)
    assert asked.perm() == 4
    asked = Asked()
    asked.register(2, enable_acting_master=False)
    assert asked.perm() == 6
    asked = Asked()
    asked.register(2)  # it says nothing of acting masters: a broker before 5.0
    assert asked.route() is None


def test_a_newcomer_with_the_lowest_id_is_told_to_the_others_if_that_is_switched_on() -> None:
    asked = Asked(notifyMinBrokerIdChanged="true")
    asked.register(2)
    asked.register(3)
    assert asked.notices == []
    asked.register(1)
    ((addresses, header),) = asked.notices
    assert addresses == ("h:2", "h:3")
    assert (header.min_broker_id, header.min_broker_address, header.ha_broker_address) == (1, "h:1", "ha:1")
    asked = Asked()
    asked.register(2)
    asked.register(1)
    assert asked.notices == []


@pytest.mark.parametrize("version", [ProtocolVersion.V3_0_7_SNAPSHOT, ProtocolVersion.V4_9_4, ProtocolVersion.V5_3_3])
def test_brokers_of_every_version_are_understood(version: int) -> None:
    asked = Asked()
    body = registered(("T", "U"))
    old = body.topic_config_table if version < ProtocolVersion.V3_0_11 else body
    fields = {"brokerName": "b", "brokerAddr": "h:0", "clusterName": CLUSTER, "haServerAddr": "ha:0", "brokerId": "0"}
    assert asked.ask(RequestCode.REGISTER_BROKER, fields, write_body(old), version=version).code == 0
    assert asked.addresses() == {0: "h:0"}


def test_a_compressed_registration_is_one() -> None:
    asked = Asked()
    mapping = TopicQueueMappingInfo(topic="T", total_queues=2, broker_name="b", current_ids={0: 1})
    table = TopicConfigTable(
        topic_config_table={topic: TopicConfig(topic=topic, perm=4) for topic in ("T", "U")},
        data_version=DataVersion(counter=1),
        topic_queue_mapping_info_map={"T": mapping},
    )
    body = write_compressed(RegisterBrokerBody(topic_config_table=table, filter_servers=("f:1",)))
    fields = {"brokerName": "b", "brokerAddr": "h:0", "clusterName": CLUSTER, "haServerAddr": "ha:0", "brokerId": "0"}
    assert asked.ask(RequestCode.REGISTER_BROKER, {**fields, "compressed": "true"}, body).code == 0
    route = asked.route()
    assert route is not None
    assert route.topic_queue_mapping_by_broker == {"b": mapping}
    assert route.filter_server_table == {"h:0": ("f:1",)}
    assert asked.ask(RequestCode.REGISTER_BROKER, {**fields, "compressed": "true"}, body[:-9]).code == 1


def test_a_broker_asks_whether_its_topics_are_known_as_they_are() -> None:
    asked = Asked()
    header = BrokerAddressRequest(broker_name="b", broker_address="h:0", cluster_name=CLUSTER, broker_id=0)
    version = DataVersion(counter=1, timestamp_ms=START_MS)
    answer = asked.ask(RequestCode.QUERY_DATA_VERSION, header, version)
    assert (read_header(DataVersionAnswer, answer).changed, answer.body) == (True, b"")
    asked.register()
    answer = asked.ask(RequestCode.QUERY_DATA_VERSION, header, version)
    assert (read_header(DataVersionAnswer, answer).changed, read_body(DataVersion, answer.body)) == (False, version)
    answer = asked.ask(RequestCode.QUERY_DATA_VERSION, header, DataVersion(counter=2))
    assert (read_header(DataVersionAnswer, answer).changed, read_body(DataVersion, answer.body)) == (True, version)


def test_the_brokers_of_a_name_are_told() -> None:
    asked = Asked()
    asked.register(3)
    asked.register(0)
    header = BrokerGroupRequest(cluster_name="any", broker_name="b")
    group = read_body(BrokerMemberGroupAnswer, asked.ask(RequestCode.GET_BROKER_MEMBER_GROUP, header).body).group
    assert (group.cluster, group.broker_name) == ("any", "b")
    assert list(group.broker_addresses.items()) == [(0, "h:0"), (3, "h:3")]
    header = BrokerGroupRequest(cluster_name=CLUSTER, broker_name="unknown")
    answer = asked.ask(RequestCode.GET_BROKER_MEMBER_GROUP, header)
    assert read_body(BrokerMemberGroupAnswer, answer.body).group.broker_addresses == {}


def test_what_is_too_long_or_too_much_is_refused_whole() -> None:
    limits = RouteLimits(name_length=8, brokers=1, brokers_of_a_name=2, topics=3)
    rules = RegistrationRules(limits=limits)
    tables = RouteTables()

    def told(topics: tuple[str, ...] = ("T", "U"), **fields: object) -> Registration:
        header = RegisterBrokerRequest(**{**vars(HEADER), **fields})  # type: ignore[arg-type]
        return Registration(header, registered(topics).topic_config_table, "channel")

    for bad, rule in (
        (told(broker_name="b" * 9), "the broker 'bbbbbbbbb'… is refused: it has 9 characters, the limit is 8"),
        (told(cluster_name=""), "the cluster has no name"),
        (told(("T", "U" * 9)), "the topic"),
        (told(("T", "U", "V", "W")), "at most 3 topics"),
    ):
        with pytest.raises(RequestRefusedError, match=rule):
            register(tables, bad, START_MS, rules)
        assert (tables.groups, tables.clusters, tables.topics, tables.live) == ({}, {}, {}, {})
    register(tables, told(), START_MS, rules)
    with pytest.raises(RequestRefusedError, match="at most 1 brokers"):
        register(tables, told(broker_name="other"), START_MS, rules)
    register(tables, told(broker_id=1, broker_address="h:1"), START_MS, rules)
    with pytest.raises(RequestRefusedError, match="at most 2 brokers of a name"):
        register(tables, told(broker_id=2, broker_address="h:2"), START_MS, rules)
    with pytest.raises(RequestRefusedError, match="at most 3 topics"):
        register(tables, told(("V", "W")), START_MS, rules)


def test_what_one_connection_registers_is_bounded() -> None:
    limits = RouteLimits(brokers_of_a_connection=3, topics_of_a_connection=10, static_topics=4)
    rules, tables = RegistrationRules(limits=limits), RouteTables()

    def take(name: str, first: int, count: int, channel: str = "stranger", mapped: int = 0) -> None:
        header = RegisterBrokerRequest(**{**vars(HEADER), "broker_name": name, "broker_address": f"{name}:1"})  # type: ignore[arg-type]
        table = registered(tuple(f"T{number}" for number in range(first, first + count)), mapped).topic_config_table
        mappings = {
            f"S{mapped + number}": TopicQueueMappingInfo(broker_name=name) for number in range(2 * bool(mapped))
        }
        table = replace(table, topic_queue_mapping_info_map=mappings)
        register(tables, Registration(header, table, channel), START_MS, rules)

    take("a", 0, 6)
    take("a", 0, 6)  # the same again
    with pytest.raises(RequestRefusedError, match="at most 10 topics over one connection"):
        take("b", 0, 6)
    with pytest.raises(RequestRefusedError, match="at most 10 topics over one connection"):
        take("a", 6, 5)  # what it has registered before counts, though it does not name it any more
    take("b", 0, 4)
    take("c", 0, 0)
    with pytest.raises(RequestRefusedError, match="at most 3 brokers over one connection"):
        take("d", 0, 0)
    take("d", 0, 6, "another")
    unregister(tables, [BrokerAddressRequest(broker_name="a", broker_address="a:1", cluster_name=CLUSTER, broker_id=0)])
    take("e", 0, 6)
    assert tables.topic_counts == {"b": 4, "d": 6, "e": 6}
    take("f", 0, 2, "static", mapped=1)
    take("f", 0, 2, "static", mapped=3)
    with pytest.raises(RequestRefusedError, match="at most 4 static topics"):
        take("f", 0, 2, "static", mapped=5)


def test_brokers_register_from_named_networks_alone() -> None:
    asked = Asked(registrationNetworks="10.1.0.0/16; fd00::/8")
    for host, code in (("10.1.2.3", 0), ("::ffff:10.1.2.3", 0), ("fd00::7", 0), ("10.2.0.1", 16), ("127.0.0.1", 16)):
        body = registered(("T", "U"))
        header = RegisterBrokerRequest(**{**vars(HEADER), "body_crc32": 0})
        answers = [
            asked.ask(RequestCode.REGISTER_BROKER, header, body, host=host),
            asked.ask(
                RequestCode.QUERY_DATA_VERSION,
                BrokerAddressRequest(broker_name="b", broker_address="h:0", cluster_name=CLUSTER, broker_id=0),
                DataVersion(),
                host=host,
            ),
        ]
        assert {answer.code for answer in answers} == {code}, host
        if code:
            assert "registrationNetworks" in (answers[0].remark or "")
    leave = BrokerAddressRequest(broker_name="b", broker_address="h:0", cluster_name=CLUSTER, broker_id=0)
    assert asked.ask(RequestCode.UNREGISTER_BROKER, leave, host="10.2.0.1").code == 16
    assert asked.addresses() == {0: "h:0"}
    with pytest.raises(ConfigurationError, match="registrationNetworks"):
        Asked(registrationNetworks="10.1.0.1/16")
    assert Asked().ask(RequestCode.REGISTER_BROKER, header, body, host="10.2.0.1").code == 0


def test_a_living_brokers_name_that_another_address_takes_is_said_with_both_addresses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = Asked()
    asked.register(0)
    asked.register(0)
    asked.register(1)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    for state in (5, 1):  # it takes the name, and the older one is dropped
        caplog.clear()
        asked.register(0, broker_address="stranger:9" if state == 5 else "h:0", state=state, channel="other")
        (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert "h:0" in said
        assert "stranger:9" in said
        assert asked.addresses() == {0: "stranger:9", 1: "h:1"}


def test_an_equal_registration_is_taken_without_its_topics_and_changes_what_it_would_have_changed() -> None:
    """Against tables that register everything each time: any order of events leads to the same routes."""
    events = (
        lambda asked: asked.register(0, channel="a"),
        lambda asked: asked.register(0, channel="b"),
        lambda asked: asked.register(0, version=2, perm=4),
        lambda asked: asked.register(1, enable_acting_master=True),
        lambda asked: asked.register(1, broker_address="h:0"),
        lambda asked: asked.register(2, enable_acting_master=True, topics=("T", "W")),
        lambda asked: asked.register(3, enable_acting_master=False, broker_address="h:1"),
        lambda asked: asked.register(0, broker_address="h:x", state=1),
        lambda asked: asked.register(0, fields={"__ZONE_NAME": "z"}),
        lambda asked: asked.register(0, enable_acting_master=True, topics=("T", "V")),
        lambda asked: asked.leave(0),
        lambda asked: asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}),
        lambda asked: asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "U", "clusterName": CLUSTER}),
        lambda asked: asked.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"}),
        lambda asked: (asked.server.close_channel("b"), asked.settle()),
        lambda asked: asked.leave(1),
        lambda asked: asked.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "X"}, operators_topic()),
        lambda asked: asked.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"deleteTopicWithBrokerRegistration=true"),
    )
    chance = random.Random(7)
    for _ in range(150):
        settings = {"deleteTopicWithBrokerRegistration": chance.choice(("true", "false"))}
        quick, thorough = Asked(**settings), Asked(**settings)
        for event in chance.choices(events, k=14):
            for _ in range(2):
                found = [vars_of(event(asked)) for asked in (quick, thorough)]
                assert found[0] == found[1]
                for live in thorough.server.state.tables.live.values():
                    live.sign = b"none is like it"
                assert shown(quick) == shown(thorough)


def operators_topic() -> TopicRouteData:
    return TopicRouteData(queue_datas=(QueueData(broker_name="b", read_queue_count=1, write_queue_count=1, perm=6),))


def vars_of(answer: object) -> object:
    """What an answer says; nothing of what is no answer."""
    return answer[:6] if isinstance(answer, RemotingCommand) else None


def shown(asked: Asked) -> object:
    """The tables but for the signs, as values."""
    tables = asked.server.state.tables
    live = {who: (one.data_version, one.channel, one.timeout_ms) for who, one in tables.live.items()}
    groups = {name: group.as_body() for name, group in tables.groups.items()}
    topics = {topic: dict(queues) for topic, queues in tables.topics.items()}
    return live, groups, topics, tables.clusters
