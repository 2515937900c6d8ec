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
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.torture import faults, line_faults, steps
from tests.torture.rounds import HANG_SECONDS, PROJECT, command, from_line
from tests.torture.server_faults import SERVER_FAULTS
from tests.torture.step_faults import ENVIRONMENT, STEP_FAULTS

ROUNDS = 6
"""How many of a kind's rounds a mutant may survive."""
_FLAGS = re.DOTALL | re.MULTILINE


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
_LACKING = "tests/files/test_lacking_file_systems.py"
_NAMES = "tests/storage/tables/test_broker_names.py"
_DEMANDS = "tests/access/test_demands.py"
_FAILING = "tests/broker_server/test_failing_disk.py"
_STARTED_ANEW = "test_a_broker_whose_store_has_failed_is_started_anew_when_its_disk_answers"
_FAILED = "tests/broker/test_failed_writer.py"
_REPLICATING = "tests/storage/ha/test_replicating.py"
_LOWERING = "tests/storage/recovery/test_offsets_ahead.py"
_ROWS = "tests/storage/rules/test_message_rows.py"
_HANDED = "tests/hand_over/test_group_offsets.py"
_OWN_SOURCE = (
    "tests/sink/test_own_source.py::test_a_topic_of_the_same_store_is_refused_and_another_topic_or_store_is_not"
)
_READ = "tests/remoting_server/test_what_was_read.py"
_POOLS = "tests/remoting_server/test_pools.py"
_LEFT = "tests/broker_server/test_requests_of_those_who_left.py"
_LOST = r"\b(lost|phantom|hole|wrong pointer): "
_OF_QUEUES = r"queue \d+ (lacks|has)"
_WRONG_BODY = r"commitlog: body \| (silently wrong|served wrong with verifyCrc)"
_STATE = r"(topics|consumerOffset)\.json says|StateFileError\("

_ASSERTED = r"^E +(assert |AssertionError|Failed: DID NOT RAISE)"
"""What a test says that has looked, and found something else."""

