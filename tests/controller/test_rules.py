"""Each rule by which a controller answers, with Java's codes and remarks. Elections: `test_election.py`."""

from __future__ import annotations

from spark_mq.controller.state import (
    ApplyBrokerId,
    CleanBrokerData,
    ControllerState,
    ElectMaster,
    UpdateBrokerAddress,
    decode_event,
    encode_event,
)
from spark_mq.remoting import RequestCode, make_request, read_body, read_header
from spark_mq.remoting.command import write_texts
from spark_mq.remoting.controllers import (
    AlterSyncStateSetAnswer,
    BrokerReplicasInfo,
    ControllerMetadataAnswer,
    NextBrokerIdAnswer,
    NextBrokerIdRequest,
    ReplicaInfoAnswer,
    ReplicaInfoRequest,
)
from spark_mq.remoting_server.peer import Caller
from storage.rules.response_codes import ResponseCode
from tests.controller.asking import (
    CLUSTER,
    NAME,
    Asked,
    code_of,
    in_sync,
    said,
    told_at_registration,
)


def next_id(asked: Asked) -> int | None:
    header = NextBrokerIdRequest(cluster_name=CLUSTER, broker_name=NAME)
    return read_header(NextBrokerIdAnswer, asked.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)).next_broker_id


# 1012, 1013, 1003: registration.


def test_ids_are_counted_up_from_one_and_asking_for_the_next_takes_none() -> None:
    asked = Asked()
    assert (next_id(asked), next_id(asked)) == (1, 1)
    asked.enter(1, 2)
    assert next_id(asked) == 3
    asked.enter(5)
    assert next_id(asked) == 4
    asked.enter(4)
    assert next_id(asked) == 6, "5 is taken"


def test_the_first_id_of_a_name_is_one() -> None:
    asked = Asked()
    remark = f"Broker-set: {NAME} hasn't been registered in controller, but broker try to apply brokerId: 2"
    assert said(asked.apply(2)) == (2014, remark)
    assert asked.controller.state.groups == {}
    assert asked.apply(1).code == 0


def test_an_id_belongs_to_its_check_code() -> None:
    asked = Asked()
    asked.apply(1, "h:1;7")
    count = len(asked.events)
    assert said(asked.apply(1, "h:1;7")) == (0, None)
    assert len(asked.events) == count, "nothing new is decided for one that asks again"
    refused = asked.apply(1, "h:1;8")
    assert said(refused) == (2014, f"Fail to apply brokerId: 1 in broker-set: {NAME}")
    assert refused.ext_fields == {"clusterName": CLUSTER, "brokerName": NAME}
    for broker_id in (0, -1):
        assert asked.apply(broker_id).code == 2014


def test_a_broker_registers_with_an_id_that_it_has_applied_for() -> None:
    asked = Asked()
    assert said(asked.register(1)) == (2010, f"Broker-set: {NAME} hasn't been registered in controller")
    asked.apply(1)
    assert said(asked.register(2)) == (2010, f"BrokerId: 2 hasn't been registered in broker-set: {NAME}")
    answer = asked.register(1)
    assert answer.ext_fields == {"clusterName": CLUSTER, "brokerName": NAME}
    assert answer.body == b'{"syncStateSet":[],"syncStateSetEpoch":0}'


def test_a_registration_hears_of_a_living_master_alone() -> None:
    asked = in_sync(1, 2)
    told = told_at_registration(asked.register(2))
    assert (told.master_broker_id, told.master_address, told.master_epoch, told.sync_state_set_epoch) == (
        1,
        "h:1",
        1,
        2,
    )
    asked.now_ms += 10_001
    assert told_at_registration(asked.register(2)).master_broker_id is None
    assert asked.register(2).body == b'{"syncStateSet":[1,2],"syncStateSetEpoch":2}'


def test_a_broker_moves() -> None:
    asked = in_sync(1, 2)
    asked.register(1, "elsewhere:9")
    assert asked.group.master_address == "elsewhere:9"
    count = len(asked.events)
    asked.register(1, "elsewhere:9")
    assert len(asked.events) == count


# 1001: who is in sync.


def test_a_master_alters_who_is_in_sync() -> None:
    asked = in_sync(1)
    asked.enter(2)
    answer = asked.alter((2, 1, 2))
    assert read_header(AlterSyncStateSetAnswer, answer).new_sync_state_set_epoch == 2
    assert answer.body == b'{"syncStateSet":[1,2],"syncStateSetEpoch":2}'
    assert asked.master == (1, 1, {1, 2}, 2)


