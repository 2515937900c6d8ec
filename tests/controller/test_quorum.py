"""Several controllers: one decides, all know it, and another one goes on when it is gone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_mq.cli.processes import _controller_failure
from spark_mq.controller.controller import Controller, Standing
from spark_mq.controller.journal import FILE_NAME, open_journal
from spark_mq.controller.quorum import Quorum, UndecidedError, begin_log
from spark_mq.controller.server import _opened_journal
from spark_mq.controller.settings import Configuration, ControllerSettings
from spark_mq.controller.state import ApplyBrokerId, ControllerState, Group, decode_event, encode_event, events_of
from spark_mq.dledger.files import MemberFiles
from spark_mq.dledger.messages import AppendEntryResponse, DLedgerCode, LedgerEntry, make_entry
from spark_mq.dledger.runner import DivergedError
from spark_mq.dledger.state import Role, RoleChanged
from spark_mq.remoting import make_request, read_header
from spark_mq.remoting.controllers import ControllerMetadataAnswer
from spark_mq.remoting_server.peer import Caller
from spark_mq.testing.ports import free_ports
from storage.errors import ConfigurationError, StateFileError
from storage.files.local_file_system import LocalFileSystem
from storage.format.dledger import Vote
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from tests.controller.asking import Asked, in_sync
from tests.controller.test_server import Broker
from tests.support.own_servers import OurController, our_controller
from tests.support.waiting import wait_until

NAME = "b"
IDS = ("n0", "n1", "n2")
EVERY_FIELD = {
    **dict.fromkeys(("brokerId", "masterBrokerId", "masterEpoch", "appliedBrokerId"), "1"),
    **dict.fromkeys(("brokerName", "clusterName", "brokerAddress", "registerCheckCode"), "x"),
    "designateElect": "false",
}


@dataclass
class Controllers:
    """Three controllers of a group in this process, by id."""

    home: Path
    peers: str
    running: dict[str, OurController] = field(default_factory=dict)
    left: dict[str, ExitStack] = field(default_factory=dict)

    def start(self, name: str) -> OurController:
        """It listens when this returns."""
        (self.home / name).mkdir(exist_ok=True)
        port = next(each for each in self.peers.split(";") if each.startswith(name)).rsplit(":", 1)[1]
        with ExitStack() as opened:
            settings = {"controllerDLegerPeers": self.peers, "controllerDLegerSelfId": name, "listenPort": port}
            self.running[name] = opened.enter_context(our_controller(self.home / name, **settings))
            self.left[name] = opened.pop_all()
        return self.running[name]

    def stop(self, name: str) -> None:
        """It ends."""
        del self.running[name]
        self.left.pop(name).close()

    @property
    def leaders(self) -> list[str]:
        """Those that decide."""
        return [name for name, each in self.running.items() if each.running.controller.serves]

    def await_leader(self) -> str:
        """Until one decides."""
        wait_until(lambda: len(self.leaders) == 1, "one controller leads", 30)
        return self.leaders[0]

    def groups(self) -> list[Group | None]:
        """What each knows of the brokers."""
        return [each.group(NAME) for each in self.running.values()]


@contextmanager
def controllers(home: Path, journal: bytes | None = None) -> Iterator[Controllers]:
    """They run; with a journal each has a copy of it."""
    ports = [free_ports() for _ in IDS]
    found = Controllers(home, ";".join(f"{name}-127.0.0.1:{port}" for name, port in zip(IDS, ports, strict=True)))
    try:
        for name in IDS:
            if journal is not None:
                (home / name / "controller").mkdir(parents=True)
                (home / name / "controller" / FILE_NAME).write_bytes(journal)
            found.start(name)
        yield found
    finally:
        for name in list(found.running):
            found.stop(name)


def metadata(controller: OurController) -> ControllerMetadataAnswer:
    with closing((broker := Broker(controller.address, 1)).sock):
        return read_header(ControllerMetadataAnswer, broker.ask(1005))


def same(group: Controllers) -> Group:
    """What all know of the brokers, as soon as they do."""
    wait_until(lambda: all(each == group.groups()[0] for each in group.groups()), "all know the same")
    (found, *_) = group.groups()
    assert found is not None
    return found


@pytest.mark.slow
def test_one_of_three_decides_all_know_it_and_another_goes_on(tmp_path: Path) -> None:
    with controllers(tmp_path) as group, ExitStack() as left:
        leader = group.await_leader()
        brokers = [Broker(group.running[leader].address, number) for number in (1, 2)]
        for broker in brokers:
            left.callback(broker.sock.close)
            broker.enter()
        brokers[0].elect()
        known = same(group)
        assert (known.master_id, known.master_epoch, known.sync_state_set) == (1, 1, frozenset({1}))
        assert set(known.replicas) == {1, 2}
        for name, each in group.running.items():
            told = metadata(each)
            assert (told.controller_leader_id, told.is_leader) == (leader, name == leader)
            assert told.controller_leader_address == group.running[leader].address
            assert told.peers == group.peers.replace("-", ":") + ";"
        follower = next(name for name in IDS if name != leader)
        with closing((asked := Broker(group.running[follower].address, 1)).sock):
            for code in (1001, 1002, 1003, 1004, 1006, 1011, 1012, 1013):
                answer = asked.answer(code, EVERY_FIELD)
                assert (answer.code, answer.remark) == (2007, "The controller is not in leader state"), code
            asked.beat()

        group.stop(leader)
        second = group.await_leader()
        assert group.running[second].group(NAME) == known, "a master that is not heard yet is not given up at once"
        with closing((again := Broker(group.running[second].address, 1)).sock):
            again.enter()
            assert group.running[second].group(NAME) == known


@pytest.mark.slow
def test_a_single_nodes_decisions_are_taken_over_by_several(tmp_path: Path) -> None:
    with our_controller(tmp_path / "alone") as alone:
        for broker_id in (1, 2):
            with closing((broker := Broker(alone.address, broker_id)).sock):
                broker.enter()
                if broker_id == 1:
                    broker.elect()
        wait_until(lambda: (found := alone.group(NAME)) is not None and found.master_id is None, "its master is gone")
        known = alone.group(NAME)
    journal = (tmp_path / "alone" / "controller" / FILE_NAME).read_bytes()
    with controllers(tmp_path, journal) as group:
        group.await_leader()
        assert same(group) == known
    rule = r"dledger-n0 is the log of one of several controllers"
    with pytest.raises(ConfigurationError, match=rule), our_controller(tmp_path / "n0"):
        pass


def test_a_directory_with_another_log_is_refused_and_a_journal_is_used_once(tmp_path: Path) -> None:
    directory, files = tmp_path / "controller", LocalFileSystem()
    with ExitStack() as opened:
        open_journal(_made(directory), files)
        named = {"controllerStorePath": str(directory), "controllerDLegerPeers": "n0-h:1;n1-h:2"}
        assert _opened_journal(ControllerSettings(store_path=str(directory), peers="n0-h:1;n1-h:2"), opened) is None
    names = {each.name for each in files.list_directory(str(directory))}
    assert names == {"controller.lock", "controller.journal.before", "dledger-n0"}
    for settings, rule in (
        (named | {"controllerDLegerSelfId": "n1"}, "dledger-n0 is the log of another id"),
        (
            {"controllerDLegerPeers": "n1-h:1", "controllerDLegerSelfId": "n1"},
            "dledger-n0 is the log of one of several",
        ),
    ):
        with pytest.raises(ConfigurationError, match=rule), our_controller(tmp_path, **settings):
            pass


def _made(directory: Path) -> str:
    directory.mkdir()
    return str(directory)


def test_events_lead_to_the_state_that_they_were_made_of() -> None:
    cleaned = in_sync(1, 2, 3)
    for broker_id in (1, 3):
        cleaned.hang_up(broker_id)
        assert cleaned.clean(str(broker_id)).code == 0
    many = in_sync(1, 2)
    many.alter([1], set_epoch=2)
    many.alter([1, 2], set_epoch=3)
    many.hang_up(1)
    many.hang_up(2)
    applied = Asked()
    applied.apply(1)
    for asked in (in_sync(1), in_sync(1, 2), cleaned, many, applied):
        state, made = asked.controller.state, ControllerState()
        for event in events_of(state):
            made.apply(decode_event(encode_event(event)))
        registered = {name: _registered(group) for name, group in state.groups.items()}
        assert made.groups == registered


def _registered(group: Group) -> Group:
    replicas = {each: found._replace(is_pending=False) for each, found in group.replicas.items()}
    return replace(group, replicas=replicas)


class Majority:
    """The log of a leader, whose entries are committed when the test says so."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []
        self.waiting: list[Future[AppendEntryResponse]] = []
        self.silent = False
        self.quorum: Quorum | None = None
        self.served = 0
        self.term = 3

    def leads(self) -> Quorum:
        """One of several controllers, which serves; what it does later it does at once."""
        self.quorum = Quorum(lambda seconds, call: call(), self._serves)
        self.quorum.use(self)  # type: ignore[arg-type]
        self.quorum.on_role_changed(RoleChanged(self.term, Role.LEADER, "n0"))
        return self.quorum

    def _serves(self) -> None:
        self.served += 1

    def propose(self, bodies: Sequence[bytes], term: int | None = None) -> Future[AppendEntryResponse]:
        answer: Future[AppendEntryResponse] = Future()
        if term != self.term:
            answer.set_result(AppendEntryResponse(code=DLedgerCode.NOT_LEADER.value))
            return answer
        self.entries += [make_entry(len(self.entries) + at, self.term, 0, body) for at, body in enumerate(bodies)]
        if not self.silent:
            self.commit(answer)
        elif bodies[0]:
            answer.set_result(AppendEntryResponse(code=DLedgerCode.WAIT_QUORUM_ACK_TIMEOUT.value))
        else:
            self.waiting.append(answer)
        return answer

    def commit(self, answer: Future[AppendEntryResponse]) -> None:
        assert self.quorum is not None
        first = self.quorum.applied_index + 1
        self.quorum.on_committed(self.entries[first:])
        answer.set_result(AppendEntryResponse(index=len(self.entries) - 1))


