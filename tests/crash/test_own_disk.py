"""A broker on an ext4 of its own: its power fails, or somebody fills it.

Long runs are made by hand: `python -m tests.torture aborted-journal --rounds 100`.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from spark_mq.client.errors import ClientError
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from storage import open_store
from storage.failpoints import ENVIRONMENT
from tests.broker_server.own_cluster import own_cluster
from tests.broker_server.soak_clients import TOPIC
from tests.crash.aborted_journal import PLACE_DIGITS, Call, Rounds, Trace, calls, control, served_bodies
from tests.support.java_broker import wait_until
from tests.support.live_writer import TASKS, key
from tests.support.loop_disk import LoopDisk
from tests.support.places import PROJECT
from tests.support.served import served

pytestmark = pytest.mark.crash
MIB = 1 << 20


@pytest.fixture(scope="module")
def _own_disk() -> None:
    if (reason := LoopDisk.missing()) is not None:
        pytest.skip(reason)


@pytest.mark.long
@pytest.mark.usefixtures("_own_disk")
def test_each_answer_leaves_behind_the_sync_that_covers_it(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("the trace needs strace")
    tally = Rounds(tmp_path, 5, print).run(3)
    assert tally.is_flawless, tally.findings
    assert tally.figures["answers held against the trace"] > 100


@pytest.mark.long
@pytest.mark.usefixtures("_own_disk")
def test_the_control_writes_and_syncs(tmp_path: Path) -> None:
    """What it loses is the kernel's: fdatasync(2) returns 0 for a transaction of the journal that was aborted meanwhile."""
    assert control(tmp_path, 2, 1)["control: writes whose sync returned well"] > 10


@pytest.mark.long
@pytest.mark.usefixtures("_own_disk")
def test_of_a_disk_that_is_nearly_full_goes_what_the_log_says_and_nothing_else(tmp_path: Path) -> None:
    disk = LoopDisk(tmp_path / "loop", 128 * MIB)
    settings: dict[str, str | int] = {
        "storePathRootDir": str(disk.place / "store"),
        "flushDiskType": "SYNC_FLUSH",
        "mappedFileSizeCommitLog": MIB,
        "cleanResourceInterval": 500,
    }
    places, chance = dict[str, int](), random.Random(1)
    with disk, own_cluster(tmp_path, **settings) as cluster:
        cluster.make_topic(TOPIC, 4)
        with Producer(cluster.settings, "Filling", topics=(TOPIC,)) as producer:
            for number in range(200):
                sent = producer.send(Message(TOPIC, chance.randbytes(50_000), keys=str(number)))
                places[str(number)] = int(sent.offset_message_id[-PLACE_DIGITS:], 16)
        disk.fill(leave_bytes=12 * MIB)
        wait_until(lambda: "deleting" in cluster.output, "files are deleted")
        disk.fill(leave_bytes=0)
        cluster.kill()
        output = cluster.output
        there, torn = served_bodies(disk.place / "store")
    why = r"whatever their age, because the disk of the log is \d+ % full"
    told = re.findall(
        rf"WARNING storage\.retention: .* deleting \d+ log files, .* {why}.*; the log begins at (\d+) then", output
    )
    minimum = max(map(int, told))
    assert {key for key, place in places.items() if place >= minimum} == set(there)
    assert 0 < len(there) < len(places)
    assert torn == 0


