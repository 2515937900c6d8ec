"""What a commit makes of what masters answer: who is registered, where queues end, and how safe rows are that a redo finds."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.errors import AccessDeniedError, BrokerUnreachableError, ClientError, WaitedInVainError
from spark_mq.client.message import decode_records
from spark_mq.conditions import BatchInDoubtError, NotConfirmedError, SentRowsLostError, WriteFailedError
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, make_response
from spark_mq.remoting.administration import ClientConnection, ProducerConnection
from spark_mq.remoting.command import read_body, read_header, write_body
from spark_mq.remoting.consumers import HeartbeatData
from spark_mq.remoting.messages import BatchedMessage, SendMessageRequest, decode_batch, encode_batch
from spark_mq.sink import live_brokers
from spark_mq.sink.exact_commit import SendInDoubtError
from spark_mq.sink.journal import Done, QueueSpan
from spark_mq.sink.live_brokers import TOPIC, LiveBrokers
from spark_mq.sink.live_routes import LiveRoutes
from spark_mq.sink.options import LiveSinkOptions
from spark_mq.sink.send_plan import QueuePlan, plan_queues, remaining
from spark_mq.sink.staged_rows import StagedReader, StagedWriter
from storage.batch.ledger import Batch
from storage.files.local_file_system import LocalFileSystem
from storage.format.record import encode_record
from tests.support.fake_broker import Answer, FakeBroker
from tests.support.message_builder import make_message

QUEUE = MessageQueue("TopicA", "broker-a", 0)
PREFIX = "0123456789abcdef-0-"
GROUP = "SPARK_MQ_attempt"


class Master(FakeBroker):
    """Knows producers, stores what is sent, and tells where queues end."""

    def __init__(self) -> None:
        super().__init__([])
        self.groups: set[str] = set()
        self.registers = True
        self.status = 0
        self.told = 0
        """Messages in the sink's own topic."""

    def address_of(self, broker_name: str, topic: str) -> str:
        return self.address

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields or {}
        match request.code:
            case RequestCode.HEART_BEAT:
                if self.registers:
                    heartbeat = read_body(HeartbeatData, request.body)
                    self.groups |= {producer.group_name for producer in heartbeat.producers}
                return make_response(request, 0, None)
            case RequestCode.GET_TOPIC_CONFIG:
                return make_response(request, 0, None)
            case RequestCode.UNREGISTER_CLIENT:
                self.groups.discard(fields["producerGroup"])
                return make_response(request, 0, None)
            case RequestCode.GET_PRODUCER_CONNECTION_LIST:
                if (group := fields["producerGroup"]) not in self.groups:
                    return make_response(request, 1, f"the producer group[{group}] not exist")
                return make_response(
                    request, 0, None, None, write_body(ProducerConnection(connections=(ClientConnection(),)))
                )
            case RequestCode.GET_MAX_OFFSET | RequestCode.GET_MIN_OFFSET:
                end = self.told if fields["topic"] == TOPIC else len(self.records)
                at = end if request.code == RequestCode.GET_MAX_OFFSET else 0
                return make_response(request, 0, None, {"offset": str(at)})
            case RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
                return self.store(request)
        return super().pull(request)

    def store(self, request: RemotingCommand) -> RemotingCommand:
        header = read_header(SendMessageRequest, request)
        if header.topic == TOPIC:
            at, self.told = self.told, self.told + 1
        else:
            at = len(self.records)
            one = BatchedMessage(bytes(request.body), (header.properties or "").encode())
            for item in decode_batch(request.body) if header.is_batch else [one]:
                self.add(item.body, item.raw_properties)
        return make_response(request, self.status, None, {"msgId": "id", "queueId": "0", "queueOffset": str(at)})

    def add(self, body: bytes, properties: bytes) -> None:
        at = len(self.records)
        message = make_message(
            topic=QUEUE.topic, queue_offset=at, commitlog_offset=1_000 * at, body=body, properties=properties
        )
        self.records.append(encode_record(message))


def brokers_of(master: Master, **options: str) -> LiveBrokers:
    given = {"nameServer": "unused:1", "topic": "TopicA", "stagingPath": "/unused", "writeId": "w", **options}
    return LiveBrokers(LiveSinkOptions.parse(given, "batch"), cast(LiveRoutes, cast(Any, master)), "batch 0 of sink w")


