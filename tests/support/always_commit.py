"""A transaction's listener that commits everything, at once and when a broker asks."""

from __future__ import annotations

from spark_mq.client.message import Message, MessageExt
from spark_mq.client.transaction_producer import TransactionState


class AlwaysCommit:
    """Keeps no book."""

    def execute(self, message: Message, transaction_id: str, arg: object) -> TransactionState:
        return TransactionState.COMMIT

    def check(self, message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT
