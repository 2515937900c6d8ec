"""Exactly once over a model of brokers: whatever dies, is lost or comes late, each row is there once and in its place."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from spark_mq.client.errors import AccessDeniedError, BrokerUnreachableError, ClientError
from spark_mq.conditions import (
    BatchInDoubtError,
    NotConfirmedError,
    SentRowsLostError,
    StagingLostError,
    WriteFailedError,
)
from spark_mq.remoting import MessageQueue
from spark_mq.remoting.messages import BatchedMessage, encode_batch
from spark_mq.sink import exact_commit
from spark_mq.sink.exact_commit import ExactCommit, Outcome
from spark_mq.sink.journal import Done, Journal, StagedFile, batch_prefix
from spark_mq.sink.staged_rows import StagedWriter
from storage.batch.ledger import Batch
from storage.errors import CorruptRecordError, SinkAheadError
from storage.failpoints import LIVE_COMMIT, LIVE_REDO
from tests.support.dying import killed_at
from tests.support.unsynced_files import UnsyncedFileSystem

from .model_brokers import Died, ModelBrokers, ModelCluster

QUEUES = [MessageQueue("T", broker, queue_id) for broker in ("a", "b") for queue_id in (0, 1)]
SINK = "query"
SEEDS_A_TEST = 10
WAITS = b"waits:"
"""How the body of a row begins that goes alone, and that its broker puts where it likes."""


class Sink:
    """A query's sink: a staging directory, a cluster, and processes that come one after another."""

    def __init__(self, directory: Path, cluster: ModelCluster) -> None:
        self.files = UnsyncedFileSystem()
        self.directory = directory
        self.cluster = cluster
        self.random = cluster.random
        self.expected: dict[MessageQueue, list[bytes]] = {}

    @property
    def journal(self) -> Journal:
        return Journal(self.files, str(self.directory), SINK)

    def stage(self, batch: Batch, rows_by_task: list[list[tuple[MessageQueue, list[bytes]]]]) -> list[StagedFile]:
        """What the tasks of one run of a batch stage; each run has nonces of its own."""
        staged = []
        for partition, batches in enumerate(rows_by_task):
            nonce = f"{self.random.getrandbits(32):08x}"
            writer = StagedWriter(self.files, self.journal.directory, f"{batch.batch_id}-{partition}-{nonce}-x.rows")
            rank = 0
            for queue, bodies in batches:
                ranks = np.arange(rank, rank + len(bodies))
                rank += len(bodies)
                marks = [f"{batch_prefix(batch)}{nonce}-{partition}-{number:012X}" for number in ranks]
                items = [
                    BatchedMessage(body, f"SPARK_MQ_ROW\x01{mark}\x02".encode())
                    for body, mark in zip(bodies, marks, strict=True)
                ]
                writer.append(queue, encode_batch(items), 0, ranks, waits=bodies[0].startswith(WAITS))
            if (finished := writer.finish()) is not None:
                staged.append(finished)
        return staged

    def commit(
        self, batch: Batch, staged: list[StagedFile], *, is_write: bool = False, takeover: bool = False
    ) -> Outcome:
        """One process commits, or dies."""
        commit = ExactCommit(
            self.journal,
            ModelBrokers(self.cluster),
            lambda: f"{self.random.getrandbits(32):08x}",
            is_write=is_write,
            takeover=takeover,
        )
        with self.journal.locked(0):
            return commit.commit(batch, staged)

    def run(self, batch_id: int, rows_by_task: list[list[tuple[MessageQueue, list[bytes]]]]) -> int:
        """What Spark does: stage and commit, again after each failure. Returns how often."""
        batch = Batch(SINK, SINK, batch_id)
        for rows in rows_by_task:
            for queue, bodies in rows:
                self.expected.setdefault(queue, []).extend(bodies)
        for tries in range(1, 400):
            try:
                self.commit(batch, self.stage(batch, rows_by_task))
            except (Died, BatchInDoubtError):
                continue
            return tries
        raise AssertionError("it never ends")

    def stored(self) -> dict[MessageQueue, list[bytes]]:
        """The sink's rows in each queue."""
        found = {queue: [body for mark, body in rows if mark] for queue, rows in self.cluster.queues.items()}
        return {queue: bodies for queue, bodies in found.items() if bodies}


