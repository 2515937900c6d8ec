"""A reader and a broker of one queue: what can pass is tried again, what is gone is data loss, and what makes no sense has a name."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.errors import (
    AccessDeniedError,
    ClientError,
    FrameRefusedError,
    MalformedResponseError,
    ResponseError,
    TlsError,
    TornAnswerError,
    WaitedInVainError,
)
from spark_mq.client.settings import ClientSettings, Credentials
from spark_mq.conditions import DataLossError
from spark_mq.remoting import RemotingCommand, RequestCode, encode_frame, make_response, write_body
from spark_mq.remoting.routes import BrokerData, ClusterInfo
from spark_mq.source import pull_reader
from spark_mq.source.offsets import QueueId
from spark_mq.source.pull_reader import DEPTH, PullReader
from spark_mq.source.pulls import PullFilter, PullTerms
from storage.errors import CorruptMessageError
from storage.format.record import encode_record
from storage.format.typed_json import TopicConfig
from tests.support.fake_broker import Answer, FakeBroker
from tests.support.message_builder import make_message

QUEUE = QueueId("TopicA", "broker-a", 0)


def records(count: int) -> list[bytes | None]:
    return [
        encode_record(make_message(queue_offset=at, commitlog_offset=100 * at, body=b"%d" % at)) for at in range(count)
    ]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(records(1_000)) as running:
        yield running


def reader_of(
    *brokers: FakeBroker | str, timeout_ms: int = 5_000, name_server: str = "127.0.0.1:1", **terms: object
) -> PullReader:
    addresses = {number: one if isinstance(one, str) else one.address for number, one in enumerate(brokers)}
    settings = ClientSettings((name_server,), credentials=terms.pop("credentials", None), connect_timeout_ms=300)  # type: ignore[arg-type]
    looks = {
        name: terms.pop(name)
        for name in ("fail_on_data_loss", "verify_crc", "judges_holes", "asks_leniently")
        if name in terms
    }
    made = PullTerms(settings, **{"group": "TOOLS_CONSUMER", "timeout_ms": timeout_ms, **terms})  # type: ignore[arg-type]
    return PullReader(QUEUE, addresses, made, **looks)  # type: ignore[arg-type]


def read(reader: PullReader, start: int, end: int) -> list[int]:
    """The offsets of what was read; each message is the one of its offset."""
    offsets: list[int] = []
    try:
        for part in reader.slices(start, end):
            found = part.queue_offsets.tolist()
            assert part.records.bodies().to_pylist() == [b"%d" % offset for offset in found]
            offsets += found
    finally:
        reader.close()
    return offsets


@pytest.mark.parametrize("most", [1, 7, 32, 800])
def test_a_range_is_read_whole_and_in_order(broker: FakeBroker, most: int) -> None:
    broker.most = most
    assert read(reader_of(broker), 5, 995) == list(range(5, 995))
    assert broker.connections == 1


def test_pulls_are_in_flight_side_by_side(broker: FakeBroker) -> None:
    read(reader_of(broker), 0, 1_000)
    assert broker.offsets[:DEPTH] == [32 * number for number in range(DEPTH)]


def test_pulls_carry_their_subscription_and_store_nothing(broker: FakeBroker) -> None:
    read(reader_of(broker, filter=PullFilter("TagA || TagB"), group="G"), 0, 3)
    fields = broker.requests[0].ext_fields or {}
    expected = {"consumerGroup": "G", "topic": "TopicA", "queueId": "0", "queueOffset": "0", "maxMsgNums": "3"}
    expected |= {
        "sysFlag": "4",
        "commitOffset": "0",
        "subscription": "TagA || TagB",
        "expressionType": "TAG",
        "lo": "false",
    }
    assert expected.items() <= fields.items()
    assert "Signature" not in fields


def test_pulls_are_signed(broker: FakeBroker) -> None:
    read(reader_of(broker, credentials=Credentials("me", "secret")), 0, 3)
    fields = broker.requests[0].ext_fields or {}
    assert (fields["AccessKey"], "secret" in str(fields)) == ("me", False)
    assert fields["Signature"]


def test_gaps_are_passed_over(broker: FakeBroker) -> None:
    gaps = {5, 31, 32, 33, *range(200, 300), 999}
    broker.records = [None if at in gaps else one for at, one in enumerate(broker.records)]
    assert read(reader_of(broker), 0, 1_000) == [at for at in range(1_000) if at not in gaps]


def expiring(before: int, *, first: int = 0) -> list[Answer]:
    """A broker that deletes the records below `before` after `first` answers, and has not moved the queue's beginning yet."""

    def deleting(self: FakeBroker, request: RemotingCommand) -> RemotingCommand:
        self.deleted_before = before
        return self.pull(request)

    return [*[FakeBroker.pull] * first, deleting]


