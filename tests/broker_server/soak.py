"""Our broker for minutes among producers, consumers that come and go, a proxy that treats connections badly, and SIGKILL.

    python -m tests.broker_server.soak --minutes 20 --flush SYNC_FLUSH [--seed N] [--page docs/tables/soak.md]

Name server and broker are processes of their own. Clients meet both through the proxy (`bad_proxy.py`). In the first half of the time
the broker is killed about nine times, and started again on its store. Its last life takes the other half: whether it grows is told of
that one. At the end all is calm, and the consumers get time for what is left. Then every message that was acknowledged must have been
consumed, and must stand in the store, which is read from end to end after a clean stop.

SIGKILL leaves the page cache: what ASYNC_FLUSH acknowledges survives it as well. Power losses are tried elsewhere (`tests/torture`).

Printed is a row for a table; with `--page` it stands there in place of the row of that flush. Exit code 1 where a message is lost, or
is another one than was sent, or where the broker's own memory or its connections rise by more than one MiB or descriptor a minute.
Pages of mapped files are told and not judged: they rise with the log, and are the system's to take back. The seed says when what
happens; of several processes no two runs are the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random, SystemRandom

from spark_mq.client.settings import ClientSettings
from storage import open_store
from storage.names import retry_topic
from tests.broker_server.bad_proxy import BadProxy, bad_proxy
from tests.broker_server.own_cluster import OwnCluster, own_cluster
from tests.broker_server.process_samples import WARM_UP_SECONDS, Sample, Sampler, slope_per_minute
from tests.broker_server.soak_clients import GROUP, TOPIC, Book, Coming, Sending
from tests.support.served import served
from tests.torture.page import write_into

BEGIN, END = "<!-- soak: rows are written by tests.broker_server.soak -->", "<!-- soak: end -->"
FLUSHES = "SYNC_FLUSH", "ASYNC_FLUSH"
ADVERTISED = "127.0.0.2"
"""Where the proxy listens, at the ports of broker and name server."""
QUEUES, PRODUCERS, CONSUMERS = 8, 2, 3
COLUMNS = (
    *("flush", "seed", "minutes", "kills", "cuts", "freezes", "joins", "sent", "acknowledged", "consumed", "lost"),
    *("memory, MiB/min", "mapped files, MiB/min", "connections/min", "files/min", "memory, MiB", "descriptors"),
)
_KILLS = 9
_LEAST_LIFE_S = 4.0
_RISE_MOST = 1.0
"""MiB, or descriptors, a minute."""
_JUDGED_S = 300.0
"""A life of so many seconds behind its beginning says whether it rises."""
_DRAIN_S, _STANDSTILL_S = 600.0, 90.0
_DELAYS = "1s 1s 2s 3s 5s 10s"
_MIB = 1 << 20


@dataclass
class Soaked:
    """What a run has come to."""

    flush: str
    seed: int
    seconds: float
    kills: int = 0
    joins: int = 0
    misdeeds: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    acknowledged: int = 0
    consumed: int = 0
    """Each message as often as it came."""
    lost: list[str] = field(default_factory=list)
    """Acknowledged, and not in the store."""
    not_consumed: list[str] = field(default_factory=list)
    """Acknowledged, and never given to a consumer."""
    wrong: list[str] = field(default_factory=list)
    """Given to a consumer with another body than was sent."""
    failures: Counter[str] = field(default_factory=Counter)
    lives: list[list[Sample]] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is lost, and there was something to lose."""
        return bool(self.acknowledged) and not (self.lost or self.not_consumed or self.wrong)

    @property
    def is_flat(self) -> bool:
        """Whether memory and connections do not rise; also where the last life was too short to say."""
        last = self.lives[-1] if self.lives else []
        if not last or last[-1].seconds - last[0].seconds < WARM_UP_SECONDS + _JUDGED_S:
            return True
        return all(slope is None or slope <= _RISE_MOST for slope in (self._rise(_own_mib), self._rise(_connections)))

    def _rise(self, value: Callable[[Sample], float]) -> float | None:
        """A minute, in the last life."""
        return slope_per_minute(self.lives[-1:], value)

    def row(self) -> str:
        """As a line of a Markdown table with `COLUMNS`."""
        samples = [sample for life in self.lives for sample in life]
        cells = (
            *(self.flush, str(self.seed), f"{self.seconds / 60:.1f}", str(self.kills)),
            *(f"{count:,}" for count in (self.misdeeds["cut"], self.misdeeds["freeze"], self.joins)),
            *(f"{count:,}" for count in (self.sent, self.acknowledged, self.consumed)),
            f"{len({*self.lost, *self.not_consumed}):,}",
            _slope_text(self._rise(_own_mib)),
            _slope_text(self._rise(lambda sample: sample.mapped_bytes / _MIB)),
            _slope_text(self._rise(_connections)),
            _slope_text(self._rise(lambda sample: sample.open_files)),
            _range_text([sample.own_bytes // _MIB for sample in samples]),
            _range_text([sample.descriptors for sample in samples]),
        )
        return _line(cells)


def _own_mib(sample: Sample) -> float:
    return sample.own_bytes / _MIB


def _connections(sample: Sample) -> float:
    return sample.descriptors - sample.open_files


def _slope_text(slope: float | None) -> str:
    return "–" if slope is None else f"{slope:+.2f}"


def _range_text(values: Sequence[int]) -> str:
    return f"{min(values)}–{max(values)}" if values else "–"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(rows: Sequence[str]) -> str:
    """Rows under their heads."""
    rule = ("---", *("---:" for _ in COLUMNS[1:]))
    return "\n".join((_line(COLUMNS), _line(rule), *rows))


def with_row(page: str, row: str) -> list[str]:
    """The rows of a page's table, with this one in place of that of its flush."""
    inside = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    kept = {
        line.split(" | ")[0]: line for line in inside if line.startswith(tuple(f"| {flush} |" for flush in FLUSHES))
    }
    kept[row.split(" | ")[0]] = row
    return [kept[f"| {flush}"] for flush in FLUSHES if f"| {flush}" in kept]


def soak(flush: str, seconds: float, seed: int, directory: Path, tell: Callable[[str], None]) -> Soaked:
    """One run; `seconds` are those in which things go wrong."""
    random = Random(seed)
    soaked = Soaked(flush, seed, seconds)
    book = Book()
    with ExitStack() as running:
        cluster = running.enter_context(
            own_cluster(directory, ADVERTISED, flushDiskType=flush, messageDelayLevel=_DELAYS)
        )
        ports = cluster.name_server_port, cluster.port
        ways = [(f"{ADVERTISED}:{port}", f"127.0.0.1:{port}") for port in ports]
        proxy = running.enter_context(bad_proxy(random.getrandbits(32), 1.0, ways))
        cluster.make_topic(TOPIC, QUEUES)
        sampler = Sampler()
        running.callback(sampler.close)
        senders, places = _clients(cluster, book, random, seconds)
        for thread in (*places, *senders):
            thread.start()
        proxy.tell("rough")
        soaked.kills = _live_and_die(cluster, sampler, random, seconds, tell)
        soaked.misdeeds = proxy.counts()
        _come_to_rest(proxy, senders, places, book)
        soaked.joins = sum(place.joined for place in places)
        sampler.pause()
        for place in places:
            place.stop.set()
        for place in places:
            place.join(60)
        code = cluster.end()
        assert code == 0, f"the broker ended with {code}:\n{cluster.output[-2_000:]}"
        assert not (cluster.store / "abort").exists(), "the broker has not closed its store"
        soaked.lives = sampler.lives
        stored = stored_keys(cluster.store)
    soaked.sent, soaked.acknowledged, soaked.consumed = book.sent_count, len(book.acknowledged), book.consumed_count
    soaked.lost = sorted(book.acknowledged - stored)
    soaked.not_consumed = sorted(book.acknowledged - book.consumed)
    soaked.wrong, soaked.failures = book.wrong, book.failures
    return soaked


def _clients(cluster: OwnCluster, book: Book, random: Random, seconds: float) -> tuple[list[Sending], list[Coming]]:
    plain = ClientSettings((f"{ADVERTISED}:{cluster.name_server_port}",), poll_name_server_interval_ms=5_000)

    def named(name: str) -> ClientSettings:
        return replace(plain, instance_name=name)

    senders = [
        Sending(number, named(f"producer-{number}"), book, random.getrandbits(32), 150) for number in range(PRODUCERS)
    ]
    stay_s = max(2.0, min(30.0, seconds / 10))
    places = [
        Coming(
            number,
            [named(f"consumer-{number}-{turn}") for turn in range(2)],
            book,
            random.getrandbits(32),
            stay_s,
        )
        for number in range(CONSUMERS)
    ]
    return senders, places


def _live_and_die(
    cluster: OwnCluster, sampler: Sampler, random: Random, seconds: float, tell: Callable[[str], None]
) -> int:
    """The broker is killed and started again for half of the time, and lives on until it is up; how often it was killed."""
    kills, began = 0, time.monotonic()
    end, last_kill = began + seconds, began + seconds / 2
    while True:
        sampler.watch(cluster.pid)
        life_s = max(_LEAST_LIFE_S, random.uniform(0.5, 1.5) * seconds / 2 / _KILLS)
        if time.monotonic() + life_s > last_kill:
            time.sleep(max(0.0, end - time.monotonic()))
            assert cluster.is_running, f"the broker has died by itself:\n{cluster.output[-2_000:]}"
            return kills
        time.sleep(life_s)
        assert cluster.is_running, f"the broker has died by itself:\n{cluster.output[-2_000:]}"
        sampler.pause()
        cluster.kill()
        time.sleep(random.uniform(0, 2))
        started = time.monotonic()
        cluster.start()
        kills += 1
        tell(f"killed after {life_s:.0f} s, there again after {time.monotonic() - started:.1f} s")


def _come_to_rest(proxy: BadProxy, senders: Sequence[Sending], places: Sequence[Coming], book: Book) -> None:
    """Nothing is sent any more, and the consumers stay until all is consumed that was acknowledged, or none of it comes any more."""
    for sender in senders:
        sender.stop.set()
    proxy.tell("calm")
    for sender in senders:
        sender.join(60)
        assert not sender.is_alive(), f"{sender.name} does not end"
    for place in places:
        place.stay.set()
    end = moved = time.monotonic()
    end += _DRAIN_S
    left_before = None
    while time.monotonic() < end:
        with book.lock:
            left = len(book.acknowledged - book.consumed)
        if left == 0:
            return
        if left != left_before:
            left_before, moved = left, time.monotonic()
        if time.monotonic() - moved > _STANDSTILL_S:
            return
        time.sleep(0.5)


def stored_keys(root: Path) -> set[str]:
    """Keys of all messages that the queues of topic and retry topic show. Nothing is repaired for it."""
    with open_store(root) as store:
        topics = [topic for topic in (TOPIC, retry_topic(GROUP)) if topic in store.topics()]
        return {message.properties["KEYS"] for topic in topics for message in served(store, topic)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.broker_server.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--flush", choices=FLUSHES, required=True)
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32))
    parser.add_argument("--page", type=Path, help="the page whose row of this flush is written")
    asked = parser.parse_args(arguments)
    tell = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    tell(f"seed {asked.seed}")
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        soaked = soak(asked.flush, asked.minutes * 60, asked.seed, Path(directory), tell)
    print(table([soaked.row()]))
    for what in ("lost", "not_consumed", "wrong"):
        if found := getattr(soaked, what):
            print(f"{what.replace('_', ' ')}: {len(found)}, the first {', '.join(found[:20])}")
    tell(f"sends that failed: {dict(soaked.failures)}")
    if asked.page is not None:
        rows = with_row(asked.page.read_text("utf-8"), soaked.row())
        write_into(asked.page, table(rows), BEGIN, END)
    return 0 if soaked.is_sound and soaked.is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
