"""How many copies a put needs: the cases of CommitLog.asyncPutMessage and calcNeedAckNums of 5.3.3."""

from __future__ import annotations

import pytest

from storage.errors import PutRefusedError
from storage.put_status import PutStatus
from storage.rules.put_guards import ALL_IN_SET, NOBODY, copies_needed
from storage.settings.load import parse_config


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
    assert needed(settings) == NOBODY


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
        ("inSyncReplicas=2\nenableAutoInSyncReplicas=true", 1, 1, NOBODY),
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
