"""Rounds of exactly once on a real broker: in each a batch is sent while something dies, and sent on; at the end Java counts the rows.

    python -m tests.crash.live_rounds --rounds 40 --seed 1

A round's kind and its moment follow from the seed:

    point      the writer dies at a named point (storage/failpoints.py); points of a redo after it has died amid a send
    random     the writer gets SIGKILL at a random moment
    broker     the broker gets SIGKILL while the writer sends, and is started again
    request    a proxy cuts the connection amid a request
    answer     a proxy cuts it amid an answer
    stopped    the broker is stopped (SIGSTOP) for longer than the time-out, and the writer dies meanwhile

With `--guarantee atLeastOnce` the kinds but the first are run on tasks that send directly; rows may be doubled then, and none lost.
After it the batch is committed again, by as many writers as it takes. Printed is a line for each round, and a table of the kinds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_mq.client.admin import Admin
from spark_mq.client.errors import ClientError
from spark_mq.client.settings import ClientSettings
from spark_mq.client.topic_calls import NewTopic
from storage.failpoints import ENVIRONMENT, LIVE_COMMIT, LIVE_REDO, LIVE_STAGING
from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until
from tests.support.live_writer import TASKS, key
from tests.support.places import PROJECT

from .live_proxy import CuttingProxy

TOPIC = "LiveRounds"
EXACT = "exactlyOnce"
QUEUES = 4
ROWS = 400
BROKER_SETTINGS: dict[str, int] = {
    "commitlog_file_size_bytes": 8 << 20,
    "consume_queue_file_size_bytes": 200_000,
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}
POINTS = (*LIVE_STAGING, *LIVE_COMMIT, *LIVE_REDO, "file-staged", "file-replaced")
OTHER_KINDS = ("random", "broker", "request", "answer", "stopped")
MOST_TRIES = 12


@dataclass
class Round:
    """What happened in one round."""

    number: int
    kind: str
    detail: str
    ends: list[str] = field(default_factory=list)
    """How each writer ended."""

    def text(self) -> str:
        return f"{self.number:4d}  {self.kind:8s} {self.detail:28s} {' · '.join(self.ends)}"


class Cluster:
    """A name server and a broker that can be killed and started again on its store."""

    def __init__(self, directory: Path, running: ExitStack) -> None:
        self.oracle = Oracle(directory)
        self.name_server = running.enter_context(self.oracle.namesrv())
        self._directory = directory
        self._port = free_ports()
        self._running = running
        self.broker = self._start()

    def _start(self) -> RunningBroker:
        broker = self.oracle.broker(self._directory / "store", self.name_server, port=self._port, **BROKER_SETTINGS)
        return self._running.enter_context(broker)

    def start_again(self) -> None:
        self.broker = self._start()

    def make_topic(self) -> None:
        with Admin(ClientSettings((self.name_server,))) as admin:
            wait_until(lambda: bool(admin.broker_addresses()), "the broker is registered")
            admin.create_topic(NewTopic(TOPIC, QUEUES, QUEUES), address=self.broker.address)
            wait_until(lambda: _has_route(admin), "the topic has a route")


def _has_route(admin: Admin) -> bool:
    try:
        return len(admin.route(TOPIC).publish_queues) == QUEUES
    except ClientError:
        return False


class Rounds:
    """The rounds of one seed, over one cluster and one sink."""

    def __init__(self, cluster: Cluster, directory: Path, seed: int, guarantee: str) -> None:
        self.cluster = cluster
        self.guarantee = guarantee
        self.staging = directory / "staging"
        self.random = random.Random(seed)
        self.batches = 0
        self._kinds = self._in_turn()

    def _in_turn(self) -> Iterator[tuple[str, str]]:
        """All points and kinds, in an order of the seed's, again and again."""
        while True:
            points = POINTS if self.guarantee == EXACT else ()
            kinds = [("point", point) for point in points] + [(kind, "") for kind in OTHER_KINDS for _ in range(3)]
            self.random.shuffle(kinds)
            yield from kinds

    def run(self) -> Round:
        """One batch, one fault."""
        kind, point = next(self._kinds)
        round_ = Round(self.batches, kind, point)
        getattr(self, f"_{kind}")(round_)
        for _ in range(MOST_TRIES):
            if round_.ends and round_.ends[-1] == "committed":
                break
            round_.ends.append(self._write())
        else:
            raise AssertionError(f"the batch is never committed: {round_.text()}")
        self.batches += 1
        return round_

    def _point(self, round_: Round) -> None:
        point = round_.detail
        if point in LIVE_REDO:
            round_.ends.append(self._write(point=f"live-amid-send:{self.random.randint(1, 60)}"))
        time_ = self.random.randint(1, 60) if "amid" in point else self.random.randint(1, 2) if "file" in point else 1
        round_.detail = f"{point}:{time_}"
        round_.ends.append(self._write(point=round_.detail))

    def _random(self, round_: Round) -> None:
        with self._writer() as writer:
            self._wait_for_intent(writer)
            time.sleep(self.random.random() * 0.5)
            writer.kill()
        round_.ends.append(_end(writer))

    def _broker(self, round_: Round) -> None:
        with self._writer() as writer:
            self._wait_for_intent(writer)
            time.sleep(self.random.random() * 0.3)
            self.cluster.broker.kill()
            if self.random.random() < 0.5:
                writer.kill()
                round_.detail = "writer too"
            self.cluster.start_again()
            round_.ends.append(_end(writer))

    def _request(self, round_: Round) -> None:
        self._cut(round_, self.random.randint(500, 250_000), cuts_answers=False)

    def _answer(self, round_: Round) -> None:
        self._cut(round_, self.random.randint(200, 20_000), cuts_answers=True)

    def _cut(self, round_: Round, after_bytes: int, *, cuts_answers: bool) -> None:
        target = self.cluster.broker.address
        with CuttingProxy(target, after_bytes=after_bytes, cuts_answers=cuts_answers) as proxy:
            round_.ends.append(self._write(through=proxy.address))
            round_.detail = f"after {after_bytes} bytes: {(proxy.cuts and 'cut') or 'not cut'}"

    def _stopped(self, round_: Round) -> None:
        with self._writer() as writer:
            self._wait_for_intent(writer)
            time.sleep(self.random.random() * 0.2)
            os.kill(self.cluster.broker.pid, signal.SIGSTOP)
            try:
                time.sleep(self.random.uniform(0.2, 4.0))
                writer.kill()
                writer.wait()
                later = self.random.random() < 0.5
                round_.detail = "next writer before SIGCONT" if later else "next writer after SIGCONT"
                with self._writer() if later else nullcontext() as following:
                    time.sleep(3.0)
                    os.kill(self.cluster.broker.pid, signal.SIGCONT)
                    round_.ends.append(_end(writer))
                    if following is not None:
                        round_.ends.append(_end(following))
            finally:
                os.kill(self.cluster.broker.pid, signal.SIGCONT)

    def _write(self, **given: str) -> str:
        with self._writer(**given) as writer:
            return _end(writer)

    @contextmanager
    def _writer(self, point: str | None = None, through: str | None = None) -> Iterator[subprocess.Popen[str]]:
        said: dict[str, Any] = {
            "name_server": self.cluster.name_server,
            "staging": str(self.staging),
            "topic": TOPIC,
            "batch_id": self.batches,
            "rows": ROWS,
            "options": {"batchBytes": "2k", **({} if self.guarantee == EXACT else {"guarantee": self.guarantee})},
        }
        if through is not None:
            said["through"] = through
        for left in self.staging.glob("direct/intent.json"):
            left.unlink()
        environment = {name: value for name, value in os.environ.items() if name != ENVIRONMENT}
        if point is not None:
            environment[ENVIRONMENT] = point
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.support.live_writer", json.dumps(said)],
            cwd=PROJECT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield writer
        finally:
            writer.kill()
            writer.wait()

    def _wait_for_intent(self, writer: subprocess.Popen[str]) -> None:
        """Until the writer has decided its batch, or has ended."""
        while writer.poll() is None and not list(self.staging.glob("*/intent.json")):
            time.sleep(0.005)


