"""A broker's duties: delayed and timed messages, transactions, what consumers send back."""

from __future__ import annotations

import numpy as np

from storage.pending import PutStatus
from tests.torture.steps import Order, Step, path_has

_FILES = "storage.files.local_file_system:LocalFileSystem"
_STORE = "storage.store:MessageStore"
_RECORDS = "storage.log.writer:CommitLogWriter._write"
_DELIVERY = "storage.delay.schedule"
_TIMER = "storage.delay.timer_store:_TimerRun"
_CHECK = "storage.transaction.check"
_ENDER = "spark_mq.broker.end_transaction:TransactionEnder"
_BACK = "spark_mq.broker.send_back:SendBackHandler"


def _is_whole(*arguments: object, **changes: object) -> bool:
    return "log_position" in changes


def _is_announcement(*arguments: object, **changes: object) -> bool:
    return set(changes) == {"master_queue_offset"}


ORDERS = (
    Order(
        "Delivering delay levels (`delay/schedule.py`)",
        f"{_DELIVERY}:deliver_due",
        (
            Step("mark (which messages, in which order)", f"{_DELIVERY}:save_mark"),
            Step("records", _RECORDS, within=f"{_DELIVERY}:_Delivery._deliver"),
            Step("log synced", f"{_STORE}.flush", within=f"{_DELIVERY}:_Delivery._deliver"),
            Step("`delayOffset.json`", f"{_DELIVERY}:_Delivery._save", within=f"{_DELIVERY}:_Delivery._deliver"),
            Step("mark dropped", f"{_DELIVERY}:drop_mark"),
        ),
        stories=("delivering a delay level",),
    ),
    Order(
        "Delivering delay levels (`delay/schedule.py`)",
        f"{_DELIVERY}:_Delivery._go_on",
        (
            Step("log compared with the round of the mark"),
            Step("log synced", f"{_STORE}.flush"),
            Step("`delayOffset.json` with what was found", f"{_DELIVERY}:_Delivery._save"),
            Step("mark dropped", f"{_DELIVERY}:drop_mark"),
        ),
        title="Order of going on with a round",
        stories=("going on with a delivery",),
    ),
    Order(
        "Delivering at a time (`delay/timer_store.py`)",
        f"{_TIMER}._enter",
        (
            Step("log synced", f"{_STORE}.flush"),
            Step("`timercheck` with the master's offset", f"{_TIMER}._save", when=_is_announcement),
            Step("units of `timerlog/`", f"{_FILES}.write", when=path_has("/timerlog/")),
            Step("these synced", "storage.delay.timer_files:TimerLog.sync"),
            Step("`timerwheel`, synced", "storage.delay.timer_files:TimerWheel.save"),
            Step("`timercheck`, synced", f"{_TIMER}._save", when=_is_whole),
        ),
        title="Order of entering",
        stories=("delivering at a time",),
    ),
    Order(
        "Delivering at a time (`delay/timer_store.py`)",
        f"{_TIMER}._deliver",
        (
            Step("seal broken", f"{_TIMER}._break_seal"),
            Step("records", _RECORDS),
            Step("log synced", f"{_STORE}.flush"),
            Step("`timercheck` with the read time, synced", f"{_TIMER}._save", within=f"{_TIMER}._read_up_to"),
        ),
        title="Order of delivering, a group of slots at a time",
        stories=("delivering at a time, with a seal", "delivering at a time"),
    ),
    Order(
        "Ending a transaction (`transaction/`, `spark_mq/broker/end_transaction.py`)",
        "tests.support.broker_handlers:end_transaction",
        (
            Step("commit record", f"{_ENDER}._commit", gives=lambda *_, **__: PutStatus.PUT_OK),
            Step("op message", f"{_ENDER}._write_ops"),
        ),
        stories=("ending a transaction",),
    ),
    Order(
        "Checking transactions (`transaction/check.py`)",
        f"{_CHECK}:_Pass.run",
        (
            Step("commit records", f"{_CHECK}:_Pass._commit"),
            Step("op messages", f"{_CHECK}:_Pass._end"),
            Step("halves put back", f"{_CHECK}:_Pass._put_back", gives=lambda *_, **__: np.empty(0, np.int64)),
            Step("discarded halves", f"{_CHECK}:discard"),
            Step("log synced", f"{_STORE}.flush"),
            Step("offsets of half and op queue, in one `consumerOffset.json`", f"{_CHECK}:save_progress"),
            Step("`transactionMetrics`", f"{_CHECK}:save_counts"),
        ),
        stories=("checking transactions",),
    ),
    Order(
        "Sending back (`spark_mq/broker/send_back.py`)",
        f"{_BACK}.send_back",
        (
            Step(
                "`topics.json` with the retry topic or that of the dead letters",
                f"{_STORE}.save_topic {_STORE}.make_topic",
            ),
            Step("`subscriptionGroup.json`", f"{_STORE}.make_group"),
            Step('record, as under "Putting"', f"{_BACK}._put", gives=lambda *_, **__: PutStatus.PUT_OK),
        ),
        stories=("sending back",),
    ),
)
