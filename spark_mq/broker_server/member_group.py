"""The brokers of one name, where a slave stands in for a master that is gone (enableSlaveActingMaster).

    904 each second ─▶ a silent broker is forgotten after `brokerNotActiveTimeoutMillis`, not after two minutes
    901 each second ─▶ how many brokers are alive; whether the master has come or gone (905 wakes)

What stands in is the slave with the lowest id: name servers show it as 0, its topics as read-only (`supportActingMaster`). It serves
pulls and keeps offsets, as every slave; a master that comes back takes those over before name servers hear of it.
What waits (delay levels, the timer, checks of transactions) waits until the master is back. With enableRemoteEscape the slave puts it
into the logs of other masters (`escape_bridge.py`), and a master that comes back takes over how far it got.

    MemberGroup    904 and 901: the living brokers of its name
    take_back      what a returned master asks of its slaves: the offsets that they kept, how far they delivered

Java: BrokerController (sendHeartbeat, syncBrokerMemberGroup), BrokerPreOnlineService.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from spark_mq.broker_server.masters import Master, MasterPlace
from spark_mq.broker_server.state_copies import StateCopies
from spark_mq.client.calls import read_answer_body
from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import run
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RequestCode, make_request, write_header
from spark_mq.remoting.routes import BrokerGroupRequest, BrokerHeartbeatRequest, BrokerMemberGroupAnswer
from storage.names import MASTER_ID
from storage.service.put_service import PutService
from storage.tables.masters import KEPT_BY_SLAVES, TIMER_CHECKPOINT_FILE, kept_timer, read_timer_checkpoint

GROUP_PERIOD_S = 1.0
_GROUP_TIMEOUT_MS = 1_000
TAKE_BACK_S = 30.0
"""So long a returned master asks for how far its slaves have delivered, before it delivers."""
HAND_BACK_S = 3.0
"""So long a slave may still deliver after a name server shows its master: until it looks, has the answer, and a send ends."""
_TAKE_BACK_PAUSE_S = 1.0
_LOG = logging.getLogger(__name__)


class Member(NamedTuple):
    """Which broker of a group one is."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class Group(NamedTuple):
    """The state of a group at one moment."""

    addresses: Mapping[int, str]
    """By broker id."""

    def alive_with(self, own_id: int) -> int:
        """Number of living brokers, with this one, registered or not. Java: calcAliveBrokerNumInGroup."""
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
    """Sends heartbeats to name servers, and requests the living brokers of the group, from `start` to `close`."""

    def __init__(
        self,
        own: Member,
        client: ClientSettings,
        on_group: Callable[[Group], None],
        *,
        period_s: float = GROUP_PERIOD_S,
    ) -> None:
        """`on_group` is called with the group after each answer."""
        self.own = own
        """This broker."""
        self._name_servers = client.name_servers
        self._on_group = on_group
        self._period_s = period_s
        self._client = RemotingClient(client)
        self._due = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="member group", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def soon(self) -> None:
        """Ask now, because something may have changed. Any thread may call this; the hint itself is not trusted."""
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
                answer = run(self._client.ask(address, command, _GROUP_TIMEOUT_MS))
                members = read_answer_body(
                    BrokerMemberGroupAnswer, answer, address, RequestCode.GET_BROKER_MEMBER_GROUP
                )
                return Group(dict(members.group.broker_addresses))
            except ClientError as error:
                _LOG.info("name server %s does not tell the group: %s", address, error.describe())
        return None

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                self._beat()
                if (found := self.ask()) is not None and found.addresses:
                    self._on_group(found)
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
                run(self._client.invoke_oneway(address, command, _GROUP_TIMEOUT_MS))
            except ClientError as error:
                _LOG.info("name server %s is not notified: %s", address, error.describe())


class _StandIn(Master):
    """A slave as the source of the offsets that it has kept meanwhile."""

    def __init__(self, settings: ClientSettings, address: str) -> None:
        super().__init__(settings)
        self._address = address

    def place(self) -> MasterPlace:
        return MasterPlace(self._address, self._address)


def take_back(
    service: PutService,
    client: ClientSettings,
    group: MemberGroup,
    copied: Callable[[str], None] = lambda name: None,
    *,
    takes_timer: bool = False,
    patience_s: float = 0.0,
) -> bool:
    """Take over the offsets that consumers sent to slaves while the master was gone; the greater one wins.

    Returns whether there were slaves. With `takes_timer` also how far a slave's timer has delivered to other brokers: this one then
    starts anew, without these messages. Requests to slaves and name servers that do not answer are repeated each second for
    `patience_s`; a slave that is away leaves the group meanwhile. A warning names what was not taken over then: this broker delivers it
    again.
    Java: BrokerPreOnlineService.syncMetadataReverse, which takes all or nothing, by versions, and the timer's time alone: it loses
    messages that were due and that the slave did not have. Departure: Java waits without end.
    """
    until, done = time.monotonic() + patience_s, set[str]()
    while True:
        found = group.ask()
        slaves = [] if found is None else [each for each in found.slaves_of(group.own) if each not in done]
        done.update(each for each in slaves if _is_taken(service, _StandIn(client, each), copied, takes_timer))
        if found is not None and done.issuperset(slaves):
            return bool(done)
        if time.monotonic() >= until:
            break
        time.sleep(_TAKE_BACK_PAUSE_S)
    if found is None:
        _LOG.warning("no name server names the slaves: what they have delivered or noted meanwhile is not taken over")
    for address in slaves:
        if address not in done and not (takes_timer and _is_taken(service, _StandIn(client, address), copied, False)):
            _LOG.warning("what slave %s has delivered or noted meanwhile is not taken over", address)
        elif address not in done:
            _LOG.warning("how far the timer of slave %s has delivered is not taken over", address)
    return bool(done or slaves)


def _is_taken(service: PutService, slave: _StandIn, copied: Callable[[str], None], takes_timer: bool) -> bool:
    """False: the request may be repeated."""
    copies = dict(KEPT_BY_SLAVES)
    if takes_timer:
        store = service.store
        checkpoint = read_timer_checkpoint(store.writer.file_system, store.root)
        copies[TIMER_CHECKPOINT_FILE] = partial(kept_timer, checkpoint)
    taking = StateCopies(service, slave, copied=copied, copies=copies)
    taking.copy()
    if (end := taking.held_for) is not None:
        _LOG.warning(
            "what slave %s has delivered or noted meanwhile is not taken over: its log ends at %d, this one at %d",
            slave.place().address,
            end,
            service.log_end,
        )
        return True
    return taking.has_taken(KEPT_BY_SLAVES)
