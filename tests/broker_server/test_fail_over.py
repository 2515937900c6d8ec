"""A sink's batches over the loss of a master: the replica is promoted, the query goes on there, and each row is there once.

The master's machine is lost: nothing of its store is looked at again. The batch that was under way is staged anew, as Spark does.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from jobs.verify_store import verify_store
from spark_mq.conditions import SparkMqError
from spark_mq.sink.commit import commit_rows
from storage.ha.follower import open_following, promote
from tests.broker_server.test_killed_batches import BODY, POINTS, SYNC_ONLY, Broker
from tests.sink.test_sink_tasks import bodies, commit, options_of, stage, texts
from tests.support.java_broker import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.crash]

BATCH = [f"{name}{BODY}" for name in "cdefghi"]
QUICK = [("amid-slice:2", "ASYNC_FLUSH"), ("before-end", "SYNC_FLUSH")]
CASES = [
    *QUICK,
    *(
        pytest.param(point, flush, marks=pytest.mark.long)
        for flush in ("ASYNC_FLUSH", "SYNC_FLUSH")
        for point in POINTS
        if (flush == "SYNC_FLUSH" or point not in SYNC_ONLY) and (point, flush) not in QUICK
    ),
]


@pytest.mark.parametrize(("point", "flush"), CASES)
def test_each_row_is_there_once_after_the_master_is_lost(tmp_path: Path, point: str, flush: str) -> None:
    broker, replica = Broker(tmp_path, flush), tmp_path / "replica"
    conf = str(tmp_path / "own.conf")
    options = options_of(str(broker.root), conf=conf, inSyncReplicas="2", slaveTimeout="60s", lockTimeout="0")
    try:
        broker.start()
        with open_following(str(replica), f"127.0.0.1:{broker.port + 1}", config=conf, reconnect_ms=50) as following:
            commit(options, stage(options, bodies("a", "b")))
            assert following.service.log_end > 0, "an acknowledged batch is on the replica"
            broker.end()
            broker.start(point)
            rows = stage(options, bodies(*BATCH), batch_id=1)

            def write() -> None:
                with suppress(SparkMqError):  # the broker is lost, and where none runs no replica can be asked
                    commit_rows(options, [rows], 1, mirrored=True)

            writing = threading.Thread(target=write)
            writing.start()
            broker.wait_for_death()
            writing.join()
    finally:
        broker.kill()
    assert promote(str(replica), config=conf)
    there = options_of(str(replica), conf=conf)
    commit(there, stage(there, bodies(*BATCH), batch_id=1, attempt=1), batch_id=1)
    commit(there, stage(there, bodies("j"), batch_id=2), batch_id=2)
    assert [text[:1] for text in texts(str(replica))] == list("abcdefghij")
    report = verify_store(str(replica), conf=conf)
    assert report.findings == (), report.findings


def test_what_was_acknowledged_is_on_the_replica_however_the_master_goes(tmp_path: Path) -> None:
    broker, replica = Broker(tmp_path, "ASYNC_FLUSH"), tmp_path / "replica"
    conf = str(tmp_path / "own.conf")
    options = options_of(str(broker.root), conf=conf, inSyncReplicas="2", slaveTimeout="60s")
    done = 0
    try:
        broker.start()
        with open_following(str(replica), f"127.0.0.1:{broker.port + 1}", config=conf, reconnect_ms=50):
            for batch_id in range(8):
                commit(options, stage(options, bodies(f"{batch_id}"), batch_id=batch_id), batch_id=batch_id)
                done += 1
            broker.kill()
    finally:
        broker.kill()
    assert promote(str(replica), config=conf)
    assert texts(str(replica)) == [str(batch_id) for batch_id in range(done)]


def test_a_replica_that_goes_amid_a_batch_leaves_it_undone_until_it_is_back(tmp_path: Path) -> None:
    broker, replica = Broker(tmp_path, "ASYNC_FLUSH"), tmp_path / "replica"
    conf, address = str(tmp_path / "own.conf"), f"127.0.0.1:{broker.port + 1}"
    options = options_of(str(broker.root), conf=conf, inSyncReplicas="2", slaveTimeout="1s")
    try:
        broker.start()
        with open_following(str(replica), address, config=conf):
            commit(options, stage(options, bodies("a")))
        wait_until(lambda: _is_refused(options), "the broker knows that it is gone")
        with open_following(str(replica), address, config=conf):
            patient = options_of(str(broker.root), conf=conf, inSyncReplicas="2", slaveTimeout="60s")
            commit(patient, stage(patient, bodies("b"), batch_id=1, attempt=7), batch_id=1)
        assert texts(str(replica)) == texts(str(broker.root)) == ["a", "b"]
    finally:
        broker.kill()


def _is_refused(options: object) -> bool:
    """A batch that lacks copies is refused, or is in the log and says so: never done."""
    with pytest.raises(SparkMqError, match=r"SPARK_MQ_(NOT_REPLICATED|REPLICAS_NOT_ENOUGH)") as caught:
        commit(options, stage(options, bodies("b"), batch_id=1), batch_id=1)  # type: ignore[arg-type]
    return "NOT_ENOUGH" in str(caught.value)
