"""What keeps a message out of the store, whoever puts it. Java: HookUtils.checkBeforePutMessage, checkInnerBatch.

The guards run in Java's order, on the message as it will be stored but for its delay; sizes are judged in the end
(`storage/rules/sizes.py`), when the broker has added its own properties. Each raises PutRefusedError with a put's status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage.errors import PutRefusedError
from storage.format.record import INNER_BATCH
from storage.put_status import PutStatus
from storage.rules.sizes import topic_limit
from storage.tables.topics import TopicConfig


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Whether the broker can take anything at the moment. Java: RunningFlags, BrokerRole, isOSPageCacheBusy."""

    is_shut_down: bool = False
    is_slave: bool = False
    """With `duplicationEnable` a slave counts as none."""
    acts_as_master: bool = False
    """`enableSlaveActingMaster`: a slave's requests are then not turned away at the door."""
    is_writable: bool = True
    is_os_page_cache_busy: bool = False
    """The log has been locked by one put for longer than `osPageCacheBusyTimeOutMills`."""
    is_transient_store_pool_deficient: bool = False
    """The memory in which puts wait to be written is full."""

    @property
    def rejects_requests(self) -> bool:
        """Whether sends are turned away unread. Java: SendMessageProcessor.rejectRequest."""
        is_congested = self.is_os_page_cache_busy or self.is_transient_store_pool_deficient
        return (self.is_slave and not self.acts_as_master) or is_congested


def check_before_put(topic: str, body: bytes | None, state: BrokerState) -> None:
    """Java: HookUtils.checkBeforePutMessage."""
    if state.is_shut_down:
        raise PutRefusedError(PutStatus.SERVICE_NOT_AVAILABLE, "the store is shut down")
    if state.is_slave:
        raise PutRefusedError(PutStatus.SERVICE_NOT_AVAILABLE, "the store is a slave's, which only its master writes")
    if not state.is_writable:
        raise PutRefusedError(PutStatus.SERVICE_NOT_AVAILABLE, "the store cannot be written now")
    limit = topic_limit(topic)
    if (length := len(topic.encode())) > limit:
        raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, f"the topic has {length} bytes, the limit is {limit}")
    if body is None:
        raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, "there is no body")
    if state.is_os_page_cache_busy:
        raise PutRefusedError(PutStatus.OS_PAGE_CACHE_BUSY, "another put holds the log for long")


def check_inner_batch(properties: Mapping[str, str], sys_flag: int, config: TopicConfig | None) -> None:
    """Property and bit of an inner batch belong together, and to a topic with batch queues. Java: HookUtils.checkInnerBatch."""
    if "INNER_NUM" in properties and not sys_flag & INNER_BATCH:
        raise PutRefusedError(
            PutStatus.MESSAGE_ILLEGAL, "property INNER_NUM stands in a message that is no inner batch"
        )
    if sys_flag & INNER_BATCH and not has_batch_queues(config):
        raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, "an inner batch goes to a topic without batch queues")


def has_batch_queues(config: TopicConfig | None) -> bool:
    """Whether a topic's consume queues are batch queues. Java: QueueTypeUtils.isBatchCq."""
    return config is not None and config.attributes.get("queue.type") == "BatchCQ"
