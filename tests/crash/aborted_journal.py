"""A broker under SYNC_FLUSH on an ext4 that loses its power: rounds of sends, each judged by the trace of the broker's system calls.

    python -m tests.torture aborted-journal --rounds 100 --seed 1 [--page docs/tables/power-and-disks.md]

A round: producers send and note what was acknowledged; at a random moment the journal of the file system is aborted and nothing is
written any more (EXT4_IOC_SHUTDOWN with NOLOGFLUSH); the broker is killed, the file system unmounted and mounted again; a broker
recovers the store; what was acknowledged in this round and those before must be there, as it was sent. The store lives for some rounds,
then comes a new file system.

strace notes each write, sync and answer of the broker with its times. So each acknowledgement is held against the rule: the answer
leaves the process after the return of a sync of the file, which began after the record was written; and a file that is new is in its
directory by then, which was synced, too. A message that is missing is one of three:

    ours        its answer breaks the rule
    the disk's  the sync that covers it returned well, after the power was gone: the kernel took it back
    unknown     the sync returned before the power went

Behind them come as many rounds without a broker, the control: threads that do nothing but pwrite(2) and fdatasync(2), each in a file of
its own, on the same disk.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from spark_mq.client.message import Message
from spark_mq.client.send_results import SendResult, SendStatus
from storage import open_store
from tests.broker_server.own_cluster import OwnCluster
from tests.broker_server.soak_clients import TOPIC, Book, Sending, body_of
from tests.support.java_broker import wait_until
from tests.support.loop_disk import LoopDisk
from tests.support.served import served
from tests.torture.by_hand import ByHand, Report, Run, between

QUEUES = 4
PRODUCERS = 3
LOG_FILE_BYTES = 1 << 20
DISK_BYTES = 512 << 20
ROUNDS_A_DISK = 8
BEGIN, END = "<!-- aborted journal: written by tests.torture aborted-journal -->", "<!-- aborted journal: end -->"
_CALLS = "pwrite64,pwritev,pwritev2,fsync,fdatasync,syncfs,ftruncate,sendto,sendmsg"
_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
_CALL = re.compile(r"(\w+)\(\d+<(.*?)>(.*)", re.DOTALL)
_UNFINISHED, _RESUMED = " <unfinished ...>", re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_RESULT = re.compile(r"\) += (-?\d+)(?: \w+ \(.*\))? <(\d+\.\d+)>$")
_WRITTEN = re.compile(r", (\d+), (\d+)$")
_ANSWERED = re.compile(r'msgId\\":\\"([0-9A-F,]+)\\"')
PLACE_DIGITS = 16
"""Of a broker's message id: its place in the log, at the end, in hexadecimal."""


class Call(NamedTuple):
    """One system call that came back."""

    name: str
    path: str
    arguments: str
    began: float
    ended: float
    result: int


def tracer(output: Path) -> tuple[str, ...]:
    """The words in front of a command that note its calls."""
    shown = ("-f", "--seccomp-bpf", "-ttt", "-T", "-y", "-s", "1048576")
    return ("strace", "-D", *shown, "-e", f"trace={_CALLS}", "-o", str(output))


def calls(lines: Iterator[str]) -> Iterator[Call]:
    """Those of a trace, in the order of their ends."""
    begun: dict[str, tuple[str, float]] = {}
    for line in lines:
        if (parts := _LINE.match(line.rstrip("\n"))) is None:
            continue
        thread, stamp, text = parts[1], float(parts[2]), parts[3]
        if text.endswith(_UNFINISHED):
            begun[thread] = text.removesuffix(_UNFINISHED), stamp
            continue
        if (resumed := _RESUMED.match(text)) is not None:
            before, stamp = begun.pop(thread)
            text = before + resumed[2]
        result, call = _RESULT.search(text), _CALL.match(text)
        if result is not None and call is not None:
            arguments = call[3][: len(call[3]) - len(result[0])]
            yield Call(call[1], call[2], arguments, stamp, stamp + float(result[2]), int(result[1]))


