"""Rows of a static topic go to the physical queues that a request for their logical queues goes to. Java: TopicQueueMappingManager.

`tests/interop/test_topic_decision.py` sends the same queues to the Apache broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_mq.conditions import SparkMqError
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from storage import MessageStore, open_store
from storage.batch.ledger import Batch
from storage.errors import RowIllegalError
from storage.format.arrays import string_hash
from storage.rules.response_codes import ResponseCode
from tests.broker.static_topic import HERE_LED, MAPPING, NOT_HERE, TOPIC, make_static_store, save_mapping
from tests.broker.topic_settings import conf_text
from tests.support.broker_handlers import Send, Sender

OPTIONS = {"topic": TOPIC}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "broker" / "store"
    root.parent.mkdir()
    (root.parent / "broker.conf").write_text(conf_text({}))
    make_static_store(root)
    return root


def stored(store: MessageStore, topic: str = TOPIC) -> dict[bytes, int]:
    """Of each body the physical queue."""
    found = {}
    for queue_id in store.queue_ids(topic):
        messages = store.get(topic, queue_id, 0, max_count=100).messages
        found |= {message.body: message.queue_id for message in messages}
    return found


def stage(root: Path, rows: list[dict[str, Any]], batch_id: int = 0) -> StagedRows:
    options = SinkOptions.parse({"path": str(root), **OPTIONS}, "streaming")
    columns = InputColumns(tuple(rows[0]), kafka=False)

    def frames() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(rows)

    return stage_rows(options, columns, Batch("sink", "query", batch_id), 0, 0, frames())


def commit(root: Path, staged: StagedRows, batch_id: int = 0) -> None:
    commit_rows(SinkOptions.parse({"path": str(root), **OPTIONS}, "streaming"), [staged], batch_id, mirrored=False)


def test_a_row_a_put_and_a_request_for_one_logical_queue_go_to_one_physical_queue(root: Path) -> None:
    rows = [{"body": f"row-{logical}".encode(), "queue_id": logical} for logical in HERE_LED]
    commit(root, stage(root, rows))
    with open_store(root, read_only=False) as store:
        handler = Sender(store)
        for logical, physical in HERE_LED.items():
            assert handler.send(Send(topic=TOPIC, body=f"request-{logical}".encode(), queue_id=logical)).code == 0
            assert store.put(TOPIC, f"put-{logical}".encode(), queue_id=logical).queue_id == physical
        found = stored(store)
    assert found == {
        f"{way}-{logical}".encode(): physical
        for way in ("row", "put", "request")
        for logical, physical in HERE_LED.items()
    }


@pytest.mark.parametrize(("logical", "reason"), NOT_HERE.items())
def test_a_logical_queue_that_is_not_led_here_is_refused_by_name(root: Path, logical: int, reason: str) -> None:
    """TopicQueueMappingManager.rewriteRequestForStaticTopic: NOT_LEADER_FOR_QUEUE."""
    with open_store(root, read_only=False) as store:
        response = Sender(store).send(Send(topic=TOPIC, body=b"x", queue_id=logical))
        assert response.code == ResponseCode.NOT_LEADER_FOR_QUEUE
        with pytest.raises(RowIllegalError, match=reason):
            store.put(TOPIC, b"x", queue_id=logical)
        assert store.log_end == 0
    with pytest.raises(SparkMqError, match=rf"\[SPARK_MQ_INVALID_ROW\].*column queue_id: {reason}"):
        stage(root, [{"body": b"x", "queue_id": logical}])


def test_rows_without_a_queue_go_to_the_logical_queues_that_are_led_here_in_turn_or_by_their_key(root: Path) -> None:
    led = list(HERE_LED.values())
    keys = [f"key-{number}" for number in range(20)]
    rows = [{"body": f"{n}".encode(), "sharding_key": None} for n in range(2 * len(led))]
    rows += [{"body": key.encode(), "sharding_key": key} for key in keys]
    commit(root, stage(root, rows))
    with open_store(root) as store:
        found = stored(store)
    turns = [found[str(n).encode()] for n in range(2 * len(led))]
    assert turns == led * 2
    assert [found[key.encode()] for key in keys] == [led[abs(string_hash(key)) % len(led)] for key in keys]


def test_delayed_rows_remember_the_physical_queue(root: Path) -> None:
    """Java rewrites the request before anything else, so REAL_QID is physical."""
    logical, physical = max(HERE_LED.items())
    with open_store(root, read_only=False) as store:
        row = pa.RecordBatch.from_pylist([{"topic": TOPIC, "body": b"x", "queue_id": logical, "delay_level": 3}])
        (place,) = store.put_batch(row).to_pylist()
        message = store.message_by_commitlog_offset(place["commitlog_offset"])
    assert (message.topic, message.properties["REAL_QID"]) == ("SCHEDULE_TOPIC_XXXX", str(physical))


def test_rows_that_were_staged_for_a_queue_that_has_moved_since_are_refused_at_the_commit(root: Path) -> None:
    logical, _ = max(HERE_LED.items())
    staged = stage(root, [{"body": b"x", "queue_id": logical}])
    moved = {queue: items for queue, items in MAPPING.hosted_queues.items() if queue != logical}
    save_mapping(root, moved)
    with pytest.raises(SparkMqError, match=r"\[SPARK_MQ_TOPIC_CHANGED\].*no logical queue that is led here"):
        commit(root, staged)
    with open_store(root) as store:
        assert store.log_end == 0


def test_a_static_topic_of_which_nothing_is_led_here_takes_no_row(root: Path) -> None:
    save_mapping(root, {queue: MAPPING.hosted_queues[queue] for queue in NOT_HERE if queue in MAPPING.hosted_queues})
    with (
        open_store(root, read_only=False) as store,
        pytest.raises(RowIllegalError, match="leads no queue of static topic"),
    ):
        store.put(TOPIC, b"x")
