"""The machine of a controller, and how brokers reach it: the real `Controller` over its real journal, on a disk that forgets.

What a broker asks comes late, or never; what it asks within a partition may come when that is over and nobody waits any more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from spark_mq.client.errors import BrokerUnreachableError, RequestTimeoutError
from spark_mq.controller.controller import Controller
from spark_mq.controller.journal import open_journal
from spark_mq.controller.settings import Configuration
from spark_mq.controller.state import Group
from spark_mq.remoting import RemotingCommand, RequestCode, make_request, write_header
from spark_mq.remoting.controllers import ElectMasterRequest
from spark_mq.remoting_server.peer import Caller
from tests.ha.fibers import Waiters
from tests.ha.network import World
from tests.ha.node import Died, MortalDisk
from tests.support.crash_disk import EXTREMES

HOST, PORT = "10.0.0.100", 9_877
ADDRESS = f"{HOST}:{PORT}"
CLUSTER, NAME = "DefaultCluster", "group"
SCAN_MS = 5_000
MOST_TICK_MS = 1_000
_KEPT_BY_A_LINE = 0.6
"""How often what was sent into a partition comes when it is over."""


class Channel:
    """One connection of a broker's process to the controller."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.is_open = True
        self.is_left = False
        """Whether the process is gone; what it has sent may still come."""


class _Sent(NamedTuple):
    channel: Channel
    request: RemotingCommand
    answered: Callable[[RemotingCommand], None]


class Control:
    """One controller. `told` hears of addresses of brokers that are to ask who is master."""

    clock_shift_ms = 0

    def __init__(self, world: World, directory: Path, told: Callable[[str], None]) -> None:
        self.world, self.host, self.root = world, HOST, directory / "controller"
        self._told = told
        self.root.mkdir(parents=True)
        self.boot = 1
        self.files = MortalDisk(str(self.root))
        self.is_up = False
        self.frozen_until = 0
        self.controller: Controller | None = None
        self._waiting: list[_Sent] = []
        self.last_ms: dict[str, int] = {}
        """When comes what each machine has sent last: nothing overtakes it."""
        self._run = 0
        self._begun_ms = self._frozen_ms = 0

    def wake(self) -> None:
        """Nothing waits in it."""

    @property
    def group(self) -> Group | None:
        """What it knows; None = nothing, or it is down."""
        return None if self.controller is None else self.controller.state.groups.get(NAME)

    # Starting and ending

    @contextmanager
    def at_work(self) -> Any:
        try:
            with self.world.on(self):
                yield
        except Died:
            self.die(power_loss=self.world.random.random() < 0.5)

    def start(self) -> None:
        """Nobody is alive until he is heard of."""
        with self.at_work():
            self.is_up = True
            self._run += 1
            journal = open_journal(str(self.root), self.files, rewritten_at_bytes=2_000)
            configuration = Configuration.of({"controllerStorePath": str(self.root)})
            self.controller = Controller(configuration, state=journal.state, keep=journal.append)
            self.controller.address = ADDRESS
            self._begun_ms, self._frozen_ms = self.world.now_ms, 0
            self.world.after(SCAN_MS, partial(self._scan, self._run))

    def die(self, *, power_loss: bool) -> None:
        if not self.is_up:
            return
        self.is_up, self.controller = False, None
        self.files.left = None
        left = deepcopy(self.files.disk)
        if power_loss:
            random = self.world.random
            left = left.after_power_loss(random, random.choice(("", "", *EXTREMES)))
            self.boot += 1
        self.files = MortalDisk(str(self.root), left, self.boot)
        self._waiting.clear()

    def freeze(self, milliseconds: int) -> None:
        """It hears nobody, and blames nobody for it (`PatientClock`)."""
        self._frozen_ms += max(0, milliseconds - MOST_TICK_MS)
        self.frozen_until = self.world.now_ms + milliseconds
        self.world.after(milliseconds, self._handle)

    def _now_ms(self) -> int:
        return self.world.now_ms - self._begun_ms - self._frozen_ms

    # What it does

    def _scan(self, run: int) -> None:
        if run != self._run or not self.is_up:
            return
        if self.frozen_until > self.world.now_ms:
            self.world.after(self.frozen_until - self.world.now_ms + 1, partial(self._scan, run))
            return
        self._handle()
        with self.at_work():
            assert self.controller is not None
            for gone in self.controller.scan_brokers(self._now_ms()):
                if isinstance(gone.channel, Channel):
                    gone.channel.is_open = False
            self.controller.scan_masters(self._now_ms())
            self._notify()
        self.world.after(SCAN_MS, partial(self._scan, run))

    def arrive(self, sent: _Sent) -> None:
        """A request has come."""
        if self.is_up and sent.channel.is_open:
            self._waiting.append(sent)
            if sent.request.code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET and self.world.random.random() < 0.15:
                self.freeze(
                    self.world.random.choice((500, 4_000))
                )  # what is asked again comes behind what nobody waits for
            self._handle()

    def _handle(self) -> None:
        while self._waiting and self.is_up and self.frozen_until <= self.world.now_ms:
            sent = self._waiting.pop(0)
            if not sent.channel.is_open:
                continue
            with self.at_work():
                assert self.controller is not None
                answer = self.controller.answer(sent.request, Caller(sent.channel, "127.0.0.1"), self._now_ms())
                self._notify()
                self._later(sent.channel.owner.host, partial(sent.answered, answer))

    def _notify(self) -> None:
        assert self.controller is not None
        for notice in self.controller.take_notices():
            for address in notice.addresses:
                if self.world.random.random() < 0.9:
                    self._later(address.rpartition(":")[0], partial(self._told, address))

    def _later(self, host: str, act: Callable[[], None]) -> None:
        if self.world.blocked_until(HOST, host) is None:
            self.world.after(self.world.delay(), act)

    def hang_up(self, channel: Channel) -> None:
        """A broker's process is gone, and its machine says so."""
        if channel.is_left:
            return
        channel.is_left = True
        blocked = self.world.blocked_until(HOST, channel.owner.host)
        delay_ms = self.world.delay() if blocked is None else blocked - self.world.now_ms + self.world.delay()
        self.world.after(delay_ms, partial(self._gone, channel, self._run))

    def _gone(self, channel: Channel, run: int) -> None:
        channel.is_open = False
        if self.is_up and run == self._run:
            with self.at_work():
                assert self.controller is not None
                self.controller.close_channel(channel, self._now_ms())
                self._notify()

    def designate(self, broker_id: int) -> bool:
        """An operator names the master; whether there is another one now."""
        if not self.is_up or self.controller is None or self.frozen_until > self.world.now_ms:
            return False
        header = ElectMasterRequest(cluster_name=CLUSTER, broker_name=NAME, broker_id=broker_id, designate_elect=True)
        request = make_request(RequestCode.CONTROLLER_ELECT_MASTER, write_header(header))
        with self.at_work():
            answer = self.controller.answer(request, Caller("operator", "127.0.0.1"), self._now_ms())
            self._notify()
            return answer.code == 0
        return False


