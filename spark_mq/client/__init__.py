"""A RocketMQ client: connections, routes, producers, consumers and admin, over one event loop a process. No Spark, no stores.

    from spark_mq.client import Admin, ClientSettings

    with Admin(ClientSettings("ns1:9876;ns2:9876")) as admin:
        print(admin.topics())

All I/O is asynchronous, except `blocking_connection.py`. The public classes are synchronous wrappers and thread-safe; AsyncAdmin is
awaited on any event loop.
Begin with `remoting_client.py` (connections), `instance.py` (what producers and consumers share), `producer.py`, `push_consumer.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_mq.client.admin import Admin, AsyncAdmin, NewTopic
    from spark_mq.client.errors import (
        AccessDeniedError,
        BrokerUnreachableError,
        ClientError,
        MessageRefusedError,
        NameServerUnreachableError,
        ReplyTimeoutError,
        RequestTimeoutError,
        ResponseError,
        SendFailedError,
        SendForbiddenError,
        TlsError,
        TooManyInFlightError,
        TopicRouteNotFoundError,
    )
    from spark_mq.client.hooks import (
        CheckForbiddenHook,
        ConsumeMessageContext,
        ConsumeMessageHook,
        EndTransactionContext,
        EndTransactionHook,
        FilterMessageContext,
        FilterMessageHook,
        SendMessageContext,
        SendMessageHook,
    )
    from spark_mq.client.listeners import ConcurrentContext, ConsumeStatus, OrderlyContext
    from spark_mq.client.message import Message, MessageExt, MessageQueue
    from spark_mq.client.producer import Producer, by_hash, by_machine_room, by_random
    from spark_mq.client.pull_consumer import PullConsumer
    from spark_mq.client.push_consumer import PushConsumer
    from spark_mq.client.send_results import SendResult, SendStatus
    from spark_mq.client.settings import (
        ClientSettings,
        ConsumeFrom,
        Credentials,
        ProducerSettings,
        PullSettings,
        PushSettings,
        TlsSettings,
    )
    from spark_mq.client.transaction_producer import (
        TransactionListener,
        TransactionProducer,
        TransactionResult,
        TransactionState,
    )
    from spark_mq.remoting.consumers import MessageModel

__all__ = [
    "AccessDeniedError",
    "Admin",
    "AsyncAdmin",
    "BrokerUnreachableError",
    "CheckForbiddenHook",
    "ClientError",
    "ClientSettings",
    "ConcurrentContext",
    "ConsumeFrom",
    "ConsumeMessageContext",
    "ConsumeMessageHook",
    "ConsumeStatus",
    "Credentials",
    "EndTransactionContext",
    "EndTransactionHook",
    "FilterMessageContext",
    "FilterMessageHook",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "MessageRefusedError",
    "NameServerUnreachableError",
    "NewTopic",
    "OrderlyContext",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullSettings",
    "PushConsumer",
    "PushSettings",
    "ReplyTimeoutError",
    "RequestTimeoutError",
    "ResponseError",
    "SendFailedError",
    "SendForbiddenError",
    "SendMessageContext",
    "SendMessageHook",
    "SendResult",
    "SendStatus",
    "TlsError",
    "TlsSettings",
    "TooManyInFlightError",
    "TopicRouteNotFoundError",
    "TransactionListener",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "by_hash",
    "by_machine_room",
    "by_random",
]

if not TYPE_CHECKING:
    # Loaded at first use: a task that pulls needs no admin.
    _LAZY = {
        "Admin": "admin",
        "AsyncAdmin": "admin",
        "CheckForbiddenHook": "hooks",
        "ClientSettings": "settings",
        "ConcurrentContext": "listeners",
        "ConsumeFrom": "settings",
        "ConsumeMessageContext": "hooks",
        "ConsumeMessageHook": "hooks",
        "ConsumeStatus": "listeners",
        "Credentials": "settings",
        "EndTransactionContext": "hooks",
        "EndTransactionHook": "hooks",
        "FilterMessageContext": "hooks",
        "FilterMessageHook": "hooks",
        "Message": "message",
        "MessageExt": "message",
        "MessageModel": "settings",
        "MessageQueue": "message",
        "NewTopic": "admin",
        "OrderlyContext": "listeners",
        "Producer": "producer",
        "ProducerSettings": "settings",
        "PullConsumer": "pull_consumer",
        "PullSettings": "settings",
        "PushConsumer": "push_consumer",
        "PushSettings": "settings",
        "SendMessageContext": "hooks",
        "SendMessageHook": "hooks",
        "SendResult": "send_results",
        "SendStatus": "send_results",
        "TlsSettings": "settings",
        "TransactionListener": "transaction_producer",
        "TransactionProducer": "transaction_producer",
        "TransactionResult": "transaction_producer",
        "TransactionState": "transaction_producer",
        "by_hash": "producer",
        "by_machine_room": "producer",
        "by_random": "producer",
    }

    def __dir__() -> list[str]:
        """All public names, for `dir` and for completion in a shell."""
        return sorted(__all__)

    def __getattr__(name: str) -> object:
        if name in __all__:
            return getattr(import_module(f"spark_mq.client.{_LAZY.get(name, 'errors')}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
