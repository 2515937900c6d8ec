"""The job asks what its options name: Python code, or the checkpoint of the Spark query that wrote the half messages."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs import check_transactions, redrive_transactions
from jobs.check_transactions import CheckpointChecker, first_answer, load_checker
from spark_mq.conditions import OptionError
from spark_mq.sink.options import BATCH_PROPERTY, QUERY_PROPERTY
from storage import Message, open_store
from storage.rules.half_messages import DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, TransactionState, half_message
from storage.rules.inner_messages import InnerMessage
from tests.support.held_check import check_half_messages
from tests.support.message_builder import make_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = "mappedFileSizeCommitLog=16384\nmappedFileSizeConsumeQueue=400\nmaxHashSlotNum=10\nmaxIndexNum=20\n"
QUERY = "0d2f3a34-52ab-4cf0-8f3e-0f2fd5d2f7c1"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """As Spark leaves it (StreamMetadata, OffsetSeqLog, CommitLog): batches 3 and 4 are committed, 5 has begun."""
    directory = tmp_path / "checkpoint"
    for log, batches in {"offsets": (3, 4, 5), "commits": (3, 4)}.items():
        (directory / log).mkdir(parents=True)
        for batch in batches:
            (directory / log / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
            (directory / log / f".{batch}.crc").write_bytes(b"crc\0")
    (directory / "metadata").write_text(f'{{"id":"{QUERY}"}}')
    return directory


def half_of(properties: Mapping[str, str]) -> Message:
    message = make_message(properties=properties)
    return Message(**{name: getattr(message, name) for name in message.__slots__} | {"properties": dict(properties)})


@pytest.mark.parametrize(
    ("properties", "state"),
    [
        ({QUERY_PROPERTY: QUERY, BATCH_PROPERTY: "4"}, TransactionState.COMMIT),
        ({QUERY_PROPERTY: QUERY, BATCH_PROPERTY: "0"}, TransactionState.COMMIT),  # Spark has removed its files
        ({QUERY_PROPERTY: QUERY, BATCH_PROPERTY: "5"}, TransactionState.UNKNOWN),
        ({QUERY_PROPERTY: QUERY, BATCH_PROPERTY: "6"}, TransactionState.UNKNOWN),
        ({QUERY_PROPERTY: QUERY, BATCH_PROPERTY: "x"}, TransactionState.UNKNOWN),
        ({QUERY_PROPERTY: QUERY}, TransactionState.UNKNOWN),
        ({QUERY_PROPERTY: "another", BATCH_PROPERTY: "4"}, TransactionState.UNKNOWN),
        ({}, TransactionState.UNKNOWN),
    ],
)
def test_a_checkpoint_says_commit_of_its_own_committed_batches_and_never_rollback(
    checkpoint: Path, properties: Mapping[str, str], state: TransactionState
) -> None:
    assert CheckpointChecker(str(checkpoint))(half_of(properties)) is state


@pytest.mark.parametrize("metadata", [None, "{}", "not json"])
def test_a_directory_that_is_no_checkpoint_is_refused(checkpoint: Path, metadata: str | None) -> None:
    if metadata is None:
        (checkpoint / "metadata").unlink()
    else:
        (checkpoint / "metadata").write_text(metadata)
    with pytest.raises(OptionError, match="--checkpoint"):
        CheckpointChecker(str(checkpoint))


@pytest.mark.slow
@pytest.mark.spark
def test_the_checkpoint_that_spark_writes_is_read(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("row\n")
    rows = spark.readStream.text(str(tmp_path / "in"))
    writer = rows.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    checker = CheckpointChecker(f"file://{tmp_path}/checkpoint")
    assert checker.query_id == str(query.id)
    done, begun = ({QUERY_PROPERTY: checker.query_id, BATCH_PROPERTY: batch} for batch in "01")
    assert checker(half_of(done)) is TransactionState.COMMIT
    assert checker(half_of(begun)) is TransactionState.UNKNOWN


def test_the_first_that_knows_is_believed() -> None:
    asked: list[str] = []

    def answers(name: str, state: str) -> Callable[[Message], str]:
        def answer(_: Message) -> str:
            asked.append(name)
            return state

        return answer

    checker = first_answer([answers("a", "unknown"), answers("b", "rollback"), answers("c", "commit")])
    assert checker(half_of({})) is TransactionState.ROLLBACK
    assert asked == ["a", "b"]
    assert first_answer([answers("a", "unknown")])(half_of({})) is TransactionState.UNKNOWN


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("os.path", "is not MODULE:CALLABLE"),
        (":commit", "is not MODULE:CALLABLE"),
        ("..module:f", "is not MODULE:CALLABLE"),
        ("no_such_module_here:f", "there is no module no_such_module_here"),
        ("os.path:no_such", "has no callable no_such"),
        ("os.path:sep", "has no callable sep"),
    ],
)
def test_a_checker_that_cannot_be_called_is_refused(text: str, rule: str) -> None:
    with pytest.raises(OptionError, match=rule):
        load_checker(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with three half messages a minute old, of which the sink's query wrote the first."""
    then_ms = time.time_ns() // 1_000_000 - 60_000
    (tmp_path / "broker.conf").write_text(SMALL)
    root = tmp_path / "store"
    with open_store(root, read_only=False, create=True, clock=lambda: then_ms) as store:
        halves = []
        for body, marks in (("a", {QUERY_PROPERTY: QUERY, BATCH_PROPERTY: "4"}), ("b", {}), ("c", {})):
            message = InnerMessage(
                topic="TopicTx",
                queue_id=0,
                body=body.encode(),
                properties={"UNIQ_KEY": f"K{body}", **marks},
                born_time_ms=then_ms,
            )
            halves.append(half_message(message, "P"))
        store.put_inner(halves)
    return root


