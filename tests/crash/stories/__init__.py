"""One life of each operation, by name, and what the disk is told in it: `tests/crash/test_orders.py` compares. Begin with `life.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from tests.crash.stories import of_batches, of_duties, of_opening, of_puts, of_services, of_tables
from tests.crash.stories.life import WITH_UNITS

STORIES: Mapping[str, Callable[[Path], list[str]]] = MappingProxyType(
    {
        "putting under SYNC_FLUSH": of_puts.putting,
        "putting under ASYNC_FLUSH": partial(of_puts.putting, sync_flush=False),
        "putting through a service": of_services.putting_through_a_service,
        "putting to a group's log": of_services.putting_to_a_groups_log,
        "putting beside a sync of the log": of_services.putting_beside_a_sync,
        "putting beside a sync of the queues": of_services.putting_beside_a_queue_sync,
        "putting into a pool": of_services.putting_into_a_pool,
        "making the log's next file ahead": of_services.making_the_next_file_ahead,
        "closing a service": of_services.closing_a_service,
        "closing": of_opening.closing,
        "releasing": of_opening.releasing,
        "releasing after a minute": partial(of_opening.releasing, after_ms=60_000),
        "opening after a kill": of_opening.opening_after_a_kill,
        "opening after a start of the machine": of_opening.opening_after_a_start_of_the_machine,
        "opening after a kill amid the index": of_opening.opening_after_a_kill_amid_the_index,
        "opening after a failed sync": of_opening.opening_after_a_failed_sync,
        "opening with a bad record amid others": of_opening.repairing,
        "opening with a bad record amid others, with extension units": partial(of_opening.repairing, config=WITH_UNITS),
        "opening with a missing log file": of_opening.bridging,
        "opening after a kill amid a batch": of_batches.finishing,
        "opening with a torn row": of_batches.mending,
        "committing under SYNC_FLUSH": partial(of_batches.committing, sync_flush=True),
        "committing under ASYNC_FLUSH": of_batches.committing,
        "committing without a consumer offset": partial(of_batches.committing, mirrored=False),
        "committing a store's first batch": of_batches.committing_first,
        "committing in a store that was let go of": of_batches.committing_again,
        "the queues' turn": of_services.queue_turn,
        "delivering a delay level": of_duties.delivering,
        "going on with a delivery": partial(of_duties.delivering, was_killed=True),
        "delivering at a time": of_duties.timing,
        "delivering at a time, with a seal": of_duties.timing_alone,
        "checking transactions": of_duties.checking,
        "ending a transaction": of_duties.ending_a_transaction,
        "putting with extension units": of_puts.extending,
        "syncing extension units": of_puts.syncing_units,
        "binding a log": of_opening.binding,
        "expiring": of_batches.expiring,
        "sending back": of_duties.sending_back,
        "setting a group's offsets": of_tables.setting_group_offsets,
        "replacing a table": of_tables.replacing,
        "converting": of_tables.converting,
    }
)
