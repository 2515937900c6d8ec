"""A machine with one store: master, or slave of one, on a disk that forgets what is not synced."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from spark_mq.broker_server.opening import tell
from storage import StoreConfig, open_store
from storage.errors import StorageError
from storage.ha.follower import Follower
from storage.ha.listener import ListenerSettings, LogReader, ReplicationListener
from storage.ha.sessions import RECONNECT_MS, SlaveSession, Timing
from storage.pending import Pending, PutStatus
from storage.service.put_group import Acknowledgement, CopiesWanted
from storage.service.put_service import PutService
from storage.tables.masters import forget_followed_master, note_followed_master
from tests.ha.network import LineEnd, TurnOver, World
from tests.support.crash_disk import EXTREMES, Disk, Operation
from tests.support.crash_file_system import CrashFileSystem

FILE_BYTES = 4096


class Died(BaseException):
    """The process or the machine went down in the middle of something."""


class MortalDisk(CrashFileSystem):
    """A disk that may die at one of the next operations."""

    left: int | None = None
    """So many operations are done yet."""

    def _keep(self, operation: Operation) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Died
        self.disk.apply(operation)

    def mark(self, text: str) -> None:
        """Nobody reads it."""


class WaitsFor(NamedTuple):
    """What a put waits for; None = it does not wait for that."""

    flush: Future[None] | None = None
    copies: CopiesWanted | None = None


class UnwaitedService(PutService):
    """Nobody waits in a put: what it waits for is kept instead."""

    waits_for = WaitsFor()

    def _wait(self, acknowledged: Pending[PutStatus]) -> PutStatus:
        is_waiting = isinstance(acknowledged, Acknowledgement)
        self.waits_for = WaitsFor(acknowledged.flush, acknowledged.copies) if is_waiting else WaitsFor()
        return PutStatus.PUT_OK


class Node:
    """`role` is what it is as long as it runs, and again when it is started."""

    def __init__(self, world: World, directory: Path, number: int, config: StoreConfig, batch_bytes: int) -> None:
        self.world, self.number, self.config = world, number, config
        self._slave_config = replace(config, mode=replace(config.mode, broker_role="SLAVE"))
        self.host = f"10.0.0.{number}"
        self.root = directory / f"node-{number}"
        self.batch_bytes = batch_bytes
        self.cuts_anywhere = False
        """Frames end inside records, as a Java master's may."""
        self.boot = 1
        self.clock_shift_ms = 0
        self.frozen_until = 0
        self.is_up = False
        self.role = "slave"
        self.on_death: Callable[[], None] = lambda: None
        self.trouble: str | None = None
        """What the follower says of its last connection."""
        self.connected_ms = 0
        self.lost_power_ms: int | None = None
        """When it last did, if its disk is the same since."""
        self.is_after_power_loss = False
        """Since it ran last."""
        self._master: Node | None = None
        self._wakes_at: int | None = None
        self._clear()
        self.root.mkdir(parents=True)
        self._begin_with(None)

    def __hash__(self) -> int:
        """What is done to a set of machines follows from their numbers."""
        return self.number

    def _clear(self) -> None:
        self.service: UnwaitedService | None = None
        self.listener: ReplicationListener | None = None
        self.follower: Follower | None = None
        self.session: SlaveSession | None = None
        self.connection: LineEnd | None = None
        self._connects_at = 0

    def clock(self) -> int:
        """Milliseconds, as its own clock has them."""
        return self.world.now_ms + self.clock_shift_ms

    # Starting and ending

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """A node that dies in here is dead afterwards."""
        try:
            with self.world.on(self):
                yield
        except Died:
            self.die(power_loss=self.world.random.random() < 0.5)

    def start(self, master: Node | None) -> None:
        """As what its role says. `master` is whom a slave follows."""
        with self.at_work():
            self.is_up = True
            holder = "follower" if self.role == "slave" else "broker"
            store = open_store(
                self.root,
                read_only=False,
                create=True,
                holder=holder,  # type: ignore[arg-type]
                config=self.config if self.role == "master" else self._slave_config,
                file_system=self.files,
                clock=self.clock,
            )
            self.service = UnwaitedService(store, starts_duties=False)
            if self.role == "slave":
                note_followed_master(self.files, str(self.root), "its master")
                self._master = master
                self.follower = Follower(self.service, lambda: None, Timing())
            else:
                self._serve(self.service)
            self.wake()

    def _serve(self, service: PutService) -> None:
        store = service.store
        reader = LogReader(
            lambda: store.layout.commit_log(store.writer.file_system),
            lambda: service.dispatched_end,
            service.settings.log_file_size_bytes,
        )
        if self.cuts_anywhere:
            reader.cut = partial(_cut_anywhere, reader)  # type: ignore[method-assign]
        settings = ListenerSettings(self.host, batch_bytes=self.batch_bytes)
        self.listener = ReplicationListener(reader, settings)
        service.log_grew = self.listener.wake
        self.listener.replicas.listen(partial(tell, service.acks))

    def die(self, *, power_loss: bool) -> None:
        """The process is killed; or the machine loses its power, and nobody hears of it."""
        if not self.is_up:
            return
        left = self._gone(power_loss=power_loss)
        self._abandon()
        self._begin_with(self._after_power_loss(left) if power_loss else left)

    def _gone(self, *, power_loss: bool) -> Disk:
        """It does nothing any more, and of a killed process others hear that their lines are cut; what is on its disk."""
        self.on_death()
        self.is_up = False
        self.files.left = None
        left = deepcopy(self.files.disk)
        lines = [line for line in self.world.lines if line.owner is self]
        self.world.forget(self)
        for line in lines if not power_loss else ():
            line.peer.reset()
        return left

    def _after_power_loss(self, disk: Disk) -> Disk:
        random = self.world.random
        self.boot += 1
        self.lost_power_ms, self.is_after_power_loss = self.world.now_ms, True
        return disk.after_power_loss(random, random.choice(("", "", *EXTREMES)))

    def close(self) -> None:
        """Ended in good order."""
        with self.at_work():
            if self.listener is not None:
                self.listener.close()
            if self.follower is not None:
                self._hang_up(None)
                self.follower._log.cut_torn_end()
            assert self.service is not None
            self.service.close()
        if self.is_up:
            self.is_up = False
            self._clear()

    def promote(self) -> None:
        """Its follower has ended; it follows nobody any more."""
        with self.at_work():
            holder = "follower"
            open_store(
                self.root,
                read_only=False,
                holder=holder,  # type: ignore[arg-type]
                config=self._slave_config,
                file_system=self.files,
                clock=self.clock,
            ).close()
            forget_followed_master(self.files, str(self.root))
        self.role = "master"

    def wipe(self) -> None:
        """An empty disk."""
        if self.is_up:
            self.die(power_loss=True)
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        self._begin_with(None)
        self.role, self.lost_power_ms, self.is_after_power_loss = "slave", None, False

    def _abandon(self) -> None:
        """What a dead process had open is closed; what that writes goes nowhere."""
        if self.listener is not None:
            self.listener._reader.close()
        if self.service is not None:
            with suppress(BaseException):
                self.service.close()
        self._clear()

    def _begin_with(self, disk: Disk | None) -> None:
        """None = an empty one."""
        self.files = MortalDisk(str(self.root), disk, self.boot)

    # Its turns

    def wake(self) -> None:
        """Soon."""
        self.wake_in(0)

    def wake_in(self, delay_ms: int) -> None:
        at = max(self.world.now_ms + delay_ms, self.frozen_until)
        if self._wakes_at is None or at < self._wakes_at:
            self._wakes_at = at
            self.world.after(at - self.world.now_ms, partial(self._turn, at))

    def _turn(self, at: int) -> None:
        if self._wakes_at != at:
            return
        if self.frozen_until > self.world.now_ms:
            self.world.after(self.frozen_until - self.world.now_ms, partial(self._turn, at))
            return
        self._wakes_at = None
        if not self.is_up:
            return
        with self.at_work():
            if self.listener is not None:
                self.listener._turn()
                is_ready = self.listener._selector.select(0)
                self.wake_in(0 if is_ready else max(1, round(self.listener._patience_seconds() * 1_000)))
            elif self.follower is not None:
                self._follow(self.follower)

    def _follow(self, follower: Follower) -> None:
        """As `Follower._follow` does, which waits."""
        now_ms = self.world.now_ms
        if self.connection is None:
            if now_ms < self._connects_at:
                self.wake_in(self._connects_at - now_ms)
                return
            end = follower._log.cut_torn_end() or follower._first_place()
            if self._master is not None:
                self.connection = self.world.connect(self, self._master.host)
            if self.connection is None:
                self._hang_up("the master is not reached")
                return
            self.connected_ms = now_ms
            self.session = SlaveSession(end, follower._log.file_size_bytes, self.world.steady_ms(), Timing())
        assert self.session is not None
        try:
            self._hang_up(follower._converse(self.connection, self.session))  # type: ignore[arg-type]
        except TurnOver:
            self.wake_in(max(1, self.connection.timeout_ms))

    def _hang_up(self, trouble: str | None) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = self.session = None
        self.trouble = trouble or self.trouble
        self._connects_at = self.world.now_ms + RECONNECT_MS
        self.wake_in(RECONNECT_MS)

    def serve_turn(self, turn: Callable[[PutService], None]) -> None:
        """One of its service's duties."""
        if self.is_up and self.service is not None and self.service.failure is None:
            with self.at_work(), suppress(StorageError):
                turn(self.service)

    # What it holds

    @property
    def checked_end(self) -> int:
        """Up to where its log is whole."""
        if self.follower is not None:
            return self.follower._log.end
        return 0 if self.service is None else self.service.dispatched_end

    @property
    def held_end(self) -> int:
        """Up to where bytes are, be they half a record."""
        if self.follower is not None:
            return max(self.follower._log.end, self.follower._log.raw_end)
        return 0 if self.service is None else self.service.log_end

    @property
    def readable_end(self) -> int:
        """Up to where readers see its log."""
        return self.checked_end

    def log_files(self) -> dict[int, bytearray]:
        """Start and content of each file, as the page cache has it."""
        directory = self.files.disk.entries.get(f"{self.root}/commitlog", {})
        return {
            int(name): self.files.disk.files[number].content for name, number in directory.items() if name.isdigit()
        }

    def log(self, end: int) -> bytes:
        """All bytes up to there."""
        files = self.log_files()
        return b"".join(bytes(files[start][:FILE_BYTES]) for start in sorted(files))[:end]

    def synced_log(self, end: int) -> bytes:
        """What of it a power loss leaves for certain."""
        directory = self.files.disk._durable_entries.get(f"{self.root}/commitlog", {})
        starts = sorted(int(name) for name in directory if name.isdigit())
        return b"".join(
            self.files.disk.files[directory[f"{start:020}"]].durable.ljust(FILE_BYTES, b"\0") for start in starts
        )[:end]

    def queues(self) -> dict[tuple[str, int], dict[int, bytearray]]:
        """Of each queue its files, by their start."""
        found: dict[tuple[str, int], dict[int, bytearray]] = {}
        base = f"{self.root}/consumequeue/"
        for directory, names in self.files.disk.entries.items():
            if directory.startswith(base) and directory.count("/") == base.count("/") + 1:
                topic, queue = directory.removeprefix(base).split("/")
                found[topic, int(queue)] = {
                    int(name): self.files.disk.files[number].content for name, number in names.items()
                }
        return found


def _cut_anywhere(reader: LogReader, start: int, most_bytes: int) -> int:
    return min(start + most_bytes, reader.end, start // FILE_BYTES * FILE_BYTES + FILE_BYTES)
