"""How brokers leave. The rules are those of Java's unRegisterBroker, scanNotActiveBroker and onChannelDestroy."""

from __future__ import annotations

from spark_mq.remoting import RequestCode
from spark_mq.remoting.routes import BrokerHeartbeatRequest
from tests.namesrv.asking import CLUSTER, START_MS, Asked


def close(asked: Asked, channel: str) -> None:
    asked.server.close_channel(channel)
    asked.settle()


def scan(asked: Asked, after_ms: int) -> list[str]:
    """The addresses that were silent for too long at a time after the start."""
    asked.now_ms = START_MS + after_ms
    found = asked.server.scan(asked.now_ms)
    asked.settle()
    return [one.who.address for one in found]


def is_empty(asked: Asked) -> bool:
    tables = asked.server.state.tables
    return not (tables.topics or tables.groups or tables.clusters or tables.live or tables.filter_servers)


def test_the_last_address_takes_name_cluster_and_topics_with_it() -> None:
    asked = Asked()
    asked.register(0)
    asked.register(1)
    answer = asked.leave(0)
    assert (answer.code, answer.ext_fields) == (0, None)
    assert (asked.addresses(), asked.perm()) == ({1: "h:1"}, 6)
    asked.leave(1)
    assert is_empty(asked)


def test_topics_of_others_stay() -> None:
    asked = Asked()
    asked.register(0)
    asked.register(0, broker_name="c", broker_address="h:c", topics=("T", "Other"), channel="c")
    asked.leave(0)
    assert asked.route("U") is None
    found = asked.route("T")
    assert found is not None
    assert [data.broker_name for data in found.broker_datas] == ["c"]
    assert [data.broker_name for data in found.queue_datas] == ["c"]


def test_without_a_master_nothing_is_written_where_slaves_stand_in() -> None:
    for enabled, perm in ((True, 4), (False, 6)):
        asked = Asked()
        asked.register(0, enable_acting_master=enabled)
        asked.register(1, enable_acting_master=enabled)
        asked.leave(0)
        assert asked.perm() == perm


def test_silence_ends_after_two_minutes_or_when_the_broker_says() -> None:
    asked = Asked()
    asked.register(0)
    asked.register(0, broker_name="c", broker_address="h:c", heartbeat_timeout_ms=10_000, channel="c")
    assert scan(asked, 10_000) == []
    assert scan(asked, 10_001) == ["h:c"]
    assert scan(asked, 120_000) == []
    assert scan(asked, 120_001) == ["h:0"]
    assert is_empty(asked)


def test_each_of_three_requests_is_a_sign_of_life() -> None:
    asked = Asked()
    asked.register(0)
    heartbeat = BrokerHeartbeatRequest(cluster_name=CLUSTER, broker_address="h:0", broker_name="b")
    fields = {"brokerName": "b", "brokerAddr": "h:0", "clusterName": CLUSTER, "brokerId": "0"}
    asked.now_ms = START_MS + 100_000
    assert asked.ask(RequestCode.BROKER_HEARTBEAT, heartbeat).code == 0
    assert scan(asked, 220_000) == []
    assert asked.ask(RequestCode.QUERY_DATA_VERSION, fields, b"{}").code == 0
    assert scan(asked, 340_000) == []
    asked.register(0)
    assert scan(asked, 460_000) == []
    assert scan(asked, 460_001) == ["h:0"]


def test_an_unknown_broker_stays_unknown() -> None:
    asked = Asked()
    heartbeat = BrokerHeartbeatRequest(cluster_name=CLUSTER, broker_address="h:0", broker_name="b")
    assert asked.ask(RequestCode.BROKER_HEARTBEAT, heartbeat).code == 0
    assert asked.leave(0).code == 0
    assert is_empty(asked)


def test_a_closed_connection_takes_its_brokers_at_once() -> None:
    asked = Asked()
    asked.register(0, channel="first")
    asked.register(0, broker_name="c", broker_address="h:c", channel="first")
    asked.register(0, broker_name="d", broker_address="h:d", channel="second")
    close(asked, "nobody's")
    close(asked, "first")
    found = asked.route()
    assert found is not None
    assert [data.broker_name for data in found.broker_datas] == ["d"]


def test_the_connection_of_the_last_registration_counts() -> None:
    asked = Asked()
    asked.register(0, channel="first")
    asked.register(0, channel="second")
    close(asked, "first")
    assert asked.addresses() == {0: "h:0"}
    close(asked, "second")
    assert is_empty(asked)


def test_an_address_whose_id_another_has_taken_is_forgotten_without_a_word() -> None:
    asked = Asked()
    asked.register(0, channel="first")
    asked.register(0, broker_address="h:new", channel="second")
    close(asked, "first")
    assert asked.addresses() == {0: "h:new"}
    assert len(asked.server.state.tables.live) == 1


def test_the_others_hear_of_a_lowest_id_that_left_where_slaves_stand_in() -> None:
    for enabled, count in ((True, 1), (False, 0)):
        asked = Asked(notifyMinBrokerIdChanged="true")
        for broker_id in (0, 1, 2):
            asked.register(broker_id, enable_acting_master=enabled)
        asked.leave(2)
        assert asked.notices == []
        asked.leave(0)
        assert len(asked.notices) == count
    asked = Asked(notifyMinBrokerIdChanged="true")
    for broker_id in (0, 1, 2):
        asked.register(broker_id, enable_acting_master=True)
    close(asked, "channel 0")
    ((addresses, header),) = asked.notices
    assert addresses == ("h:1", "h:2")
    assert (header.min_broker_id, header.min_broker_address) == (1, "h:1")
    assert (header.offline_broker_address, header.ha_broker_address, header.broker_name) == ("h:0", None, None)


def test_those_of_one_moment_are_one_batch() -> None:
    asked = Asked(notifyMinBrokerIdChanged="true")
    for broker_id in (0, 1, 2):
        asked.register(broker_id, enable_acting_master=True)
    for channel in ("channel 0", "channel 1", "channel 2"):
        asked.server.close_channel(channel)
    assert not asked.server.is_settled
    asked.settle()
    assert asked.server.is_settled
    assert is_empty(asked)
    assert asked.notices == []


def test_departures_beyond_the_queue_are_refused() -> None:
    asked = Asked(unRegisterBrokerQueueCapacity="1")
    asked.register(0)
    asked.server.close_channel("channel 0")
    answer = asked.leave(0)
    assert (answer.code, answer.remark) == (1, None)
    assert is_empty(asked)
