"""Faults that are one line of a function: other text in its source, of which it is compiled anew.

    Line(module, function, right, wrong, judge)      `function` as `Class.method` where it is one

For what takes more than a line, see `faults.py`. A line that does not stand there exactly once is an error, so that a fault whose place
has changed does not pass for a noticed one.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock


class Line(NamedTuple):
    """A line, what it becomes, and the test that must fail then."""

    module: str
    function: str
    right: str
    wrong: str
    judge: str


class _Room(NamedTuple):
    """Where the faults of some lines are, and the tests that must notice them."""

    module: str
    tests: str

    def line(self, function: str, right: str, wrong: str, test: str) -> Line:
        return Line(self.module, function, right, wrong, f"{self.tests}::{test}")


_SET = _Room("storage.ha.replicas", "tests/storage/ha/test_roles.py")
_SESSION = _Room("storage.ha.sessions", "tests/storage/ha/test_sessions.py")
_CUT = _Room("storage.ha.follower", "tests/storage/ha/test_truncation.py")
_COPIED = "tests/broker_server/test_state_copies.py"
_LOCKED = _Room("storage.files.locked_memory", "tests/storage/service/test_locked_memory.py")
_FOLLOWED = _Room("storage.ha.follower", "tests/storage/ha/test_replicating.py")
_RAW = _Room("storage.log.dispatch", "tests/storage/ha/test_replicating.py")
_WRITABLE = _Room("storage.tables.surroundings", "tests/cli/test_foreign_kinds.py")
_UNDER_BATCHES = _Room("storage.ha.follower", "tests/cli/test_foreign_kinds.py")
_MENDED = _Room("storage.recovery.mending", "tests/storage/queues/test_batch_queue.py")
_TOLD = _Room("spark_mq.broker_server.opening", "tests/broker_server/test_slaves.py")
_CONTROLLED = _Room("spark_mq.broker_server.controlled", "tests/broker_server/test_failed_store.py")
_KEEPER = _Room("spark_mq.broker_server.controllers", "tests/broker_server/test_sync_keeper.py")
_QUORUM = _Room("spark_mq.controller.quorum", "tests/controller/test_quorum.py")
_STAGING = _Room("spark_mq.sink.live_sink", "tests/sink/test_exact_writer.py")
_JOURNAL = _Room("spark_mq.sink.journal", "tests/sink/test_exact_writer.py")
_ROWS = _Room("spark_mq.sink.staged_rows", "tests/sink/test_exact_writer.py")
_LIMITS = _Room("spark_mq.sink.live_routes", "tests/sink/test_body_limits.py")
_REPLAY = _Room("spark_mq.replay", "tests/jobs/test_replay_dead_letters.py")
_LIVE = _Room("spark_mq.sink.live_brokers", "tests/sink/test_live_brokers.py")
_PATIENT = _Room("spark_mq.client.calls", "tests/sink/test_live_brokers.py")
_HOOKS = _Room("spark_mq.client.hooks", "tests/client/test_hooks.py")
_HOOKED_SENDS = _Room("spark_mq.client.sender", "tests/client/test_hooks.py")
_REPLIES = _Room("spark_mq.client.request_reply", "tests/client/test_request_reply.py")
_PLACES = _Room("spark_mq.sink.send_plan", "tests/sink/test_rows_that_wait.py")
_SHOWN_LEVELS = _Room("storage.rules.delays", "tests/sink/test_rows_that_wait.py")
_ROCKSDB = _Room("storage.files.rocksdb", "tests/storage/queues/test_rocksdb_queues.py")
_DERIVED = _Room("storage.queues.derived", "tests/storage/queues/test_rocksdb_queues.py")
_STORED_TABLES = _Room("storage.tables.document", "tests/storage/queues/test_rocksdb_queues.py")
_PUSH = _Room("spark_mq.client.push_engine", "tests/client/test_closing.py")
_PULL = _Room("spark_mq.client.pull_engine", "tests/client/test_closing.py")
_REBALANCE = _Room("spark_mq.client.rebalance", "tests/client/test_closing.py")
_OFFSETS = _Room("spark_mq.client.offset_stores", "tests/client/test_offset_stores.py")
_QUEUE = _Room("spark_mq.client.process_queue", "tests/client/test_process_queue.py")
_LISTENING = _Room("spark_mq.client.listeners", "tests/client/test_concurrent_consumption.py")
_CLOSED = _Room("spark_mq.client.listeners", "tests/client/test_closing.py")
_ORDERLY = _Room("spark_mq.client.listeners", "tests/client/test_orderly_consumption.py")
_CALLS = _Room("spark_mq.client.consumer_calls", "tests/client/test_queue_calls.py")
_PARKED = _Room("spark_mq.broker.pull", "tests/broker/test_parked_pulls.py")
_GROUPS = _Room("spark_mq.broker.group_offsets", "tests/broker/test_deleted_topics.py")
_COMMIT = _Room("spark_mq.sink.exact_commit", "tests/sink/test_exact_commit.py")
_RESET = _Room("spark_mq.client.push_engine", "tests/client/test_orderly_consumption.py")
_CLIENT_TABLES = _Room("spark_mq.broker.client_tables", "tests/broker/test_client_tables.py")
_OF_GROUPS = _Room("spark_mq.broker.group_offsets", "tests/broker/test_group_offsets.py")
_RUNS = _Room("spark_mq.remoting.frames", "tests/remoting/test_request_runs.py")
_SENT = _Room("spark_mq.broker.send_run", "tests/broker/test_send_runs.py")
_SENDER = _Room("spark_mq.broker.send", "tests/broker/test_send_runs.py")
_POOLS = _Room("spark_mq.remoting_server.pools", "tests/remoting_server/test_pools.py")
_ACCESS = _Room("spark_mq.access.authorization", "tests/access/test_demands.py")
_PLAIN = _Room("spark_mq.access.plain_acl", "tests/access/test_plain_acl.py")
_AHEAD = "tests/storage/recovery/test_offsets_ahead.py"
_TABLES = _Room("storage.recovery.offsets_ahead", _AHEAD)
_ONE = _Room("storage.transaction.outcomes", "tests/broker/test_end_transaction.py")
_CHECKED = _Room("storage.transaction.check_plan", "tests/broker/test_end_transaction.py")
_ARRAYS = _Room("storage.format.arrays", "tests/format/test_arrays.py")
_STRINGS = _Room("storage.format.properties", "tests/format/test_property_crc.py")
_KEYS = _Room("storage.format.keys", "tests/format/test_keys.py")
_INDEX = _Room("storage.index.store", "tests/storage/index/test_index_writer.py")
_RECORDS = _Room("storage.format.record_block", "tests/format/test_record_parts.py")
_PLACEMENT = _Room("storage.log.writer", "tests/storage/log/test_placement.py")
_HALVES = _Room("storage.transaction.half_queue", "tests/broker/test_end_transaction.py")
_TIMED = _Room("storage.delay.timer_records", "tests/storage/delay/test_timer_delivery.py")
_TAGGED = _Room("storage.recovery.verify", "tests/storage/index/test_tag_items.py")
_PRIORITIES = _Room("storage.rules.priorities", "tests/broker/test_releases_of_sends.py")
_CHECKPOINT = _Room("storage.put.store_writer", "tests/storage/log/test_checkpoint.py")
_POSITION = _Room("storage.log.commit_log", "tests/storage/log/test_checkpoint.py")
_GROUP_LOG = _Room("storage.format.dledger", "tests/storage/test_dledger_stores.py")
_GROUP_PLACE = _Room("storage.tables.surroundings", "tests/storage/test_dledger_stores.py")
_MEMBER_FILES = _Room("spark_mq.dledger.files", "tests/dledger/test_files.py")
_GROUPED = _Room("spark_mq.broker_server.grouped", "tests/broker_server/test_grouped_broker.py")
_TIERED = _Room("storage.queues.tiered_queue", "tests/storage/queues/test_tiered_queue.py")
_CONVERTED = _Room("storage.convert", "tests/storage/test_dledger_stores.py")
_STATIC = _Room("storage.rules.static_topics", "tests/storage/rules/test_static_topic_vectors.py")
_MOVED = _Room("storage.service.put_service", "tests/storage/service/test_put_group.py")
_CONFIRMED = _Room("storage.service.put_service", "tests/storage/service/test_confirmed.py")
_PASSED_OVER = _Room("spark_mq.source.offsets", "tests/source/test_pull_reader.py")
_PULLED = _Room("spark_mq.source.pull_reader", "tests/source/test_pull_reader.py")
_ARCHIVED = _Room("spark_mq.archive.archiver", "tests/archive/test_archiver.py")

LINES: Mapping[str, Line] = MappingProxyType(
    {
        # Static topics
        "a mapping whose epoch goes back is taken": _STATIC.line(
            "accepted_mapping",
            "if told.epoch < before.epoch:",
            "if told.epoch < 0:",
            "test_mappings_of_operators_are_accepted_and_refused_as_by_java",
        ),
        "a chain that ends before the known one is taken": _STATIC.line(
            "_check_kept",
            "if told[-1].generation < before[-1].generation:",
            "if not told:",
            "test_a_chain_that_ends_before_the_known_one_is_refused_though_its_epoch_is_newer",
        ),
        "every logical offset lies in the leader": _STATIC.line(
            "link_place",
            "item = find_item(queue.items, logical_offset)",
            "item = queue.leader",
            "test_an_offset_lies_in_the_link_that_holds_it",
        ),
        "a pull commits a logical offset as a physical one": _STATIC.line(
            "committed_place",
            "return (place.item.queue_id, place.queue_offset) if place.is_here else None",
            "return queue_id, committed",
            "test_an_offset_lies_in_the_link_that_holds_it",
        ),
        "a first link is cleaned away though it has messages": _STATIC.line(
            "without_expired",
            "found.minimum == found.maximum or found.maximum == 0",
            "found.minimum <= found.maximum",
            "test_only_a_first_link_whose_messages_have_expired_is_cleaned_away",
        ),
        "a queue moves while a put that was judged before is on its way": _MOVED.line(
            "PutService.save_static_topic",
            "self.append_waiting()",
            "pass",
            "test_puts_that_wait_are_readable_when_a_static_topic_has_changed",
        ),
        "a queue moves while replicas may still confirm messages in it": _CONFIRMED.line(
            "PutService.save_static_topic",
            "if not self.readable_within(self.log_end, _MOVED_SECONDS):",
            "if False:",
            "test_a_queue_does_not_move_away_from_what_is_not_confirmed",
        ),
        # Another release's store
        "a deletion of a timer message is compared in one form only": _TIMED.line(
            "cancelled_rows",
            'for form in (whole, pc.replace_substring_regex(whole, r"^[^+]*\\+", "")):',
            "for form in (whole,):",
            "test_a_deletion_takes_its_message_out_of_its_slot",
        ),
        "verify calls an index item of a tag wrong": _TAGGED.line(
            "IndexAudit._compare_file",
            "np.concatenate([wanted_pairs, tag_pairs])",
            "wanted_pairs",
            "test_a_store_of_two_releases_is_healthy",
        ),
        "the queues' position that a broker wrote is overwritten with zero": _CHECKPOINT.line(
            "StoreWriter._queue_position",
            "return self._checkpoint.queue_position(record, is_read=self.settings.release.checkpoint_has_queue_position)",
            "return 0",
            "test_the_queues_position_that_a_broker_wrote_goes_on",
        ),
        "a priority leads to a queue that the topic does not have": _PRIORITIES.line(
            "by_priority",
            "queue_id=min(priority, write_queue_count - 1)",
            "queue_id=priority",
            "test_a_priority_is_the_queue_of_a_message_of_no_other_type",
        ),
        "a queues' position that is unknown now is forgotten for good": _POSITION.line(
            "Checkpoint.queue_position",
            "record if record is not None and record > 0 else _POSITION_UNKNOWN",
            "record or 0",
            "test_a_position_that_is_lost_for_a_while_comes_back",
        ),
        "a cut leaves the queues' position behind the log's end": _CUT.line(
            "truncate_store",
            "min(checkpoint.logics_physical_offset, last.commitlog_offset)",
            "checkpoint.logics_physical_offset",
            "test_the_checkpoint_vouches_for_nothing_that_is_cut_before_it_is_cut",
        ),
        # Many rows
        "unique keys begin anew after 65,536 rows": _KEYS.line(
            "UniqueKeys.__init__",
            "divmod(first_rank + start, len(digits))",
            "divmod(first_rank, len(digits))",
            "test_ranks_go_on_beyond_16_bits",
        ),
        "what lies under a null gets into a joined row": _ARRAYS.line(
            "Stretches.of",
            "np.where(is_valid(texts), offsets[1:], offsets[:-1])",
            "offsets[1:]",
            "test_a_null_adds_nothing_to_a_joined_row_whatever_lies_under_it",
        ),
        "a record's last property that is open takes in the sum": _STRINGS.line(
            "closed",
            "if not pc.any(is_open).as_py():",
            "if True:",
            "test_another_records_sum_goes_and_room_comes",
        ),
        "index items that are linked together do not know those before": _INDEX.line(
            "link_items",
            "first_number + start, slots",
            "first_number, slots",
            "test_keys_without_slots_are_found_again_behind_a_brokers_keys",
        ),
        "a commit has the sum of whatever its body is": _RECORDS.line(
            "write_commits",
            "sums=False",
            "sums=True",
            "test_a_commit_keeps_the_sum_of_its_half",
        ),
        "ranks in a queue begin anew after 65,536 rows": _PLACEMENT.line(
            "_ranks",
            "np.arange(len(codes)) - ",
            "np.arange(len(codes)) % 65_536 - ",
            "test_each_queue_counts_for_itself_however_many_there_are",
        ),
        # Transactions of one unique key
        "a half that is sent again with its key counts as the one before": _ONE.line(
            "find_transaction",
            "if started_at <= copy.commitlog_offset < next_at",
            "if started_at <= next_at",
            "test_two_open_halves_of_one_key_are_ended_each_for_itself",
        ),
        "a check passes over a half behind which its key stands again": _CHECKED.line(
            "superseded",
            "transaction_codes(halves)",
            "halves.name_codes()",
            "test_a_check_asks_about_each_of_two_open_halves_of_one_key",
        ),
        "a commit does not count that names a half that has expired": _HALVES.line(
            "_copies",
            "np.where(is_started, places[begin], 0)",
            "np.where(is_started, places[begin], own)",
            "test_a_commit_counts_that_names_a_half_that_has_expired",
        ),
        # Tables ahead of the log
        "a queue without a directory keeps its groups' offsets": _TABLES.line(
            "lower_offsets",
            "found.get((topic, queue_id), 0)",
            "found.get((topic, queue_id))",
            "test_groups_of_a_queue_without_a_directory_go_back_to_where_it_begins_again",
        ),
        "a hint spares the look at tables that have changed": _TABLES.line(
            "lower_offsets",
            "ends.compared_tables == tables_now(root, files)",
            "ends.compared_tables is not None",
            "test_a_released_store_is_compared_too",
        ),
        "tables that are the same are read at each opening": _TABLES.line(
            "lower_offsets",
            "ends.compared_tables == tables_now(root, files)",
            "False",
            "test_a_table_is_read_once_and_not_again_by_a_hint_while_it_is_the_same",
        ),
        "nobody is told of a table that could not be compared": _TABLES.line(
            "lower_offsets",
            "_LOG.warning",
            "_LOG.debug",
            "test_a_table_that_nobody_can_read_stays_with_a_warning_and_the_others_are_lowered",
        ),
        "a follower's tables count as compared": _Room("storage.store", _AHEAD).line(
            "MessageStore._open_for_writing",
            "opening.ends.compared_tables = None",
            "pass",
            "test_what_a_follower_has_copied_is_compared_when_its_store_is_written",
        ),
        "a slave that becomes a master hides topics whose entries have not come": _Room("storage.store", _COPIED).line(
            "MessageStore._open_for_writing",
            "self.make_missing_topics(since)",
            "pass",
            "test_a_slave_that_becomes_a_master_serves_all_topics_of_its_log",
        ),
        "a topic that the master has deleted comes back": _Room("storage.recovery.topics_behind", _COPIED).line(
            "make_missing_topics",
            ">= since",
            ">= 0",
            "test_a_topic_whose_messages_came_without_its_entry_is_served_once_the_master_is_gone",
        ),
        "what waits in the pool is written over": _LOCKED.line(
            "LockedMemory.keep",
            "self._used = end",
            "self._used = 0",
            "test_the_pool_is_locked_memory_of_so_many_log_files",
        ),
        "groups of a deleted topic count as compared": _Room("storage.dispatch.writer", _AHEAD).line(
            "DerivedWriter.forget",
            "self._ends.compared_tables = None",
            "pass",
            "test_groups_of_a_topic_that_was_deleted_are_compared_when_it_is_made_again",
        ),
        "groups of a lost queue go back before it is rebuilt": _Room("jobs.rebuild_queues", _AHEAD).line(
            "rebuild_queues",
            'writes_as="rebuilder"',
            'writes_as="owner"',
            "test_groups_of_a_queue_that_is_rebuilt_stay_where_they_are",
        ),
        "each queue file elsewhere is asked for its length": _Room(
            "storage.files.remote", "tests/files/test_remote.py"
        ).line(
            "RemoteFileSystem.open_small_reads",
            "if size is None",
            "if True",
            "test_no_queue_file_is_asked_for_its_length_behind_the_listing_that_told_it",
        ),
        # DLedger
        "a stale entry of an earlier term continues the log": _GROUP_LOG.line(
            "entries_in",
            "(np.diff(terms) >= 0)",
            "(np.diff(terms) > -99)",
            "test_an_entry_that_a_broker_cuts_off_ends_the_log",
        ),
        "a member's vote is said before it is synced": _MEMBER_FILES.line(
            "MemberFiles.save_vote",
            "self._files.replace(self._vote_path, encode_vote(vote))",
            "(self._files.exists(path := self._vote_path) or self._files.create_file(path, 0)), "
            "self._files.write(path, 0, encode_vote(vote))",
            "test_a_vote_is_durable_when_it_is_saved",
        ),
        "a sync amid a member's write takes its mark": _MEMBER_FILES.line(
            "_Folder.write",
            "self._unsynced.add(start)  # a sync",
            "pass  # a sync",
            "test_a_sync_does_not_vouch_for_bytes_that_are_still_being_written",
        ),
        "a member's cut has no commit point": _MEMBER_FILES.line(
            "MemberFiles._cut",
            "self._sums.replace(LogBase(last_index, self._begin_index))",
            "pass",
            "test_what_is_written_behind_a_cut_is_durable",
        ),
        "a member's failed sync is not noted": _MEMBER_FILES.line(
            "MemberFiles._run",
            "with self._noting():",
            "with ExitStack():",
            "test_what_is_found_after_a_failed_sync_outlives_a_loss_of_power",
        ),
        "a failed sync of a member's recovery is not noted": _MEMBER_FILES.line(
            "MemberFiles.__init__",
            "with self._noting():",
            "with ExitStack():",
            "test_what_is_found_after_a_failed_sync_outlives_a_loss_of_power",
        ),
        "a member's restart keeps what was committed": _MEMBER_FILES.line(
            "MemberFiles._restart",
            "self._write_checkpoint(NO_INDEX)",
            "pass",
            "test_a_log_that_began_anew_knows_nothing_as_committed",
        ),
        "a torn entry at the end of a member's log is accepted": _MEMBER_FILES.line(
            "_FoundSums.vouch_for",
            "return own is not None and (own.term, own.entry_crc) == (head.term, zlib.crc32(content))",
            "return own is not None",
            "test_an_entry_whose_head_alone_was_written_is_cut_off",
        ),
        "a member's checkpoint counts what the queues of its closed store lack": _GROUPED.line(
            "GroupedBroker._entered",
            "return files.last_index_by(self._entered_end if running is None else running.dispatched_end, committed)",
            "return committed",
            "test_the_checkpoint_of_a_stopped_member_counts_no_entry_that_its_queues_lack",
        ),
        "a member begins below its checkpoint": _MEMBER_FILES.line(
            "MemberFiles._recover",
            "walked.end_index < known or",
            "False or",
            "test_a_checkpoint_above_the_logs_end_is_refused",
        ),
        "a converted store ends where a bad record is": _CONVERTED.line(
            "_Converter._walk",
            "if walk.end < end:",
            "if False:",
            "test_what_cannot_be_converted_is_refused_by_name",
        ),
        "a converted message names where its half was": _CONVERTED.line(
            "_Converter._patch",
            "self._moved(halves[rows])",
            "halves[rows]",
            "test_a_converted_store_holds_the_same_records_at_other_places[leader-dledger]",
        ),
        "a converted timer delivers what is at the former places": _CONVERTED.line(
            "_Converter._copy_timer_log",
            "self._moved(units[_PLACE][rows].astype(np.int64))",
            "units[_PLACE][rows].astype(np.int64)",
            "test_a_conversion_moves_the_places_that_the_timer_names",
        ),
        "a conversion goes on beside a broker that has started": _CONVERTED.line(
            "_Converter._make",
            "self._files.exists(self._missing_lock)",
            "False",
            "test_a_broker_that_starts_amid_a_conversion_ends_it",
        ),
        "queues that fall back to a damaged log lose its messages without a word": _DERIVED.line(
            "DerivedQueueStore.give_up",
            "raise damage",
            "pass",
            "test_a_late_fall_back_to_a_damaged_log_is_an_error_and_no_loss",
        ),
        "a batch that a dead follower has written stops every opening": _Room(
            "storage.recovery.passes", _FOLLOWED.tests
        ).line(
            "_first_cut",
            "is_batch & (offsets >= greatest_end)",
            "is_batch & False",
            "test_a_batch_that_a_killed_follower_has_written_and_not_cut_is_cut_by_the_next_opening",
        ),
        "two conversions clear each other's files": _CONVERTED.line(
            "_Converter._own_partial",
            "with self._files.locked(lock):",
            "if True:",
            "test_of_two_conversions_at_once_the_second_one_writes_nothing",
        ),
        "a peer's log that is missing is read as the plain part alone": _GROUP_PLACE.line(
            "_look_for_group",
            "if not any(each.is_there for each in (own, *configured)):",
            "if False:",
            "test_a_peers_directory_that_is_missing_is_named",
        ),
        "a copy reads the group log that its broker.conf names": _GROUP_PLACE.line(
            "_look_for_group",
            "Surroundings(root, look.root, own, configured,",
            "Surroundings(root, look.root, own._replace(is_there=False, has_files=False), configured,",
            "test_a_copy_reads_its_own_group_log_and_not_the_one_that_its_broker_conf_names",
        ),
        # Tiered storage
        "a lost file of tiered storage is a gap": _TIERED.line(
            "MovedMessages.slices",
            "if sound < len(found):",
            "if False:",
            "test_a_lost_segment_is_named_and_never_a_gap",
        ),
        "what expires from the log while a driver runs is not looked for in tiered storage": _TIERED.line(
            "TieredConsumeQueue.held_minimum",
            "self.moved.list_files()",
            "pass",
            "test_what_expires_from_the_log_while_a_driver_runs_is_read_where_it_has_moved",
        ),
        "a key passes over what the index lacks": _Room(
            "spark_mq.source.cluster", "tests/spark/test_key_lookup.py"
        ).line(
            "_uncovered_ranges",
            "(places >= 0) & ~store.index.names(places)",
            "places < -1",
            "test_option_key_finds_all_messages_whatever_the_index_covers[without_items_amid_files-looked_at4]",
        ),
        "a key passes over what has moved": _Room("spark_mq.source.cluster", _TIERED.tests).line(
            "offsets_with_key",
            "if piece.start < border else []",
            "if False else []",
            "test_a_key_finds_what_has_moved",
        ),
        # Fail-over
        "a replica joins without having caught up": _SET.line(
            "SyncState._ready",
            "joining.target = end",
            "joining.target = replica.acknowledged",
            "test_a_replica_is_waited_for_before_the_controller_is_asked",
        ),
        "who left while it joined joins with what it was to have then": _SET.line(
            "SyncState._ready",
            "if each not in known or each in self.members]",
            "if each in self.members]",
            "test_who_leaves_while_it_joins_has_to_catch_up_with_all_that_has_come_since",
        ),
        "who has not said where it stands is waited for": _SET.line(
            "SyncState.look",
            "if each.acknowledged != UNPROVEN",
            "if True",
            "test_who_has_not_said_where_it_stands_is_not_waited_for_however_short_the_log_is",
        ),
        "a member that was just added is late at once": _SET.line(
            "SyncState.holds",
            "self._caught_up[broker_id] = now_ms",
            "pass",
            "test_a_member_that_the_controller_has_just_added_has_its_time_to_come",
        ),
        "a question in doubt is forgotten when a new one begins": _SET.line(
            "SyncState.asks",
            "self._requested | wanted",
            "wanted",
            "test_what_is_in_doubt_is_waited_for_when_something_else_is_asked_for",
        ),
        "what is asked for again leaves out who is in sync": _SET.line(
            "SyncState.look",
            "self.members | self._in_doubt",
            "self._in_doubt",
            "test_what_is_in_doubt_is_waited_for_when_something_else_is_asked_for",
        ),
        "a learner's copy counts for an acknowledgement": _TOLD.line(
            "tell", " if not replica.is_learner", "", "test_a_learners_copy_acknowledges_nothing"
        ),
        "a slave says that it is another one": _SESSION.line(
            "MasterSession._on_handshake",
            "(self._slave is not None and said != self._slave)",
            "False",
            "test_who_says_that_it_is_somebody_else_is_refused_before_it_asks_for_anything",
        ),
        "a slave that has what was cut is sent on": _SESSION.line(
            "MasterSession.is_past",
            "self._has_started and self.sent > extent.end",
            "False",
            "test_a_slave_that_was_sent_what_was_cut_since_is_known",
        ),
        "a cut leaves a checkpoint that vouches for what was cut": _CUT.line(
            "truncate_store",
            "min(checkpoint.physic_msg_timestamp, last.store_time_ms)",
            "checkpoint.physic_msg_timestamp",
            "test_the_checkpoint_vouches_for_nothing_that_is_cut_before_it_is_cut",
        ),
        "a cut begins in a store that passes for closed": _CUT.line(
            "truncate_store",
            "mark_open(files, root, boot_left(files, root))",
            "pass",
            "test_the_checkpoint_vouches_for_nothing_that_is_cut_before_it_is_cut",
        ),
        "what all replicas have is cut": _CONTROLLED.line(
            "ControlledBroker._diverged",
            "if agreed < confirmed:",
            "if False:",
            "test_what_all_replicas_have_is_not_cut_wherever_a_master_s_log_ends",
        ),
        "the cut of one role is made in the next": _CONTROLLED.line(
            "ControlledBroker._start_as",
            "self.role = self._cut_to = None",
            "self.role = None",
            "test_what_the_follower_of_one_role_says_while_it_ends_cuts_nothing_in_the_next",
        ),
        "a deposed master asks nobody": _KEEPER.line(
            "SyncKeeper._refused",
            "if error.code in _DEPOSED:",
            "if False:",
            "test_a_master_that_is_refused_as_deposed_asks_who_is_master_and_waits_for_all_that_it_waited_for",
        ),
        "the set of another term is a master's": _KEEPER.line(
            "SyncKeeper.on_term",
            "if term.epoch == self._role.term.epoch:",
            "if True:",
            "test_a_set_of_another_term_changes_nothing",
        ),
        # Several controllers
        "a controller decides on though its last decision may hold": _QUORUM.line(
            "Quorum.append",
            "self._serving_term = None",
            "pass",
            "test_a_decision_without_a_majority_is_known_before_the_next_one",
        ),
        "a log that begins with a journal may be replaced": _QUORUM.line(
            "begin_log",
            "log.save_checkpoint(len(entries) - 1)",
            "pass",
            "test_a_log_begins_with_a_journal_once_and_its_entries_count_as_committed",
        ),
        "a log with a gap is applied": _QUORUM.line(
            "Quorum._apply",
            "if entry.index != self.applied_index + 1:",
            "if False:",
            "test_what_says_nothing_changes_nothing_and_a_gap_ends_the_controller",
        ),
        "an entry of the controllers' log that cannot be read is passed over": _QUORUM.line(
            "Quorum._apply",
            "if self.failure is not None:",
            "if False:",
            "test_an_entry_that_cannot_be_read_ends_the_controller",
        ),
        # Live sink
        "a row that fits into no file of the broker's log is sent": _LIMITS.line(
            "limit_of",
            "min(files) - _ADDED_BYTES",
            "None",
            "test_a_row_or_a_batch_that_fits_into_no_file_of_the_brokers_log_is_not_sent",
        ),
        "a topic takes what the most generous of its brokers takes": _LIMITS.line(
            "limit_of",
            "min(limits",
            "max(limits",
            "test_each_broker_of_the_topic_is_asked_once_and_the_lowest_limit_counts",
        ),
        "a replay to the topic looks for no copy in the retry topic": _REPLAY.line(
            "targets_of",
            "for to in TARGETS",
            "for to in TARGETS[:1]",
            "test_a_copy_for_the_group_alone_lies_in_its_retry_topic_as_a_first_try",
        ),
        "an abort deletes what an intent names": _STAGING.line(
            "abort_staged",
            "{file.name for file in intent.files}",
            "set()",
            "test_an_abort_leaves_the_files_that_an_intent_names",
        ),
        "a failed task's staged rows stay": _STAGING.line(
            "stage_for_brokers",
            "writer.discard()",
            "pass",
            "test_a_task_that_fails_behind_its_first_batches_leaves_nothing",
        ),
        "a commit takes rows of two batches": _STAGING.line(
            "commit_to_brokers",
            "any(one.batch != batch for one in staged)",
            "False",
            "test_tasks_of_two_batches_or_one_that_hands_in_nothing_are_no_commit",
        ),
        "that an intent is gone is not synced": _JOURNAL.line(
            "Journal.drop_intent",
            "self.files.sync(self.directory)",
            "pass",
            "test_what_is_staged_or_dropped_is_so_after_a_power_loss_too",
        ),
        "the name of staged rows is not synced": _ROWS.line(
            "StagedWriter.finish",
            "self._files.sync(self._directory)",
            "pass",
            "test_what_is_staged_or_dropped_is_so_after_a_power_loss_too",
        ),
        "a batch that is done takes later ones' rows with it": _JOURNAL.line(
            "Journal.drop_rows",
            "int(number) <= batch_id",
            "True",
            "test_staged_files_go_with_their_batch_and_later_ones_stay",
        ),
        "a journal that was changed is believed": _JOURNAL.line(
            "Journal._read",
            "if checksum != ",
            "if False and checksum != ",
            "test_a_journal_that_was_changed_is_not_believed",
        ),
        "the fence is content with one look": _LIVE.line(
            "LiveBrokers.fence",
            "time.sleep(_SETTLE_S)",
            "continue",
            "test_a_row_that_a_thread_of_the_broker_had_in_hand_at_the_first_look_is_there_behind_the_fence",
        ),
        "a fence asks for the first attempt alone": _LIVE.line(
            "LiveBrokers._is_past",
            "for group in groups)",
            "for group in groups[:1])",
            "test_a_fence_waits_for_each_earlier_attempt_and_until_what_it_has_stored_can_be_read",
        ),
        "a fence ends before it can be read": _LIVE.line(
            "LiveBrokers._is_past",
            "<= put.queue_offset:",
            "< 0:",
            "test_a_fence_waits_for_each_earlier_attempt_and_until_what_it_has_stored_can_be_read",
        ),
        "a fence at one broker is enough": _LIVE.line(
            "LiveBrokers.fence",
            "in self._questions.names(queues):",
            "in list(self._questions.names(queues))[:1]:",
            "test_there_is_a_fence_at_each_broker_of_the_batch",
        ),
        "rows are looked for where messages have expired": _LIVE.line(
            "LiveBrokers.marks",
            "if first > start:",
            "if False:",
            "test_rows_are_not_looked_for_where_messages_have_expired",
        ),
        "a batch that is there in part is sent whole": _LIVE.line(
            "_interleaved", "if one.skip:", "if False:", "test_of_a_batch_that_is_there_in_part_the_rest_is_sent"
        ),
        "a filter puts messages in, whose offset then counts as consumed": _HOOKS.line(
            "ConsumeHooks.filtered",
            "return [message for message in messages if message.queue_offset in kept]",
            "return context.messages",
            "test_a_filter_runs_in_a_thread_and_can_only_take_out",
        ),
        "a send that hooks have held up beyond its time is stored all the same": _HOOKED_SENDS.line(
            "Sender._send_hooked",
            "if sending in self._under_way and started_at < sending.deadline:",
            "if True:",
            "test_a_send_whose_time_a_hook_has_used_up_fails_in_time_and_is_not_stored_later",
        ),
        "a request gets another one's reply": _REPLIES.line(
            "PendingRequests.receive",
            'asked = self._asked.get(properties.get(CORRELATION_ID, ""))',
            "asked = next(iter(self._asked.values()), None)",
            "test_a_reply_goes_to_the_request_of_its_id_whatever_came_before",
        ),
        "a question of a commit is asked once": _PATIENT.line(
            "patiently", "if not passes(error):", "if True:", "test_a_question_whose_broker_is_away_is_asked_again"
        ),
        "rows are sent though a place where they wait has lost its end": _LIVE.line(
            "LiveBrokers.send",
            "for queue, at in least.items() if ",
            "for queue, at in least.items() if queue in plans and ",
            "test_nothing_is_sent_where_a_place_has_lost_its_end",
        ),
        "the offset of a row that waits is taken for its queue's": _LIVE.line(
            "LiveBrokers.send",
            "if not batch.waits:",
            "if True:",
            "test_the_offset_of_a_row_that_waits_is_not_taken_for_its_queues",
        ),
        "a batch is decided whose rows could not be looked for": _LIVE.line(
            "LiveBrokers.prepare",
            "if at := [",
            "if not [",
            "test_nothing_is_decided_where_a_place_cannot_be_looked_into",
        ),
        "rows that wait are looked for in their queue alone": _PLACES.line(
            "rows_stored_or_waiting",
            "found = np.concatenate([own, elsewhere])",
            "found = own",
            "test_a_row_that_waits_is_stored_where_it_is_found_anywhere_and_others_in_their_queue",
        ),
        "a copy elsewhere counts for a row that does not wait": _PLACES.line(
            "rows_stored_or_waiting",
            "is_there[~waits] = ",
            "_ = ",
            "test_a_row_that_waits_is_stored_where_it_is_found_anywhere_and_others_in_their_queue",
        ),
        "a row goes to a level that no client can look into": _SHOWN_LEVELS.line(
            "read_delays",
            "np.flatnonzero(levels > most)",
            "np.flatnonzero(levels < 0)",
            "test_a_row_at_a_level_that_no_client_can_look_for_is_refused",
        ),
        "rows that wait are looked for without the places": _COMMIT.line(
            "ExactCommit._look",
            "elsewhere = np.concatenate([found[place] for place in places_of([queue])])",
            "elsewhere = found[queue]",
            "test_each_row_that_waits_is_put_once_whatever_goes_wrong[0]",
        ),
        "a batch that is stored less safely than wanted is done": _COMMIT.line(
            "ExactCommit._conclude",
            "self._brokers.check_safety(statuses)",
            "pass",
            "test_a_batch_that_is_not_stored_as_safely_as_the_user_wants_is_not_done",
        ),
        "a batch is decided before a fence is possible": _COMMIT.line(
            "ExactCommit.commit",
            "self._brokers.prepare(plans, places)",
            "pass",
            "test_nothing_is_decided_where_a_fence_would_not_be_possible",
        ),
        "a query finishes another one's batch": _COMMIT.line(
            "ExactCommit.commit",
            "self._check_query(kept.intent.batch, batch)",
            "pass",
            "test_another_query_finishes_no_batch_that_is_begun_and_is_refused_by_the_sinks_topic_too",
        ),
        "a query goes on behind another one's batches": _COMMIT.line(
            "ExactCommit._was_sent_elsewhere",
            "self._check_query(known.batch, batch)",
            "pass",
            "test_another_query_finishes_no_batch_that_is_begun_and_is_refused_by_the_sinks_topic_too",
        ),
        # Client
        "the last writing of offsets does not wait": _PUSH.line(
            "PushEngine.close",
            ", wait=True",
            "",
            "test_the_last_writing_of_a_push_consumer_waits_for_its_answer",
        ),
        "the last writing of a pull consumer does not wait": _PULL.line(
            "PullEngine.close",
            ", wait=True",
            "",
            "test_what_a_pull_consumer_stores_for_good_waits_for_its_answer[close]",
        ),
        "a commit does not wait": _PULL.line(
            "PullEngine.commit",
            ", wait=True",
            "",
            "test_what_a_pull_consumer_stores_for_good_waits_for_its_answer[commit]",
        ),
        "a store with batch queues is written": _WRITABLE.line(
            "why_not_written",
            "for kind in _KINDS",
            "for kind in _KINDS[:2]",
            "test_the_directories_of_batch_queues_alone_refuse_a_writer",
        ),
        "a log is cut under batch queues": _UNDER_BATCHES.line(
            "truncate_store",
            'refuse_foreign_log(store.root, store.config, files, writer_of(writes_as, "follower"))',
            "pass",
            "test_no_role_of_a_writer_opens_cuts_or_promotes_a_store_with_batch_queues",
        ),
        "a batch of another log enters a plain queue": _RAW.line(
            "RawCheck.whole_records",
            "refuse_inner_batches(batch, self.root)",
            "pass",
            "test_a_batch_in_the_masters_log_ends_the_following_and_is_not_kept",
        ),
        "a batch that ended the following stays in the log": _FOLLOWED.line(
            "FollowedLog.settle",
            "except (CorruptRecordError, StoreRefusedError):",
            "except CorruptRecordError:",
            "test_a_batch_in_the_masters_log_ends_the_following_and_is_not_kept",
        ),
        "a recovery enters batches into plain queues": _MENDED.line(
            "QueueWriters.append",
            "refuse_inner_batches(batch, posixpath.dirname(self._queues.directory))",
            "pass",
            "test_a_log_with_batches_refuses_to_be_dispatched",
        ),
        "a damaged block of RocksDB is taken for the end of a queue": _ROCKSDB.line(
            "RocksDB.first_key",
            "if key is None:",
            "if False:",
            "test_a_data_block_with_a_flipped_byte_costs_no_message",
        ),
        "a batch in RocksDB is one message": _DERIVED.line(
            "DerivedQueue.refuse_batches",
            "if (records",
            "if False and (records",
            "test_a_batch_in_a_queue_of_rocksdb_is_refused_and_not_shown_as_one_message",
        ),
        "old offsets of groups are taken where RocksDB has them": _STORED_TABLES.line(
            "_in_rocksdb",
            "if mode.has_unread_tables or",
            "if False and",
            "test_tables_of_the_second_version_are_never_taken_from_old_files[by setting]",
        ),
        "messages that RocksDB lacks are not taken from the log": _DERIVED.line(
            "DerivedQueueStore._stored_ends",
            "in (None, end[:2])], dispatched",
            "in (None, end[:2])], 1 << 62",
            "test_what_is_read_is_what_the_broker_served[5.5.0-behind]",
        ),
        "an orderly queue is handed over before its offset is stored": _REBALANCE.line(
            "Rebalancer._hand_over",
            "wait=self.locks",
            "wait=False",
            "test_an_orderly_queue_goes_to_the_next_consumer_only_with_its_offset",
        ),
        "an answer that is to be waited for is not asked for": _CALLS.line(
            "ConsumerCalls.store_offset",
            "if wait:",
            "if False:",
            "test_an_offset_whose_answer_is_waited_for_is_no_one_way_request",
        ),
        "a stored offset does not count": _OFFSETS.line(
            "OffsetStore.stored",
            "self.update(queue, offset, only_forward=False)",
            "pass",
            "test_what_is_stored_counts_from_when_it_is_asked_for",
        ),
        "a commit passes over what was put back": _QUEUE.line(
            "ProcessQueue.commit",
            "min(behind, self._offsets[0])",
            "behind",
            "test_what_is_put_back_before_others_that_are_done_holds_the_offset",
        ),
        "a queue that forgets its messages keeps those that were taken": _QUEUE.line(
            "ProcessQueue.clear",
            "self._taken.clear()",
            "pass",
            "test_a_queue_that_forgets_its_messages_commits_nothing_of_them",
        ),
        "a message that comes again is overdue at once": _QUEUE.line(
            "ProcessQueue.remove",
            "self._started_ms.pop(message.queue_offset, None)",
            "pass",
            "test_a_message_that_is_done_and_comes_again_is_not_overdue_before_a_listener_has_it",
        ),
        "a queue that nobody pulls is kept": _QUEUE.line(
            "ProcessQueue.is_pull_expired",
            "now_ms - self.last_pull_ms > PULL_IDLE_LIMIT_MS",
            "False",
            "test_a_queue_that_was_not_pulled_for_two_minutes_is_given_up",
        ),
        "a message that failed here is sent back without its count": _LISTENING.line(
            "ConcurrentService._fail",
            "call.process_queue.replace(left)",
            "pass",
            "test_a_message_that_failed_here_before_it_was_too_long_in_work_is_sent_back_with_its_count",
        ),
        "a consumer is closed while it gives a failed message away": _CLOSED.line(
            "ConcurrentService.close",
            "if self._failing:",
            "if False:",
            "test_a_message_that_is_being_given_away_is_so_before_a_consumer_is_closed[concurrent]",
        ),
        "an orderly consumer is closed while it gives a failed message away": _CLOSED.line(
            "OrderlyService.close",
            "if self._serving:",
            "if False:",
            "test_a_message_that_is_being_given_away_is_so_before_a_consumer_is_closed[orderly]",
        ),
        "a late listener counts in a queue that was handed over": _ORDERLY.line(
            "OrderlyService._consume",
            "status is None or process_queue.is_handed_over",
            "status is None",
            "test_what_a_listener_says_of_a_queue_that_was_handed_over_by_force_does_not_count",
        ),
        "a listener that was at work undoes a reset": _RESET.line(
            "PushEngine.reset_offsets",
            "self.stored_offsets.freeze(queue, offsets[queue])",
            "self.stored_offsets.update(queue, offsets[queue], only_forward=False)",
            "test_what_a_listener_does_that_was_at_work_does_not_undo_a_reset",
        ),
        # Broker
        "a pull that parks does not look again": _PARKED.line(
            "PullHandler._park",
            "if maximum > found.max_offset:",
            "if False:",
            "test_a_message_that_comes_between_the_look_and_the_parking_wakes_the_pull",
        ),
        "a deleted group keeps its pending reset": _GROUPS.line(
            "GroupOffsets.forget_group",
            "self._resets, ",
            "",
            "test_a_reset_that_waits_does_not_hold_for_the_next_group_of_the_name",
        ),
        "a client that has connected again is forgotten with its old connection": _CLIENT_TABLES.line(
            "ProducerTable._left",
            "get(client_id) is connection",
            "get(client_id) is not None",
            "test_a_producer_is_found_by_its_id_as_long_as_it_is_there",
        ),
        "a consumer keeps the id that its connection had before": _CLIENT_TABLES.line(
            "ConsumerTable.register",
            "known is None or known.client_id != client.client_id",
            "known is None",
            "test_a_consumer_that_takes_another_id_on_its_connection_is_known_by_that",
        ),
        "what pulls say of a subscription is kept for ever": _CLIENT_TABLES.line(
            "ConsumerTable.expire",
            "now_ms - self._pulled_at_ms[name, topic] > self.subscription_expires_ms",
            "False",
            "test_what_pulls_say_of_a_subscription_is_forgotten_ten_minutes_later",
        ),
        "a deleted group's offsets are back after a restart": _OF_GROUPS.line(
            "GroupOffsets.forget_group",
            "self._is_changed = True",
            "pass",
            "test_everything_of_a_deleted_group_or_topic_is_forgotten_and_that_is_saved",
        ),
        "a reset that waits is gone with a restart": _OF_GROUPS.line(
            "GroupOffsets.reset",
            "self._offsets.setdefault((topic, group), {})[queue_id] = offset",
            "pass",
            "test_a_reset_counts_as_the_offset_and_waits_for_the_next_pull_of_its_queue_alone",
        ),
        "groups that were cloned move together": _OF_GROUPS.line(
            "GroupOffsets.clone", "dict(found)", "found", "test_a_clone_is_a_groups_own_from_then_on"
        ),
        "a reset of one queue is one of all": _OF_GROUPS.line(
            "GroupOffsets.has_reset",
            "queue_id in self._resets.get((topic, group), {})",
            "bool(self._resets.get((topic, group)))",
            "test_a_reset_counts_as_the_offset_and_waits_for_the_next_pull_of_its_queue_alone",
        ),
        # Runs of sends
        "what only seems to differ is a run": _RUNS.line(
            "_pattern_of",
            "not _are_decisive(equal, names, command)",
            "False",
            "test_what_only_seems_to_differ_makes_no_run",
        ),
        "answers of a run go under other numbers": _RUNS.line(
            "encode_answers",
            "for opaque in opaques",
            "for opaque in sorted(opaques)",
            "test_answers_are_the_frames_of_each_answer",
        ),
        "topics with and without many tags are one": _SENT.line(
            "SendRun.messages",
            "len({_numbers(plan.message) for plan in plans}) > 1",
            "False",
            "test_each_topic_says_whether_its_messages_have_many_tags",
        ),
        "a run is decided as its first send, whatever its properties say": _SENT.line(
            "_are_plain",
            "not DECIDED_BY_VALUE &",
            "not frozenset() &",
            "test_any_property_has_the_effect_that_it_has_alone[DELAY]",
        ),
        "only the first queue of a run is looked at": _SENDER.line(
            "SendMessageHandler._messages_of",
            "check_queue(kind.greatest_queue_id",
            "check_queue(0",
            "test_one_that_is_wrong_is_refused_alone[queue that is not there-5]",
        ),
        "a run counts as one send": _SENDER.line(
            "SendMessageHandler._count_run", "are_single=True", "are_single=False", "test_plain_sends_are_a_run"
        ),
        "what a process computes makes nothing late": _POOLS.line(
            "RequestPool._overdue_seconds",
            "min(now - self._cleaning_due - _CLEANING_SECONDS, idle)",
            "now - self._cleaning_due - _CLEANING_SECONDS",
            "test_what_waits_while_the_loop_computes_is_late",
        ),
        "a busy machine makes sends late": _POOLS.line(
            "RequestPool._now",
            "now - self._stalled_seconds - self._overdue_seconds(now)",
            "now",
            "test_what_waits_while_the_process_does_not_run_is_not_late",
        ),
        # Access
        "ACL 1.0 takes any signature of an account": _PLAIN.line(
            "Accounts.check",
            "if not is_signed_by(command, account.secret_key):",
            "if not (command.ext_fields or {}).get('Signature'):",
            "test_each_request_of_each_account_passes_as_at_apaches_broker",
        ),
        "ACL 1.0 gives a right beside a denial": _PLAIN.line(
            "_check_rights",
            "if owned & Right.DENY or not owned & right:",
            "if not owned & (right | Right.DENY):",
            "test_each_request_of_each_account_passes_as_at_apaches_broker",
        ),
        "dead letter topics are topics to who does not send": _ACCESS.line(
            "_demand",
            "if name.startswith(prefix):",
            "if name.startswith(prefix) and (prefix == RETRY_PREFIX or Action.PUB in need.actions):",
            "test_a_topic_of_a_group_is_the_groups_whatever_is_done_to_it",
        ),
        # Messages that a broker passes over
        "what a deleting broker passes over counts as a gap": _PASSED_OVER.line(
            "has_expired",
            "if found is not None and found < hole:",
            "if hole:",
            "test_messages_that_a_deleting_broker_passes_over_are_data_loss",
        ),
        "rows behind a loss are given before it is told": _PULLED.line(
            "PullReader.slices",
            "is_right = self._judge(",
            "is_right = not window.is_done or self._judge(",
            "test_messages_that_are_deleted_while_a_range_is_read_are_not_behind_those_that_were_given",
        ),
        "what a slave has deleted is lost": _PULLED.line(
            "PullReader._judge",
            "if (is_lost and not is_masters) or",
            "if",
            "test_what_a_slave_has_deleted_is_read_from_the_master",
        ),
        "the archiver names what a slave has deleted empty": _PULLED.line(
            "PullReader._judge",
            "return is_masters or",
            "return True or",
            "test_what_a_slave_lacks_is_neither_lost_nor_passed_over_while_the_master_is_away",
        ),
        "the master answers for what a slave passed over": _PULLED.line(
            "PullReader._judge",
            "or self._looked_at - {held.address}:",
            "or self._looked_at - {held.address, self._address()}:",
            "test_a_slave_answers_for_its_own_parts_also_when_the_reader_is_back_at_the_master",
        ),
        "the archiver judges a gap by an earlier look": _ARCHIVED.line(
            "_judged",
            "cluster.first_from(queue, offset)",
            "offset if cluster.record_before(queue, offset + 1) else None",
            "test_messages_that_a_deleting_broker_passes_over_have_expired",
        ),
    }
)
"""What is wrong → where, and who must see it."""


@contextmanager
def planted(line: Line) -> Iterator[None]:
    """The fault, as long as the context lasts, wherever the function is known by its name. LookupError where its line is not there."""
    module: Any = importlib.import_module(line.module)
    owner_name, _, name = line.function.rpartition(".")
    owner = getattr(module, owner_name) if owner_name else module
    right = inspect.getattr_static(owner, name)
    wrong = _compiled(line, module, name, right)
    with ExitStack() as stack:
        if owner is not module:
            stack.enter_context(mock.patch.object(owner, name, wrong))
        else:
            for holder in [each for each in sys.modules.values() if getattr(each, "__dict__", {}).get(name) is right]:
                stack.enter_context(mock.patch.object(holder, name, wrong))
        yield


def _compiled(line: Line, module: Any, name: str, right: Any) -> Any:
    """In the names of its module, and decorated as it is."""
    source = textwrap.dedent(inspect.getsource(right.fget if isinstance(right, property) else right))
    if source.count(line.right) != 1:
        raise LookupError(f"{line.module}.{line.function} has not one {line.right!r}")
    made: dict[str, Any] = {}
    text = source.replace(line.right, line.wrong)
    exec(
        compile(text, line.module, "exec", __future__.annotations.compiler_flag, dont_inherit=True), vars(module), made
    )
    return made[name]
