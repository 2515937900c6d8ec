"""Every way of this package in which a store may be written, and every one in which it is only read, as one table.

A way is a function of a store's directory and a broker.conf; it returns the text with which it was refused, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql.types import StringType, StructType
from typer.testing import CliRunner

import spark_mq
from jobs.delete_expired_files import delete_expired_files
from spark_mq.cli import app
from spark_mq.conditions import SparkMqError
from spark_mq.data_source import SparkMqDataSource
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from spark_mq.source.cluster import Cluster
from storage import open_store
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedSegment
from storage.errors import StorageError
from storage.files.local_file_system import LocalFileSystem
from storage.put.settings import put_settings
from storage.settings.load import load_config
from storage.tables.offline_changes import create_topic
from storage.tables.topics import TopicConfig

Way = Callable[[str, str], str | None]
GROUP = "WaysIn"


def _python(call: Callable[[str, str], object]) -> Way:
    def way(root: str, conf: str) -> str | None:
        try:
            call(root, conf)
        except (StorageError, SparkMqError) as error:
            return str(error)
        return None

    return way


def _command(*arguments: str, lines: str = "", in_front: int = 1) -> Way:
    """A command line; PATH goes behind the first `in_front` arguments."""

    def way(root: str, conf: str) -> str | None:
        line = [*arguments[:in_front], root, *arguments[in_front:], "--conf", conf]
        done = CliRunner().invoke(app, line, input=lines)
        if done.exit_code == 0:
            return None
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.output

    return way


def _job(name: str, *arguments: str) -> Way:
    def way(root: str, conf: str) -> str | None:
        done = CliRunner().invoke(app, ["job", name, root, "--conf", conf, *arguments])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.output if done.exit_code else None

    return way


def _sink_options(root: str, conf: str) -> SinkOptions:
    return SinkOptions.parse({"path": root, "conf": conf, "topic": "T"}, "streaming")


def _task(root: str, conf: str) -> StagedRows:
    def frames() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"body": "row"}])

    columns = InputColumns(("body",), kafka=False)
    return stage_rows(_sink_options(root, conf), columns, Batch("sink", "query", 0), 0, 0, frames())


def _commit(root: str, conf: str) -> None:
    """Of rows that a task is said to have staged."""
    segment = StagedSegment("0/0-0-0.segment", 1, 100, 100, 0, 0, "0" * 32, "0" * 32)
    commit_rows(_sink_options(root, conf), [StagedRows(Batch("sink", "query", 0), (segment,), {})], 0, mirrored=True)


def _plan_of_sink(root: str, conf: str) -> None:
    schema = StructType().add("body", StringType())
    SparkMqDataSource({"path": root, "conf": conf, "topic": "T"}).streamWriter(schema, overwrite=False)


def _transaction(root: str, conf: str) -> None:
    with spark_mq.transaction(root, producer_group=GROUP, conf=conf) as transaction:
        transaction.send("T", b"row")


def _commit_offsets(root: str, conf: str) -> None:
    cluster = Cluster.open([root], conf=conf)
    try:
        cluster.group_offsets(GROUP)
    finally:
        cluster.close()


def _enter_topic(root: str, conf: str) -> None:
    files = LocalFileSystem()
    config = load_config(root, conf, read_bytes=files.read_file)
    create_topic(root, config, TopicConfig("Topic"), now_ms=1, file_system=files)


def _settings(root: str, conf: str) -> None:
    files = LocalFileSystem()
    put_settings(root, load_config(root, conf, read_bytes=files.read_file), files)


WRITING: dict[str, Way] = {
    "open_store": _python(lambda root, conf: open_store(root, config=conf, read_only=False)),
    "open_store create": _python(lambda root, conf: open_store(root, config=conf, read_only=False, create=True)),
    "open_store truncate_damage": _python(
        lambda root, conf: open_store(root, config=conf, read_only=False, truncate_damage=True)
    ),
    "sink, plan": _python(_plan_of_sink),
    "sink, task": _python(_task),
    "sink, commit": _python(_commit),
    "sink, settings": _python(_settings),
    "transaction": _python(_transaction),
    "commitOffsets": _python(_commit_offsets),
    "create_topic": _python(_enter_topic),
    "delete_expired_files": _python(lambda root, conf: delete_expired_files(root, conf=conf, now=True)),
    "command produce": _command("produce", "--topic", "T", lines="y\n"),
    "command produce --json": _command("produce", "--json", lines='{"topic": "T", "body": "y"}\n'),
    "command create-topic": _command("create-topic", "Topic"),
    "command alter-topic": _command("alter-topic", "T", "--perm", "4"),
    "command delete-topic": _command("delete-topic", "T", "--yes"),
    "command recover": _command("recover"),
    "command recover --policy truncate": _command("recover", "--policy", "truncate"),
    "command repair": _command("repair"),
    "command close": _command("close"),
    "command sink-status --remove-orphans": _command("sink-status", "--remove-orphans", "--older-than", "0s"),
    "command bind-log": _command("bind-log"),
    "command follow": _command("follow", "127.0.0.1:1", in_front=2),
    "command confirm-sink": _command("confirm-sink", "sink-1", "--last-batch", "0"),
    "job deliver_delayed": _job("deliver_delayed"),
    "job check_transactions": _job("check_transactions", "--checker", "builtins:repr"),
    "job redrive_transactions": _job("redrive_transactions"),
    "job delete_expired_files": _job("delete_expired_files", "--now"),
    "job rebuild_queues": _job("rebuild_queues"),
    "job replay_dead_letters": _job("replay_dead_letters", "--group", GROUP, "--audit", "/nowhere/audit"),
}

READING: dict[str, Way] = {
    "open_store": _python(lambda root, conf: open_store(root, config=conf).close()),
    "command dump": _command("dump"),
    "command topics": _command("topics"),
    "command query": _command("query", "--topic", "T", "--key", "k"),
    "command offset-by-time": _command("offset-by-time", "--topic", "T", "--time", "0"),
    "command lag": _command("lag"),
    "command exporter": _command("exporter", "--once"),
    "command report": _command("report"),
    "command verify": _command("verify"),
    "command sink-status": _command("sink-status"),
    "job verify_store": _job("verify_store"),
    "job delete_expired_files --dry-run": _job("delete_expired_files", "--now", "--dry-run"),
}
