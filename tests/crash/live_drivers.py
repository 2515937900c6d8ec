"""A streaming query from a store to a real broker, exactly once, whose processes die at named points; Java counts the rows.

    python -m tests.torture live-drivers --rounds 6 --seed 1 [--scene "two hosts"]

Each driver is a process with a JVM and workers of its own (`tests/support/driver_process.py`), on the checkpoint of those before. In
turns the process that comes to the point dies alone (a task's worker, or the one that commits), or all of them die.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from storage import open_store
from storage.failpoints import LIVE_COMMIT, LIVE_REDO, LIVE_STAGING
from tests.support.driver_process import Driver, Query
from tests.support.java_broker import Oracle, RunningBroker
from tests.support.spark_cluster import TWO_HOSTS
from tests.torture.by_hand import ByHand, Report, Run

TOPIC = "LiveDrivers"
QUEUES = 4
ROWS_A_DRIVER = 400
POINTS = (*LIVE_STAGING, *LIVE_COMMIT, *LIVE_REDO)


def run_drivers(points: Sequence[str], run: Run, master: str = "local[1]", guarantee: str = "exactlyOnce") -> str:
    """A driver for each point, and one that ends. Raises AssertionError where a row is not there once."""
    chance, directory = random.Random(run.seed), run.directory
    with ExitStack() as running:
        oracle = Oracle(directory / "oracle")
        name_server = running.enter_context(oracle.namesrv())
        broker = running.enter_context(
            oracle.broker(
                directory / "broker-store",
                name_server,
                commitlog_file_size_bytes=8 << 20,
                consume_queue_file_size_bytes=200_000,
            )
        )
        broker.make_topic(TOPIC, QUEUES)
        source = directory / "source"
        query = Query(
            str(source),
            "",
            TOPIC,
            str(directory / "checkpoint"),
            ROWS_A_DRIVER // 2,
            master=master,
            sink_options={"nameServer": name_server, "guarantee": guarantee, "batchBytes": "2k", "sendTimeout": "3s"},
        )
        bodies: list[bytes] = []
        for number, point in enumerate(points):
            if point in LIVE_REDO:
                _add_rows(source, bodies, chance)
                run.tell(_one(query, directory / f"{number}-before", f"live-amid-send:{chance.randint(2, 20)}", False))
            _add_rows(source, bodies, chance)
            time_ = chance.randint(1, 20) if "amid" in point else 1
            run.tell(_one(query, directory / f"{number}", f"{point}:{time_}", number % 2 == 1))
        _add_rows(source, bodies, chance)
        run.tell(_one(query, directory / "last", None, False))
        return _judge(oracle, directory, broker, bodies)


def _one(query: Query, directory: Path, failpoint: str | None, all_die: bool) -> str:
    with Driver(query, directory, failpoint=failpoint, paused=all_die) as driver:
        driver.begin()
        code = driver.wait()
        if all_die and driver.is_paused:
            driver.kill()
            return f"{failpoint:28s} all processes killed"
        if failpoint is None:
            assert code == 0, driver.output
        return f"{failpoint or 'no point':28s} the driver ended with {code}"


def _add_rows(source: Path, bodies: list[bytes], chance: random.Random) -> None:
    made = [
        b"%d:" % (len(bodies) + number) + chance.randbytes(chance.randint(1, 60)) for number in range(ROWS_A_DRIVER)
    ]
    with open_store(source, read_only=False, create=True) as store:
        queues = [number % QUEUES for number in range(len(made))]
        store.put_batch(pa.table({"body": made, "queue_id": queues}), topic=TOPIC, queue_count=QUEUES)
    bodies += made


def _judge(oracle: Oracle, directory: Path, broker: RunningBroker, bodies: list[bytes]) -> str:
    lines = oracle.consume_all(directory / "consumed.jsonl", broker, [TOPIC], lookUps=0)
    messages = sorted(
        (line["queueId"], line["queueOffset"], line["bodySha256"]) for line in lines if line["type"] == "message"
    )
    found = [[body for queue_id, _, body in messages if queue_id == wanted] for wanted in range(QUEUES)]
    expected = [[hashlib.sha256(body).hexdigest() for body in bodies[wanted::QUEUES]] for wanted in range(QUEUES)]
    counts = Counter(body for _, _, body in messages)
    lost = len({body for queue in expected for body in queue} - set(counts))
    text = f"{len(bodies)} rows: lost {lost}, doubled {sum(count > 1 for count in counts.values())}"
    assert found == expected, f"{text}, or out of order"
    return f"{text}, in order in each queue"


def play(run: Run) -> Report:
    """As many of the points as there are rounds."""
    chosen = random.Random(run.seed).sample(POINTS, min(run.rounds, len(POINTS)))
    return Report(run_drivers(chosen, run, TWO_HOSTS if run.scene else "local[1]"))


BY_HAND = ByHand(play, rounds=len(POINTS), scenes=("two hosts",))