def test_a_set_is_refused_by_the_first_rule_that_it_breaks() -> None:
    asked = in_sync(1, 2)
    asked.enter(3)
    rejecting = "Rejecting alter syncStateSet request because the"
    equal = "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet"
    assert said(asked.alter((2, 1), master=9, master_epoch=9, set_epoch=9)) == (2013, equal)
    wrong_master = asked.alter((9,), master=9, master_epoch=9, set_epoch=9)
    assert said(wrong_master) == (2002, f"{rejecting} current leader is:{{1}}, not {{9}}")
    assert wrong_master.ext_fields == {"newSyncStateSetEpoch": "0"}
    wrong_epoch = asked.alter((9,), master_epoch=9, set_epoch=9)
    assert said(wrong_epoch) == (2000, f"{rejecting} current master epoch is:{{1}}, not {{9}}")
    wrong_set = asked.alter((9,), set_epoch=9)
    assert said(wrong_set) == (2001, f"{rejecting} current syncStateSet epoch is:{{2}}, not {{9}}")
    assert said(asked.alter((9,), set_epoch=2)) == (2003, f"{rejecting} replicas {{9}} don't exist")
    asked.hang_up(3)
    assert said(asked.alter((3,), set_epoch=2)) == (2006, f"{rejecting} replicas {{3}} don't alive")
    without = f"{rejecting} newSyncStateSet don't contains origin leader {{1}}"
    assert said(asked.alter((2,), set_epoch=2)) == (2013, without)
    assert said(asked.alter((), set_epoch=2)) == (2013, without)
    assert asked.master == (1, 1, {1, 2}, 2)


def test_a_deposed_master_alters_nothing() -> None:
    asked = in_sync(1, 2)
    asked.hang_up(1)
    asked.beat(1)
    assert said(asked.alter((1,), set_epoch=2))[0] == 2002
    assert asked.elect(1, designate=True).code == 2012
    asked.alter((1, 2), master=2, master_epoch=2, set_epoch=3)
    assert asked.elect(1, designate=True).code == 0
    assert said(asked.alter((1, 2), master=1, master_epoch=1, set_epoch=5))[0] == 2000


def test_a_group_without_a_master_has_no_set_altered() -> None:
    asked = in_sync(1)
    asked.hang_up(1)
    asked.beat(1)
    assert said(asked.alter((), master_epoch=2)) == (
        2002,
        "Rejecting alter syncStateSet request because the current leader is:{null}, not {1}",
    )
    assert said(Asked().alter((1,))) == (2013, "Broker metadata is not existed")


# 1004, 1005, 1006: questions.


def test_the_master_is_told_whether_it_is_alive_or_not() -> None:
    asked = in_sync(1, 2)
    asked.now_ms += 60_000
    answer = asked.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, ReplicaInfoRequest(broker_name=NAME))
    found = read_header(ReplicaInfoAnswer, answer)
    assert (found.master_broker_id, found.master_address, found.master_epoch) == (1, "h:1", 1)
    assert answer.body == b'{"syncStateSet":[1,2],"syncStateSetEpoch":2}'
    unknown = asked.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, ReplicaInfoRequest(broker_name="x"))
    assert (said(unknown), unknown.ext_fields) == ((2008, "Broker metadata is not existed"), {})


def test_a_controller_tells_of_itself() -> None:
    found = read_header(ControllerMetadataAnswer, Asked().ask(RequestCode.CONTROLLER_GET_METADATA_INFO))
    assert (found.group, found.controller_leader_id, found.is_leader) == ("controller", "n0", True)
    assert (found.controller_leader_address, found.peers) == ("127.0.0.1:9877", "n0:127.0.0.1:9877;")


def test_who_is_in_sync_is_told_of_the_names_that_are_known() -> None:
    asked = in_sync(1, 2)
    asked.enter(3)
    asked.hang_up(2)
    answer = asked.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, write_texts((NAME, "x", NAME)))
    table = read_body(BrokerReplicasInfo, answer.body).replicas_info_table
    assert list(table) == [NAME]
    info = table[NAME]
    assert (info.master_broker_id, info.master_address, info.master_epoch, info.sync_state_set_epoch) == (
        1,
        "h:1",
        1,
        2,
    )
    assert [(each.broker_id, each.alive) for each in info.in_sync_replicas or ()] == [(1, True), (2, False)]
    assert [(each.broker_id, each.alive) for each in info.not_in_sync_replicas or ()] == [(3, True)]
    for body in (b"", b"[]"):
        empty = asked.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, body)
        assert said(empty) == (1, "not set any response code")


