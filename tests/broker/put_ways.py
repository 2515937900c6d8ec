"""Ways into a store that judge by the same rules: a request to the handler, `put_batch`, the sink's tasks and commit, Spark.

Each way takes all cases of one conf that a row can express and tells of each what became of it: the record, or the column that is
refused. The row says what the request says, its unique key, queue and birth too, so that records can be compared whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import stage_rows
from storage import MessageStore, open_store
from storage.batch.ledger import Batch
from storage.errors import RowIllegalError
from storage.format.record import Message
from storage.rules.inner_messages import InnerMessage
from storage.rules.retries import RetryRules
from tests.broker.put_cases import CASES
from tests.broker.put_cases.case import KEY, PAST_MS, PutCase
from tests.broker.put_stores import conf_text, open_case_store
from tests.support.broker_handlers import Sender

TYPES = {
    "topic": pa.string(),
    "body": pa.binary(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),
    "queue_id": pa.int32(),
    "unique_key": pa.string(),
    "born_timestamp": pa.timestamp("us", "UTC"),
    "delay_level": pa.int32(),
    "deliver_at": pa.timestamp("us", "UTC"),
    "retry_group": pa.string(),
    "reconsume_times": pa.int32(),
    "origin_msg_id": pa.string(),
    "transaction_state": pa.string(),
    "producer_group": pa.string(),
}
TIMES = ("born_timestamp", "deliver_at")
ROW_CASES = [case for case in CASES if case.row is not None]

Outcome = InnerMessage | str
"""The record, or the column (of a request: the code) that is refused."""
Way = Callable[[Path, str], dict[str, Outcome]]
"""A new store's directory and a conf; outcomes by the names of cases."""


def key_of(case: PutCase) -> str:
    """A unique key that no other case has."""
    return f"{KEY[:-4]}{CASES.index(case):04X}"


def row_of(case: PutCase) -> dict[str, Any]:
    """The case as a row."""
    assert case.row is not None
    queue_id = case.request.queue_id if case.request.queue_id >= 0 else None
    return {"queue_id": queue_id, "unique_key": key_of(case), "born_timestamp": PAST_MS, **case.row}


def table_of(cases: Sequence[PutCase]) -> pa.RecordBatch:
    """The cases' rows, with the columns that any of them has."""
    rows = [row_of(case) for case in cases]
    named = [name for name in TYPES if any(name in row for row in rows)]
    return pa.record_batch(
        {name: pa.array([_value(name, row.get(name)) for row in rows], TYPES[name]) for name in named}
    )


def _value(name: str, value: Any) -> Any:
    if value is None:
        return None
    return list(value.items()) if name == "properties" else value * 1_000 if name in TIMES else value


def kinds_of(conf: str) -> Iterator[tuple[bool, list[PutCase]]]:
    """The conf's cases that one write can hold: ordinary rows, and rows of transactions."""
    for is_transactional in (False, True):
        cases = [case for case in ROW_CASES if case.conf == conf and case.is_transactional is is_transactional]
        if cases:
            yield is_transactional, cases


def by_request(directory: Path, conf: str) -> dict[str, Outcome]:
    """Through the handler."""
    outcomes: dict[str, Outcome] = {}
    directory.mkdir(exist_ok=True)
    with open_case_store(directory / "store", conf) as store:
        handler = Sender(store)
        for case in ROW_CASES:
            if case.conf == conf:
                properties = (
                    {"WAIT": "true"} | dict(case.request.properties) | {"UNIQ_KEY": key_of(case)}
                )  # a client says WAIT
                end = store.log_end
                response = handler.send(replace(case.request, properties=properties))
                outcomes[case.name] = response.code.name if response.code else record_behind(store, end, case)
                assert bool(response.code) is (store.log_end == end)
    return outcomes


def by_put(directory: Path, conf: str) -> dict[str, Outcome]:
    """Through `put_batch`, a row at a time."""
    outcomes: dict[str, Outcome] = {}
    directory.mkdir(exist_ok=True)
    with open_case_store(directory / "store", conf) as store:
        for is_transactional, cases in kinds_of(conf):
            for case in cases:
                end = store.log_end
                try:
                    store.put_batch(
                        table_of([case]),
                        keep_unique_key=True,
                        transactional=is_transactional,
                        retries=RetryRules(store.groups, store.config.send.auto_create_subscription_group),
                    )
                    outcomes[case.name] = record_behind(store, end, case)
                except RowIllegalError as refused:
                    outcomes[case.name] = refused.column
                    assert store.log_end == end
    return outcomes


