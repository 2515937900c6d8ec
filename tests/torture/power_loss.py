"""Power is lost, or the process is killed, at any operation on the disk: what was promised is there, nothing is there twice or moved.

A round records a workload on the disk that remembers every operation (`crash_file_system.py`). Of the states between them some are
made crashes: the store is opened for writing, its history is judged, queues and index are compared with a rebuild
from the log, the work goes on, and all of that is judged again. In a part of the crashes a second one comes amid the recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from storage import StoreConfig
from tests.support.crash_file_system import EXTREMES, CrashFileSystem, Disk
from tests.support.queue_history import History, Violation, judge
from tests.support.rebuilt_store import differences_from_rebuild
from tests.torture.kind import Kind, Outcome
from tests.torture.workload import StoreWorkload, broken_promises, reproducible

STEPS = 45
STATES = 40
"""How many crashes a round makes of its operations; in many rounds it comes to every one of them."""
STEPS_AFTER = 5
SECOND_CRASHES = 0.25
_WAYS = (*["torn"] * 6, *EXTREMES, "kill", "kill")
_SHOWN = 4


@dataclass
class Recording:
    """A workload that has run, and the crashes that are made of it."""

    root: Path
    random: Random
    sync_flush: bool
    config: StoreConfig = field(default_factory=StoreConfig.tiny)
    forgets: Callable[[str], bool] = lambda path: False
    """A planted fault: syncs of these paths are left out."""
    outcome: Outcome = field(default_factory=Outcome)

    def run(self, steps: int) -> CrashFileSystem:
        """Record the workload."""
        self.root.mkdir()
        files = CrashFileSystem(str(self.root))
        files.forgets = self.forgets
        workload = self._workload(files, 0)
        workload.history = History(files.mark)
        workload.run(steps)
        for error in workload.errors:
            self.outcome.failures.append(f"{self.flush}: without any fault: {error!r}")
        return files

    @property
    def flush(self) -> str:
        return "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH"

    def crash(self, files: CrashFileSystem, numbers: Sequence[int]) -> None:
        """After each of these operations."""
        wanted = frozenset(numbers)
        for number, marks, disk in files.states():
            if number in wanted:
                way = self.random.choice(_WAYS)
                where = f"{self.flush}, {way} after operation {number} ({_shown(files, number)})"
                self._crash(disk, list(marks), way, where)

    def _crash(
        self, disk: Disk, marks: list[str], way: str, where: str, boot: int = 2, *, is_loss: bool = False
    ) -> None:
        """`is_loss`: power was lost before, in the same history."""
        is_loss |= way != "kill"
        if way == "kill":
            left, figure = deepcopy(disk), "kills"
            boot -= not is_loss
        else:
            left, figure = disk.after_power_loss(self.random, way if way in EXTREMES else ""), "power losses"
        self.outcome.trials += 1
        self.outcome.figures[figure] += 1
        files = CrashFileSystem(str(self.root), left, boot)
        files.forgets = self.forgets
        try:
            workload = self._workload(files, boot)
            workload.store  # noqa: B018  # recovery
            if self.random.random() < SECOND_CRASHES and len(files.operations) > 1:
                self._crash_again(files, marks, where, boot, is_loss=is_loss)
            else:
                self._judge(workload, marks, where, is_loss=is_loss)
        except Exception as error:
            error.add_note(where)
            raise

    def _crash_again(self, files: CrashFileSystem, marks: list[str], where: str, boot: int, *, is_loss: bool) -> None:
        chosen = self.random.randint(1, len(files.operations))
        _, _, disk = next(state for state in files.states() if state[0] == chosen)
        self.outcome.figures["crashes amid a recovery"] += 1
        way = self.random.choice(_WAYS)
        where += f", then {way} after operation {chosen} of the recovery ({_shown(files, chosen)})"
        self._crash(disk, marks, way, where, boot + 1, is_loss=is_loss)

    def _judge(self, workload: StoreWorkload, marks: list[str], where: str, *, is_loss: bool) -> None:
        history = History.from_lines(mark for mark in marks if mark.startswith("{"))
        workload.log_minimum = max(
            (int(mark.removeprefix("minimum ")) for mark in marks if mark.startswith("minimum ")), default=0
        )
        seen = workload.seen()
        self.outcome.figures["torn where no checksum reaches"] += sum(one.is_torn for one in seen)
        violations = judge(history, seen, log_minimum=workload.log_minimum)
        self._note(violations, where, may_lose=is_loss and not self.sync_flush)
        workload.let_go()
        self._fail(where, [*broken_promises(self.root, marks), *differences_from_rebuild(self.root, self.config)])
        workload.history = history.after(seen)
        workload.history.consume(seen)
        workload.run(STEPS_AFTER)
        workload.finish()
        self._note(workload.judged(), f"{where}, and {', '.join(workload.steps)}", may_lose=False)
        workload.close()
        after = f"{where}, {', '.join(workload.steps)}"
        self._fail(after, [repr(error) for error in workload.errors])
        self._fail(after, differences_from_rebuild(self.root, self.config))

    def _note(self, violations: Sequence[Violation], where: str, *, may_lose: bool) -> None:
        for violation in violations:
            if may_lose and violation.is_loss:
                self.outcome.figures[f"{violation.rule.value} under ASYNC_FLUSH"] += 1
        self._fail(where, [str(one) for one in violations if not (may_lose and one.is_loss)])

    def _fail(self, where: str, texts: Sequence[str]) -> None:
        if texts:
            more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
            self.outcome.failures.append(f"{where}: {'; '.join(texts[:_SHOWN])}{more}")

    def _workload(self, files: CrashFileSystem, days: int) -> StoreWorkload:
        workload = StoreWorkload(
            self.root, files, self.random, sync_flush=self.sync_flush, config=self.config, days=days
        )
        workload.mark = files.mark
        return workload


def _shown(files: CrashFileSystem, number: int) -> str:
    operation = files.operations[number - 1] if number else None
    if operation is None:
        return "none"
    path = operation.path.removeprefix(files.root)
    return (
        f"{operation.kind} {path[:80]} at {operation.position}"
        if operation.kind == "write"
        else f"{operation.kind} {path[:80]}"
    )


def play(
    random: Random,
    directory: Path,
    *,
    sync_flush: bool | None = None,
    steps: int = STEPS,
    states: int = STATES,
    forgets: Callable[[str], bool] = lambda path: False,
) -> Outcome:
    """One round. Without `sync_flush` chance chooses; `forgets` is a planted fault."""
    with reproducible(random):
        chosen = random.random() < 0.5 if sync_flush is None else sync_flush
        recording = Recording(directory / "store", random, chosen, forgets=forgets)
        files = recording.run(steps)
        count = len(files.operations)
        recording.crash(files, random.sample(range(count + 1), min(states, count + 1)))
        recording.outcome.figures[f"rounds under {recording.flush}"] += 1
        return recording.outcome


KIND = Kind(
    name="power-loss",
    claim="After a power loss or a kill at any operation on the disk nothing that was promised is lost, twice, elsewhere or out of order, "
    "and queues and index are what the log says",
    unit="crash, recovered and gone on from",
    play=play,
)