# 1011: cleaning.


def test_a_group_with_a_master_is_not_cleaned() -> None:
    asked = in_sync(1, 2)
    assert said(asked.clean()) == (2009, f"Broker {NAME} is still alive, clean up failure")
    asked.hang_up(2)
    asked.hang_up(1)
    assert asked.clean().code == 0
    assert asked.controller.state.groups == {}
    assert asked.controller.state.replica_count == 0
    assert said(asked.clean()) == (2009, f"Broker {NAME} is not existed,clean broker data failure.")


def test_ids_that_are_gone_are_cleaned_and_never_given_again() -> None:
    asked = in_sync(1, 2, 3)
    assert said(asked.clean("2;3")) == (2009, f"Broker [{NAME},  2] is still alive, clean up failure")
    asked.hang_up(2)
    assert said(asked.clean(" 2; "))[0] == 0
    assert asked.master == (1, 1, {1, 3}, 2)
    assert next_id(asked) == 4
    assert asked.clean("2;x").code == 2009
    assert asked.clean("99999999999999999999").code == 2009


def test_a_cleaning_that_leaves_nobody_in_sync_forgets_the_group() -> None:
    asked = in_sync(1)
    asked.enter(2)
    asked.hang_up(1)
    assert asked.clean("1").code == 0
    assert asked.controller.state.groups == {}
    assert asked.apply(1, "h:9;9").code == 0


def test_living_brokers_are_cleaned_by_an_operators_word_all_of_them() -> None:
    asked = in_sync(1, 2)
    assert asked.clean("2", living=True).code == 0
    assert asked.controller.state.groups == {}
    assert asked.events[-1] == CleanBrokerData(broker_name=NAME)


# 1009, 1010: settings. And who may what.


def test_settings_are_told_and_changed() -> None:
    asked = Asked()
    assert b"\nscanNotActiveBrokerInterval=5000\n" in bytes(asked.ask(RequestCode.GET_CONTROLLER_CONFIG).body)
    assert asked.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, None, b"scanNotActiveBrokerInterval=70").code == 0
    assert asked.controller.configuration.controller.broker_scan_interval_ms == 70
    assert asked.saved == [{"scanNotActiveBrokerInterval": "70"}]
    for name in ("controllerStorePath", "rocketmqHome", "tls.server.mode", "controllerDLegerPeers", "listenPort"):
        refused = asked.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, None, f"{name}=x".encode())
        assert refused.code == 16
        assert (refused.remark or "").startswith(f"Can not update config {name}: only a start reads it")
    for name in ("configBlackList", "configStorePath"):
        refused = asked.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, None, f"{name}=x".encode())
        assert said(refused) == (16, "Can not update config in black list.")
    assert asked.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, None, b"scanNotActiveBrokerInterval=soon").code == 1


def test_what_operators_change_is_answered_to_this_host_alone() -> None:
    asked = in_sync(1, 2)
    assert asked.clean("2", host="10.0.0.1").code == 16
    assert asked.elect(2, designate=True, host="10.0.0.1").code == 16
    assert asked.elect(2, host="10.0.0.1").code == 2011
    for code in (RequestCode.UPDATE_CONTROLLER_CONFIG, RequestCode.GET_CONTROLLER_CONFIG):
        assert asked.ask(code, host="10.0.0.1").code == 16
    assert asked.master == (1, 1, {1, 2}, 2)


# What cannot be kept, or read, or is too much.


def test_what_cannot_be_kept_does_not_hold() -> None:
    asked = in_sync(1, 2)
    asked.disk_is_full = True
    assert said(asked.alter((1,), set_epoch=2)) == (1, "it could not be written: No space left on device")
    assert asked.apply(3).code == 1
    asked.hang_up(1)
    assert asked.master == (1, 1, {1, 2}, 2)
    assert asked.notices == []
    asked.disk_is_full = False
    asked.controller.scan_masters(asked.now_ms)
    assert asked.master == (2, 2, {2}, 3)


def test_too_much_is_refused_with_the_limit() -> None:
    asked = Asked()
    for broker_id in range(1, 101):
        assert asked.apply(broker_id).code == 0
        assert asked.register(broker_id).code == 0
    assert said(asked.apply(101)) == (1, "this controller takes at most 100 brokers of a name")
    assert said(asked.apply(1, name="n" * 256))[0] == 1
    assert "it has 256 characters, the limit is 255" in (asked.apply(1, name="n" * 256).remark or "")
    assert asked.apply(1, name="").code == 1
    assert asked.apply(1, name="a\nb").code == 1
    for code in ("", ";", "h:1" + "x" * 510, "a\x00;1"):
        assert (
            asked.ask(
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                {"clusterName": CLUSTER, "brokerName": "c", "appliedBrokerId": "1", "registerCheckCode": code},
            ).code
            == 1
        )
    body = b"[" + b" " * (1 << 20) + b"]"
    assert asked.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, body).code == 1
    assert set(asked.controller.state.groups) == {NAME}
    asked.controller.state.replica_count = 10_000
    assert said(asked.apply(1, name="last")) == (1, "this controller takes at most 10000 brokers")


