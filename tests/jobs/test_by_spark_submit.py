"""Every job runs by spark-submit, with each of its options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from jobs import JOBS
from spark_mq.cli.app import load_job
from storage import open_store
from tests.support.places import PROJECT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GROUP = "g"
DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
_SCRIPT = """
import contextlib, io, json, runpy, sys

for number, (job, *arguments) in enumerate(json.load(open(sys.argv[1]))):
    path = f"{sys.argv[2]}/jobs/{job}.py"
    sys.argv[3:] = []
    kept, sys.argv, out, err = sys.argv, [path, *arguments], io.StringIO(), io.StringIO()
    sys.path.insert(0, f"{kept[2]}/jobs")  # as Python does for a script
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_path(path, run_name="__main__")
    except SystemExit as ending:
        print("RAN", json.dumps([ending.code, out.getvalue(), err.getvalue()]), flush=True)
    sys.path.pop(0)
    sys.argv = kept
"""


class Ran(NamedTuple):
    """How a job ended."""

    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def submitted(tmp_path: Path, jobs: list[list[str]], *options: str) -> list[Ran]:
    """The jobs' files as main programs, one after another in one spark-submit."""
    script, listed = tmp_path / "each.py", tmp_path / "jobs.json"
    script.write_text(_SCRIPT, "utf-8")
    listed.write_text(json.dumps(jobs), "utf-8")
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]", *options]
    ran = subprocess.run(
        [*submit, str(script), str(listed), str(PROJECT)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{PROJECT}:{tmp_path}", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [json.loads(line.removeprefix("RAN ")) for line in ran.stdout.splitlines() if line.startswith("RAN ")]
    assert len(found) == len(jobs), ran.stderr
    return [Ran(*one) for one in found]


def options_of(job: str) -> set[str]:
    named = {option for each in load_job(job).params for option in each.opts if option.startswith("--")}
    return named - {"--every"}  # which ends with a signal: tests/jobs/test_run.py


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A store with two dead letters, a half message that nobody answered for, and a delayed message."""
    path = str(tmp_path / "broker-a")
    with open_store(path, read_only=False, create=True) as store:
        store.put("Orders", b"one")
        dead = {"topic": ["Orders"] * 2, "retry_group": [GROUP] * 2, "reconsume_times": [17] * 2}
        store.put_batch(pa.record_batch({"body": ["a", "b"], **dead}))
        store.put_batch(pa.record_batch({"body": ["h"], "transaction_state": ["unknown"]}), topic="Tx", transactional=True,
                        producer_group="pg")  # fmt: skip
        store.put_batch(pa.record_batch({"body": ["later"], "delay_level": pa.array([1], pa.int32())}), topic="Orders")
    (tmp_path / "broker.conf").write_text("brokerName=broker-a\n")
    return path


def test_each_job_runs_with_each_of_its_options(root: str, tmp_path: Path) -> None:
    (tmp_path / "shop_answers.py").write_text("def ask(message): return 'commit'\n", "utf-8")
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"q"}', "utf-8")
    shared = ["--conf", f"{tmp_path}/broker.conf", "--lock-timeout", "5s", "--busy-ok", "--json"]
    replay = ["replay_dead_letters", root, *shared, "--group", GROUP]
    times = ["--since", "2020-01-01", "--until", "2100-01-01"]
    (tmp_path / "secret").write_text("s3cr3t\n", "utf-8")
    files = [word for name in ("ca", "cert", "key") for word in (f"--tls-{name}-file", f"{tmp_path}/no.pem")]
    cluster = ["--access-key", "me", "--secret-key-file", f"{tmp_path}/secret", "--tls", "--tls-no-verify", *files]
    cluster += ["--tls-server-name", "n", "--request-timeout", "1s"]
    absent = ["--json", "--name-server", "127.0.0.1:1", "--namespace", "ns", *cluster]
    jobs = [
        ["check_transactions", root, *shared, "--checker", "shop_answers:ask", "--threads", "1", "--checkpoint", str(checkpoint)],
        ["redrive_transactions", root, *shared, "--topic", "Tx"],
        ["deliver_delayed", root, *shared, "--max-messages", "5"],
        ["rebuild_queues", root, *shared],
        ["delete_expired_files", root, *shared, "--now", "--dry-run"],
        [*replay, *times, "--where", "origin_topic = 'Orders'", "--dry-run", "--master", "local[1]"],
        [*replay, *times, "--rate", "100", "--limit", "1"],
        [*replay, "--again", "--to", "topic"],
        [*replay, "--audit", f"{tmp_path}/audit"],
        [*replay, "--where", "no predicate at all"],
        ["replay_dead_letters", "--group", GROUP, *absent],
    ]  # fmt: skip
    (tmp_path / "orders.json").write_text('{"type": "object", "properties": {"a": {"type": "string"}}}', "utf-8")
    table = ["--table", f"{tmp_path}/table", "--storage", "timeout=30s"]
    archive, keep = (
        ["archive", root, *shared, *table, "--master", "local[1]"],
        ["--compact", "--keep", "Orders=400d", "--vacuum", "7d"],
    )
    restore = ["restore", *table, "--topic", "Orders", "--audit", f"{tmp_path}/restored"]
    archiving = [
        [*archive, "--topics", "Orders", "--max-offsets", "2", "--file-rows", "1", "--new-incarnation"],
        [*archive, "--pattern", "Ord.*", "--values", f"Orders={tmp_path}/orders.json", *keep, "--verify"],
        [*archive, "--topics", "Orders", *keep, "--dry-run"],
        ["archive", *table, *absent],
        [*restore, root, *shared, "--to", "Again", *times, "--keep-unique-key", "--any-queue", "--dry-run"],
        [*restore, root, *shared, "--to", "Again", *times, "--master", "local[1]"],
        [*restore, *absent, "--staging", f"{tmp_path}/staging"],
    ]  # fmt: skip
    every = [*jobs, *archiving, ["verify_store", root, *shared]]
    assert {job for job, *_ in every} == set(JOBS)
    for job in JOBS:
        given = {word for name, *words in every if name == job for word in words if word.startswith("--")}
        assert given == options_of(job), job
    with open_store(root, read_only=False):
        busy = submitted(tmp_path, [["deliver_delayed", root, "--lock-timeout", "0"], *jobs[2:3]])
    assert [one.exit_code for one in busy] == [75, 0]
    *ran, verified = submitted(tmp_path, every)
    *done, audited, refused, unread = ran[: len(jobs)]
    assert [(one.exit_code, one.err) for one in [*done, verified]] == [(0, "")] * (len(done) + 1)
    assert done[5].json["would_replay"] == {"Orders": 2}
    assert done[6].json["results"] == {"replayed": 1}
    assert done[7].json["results"] == {"replayed": 2}
    assert verified.json["findings"] == []
    assert audited.exit_code == 1
    assert audited.json["error"] == f"this Spark has no Delta Lake: start it with spark-submit --packages {DELTA}"
    assert (refused.exit_code, refused.json["exit_code"]) == (2, 2)
    archived, kept, looked_at, unread_archive, would, restored, unsent = ran[len(jobs) :]
    assert [(one.exit_code, one.err) for one in (archived, kept, looked_at, would, restored)] == [(0, "")] * 5
    with open_store(root) as store:
        orders, again = (
            sorted(each.body for queue_id in range(8) for each in store.get(topic, queue_id, 0).messages)
            for topic in ("Orders", "Again")
        )
    assert len(orders) == archived.json["rows"]["Orders"] == kept.json["typed"]["Orders"]["rows"]
    assert (kept.json["findings"], looked_at.json["would_archive"]) == ([], {})
    assert again == orders
    assert would.json["ranges"] == restored.json["ranges"]
    for one, text in (
        (unread, "no.pem: TLS failed: the certificate or key cannot be read"),
        (unread_archive, "no name server answers (127.0.0.1:1: "),
        (unsent, "no.pem: TLS failed: the certificate or key cannot be read"),
    ):
        assert (one.exit_code, one.json["name_server"]) == (1, "127.0.0.1:1")
        assert text in one.json["error"]


@pytest.mark.long
def test_with_deltas_jar_it_keeps_an_audit(root: str, tmp_path: Path) -> None:
    replay = ["replay_dead_letters", root, "--group", GROUP, "--json", "--audit", f"{tmp_path}/audit"]
    first, second = submitted(tmp_path, [replay, replay], "--packages", DELTA)
    assert (first.exit_code, first.json["results"]) == (0, {"replayed": 2})
    assert (second.exit_code, second.json["results"]) == (0, {}), "each once"