def some_rows(chance: random.Random, batch_id: int) -> list[list[tuple[MessageQueue, list[bytes]]]]:
    """The rows of a batch: of each task some send batches. The same for each run of the batch."""
    number = iter(range(10_000))
    return [
        [
            (chance.choice(QUEUES), [b"%d:%d:%d" % (batch_id, task, next(number)) for _ in range(chance.randint(1, 4))])
            for _ in range(chance.randint(0, 5))
        ]
        for task in range(chance.randint(1, 3))
    ]


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> list[ModelCluster]:
    """Processes die at the named points of a commit too, of the clusters in the list."""
    clusters: list[ModelCluster] = []

    def reach(name: str) -> None:
        assert name in (*LIVE_COMMIT, *LIVE_REDO)
        for cluster in clusters:
            cluster.die(0.5)

    monkeypatch.setattr(exact_commit, "reach", reach)
    return clusters


@pytest.mark.parametrize(
    "first",
    [
        *range(0, 30, 10),
        *(pytest.param(at, marks=pytest.mark.slow) for at in range(30, 120, 10)),
        *(pytest.param(at, marks=pytest.mark.long) for at in range(120, 400, 10)),
    ],
)
def test_each_row_is_stored_once_and_in_order_whatever_goes_wrong(
    first: int, tmp_path: Path, dying: list[ModelCluster]
) -> None:
    tries = 0
    for seed in range(first, first + SEEDS_A_TEST):
        chance = random.Random(seed)
        cluster = ModelCluster(chance, trouble=chance.choice([0.05, 0.2, 0.4]))
        dying[:] = [cluster]
        sink = Sink(tmp_path / str(seed), cluster)
        for batch_id in range(3):
            tries += sink.run(batch_id, some_rows(chance, batch_id))
        cluster.trouble = 0.0
        cluster.release([one.group for one in cluster.held])
        sink.run(3, [[(QUEUES[0], [b"last"])]])
        assert sink.stored() == sink.expected, f"seed {seed}"
        kept = sink.journal.load()
        assert kept.intent is None
        assert kept.done is not None
        assert kept.done.batch.batch_id == 3
        left = [entry.name for entry in sink.files.list_directory(sink.journal.directory)]
        assert sorted(left) == ["done.json", "lock"], f"seed {seed}"
        shutil.rmtree(tmp_path / str(seed))
    assert tries > 1.3 * 3 * SEEDS_A_TEST, "the rounds were too peaceful"


def test_without_a_fence_rows_would_be_doubled_or_noticed(tmp_path: Path, dying: list[ModelCluster]) -> None:
    """The simulator can fail: where requests on their way are not waited for, some seed shows it."""
    wrong = 0
    for seed in range(60):
        chance = random.Random(seed)
        cluster = ModelCluster(chance, trouble=0.3, forgets_requests=True)
        dying[:] = [cluster]
        sink = Sink(tmp_path / str(seed), cluster)
        try:
            for batch_id in range(3):
                sink.run(batch_id, some_rows(chance, batch_id))
            wrong += sink.stored() != sink.expected
        except SentRowsLostError:
            wrong += 1
        if wrong > 5:
            return
    pytest.fail(f"only {wrong} seeds of 60 show it")


def rows_that_wait(chance: random.Random, batch_id: int) -> list[list[tuple[MessageQueue, list[bytes]]]]:
    """As `some_rows`; about half of them wait. Some queues are those of a retry topic."""
    queues = [*QUEUES, MessageQueue("%RETRY%g", "a", 0)]
    tasks: list[list[tuple[MessageQueue, list[bytes]]]] = []
    for task in range(chance.randint(1, 3)):
        tasks.append([])
        for number in range(chance.randint(0, 6)):
            queue, body = chance.choice(queues), b"%d:%d:%d" % (batch_id, task, number)
            waits = queue.topic != "T" or chance.random() < 0.5
            tasks[-1].append((queue, [WAITS + body] if waits else [body, body + b"b"]))
    return tasks


