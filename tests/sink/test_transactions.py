"""A transaction from plain Python: what is seen when, and what a broker would find."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_mq
from spark_mq.conditions import SparkMqError, WriteFailedError
from storage import open_store
from storage.format.record import Message

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store whose files are small."""
    (tmp_path / "broker.conf").write_text("mappedFileSizeCommitLog=65536\nmaxHashSlotNum=20\nmaxIndexNum=60\n")
    return tmp_path / "store"


def messages(root: Path, topic: str) -> list[Message]:
    with open_store(root) as store:
        return [m for queue_id in store.queue_ids(topic) for m in store.get(topic, queue_id, 0, 100).messages]


def bodies(root: Path, topic: str = "T") -> list[str]:
    return sorted(message.body.decode() for message in messages(root, topic))


def ended(root: Path) -> set[int]:
    """Queue offsets of halves that op messages name. Java: TransactionalMessageServiceImpl.fillOpRemoveMap."""
    return {int(part) for op in messages(root, OP) for part in op.body.decode().split(",") if part}


def test_messages_are_seen_at_the_end_of_the_block_and_not_before(root: Path) -> None:
    """Java: TransactionMQProducer.sendMessageInTransaction, EndTransactionProcessor (COMMIT_MESSAGE)."""
    with spark_mq.transaction(str(root), producer_group="orders") as tx:
        tx.send("T", b"one", tags="a", keys=["k1", "k2"], properties={"p": "1"})
        tx.send("T", "two", queue_id=1)
        assert bodies(root) == []
        assert bodies(root, HALF) == ["one", "two"]
    assert bodies(root) == ["one", "two"]
    assert ended(root) == {0, 1}
    found = {message.body: message for message in messages(root, "T")}
    half = found[b"one"].properties
    assert (half["TAGS"], half["KEYS"], half["p"], half["PGROUP"], half["TRAN_MSG"]) == (
        "a",
        "k1 k2",
        "1",
        "orders",
        "true",
    )
    assert half["__transactionId__"] == half["UNIQ_KEY"]
    assert found[b"two"].queue_id == 1
    places = [found[body].prepared_transaction_offset for body in (b"one", b"two")]
    assert places == [place.commitlog_offset for place in tx.halves]


def test_an_error_rolls_back(root: Path) -> None:
    """Java: EndTransactionProcessor (ROLLBACK_MESSAGE): an op message and nothing else."""

    def fail() -> None:
        with spark_mq.transaction(str(root), producer_group="orders") as tx:
            tx.send("T", b"one")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (bodies(root), ended(root)) == ([], {0})


def test_unknown_leaves_the_half_to_a_check(root: Path) -> None:
    """Java: LocalTransactionState.UNKNOW: END_TRANSACTION says nothing."""
    with spark_mq.transaction(str(root), producer_group="orders") as tx:
        tx.send("T", b"one")
        tx.unknown()
    assert (bodies(root), bodies(root, HALF), ended(root)) == ([], ["one"], set())


def test_it_ends_once_and_takes_nothing_then(root: Path) -> None:
    with spark_mq.transaction(str(root), producer_group="orders") as tx:
        tx.send("T", b"one")
        tx.rollback()
    with pytest.raises(WriteFailedError, match="was rolled back already"):
        tx.commit()
    with pytest.raises(WriteFailedError, match="was rolled back already"):
        tx.send("T", b"two")
    assert bodies(root) == []


def test_one_without_messages_does_not_touch_the_store(root: Path) -> None:
    with spark_mq.transaction(str(root), producer_group="orders"):
        pass
    assert not root.exists()


def test_a_row_that_no_broker_takes_is_refused_and_the_others_roll_back(root: Path) -> None:
    def send_both() -> None:
        with spark_mq.transaction(str(root), producer_group="orders") as tx:
            tx.send("T", b"one")
            tx.send("T", b"two", queue_id=9)

    with pytest.raises(SparkMqError, match="queue_id: 9 is no queue"):
        send_both()
    assert (bodies(root), ended(root)) == ([], {0})


def test_a_group_that_no_broker_takes_is_refused() -> None:
    with pytest.raises(WriteFailedError, match="'/'"):
        spark_mq.transaction("/store", producer_group="a/b")


def test_it_holds_the_store_for_no_longer_than_a_send(root: Path) -> None:
    with spark_mq.transaction(str(root), producer_group="orders", lock_timeout_ms=0) as tx:
        tx.send("T", b"one")
        with open_store(root, read_only=False) as other:
            other.put("T", b"between")
            other.release()
    assert bodies(root) == ["between", "one"]