class Cover(NamedTuple):
    """What a trace says of one answer."""

    is_promised: bool
    """The sync that covers the record, and that of the directory of a new file, had returned well when the answer left."""
    sync_began: float
    synced_at: float
    """When the first sync that covers it began and returned; 0 without one."""
    answered_at: float


@dataclass
class Trace:
    """The calls of one life of a broker, by file."""

    log: str
    writes: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    syncs: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    made: dict[str, float] = field(default_factory=dict)
    answers: dict[int, float] = field(default_factory=dict)
    """Place in the log → when the answer that names it began to leave."""

    @classmethod
    def read(cls, path: Path, log: str) -> Trace:
        trace = cls(log)
        with path.open(encoding="latin-1") as lines:
            for call in calls(lines):
                trace._note(call)
        return trace

    def _note(self, call: Call) -> None:
        if call.name in ("sendto", "sendmsg"):
            for ids in _ANSWERED.findall(call.arguments):
                for id_ in ids.split(","):
                    self.answers.setdefault(int(id_[-PLACE_DIGITS:], 16), call.began)
        elif not call.path.startswith(self.log):
            return
        elif call.name == "ftruncate":
            self.made[call.path] = call.ended
        elif call.name.startswith("pwrite"):
            self.writes[call.path].append(call)
        elif call.result == 0:
            self.syncs[call.path].append(call)

    def cover(self, place: int) -> Cover:
        """Of the answer that names this place."""
        answered = self.answers[place]
        path = f"{self.log}/{place // LOG_FILE_BYTES * LOG_FILE_BYTES:020d}"
        position = place % LOG_FILE_BYTES
        written = [call.ended for call in self.writes[path] if _covers(call, position) and call.began < answered]
        if not written:
            return Cover(False, 0, 0, answered)
        covering = [(call.ended, call.began) for call in self.syncs[path] if call.began >= written[-1]]
        synced_at, sync_began = min(covering, default=(0.0, 0.0))
        is_promised = bool(synced_at) and synced_at <= answered
        if path in self.made:
            named = [call.ended for call in self.syncs[self.log] if call.began >= self.made[path]]
            is_promised &= bool(named) and min(named) <= answered
        return Cover(is_promised, sync_began, synced_at, answered)


def _covers(call: Call, position: int) -> bool:
    numbers = _WRITTEN.search(call.arguments)
    return numbers is not None and int(numbers[2]) <= position < int(numbers[2]) + int(numbers[1])


class Noted(NamedTuple):
    """An acknowledged message: its place in the log, and its round."""

    place: int
    round_: int


class Noting(Sending):
    """Notes the place of each acknowledged message, too."""

    noted: dict[str, Noted]
    round_: int

    def _note(self, messages: Sequence[Message], result: object) -> None:
        assert callable(result)

        def taken() -> SendResult:
            found = result()
            assert isinstance(found, SendResult)
            if found.status is SendStatus.SEND_OK:
                ids = found.offset_message_id.split(",")
                for message, id_ in zip(messages, ids, strict=True):
                    self.noted[message.keys[0]] = Noted(int(id_[-PLACE_DIGITS:], 16), self.round_)
            return found

        super()._note(messages, taken)


@dataclass
class Tally:
    """What all rounds have come to."""

    figures: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    @property
    def is_flawless(self) -> bool:
        """Nothing that is ours, and nothing that nobody can explain."""
        return not any(self.figures[name] for name in ("too early", "lost: ours", "lost: unknown", "spoilt"))


