"""Power is lost, or the process is killed, at any operation on the disk: what was promised is there, nothing is there twice or moved.

A round records a workload on the disk that remembers every operation (`crash_file_system.py`). Of the states between them some are
made crashes: another process may have read the store before; the store is opened for writing, its history is judged, queues and
index are compared with a rebuild from the log, the work goes on, and all of that is judged again. A part of these lives,
their recovery included, ends in a crash too.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest import mock

import storage.batch.slices
import storage.log.writer
from storage import StoreConfig, open_store
from storage.errors import StorageError, StoreNotFoundError
from storage.files.local_file_system import LocalFileSystem
from storage.settings.nouns import CommitLogConfig, ConsumeQueueConfig, IndexConfig
from tests.support.crash_disk import EXTREMES, Disk
from tests.support.crash_file_system import CrashFileSystem
from tests.support.queue_history import History, Seen, Violation, judge, see
from tests.support.rebuilt_store import differences_from_rebuild
from tests.support.reproducible import reproducible
from tests.torture.kind import Kind, Outcome
from tests.torture.workload import StoreWorkload, broken_promises

STEPS = 45
CRASHES = 30
"""How many a round makes, each at another operation of its workload; `test_every_operation` goes to all of one."""
STEPS_AFTER = 5
FLUSHES = ("SYNC_FLUSH", "ASYNC_FLUSH", "mixed")
_WAYS = (*["torn"] * 6, *EXTREMES, "kill", "kill", "half a write")
_KILLS = ("kill", "half a write")
_ENDS_IN_A_CRASH = 0.4
_READ_BEFORE = 0.2
_SHOWN = 4


class Past(NamedTuple):
    """What came before an opening."""

    where: str = ""
    boot: int = 1
    life: int = 1
    marks: Sequence[str] = ()
    may_lose: bool = False
    """Power was lost since the history began, and a part of it was put under ASYNC_FLUSH."""


@dataclass
class Lives:
    """A store's lives, from crash to crash."""

    root: Path
    random: Random
    flush: str
    """Of `FLUSHES`; mixed = each opening chooses."""
    config: StoreConfig
    forgets: Callable[[str], bool] = lambda path: False
    """A planted fault: syncs of these paths are left out."""
    outcome: Outcome = field(default_factory=Outcome)

    def record(self, steps: int) -> CrashFileSystem:
        """The first life."""
        self.root.mkdir()
        files = self._files(None, 1)
        workload = self._workload(files, 0)
        workload.history = History(files.mark)
        workload.run(steps)
        self._fail(f"{self.flush}, in the first life", [repr(error) for error in workload.errors])
        return files

    def crash(self, files: CrashFileSystem, numbers: Sequence[int], past: Past) -> None:
        """After each of these operations the life ends, and another one begins."""
        wanted = frozenset(numbers)
        for number, marks, disk in files.states():
            if number in wanted:
                way = self.random.choice(_WAYS)
                where = f"{past.where}{way} after operation {number} ({_shown(files, number)})"
                lost = self.flush != "SYNC_FLUSH" and way not in _KILLS
                boot = past.boot + (way not in _KILLS)
                died = Past(where, boot, past.life + 1, [*past.marks, *marks], past.may_lose or lost)
                self.outcome.trials += 1
                self.outcome.figures["kills" if way in _KILLS else f"power losses under {self.flush}"] += 1
                try:
                    self._live_on(self._left(files, number, disk, way), died, self._consumed(disk))
                except StorageError as error:  # a store that does not open has lost everything
                    self._fail(where, [repr(error)])
                except Exception:  # what was found before it counts, too
                    self._fail(where, [traceback.format_exc()])

    def _left(self, files: CrashFileSystem, number: int, disk: Disk, way: str) -> Disk:
        """What the next process finds."""
        if way not in _KILLS:
            return disk.after_power_loss(self.random, way if way in EXTREMES else "")
        left = deepcopy(disk)
        following = files.operations[number] if number < len(files.operations) else None
        if way == "half a write" and following is not None and following.kind == "write":
            ends = range(-following.position % 4, len(following.data) + 1, 4)  # as pages do
            written = self.random.choice(ends) if ends else 0
            left.apply(following._replace(data=following.data[:written]))
        return left

    def _consumed(self, disk: Disk) -> list[Seen]:
        """What another process reads just before the crash, if one does."""
        if self.random.random() >= _READ_BEFORE:
            return []
        disk.write_to(str(self.root))
        try:
            with open_store(self.root, config=self.config, file_system=LocalFileSystem()) as reader:
                self.outcome.figures["readers just before a crash"] += 1
                return see(reader)
        except StoreNotFoundError:  # it is not made yet
            return []

    def _live_on(self, disk: Disk, past: Past, consumed: Sequence[Seen]) -> None:
        """Recover, judge, go on, and end in another crash, or be judged once more."""
        files = self._files(disk, past.boot)
        workload = self._workload(files, past.life)
        workload.store  # noqa: B018  # recovery
        known = self._judge(workload, past, consumed)
        recovered = len(files.operations)
        workload.history = History.begun_with(known, files.mark)
        begun = len(files.operations)
        workload.run(STEPS_AFTER)
        after = f"{past.where}, {', '.join(workload.steps)}"
        self._fail(after, [repr(error) for error in workload.errors])
        if self.random.random() < _ENDS_IN_A_CRASH:
            number = self.random.choice([*range(1, recovered + 1), *range(begun, len(files.operations) + 1)])
            if number <= recovered:
                self.outcome.figures["crashes amid a recovery"] += 1
                self.crash(files, [number], past._replace(where=f"{past.where}, then, recovering, "))
            else:
                promises = [mark for mark in past.marks if not mark.startswith("{")]
                self.crash(files, [number], Past(f"{after}, then ", past.boot, past.life, promises))
            return
        workload.finish()
        self._note(workload.judged(), after, may_lose=False)
        workload.close()
        self._fail(after, self._differences())

    def _judge(self, workload: StoreWorkload, past: Past, consumed: Sequence[Seen]) -> History:
        """Whether the recovered store agrees with the past; returns what is certain from now on."""
        history = History.from_lines(mark for mark in past.marks if mark.startswith("{"))
        history.consume(consumed)
        workload.log_minimum = max(
            (int(mark.removeprefix("minimum ")) for mark in past.marks if mark.startswith("minimum ")), default=0
        )
        seen = workload.seen()
        torn = sum(one.is_torn for one in seen)
        self.outcome.figures["torn where no checksum reaches"] += torn
        if torn and self.config.commit_log.force_verify_prop_crc:
            self._fail(past.where, [f"{torn} torn records are served, under a checksum over all of them"])
        self._note(judge(history, seen, log_minimum=workload.log_minimum), past.where, may_lose=past.may_lose)
        workload.let_go()
        self._fail(past.where, [*broken_promises(self.root, past.marks), *self._differences()])
        known = history.after(seen)
        known.consume(seen)
        return known

    def _differences(self) -> list[str]:
        return differences_from_rebuild(self.root, self.config)

    def _note(self, violations: Sequence[Violation], where: str, *, may_lose: bool) -> None:
        for violation in violations:
            if may_lose and violation.is_loss:
                self.outcome.figures[f"{violation.rule.value}, not promised"] += 1
        self._fail(where, [str(one) for one in violations if not (may_lose and one.is_loss)])

    def _fail(self, where: str, texts: Sequence[str]) -> None:
        if texts:
            more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
            self.outcome.failures.append(f"{self.flush}: {where}: {'; '.join(texts[:_SHOWN])}{more}")

    def _files(self, disk: Disk | None, boot: int) -> CrashFileSystem:
        files = CrashFileSystem(str(self.root), disk, boot)
        files.forgets = self.forgets
        return files

    def _workload(self, files: CrashFileSystem, days: int) -> StoreWorkload:
        workload = StoreWorkload(
            self.root, files, self.random, sync_flush=self.flush == "SYNC_FLUSH", config=self.config, days=days
        )
        workload.is_mixed = self.flush == "mixed"
        workload.mark = files.mark
        return workload


