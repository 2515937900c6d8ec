"""Producers, checks, redrives, restarts and a clock that jumps, in any order: each transaction ends once, and as it was acknowledged.

After every step of a random walk: what is visible is what was committed, once each; nothing acknowledged is contradicted
or asked about; the offsets have not gone back. In the end every transaction has ended or lies in TRANS_CHECK_MAX_TIME_TOPIC.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from spark_mq.broker.end_transaction import TransactionEnder, request_for
from storage import Message, MessageStore, StoreConfig, open_store
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from storage.rules.half_messages import DISCARD_TOPIC, HALF_TOPIC, IMMUNITY, TransactionState, half_message
from storage.rules.inner_messages import InnerMessage
from storage.rules.response_codes import ResponseCode
from storage.settings.nouns import TransactionConfig
from storage.transaction.discard import redrive
from storage.transaction.progress import read_progress
from tests.support.held_check import check_half_messages

CONFIG = replace(
    StoreConfig.tiny(),
    transaction=TransactionConfig(
        transaction_time_out=6_000,
        transaction_check_max=3,
        transaction_op_msg_max_size=20,
        transaction_op_batch_interval=3_000,
    ),
)
QUEUES = 2
ALL = 1_000
FLAGS = {TransactionState.COMMIT: TRANSACTION_COMMIT, TransactionState.ROLLBACK: TRANSACTION_ROLLBACK}


class Walk:
    """A store, its clients, and what was acknowledged."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 1_700_000_000_000
        self.sent: list[str] = []
        self.acknowledged: dict[str, int] = {}
        self._root = root
        self._open()
        self._progress = read_progress(self.store)

    def _open(self) -> None:
        self.store: MessageStore = open_store(
            self._root, config=CONFIG, read_only=False, create=True, clock=lambda: self.now_ms
        )
        self._ender = TransactionEnder.of(self.store, self.now_ms)

    def step(self) -> None:
        self.now_ms += self.random.choice([0, 1, 500, 4_000, 7_000, -3_000])
        actions = (self.prepare, self.end, self.check, self.redrive, self.write_due, self.restart)
        self.random.choices(actions, weights=(30, 30, 20, 7, 6, 7))[0]()
        self.judge()

    def prepare(self) -> None:
        key = f"k{len(self.sent)}"
        immunity = {IMMUNITY: str(self.random.choice([1, 5, 20, 60]))} if self.random.random() < 0.2 else {}
        message = InnerMessage(
            topic="T",
            queue_id=self.random.randrange(QUEUES),
            body=key.encode(),
            properties={"UNIQ_KEY": key, **immunity},
            born_time_ms=self.now_ms + self.random.choice([0, 0, -1_000, 5_000]),
        )
        self.store.put_inner([half_message(message, "P")])
        self.sent.append(key)

    def end(self) -> None:
        """A producer ends any copy of any half, also one that is ended, and also otherwise."""
        halves = self._messages(HALF_TOPIC)
        if not halves:
            return
        half, flag = self.random.choice(halves), self.random.choice(list(FLAGS.values()))
        request = request_for(half, flag, from_transaction_check=self.random.random() < 0.7)
        response = self._ender.end(request, self.now_ms)
        if response is not None and response.code is ResponseCode.SUCCESS:
            key = half.unique_key or ""
            assert self.acknowledged.setdefault(key, flag) == flag, f"{key} is contradicted"

    def check(self) -> None:
        check_half_messages(self.store, self._answer, self.now_ms)

    def _answer(self, message: Message) -> TransactionState:
        key = message.unique_key or ""
        assert key not in self.acknowledged, f"{key} is asked about again"
        state = self.random.choice([TransactionState.UNKNOWN, *TransactionState])
        if state in FLAGS:
            self.acknowledged[key] = FLAGS[state]
        return state

    def redrive(self) -> None:
        redrive(self.store, self.now_ms)

    def write_due(self) -> None:
        self._ender.write_due(self.now_ms)

    def restart(self) -> None:
        """Half of the times without a word to the ender, whose op messages are lost with it."""
        if self.random.random() < 0.5:
            self._ender.close(self.now_ms)
        self.store.release()
        self._open()

    def judge(self) -> None:
        progress = read_progress(self.store)
        assert progress.half_offset >= self._progress.half_offset
        assert progress.op_offset >= self._progress.op_offset
        self._progress = progress
        visible = Counter(message.body.decode() for queue in range(QUEUES) for message in self._messages("T", queue))
        assert visible == Counter(key for key, flag in self.acknowledged.items() if flag == TRANSACTION_COMMIT)

    def finish(self) -> None:
        self._ender.close(self.now_ms)
        for _ in range(CONFIG.transaction.transaction_check_max + 2):  # first the immunities end
            self.now_ms += 100_000
            check_half_messages(self.store, lambda message: TransactionState.UNKNOWN, self.now_ms)
        given_up = {message.unique_key for message in self._messages(DISCARD_TOPIC)}
        assert set(self.sent) - set(self.acknowledged) <= given_up
        assert read_progress(self.store).half_offset == self.store.max_offset(HALF_TOPIC, 0)
        self.store.close()

    def _messages(self, topic: str, queue_id: int = 0) -> list[Message]:
        return self.store.get(topic, queue_id, 0, ALL).messages


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 40))])
def test_transactions_end_once_whoever_acts_in_whatever_order(tmp_path: Path, seed: int) -> None:
    """EndTransactionProcessor.processRequest, TransactionalMessageServiceImpl.check, AdminBrokerProcessor.resumeCheckHalfMessage."""
    walk = Walk(tmp_path / "store", seed)
    for _ in range(30):
        walk.step()
    walk.finish()