@pytest.mark.parametrize(
    "first",
    [
        0,
        *(pytest.param(at, marks=pytest.mark.slow) for at in (10, 40)),
        *(pytest.param(at, marks=pytest.mark.long) for at in (20, 30, *range(50, 400, 10))),
    ],
)
def test_each_row_that_waits_is_put_once_whatever_goes_wrong(
    first: int, tmp_path: Path, dying: list[ModelCluster]
) -> None:
    tries = 0
    for seed in range(first, first + SEEDS_A_TEST):
        chance = random.Random(seed)
        cluster = ModelCluster(chance, trouble=chance.choice([0.05, 0.2, 0.4]))
        dying[:] = [cluster]
        sink = Sink(tmp_path / str(seed), cluster)
        for batch_id in range(3):
            tries += sink.run(batch_id, rows_that_wait(chance, batch_id))
        cluster.trouble = 0.0
        cluster.release([one.group for one in cluster.held])
        assert cluster.puts == sink.expected, f"seed {seed}"
        shutil.rmtree(tmp_path / str(seed))
    assert tries > 1.3 * 3 * SEEDS_A_TEST, "the rounds were too peaceful"


ROWS = [[(QUEUES[0], [b"a", b"b", b"c"]), (QUEUES[2], [b"d"])]]


def peaceful(tmp_path: Path) -> Sink:
    return Sink(tmp_path / "staging", ModelCluster(random.Random(1), trouble=0.0))


def test_a_batch_that_is_done_is_not_sent_again(tmp_path: Path) -> None:
    sink, batch = peaceful(tmp_path), Batch(SINK, SINK, 0)
    assert sink.commit(batch, sink.stage(batch, ROWS)) == Outcome(4, True, {0: 1})
    assert sink.commit(batch, sink.stage(batch, ROWS)) == Outcome(0, False, {})
    assert sink.stored() == {QUEUES[0]: [b"a", b"b", b"c"], QUEUES[2]: [b"d"]}


