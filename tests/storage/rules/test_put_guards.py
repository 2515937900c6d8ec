"""The guards before a put: HookUtils.checkBeforePutMessage, checkInnerBatch; how many copies a put waits for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.errors import PutRefusedError
from storage.pending import PutStatus
from storage.rules.put_guards import (
    ALL_IN_SET,
    NO_COPIES,
    BrokerState,
    check_before_put,
    check_inner_batch,
    copies_needed,
)
from storage.settings.load import parse_config
from storage.tables.topics import TopicConfig

RETRY_255 = "%RETRY%" + "g" * 248


@pytest.mark.parametrize(
    ("state", "topic", "body", "status"),
    [
        (BrokerState(is_shut_down=True), "T", b"", PutStatus.SERVICE_NOT_AVAILABLE),
        (BrokerState(is_slave=True), "T", b"", PutStatus.SERVICE_NOT_AVAILABLE),
        (BrokerState(is_slave=True, acts_as_master=True), "T", b"", PutStatus.SERVICE_NOT_AVAILABLE),
        (BrokerState(is_writable=False), "T", b"", PutStatus.SERVICE_NOT_AVAILABLE),
        (BrokerState(), "t" * 127, b"", None),
        (BrokerState(), "t" * 128, b"", PutStatus.MESSAGE_ILLEGAL),
        (BrokerState(), "%DLQ%" + "g" * 123, b"", PutStatus.MESSAGE_ILLEGAL),
        (BrokerState(), "ü" * 64, b"", PutStatus.MESSAGE_ILLEGAL),  # bytes count, not characters
        (BrokerState(), RETRY_255, b"", None),
        (BrokerState(), f"{RETRY_255}g", b"", PutStatus.MESSAGE_ILLEGAL),
        (BrokerState(), "T", None, PutStatus.MESSAGE_ILLEGAL),
        (BrokerState(), "T", b"", None),
        (BrokerState(is_os_page_cache_busy=True), "T", b"", PutStatus.OS_PAGE_CACHE_BUSY),
        # The first guard that refuses has the say.
        (BrokerState(is_writable=False, is_os_page_cache_busy=True), "T", None, PutStatus.SERVICE_NOT_AVAILABLE),
        (BrokerState(is_os_page_cache_busy=True), "T", None, PutStatus.MESSAGE_ILLEGAL),
    ],
)
def test_a_put_is_refused_by_the_state_and_by_topic_and_body(
    state: BrokerState, topic: str, body: bytes | None, status: PutStatus | None
) -> None:
    """HookUtils.checkBeforePutMessage."""
    assert status_of(lambda: check_before_put(topic, body, state)) == status


@pytest.mark.parametrize(
    ("state", "rejects"),
    [
        (BrokerState(), False),
        (BrokerState(is_slave=True), True),
        (BrokerState(is_slave=True, acts_as_master=True), False),
        (BrokerState(is_os_page_cache_busy=True), True),
        (BrokerState(is_transient_store_pool_deficient=True), True),
        (BrokerState(is_writable=False), False),
        (BrokerState(is_shut_down=True), False),
    ],
)
def test_a_slave_and_a_busy_broker_turn_requests_away(state: BrokerState, rejects: bool) -> None:
    """SendMessageProcessor.rejectRequest."""
    assert state.rejects_requests == rejects


BATCH_QUEUES = TopicConfig("T", attributes={"queue.type": "BatchCQ"})


@pytest.mark.parametrize(
    ("properties", "sys_flag", "topic", "is_legal"),
    [
        ({}, 0, TopicConfig("T"), True),
        ({"INNER_NUM": "2"}, 0, BATCH_QUEUES, False),
        ({"INNER_NUM": "2"}, 0x80, BATCH_QUEUES, True),
        ({}, 0x80, TopicConfig("T"), False),
        ({}, 0x80, None, False),
    ],
)
def test_an_inner_batch_is_one_by_property_flag_and_topic(
    properties: dict[str, str], sys_flag: int, topic: TopicConfig | None, is_legal: bool
) -> None:
    """HookUtils.checkInnerBatch."""
    status = status_of(lambda: check_inner_batch(properties, sys_flag, topic))
    assert status == (None if is_legal else PutStatus.MESSAGE_ILLEGAL)


def status_of(guard: Callable[[], None]) -> PutStatus | None:
    try:
        guard()
    except PutRefusedError as refused:
        return refused.status
    return None


def needed(text: str, in_sync: int = 1, alive: int = 1) -> int:
    config = parse_config(text.encode())
    return copies_needed(config.mode, config.replication, in_sync=in_sync, alive=alive)


@pytest.mark.parametrize(
    "settings",
    [
        "inSyncReplicas=2",  # ASYNC_MASTER
        "brokerRole=SYNC_MASTER",
        "brokerRole=SYNC_MASTER\ninSyncReplicas=0",
        "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nduplicationEnable=true",
        "brokerRole=SLAVE\ninSyncReplicas=2",
    ],
)
def test_nobody_is_waited_for(settings: str) -> None:
    assert needed(settings) == NO_COPIES


def test_without_an_acting_master_a_put_waits_however_few_replicas_there_are() -> None:
    assert needed("brokerRole=SYNC_MASTER\ninSyncReplicas=3\nminInSyncReplicas=2", in_sync=1) == 3


ACTING = "brokerRole=SYNC_MASTER\nenableSlaveActingMaster=true\ntotalReplicas=3\n"


@pytest.mark.parametrize(
    ("settings", "in_sync", "alive", "expected"),
    [
        ("inSyncReplicas=2", 2, 3, 2),
        ("inSyncReplicas=2", 3, 2, 2),
        ("inSyncReplicas=3\nenableAutoInSyncReplicas=true", 2, 3, 2),
        ("inSyncReplicas=3\nminInSyncReplicas=2\nenableAutoInSyncReplicas=true", 3, 3, 3),
        ("inSyncReplicas=2\nenableAutoInSyncReplicas=true", 1, 1, NO_COPIES),
    ],
)
def test_with_an_acting_master_it_waits_for_those_that_are_near(
    settings: str, in_sync: int, alive: int, expected: int
) -> None:
    assert needed(ACTING + settings, in_sync, alive) == expected


@pytest.mark.parametrize(
    ("settings", "in_sync", "alive"),
    [
        ("inSyncReplicas=2", 1, 3),
        ("inSyncReplicas=2", 3, 1),
        ("inSyncReplicas=2\nminInSyncReplicas=2\nenableAutoInSyncReplicas=true", 1, 3),
    ],
)
def test_with_an_acting_master_too_few_are_refused(settings: str, in_sync: int, alive: int) -> None:
    with pytest.raises(PutRefusedError) as refused:
        needed(ACTING + settings, in_sync, alive)
    assert refused.value.status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH


CONTROLLED = "brokerRole=SYNC_MASTER\nenableControllerMode=true\n"


def test_with_a_controller_the_set_decides() -> None:
    assert needed(CONTROLLED + "inSyncReplicas=2", in_sync=1) == 2
    assert needed(CONTROLLED + "allAckInSyncStateSet=true", in_sync=1) == ALL_IN_SET
    with pytest.raises(PutRefusedError, match="minInSyncReplicas is 2"):
        needed(CONTROLLED + "minInSyncReplicas=2\nallAckInSyncStateSet=true", in_sync=1)
