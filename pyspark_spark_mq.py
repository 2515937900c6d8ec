"""Where Spark finds `format("spark_mq")`.

It imports every module named `pyspark_*` in a Python worker and asks each for a class `DefaultSource`.
"""

from __future__ import annotations

import os

try:
    from spark_mq.data_source import SparkMqDataSource as DefaultSource
except Exception as error:  # any: a module that fails here hides the Python data sources of every package
    from pyspark.sql.datasource import DataSource

    _CAUSE = f"{type(error).__name__}: {error}"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Stands in for the source that could not be imported, and says why when somebody uses it."""

        import_error = _CAUSE

        def __init__(self, options: dict[str, str]) -> None:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # PySpark then sends the text alone; this process ends with it
            raise ImportError(f"spark_mq cannot be imported here ({_CAUSE}); `spark-mq doctor` looks for the cause")

        @classmethod
        def name(cls) -> str:
            return "spark_mq"
