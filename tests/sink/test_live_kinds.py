"""Rows of other kinds on their way to running brokers, at least once: tried again, sent back, transactions, put aside."""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from spark_mq.client.errors import ResponseError
from spark_mq.conditions import InvalidRowError, NotConfirmedError, WriteFailedError
from spark_mq.remoting import RemotingCommand, RequestCode, make_response
from spark_mq.sink.columns import InputColumns, columns_to_send
from spark_mq.sink.direct_writer import SentRows, send_over
from spark_mq.sink.live_sink import LiveSink
from spark_mq.sink.options import LiveSinkOptions
from spark_mq.sink.writers import BatchWriter
from storage.batch.ledger import Batch
from storage.format.record import encode_offset_message_id
from storage.format.typed_json import SubscriptionGroupConfig
from tests.support.fake_broker import BROKER, FakeBroker, RoutesTo, TakingBroker

BATCH = Batch("sink", "query", 7)
COMMIT, ROLLBACK = 8, 12


def options(**given: str) -> LiveSinkOptions:
    named = {"nameServer": "unused:1", "guarantee": "atLeastOnce"}
    return LiveSinkOptions.parse({**named, **({} if "sendBack" in given else {"topic": "T"}), **given}, "batch")


def send(
    broker: FakeBroker,
    given: LiveSinkOptions,
    *frames: dict[str, Any],
    columns: tuple[str, ...] | None = None,
    routes: RoutesTo | None = None,
) -> SentRows:
    """The frames as one task's."""
    taken = InputColumns(tuple(frames[0]) if columns is None else columns)
    batches = (pa.record_batch(frame) for frame in frames)
    return send_over(routes or RoutesTo(broker), given, taken, 3, bytes(8), batches, BATCH, attempt=11)


# Tried again


def test_a_row_for_a_retry_topic_says_in_the_requests_header_how_often_it_failed() -> None:
    frame = {
        "body": [b"a", b"b", b"c", b"d"],
        "retry_group": ["g", None, "g", "g"],
        "reconsume_times": pa.array([2, 9, 40, None], pa.int32()),
        "origin_msg_id": ["7F", None, None, None],
        "delay_level": pa.array([None, None, 1, None], pa.int32()),
    }
    with TakingBroker() as broker:
        assert send(broker, options(maxReconsumeTimes="5"), frame) == SentRows(4, {0: 4})
        assert broker.bodies("T") == [b"b"]
        found = {taken.body: taken for queue in broker.stored.values() for taken in queue}
        assert len(broker.bodies("%RETRY%g")) == 3, "also the third: the broker decides what is dead"
    assert [found[body].reconsume_times for body in (b"a", b"b", b"c", b"d")] == [2, 0, 40, 0]
    assert [found[body].max_reconsume_times for body in (b"a", b"b", b"c", b"d")] == [5, None, 5, 5]
    assert [found[body].properties.get("DELAY") for body in (b"a", b"b", b"c", b"d")] == ["5", None, "1", "3"]
    assert found[b"a"].properties["RETRY_TOPIC"] == "T"
    assert found[b"a"].properties["ORIGIN_MESSAGE_ID"] == "7F"
    for taken in found.values():
        assert not {"RECONSUME_TIME", "MAX_RECONSUME_TIMES"} & set(taken.properties)


def test_retries_go_to_the_groups_topic_in_the_namespace() -> None:
    with TakingBroker() as broker:
        send(broker, options(namespace="ns"), {"body": [b"a"], "retry_group": ["g"]})
        assert broker.bodies("%RETRY%ns%g") == [b"a"]
        (queue,) = broker.stored.values()
        assert queue[0].properties["RETRY_TOPIC"] == "ns%T"


def test_a_row_of_an_illegal_group_is_invalid() -> None:
    with TakingBroker() as broker, pytest.raises(InvalidRowError, match="retry_group") as refused:
        send(broker, options(), {"body": [b"a"], "retry_group": ["no group!"]})
    assert "none of its rows" in str(refused.value)
    assert "stay" not in str(refused.value)