def staged(directory: Path, count: int) -> tuple[dict[MessageQueue, QueuePlan], list[StagedReader]]:
    writer = StagedWriter(LocalFileSystem(), str(directory), "0-0-00000000-x.rows")
    items = [BatchedMessage(b"%d" % at, property_of(at), 0) for at in range(count)]
    writer.append(QUEUE, encode_batch(items), 0, np.arange(count))
    finished = writer.finish()
    assert finished is not None
    reader = StagedReader(LocalFileSystem(), str(directory), finished)
    return plan_queues([reader.batches]), [reader]


def property_of(rank: int) -> bytes:
    return f"SPARK_MQ_ROW\x01{PREFIX}00000000-0-{rank:012X}\x02".encode()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_brokers, "_SETTLE_S", 0.0)


def test_a_send_is_registered_takes_leave_and_says_where_rows_end(tmp_path: Path) -> None:
    plans, files = staged(tmp_path, 3)
    with Master() as master:
        master.add(b"foreign", b"")
        stored = brokers_of(master).send(GROUP, plans, files, {QUEUE: 1})
        assert stored.ends == {QUEUE: 4}
        assert stored.statuses == {0: 3}
        assert master.groups == set(), "brokers up to 4.9 keep the names of groups that do not take leave"
        assert master.connections == 1


def test_a_broker_that_does_not_register_producers_gets_no_row(tmp_path: Path) -> None:
    """enableRegisterProducer=false with rejectTransactionMessage=true: no fence would ever see the connection."""
    plans, files = staged(tmp_path, 3)
    with Master() as master:
        master.registers = False
        with pytest.raises(WriteFailedError, match="enableRegisterProducer"):
            brokers_of(master).send(GROUP, plans, files, {QUEUE: 0})
        assert master.records == []


def test_nothing_is_sent_to_a_queue_that_has_lost_its_end(tmp_path: Path) -> None:
    plans, files = staged(tmp_path, 3)
    with Master() as master:
        master.add(b"foreign", b"")
        with pytest.raises(SendInDoubtError, match="TopicA/broker-a/0 ended at 2 and ends at 1 now"):
            brokers_of(master).send(GROUP, plans, files, {QUEUE: 2})
        assert len(master.records) == 1


@pytest.mark.parametrize("acks", ["all", "stored"])
def test_rows_that_a_redo_finds_are_as_safe_as_the_fence_says(acks: str) -> None:
    with Master() as master:
        brokers = brokers_of(master, acks=acks)
        master.add(b"0", property_of(0))
        master.add(b"foreign", b"")
        master.status = 12
        brokers.fence([QUEUE], [GROUP])
        assert brokers.marks(QUEUE, 0, PREFIX).offsets.tolist() == [0]
        if acks == "stored":
            brokers.check_safety({})
            return
        with pytest.raises(NotConfirmedError, match="broker-a has stored 1 rows and answers FLUSH_SLAVE_TIMEOUT"):
            brokers.check_safety({})
        master.status = 0
        brokers.fence([QUEUE], [GROUP])
        brokers.marks(QUEUE, 0, PREFIX)
        brokers.check_safety({})