@pytest.mark.parametrize("filter_", [PullFilter(), PullFilter("TagA")], ids=["everything", "by tags"])
@pytest.mark.parametrize(
    ("start", "first", "before", "lost"),
    [
        (0, 0, 5, (0, 5)),  # all of the first answer's records are there but for some
        (0, 0, 40, (0, 40)),
        (50, 0, 60, (50, 60)),
        (0, 1, 100, (32, 100)),  # the records before were read in time
        (0, 3, 200, (96, 200)),
    ],
)  # fmt: skip
def test_messages_that_a_deleting_broker_passes_over_are_data_loss(
    broker: FakeBroker, start: int, first: int, before: int, lost: tuple[int, int], filter_: PullFilter
) -> None:
    """FOUND, and a next offset behind them; by the minimum they would be there (DefaultMessageStore.getMessage)."""
    text = rf"queue TopicA/broker-a/0: offsets \[{lost[0]}, {lost[1]}\) expired before they were read"
    broker.answers = expiring(before, first=first)
    with pytest.raises(DataLossError, match=text):
        read(reader_of(broker, filter=filter_), start, 1_000)
    broker.deleted_before, broker.answers = 0, expiring(before, first=first)
    with pytest.warns(RuntimeWarning, match=text) as told:
        found = read(reader_of(broker, filter=filter_, fail_on_data_loss=False), start, 1_000)
    assert found == [*range(start, lost[0]), *range(lost[1], 1_000)]
    assert sum("tolerated" in str(each.message) for each in told) == 1
    assert broker.minimum == 0, "it never said so"


