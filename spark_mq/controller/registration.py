"""A broker gets its id and says where it is: 1012, 1013, 1003.

It asks for the next id (1012), writes it to its disk, applies for it (1013), and registers (1003), each step again until it is done. An
id belongs to who has applied for it with the same check code before. Ids are never used twice while the group is there.

Who has applied and does not register loses the id: after an hour, or earlier where too many wait. Then the host gives way that has the
most of them. So invented names are few, and keep no broker away.

Java: ReplicasInfoManager.getNextBrokerId, applyBrokerId, registerBroker. Departures: an id below 1 is nobody's; in Java whoever has
applied has the id for ever.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from spark_mq.controller.decided import Decided, refused, set_of
from spark_mq.controller.events import ApplyBrokerId, CleanBrokerData, UpdateBrokerAddress
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

LAPSES_MS = 3_600_000
"""After so long an id is free again that was applied for. A broker registers at once. Ours, stopped before, applies again
(`broker_server/identity.py`); Apache's keeps an id that nobody knows until an operator deletes its `brokerIdentity`."""


def next_broker_id(state: ControllerState, asked: NextBrokerIdRequest) -> Decided:
    """1012. Nothing is promised by it: whoever applies first has the id."""
    group = state.groups.get(asked.broker_name)
    following = FIRST_BROKER_ID if group is None else group.next_broker_id
    return Decided(
        NextBrokerIdAnswer(cluster_name=asked.cluster_name, broker_name=asked.broker_name, next_broker_id=following)
    )


class _Application(NamedTuple):
    """From which host an id was applied for, and when that was seen first."""

    host: str
    since_ms: int


class Applications:
    """Who has applied for which id and has yet to register. In memory alone: after a start the time begins anew."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Application] = {}

    def note(self, state: ControllerState, host: str, now_ms: int) -> None:
        """After an application of a host: it is that of which nothing was known."""
        self._known = {key: self._known.get(key) or _Application(host, now_ms) for key in state.pending}

    def lapsed(self, state: ControllerState, now_ms: int) -> tuple[CleanBrokerData, ...]:
        """What is to be forgotten because it was applied for too long ago."""
        self.note(state, "", now_ms)
        return tuple(
            _forget(key) for key, application in self._known.items() if now_ms - application.since_ms > LAPSES_MS
        )

    def giving_way(
        self, state: ControllerState, broker_name: str, limits: ControllerLimits = DEFAULT_LIMITS
    ) -> tuple[CleanBrokerData, ...]:
        """What is to be forgotten so that one more may apply for an id of a name."""
        group = state.groups.get(broker_name)
        is_full = group is not None and len(group.replicas) >= limits.replicas_of_a_group
        if not is_full and len(state.pending) < limits.pending:
            return ()
        waiting = [key for key in state.pending if not is_full or key[0] == broker_name]
        hosts = {key: self._known[key].host if key in self._known else "" for key in waiting}
        counts = Counter(hosts.values())
        found = max(waiting, key=lambda key: counts[hosts[key]], default=None)  # of several the first one
        return () if found is None else (_forget(found),)


def _forget(key: tuple[str, int]) -> CleanBrokerData:
    return CleanBrokerData(broker_name=key[0], broker_ids=(key[1],))


def apply_broker_id(
    state: ControllerState,
    asked: ApplyBrokerIdRequest,
    applications: Applications,
    limits: ControllerLimits = DEFAULT_LIMITS,
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
        is_pending=True,
    )
    return Decided(answer, events=(*applications.giving_way(state, name, limits), event))


def register_broker(
    state: ControllerState,
    asked: RegisterToControllerRequest,
    living: LivingBrokers,
    limits: ControllerLimits = DEFAULT_LIMITS,
) -> Decided:
    """1003. It hears of the master, if that is alive. Raises RequestRefusedError for an address or a number beyond the limits."""
    name, broker_id = asked.broker_name, asked.broker_id
    answer = RegisterToControllerAnswer(cluster_name=asked.cluster_name, broker_name=name)
    group = state.groups.get(name)
    not_there = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    if group is None:
        return refused(not_there, f"Broker-set: {name} hasn't been registered in controller", answer)
    if broker_id not in group.replicas:
        return refused(not_there, f"BrokerId: {broker_id} hasn't been registered in broker-set: {name}", answer)
    check_name("address", asked.broker_address)
    is_pending = group.replicas[broker_id].is_pending
    if is_pending:
        check_room(state, group, limits)
    if living.is_alive(group, group.master_id):
        answer = RegisterToControllerAnswer(
            cluster_name=asked.cluster_name,
            broker_name=name,
            master_broker_id=group.master_id,
            master_address=group.master_address,
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.sync_state_set_epoch,
        )
    if asked.broker_address == group.address(broker_id) and not is_pending:
        return Decided(answer, set_of(group))
    event = UpdateBrokerAddress(
        cluster_name=asked.cluster_name, broker_name=name, broker_address=asked.broker_address, broker_id=broker_id
    )
    return Decided(answer, set_of(group), (event,))
