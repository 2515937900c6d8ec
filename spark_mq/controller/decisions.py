"""Decisions of a controller: request, state and living brokers → events and an answer. Pure.

    1012 1013 1003    a broker gets its id and registers its address: `next_broker_id`, `apply_broker_id`, `register_broker`
    1011              an operator removes brokers: `clean_broker_data`
    1001 1004 1006    the brokers in sync with a master: `alter_sync_state_set`, `replica_info`, `sync_state_data`
    1002              election of a master, on request, or by the controller itself if the master is gone: `elect_master`

Java: ReplicasInfoManager.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from spark_mq.controller.state import (
    FIRST_BROKER_ID,
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ControllerState,
    ElectMaster,
    Event,
    Group,
    LivingBrokers,
    UpdateBrokerAddress,
)
from spark_mq.remoting import (
    Header,
    WireBody,
)
from spark_mq.remoting.controllers import (
    AlterSyncStateSetAnswer,
    AlterSyncStateSetRequest,
    ApplyBrokerIdAnswer,
    ApplyBrokerIdRequest,
    BrokerReplicasInfo,
    CleanBrokerDataRequest,
    ElectedMasterBody,
    ElectMasterRequest,
    MasterAnswer,
    NextBrokerIdAnswer,
    NextBrokerIdRequest,
    RegisterToControllerAnswer,
    RegisterToControllerRequest,
    ReplicaIdentity,
    ReplicaInfoAnswer,
    ReplicaInfoRequest,
    ReplicasInfo,
    SyncStateSet,
)
from spark_mq.remoting.routes import BrokerMemberGroup
from storage.rules.response_codes import RequestRefusedError, ResponseCode

LAPSES_MS = 3_600_000
"""Lifetime of an application for an id. A broker registers at once. If it was stopped before, a spark_mq broker applies again
(`broker_server/controlled.py`); Apache's keeps its unknown id until an operator deletes its `brokerIdentity`."""
BY_CONTROLLER = -1
"""The id of who asks where the controller asks itself."""
_BROKER_ID = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_REJECTING = "Rejecting alter syncStateSet request because the"


class Decided(NamedTuple):
    """The result of a request. Nothing has changed yet. A refusal also has its header, as in Java."""

    header: Header | None = None
    body: WireBody | None = None
    events: tuple[Event, ...] = ()
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None


def refused(code: ResponseCode, remark: str, header: Header | None = None, body: WireBody | None = None) -> Decided:
    """An answer that says no; nothing changes."""
    return Decided(header, body, (), code, remark)


def set_of(group: Group) -> SyncStateSet:
    """The brokers in sync, as a body."""
    return SyncStateSet(broker_ids=tuple(sorted(group.sync_state_set)), epoch=group.sync_state_set_epoch)


@dataclass(frozen=True, slots=True)
class ControllerLimits:
    """Limits for data from unknown processes. Java sets no limits.

    Of names in characters, of bodies in bytes, of the rest in numbers.
    """

    name_length: int = 255
    """Length of the name of a cluster or broker, or of an address."""
    check_code_length: int = 512
    replicas_of_a_group: int = 100
    replicas: int = 10_000
    """Replicas that have registered, of all groups together."""
    pending: int = 1_000
    """Replicas, of all groups together, that have applied for an id and not registered yet."""
    body_bytes: int = 1 << 20
    """Most bytes of a request's body."""


DEFAULT_LIMITS = ControllerLimits()


def check_name(kind: str, name: str, most: int = DEFAULT_LIMITS.name_length) -> None:
    """Raises RequestRefusedError for a name that is empty, too long, or cannot be printed."""
    if not name:
        raise _too_much(f"the {kind} is empty")
    if len(name) > most:
        raise _too_much(f"the {kind} {name[:32]!r}… is refused: it has {len(name)} characters, the limit is {most}")
    if not name.isprintable():
        raise _too_much(f"the {kind} {name[:32]!r} is refused: it holds what cannot be printed")


def check_room(state: ControllerState, group: Group | None, limits: ControllerLimits = DEFAULT_LIMITS) -> None:
    """Raises RequestRefusedError where a registered broker more would be too many."""
    registered = 0 if group is None else sum(not replica.is_pending for replica in group.replicas.values())
    if registered >= limits.replicas_of_a_group:
        raise _too_much(f"this controller takes at most {limits.replicas_of_a_group} brokers of a name")
    if state.registered_count >= limits.replicas:
        raise _too_much(f"this controller takes at most {limits.replicas} brokers")