def _end(writer: subprocess.Popen[str]) -> str:
    """How it ended: `committed`, `killed`, or the error's condition."""
    output = writer.communicate(timeout=180)[0].strip()
    if writer.returncode < 0:
        return "killed"
    last = output.splitlines()[-1] if output else ""
    if writer.returncode == 0:
        return last
    if writer.returncode == 3:
        return last.partition("]")[0].removeprefix("[SPARK_MQ_") if last.startswith("[") else last[:80]
    raise AssertionError(f"a writer failed:\n{output}")


def judge(cluster: Cluster, directory: Path, batches: int, guarantee: str) -> str:
    """What Apache's consumer finds: raises AssertionError unless each row is there; exactly once, and each task's rows in order."""
    out = directory / "consumed.jsonl"
    lines = cluster.oracle.consume_all(out, cluster.broker, [TOPIC], lookUps=0)
    messages = [line for line in lines if line["type"] == "message"]
    counts = Counter(line["keys"] for line in messages)
    expected = {key(batch, task, row) for batch in range(batches) for task in range(TASKS) for row in range(ROWS)}
    lost, strange = expected - set(counts), set(counts) - expected
    doubled = {name: count for name, count in counts.items() if count > 1}
    places: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for line in messages:
        source, _, row = line["keys"].rpartition("-")
        places[line["queueId"], source].append((line["queueOffset"], int(row)))
    disordered = [
        where for where, found in places.items() if [row for _, row in sorted(found)] != sorted(r for _, r in found)
    ]
    text = f"{len(expected)} rows: lost {len(lost)}, doubled {len(doubled)}, strange {len(strange)}, out of order {len(disordered)}"
    if lost or strange or (guarantee == EXACT and (doubled or disordered)):
        raise AssertionError(f"{text}; {sorted(lost)[:5]} {sorted(doubled)[:5]}")
    return text


def run_rounds(
    count: int, seed: int, directory: Path, tell: Callable[[str], None], guarantee: str = EXACT
) -> tuple[list[Round], str]:
    """So many rounds on a cluster of their own. Raises AssertionError where a row is lost or, exactly once, doubled."""
    with ExitStack() as running:
        cluster = Cluster(directory, running)
        cluster.make_topic()
        rounds = Rounds(cluster, directory, seed, guarantee)
        done = []
        for _ in range(count):
            done.append(rounds.run())
            tell(done[-1].text())
        return done, judge(cluster, directory, rounds.batches, guarantee)


def table(rounds: list[Round]) -> str:
    """Kinds, how many rounds of each, and how many writers they took."""
    kinds = sorted({round_.kind for round_ in rounds})
    lines = [f"{'kind':10s}{'rounds':>8s}{'writers':>9s}"]
    for kind in kinds:
        of_kind = [round_ for round_ in rounds if round_.kind == kind]
        lines.append(f"{kind:10s}{len(of_kind):8d}{sum(len(round_.ends) for round_ in of_kind):9d}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--guarantee", choices=[EXACT, "atLeastOnce"], default=EXACT)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="live-rounds-") as directory:
        tell = lambda text: print(text, flush=True)  # noqa: E731
        rounds, verdict = run_rounds(asked.rounds, asked.seed, Path(directory), tell, asked.guarantee)
    print(table(rounds))
    print(verdict)


if __name__ == "__main__":
    main()
