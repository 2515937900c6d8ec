"""A controller and its brokers, by a seed: who believes to be master, whom it waits for, which messages it has acknowledged.

A broker is what Java's `ReplicasManager` is as far as elections go: it registers, beats, asks for a master, and follows what it is told
of a later epoch. As master it acknowledges a message when all whom it takes for in sync hold it (allAckInSyncStateSet): the set that it
knows, and the one that it has asked for until the answer is there. Brokers are killed and come back, controllers too, in the middle of
a decision; connections break, answers and notices are lost, time goes by.

After each step (the numbers are those of the invariants that docs/controller.md lists):

    10  an elected master holds all that was ever acknowledged
    14  an epoch has one master
    15  epochs never fall, whatever is restarted
    16  the set for which a master waits holds all that the controller calls in sync

`test_simulation.py` plants faults, which one of them must notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from spark_mq.controller.controller import Controller
from spark_mq.controller.journal import encode_record, read_records
from spark_mq.controller.settings import Configuration
from spark_mq.controller.state import ControllerState, Event, Group, WholeState
from spark_mq.remoting import Header, RemotingCommand, RequestCode, WireBody, make_request, read_body, read_header
from spark_mq.remoting import write_body as written
from spark_mq.remoting import write_header as as_fields
from spark_mq.remoting.controllers import (
    AlterSyncStateSetAnswer,
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    ElectedMasterBody,
    ElectMasterRequest,
    MasterAnswer,
    NextBrokerIdAnswer,
    NextBrokerIdRequest,
    RegisterToControllerAnswer,
    RegisterToControllerRequest,
    ReplicaInfoAnswer,
    ReplicaInfoRequest,
    SyncStateSet,
)
from spark_mq.remoting.routes import BrokerHeartbeatRequest
from spark_mq.remoting_server.peer import Caller
from tests.controller.simulated_broker import Broker

NAME, CLUSTER = "b", "C"


class PowerLossError(OSError):
    """The controller's machine went down in the middle of a decision."""


