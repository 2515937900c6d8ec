"""The Apache broker carries on from our store: it delivers what is delayed there, asks back what is undecided, and buries what keeps failing.

Our functions leave a store in the middle of everything; a real broker with a real transaction producer and a real push consumer
takes it from there, and is killed. What became of each message is read from Apache's own store classes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from storage import MessageStore, open_store
from storage.consumer_offsets import ConsumerOffsets
from storage.inner_messages import InnerMessage
from storage.subscription_groups import SubscriptionGroupConfig, SubscriptionGroupTable
from storage.topics import TopicConfig
from tests.support.java_broker import Oracle, free_ports

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Line = dict[str, Any]

SCHEDULE, HALF, OP = "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
PRODUCERS, CONSUMERS, VIEWERS = "CarryProducers", "CarryConsumers", "CarryViewers"
RETRY, DEAD = f"%RETRY%{CONSUMERS}", f"%DLQ%{CONSUMERS}"
MAX_RECONSUME_TIMES = 2
SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 64 << 10,
    "consume_queue_file_size_bytes": 2_000,
    # Levels 1 to 5 are short, 2 long enough to be left pending; 18 stays pending for the whole test.
    "messageDelayLevel": "1s 4s 1s 1s 1s 1s 1s 1s 9s 10s 20s 30s 1m 2m 5m 10m 1h 2h",
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "transactionCheckMax": 1_000,
    "transactionOpBatchInterval": 500,
    "flushDelayOffsetInterval": 500,
    "flushConsumerOffsetInterval": 500,
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}