def test_rows_that_were_sent_before_an_invalid_one_are_said_to_stay() -> None:
    with TakingBroker() as broker, pytest.raises(InvalidRowError) as refused:
        send(broker, options(batchBytes="64b"), {"body": [bytes(100)]}, {"body": pa.array([None], pa.binary())})
    assert "Rows that this task sent before stay at their brokers" in str(refused.value)


# Transactions


def transactions(count: int, states: list[str | None]) -> dict[str, Any]:
    return {
        "body": [b"%d" % number for number in range(count)],
        "queue_id": pa.array([number % 2 for number in range(count)], pa.int32()),
        "transaction_state": [states[number % len(states)] for number in range(count)],
        "producer_group": ["own" if number % 5 == 0 else "shop" for number in range(count)],
    }


def test_halves_are_ended_as_their_rows_say_when_all_of_the_task_are_stored() -> None:
    given = options(transactional="true")
    with TakingBroker() as broker:
        sent = send(broker, given, transactions(40, ["commit", "rollback", "unknown", None]))
        assert sent == SentRows(40, {0: 40})
        codes = [request.code for request in broker.requests]
        assert codes == [RequestCode.SEND_MESSAGE_V2] * 40 + [RequestCode.END_TRANSACTION] * 30
        by_queue = {queue: [int(taken.body) for taken in held] for (_, queue), held in broker.stored.items()}
        assert by_queue == {
            0: [number for number in range(0, 40, 2) if number % 4 == 0],
            1: [number for number in range(1, 40, 2) if number % 4 == 3],
        }, "committed rows keep their order in each queue"
        ended = {end.message_id: end.commit_or_rollback for end in broker.ends}
        for _, half in broker.halves.values():
            expected = {0: COMMIT, 1: ROLLBACK, 2: None, 3: COMMIT}[int(half.body) % 4]
            assert ended.get(half.properties["UNIQ_KEY"]) == expected
            assert half.properties["PGROUP"] == ("own" if int(half.body) % 5 == 0 else "shop")
            assert not {"REAL_TOPIC", "REAL_QID"} & set(half.properties), "that the broker adds"


def test_a_task_that_fails_rolls_its_halves_back() -> None:
    given = options(transactional="true", producerGroup="shop")
    columns = InputColumns(("body", "queue_id", "transaction_state", "producer_group"))
    with TakingBroker() as broker:

        def frames() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch(transactions(10, ["commit"]))
            while not broker.halves:
                time.sleep(0.01)
            raise RuntimeError("the executor is told to stop")

        with pytest.raises(RuntimeError, match="told to stop"):
            send_over(RoutesTo(broker), given, columns, 3, bytes(8), frames(), BATCH)
        assert broker.bodies("T") == []
        halves = {taken.properties["UNIQ_KEY"] for _, taken in broker.halves.values()}
        ended = {end.message_id: end.commit_or_rollback for end in broker.ends}
        assert ended == dict.fromkeys(halves, ROLLBACK), "also those that were on their way"


def test_a_half_that_is_not_safe_is_rolled_back() -> None:
    with TakingBroker() as broker:
        broker.status = 10
        with pytest.raises(NotConfirmedError):
            send(broker, options(transactional="true", producerGroup="shop"), transactions(1, ["commit"]))
        assert [end.commit_or_rollback for end in broker.ends] == [ROLLBACK]
        assert broker.bodies("T") == []


def test_an_end_whose_answer_is_lost_is_sent_again() -> None:
    def lost(broker: FakeBroker, request: RemotingCommand) -> None:
        broker.pull(request)

    with TakingBroker() as broker:
        broker.answers = [TakingBroker.pull, lost]
        send(broker, options(transactional="true", producerGroup="shop"), transactions(1, ["commit"]))
        assert len(broker.ends) == 2
        assert broker.bodies("T") == [b"0", b"0"], "at least once: a broker commits a half twice"


