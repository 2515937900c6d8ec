"""Exactly once on running brokers: a batch that tasks have staged is sent; after a crash the next commit sends the rest.

    1  done already?                    the journal says so; nothing is sent
       another run of the query?        the sink's topic tells of a batch that the journal does not know: refused
    2  an intent of an earlier commit   it is finished first
    3  intent                           the commit point: target queues, where they end, the attempt's producer group
    4  send                             one request in flight a queue
    5  done, announced, intent dropped, staged files deleted

An attempt that ends in doubt is followed by another, in this process or in a later one:

    a  its own producer group is added to the intent
    b  fence       no broker has a request of an earlier attempt on its way
    c  look        which rows of the batch lie in each queue, row by row; of rows that wait, also where they may wait
    d  the intent forgets the earlier attempts; the rest is sent

Requests to brokers are a Protocol, so that a model can replace the brokers. The caller holds the journal's lock.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from spark_mq.client.errors import ClientError
from spark_mq.conditions import BatchInDoubtError, StagingLostError, WriteFailedError
from spark_mq.remoting import MessageQueue
from spark_mq.sink.journal import Done, Intent, Journal, QueueSpan, StagedFile, attempt_group, batch_prefix
from spark_mq.sink.send_plan import (
    QueuePlan,
    expected_rows,
    found_rows,
    has_waiting,
    is_place,
    nothing_left,
    places_of,
    plan_queues,
    queue_text,
    remaining,
    rows_stored,
    rows_stored_or_waiting,
)
from spark_mq.sink.staged_rows import StagedReader
from storage.batch.ledger import Batch
from storage.errors import SinkAheadError
from storage.failpoints import reach

_LOG = logging.getLogger("spark_mq.sink")
ATTEMPTS_WITHOUT_PROGRESS = 5
_unreachable: set[str] = set()
"""Staging directories of sinks whose topic was not readable the last time."""


class Marks(NamedTuple):
    """The row marks of a batch that lie in a stretch of a queue, and their offsets; both in queue order."""

    offsets: np.ndarray
    marks: Sequence[str]


class Stored(NamedTuple):
    """The stored rows of a send: the place of the last row in each queue, and numbers of rows by the code of the answers."""

    ends: Mapping[MessageQueue, int]
    """The offset behind the last row that was confirmed."""
    statuses: Mapping[int, int]


class SendInDoubtError(Exception):
    """A send has ended without all answers: it is unknown which rows the brokers hold."""


class Brokers(Protocol):
    """The requests of a commit to the brokers of its queues."""

    def prepare(self, queues: Iterable[MessageQueue], places: Iterable[MessageQueue] = ()) -> None:
        """Make sure that a fence will be possible at the queues' brokers, which are waited for, and that places can be looked into.

        Raises where that is not so.
        """

    def ends(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The end of each queue, which may lag behind what is stored."""

    def fence(self, queues: Iterable[MessageQueue], groups: Sequence[str]) -> None:
        """Return when nothing of these groups is on its way at any of the queues' brokers, and all that they have stored can be read.

        Raises BatchInDoubtError when the time is over.
        """

    def marks(self, queue: MessageQueue, start: int, prefix: str) -> Marks:
        """The marks with that prefix from an offset to the queue's end. Raises SentRowsLostError where messages behind it are gone."""

    def send(
        self,
        group: str,
        plans: Mapping[MessageQueue, QueuePlan],
        files: Sequence[StagedReader],
        least: Mapping[MessageQueue, int],
    ) -> Stored:
        """Send all of it. Raises SendInDoubtError, or an error where a broker refuses for good.

        If a queue ends before its `least` offset when the connections are open, it has lost its end since that offset was read: that is
        a doubt, and nothing is sent. From then on a broker that restarts breaks its connection.
        """

    def check_safety(self, statuses: Mapping[int, int]) -> None:
        """Raises NotConfirmedError where the user wants more than an answer gave."""

    def announce(self, done: Done) -> None:
        """Tell the sink's own topic."""

    def announced(self, sink_id: str, *, patient: bool) -> list[Done]:
        """Batches that the topic announces for this sink, with the newest. With `patient` it waits for brokers that are away."""


class Outcome(NamedTuple):
    """The outcome of a commit."""

    rows: int
    is_new: bool
    """Whether this commit has sent anything of it; else it was there already."""
    statuses: Mapping[int, int]
    attempts: int = 1