def check_body(size_bytes: int, limits: ControllerLimits = DEFAULT_LIMITS) -> None:
    """Raises RequestRefusedError for a body that no broker sends."""
    if size_bytes > limits.body_bytes:
        raise _too_much(f"the body has {size_bytes} bytes, the limit is {limits.body_bytes}")


def _too_much(remark: str) -> RequestRefusedError:
    return RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)


# Ids of brokers.
#
# A broker asks for the next id (1012), writes it to its disk, applies for it (1013), and registers (1003), each step again until it is
# done. An id belongs to the broker that has applied for it with the same check code. Ids are never used twice while the group is there.
#
# A broker that has applied and does not register loses the id: after an hour, or earlier if too many wait. Then the host with the most
# applications loses one. So invented names are few, and keep no broker away.
#
# Java: ReplicasInfoManager.getNextBrokerId, applyBrokerId, registerBroker. Departures: an id below 1 is refused; an application
# expires. In Java an application holds for ever.


def next_broker_id(state: ControllerState, request: NextBrokerIdRequest) -> Decided:
    """1012. It promises nothing: the first to apply gets the id."""
    group = state.groups.get(request.broker_name)
    following = FIRST_BROKER_ID if group is None else group.next_broker_id
    return Decided(
        NextBrokerIdAnswer(cluster_name=request.cluster_name, broker_name=request.broker_name, next_broker_id=following)
    )


class _Application(NamedTuple):
    """The host of an application for an id, and the time when it was first seen."""

    host: str
    since_ms: int


class Applications:
    """Applications for ids without a registration yet. In memory alone: after a start their time begins again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Application] = {}

    def note(self, state: ControllerState, host: str, now_ms: int) -> None:
        """Call after an application of a host: notes the new pending id as the host's."""
        self._known = {key: self._known.get(key) or _Application(host, now_ms) for key in state.pending}

    def lapsed(self, state: ControllerState, now_ms: int) -> tuple[CleanBrokerData, ...]:
        """Events that remove applications which are too old."""
        self.note(state, "", now_ms)
        return tuple(
            _forgotten(key) for key, application in self._known.items() if now_ms - application.since_ms > LAPSES_MS
        )

    def giving_way(
        self, state: ControllerState, broker_name: str, limits: ControllerLimits = DEFAULT_LIMITS
    ) -> tuple[CleanBrokerData, ...]:
        """Events that make room for one more application for an id of a name."""
        group = state.groups.get(broker_name)
        is_full = group is not None and len(group.replicas) >= limits.replicas_of_a_group
        if not is_full and len(state.pending) < limits.pending:
            return ()
        waiting = [key for key in state.pending if not is_full or key[0] == broker_name]
        hosts = {key: self._known[key].host if key in self._known else "" for key in waiting}
        counts = Counter(hosts.values())
        found = max(waiting, key=lambda key: counts[hosts[key]], default=None)  # of several the first one
        return () if found is None else (_forgotten(found),)


def _forgotten(key: tuple[str, int]) -> CleanBrokerData:
    return CleanBrokerData(broker_name=key[0], broker_ids=(key[1],))


def apply_broker_id(
    state: ControllerState,
    request: ApplyBrokerIdRequest,
    applications: Applications | None,
    limits: ControllerLimits = DEFAULT_LIMITS,
) -> Decided:
    """1013. Raises RequestRefusedError for names beyond the limits. Without `applications` an id is the broker's for ever."""
    code, name, broker_id = request.register_check_code, request.broker_name, request.applied_broker_id
    address = code.partition(";")[0]
    check_name("register check code", code, limits.check_code_length)
    for kind, text in (("cluster's name", request.cluster_name), ("broker's name", name), ("address", address)):
        check_name(kind, text, limits.name_length)
    answer = ApplyBrokerIdAnswer(cluster_name=request.cluster_name, broker_name=name)
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
        cluster_name=request.cluster_name,
        broker_name=name,
        broker_address=address,
        new_broker_id=broker_id,
        register_check_code=code,
        is_pending=None if applications is None else True,
    )
    giving_way = () if applications is None else applications.giving_way(state, name, limits)
    return Decided(answer, events=(*giving_way, event))


