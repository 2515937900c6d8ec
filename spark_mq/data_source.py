"""`format("spark_mq")`. Thin: Spark imports this in every worker it starts, so the readers are imported when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from spark_mq.batch_reader import BatchReader
    from spark_mq.options import SourceOptions
    from spark_mq.stream_reader import StreamReader


class SparkMqDataSource(DataSource):
    """RocketMQ stores as rows. Options are parsed, and refused, when a reader or the schema is asked for."""

    @classmethod
    def name(cls) -> str:
        return "spark_mq"

    def schema(self) -> str:
        """The columns asked for: all of ours, those of option `columns`, or Kafka's."""
        from spark_mq.rows import columns_named, ddl

        options = self._source_options()
        return ddl(columns_named(options.column_names, kafka=options.kafka_columns))

    def reader(self, schema: StructType) -> BatchReader:
        from spark_mq.batch_reader import BatchReader
        from spark_mq.selection import check_schema, nullable_columns

        options = self._source_options("batch")
        check_schema(options, schema)
        return BatchReader(options, schema.names, nullable_columns(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        from spark_mq.selection import check_schema, nullable_columns
        from spark_mq.stream_reader import StreamReader

        options = self._source_options("streaming")
        check_schema(options, schema)
        return StreamReader(options, schema.names, nullable_columns(schema))

    def _source_options(self, mode: str | None = None) -> SourceOptions:
        from spark_mq.options import SourceOptions

        return SourceOptions.parse(self.options, mode)  # type: ignore[arg-type]
