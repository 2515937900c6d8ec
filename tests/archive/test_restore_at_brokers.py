"""`spark-mq job restore` into a running cluster of ours, by Spark: each message once, whichever step a run died at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.broker_server.own_cluster import own_cluster
from tests.support.python_script import run_script
from tests.support.store_builder import START_MS, StoreBuilder

from .archived import archived, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.long]

RUN = """
import os, sys
from jobs.restore import main
from spark_mq.archive.restore import RestoreAudit

arguments = {arguments!r}
if {dies!r}:
    RestoreAudit.note_restored = lambda audit, plan: os._exit(9)
    main(arguments)
for more in {runs!r}:
    assert main([*arguments, *more]) == 0
"""


def test_messages_are_put_back_once_into_a_running_cluster(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    for number in range(60):
        store.send(
            "Topic",
            f"{number:02}",
            queue_id=number % 3,
            tags="odd" if number % 2 else "even",
            keys=f"k{number}",
            unique_key=f"U{number:05}",
            store_time_ms=START_MS + number,
        )
    archived(tmp_path / "archive", path=str(store.root))
    home = tmp_path / "cluster"
    home.mkdir()
    with own_cluster(home) as cluster:
        cluster.make_topic("Again", 4)
        arguments = ["--name-server", cluster.name_server, "--table", "archive", "--topic", "Topic", "--to", "Again"]
        arguments += ["--audit", "audit", "--staging", "staging", "--keep-unique-key", "--master", "local[2]"]
        window = ["--until", str(START_MS + 20)]
        dead = run_script(RUN.format(arguments=[*arguments, *window], dies=True, runs=[]), tmp_path, small=True)
        assert dead.returncode == 9, dead.stderr[-3000:]
        ran = run_script(RUN.format(arguments=arguments, dies=False, runs=[window, [], []]), tmp_path, small=True)
        assert ran.returncode == 0, ran.stderr[-3000:]
        rows = rows_of(nameServer=cluster.name_server, topic="Again")
    told = [line.partition(": offsets")[0] for line in ran.stdout.splitlines()]
    assert told == [
        "finished 1 plans of earlier runs",
        *(f"put back queue Topic/broker-a/{queue_id}" for queue_id in range(3)),
        "nothing to put back",
    ], ran.stdout
    found = [(row["body"].decode(), row["queue_id"], row["tags"], row["keys"], row["unique_key"]) for row in rows]
    assert sorted(found) == [
        (f"{number:02}", number % 3, "odd" if number % 2 else "even", f"k{number}", f"U{number:05}")
        for number in range(60)
    ]
    audit = json.dumps([path.name for path in (tmp_path / "audit" / "_delta_log").iterdir()])
    assert audit.count(".json") == 5, "made, and for each of two plans what was planned and what was restored"