def register_broker(
    state: ControllerState,
    request: RegisterToControllerRequest,
    living: LivingBrokers,
    limits: ControllerLimits = DEFAULT_LIMITS,
) -> Decided:
    """1003. The answer names the master, if it is alive. Raises RequestRefusedError for an address or a number beyond the limits."""
    name, broker_id = request.broker_name, request.broker_id
    answer = RegisterToControllerAnswer(cluster_name=request.cluster_name, broker_name=name)
    group = state.groups.get(name)
    not_there = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    if group is None:
        return refused(not_there, f"Broker-set: {name} hasn't been registered in controller", answer)
    if broker_id not in group.replicas:
        return refused(not_there, f"BrokerId: {broker_id} hasn't been registered in broker-set: {name}", answer)
    check_name("address", request.broker_address)
    is_pending = group.replicas[broker_id].is_pending
    if is_pending:
        check_room(state, group, limits)
    if living.is_alive(group, group.master_id):
        answer = RegisterToControllerAnswer(
            cluster_name=request.cluster_name,
            broker_name=name,
            master_broker_id=group.master_id,
            master_address=group.master_address,
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.sync_state_set_epoch,
        )
    if request.broker_address == group.address(broker_id) and not is_pending:
        return Decided(answer, set_of(group))
    event = UpdateBrokerAddress(
        cluster_name=request.cluster_name, broker_name=name, broker_address=request.broker_address, broker_id=broker_id
    )
    return Decided(answer, set_of(group), (event,))


# Brokers to be forgotten.


def clean_broker_data(state: ControllerState, request: CleanBrokerDataRequest, living: LivingBrokers) -> Decided:
    """1011: an operator removes brokers.

    Forgotten brokers must be gone: without ids the group may have no master, and an id that is named may not be alive.
    `isCleanLivingBroker` takes that back; as in Java all brokers of the name are forgotten then, whatever ids are named.

    Java: ReplicasInfoManager.cleanBrokerData. Departure: whether a broker is alive is looked up in its own cluster, whichever the
    request names.
    """
    name, text = request.broker_name, (request.broker_ids_to_clean or "").strip()
    group = state.groups.get(name)
    if request.cleans_living:
        broker_ids = None
    elif not text:
        if group is not None and group.master_id is not None:
            return _not_cleaned(f"Broker {name} is still alive, clean up failure")
        broker_ids = None
    else:
        broker_ids = _ids_of(text)
        if broker_ids is None:
            return _not_cleaned(
                "Please set the option <brokerControllerIdsToClean> according to the format: numbers between semicolons"
            )
        for broker_id in broker_ids:
            if group is not None and living.is_alive(group, broker_id):
                return _not_cleaned(f"Broker [{name},  {broker_id}] is still alive, clean up failure")
    if group is None:
        return _not_cleaned(f"Broker {name} is not existed,clean broker data failure.")
    return Decided(events=(CleanBrokerData(broker_name=name, broker_ids=broker_ids),))


def _ids_of(text: str) -> tuple[int, ...] | None:
    """The ids between semicolons, each once; None where one is none."""
    parts = text.rstrip(";").split(";")
    if not all(_BROKER_ID.fullmatch(part) for part in parts):
        return None
    found = tuple(sorted({int(part) for part in parts}))
    return found if all(-(1 << 63) <= each < 1 << 63 for each in found) else None


def _not_cleaned(remark: str) -> Decided:
    return refused(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark)


# Who is in sync with a master: 1001 changes it, 1004 and 1006 tell it.


def alter_sync_state_set(
    state: ControllerState, request: AlterSyncStateSetRequest, wanted: SyncStateSet, living: LivingBrokers
) -> Decided:
    """1001: the master of this epoch, which knows the set of that epoch, wants another one of brokers that are alive."""
    group = state.groups.get(request.broker_name)
    if group is None:
        return _not_altered(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "Broker metadata is not existed")
    against = _against_it(group, request, wanted, living)
    if against is not None:
        return against
    members = tuple(sorted(set(wanted.broker_ids)))
    epoch = group.sync_state_set_epoch + 1
    return Decided(
        AlterSyncStateSetAnswer(new_sync_state_set_epoch=epoch),
        SyncStateSet(broker_ids=members, epoch=epoch),
        (AlterSyncStateSet(broker_name=request.broker_name, new_sync_state_set=members),),
    )


