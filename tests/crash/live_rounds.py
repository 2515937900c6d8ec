"""Rounds on real brokers: in each a batch is sent while something dies, and sent on; at the end Java counts the rows.

    python -m tests.torture live-rounds --rounds 40 --seed 1 [--scene "two masters"] [--release 4.9.7]

A round's kind, its moment and the broker that it befalls follow from the seed:

    point      the writer dies at a named point (storage/failpoints.py); points of a redo after it has died amid a send
    random     the writer gets SIGKILL at a random moment
    broker     a broker gets SIGKILL while the writer sends, and is started again
    request    a proxy cuts the connection amid a request
    answer     a proxy cuts it amid an answer
    stopped    a broker is stopped (SIGSTOP) for longer than the time-out, and the writer dies meanwhile

After it the batch is committed again, by as many writers as it takes. At least once, tasks send directly; rows may be doubled then, and
none lost. In the scene of transactions their rows are transactions, each eighth one rolled back: what became of each half is looked for
(`live_judges.py`). Without a slave the masters are SYNC_MASTER, and confirm nothing that they store. Writers with
`stored` go on nevertheless. Of those with `all` none may end well before the operator lets the brokers confirm.
Printed is a line for each round, and a table of the kinds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from storage.failpoints import ENVIRONMENT, LIVE_COMMIT, LIVE_REDO, LIVE_STAGING, LIVE_TRANSACTIONS
from tests.support.places import PROJECT
from tests.support.proxies import CuttingProxy
from tests.torture.by_hand import ByHand, Report, Run

from .live_cluster import HALVES_END_SOON, TOPIC, WITHOUT_SLAVE, Cluster, confirmation
from .live_judges import judge, judge_halves

EXACT, AT_LEAST_ONCE = "exactlyOnce", "atLeastOnce"
ROWS = 400
POINTS = (*LIVE_STAGING, *LIVE_COMMIT, *LIVE_REDO, "file-staged", "file-replaced")
OTHER_KINDS = ("random", "broker", "request", "answer", "stopped")
NOT_CONFIRMED = "SEND_NOT_CONFIRMED"
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


@dataclass(frozen=True)
class Scene:
    """What is tried, on what."""

    guarantee: str = EXACT
    transactional: bool = False
    masters: int = 1
    acks: str | None = None
    """With it the masters have no slave to confirm what they store."""
    release: str = "5.3.3"

    @property
    def is_exact(self) -> bool:
        return self.guarantee == EXACT

    def points(self) -> Sequence[str]:
        return POINTS if self.is_exact else 2 * LIVE_TRANSACTIONS if self.transactional else ()

    def options(self) -> dict[str, str]:
        """Those of the sink."""
        given = {"batchBytes": "2k"}
        given |= {} if self.is_exact else {"guarantee": self.guarantee}
        given |= {"transactional": "true", "producerGroup": "LiveRoundsGroup"} if self.transactional else {}
        return given | ({} if self.acks is None else {"acks": self.acks})

    def broker_settings(self) -> dict[str, int | str]:
        mute = {} if self.acks is None else {**WITHOUT_SLAVE, **confirmation(self.release, is_on=False)}
        return {**mute, **(HALVES_END_SOON if self.transactional else {})}


class Rounds:
    """The rounds of one seed, over one cluster and one sink."""

    def __init__(self, cluster: Cluster, directory: Path, seed: int, scene: Scene) -> None:
        self.cluster = cluster
        self.scene = scene
        self.staging = directory / "staging"
        self.random = random.Random(seed)
        self.batches = 0
        self._kinds = self._in_turn()

    def _in_turn(self) -> Iterator[tuple[str, str]]:
        """All points and kinds, in an order of the seed's, again and again."""
        while True:
            kinds = [("point", point) for point in self.scene.points()]
            kinds += [(kind, "") for kind in OTHER_KINDS for _ in range(3)]
            self.random.shuffle(kinds)
            yield from kinds

    def run(self) -> Round:
        """One batch, one fault."""
        kind, point = next(self._kinds)
        round_ = Round(self.batches, kind, point)
        self._victim = self.random.randrange(self.scene.masters)
        getattr(self, f"_{kind}")(round_)
        confirms = self.scene.acks != "all"
        for _ in range(MOST_TRIES):
            is_done = bool(round_.ends) and round_.ends[-1] == "committed"
            assert confirms or not is_done, f"a writer ends well, and nothing is confirmed: {round_.text()}"
            if is_done:
                break
            if not confirms and NOT_CONFIRMED in round_.ends:
                self.cluster.confirm(is_on=True)
                confirms = True
                round_.ends.append("(brokers confirm)")
            round_.ends.append(self._write())
        else:
            raise AssertionError(f"the batch is never committed: {round_.text()}")
        if self.scene.acks == "all":
            self.cluster.confirm(is_on=False)
        self.batches += 1
        return round_

    def _point(self, round_: Round) -> None:
        point = round_.detail
        if point in LIVE_REDO:
            round_.ends.append(self._write(point=f"live-amid-send:{self.random.randint(1, 60)}"))
        most = 350 if point in LIVE_TRANSACTIONS else 60
        time_ = self.random.randint(1, most) if "amid" in point else self.random.randint(1, 2) if "file" in point else 1
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
            self.cluster.brokers[self._victim].kill()
            if self.random.random() < 0.5:
                writer.kill()
                round_.detail = "writer too"
            self.cluster.start_again(self._victim)
            round_.ends.append(_end(writer))

    def _request(self, round_: Round) -> None:
        self._cut(round_, self.random.randint(500, 250_000), cuts_answers=False)

    def _answer(self, round_: Round) -> None:
        self._cut(round_, self.random.randint(200, 20_000), cuts_answers=True)

    def _cut(self, round_: Round, after_bytes: int, *, cuts_answers: bool) -> None:
        target = self.cluster.brokers[self._victim].address
        with CuttingProxy(target, after_bytes=after_bytes, cuts_answers=cuts_answers) as proxy:
            round_.ends.append(self._write(through={self.cluster.name(self._victim): proxy.address}))
            round_.detail = f"after {after_bytes} bytes: {(proxy.cuts and 'cut') or 'not cut'}"

    def _stopped(self, round_: Round) -> None:
        with self._writer() as writer:
            self._wait_for_intent(writer)
            time.sleep(self.random.random() * 0.2)
            pid = self.cluster.brokers[self._victim].pid
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(self.random.uniform(0.2, 4.0))
                writer.kill()
                writer.wait()
                later = self.random.random() < 0.5
                round_.detail = "next writer before SIGCONT" if later else "next writer after SIGCONT"
                with self._writer() if later else nullcontext() as following:
                    time.sleep(3.0)
                    os.kill(pid, signal.SIGCONT)
                    round_.ends.append(_end(writer))
                    if following is not None:
                        round_.ends.append(_end(following))
            finally:
                os.kill(pid, signal.SIGCONT)

    def _write(self, **given: Any) -> str:
        with self._writer(**given) as writer:
            return _end(writer)

    @contextmanager
    def _writer(
        self, point: str | None = None, through: dict[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        said: dict[str, Any] = {
            "name_server": self.cluster.name_server,
            "staging": str(self.staging),
            "topic": TOPIC,
            "batch_id": self.batches,
            "rows": ROWS,
            "options": self.scene.options(),
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


SCENES = {
    "exactly once": Scene(),
    "at least once": Scene(AT_LEAST_ONCE),
    "two masters": Scene(masters=2),
    "two masters, at least once": Scene(AT_LEAST_ONCE, masters=2),
    "transactions": Scene(AT_LEAST_ONCE, transactional=True),
    "no slave, stored": Scene(acks="stored"),
    "no slave, all": Scene(acks="all"),
}


def play(run: Run) -> Report:
    """Rounds on a cluster of their own. Raises AssertionError where the scene's guarantee is broken."""
    scene = replace(SCENES[run.scene or "exactly once"], release=run.release)
    with ExitStack() as running:
        cluster = Cluster(run.directory, running, scene.masters, scene.release, scene.broker_settings())
        cluster.make_topic()
        rounds = Rounds(cluster, run.directory, run.seed, scene)
        done = []
        for _ in range(run.rounds):
            done.append(rounds.run())
            run.tell(done[-1].text())
        given = cluster, run.directory, rounds.batches, ROWS
        verdict = judge(*given, is_exact=scene.is_exact, has_ends=scene.transactional)
        halves = f"\n{judge_halves(cluster, verdict.messages, ROWS)}" if scene.transactional else ""
    assert all(round_.ends[-1] == "committed" for round_ in done)
    return Report(f"{table(done)}\n{verdict.text}{halves}")


def table(rounds: list[Round]) -> str:
    """Kinds, how many rounds of each, and how many writers they took."""
    kinds = sorted({round_.kind for round_ in rounds})
    lines = [f"{'kind':10s}{'rounds':>8s}{'writers':>9s}"]
    for kind in kinds:
        of_kind = [round_ for round_ in rounds if round_.kind == kind]
        lines.append(f"{kind:10s}{len(of_kind):8d}{sum(len(round_.ends) for round_ in of_kind):9d}")
    return "\n".join(lines)


BY_HAND = ByHand(play, rounds=12, scenes=tuple(SCENES))
