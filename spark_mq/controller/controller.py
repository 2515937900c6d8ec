"""A controller's handlers by request code. No sockets, no clock, no files.

    controller = Controller(configuration, state=journal.state, keep=journal.append)
    answer = controller.answer(request, Caller(channel, "127.0.0.1"), now_ms)
    notices = controller.take_notices()      # after each of: answer, close_channel, scan_brokers, scan_masters

A decision is written (`keep`) before it takes effect, and takes effect before it is answered. If a single node cannot write it, nothing
has changed; if one of several gets no majority for it, it may hold or not. The answer says so. A request that cannot be decoded, or
that is refused, is answered with the reason; nothing is raised.
Not thread-safe, but for `answer` to a request of `UNLED_CODES` other than a heartbeat.

Of several controllers (`quorum.py`) the one that leads decides and answers; the others hear heartbeats, so that each can take over.

Java: ControllerManager, ControllerRequestProcessor, DLedgerController. Departure: only this host may send operators' changes, and
others with a signature (`remoting_server/administration.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from spark_mq.controller.decisions import (
    Applications,
    Decided,
    alter_sync_state_set,
    apply_broker_id,
    check_body,
    clean_broker_data,
    controllers_own,
    elect_master,
    masterless,
    next_broker_id,
    refused,
    register_broker,
    replica_info,
    sync_state_data,
)
from spark_mq.controller.settings import Configuration
from spark_mq.controller.state import BrokerKey, ControllerState, Event, Gone, Group, Liveness, LivingBrokers
from spark_mq.remoting import (
    REQUEST_HEADERS,
    ProtocolVersion,
    RemotingCommand,
    RequestCode,
    make_response,
    read_body,
    read_header,
    write_body,
    write_header,
)
from spark_mq.remoting.command import read_texts
from spark_mq.remoting.controllers import (
    ControllerMetadataAnswer,
    ElectedMasterBody,
    MasterAnswer,
    RoleChangedRequest,
    SyncStateSet,
)
from spark_mq.remoting_server.administration import answered, changed_settings, check_may_administer
from spark_mq.remoting_server.peer import Caller, not_supported
from storage.rules.response_codes import RequestRefusedError, ResponseCode

REQUEST_POOL = "Controller"
"""The queue of requests, as watermarks name it."""
ADMIN_CODES = frozenset(
    {RequestCode.UPDATE_CONTROLLER_CONFIG, RequestCode.GET_CONTROLLER_CONFIG, RequestCode.CLEAN_BROKER_DATA}
)
"""Requests of operators, and the election of a named master: refused to other hosts unless signed."""
UNLED_CODES = frozenset(
    {
        *(RequestCode.CONTROLLER_GET_METADATA_INFO, RequestCode.BROKER_HEARTBEAT),
        *(RequestCode.UPDATE_CONTROLLER_CONFIG, RequestCode.GET_CONTROLLER_CONFIG),
    }
)
"""Requests that a controller answers whether it leads or not."""
NOT_LEADER = "The controller is not in leader state"
_LOG = logging.getLogger(__name__)


class Standing(NamedTuple):
    """Which controller leads, as this one knows it."""

    leader_id: str | None
    serves: bool
    """Whether this one leads, and knows all that was decided before."""


class RoleNotice(NamedTuple):
    """A notice of the new master to brokers (1008, one-way)."""

    addresses: tuple[str, ...]
    header: RoleChangedRequest
    body: SyncStateSet


class _Ask(NamedTuple):
    """A request whose header was read."""

    request: RemotingCommand
    header: Any
    channel: Hashable
    now_ms: int
    host: str


class Controller:
    """One controller, a single node unless `standing` says who leads. `keep` and `save_settings` write to disk, and raise OSError where
    they cannot; `keep` raises RequestRefusedError where another controller decides now, or where a decision may hold or not.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        state: ControllerState | None = None,
        keep: Callable[[Sequence[Event]], None] = lambda events: None,
        save_settings: Callable[[Mapping[str, str]], None] = lambda changes: None,
        standing: Callable[[], Standing] | None = None,
    ) -> None:
        self.configuration = configuration
        own_id = configuration.controller.self_id
        self._is_alone = standing is None
        self._standing = standing or (lambda: Standing(own_id, serves=True))
        self.address = ""
        """The controller's address for brokers: set when it is known."""
        self.state = state or ControllerState()
        self.liveness = Liveness()
        self._keep = keep
        self._save_settings = save_settings
        self._notices: list[RoleNotice] = []
        self.applications = Applications() if self._is_alone else None
        """None: as in Java, whose controllers may be in the group, an id belongs for ever to the broker that applied for it."""

    def answer(self, request: RemotingCommand, caller: Caller, now_ms: int) -> RemotingCommand:
        """The answer to any request of any client."""
        handler = HANDLERS.get(request.code)
        if handler is None:
            return not_supported(request)
        return answered(request, lambda: self._done(handler, request, caller, now_ms))

    def _done(self, handler: _Handler, request: RemotingCommand, caller: Caller, now_ms: int) -> RemotingCommand:
        check_body(len(request.body))
        header = read_header(REQUEST_HEADERS[request.code], request)
        if request.code not in UNLED_CODES and not self.serves:
            return make_response(request, ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)
        if request.code in ADMIN_CODES or getattr(header, "designate_elect", False):
            check_may_administer(request, caller.host, self.configuration.controller.administrator)
        return handler(self, _Ask(request, header, caller.channel, now_ms, caller.host))

    @property
    def serves(self) -> bool:
        """Whether this controller decides."""
        return self._standing().serves

    # Who is there.

    def close_channel(self, channel: Hashable, now_ms: int) -> None:
        """A connection is gone, and with it the brokers that sent heartbeats over it."""
        for key in self.liveness.close_channel(channel):
            _LOG.warning("broker %d of %s: its connection is gone", key.broker_id, key.broker_name)
            self._broker_gone(key, now_ms)

    def scan_brokers(self, now_ms: int) -> list[Gone]:
        """Remove brokers that were silent for too long; returns their connections, for closing. Java: scanNotActiveBroker."""
        found = self.liveness.expired(now_ms)
        for gone in found:
            _LOG.warning(
                "broker %d of %s is silent for %d ms", gone.key.broker_id, gone.key.broker_name, gone.silent_ms
            )
            self._broker_gone(gone.key, now_ms)
        self._forget_applications(now_ms)
        return found

    def _forget_applications(self, now_ms: int) -> None:
        """Free ids that were applied for long ago, if no broker has registered with them."""
        if self.applications is None:
            return
        lapsed = self.applications.lapsed(self.state, now_ms)
        if lapsed:
            _LOG.warning("%d brokers have applied for an id and never registered: they are forgotten", len(lapsed))
            try:
                self.hold(Decided(events=lapsed))
            except (OSError, RequestRefusedError) as error:
                _LOG.error("they are not forgotten yet: the decision cannot be kept: %s", error)

    def scan_masters(self, now_ms: int) -> None:
        """Groups whose master is not alive get another one. Java: scanInactiveMasterAndTriggerReelect."""
        if not self.serves:
            return
        for group in masterless(self.state, self.liveness.at(now_ms)):
            self._elect(group, now_ms)

    def _broker_gone(self, key: BrokerKey, now_ms: int) -> None:
        group = self.state.groups.get(key.broker_name)
        if group is not None and group.master_id == key.broker_id and self.serves:
            self._elect(group, now_ms)

    def _elect(self, group: Group, now_ms: int) -> None:
        """The controller asks itself. What cannot be kept is tried again by the next scan."""
        living = self.liveness.at(now_ms)
        is_unclean = self.configuration.controller.elects_unclean_master
        decided = elect_master(self.state, controllers_own(group), living, is_unclean=is_unclean)
        try:
            self.hold(decided)
        except (OSError, RequestRefusedError) as error:
            _LOG.error("no master is elected for %s: the decision cannot be kept: %s", group.broker_name, error)
            return
        self.tell_of_master(decided, living)

    # What handlers do.

    def hold(self, decided: Decided, *, is_read: bool = False) -> None:
        """Keeps what was decided, then lets it hold.

        Raises OSError where a single node cannot keep it: nothing has changed. Raises RequestRefusedError where one of several does not
        lead any more, or where it is not known whether it holds: nothing has changed here yet.

        With processReadEvent one of several controllers also asks the others before it answers a read.
        """
        proves = is_read and not self._is_alone and self.configuration.controller.processes_reads
        if not decided.events and not proves:
            return
        self._keep(decided.events)
        for event in decided.events:
            self.state.apply(event)
            _LOG.info("%s", event)

    def tell_of_master(self, decided: Decided, living: LivingBrokers) -> None:
        """After a successful election, queue a notice to all living brokers of the group."""
        header, body = decided.header, decided.body
        notifies = self.configuration.controller.notifies_brokers and decided.code == ResponseCode.SUCCESS
        if not notifies or not isinstance(header, MasterAnswer) or not isinstance(body, ElectedMasterBody):
            return
        group = None if body.group is None else self.state.groups.get(body.group.broker_name or "")
        if group is None:
            return
        addresses = tuple(
            replica.address for each, replica in sorted(group.replicas.items()) if living.is_alive(group, each)
        )
        change = RoleChangedRequest(
            master_address=header.master_address,
            master_epoch=header.master_epoch,
            sync_state_set_epoch=header.sync_state_set_epoch,
            master_broker_id=header.master_broker_id,
        )
        epoch = header.sync_state_set_epoch or 0
        self._notices.append(RoleNotice(addresses, change, SyncStateSet(broker_ids=body.broker_ids or (), epoch=epoch)))

    def take_notices(self) -> list[RoleNotice]:
        """Notices to brokers since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def metadata(self) -> ControllerMetadataAnswer:
        """The controllers, and which of them leads."""
        settings = self.configuration.controller
        own = settings.self_id
        peers = {each.peer_id: each.address for each in settings.members} or {own: self.address}
        leader_id = self._standing().leader_id
        return ControllerMetadataAnswer(
            group=settings.group,
            controller_leader_id=leader_id,
            controller_leader_address=None if leader_id is None else peers.get(leader_id),
            is_leader=leader_id == own,
            peers="".join(f"{name}:{address};" for name, address in peers.items()),
        )

    def update_settings(self, request: RemotingCommand) -> None:
        """Raises RequestRefusedError, ConfigurationError and OSError; nothing has changed then."""
        self.configuration = changed_settings(self.configuration, request, self._save_settings)


_Handler: TypeAlias = Callable[[Controller, _Ask], RemotingCommand]


def _done(controller: Controller, ask: _Ask, decided: Decided) -> RemotingCommand:
    """Holds what was decided, and answers.

    Departure: to newer peers the broker ids are quoted. mqadmin from 5.4.0 on reads the answer to 1002 as another class, and fails at a
    bare number that it would skip.
    """
    controller.hold(decided, is_read=ask.request.code not in UNLED_CODES)
    fields = None if decided.header is None else write_header(decided.header)
    is_quoted = ask.request.version >= ProtocolVersion.V5_4_0 and isinstance(decided.body, ElectedMasterBody)
    body = b"" if decided.body is None else write_body(decided.body, is_standard_json=is_quoted)
    return make_response(ask.request, decided.code, decided.remark, fields, body)


def _alter_sync_state_set(controller: Controller, ask: _Ask) -> RemotingCommand:
    """1001."""
    wanted = read_body(SyncStateSet, ask.request.body)
    living = controller.liveness.at(ask.now_ms)
    return _done(controller, ask, alter_sync_state_set(controller.state, ask.header, wanted, living))


def _elect_master(controller: Controller, ask: _Ask) -> RemotingCommand:
    """1002."""
    living = controller.liveness.at(ask.now_ms)
    is_unclean = controller.configuration.controller.elects_unclean_master
    decided = elect_master(controller.state, ask.header, living, is_unclean=is_unclean)
    answer = _done(controller, ask, decided)
    controller.tell_of_master(decided, living)
    return answer


def _register_broker(controller: Controller, ask: _Ask) -> RemotingCommand:
    """1003."""
    return _done(controller, ask, register_broker(controller.state, ask.header, controller.liveness.at(ask.now_ms)))


def _replica_info(controller: Controller, ask: _Ask) -> RemotingCommand:
    """1004."""
    return _done(controller, ask, replica_info(controller.state, ask.header))


def _metadata(controller: Controller, ask: _Ask) -> RemotingCommand:
    """1005."""
    return _done(controller, ask, Decided(controller.metadata()))


def _sync_state_data(controller: Controller, ask: _Ask) -> RemotingCommand:
    """1006."""
    names = read_texts("names of brokers", ask.request.body) if ask.request.body else ()
    if not names:
        return _done(controller, ask, refused(ResponseCode.SYSTEM_ERROR, "not set any response code"))
    return _done(controller, ask, sync_state_data(controller.state, names, controller.liveness.at(ask.now_ms)))


def _clean_broker_data(controller: Controller, ask: _Ask) -> RemotingCommand:
    """1011."""
    return _done(controller, ask, clean_broker_data(controller.state, ask.header, controller.liveness.at(ask.now_ms)))


def _next_broker_id(controller: Controller, ask: _Ask) -> RemotingCommand:
    """1012."""
    return _done(controller, ask, next_broker_id(controller.state, ask.header))


def _apply_broker_id(controller: Controller, ask: _Ask) -> RemotingCommand:
    """1013."""
    answer = _done(controller, ask, apply_broker_id(controller.state, ask.header, controller.applications))
    if controller.applications is not None:
        controller.applications.note(controller.state, ask.host, ask.now_ms)
    return answer


def _heartbeat(controller: Controller, ask: _Ask) -> RemotingCommand:
    """904. Departure: one of a broker that has no id here is refused, not remembered."""
    beat = ask.header
    if beat.broker_id is None:
        return _done(
            controller, ask, refused(ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
        )
    group = controller.state.groups.get(beat.broker_name)
    if group is None or group.cluster != beat.cluster_name or beat.broker_id not in group.replicas:
        remark = f"BrokerId: {beat.broker_id} hasn't been registered in broker-set: {beat.broker_name}"
        return _done(controller, ask, refused(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, remark))
    if controller.liveness.hear(beat, beat.broker_id, ask.channel, ask.now_ms):
        _LOG.info("broker %d of %s is there", beat.broker_id, beat.broker_name)
    return _done(controller, ask, Decided(remark="Heart beat success"))


def _update_settings(controller: Controller, ask: _Ask) -> RemotingCommand:
    """1009."""
    controller.update_settings(ask.request)
    return _done(controller, ask, Decided())


def _settings(controller: Controller, ask: _Ask) -> RemotingCommand:
    """1010."""
    return make_response(ask.request, ResponseCode.SUCCESS, body=controller.configuration.text().encode())


HANDLERS: Mapping[int, _Handler] = {
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: _alter_sync_state_set,
    RequestCode.CONTROLLER_ELECT_MASTER: _elect_master,
    RequestCode.CONTROLLER_REGISTER_BROKER: _register_broker,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: _replica_info,
    RequestCode.CONTROLLER_GET_METADATA_INFO: _metadata,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: _sync_state_data,
    RequestCode.CLEAN_BROKER_DATA: _clean_broker_data,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: _next_broker_id,
    RequestCode.CONTROLLER_APPLY_BROKER_ID: _apply_broker_id,
    RequestCode.BROKER_HEARTBEAT: _heartbeat,
    RequestCode.UPDATE_CONTROLLER_CONFIG: _update_settings,
    RequestCode.GET_CONTROLLER_CONFIG: _settings,
}
"""Handlers by request code; other codes are not supported."""
