"""Looks at how far a running query is behind, by the options of its sources, in its stores or cluster.

A look never keeps anybody waiting for long: it goes on in a thread of its own, one at a time for each query, and every caller that
comes meanwhile shares it (`QueryLooks.begin`). A broker is asked once. Without an answer the lag is unknown, also in the queues of
other brokers, because a sum without them would be too small.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from spark_mq.source.lag import ENTRIES_A_LOOK, position_of
from spark_mq.source.offsets import QueueId, QueueOffsets
from spark_mq.source.options import SourceOptions
from spark_mq.source.query_cluster import QueryCluster
from spark_mq.source.stream_reader import StreamReader
from storage.epoch_times import current_time_ms

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_REQUEST_TIMEOUT_MS = 1_500
"""For the answer to one request of a look, unless the query's own requestTimeout is shorter."""


class Behind(NamedTuple):
    """How far a query, or one of its sources, is behind; None = unknown."""

    rows: int | None
    bytes: int | None
    oldest_ms: int | None
    """Age of the oldest unread message; 0 where nothing is unread."""
    batch_bytes: int | None
    """Of the last batch's records."""


UNKNOWN = Behind(None, None, None, None)


def total(parts: Iterable[Behind]) -> Behind:
    """Several sources together; a value is unknown as soon as one source's is, or where there is no source. Pure."""
    parts = list(parts) or [UNKNOWN]
    rows, sizes, ages, of_batch = (list(column) for column in zip(*parts, strict=True))
    return Behind(_sum(rows), _sum(sizes), None if None in ages else max(ages), _sum(of_batch))


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


class QueryLooks:
    """The looks at one run of a query, which keep its stores or connections open. Thread-safe."""

    def __init__(self, options: list[dict[str, str]]) -> None:
        """`options`: of each source of its plan, in the order of its progress."""
        self._options = options
        self._lock = threading.Lock()
        self._running: Future[Behind] | None = None
        self._has_ended = False
        self._readers: dict[int, StreamReader] = {}
        """By the source's number. The thread of the running look has them alone."""

    def begin(self, progress: StreamingQueryProgress) -> Future[Behind]:
        """The look that goes on, or a new one, by where the query's last batch ended. Does not wait.

        The result is what looking raises, where it fails: the named conditions, and errors of storage and of the client.
        """
        with self._lock:
            if self._running is not None:
                return self._running
            found: Future[Behind] = Future()
            if self._has_ended:
                found.set_result(UNKNOWN)
                return found
            self._running = found
        threading.Thread(target=self._run, args=(found, progress), name="spark_mq-lag", daemon=True).start()
        return found

    def end(self) -> None:
        """The run is over: close what it looks with, now or when the look that goes on is done. Does not wait."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            if self._running is not None:
                return
        self._close()

    def _run(self, found: Future[Behind], progress: StreamingQueryProgress) -> None:
        failure: BaseException | None = None
        behind = UNKNOWN
        try:
            behind = self._look(progress)
        except BaseException as error:  # it is the caller's
            failure = error
            self._close()  # the next look opens all anew
        with self._lock:
            self._running = None
            has_ended = self._has_ended
        if has_ended:
            self._close()
        if failure is None:
            found.set_result(behind)
        else:
            found.set_exception(failure)

    def _close(self) -> None:
        while self._readers:
            self._readers.popitem()[1].stop()

    def _look(self, progress: StreamingQueryProgress) -> Behind:
        if len(self._options) != len(progress.sources):
            raise ValueError(f"its plan has {len(self._options)} sources, and its progress {len(progress.sources)}")
        found = []
        for number, source in enumerate(progress.sources):
            end = position_of(source.endOffset)
            if end is not None:  # else the source is another one
                found.append(_behind(self._reader(number), position_of(source.startOffset), end))
        return total(found)

    def _reader(self, number: int) -> StreamReader:
        if number not in self._readers:
            own = {name: value for name, value in self._options[number].items() if name.lower() != "commitoffsets"}
            options = SourceOptions.parse(own, "streaming")
            timeout_ms = min(options.request_timeout, _REQUEST_TIMEOUT_MS)
            self._readers[number] = StreamReader(replace(options, pull_timeout=0, request_timeout=timeout_ms), ())
        return self._readers[number]


def _behind(reader: StreamReader, start: QueueOffsets | None, end: QueueOffsets) -> Behind:
    """One source, by what its store or cluster has now."""
    positions, cluster = reader.positions(end), reader.cluster
    lags = {queue: position.lag for queue, position in positions.items()}
    rows = _sum(list(lags.values()))
    unread = {queue: positions[queue] for queue, lag in lags.items() if lag}
    size = oldest_ms = None
    if rows is not None:
        ranges = {queue: (place.group_offset or 0, place.broker_offset or 0) for queue, place in unread.items()}
        size, oldest_ms = _bytes_of(cluster, ranges), _oldest_ms(cluster, ranges)
    return Behind(rows, size, oldest_ms, _batch_bytes(cluster, start, end))


def _bytes_of(cluster: QueryCluster, ranges: Mapping[QueueId, tuple[int, int]]) -> int | None:
    """Of all messages in the ranges; None where some have expired, and where a look would take too long."""
    if not cluster.tells_sizes or sum(stop - first for first, stop in ranges.values()) > ENTRIES_A_LOOK:
        return None
    for queue, (first, _) in ranges.items():
        facts = cluster.facts(queue)
        if facts is None or first < facts.minimum:
            return None
    return sum(cluster.bytes_between(queue, first, stop) for queue, (first, stop) in ranges.items())


def _oldest_ms(cluster: QueryCluster, unread: Mapping[QueueId, tuple[int, int]]) -> int | None:
    """None where the first unread message of a queue is not found."""
    if not unread:
        return 0
    behind_first = {queue: max(first, cluster.bounds(queue)[0]) + 1 for queue, (first, _) in unread.items()}
    cluster.look_up(behind_first)
    places = [cluster.record_before(queue, offset) for queue, offset in behind_first.items()]
    times = [place[1] for place in places if place is not None]
    return max(0, current_time_ms() - min(times)) if len(times) == len(places) else None


def _batch_bytes(cluster: QueryCluster, start: QueueOffsets | None, end: QueueOffsets) -> int | None:
    if start is None or not cluster.tells_sizes:
        return None
    starts, ranges = start.next_offsets(), {}
    for queue, stop in end.next_offsets().items():
        first = starts.get(queue, 0)  # a new queue was read from its minimum
        if queue not in starts and (facts := cluster.facts(queue)) is not None:
            first = facts.minimum
        if first < stop:
            ranges[queue] = first, stop
    return _bytes_of(cluster, ranges)
