"""The command line: `spark-mq COMMAND`. One module for each group of commands."""

from __future__ import annotations

import sys

try:
    from spark_mq.cli import binding, demo, jobs, lag, messages, produce, quarantine, queues, sinks, upkeep
    from spark_mq.cli.app import app, main
except KeyboardInterrupt:  # the modules take a second to load
    sys.stderr.write("interrupted\n")
    sys.exit(130)

__all__ = [
    "app",
    "binding",
    "demo",
    "jobs",
    "lag",
    "main",
    "messages",
    "produce",
    "quarantine",
    "queues",
    "sinks",
    "upkeep",
]