class Lingering(Master):
    """Knows the connections of two attempts, the second one's for three questions; what it stores can be read one question later."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = {"first", "second"}
        self.questions = 0
        self.told_before_all_were_gone = 0
        self.readable = self.shown = 0

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields or {}
        if request.code == RequestCode.GET_PRODUCER_CONNECTION_LIST:
            self.questions += 1
            self.groups.discard("first")
            if self.questions == 4:
                self.told_before_all_were_gone = self.told
                self.groups.discard("second")
        if request.code == RequestCode.GET_MAX_OFFSET and fields["topic"] == TOPIC:
            self.shown, self.readable = self.readable, self.told
            return make_response(request, 0, None, {"offset": str(self.shown)})
        return super().pull(request)


def test_a_fence_waits_for_each_earlier_attempt_and_until_what_it_has_stored_can_be_read() -> None:
    with Lingering() as master:
        brokers_of(master).fence([QUEUE], ["first", "second"])
        assert master.groups == set()
        assert master.told_before_all_were_gone == 0, "it would stand before what is still on its way"
        assert master.shown == master.told > 0


def test_a_fence_that_never_ends_is_a_doubt() -> None:
    with Master() as master:
        master.groups.add(GROUP)
        with pytest.raises(BatchInDoubtError, match="still has a connection of an earlier attempt"):
            brokers_of(master, fenceTimeout="1ms").fence([QUEUE], [GROUP])
        assert master.told == 0


class Cluster:
    """Masters by the names of their brokers."""

    def __init__(self, **masters: Master) -> None:
        self.masters = masters

    def address_of(self, broker_name: str, topic: str) -> str:
        return self.masters[broker_name.replace("-", "_")].address


def test_there_is_a_fence_at_each_broker_of_the_batch() -> None:
    with Master() as one, Master() as other:
        routes = cast(Master, Cluster(broker_a=one, broker_b=other))
        brokers_of(routes).fence([QUEUE, QUEUE._replace(broker_name="broker-b")], [GROUP])
        assert one.told == other.told > 0


class Expiring(Master):
    """Has deleted the beginning of its queue."""

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_MIN_OFFSET:
            return make_response(request, 0, None, {"offset": "2"})
        return super().pull(request)


def test_rows_are_not_looked_for_where_messages_have_expired() -> None:
    """What was not found would be sent again."""
    with Expiring() as master:
        for rank in range(4):
            master.add(b"%d" % rank, property_of(rank))
        brokers = brokers_of(master)
        with pytest.raises(SentRowsLostError, match="its messages from 1 to 2 are gone"):
            brokers.marks(QUEUE, 1, PREFIX)
        assert brokers.marks(QUEUE, 2, PREFIX).offsets.tolist() == [2, 3]


@pytest.mark.parametrize("stored", [0, 1, 2, 3])
def test_of_a_batch_that_is_there_in_part_the_rest_is_sent(tmp_path: Path, stored: int) -> None:
    plans, files = staged(tmp_path, 3)
    left = {QUEUE: remaining(plans[QUEUE], stored)}
    with Master() as master:
        found = brokers_of(master).send(GROUP, left, files, {QUEUE: 0})
        bodies = [message.body for message in decode_records(b"".join(master.records))]
        assert bodies == [b"0", b"1", b"2"][stored:]
        assert sum(found.statuses.values()) == 3 - stored


class ManyThreads(Master):
    """Several threads take requests from its queue: one has a row of an earlier attempt in hand at the first look."""

    def store(self, request: RemotingCommand) -> RemotingCommand:
        if read_header(SendMessageRequest, request).topic == TOPIC and self.told == 1:
            self.add(b"late", property_of(0))
        return super().store(request)


def test_a_row_that_a_thread_of_the_broker_had_in_hand_at_the_first_look_is_there_behind_the_fence() -> None:
    with ManyThreads() as master:
        brokers = brokers_of(master)
        brokers.fence([QUEUE], [GROUP])
        assert len(master.records) == 1
        assert brokers.marks(QUEUE, 0, PREFIX).offsets.tolist() == [0]


def test_rows_that_were_not_safe_when_they_were_sent_are_safe_when_a_later_fence_says_so(tmp_path: Path) -> None:
    plans, files = staged(tmp_path, 3)
    with Master() as master:
        brokers = brokers_of(master)
        master.status = 10
        brokers.send(GROUP, plans, files, {QUEUE: 0})
        with pytest.raises(NotConfirmedError):
            brokers.check_safety({})
        master.status = 0
        brokers.fence([QUEUE], [GROUP])
        assert len(brokers.marks(QUEUE, 0, PREFIX).marks) == 3
        brokers.check_safety({})


def away(broker: FakeBroker, request: RemotingCommand) -> None:
    """The connection is closed, as by a broker that ends."""


def silent(broker: FakeBroker, request: RemotingCommand) -> bytes:
    """As a broker that is frozen."""
    return b""


Question = Callable[[LiveBrokers], object]
QUESTIONS: dict[str, Question] = {
    "topic SPARK_MQ_SINK": lambda brokers: brokers.prepare([QUEUE]),
    "where queues end": lambda brokers: brokers.ends([QUEUE]),
    "begins": lambda brokers: brokers.marks(QUEUE, 0, PREFIX),
    "announced": lambda brokers: brokers.announce(Done(Batch("w", "w", 0), (QueueSpan(QUEUE, 0, 1),), 1)),
}


@pytest.mark.parametrize("failure", [away, silent])
@pytest.mark.parametrize("what", QUESTIONS)
def test_a_question_whose_broker_is_away_is_asked_again(what: str, failure: Answer) -> None:
    with Master() as master:
        master.answers = [failure] * 2
        brokers = brokers_of(master, sendTimeout="100ms", retryTimeout="20s")
        with suppress(ClientError):
            QUESTIONS[what](brokers)
        assert not master.answers, "it has gone on behind all of them"


def test_a_question_that_nobody_answers_ends_with_what_was_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with Master() as master:
        master.answers = [silent] * 1_000
        brokers = brokers_of(master, sendTimeout="50ms", retryTimeout="300ms")
        for what, ask in QUESTIONS.items():
            if what == "announced":  # the batch is done already
                ask(brokers)
                assert re.search(r"waited 0\.\d s for broker broker-a \(the batch is announced\)", caplog.text)
                continue
            with pytest.raises(WaitedInVainError, match=r"waited 0\.\d s for broker broker-a \(.*no answer to"):
                ask(brokers)


def test_what_the_sinks_topic_tells_is_waited_for_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is registered and dead stops no query that may send nothing there."""
    tries: list[int] = []

    def topics(admin: Admin) -> tuple[str, ...]:
        tries.append(1)
        if len(tries) < 3:
            raise BrokerUnreachableError("10.0.0.9:10911", "no connection")
        return ()

    monkeypatch.setattr(Admin, "topics", topics)
    with Master() as master:
        with pytest.raises(BrokerUnreachableError):
            brokers_of(master).announced("w", patient=False)
        assert brokers_of(master).announced("w", patient=True) == []
    assert len(tries) == 3


