"""Looks at stores on a disk, also beside their running brokers. A broker writes the groups' offsets every five seconds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from spark_mq.conditions import OptionError
from spark_mq.lag.checkpoints import Checkpoints
from spark_mq.lag.figures import Keep, LagReport, Look, Looks, Reader
from spark_mq.source.cluster import Cluster
from spark_mq.source.lag import Position
from spark_mq.source.offsets import QueueId
from storage import MessageStore
from storage.epoch_times import current_time_ms
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE, TOPICS_FILE
from storage.tables.topics import TopicTable

_Wanted = Mapping[tuple[Reader, QueueId], int | None]


class StoreLag:
    """Who is behind in the stores of a cluster. Not for several threads at a time. The caller closes the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        checkpoints: Sequence[str] = (),
        brokers: Collection[str] = (),
        with_bytes: bool = False,
        clock: Callable[[], int] = current_time_ms,
    ) -> None:
        """`checkpoints` are directories of Spark queries. `with_bytes` adds up the unread records, for which it reads queue entries.

        `brokers` are those whose stores must be there, by name. Raises OptionError where one is not, and for what is no checkpoint.
        """
        if missing := sorted(set(brokers) - cluster.stores.keys()):
            rule = f"there is no store of broker {', '.join(missing)}; the stores are those of {', '.join(sorted(cluster.stores))}"
            raise OptionError("--broker", rule)
        self._cluster = cluster
        self._checkpoints = Checkpoints(checkpoints)
        self._with_bytes = with_bytes
        self._clock = clock
        self._looks = Looks()

    def look(self, groups: Collection[str] | None = None, keep: Keep | None = None) -> LagReport:
        """All readers, or some groups and all queries; of these the queues that `keep` admits. A group without an offset is not listed.

        A query whose position cannot be read is an error of the report. Raises StorageError.
        """
        stores = self._cluster.stores
        tables = {name: store.state(OFFSETS_FILE, ConsumerOffsets.load) for name, store in stores.items()}
        queries, errors = self._checkpoints.look()
        self._cluster.refresh()  # after the offsets: none is ahead of a queue's end because that was read before
        now_ms = self._clock()
        of_queries = {
            (Reader(query.name, "query"), queue): offset for query in queries for queue, offset in query.offsets.items()
        }
        positions = {  # of brokers whose stores were not given
            (reader, queue): Position(None, offset)
            for (reader, queue), offset in of_queries.items()
            if queue.broker_name not in stores and (keep is None or keep(reader, queue))
        }
        for name, store in stores.items():
            wanted = _of_groups(name, store, tables[name], groups)
            wanted |= {place: offset for place, offset in of_queries.items() if place[1].broker_name == name}
            if keep is not None:
                wanted = {place: offset for place, offset in wanted.items() if keep(*place)}
            positions |= self._positions(store, wanted)
        return self._looks.report(Look(now_ms, positions, {}, {}, tuple(errors)))

    def close(self) -> None:
        """Nothing is open: the cluster is the caller's."""

    def _positions(self, store: MessageStore, wanted: _Wanted) -> dict[tuple[Reader, QueueId], Position]:
        found: dict[tuple[Reader, QueueId], Position] = {}
        behind: dict[tuple[Reader, QueueId], int] = {}
        table = store.state(TOPICS_FILE, TopicTable.load) or TopicTable()
        bounds = {queue: store.bounds(queue.topic, queue.queue_id) for queue in {queue for _, queue in wanted}}
        for (reader, queue), offset in wanted.items():
            known = bounds[queue]
            empty = 0 if not offset and queue.topic in table.topics else None  # a queue without a message has no file
            position = found[reader, queue] = Position(empty if known is None else known[1], offset)
            if known is not None and offset is not None and position.lag:
                behind[reader, queue] = max(offset, known[0])
        asked = [(queue.topic, queue.queue_id, first) for (_, queue), first in behind.items()]
        for ((reader, queue), first), place in zip(behind.items(), store.positions(asked), strict=True):
            position = found[reader, queue]
            size = None
            if self._with_bytes and first == position.group_offset:  # else a part of them has expired
                size = store.size_between(queue.topic, queue.queue_id, first, position.broker_offset or 0)
            since_ms = None if place is None else place.store_time_ms
            found[reader, queue] = position._replace(unread_since_ms=since_ms, unread_bytes=size)
        return found


def _of_groups(
    broker_name: str, store: MessageStore, table: ConsumerOffsets | None, groups: Collection[str] | None
) -> dict[tuple[Reader, QueueId], int | None]:
    """The stored offsets in every queue of the groups' topics; None in a queue where nothing is stored."""
    found: dict[tuple[Reader, QueueId], int | None] = {}
    for (topic, group), stored in () if table is None else table.offsets.items():
        if groups is None or group in groups:
            for queue_id in sorted({*store.queue_ids(topic), *stored}):
                found[Reader(group), QueueId(topic, broker_name, queue_id)] = stored.get(queue_id)
    return found
