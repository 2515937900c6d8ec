"""The check asks for what is open, once, and moves on over nothing that could be lost.

Expectations are those of TransactionalMessageServiceImpl.check (5.3.3) where a case names no other method, and of the departures that
storage/transaction/check.py tells.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage import Message, MessageStore, StoreConfig, open_store
from storage.errors import StateFileError
from storage.rules.half_messages import (
    CHECK_TIMES,
    DISCARD_TOPIC,
    FIRST_OFFSET,
    HALF_TOPIC,
    IMMUNITY,
    OP_TOPIC,
    TransactionState,
    half_message,
    op_messages,
)
from storage.rules.inner_messages import InnerMessage
from storage.settings.nouns import RetentionConfig, TransactionConfig
from storage.transaction import check as check_module
from storage.transaction import half_queue
from storage.transaction.check import CheckReport
from storage.transaction.discard import redrive
from storage.transaction.progress import METRICS_FILE, TransactionCounts, read_progress
from tests.support.clock import Clock
from tests.support.held_check import check_half_messages, commit_of
from tests.support.served import served

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
CONFIG = replace(
    StoreConfig.tiny(),
    transaction=TransactionConfig(transaction_time_out=6_000, transaction_check_max=3),
    retention=RetentionConfig(file_reserved_time=72),
)


@pytest.fixture
def clock() -> Clock:
    return Clock(START_MS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path, clock: Clock) -> Iterator[MessageStore]:
    with open_store(root, config=CONFIG, read_only=False, create=True, clock=clock) as opened:
        yield opened


class Producer:
    """Answers checks: the state for each body, unknown without one. Remembers what it was asked."""

    def __init__(self, states: Mapping[str, str] | None = None) -> None:
        self.states = dict(states or {})
        self.asked: list[Message] = []

    def __call__(self, message: Message) -> str:
        self.asked.append(message)
        return self.states.get(message.body.decode(), "unknown")

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self.asked]


Prepare = Callable[..., Message]


@pytest.fixture
def prepare(store: MessageStore, clock: Clock) -> Prepare:
    """Puts a half for a message of TopicTx, queue 1."""

    def put(body: str, *, properties: Mapping[str, str] | None = None, born_time_ms: int | None = None) -> Message:
        message = InnerMessage(
            topic="TopicTx",
            queue_id=1,
            body=body.encode(),
            properties={"UNIQ_KEY": f"KEY-{body}", **(properties or {})},
            flag=7,
            born_time_ms=clock.now_ms if born_time_ms is None else born_time_ms,
        )
        results = store.put_inner([half_message(message, "ProducerTx")])
        return store.message_by_commitlog_offset(results.column("commitlog_offset")[0].as_py())

    return put


def messages(store: MessageStore, topic: str, queue_id: int = 0) -> list[Message]:
    return list(served(store, topic, queue_id))


def bodies(store: MessageStore, topic: str = "TopicTx", queue_id: int = 1) -> list[str]:
    return [message.body.decode() for message in messages(store, topic, queue_id)]


def check(store: MessageStore, clock: Clock, producer: Producer, after_ms: int = 10_000) -> CheckReport:
    clock.now_ms += after_ms
    return check_half_messages(store, producer, clock.now_ms)


# Who is asked


def test_a_half_younger_than_the_timeout_is_not_asked_and_holds_up_what_is_behind_it(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    prepare("old", born_time_ms=START_MS - 60_000)
    prepare("young", born_time_ms=START_MS + 4_001)
    prepare("old behind it", born_time_ms=START_MS - 60_000)
    producer = Producer()
    report = check(store, clock, producer)
    assert producer.bodies == ["old"]
    assert report.half_offset == 1


def test_a_half_exactly_as_old_as_the_timeout_is_asked(store: MessageStore, clock: Clock, prepare: Prepare) -> None:
    prepare("due", born_time_ms=START_MS + 4_000)
    producer = Producer()
    check(store, clock, producer)
    assert producer.bodies == ["due"]


def test_a_half_born_in_the_future_is_asked(store: MessageStore, clock: Clock, prepare: Prepare) -> None:
    prepare("early bird", born_time_ms=START_MS + HOUR_MS)
    producer = Producer()
    check(store, clock, producer)
    assert producer.bodies == ["early bird"]


def test_what_was_stored_since_the_check_began_waits_for_the_next(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    prepare("just stored", born_time_ms=START_MS - HOUR_MS)
    producer = Producer()
    check(store, clock, producer, after_ms=0)
    assert producer.bodies == []
    check(store, clock, producer, after_ms=1)
    assert producer.bodies == ["just stored"]


def test_a_checker_sees_the_message_as_it_was_sent_with_this_check_counted(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    """Java: AbstractTransactionalMessageCheckListener.sendCheckMessage."""
    prepare("a", properties={"TAGS": "T"})
    producer = Producer()
    check(store, clock, producer)
    (asked,) = producer.asked
    assert (asked.topic, asked.queue_id, asked.tags, asked.properties["PGROUP"]) == ("TopicTx", 1, "T", "ProducerTx")
    assert asked.properties[CHECK_TIMES] == "1"


def test_an_op_message_ends_a_half_whatever_else_it_names(store: MessageStore, clock: Clock, prepare: Prepare) -> None:
    """Java: fillOpRemoveMap."""
    for body in "abc":
        prepare(body)
    ended = op_messages(np.array([0, 2]), 4_096, START_MS)[0]
    store.put_inner([replace(ended, body=b"0,x,,2,"), replace(ended, body=b"1,", properties={"TAGS": "e"})])
    producer = Producer()
    assert check(store, clock, producer).half_offset == 3
    assert producer.bodies == ["b"]


# Answers


def test_commit_shows_the_message_and_rollback_shows_nothing(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    """Java: EndTransactionProcessor.processRequest, from a check."""
    half = prepare("c")
    prepare("r")
    report = check(store, clock, Producer({"c": "commit", "r": "rollback"}))
    (visible,) = messages(store, "TopicTx", 1)
    assert visible.body == b"c"
    assert (visible.sys_flag, visible.prepared_transaction_offset, visible.flag) == (8, half.commitlog_offset, 7)
    assert visible.properties == half.properties
    (op,) = messages(store, OP_TOPIC)
    assert (op.body, op.properties) == (b"0,1,", {"WAIT": "true", "TAGS": "d"})
    assert (report.committed, report.rolled_back, report.half_offset, report.waiting) == (1, 1, 2, 0)


def test_a_half_without_an_answer_stands_at_the_end_with_one_check_more_and_its_flag(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    """Java: TransactionalMessageBridge.renewHalfMessageInner, which loses the flag."""
    half = prepare("u")
    report = check(store, clock, Producer())
    copy = messages(store, HALF_TOPIC)[1]
    assert copy.properties == {**half.properties, CHECK_TIMES: "1"}
    assert (copy.born_time_ms, copy.born_host, copy.body, copy.flag) == (half.born_time_ms, half.born_host, b"u", 7)
    assert report.to_check_again == [(copy.commitlog_offset, 1)]
    assert (report.half_offset, report.put_back, report.waiting) == (1, 1, 1)


def test_after_the_last_check_a_half_goes_to_the_discard_topic_with_its_entry(
    store: MessageStore, clock: Clock, prepare: Prepare, root: Path
) -> None:
    """Java: needDiscard, DefaultTransactionalMessageCheckListener.resolveDiscardMsg,
    TopicConfigManager.createTopicOfTranCheckMaxTime.
    """
    half = prepare("u")
    producer = Producer()
    for _ in range(4):
        check(store, clock, producer)
    assert [message.properties[CHECK_TIMES] for message in producer.asked] == ["1", "2", "3"]
    (given_up,) = messages(store, DISCARD_TOPIC)
    assert given_up.properties == {**half.properties, CHECK_TIMES: "3"}
    assert (given_up.queue_id, given_up.flag, given_up.born_time_ms) == (0, 7, half.born_time_ms)
    entry = json.loads((root / "config" / "topics.json").read_text())["topicConfigTable"][DISCARD_TOPIC]
    assert (entry["readQueueNums"], entry["writeQueueNums"], entry["perm"]) == (1, 1, 6)
    assert check(store, clock, producer).waiting == 0
    assert messages(store, DISCARD_TOPIC) == [given_up]


def test_a_half_older_than_the_files_live_is_given_up_unasked(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    """Java: needSkip."""
    prepare("at the limit", born_time_ms=START_MS - 72 * HOUR_MS + 10_000)
    prepare("over it", born_time_ms=START_MS - 72 * HOUR_MS + 9_999)
    producer = Producer()
    check(store, clock, producer)
    assert producer.bodies == ["at the limit"]
    assert bodies(store, DISCARD_TOPIC, 0) == ["over it"]


def test_a_half_without_room_for_another_count_is_given_up(store: MessageStore, clock: Clock, prepare: Prepare) -> None:
    """Java: putBackHalfMsgQueue fails, and the check tries it again until its minute is over, at every check."""
    config = replace(CONFIG, commit_log=replace(CONFIG.commit_log, mapped_file_size_commit_log=1 << 20))
    root = Path(store.root).parent / "roomy"
    with open_store(root, config=config, read_only=False, create=True, clock=clock) as roomy:
        message = InnerMessage(
            topic="T", queue_id=0, body=b"b", properties={"UNIQ_KEY": "K"}, born_time_ms=clock.now_ms
        )
        half = half_message(message, "P")
        size = sum(len(name) + len(value) + 2 for name, value in half.properties.items())
        roomy.put_inner([replace(half, properties={**half.properties, "pad": "x" * (32_767 - size - 5)})])
        report = check(roomy, clock, Producer())
        assert (report.discarded, report.waiting) == (1, 0)
        assert bodies(roomy, DISCARD_TOPIC, 0) == ["b"]


def test_an_answer_that_is_none_is_an_error_and_nothing_moves(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    prepare("a")
    with pytest.raises(ValueError, match="'yes'"):
        check(store, clock, Producer({"a": "yes"}))
    assert read_progress(store).half_offset == 0
    assert bodies(store) == []


def test_a_checker_may_answer_with_the_state_itself(store: MessageStore, clock: Clock, prepare: Prepare) -> None:
    prepare("a")
    clock.now_ms += 10_000
    check_half_messages(store, lambda _: TransactionState.COMMIT, clock.now_ms)
    assert bodies(store) == ["a"]


# Immunity


def test_an_immune_half_is_put_back_unasked_and_uncounted_and_remembers_the_first(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    """Java: checkPrepareQueueOffset, renewImmunityHalfMessageInner; Java counts a check each time (apache/rocketmq#8311)."""
    half = prepare("i", properties={IMMUNITY: "60"})
    producer = Producer()
    for _ in range(5):
        assert check(store, clock, producer).immune == 1
    assert producer.asked == []
    copies = messages(store, HALF_TOPIC)
    assert len(copies) == 6
    assert all(copy.properties == {**half.properties, FIRST_OFFSET: "0", "WAIT": "false"} for copy in copies[1:])


@pytest.mark.parametrize(("immunity", "asked_after_ms"), [("60", 60_000), ("1", 1_000), ("soon", 6_000)])
def test_an_immunity_replaces_the_timeout_and_ends_to_the_millisecond(
    store: MessageStore, clock: Clock, prepare: Prepare, immunity: str, asked_after_ms: int
) -> None:
    """Java: TransactionalMessageServiceImpl.getImmunityTime, which, unlike TransactionalMessageUtil's, may be below the time-out."""
    prepare("i", properties={IMMUNITY: immunity})
    producer = Producer({"i": "commit"})
    check(store, clock, producer, after_ms=asked_after_ms - 1)
    assert producer.asked == []
    check(store, clock, producer, after_ms=1)
    check(store, clock, producer, after_ms=1)  # the copy was stored in the millisecond in which the second check began
    assert bodies(store) == ["i"]


def test_an_immune_half_whose_first_is_ended_is_not_put_back_again(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    """Java: checkPrepareQueueOffset, which only sees op messages behind the op offset."""
    prepare("i", properties={IMMUNITY: "60"})
    check(store, clock, Producer())
    store.put_inner(op_messages(np.array([0]), 4_096, clock.now_ms))
    report = check(store, clock, Producer())
    assert (report.immune, report.found_ended, report.waiting) == (0, 1, 0)


# What the store knows is not asked


def test_a_half_whose_commit_record_stands_in_the_log_gets_its_op_message_and_no_second_commit(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    """Java: a broker that dies before TransactionalOpBatchService writes asks again, and commits again."""
    store.put_inner([commit_of(prepare("c"))])
    producer = Producer({"c": "commit"})
    report = check(store, clock, producer)
    assert producer.asked == []
    assert bodies(store) == ["c"]
    assert [op.body for op in messages(store, OP_TOPIC)] == [b"0,"]
    assert (report.found_ended, report.committed, report.waiting) == (1, 0, 0)


def test_a_late_commit_of_the_first_half_ends_the_one_that_was_put_back(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    """Java: the op message names the first half only, so the other is asked and committed again."""
    half = prepare("c")
    check(store, clock, Producer())
    store.put_inner([commit_of(half)])
    store.put_inner(op_messages(np.array([0]), 4_096, clock.now_ms))
    producer = Producer({"c": "commit"})
    check(store, clock, producer)
    assert producer.asked == []
    assert bodies(store) == ["c"]


def test_a_commit_that_stands_between_two_halves_is_found_from_the_second(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    """As a broker leaves it that committed late, kept the op message in memory, put the half back and died."""
    half = prepare("c")
    store.put_inner([commit_of(half)])
    copy = replace(InnerMessage.of(half), properties={**half.properties, CHECK_TIMES: "1"})
    store.put_inner([copy])
    (root := Path(store.root) / "config").mkdir(exist_ok=True)
    (root / "consumerOffset.json").write_text(
        '{"offsetTable":{"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:1},"RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:0}}}'
    )
    producer = Producer({"c": "commit"})
    check(store, clock, producer)
    assert producer.asked == []
    assert bodies(store) == ["c"]


def test_a_late_rollback_of_the_first_half_ends_the_one_that_was_put_back(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    prepare("r")
    check(store, clock, Producer())
    store.put_inner(op_messages(np.array([0]), 4_096, clock.now_ms))
    producer = Producer({"r": "commit"})
    check(store, clock, producer)
    assert producer.asked == []
    assert bodies(store) == []


def test_the_same_key_in_another_topic_or_before_the_half_commits_nothing(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    earlier = prepare("c")
    store.put_inner([commit_of(earlier)])
    store.put_inner(op_messages(np.array([0]), 4_096, clock.now_ms))
    second = prepare("c")
    store.put_inner([replace(commit_of(second), topic="Other", prepared_transaction_offset=5)])
    check(store, clock, Producer({"c": "commit"}))
    assert bodies(store) == ["c", "c"]


# Progress


def test_op_messages_are_done_with_when_all_their_halves_are(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    """Java: calculateOpOffset."""
    for body in "abc":
        prepare(body)
    prepare("young", born_time_ms=START_MS + 9_000)
    prepare("ended behind it")
    ops = op_messages(np.array([0]), 4_096, START_MS)[0]
    store.put_inner([replace(ops, body=body) for body in (b"0,1,", b"2,4,", b"1,")])
    report = check(store, clock, Producer())
    assert (report.half_offset, report.op_offset) == (3, 1)
    report = check(store, clock, Producer())
    assert (report.half_offset, report.op_offset) == (5, 3)


def test_an_op_offset_that_ran_ahead_of_its_half_is_no_loss(
    store: MessageStore, clock: Clock, prepare: Prepare, root: Path
) -> None:
    prepare("r")
    store.put_inner(op_messages(np.array([0]), 4_096, START_MS))
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:1},"T@G":{0:5}}}'
    )
    producer = Producer({"r": "commit"})
    report = check(store, clock, producer)
    assert producer.asked == []
    assert (report.half_offset, report.op_offset) == (1, 1)
    table = json.loads((root / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert table["T@G"] == {"0": 5}


def test_an_offset_behind_the_queues_end_goes_back_to_it(store: MessageStore, clock: Clock, root: Path) -> None:
    """Java: OFFSET_OVERFLOW_BADLY moves the check to the end that there is: a store that lost its tail."""
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:9}}}'
    )
    assert read_progress(store) == (0, 0)
    check(store, clock, Producer())
    table = json.loads((root / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert table == {"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 0}}


def test_a_store_without_transactions_is_left_alone(store: MessageStore, clock: Clock, root: Path) -> None:
    before = sorted(root.rglob("*"))
    assert (
        check(store, clock, Producer()).lines()[1]
        == "half offset 0, op offset 0, 0 half messages behind it, ended ones among them"
    )
    assert sorted(root.rglob("*")) == before


def test_the_report_says_that_it_stopped_at_a_young_half(store: MessageStore, clock: Clock, prepare: Prepare) -> None:
    """TransactionalMessageServiceImpl.check: the first half that is younger than transactionTimeOut ends it."""
    told = "stopped at the first half message that is younger than transactionTimeOut"
    prepare("c")
    assert told not in "".join(check(store, clock, Producer({"c": "commit"})).lines())
    prepare("y", born_time_ms=clock.now_ms + HOUR_MS - 1)
    clock.now_ms += HOUR_MS
    assert told in check_half_messages(store, Producer(), clock.now_ms).lines()[-1]


def test_progress_that_cannot_be_read_is_not_begun_anew(
    store: MessageStore, clock: Clock, prepare: Prepare, root: Path
) -> None:
    """Departure: a broker begins with an empty table, and all groups' progress is gone with its next write."""
    prepare("a")
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text("{")
    with pytest.raises(StateFileError):
        check(store, clock, Producer())


def test_two_checks_with_nothing_new_write_nothing(
    store: MessageStore, clock: Clock, prepare: Prepare, root: Path
) -> None:
    prepare("c")
    check(store, clock, Producer({"c": "commit"}))
    check(store, clock, Producer())
    before = (root / "config" / "consumerOffset.json").read_bytes(), store.log_end
    check(store, clock, Producer())
    assert ((root / "config" / "consumerOffset.json").read_bytes(), store.log_end) == before


def test_counts_go_down_for_what_is_ended_or_given_up(
    store: MessageStore, clock: Clock, prepare: Prepare, root: Path
) -> None:
    """Java: TransactionMetrics.addAndGet, in EndTransactionProcessor and resolveDiscardMsg."""
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / METRICS_FILE).write_text('{"transactionCount":{"TopicTx":{"count":5,"timeStamp":1}}}')
    for body in "cru":
        prepare(body)
    check(store, clock, Producer({"c": "commit", "r": "rollback"}))
    counts = store.state(METRICS_FILE, TransactionCounts.load)
    assert counts is not None
    assert counts.counts == {"TopicTx": 3}
    assert counts.version.counter == 1


def test_a_half_that_does_not_say_where_it_belongs_is_never_asked_about_and_counts_nowhere(
    store: MessageStore, clock: Clock, prepare: Prepare, root: Path
) -> None:
    """Java: DefaultTransactionalMessageCheckListener.resolveDiscardMsg; TransactionMetrics.addAndGet(null) fails behind the put."""
    half = prepare("h")
    lost = {name: value for name, value in half.properties.items() if name != "REAL_TOPIC"}
    store.put_inner([replace(InnerMessage.of(half), properties={**lost, "UNIQ_KEY": "KEY-lost"}, body=b"lost")])
    producer = Producer({"h": "commit"})
    for _ in range(4):
        check(store, clock, producer)
    assert (producer.bodies, bodies(store, DISCARD_TOPIC, 0)) == (["h"], ["lost"])
    counts = store.state(METRICS_FILE, TransactionCounts.load)
    assert counts is not None
    assert counts.counts == {"TopicTx": -1}


# Discarded halves put back


def give_up(store: MessageStore, clock: Clock) -> None:
    for _ in range(4):
        check(store, clock, Producer())


def test_redrive_puts_discarded_halves_back_once_with_their_checks_from_0(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    """Java: AdminBrokerProcessor.resumeCheckHalfMessage, which does it as often as it is told."""
    half = prepare("u")
    give_up(store, clock)
    assert redrive(store, clock.now_ms).put_back == 1
    assert redrive(store, clock.now_ms).back_before == 1
    resumed = messages(store, HALF_TOPIC)[-1]
    assert resumed.properties == {**half.properties, CHECK_TIMES: "0"}
    assert resumed.flag == 7
    producer = Producer({"u": "commit"})
    check(store, clock, producer)
    assert bodies(store) == ["u"]
    assert producer.asked[0].properties[CHECK_TIMES] == "1"


def test_redrive_may_be_repeated_after_the_half_was_given_up_again(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    prepare("u")
    give_up(store, clock)
    redrive(store, clock.now_ms)
    give_up(store, clock)
    assert len(messages(store, DISCARD_TOPIC)) == 2
    report = redrive(store, clock.now_ms)
    assert (report.put_back, report.back_before) == (1, 1)


def test_redrive_leaves_what_was_ended_meanwhile_what_is_too_old_and_other_topics(
    store: MessageStore, clock: Clock, prepare: Prepare
) -> None:
    half = prepare("committed late")
    prepare("u")
    give_up(store, clock)
    store.put_inner([commit_of(half)])
    assert redrive(store, clock.now_ms, topics=frozenset({"Other"})).put_back == 0
    late = redrive(store, clock.now_ms + 72 * HOUR_MS)
    assert (late.put_back, late.ended, late.too_old) == (0, 1, 1)
    report = redrive(store, clock.now_ms, topics=frozenset({"TopicTx"}))
    assert (report.put_back, report.ended) == (1, 1)
    assert messages(store, HALF_TOPIC)[-1].body == b"u"


def test_a_check_in_small_pieces_does_the_same(
    store: MessageStore, clock: Clock, prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_queue, "SLICE_ROWS", 1)
    monkeypatch.setattr(check_module, "PASS_HALVES", 4)
    monkeypatch.setattr(check_module, "_STRETCH_BYTES", 1_000)
    monkeypatch.setattr(check_module, "_STRETCH_HALVES", 2)
    names = [f"{kind}{number}" for number in range(5) for kind in ("commit", "rollback", "unknown")]
    first = prepare("first of all")
    for name in names:
        prepare(name)
    producer = Producer({name: name.rstrip("0123456789") for name in names})
    reports = [check(store, clock, producer)]
    store.put_inner([commit_of(first)])  # late: its half is a copy now, far behind it
    reports += [check(store, clock, producer) for _ in range(3)]
    assert [(r.committed, r.rolled_back, r.put_back, r.discarded, r.found_ended) for r in reports] == [
        (5, 5, 6, 0, 0),
        (0, 0, 5, 0, 1),
        (0, 0, 5, 0, 0),
        (0, 0, 0, 5, 0),
    ]
    assert sorted(bodies(store)) == [*(f"commit{number}" for number in range(5)), "first of all"]
    assert sorted(bodies(store, DISCARD_TOPIC, 0)) == [f"unknown{number}" for number in range(5)]
    assert reports[-1].waiting == 0
