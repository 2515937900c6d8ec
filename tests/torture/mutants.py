"""Faults planted into the engine, each of a sort that has lost somebody's messages, and who must notice it.

A mutant is noticed by a kind of torture where one of a few rounds fails as `shows` says, or by a test (PATH::NAME). It counts as
killed only then: a round that fails for another reason, a wrongly planted fault for one, does not count.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.torture import faults, steps
from tests.torture.rounds import HANG_SECONDS, PROJECT, command, from_line
from tests.torture.step_faults import ENVIRONMENT, STEP_FAULTS

ROUNDS = 6
"""How many of a kind's rounds a mutant may survive."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault, and who notices it."""

    plant: Callable[[], AbstractContextManager[Any]]
    noticed_by: tuple[str, ...]
    """Kinds of torture, or tests: one of them suffices."""
    shows: str
    """What the failure's text must hold, a regular expression."""


_PLUGINS = ("-p", "tests.torture.planting", "-p", "no:cacheprovider", "-p", "no:randomly")
_EXACT = "tests/sink/test_exact_commit.py"
_STALLED = "tests/crash/test_stalled_sync.py"
_SERVICE = "tests/storage/service/test_put_service.py"
_EXPIRY = "tests/crash/test_expiry.py"
_REPAIR = "tests/crash/test_repair.py"
_VOUCHED = "tests/crash/test_vouched_queues.py"
_PROGRESS = "tests/crash/test_sink_progress.py"
_LOST = r"\b(lost|phantom|hole|wrong pointer): "
_OF_QUEUES = r"queue \d+ (lacks|has)"
_WRONG_BODY = r"commitlog: body \| (silently wrong|served wrong with verifyCrc)"
_STATE = r"(topics|consumerOffset)\.json says|StateFileError\("

MUTANTS: Mapping[str, Mutant] = MappingProxyType(
    {
        "the log is never synced": Mutant(faults.log_is_never_synced, ("power-loss",), _LOST),
        "a put is acknowledged before its sync": Mutant(faults.acknowledged_before_the_sync, ("power-loss",), _LOST),
        "a group commit is acknowledged before its sync": Mutant(
            faults.acknowledged_before_the_group_commit,
            (f"{_SERVICE}::test_every_acknowledged_message_was_synced_before_its_answer",),
            "was acknowledged, and is not on the disk",
        ),
        "a failed sync is taken for a success": Mutant(faults.failed_sync_is_success, ("failed-io",), _LOST),
        "a new log file's directory is not synced": Mutant(
            faults.directory_of_new_log_file_is_not_synced, ("power-loss",), _LOST
        ),
        "a full log file is not synced": Mutant(faults.full_log_file_is_not_synced, ("power-loss",), _LOST),
        "queue entries come before the log's sync": Mutant(
            faults.queue_entries_before_the_sync, (_STALLED,), "synced, and no others"
        ),
        "a queue entry points one byte further": Mutant(faults.queue_entries_one_off, ("power-loss",), _OF_QUEUES),
        "recovery dispatches nothing": Mutant(faults.recovery_dispatches_nothing, ("power-loss",), _LOST),
        "recovery enters no index keys": Mutant(
            faults.recovery_enters_no_keys, ("power-loss",), "index lacks|a look-up finds"
        ),
        "recovery believes every queue entry": Mutant(
            faults.recovery_believes_every_entry,
            ("power-loss",),
            rf"\b(wrong pointer|duplicated|hole|lost): |{_OF_QUEUES}",
        ),
        "recovery checks no body": Mutant(faults.recovery_checks_no_body, ("bit-flips",), _WRONG_BODY),
        "recovery does not sync what a killed writer left": Mutant(
            faults.recovery_does_not_sync, (_VOUCHED,), re.escape("assert [b'one'] == [b'one', b'two']")
        ),
        "what is cut stays in the file": Mutant(
            faults.cut_log_keeps_its_bytes,
            ("power-loss",),
            rf"\b(wrong pointer|lost|duplicated|phantom|hole): |index has|{_OF_QUEUES}",
        ),
        "what is cut is not kept aside": Mutant(
            faults.cut_is_not_kept,
            (f"{_REPAIR}::test_no_intact_record_is_lost_and_the_repair_can_be_done_again",),
            r"assert set\(\) == \{\d+",
        ),
        "expired files are unlinked, and that is not synced": Mutant(
            faults.expiry_is_not_synced, (f"{_EXPIRY}::test_nothing_that_was_to_stay_is_lost",), "MISSING_ENTRY"
        ),
        "a hint is believed after a start of the machine": Mutant(
            faults.hint_outlives_the_machine, ("tests/crash/test_reboots.py",), r"None is not None(?s:.*)recovery"
        ),
        "an intent goes before the log is synced": Mutant(faults.intent_goes_before_the_sync, ("power-loss",), _LOST),
        "a batch is redone without a look": Mutant(faults.batch_is_redone_blindly, ("power-loss",), "duplicated: "),
        "a ledger message needs no mark": Mutant(
            faults.ledger_messages_need_no_mark,
            (f"{_PROGRESS}::test_in_a_new_store_nothing_counts_without_a_mark",),
            "already_done: True != False|SinkAheadError",
        ),
        "a consumer offset is believed": Mutant(
            faults.mirror_is_believed,
            (f"{_PROGRESS}::test_a_mirror_that_says_more_than_the_notes_stops_the_sink_too",),
            "DID NOT RAISE SinkProgressError|DID NOT RAISE <class",
        ),
        "log files go without a word": Mutant(
            faults.deletions_go_unsaid,
            ("tests/storage/test_retention.py::test_the_log_says_what_goes_and_why",),
            "assert",
        ),
        "another run's batch counts as done": Mutant(
            faults.another_runs_batch_is_done,
            (
                "tests/crash/test_commit_outcomes.py::"
                "test_the_last_batch_is_acknowledged_and_not_written_and_one_before_it_is_refused",
                "tests/crash/test_commit_outcomes.py::test_the_last_batch_with_other_rows_is_refused",
            ),
            "DID NOT RAISE",
        ),
        "another run's batch counts as sent": Mutant(
            faults.another_runs_batch_is_sent,
            (f"{_EXACT}::test_an_earlier_batch_and_the_last_one_with_other_rows_are_refused",),
            "DID NOT RAISE",
        ),
        "a copy of the staging directory sends": Mutant(
            faults.another_directorys_batch_is_sent,
            (f"{_EXACT}::test_of_two_staging_directories_with_one_checkpoint_the_older_is_refused",),
            "DID NOT RAISE",
        ),
        "staged rows are not compared with what was staged": Mutant(
            faults.staged_rows_are_not_compared,
            (
                "tests/crash/test_commit_outcomes.py::"
                "test_a_segment_that_changed_between_task_and_commit_is_refused_before_anything_is_written",
            ),
            "DID NOT RAISE",
        ),
        "state files are overwritten in place": Mutant(faults.state_is_overwritten_in_place, ("power-loss",), _STATE),
        "abort goes before the sync": Mutant(faults.abort_goes_before_the_sync, ("power-loss",), _LOST),
        "a writer goes on after a failed write": Mutant(faults.writer_goes_on_after_a_failure, ("failed-io",), _LOST),
    }
)
"""What is wrong → who must see it."""


