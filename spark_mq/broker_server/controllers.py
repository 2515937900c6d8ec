"""A broker's requests to its controllers, and the agreement of a master's SyncStateSet with theirs.

Calls block; do not call them on the event loop's thread. Java: BrokerOuterAPI, ReplicasManager, AutoSwitchHAService.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from spark_mq.client.calls import make_call, read_answer_body, read_answer_header
from spark_mq.client.errors import BrokerUnreachableError, ClientError, ResponseError, request_text
from spark_mq.client.event_loop import run, spawn
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import Header, RemotingCommand, RequestCode, WireBody, make_request, write_header
from spark_mq.remoting import controllers as wire
from spark_mq.remoting.controllers import ElectedMasterBody, SyncStateSet
from spark_mq.remoting.routes import BrokerHeartbeatRequest
from storage.epoch_times import current_time_ms, steady_time_ms
from storage.ha.replicas import Replicas, Role, Snapshot, SyncState, Term
from storage.rules.response_codes import ResponseCode
from storage.service.put_group import ReplicaAcks
from storage.service.put_service import PutService

_TIMEOUT_MS = 3_000
_HEARD_FOR_MS = 10_000
"""After so much silence a controller takes a broker for dead. Java: controllerHeartBeatTimeoutMills."""


class Position(NamedTuple):
    """The end of a broker's log."""

    epoch: int = -1
    max_offset: int = 0
    confirm_offset: int = 0


