"""The n-th operation on the disk fails: who was told that a message is stored finds it, now and after a power loss that follows.

A round is one story, a few steps of writers, a sink and a reader on a small store, told again and again while another operation fails,
with one error, once or from then on. Each time the fault is then taken away, and the store is opened as a new process would open it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from errno import EDQUOT, EINTR, EIO, EMFILE, ENOLCK, ENOSPC
from pathlib import Path
from random import Random

from jobs.verify_store import verify_store
from storage.errors import StorageError
from tests.crash.sink_store import QUEUE_COUNT, SinkStore
from tests.support.crash_file_system import CrashFileSystem, Disk
from tests.support.failing_file_system import SHORT, FailingFileSystem, Fault, Step
from tests.support.queue_history import History, judge, see
from tests.torture.failed_io_story import Story
from tests.torture.kind import Kind, Outcome

STORY_STEPS = 14
TRIALS = 60
POWER_LOSSES = 2
_TEXTS = 4
"""How many of a trial's failures are told."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What fails, and how."""

    steps: frozenset[Step]
    error: int
    for_good: bool

    def at(self, number: int) -> Fault:
        return Fault(self.steps, self.error, number, self.for_good)


_ERRORS: dict[Step, tuple[int, ...]] = {
    Step.LOOK: (EIO,),
    Step.LIST: (EIO, EMFILE),
    Step.OPEN: (EIO, EMFILE, EINTR),
    Step.READ: (EIO, EINTR),
    Step.CREATE: (EIO, ENOSPC, EDQUOT, EMFILE),
    Step.RESERVE: (EIO, ENOSPC, EDQUOT, EINTR),
    Step.WRITE: (EIO, ENOSPC, EDQUOT, EINTR, SHORT),
    Step.SYNC: (EIO, ENOSPC, EDQUOT, EINTR),
    Step.SYNC_DIRECTORY: (EIO, ENOSPC, EINTR),
    Step.RENAME: (EIO, ENOSPC, EDQUOT),
    Step.UNLINK: (EIO,),
    Step.LOCK: (EIO, ENOLCK, EMFILE, EINTR),
}
MODES = [
    *(
        Mode(frozenset({step}), error, for_good)
        for step, errors in _ERRORS.items()
        for error in errors
        for for_good in (False, True)
    ),
    *(Mode(frozenset(Step), error, for_good) for error in (EIO, EMFILE, EINTR) for for_good in (False, True)),
]
TELLING = [
    Mode(frozenset({Step.SYNC}), EIO, False),
    Mode(frozenset({Step.SYNC_DIRECTORY}), EIO, False),
    Mode(frozenset({Step.WRITE}), ENOSPC, False),
    Mode(frozenset({Step.WRITE}), SHORT, True),
    Mode(frozenset(Step), EIO, True),
]
"""Modes of which each has broken something."""


def play(random: Random, directory: Path) -> Outcome:
    """One story in one mode, with the fault at places all over it."""
    mode = random.choice([*MODES, *TELLING])
    return sweep(directory, mode, random.getrandbits(32), sync_flush=random.random() < 0.6, trials=TRIALS)


def sweep(directory: Path, mode: Mode, seed: int, *, sync_flush: bool, trials: int | None, steps: int = STORY_STEPS) -> Outcome:
    """The story of that seed, told with the fault at every place, or at `trials` of them."""
    outcome = Outcome()
    trial = Trial(directory, mode, seed, sync_flush, steps)
    count = trial.count_operations()
    numbers = range(1, count + 1)
    if trials is not None and count > trials:
        numbers = sorted(Random(seed).sample(numbers, trials))
    for number in numbers:
        outcome.trials += 1
        found = trial.run(number, outcome)
        outcome.failures += [f"{text} [{trial.name} {mode.at(number)}]" for text in found]
    outcome.figures["places in the stories"] += count
    return outcome