class ExactCommit:
    """Commits of one sink. `nonce` gives 8 unique hex digits.

    `is_write`: what comes is all of a write that has a name (`writeId`), and no batch of a query. `takeover`: batches that another run
    of the query has sent are passed over.
    """

    def __init__(
        self,
        journal: Journal,
        brokers: Brokers,
        nonce: Callable[[], str],
        *,
        is_write: bool = False,
        takeover: bool = False,
    ) -> None:
        self._journal = journal
        self._brokers = brokers
        self._nonce = nonce
        self._is_write = is_write
        self._takeover = takeover

    def commit(self, batch: Batch, files: Sequence[StagedFile]) -> Outcome:
        """Send a batch once. Raises BatchInDoubtError, SentRowsLostError, StagingLostError, WriteFailedError, and errors of the client;
        the batch stays open then, and the next commit finishes it. Raises SinkAheadError where another run of the query has sent on.
        """
        kept = self._journal.load()
        row_count = sum(staged.rows for staged in files)
        if kept.intent is not None:
            self._check_query(kept.intent.batch, batch)
            finished = self._finish(kept.intent, kept.done)
            if (decided := kept.intent).batch == batch:
                self._refuse_another_run(batch, sum(staged.rows for staged in decided.files), batch, row_count)
                return finished
            kept = self._journal.load()
        if kept.done is not None:
            self._check_query(kept.done.batch, batch)
            if kept.done.batch.batch_id >= batch.batch_id:
                self._refuse_another_run(kept.done.batch, kept.done.rows, batch, row_count)
                self._journal.drop_rows(batch.batch_id)
                return Outcome(0, False, {})
        readers = self._read(files)
        plans = plan_queues([reader.batches for reader in readers])
        places = _places(plans)
        self._brokers.prepare(plans, places)  # it waits for them; of others that are away, nothing is needed behind it
        if kept.done is not None:
            if files and self._was_sent_by_others(kept.done, batch, row_count):
                self._journal.drop_rows(batch.batch_id)
                return Outcome(0, False, {})
        elif self._was_sent_elsewhere(batch, files):
            self._journal.drop_rows(batch.batch_id)
            return Outcome(0, False, {})
        if not files:
            if kept.done is None:  # so that the next batch finds a memory of its query
                self._journal.save_done(Done(batch, (), 0))
            return Outcome(0, False, {})
        ends = self._brokers.ends([*plans, *places])
        spans = tuple(QueueSpan(queue, end, end) for queue, end in ends.items())
        intent = Intent(batch, tuple(files), spans, (attempt_group(batch, 1, self._nonce()),), 1)
        reach("live-before-intent")
        self._journal.save_intent(intent)
        reach("live-after-intent")
        return self._send(intent, readers, plans)

    def _refuse_another_run(self, known: Batch, known_rows: int, batch: Batch, row_count: int) -> None:
        """Raises SinkAheadError for a batch that is not the last one that the journal knows, or has other rows than it.

        Of a write (`writeId`) what comes under its name again is not sent, whatever it is.
        """
        if self._is_write or self._takeover:
            return
        if known.batch_id > batch.batch_id or known_rows != row_count:
            raise SinkAheadError(
                self._journal.directory, batch.sink_id, batch.batch_id, row_count, known.batch_id, known_rows
            )

    def _was_sent_by_others(self, done: Done, batch: Batch, row_count: int) -> bool:
        """Raises SinkAheadError if the sink's topic announces a batch of the query that this journal has not sent.

        Then the staging directory is a copy or an older one, and another run sends from another directory. With `takeover`: True if the
        topic announces this batch or a later one, which the journal takes over. A broker that is away now does not stop a query whose
        directory knows it: the query may send nothing there.
        """
        for known in self._announced(batch.sink_id):
            is_ours = known.batch.query_id == batch.query_id
            is_newer = known.batch.batch_id > done.batch.batch_id
            if is_ours and is_newer and self._takeover and known.batch.batch_id >= batch.batch_id:
                self._journal.save_done(known)
                return True
            if is_ours and (is_newer or (known.batch == done.batch and known.spans != done.spans)):
                raise SinkAheadError(
                    self._journal.directory, batch.sink_id, batch.batch_id, row_count, known.batch.batch_id, known.rows
                )
        return False

    def _announced(self, sink_id: str) -> list[Done]:
        """The batches that the sink's topic announces; none if a broker of the topic is away now, which is logged once."""
        directory = self._journal.directory
        try:
            announced = self._brokers.announced(sink_id, patient=False)
        except ClientError as error:
            if not error.retriable:
                raise
            if directory not in _unreachable:
                _LOG.warning(
                    "sink %s: cannot check whether another run of the query has sent: %s", sink_id, error.describe()
                )
            _unreachable.add(directory)
            return []
        _unreachable.discard(directory)
        return announced

    def _finish(self, intent: Intent, done: Done | None) -> Outcome:
        """Bring a decided batch to its end."""
        if done is not None and done.batch == intent.batch:
            self._clear_away(done)
            return Outcome(done.rows, False, {})
        readers = self._read(intent.files)
        return self._redo(intent, readers, plan_queues([reader.batches for reader in readers]))

    def _send(
        self, intent: Intent, readers: Sequence[StagedReader], plans: Mapping[MessageQueue, QueuePlan]
    ) -> Outcome:
        try:
            least = {span.queue: span.start for span in intent.spans}
            stored = self._brokers.send(intent.groups[-1], plans, readers, least)
        except SendInDoubtError as doubt:
            _LOG.warning("batch %d: attempt %d is in doubt: %s", intent.batch.batch_id, intent.attempt, doubt)
            return self._redo(intent, readers, plans)
        return self._conclude(intent, stored.ends, stored.statuses)

    def _redo(
        self, intent: Intent, readers: Sequence[StagedReader], plans: Mapping[MessageQueue, QueuePlan]
    ) -> Outcome:
        """Attempts after the first, until one of them is not in doubt."""
        stored_before, idle, said = -1, 0, ""
        while True:
            own = attempt_group(intent.batch, intent.attempt + 1, self._nonce())
            before, intent = intent.groups, intent._replace(groups=(*intent.groups, own), attempt=intent.attempt + 1)
            self._journal.save_intent(intent)
            reach("live-attempt-saved")
            self._brokers.fence(plans, before)
            reach("live-fenced")
            intent = self._lowered(intent)
            ends, left, stored_rows = self._look(intent, plans)
            reach("live-looked")
            intent = intent._replace(groups=(own,))
            self._journal.save_intent(intent)
            reach("live-attempt-settled")
            if nothing_left(left):
                return self._conclude(intent, ends, {})
            idle = 0 if stored_rows > stored_before else idle + 1
            stored_before = stored_rows
            if idle >= ATTEMPTS_WITHOUT_PROGRESS:
                reason = f"{intent.attempt} attempts were made, and the last {idle} have stored nothing more: {said}"
                raise BatchInDoubtError(_text(intent.batch), reason)
            try:
                stored = self._brokers.send(own, left, readers, ends)
            except SendInDoubtError as doubt:
                _LOG.warning("batch %d: attempt %d is in doubt: %s", intent.batch.batch_id, intent.attempt, doubt)
                said = str(doubt)
                continue
            return self._conclude(intent, {**ends, **stored.ends}, stored.statuses)

    def _lowered(self, intent: Intent) -> Intent:
        """The intent, with queues that have lost their end looked through from where they end now: the next rows go there."""
        ends = self._brokers.ends(span.queue for span in intent.spans)
        spans = (span._replace(start=min(span.start, ends[span.queue])) for span in intent.spans)
        return intent._replace(spans=tuple(spans))

    def _look(
        self, intent: Intent, plans: Mapping[MessageQueue, QueuePlan]
    ) -> tuple[dict[MessageQueue, int], dict[MessageQueue, QueuePlan], int]:
        """The ends of the batch's rows in each queue, the rest to send, and the number of stored rows."""
        prefix, ends, left, count = batch_prefix(intent.batch), {}, {}, 0
        starts = {span.queue: span.start for span in intent.spans}
        found: dict[MessageQueue, np.ndarray] = {}
        for queue in (*plans, *_places(plans)):
            marks = self._brokers.marks(queue, starts.get(queue, 0), prefix)
            found[queue] = found_rows(marks.marks, prefix, intent.files)
            ends[queue] = int(marks.offsets[-1]) + 1 if len(marks.marks) else starts.get(queue, 0)
        for queue, plan in plans.items():
            if has_waiting(plan):
                elsewhere = np.concatenate([found[place] for place in places_of([queue])])
                stored = rows_stored_or_waiting(queue, plan, found[queue], elsewhere)
            else:
                stored = rows_stored(queue, expected_rows(plan), found[queue])
            count += stored
            if rest := remaining(plan, stored):
                left[queue] = rest
        return ends, left, count

    def _conclude(self, intent: Intent, ends: Mapping[MessageQueue, int], statuses: Mapping[int, int]) -> Outcome:
        """All rows are stored."""
        reach("live-after-send")
        self._brokers.check_safety(statuses)
        spans = tuple(span._replace(end=ends.get(span.queue, span.start)) for span in intent.spans)
        done = Done(intent.batch, spans, sum(staged.rows for staged in intent.files))
        self._journal.save_done(done)
        reach("live-after-done")
        self._clear_away(done)
        return Outcome(done.rows, True, statuses, intent.attempt)

    def _clear_away(self, done: Done) -> None:
        self._brokers.announce(done)
        reach("live-after-announce")
        self._journal.drop_intent()
        reach("live-after-drop")
        self._journal.drop_rows(done.batch.batch_id)
        reach("live-after-rows-dropped")

    def _was_sent_elsewhere(self, batch: Batch, files: Sequence[StagedFile]) -> bool:
        """Whether a batch that the journal does not know was sent: its directory was lost or is another one.

        Raises StagingLostError if that is unknown: the first possible offset is known only for queues that the last batch was sent to.
        """
        known = max(
            self._brokers.announced(batch.sink_id, patient=True), key=lambda done: done.batch.batch_id, default=None
        )
        if known is None and batch.batch_id == 0:
            return False
        if known is None:
            rule = f"the staging directory knows nothing of batches before {batch.batch_id}, nor does the sink's topic"
            raise StagingLostError(batch.sink_id, rule)
        self._check_query(known.batch, batch)
        if known.batch.batch_id > batch.batch_id:
            rule = f"the sink's topic tells of batch {known.batch.batch_id}, and the query is at {batch.batch_id}"
            raise StagingLostError(batch.sink_id, rule)
        prefix, counts = batch_prefix(batch), Counter[str]()
        for span in known.spans:
            start = span.start if known.batch.batch_id == batch.batch_id else span.end
            counts.update(self._brokers.marks(span.queue, start, prefix).marks)
        if known.batch.batch_id == batch.batch_id:
            may_be_twice = any(is_place(span.queue) for span in known.spans)
            if len(counts) == known.rows and (may_be_twice or max(counts.values(), default=1) == 1):
                self._journal.save_done(known)
                return True
            rule = f"the sink's topic says that batch {batch.batch_id} is sent, and {len(counts)} of its {known.rows} rows are found"
            raise StagingLostError(batch.sink_id, rule)
        if counts:
            rule = f"batch {batch.batch_id} was started ({len(counts)} rows are found), and what was to be sent is not known"
            raise StagingLostError(batch.sink_id, rule)
        targets = plan_queues([reader.batches for reader in self._read(files)])
        if unseen := sorted({*targets, *_places(targets)} - {span.queue for span in known.spans}):
            rule = (
                f"batch {batch.batch_id} may have been started in queue {queue_text(unseen[0])}, to which the last batch "
                f"that the sink's topic tells of ({known.batch.batch_id}) did not go"
            )
            raise StagingLostError(batch.sink_id, rule)
        self._journal.save_done(known)
        return False

    def _read(self, files: Sequence[StagedFile]) -> list[StagedReader]:
        """The staged files. Raises CorruptRecordError where one is not what its task has written."""
        readers = [StagedReader(self._journal.files, self._journal.directory, staged) for staged in files]
        for reader in readers:
            reader.check()
        return readers

    def _check_query(self, known: Batch, batch: Batch) -> None:
        if known.query_id != batch.query_id:
            raise WriteFailedError(
                f"sink {batch.sink_id} has batches of query {known.query_id}, and this is query {batch.query_id}: "
                "go on with that query's checkpoint, or take another sinkId"
            )


def _places(plans: Mapping[MessageQueue, QueuePlan]) -> list[MessageQueue]:
    """The places where rows of the plans may wait."""
    return places_of(queue for queue, plan in plans.items() if has_waiting(plan))


def _text(batch: Batch) -> str:
    return f"batch {batch.batch_id} of sink {batch.sink_id}"
