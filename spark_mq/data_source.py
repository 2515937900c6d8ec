"""`format("spark_mq")`. Thin: Spark imports this in every worker, so readers and writers are imported at first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from spark_mq.conditions import OptionError, UnknownOptionError, named_for_spark
from spark_mq.spark_api import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    ReadLimit,
    StructType,
    SupportsTriggerAvailableNow,
)
from spark_mq.spark_versions import refuse_options

if TYPE_CHECKING:
    from spark_mq.options import Mode
    from spark_mq.sink.columns import InputColumns
    from spark_mq.sink.commit import StoreSink
    from spark_mq.sink.live_sink import LiveSink
    from spark_mq.sink.options import RowOptions
    from spark_mq.sink.writers import BatchWriter, StreamWriter
    from spark_mq.source.batch_reader import BatchReader
    from spark_mq.source.options import SourceOptions


class SparkMqDataSource(DataSource):
    """RocketMQ stores as rows, and rows as RocketMQ's messages. Options are checked when Spark requests a schema, reader or writer."""

    @classmethod
    def name(cls) -> str:
        return "spark_mq"

    @named_for_spark()
    def schema(self) -> str:
        """The columns: all of the source's, those of option `columns`, or Kafka's."""
        from spark_mq.source.rows import columns_named, ddl

        options = self._source_options()
        return ddl(columns_named(options.column_names, kafka=options.kafka_columns, permissive=options.permissive))

    @named_for_spark()
    def reader(self, schema: StructType) -> BatchReader:
        from spark_mq.source.batch_reader import BatchReader

        return BatchReader(*self._what_is_read(schema, "batch"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Never raises: PySpark would drop the error. The methods of the reader raise what was refused."""

        def make() -> DataSourceStreamReader:
            from spark_mq.source.stream_reader import StreamReader

            return StreamReader(*self._what_is_read(schema, "streaming"))

        return reader_or_refusal(make)

    def _what_is_read(self, schema: StructType, mode: Mode) -> tuple[SourceOptions, list[str], list[str]]:
        """Options, names of the columns, and of those that may be null."""
        from spark_mq.source.selection import check_schema

        options = self._source_options(mode)
        refuse_options((name for name in map(str.lower, self.options) if name != "pushdown" or options.push_down), mode)
        check_schema(options, schema)
        return options, schema.names, [field.name for field in schema if field.nullable]

    @named_for_spark()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from spark_mq.sink.writers import BatchWriter

        return BatchWriter(_sink(self.options, schema, "batch", "overwrite" if overwrite else "append"))

    @named_for_spark()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from spark_mq.sink.writers import StreamWriter

        return StreamWriter(_sink(self.options, schema, "streaming", "complete" if overwrite else "append"))

    def _source_options(self, mode: Mode | None = None) -> SourceOptions:
        from spark_mq.source.options import SourceOptions

        try:
            return SourceOptions.parse(self.options, mode)
        except UnknownOptionError as error:
            raise _of_the_sink(error) from None


def _of_the_sink(error: UnknownOptionError) -> OptionError | UnknownOptionError:
    """The source's message about an unknown option."""
    from spark_mq.sink.options import live_sink_option_rows, sink_option_rows

    for row in (*sink_option_rows(), *live_sink_option_rows()):
        if row.name.lower() == error.option:
            return OptionError(
                row.name, "it is for writing, and this query reads: give it to df.write or df.writeStream"
            )
    return error


@contextmanager
def _naming_options_of_the_source() -> Iterator[None]:
    """A sink's message about an option of the source."""
    from spark_mq.source.options import option_rows

    try:
        yield
    except UnknownOptionError as error:
        for row in option_rows():
            if row.name.lower() == error.option:
                rule = "it is for reading, and this query writes: give it to spark.read or spark.readStream"
                raise OptionError(row.name, rule) from None
        raise


def _sink(given: Mapping[str, str], schema: StructType, mode: Mode, save_mode: str) -> StoreSink | LiveSink:
    """The target of the rows: a cluster with nameServer, else the store at path."""
    from spark_mq.sink.columns import columns_to_send, columns_to_write
    from spark_mq.sink.options import LiveSinkOptions, SinkOptions
    from spark_mq.sink.own_source import own_topics

    def with_own_topics(columns: InputColumns, options: RowOptions) -> InputColumns:
        is_query = mode == "streaming"
        return columns._replace(own_topics=own_topics(given, options)) if is_query else columns

    if any(name.lower() == "nameserver" for name in given):
        from spark_mq.sink.live_sink import LiveSink

        with _naming_options_of_the_source():
            live = LiveSinkOptions.parse(given, mode)
        return LiveSink(live, with_own_topics(columns_to_send(schema, live, mode=save_mode), live))
    from spark_mq.sink.commit import StoreSink
    from spark_mq.sink.place import check_place

    with _naming_options_of_the_source():
        options = SinkOptions.parse(given, mode)
    columns = columns_to_write(schema, options, mode=save_mode)
    seen = check_place(options)
    return StoreSink(options, with_own_topics(columns, options), seen)


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A query that was refused before its reader was made: every method raises `refusal`, except `stop`.

    PySpark's runner of streaming readers drops an error of `DataSource.streamReader`: it calls `stop` on a reader that it has not got,
    and Spark shows that `UnboundLocalError` alone (pyspark/sql/streaming/python_streaming_source_runner.py). It hands on what a
    reader's methods raise. Spark looks at the signatures to learn what a reader can do.
    """

    def __init__(self, refusal: Exception) -> None:
        self.refusal = refusal

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        self._refuse()

    def reportLatestOffset(self) -> dict[str, Any]:
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._refuse()

    def commit(self, end: dict[str, Any]) -> None:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self._refuse()

    def stop(self) -> None:
        """Does nothing: no store is open."""

    @named_for_spark()
    def _refuse(self) -> NoReturn:
        raise self.refusal


def reader_or_refusal(make: Callable[[], DataSourceStreamReader]) -> DataSourceStreamReader:
    """The reader of `make`, or a reader that raises the error of `make`."""
    try:
        return make()
    except Exception as error:
        return RefusedStream(error)