class Trial:
    """One story with one fault."""

    def __init__(self, directory: Path, mode: Mode, seed: int, sync_flush: bool, steps: int) -> None:
        self._directory = directory
        self._mode = mode
        self._seed = seed
        self._sync_flush = sync_flush
        self._steps = steps

    @property
    def name(self) -> str:
        return f"story {self._seed} under {'SYNC_FLUSH' if self._sync_flush else 'ASYNC_FLUSH'}:"

    def count_operations(self) -> int:
        """How many operations of this mode's kind the story takes when none fails."""
        with self._story(Fault(self._mode.steps, self._mode.error, 1 << 62)) as (story, files):
            story.run()
            assert not story.errors, story.errors
            return files.counted

    @contextmanager
    def _story(self, fault: Fault) -> Iterator[tuple[Story, FailingFileSystem]]:
        place = self._directory / "told"
        place.mkdir()
        root = SinkStore.make_place(place)
        files = FailingFileSystem(str(root), fault, seed=self._seed)
        try:
            yield Story(root, files, self._seed, self._steps, sync_flush=self._sync_flush), files
        finally:
            Disk().write_to(str(root))
            (place / "broker.conf").unlink()
            for path in (root, place):
                if path.exists():
                    path.rmdir()

    def run(self, number: int, outcome: Outcome) -> list[str]:
        """What is wrong after a fault at that place."""
        descriptors = _open_descriptors()
        with self._story(self._mode.at(number)) as (story, files):
            story.run()
            found = list(story.wrong)
            outcome.figures["errors met"] += len(story.errors)
            if _open_descriptors() != descriptors:
                found.append(f"{_open_descriptors() - descriptors} descriptors are left open")
            files.take_away()
            left, history, choice = deepcopy(files.disk), deepcopy(story.history), Random(f"{self._seed}/{number}")
            found += self._opened(story, files, history, "opened again", outcome)
            for _ in range(POWER_LOSSES):
                outcome.figures["power losses"] += 2
                disk = CrashFileSystem(story.root, files.disk.after_power_loss(choice), boot=2)
                found += self._opened(story, disk, deepcopy(history), "closed, after a power loss", outcome)
                disk = CrashFileSystem(story.root, left.after_power_loss(choice), boot=2)
                allowed = set() if self._sync_flush else story.not_durable()
                history_then = deepcopy(story.history)
                found += self._opened(story, disk, history_then, "after a power loss", outcome, allowed)
            why = f"met: {', '.join(files.met[:3])}; {'; '.join(story.errors[:2])}"
            return [f"{text} ({why})" for text in found[:_TEXTS]]

    def _opened(
        self,
        story: Story,
        files: CrashFileSystem,
        history: History,
        when: str,
        outcome: Outcome,
        allowed: Collection[str] = (),
    ) -> list[str]:
        """The store is opened, judged, put to, closed and audited: what is wrong. Messages with `allowed` keys may be lost."""
        found = []
        try:
            with story.reopened(files) as store:
                for violation in judge(history, see(store), log_minimum=store.log.minimum):
                    if violation.is_loss and any(key in violation.text for key in allowed):
                        outcome.figures["lost under ASYNC_FLUSH"] += 1
                    elif allowed and "\0" in violation.text:  # no checksum covers properties
                        outcome.figures["properties torn under ASYNC_FLUSH"] += 1
                    else:
                        found.append(str(violation))
                sent = history.ask(f"one-more-{len(history.sent)}", "orders", 0, b"one more")
                placed = store.put(sent.topic, sent.body, keys=[sent.key], queue_id=0, queue_count=QUEUE_COUNT)
                history.acknowledge(sent, placed.queue_offset, placed.commitlog_offset)
            found += [str(finding) for finding in verify_store(story.root).findings]
        except (StorageError, OSError) as error:
            found.append(f"{type(error).__name__}: {error}")
        return [f"{when}: {text}" for text in found]


def _open_descriptors() -> int:
    gc.collect()  # what was mapped is closed with the last view of it
    return len(os.listdir("/proc/self/fd"))


KIND = Kind(
    name="failed-io",
    claim="Whatever operation on the disk fails, once or for good, nothing is acknowledged that is not there afterwards, also after a power loss.",
    unit="operations failed",
    play=play,
)