MUTANTS: Mapping[str, Mutant] = MappingProxyType(
    {
        "a broker whose disk has failed is left as it is": Mutant(
            faults.failed_broker_is_left_as_it_is,
            (f"{_FAILING}::{_STARTED_ANEW}",),
            "it does not come to that",
        ),
        "a broker opens a log again on an empty mount point": Mutant(
            faults.store_is_opened_wherever_its_path_leads,
            (f"{_FAILING}::test_on_an_empty_mount_point_no_new_store_is_made",),
            "it does not come to that",
        ),
        "a broker opens its store again after any failure": Mutant(
            faults.store_is_opened_again_after_any_failure,
            (f"{_FAILING}::test_a_log_that_another_process_has_written_is_not_opened_by_itself",),
            "it does not come to that",
        ),
        "a failed broker's reads end before its disk answers": Mutant(
            faults.disk_is_not_tried_before_the_opening,
            (f"{_FAILING}::{_STARTED_ANEW}",),
            "it serves reads while its disk is away|it does not come to that",
        ),
        "a broker is opened again with the settings of its first start": Mutant(
            faults.opened_again_with_the_first_settings,
            (f"{_FAILING}::{_STARTED_ANEW}",),
            "operators' settings are those of the one before",
        ),
        "name servers do not hear of a store that takes nothing": Mutant(
            faults.name_servers_do_not_hear_of_a_failed_store,
            (f"{_FAILED}::test_name_servers_hear_that_nothing_can_be_written",),
            r"assert \{(0, 2|2, 0|2)\} == \{0\}",
        ),
        "the topics' version is the same when nothing can be written": Mutant(
            faults.version_of_topics_says_nothing_of_a_failed_store,
            (f"{_FAILED}::test_name_servers_hear_that_nothing_can_be_written",),
            "after.data_version != before.data_version",
        ),
        "a follower asks for no room": Mutant(
            faults.follower_asks_for_no_room,
            (f"{_REPLICATING}::test_a_full_disk_is_waited_for",),
            "no room",
        ),
        "a full disk ends a follower": Mutant(
            faults.full_disk_ends_a_follower,
            (f"{_REPLICATING}::test_a_full_disk_is_waited_for",),
            "no room|is_hopeless=True",
        ),
        "a controller appends behind a record that failed": Mutant(
            faults.journal_is_appended_to_behind_a_failure,
            ("tests/controller/test_journal.py::test_decisions_go_on_when_the_disk_does",),
            "journal.state",
        ),
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
        "a row's topic comes before the option": Mutant(
            faults.option_topic_loses,
            (f"{_ROWS}::test_a_topic_that_is_said_of_all_rows_comes_before_what_rows_say",),
            "Narrow",
        ),
        "a query's own source is not seen": Mutant(faults.own_source_is_not_seen, (_OWN_SOURCE,), "DID NOT RAISE"),
        "a topic of the same name is a query's own source": Mutant(
            faults.own_source_goes_by_names, (_OWN_SOURCE,), "WritesOwnSourceError"
        ),
        "a task writes into the query's own source": Mutant(
            faults.tasks_write_into_the_own_source,
            ("tests/sink/test_own_source.py::test_where_rows_name_their_topics_the_task_refuses_and_stages_nothing",),
            "DID NOT RAISE",
        ),
        "a job that steps back ends with 0": Mutant(
            faults.job_that_steps_back_ends_well,
            ("tests/jobs/test_run.py::test_a_store_that_another_writer_has_is_left_alone_and_a_scheduler_hears_of_it",),
            "assert 0 == 75",
        ),
        "offsets that a query hands over are not saved": Mutant(
            faults.handed_offsets_are_not_saved,
            (f"{_HANDED}::test_beside_our_broker_the_offsets_are_its_groups_and_on_the_disk",),
            r"consumerOffset\.json|KeyError",
        ),
        "offsets that a query hands over come before a reset": Mutant(
            faults.handed_offsets_come_before_a_reset,
            (f"{_HANDED}::test_while_a_reset_waits_nothing_is_stored_and_it_says_so",),
            "DID NOT RAISE",
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
        "a query's first batch is a write": Mutant(
            faults.first_batch_is_a_write,
            (
                "tests/sink/test_sink_tasks.py::"
                "test_the_first_batch_of_a_query_is_no_write_though_its_sink_has_the_querys_name",
                f"{_EXACT}::test_the_first_batch_of_a_query_with_other_rows_is_refused_and_of_a_write_is_not_sent",
            ),
            "DID NOT RAISE",
        ),
        "dead letters do not count": Mutant(
            faults.dead_letters_do_not_count,
            (
                "tests/sink/test_sink_tasks.py::"
                "test_a_dead_letter_that_is_a_good_row_when_its_batch_is_repeated_counts_all_the_same",
            ),
            "SPARK_MQ_SINK_AHEAD",
        ),
        "a dead broker stops every query": Mutant(
            faults.unasked_topic_is_an_error,
            (f"{_EXACT}::test_a_broker_that_cannot_be_asked_stops_no_query_that_its_directory_knows",),
            "BrokerUnreachableError",
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
        "tables that are ahead of the log are left": Mutant(
            faults.tables_ahead_are_left,
            (f"{_LOWERING}::test_offsets_behind_the_ends_are_lowered_and_others_stay",),
            r"'T@G': \{'0': 9",
        ),
        "what a repair cuts counts as delivered": Mutant(
            faults.deliveries_that_a_repair_cuts_are_forgotten,
            (f"{_LOWERING}::test_repair_lowers_what_the_cut_records_had_delivered",),
            r"assert \{'1': 3\} == \{'1': 2\}",
        ),
        "a backup keeps numbers that are ahead": Mutant(
            faults.backups_keep_their_old_numbers,
            (f"{_LOWERING}::test_old_numbers_do_not_come_back_out_of_a_backup",),
            r"'T@G': \{'0': 9",
        ),
        "a sink's mirror is lowered like an offset": Mutant(
            faults.mirrors_of_sinks_are_lowered,
            (f"{_LOWERING}::test_offsets_behind_the_ends_are_lowered_and_others_stay",),
            "ledger@CID_RMQ_SYS_SPARK_sink",
        ),
        "a unit of the timer is told by its place alone": Mutant(
            faults.unit_of_the_timer_is_told_by_its_place,
            (f"{_LOWERING}::test_a_timed_message_that_is_put_after_the_cut_is_delivered_in_place_of_the_cut_one",),
            r"assert \['new', 'new'",
        ),
        "retries are spread over the group's number": Mutant(
            faults.retries_are_spread_over_the_groups_number,
            ("tests/broker/test_send_back_rows.py::test_retries_go_to_queues_that_the_groups_retry_topic_has",),
            r"assert \[8\] == \[1\]",
        ),
        "a writer goes on after a failed write": Mutant(faults.writer_goes_on_after_a_failure, ("failed-io",), _LOST),
        "a size that nobody tells is none": Mutant(
            faults.unknown_size_is_none,
            (f"{_LACKING}::test_what_a_listing_leaves_out_is_requested[sizes]",),
            r"assert \[\] == \[",
        ),
        "an answer of another length is taken for the range": Mutant(
            faults.answers_of_any_length_are_taken,
            (f"{_LACKING}::test_a_file_that_is_shorter_than_it_was_is_refused",),
            "DID NOT RAISE",
        ),
        "a server that fails is one without the file": Mutant(
            faults.server_failure_is_absence,
            (f"{_LACKING}::test_a_table_that_cannot_be_read_is_not_taken_for_none[a server]",),
            "DID NOT RAISE",
        ),
        "a listing that was kept is believed": Mutant(
            faults.kept_listings_are_believed,
            (f"{_LACKING}::test_what_a_listing_leaves_out_is_requested[new listings]",),
            "a listing that was kept is not looked at",
        ),
        "a web page's names stay quoted": Mutant(
            faults.web_names_stay_quoted,
            (f"{_LACKING}::test_a_store_on_the_web_reads_as_the_local_one",),
            r"assert \['Topic'\] == ",
        ),
        "a log without files is an empty one": Mutant(
            faults.lost_log_is_empty, (f"{_LACKING}::test_a_log_without_files_is_lost_and_not_empty",), "DID NOT RAISE"
        ),
        "a store does not tell its broker's name": Mutant(
            faults.names_are_not_told,
            (
                "tests/spark/test_names_by_path.py::test_a_name_that_is_given_is_told_and_comes_to_a_store_that_is_there",
            ),
            "assert None == 'first'",
        ),
        "of two names the first one is taken": Mutant(
            faults.first_of_two_names_is_taken, (f"{_NAMES}::test_of_two_names_none_is_chosen",), "BrokerNames"
        ),
        "a renamed broker's old name stays": Mutant(
            faults.old_name_stays,
            (f"{_NAMES}::test_whoever_writes_under_a_new_name_leaves_that_alone",),
            r"assert \['a', 'b'\] == \['b'\]",
        ),
        **{name: Mutant(*fault) for name, fault in SERVER_FAULTS.items()},
        "access control asks for the first name of a body": Mutant(
            faults.first_consumer_is_judged_for_all,
            (f"{_DEMANDS}::test_every_name_in_a_body_is_demanded_once",),
            _ASSERTED,
        ),
        **{
            name: Mutant(partial(line_faults.planted, line), (line.judge,), _ASSERTED)
            for name, line in line_faults.LINES.items()
        },
        "requests of closed connections are dropped": Mutant(
            faults.requests_of_the_gone_are_dropped,
            (f"{_READ}::test_requests_of_peers_that_have_gone_are_done",),
            "all 400 are done",
        ),
        "one-way requests are refused, and nobody hears": Mutant(
            faults.one_way_requests_are_refused,
            (f"{_READ}::test_only_who_hears_of_it_is_refused_for_being_late",),
            "AssertionError|TimeoutError",
        ),
        "what had come when a connection broke is not read": Mutant(
            faults.last_piece_is_not_read,
            (f"{_READ}::test_when_a_connection_breaks_under_an_answer_what_had_come_is_done",),
            "all is done",
        ),
        "a client that has gone stays known by what it said before": Mutant(
            faults.the_gone_stay_known,
            (f"{_LEFT}::test_a_client_that_has_gone_is_not_known_by_what_it_said_before",),
            r"assert not \{'A': ConsumerGroup",
        ),
        "a server ends amid what it has read": Mutant(
            faults.server_ends_amid_what_was_read,
            (f"{_READ}::test_a_server_that_ends_waits_for_what_no_pool_has_yet",),
            r"assert \[0, 1",
        ),
        "one connection has the whole turn": Mutant(
            faults.one_connection_has_the_whole_turn,
            (f"{_READ}::test_no_connection_waits_for_all_that_another_has_sent",),
            r"assert \d+ <= 1000",
        ),
        "requests of one connection have no bound": Mutant(
            faults.requests_of_a_connection_have_no_bound,
            (f"{_READ}::test_of_one_connection_so_many_wait_and_the_rest_stays_in_its_socket",),
            "as many wait as may",
        ),
        "bytes of one connection have no bound": Mutant(
            faults.bytes_of_a_connection_have_no_bound,
            (f"{_READ}::test_of_one_connection_so_many_bytes_wait",),
            "nothing more is read",
        ),
        "requests begin of a peer that does not read": Mutant(
            faults.requests_begin_whoever_reads,
            (f"{_READ}::test_requests_of_a_peer_that_does_not_read_its_answers_wait_in_its_socket",),
            "unread_bytes|assert 0 < ",
        ),
        "a turn that fails ends the turns of all": Mutant(
            faults.turns_end_with_one_that_fails,
            (f"{_READ}::test_a_turn_that_fails_ends_its_connection_and_no_other",),
            "the first is hung up on",
        ),
        "a thread that was refused is not asked for again": Mutant(
            faults.threads_are_asked_for_once,
            (f"{_POOLS}::test_while_no_thread_can_be_started_requests_wait_for_one",),
            r"assert \(\[\]",
        ),
        "a put whose refusal nobody hears is refused": Mutant(
            faults.puts_that_nobody_hears_of_are_refused,
            (f"{_SERVICE}::test_a_put_whose_refusal_nobody_hears_waits_for_the_log",),
            "OS_PAGE_CACHE_BUSY",
        ),
        "late requests are looked at again and again": Mutant(
            faults.late_requests_are_looked_at_again_and_again,
            (f"{_POOLS}::test_a_late_one_that_cannot_be_refused_is_asked_once_and_wakes_no_thread_twice",),
            r"assert \[0, 1",
        ),
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
        blind = killer is None or re.search(MUTANTS[name].shows, sound[killer], _FLAGS) is not None
        killed[name] = None if blind else str(killer)
        note(f"mutant: {name}: {killed[name] or 'SURVIVED'}")
    return killed


def killer_of(name: str) -> Judge | None:
    """Who notices the mutant; None if nobody does."""
    for judge in _judges(MUTANTS[name].noticed_by):
        if re.search(MUTANTS[name].shows, _findings(judge, name), _FLAGS):
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