def test_the_log_says_how_many_halves_are_left_to_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    def refused(broker: FakeBroker, request: RemotingCommand) -> RemotingCommand:
        return make_response(request, 604, "too late")

    with TakingBroker() as broker, caplog.at_level(logging.WARNING, "spark_mq.sink"):
        broker.answers = [TakingBroker.pull, refused, refused]
        with pytest.raises(ResponseError) as failed:
            send(broker, options(transactional="true", producerGroup="shop"), transactions(1, ["commit"]))
    assert failed.value.code == 604
    assert "half messages that are not rolled back: 1; broker broker-a" in caplog.text


def test_a_row_without_a_producer_group_is_invalid_and_so_is_another_state() -> None:
    with TakingBroker() as broker:
        with pytest.raises(InvalidRowError, match="producerGroup is not given"):
            send(broker, options(transactional="true"), {"body": [b"a"]})
        frame = {"body": [b"a"], "transaction_state": ["committed"]}
        with pytest.raises(InvalidRowError, match="transaction_state: expected one of commit"):
            send(broker, options(transactional="true", producerGroup="g"), frame)
        assert broker.requests == []


def test_a_producer_group_is_the_brokers_with_the_namespace() -> None:
    with TakingBroker() as broker:
        frame = {"body": [b"a", b"b"], "producer_group": ["own", "shop"]}
        send(broker, options(transactional="true", namespace="ns"), frame)
        assert {end.producer_group for end in broker.ends} == {"ns%own", "ns%shop"}
        assert sorted(broker.bodies("ns%T")) == [b"a", b"b"]


def test_what_options_say_of_all_rows_comes_before_what_rows_say() -> None:
    with TakingBroker() as broker:
        frame = {"body": [b"a", b"b"], "topic": ["Other", None], "producer_group": ["own", None]}
        sent = send(broker, options(transactional="true", producerGroup="shop", namespace="ns"), frame)
        assert {end.producer_group for end in broker.ends} == {"ns%shop"}
        assert sorted(broker.bodies("ns%T")) == [b"a", b"b"]
    assert sent.overruled == {"topic": "Other", "producer_group": "ns%own"}


# Sent back


def message_id(place: int) -> str:
    return encode_offset_message_id(b"\x7f\0\0\1", 10911, place)


RETURNS = {"sendBack": "true", "consumerGroup": "g"}


def test_each_row_is_one_request_to_the_broker_that_holds_it() -> None:
    places = tuple(range(100, 300))
    frame = {
        "topic": ["Orders"] * 200,
        "msg_id": [message_id(place) for place in places],
        "broker_name": [BROKER if place % 2 else None for place in places],
        "delay_level": pa.array([place % 3 - 1 for place in places], pa.int32()),
    }
    with TakingBroker(places) as broker:
        sent = send(broker, options(**RETURNS, maxReconsumeTimes="3", namespace="ns"), frame)
        assert sent == SentRows(200, {0: 200})
        asked = {request.commitlog_offset: request for request in broker.sent_back}
    assert set(asked) == set(places)
    for place, request in asked.items():
        assert request.delay_level == place % 3 - 1
        assert (request.group, request.origin_topic, request.broker_name) == ("ns%g", "Orders", BROKER)
        assert (request.origin_message_id, request.max_reconsume_times) == (message_id(place), 3)


