"""The n-th operation on the disk fails: every acknowledged message is there, now and after a power loss that follows.

A round is one workload on a small store, run again and again while another operation of some kind fails, with one error, once or
from then on. Each time the disk is well again afterwards, and the store is opened as a new process would open it: its history is
judged, the work goes on, and from before and after that power is lost. The method is that of SQLite's I/O error tests.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from errno import EDQUOT, EINTR, EIO, EMFILE, ENOLCK, ENOSPC, EROFS
from pathlib import Path
from random import Random

from storage import open_store
from storage.errors import StorageError
from tests.support.crash_disk import Disk
from tests.support.crash_file_system import CrashFileSystem
from tests.support.failing_file_system import SHORT, FailingFileSystem, Fault, Step
from tests.support.queue_history import judge, see
from tests.support.rebuilt_store import differences_from_rebuild
from tests.support.reproducible import reproducible
from tests.torture.kind import Kind, Outcome
from tests.torture.workload import StoreWorkload, broken_promises

STEPS = 12
STEPS_AFTER = 3
TRIALS = 16
"""How many operations of one workload fail in a round, each in a run of its own."""
_SHOWN = 4
_LOG_SYNC = "sync of /commitlog"


@dataclass(frozen=True, slots=True)
class Mode:
    """What fails, and how."""

    steps: frozenset[Step]
    error: int
    for_good: bool = False

    def at(self, number: int) -> Fault:
        return Fault(self.steps, self.error, number, self.for_good)


_ANY = frozenset(Step)
_ERRORS: dict[Step, tuple[int, ...]] = {
    Step.LOOK: (EIO,),
    Step.LIST: (EIO, EMFILE),
    Step.OPEN: (EIO, EMFILE, EINTR),
    Step.READ: (EIO, EINTR),
    Step.CREATE: (EIO, ENOSPC, EDQUOT, EMFILE, EROFS),
    Step.RESERVE: (EIO, ENOSPC, EDQUOT, EINTR),
    Step.WRITE: (EIO, ENOSPC, EDQUOT, EINTR, SHORT),
    Step.SYNC: (EIO, ENOSPC, EDQUOT, EINTR),
    Step.SYNC_DIRECTORY: (EIO, ENOSPC, EINTR),
    Step.RENAME: (EIO, ENOSPC, EDQUOT, EROFS),
    Step.UNLINK: (EIO, EROFS),
    Step.LOCK: (EIO, ENOLCK, EMFILE, EINTR),
}
MODES = (
    *(
        Mode(frozenset({step}), error, for_good)
        for step, errors in _ERRORS.items()
        for error in errors
        for for_good in (False, True)
    ),
    *(Mode(_ANY, error, for_good) for error in (EIO, EMFILE, EINTR) for for_good in (False, True)),
)
FAILED_SYNC = Mode(frozenset({Step.SYNC}), EIO)
TELLING = (
    FAILED_SYNC,
    Mode(frozenset({Step.SYNC}), EIO, for_good=True),
    Mode(frozenset({Step.SYNC_DIRECTORY}), EIO),
    Mode(frozenset({Step.WRITE}), ENOSPC),
    Mode(frozenset({Step.WRITE}), SHORT, for_good=True),
    Mode(_ANY, EIO, for_good=True),
)
"""The modes in which engines have most often been found wrong; they come up more often than the others."""


class MarkedWorkload(StoreWorkload):
    """A workload that keeps its marks."""

    def __init__(
        self, root: Path, file_system: CrashFileSystem, random: Random, *, sync_flush: bool, days: int = 0
    ) -> None:
        super().__init__(root, file_system, random, sync_flush=sync_flush, days=days)
        self.marks: list[str] = []
        self.mark = self.marks.append


class FailingWorkload(MarkedWorkload):
    """A workload on a failing disk, with readers that meet the faults too."""

    file_system: FailingFileSystem

    def __init__(self, root: Path, file_system: FailingFileSystem, random: Random, *, sync_flush: bool) -> None:
        super().__init__(root, file_system, random, sync_flush=sync_flush)
        self.wrong: list[str] = []
        """What breaks a rule that a history does not know of."""
        self._met = 0

    def _weights(self) -> Mapping[Callable[[], None], int]:
        return {**super()._weights(), self._read: 2}

    def _read(self) -> None:
        if (self.root / "commitlog").is_dir():
            with open_store(self.root, config=self.config, file_system=self.file_system) as reader:
                self.history.consume(see(reader))

    def _let_go(self, error: BaseException) -> None:
        if isinstance(error, OSError) and (error.errno is None or error.filename is None):
            self.wrong.append(f"{self.steps[-1]}: an error without number or path: {error!r}")
        met, self._met = self.file_system.met[self._met :], len(self.file_system.met)
        if self._store is not None and any(_LOG_SYNC in what for what in met):
            self._expect_refusal()
        super()._let_go(error)

    def _expect_refusal(self) -> None:
        """A sync of the log has failed: this store takes nothing more, though the disk is well again."""
        fault, self.file_system.fault = self.file_system.fault, None
        sent = self._ask("orders", 0)
        try:
            self.store.put(sent.topic, sent.body, keys=sent.key, queue_id=0)
        except StorageError:
            self.history.refuse(sent)
        else:
            self.wrong.append(f"after a failed sync of the log in {self.steps[-1]} a put is taken")
        finally:
            self.file_system.fault = fault


@dataclass(frozen=True, slots=True)
class Sweep:
    """One workload, run with a fault at one place after the other."""

    directory: Path
    """Empty, and left so."""
    mode: Mode
    seed: int
    sync_flush: bool
    steps: int = STEPS

    def run(self, outcome: Outcome, trials: int | None = TRIALS) -> None:
        """At every place of the workload, or at so many of them."""
        count = self._count_places()
        numbers: Sequence[int] = range(1, count + 1)
        if trials is not None and count > trials:
            numbers = sorted(Random(self.seed).sample(numbers, trials))
        for number in numbers:
            outcome.trials += 1
            self._run_with(self.mode.at(number), outcome)

    @property
    def _name(self) -> str:
        return f"workload {self.seed} under {'SYNC_FLUSH' if self.sync_flush else 'ASYNC_FLUSH'}"

    @property
    def _root(self) -> Path:
        return self.directory / "store"

    def _count_places(self) -> int:
        workload = self._work(Fault(self.mode.steps, self.mode.error, 1 << 62))
        assert not workload.errors, f"{self._name}: without any fault: {workload.errors}"
        self._clean()
        return workload.file_system.counted

    def _work(self, fault: Fault) -> FailingWorkload:
        self._root.mkdir()
        files = FailingFileSystem(str(self._root), fault, seed=self.seed)
        random = Random(self.seed)
        with reproducible(random):
            workload = FailingWorkload(self._root, files, random, sync_flush=self.sync_flush)
            workload.run(self.steps)
            workload.do(workload.let_go)
        return workload

    def _clean(self) -> None:
        Disk().write_to(str(self._root))
        (self.directory / "memory-of-store").unlink(missing_ok=True)

    def _run_with(self, fault: Fault, outcome: Outcome) -> None:
        before = _open_descriptors()
        try:
            workload = self._work(fault)
            outcome.figures["steps that failed"] += len(workload.errors)
            files, errors = workload.file_system, "; ".join(map(str, workload.errors[:2]))
            workload.errors.clear()  # their tracebacks hold open what failed
            trial = _Trial(self, f"{self._name}, {fault} ({', '.join(files.met[:3])}: {errors})", outcome)
            trial.fail(workload.wrong)
            trial.fail(_left_open(before))
            files.take_away()
            trial.judge(workload, Random(f"{self.seed}/{fault.number}"))
        except AssertionError:  # what a step of a workload finds wrong
            outcome.failures.append(f"{traceback.format_exc()} [{self._name}, {fault}]")
        except Exception as error:
            error.add_note(f"{self._name}, {fault}")
            raise
        self._clean()


@dataclass(slots=True)
class _Trial:
    """One fault, and what is found afterwards."""

    sweep: Sweep
    name: str
    outcome: Outcome

    def judge(self, failed: FailingWorkload, choice: Random) -> None:
        """What the workload has left, opened again and gone on with; and what power losses leave of either."""
        files, left = failed.file_system, deepcopy(failed.file_system.disk)
        may_lose = not self.sweep.sync_flush
        well = self._opened(failed, files, "opened again")
        if well is None:
            return
        when = f"opened again, {', '.join(well.steps)}"
        self._close(well, when)
        closed = CrashFileSystem(files.root, files.disk.after_power_loss(choice), boot=2)
        self._opened(well, closed, f"{when}, after a power loss")
        torn = CrashFileSystem(files.root, left.after_power_loss(choice), boot=2)
        self._opened(failed, torn, "after a power loss", may_lose=may_lose)

    def _opened(
        self, before: MarkedWorkload, files: CrashFileSystem, when: str, *, may_lose: bool = False
    ) -> MarkedWorkload | None:
        """What another process finds, judged; None where it cannot open the store."""
        self.outcome.figures["openings judged"] += 1
        workload = MarkedWorkload(before.root, files, Random(before.now_ms), sync_flush=self.sweep.sync_flush, days=1)
        workload.log_minimum = before.log_minimum
        workload.marks += before.marks
        try:
            seen = workload.seen()
        except (StorageError, OSError) as error:
            self.fail([f"{when}: {error!r}"])
            return None
        violations = judge(before.history, seen, log_minimum=workload.log_minimum)
        for violation in violations:
            if may_lose and violation.is_loss:
                self.outcome.figures[f"{violation.rule.value} under ASYNC_FLUSH"] += 1
        self.fail([f"{when}: {one}" for one in violations if not (may_lose and one.is_loss)])
        self.fail([f"{when}: {text}" for text in broken_promises(before.root, before.marks)])
        workload.history = before.history.after(seen)
        workload.let_go()
        self.fail([f"{when}: {text}" for text in differences_from_rebuild(before.root, workload.config)])
        workload.run(STEPS_AFTER)
        self.fail([f"{when}, {', '.join(workload.steps)}: {error!r}" for error in workload.errors])
        return workload

    def _close(self, workload: MarkedWorkload, when: str) -> None:
        workload.close()
        self.fail([f"{when}, closed: {text}" for text in differences_from_rebuild(workload.root, workload.config)])

    def fail(self, texts: Sequence[str]) -> None:
        self.outcome.failures += [f"{text} [{self.name}]" for text in texts[:_SHOWN]]


def _left_open(before: int) -> list[str]:
    if _open_descriptors() > before:
        gc.collect()  # what is in no use any more is no leak
    more = _open_descriptors() - before
    return [f"{more} descriptors are left open"] if more > 0 else []


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def play(random: Random, directory: Path) -> Outcome:
    """One round: a failed sync, which engines most often get wrong, another telling mode, and any."""
    outcome = Outcome()
    for mode in (FAILED_SYNC, random.choice(TELLING), random.choice(MODES)):
        Sweep(directory, mode, random.getrandbits(32), sync_flush=random.random() < 0.6).run(outcome)
    return outcome


KIND = Kind(
    name="failed-io",
    claim="Any operation on the disk fails, once or for good. Every acknowledged message is there afterwards, also after a power "
    "loss, and the store can be opened and written again",
    unit="failed operation, with the openings that follow",
    play=play,
)
