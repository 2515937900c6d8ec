"""Who is in sync with a master: 1001 changes it, 1004 and 1006 tell it. Java: ReplicasInfoManager."""

from __future__ import annotations

from collections.abc import Iterable

from spark_mq.controller.decided import Decided, refused, set_of
from spark_mq.controller.events import AlterSyncStateSet
from spark_mq.controller.liveness import LivingBrokers
from spark_mq.controller.state import ControllerState, Group
from spark_mq.remoting.controller_bodies import BrokerReplicasInfo, ReplicaIdentity, ReplicasInfo, SyncStateSet
from spark_mq.remoting.controller_headers import (
    AlterSyncStateSetAnswer,
    AlterSyncStateSetRequest,
    ReplicaInfoAnswer,
    ReplicaInfoRequest,
)
from storage.rules.response_codes import ResponseCode

_REJECTING = "Rejecting alter syncStateSet request because the"


def alter_sync_state_set(
    state: ControllerState, asked: AlterSyncStateSetRequest, wanted: SyncStateSet, living: LivingBrokers
) -> Decided:
    """1001: the master of this epoch, which knows the set of that epoch, wants another one of brokers that are alive."""
    group = state.groups.get(asked.broker_name)
    if group is None:
        return _refused(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "Broker metadata is not existed")
    against = _against_it(group, asked, wanted, living)
    if against is not None:
        return against
    members = tuple(sorted(set(wanted.broker_ids)))
    epoch = group.sync_state_set_epoch + 1
    return Decided(
        AlterSyncStateSetAnswer(new_sync_state_set_epoch=epoch),
        SyncStateSet(broker_ids=members, epoch=epoch),
        (AlterSyncStateSet(broker_name=asked.broker_name, new_sync_state_set=members),),
    )


def _against_it(
    group: Group, asked: AlterSyncStateSetRequest, wanted: SyncStateSet, living: LivingBrokers
) -> Decided | None:
    """The first rule that the request breaks, in Java's order."""
    failed = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    master = "null" if group.master_id is None else group.master_id
    if frozenset(wanted.broker_ids) == group.sync_state_set:
        return _refused(failed, "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet")
    if group.master_id != asked.master_broker_id:
        remark = f"{_REJECTING} current leader is:{{{master}}}, not {{{asked.master_broker_id}}}"
        return _refused(ResponseCode.CONTROLLER_INVALID_MASTER, remark)
    if group.master_epoch != asked.master_epoch:
        remark = f"{_REJECTING} current master epoch is:{{{group.master_epoch}}}, not {{{asked.master_epoch}}}"
        return _refused(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, remark)
    if group.sync_state_set_epoch != wanted.epoch:
        remark = f"{_REJECTING} current syncStateSet epoch is:{{{group.sync_state_set_epoch}}}, not {{{wanted.epoch}}}"
        return _refused(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, remark)
    for broker_id in sorted(set(wanted.broker_ids)):
        if broker_id not in group.replicas:
            remark = f"{_REJECTING} replicas {{{broker_id}}} don't exist"
            return _refused(ResponseCode.CONTROLLER_INVALID_REPLICAS, remark)
        if not living.is_alive(group, broker_id):
            remark = f"{_REJECTING} replicas {{{broker_id}}} don't alive"
            return _refused(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, remark)
    if group.master_id not in wanted.broker_ids:
        return _refused(failed, f"{_REJECTING} newSyncStateSet don't contains origin leader {{{master}}}")
    return None


def _refused(code: ResponseCode, remark: str) -> Decided:
    return refused(code, remark, AlterSyncStateSetAnswer())


def replica_info(state: ControllerState, asked: ReplicaInfoRequest) -> Decided:
    """1004. The master is told whether it is alive or not."""
    group = state.groups.get(asked.broker_name)
    if group is None:
        code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        return refused(code, "Broker metadata is not existed", ReplicaInfoAnswer())
    answer = ReplicaInfoAnswer(
        master_broker_id=group.master_id, master_address=group.master_address, master_epoch=group.master_epoch
    )
    return Decided(answer, set_of(group))


def sync_state_data(state: ControllerState, names: Iterable[str], living: LivingBrokers) -> Decided:
    """1006, of the names that are known."""
    groups = {name: state.groups[name] for name in names if name in state.groups}
    table = {name: _replicas_info(group, living) for name, group in groups.items()}
    return Decided(body=BrokerReplicasInfo(replicas_info_table=table))


def _replicas_info(group: Group, living: LivingBrokers) -> ReplicasInfo:
    told = {
        each: ReplicaIdentity(
            broker_name=group.broker_name,
            broker_id=each,
            broker_address=replica.address,
            alive=living.is_alive(group, each),
        )
        for each, replica in sorted(group.replicas.items())
    }
    return ReplicasInfo(
        master_broker_id=group.master_id,
        master_address=group.master_address,
        master_epoch=group.master_epoch,
        sync_state_set_epoch=group.sync_state_set_epoch,
        in_sync_replicas=tuple(one for each, one in told.items() if each in group.sync_state_set),
        not_in_sync_replicas=tuple(one for each, one in told.items() if each not in group.sync_state_set),
    )
