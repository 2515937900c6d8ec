"""Rows with a delay level, a deliver time or a retry group, exactly once on a broker of ours: whatever dies when, each is put once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_mq.conditions import InvalidRowError, SentRowsLostError
from spark_mq.remoting import MessageQueue
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.exact_writer import stage_for_brokers
from spark_mq.sink.live_options import LiveSinkOptions
from spark_mq.sink.parking_places import MOST_LEVEL, is_place, places_of, rows_stored_or_waiting
from spark_mq.sink.send_plan import ROW, UNKNOWN_FILE, PlannedBatch, QueuePlan
from spark_mq.sink.staged_rows import StagedBatch
from storage.batch.ledger import Batch
from tests.broker_server.own_cluster import OwnCluster, own_cluster
from tests.support.rows_that_wait import write_through_deaths

QUEUE = MessageQueue("T", "a", 0)


def plan_of(waits: list[bool]) -> QueuePlan:
    """Rows 0, 1, … of one staged file, each a batch."""
    return tuple(
        PlannedBatch(0, StagedBatch(QUEUE, rank, 1, 0, np.array([rank]), is_waiting))
        for rank, is_waiting in enumerate(waits)
    )


def rows_of(*ranks: int, file: int = 0) -> np.ndarray:
    return np.array([(file, rank) for rank in ranks], ROW)


PLAIN, WAITS = False, True


@pytest.mark.parametrize(
    ("waits", "own", "elsewhere", "stored"),
    [
        ([PLAIN, WAITS, PLAIN, WAITS], [], [], 0),
        ([PLAIN, WAITS, PLAIN, WAITS], [0], [], 1),
        ([PLAIN, WAITS, PLAIN, WAITS], [0], [1], 2),
        ([PLAIN, WAITS, PLAIN, WAITS], [0, 2], [1], 3),
        ([PLAIN, WAITS, PLAIN, WAITS], [0, 2, 1], [1, 3], 4),
        ([PLAIN, WAITS, PLAIN, WAITS], [0, 2, 1, 1, 3], [], 4),
        ([WAITS, WAITS], [], [0, 0, 1], 2),
        ([WAITS, WAITS], [], [0, 7], 1),
        ([WAITS, PLAIN], [], [0, 1], 1),
    ],
)
def test_a_row_that_waits_is_stored_where_it_is_found_anywhere_and_others_in_their_queue(
    waits: list[bool], own: list[int], elsewhere: list[int], stored: int
) -> None:
    """Copies come from delivery, from rolling, and from consumers that send back; a copy elsewhere proves nothing of other rows."""
    assert rows_stored_or_waiting(QUEUE, plan_of(waits), rows_of(*own), rows_of(*elsewhere)) == stored


@pytest.mark.parametrize(
    ("own", "elsewhere", "rule"),
    [
        ([], [1], "row 0 of the batch's 4 rows is not there"),
        ([0, 0], [1], "twice"),
        ([2], [1], "row 0"),
        ([0, 2], [], "row 1"),
    ],
)
def test_rows_that_are_no_beginning_stop_the_batch(own: list[int], elsewhere: list[int], rule: str) -> None:
    with pytest.raises(SentRowsLostError, match=rule):
        rows_stored_or_waiting(QUEUE, plan_of([PLAIN, WAITS, PLAIN, WAITS]), rows_of(*own), rows_of(*elsewhere))


def test_a_row_that_another_directory_has_staged_stops_the_batch_also_where_it_waits() -> None:
    with pytest.raises(SentRowsLostError, match="another staging directory"):
        rows_stored_or_waiting(QUEUE, plan_of([WAITS]), rows_of(), rows_of(0, file=UNKNOWN_FILE))


def test_the_places_are_those_of_the_brokers_that_rows_are_sent_to() -> None:
    retry = MessageQueue("%RETRY%g", "b", 3)
    places = places_of([QUEUE, QUEUE._replace(queue_id=1), retry])
    assert len(places) == 2 * (MOST_LEVEL + 1) + 1
    assert MessageQueue("%DLQ%g", "b", 0) in places
    assert MessageQueue("SCHEDULE_TOPIC_XXXX", "a", 17) in places
    assert MessageQueue("rmq_sys_wheel_timer", "b", 0) in places
    assert all(is_place(place) for place in places)
    assert not is_place(retry)
    assert not is_place(QUEUE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCluster]:
    with own_cluster(tmp_path_factory.mktemp("own"), timerWheelEnable="true") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("is_delivered", [False, True])
def test_each_row_that_waits_is_delivered_once_wherever_the_commit_dies(
    is_delivered: bool, cluster: OwnCluster, tmp_path: Path
) -> None:
    """Also where a row was delivered before it is looked for."""
    prefix = "Delivered" if is_delivered else "Waits"
    write_through_deaths(cluster.name_server, tmp_path, prefix, cluster.make_topic, is_delivered=is_delivered)


@pytest.mark.slow
def test_a_row_at_a_level_that_no_client_can_look_for_is_refused(cluster: OwnCluster, tmp_path: Path) -> None:
    options = LiveSinkOptions.parse(
        {"nameServer": cluster.name_server, "topic": "Levels", "stagingPath": str(tmp_path), "writeId": "w"}, "batch"
    )
    frame = pa.record_batch(
        {
            "body": [b"a", b"b", b"c"],
            "delay_level": pa.array([18, None, 19], pa.int32()),
            "retry_group": [None, "g", None],
        }
    )
    columns, batch = InputColumns(("body", "delay_level", "retry_group")), Batch("w", "w", 0)
    with pytest.raises(InvalidRowError, match=r"row 2, column delay_level: 19 is above 18"):
        stage_for_brokers(options, columns, batch, 0, 0, iter([frame]))
