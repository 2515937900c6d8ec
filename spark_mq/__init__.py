"""Apache RocketMQ's message store as a Spark data source.

    spark = spark_mq.build_session()
    spark.read.format("spark_mq").option("path", "/path/to/store").load()

Importing this package loads neither Spark nor pyarrow: Spark imports it in every worker process it starts.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from spark_mq.session import build_session

_ROOT = Path(__file__).resolve().parent.parent


def _refuse_shadows() -> None:
    """Python looks in the directory of the script, or the current one, first: a `storage.py` there hides ours from every module here.

    Raises ImportError where `storage` is not ours, without which nothing here works; warns of `jobs`. Imports neither.
    """
    storage, jobs = _stranger("storage"), _stranger("jobs")
    if storage is not None:
        raise ImportError(
            f"{storage} hides the package storage that belongs to spark_mq: rename it, or start Python in another directory"
        )
    if jobs is not None:
        warnings.warn(
            f"{jobs} hides the package jobs that belongs to spark_mq: `spark-mq job` and `python -m jobs.…` need another directory",
            stacklevel=3,
        )


def _stranger(name: str) -> str | None:
    """The file that `import name` loads; None if it is this package's own, or there is none."""
    try:
        spec = find_spec(name)
    except ValueError:  # a module that was put into sys.modules by hand
        return None
    if spec is None:
        return None
    found = spec.origin or next(iter(spec.submodule_search_locations or []), None)
    if found is None or Path(found).resolve().is_relative_to(_ROOT / name):
        return None
    return found


_refuse_shadows()

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_mq.example_store import unpack_example_store
    from spark_mq.sink.transactions import transaction
    from spark_mq.sink.writers import send_back
    from spark_mq.source.lag import QueueLag, queue_lags, skipped_commits, source_metrics, total_lag
    from spark_mq.source.listener import LagListener, LagReport
    from spark_mq.source.query_metrics import metrics, serve_metrics

__all__ = [
    "LagListener",
    "LagReport",
    "QueueLag",
    "__version__",
    "build_session",
    "metrics",
    "queue_lags",
    "register",
    "send_back",
    "serve_metrics",
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
        "metrics": "source.query_metrics",
        "QueueLag": "source.lag",
        "queue_lags": "source.lag",
        "send_back": "sink.writers",
        "serve_metrics": "source.query_metrics",
        "skipped_commits": "source.lag",
        "source_metrics": "source.lag",
        "total_lag": "source.lag",
        "transaction": "sink.transactions",
        "unpack_example_store": "example_store",
    }

    def __dir__() -> list[str]:
        """All public names, for `dir` and for completion in a shell, including names that are not loaded yet."""
        return sorted(__all__)

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            return getattr(import_module(f"spark_mq.{_LAZY[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
