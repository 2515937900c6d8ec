"""How many copies of a message there must be before its put is acknowledged. Java: CommitLog.asyncPutMessage, needHandleHA, handleHA.

A count includes the master's own copy, so 0 and 1 wait for nobody.
"""

from __future__ import annotations

from storage.errors import PutRefusedError
from storage.put_status import PutStatus
from storage.settings.nouns import ReplicationConfig, StoreModeConfig

ALL_IN_SET = -1
"""Every replica of the SyncStateSet. Java: MixAll.ALL_ACK_IN_SYNC_STATE_SET."""
NOBODY = 0


def is_in_sync(acknowledged: int, end: int, max_gap_bytes: int) -> bool:
    """Whether a replica is near enough to the log's end to count. Java: DefaultHAService.inSyncReplicasNums.

    Departure: one that has not said yet where it stands (a negative place) does not count.
    """
    return acknowledged >= 0 and end - acknowledged < max_gap_bytes


def may_wait(mode: StoreModeConfig) -> bool:
    """Whether puts of such a broker wait for copies at all. Java: needHandleHA."""
    return mode.broker_role == "SYNC_MASTER" and not mode.duplication_enable


def copies_needed(mode: StoreModeConfig, replication: ReplicationConfig, *, in_sync: int, alive: int) -> int:
    """How many copies a put must have that waits for them: `NOBODY`, `ALL_IN_SET`, or a count.

    `in_sync` copies are near enough to the log's end, the master's among them, or, with a controller, in the SyncStateSet; `alive`
    brokers of the group are known to the name server. A message with WAIT=false waits for nobody and is not asked about.
    Raises PutRefusedError (IN_SYNC_REPLICAS_NOT_ENOUGH): there are too few, and nothing is to be stored.
    """
    if not may_wait(mode):
        return NOBODY
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
    return NOBODY if 0 <= needed <= 1 else needed


def copies_of_batch(mode: StoreModeConfig, replication: ReplicationConfig, asked: int | None) -> int:
    """How many copies a batch of many messages must have: what its writer asks for, else what the settings say of a message.

    Java has no such batch.
    """
    if asked is None and may_wait(mode):
        if mode.enable_controller_mode and replication.all_ack_in_sync_state_set:
            return ALL_IN_SET
        asked = replication.in_sync_replicas
    return NOBODY if asked is None or 0 <= asked <= 1 else asked


def _refuse_fewer(present: int, needed: int, setting: str) -> None:
    if present < needed:
        raise PutRefusedError(
            PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, f"in-sync replicas not enough: {present}, {setting} is {needed}"
        )
