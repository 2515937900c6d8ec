"""One batch of the sink that sends to brokers, as a process of its own: `python -m tests.support.live_writer JSON`.

The JSON names `name_server`, `staging`, `topic`, `batch_id`, and may name `rows` (of each of two tasks), `options` and `through`: by
broker's name, the address of a proxy that stands before it. With `transactional` each eighth row is rolled back. It prints
`committed`, or the error's first line, and ends with 0 or 3.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_mq.client.errors import ClientError
from spark_mq.conditions import SparkMqError
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.direct_writer import send_rows
from spark_mq.sink.live_routes import LiveRoutes
from spark_mq.sink.live_sink import commit_to_brokers, stage_for_brokers
from spark_mq.sink.options import LiveSinkOptions
from storage.batch.ledger import Batch
from storage.errors import StorageError

QUERY = "2a0cc7bb-0c3a-4a44-9c6b-000000000001"
TASKS = 2
COLUMNS = InputColumns(("body", "keys", "sharding_key"))


ENDED_COLUMNS = InputColumns((*COLUMNS.names, "transaction_state"))
"""Those of rows that are transactions."""
ROLLED_BACK = 8
"""Each so many-th row of these."""


def key(batch_id: int, task: int, row: int) -> str:
    return f"{batch_id}-{task}-{row}"


def frames(batch_id: int, task: int, rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a task, the same in each run."""
    for start in range(0, rows, 200):
        numbers = range(start, min(start + 200, rows))
        yield pa.record_batch(
            {
                "body": [b"%d" % number * 40 for number in numbers],
                "keys": [key(batch_id, task, number) for number in numbers],
                "sharding_key": [f"s{number % 5}" if number % 2 else None for number in numbers],
                "transaction_state": ["rollback" if is_rolled_back(number) else None for number in numbers],
            }
        )


def is_rolled_back(row: int) -> bool:
    return row % ROLLED_BACK == 3


def send_directly(options: LiveSinkOptions, batch_id: int, rows: int, directory: Path) -> int:
    """What tasks do at least once; while they send, there is a file `intent.json` in the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "intent.json").touch()
    for task in range(TASKS):
        columns = ENDED_COLUMNS if options.transactional else COLUMNS
        send_rows(options, columns, task, os.urandom(8), frames(batch_id, task, rows))
    (directory / "intent.json").unlink()
    print("committed")
    return 0


def main(given: dict[str, Any]) -> int:
    options = LiveSinkOptions.parse(
        {
            "nameServer": given["name_server"],
            "topic": given["topic"],
            **({} if "guarantee" in given.get("options", {}) else {"stagingPath": given["staging"]}),
            "batchBytes": "8k",
            "sendTimeout": "2s",
            "fenceTimeout": "60s",
            **given.get("options", {}),
        },
        "streaming",
    )
    if (through := given.get("through")) is not None:
        straight = LiveRoutes.address_of
        LiveRoutes.address_of = lambda self, name, topic: through.get(name) or straight(self, name, topic)  # type: ignore[method-assign]
    batch = Batch(QUERY, QUERY, given["batch_id"])
    rows = given.get("rows", 400)
    try:
        if not options.is_exact:
            return send_directly(options, batch.batch_id, rows, Path(given["staging"]) / "direct")
        messages = [
            stage_for_brokers(options, COLUMNS, batch, task, task, frames(batch.batch_id, task, rows))
            for task in range(TASKS)
        ]
        commit_to_brokers(options, messages, batch.batch_id)
    except (SparkMqError, ClientError, StorageError) as error:
        print(str(error).splitlines()[0])
        return 3
    print("committed")
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