APPLIED = ApplyBrokerId(
    cluster_name="C", broker_name=NAME, broker_address="h:1", new_broker_id=1, register_check_code="h:1;1"
)


def test_a_decision_without_a_majority_is_known_before_the_next_one() -> None:
    log = Majority()
    quorum = log.leads()
    assert (quorum.standing().serves, log.served) == (True, 1)
    log.silent = True
    with pytest.raises(UndecidedError, match="not known whether it holds: no majority of the controllers has answered"):
        quorum.append((APPLIED,))
    assert not quorum.standing().serves
    with pytest.raises(RequestRefusedError) as refused:
        quorum.append((APPLIED,))
    assert refused.value.code == ResponseCode.CONTROLLER_NOT_LEADER
    assert quorum.state.groups == {}
    log.silent = False
    log.commit(log.waiting.pop())
    assert (quorum.standing().serves, log.served) == (True, 2)
    assert set(quorum.state.groups[NAME].replicas) == {1}, "it stood after all"


def test_a_request_without_a_majority_is_answered_that_nobody_knows(caplog: pytest.LogCaptureFixture) -> None:
    log = Majority()
    quorum = log.leads()
    controller = Controller(
        Configuration.of({"controllerDLegerPeers": "n0-h:1;n1-h:2"}),
        state=quorum.state,
        keep=quorum.append,
        standing=quorum.standing,
    )
    log.silent = True
    fields = EVERY_FIELD | {"registerCheckCode": "h:1;1"}
    answer = controller.answer(make_request(1013, fields), Caller("channel", "127.0.0.1"), 0)
    assert (answer.code, "it is not known whether it holds" in (answer.remark or "")) == (1, True)
    assert not [each for each in caplog.records if each.exc_info]


