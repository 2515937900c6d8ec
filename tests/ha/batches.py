"""A sink on the machine of a master: its batches, each again until it is acknowledged, through the broker's side of the hand-over."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from spark_mq.broker_server.batch_server import BatchServer
from spark_mq.hand_over.messages import StagedCommit
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch
from storage.errors import NotReplicatedError, ReplicasNotEnoughError
from tests.ha.invariants import require
from tests.ha.node import Node, WaitsFor
from tests.support.stage_rows import BatchRows, stage

_NOBODY: Any = SimpleNamespace(tell=lambda document: None)


class Committed(NamedTuple):
    """One try. `data` is all of the batch that stands in the log, from `start` on."""

    batch_id: int
    start: int
    data: bytes
    is_done_already: bool
    waits_for: WaitsFor


class Sink:
    """One query. The next batch comes when this one is acknowledged."""

    def __init__(self, topics: tuple[str, ...], queue_count: int) -> None:
        self._topics, self._queue_count = topics, queue_count
        self._batch_id, self._is_done = -1, True
        self._pieces: list[tuple[int, bytes]] = []
        self._row = re.compile(rb"(sink/\d+/\d+/\d+)(?=.(?:%s))" % "|".join(topics).encode(), re.DOTALL)
        self.done: set[int] = set()
        """Batches that Spark has been told of, and will not repeat."""

    def commit(self, node: Node) -> Committed:
        """The next batch, or the last one again. Raises StorageError."""
        if self._is_done:
            self._batch_id, self._is_done, self._pieces = self._batch_id + 1, False, []
        service = node.service
        assert service is not None
        rows = self._rows(self._batch_id)
        segments = stage(node.files, str(node.root), node.config, rows, queue_count=self._queue_count)
        staged = StagedBatch(rows.batch, segments, dict.fromkeys(rows.topics, self._queue_count))
        request: Any = SimpleNamespace(
            commit=StagedCommit(staged, None), copies=None, is_sync=False, slave_timeout_ms=0
        )
        before = service.log_end
        try:
            outcome, wanted = BatchServer(service)._commit(request, _NOBODY, 0.0)
        except (ReplicasNotEnoughError, NotReplicatedError) as error:
            require(service.log_end == before, 6, f"{error}, and the log has grown")
            raise
        end = service.log_end
        if end > before:
            self._pieces.append((before, node.log(end)[before:]))
        pieces = self._there(node)
        start = pieces[0][0] if pieces else before
        stop = pieces[-1][0] + len(pieces[-1][1]) if pieces else before
        return Committed(self._batch_id, start, node.log(stop)[start:], outcome.already_done, WaitsFor(copies=wanted))

    def acknowledged(self, batch_id: int) -> None:
        """Spark has heard of it."""
        self._is_done = self._is_done or batch_id == self._batch_id
        self.done.add(batch_id)

    def judge(self, node: Node, *, may_lack: bool) -> None:
        """Invariant 22 of a master's log. `may_lack`: where nobody has promised that what was acknowledged is there."""
        found = Counter(self._row.findall(node.log(node.held_end)))
        twice = [row.decode() for row, count in found.items() if count > 1]
        require(not twice, 22, f"{node.host} has {twice} more than once")
        promised = () if may_lack else self.done
        wanted = {row.body.encode() for batch_id in promised for row in self._rows(batch_id).rows}
        lacking = sorted(wanted - found.keys())
        require(not lacking, 22, f"{node.host} lacks {lacking}, whose batches were acknowledged")

    def _rows(self, batch_id: int) -> BatchRows:
        return BatchRows(Batch("sink", "query", batch_id), (3, 2), self._topics)

    def _there(self, node: Node) -> Sequence[tuple[int, bytes]]:
        """What of the batch the log has."""
        log = node.log(1 << 40)
        return [(start, data) for start, data in self._pieces if log[start : start + len(data)] == data]
