"""A typed table beside the archive: a topic's bodies as columns, by a schema. Each archived message has one row there.

The columns are the fields of the schema, and `mq_broker`, `mq_queue_id`, `mq_offset`, `mq_incarnation`, `mq_store_timestamp` and
`mq_keys`. A body that is not of the schema has null in all fields, its reason in `mq_error` and its bytes in `mq_body`. How far each
queue has come is in the commit that has its rows, as in the archive. Rows of the newest incarnation are written. A new field joins.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow.fs as fs
import pyarrow.parquet as pq

from spark_mq.archive.commits import ArchiveConflictError
from spark_mq.archive.restore import RestorePlan, RestoreRange, named_losses, read_options
from spark_mq.conditions import ArchiveError, OptionError
from spark_mq.source.archive_files import file_system
from spark_mq.source.archive_table import ArchiveTable, Place, Progress, delta_lake, open_delta
from spark_mq.source.offsets import QueueId
from storage.epoch_times import current_time_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OWN = {
    "mq_broker": "broker_name",
    "mq_queue_id": "queue_id",
    "mq_offset": "queue_offset",
    "mq_store_timestamp": "store_timestamp",
    "mq_keys": "keys",
}
"""Columns of a typed table, and the source's that they are."""
SESSION = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""What Delta's protocol asks of Parquet."""


@dataclass(frozen=True, slots=True)
class TypedReport:
    """What one run has written of a topic."""

    topic: str
    rows: int = 0
    failed: int = 0
    """Rows without a value."""
    new_fields: tuple[str, ...] = ()
    is_conflict: bool = False


def typed_place(archive: Place, topic: str) -> Place:
    """The place of a topic's typed table: the archive's with `-values/TOPIC` behind it. Two topics never share one.

    Of characters that a URL would read otherwise stands the code: `%DLQ%g` is `=25DLQ=25g`. The sign of a URL, %, would be decoded by
    some readers and not by others.
    """
    return archive._replace(url=f"{archive.url}-values/{quote(topic, safe='').replace('%', '=')}")


def progress_name(queue: QueueId) -> str:
    return "spark_mq.values" + json.dumps(list(queue), separators=(",", ":"), ensure_ascii=False)


def write_typed(spark: SparkSession, table: ArchiveTable, topic: str, parse: Any, fields: StructType) -> TypedReport:
    """Write what is archived of a topic and not typed yet. `parse` gives a frame of messages the columns `value` and `value_error`;
    `fields` are those of `value`.

    Raises OptionError where a field has another type than the table's column, or one that no column can have; ArchiveError where a
    commit fails; DataLossError for what the archive lacks though no gap names it.
    """
    place = typed_place(table.place, topic)
    delta, new_fields = _open_or_make(place, fields)
    ranges, moves = [], {}
    for queue in (each for each in table.queues() if each.topic == topic):
        life = table.newest(queue)
        if life is None or not life.parts:
            continue
        version = delta.transaction_version(progress_name(queue))
        done = Progress(-1, 0) if version is None else Progress.decoded(version)
        start = max(done.end, life.start) if done.incarnation == life.incarnation else life.start
        if start < life.end:
            named_losses(life, start, life.end)
            ranges.append(RestoreRange(queue, life.incarnation, start, life.end))
            moves[queue] = Progress(life.incarnation, life.end)
    if not ranges:
        return TypedReport(topic, new_fields=new_fields)
    plan = RestorePlan("", topic, "", tuple(ranges))
    messages = spark.read.format("spark_mq").options(**read_options(table.place, plan, passes_gaps=True))
    rows = _rows(parse(messages.option("columns", ",".join([*OWN.values(), "body"])).load()), ranges, fields)
    directory = f"data-{uuid.uuid4().hex}"
    rows.write.parquet(f"{place.url}/{directory}")
    adds, total, failed = _written(place, directory)
    try:
        _commit(delta, adds, moves)
    except ArchiveConflictError:
        return TypedReport(topic, new_fields=new_fields, is_conflict=True)
    return TypedReport(topic, total, failed, new_fields)


