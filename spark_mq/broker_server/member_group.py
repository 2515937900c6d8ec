"""The brokers of one name, as name servers tell, where a slave stands in for a master that is gone (enableSlaveActingMaster).

    904 each second ─▶ a silent broker is forgotten after `brokerNotActiveTimeoutMillis`, not after two minutes
    901 each second ─▶ how many brokers are alive; whether the master has come or gone (905 wakes)

What stands in is the slave with the lowest id: name servers show it as 0, its topics as read-only (`supportActingMaster`). It serves
pulls and keeps offsets, as every slave; a master that comes back takes those over before name servers hear of it.
What waits (delay levels, the timer, checks of transactions) waits until the master is back, as in Java with enableRemoteEscape=false.
Departure: with true Java's acting master puts it into another broker's log (EscapeBridge). Java: BrokerController.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from spark_mq.broker_server.state_copies import Master, MasterPlace, StateCopies
from spark_mq.client.calls import read_answer_body
from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import run
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RequestCode, make_request, write_header
from spark_mq.remoting.route_bodies import BrokerMemberGroupAnswer
from spark_mq.remoting.route_headers import BrokerGroupRequest, BrokerHeartbeatRequest
from storage.names import MASTER_ID
from storage.service.put_service import PutService
from storage.tables.masters import KEPT_BY_SLAVES

PERIOD_S = 1.0
_TIMEOUT_MS = 1_000
_LOG = logging.getLogger(__name__)


class Member(NamedTuple):
    """Which broker of a group one is."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class Group(NamedTuple):
    """What is known of a group at one moment."""

    addresses: Mapping[int, str]
    """By broker id."""

    def alive_with(self, own_id: int) -> int:
        """How many brokers live, this one among them, registered or not. Java: calcAliveBrokerNumInGroup."""
        return len(self.addresses.keys() | {own_id})

    def stands_in(self, own_id: int) -> bool:
        """Whether it has the lowest id, and is no master."""
        return own_id != MASTER_ID and own_id == min(self.addresses, default=MASTER_ID)

    def slaves_of(self, own: Member) -> list[str]:
        """The addresses of the others, by their ids."""
        return [
            at for broker_id, at in sorted(self.addresses.items()) if broker_id != own.broker_id and at != own.address
        ]


class MemberGroup:
    """Tells name servers that this broker lives, and asks who else does, from `start` to `close`."""

    def __init__(
        self, own: Member, client: ClientSettings, heed: Callable[[Group], None], *, period_s: float = PERIOD_S
    ) -> None:
        """`heed` hears of the group after each answer."""
        self.own = own
        """This broker."""
        self._name_servers = client.name_servers
        self._heed = heed
        self._period_s = period_s
        self._client = RemotingClient(client)
        self._due = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="member group", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def soon(self) -> None:
        """Something may have changed: it is asked now. From any thread; nothing is believed."""
        self._due.set()

    def close(self) -> None:
        """Ends."""
        self._closing.set()
        self._due.set()
        if self._thread.ident is not None:
            self._thread.join()
        run(self._client.close())

    def ask(self) -> Group | None:
        """901: the group as the first name server that answers has it; None where none does."""
        header = BrokerGroupRequest(cluster_name=self.own.cluster, broker_name=self.own.broker_name)
        for address in self._name_servers:
            command = make_request(RequestCode.GET_BROKER_MEMBER_GROUP, write_header(header))
            try:
                answer = run(self._client.ask(address, command, _TIMEOUT_MS))
                told = read_answer_body(BrokerMemberGroupAnswer, answer, address, RequestCode.GET_BROKER_MEMBER_GROUP)
                return Group(dict(told.group.broker_addresses))
            except ClientError as error:
                _LOG.info("name server %s does not tell the group: %s", address, error.describe())
        return None

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                self._beat()
                if (found := self.ask()) is not None and found.addresses:
                    self._heed(found)
            except Exception:  # whatever it is, the next turn is made
                _LOG.exception("the group is not known")
            self._due.wait(self._period_s)
            self._due.clear()

    def _beat(self) -> None:
        own = self.own
        header = BrokerHeartbeatRequest(
            cluster_name=own.cluster, broker_address=own.address, broker_name=own.broker_name, broker_id=own.broker_id
        )
        for address in self._name_servers:
            command = make_request(RequestCode.BROKER_HEARTBEAT, write_header(header), is_oneway=True)
            try:
                run(self._client.invoke_oneway(address, command, _TIMEOUT_MS))
            except ClientError as error:
                _LOG.info("name server %s is not told: %s", address, error.describe())


class _StandIn(Master):
    """A slave, asked for what it has kept meanwhile."""

    def __init__(self, settings: ClientSettings, address: str) -> None:
        super().__init__(settings)
        self._address = address

    def place(self) -> MasterPlace:
        return MasterPlace(self._address, self._address)


def take_back(
    service: PutService, client: ClientSettings, slaves: list[str], copied: Callable[[str], None] = lambda name: None
) -> None:
    """What consumers have told slaves while the master was gone: of each offset the greater one. Who is not reached is passed over.

    Java: BrokerPreOnlineService.syncMetadataReverse, which takes all or nothing, by versions.
    """
    for address in slaves:
        StateCopies(service, _StandIn(client, address), copied=copied, copies=KEPT_BY_SLAVES).copy()