class Moving(Master):
    """Its name server still tells of the machine that it has left, for the first questions."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def address_of(self, broker_name: str, topic: str) -> str:
        self.looks += 1
        return "127.0.0.1:1" if self.looks < 3 else self.address


def test_a_broker_that_has_moved_is_asked_where_it_is_by_then() -> None:
    with Moving() as master:
        assert brokers_of(master).ends([QUEUE]) == {QUEUE: 0}
        assert master.looks == 3


PLACE = MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 4)


def test_the_offset_of_a_row_that_waits_is_not_taken_for_its_queues(tmp_path: Path) -> None:
    """The broker says where it lies, and that is another queue."""
    writer = StagedWriter(LocalFileSystem(), str(tmp_path), "0-0-00000000-x.rows")
    for rank in range(2):
        item = encode_batch([BatchedMessage(b"%d" % rank, property_of(rank), 0)])
        writer.append(QUEUE, item, 0, np.array([rank]), waits=rank == 1)
    staged_file = writer.finish()
    assert staged_file is not None
    files = [StagedReader(LocalFileSystem(), str(tmp_path), staged_file)]
    with Master() as master:
        stored = brokers_of(master).send(GROUP, plan_queues([files[0].batches]), files, {QUEUE: 0, PLACE: 0})
        assert (stored.ends, stored.statuses) == ({QUEUE: 1}, {0: 2})


def test_nothing_is_sent_where_a_place_has_lost_its_end(tmp_path: Path) -> None:
    """A row that waits would go below where it is looked for."""
    plans, files = staged(tmp_path, 1)
    with Master() as master:
        with pytest.raises(SendInDoubtError, match="SCHEDULE_TOPIC_XXXX/broker-a/4 ended at 5 and ends at 0 now"):
            brokers_of(master).send(GROUP, plans, files, {QUEUE: 0, PLACE: 5})
        assert master.records == []


def test_nothing_is_decided_where_a_place_cannot_be_looked_into() -> None:
    """As with access control: without the right to read it, no redo could tell what is stored."""

    def forbidden(broker: FakeBroker, request: RemotingCommand) -> RemotingCommand:
        return make_response(request, 16, "no permission to pull")

    def answer(broker: FakeBroker, request: RemotingCommand) -> RemotingCommand:
        broker.answers.insert(0, answer)
        if request.code == RequestCode.PULL_MESSAGE and (request.ext_fields or {})["topic"] == PLACE.topic:
            return forbidden(broker, request)
        broker.answers.pop(0)
        return broker.pull(request)

    with Master() as master:
        brokers_of(master).prepare([QUEUE], [PLACE])
        master.answers = [answer] * 10
        with pytest.raises(AccessDeniedError, match="SCHEDULE_TOPIC_XXXX"):
            brokers_of(master).prepare([QUEUE], [PLACE])
        brokers_of(master).prepare([QUEUE])
