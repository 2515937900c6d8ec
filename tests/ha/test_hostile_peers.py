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
from storage.ha.listener import _HOSTS_KEPT, _MOST_CONNECTIONS, _MOST_LOOKS, ReplicationListener
from storage.ha.sessions import Place, who_gives_way
from storage.settings.nouns import StoreModeConfig
from tests.ha.life import quiet
from tests.ha.network import LineEnd, World, patched
from tests.ha.node import Node
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


def say(line: LineEnd, offset: int) -> None:
    if not line.has_ended:
        line.sendall(encode_from_slave(Dialect.DEFAULT, Report(offset)))


WORDS = {"no place": -1, "all of it": 0, "a place within a record": 77, "the end": None}


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whom a listener has refused."""
    hosts: list[str] = []
    note = ReplicationListener._note_refusal

    def noted(self: ReplicationListener, address: str, reason: str) -> None:
        hosts.append(address.rpartition(":")[0])
        note(self, address, reason)

    monkeypatch.setattr(ReplicationListener, "_note_refusal", noted)
    return hosts


@pytest.mark.parametrize("word", WORDS)
def test_strangers_that_take_all_places_keep_no_slave_of_another_host_away(
    scene: Scene, refused: list[str], monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr(scene.world.random, "random", lambda: 0.9)  # no line breaks by itself
    end = scene.master.held_end
    said = WORDS[word]
    asked = end if said is None else said
    strangers = [scene.connect(1, asked) for _ in range(_MOST_CONNECTIONS)]
    scene.go_on(3_000)
    slave, rounds = scene.connect(2, end), 0
    for _ in range(10):
        strangers = [scene.connect(1, asked) if line.has_ended else line for line in strangers]
        for line in strangers:
            say(line, asked)
        scene.go_on(4_000)
        say(slave, end)
        rounds += "10.1.0.2" in {replica.identity for replica in scene.listener.replicas.snapshot()}
        assert len(scene.listener._connections) <= _MOST_CONNECTIONS
    assert rounds == 10
    assert not slave.has_ended
    assert "10.1.0.2" not in refused


@pytest.mark.parametrize("said", [-1, 0])
def test_strangers_of_a_slaves_own_host_hold_no_place_for_long(scene: Scene, refused: list[str], said: int) -> None:
    end = scene.master.held_end
    strangers = [scene.connect(1, said) for _ in range(_MOST_CONNECTIONS)]
    for _ in range(4):
        scene.go_on(6_000)
        for line in strangers:
            say(line, said)
    refused.clear()
    slave = scene.connect(1, end)
    scene.go_on()
    assert not slave.has_ended or not refused
    assert holders(scene.listener.replicas.snapshot(), end) == 1


def test_who_asks_for_no_place_is_hung_up_on_whatever_it_says(scene: Scene) -> None:
    line = scene.connect(1)
    for _ in range(4):
        say(line, -1)
        scene.go_on(6_000)
    assert line.has_ended
    assert scene.listener._connections == set()


def test_a_known_slave_comes_first_and_gives_way_to_no_stranger(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.ha.listener, "_MOST_CONNECTIONS", 5)
    end = scene.master.held_end
    settings = replace(scene.listener._settings, is_known=lambda host: host == "10.1.0.9")
    monkeypatch.setattr(scene.listener, "_settings", settings)
    others = [scene.connect(number, end) for number in range(5)]
    scene.go_on()
    assert scene.connect(6, end).has_ended is False
    scene.go_on()
    assert [line.has_ended for line in others] == [False] * 5  # they have asked, and each host has one place
    slaves = [scene.connect(9) for _ in range(3)]
    scene.go_on(5_000)
    assert [line.has_ended for line in slaves] == [False] * 3
    strangers = [scene.connect(number, end) for number in range(20, 40)]
    scene.go_on()
    assert [line.has_ended for line in slaves] == [False] * 3
    assert sum(line.has_ended for line in (*others, *strangers)) == 23


@pytest.mark.parametrize(
    ("places", "newcomer", "gives_way"),
    [
        ("a b c", "d", None),  # all have asked, and each host has one place
        ("a a b", "c", 0),
        ("a a b", "b", None),
        ("a a b", "a", None),
        ("a a- b", "c", 1),  # idle
        ("a a- b", "a", 1),
        ("a b- c", "d", 1),
        ("a+ a+ b", "c+", 2),
        ("a+ a+ b+", "c+", 0),
        ("a+ b+ c+", "d", None),
        ("a+ a+ a+", "d", None),
        ("a b c", "d+", 0),  # known
        ("a a a b-", "c", 0),
    ],
)
def test_who_gives_way(places: str, newcomer: str, gives_way: int | None) -> None:
    def place(text: str, since_ms: int) -> Place:
        return Place(text[0], text.endswith("+"), text.endswith("-"), since_ms)

    held = [place(text, at) for at, text in enumerate(places.split())]
    assert who_gives_way(held, place(newcomer, 99)) == gives_way


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
