"""Faults that the stories of their order do not notice: which test does, or why nobody must."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Harmless(NamedTuple):
    """Why a fault loses, doubles and hides nothing. `shown_by` is a test (PATH::NAME) that meets the fault and passes all the same."""

    reason: str
    shown_by: str


def _story(name: str) -> str:
    return f"tests/crash/test_orders.py::test_the_disk_is_told_the_order[{name}]"


_OUTCOMES = "tests/crash/test_commit_outcomes.py::"
_BROKER = "tests/crash/test_after_a_broker.py::"
_CHANGED = "tests/crash/test_changed_segments.py::"
_OPENING, _CLOSING, _BATCH = "Opening for writing: ", "Closing: ", "A batch (`storage/batch/commit.py`)"
_FINISH, _MEND, _BIND = (
    f"{_BATCH} of finishing a batch: ",
    f"{_BATCH} of mending torn rows: ",
    "Binding a log (`opening.py`): ",
)
_TURNS = "tests/files/test_turns.py::"
_WAITING, _TICKET = (
    "Waiting for the lock (`files/lock.py`): ",
    "Waiting for the lock (`files/lock.py`) of taking a ticket: ",
)
_BEFORE, _TRIED = "those that came before looked for", "lock tried"
_TAKEN, _GIVEN = "where that was not ours to take, a ticket taken", "with the lock, the ticket given back"
_FIRST_COME = f"{_TURNS}test_one_that_waits_gets_the_lock_before_one_that_comes_again_at_once"
_IN_ORDER = f"{_TURNS}test_turns_come_in_the_order_of_tickets_and_a_newcomer_waits_behind_all"
_HELD = f"{_TURNS}test_a_lock_that_another_has_is_not_got_without_it"
_DOOR = f"{_TURNS}test_nobody_takes_a_ticket_while_another_does"
_LEFT = f"{_TURNS}test_who_has_the_lock_has_no_ticket_any_more"
_AHEAD = f"{_TURNS}test_the_ticket_is_there_before_the_door_opens"
_ENDED = "tests/storage/service/test_duties_end.py::test_a_closed_service_has_no_thread_left"
_SERVICE = "Putting by many threads (`put_service.py`, `flush.py`) of closing: "
_CHAINS, _INDEX_WRITER = "Index files of mending chains: ", "tests/storage/index/test_index_writer.py"
_AHEAD_TABLES = 'tables that count further than the log goes lowered ("Tables ahead of the log")'
_LOWERS = "tests/storage/recovery/test_offsets_ahead.py::"
_NO_HINT = "An opening has deleted the hint before anything was written, so none is there."
_ONLY_LOOK = "Both only look, and nothing is written before the second."
_NEW_ABORT = "A hint names the `abort` under which it was written, and the opening writes another one."
_ROOM = "Rows that are there are not written again: what a full disk leaves half-done, the next opening goes on with."
_UNDECIDED = "What was not renamed is never read, and the next intent of that name is written over it."

VERDICTS: Mapping[str, str | Harmless] = MappingProxyType(
    {
        f'{_OPENING}"{_AHEAD_TABLES}" is left out': f"{_LOWERS}test_offsets_behind_the_ends_are_lowered_and_others_stay",
        f'{_OPENING}"{_AHEAD_TABLES}" after "open intents finished ("A batch")"': (
            f"{_OUTCOMES}test_groups_are_lowered_before_the_missing_rows_of_a_decided_batch_are_appended"
        ),
        f'{_WAITING}"{_BEFORE}" is left out': _FIRST_COME,
        f'{_WAITING}"{_BEFORE}" after "{_TRIED}"': _FIRST_COME,
        f'{_WAITING}"{_TRIED}" is left out': _HELD,
        f'{_WAITING}"{_TRIED}" after "{_TAKEN}"': _HELD,
        f'{_WAITING}"{_TAKEN}" is left out': _FIRST_COME,
        f'{_WAITING}"{_TAKEN}" after "{_GIVEN}"': _FIRST_COME,
        f'{_WAITING}"{_GIVEN}" is left out': _LEFT,
        f'{_TICKET}"door (byte 0) shut" is left out': _DOOR,
        f'{_TICKET}"door (byte 0) shut" after "the greatest ticket that is held looked for"': _DOOR,
        f'{_TICKET}"the greatest ticket that is held looked for" is left out': _IN_ORDER,
        f'{_TICKET}"the greatest ticket that is held looked for" after "the next one locked"': _IN_ORDER,
        f'{_TICKET}"the next one locked" is left out': _IN_ORDER,
        f'{_TICKET}"the next one locked" after "door opened"': _AHEAD,
        f'{_TICKET}"door opened" is left out': _IN_ORDER,
        f'{_SERVICE}"duties stopped" is left out': _ENDED,
        f'{_SERVICE}"duties stopped" after "what was put synced, dispatched and answered"': Harmless(
            "No put is taken any more, so a turn beside the flush finds nothing that the flush does not bring to the disk.",
            _ENDED,
        ),
        f'{_OPENING}"what is to be cut and may hold messages copied ("Quarantine")" after "hint deleted"': Harmless(
            "Both come before anything is cut.", _story("opening with a bad record amid others")
        ),
        f'{_OPENING}"hint deleted" is left out': (
            "tests/crash/test_failed_syncs.py::test_a_batch_whose_sync_failed_afterwards_is_written_again"
        ),
        f'{_OPENING}"hint deleted" after "`abort`, synced, with ROOT"': Harmless(
            _NEW_ABORT, _story("opening after a kill")
        ),
        f'{_OPENING}"files of a failed sync written again" after "rows of open intents written again ("A batch")"': Harmless(
            "Each writes what it finds in the page cache and syncs it, and needs nothing of the other.",
            _story("opening after a failed sync"),
        ),
        f'{_OPENING}"after a start of the machine that noted in `abort`" after "{_AHEAD_TABLES}"': Harmless(
            "Until it is noted the next opening looks for what the machine may have torn, as this one has.",
            _story("opening after a start of the machine"),
        ),
        f'{_OPENING}"missing queue entries written" after "missing index keys written"': Harmless(
            "Queues and index are derived from the log alone, and are both synced later.",
            _story("opening after a kill"),
        ),
        f'{_CLOSING}"`index_synced.json` deleted" after "hint deleted"': Harmless(_NO_HINT, _story("closing")),
        f'{_CLOSING}"hint deleted" is left out': Harmless(_NO_HINT, _story("closing")),
        f'{_CLOSING}"hint deleted" after "`abort` deleted"': Harmless(_NO_HINT, _story("closing")),
        f'{_BIND}"no process has the log\'s last file open for writing" is left out': (
            "tests/storage/tables/test_binding_beside_a_writer.py::"
            "test_a_log_that_another_process_has_open_for_writing_is_not_bound"
        ),
        f'{_BIND}"no process has the log\'s last file open for writing" after "queues and checkpoint compared with the log"': Harmless(
            _ONLY_LOOK,
            "tests/storage/tables/test_binding_beside_a_writer.py::"
            "test_a_log_that_another_process_has_open_for_writing_is_not_bound",
        ),
        f'{_BIND}"queues and checkpoint compared with the log" is left out': (
            "tests/storage/tables/test_copies_and_mounts.py::test_another_stores_log_is_not_bound_wherever_it_lies"
        ),
        f'{_BIND}"queues and checkpoint compared with the log" after "`log_binding.json`, replaced whole and synced"': (
            "tests/storage/tables/test_copies_and_mounts.py::test_another_stores_log_is_not_bound_wherever_it_lies"
        ),
        'Putting by many threads (`put_service.py`, `flush.py`) of the queues\' turns: "that noted" after "in a thorough turn '
        '`index_synced.json`"': Harmless(
            "It is noted in memory only, under the same lock.", _story("the queues' turn")
        ),
        f'{_BATCH}: "ledger read" is left out': (
            f"{_OUTCOMES}test_the_last_batch_is_acknowledged_and_not_written_and_one_before_it_is_refused"
        ),
        f'{_BATCH}: "ledger read" after "staged files looked for"': (
            f"{_OUTCOMES}test_the_last_batch_is_acknowledged_and_not_written_and_one_before_it_is_refused"
        ),
        f'{_BATCH}: "staged files looked for" is left out': (
            f"{_CHANGED}test_a_batch_whose_dead_letters_are_gone_is_refused_with_nothing_written"
        ),
        f'{_BATCH}: "staged files looked for" after "segments compared with their sums"': Harmless(
            _ONLY_LOOK, _story("committing under ASYNC_FLUSH")
        ),
        f'{_BATCH}: "queues checked" is left out': (
            f"{_OUTCOMES}test_rows_for_a_queue_that_is_not_there_are_refused_and_nothing_is_written"
        ),
        f'{_BATCH}: "segments compared with their sums" after "queues checked"': Harmless(
            _ONLY_LOOK,
            f"{_OUTCOMES}test_a_segment_that_changed_between_task_and_commit_is_refused_before_anything_is_written",
        ),
        f'{_BATCH}: "segments compared with their sums" is left out': (
            f"{_OUTCOMES}test_a_segment_that_changed_between_task_and_commit_is_refused_before_anything_is_written"
        ),
        f'{_BATCH}: "queues checked" after "slices of another attempt compared with the rows"': Harmless(
            _ONLY_LOOK, f"{_OUTCOMES}test_rows_for_a_queue_that_is_not_there_are_refused_and_nothing_is_written"
        ),
        f'{_BATCH}: "slices of another attempt compared with the rows" is left out': (
            "tests/crash/test_slices.py::test_a_repeated_batch_with_other_rows_is_refused_by_name"
        ),
        f'{_BATCH}: "slices of another attempt compared with the rows" after "topics made"': Harmless(
            "A topic may be made for rows that are refused; no row is written.",
            "tests/crash/test_slices.py::test_a_repeated_batch_with_other_rows_is_refused_by_name",
        ),
        f'{_BATCH}: "slices, each a SLICE" after "and its rows"': (
            "tests/crash/test_slices.py::test_a_batch_is_slices_whose_rows_follow_them_directly"
        ),
        'Checking transactions (`transaction/check.py`): "halves put back" after "discarded halves"': Harmless(
            "A half is either put back or discarded.", _story("checking transactions")
        ),
        f'{_CHAINS}"items whose chain is not whole" is left out': _INDEX_WRITER,
        f'{_CHAINS}"items whose chain is not whole" after "slots"': _INDEX_WRITER,
        f'{_CHAINS}"header, where its number of used slots is wrong" is left out': _INDEX_WRITER,
        f'{_CHAINS}"header, where its number of used slots is wrong" after "synced"': Harmless(
            "No look-up reads the number of used slots, and the next mending counts them again.", _INDEX_WRITER
        ),
        f'{_BATCH}: "room reserved" after "log synced"': (
            "tests/crash/test_full_disk.py::test_whatever_finds_the_disk_full_the_same_call_succeeds_when_there_is_room"
        ),
        f'{_BATCH}: "its segments given back" after "ledger claimed, before a store\'s first batch"': Harmless(
            "Segments may be used again as soon as their intent is gone, and a first batch has no predecessor.",
            _story("committing under ASYNC_FLUSH"),
        ),
        f'{_BATCH}: "note of its last batch (`ledger.json`)" after "under SYNC_FLUSH, and without a consumer offset, '
        'log synced"': Harmless(
            "Under SYNC_FLUSH the log is synced by then, and without a consumer offset there is no note.",
            _story("committing under SYNC_FLUSH"),
        ),
        f'{_FINISH}"intents that were never renamed deleted" is left out': Harmless(
            _UNDECIDED, _story("opening after a kill amid a batch")
        ),
        f'{_FINISH}"intents that were never renamed deleted" after "queue entries and keys of torn rows put right"': Harmless(
            _UNDECIDED, _story("opening with a torn row")
        ),
        f'{_FINISH}"queue entries and keys of torn rows put right" is left out': (
            f"{_BROKER}test_a_torn_row_that_a_broker_took_for_whole_gets_tags_and_keys_again"
        ),
        f'{_FINISH}"queue entries and keys of torn rows put right" after "these synced, with a checkpoint"': (
            f"{_BROKER}test_what_was_torn_is_on_the_disk_before_the_intent_goes_that_could_mend_it_again"
        ),
        f'{_FINISH}"note of torn rows deleted" after "directory of intents synced"': Harmless(
            "To mend rows again changes nothing.", _story("opening with a torn row")
        ),
        f'{_FINISH}"directory of intents synced" after "segments compared with their sums"': Harmless(
            "Comparing writes nothing.", _story("opening after a kill amid a batch")
        ),
        f'{_FINISH}"segments compared with their sums" is left out': (
            f"{_CHANGED}test_what_is_left_of_a_batch_is_not_appended_from_a_changed_segment"
        ),
        f'{_FINISH}"segments compared with their sums" after "room reserved"': (
            f"{_CHANGED}test_what_is_left_of_a_batch_is_not_appended_from_a_changed_segment"
        ),
        f'{_FINISH}"room reserved" is left out': Harmless(_ROOM, _story("opening after a kill amid a batch")),
        f'{_FINISH}"room reserved" after "rows that are not there, with their ledger messages"': Harmless(
            _ROOM, _story("opening after a kill amid a batch")
        ),
        f'{_MEND}"segments compared with their sums" is left out': (
            f"{_CHANGED}test_a_torn_row_is_not_mended_from_a_changed_segment"
        ),
        f'{_MEND}"segments compared with their sums" after "torn rows noted"': (
            f"{_CHANGED}test_a_torn_row_is_not_mended_from_a_changed_segment"
        ),
        f'{_MEND}"synced" is left out': (
            f"{_BROKER}test_what_was_torn_is_on_the_disk_before_the_intent_goes_that_could_mend_it_again"
        ),
    }
)
