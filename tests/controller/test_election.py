"""Who becomes master, who is alive, and who hears of it."""

from __future__ import annotations

import json

import pytest

from spark_mq.remoting import ProtocolVersion, RequestCode
from spark_mq.remoting.controllers import SyncStateSet
from spark_mq.remoting.routes import BrokerHeartbeatRequest
from tests.controller.asking import (
    CLUSTER,
    NAME,
    Asked,
    elected_body,
    in_sync,
    master_of,
    said,
)

# 1002: elections.


def test_the_first_master_is_who_asks() -> None:
    asked = Asked()
    asked.enter(1, 2)
    answer = asked.elect(2)
    assert master_of(answer) == (2, "h:2", 1, 1)
    body = elected_body(answer)
    assert body.broker_ids == (2,)
    assert body.group is not None
    assert body.group.broker_addresses == {1: "h:1", 2: "h:2"}
    assert asked.master == (2, 1, {2}, 1)


def test_mqadmin_of_5_4_is_answered_in_json_that_it_can_skip() -> None:
    asked = Asked()
    asked.enter(1, 2)
    answer = asked.elect(2, version=ProtocolVersion.V5_4_0)
    assert json.loads(bytes(answer.body))["brokerMemberGroup"]["brokerAddrs"] == {"1": "h:1", "2": "h:2"}
    assert elected_body(answer).broker_ids == (2,)


def test_who_is_not_registered_is_not_the_first_master() -> None:
    asked = Asked()
    assert said(asked.elect(1)) == (2010, "Broker hasn't been registered")
    asked.enter(1)
    assert said(asked.elect(7)) == (2010, f"BrokerId: 7 hasn't been registered in broker-set: {NAME}")
    assert said(asked.elect(-1))[0] == 2004
    assert asked.master == (None, 0, set(), 0)


def test_a_living_master_stays() -> None:
    asked = in_sync(1, 2)
    answer = asked.elect(2)
    assert said(answer) == (2011, f"The old master 1 is still alive, not need to elect new master for broker {NAME}")
    assert master_of(answer) == (1, "h:1", 1, 2)
    assert answer.body == b'{"syncStateSet":[1,2]}'
    assert asked.master == (1, 1, {1, 2}, 2)
    assert asked.notices == []


def test_a_master_is_followed_by_one_that_is_in_sync_and_alive() -> None:
    asked = in_sync(1, 2, 3)
    asked.alter((1, 3), set_epoch=2)
    asked.beat(2, epoch=9, max_offset=900)
    asked.hang_up(1)
    assert asked.master == (3, 2, {3}, 4), "2 holds more, but is not in sync"


@pytest.mark.parametrize(
    ("of_2", "of_3", "master"),
    [
        ({"epoch": 2, "max_offset": 5}, {"epoch": 1, "max_offset": 900}, 2),
        ({"epoch": 2, "max_offset": 5}, {"epoch": 2, "max_offset": 6}, 3),
        (
            {"epoch": 2, "max_offset": 5, "election_priority": 2},
            {"epoch": 2, "max_offset": 5, "election_priority": 1},
            3,
        ),
        ({"epoch": 2, "max_offset": 5, "election_priority": 1}, {"epoch": 2, "max_offset": 5}, 2),
        ({"epoch": 2, "max_offset": 5}, {"epoch": 2, "max_offset": 5}, 2),
        ({"epoch": 2, "max_offset": 1 << 31}, {"epoch": 2, "max_offset": 0}, 2),
        ({"epoch": 2, "max_offset": 0}, {"epoch": 2, "max_offset": (1 << 32) + 5}, 3),
        ({"epoch": 2_147_483_647, "max_offset": 0}, {"epoch": -1, "max_offset": 0}, 2),
    ],
)
def test_the_best_log_wins_then_the_lowest_priority(of_2: dict[str, int], of_3: dict[str, int], master: int) -> None:
    """Numbers beyond an int too, which Java subtracts (its issue 10578)."""
    asked = in_sync(1, 2, 3)
    asked.beat(2, **of_2)
    asked.beat(3, **of_3)
    asked.hang_up(1)
    assert asked.master[0] == master


def test_a_designated_broker_is_elected_or_nobody() -> None:
    asked = in_sync(1, 2, 3)
    asked.alter((1, 2), set_epoch=2)
    assert said(asked.elect(3, designate=True)) == (2012, "Failed to elect a new master")
    assert asked.master == (1, 1, {1, 2}, 3)
    assert master_of(asked.elect(2, designate=True)) == (2, "h:2", 2, 4)
    assert said(asked.elect(2, designate=True))[0] == 2011


