"""What a task that stages rows for running brokers says of rows that it refuses."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mq.conditions import InvalidRowError
from spark_mq.sink import exact_writer
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.exact_writer import stage_for_brokers
from spark_mq.sink.live_options import LiveSinkOptions
from storage.batch.ledger import Batch
from tests.support.fake_broker import FakeBroker
from tests.support.taking_broker import RoutesTo


def test_a_refused_row_leaves_nothing_and_is_not_told_of_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_writer, "live_routes", lambda options: nullcontext(RoutesTo(FakeBroker([]))))
    named = {"nameServer": "unused:1", "guarantee": "exactlyOnce", "stagingPath": str(tmp_path), "writeId": "w"}
    options = LiveSinkOptions.parse({**named, "topic": "T"}, "batch")
    frame = pa.record_batch({"body": pa.array([b"a", None], pa.binary())})
    with pytest.raises(InvalidRowError, match="row 1, column body") as refused:
        stage_for_brokers(options, InputColumns(("body",)), Batch("sink", "query", 0), 0, 0, iter([frame]))
    assert "Nothing of the batch was sent" in str(refused.value)
    assert "deadLetterPath" not in str(refused.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