class Simulation:
    """One life, by its seed."""

    def __init__(self, seed: int, *, brokers: int = 3) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self.disk = encode_record(0, (WholeState(groups=()),))
        self.sequence = 0
        self.brokers = [Broker(number, channel=number) for number in range(1, brokers + 1)]
        self.acknowledged: set[int] = set()
        self.elected: dict[int, int] = {}
        self.epochs = (0, 0)
        self.message = 0
        self.counts: dict[str, int] = {}
        self.loses_answers = False
        self.is_down = False
        """Whether the controller's machine went down, and nobody has started it yet."""
        self.controller = self._started()

    def run(self, steps: int) -> None:
        """Raises AssertionError with the invariant that does not hold."""
        actions: Sequence[tuple[Callable[[], None], int]] = (
            (self._step_broker, 20),
            (self._put, 20),
            (self._replicate, 40),
            (self._alter, 20),
            (self._poll, 10),
            (self._time_goes_by, 10),
            (self._hang_up, 1),
            (self._kill_or_start, 3),
            (self._restart_controller, 1),
            (self._designate, 1),
        )
        calls, weights = zip(*actions, strict=True)
        for _ in range(steps):
            self.loses_answers = self.random.random() < 0.05
            self.random.choices(calls, weights)[0]()
            if self.is_down:
                self._restart_controller()
            self._check()

    # The controller.

    def _started(self) -> Controller:
        found = read_records(self.disk)
        assert found.damage is None
        self.disk = self.disk[: found.end]
        self.sequence = found.records[-1].sequence
        state = ControllerState()
        for record in found.records:
            for event in record.events:
                state.apply(event)
        controller = Controller(Configuration.of({}), state=state, keep=self._keep)
        controller.address = "127.0.0.1:9877"
        return controller

    def _keep(self, events: Sequence[Event]) -> None:
        record = encode_record(self.sequence + 1, events)
        if self.random.random() < 0.01:
            cut = self.random.choice((0, len(record), self.random.randrange(len(record))))
            self.disk += record[:cut]
            self.is_down = True
            raise PowerLossError(5, "the power is gone")
        self.disk += record
        self.sequence += 1

    def _restart_controller(self) -> None:
        self._count("controller restarted")
        self.is_down = False
        self.controller = self._started()

    def _ask(self, broker: Broker, code: int, header: Header, body: WireBody | None = None) -> RemotingCommand | None:
        """The answer; None where it is lost, with the request or after it."""
        request = make_request(code, as_fields(header), b"" if body is None else written(body))
        if self.is_down or (self.loses_answers and self.random.random() < 0.5):
            return None
        before = self.sequence
        answer = self.controller.answer(request, Caller(broker.channel, "127.0.0.1"), self.now_ms)
        if self.is_down:
            return None
        if self.sequence > before:
            self._count("decisions")
        self._deliver_notices()
        return None if self.loses_answers else answer

    def _deliver_notices(self) -> None:
        for notice in [] if self.is_down else self.controller.take_notices():
            for broker in self.brokers:
                if broker.runs and broker.address in notice.addresses and self.random.random() < 0.7:
                    told = notice.header
                    self._follow(broker, told.master_broker_id, told.master_epoch, notice.body)

    @property
    def group(self) -> Group | None:
        """What the controller knows."""
        return self.controller.state.groups.get(NAME)

    # What brokers do.

    def _step_broker(self) -> None:
        """A running broker takes its next step: an id, a registration, a heartbeat, a master."""
        broker = self.random.choice(self.brokers)
        if not broker.runs:
            return
        if broker.broker_id is None:
            self._apply_for_id(broker)
            return
        self._beat(broker)
        if broker.master_id is None:
            self._register(broker)
        if broker.master_id is None:
            self._elect(broker)

    def _apply_for_id(self, broker: Broker) -> None:
        if broker.wanted_id is None:
            header = NextBrokerIdRequest(cluster_name=CLUSTER, broker_name=NAME)
            told = self._ask(broker, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
            broker.wanted_id = None if told is None else read_header(NextBrokerIdAnswer, told).next_broker_id
        if broker.wanted_id is None:
            return
        apply = ApplyBrokerIdRequest(
            cluster_name=CLUSTER,
            broker_name=NAME,
            applied_broker_id=broker.wanted_id,
            register_check_code=f"{broker.address};{broker.number}",
        )
        answer = self._ask(broker, RequestCode.CONTROLLER_APPLY_BROKER_ID, apply)
        if answer is not None:
            if answer.code == 0:
                assert broker.wanted_id not in [each.broker_id for each in self.brokers], "an id is given once"
                broker.broker_id = broker.wanted_id
            broker.wanted_id = None

    def _beat(self, broker: Broker) -> None:
        header = BrokerHeartbeatRequest(
            cluster_name=CLUSTER,
            broker_name=NAME,
            broker_id=broker.broker_id,
            broker_address=broker.address,
            epoch=broker.master_epoch,
            max_offset=len(broker.log),
            heartbeat_timeout_ms=10_000,
        )
        self._ask(broker, RequestCode.BROKER_HEARTBEAT, header)

    def _register(self, broker: Broker) -> None:
        header = RegisterToControllerRequest(
            cluster_name=CLUSTER, broker_name=NAME, broker_id=broker.broker_id or 0, broker_address=broker.address
        )
        answer = self._ask(broker, RequestCode.CONTROLLER_REGISTER_BROKER, header)
        if answer is not None and answer.code == 0:
            told = read_header(RegisterToControllerAnswer, answer)
            self._follow(broker, told.master_broker_id, told.master_epoch, read_body(SyncStateSet, answer.body))

    def _elect(self, broker: Broker) -> None:
        header = ElectMasterRequest(
            cluster_name=CLUSTER, broker_name=NAME, broker_id=broker.broker_id or 0, designate_elect=False
        )
        answer = self._ask(broker, RequestCode.CONTROLLER_ELECT_MASTER, header)
        if answer is not None and answer.code in (0, 2011):
            told, body = read_header(MasterAnswer, answer), read_body(ElectedMasterBody, answer.body)
            known = SyncStateSet(broker_ids=body.broker_ids or (), epoch=told.sync_state_set_epoch or 0)
            self._follow(broker, told.master_broker_id, told.master_epoch, known)

    def _poll(self) -> None:
        """1004, each five seconds."""
        broker = self.random.choice(self.brokers)
        if not broker.runs or broker.master_id is None:
            return
        answer = self._ask(broker, RequestCode.CONTROLLER_GET_REPLICA_INFO, ReplicaInfoRequest(broker_name=NAME))
        if answer is None or answer.code:
            return
        told, known = read_header(ReplicaInfoAnswer, answer), read_body(SyncStateSet, answer.body)
        if (told.master_epoch or 0) > broker.master_epoch and told.master_broker_id is None:
            self._elect(broker)
        else:
            self._follow(broker, told.master_broker_id, told.master_epoch, known)

    def _follow(self, broker: Broker, master: int | None, epoch: int | None, known: SyncStateSet) -> None:
        """A later epoch is followed; of the same one a master takes a later set."""
        if master is None or epoch is None:
            return
        if epoch > broker.master_epoch:
            broker.master_epoch, broker.master_id = epoch, master
            broker.known_set, broker.known_epoch = frozenset(known.broker_ids), known.epoch
            broker.asked_set = frozenset()
            self._count("masters" if master == broker.broker_id else "slaves")
        elif epoch == broker.master_epoch and broker.is_master and known.epoch > broker.known_epoch:
            broker.known_set, broker.known_epoch = frozenset(known.broker_ids), known.epoch
            broker.asked_set = frozenset()

    # Messages.

    def _master_of(self, slave: Broker) -> Broker | None:
        """The one that it copies: who believes to be its master, in the same epoch."""
        for broker in self.brokers:
            same = broker.is_master and broker is not slave and broker.master_epoch == slave.master_epoch
            if same and broker.broker_id == slave.master_id:
                return broker
        return None

    def _put(self) -> None:
        masters = [broker for broker in self.brokers if broker.is_master]
        if masters:
            self.message += 1
            self.random.choice(masters).log.append(self.message)

    def _replicate(self) -> None:
        """A slave cuts what its master does not have, takes what it has, and the master acknowledges what all hold."""
        slave = self.random.choice(self.brokers)
        master = self._master_of(slave) if slave.runs else None
        if master is not None:
            slave.log = list(master.log[: self.random.choice((len(master.log), len(slave.log)))])
        for broker in self.brokers:
            if broker.is_master:
                self._acknowledge(broker)

    def _acknowledge(self, master: Broker) -> None:
        held = len(master.log)
        for broker_id in master.waits_for - {master.broker_id}:
            slave = next((each for each in self.brokers if each.broker_id == broker_id and each.runs), None)
            if slave is None or self._master_of(slave) is not master:
                return
            held = min(held, len(slave.log))
        self.acknowledged |= set(master.log[:held])

    def _alter(self) -> None:
        """A master finds others in sync than before: those who hold all that it has, or some fewer."""
        masters = [broker for broker in self.brokers if broker.is_master]
        if not masters:
            return
        master = self.random.choice(masters)
        assert master.broker_id is not None
        caught_up = {
            each.broker_id
            for each in self.brokers
            if each.broker_id is not None and each.runs and self._master_of(each) is master and each.log == master.log
        }
        kept = {each for each in master.known_set if self.random.random() < 0.7}
        wanted = frozenset({master.broker_id} | self.random.choice((caught_up, kept, caught_up | kept)))
        if wanted - master.known_set - caught_up or wanted == master.known_set:
            return
        master.ask_for(wanted)
        header = AlterSyncStateSetRequest(
            broker_name=NAME, master_broker_id=master.broker_id, master_epoch=master.master_epoch
        )
        body = SyncStateSet(broker_ids=tuple(sorted(wanted)), epoch=master.known_epoch)
        epoch = master.master_epoch
        answer = self._ask(master, RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)
        if answer is not None and answer.code == 0 and master.master_epoch == epoch:
            told = read_body(SyncStateSet, answer.body)
            assert read_header(AlterSyncStateSetAnswer, answer).new_sync_state_set_epoch == told.epoch
            master.known_set, master.known_epoch, master.asked_set = frozenset(told.broker_ids), told.epoch, frozenset()
            self._count("sets altered")

    # What happens to them.

    def _time_goes_by(self) -> None:
        self.now_ms += self.random.choice((100, 500, 1_000, 1_000, 1_000, 3_000, 11_000))
        for broker in self.brokers:
            if broker.runs and broker.broker_id is not None and self.random.random() < 0.9:
                self._beat(broker)
        for gone in self.controller.scan_brokers(self.now_ms):
            self._count("silent brokers")
            assert gone.silent_ms > 10_000
        if not self.is_down:
            self.controller.scan_masters(self.now_ms)
        self._deliver_notices()

    def _hang_up(self) -> None:
        broker = self.random.choice(self.brokers)
        channel, broker.channel = broker.channel, self.random.randrange(1 << 40)
        self.controller.close_channel(channel, self.now_ms)
        self._deliver_notices()

    def _kill_or_start(self) -> None:
        broker = self.random.choice(self.brokers)
        broker.runs = not broker.runs
        broker.master_id, broker.asked_set = None, frozenset()
        broker.master_epoch = 0 if not broker.runs else broker.master_epoch
        if not broker.runs:
            self._count("brokers killed")
            self._hang_up_of(broker)

    def _hang_up_of(self, broker: Broker) -> None:
        channel, broker.channel = broker.channel, self.random.randrange(1 << 40)
        if self.random.random() < 0.7:
            self.controller.close_channel(channel, self.now_ms)
            self._deliver_notices()

    def _designate(self) -> None:
        broker = self.random.choice(self.brokers)
        if broker.broker_id is None:
            return
        header = ElectMasterRequest(
            cluster_name=CLUSTER, broker_name=NAME, broker_id=broker.broker_id, designate_elect=True
        )
        answer = self._ask(broker, RequestCode.CONTROLLER_ELECT_MASTER, header)
        if answer is not None and answer.code == 0:
            self._count("designated")

    # What must hold.

    def _check(self) -> None:
        group = self.group
        if group is None:
            return
        epochs = group.master_epoch, group.sync_state_set_epoch
        assert epochs[0] >= self.epochs[0], "15: the master's epoch falls"
        assert epochs[1] >= self.epochs[1], "15: the set's epoch falls"
        self.epochs = epochs
        if group.master_id is not None:
            elected = self.elected.setdefault(group.master_epoch, group.master_id)
            assert elected == group.master_id, f"14: epoch {group.master_epoch} has two masters"
            self._check_master(group)
        for broker in self.brokers:
            if broker.is_master:
                assert self.elected.get(broker.master_epoch) == broker.broker_id, "14: a master that nobody has elected"

    def _check_master(self, group: Group) -> None:
        master = next(each for each in self.brokers if each.broker_id == group.master_id)
        lost = self.acknowledged - set(master.log)
        assert not lost, f"10: master {group.master_id} of epoch {group.master_epoch} lacks {sorted(lost)[:5]}"
        assert group.master_id in group.sync_state_set, "16: the master is not in sync with itself"
        if master.is_master and master.master_epoch == group.master_epoch:
            assert group.sync_state_set <= master.waits_for, (
                f"16: the master waits for {set(master.waits_for)}, in sync are {set(group.sync_state_set)}"
            )

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