def test_nobody_in_sync_is_alive() -> None:
    asked = in_sync(1, 2)
    asked.enter(3)
    asked.hang_up(2)
    asked.hang_up(1)
    assert asked.master == (None, 2, {1, 2}, 2), "the controller asks: no master, and those in sync stay so"
    assert said(asked.elect(3)) == (2012, "Failed to elect a new master")
    again = asked.elect(-1)
    assert said(again) == (2004, "Old master has down and failed to elect a new broker master")
    assert asked.master == (None, 2, {1, 2}, 2), "a group without a master loses none again"
    asked.beat(2)
    assert master_of(asked.elect(3)) == (2, "h:2", 3, 3)


def test_an_unclean_master_is_elected_where_that_is_allowed() -> None:
    asked = in_sync(1)
    asked.enter(2)
    asked.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, None, b"enableElectUncleanMaster=true")
    asked.hang_up(1)
    assert asked.master == (2, 2, {2}, 2)


# Who is alive.


def test_a_silent_master_is_followed() -> None:
    asked = in_sync(1, 2)
    asked.now_ms += 10_000
    asked.beat(2)
    assert asked.controller.scan_brokers(asked.now_ms) == []
    asked.now_ms += 1
    (gone,) = asked.controller.scan_brokers(asked.now_ms)
    assert (gone.key, gone.silent_ms, gone.channel) == ((NAME, 1), 10_001, "channel 1")
    assert asked.master == (2, 2, {2}, 3)
    assert asked.controller.scan_brokers(asked.now_ms) == []


def test_brokers_say_for_how_long_they_may_be_silent() -> None:
    asked = in_sync(1, 2)
    asked.beat(1, heartbeat_timeout_ms=500)
    asked.beat(2, heartbeat_timeout_ms=None)
    asked.now_ms += 501
    assert [gone.key.broker_id for gone in asked.controller.scan_brokers(asked.now_ms)] == [1]


def test_a_slave_that_leaves_changes_nothing() -> None:
    asked = in_sync(1, 2)
    asked.hang_up(2)
    assert asked.master == (1, 1, {1, 2}, 2)


def test_all_brokers_of_a_closed_connection_are_gone() -> None:
    asked = in_sync(1, 2)
    asked.enter(3)
    asked.hang_up(2)
    asked.beat(2, channel="channel 1")
    asked.hang_up(1)
    assert asked.master[0] is None


def test_a_controller_that_was_started_anew_finds_masters_that_are_gone() -> None:
    asked = Asked(in_sync(1, 2).controller.state)
    asked.controller.scan_masters(asked.now_ms)
    assert asked.master == (1, 1, {1, 2}, 2), "nobody is heard of yet"
    asked.beat(2)
    asked.controller.scan_masters(asked.now_ms)
    assert asked.master == (2, 2, {2}, 3)
    assert [notice.addresses for notice in asked.notices] == [("h:2",)]


def test_epoch_and_offset_of_a_living_broker_go_up_alone() -> None:
    asked = in_sync(1, 2, 3)
    asked.beat(2, epoch=3, max_offset=10)
    asked.beat(2, epoch=2, max_offset=99)
    asked.beat(3, epoch=3, max_offset=9)
    asked.hang_up(1)
    assert asked.master[0] == 2


def test_heartbeats_of_nobody_are_refused() -> None:
    asked = in_sync(1)
    header = {"clusterName": CLUSTER, "brokerName": NAME, "brokerAddr": "h:1"}
    assert said(asked.ask(RequestCode.BROKER_HEARTBEAT, header)) == (2005, "Heart beat with empty brokerId")
    assert said(asked.beat(1)) == (0, "Heart beat success")
    assert asked.beat(2).code == 2010
    assert asked.beat(1, name="other").code == 2010
    other = BrokerHeartbeatRequest(cluster_name="D", broker_name=NAME, broker_id=1, broker_address="h:1")
    assert asked.ask(RequestCode.BROKER_HEARTBEAT, other).code == 2010
    assert len(asked.controller.liveness.live) == 1


# 1008: notices.


def test_living_brokers_hear_of_a_new_master() -> None:
    asked = in_sync(1, 2)
    asked.enter(3)
    asked.hang_up(1)
    (notice,) = asked.notices
    assert notice.addresses == ("h:2", "h:3")
    header, body = notice.header, notice.body
    assert (header.master_broker_id, header.master_address, header.master_epoch) == (2, "h:2", 2)
    assert (header.sync_state_set_epoch, body) == (3, SyncStateSet(broker_ids=(2,), epoch=3))


def test_nobody_hears_of_it_where_that_is_switched_off() -> None:
    asked = Asked(notifyBrokerRoleChanged="false")
    asked.enter(1)
    asked.elect(1)
    assert asked.notices == []


def test_a_broker_that_has_come_over_another_connection_is_not_gone_with_the_first() -> None:
    asked = in_sync(1, 2)
    asked.beat(1, channel="another")
    asked.hang_up(1)
    assert asked.master[0] == 1
    asked.controller.close_channel("another", asked.now_ms)
    assert asked.master[0] == 2