class Rounds:
    """Rounds of one seed. Everything lies in `directory`."""

    def __init__(self, directory: Path, seed: int, tell: Callable[[str], None]) -> None:
        self._random = random.Random(seed)
        self._tell = tell
        self._directory = directory
        self._disk = LoopDisk(directory / "loop", DISK_BYTES)
        self._cluster = OwnCluster(
            directory,
            storePathRootDir=str(self._disk.place / "store"),
            flushDiskType="SYNC_FLUSH",
            mappedFileSizeCommitLog=LOG_FILE_BYTES,
            mappedFileSizeConsumeQueue=20_000,
            maxHashSlotNum=500,
            maxIndexNum=2_000,
        )
        self._noted: dict[str, Noted] = {}
        self._traces: dict[int, tuple[Trace, float]] = {}
        """Round → its trace, and when its power went."""
        self.tally = Tally()

    def run(self, count: int) -> Tally:
        """So many rounds."""
        self._cluster.begin_name_server()
        try:
            for number in range(count):
                if number % ROUNDS_A_DISK == 0:
                    self._disk.format()
                    self._noted, self._traces = {}, {}
                with self._mounted():
                    self._round(number)
                if number + 1 == count or (number + 1) % ROUNDS_A_DISK == 0:
                    with self._mounted():
                        self._cluster.start()
                        self._judge(number)
        finally:
            self._cluster.close()
        return self.tally

    @contextmanager
    def _mounted(self) -> Iterator[None]:
        """The disk; no broker runs on it any more when it goes."""
        self._disk.mount()
        try:
            yield
        finally:
            if self._cluster.has_broker:
                self._cluster.kill()
            self._disk.unmount()

    def _round(self, number: int) -> None:
        output = self._directory / f"trace-{number}"
        self._cluster.start(tracer(output))
        self._judge(number - 1)
        if number % ROUNDS_A_DISK == 0:
            self._cluster.make_topic(TOPIC, QUEUES)
        book = Book()
        numbers = range(number * PRODUCERS, (number + 1) * PRODUCERS)
        senders = [Noting(n, self._cluster.settings, book, self._random.getrandbits(32), 1e6) for n in numbers]
        for sender in senders:
            sender.noted, sender.round_ = self._noted, number
            sender.start()
        deadline = time.monotonic() + 60
        while not book.acknowledged and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(self._random.uniform(0.0, 2.0))
        gone_at = time.time()
        self._disk.lose_power()
        time.sleep(self._random.choice((0.0, 0.05, 0.3)))  # what is answered now is answered without a disk
        self._cluster.kill()
        for sender in senders:
            sender.stop.set()
        for sender in senders:
            sender.join(60)
        wait_until(lambda: output.read_bytes().endswith(b"+++\n"), "the tracer has ended")
        trace = Trace.read(output, str(self._disk.place / "store" / "commitlog"))
        output.unlink()
        self._traces[number] = trace, gone_at
        assert all(noted.place in trace.answers for noted in self._noted.values() if noted.round_ == number)
        early = [place for place in trace.answers if not trace.cover(place).is_promised]
        self.tally.figures["answers held against the trace"] += len(trace.answers)
        self.tally.figures["too early"] += len(early)
        self.tally.findings += [f"round {number}: the answer for {place} left too early" for place in early]
        self.tally.figures["acknowledged"] += len(book.acknowledged)
        late = sum(answered > gone_at for answered in trace.answers.values())
        self.tally.figures["answered after the power was gone"] += late
        self.tally.figures["rounds"] += 1
        answers = f"{len(trace.answers)} answers, {late} late, {len(early)} early"
        self._tell(f"{number:4d}  {len(book.acknowledged)} acknowledged, {answers}, {dict(book.failures)}")

    def _judge(self, number: int) -> None:
        """A broker has recovered the store after this round; what is served is compared."""
        found, torn = served_bodies(self._disk.place / "store") if self._noted else ({}, 0)
        self.tally.figures["torn, not acknowledged"] += torn
        texts: Counter[str] = Counter()
        for key, noted in list(self._noted.items()):
            if key not in found:
                del self._noted[key]
                trace, gone_at = self._traces[noted.round_]
                cover = trace.cover(noted.place)
                whose = "ours" if not cover.is_promised else "the disk's" if cover.synced_at > gone_at else "unknown"
                self.tally.figures[f"lost: {whose}"] += 1
                after = (moment - gone_at for moment in (cover.sync_began, cover.synced_at, cover.answered_at))
                began, ended, answered = (f"{1_000 * seconds:+.1f}" for seconds in after)
                sync = f"the sync began {began} ms from the power's loss and returned 0 at {ended} ms"
                texts[f"round {noted.round_}, lost, {whose}: {sync}, the answer left at {answered} ms"] += 1
            elif found[key] != body_of(key):
                self.tally.figures["spoilt"] += 1
                self.tally.findings.append(f"round {number}: {key} is served with another body")
        for text, count in texts.items():
            self.tally.findings.append(f"{text}: {count} messages")
            self._tell(self.tally.findings[-1])