def _rows(parsed: DataFrame, ranges: list[RestoreRange], fields: StructType) -> DataFrame:
    from pyspark.sql import functions as f

    lives = f.create_map(
        *(f.lit(each) for one in ranges for each in (f"{one.queue.broker_name}/{one.queue.queue_id}", one.incarnation))
    )
    key = f.concat_ws("/", f.col("broker_name"), f.col("queue_id").cast("string"))
    return parsed.select(
        *(f.col(source).alias(own) for own, source in OWN.items()),
        f.element_at(lives, key).alias("mq_incarnation"),
        f.col("value_error").alias("mq_error"),
        f.when(f.col("value_error").isNotNull(), f.col("body")).alias("mq_body"),
        *(f.col(f"value.`{name}`").alias(name) for name in fields.names),
    )


def _struct(fields: StructType) -> StructType:
    from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

    taken = [name for name in fields.names if name.lower().startswith("mq_")]
    if taken:
        raise OptionError("--values", f"field {taken[0]}: names that begin with mq_ are the typed table's own")
    for field in fields:
        kind = field.dataType.simpleString()
        if "interval " in kind:
            raise OptionError("--values", f"field {field.name} is {kind}, and a table of Delta has no intervals")
    own = {
        "mq_broker": StringType(),
        "mq_queue_id": IntegerType(),
        "mq_offset": LongType(),
        "mq_store_timestamp": TimestampType(),
        "mq_keys": StringType(),
        "mq_incarnation": IntegerType(),
        "mq_error": StringType(),
        "mq_body": BinaryType(),
    }
    of_body = (StructField(field.name, field.dataType) for field in fields)  # null where the body is not of the schema
    return StructType([*(StructField(name, kind) for name, kind in own.items()), *of_body])


def _open_or_make(place: Place, fields: StructType) -> tuple[Any, tuple[str, ...]]:
    """The table, with a column for each field; and the names of those that were added."""
    lake = delta_lake()
    wanted = lake.Schema.from_json(_struct(fields).json())
    delta = open_delta(place)
    if delta is None:
        try:
            return lake.DeltaTable.create(place.url, wanted, storage_options=dict(place.storage) or None), ()
        except Exception as error:  # another run may have made it at the same time
            if (delta := open_delta(place)) is None:
                raise ArchiveError(place.url, f"no table can be made: {error}") from error
    there = {each.name: each for each in delta.schema().fields}
    missing = []
    for field in wanted.fields:
        known = there.get(field.name)
        if known is None:
            missing.append(field)
        elif known.type != field.type:
            rule = f"field {field.name} is {_named(field)} in the schema, and {_named(known)} in the typed table"
            raise OptionError("--values", f"{rule}: give it another name, or begin another table")
    if missing:
        delta.alter.add_columns(missing)
        delta.update_incremental()
    return delta, tuple(field.name for field in missing)


def _named(field: Any) -> str:
    kind = json.loads(field.to_json())["type"]
    return kind if isinstance(kind, str) else str(kind["type"])


def _written(place: Place, directory: str) -> tuple[list[Any], int, int]:
    """What Spark has written into a directory, as additions to Delta's log; rows, and those with an error."""
    from deltalake.transaction import AddAction

    files, adds, total, failed = file_system(place), [], 0, 0
    for each in files.get_file_info(fs.FileSelector(directory)):
        if not each.path.endswith(".parquet"):
            continue
        with files.open_input_file(each.path) as source, pq.ParquetFile(source) as file:
            rows = file.metadata.num_rows
            failed += rows - file.read(columns=["mq_error"])["mq_error"].null_count
        if rows:
            total += rows
            statistics = json.dumps({"numRecords": rows})
            adds.append(AddAction(each.path, each.size, {}, current_time_ms(), True, statistics))
    return adds, total, failed


def _commit(delta: Any, adds: list[Any], moves: Mapping[QueueId, Progress]) -> None:
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError

    now_ms = current_time_ms()
    transactions = [Transaction(progress_name(queue), to.encoded(), now_ms) for queue, to in sorted(moves.items())]
    try:
        delta.create_write_transaction(
            adds, "append", delta.schema(), [], commit_properties=CommitProperties(app_transactions=transactions)
        )
    except CommitFailedError as error:
        raise ArchiveConflictError(str(error)) from error
