"""Who becomes master: 1002, and what the controller asks itself when a master is gone.

The first election of a group: whoever asks. Each later one: of those in sync that are alive,

    1  the old master
    2  the one that is designated, or nobody
    3  the one whose log has the highest epoch, then the highest end, then the lowest electionPriority

With enableElectUncleanMaster, and only if that finds nobody, the same of all that are alive: what is acknowledged may be lost then.
Whoever is elected is alone in sync. Nobody, where the controller asks itself: there is no master, and those in sync stay so.

Java: ReplicasInfoManager.electMaster, DefaultElectPolicy. Departures:

- numbers are compared as numbers, where Java subtracts them as ints (its issue 10578), and of equal ones the lowest id wins
- who is not registered is not elected first
- a group that has no master already loses none again, so its epoch stays
"""

from __future__ import annotations

from collections.abc import Collection

from spark_mq.controller.decided import Decided, refused
from spark_mq.controller.events import ElectMaster
from spark_mq.controller.liveness import LivingBrokers
from spark_mq.controller.state import ControllerState, Group
from spark_mq.remoting.controller_bodies import ElectedMasterBody
from spark_mq.remoting.controller_headers import ElectMasterRequest, MasterAnswer
from spark_mq.remoting.route_bodies import BrokerMemberGroup
from storage.rules.response_codes import ResponseCode

BY_CONTROLLER = -1
"""The id of who asks where the controller asks itself."""


def controllers_own(group: Group) -> ElectMasterRequest:
    """What the controller asks itself."""
    return ElectMasterRequest(
        cluster_name=group.cluster, broker_name=group.broker_name, broker_id=BY_CONTROLLER, designate_elect=False
    )


def elect_master(
    state: ControllerState, asked: ElectMasterRequest, living: LivingBrokers, *, is_unclean: bool = False
) -> Decided:
    """1002."""
    name = asked.broker_name
    group = state.groups.get(name)
    not_there = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    if group is None:
        return refused(not_there, "Broker hasn't been registered", MasterAnswer())
    by_controller = asked.broker_id == BY_CONTROLLER
    if group.master_epoch == 0 and not by_controller:
        replica = group.replicas.get(asked.broker_id)
        if replica is None or replica.is_pending:
            remark = f"BrokerId: {asked.broker_id} hasn't been registered in broker-set: {name}"
            return refused(not_there, remark, MasterAnswer())
        return _elected(group, asked.broker_id)
    designated = asked.broker_id if asked.designate_elect else None
    master = choose(group, living, designated, is_unclean=is_unclean)
    if master is not None and master == group.master_id:
        return _still_there(group, master)
    if master is not None:
        return _elected(group, master)
    if not by_controller:
        return refused(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "Failed to elect a new master", MasterAnswer())
    lost = ElectMaster(broker_name=name, new_master_elected=False)
    return Decided(
        MasterAnswer(),
        events=() if group.master_id is None else (lost,),
        code=ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        remark="Old master has down and failed to elect a new broker master",
    )


def choose(group: Group, living: LivingBrokers, designated: int | None, *, is_unclean: bool) -> int | None:
    """Who shall be master; None where nobody can be."""
    for brokers in (group.sync_state_set, group.replicas.keys() if is_unclean else ()):
        candidates = [each for each in brokers if living.is_alive(group, each)]
        master = _choose_of(group, candidates, living, designated)
        if master is not None:
            return master
    return None


def _choose_of(group: Group, candidates: Collection[int], living: LivingBrokers, designated: int | None) -> int | None:
    if group.master_id in candidates and designated in (None, group.master_id):
        return group.master_id
    if designated is not None:
        return designated if designated in candidates else None
    return min(candidates, key=lambda each: _rank(group, each, living), default=None)


def _rank(group: Group, broker_id: int, living: LivingBrokers) -> tuple[int, int, int, int]:
    found = living.find(group, broker_id)
    assert found is not None, "a candidate is alive"
    return -found.epoch, -found.max_offset, found.priority, broker_id


def _elected(group: Group, master: int) -> Decided:
    answer = MasterAnswer(
        master_broker_id=master,
        master_address=group.address(master),
        master_epoch=group.master_epoch + 1,
        sync_state_set_epoch=group.sync_state_set_epoch + 1,
    )
    addresses = {each: replica.address for each, replica in sorted(group.replicas.items())}
    members = BrokerMemberGroup(cluster=group.cluster, broker_name=group.broker_name, broker_addresses=addresses)
    event = ElectMaster(broker_name=group.broker_name, new_master_elected=True, new_master_broker_id=master)
    return Decided(answer, ElectedMasterBody(group=members, broker_ids=(master,)), (event,))


def _still_there(group: Group, master: int) -> Decided:
    remark = f"The old master {master} is still alive, not need to elect new master for broker {group.broker_name}"
    answer = MasterAnswer(
        master_broker_id=master,
        master_address=group.master_address,
        master_epoch=group.master_epoch,
        sync_state_set_epoch=group.sync_state_set_epoch,
    )
    body = ElectedMasterBody(broker_ids=tuple(sorted(group.sync_state_set)))
    return refused(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, remark, answer, body)


def masterless(state: ControllerState, living: LivingBrokers) -> list[Group]:
    """Groups whose master is not alive, and somebody else is. Java: scanNeedReelectBrokerSets."""
    return [
        group
        for group in state.groups.values()
        if group.master_id is not None
        and not living.is_alive(group, group.master_id)
        and any(living.is_alive(group, each) for each in group.replicas)
    ]
