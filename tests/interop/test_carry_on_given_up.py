"""Transactions that a broker gives up because nobody answers: each step of its records is ours, and what we put back it asks for again.

A producer dies with its transactions open; a real broker asks in vain and moves the halves to TRANS_CHECK_MAX_TIME_TOPIC; our redrive
puts them back; a broker asks again, and the producer is there.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import open_store
from storage.rules.half_messages import (
    DISCARD_TOPIC,
    GROUP,
    HALF_TOPIC,
    discarded_messages,
    put_back_messages,
    put_back_unchecked,
)
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.transaction.discard import redrive
from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until
from tests.support.log_records import LogRecord, columns_of, log_records, rows_of

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.long]

PLANS = {"transaction 0": "checkCommit", "transaction 1": "checkRollback", "transaction 2": "checkCommit-5s"}
"""By body; the last has an immunity of five seconds."""
SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 64 << 10,
    "transactionTimeOut": 3_000,  # by then the producer is gone
    "transactionOpBatchInterval": 100,
    "flushConsumerOffsetInterval": 200,
}

IMPATIENT = {"transactionCheckInterval": 500, "transactionCheckMax": 12}
# A broker that asks again before an answer's op message is written commits a second time.
PATIENT = {"transactionCheckInterval": 4_000, "transactionCheckMax": 1_000}


def test_a_broker_gives_up_as_we_would_and_asks_for_what_we_put_back(oracle: Oracle, tmp_path: Path) -> None:
    """Java: TransactionalMessageServiceImpl.check, DefaultTransactionalMessageCheckListener.resolveDiscardMsg."""
    store, port = tmp_path / "store", free_ports()
    with oracle.namesrv() as name_server:
        with oracle.broker(store, name_server, port=port, **SETTINGS, **IMPATIENT) as broker:
            plans = ",".join(PLANS.values())
            with oracle.client(
                "TransactionSide", tmp_path / "open", broker, group="Gone", topic="Tx", plans=plans
            ) as tx:
                tx.until(bool, "ready")
            wait_until(lambda: has_given_up(broker, len(PLANS)), "all halves are given up")
            broker.kill()
        assert_each_step_is_ours(list(log_records(store)))

        with open_store(store, config=str(broker.conf), read_only=False) as ours:
            assert redrive(ours, time.time_ns() // 1_000_000).put_back == len(PLANS)
            assert redrive(ours, time.time_ns() // 1_000_000).put_back == 0
        with (
            oracle.broker(store, name_server, port=port, **SETTINGS, **PATIENT) as broker,
            oracle.client("TransactionSide", tmp_path / "back", broker, group="Gone", topic="Tx") as tx,
            oracle.client(
                "FailingConsumer", tmp_path / "seen", broker, group="View", topics="Tx", succeedAt=0
            ) as viewer,
        ):
            tx.until(lambda lines: {line["body"] for line in lines} >= set(PLANS), "checked")
            viewer.until(lambda lines: len(lines) >= 2, "consumed")
            broker.kill()
    dump = oracle.dump(store, broker.conf)
    committed = [line for line in dump if line["type"] == "message" and line["topic"] == "Tx"]
    assert Counter(line["properties"]["KEYS"] for line in committed) == Counter(["key0", "key2"])


def has_given_up(broker: RunningBroker, count: int) -> bool:
    """Whether it has given up so many halves, and has written down that it is through with all of them."""
    found = Counter(record.message.topic for record in log_records(broker.store))
    return found[DISCARD_TOPIC] >= count and broker.consumer_offset(HALF_TOPIC, GROUP) == found[HALF_TOPIC]


def assert_each_step_is_ours(records: list[LogRecord]) -> None:
    """Every half but the first of a transaction, and every discarded one, follows from the one before it."""
    before: dict[str, LogRecord] = {}
    steps: Counter[str] = Counter()
    for record in records:
        message = record.message
        if message.topic not in (HALF_TOPIC, DISCARD_TOPIC):
            continue
        key = message.properties["UNIQ_KEY"]
        if key in before:
            step, made = step_to(before[key], message.topic, message.properties)
            steps[step] += 1
            assert made == InnerMessage.of(message), step
        before[key] = record
    assert steps.keys() == {"put back", "put back unasked", "discarded"}
    assert steps["discarded"] == len(PLANS)


def step_to(before: LogRecord, topic: str, properties: dict[str, str]) -> tuple[str, InnerMessage]:
    half = InnerMessages.of_records(columns_of([before]))
    if topic == DISCARD_TOPIC:
        [made] = rows_of(discarded_messages(half))
        return "discarded", made
    times = int(before.message.properties.get("TRANSACTION_CHECK_TIMES", "0")) + 1
    [made] = rows_of(put_back_messages(half, np.array([times])))
    if "TRAN_PREPARED_QUEUE_OFFSET" not in properties:
        return "put back", replace(made, flag=0)  # Java forgets the flag
    [unasked] = rows_of(put_back_unchecked(half, np.array([before.message.queue_offset])))
    # Java counts a check that it has not made, and says that nobody waits for this put.
    counted = {**unasked.properties, "TRANSACTION_CHECK_TIMES": str(times), "WAIT": "false"}
    return "put back unasked", replace(unasked, flag=0, properties=counted)