class Controllers:
    """The controllers of one broker; requests go to the one that leads. Thread-safe."""

    def __init__(self, settings: ClientSettings, cluster: str, broker_name: str, address: str) -> None:
        """`settings` names the controllers; `address` is the broker's."""
        self._settings = settings
        self._client = RemotingClient(settings)
        self._cluster, self._name, self._address = cluster, broker_name, address
        self._leader: str | None = None

    def close(self) -> None:
        """Hangs up: controllers take the broker for gone."""
        run(self._client.close())

    def heartbeat(self, broker_id: int, position: Position) -> None:
        """904, one-way, to all controllers at once; one that is not reached gets the next one."""
        header = BrokerHeartbeatRequest(
            cluster_name=self._cluster,
            broker_address=self._address,
            broker_name=self._name,
            broker_id=broker_id,
            epoch=position.epoch,
            max_offset=position.max_offset,
            confirm_offset=position.confirm_offset,
            heartbeat_timeout_ms=_HEARD_FOR_MS,
        )
        command = make_request(RequestCode.BROKER_HEARTBEAT, write_header(header), is_oneway=True)
        for sent in [
            spawn(self._client.invoke_oneway(address, command, _TIMEOUT_MS)) for address in self._settings.name_servers
        ]:
            with suppress(ClientError):
                sent.result()

    def next_id(self) -> int:
        """1012: the id that is free."""
        header = wire.NextBrokerIdRequest(cluster_name=self._cluster, broker_name=self._name)
        address, answer = self._ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
        found = read_answer_header(wire.NextBrokerIdAnswer, answer, address, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
        return found.next_broker_id or 1

    def apply_id(self, broker_id: int, check_code: str) -> bool:
        """1013: whether the id is this broker's now."""
        header = wire.ApplyBrokerIdRequest(
            cluster_name=self._cluster,
            broker_name=self._name,
            applied_broker_id=broker_id,
            register_check_code=check_code,
        )
        try:
            self._ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, header)
        except ResponseError as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                return False
            raise
        return True

    def register(self, broker_id: int) -> Term:
        """1003: the broker is here; what the controller says of its group."""
        header = wire.RegisterToControllerRequest(
            cluster_name=self._cluster,
            broker_name=self._name,
            broker_id=broker_id,
            broker_address=self._address,
            invoke_time_ms=current_time_ms(),
        )
        code = RequestCode.CONTROLLER_REGISTER_BROKER
        address, answer = self._ask(code, header)
        found = read_answer_header(wire.RegisterToControllerAnswer, answer, address, code)
        return _term(found.master_epoch, found.master_broker_id, found.master_address, _set_of(answer, address, code))

    def elect(self, broker_id: int) -> Term:
        """1002: there is no master; the one that is elected, or is there still."""
        header = wire.ElectMasterRequest(
            cluster_name=self._cluster,
            broker_name=self._name,
            broker_id=broker_id,
            designate_elect=False,
            invoke_time_ms=current_time_ms(),
        )
        code = RequestCode.CONTROLLER_ELECT_MASTER
        address, answer = self._ask(code, header, accepted=(ResponseCode.CONTROLLER_MASTER_STILL_EXIST,))
        elected = read_answer_header(wire.MasterAnswer, answer, address, code)
        body = read_answer_body(ElectedMasterBody, answer, address, code) if answer.body else ElectedMasterBody()
        found = SyncStateSet(broker_ids=body.broker_ids or (), epoch=elected.sync_state_set_epoch or 0)
        return _term(elected.master_epoch, elected.master_broker_id, elected.master_address, found)

    def term(self) -> Term:
        """1004: who is master now."""
        code = RequestCode.CONTROLLER_GET_REPLICA_INFO
        address, answer = self._ask(code, wire.ReplicaInfoRequest(broker_name=self._name))
        found = read_answer_header(wire.ReplicaInfoAnswer, answer, address, code)
        return _term(found.master_epoch, found.master_broker_id, found.master_address, _set_of(answer, address, code))

    def alter(self, own_id: int, epoch: int, wanted: frozenset[int], set_epoch: int) -> SyncStateSet:
        """1001: others are in sync than before; the set that holds now. Raises ResponseError where the controller says no."""
        code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        header = wire.AlterSyncStateSetRequest(
            broker_name=self._name, master_broker_id=own_id, master_epoch=epoch, invoke_time_ms=current_time_ms()
        )
        body = SyncStateSet(broker_ids=tuple(sorted(wanted)), epoch=set_epoch)
        address, answer = self._ask(code, header, body)
        return read_answer_body(SyncStateSet, answer, address, code)

    def _ask(
        self, code: int, header: Header, body: WireBody | bytes = b"", accepted: tuple[int, ...] = ()
    ) -> tuple[str, RemotingCommand]:
        """Raises ClientError; if the leader is not reachable or no leader now, the next call looks for it again."""
        address = self._leader or self._find_leader()
        try:
            answer = run(self._client.invoke(address, make_call(code, header, body), _TIMEOUT_MS))
        except ClientError:
            self._leader = None
            raise
        if answer.code not in (ResponseCode.SUCCESS, *accepted):
            if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
                self._leader = None
            raise ResponseError(answer.code, answer.remark, address, request_text(code))
        return address, answer

    def _find_leader(self) -> str:
        code = RequestCode.CONTROLLER_GET_METADATA_INFO
        failure: ClientError | None = None
        for address in self._settings.name_servers:
            try:
                answer = run(self._client.ask(address, make_call(code), _TIMEOUT_MS))
                found = read_answer_header(wire.ControllerMetadataAnswer, answer, address, code)
            except ClientError as error:
                failure = error
                continue
            if found.controller_leader_address:
                self._leader = found.controller_leader_address
                return self._leader
        raise failure or BrokerUnreachableError(self._settings.name_servers[0], "no controller leads now")


def _set_of(answer: RemotingCommand, address: str, code: int) -> SyncStateSet:
    return read_answer_body(SyncStateSet, answer, address, code) if answer.body else SyncStateSet()


def _term(epoch: int | None, master_id: int | None, address: str | None, found: SyncStateSet) -> Term:
    is_known = master_id is not None and master_id > 0 and bool(address)
    members = frozenset(found.broker_ids)
    return Term(epoch or 0, master_id if is_known else None, address if is_known else None, members, found.epoch)


