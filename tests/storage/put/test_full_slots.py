"""TimerMessageStore.isReject for rows: times for which the wheel holds twice timerCongestNumEachSlot take none."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from storage import open_store
from storage.errors import RowIllegalError
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import SLOT, WHEEL_SLOTS
from storage.put.settings import full_slots
from storage.rules.response_codes import ResponseCode
from storage.settings.load import parse_config
from storage.settings.nouns import TimerConfig
from tests.support.broker_handlers import Send, Sender

NOW_MS = 1_750_000_000_000
FULL_TICK, HALF_FULL_TICK, OLD_TICK = (NOW_MS // 1_000 + seconds for seconds in (60, 120, 180))


def write_wheel(root: Path) -> None:
    """A slot with 20 messages, one with 19, and one with many of a tick whose slot is another one."""
    with (root / "timerwheel").open("wb") as wheel:
        wheel.truncate(WHEEL_SLOTS * SLOT.itemsize)
        for tick, slot, count in (
            (FULL_TICK, FULL_TICK, 20),
            (HALF_FULL_TICK, HALF_FULL_TICK, 19),
            (OLD_TICK, OLD_TICK + 1, 99),
        ):
            wheel.seek(slot % WHEEL_SLOTS * SLOT.itemsize)
            wheel.write(
                b"".join(value.to_bytes(8, "big") for value in (tick, 0, 0)) + count.to_bytes(4, "big") + bytes(4)
            )


def test_times_are_full_by_the_slots_that_are_theirs(tmp_path: Path) -> None:
    write_wheel(tmp_path)
    found = full_slots(LocalFileSystem(), str(tmp_path), TimerConfig(timer_congest_num_each_slot=10))
    assert found is not None
    assert found.times_ms == (FULL_TICK * 1_000,)


@pytest.mark.parametrize("limit", [2**31 - 1, 11])
def test_without_a_limit_and_below_it_nothing_is_full(tmp_path: Path, limit: int) -> None:
    write_wheel(tmp_path)
    timer = TimerConfig(timer_congest_num_each_slot=limit)
    assert full_slots(LocalFileSystem(), str(tmp_path), timer) is None
    assert full_slots(LocalFileSystem(), str(tmp_path / "none"), timer) is None


def test_a_row_and_a_request_are_refused_for_a_time_that_is_full(tmp_path: Path) -> None:
    """WHEEL_TIMER_FLOW_CONTROL is SYSTEM_ERROR. What is for a second later is taken."""
    config = parse_config(
        b"timerCongestNumEachSlot=10\nmappedFileSizeCommitLog=65536\nmaxHashSlotNum=20\nmaxIndexNum=600\n"
    )
    open_store(tmp_path, config=config, read_only=False, create=True).close()
    write_wheel(tmp_path)
    with open_store(tmp_path, config=config, read_only=False, clock=lambda: NOW_MS) as store:
        handler = Sender(store, clock=lambda: NOW_MS)
        for seconds, is_taken in ((0, False), (1, True)):
            deliver_ms = (FULL_TICK + seconds) * 1_000 + 1  # its slot is the second before
            rows = pa.record_batch(
                {"topic": ["T"], "body": [b"x"], "deliver_at": pa.array([deliver_ms], pa.timestamp("ms", "UTC"))}
            )
            properties = {"TIMER_DELIVER_MS": str(deliver_ms)}
            code = handler.send(Send(topic="T", body=b"x", queue_id=0, born_time_ms=NOW_MS, properties=properties)).code
            if is_taken:
                assert (store.put_batch(rows).num_rows, code) == (1, ResponseCode.SUCCESS)
                continue
            assert code == ResponseCode.SYSTEM_ERROR
            with pytest.raises(RowIllegalError, match="too many messages have that deliver time") as refused:
                store.put_batch(rows)
            assert refused.value.column == "deliver_at"