def test_a_batch_that_is_not_stored_as_safely_as_the_user_wants_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next commit looks for its rows behind another fence, whose answer says how safe they are by then."""
    sink, batch = peaceful(tmp_path), Batch(SINK, SINK, 0)

    def refuse(brokers: ModelBrokers, statuses: Mapping[int, int]) -> None:
        raise NotConfirmedError("a", 1, "FLUSH_DISK_TIMEOUT", "it is not synced")

    with monkeypatch.context() as patched:
        patched.setattr(ModelBrokers, "check_safety", refuse)
        for _ in range(2):
            with pytest.raises(NotConfirmedError):
                sink.commit(batch, sink.stage(batch, ROWS))
            kept = sink.journal.load()
            assert (kept.done, kept.intent is None) == (None, False)
    assert sink.commit(batch, sink.stage(batch, ROWS)).is_new
    assert sink.stored() == {QUEUES[0]: [b"a", b"b", b"c"], QUEUES[2]: [b"d"]}
    assert sink.journal.load().intent is None


def test_a_part_of_a_request_that_a_crash_left_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, batch = peaceful(tmp_path), Batch(SINK, SINK, 0)
    staged = sink.stage(batch, ROWS)

    with killed_at("live-after-intent"):
        sink.commit(batch, staged)
    intent = sink.journal.load().intent
    assert intent is not None
    marks = [f"{batch_prefix(batch)}{intent.files[0].mark}{rank:012X}" for rank in range(2)]
    sink.cluster.queues[QUEUES[0]] = [(marks[0], b"a"), ("", b"foreign"), (marks[1], b"b")]
    assert sink.commit(batch, sink.stage(batch, ROWS)).attempts == 2
    assert sink.stored() == {QUEUES[0]: [b"a", b"b", b"c"], QUEUES[2]: [b"d"]}


@pytest.mark.parametrize(
    ("ranks", "rule"),
    [([1], "row 0 of the batch's 3 rows is not there"), ([0, 0], "twice"), ([0, 2], "row 1"), ([0, 1, 2, 0], "twice")],
)
def test_rows_that_are_no_beginning_of_the_batch_stop_it(
    ranks: list[int], rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, batch = peaceful(tmp_path), Batch(SINK, SINK, 0)
    staged = sink.stage(batch, ROWS)

    with killed_at("live-after-intent"):
        sink.commit(batch, staged)
    sink.cluster.queues[QUEUES[0]] = [
        (f"{batch_prefix(batch)}{staged[0].mark}{rank:012X}", b"%d" % rank) for rank in ranks
    ]
    with pytest.raises(SentRowsLostError, match=rule):
        sink.commit(batch, sink.stage(batch, ROWS))
    assert QUEUES[2] not in sink.cluster.queues, "nothing more is sent"


def test_a_queue_that_has_lost_its_end_is_looked_through_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, batch = peaceful(tmp_path), Batch(SINK, SINK, 0)
    sink.cluster.queues[QUEUES[0]] = [("", b"foreign")] * 10
    deaths = iter([True, False, True, False, False])

    def stop(name: str) -> None:
        if name in ("live-after-intent", "live-after-send") and next(deaths):
            sink.cluster.queues[QUEUES[0]] = (
                sink.cluster.queues[QUEUES[0]][:4] if name == "live-after-intent" else (sink.cluster.queues[QUEUES[0]])
            )
            raise Died

    monkeypatch.setattr(exact_commit, "reach", stop)
    for _ in range(2):
        try:
            sink.commit(batch, sink.stage(batch, ROWS))
        except Died:
            continue
    sink.commit(batch, sink.stage(batch, ROWS))
    assert sink.stored() == {QUEUES[0]: [b"a", b"b", b"c"], QUEUES[2]: [b"d"]}


def test_an_earlier_batch_and_the_last_one_with_other_rows_are_refused(tmp_path: Path) -> None:
    """They come from a checkpoint that is a copy or an older one: as done they would be missing."""
    sink = peaceful(tmp_path)
    for batch_id in range(2):
        sink.run(batch_id, ROWS)
    before = sink.stored()
    for batch_id, rows in ((0, ROWS), (1, [[(QUEUES[0], [b"a", b"b", b"c", b"d", b"e"])]])):
        batch = Batch(SINK, SINK, batch_id)
        with pytest.raises(SinkAheadError, match=r"batch 1 of sink query is written with 4 rows"):
            sink.commit(batch, sink.stage(batch, rows))
    assert sink.stored() == before
    sink.run(2, ROWS)


def test_the_first_batch_of_a_query_with_other_rows_is_refused_and_of_a_write_is_not_sent(tmp_path: Path) -> None:
    """A sink without a name has its query's, as a write has its own."""
    sink, batch = peaceful(tmp_path), Batch(SINK, SINK, 0)
    sink.run(0, ROWS)
    other = [[(QUEUES[0], [b"a", b"b", b"c", b"d", b"e"])]]
    with pytest.raises(SinkAheadError, match=r"written with 4 rows, .* batch 0, 5 rows"):
        sink.commit(batch, sink.stage(batch, other))
    assert sink.commit(batch, sink.stage(batch, other), is_write=True) == Outcome(0, False, {})
    assert sink.stored() == sink.expected


def test_taking_over_passes_over_the_last_batch_with_other_rows_and_goes_on(tmp_path: Path) -> None:
    sink = peaceful(tmp_path)
    for batch_id in range(2):
        sink.run(batch_id, ROWS)
    for batch_id in (1, 0):
        batch = Batch(SINK, SINK, batch_id)
        fewer = sink.stage(batch, [[(QUEUES[0], [b"fewer"])]])
        assert sink.commit(batch, fewer, takeover=True) == Outcome(0, False, {})
    assert sink.stored() == sink.expected
    sink.run(2, ROWS)
    assert sink.stored() == sink.expected