def test_messages_that_are_deleted_while_a_range_is_read_are_not_behind_those_that_were_given(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a reader of an archive can go on behind the last row."""
    monkeypatch.setattr(pull_reader, "SLICE_ROWS", 64)
    broker.answers = expiring(500, first=5)
    given: list[int] = []

    def take() -> None:
        for part in reader_of(broker).slices(0, 1_000):
            given.extend(part.queue_offsets.tolist())

    with pytest.raises(DataLossError, match=r"offsets \[160, 500\) expired"):
        take()
    assert given == list(range(128))


def test_messages_of_a_deleted_file_that_no_answer_reaches_past_are_data_loss() -> None:
    with FakeBroker(records(2_000)) as broker:
        broker.deleted_before = 1_500
        with pytest.raises(DataLossError, match="from 0 to 800 are deleted"):
            read(reader_of(broker), 0, 2_000)


def test_a_gap_behind_a_message_is_no_loss_and_costs_a_look(broker: FakeBroker) -> None:
    broker.records[10:20] = [None] * 10
    assert len(read(reader_of(broker), 0, 64)) == 54
    assert broker.offsets == [0, 32, 9]
    assert read(reader_of(broker), 15, 64) == list(range(20, 64)), "also where the range begins in the gap"
    assert broker.offsets[3:] == [15, 47, 14, 13, 11, 7]
    broker.requests.clear()
    assert len(read(reader_of(broker, filter=PullFilter("TagA")), 0, 64)) == 54
    assert broker.offsets == [0, 32, 10, 9]
    looks = [(request.ext_fields or {})["subscription"] for request in broker.requests]
    assert looks == ["TagA", "TagA", "*", "*"]


def test_what_did_not_match_is_no_loss(broker: FakeBroker) -> None:
    """A queue whose first messages have expired, and whose next ones do not match."""

    def unmatched(self: FakeBroker, request: RemotingCommand) -> RemotingCommand:
        return self.said(request, 20, "NO_MATCHED_MESSAGE", 132)

    broker.minimum, broker.answers = 100, [unmatched]
    assert read(reader_of(broker, filter=PullFilter("TagA")), 100, 200) == list(range(132, 200))


def test_what_a_filtered_query_has_read_without_a_match_is_judged_before_it_has_expired(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rare tag: the slice with a match would come too late, when the broker has deleted what it did not match long ago."""
    monkeypatch.setattr(pull_reader, "SLICE_OFFSETS", 100)
    monkeypatch.setattr(pull_reader, "DEPTH", 1)
    everything = list(broker.records)

    def matching(request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields or {}
        at = int(fields.get("queueOffset", "0"))
        is_look = fields.get("subscription") != "TagA"
        broker.records = everything if is_look else [None] * 990 + everything[990:]
        if at >= 500:
            broker.deleted_before = 300  # it deletes its oldest files meanwhile
        return FakeBroker.pull(broker, request)

    broker.pull = matching  # type: ignore[method-assign]
    assert read(reader_of(broker, filter=PullFilter("TagA")), 0, 1_000) == list(range(990, 1_000))


def test_a_reader_that_judges_nothing_passes_over_what_the_broker_does(broker: FakeBroker) -> None:
    broker.answers = expiring(40)
    assert read(reader_of(broker, judges_holes=False), 0, 100) == list(range(40, 100))
    assert len(broker.offsets) == 4


@pytest.mark.parametrize("policy", ["COMPACTION", "DELETE"])
def test_gaps_of_a_compacted_topic_are_no_loss(broker: FakeBroker, policy: str) -> None:
    """Its broker keeps the newest message of each key: the first ones may be missing for good."""

    def pull(request: RemotingCommand) -> RemotingCommand:
        if request.code != RequestCode.GET_TOPIC_CONFIG:
            return FakeBroker.pull(broker, request)
        config = TopicConfig(topic="TopicA", attributes={"cleanup.policy": policy})
        return make_response(request, 0, None, None, write_body(config))

    broker.pull = pull  # type: ignore[method-assign]
    broker.deleted_before = 7
    if policy == "COMPACTION":
        assert read(reader_of(broker), 0, 64) == list(range(7, 64))
    else:
        with pytest.raises(DataLossError, match=r"offsets \[0, 7\)"):
            read(reader_of(broker), 0, 64)


def test_where_nobody_says_whether_a_topic_is_compacted_a_gap_at_its_begin_is_no_data_loss(broker: FakeBroker) -> None:
    """Under ACL 2.0 that is asked with the right Get, and a pull with the right Sub."""

    def pull(request: RemotingCommand) -> RemotingCommand:
        if request.code != RequestCode.GET_TOPIC_CONFIG:
            return FakeBroker.pull(broker, request)
        return make_response(request, 16, "GetTopicConfig on TopicA is denied")

    broker.pull = pull  # type: ignore[method-assign]
    broker.deleted_before = 7
    with pytest.raises(AccessDeniedError, match=r"GET_TOPIC_CONFIG.*is denied"):
        read(reader_of(broker), 0, 64)
    with pytest.warns(
        RuntimeWarning, match=r"\[0, 7\) expired .*or its topic is compacted, which is not known: .*denied"
    ):
        assert read(reader_of(broker, fail_on_data_loss=False), 0, 64) == list(range(7, 64))
    with pytest.raises(DataLossError, match=r"\[0, 7\) expired .*which is not known: .*denied"):
        read(reader_of(broker, asks_leniently=True), 0, 64)


@pytest.mark.filterwarnings("ignore:.*tolerated:RuntimeWarning")
def test_what_a_slave_has_deleted_is_read_from_the_master(broker: FakeBroker) -> None:
    """Each deletes its own files."""
    with FakeBroker(records(1_000)) as slave:
        broker.suggested_broker_id = slave.suggested_broker_id = 1
        slave.deleted_before = 700  # the master may have answered 16 pulls before its advice is followed
        tolerant = reader_of(broker, slave, may_leave_master=True, fail_on_data_loss=False)
        assert read(tolerant, 0, 1_000) == list(range(1_000))
        assert slave.offsets
        assert max(broker.offsets) > 900, "the whole range"
        broker.deleted_before = 500
        with pytest.raises(DataLossError, match=r"offsets \[0, 500\)"):
            read(reader_of(broker, slave, may_leave_master=True), 0, 1_000)


@pytest.mark.parametrize("looks", [{}, {"fail_on_data_loss": False}, {"judges_holes": False}], ids=str)
@pytest.mark.parametrize("answered", [0, 20])
def test_what_a_slave_lacks_is_neither_lost_nor_passed_over_while_the_master_is_away(
    broker: FakeBroker, answered: int, looks: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind slices that the master gave."""
    monkeypatch.setattr(pull_reader, "SLICE_ROWS", 64)
    with FakeBroker(records(1_000)) as slave:
        slave.deleted_before = 700
        broker.answers = [*[FakeBroker.pull] * answered, *[lambda *_: None] * 10_000]
        with pytest.raises(WaitedInVainError):
            read(reader_of(broker, slave, timeout_ms=300, **looks), 0, 1_000)
        assert slave.offsets
        broker.answers = [*[FakeBroker.pull] * answered, *[lambda *_: None] * 2]
        assert read(reader_of(broker, slave, **looks), 0, 1_000) == list(range(1_000)), "it is there again"


def test_a_slave_answers_for_its_own_parts_also_when_the_reader_is_back_at_the_master(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_reader, "SLICE_ROWS", 64)
    monkeypatch.setattr(pull_reader, "AWAY_SECONDS", 0)
    held: list[bytes] = []

    def together(slave: FakeBroker, request: RemotingCommand) -> bytes:
        held.append(b"".join(encode_frame(slave.pull(request))))
        return b"".join(held) if len(held) == DEPTH else b""

    with FakeBroker(records(1_000)) as slave:
        slave.records[300:310] = [None] * 10  # of a file that the slave deletes; by the master they are there
        slave.answers = [together] * DEPTH
        broker.answers = [lambda *_: None]
        assert read(reader_of(broker, slave), 0, 1_000) == list(range(1_000))
        assert len(held) == DEPTH


def test_a_slave_that_the_master_suggests_is_followed_also_where_brokers_filter(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly each slice lacks what did not match."""
    monkeypatch.setattr(pull_reader, "SLICE_ROWS", 64)
    broker.records[1::3] = [None] * len(broker.records[1::3])
    with FakeBroker(broker.records) as slave:
        broker.suggested_broker_id = slave.suggested_broker_id = 1
        reader = reader_of(broker, slave, may_leave_master=True, filter=PullFilter("TagA"))
        assert read(reader, 0, 1_000) == [at for at in range(1_000) if at % 3 != 1]
        assert len(broker.offsets) <= DEPTH
        assert max(slave.offsets) > 900


@pytest.mark.parametrize("broken", [1, 3, 17, 40])
def test_a_connection_that_breaks_costs_no_message(broker: FakeBroker, broken: int) -> None:
    broker.most = 8
    broker.answers = [*[FakeBroker.pull] * broken, lambda *_: None, FakeBroker.pull, lambda *_: None]
    assert read(reader_of(broker), 0, 1_000) == list(range(1_000))
    assert broker.connections == 3


@pytest.mark.parametrize("seed", range(5))
def test_a_broker_that_breaks_off_again_and_again_costs_no_message(broker: FakeBroker, seed: int) -> None:
    order = random.Random(seed)
    broker.most = order.choice([3, 32, 100])

    broker.answers = [
        order.choice([FakeBroker.pull, FakeBroker.pull, FakeBroker.pull, lambda *_: None]) for _ in range(20)
    ]
    assert read(reader_of(broker), 0, 1_000) == list(range(1_000))


def test_a_busy_broker_is_asked_again(broker: FakeBroker) -> None:
    broker.answers = [lambda _, request: make_response(request, 2, "[OVERLOAD]system busy")]
    assert read(reader_of(broker), 0, 100) == list(range(100))


def test_a_broker_that_is_stopping_is_asked_again(broker: FakeBroker) -> None:
    broker.answers = [lambda _, request: make_response(request, 1, "store getMessage return null")]
    assert read(reader_of(broker), 0, 100) == list(range(100))


def test_a_reset_of_the_group_changes_nothing(broker: FakeBroker) -> None:
    broker.answers = [lambda self, request: self.said(request, 21, "OFFSET_RESET", 500)]
    assert read(reader_of(broker), 0, 100) == list(range(100))


def test_the_slave_is_read_where_the_master_does_not_answer(broker: FakeBroker) -> None:
    assert read(reader_of("127.0.0.1:1", broker), 0, 1_000) == list(range(1_000))


def test_a_slave_that_is_behind_is_no_loss(broker: FakeBroker) -> None:
    with FakeBroker(records(40)) as slave:
        broker.answers = [lambda *_: None]
        assert read(reader_of(broker, slave), 0, 100) == list(range(100))
        assert slave.requests
        with pytest.raises(ClientError):
            read(reader_of("127.0.0.1:1", slave, timeout_ms=500), 0, 100)


def test_the_slave_that_the_master_suggests_is_followed_only_where_that_is_wanted(broker: FakeBroker) -> None:
    with FakeBroker(records(1_000)) as slave:
        broker.suggested_broker_id = slave.suggested_broker_id = 1
        assert read(reader_of(broker, slave), 0, 1_000) == list(range(1_000))
        assert not slave.requests
        assert read(reader_of(broker, slave, may_leave_master=True), 0, 1_000) == list(range(1_000))
        assert slave.requests


def test_what_expired_is_data_loss_or_passed_over(broker: FakeBroker) -> None:
    broker.minimum = 100
    with pytest.raises(
        DataLossError, match=r"queue TopicA/broker-a/0: the queue begins at 100; offset \d+ was to be read"
    ):
        read(reader_of(broker), 50, 1_000)
    with pytest.warns(RuntimeWarning, match="tolerated"):
        assert read(reader_of(broker, fail_on_data_loss=False), 50, 1_000) == list(range(100, 1_000))


@pytest.mark.parametrize("there", [0, 1, 40, 999])
def test_a_queue_that_ends_before_the_plan_is_data_loss(broker: FakeBroker, there: int) -> None:
    broker.records = broker.records[:there]
    with pytest.raises(DataLossError, match=rf"the queue ends at {there}, before offset 1000 that was planned"):
        read(reader_of(broker), 0, 1_000)
    with pytest.warns(RuntimeWarning, match="tolerated"):
        assert read(reader_of(broker, fail_on_data_loss=False), 0, 1_000) == list(range(there))


def test_the_next_range_of_a_reader_gets_no_answers_of_the_last(broker: FakeBroker) -> None:
    reader = reader_of(broker, fail_on_data_loss=False)
    broker.records = broker.records[:40]
    with pytest.warns(RuntimeWarning, match="tolerated"):
        first = [offset for part in reader.slices(0, 1_000) for offset in part.queue_offsets.tolist()]
    assert first == list(range(40))
    assert read(reader, 7, 30) == list(range(7, 30))


def test_a_broker_that_nobody_reaches_is_an_error_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(
        WaitedInVainError, match=r"for messages of queue .*127\.0\.0\.1:1: no connection: Connection refused"
    ):
        read(reader_of("127.0.0.1:1", timeout_ms=400), 0, 10)
    assert time.monotonic() - began < 60


def test_a_silent_broker_is_an_error_in_time(broker: FakeBroker) -> None:
    broker.answers = [lambda *_: b""] * 100
    with pytest.raises(WaitedInVainError, match=r"no answer to PULL_MESSAGE \(11\) within (200|1\d\d) ms"):
        read(reader_of(broker, timeout_ms=200), 0, 10)


def test_no_try_goes_beyond_the_time(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    receive, connected = BlockingConnection.receive, BlockingConnection._connected

    def noted(self: BlockingConnection[object], timeout_ms: int | None = None) -> object:
        asked.append(timeout_ms)
        return receive(self, timeout_ms)

    def noted_too(self: BlockingConnection[object]) -> object:
        asked.append(self._settings.connect_timeout_ms)
        return connected(self)

    monkeypatch.setattr(BlockingConnection, "receive", noted)
    monkeypatch.setattr(BlockingConnection, "_connected", noted_too)
    monkeypatch.setattr(pull_reader, "ANSWER_TIMEOUT_MS", 300)
    broker.answers = [lambda *_: b""] * 100
    with pytest.raises(WaitedInVainError):
        read(reader_of(broker, timeout_ms=500), 0, 10)
    assert max(asked[:2], key=int) == 300  # type: ignore[arg-type]
    assert all(ms is not None and ms <= 200 for ms in asked[2:]), "what the first try has left"


@pytest.mark.parametrize("was_there", [True, False, None])
def test_a_broker_that_has_moved_is_read_where_it_is_now(broker: FakeBroker, was_there: bool | None) -> None:
    """None: it was away while the driver planned."""

    def told(_: FakeBroker, request: RemotingCommand) -> RemotingCommand:
        assert request.code == RequestCode.GET_BROKER_CLUSTER_INFO
        data = {0: broker.address, 7: "127.0.0.1:1"}
        table = {"broker-a": BrokerData(broker_name="broker-a", cluster="C", broker_addresses=data)}
        return make_response(request, 0, None, None, write_body(ClusterInfo(broker_address_table=table)))

    before = FakeBroker(records(1_000))
    with FakeBroker([]) as name_server, before:
        name_server.answers = [told] * 10
        if was_there:  # it answers first, and goes while the task reads
            before.answers = [FakeBroker.pull] * 3 + [hang_up_for_good]
        else:
            before.answers = [lambda *_: None] * 1_000
        planned = [] if was_there is None else [before]
        assert read(reader_of(*planned, name_server=name_server.address), 0, 1_000) == list(range(1_000))
        assert len(name_server.requests) == 1, "only when the second try has failed"


def hang_up_for_good(broker: FakeBroker, _: RemotingCommand) -> None:
    broker.answers = [lambda *_: None] * 1_000


def test_a_refusal_is_an_error_at_once(broker: FakeBroker) -> None:
    broker.answers = [lambda _, request: make_response(request, 16, "the topic[TopicA] pulling message is forbidden")]
    with pytest.raises(AccessDeniedError, match="pulling message is forbidden"):
        read(reader_of(broker), 0, 10)
    broker.answers = [lambda _, request: make_response(request, 26, "subscription group [G] does not exist")]
    with pytest.raises(ResponseError, match="SUBSCRIPTION_GROUP_NOT_EXIST"):
        read(reader_of(broker), 0, 10)


@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_topic_that_is_deleted_while_it_is_read_is_data_loss(broker: FakeBroker, before: int) -> None:
    def gone(_: FakeBroker, request: RemotingCommand) -> RemotingCommand:
        return make_response(request, 17, "topic[TopicA] not exist")

    broker.answers = [*[FakeBroker.pull] * before, *[gone] * 40]
    with pytest.raises(DataLossError, match=r"its topic is gone; offset \d+ was to be read"):
        read(reader_of(broker), 0, 1_000)
    broker.answers = [*[FakeBroker.pull] * before, *[gone] * 40]
    with pytest.warns(RuntimeWarning, match="its topic is gone") as caught:
        found = read(reader_of(broker, fail_on_data_loss=False), 0, 1_000)
    assert found == list(range(len(found)))
    assert len(found) <= 32 * before
    assert sum("its topic is gone" in str(each.message) for each in caught) == 1


@pytest.mark.parametrize("code", [1, 16, 17, 26])
def test_what_a_slave_refuses_is_asked_of_the_master(broker: FakeBroker, code: int) -> None:
    with FakeBroker([]) as slave:
        broker.answers = [lambda *_: None]
        slave.answers = [lambda _, request: make_response(request, code, "not here")] * 100
        assert read(reader_of(broker, slave), 0, 100) == list(range(100))
        assert slave.requests


def test_who_cannot_reach_the_master_is_told_so_whatever_the_slave_says() -> None:
    with (
        FakeBroker(records(40)) as slave,
        pytest.raises(WaitedInVainError, match=r"127\.0\.0\.1:1: no connection"),
    ):
        read(reader_of("127.0.0.1:1", slave, timeout_ms=300), 0, 100)


def test_a_frozen_master_is_not_tried_again_after_every_answer_of_the_slave(broker: FakeBroker) -> None:
    """Slaves advise to go back to the master, whatever became of it."""
    with FakeBroker([]) as frozen:
        frozen.answers = [lambda *_: b""] * 10_000
        began = time.monotonic()
        assert read(reader_of(frozen, broker, timeout_ms=500), 0, 1_000) == list(range(1_000))
        assert frozen.connections == 1
        assert time.monotonic() - began < 30


def lie(code: int, remark: str, then: int, body: bytes = b"") -> list[object]:
    return [lambda self, request: self.said(request, code, remark, then, body)]


@pytest.mark.parametrize(
    "answers",
    [
        lie(0, "FOUND", 10),
        lie(0, "FOUND", 0, b"x"),
        lie(19, "", 10, b"records"),
        lie(21, "", -7),
        [lambda _, request: make_response(request, 0, "FOUND", {"nextBeginOffset": "many"}, b"x")],
        [lambda _, request: make_response(request, 0, "FOUND", None, b"x")],
    ],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_an_error(broker: FakeBroker, answers: list[object]) -> None:
    broker.answers = answers  # type: ignore[assignment]
    with pytest.raises(MalformedResponseError, match=broker.address):
        read(reader_of(broker), 0, 10)


CUT = [
    lie(0, "FOUND", 10, b"x"),
    lie(0, "FOUND", 10, bytes(200)),
    lie(0, "FOUND", 10, b"\xff" * 200),
    lie(0, "FOUND", 10, encode_record(make_message(queue_offset=3)) * 2),
]


@pytest.mark.parametrize("cut", CUT)
def test_an_answer_without_whole_records_is_pulled_again(broker: FakeBroker, cut: list[Answer]) -> None:
    broker.answers = cut * 2
    assert read(reader_of(broker), 0, 10) == list(range(10))


@pytest.mark.parametrize("cut", CUT)
def test_a_broker_that_has_no_other_answer_is_an_error_in_time(broker: FakeBroker, cut: list[Answer]) -> None:
    """Each of its answers is news, and none is a slice."""
    broker.answers = cut * 10_000
    with pytest.raises(
        WaitedInVainError, match=rf"{broker.address}: the answer to PULL_MESSAGE .*cannot be read"
    ) as caught:
        read(reader_of(broker, timeout_ms=500), 0, 10)
    assert isinstance(caught.value.cause, TornAnswerError)
    assert len(broker.offsets) < 20, "with pauses"


def next_file(*, same_queue: bool, longer: int) -> bytes:
    """The begin of a file of the log, whose first record has so many bytes more than the queue's first one."""
    first, second = (
        encode_record(
            make_message(queue_id=0 if same_queue else 1, queue_offset=5 + at, body=b"5" * (1 + max(longer, 0)))
        )
        for at in range(2)
    )
    return (first if longer >= 0 else encode_record(make_message("T", 1, 5, body=b""))) + second


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("answers", [0, 1, 5])
@pytest.mark.parametrize("longer", [-1, 0, 2, 500])
@pytest.mark.parametrize("same_queue", [True, False])
def test_bytes_of_the_next_file_in_place_of_a_deleted_one_are_no_message(
    broker: FakeBroker, start: int, answers: int, longer: int, same_queue: bool
) -> None:
    """Apache's broker gives them for log offset 0 until it has moved the queue's minimum; tests/interop has it say so."""

    def moved(self: FakeBroker, request: RemotingCommand) -> RemotingCommand:
        self.minimum, self.first_left = self.deleted_before, None
        return self.pull(request)

    def begin() -> None:
        broker.minimum, broker.deleted_before = 0, 5
        broker.first_left = next_file(same_queue=same_queue, longer=longer)
        broker.answers = [*[FakeBroker.pull] * answers, moved]

    begin()
    with pytest.raises(DataLossError):
        read(reader_of(broker), start, 100)
    begin()
    with pytest.warns(RuntimeWarning, match="tolerated"):
        assert read(reader_of(broker, fail_on_data_loss=False), start, 100) == list(range(5, 100))
    begin()
    assert read(reader_of(broker, judges_holes=False, fail_on_data_loss=False), 5, 100) == list(range(5, 100))


@pytest.mark.parametrize(
    ("nonsense", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", FrameRefusedError),
        (b"\xff" * 64, FrameRefusedError),
        (b"\x15\x03\x01\x00\x02\x02F", TlsError),
    ],
)
def test_what_is_no_frame_is_an_error(broker: FakeBroker, nonsense: bytes, error: type[ClientError]) -> None:
    broker.answers = [lambda *_: nonsense]
    with pytest.raises(error):
        read(reader_of(broker), 0, 10)


def test_a_wrong_sum_is_an_error_where_it_is_looked_for(broker: FakeBroker) -> None:
    spoilt = bytearray(broker.records[3] or b"")
    spoilt[spoilt.index(b"3", 88)] = ord("x")
    broker.records[3] = bytes(spoilt)
    with pytest.raises(CorruptMessageError, match="body CRC"):
        read(reader_of(broker, verify_crc=True), 0, 10)