@pytest.mark.long
@pytest.mark.usefixtures("_own_disk")
def test_batches_that_meet_a_full_disk_of_their_broker_are_there_once_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is decided, and a part of it sent, when its writer is killed and the disk is filled. The next writer comes while
    the disk is full, and is killed or goes on. Nobody touches the broker.
    """
    disk, batches, rows = LoopDisk(tmp_path / "loop", 192 * MIB), 2, 400
    settings: dict[str, str | int] = {
        "storePathRootDir": str(disk.place / "store"),
        "flushDiskType": "SYNC_FLUSH",
        "mappedFileSizeCommitLog": 4 * MIB,
        "mappedFileSizeConsumeQueue": 4_000,  # of 200 entries: queue and index files are made all the time
        "maxHashSlotNum": 2_000,
        "maxIndexNum": 1_500,
        "cleanFileForciblyEnable": "false",
    }

    def writer(batch_id: int) -> subprocess.Popen[bytes]:
        given = {"name_server": cluster.name_server, "staging": str(tmp_path / "staging"), "topic": TOPIC}
        said = json.dumps({**given, "batch_id": batch_id, "rows": rows, "options": {"batchBytes": "2k"}})
        return subprocess.Popen([sys.executable, "-m", "tests.support.live_writer", said], cwd=PROJECT)

    def is_refused() -> bool:
        with suppress(ClientError):
            producer.send(Message(TOPIC, b"no row"))
            return False
        return True

    with disk, own_cluster(tmp_path, **settings) as cluster:
        cluster.make_topic(TOPIC, 4)
        with Producer(cluster.settings, "Filling", topics=(TOPIC,)) as producer:
            for batch_id in range(batches):
                monkeypatch.setenv(ENVIRONMENT, f"live-amid-send:{10 + 5 * batch_id}")
                assert writer(batch_id).wait() < 0
                monkeypatch.delenv(ENVIRONMENT)
                ballast = disk.fill()
                wait_until(is_refused, "the disk is full for the broker")
                following = writer(batch_id)
                wait_until(is_refused, "it is full when the next writer comes")
                if batch_id % 2:
                    following.kill()
                ballast.unlink()
                if following.wait():
                    assert writer(batch_id).wait() == 0
        cluster.kill()
        with open_store(disk.place / "store") as store:
            messages = list(served(store, TOPIC))
    found = Counter(row for message in messages for row in message.keys)  # the refused ones have none
    assert found == Counter(key(*row) for row in product(range(batches), range(TASKS), range(rows)))


TRACE = """\
7 100.000001 ftruncate(5</s/commitlog/00000000000000000000>, 1048576) = 0 <0.000010>
7 100.100000 fsync(5</s/commitlog>) = 0 <0.001000>
7 100.200000 pwrite64(5</s/commitlog/00000000000000000000>, "\\0\\1"..., 100, 0) = 100 <0.000010>
8 100.300000 fdatasync(5</s/commitlog/00000000000000000000> <unfinished ...>
7 100.310000 pwrite64(5</s/commitlog/00000000000000000000>, "\\0\\1"..., 100, 100) = 100 <0.000010>
8 100.400000 <... fdatasync resumed>) = 0 <0.100000>
9 100.500000 sendto(6<socket:[1]>, "{\\"msgId\\":\\"0A000000000000000000,0A0000000000000064\\"}", 9, 0, NULL, 0) = 9 <0.1>
7 100.600000 fdatasync(5</s/commitlog/00000000000000000000>) = -1 EIO (Input/output error) <0.000001>
"""


def lines_of(text: str) -> Iterator[str]:
    yield from text.splitlines(keepends=True)


def test_a_trace_tells_which_answers_leave_before_their_syncs(tmp_path: Path) -> None:
    """A sync that began before the record was written does not cover it, and one that failed covers nothing."""
    found = list(calls(lines_of(TRACE)))
    assert found[3] == Call(
        "pwrite64", "/s/commitlog/00000000000000000000", ', "\\0\\1"..., 100, 100', 100.31, 100.31001, 100
    )
    assert [call.result for call in found] == [0, 0, 100, 100, 0, 9, -1]
    (path := tmp_path / "trace").write_text(TRACE, "latin-1")
    trace = Trace.read(path, "/s/commitlog")
    assert [trace.cover(place).is_promised for place in (0, 100)] == [True, False]
    path.write_text(TRACE.replace("fsync(5</s/commitlog>)", "fsync(5</s>)"), "latin-1")
    assert not Trace.read(path, "/s/commitlog").cover(0).is_promised, (
        "the file is new, and its directory was not synced"
    )
