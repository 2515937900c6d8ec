"""The command line: `spark-mq COMMAND`. One module for each group of commands."""

from __future__ import annotations

from spark_mq.cli import demo, jobs, lag, messages, produce, quarantine, queues, sinks, upkeep
from spark_mq.cli.app import app, main

__all__ = ["app", "demo", "jobs", "lag", "main", "messages", "produce", "quarantine", "queues", "sinks", "upkeep"]
