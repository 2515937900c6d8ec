"""Ids in the form of MessageClientIDSetter (5.3.3): its own functions read back address, process and time."""

from __future__ import annotations

import threading
import time

import pytest

from spark_mq.client.outgoing_messages import UniqueIds, month_bounds
from tests.client.java_producer import java_says

NOW_MS = 1_700_000_000_123


def test_an_id_says_address_process_and_time() -> None:
    ids = UniqueIds("192.168.0.7", pid=0x1ABCD, salt=b"\x01\x02\x03\x04", clock=lambda: NOW_MS)
    start_ms, _ = month_bounds(NOW_MS)
    assert ids.make() == f"C0A80007ABCD01020304{NOW_MS - start_ms:08X}0000"
    assert ids.make().endswith("0001")


@pytest.mark.parametrize(("ip", "length"), [("::1", 56), ("fe80::1%eth0", 56), ("10.0.0.1", 32), ("a-host", 32)])
def test_its_length_is_that_of_its_address(ip: str, length: int) -> None:
    assert len(UniqueIds(ip).make()) == length


def test_the_months_bounds_are_midnights_of_first_days() -> None:
    start_ms, end_ms = month_bounds(NOW_MS)
    for bound_ms in (start_ms, end_ms):
        assert time.localtime(bound_ms // 1000)[2:6] == (1, 0, 0, 0)
    assert start_ms <= NOW_MS < end_ms
    assert month_bounds(end_ms)[0] == end_ms


def test_a_new_month_begins_at_0_and_a_clock_set_back_does_not_go_below() -> None:
    times = [month_bounds(NOW_MS)[1] - 1]
    ids = UniqueIds("10.0.0.1", clock=lambda: times[-1])
    ids.make()
    times.append(times[0] + 1)
    assert ids.make()[20:28] == "00000000"
    times.append(times[0] - 5)
    assert ids.make()[20:28] == "00000000"


def test_threads_get_different_ids() -> None:
    ids = UniqueIds("10.0.0.1", clock=lambda: NOW_MS)
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.extend(ids.make() for _ in range(2_000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8_000


def test_java_s_own_id_has_the_same_parts() -> None:
    (said,) = java_says("uniqueId")
    assert said["isNow"] is True
    made = UniqueIds(said["ip"], pid=said["own_pid"]).make()
    assert len(made) == len(said["id"])
    pid = slice(len(made) - 24, len(made) - 20)
    assert made[: pid.stop] == said["id"][: pid.stop]
    assert int(made[pid], 16) == said["pid"]
