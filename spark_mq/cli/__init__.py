"""The command line: `spark-mq COMMAND`. One module for each group of commands."""

from __future__ import annotations

import sys

try:
    from spark_mq.cli import (
        binding,
        broker,
        brokers,
        consume,
        controller,
        demo,
        groups,
        jobs,
        lag,
        messages,
        namesrv,
        new_topic,
        produce,
        quarantine,
        queues,
        replicas,
        reset,
        sinks,
        upkeep,
    )
    from spark_mq.cli.app import app, main
except KeyboardInterrupt:  # the modules take a second to load
    sys.stderr.write("interrupted\n")
    sys.exit(130)

__all__ = [
    "app",
    "binding",
    "broker",
    "brokers",
    "consume",
    "controller",
    "demo",
    "groups",
    "jobs",
    "lag",
    "main",
    "messages",
    "namesrv",
    "new_topic",
    "produce",
    "quarantine",
    "queues",
    "replicas",
    "reset",
    "sinks",
    "upkeep",
]
