"""Other peers of a master: a second connection of a slave, and strangers that say anything."""

from __future__ import annotations

from storage.format.replication import Dialect, Report, SlaveHandshake, encode_from_slave
from storage.ha.sessions import Introduced, Refused, SlaveSession, Timing
from tests.ha.network import LineEnd, World
from tests.ha.node import FILE_BYTES, Node


class SecondLine:
    """Another connection of a slave that reports no more than the slave has, and perhaps less than it has reported."""

    clock_shift_ms = 0

    def __init__(self, world: World, slave: Node, host: str, identity: SlaveHandshake | None = None) -> None:
        """With `identity` in the controller's dialect."""
        self._world, self._slave, self.host = world, slave, slave.host
        self._service = slave.service
        self._dialect = Dialect.DEFAULT if identity is None else Dialect.CONTROLLER
        self._session = SlaveSession(slave.checked_end, FILE_BYTES, world.now_ms, Timing(), handshake=identity)
        self._goes_back = world.random.random() < 0.5
        self._line: LineEnd | None = world.connect(self, host)
        world.after(world.random.choice((50, 3_000, 30_000)), self._end)
        self.wake()

    @property
    def is_up(self) -> bool:
        return self._slave.is_up and self._slave.service is self._service

    def wake(self) -> None:
        line, slave = self._line, self._slave
        if line is None or line.is_closed:
            return
        if not self.is_up or line.is_reset or line.has_ended:
            line.close()
            return
        if line.arrived:
            found = self._session.receive(line.recv(1 << 20), self._world.now_ms)
            if any(isinstance(event, Refused) for event in found):
                line.close()
                return
            if any(isinstance(event, Introduced) for event in found):
                self._session.begin(slave.checked_end)
        self._session.appended(min(self._session.end, slave.checked_end))
        if (data := self._session.next_send(self._world.now_ms)) is not None:
            line.sendall(data)
        if self._goes_back and self._session.frames:
            self._goes_back = False
            line.sendall(encode_from_slave(self._dialect, Report(max(0, self._session.reported - 1))))

    def _end(self) -> None:
        if self._line is not None:
            self._line.close()


class Stranger:
    """Comes from nowhere, says something, and something else when it is sent the log."""

    clock_shift_ms = 0
    is_up = True

    def __init__(self, world: World, host: str, dialect: Dialect = Dialect.DEFAULT) -> None:
        self._world, self._dialect = world, dialect
        random = world.random
        self.host = f"10.0.9.{random.randrange(1, 250)}"
        self._line: LineEnd | None = world.connect(self, host)
        self._words = [random.choice((0, 0, 0, -1, -5, 7, 1 << 40, -(1 << 62)))]
        self._words += [random.choice((1 << 40, -1, 1 << 62, 3)) for _ in range(2)]
        self._has_said = False
        if dialect is Dialect.CONTROLLER and self._line is not None:
            identity = SlaveHandshake(random.choice((0, 77, 78, -1)), is_learner=random.random() < 0.3)
            self._line.sendall(encode_from_slave(dialect, identity))
        if random.random() < 0.2 and self._line is not None:
            self._line.sendall(random.randbytes(random.choice((1, 3, 12, 100))))
        world.after(random.choice((10, 2_000, 25_000)), self._end)
        self.wake()

    def wake(self) -> None:
        line = self._line
        if line is None or line.is_closed:
            return
        if line.is_reset or line.has_ended:
            line.close()
            return
        if self._words and (line.arrived or not self._has_said):
            line.arrived.clear()
            self._has_said = True
            line.sendall(encode_from_slave(self._dialect, Report(self._words.pop(0))))

    def _end(self) -> None:
        if self._line is not None:
            self._line.close()