def test_invented_names_shut_out_nobody_and_lapse() -> None:
    asked = Asked()
    assert asked.apply(1).code == 0
    assert asked.register(1).code == 0
    assert asked.apply(2, host="10.0.0.2").code == 0
    for number in range(3_000):
        assert asked.apply(1, name=f"invented {number}", host="10.0.0.66").code == 0
    state = asked.controller.state
    assert len(state.pending) == 1_000
    assert state.registered_count == 1
    assert set(asked.group.replicas) == {1, 2}  # the host gives way that has the most
    assert asked.apply(1, name="new", host="10.0.0.3").code == 0
    assert asked.register(1, name="new").code == 0
    assert state.registered_count == 2

    asked.now_ms += 3_000_000
    assert asked.apply(1, name="late", host="10.0.0.3").code == 0
    asked.controller.scan_brokers(asked.now_ms)
    assert len(state.pending) == 999 + 1
    asked.now_ms += 700_000
    asked.controller.scan_brokers(asked.now_ms)
    assert list(state.pending) == [("late", 1)]
    assert set(state.groups) == {NAME, "new", "late"}
    assert set(asked.group.replicas) == {1}

    again = ControllerState()  # as from the journal
    for event in asked.events:
        again.apply(decode_event(encode_event(event)))
    assert again == state
    whole = ControllerState()
    whole.apply(decode_event(encode_event(state.whole())))
    assert whole == state


def test_ids_that_nobody_registers_shut_no_group() -> None:
    asked = Asked()
    assert asked.apply(1).code == asked.register(1).code == 0
    for broker_id in range(2, 400):
        assert asked.apply(broker_id, host="10.0.0.66").code == 0
    assert len(asked.group.replicas) == 100
    assert asked.group.replicas[1] == ("h:1", code_of(1), False)
    assert asked.elect(399).code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert asked.register(399).code == 0
    assert asked.elect(399).code == 0


def test_who_is_in_sync_is_not_forgotten_though_it_never_registered() -> None:
    asked = in_sync(1)
    assert asked.apply(2).code == asked.beat(1).code == asked.beat(2).code == 0
    assert asked.alter((1, 2)).code == 0
    asked.now_ms += 10 * 3_600_000
    asked.controller.scan_brokers(asked.now_ms)
    asked.now_ms += 10 * 3_600_000
    asked.controller.scan_brokers(asked.now_ms)
    assert set(asked.group.replicas) == set(asked.group.sync_state_set) == {1, 2}
    assert asked.controller.state.pending == {}


def test_a_journal_of_before_knows_only_brokers_that_have_registered() -> None:
    old = b'{"brokerAddress":"h:1","brokerName":"b","clusterName":"C","newBrokerId":1,"registerCheckCode":"h:1;7"}'
    event = decode_event(b"\0\2" + old)
    state = ControllerState()
    state.apply(event)
    assert (state.registered_count, state.pending) == (1, {})


def test_what_cannot_be_read_is_answered_with_the_reason() -> None:
    asked = in_sync(1)
    assert "field brokerName is missing" in (asked.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO).remark or "")
    header = {"brokerName": NAME, "masterBrokerId": "1", "masterEpoch": "1"}
    assert "bad body SyncStateSet" in (
        asked.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, b"[]").remark or ""
    )
    assert asked.ask(10).code == 3
    assert asked.controller.answer(make_request(1017), Caller("channel", "127.0.0.1"), 0).code == 3


def test_decisions_are_events() -> None:
    asked = in_sync(1)
    first = ApplyBrokerId(
        cluster_name=CLUSTER,
        broker_name=NAME,
        broker_address="h:1",
        new_broker_id=1,
        register_check_code=code_of(1),
        is_pending=True,
    )
    there = UpdateBrokerAddress(cluster_name=CLUSTER, broker_name=NAME, broker_address="h:1", broker_id=1)
    assert asked.events == [
        first,
        there,
        ElectMaster(broker_name=NAME, new_master_elected=True, new_master_broker_id=1),
    ]
