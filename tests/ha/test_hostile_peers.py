"""A listener among peers that want its memory, threads and connections; on a network without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import storage.ha.listener
from storage import StoreConfig
from storage.format.replication import Dialect, Report, encode_from_slave
from storage.ha.listener import _HOSTS_KEPT, _MOST_LOOKS, ReplicationListener
from storage.settings.nouns import StoreModeConfig
from tests.ha.network import LineEnd, World, patched
from tests.ha.node import Node
from tests.ha.simulation import quiet
from tests.support.replicas import holders


class Peer:
    """Another machine."""

    clock_shift_ms = 0
    is_up = True

    def __init__(self, number: int) -> None:
        self.host = f"10.1.{number // 200}.{number % 200}"

    def wake(self) -> None: ...


class Scene:
    """A master with a few messages."""

    def __init__(self, directory: Path) -> None:
        self.world = World(Random(1))
        config = replace(StoreConfig.tiny(), mode=StoreModeConfig(broker_role="SYNC_MASTER"))
        self.master = Node(self.world, directory, 1, config, 700)
        self.master.role = "master"

    @property
    def listener(self) -> ReplicationListener:
        assert self.master.listener is not None
        return self.master.listener

    def connect(self, number: int, *reports: int) -> LineEnd:
        line = self.world.connect(Peer(number), self.master.host)
        assert line is not None
        for offset in reports:
            line.sendall(encode_from_slave(Dialect.DEFAULT, Report(offset)))
        return line

    def go_on(self, milliseconds: int = 400) -> None:
        end = self.world.now_ms + milliseconds
        while self.world.now_ms < end:
            self.world.step()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    with quiet(), patched(made.world):
        made.master.start(None)
        service = made.master.service
        assert service is not None
        with service.exclusive() as store:
            for number in range(30):
                store.put("orders", bytes([number]) * 300)
        made.go_on()
        yield made
        made.master.close()


def test_few_places_are_looked_at_at_a_time_though_peers_leave_and_come(scene: Scene) -> None:
    lines = [scene.connect(number, 77) for number in range(40)]
    for _ in range(4):
        scene.go_on(1)
        assert scene.listener._looks <= _MOST_LOOKS
    for line in lines:
        line.close()
    scene.go_on()
    reasons = {refusal.reason[:8] for refusal in scene.listener.refusals}
    assert {"too many"} <= reasons <= {"too many", "its log "}
    assert (scene.listener._looks, scene.listener._connections) == (0, set())


def test_of_peers_that_left_a_few_are_remembered(scene: Scene) -> None:
    for number in range(_HOSTS_KEPT + 20):
        line = scene.connect(number, 0)
        scene.go_on(300)
        line.close()
    scene.go_on()
    assert len(scene.listener._left) == _HOSTS_KEPT


def test_connections_are_few(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.ha.listener, "_MOST_CONNECTIONS", 5)
    lines = [scene.connect(number) for number in range(8)]
    scene.go_on()
    assert len(scene.listener._connections) == 5
    assert sum(line.has_ended for line in lines) == 3
    scene.go_on(21_000)
    assert scene.listener._connections == set()


def test_a_peer_that_trickles_a_report_is_hung_up_on(scene: Scene) -> None:
    line = scene.connect(1)
    for _ in range(6):
        line.sendall(b"\0")
        scene.go_on(4_000)
    assert "nothing for too long" in scene.listener.refusals[-1].reason
    assert scene.listener.replicas.snapshot() == ()


def test_a_peer_that_reads_nothing_holds_one_frame(scene: Scene) -> None:
    scene.world.partitions[frozenset(("10.1.0.7", scene.master.host))] = 0
    line = scene.connect(7, 0)
    scene.go_on()
    scene.world.partitions[frozenset((line.host, scene.master.host))] = scene.world.now_ms + 15_000
    service = scene.master.service
    assert service is not None
    with service.exclusive() as store:
        for number in range(90):
            store.put("orders", bytes([number]) * 600)
    scene.go_on(2_000)
    (connection,) = scene.listener._connections
    assert 0 < sum(map(len, connection.unsent)) < 1_000


@pytest.mark.parametrize("word", [1 << 40, -1, 3, (1 << 63) - 1])
def test_a_false_acknowledgement_ends_the_connection_and_counts_nothing(scene: Scene, word: int) -> None:
    end = scene.master.held_end
    line = scene.connect(1, 0)
    scene.go_on()
    line.sendall(encode_from_slave(Dialect.DEFAULT, Report(end)))
    scene.go_on()
    assert holders(scene.listener.replicas.snapshot(), end) == 1  # it was sent all that
    line.sendall(encode_from_slave(Dialect.DEFAULT, Report(word)))
    scene.go_on()
    assert line.has_ended
    assert holders(scene.listener.replicas.snapshot(), 0) == 0


def test_two_connections_of_one_host_count_once(scene: Scene) -> None:
    end = scene.master.held_end
    lines = [scene.connect(1, end), scene.connect(1, end)]
    scene.go_on()
    assert holders(scene.listener.replicas.snapshot(), end) == 1
    lines[1].close()
    scene.go_on()
    assert holders(scene.listener.replicas.snapshot(), end) == 1
