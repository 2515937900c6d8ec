"""Rows with a delay level, a deliver time or a retry group, exactly once on a broker of ours: whatever dies when, each is put once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_mq.conditions import InvalidRowError, SentRowsLostError
from spark_mq.remoting import MessageQueue
from spark_mq.sink import live_sink
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.options import LiveSinkOptions
from spark_mq.sink.send_plan import (
    MOST_LEVEL,
    ROW,
    UNKNOWN_FILE,
    PlannedBatch,
    QueuePlan,
    is_place,
    places_of,
    rows_stored_or_waiting,
)
from spark_mq.sink.staged_rows import StagedBatch, StagedReader, StagedWriter
from storage.batch.ledger import Batch
from storage.files.local_file_system import LocalFileSystem
from tests.broker_server.own_cluster import OwnCluster, own_cluster
from tests.support.fake_broker import FakeBroker, RoutesTo
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


def test_a_row_at_a_level_that_no_client_can_look_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_sink, "live_routes", lambda options: nullcontext(RoutesTo(FakeBroker([]))))
    given = {"nameServer": "unused:1", "topic": "T", "stagingPath": str(tmp_path), "writeId": "w"}
    options, batch = LiveSinkOptions.parse(given, "batch"), Batch("w", "w", 0)

    def stage(levels: list[int | None], times: list[int]) -> int:
        frame = pa.record_batch(
            {
                "body": [b"a", b"b", b"c"],
                "delay_level": pa.array(levels, pa.int32()),
                "retry_group": [None, "g", None],
                "reconsume_times": pa.array(times, pa.int32()),
            }
        )
        staged = live_sink.stage_for_brokers(
            options, InputColumns(tuple(frame.schema.names)), batch, 0, 0, iter([frame])
        )
        assert staged.file is not None
        return staged.file.rows

    assert stage([18, None, None], [0, 15, 0]) == 3
    with pytest.raises(InvalidRowError, match=r"row 2, column delay_level: 19 is above 18"):
        stage([18, None, 19], [0, 0, 0])
    with pytest.raises(InvalidRowError, match=r"row 1, column delay_level: 19 is above 18"):
        stage([18, None, None], [0, 16, 0])
    assert stage([18, 18, None], [0, 16, 0]) == 3


def test_staged_rows_that_wait_are_known_when_they_are_read(tmp_path: Path) -> None:
    """And files without such rows are what they were for earlier versions."""
    for number, waits in enumerate(([False, True, False], [False, False, False])):
        writer = StagedWriter(LocalFileSystem(), str(tmp_path), f"0-{number}-00000000-x.rows")
        for rank, is_waiting in enumerate(waits):
            writer.append(QUEUE, b"body", 0, np.array([rank]), waits=is_waiting)
        staged = writer.finish()
        assert staged is not None
        reader = StagedReader(LocalFileSystem(), str(tmp_path), staged)
        assert [batch.waits for batch in reader.batches] == waits
        content = (tmp_path / staged.name).read_bytes()
        assert (b"[0, 4, 1, 0, 1]" in content) == any(waits)
        assert (b"[0, 4, 1, 0]" in content) != any(waits)