def test_taking_over_passes_over_what_another_directory_has_sent(tmp_path: Path) -> None:
    sink = peaceful(tmp_path)
    sink.run(0, ROWS)
    copy = Sink(tmp_path / "copy", sink.cluster)
    shutil.copytree(sink.directory, copy.directory)
    for batch_id in (1, 2):
        sink.run(batch_id, ROWS)
    for batch_id in (1, 2):
        batch = Batch(SINK, SINK, batch_id)
        assert copy.commit(batch, copy.stage(batch, ROWS), takeover=True) == Outcome(0, False, {})
    assert sink.stored() == sink.expected
    copy.expected = sink.expected
    copy.run(3, ROWS)
    assert copy.stored() == copy.expected


def test_a_broker_that_cannot_be_asked_stops_no_query_that_its_directory_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is registered and dead, and to which the query may send nothing. A query that nobody knows must ask."""
    sink = peaceful(tmp_path)
    sink.run(0, ROWS)

    def fail(error: ClientError) -> None:
        def announced(brokers: ModelBrokers, sink_id: str, *, patient: bool) -> list[Done]:
            raise error

        monkeypatch.setattr(ModelBrokers, "announced", announced)

    for _ in range(2):
        fail(BrokerUnreachableError("10.0.0.9:10911", "Connection refused"))
        for batch_id in (1, 2):
            sink.run(batch_id, ROWS)
        assert [record.message for record in caplog.records] == [
            "sink query: cannot check whether another run of the query has sent: 10.0.0.9:10911: Connection refused"
        ]
        monkeypatch.undo()
        sink.run(3, ROWS)
        caplog.clear()
        shutil.rmtree(sink.directory)
        sink = peaceful(tmp_path)
        sink.run(0, ROWS)
    batch = Batch(SINK, SINK, 1)
    fail(AccessDeniedError(16, None, "10.0.0.9:10911", "QUERY_MESSAGE"))
    with pytest.raises(AccessDeniedError):
        sink.commit(batch, sink.stage(batch, ROWS))
    shutil.rmtree(sink.directory)
    fail(BrokerUnreachableError("10.0.0.9:10911", "Connection refused"))
    with pytest.raises(BrokerUnreachableError):
        sink.commit(batch, sink.stage(batch, ROWS))


def test_a_decided_batch_that_comes_again_with_other_rows_is_finished_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, batch = peaceful(tmp_path), Batch("sink", SINK, 0)

    with killed_at("live-after-send"):
        sink.commit(batch, sink.stage(batch, ROWS))
    with pytest.raises(SinkAheadError, match=r"written with 4 rows, .* batch 0, 1 rows"):
        sink.commit(batch, sink.stage(batch, [[(QUEUES[1], [b"other"])]]))
    assert sink.stored() == {QUEUES[0]: [b"a", b"b", b"c"], QUEUES[2]: [b"d"]}


def test_of_two_staging_directories_with_one_checkpoint_the_older_is_refused(tmp_path: Path) -> None:
    sink = peaceful(tmp_path)
    sink.run(0, ROWS)
    copy = Sink(tmp_path / "copy", sink.cluster)
    shutil.copytree(sink.directory, copy.directory)
    sink.run(1, ROWS)
    before = sink.stored()
    batch = Batch(SINK, SINK, 1)
    with pytest.raises(SinkAheadError, match=r"batch 1 of sink query is written with 4 rows, .* batch 1, 4 rows"):
        copy.commit(batch, copy.stage(batch, ROWS))
    assert sink.stored() == before
    sink.run(2, ROWS)


def test_two_runs_that_have_sent_one_batch_twice_go_no_further(tmp_path: Path) -> None:
    """They sent it at the same moment, when the topic told of neither."""
    sink = peaceful(tmp_path)
    sink.run(0, ROWS)
    copy = Sink(tmp_path / "copy", sink.cluster)
    shutil.copytree(sink.directory, copy.directory)
    told = list(sink.cluster.topic)
    sink.run(1, ROWS)
    late, sink.cluster.topic = sink.cluster.topic[len(told) :], told
    copy.run(1, ROWS)
    sink.cluster.topic += late
    for one in (sink, copy):
        batch = Batch(SINK, SINK, 2)
        with pytest.raises(SinkAheadError, match=r"batch 1 of sink query is written with 4 rows by another run"):
            one.commit(batch, one.stage(batch, ROWS))


def test_another_query_of_the_sinks_name_in_another_directory_is_nobodys_matter(tmp_path: Path) -> None:
    """Each has its own rows, and sends them once."""
    sink = peaceful(tmp_path)
    sink.run(0, ROWS)
    sink.cluster.topic.append(sink.cluster.topic[0]._replace(batch=Batch(SINK, "another", 7)))
    sink.run(1, ROWS)


def test_a_lost_staging_directory_is_noticed(tmp_path: Path) -> None:
    sink = peaceful(tmp_path)
    for batch_id in range(2):
        sink.run(batch_id, ROWS)
    shutil.rmtree(sink.directory)
    before = sink.stored()
    batch = Batch(SINK, SINK, 1)
    assert not sink.commit(batch, sink.stage(batch, ROWS)).is_new, "its rows are where the topic says"
    assert sink.stored() == before
    sink.run(2, ROWS)
    shutil.rmtree(sink.directory)
    sink.cluster.queues[QUEUES[0]][-1] = ("", b"expired")
    batch = Batch(SINK, SINK, 2)
    with pytest.raises(StagingLostError, match="3 of its 4 rows are found"):
        sink.commit(batch, sink.stage(batch, ROWS))
    with pytest.raises(StagingLostError, match="the query is at 1"):
        sink.commit(Batch(SINK, SINK, 1), [])


def test_a_batch_that_was_begun_under_a_lost_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = peaceful(tmp_path)
    sink.run(0, ROWS)

    batch = Batch(SINK, SINK, 1)
    with killed_at("live-after-send"):
        sink.commit(batch, sink.stage(batch, ROWS))
    shutil.rmtree(sink.directory)
    with pytest.raises(StagingLostError, match="was started"):
        sink.commit(batch, sink.stage(batch, ROWS))


def test_a_later_batch_without_any_memory_is_refused(tmp_path: Path) -> None:
    sink, batch = peaceful(tmp_path), Batch(SINK, SINK, 7)
    with pytest.raises(StagingLostError, match="knows nothing of batches before 7"):
        sink.commit(batch, sink.stage(batch, ROWS))


def test_an_empty_first_batch_is_remembered(tmp_path: Path) -> None:
    sink = peaceful(tmp_path)
    assert sink.commit(Batch(SINK, SINK, 0), []) == Outcome(0, False, {})
    sink.run(1, ROWS)
    assert sink.stored() == {QUEUES[0]: [b"a", b"b", b"c"], QUEUES[2]: [b"d"]}


def test_another_query_of_the_same_sink_is_refused(tmp_path: Path) -> None:
    sink = peaceful(tmp_path)
    sink.run(0, ROWS)
    with pytest.raises(WriteFailedError, match="take another sinkId"):
        sink.commit(Batch(SINK, "another", 1), [])


def test_another_query_finishes_no_batch_that_is_begun_and_is_refused_by_the_sinks_topic_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, batch = peaceful(tmp_path), Batch(SINK, SINK, 0)

    with killed_at("live-after-intent"):
        sink.commit(batch, sink.stage(batch, ROWS))
    with pytest.raises(WriteFailedError, match="take another sinkId"):
        sink.commit(Batch(SINK, "another", 1), [])
    assert sink.stored() == {}
    sink.commit(batch, sink.stage(batch, ROWS))
    shutil.rmtree(sink.directory)
    other = Batch(SINK, "another", 1)
    with pytest.raises(WriteFailedError, match="take another sinkId"):
        sink.commit(other, sink.stage(other, ROWS))


def test_nothing_is_decided_where_a_fence_would_not_be_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, batch = peaceful(tmp_path), Batch(SINK, SINK, 0)

    def refuse(brokers: ModelBrokers, queues: Iterable[MessageQueue], places: Iterable[MessageQueue] = ()) -> None:
        raise WriteFailedError("the sink's topic cannot be made")

    with monkeypatch.context() as patched:
        patched.setattr(ModelBrokers, "prepare", refuse)
        with pytest.raises(WriteFailedError, match="cannot be made"):
            sink.commit(batch, sink.stage(batch, ROWS))
    assert (sink.journal.load().intent, sink.stored()) == (None, {})
    assert sink.commit(batch, sink.stage(batch, ROWS)).attempts == 1


def test_staged_rows_that_were_changed_are_not_sent(tmp_path: Path) -> None:
    sink, batch = peaceful(tmp_path), Batch(SINK, SINK, 0)
    staged = sink.stage(batch, ROWS)
    path = Path(sink.journal.directory) / staged[0].name
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match="staged rows"):
        sink.commit(batch, staged)
    assert sink.stored() == {}
    assert sink.journal.load().intent is None


def test_a_batch_that_may_have_been_begun_where_the_last_one_did_not_go_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink's topic tells of the queues of the last batch. In another queue nobody knows from where to look."""
    sink = peaceful(tmp_path)
    sink.run(0, [[(QUEUES[0], [b"first"])]])

    batch, rows = Batch(SINK, SINK, 1), [[(QUEUES[3], [b"second"])]]
    with killed_at("live-after-send"):
        sink.commit(batch, sink.stage(batch, rows))
    shutil.rmtree(sink.directory)
    with pytest.raises(StagingLostError, match="may have been started in queue T/b/1"):
        sink.commit(batch, sink.stage(batch, rows))
    assert sink.stored() == {QUEUES[0]: [b"first"], QUEUES[3]: [b"second"]}