class ControlClient:
    """As `RemotingClient`, of one process and to one controller."""

    def __init__(self, control: Control, node: Any) -> None:
        self._control, self._node = control, node
        self._world = control.world
        self.channel = Channel(node)

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Waits as a fiber does. Raises BrokerUnreachableError, RequestTimeoutError."""
        found: list[RemotingCommand] = []
        waiters = Waiters(self._world)

        def answered(answer: RemotingCommand) -> None:
            found.append(answer)
            waiters.call()

        channel = self._send(address, command, answered)
        end_ms = self._world.now_ms + timeout_ms
        while not found and self._world.now_ms < end_ms and channel.is_open:
            waiters.wait(min(500, end_ms - self._world.now_ms))
        if found:
            return found[0]
        if not channel.is_open:
            raise BrokerUnreachableError(address, "it has hung up")
        raise RequestTimeoutError(f"request {command.code}", timeout_ms, address)

    ask = invoke

    async def invoke_oneway(self, address: str, command: RemotingCommand, timeout_ms: int) -> None:
        self._send(address, command, lambda answer: None)

    def _send(self, address: str, command: RemotingCommand, answered: Callable[[RemotingCommand], None]) -> Channel:
        world, control = self._world, self._control
        if not control.is_up:
            raise BrokerUnreachableError(address, "nobody listens")
        if not self.channel.is_open:
            self.channel = Channel(self._node)
        sent = _Sent(self.channel, command, answered)
        until = world.blocked_until(HOST, self._node.host)
        if until is None or world.random.random() < _KEPT_BY_A_LINE:
            comes_ms = max(control.last_ms.get(self._node.host, 0), (until or world.now_ms) + world.delay())
            control.last_ms[self._node.host] = comes_ms
            world.after(comes_ms - world.now_ms, partial(control.arrive, sent))
        return self.channel

    async def close(self) -> None:
        self._control.hang_up(self.channel)