def bodies(root: Path, topic: str) -> list[bytes]:
    with open_store(root) as store:
        return [message.body for message in store.get(topic, 0, 0, 100).messages]


def test_one_run_asks_checkpoint_and_code_and_says_what_it_did(
    root: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_transactions.py").write_text(
        "class Orders:\n    @staticmethod\n    def state(message):\n"
        "        return 'rollback' if message.topic == 'TopicTx' and message.plain_body == b'b' else 'unknown'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    arguments = [str(root), "--checkpoint", str(checkpoint), "--checker", "my_transactions:Orders.state"]
    assert check_transactions.main(arguments) == 0
    assert "1 committed, 1 rolled back, 1 unknown, 0 not asked yet, 0 given up" in capsys.readouterr().out
    assert bodies(root, "TopicTx") == [b"a"]
    assert check_transactions.main(arguments) == 0
    assert "0 committed, 0 rolled back, 1 unknown" in capsys.readouterr().out
    assert bodies(root, "TopicTx") == [b"a"]


def test_a_run_says_what_it_did_and_put_as_json(
    root: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_transactions.main([str(root), "--checkpoint", str(checkpoint), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["job"], found["store"], found["exit_code"]) == ("check_transactions", str(root), 0)
    assert (found["committed"], found["unknown"], found["out_of_time"]) == (1, 2, False)
    assert {topic: put["messages"] for topic, put in found["put"].items()} == {"TopicTx": 1, HALF_TOPIC: 2, OP_TOPIC: 1}
    with open_store(root) as store:
        (message,) = store.get("TopicTx", 0, 0, 10).messages
    assert found["put"]["TopicTx"]["bytes"] == message.size_bytes


def test_without_anybody_to_ask_nothing_is_asked_and_no_check_is_used_up(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_transactions.main([str(root)]) == 2
    assert "--checker or --checkpoint" in capsys.readouterr().err


def test_what_was_given_up_is_put_back_by_topic(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(root, read_only=False) as store:
        later_ms = time.time_ns() // 1_000_000 + 80 * 3_600_000
        check_half_messages(store, lambda _: "unknown", later_ms)
    assert len(bodies(root, DISCARD_TOPIC)) == 3
    assert redrive_transactions.main([str(root), "--topic", "Other"]) == 0
    assert redrive_transactions.main([str(root), "--topic", "TopicTx"]) == 0
    assert redrive_transactions.main([str(root)]) == 0
    lines = [line.partition(" half")[0] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if not line.startswith("put ")] == ["0", "3", "0"]


@pytest.mark.parametrize("answer", [None, "maybe", "COMMIT"])
def test_an_answer_that_is_none_is_refused_by_name(answer: Any) -> None:
    message: Any = object()
    with pytest.raises(OptionError, match=f"it answered {answer!r}, which is none of commit, rollback, unknown"):
        first_answer([lambda _: answer])(message)
