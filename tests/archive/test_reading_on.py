"""Option archive: one query reads the table and the log as one queue, in batch and as a stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_mq.conditions import ArchiveError, ConvertedError, DataLossError, OptionError
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.source import archive_files, archived_cluster
from spark_mq.source.archive_files import ArchiveSplit
from spark_mq.source.archived_cluster import LogSplit
from spark_mq.source.options import SourceOptions
from spark_mq.source.ranges import QueueRange
from spark_mq.source.rows import COLUMN_NAMES, EARLIER_PLACE_COLUMN_NAMES, RowRequest
from spark_mq.source.selection import open_cluster, split_shown
from spark_mq.source.stream_reader import StreamReader
from tests.spark.in_process import bodies, next_batch
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.fixture_stores import Fixture
from tests.support.shares import one_in
from tests.support.store_builder import START_MS, StoreBuilder

from .archived import archived, by_queue, opened, rows_of, splits_of

COLUMNS = ",".join([*COLUMN_NAMES, *EARLIER_PLACE_COLUMN_NAMES])
SENT = 60


class Story:
    """A topic of two queues, archived in steps, whose oldest log files have expired; `sent` are all bodies by queue."""

    def __init__(self, place: Path, *, archives_all: bool = False) -> None:
        self.store = StoreBuilder(place / "broker-a", log_file_size_bytes=2 << 10)
        self.table = str(place / "archive")
        self.sent: dict[int, list[str]] = {0: [], 1: []}
        for step in range(3):
            for number in range(SENT // 6):
                for queue_id in (0, 1):
                    self.send(queue_id, f"{queue_id}/{step}/{number}")
            if step < 2 or archives_all:
                archived(self.table, path=str(self.store.root))
        while len(self.store.log_files) > 3:
            self.store.delete_oldest_log_file()

    def send(self, queue_id: int, body: str) -> None:
        key = f"k{len(self.sent[queue_id])}"
        tags = "odd" if len(self.sent[queue_id]) % 2 else "even"
        self.store.send("Topic", body, queue_id=queue_id, tags=tags, keys=key, unique_key=f"U{queue_id}{key:>06}")
        self.sent[queue_id].append(body)

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self.store.root), "topic": "Topic", "archive": self.table}

    @property
    def all_bodies(self) -> list[str]:
        return [body for queue_id in (0, 1) for body in self.sent[queue_id]]

    def stream(self, **options: str) -> StreamReader:
        parsed = SourceOptions.parse({**self.options, **options}, "streaming")
        return StreamReader(parsed, parsed.column_names)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def read(story: Story, **options: str) -> list[str]:
    return bodies(by_queue(rows_of(**{**story.options, **options})))


@pytest.mark.parametrize("name", one_in(3, ["clean", "v4.9.7", "propcrc"]))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decompress": "false"},
        {"tags": "TagA || TagB"},
        {"key": "key19"},
        {"verifyCrc": "true"},
        {"mode": "PERMISSIVE"},
        {"columns": "kafka", "includeHeaders": "true"},
        {"columns": "tags,keys"},
    ],
    ids=str,
)
def test_rows_of_the_table_are_the_rows_of_the_log(
    name: str, options: dict[str, str], fixture_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    path, table = str(fixture_store(name).root), str(tmp_path / "archive")
    archived(table, path=path)
    wanted = {"subscribePattern": ".*", "columns": COLUMNS, **options}
    of_log = rows_of(path=path, **wanted)
    assert rows_of(archive=table, **wanted) == of_log
    assert of_log or "key" in options


def test_a_batch_reads_what_expired_and_what_is_there_each_once(story: Story) -> None:
    log = bodies(by_queue(rows_of(path=str(story.store.root), topic="Topic")))
    assert len(log) < len(story.all_bodies), "some have expired"
    kinds = [type(split).__name__ for split in splits_of(**story.options)]
    assert kinds == ["ArchiveSplit", "LogSplit"] * 2
    assert read(story) == story.all_bodies


def test_offsets_and_times_lead_into_the_table(story: Story) -> None:
    start = json.dumps({"Topic": {"broker-a": {"0": 3, "1": -2}}})
    end = json.dumps({"Topic": {"broker-a": {"0": 5, "1": 2}}})
    assert read(story, startingOffsets=start, endingOffsets=end) == [*story.sent[0][3:5], *story.sent[1][:2]]
    seventh = START_MS + 7_000  # messages are a second apart, in turn to queue 0 and 1
    assert read(story, startingTimestamp=str(seventh), endingTimestamp=str(seventh + 4_000)) == [
        *story.sent[0][3:5],
        *story.sent[1][3:5],
    ]
    last = START_MS + SENT * 1_000
    assert read(story, startingTimestamp=str(last), startingOffsetsByTimestampStrategy="latest") == story.sent[1][-1:]


def test_filters_hold_in_both(story: Story) -> None:
    assert read(story, tags="odd") == [body for queue_id in (0, 1) for body in story.sent[queue_id][1::2]]
    assert read(story, key="k2") == [story.sent[0][2], story.sent[1][2]]
    last = len(story.sent[0]) - 1
    assert read(story, key=f"k{last}") == [story.sent[0][last], story.sent[1][last]]
    assert read(story, queueId="1") == story.sent[1]


def test_an_offset_before_the_archive_is_loss(story: Story, tmp_path: Path) -> None:
    late = str(tmp_path / "late")
    archived(late, path=str(story.store.root))
    minimum = opened(late).queues()[0]
    life = opened(late).newest(minimum)
    assert life is not None
    assert life.start > 0
    start = json.dumps({"Topic": {"broker-a": {"0": 0, "1": -2}}})
    with pytest.raises(DataLossError, match=r"the starting offset 0 is outside \["):
        rows_of(**{**story.options, "archive": late, "startingOffsets": start})


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "7"}, {"maxBytesPerTrigger": "1k"}], ids=str)
def test_a_stream_reads_the_table_and_goes_on_in_the_log(limit: dict[str, str], story: Story) -> None:
    reader = story.stream(startingOffsets="earliest", **limit)
    position, found = reader.initialOffset(), []
    for _ in range(SENT):
        end, rows = next_batch(reader, position)
        if "maxOffsetsPerTrigger" in limit:
            assert len(rows) <= 8
        if "maxBytesPerTrigger" in limit and rows:
            assert sum(row["store_size"] for row in rows) <= 1024 + 400
        found += rows
        if end == position:
            break
        position = end
    assert bodies(by_queue(found)) == story.all_bodies
    assert len(found) == len(story.all_bodies)
    story.send(0, "news")
    assert bodies(next_batch(reader, position)[1]) == ["news"]


def test_a_stream_that_fell_behind_retention_goes_on_without_loss(tmp_path: Path) -> None:
    """Its checkpoint is one of a query without the archive."""
    story = Story(tmp_path, archives_all=True)
    young = StoreBuilder(tmp_path / "young" / "broker-a", log_file_size_bytes=4 << 10)
    for number in range(4):  # the queue's first messages, as the log had them
        for queue_id in (0, 1):
            young.send("Topic", f"{queue_id}/0/{number}", queue_id=queue_id, tags="odd" if number % 2 else "even",
                       keys=f"k{number}", unique_key=f"U{queue_id}{f'k{number}':>06}")  # fmt: skip
    options = SourceOptions.parse(
        {"path": str(young.root), "topic": "Topic", "startingOffsets": "earliest"}, "streaming"
    )
    before = StreamReader(options, options.column_names)
    position, seen = next_batch(before, before.initialOffset())
    assert position["Topic"]["broker-a"]["0"]["next"] == 4
    _, rest = next_batch(story.stream(), position)
    assert bodies(by_queue([*seen, *rest])) == story.all_bodies
    without = SourceOptions.parse({"path": str(story.store.root), "topic": "Topic"}, "streaming")
    with pytest.raises(DataLossError):
        next_batch(StreamReader(without, without.column_names), position)


def test_a_running_stream_follows_what_is_archived_meanwhile(story: Story) -> None:
    """The log's beginning moves behind the known end of the table, while the archiver commits."""
    reader = story.stream(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    position, found = next_batch(reader, reader.initialOffset())
    archived(story.table, path=str(story.store.root))
    for number in range(40):
        story.send(number % 2, f"late {number}")
    archived(story.table, path=str(story.store.root))
    while len(story.store.log_files) > 1:
        story.store.delete_oldest_log_file()
    while True:
        end, rows = next_batch(reader, position)
        found += rows
        if end == position:
            break
        position = end
    assert bodies(by_queue(found)) == story.all_bodies


def test_messages_that_expire_between_plan_and_task_are_read_from_the_table(tmp_path: Path) -> None:
    story = Story(tmp_path, archives_all=True)
    splits = splits_of(**story.options)
    assert sum(isinstance(split, LogSplit) for split in splits) == 2
    while len(story.store.log_files) > 1:
        story.store.delete_oldest_log_file()
    found = [row for split in splits for batch in split.read() for row in batch.to_pylist()]
    assert bodies(by_queue(found)) == story.all_bodies


def test_a_refusal_to_say_whether_a_topic_is_compacted_is_tolerated_with_an_archive_as_without_one(
    tmp_path: Path,
) -> None:
    with FakeCluster(range(200)) as cluster:
        source = {"nameServer": cluster.address, "topic": "TopicA", "pullTimeout": "1s"}
        archived(tmp_path / "archive", **source)
        archive = {"archive": str(tmp_path / "archive")}
        strict = splits_of(**source, **archive)
        tolerant = splits_of(**source, **archive, failOnDataLoss="false")
        cluster.refused[RequestCode.GET_TOPIC_CONFIG] = 16
        cluster.deleted_before = 130
        with pytest.raises(ConvertedError, match="refused"):
            [batch for split in strict for batch in split.read()]
        found = [row for split in tolerant for batch in split.read() for row in batch.to_pylist()]
    assert [row["queue_offset"] for row in found] == list(range(200)), "the archive has what the broker has no more"


@pytest.mark.parametrize("columns", ["body", "kafka"])
@pytest.mark.parametrize("answered", [0, 1, 2])
def test_messages_that_a_broker_passes_over_are_read_from_the_table(
    columns: str, answered: int, tmp_path: Path
) -> None:
    """As Java does while it deletes a file of its log: it says neither that they are gone nor that they are there."""
    with FakeCluster(range(200)) as cluster:
        source = {"nameServer": cluster.address, "topic": "TopicA", "pullTimeout": "1s"}
        archived(tmp_path / "archive", **source)
        splits = splits_of(**source, archive=str(tmp_path / "archive"), columns=columns)
        assert [type(split) for split in splits] == [LogSplit]

        def deleting(broker: FakeBroker, request: RemotingCommand) -> RemotingCommand:
            broker.deleted_before = 130
            return broker.pull(request)

        cluster.answers = [*[FakeCluster.pull] * answered, deleting]  # type: ignore[list-item]
        found = [row for split in splits for batch in split.read() for row in batch.to_pylist()]
    name = "value" if columns == "kafka" else "body"
    assert [row[name] for row in found] == [b"%d" % number for number in range(200)]


def test_a_named_gap_is_loss_unless_that_is_tolerated(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for number in range(40):
        story.send(0, f"unarchived {number}")
    while len(story.store.log_files) > 1:
        story.store.delete_oldest_log_file()
    report = archived(story.table, path=str(story.store.root))
    gap = next(gap for gap in report.gaps if gap.queue.queue_id == 0)
    with pytest.raises(DataLossError, match=rf"queue Topic/broker-a/0: offsets \[{gap.start}, {gap.end}\) expired"):
        read(story)
    with pytest.warns(RuntimeWarning, match="SPARK_MQ_DATA_LOSS"):
        found = read(story, failOnDataLoss="false")
    lost = set(story.sent[0][gap.start : gap.end])
    lost |= {
        body for other in report.gaps if other.queue.queue_id == 1 for body in story.sent[1][other.start : other.end]
    }
    assert found == [body for body in story.all_bodies if body not in lost]
    start = json.dumps({"Topic": {"broker-a": {"0": gap.end, "1": -1}}})
    end = json.dumps({"Topic": {"broker-a": {"0": -1, "1": -1}}})
    reader = story.stream(startingOffsets=start)
    assert end
    assert bodies(next_batch(reader, reader.initialOffset())[1]) == story.sent[0][gap.end :], (
        "behind it nothing is lost"
    )


def test_what_expired_and_is_not_archived_yet_is_loss(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for number in range(40):
        story.send(0, f"unarchived {number}")
    while len(story.store.log_files) > 1:
        story.store.delete_oldest_log_file()
    with pytest.raises(DataLossError, match="expired before they were archived"):
        read(story)


def test_a_topic_that_was_made_again_is_read_from_its_log(story: Story) -> None:
    """Until the archiver has seen it; then its own archived life goes on."""
    story.store.delete_topic("Topic")
    sent = story.store.send_many("Topic", 3, prefix="new ")
    with pytest.warns(RuntimeWarning, match="its archive cannot be read: another record than the archived one"):
        assert read(story, queueId="0", failOnDataLoss="false") == sent
    archived(story.table, path=str(story.store.root))
    assert read(story, queueId="0") == sent


def test_a_table_that_knows_more_than_our_look_at_the_log_is_read(tmp_path: Path) -> None:
    story = Story(tmp_path, archives_all=True)
    parsed = SourceOptions.parse({"path": str(story.store.root), "topic": "Topic"}, "batch")
    brokers = open_cluster(parsed)
    known = list(story.all_bodies)
    for number in range(10):
        story.send(0, f"late {number}")
    archived(story.table, path=str(story.store.root))
    cluster = archived_cluster.ArchivedCluster(brokers, opened(story.table))
    queue = cluster.queues()[0]
    assert cluster.bounds(queue) == (0, SENT // 2), "as far as our look at the log knows"
    ranges = [QueueRange(each, *cluster.bounds(each)) for each in cluster.queues()]
    pieces = split_shown(cluster, ranges, None, None)
    splits = [cluster.split(piece, RowRequest(("body",))) for piece in pieces]
    assert bodies([row for split in splits for batch in split.read() for row in batch.to_pylist()]) == known


def test_an_archive_alone_is_read(story: Story) -> None:
    alone = {"archive": story.table, "topic": "Topic"}
    count = 2 * (SENT // 6)
    assert bodies(by_queue(rows_of(**alone))) == [*story.sent[0][:count], *story.sent[1][:count]]
    parsed = SourceOptions.parse({**alone, "startingOffsets": "earliest"}, "streaming")
    reader = StreamReader(parsed, parsed.column_names)
    assert len(next_batch(reader, reader.initialOffset())[1]) == 2 * count


@pytest.fixture
def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    real = archive_files.open_file

    def noted(place: Any, path: str) -> Any:
        found.append(path)
        return real(place, path)

    monkeypatch.setattr(archive_files, "open_file", noted)
    return found


def test_a_key_and_an_hour_open_few_files(tmp_path: Path, opened_files: list[str]) -> None:
    """Of a table of 40 days, a file a day; keys are times, so each file has a range of them."""
    store, table = StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=1 << 20), str(tmp_path / "archive")
    day_ms = 86_400_000
    for day in range(40):
        for hour in range(24):
            time_ms = START_MS + day * day_ms + hour * 3_600_000
            name = f"{day:02}-{hour:02}"
            store.send("Topic", name, keys=f"order-{name}", unique_key=f"U{name}", store_time_ms=time_ms)
    archived(table, path=str(store.root))
    life = opened(table).newest(opened(table).queues()[0])
    assert life is not None
    assert len(life.parts) >= 40
    opened_files.clear()
    assert bodies(rows_of(archive=table, topic="Topic", key="order-17-05")) == ["17-05"]
    assert len(set(opened_files)) == 1
    opened_files.clear()
    assert bodies(rows_of(archive=table, topic="Topic", key="order-99")) == []
    assert opened_files == []
    opened_files.clear()
    start = START_MS + 30 * day_ms
    hour = {"startingTimestamp": str(start), "endingTimestamp": str(start + 3_600_000)}
    assert bodies(rows_of(archive=table, topic="Topic", **hour)) == ["30-00"]
    assert len(set(opened_files)) <= 2


def test_keys_in_a_list_are_found_too(tmp_path: Path) -> None:
    """The text of several keys says nothing about each, so such a file is opened."""
    store, table = StoreBuilder(tmp_path / "broker-a"), str(tmp_path / "archive")
    store.send("Topic", "one", keys="m z", unique_key="U1")
    store.send("Topic", "two", keys="n", unique_key="U2")
    archived(table, path=str(store.root))
    for key in ("m", "z"):
        assert bodies(rows_of(archive=table, topic="Topic", key=key)) == ["one"]
    assert bodies(rows_of(archive=table, topic="Topic", key="U2")) == ["two"]


@pytest.mark.parametrize("way", ["compact", "z_order"])
def test_files_that_another_tool_has_joined_are_read(way: str, story: Story) -> None:
    """Files with rows of several queues: they are opened to see which."""
    delta = opened(story.table).delta
    if way == "compact":
        delta.optimize.compact()
    else:
        delta.optimize.z_order(["keys"])
    assert len(opened(story.table).files()) == 1
    assert read(story) == story.all_bodies
    assert read(story, key="k2") == [story.sent[0][2], story.sent[1][2]]
    archived(story.table, path=str(story.store.root))
    assert read(story) == story.all_bodies


def test_an_older_archive_without_a_column_is_read_and_grows(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    from spark_mq.archive import data_files
    from spark_mq.source import archive_table

    older = pa.schema([each for each in archive_table.SCHEMA if each.name != "reconsume_times"])
    of_files = pa.schema([each for each in archive_table.FILE_SCHEMA if each.name != "reconsume_times"])
    table = story.table + "-older"
    with monkeypatch.context() as patched:
        from spark_mq.archive import commits

        patched.setattr(commits, "SCHEMA", older)
        patched.setattr(data_files, "FILE_SCHEMA", of_files)
        archived(table, path=str(story.store.root), topic="Topic", queueId="0")
    story.send(0, "newer")
    archived(table, path=str(story.store.root), topic="Topic", queueId="0")
    rows = rows_of(archive=table, topic="Topic", columns="body,reconsume_times")
    assert {row["reconsume_times"] for row in rows} == {0}
    assert rows[-1]["body"] == b"newer"
    assert "reconsume_times" in opened(table).delta.to_pyarrow_table().column_names


def test_a_file_that_is_gone_is_an_error_that_names_it(story: Story) -> None:
    split = next(split for split in splits_of(**story.options) if isinstance(split, ArchiveSplit))
    (Path(story.table) / split.parts[0].path).unlink()
    with pytest.raises(ArchiveError, match=split.parts[0].path):
        list(split.read())


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"archive": "nowhere"}, "there is no Delta table"),
        ({"logical": "true"}, "an archive has physical queues"),
        ({"archiveStorage": "[1]"}, "expected a JSON object of texts"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], rule: str, story: Story) -> None:
    with pytest.raises((ArchiveError, OptionError), match=rule):
        rows_of(**{**story.options, **options})


def test_a_delta_table_that_is_no_archive_is_refused(story: Story, tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "other"), pa.table({"a": [1]}))
    with pytest.raises(ArchiveError, match="the table is no archive of topics: it has no column topic"):
        rows_of(**{**story.options, "archive": str(tmp_path / "other")})


def test_the_table_is_looked_at_again_only_now_and_then(story: Story) -> None:
    """An idle stream polls every few milliseconds."""
    reader = story.stream(startingOffsets="earliest")
    position, _ = next_batch(reader, reader.initialOffset())
    looks = []
    cluster = reader.cluster
    assert isinstance(cluster, archived_cluster.ArchivedCluster)
    real = cluster._table.refresh
    cluster._table.refresh = lambda: looks.append(1) or real()  # type: ignore[method-assign, func-returns-value]
    for _ in range(20):
        next_batch(reader, position)
    assert looks == []


def test_the_earliest_message_of_a_deleting_broker_is_the_archives_where_it_has_the_queue(tmp_path: Path) -> None:
    with FakeCluster(range(200)) as cluster:
        source = {"nameServer": cluster.address, "topic": "TopicA", "pullTimeout": "1s"}
        archived(tmp_path / "archive", **source)
        cluster.deleted_before = 130
        with_archive = {**source, "archive": str(tmp_path / "archive"), "startingOffsets": "earliest"}
        assert [row["queue_offset"] for row in rows_of(**with_archive)] == list(range(200))
        assert [row["queue_offset"] for row in rows_of(**source)] == list(range(130, 200))
