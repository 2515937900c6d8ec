"""What keeps a sink's batch from being committed."""

from __future__ import annotations

from storage.errors.base import StorageError


class StagedRowsGoneError(StorageError):
    """A file that a task of the sink has staged is not there; `rows` is how many it held, None where nobody knows."""

    hint = "put the file back, if somebody has moved it; its rows belong to a batch that was decided"

    def __init__(self, path: str, rows: int | None = None) -> None:
        super().__init__(path, rows)
        self.path = path
        self.rows = rows

    def describe(self) -> str:
        held = "" if self.rows is None else f", with {self.rows} rows that were to be written"
        return f"the staged file {self.path} is gone{held}"


class SinkTakenError(StorageError):
    """A sink's id belongs to one query: `owner` wrote under it last, and `query_id` is another.

    A query gets a new id with a new checkpoint, so its batches begin at 0 again, and the ledger cannot tell what of them is done.
    """

    hint = (
        "the usual cause is a checkpoint that was deleted or is new: bring the old one back, or give the query a sinkId of its own; "
        "sinkTakeover=true writes the rows of the new checkpoint's first batches again, whatever of them the store holds"
    )

    def __init__(self, path: str, sink_id: str, owner: str, query_id: str) -> None:
        super().__init__(path, sink_id, owner, query_id)
        self.path = path
        self.sink_id = sink_id
        self.owner = owner
        self.query_id = query_id

    def describe(self) -> str:
        return (
            f"sink {self.sink_id} of store {self.path} belongs to query {self.owner}, and this is query {self.query_id}"
        )


class SinkAheadError(StorageError):
    """A run of a query comes with a batch that another run of it has left behind, or written with other rows, or is at the same place.

    The other run has written batch `known` with `known_rows` rows (None where nobody knows). What this one brings would count as
    written and would not be, or would be written twice.
    """

    def __init__(
        self, path: str, sink_id: str, batch_id: int, row_count: int, known: int, known_rows: int | None
    ) -> None:
        super().__init__(path, sink_id, batch_id, row_count, known, known_rows)
        self.path = path
        self.sink_id = sink_id
        self.batch_id = batch_id
        self.row_count = row_count
        self.known = known
        self.known_rows = known_rows
        another_run = (
            "another run of the query has gone on: its checkpoint is a copy or an older backup, or a driver stood still while its "
            "successor ran. End one of the two, and go on with the newest checkpoint; where there is none, take a new one and start it "
            "behind what was written"
        )
        if known == batch_id and known_rows != row_count:
            self.hint = (
                "the query gives other rows now than when this batch was written: a filter was changed, a static table that it joins "
                "has, or the number of its rows is left to chance. Then sinkTakeover=true passes over this batch, whose rows stay as "
                f"they were written, and the query goes on behind it; take the option away again. Or {another_run}"
            )
        elif known >= batch_id:
            self.hint = f"{another_run}. sinkTakeover=true passes over this batch: its rows are not written"
        else:
            self.hint = another_run

    def describe(self) -> str:
        rows = "" if self.known_rows is None else f" with {self.known_rows} rows"
        whose = " by another run of its query, too" if self.known < self.batch_id else ""
        return (
            f"{self.path}: batch {self.known} of sink {self.sink_id} is written{rows}{whose}, and this run of its query comes with "
            f"batch {self.batch_id}, {self.row_count} rows. Nothing was written"
        )


