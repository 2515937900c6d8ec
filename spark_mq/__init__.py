"""Apache RocketMQ's message store as a Spark data source.

    spark = spark_mq.build_session()
    spark.read.format("spark_mq").option("path", "/path/to/store").load()

Importing this package loads neither Spark nor pyarrow: Spark imports it in every worker process it starts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from spark_mq.session import build_session
from spark_mq.shadows import refuse_shadows

refuse_shadows()

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_mq.example_store import unpack_example_store
    from spark_mq.sink.transactions import transaction
    from spark_mq.sink.writers import send_back
    from spark_mq.source.lag import QueueLag, queue_lags, skipped_commits, source_metrics, total_lag
    from spark_mq.source.listener import LagListener, LagReport

__all__ = [
    "LagListener",
    "LagReport",
    "QueueLag",
    "__version__",
    "build_session",
    "queue_lags",
    "register",
    "send_back",
    "skipped_commits",
    "source_metrics",
    "total_lag",
    "transaction",
    "unpack_example_store",
]

__version__ = "0.1.0"


def register(spark: SparkSession) -> None:
    """Make `format("spark_mq")` known to a session explicitly.

    Spark finds the format by itself where `pyspark_spark_mq` is on the workers' path; this call is for those
    who do not want to rely on that, and it may be repeated.
    """
    from spark_mq.data_source import SparkMqDataSource

    spark.dataSource.register(SparkMqDataSource)


if not TYPE_CHECKING:
    # Modules have other names than what they give: the import of one sets the package's attribute of its name.
    _LAZY = {
        "LagListener": "source.listener",
        "LagReport": "source.listener",
        "QueueLag": "source.lag",
        "queue_lags": "source.lag",
        "send_back": "sink.writers",
        "skipped_commits": "source.lag",
        "source_metrics": "source.lag",
        "total_lag": "source.lag",
        "transaction": "sink.transactions",
        "unpack_example_store": "example_store",
    }

    def __dir__() -> list[str]:
        """What there is to use, for `dir` and for completion in a shell: names that are not loaded yet among it."""
        return sorted(__all__)

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            return getattr(import_module(f"spark_mq.{_LAZY[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
