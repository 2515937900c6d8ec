"""A master and what its controller holds: no answer, and no refusal, makes puts wait for fewer than the controller may elect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_mq.broker_server.controllers import Controllers, SyncKeeper
from spark_mq.client.errors import RequestTimeoutError, ResponseError
from spark_mq.remoting.controllers import SyncStateSet
from storage import open_store
from storage.ha.replicas import Replica, Replicas, Role, Term
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.settings.load import parse_config

ALONE = Term(1, 1, "127.0.0.1:1", frozenset({1}), 1)


class Deciding(Controllers):
    """A controller that decides what it is asked for, and whose answer to that is lost; then it refuses, as Java's does."""

    def __init__(self, *, decides: bool) -> None:
        self.held = ALONE
        self.asked: list[frozenset[int]] = []
        self._decides = decides

    def term(self) -> Term:
        return self.held

    def alter(self, own_id: int, epoch: int, wanted: frozenset[int], set_epoch: int) -> SyncStateSet:
        self.asked.append(wanted)
        if len(self.asked) == 1:
            if self._decides:
                self.held = self.held._replace(members=wanted, set_epoch=set_epoch + 1)
            raise RequestTimeoutError("request 1001", 3_000, "127.0.0.1:9")
        refused = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        raise ResponseError(refused, "the set is equal", "127.0.0.1:9", "request 1001")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[PutService]:
    config = parse_config(
        b"brokerRole=SYNC_MASTER\nenableControllerMode=true\nallAckInSyncStateSet=true\nslaveTimeout=1"
    )
    with PutService(
        open_store(tmp_path / "store", config=config, read_only=False, create=True, writes_as="controlled")
    ) as made:
        yield made


def keeper(service: PutService, controllers: Controllers) -> tuple[SyncKeeper, Replicas]:
    replicas = Replicas()
    replicas.connected(1, Replica("id:2", 2, "127.0.0.1:2", service.log_end))
    return SyncKeeper(service, replicas, Role(1, ALONE), controllers, lambda: None, 15_000), replicas


@pytest.mark.parametrize("decides", [True, False])
def test_a_refusal_behind_a_lost_answer_takes_nobody_out_of_the_set_that_the_controller_holds(
    service: PutService, decides: bool
) -> None:
    controllers = Deciding(decides=decides)
    made, _ = keeper(service, controllers)
    while len(controllers.asked) < 2:
        made._look()
    assert controllers.asked == [frozenset({1, 2})] * 2
    waits = service.acks.in_sync(service.log_end) == 2
    assert waits is decides, "puts wait for whom the controller may elect, and for nobody else"


class Cleaned(Deciding):
    """A controller that an operator has had forget broker 2, which changes no epoch, as in Java."""

    def __init__(self) -> None:
        super().__init__(decides=False)
        self.held = ALONE._replace(members=frozenset({1, 2}), set_epoch=2)

    def alter(self, own_id: int, epoch: int, wanted: frozenset[int], set_epoch: int) -> SyncStateSet:
        self.asked.append(wanted)
        self.held = self.held._replace(members=frozenset({1}))
        refused = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        raise ResponseError(refused, "the set is equal", "127.0.0.1:9", "request 1001")


def test_a_broker_that_the_controller_was_told_to_forget_is_waited_for_no_longer(service: PutService) -> None:
    controllers = Cleaned()
    replicas = Replicas()
    replicas.connected(1, Replica("id:2", 2, "127.0.0.1:2", service.log_end))
    made = SyncKeeper(service, replicas, Role(1, controllers.held), controllers, lambda: None, 15_000)
    made._look()
    replicas.gone(1)
    made._look()
    assert controllers.asked == [frozenset({1})]
    assert service.acks.in_sync(service.log_end) == 1, "it is gone, and the controller holds the master alone"
    made._look()
    assert controllers.asked == [frozenset({1})], "nothing is left to be asked for"


class Refusing(Deciding):
    """A controller that refuses with a code, and says what holds."""

    def __init__(self, service: PutService, code: ResponseCode, held: Term) -> None:
        super().__init__(decides=False)
        self.held = held
        self._service, self._code = service, code
        self.waited_for: list[int] = []
        """How many copies puts waited for when it was asked, the master's among them."""

    def alter(self, own_id: int, epoch: int, wanted: frozenset[int], set_epoch: int) -> SyncStateSet:
        self.waited_for.append(self._service.acks.in_sync(self._service.log_end))
        raise ResponseError(self._code, "no", "127.0.0.1:9", "request 1001")


@pytest.mark.parametrize(
    ("code", "held"),
    [
        (ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, ALONE),
        (ResponseCode.CONTROLLER_INVALID_MASTER, ALONE),
        (ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, Term(2, 3, "127.0.0.1:3", frozenset({3}), 5)),
    ],
)
def test_a_master_that_is_refused_as_deposed_asks_who_is_master_and_waits_for_all_that_it_waited_for(
    service: PutService, code: ResponseCode, held: Term
) -> None:
    """What another master's set is, and that a deposed one is refused, says nothing of who may be elected in its place."""
    controllers, doubts = Refusing(service, code, held), list[int]()
    replicas = Replicas()
    replicas.connected(1, Replica("id:2", 2, "127.0.0.1:2", service.log_end))
    made = SyncKeeper(service, replicas, Role(1, ALONE), controllers, lambda: doubts.append(1), 15_000)
    made._look()
    made._look()
    assert controllers.waited_for == [2], "puts wait for who is asked for before the controller is asked"
    assert doubts == [1]
    assert service.acks.in_sync(service.log_end) == 2


def test_a_set_of_another_term_changes_nothing(service: PutService) -> None:
    made, _ = keeper(service, Deciding(decides=False))
    made.on_term(Term(2, 1, "127.0.0.1:1", frozenset({1, 2, 3}), 9))
    assert service.acks.in_sync(service.log_end) == 1
    made.on_term(ALONE._replace(members=frozenset({1, 2, 3}), set_epoch=9))
    assert service.acks.in_sync(service.log_end) == 3
