"""A controller without sockets, and short ways to ask it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from spark_mq.controller.controller import Controller, RoleNotice
from spark_mq.controller.settings import Configuration
from spark_mq.controller.state import ControllerState, Event, Group
from spark_mq.remoting import (
    Header,
    ProtocolVersion,
    RemotingCommand,
    RequestCode,
    WireBody,
    make_request,
    read_body,
    read_header,
    write_body,
    write_header,
)
from spark_mq.remoting.controllers import (
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    CleanBrokerDataRequest,
    ElectedMasterBody,
    ElectMasterRequest,
    MasterAnswer,
    RegisterToControllerAnswer,
    RegisterToControllerRequest,
    SyncStateSet,
)
from spark_mq.remoting.routes import BrokerHeartbeatRequest
from spark_mq.remoting_server.peer import Caller

CLUSTER = "C"
NAME = "b"


def code_of(broker_id: int) -> str:
    """The check code of a broker's first application."""
    return f"h:{broker_id};7"


class Asked:
    """A controller at a moment. `now_ms` is set by the test."""

    def __init__(self, state: ControllerState | None = None, **settings: str) -> None:
        self.events: list[Event] = []
        self.saved: list[Mapping[str, str]] = []
        self.controller = Controller(
            Configuration.of(settings), state=state, keep=self._keep, save_settings=self.saved.append
        )
        self.controller.address = "127.0.0.1:9877"
        self.now_ms = 1_000
        self.disk_is_full = False

    def _keep(self, events: Sequence[Event]) -> None:
        if self.disk_is_full:
            raise OSError(28, "No space left on device")
        self.events += events

    @property
    def group(self) -> Group:
        """Of the broker's name."""
        return self.controller.state.groups[NAME]

    @property
    def master(self) -> tuple[int | None, int, set[int], int]:
        """Master, its epoch, who is in sync, and the epoch of that."""
        group = self.group
        return group.master_id, group.master_epoch, set(group.sync_state_set), group.sync_state_set_epoch

    @property
    def notices(self) -> list[RoleNotice]:
        """What is to be told since the last look."""
        return self.controller.take_notices()

    def ask(
        self,
        code: int,
        header: Header | Mapping[str, str] | None = None,
        body: WireBody | bytes = b"",
        *,
        host: str = "127.0.0.1",
        channel: Hashable = "channel",
        version: int = ProtocolVersion.V5_3_3,
    ) -> RemotingCommand:
        """The answer."""
        fields = write_header(header) if isinstance(header, Header) else header
        content = body if isinstance(body, bytes) else write_body(body)
        request = make_request(code, fields, content)._replace(version=version)
        return self.controller.answer(request, Caller(channel, host), self.now_ms)

    def apply(
        self, broker_id: int, code: str | None = None, name: str = NAME, host: str = "127.0.0.1"
    ) -> RemotingCommand:
        """1013."""
        header = ApplyBrokerIdRequest(
            cluster_name=CLUSTER,
            broker_name=name,
            applied_broker_id=broker_id,
            register_check_code=code or code_of(broker_id),
        )
        return self.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, header, host=host)

    def register(self, broker_id: int, address: str | None = None, name: str = NAME) -> RemotingCommand:
        """1003."""
        header = RegisterToControllerRequest(
            cluster_name=CLUSTER,
            broker_name=name,
            broker_id=broker_id,
            broker_address=address or f"h:{broker_id}",
            invoke_time_ms=self.now_ms,
        )
        return self.ask(RequestCode.CONTROLLER_REGISTER_BROKER, header)

    def beat(self, broker_id: int, **given: Any) -> RemotingCommand:
        """904, over the broker's own connection; `given` are fields of the header, `channel` or `name`."""
        channel = given.pop("channel", f"channel {broker_id}")
        header = BrokerHeartbeatRequest(
            **{
                "cluster_name": CLUSTER,
                "broker_name": given.pop("name", NAME),
                "broker_id": broker_id,
                "broker_address": f"h:{broker_id}",
                "epoch": 1,
                "max_offset": 0,
                "heartbeat_timeout_ms": 10_000,
                **given,
            }
        )
        return self.ask(RequestCode.BROKER_HEARTBEAT, header, channel=channel)

    def elect(
        self,
        broker_id: int,
        *,
        designate: bool = False,
        host: str = "127.0.0.1",
        version: int = ProtocolVersion.V5_3_3,
    ) -> RemotingCommand:
        """1002."""
        header = ElectMasterRequest(
            cluster_name=CLUSTER, broker_name=NAME, broker_id=broker_id, designate_elect=designate
        )
        return self.ask(RequestCode.CONTROLLER_ELECT_MASTER, header, host=host, version=version)

    def alter(
        self, broker_ids: Sequence[int], *, master: int = 1, master_epoch: int = 1, set_epoch: int = 1
    ) -> RemotingCommand:
        """1001."""
        header = AlterSyncStateSetRequest(broker_name=NAME, master_broker_id=master, master_epoch=master_epoch)
        body = SyncStateSet(broker_ids=tuple(broker_ids), epoch=set_epoch)
        return self.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)

    def clean(self, ids: str | None = None, *, living: bool = False, host: str = "127.0.0.1") -> RemotingCommand:
        """1011."""
        header = CleanBrokerDataRequest(
            cluster_name=CLUSTER, broker_name=NAME, broker_ids_to_clean=ids, cleans_living=living
        )
        return self.ask(RequestCode.CLEAN_BROKER_DATA, header, host=host)

    def enter(self, *broker_ids: int) -> None:
        """Brokers get these ids and are alive."""
        for broker_id in broker_ids:
            assert self.apply(broker_id).code == 0
            assert self.register(broker_id).code == 0
            assert self.beat(broker_id).code == 0

    def hang_up(self, broker_id: int) -> None:
        """Its connection is gone."""
        self.controller.close_channel(f"channel {broker_id}", self.now_ms)


def in_sync(*broker_ids: int) -> Asked:
    """A controller with these brokers, the first of them master, all in sync."""
    asked = Asked()
    asked.enter(*broker_ids)
    assert asked.elect(broker_ids[0]).code == 0
    if len(broker_ids) > 1:
        assert asked.alter(broker_ids).code == 0
    assert asked.master == (broker_ids[0], 1, set(broker_ids), min(len(broker_ids), 2))
    asked.notices  # noqa: B018
    return asked


def master_of(answer: RemotingCommand) -> tuple[int | None, str | None, int | None, int | None]:
    """What an election is answered: id, address, epoch, epoch of the set."""
    found = read_header(MasterAnswer, answer)
    return found.master_broker_id, found.master_address, found.master_epoch, found.sync_state_set_epoch


def told_at_registration(answer: RemotingCommand) -> RegisterToControllerAnswer:
    """What a registration is answered."""
    return read_header(RegisterToControllerAnswer, answer)


def elected_body(answer: RemotingCommand) -> ElectedMasterBody:
    """The body of an election's answer."""
    return read_body(ElectedMasterBody, answer.body)


def said(answer: RemotingCommand) -> tuple[int, str | None]:
    """Code and remark."""
    return answer.code, answer.remark
