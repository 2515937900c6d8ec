"""One decision for topics: a request, a put, the sink's tasks and its commit are refused, or make a topic, by the store's settings.

`tests/interop/test_topic_decision.py` asks the Apache broker the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mq.conditions import SparkMqError
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from storage import open_store
from storage.batch.ledger import Batch
from storage.errors import RowIllegalError, StoreNotWritableError
from storage.rules.response_codes import ResponseCode
from storage.tables.document import TOPICS_FILE
from storage.tables.topics import TopicConfig, TopicTable
from tests.broker.topic_settings import CASES, TopicCase, conf_text
from tests.support.broker_handlers import Send, Sender

OPEN_CONF = conf_text({})


@pytest.fixture
def place(tmp_path: Path) -> Callable[[TopicCase], Path]:
    """A store whose topics are the case's, and which has no settings yet."""

    def made(case: TopicCase) -> Path:
        root = tmp_path / "broker" / "store"
        root.parent.mkdir()
        (root.parent / "broker.conf").write_text(OPEN_CONF)
        with open_store(root, read_only=False, create=True) as store:
            if case.entry is not None:
                store.save_topic(case.entry)
        return root

    return made


def configure(root: Path, settings: Mapping[str, str]) -> None:
    (root.parent / "broker.conf").write_text(conf_text(settings))


def entry_of(root: Path, topic: str) -> TopicConfig | None:
    path = root / "config" / TOPICS_FILE
    return TopicTable.load(path.read_text("utf-8")).topics.get(topic) if path.exists() else None


def end_of(root: Path) -> int:
    with open_store(root) as store:
        return store.log_end


def frames(topic: str) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([{"topic": topic, "body": b"row"}])


def staged(options: SinkOptions, topic: str) -> StagedRows:
    return stage_rows(
        options, InputColumns(("topic", "body"), kafka=False), Batch(f"sink-{topic}", "query", 0), 0, 0, frames(topic)
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_request_is_answered_as_the_settings_say(place: Callable[[TopicCase], Path], case: TopicCase) -> None:
    root = place(case)
    configure(root, case.settings)
    with open_store(root, read_only=False) as store:
        response = Sender(store).send(Send(topic=case.topic, body=b"row"))
    assert (response.code, response.remark) == (case.code, case.remark)
    assert entry_of(root, case.topic) == (case.entry or case.made_by_request)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_put_is_refused_or_stored_as_the_settings_say(place: Callable[[TopicCase], Path], case: TopicCase) -> None:
    root = place(case)
    configure(root, case.settings)
    with open_store(root, read_only=False) as store:
        if case.row_refusal is None:
            store.put(case.topic, b"row")
        else:
            kind = StoreNotWritableError if case.is_closed else RowIllegalError
            with pytest.raises(kind, match=case.row_refusal):
                store.put(case.topic, b"row")
            assert store.log_end == 0
    assert entry_of(root, case.topic) == (case.entry or case.made_by_row)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_sinks_task_refuses_what_a_request_would_be_refused_for(
    place: Callable[[TopicCase], Path], case: TopicCase
) -> None:
    root = place(case)
    configure(root, case.settings)
    options = SinkOptions.parse({"path": str(root)}, "streaming")
    if case.row_refusal is not None:
        condition = "SPARK_MQ_STORE_NOT_WRITABLE" if case.is_closed else "SPARK_MQ_INVALID_ROW"
        with pytest.raises(SparkMqError, match=rf"(?s)\[{condition}\].*{case.row_refusal}"):
            staged(options, case.topic)
        return
    commit_rows(options, [staged(options, case.topic)], 0, mirrored=False)
    assert entry_of(root, case.topic) == (case.entry or case.made_by_row)


@pytest.mark.parametrize("case", [case for case in CASES if case.row_refusal and case.settings], ids=str)
def test_a_commit_judges_again_by_the_settings_of_its_time(place: Callable[[TopicCase], Path], case: TopicCase) -> None:
    """The rows were staged while the settings allowed them."""
    root = place(case)
    options = SinkOptions.parse({"path": str(root)}, "streaming")
    rows = staged(options, case.topic)
    configure(root, case.settings)
    condition = "SPARK_MQ_STORE_NOT_WRITABLE" if case.is_closed else "SPARK_MQ_TOPIC_CHANGED"
    with pytest.raises(SparkMqError, match=rf"(?s)\[{condition}\].*{case.row_refusal}"):
        commit_rows(options, [rows], 0, mirrored=False)
    assert end_of(root) == 0
    assert entry_of(root, case.topic) == case.entry


def test_an_option_that_the_user_named_comes_before_the_stores_setting(place: Callable[[TopicCase], Path]) -> None:
    root = place(TopicCase("", {}, "T"))
    configure(root, {"autoCreateTopicEnable": "false", "defaultTopicQueueNums": "3"})
    for topic, given, count in (
        ("Asked", {"createTopic": "true"}, 3),
        ("Counted", {"createTopic": "true", "queueNum": "12"}, 12),
    ):
        options = SinkOptions.parse({"path": str(root), "sinkId": topic, **given}, "streaming")
        commit_rows(options, [staged(options, topic)], 0, mirrored=False)
        assert entry_of(root, topic) == TopicConfig(topic, count, count)
    with open_store(root, read_only=False) as store:
        store.put("Put", b"row", create_topic=True, queue_count=2)
    assert entry_of(root, "Put") == TopicConfig("Put", 2, 2)


def test_a_topic_that_rows_make_is_its_templates_copy(place: Callable[[TopicCase], Path]) -> None:
    """TopicConfigManager.createTopicInSendMessageMethod: permission without inheritance, filter type."""
    root = place(TopicCase("", {}, "TBW102", TopicConfig("TBW102", 5, 6, 3, "MULTI_TAG")))
    with open_store(root, read_only=False) as store:
        store.put("Model", b"row", tags="a || b")
    assert entry_of(root, "Model") == TopicConfig("Model", 6, 6, 2, "MULTI_TAG")


def test_the_start_gate_stays_shut_for_requests_and_rows_until_its_moment(place: Callable[[TopicCase], Path]) -> None:
    """SendMessageProcessor.preSend: the moment itself is not before it."""
    root = place(TopicCase("", {}, "T"))
    configure(root, {"startAcceptSendRequestTimeStamp": "1700000000007"})
    now = [1_700_000_000_006]
    with open_store(root, read_only=False, clock=lambda: now[0]) as store:
        handler = Sender(store, clock=lambda: now[0])
        assert handler.send(Send(topic="T", body=b"row")).code == ResponseCode.SYSTEM_ERROR
        with pytest.raises(StoreNotWritableError):
            store.put("T", b"row")
        now[0] += 1
        assert handler.send(Send(topic="T", body=b"row")).code == ResponseCode.SUCCESS
        store.put("T", b"row")
