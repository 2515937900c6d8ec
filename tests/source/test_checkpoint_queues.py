"""A checkpoint whose queues are not the query's is told from one whose messages are lost."""

from __future__ import annotations

import pickle

import pytest

from spark_mq.conditions import CheckpointOfAnotherQueryError, DataLossError
from spark_mq.source.offsets import QueueId
from spark_mq.source.stream_reader import loss_of, refuse_other_checkpoint

A0, A1, B0 = QueueId("A", "broker-a", 0), QueueId("A", "broker-a", 1), QueueId("A", "broker-b", 0)


def test_a_checkpoint_of_other_topics_is_another_querys() -> None:
    with pytest.raises(CheckpointOfAnotherQueryError) as caught:
        refuse_other_checkpoint([A0, A1], [], ["broker-a"])
    text = str(pickle.loads(pickle.dumps(caught.value)))
    assert text.startswith("[SPARK_MQ_CHECKPOINT_OF_ANOTHER_QUERY] the checkpoint is another query's")
    assert "holds offsets of A, which the query's options do not ask for. Give" in text
    assert "checkpointLocation of its own" in text
    assert "Set failOnDataLoss" not in text


def test_a_checkpoint_of_other_brokers_is_another_stores() -> None:
    with pytest.raises(
        CheckpointOfAnotherQueryError, match=r"of broker broker-a, and path leads to the store of broker-b"
    ):
        refuse_other_checkpoint([A0], [A0], ["broker-b"])


def test_a_checkpoint_that_has_a_queue_of_the_query_is_the_querys() -> None:
    refuse_other_checkpoint([A0, A1], [A1], ["broker-a"])
    refuse_other_checkpoint([A0, B0], [A0], ["broker-b"])
    refuse_other_checkpoint([], [], ["broker-a"])


@pytest.mark.parametrize(
    ("queue", "is_selected", "brokers", "cause", "cure"),
    [
        (B0, True, ["broker-a"], "no store of broker broker-b is at path, where there is broker-a", "Mount the store"),
        (A0, False, ["broker-a"], "the query's options do not ask for it any more", "Ask for it again"),
        (A0, True, ["broker-a"], "queue A/broker-a/0 at offset 7 is gone", "they expired, or the topic was deleted"),
    ],
)
def test_each_kind_of_missing_queue_has_a_text_of_its_own(
    queue: QueueId, is_selected: bool, brokers: list[str], cause: str, cure: str
) -> None:
    loss = loss_of(queue, 7, is_selected=is_selected, brokers=brokers)
    (line,) = str(DataLossError(loss)).splitlines()
    assert cause in line
    assert cure.lower() in line.lower()
    assert "set failOnDataLoss to false" in line.replace("Set", "set")


def test_losses_of_several_kinds_say_each_cure_once() -> None:
    losses = [loss_of(queue, 7, is_selected=True, brokers=["broker-a"]) for queue in (B0, A0, A1)]
    text = str(DataLossError(*losses))
    first, *rest = text.splitlines()
    assert "broker-b" in first
    assert "; and 2 more. Mount the store of broker-b" in first
    assert text.count("they expired") == 1
    assert text.count("ount the store of broker-b") == 1
    assert [line for line in rest if line.endswith("is gone")] == [
        "queue A/broker-a/0 at offset 7 is gone",
        "queue A/broker-a/1 at offset 7 is gone",
    ]