def test_nothing_is_decided_when_another_one_leads_meanwhile() -> None:
    log = Majority()
    quorum = log.leads()
    log.term = 4
    with pytest.raises(RequestRefusedError):
        quorum.append((APPLIED,))
    assert quorum.state.groups == {}
    quorum.on_role_changed(RoleChanged(4, Role.FOLLOWER, "n1"))
    quorum.on_committed([make_entry(1, 4, 0, encode_event(APPLIED))])
    assert set(quorum.state.groups[NAME].replicas) == {1}
    assert quorum.standing() == Standing("n1", serves=False)


def test_what_says_nothing_changes_nothing_and_a_gap_ends_the_controller() -> None:
    quorum = Majority().leads()
    quorum.on_committed(
        [make_entry(1, 3, 0, b"\0\7{}"), make_entry(2, 3, 0, b"\xff\xff"), make_entry(3, 3, 0, encode_event(APPLIED))]
    )
    quorum.on_committed([make_entry(4, 3, 0, encode_event(ControllerState().whole()))])
    assert set(quorum.state.groups[NAME].replicas) == {1}
    assert quorum.failure is None
    quorum.on_committed([make_entry(6, 3, 0, b"")])
    assert quorum.failure is not None
    assert quorum.failure.text == "entry 5 of the controllers' log is missing: the next one here is 6"
    assert not quorum.standing().serves