def _against_it(
    group: Group, request: AlterSyncStateSetRequest, wanted: SyncStateSet, living: LivingBrokers
) -> Decided | None:
    """The first rule that the request breaks, in Java's order."""
    failed = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    master = "null" if group.master_id is None else group.master_id
    if frozenset(wanted.broker_ids) == group.sync_state_set:
        return _not_altered(
            failed, "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet"
        )
    if group.master_id != request.master_broker_id:
        remark = f"{_REJECTING} current leader is:{{{master}}}, not {{{request.master_broker_id}}}"
        return _not_altered(ResponseCode.CONTROLLER_INVALID_MASTER, remark)
    if group.master_epoch != request.master_epoch:
        remark = f"{_REJECTING} current master epoch is:{{{group.master_epoch}}}, not {{{request.master_epoch}}}"
        return _not_altered(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, remark)
    if group.sync_state_set_epoch != wanted.epoch:
        remark = f"{_REJECTING} current syncStateSet epoch is:{{{group.sync_state_set_epoch}}}, not {{{wanted.epoch}}}"
        return _not_altered(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, remark)
    for broker_id in sorted(set(wanted.broker_ids)):
        if broker_id not in group.replicas:
            remark = f"{_REJECTING} replicas {{{broker_id}}} don't exist"
            return _not_altered(ResponseCode.CONTROLLER_INVALID_REPLICAS, remark)
        if not living.is_alive(group, broker_id):
            remark = f"{_REJECTING} replicas {{{broker_id}}} don't alive"
            return _not_altered(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, remark)
    if group.master_id not in wanted.broker_ids:
        return _not_altered(failed, f"{_REJECTING} newSyncStateSet don't contains origin leader {{{master}}}")
    return None


def _not_altered(code: ResponseCode, remark: str) -> Decided:
    return refused(code, remark, AlterSyncStateSetAnswer())


def replica_info(state: ControllerState, request: ReplicaInfoRequest) -> Decided:
    """1004. The answer names the master, alive or not."""
    group = state.groups.get(request.broker_name)
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
    identities = {
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
        in_sync_replicas=tuple(one for each, one in identities.items() if each in group.sync_state_set),
        not_in_sync_replicas=tuple(one for each, one in identities.items() if each not in group.sync_state_set),
    )


# Who becomes master: 1002, and what the controller asks itself when a master is gone.
#
# The first election of a group: the broker that asks. Each later one: of those in sync that are alive,
#
#     1  the old master
#     2  the designated one, or none
#     3  the one whose log has the highest epoch, then the highest end, then the lowest electionPriority
#
# With enableElectUncleanMaster, and only if that finds none, the same among all living brokers: acknowledged messages may be lost then.
# The elected broker is alone in sync. If the controller itself starts an election and finds none, there is no master, and the brokers
# in sync stay in sync.
#
# Java: ReplicasInfoManager.electMaster, DefaultElectPolicy. Departures:
#
# - numbers are compared as numbers, where Java subtracts them as ints (its issue 10578), and of equal ones the lowest id wins
# - who is not registered is not elected first
# - a group that has no master already loses none again, so its epoch stays


def controllers_own(group: Group) -> ElectMasterRequest:
    """The controller's own request for an election."""
    return ElectMasterRequest(
        cluster_name=group.cluster, broker_name=group.broker_name, broker_id=BY_CONTROLLER, designate_elect=False
    )


def elect_master(
    state: ControllerState, request: ElectMasterRequest, living: LivingBrokers, *, is_unclean: bool = False
) -> Decided:
    """1002."""
    name = request.broker_name
    group = state.groups.get(name)
    not_there = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    if group is None:
        return refused(not_there, "Broker hasn't been registered", MasterAnswer())
    by_controller = request.broker_id == BY_CONTROLLER
    if group.master_epoch == 0 and not by_controller:
        replica = group.replicas.get(request.broker_id)
        if replica is None or replica.is_pending:
            remark = f"BrokerId: {request.broker_id} hasn't been registered in broker-set: {name}"
            return refused(not_there, remark, MasterAnswer())
        return _elected(group, request.broker_id)
    designated = request.broker_id if request.designate_elect else None
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
    """The next master; None if no broker can be."""
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
    """Groups whose master is not alive, and another broker is. Java: scanNeedReelectBrokerSets."""
    return [
        group
        for group in state.groups.values()
        if group.master_id is not None
        and not living.is_alive(group, group.master_id)
        and any(living.is_alive(group, each) for each in group.replicas)
    ]
