"""A broker in controller mode whose store takes nothing more: others are elected, and it comes back by opening it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker_server import controlled
from spark_mq.broker_server.controlled import ControlledBroker
from spark_mq.broker_server.controllers import Position
from spark_mq.broker_server.opening import StorePlace
from spark_mq.broker_server.settings import Configuration, read_configuration
from spark_mq.client.errors import BrokerUnreachableError, ResponseError
from spark_mq.testing.servers import OwnLoop
from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.replication import EpochEntry
from storage.ha.epochs import EpochFile
from storage.ha.follower import Follower
from storage.ha.replicas import Term
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.store import open_store

FIRST = Term(1, 1, "127.0.0.1:1", frozenset({1, 2}))
NEXT = Term(2, 2, "127.0.0.1:2", frozenset({2}))


class Controller:
    """What all connections of a broker to its controller have said and heard."""

    def __init__(self) -> None:
        self.told = FIRST
        self.beats: list[Position] = []
        self.registered = self.closed = 0
        self.is_away = False
        self.applied: list[str] | None = None
        """The check codes of those that have an id; None = every broker that registers has one."""

    def connection(self, *_: object) -> Controller:
        return self

    def next_id(self) -> int:
        return 1

    def apply_id(self, _: int, code: str) -> bool:
        if self.applied is not None:
            self.applied.append(code)
        return True

    def register(self, _: int) -> Term:
        if self.is_away:
            raise BrokerUnreachableError("127.0.0.1:9", "it is away")
        if self.applied == []:
            raise ResponseError(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "", "127.0.0.1:9", "1003")
        self.registered += 1
        return self.told

    def term(self) -> Term:
        return self.told

    def heartbeat(self, _: int, position: Position) -> None:
        self.beats.append(position)

    def close(self) -> None:
        self.closed += 1


class Running:
    """A broker in a role, with a store that fails when a test says so."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.failure: str | None = None
        self.fails_by_disk = True
        self.place = StorePlace("", {})
        self.reopened_after: str | None = None
        self.tells = 0
        self.is_closed = False
        self.trouble: Exception | None = None

    cannot_start: Exception | None = None

    @classmethod
    async def start(cls, configuration: Configuration, *_: object, **__: object) -> Running:
        if cls.cannot_start is not None:
            raise cls.cannot_start
        return cls(configuration)

    def tell_name_servers(self) -> None:
        self.tells += 1

    def note_reopened(self, failure: str) -> None:
        self.reopened_after = failure

    def position(self) -> Position:
        if self.trouble is not None:
            raise self.trouble
        return Position(1, 5, 5)

    def on_term(self, told: Term) -> None:
        pass

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@contextmanager
def broker_of(root: Path, controller: Controller, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its threads do not run: a test looks and beats itself."""
    monkeypatch.setattr(controlled, "Controllers", controller.connection)
    monkeypatch.setattr(controlled, "RunningBroker", Running)
    monkeypatch.setattr(controlled, "_RETRY_SECONDS", 0.0)
    text = f"brokerName=b\nstorePathRootDir={root}\nmappedFileSizeCommitLog=65536\n"
    text += "enableControllerMode=true\ncontrollerAddr=127.0.0.1:9\n"
    loop = OwnLoop()

    async def made() -> ControlledBroker:
        return ControlledBroker(read_configuration(text.encode(), None, {}))

    try:
        yield loop.run(made())
    finally:
        loop.close()


@pytest.fixture
def broker(root: Path, controller: Controller, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with broker_of(root, controller, monkeypatch) as found:
        yield found


def test_a_master_whose_store_has_failed_gives_way_and_comes_back_as_a_slave(
    broker: Any, controller: Controller
) -> None:
    broker._look()
    failed = broker.running
    pull = replace(failed.configuration.store.pull, max_transfer_bytes_on_message_in_disk=1)
    failed.configuration = replace(failed.configuration, store=replace(failed.configuration.store, pull=pull))
    broker._beat_once()
    assert broker.role.is_master
    assert len(controller.beats) == 2
    failed.failure = "no space left on device"
    broker._beat_once()
    broker._look()
    broker._look()
    broker._beat_once()
    assert len(controller.beats) == 2
    assert failed.is_closed
    assert controller.closed == 1  # its connection: so the controller need not wait for the silence
    assert (broker.role, broker.running) == (None, None)
    controller.told = NEXT
    broker._look()
    broker._beat_once()
    assert not broker.role.is_master
    assert broker.running.failure is None
    assert broker.running.reopened_after == "no space left on device"
    assert broker.running.configuration.store.pull is pull, "what operators have changed holds in every role"
    assert len(controller.beats) == 4


def test_a_master_that_cannot_start_gives_way(
    broker: Any, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Running, "cannot_start", OSError("the port is taken"))
    with pytest.raises(OSError, match="the port is taken"):
        broker._look()
    broker._beat_once()
    broker._look()
    assert len(controller.beats) == 1  # before it was master
    assert controller.closed == 1
    monkeypatch.setattr(Running, "cannot_start", None)
    controller.told = NEXT
    broker._look()
    broker._beat_once()
    assert not broker.role.is_master
    assert len(controller.beats) == 3
    assert broker.running.reopened_after is None, "its store has not failed"


def test_a_store_was_reopened_once_and_not_again_with_each_role(broker: Any, controller: Controller) -> None:
    broker._look()
    broker.running.failure = "of a sync"
    broker._look()
    controller.told = NEXT
    broker._look()
    assert broker.running.reopened_after == "of a sync"
    controller.told = Term(3, 1, "127.0.0.1:1", frozenset({1}))
    broker._look()
    assert (broker.role.is_master, broker.running.reopened_after) == (True, None)


@pytest.mark.parametrize("is_there", [True, False], ids=["empty", "missing"])
def test_no_new_store_is_made_where_the_old_one_was(
    broker: Any, controller: Controller, root: Path, tmp_path: Path, *, is_there: bool
) -> None:
    """The mount point of a disk that an operator has taken away."""
    broker._look()
    broker.running.failure = "of a sync"
    broker._look()
    root.rename(tmp_path / "unmounted")
    if is_there:
        root.mkdir()
    controller.told = NEXT
    for _ in range(2):
        with pytest.raises(StoreRefusedError, match="is not the directory that was opened first"):
            broker._look()
    broker._beat_once()
    assert (broker.running, len(controller.beats)) == (None, 1), "no controller takes it for alive"
    assert [path for path in (root,) if path.exists() for path in path.iterdir()] == []
    if is_there:
        root.rmdir()
    (tmp_path / "unmounted").rename(root)
    broker._look()
    assert not broker.role.is_master


def test_a_store_that_has_failed_but_for_its_disk_is_not_opened_again(
    broker: Any, controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process has written into its log. Another broker becomes master, and this one answers reads."""
    broker._look()
    failed = broker.running
    failed.failure, failed.fails_by_disk = "a foreign file", False
    beats = len(controller.beats)
    controller.told = NEXT
    for _ in range(2):
        broker._look()
        broker._beat_once()
    assert (broker.running, failed.is_closed, len(controller.beats)) == (failed, False, beats)
    said = [record.getMessage() for record in caplog.records if "takes nothing more" in record.getMessage()]
    assert len(said) == 1


def test_an_id_that_has_lapsed_before_it_was_registered_is_applied_for_again(
    broker: Any, controller: Controller
) -> None:
    controller.is_away = True
    controller.applied = []
    with pytest.raises(BrokerUnreachableError):
        broker._look()
    (code,) = controller.applied
    controller.is_away = False
    controller.applied = []  # an hour later
    with pytest.raises(ResponseError):
        broker._look()
    broker._look()
    assert controller.applied == [code]
    assert (broker._own_id, broker._identity.broker_id(), broker._identity.applied()) == (1, 1, None)


def test_an_id_that_was_registered_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller has lost it, or is another one: an operator decides whose the store is."""
    controller = Controller()
    for applied, looks in (None, 1), ([], 2):
        controller.applied = applied
        with broker_of(tmp_path, controller, monkeypatch) as broker:
            for _ in range(looks):
                if applied is None:
                    broker._look()
                    continue
                with pytest.raises(ResponseError):
                    broker._look()
            assert broker._identity.broker_id() == 1


def test_what_all_replicas_have_is_not_cut_wherever_a_master_s_log_ends(broker: Any) -> None:
    """One was elected that has not all that was acknowledged: an operator decides then."""
    with pytest.raises(StoreRefusedError, match="ends at 99, and 100 was confirmed here"):
        broker._diverged(99, 100)
    assert (broker._cut_to, broker._due.is_set()) == (None, False)
    broker._diverged(100, 100)
    assert (broker._cut_to, broker._due.is_set()) == (100, True)


def test_what_the_follower_of_one_role_says_while_it_ends_cuts_nothing_in_the_next(
    broker: Any, controller: Controller
) -> None:
    """It has compared the log with another master's."""
    broker._look()
    ended, close = broker.running, broker.running.close

    async def say_and_close() -> None:
        broker._diverged(100, 0)
        await close()

    ended.close = say_and_close
    controller.told = NEXT
    broker._look()
    assert (ended.is_closed, broker.role.is_master, broker._cut_to) == (True, False, None)


def test_a_heartbeat_that_fails_in_any_way_is_not_the_last(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker._look()
    broker.running.trouble = IndexError("of a table that is replaced")
    waits = iter([False, False, True])
    monkeypatch.setattr(broker._closing, "wait", lambda _: next(waits))
    broker._beat()
    assert next(waits, None) is None, "it went on until it was closed"


def test_an_address_that_the_controller_has_not_heard_is_told_again(broker: Any, controller: Controller) -> None:
    controller.is_away = True
    with pytest.raises(BrokerUnreachableError):
        broker._look()
    controller.is_away = False
    broker._look()
    assert controller.registered == 1


def test_a_follower_that_ends_by_itself_says_why(tmp_path: Path) -> None:
    def address() -> str:
        raise ValueError("no address")

    config = StoreConfig.tiny()
    store = open_store(tmp_path, config=config, read_only=False, create=True, holder="follower")
    with PutService(store) as service:
        wrong = Follower(service, lambda: "127.0.0.1:http")
        wrong.start()
        assert wrong.wait(lambda status: status.trouble is not None, 20)
        wrong.close()
        assert (wrong.error, wrong.failure) == (None, None)
        ended = Follower(service, address)
        ended.start()
        assert ended.wait(lambda status: status.is_hopeless, 20)
        assert ended.failure == "no address"
        ended.close()


def test_the_last_epoch_is_of_one_look(tmp_path: Path) -> None:
    """Another thread may cut the entries between two looks at them."""

    class Cut(EpochFile):
        looks = 0

        @property
        def entries(self) -> tuple[Any, ...]:
            self.looks += 1
            return self._entries if self.looks == 1 else ()

        @entries.setter
        def entries(self, value: tuple[Any, ...]) -> None:
            self._entries = value

    file = Cut(LocalFileSystem(), str(tmp_path))
    file.entries = (EpochEntry(7, 0),)
    assert file.last_epoch == 7