@pytest.mark.parametrize("body", [b"x", b"\0\2{}", b"\0\2{"])
def test_an_entry_that_cannot_be_read_ends_the_controller(body: bytes) -> None:
    quorum = Majority().leads()
    quorum.on_committed([make_entry(1, 3, 0, body), make_entry(2, 3, 0, encode_event(APPLIED))])
    assert quorum.failure is not None
    assert quorum.failure.text.startswith("entry 1 of the controllers' log cannot be read: bad body ")
    assert (quorum.state.groups, quorum.standing().serves) == ({}, False), "the others' state is another one"
    with pytest.raises(RequestRefusedError):
        quorum.append((APPLIED,))


def test_a_failure_names_its_cure() -> None:
    for error, cure in (
        (OSError(5, "x"), "when its disk is well"),
        (DivergedError("x"), "must begin with the same controller.journal"),
        (ValueError("x"), "compare its log"),
    ):
        quorum = Majority().leads()
        quorum.on_failed(error)
        assert quorum.failure is not None
        assert cure in quorum.failure.cure
    said = _controller_failure(SimpleNamespace(failure=quorum.failure))  # type: ignore[arg-type]
    assert said is not None
    assert (said.text, said.hint) == quorum.failure


def test_a_log_begins_with_a_journal_once_and_its_entries_count_as_committed(tmp_path: Path) -> None:
    files, path, state = LocalFileSystem(), str(tmp_path / "dledger-n0"), in_sync(1, 2).controller.state
    other = Asked()
    other.apply(1, "h:9;9")
    begin_log(f"{path}.new", 4_096, other.controller.state, files)  # as a crash before the rename leaves it
    with pytest.raises(StateFileError, match="it was made from another journal: remove it"):
        begin_log(path, 4_096, state, files)
    shutil.rmtree(f"{path}.new")
    begin_log(f"{path}.new", 4_096, state, files)
    begin_log(path, 4_096, state, files)
    log = MemberFiles(path, file_size_bytes=4_096)
    try:
        found = log.restored()
        assert found.committed_index == found.end_index == 3
        assert found.vote == Vote(found.end_term + 1, None), "no leader of its term can have proposed others"
        events = [decode_event(log.entry(index).body or b"") for index in range(found.end_index + 1)]
    finally:
        log.close()
    assert events == events_of(state)


def test_a_read_is_proved_by_a_majority_where_that_is_set() -> None:
    for text, proofs in (("true", [b""]), ("false", [])):
        log = Majority()
        quorum = log.leads()
        settings = {"controllerDLegerPeers": "n0-h:1;n1-h:2", "processReadEvent": text}
        controller = Controller(
            Configuration.of(settings), state=quorum.state, keep=quorum.append, standing=quorum.standing
        )
        before = len(log.entries)
        for code, expected in ((1004, 2008), (1005, 0)):
            request = make_request(code, {"brokerName": NAME})
            assert controller.answer(request, Caller("channel", "127.0.0.1"), 0).code == expected
        assert [entry.body for entry in log.entries[before:]] == proofs