def served_bodies(store: Path) -> tuple[dict[str, bytes], int]:
    """Key → body of all that a reader is served, and how many messages lost their key in a torn page, which no checksum covers."""
    found, torn = {}, 0
    with open_store(store) as opened:
        for message in served(opened, TOPIC):
            if message.keys:
                found[message.keys[0]] = message.plain_body
            else:
                torn += 1
    return found, torn


_CONTROL = """
import os, sys, threading

def work(number):
    descriptor = os.open(f"{sys.argv[1]}/{number}", os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, 64 << 20)
    os.fsync(descriptor)
    at = 0
    while True:
        os.pwrite(descriptor, b"%d\\n" % at * 100, at)
        os.fdatasync(descriptor)
        os.write(1, b"%d %d\\n" % (number, at))
        at += 3_000

for number in range(4):
    threading.Thread(target=work, args=(number,), daemon=True).start()
threading.Event().wait()
"""


def control(directory: Path, count: int, seed: int) -> Counter[str]:
    """So many rounds without a broker: how many writes were synced well, and how many of these are not there."""
    chance, figures = random.Random(seed), Counter[str]()
    disk = LoopDisk(directory / "control", DISK_BYTES)
    for _ in range(count):
        disk.format()
        output = directory / "synced"
        with disk, output.open("wb") as file:
            words = [sys.executable, "-c", _CONTROL, str(disk.place)]
            writer = subprocess.Popen(words, stdout=file, stderr=subprocess.DEVNULL)
            wait_until(lambda output=output: output.stat().st_size > 100, "it writes")  # type: ignore[misc]
            time.sleep(chance.uniform(0.0, 0.3))
            disk.lose_power()
            time.sleep(0.1)
            writer.kill()
            writer.wait()
        with disk:
            files = [(disk.place / str(number)).read_bytes() for number in range(4)]
        synced = [line.split() for line in output.read_text("ascii").splitlines()]
        lost = sum(not files[int(number)][int(at) :].startswith(b"%d\n" % int(at) * 100) for number, at in synced)
        figures["control: rounds"] += 1
        figures["control: writes whose sync returned well"] += len(synced)
        figures["control: lost"] += lost
        figures["control: rounds that lost some"] += lost > 0
    return figures


def table(tally: Tally) -> str:
    """The figures, as lines of a page."""
    lines = ["| what | count |", "| --- | ---: |"]
    lines += [f"| {name} | {count:,} |" for name, count in sorted(tally.figures.items())]
    return "\n".join([*lines, "", *(f"- {finding}" for finding in tally.findings)])


def play(run: Run) -> Report:
    """So many rounds, and as many of the control."""
    tally = Rounds(run.directory, run.seed, run.tell).run(run.rounds)
    tally.figures += control(run.directory, run.rounds, run.seed)
    return Report(table(tally), tally.is_flawless)


BY_HAND = ByHand(play, rounds=10, put=between(BEGIN, END))