Write = Callable[[pa.RecordBatch, dict[str, str], int], None]
"""Writes a table with the sink's options, as the batch of that number."""


def by_sink(directory: Path, conf: str) -> dict[str, Outcome]:
    """Through the sink's own task and commit."""
    return by_write(_stage_and_commit, directory, conf)


def by_write(write: Write, directory: Path, conf: str) -> dict[str, Outcome]:
    """All cases of a kind as one table; what is refused goes to the dead letters."""
    directory.mkdir(exist_ok=True)
    root, dead = directory / "store", directory / "dead"
    open_case_store(root, conf).close()
    (directory / "broker.conf").write_text(conf_text(conf))
    outcomes: dict[str, Outcome] = {}
    for number, (is_transactional, cases) in enumerate(kinds_of(conf)):
        with open_store(root, config=str(directory / "broker.conf")) as store:
            end = store.log_end
        options = {"path": str(root), "conf": str(directory / "broker.conf"), "keepUniqueKey": "true"}
        options |= {"onInvalidRow": "deadLetter", "deadLetterPath": f"{dead}-{number}"}
        options |= {"transactional": str(is_transactional).lower()}
        write(table_of(cases), options, number)
        refused = _refused(Path(f"{dead}-{number}"))
        with open_store(root, config=str(directory / "broker.conf")) as store:
            for case in cases:
                column = refused.get(key_of(case))
                outcomes[case.name] = column if column is not None else record_behind(store, end, case)
    return outcomes


def _stage_and_commit(table: pa.RecordBatch, options: dict[str, str], number: int) -> None:
    parsed = SinkOptions.parse(options, "streaming")
    columns = InputColumns(tuple(table.schema.names))
    staged = stage_rows(parsed, columns, Batch("sink", "query", number), 0, 0, iter([table]))
    commit_rows(parsed, [staged], number, mirrored=True)


def _refused(directory: Path) -> dict[str, str]:
    """By unique key, the column that each invalid row was refused for."""
    if not directory.exists():
        return {}
    table = pq.read_table(directory, columns=["unique_key", "error_column"])
    return dict(zip(*(column.to_pylist() for column in table.columns), strict=True))


def record_behind(store: MessageStore, end: int, case: PutCase) -> InnerMessage:
    """The one record of the case that stands in the log behind `end`, without what only a store or a client's address makes of it."""
    found = [message for message in _records(store, end) if message.unique_key == key_of(case)]
    (message,) = found
    return replace(InnerMessage.of(message), born_host=None)


def _records(store: MessageStore, start: int) -> Iterator[Message]:
    for offsets, _ in store.log.walk(start, check_crc=True):
        yield from map(store.message_by_commitlog_offset, offsets.tolist())


def parked(message: InnerMessage) -> InnerMessage:
    """The same where a sink lets it wait whose deliver time has passed."""
    out_ms = (int(message.properties["TIMER_DELIVER_MS"]) - 1) // 1_000 * 1_000
    real = {"REAL_TOPIC": message.topic, "REAL_QID": str(message.queue_id), "TIMER_OUT_MS": str(out_ms)}
    return replace(message, topic="rmq_sys_wheel_timer", queue_id=0, properties={**message.properties, **real})


def assert_as_requested(case: PutCase, requested: Outcome, found: Outcome, *, by_sink: bool) -> None:
    """The row became the record that the request became, or was refused where that was, or where no producer would send it."""
    if case.code != 0:
        assert (requested, found) == (case.code.name, case.refused_column), case.name
        return
    assert not isinstance(requested, str), f"{case.name}: {requested}"
    if case.no_producer is not None:
        assert found == case.refused_column, case.name
        return
    assert not isinstance(found, str), f"{case.name}: refused for column {found}"
    if by_sink and case.waits_by_sink:
        requested = parked(requested)
    assert without(found, case.said_by_requests_only) == without(requested, case.said_by_requests_only), case.name


def without(message: InnerMessage, names: Sequence[str]) -> InnerMessage:
    """The same as if it had been made without these fields, which are numbers."""
    return replace(message, **dict.fromkeys(names, 0))


def spark_write(spark: Any, table: pa.RecordBatch, options: dict[str, str], number: int) -> None:
    """One real batch write of Spark."""
    frame = spark.createDataFrame(pa.Table.from_batches([table]))
    frame.write.format("spark_mq").mode("append").options(**options, writeId=f"cases-{number}").save()


def by_spark(spark: Any) -> Way:
    """Through the sink, as Spark runs it."""
    return partial(by_write, partial(spark_write, spark))