def planted(name: str | None) -> AbstractContextManager[Any]:
    """The fault, as long as the context lasts; none for None."""
    if name in STEP_FAULTS:
        return steps.planted(STEP_FAULTS[name])
    return nullcontext() if name is None else MUTANTS[name].plant()


class Judge(NamedTuple):
    """A kind's round, or a test."""

    name: str
    seed: int

    def __str__(self) -> str:
        return f"{self.name} --seed {self.seed}" if self.seed else self.name


def plant_all(jobs: int, note: Callable[[str], None] = lambda line: None) -> dict[str, str | None]:
    """Each mutant's killer, None of a survivor. A round or a test that finds the same in the sound engine kills nothing."""
    with ThreadPoolExecutor(jobs) as pool:
        killers = dict(zip(MUTANTS, pool.map(killer_of, MUTANTS), strict=True))
        judges = list({killer for killer in killers.values() if killer is not None})
        sound = dict(zip(judges, pool.map(_findings, judges), strict=True))
    killed: dict[str, str | None] = {}
    for name, killer in killers.items():
        blind = killer is None or re.search(MUTANTS[name].shows, sound[killer], re.DOTALL) is not None
        killed[name] = None if blind else str(killer)
        note(f"mutant: {name}: {killed[name] or 'SURVIVED'}")
    return killed


def killer_of(name: str) -> Judge | None:
    """Who notices the mutant; None if nobody does."""
    for judge in _judges(MUTANTS[name].noticed_by):
        if re.search(MUTANTS[name].shows, _findings(judge, name), re.DOTALL):
            return judge
    return None


def _judges(noticed_by: Sequence[str]) -> Iterator[Judge]:
    for name in noticed_by:
        seeds = (0,) if ".py" in name else range(1, ROUNDS + 1)
        yield from (Judge(name, seed) for seed in seeds)


def _findings(judge: Judge, mutant: str | None = None) -> str:
    """What it says of the engine with this fault, or of the sound one."""
    if judge.seed:
        planting = [] if mutant is None else ["--mutant", mutant]
        ended = _run([*command(*judge), *planting, "--json"])
        if ended.returncode and mutant is None:
            raise RuntimeError(f"{judge} does not end well on the sound engine:\n{ended.stderr}")
        return "\n".join(from_line(ended.stdout.splitlines()[-1]).failures) if not ended.returncode else ""
    ended = _run(
        [sys.executable, "-m", "pytest", "-q", "-x", *_PLUGINS, judge.name],
        os.environ if mutant is None else {**os.environ, ENVIRONMENT: mutant},
    )
    if ended.returncode not in (0, 1) and mutant is None:
        raise RuntimeError(f"{judge} does not end well on the sound engine:\n{ended.stdout}")
    return ended.stdout if ended.returncode == 1 else ""


def _run(arguments: list[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What takes too long, or ends otherwise than by itself, has noticed nothing."""
    try:
        return subprocess.run(
            arguments, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(arguments, -1, "", "")


@contextmanager
def planted_by_environment() -> Iterator[Any]:
    """The fault that the environment names, for a test run that begins with this process."""
    with planted(os.environ.get(ENVIRONMENT)) as found:
        yield found