class SinkProgressError(StorageError):
    """A sink's consumer offset says that a batch is in the store which the ledger does not know.

    Any client of a broker may have set the offset, or the log has lost its end. `mirrored` is the last batch by the offset, `known` by
    the ledger; None where its messages of the sink have expired or were cut.
    """

    def __init__(self, path: str, sink_id: str, mirrored: int, known: int | None, query_id: str) -> None:
        super().__init__(path, sink_id, mirrored, known, query_id)
        self.path = path
        self.sink_id = sink_id
        self.mirrored = mirrored
        self.known = known
        self.query_id = query_id
        command = f"`spark-mq confirm-sink {path} {sink_id}"
        if known is not None:
            cure = f"{command}` sets the offset back to {known + 1}, and later batches are written again"
        else:
            query = "" if query_id == sink_id else f" --query {query_id}"
            cure = f"{command} --last-batch N{query}` says so to the store, with -1 for N if none is there"
        self.hint = f"find out which of the sink's batches are in the store; {cure}"

    def describe(self) -> str:
        known = "the ledger holds none of its batches" if self.known is None else f"the ledger's last is {self.known}"
        return (
            f"store {self.path}: the consumer offset of sink {self.sink_id} says that batch {self.mirrored} is written, but {known}; "
            "either a client has set the offset, or the log has lost its end. Nothing was written"
        )


class SliceMismatchError(StorageError):
    """The log holds a slice of a batch that has no END, and rows `first_row` up to `end_row` of the batch, staged anew, are others.

    `query_id` and `batch_id` say of which batch of which query, `commitlog_offset` where the slice's ledger message stands.
    """

    hint = (
        "a query must give the same rows in the same order when it repeats a batch: undo what was changed in it, in its sources or in "
        "its number of partitions, in its options (compressBodyOver, queueNum), or in the settings that rows carry (regionId, traceOn, "
        "brokerClusterName, the topic's number of queues), and start it again; or give it a sinkId of its own, under which the batch "
        "is written anew, beside the rows of it that the store holds"
    )

    def __init__(
        self,
        path: str,
        sink_id: str,
        query_id: str,
        batch_id: int,
        first_row: int,
        end_row: int,
        commitlog_offset: int,
        row_count: int,
    ) -> None:
        super().__init__(path, sink_id, query_id, batch_id, first_row, end_row, commitlog_offset, row_count)
        self.path = path
        self.sink_id = sink_id
        self.query_id = query_id
        self.batch_id = batch_id
        self.first_row = first_row
        self.end_row = end_row
        self.commitlog_offset = commitlog_offset
        self.row_count = row_count

    def describe(self) -> str:
        return (
            f"store {self.path}: the log holds a part of batch {self.batch_id} of sink {self.sink_id}, and rows {self.first_row} to "
            f"{self.end_row - 1} of it (slice at {self.commitlog_offset}) are not those that were staged now, {self.row_count} in all. "
            "Nothing was written"
        )


class HalvesGoneError(StorageError):
    """The log holds a part of a batch of transactions that has no END, and not its first halves: they have expired.

    `first_row` is the first half that is there, `commitlog_offset` where its slice's ledger message stands.
    """

    hint = (
        "give the query a sinkId of its own: under it the batch is written anew, whole. A broker, or the transaction check, asks the "
        "producer about the halves that are there, and gives them up in the end"
    )

    def __init__(
        self, path: str, sink_id: str, query_id: str, batch_id: int, first_row: int, commitlog_offset: int
    ) -> None:
        super().__init__(path, sink_id, query_id, batch_id, first_row, commitlog_offset)
        self.path = path
        self.sink_id = sink_id
        self.query_id = query_id
        self.batch_id = batch_id
        self.first_row = first_row
        self.commitlog_offset = commitlog_offset

    def describe(self) -> str:
        return (
            f"store {self.path}: the log holds halves of batch {self.batch_id} of sink {self.sink_id} from number {self.first_row} on "
            f"(slice at {self.commitlog_offset}). The halves before them have expired, so no commit can name them. Nothing was written"
        )


class TopicChangedError(StorageError):
    """Rows were staged for a queue that the topic, as it is at the commit, does not offer for writing."""

    hint = "nothing was written; start the query again, so that its rows are staged for the topic as it is"

    def __init__(self, topic: str, queue_id: int, rule: str) -> None:
        super().__init__(topic, queue_id, rule)
        self.topic = topic
        self.queue_id = queue_id
        self.rule = rule

    def describe(self) -> str:
        return f"rows are staged for queue {self.queue_id} of topic {self.topic}, but {self.rule}"
