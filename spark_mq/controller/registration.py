"""A broker gets its id and says where it is: 1012, 1013, 1003.

It asks for the next id (1012), writes it to its disk, applies for it (1013), and registers (1003), each step again until it is done. An
id belongs to who has applied for it with the same check code before. Ids are never used twice while the group is there.

Java: ReplicasInfoManager.getNextBrokerId, applyBrokerId, registerBroker. Departure: an id below 1 is nobody's.
"""

from __future__ import annotations

from spark_mq.controller.decided import Decided, refused, set_of
from spark_mq.controller.events import ApplyBrokerId, UpdateBrokerAddress
from spark_mq.controller.limits import DEFAULT_LIMITS, ControllerLimits, check_name, check_room
from spark_mq.controller.liveness import LivingBrokers
from spark_mq.controller.state import FIRST_BROKER_ID, ControllerState
from spark_mq.remoting.controller_headers import (
    ApplyBrokerIdAnswer,
    ApplyBrokerIdRequest,
    NextBrokerIdAnswer,
    NextBrokerIdRequest,
    RegisterToControllerAnswer,
    RegisterToControllerRequest,
)
from storage.rules.response_codes import ResponseCode


def next_broker_id(state: ControllerState, asked: NextBrokerIdRequest) -> Decided:
    """1012. Nothing is promised by it: whoever applies first has the id."""
    group = state.groups.get(asked.broker_name)
    following = FIRST_BROKER_ID if group is None else group.next_broker_id
    return Decided(
        NextBrokerIdAnswer(cluster_name=asked.cluster_name, broker_name=asked.broker_name, next_broker_id=following)
    )


def apply_broker_id(
    state: ControllerState, asked: ApplyBrokerIdRequest, limits: ControllerLimits = DEFAULT_LIMITS
) -> Decided:
    """1013. Raises RequestRefusedError for names beyond the limits."""
    code, name, broker_id = asked.register_check_code, asked.broker_name, asked.applied_broker_id
    address = code.partition(";")[0]
    check_name("register check code", code, limits.check_code_length)
    for kind, text in (("cluster's name", asked.cluster_name), ("broker's name", name), ("address", address)):
        check_name(kind, text, limits.name_length)
    answer = ApplyBrokerIdAnswer(cluster_name=asked.cluster_name, broker_name=name)
    group = state.groups.get(name)
    if group is None and broker_id != FIRST_BROKER_ID:
        remark = (
            f"Broker-set: {name} hasn't been registered in controller, but broker try to apply brokerId: {broker_id}"
        )
        return refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark, answer)
    known = None if group is None else group.replicas.get(broker_id)
    if known is not None and known.register_check_code == code:
        return Decided(answer)
    if known is not None or broker_id < FIRST_BROKER_ID:
        remark = f"Fail to apply brokerId: {broker_id} in broker-set: {name}"
        return refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark, answer)
    check_room(state, group, limits)
    event = ApplyBrokerId(
        cluster_name=asked.cluster_name,
        broker_name=name,
        broker_address=address,
        new_broker_id=broker_id,
        register_check_code=code,
    )
    return Decided(answer, events=(event,))


def register_broker(state: ControllerState, asked: RegisterToControllerRequest, living: LivingBrokers) -> Decided:
    """1003. It hears of the master, if that is alive. Raises RequestRefusedError for an address beyond the limits."""
    name, broker_id = asked.broker_name, asked.broker_id
    answer = RegisterToControllerAnswer(cluster_name=asked.cluster_name, broker_name=name)
    group = state.groups.get(name)
    not_there = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    if group is None:
        return refused(not_there, f"Broker-set: {name} hasn't been registered in controller", answer)
    if broker_id not in group.replicas:
        return refused(not_there, f"BrokerId: {broker_id} hasn't been registered in broker-set: {name}", answer)
    check_name("address", asked.broker_address)
    if living.is_alive(group, group.master_id):
        answer = RegisterToControllerAnswer(
            cluster_name=asked.cluster_name,
            broker_name=name,
            master_broker_id=group.master_id,
            master_address=group.master_address,
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.sync_state_set_epoch,
        )
    if asked.broker_address == group.address(broker_id):
        return Decided(answer, set_of(group))
    event = UpdateBrokerAddress(
        cluster_name=asked.cluster_name, broker_name=name, broker_address=asked.broker_address, broker_id=broker_id
    )
    return Decided(answer, set_of(group), (event,))
