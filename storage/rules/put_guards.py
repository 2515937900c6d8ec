"""Why a message may not be put, from any caller: the broker's state, the message itself, too few copies.

The guards run in Java's order, on the message as it will be stored except its delay; sizes are checked last
(`storage/rules/inner_messages.py`), after the broker has added its own properties. Each raises PutRefusedError with a put's status.

Java: HookUtils.checkBeforePutMessage, checkInnerBatch; CommitLog.asyncPutMessage, needHandleHA, handleHA.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage.errors import PutRefusedError
from storage.format.record import INNER_BATCH
from storage.pending import PutStatus
from storage.rules.inner_messages import topic_limit
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.rules.topics import has_batch_queues
from storage.settings.nouns import ReplicationConfig, StoreModeConfig
from storage.tables.topics import TopicConfig


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Whether the broker can accept anything now. Java: RunningFlags, BrokerRole, isOSPageCacheBusy."""

    is_shut_down: bool = False
    is_slave: bool = False
    """With `duplicationEnable` a slave does not count as one."""
    acts_as_master: bool = False
    """`enableSlaveActingMaster`: then a slave's requests are not refused before they are read."""
    is_writable: bool = True
    is_os_page_cache_busy: bool = False
    """One put has held the log's lock for longer than `osPageCacheBusyTimeOutMills`."""
    is_transient_store_pool_deficient: bool = False
    """The memory for puts that wait to be written is full."""

    @property
    def rejects_requests(self) -> bool:
        """Whether sends are refused unread. Java: SendMessageProcessor.rejectRequest."""
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
    """An inner batch must have both property and bit, and a topic with batch queues. Java: HookUtils.checkInnerBatch."""
    if "INNER_NUM" in properties and not sys_flag & INNER_BATCH:
        raise PutRefusedError(
            PutStatus.MESSAGE_ILLEGAL, "property INNER_NUM stands in a message that is no inner batch"
        )
    if sys_flag & INNER_BATCH and not has_batch_queues(config):
        raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, "an inner batch goes to a topic without batch queues")


LITE_TOPIC = "__LITE_TOPIC"


def check_lite_topic(topic: str, properties: Mapping[str, str]) -> None:
    """A message for a lite topic must also have an entry in a queue of that topic, and gets none here. Raises RequestRefusedError.

    A 5.5.0 broker makes the entry if enableLmq and enableMultiDispatch are true. An older one ignores the property
    (`Release.knows_lite_topics`).
    """
    if lite_topic := properties.get(LITE_TOPIC):
        raise RequestRefusedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, lite_topic_refusal(topic, lite_topic))


def lite_topic_refusal(topic: str, lite_topic: str) -> str:
    return f"lite topics are not supported: {lite_topic!r} of topic {topic!r}"


ALL_IN_SET = -1
"""Every replica of the SyncStateSet. Java: MixAll.ALL_ACK_IN_SYNC_STATE_SET."""
NO_COPIES = 0


def is_in_sync(acknowledged: int, end: int, max_gap_bytes: int) -> bool:
    """Whether a replica is near enough to the log's end to count. Java: DefaultHAService.inSyncReplicasNums.

    Departure: a replica that has not reported its end yet (a negative offset) does not count.
    """
    return acknowledged >= 0 and end - acknowledged < max_gap_bytes


def may_wait(mode: StoreModeConfig) -> bool:
    """Whether puts to such a broker wait for copies at all. Java: needHandleHA."""
    return mode.broker_role == "SYNC_MASTER" and not mode.duplication_enable


def copies_needed(mode: StoreModeConfig, replication: ReplicationConfig, *, in_sync: int, alive: int) -> int:
    """How many copies a put must have that waits for them: `NO_COPIES`, `ALL_IN_SET`, or a count.

    `in_sync` copies, including the master's, are near enough to the log's end or, with a controller, in the SyncStateSet; the name
    server knows `alive` brokers of the group. A message with WAIT=false waits for no copies; do not call this for it.
    Raises PutRefusedError (IN_SYNC_REPLICAS_NOT_ENOUGH): there are too few, and nothing may be stored.
    """
    if not may_wait(mode):
        return NO_COPIES
    if mode.enable_controller_mode:
        _refuse_fewer(in_sync, replication.min_in_sync_replicas, "minInSyncReplicas")
        needed = ALL_IN_SET if replication.all_ack_in_sync_state_set else replication.in_sync_replicas
    elif replication.enable_slave_acting_master:
        near = min(alive, in_sync)
        needed = replication.in_sync_replicas
        if replication.enable_auto_in_sync_replicas:
            needed = max(min(needed, near), replication.min_in_sync_replicas)
        _refuse_fewer(near, needed, "inSyncReplicas")
    else:
        needed = replication.in_sync_replicas
    return NO_COPIES if 0 <= needed <= 1 else needed


def copies_of_batch(mode: StoreModeConfig, replication: ReplicationConfig, requested: int | None) -> int:
    """How many copies a batch of many messages must have: its writer's number, else the settings' for a message.

    Java has no such batch.
    """
    if requested is None and may_wait(mode):
        if mode.enable_controller_mode and replication.all_ack_in_sync_state_set:
            return ALL_IN_SET
        requested = replication.in_sync_replicas
    return NO_COPIES if requested is None or 0 <= requested <= 1 else requested


def _refuse_fewer(present: int, needed: int, setting: str) -> None:
    if present < needed:
        raise PutRefusedError(
            PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, f"in-sync replicas not enough: {present}, {setting} is {needed}"
        )
