"""A batch with deliver times that is repeated at another time: its content does not depend on the clock of its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import storage.batch.slices
from spark_mq.conditions import ConvertedError, InvalidRowError
from spark_mq.sink import partition_writer
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from storage import open_store
from storage.batch.ledger import Batch
from storage.delay.timer_store import deliver_timed
from storage.epoch_times import current_time_ms
from tests.crash.sink_store import SinkStore
from tests.crash.test_slices import promoted
from tests.support.dying import Killed, kill_at

pytestmark = [pytest.mark.crash, pytest.mark.slow]

COUNT, DAY_MS = 20, 86_400_000
LIMIT_MS = 3 * DAY_MS
"""timerMaxDelaySec, if nothing is set."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SinkStore]:
    monkeypatch.setattr(storage.batch.slices, "SLICE_BYTES", 1_500)
    made = SinkStore(SinkStore.make_place(tmp_path))
    yield made
    made.close()


def options_of(root: str, dead: Path | None = None) -> SinkOptions:
    invalid = {} if dead is None else {"onInvalidRow": "deadLetter", "deadLetterPath": str(dead)}
    return SinkOptions.parse({"path": root, "queueNum": "3", **invalid}, "streaming")


def stage(options: SinkOptions, deliver_ms: int, clock_ms: int) -> StagedRows:
    """Each fifth row has that deliver time."""
    time = datetime.fromtimestamp(deliver_ms / 1_000, UTC)
    times = pa.array([None if number % 5 else time for number in range(COUNT)], pa.timestamp("us", "UTC"))
    bodies = [f"b{number}" for number in range(COUNT)]
    rows = pa.record_batch({"topic": ["T"] * COUNT, "body": bodies, "deliver_at": times})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_writer, "current_time_ms", lambda: clock_ms)
        columns = InputColumns(("topic", "body", "deliver_at"))
        return stage_rows(options, columns, Batch("sink", "query", 3), 0, 0, iter([rows]))


def stop_amid(options: SinkOptions, staged: StagedRows) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, "after-slice", 2)
        with pytest.raises(Killed):
            commit_rows(options, [staged], 3, mirrored=True)


def test_a_batch_goes_on_after_its_deliver_time_and_is_then_delivered_at_once(store: SinkStore) -> None:
    began = current_time_ms()
    options = options_of(store.root)
    stop_amid(options, stage(options, began + 5_000, began))
    replica = promoted(store)
    options = options_of(replica.root)
    commit_rows(options, [stage(options, began + 5_000, began + DAY_MS)], 3, mirrored=True)
    with open_store(replica.root, read_only=False) as opened:
        assert opened.max_offset("rmq_sys_wheel_timer", 0) == COUNT / 5
        assert deliver_timed(opened, began + DAY_MS).delivered == COUNT / 5
        found = [m.body.decode() for q in opened.queue_ids("T") for m in opened.get("T", q, 0, 100).messages]
    assert sorted(found) == sorted(f"b{number}" for number in range(COUNT))


def test_a_row_that_was_too_far_ahead_and_is_not_now_makes_another_batch_which_is_refused(
    store: SinkStore, tmp_path: Path
) -> None:
    """At first it is among the dead letters. A batch written in part and repeated when the row may be taken is refused."""
    began = current_time_ms()
    options = options_of(store.root, tmp_path / "dead")
    stop_amid(options, stage(options, began + LIMIT_MS + 5_000, began))
    replica = promoted(store)
    options = options_of(replica.root, tmp_path / "dead")
    with pytest.raises(ConvertedError, match="SPARK_MQ_SLICE_MISMATCH"):
        commit_rows(options, [stage(options, began + LIMIT_MS + 5_000, began + DAY_MS)], 3, mirrored=True)
    with open_store(replica.root) as reader:
        assert reader.max_offset("rmq_sys_wheel_timer", 0) == 0


def test_a_time_for_which_the_timer_is_full_fails_the_write_and_makes_no_dead_letters(
    store: SinkStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = current_time_ms()
    options = options_of(store.root, tmp_path / "dead")
    full = [True]
    monkeypatch.setattr("storage.put.settings.full_slots", lambda *_: lambda times: times == (times if full else 0))
    with pytest.raises(InvalidRowError, match="too many messages have that deliver time"):
        stage(options, began + 5_000, began)
    full.clear()
    stop_amid(options, stage(options, began + 5_000, began))