def test_a_message_that_the_broker_does_not_hold_any_more_is_an_invalid_row(tmp_path: Path) -> None:
    frame = {
        "topic": ["A", "A", None],
        "msg_id": [message_id(5), message_id(6), message_id(5)],
        "body": [b"x", b"y", b"z"],
    }
    with TakingBroker((5,)) as broker:
        with pytest.raises(InvalidRowError, match=r"row 1, column msg_id: .*broker-a does not hold the message"):
            send(broker, options(**RETURNS), {name: values[:2] for name, values in frame.items()})
        aside = options(**RETURNS, onInvalidRow="deadLetter", deadLetterPath=str(tmp_path))
        sent = send(broker, aside, frame)
        assert len(broker.sent_back) == 2
    assert (sent.row_count, sent.statuses) == (1, {0: 1})
    assert sent.dead_letters is not None
    rows = pq.read_table(sent.dead_letters.staged).to_pylist()
    assert [(row["body"], row["error_row"], row["error_column"]) for row in rows] == [
        (b"y", 1, "msg_id"),
        (b"z", 2, "topic"),
    ]


def test_rows_put_aside_that_a_full_disk_does_not_take_leave_no_file_and_hide_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = pq.ParquetWriter.close

    def full(writer: pq.ParquetWriter) -> None:
        close(writer)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def frames() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"topic": ["A"], "msg_id": ["7F0000010001"]})
        raise ValueError("the rows' source has failed")

    monkeypatch.setattr(pq.ParquetWriter, "close", full)  # which writes the file's end
    aside = options(**RETURNS, onInvalidRow="deadLetter", deadLetterPath=str(tmp_path))
    with TakingBroker() as broker, pytest.raises(ValueError, match="the rows' source has failed"):
        send_over(RoutesTo(broker), aside, InputColumns(("topic", "msg_id")), 3, bytes(8), frames(), BATCH, attempt=11)
    assert list(tmp_path.iterdir()) == []


def test_an_id_that_is_no_place_in_a_log_is_refused_before_anything_is_asked() -> None:
    with TakingBroker() as broker:
        with pytest.raises(InvalidRowError, match="is no offset message id"):
            send(broker, options(**RETURNS), {"topic": ["A"], "msg_id": ["7F0000010001"]})
        assert broker.requests == []


def test_a_group_that_the_broker_refuses_fails_the_task() -> None:
    def no_group(broker: FakeBroker, request: RemotingCommand) -> RemotingCommand:
        return make_response(request, 26, "subscription group not exist, g")

    with TakingBroker((5,)) as broker:
        broker.answers = [TakingBroker.pull, no_group]
        with pytest.raises(ResponseError, match="subscription group not exist"):
            send(broker, options(**RETURNS), {"topic": ["A"], "msg_id": [message_id(5)]})


@pytest.mark.parametrize("is_old", [False, True])
def test_rows_that_the_broker_would_forget_are_invalid_and_not_sent(is_old: bool, tmp_path: Path) -> None:
    frame = {
        "topic": ["A", "A"],
        "msg_id": [message_id(5), message_id(6)],
        "delay_level": pa.array([0, -1], pa.int32()),
    }
    rule = "broker broker-a: group g takes no retries (retryQueueNums 0): it would be lost"
    with TakingBroker((5, 6)) as broker:
        broker.is_old = is_old
        broker.groups["g"] = SubscriptionGroupConfig(group="g", retry_queue_count=0)
        with pytest.raises(InvalidRowError, match=re.escape(rule)):
            send(broker, options(**RETURNS), frame)
        aside = send(broker, options(**RETURNS, onInvalidRow="deadLetter", deadLetterPath=str(tmp_path)), frame, frame)
        codes = {request.code for request in broker.requests}
    assert RequestCode.CONSUMER_SEND_MSG_BACK not in codes
    assert (aside.row_count, aside.statuses) == (0, {})
    assert aside.dead_letters is not None
    rows = pq.read_table(aside.dead_letters.staged).to_pylist()
    assert [(row["error_row"], row["error_column"], row["error_rule"]) for row in rows] == [
        (row, "topic", rule) for row in range(4)
    ]