def _shown(files: CrashFileSystem, number: int) -> str:
    if not number:
        return "the beginning"
    operation = files.operations[number - 1]
    place = f" at {operation.position}" if operation.kind == "write" else ""
    return f"{operation.kind} {operation.path.removeprefix(files.root)[:80]}{place}"


def any_config(random: Random) -> StoreConfig:
    """Small files of many proportions; half of the stores have a checksum over whole records."""
    crc = random.random() < 0.5
    tiny = StoreConfig.tiny()
    slots = random.choice((2, 10, 50))
    return replace(
        tiny,
        commit_log=CommitLogConfig(
            mapped_file_size_commit_log=random.choice((4096, 8192, 20_000)),
            enabled_append_prop_crc=crc,
            force_verify_prop_crc=crc,
        ),
        consume_queue=ConsumeQueueConfig(mapped_file_size_consume_queue=random.choice((100, 400, 2_000))),
        index=IndexConfig(
            message_index_safe=random.random() < 0.3,
            max_hash_slot_num=slots,
            max_index_num=random.choice((7, 20, 200)),
        ),
    )


def play(
    random: Random,
    directory: Path,
    *,
    flush: str | None = None,
    steps: int = STEPS,
    crashes: int = CRASHES,
    forgets: Callable[[str], bool] = lambda path: False,
) -> Outcome:
    """One round. Chance chooses the flush type where none is given; `forgets` is a planted fault."""
    slice_bytes = random.choice((700, storage.log.writer.SLICE_BYTES))
    writes = mock.patch.object(storage.log.writer, "SLICE_BYTES", slice_bytes)  # several writes for a few rows
    slices = mock.patch.object(storage.batch.slices, "SLICE_BYTES", 2 * slice_bytes)  # and several slices
    with reproducible(random), writes, slices:
        lives = Lives(directory / "store", random, flush or random.choice(FLUSHES), any_config(random), forgets)
        files = lives.record(steps)
        count = len(files.operations) + 1
        lives.crash(files, random.sample(range(count), min(crashes, count)), Past())
        lives.outcome.figures[f"rounds under {lives.flush}"] += 1
        lives.outcome.figures["operations of the first lives"] += count
        return lives.outcome


KIND = Kind(
    name="power-loss",
    claim="After a power loss or a kill at any operation nothing that was promised is lost, there twice, elsewhere or out of order, "
    "and queues and index are what the log says",
    unit="crash, recovered and gone on from",
    play=play,
    bound_on="power losses under SYNC_FLUSH",
    bites="lost, not promised",
)