def test_staged_rows_that_were_changed_after_the_intent_are_not_sent_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, batch = peaceful(tmp_path), Batch(SINK, SINK, 0)
    staged = sink.stage(batch, ROWS)

    with killed_at("live-after-intent"):
        sink.commit(batch, staged)
    path = Path(sink.journal.directory) / staged[0].name
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="staged rows"):
        sink.commit(batch, sink.stage(batch, ROWS))
    assert sink.stored() == {}
    assert sink.journal.load().intent is not None, "the batch stays open"


WAITING_ROWS = [[(QUEUES[0], [WAITS + b"0"]), (QUEUES[0], [b"a", b"b"]), (QUEUES[1], [WAITS + b"1"])]]


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_wait_are_found_without_the_staging_directory(seed: int, tmp_path: Path) -> None:
    """Parked, delivered, or both: the sink's topic says where they may be, and from where on."""
    sink = Sink(tmp_path / "staging", ModelCluster(random.Random(seed), trouble=0.0))
    sink.run(0, WAITING_ROWS)
    for _ in range(5):
        sink.cluster.deliver()
    shutil.rmtree(sink.directory)
    batch = Batch(SINK, SINK, 0)
    assert not sink.commit(batch, sink.stage(batch, WAITING_ROWS)).is_new
    assert sink.cluster.puts == sink.expected
    shutil.rmtree(sink.directory)
    sink.run(1, WAITING_ROWS)
    assert sink.cluster.puts == sink.expected


def test_a_batch_whose_rows_wait_where_the_last_one_had_none_is_not_sent_without_the_staging_directory(
    tmp_path: Path,
) -> None:
    """From where on they would lie there nobody knows."""
    sink = peaceful(tmp_path)
    sink.run(0, [[(QUEUES[0], [b"a"])]])
    shutil.rmtree(sink.directory)
    batch = Batch(SINK, SINK, 1)
    with pytest.raises(StagingLostError, match="may have been started in queue"):
        sink.commit(batch, sink.stage(batch, [[(QUEUES[0], [WAITS + b"b"])]]))
    assert sink.cluster.puts == {QUEUES[0]: [b"a"]}