@pytest.mark.parametrize("is_old", [False, True])
def test_a_broker_is_asked_for_the_group_once_a_task(is_old: bool) -> None:
    frame = {"topic": ["A"] * 40, "msg_id": [message_id(5)] * 40}
    with TakingBroker((5,)) as broker:
        broker.is_old = is_old
        assert send(broker, options(**RETURNS), frame, frame) == SentRows(80, {0: 80})
        asked = [request.code for request in broker.requests if request.code != RequestCode.CONSUMER_SEND_MSG_BACK]
    one, all_ = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    assert asked == ([one, all_] if is_old else [one])


def test_rows_of_the_source_can_be_sent_back_as_they_are() -> None:
    schema = StructType().add("topic", StringType()).add("msg_id", StringType()).add("body", StringType())
    schema.add("broker_name", StringType()).add("reconsume_times", IntegerType()).add("tags", StringType())
    assert columns_to_send(schema, options(**RETURNS), mode="append").names == ("topic", "msg_id", "broker_name")


# Put aside


def test_invalid_rows_are_put_aside_and_appear_with_the_commit(tmp_path: Path) -> None:
    aside = options(onInvalidRow="deadLetter", deadLetterPath=str(tmp_path / "dead"))
    frame = {"body": [b"a", None, b"c"], "other": [1, 2, 3]}
    writer = BatchWriter(LiveSink(aside, InputColumns(("body",))))
    with TakingBroker() as broker:
        sent = send(broker, aside, frame, frame, columns=("body",))
        assert sorted(broker.bodies("T")) == [b"a", b"a", b"c", b"c"]
    assert list(tmp_path.glob("dead/[!.]*")) == [], "nobody sees them before the commit"
    writer.commit([sent, SentRows(0)])
    (found,) = tmp_path.glob("dead/[!.]*.parquet")
    rows = pq.read_table(found).to_pylist()
    assert [(row["other"], row["error_row"], row["error_rule"]) for row in rows] == [
        (2, 1, "it is null"),
        (2, 4, "it is null"),
    ]
    writer.commit([sent])  # once more: done already
    assert found.exists()
    found.unlink()
    with pytest.raises(WriteFailedError, match="deadLetterPath must be a directory that driver and workers share"):
        writer.commit([sent])


def test_what_a_failed_task_or_batch_has_put_aside_goes(tmp_path: Path) -> None:
    aside = options(onInvalidRow="deadLetter", deadLetterPath=str(tmp_path))
    with TakingBroker() as broker:
        sent = send(broker, aside, {"body": [b"a", None]})
        assert len(list(tmp_path.iterdir())) == 1
        LiveSink(aside, InputColumns(("body",))).abort([sent, None])
        assert list(tmp_path.iterdir()) == []
        broker.refused_topic = "T"
        with pytest.raises(ResponseError, match="illegal"):
            send(broker, aside, {"body": [b"a", None]})
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("status", "level"), [(0, "INFO"), (12, "WARNING")])
def test_the_log_says_what_each_batch_was_answered(status: int, level: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "spark_mq.sink"):
        BatchWriter(LiveSink(options(acks="stored"), InputColumns(("body",)))).commit(
            [SentRows(3, {status: 3}), SentRows(2, {0: 2})]
        )
    (record,) = caplog.records
    assert record.levelname == level
    assert "5 rows sent (SEND_OK " in record.getMessage()


def test_where_spark_keeps_its_workers_log_it_gets_what_a_batch_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root loggers of Python workers are at WARNING; PySpark's `capture_outputs` goes by this variable."""
    log = logging.getLogger("spark_mq.sink")
    writer = BatchWriter(LiveSink(options(), InputColumns(("body",))))
    try:
        writer.commit([SentRows(1, {0: 1})])
        assert log.level == logging.NOTSET
        monkeypatch.setenv("PYSPARK_SPARK_SESSION_UUID", "a")
        writer.commit([SentRows(1, {0: 1})])
        assert log.level == logging.INFO
        log.setLevel(logging.ERROR)
        writer.commit([SentRows(1, {0: 1})])
        assert log.level == logging.ERROR, "who has set it knows better"
    finally:
        log.setLevel(logging.NOTSET)
