"""Queues that a checkpoint names and the query does not find: not asked for, of a broker that is not there, or gone. Pure.

A checkpoint that has nothing in common with the query is another one's, and an error whatever failOnDataLoss says: there is nothing to
go on with, and a new checkpoint gives the same. Where some queues are common, the others are losses, each with its own cause.
"""

from __future__ import annotations

from collections.abc import Collection

from spark_mq.conditions import CheckpointOfAnotherQueryError, names
from spark_mq.source.offsets import QueueId

_THE_STORE = {"path": "the store of ", "nameServer": ""}
_OWN_CHECKPOINT = "Give each query a checkpointLocation of its own, also after its topics were changed"


def refuse_other_checkpoint(
    queues: Collection[QueueId], asked_for: Collection[QueueId], brokers: Collection[str], option: str = "path"
) -> None:
    """Raises CheckpointOfAnotherQueryError where none of the checkpoint's queues is of this query.

    `asked_for` are those of them that the options name, whether they are there or not; `brokers` are those whose data is
    read, `option` says where.
    """
    if not queues:
        return
    named = sorted({queue.broker_name for queue in queues})
    if not set(named) & set(brokers):
        raise CheckpointOfAnotherQueryError(
            f"it holds offsets of broker {names(named)}, and {option} leads to {_THE_STORE[option]}{names(sorted(brokers))}",
            f"Correct {option}. If the broker's name has changed, set brokerName to the old one. {_OWN_CHECKPOINT}",
        )
    if not asked_for:
        topics = sorted({queue.topic for queue in queues})
        raise CheckpointOfAnotherQueryError(
            f"it holds offsets of {names(topics)}, which the query's options do not ask for", _OWN_CHECKPOINT
        )


def loss_of(
    queue: QueueId, next_offset: int, *, is_asked_for: bool, brokers: Collection[str], option: str = "path"
) -> str:
    """Why a queue of the checkpoint is not read any more, and on a second line what to do."""
    if queue.broker_name not in brokers and option != "path":
        return (
            f"queue {queue} at offset {next_offset}: no broker {queue.broker_name} is registered at {option}, where there is "
            f"{names(sorted(brokers))}\nStart {queue.broker_name}. If that broker is gone for good, set failOnDataLoss to "
            "false to go on without its queues"
        )
    if queue.broker_name not in brokers:
        return (
            f"queue {queue} at offset {next_offset}: no store of broker {queue.broker_name} is at path, where there is "
            f"{names(sorted(brokers))}\nMount the store of {queue.broker_name}. If that broker is gone for good, set failOnDataLoss to "
            "false to go on without its queues"
        )
    if not is_asked_for:
        return (
            f"queue {queue} at offset {next_offset} is in the checkpoint, and the query's options do not ask for it any more\n"
            f"Ask for it again. To go on without it, set failOnDataLoss to false; its offset is then forgotten. {_OWN_CHECKPOINT}"
        )
    return f"queue {queue} at offset {next_offset} is gone"