_LOOK_SECONDS = 0.5
_LEAST_SECONDS = 0.02
_DEPOSED = (ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, ResponseCode.CONTROLLER_INVALID_MASTER)
_LOG = logging.getLogger(__name__)


class SyncKeeper:
    """Runs from `start` to `close`. `doubt` is called when the controller says that another one is master."""

    def __init__(
        self,
        service: PutService,
        replicas: Replicas,
        role: Role,
        controllers: Controllers,
        doubt: Callable[[], None],
        behind_ms: int,
    ) -> None:
        self._service = service
        self._replicas = replicas
        self._role = role
        self._controllers = controllers
        self._doubt = doubt
        self._lock = threading.Lock()
        term = role.term
        self._state = SyncState(role.own_id, term.members, term.set_epoch, steady_time_ms(), behind_ms)
        self._in_force: frozenset[int] | None = None
        self._due = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sync state set", daemon=True)
        self._apply()

    def start(self) -> None:
        """Looks at once when replicas change, else twice a second."""
        self._replicas.listen(self._replicas_changed)
        self._thread.start()

    def on_term(self, term: Term) -> None:
        """Take over the controller's set from a new term."""
        if term.epoch == self._role.term.epoch:
            with self._lock:
                self._state.holds(term.members, term.set_epoch, steady_time_ms())
                self._apply()

    def close(self) -> None:
        """Ends."""
        self._closing.set()
        self._due.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _replicas_changed(self, replicas: Snapshot) -> None:
        if {each.broker_id for each in replicas if each.acknowledged >= 0} != self._state.members - {self._role.own_id}:
            self._due.set()

    def _work(self) -> None:
        while not self._closing.is_set():
            self._due.wait(_LOOK_SECONDS)
            self._due.clear()
            if self._closing.is_set():
                return
            try:
                self._look()
            except Exception:  # whatever it is, the next look is made
                _LOG.exception("the SyncStateSet is not kept")
            time.sleep(_LEAST_SECONDS)

    def _look(self) -> None:
        with self._lock:
            end = self._service.log_end
            wanted = self._state.look(self._replicas.snapshot(), end, steady_time_ms())
            if wanted is not None:
                self._state.asks(wanted)
            self._apply()
            set_epoch = self._state.epoch
        if wanted is None:
            return
        role = self._role
        _LOG.info("in sync are now %s: the controller is notified", sorted(wanted))
        try:
            found = self._controllers.alter(role.own_id, role.term.epoch, wanted, set_epoch)
        except ResponseError as error:
            _LOG.warning("the controller keeps its SyncStateSet: %s", error.describe())
            self._refused(error)
        except ClientError as error:
            self._unanswered(error)
        else:
            with self._lock:
                self._state.holds(frozenset(found.broker_ids), found.epoch, steady_time_ms())
                self._apply()

    def _refused(self, error: ResponseError) -> None:
        """The reason may be an earlier request whose answer was lost: the controller's next answer follows all earlier requests."""
        if error.code in _DEPOSED:
            self._doubt()
            return
        try:
            found = self._controllers.term()
        except ClientError as failure:
            self._unanswered(failure)
            return
        if found.epoch != self._role.term.epoch:
            self._doubt()
        elif found.set_epoch > self._state.epoch:
            self.on_term(found)
        else:
            with self._lock:
                self._state.holds(found.members, found.set_epoch, steady_time_ms())
                self._state.refused(steady_time_ms())
                self._apply()

    def _unanswered(self, error: ClientError) -> None:
        _LOG.warning("the controller may know of it or not: %s", error.describe())
        with self._lock:
            self._state.unanswered()

    def _apply(self) -> None:
        if self._state.union != self._in_force:
            self._in_force = self._state.union
            wait_for(self._service.acks, self._in_force, self._role.own_id)


def wait_for(acks: ReplicaAcks, broker_ids: frozenset[int], own_id: int) -> None:
    """Puts wait for these brokers from now on, and readers too."""
    acks.set_members(f"id:{each}" for each in broker_ids - {own_id})
