"""The command line: `spark-mq COMMAND`. `app.py` lists the commands; a module holds those of one subject."""

from __future__ import annotations

from spark_mq.cli.app import app, main

__all__ = ["app", "main"]
