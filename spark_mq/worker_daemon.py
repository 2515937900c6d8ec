"""PySpark's daemon of Python workers, which does not print that Spark has hung up on a worker.

    python -m spark_mq.worker_daemon pyspark.worker        as Spark starts it (`spark.python.daemon.module`)

A session that ends closes the connections of its idle workers. Each then tells Spark of its end, and over a Unix domain socket that
fails at once: PySpark 4.2 prints the traceback of a BrokenPipeError, though nothing is wrong. Everything else is PySpark's.
"""

from __future__ import annotations

from pyspark import daemon

from spark_mq.worker_errors import TracebackOfDaemon

if __name__ == "__main__":
    setattr(daemon, "traceback", TracebackOfDaemon())  # noqa: B010
    daemon.manager()
