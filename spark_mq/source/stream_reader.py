"""The streaming source, driver side: offsets, limits, continuity, partitions. Spark: KafkaMicroBatchStream.

Lives in one process for a query's run and keeps the stores open. Spark polls it every few milliseconds when idle: without news a
poll costs one read at the log's end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_mq.conditions import CheckpointOfAnotherQueryError, DataLossError, named_for_spark, names, warn_of_losses
from spark_mq.source.group_offsets import GroupOffsets
from spark_mq.source.lag import Position, UnreadBytes, latest_offset_json, unread_without_sizes
from spark_mq.source.offsets import QueueId, QueueOffsets
from spark_mq.source.options import SourceOptions
from spark_mq.source.partition_reader import collected_later, into_partitions, read_partition
from spark_mq.source.query_cluster import QueryCluster
from spark_mq.source.ranges import FrozenEnd, QueueRange, ReadLimits, is_delayed, plan_end
from spark_mq.source.selection import open_cluster, request_of, select_queues, split_shown
from spark_mq.source.starting_offsets import Continuity, check_continuity, check_new_queue, resolve_start
from spark_mq.spark_api import (
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from storage.epoch_times import current_time_ms

_THE_STORE = {"path": "the store of ", "nameServer": "", "archive": ""}
_OWN_CHECKPOINT = "Give each query a checkpointLocation of its own, also after its topics were changed"

_PLAN_AGAIN = (
    "Stop the query. If the newest file of its checkpoint's directory offsets has no namesake in the directory commits, that batch is "
    "not committed: delete the file and start the query, which plans the batch anew"
)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's view of the cluster."""

    def __init__(self, options: SourceOptions, column_names: Sequence[str], nullable: Sequence[str] = ()) -> None:
        self.options = options
        self.column_names = tuple(column_names)
        self._cluster: QueryCluster | None = None
        self._initial: QueueOffsets | None = None
        self._frozen: FrozenEnd | None = None
        self._last_batch_ms: int | None = None
        self._group: GroupOffsets | None = None
        self._planned: dict[QueueId, int] = {}
        self._looked_up: tuple[QueueOffsets, dict[QueueId, int]] = QueueOffsets(), {}
        """A position, and where each queue is read from there, by the last look: `partitions` comes next, with the same question."""
        self._last_given: list[QueueOffsets] = []
        self._selected: tuple[Sequence[QueueId], list[QueueId]] | None = None  # of these queues of the cluster these
        self._ends: dict[QueueId, int] | None = None  # of the selected queues, until a look finds anything new
        self._position = QueueOffsets()  # what the last plan reads up to
        self._has_planned = False  # whether `partitions` was called
        self._caught_up: QueueOffsets | None = None  # where nothing was left to read at the last look
        self._reported = QueueOffsets()
        self._unread = UnreadBytes()
        self._request = request_of(options, self.column_names, nullable=nullable)

    @property
    def cluster(self) -> QueryCluster:
        """Opened at first use: tasks build a reader too and need none."""
        if self._cluster is None:
            self._cluster = open_cluster(self.options)
            if self.options.commit_offsets and self.options.consumer_group is not None:
                self._group = self._cluster.group_offsets(self.options.consumer_group)
        return self._cluster

    # What Spark asks of the driver's reader

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of Spark's limits stands for all options: it only separates "respect the options" from Trigger.Once's "ignore them"."""
        limits = self.options.read_limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    @named_for_spark()
    @collected_later()
    def initialOffset(self) -> dict[str, Any]:
        """Spark calls this twice; a relative start must give the same answer."""
        if self._initial is None:
            self._initial = self._resolve_start()
        return self._given(self._initial)

    @named_for_spark()
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the ends: nothing that comes later is read by this run."""
        self._refresh()
        self._frozen = FrozenEnd(self._available())

    @named_for_spark()
    @collected_later()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Spark before 4.2 names neither: the start is then the end of the batch before, if this process has planned it."""
        if start is not None:
            self._position = self._latest(self._position_of(start), limit)
        elif self._has_planned:
            self._position = self._latest(self._position, None)
        else:
            self._position = self._all_there_is()
        return self._given(self._position)

    @named_for_spark()
    @collected_later()
    def reportLatestOffset(self) -> dict[str, Any]:
        """The ends of the queues, and the part that the planned batch leaves unread (`lag.py`)."""
        ends = self._available()
        is_read_to_end = self._position.next_offsets() == ends
        self._reported = self._position if is_read_to_end else self._moved(self._reported, ends)
        if self.cluster.tells_sizes:
            unread = self._unread.count(self._planned, ends, self.cluster)
        else:
            unread = unread_without_sizes(self._planned, ends, self.cluster.minimum)
        return latest_offset_json(self._reported, unread, self._group.to_json_dict() if self._group else None)

    @named_for_spark()
    def report_behind(self, end: dict[str, Any]) -> dict[str, Any]:
        """`reportLatestOffset` of a reader that has planned up to this position."""
        self._position = QueueOffsets.from_json_dict(end)
        self._planned = self._position.next_offsets()
        return self.reportLatestOffset()

    def positions(self, end: QueueOffsets) -> dict[QueueId, Position]:
        """Where a query that has read up to `end` stands now, in each of its queues: an end of None says that the queue is not there.

        A queue that `end` lacks is unread from its minimum. Raises what the look at the brokers raises.
        """
        self._refresh()
        found: dict[QueueId, Position] = {}
        for queue in sorted(end.keys() | self._available().keys()):
            facts, start = self.cluster.facts(queue), end[queue].next if queue in end else None
            if facts is not None:
                found[queue] = Position(max(facts.minimum, facts.maximum), facts.minimum if start is None else start)
                continue
            # A cluster shows a queue without messages; a store has no files of it.
            is_empty = start == 0 and not self.options.is_live and self._is_only_not_shown(queue)
            found[queue] = Position(0 if is_empty else None, start)
        return found

    @named_for_spark()
    @collected_later()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._position, self._has_planned = self._position_of(end), True
        return self._partitions(self._position_of(start), self._position)

    def stop(self) -> None:
        """Spark calls this seldom; nothing depends on it."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # What a task does

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_partition(partition)

    # Deciding

    def _given(self, position: QueueOffsets) -> dict[str, Any]:
        """The position for Spark, which gives the last two back again and again."""
        if position not in self._last_given:
            self._last_given = [position, *self._last_given[:1]]
        return self._last_given[self._last_given.index(position)].to_json_dict()

    def _position_of(self, tree: dict[str, Any]) -> QueueOffsets:
        """A position that Spark gives back: comparing it with the last two is ten times cheaper than parsing it."""
        known = (position for position in self._last_given if position.to_json_dict() == tree)
        return next(known, None) or QueueOffsets.from_json_dict(tree)

    def _resolve_start(self) -> QueueOffsets:
        resolved = resolve_start(
            self.options.stream_start,
            select_queues(self.cluster, self.options),
            self.cluster,
            brokers=self.cluster.brokers,
            now_ms=current_time_ms(),
            fail_on_data_loss=self.options.fail_on_data_loss,
        )
        warn_of_losses(resolved.losses)
        return self._moved(QueueOffsets(), resolved.offsets)

    def _all_there_is(self) -> QueueOffsets:
        """The ends of all queues, where Spark does not say from where the query reads. `partitions` learns it, and checks it then."""
        self._refresh()
        self.cluster.refuse_lost_queues(self.cluster.brokers)
        return self._moved(QueueOffsets(), self._available())

    def _latest(self, start: QueueOffsets, limit: ReadLimit | None) -> QueueOffsets:
        """Where the next batch ends. `limit` None: of a Spark that names none, so there is none."""
        changed = self._refresh() or self._frozen is not None
        if not changed and start == self._caught_up:
            if self._group is not None:
                self._group.store(self.cluster.physical_positions(self._planned))
            return start
        self._caught_up = None
        if self._await_brokers(start) and self._frozen is not None:
            self._frozen = FrozenEnd(self._available())
        available = self._available()
        if self._frozen is not None:
            self._frozen.check_available(available)
            available = dict(self._frozen.ends)
        starts, broken = self._starts(start, available)
        self._looked_up = start, starts
        if broken:
            self._reported = QueueOffsets()
            self._unread.forget(broken)
        if self._group is not None:
            # If a run of AvailableNow has nothing left to read, Spark does not call again.
            at_once = self._frozen is not None and starts == available
            self._group.store(self.cluster.physical_positions(starts), at_once=at_once)
        limits = self._limits(limit)
        now_ms = current_time_ms()
        if is_delayed(starts, available, limits, now_ms=now_ms, last_batch_ms=self._last_batch_ms):
            self._planned = starts
            return start
        self._last_batch_ms = now_ms
        ends = self._planned = plan_end(starts, available, limits, self.cluster)
        if ends == starts == start.next_offsets():
            self._caught_up = start
        return self._moved(start, ends, broken)

    def _moved(
        self, position: QueueOffsets, ends: Mapping[QueueId, int], broken: Collection[QueueId] = ()
    ) -> QueueOffsets:
        moved = {queue: end for queue, end in ends.items() if position.is_moved(queue, end) or queue in broken}
        self.cluster.look_up(moved)
        return position.moved_to(ends, self.cluster.record_before, broken=broken)

    def _limits(self, limit: ReadLimit | None) -> ReadLimits:
        if limit is None or isinstance(limit, ReadAllAvailable):
            return ReadLimits()
        limits = self.options.read_limits
        return limits if self._frozen is None else limits.without_minimum()

    def _refresh(self) -> bool:
        """Look at what the brokers did meanwhile; returns whether they did anything."""
        changed = self.cluster.refresh()
        if changed:
            self._ends = None
        return changed

    def _await_brokers(self, queues: Collection[QueueId]) -> bool:
        """Wait for brokers that a checkpoint names and that are not there; returns whether one came."""
        missing = {queue.broker_name for queue in queues} - set(self.cluster.brokers)
        has_news = bool(missing) and self.cluster.await_brokers(missing)
        if has_news:
            self._ends = None
        return has_news

    def _available(self) -> dict[QueueId, int]:
        """The end of every queue of the query, by the last look."""
        there = self.cluster.queues()
        if self._selected is None or self._selected[0] is not there:
            queues = self.options.subscription.select(
                there, brokers=self.cluster.brokers, is_system_topic=self.cluster.is_system_topic
            )
            self._selected, self._ends = (there, queues), None
        if self._ends is None:
            self._ends = {queue: max(self.cluster.bounds(queue)) for queue in self._selected[1]}
        return self._ends

    def _starts(self, start: QueueOffsets, available: dict[QueueId, int]) -> tuple[dict[QueueId, int], list[QueueId]]:
        """The start in each available queue, and the queues that now belong to another topic."""
        starts: dict[QueueId, int] = {}
        losses, broken = self._losses_of_missing(start, start.keys() - available.keys()), []
        known = ((queue, position) for queue, position in start.items() if queue in available)
        self.cluster.look_up({queue: position.next for queue, position in known if position.before is not None})
        for queue in available:
            if queue in start:
                verdict = check_continuity(queue, start[queue], self.cluster.facts(queue))
            else:
                verdict = check_new_queue(queue, self.cluster.minimum(queue))
            if verdict.loss is not None:
                is_before = verdict.continuity is Continuity.BELOW_MINIMUM
                losses.append(verdict.loss + (self.cluster.moved_away(queue) if is_before else ""))
            if verdict.continuity in (Continuity.BEYOND_END, Continuity.REPLACED):
                broken.append(queue)
            starts[queue] = available[queue] if verdict.resume is None else verdict.resume
        if losses and self.options.fail_on_data_loss:
            raise DataLossError(*losses)
        warn_of_losses(losses)
        return starts, broken

    def _losses_of_missing(self, start: QueueOffsets, missing: Collection[QueueId]) -> list[str]:
        """What to say of queues of the checkpoint that are not read. Raises where the checkpoint has no other ones, and where their
        brokers cannot be looked at (`refuse_lost_queues`).
        """
        missing = [queue for queue in missing if start[queue].next or not self._is_only_not_shown(queue)]
        if not missing:
            return []
        self.cluster.refuse_lost_queues({queue.broker_name for queue in missing})
        selected, brokers = self._named_by_options(missing), self.cluster.brokers
        if len(missing) == len(start):
            refuse_other_checkpoint(missing, selected, brokers, self.options.place_option)
        back = {queue for queue in missing if queue in selected and self._is_there(queue)}
        return [
            loss_of(
                queue,
                start[queue].next,
                is_selected=queue in selected,
                brokers=brokers,
                option=self.options.place_option,
            )
            if queue not in back
            else f"queue {queue} at offset {start[queue].next} is there, and the batch that the checkpoint has planned leaves it out: "
            f"that batch was planned while the queue was not there\n{_PLAN_AGAIN}. "
            "With failOnDataLoss=false the batch is run, and later all messages of the queue are read again"
            for queue in sorted(missing)
        ]

    def _is_there(self, queue: QueueId) -> bool:
        return queue.broker_name in self.cluster.brokers and self.cluster.facts(queue) is not None

    def _is_only_not_shown(self, queue: QueueId) -> bool:
        """Whether an unread queue is just empty: a cluster shows such queues, a store has no files of them."""
        return queue.broker_name in self.cluster.brokers and bool(self._named_by_options([queue]))

    def _named_by_options(self, queues: Collection[QueueId]) -> set[QueueId]:
        """Those of the queues that the options name, whether they exist or not."""
        selected = self.options.subscription.select(
            queues, brokers=self.cluster.brokers, is_system_topic=self.cluster.is_system_topic
        )
        return set(selected)

    def _partitions(self, start: QueueOffsets, end: QueueOffsets) -> list[InputPartition]:
        if start == end:
            return []
        changed = self._refresh()
        is_of_others = not self._planned
        if is_of_others:  # a batch of an earlier run, maybe of another query
            self._await_brokers([*start, *end])
            self.cluster.refuse_lost_queues({queue.broker_name for queue in end} - set(self.cluster.brokers))
            refuse_other_checkpoint(
                end.keys(), self._named_by_options(end.keys()), self.cluster.brokers, self.options.place_option
            )
        ends = end.next_offsets()
        before, starts = self._looked_up
        if changed or before != start or self._planned != ends or starts.keys() != ends.keys():
            starts, _ = self._starts(start, ends)
            self._check_ends(start, starts, ends)
        if is_of_others and self._group is not None:
            # Spark before 4.2 names no start anywhere else, and a run of AvailableNow has no second batch there.
            self._group.store(self.cluster.physical_positions(starts), at_once=True)
        ranges = [QueueRange(queue, starts[queue], stop) for queue, stop in ends.items() if stop > starts[queue]]
        limits = self.options.min_partitions, self.options.max_records_per_partition
        splits = [self.cluster.split(piece, self._request) for piece in split_shown(self.cluster, ranges, *limits)]
        return list(into_partitions(splits, *limits))

    def _check_ends(self, start: QueueOffsets, starts: dict[QueueId, int], ends: dict[QueueId, int]) -> None:
        """A batch that is replayed after a restart may have lost its end, if a broker's recovery cut the log. One that was planned on
        an older copy of a store may end before it starts: the next batch would read again what lies between.
        """
        losses = [
            f"queue {queue} ends at {self.cluster.maximum(queue)}, before the end of a batch that the checkpoint has planned, {end}: "
            f"the store is older than the checkpoint, or a recovery has cut its log\nBring the newer store back, or name it in "
            f"{self.options.place_option}. "
            "Set failOnDataLoss to false to run the batch with what is there"
            for queue, end in ends.items()
            if queue.broker_name in self.cluster.brokers
            and end > max(self.cluster.bounds(queue))
            and self.cluster.facts(queue) is not None
        ]
        losses += [
            f"queue {queue}: the batch that the checkpoint has planned starts at {starts[queue]} and ends at {end}, so it was planned "
            f"on a store that was older than the checkpoint\n{_PLAN_AGAIN}. "
            "With failOnDataLoss=false the batch is run, and later the messages between are read again"
            for queue, end in ends.items()
            if queue in start and end < starts[queue] == start[queue].next
        ]
        if losses and self.options.fail_on_data_loss:
            raise DataLossError(*losses)
        warn_of_losses(losses)


def refuse_other_checkpoint(
    queues: Collection[QueueId], selected: Collection[QueueId], brokers: Collection[str], option: str = "path"
) -> None:
    """Raises CheckpointOfAnotherQueryError if none of the checkpoint's queues belongs to this query.

    That is an error whatever failOnDataLoss says: there is no position to continue from, and a new checkpoint gives the same. If some
    queues are common, the others are losses, each with its own cause (`loss_of`).

    `selected`: those of the queues that the options name, whether they exist or not. `brokers`: the brokers whose data is read;
    `option`: the option that says where.
    """
    if not queues:
        return
    named = sorted({queue.broker_name for queue in queues})
    if not set(named) & set(brokers):
        raise CheckpointOfAnotherQueryError(
            f"it holds offsets of broker {names(named)}, and {option} leads to {_THE_STORE[option]}{names(sorted(brokers))}",
            f"Correct {option}. If the broker's name has changed, set brokerName to the old one. {_OWN_CHECKPOINT}",
        )
    if not selected:
        topics = sorted({queue.topic for queue in queues})
        raise CheckpointOfAnotherQueryError(
            f"it holds offsets of {names(topics)}, which the query's options do not ask for", _OWN_CHECKPOINT
        )


def loss_of(
    queue: QueueId, next_offset: int, *, is_selected: bool, brokers: Collection[str], option: str = "path"
) -> str:
    """Why a queue of the checkpoint is not read any more, and on a second line what to do.

    Either the options do not name it, or its broker is missing, or the queue is gone.
    """
    if queue.broker_name not in brokers and option != "path":
        return (
            f"queue {queue} at offset {next_offset}: no broker {queue.broker_name} is registered at {option}, where there is "
            f"{names(sorted(brokers))}\nStart {queue.broker_name}. If that broker is gone for good, set failOnDataLoss to "
            "false to go on without its queues"
        )
    if queue.broker_name not in brokers:
        return (
            f"queue {queue} at offset {next_offset}: no store of broker {queue.broker_name} is at path, where there is "
            f"{names(sorted(brokers))}\nMount the store of {queue.broker_name}. If that broker is gone for good, set failOnDataLoss to "
            "false to go on without its queues"
        )
    if not is_selected:
        return (
            f"queue {queue} at offset {next_offset} is in the checkpoint, and the query's options do not ask for it any more\n"
            f"Ask for it again. To go on without it, set failOnDataLoss to false; its offset is then forgotten. {_OWN_CHECKPOINT}"
        )
    return f"queue {queue} at offset {next_offset} is gone"
