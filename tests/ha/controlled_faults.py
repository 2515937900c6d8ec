"""Faults planted into what a controller and its brokers decide: each of a sort that loses messages when a master is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from spark_mq.broker_server import controlled, controllers, state_copies
from spark_mq.controller import controller as answering
from spark_mq.controller import decisions, journal
from spark_mq.controller.state import Group
from spark_mq.remoting.controllers import AlterSyncStateSetRequest, SyncStateSet
from storage.dispatch.writer import Confirmed
from storage.format.replication import Dialect, EpochEntry, FrameEpoch
from storage.ha import epochs, follower
from storage.ha.epochs import EpochFile, FollowedEpochs
from storage.ha.replicas import SyncState
from storage.ha.sessions import MasterSession
from storage.rules.put_guards import ALL_IN_SET, NO_COPIES
from storage.service.put_group import ReplicaAcks
from storage.tables.document import OFFSETS_FILE
from tests.ha.faults import FAULTS as OPERATED_FAULTS
from tests.ha.faults import Fault, Sort
from tests.ha.lives import CONTROLLED

Planted = AbstractContextManager[Any]


def _epoch_after_data() -> Planted:
    """A follower's epochs are noted one frame late."""
    note = FollowedEpochs.note

    def late(epochs: FollowedEpochs, said: Any, end: int, confirmed: int) -> None:
        before, epochs.said_before = getattr(epochs, "said_before", None), (said, end)  # type: ignore[attr-defined]
        if before is not None:
            note(epochs, *before, confirmed)

    with_begin = patch.object(FollowedEpochs, "begin", lambda epochs, end: None)
    return _both(patch.object(FollowedEpochs, "note", late), with_begin)


def _both(*planted: Planted) -> Planted:
    stack = ExitStack()
    for each in planted:
        stack.enter_context(each)
    return stack


def _no_union() -> Planted:
    """Puts wait for the set that the controller has answered with, not for the one that it was asked for."""
    return patch.object(SyncState, "union", property(lambda state: state.members))


def _joined_at_once() -> Planted:
    """A replica is asked for as soon as it is there, and not waited for before."""

    def ready(state: SyncState, known: Any, end: int, now_ms: int) -> frozenset[int]:
        return frozenset(each for each in known if each not in state.members)

    return patch.object(SyncState, "_ready", ready)


def _refusal_is_believed() -> Planted:
    """Whatever the refusal is of, nothing has changed."""

    def refused(keeper: Any, error: Any) -> None:
        keeper._state.refused(0)
        keeper._apply()

    return patch.object(controllers.SyncKeeper, "_refused", refused)


def _own_set() -> Planted:
    """A master goes by the set that it wants, whatever the controller says."""
    look = SyncState.look

    def believing(state: SyncState, *seen: Any) -> frozenset[int] | None:
        wanted = look(state, *seen)
        if wanted is not None and wanted < state.members:
            state.members = wanted
        return wanted

    return patch.object(SyncState, "look", believing)


def _alone_is_enough() -> Planted:
    """As with inSyncReplicas=1."""
    needed = ReplicaAcks.needed
    return patch.object(
        ReplicaAcks, "needed", lambda acks, end: NO_COPIES if needed(acks, end) == ALL_IN_SET else ALL_IN_SET
    )


def _nothing_is_cut() -> Planted:
    return patch.object(FollowedEpochs, "agreed_end", lambda epochs, said, end: end)


def _starts_count_nothing() -> Planted:
    """Logs agree up to the end of the newest epoch that both have, wherever it begins."""

    def by_epochs(own: Any, own_end: int, others: Any, other_end: int) -> int | None:
        known = {entry.epoch for entry in others}
        return min(own_end, other_end) if any(entry.epoch in known for entry in own) else None

    return patch.object(epochs, "consistent_point", by_epochs)


def _cut_too_far() -> Planted:
    """Logs are cut where the newest common epoch begins; and nobody asks what was confirmed."""

    def at_start(own: Any, own_end: int, others: Any, other_end: int) -> int | None:
        known = {entry.epoch: entry.start_offset for entry in others}
        found = [entry.start_offset for entry in own if known.get(entry.epoch) == entry.start_offset]
        return found[-1] if found else None

    def unasked(broker: Any, agreed: int, confirmed: int) -> None:
        broker._cut_to = agreed
        broker._due.set()

    cut = patch.object(epochs, "consistent_point", at_start)
    return _both(cut, patch.object(controlled.ControlledBroker, "_diverged", unasked))


def _stale_bytes() -> Planted:
    """A truncation leaves what it has cut in the file."""
    return patch.object(follower, "cut_log", lambda files, log, end, why: log.close())


def _epoch_moves() -> Planted:
    """A master that is started again says that its epoch begins now."""
    add = EpochFile.add

    def moved(file: EpochFile, entries: Any, end: int) -> None:
        first = entries[0] if entries else None
        if first is not None and first.start_offset == end and file.last_epoch == first.epoch and len(entries) == 1:
            file._save((*file.entries[:-1], EpochEntry(first.epoch, end)))
            return
        add(file, entries, end)

    return patch.object(EpochFile, "add", moved)


def _deposed_goes_on() -> Planted:
    """A former master asks no controller whether it still is master, and waits for the replicas that are left."""

    def alone(keeper: Any, error: Any) -> None:
        keeper._state.holds(frozenset({keeper._role.own_id}), keeper._state.epoch + 1, 0)
        keeper._apply()

    return patch.object(controllers.SyncKeeper, "_refused", alone)


def _any_master() -> Planted:
    """A controller takes any change of the set, of a deposed master's too."""
    against = decisions._against_it

    def lenient(group: Any, asked: Any, wanted: Any, living: Any) -> Any:
        now = SyncStateSet(broker_ids=wanted.broker_ids, epoch=group.sync_state_set_epoch)
        own = AlterSyncStateSetRequest(
            broker_name=asked.broker_name, master_broker_id=group.master_id or 0, master_epoch=group.master_epoch
        )
        return against(group, own, now, living) if group.master_id in wanted.broker_ids else None

    return patch.object(decisions, "_against_it", lenient)


def _any_is_elected() -> Planted:
    """As with enableElectUncleanMaster, and of those in sync none first."""

    def unclean(group: Any, living: Any, designated: int | None, **_: Any) -> int | None:
        alive = [each for each in group.replicas if living.is_alive(group, each)]
        if designated is not None:
            return designated if designated in alive else None
        return group.master_id if group.master_id in alive else next(iter(alive), None)

    return patch.object(decisions, "choose", unclean)


def _unsynced_journal() -> Planted:
    """A controller answers before its decision is on the disk."""

    def unsynced(kept: journal.Journal, events: Any) -> None:
        kept._sequence += 1

    return patch.object(journal.Journal, "append", unsynced)


def _held_before_kept() -> Planted:
    """A controller's decision holds without being kept."""

    def hold(controller: answering.Controller, decided: Any, *, is_read: bool = False) -> None:
        for event in decided.events:
            controller.state.apply(event)

    return patch.object(answering.Controller, "hold", hold)


def _same_epoch() -> Planted:
    """An election does not raise the epoch."""
    return patch.object(Group, "with_master", lambda group, broker_id: replace(group, master_id=broker_id))


def _offsets_fall() -> Planted:
    copies = {**state_copies.COPIES, OFFSETS_FILE: lambda answer, own: None if answer == own else answer}
    return patch.dict(state_copies.StateCopies.__init__.__kwdefaults__, {"copies": copies})


def _shown_at_once() -> Planted:
    """Readers see all of the log."""
    return patch.object(Confirmed, "move", lambda confirmed, end: end)


def _candidate_shows_all() -> Planted:
    """Who has no role yet shows all that it finds."""
    opened = controlled.opened_store

    def unheld(configuration: Any, writes_as: Any, **more: Any) -> Any:
        if writes_as == "candidate":
            store = configuration.store
            replication = replace(store.replication, read_un_committed=True)
            configuration = replace(configuration, store=replace(store, replication=replication))
        return opened(configuration, writes_as, **more)

    return patch.object(controlled, "opened_store", unheld)


def _offsets_before_log() -> Planted:
    """As Java does it: offsets are stored when they come."""

    def settle(copies: state_copies.StateCopies) -> None:
        if copies._wants_to_hold:
            copies._wants_to_hold = False
            copies._guarded("what counts messages", copies._hold)
        held, copies._held = copies._held, None
        if held is not None:
            copies._settle(held)

    return patch.object(state_copies.StateCopies, "settle", settle)


def _lost_end_unheeded() -> Planted:
    """A master that lost power under ASYNC_FLUSH goes on in its epoch."""
    return patch.object(controlled, "lost_epoch", lambda files, root: None)


def _empty_epochs_forgotten() -> Planted:
    """An epoch without a byte here is forgotten."""

    def without(file: EpochFile, end: int) -> None:
        file._save(tuple(entry for entry in file.entries if entry.start_offset < end))

    return _both(
        patch.object(EpochFile, "cut", without), patch.object(FollowedEpochs, "begin", lambda epochs, end: None)
    )


def _session_of_any_epoch() -> Planted:
    """A master calls all of its log the bytes of its last epoch."""

    def last(session: MasterSession, extent: Any, place: int) -> Any:
        if session._dialect is Dialect.DEFAULT or not extent.epochs:
            return None
        return FrameEpoch(extent.epochs[-1].epoch, 0, extent.confirm_offset)

    return patch.object(MasterSession, "_epoch", last)


def _both_dialects(name: str, shows: tuple[int, ...], first: tuple[int, ...] = ()) -> Fault:
    return Fault(OPERATED_FAULTS[name].plant, shows, first)


# "a batch that is done is acknowledged" is only among those of the default dialect (`faults.py`): with allAckInSyncStateSet a batch is
# looked for when all in sync have what the log has, so what is found done has its copies. The wait behind it is for stores whose
# readers see everything at once.
CONTROLLED_FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "an epoch is noted behind its bytes": Fault(_epoch_after_data, (11, 1)),
        "a master calls all its bytes those of its last epoch": Fault(_session_of_any_epoch, (11, 17, 18)),
        "a set that is asked for is not waited for": Fault(_no_union, (16, 10, 3, 21)),
        "who joins is not waited for before": Fault(_joined_at_once, (16, 10, 3, 21)),
        "a refusal counts for all that was asked": Fault(_refusal_is_believed, (16, 10, 3, 21), (17, 34)),
        "a master goes by the set that it wants": Fault(_own_set, (16, 10, 3, 14, 21)),
        "a master alone is enough": Fault(_alone_is_enough, (3, 10, 14)),
        "a log that goes on is not cut": Fault(_nothing_is_cut, (1, 11, 17, 13)),
        "logs are compared without the starts of epochs": Fault(_starts_count_nothing, (1, 11, 17, 12), (11, 40)),
        "a log is cut too far": Fault(_cut_too_far, (12, 21)),
        "bytes that a truncation cuts stay": Fault(_stale_bytes, (13, 1, 17, 11)),
        "an epoch begins again": Fault(_epoch_moves, (11,)),
        "a deposed master goes on alone": Fault(_deposed_goes_on, (14, 16, 10, 3, 21)),
        "anybody changes the set": Fault(_any_master, (16, 10, 14, 3, 21), (32,)),
        "anybody is elected": Fault(_any_is_elected, (10, 21)),
        "a decision is not written": Fault(_unsynced_journal, (15, 14, 16, 10, 18)),
        "a decision is not kept": Fault(_held_before_kept, (15, 14, 16, 10, 18)),
        "an epoch has two masters": Fault(_same_epoch, (14, 15, 17)),
        "a copy takes the master's offsets": Fault(_offsets_fall, (20,), (30,)),
        "readers see what is not confirmed": Fault(_shown_at_once, (21, 7)),
        "who has no role yet shows all": Fault(_candidate_shows_all, (21,)),
        "a copy of offsets comes before the log": Fault(_offsets_before_log, (20,), (19,)),
        "a lost end is not heeded": Fault(_lost_end_unheeded, (1, 11, 13, 2), (46,)),
        "an epoch without a byte is forgotten": Fault(_empty_epochs_forgotten, (17, 11), (14, 48)),
        "any acknowledgement counts": _both_dialects("any acknowledgement counts", (2, 3, 10), (89,)),
        "acknowledged before it is written": _both_dialects("acknowledged before it is written", (1, 2, 3, 10)),
        "acknowledged before it is synced": _both_dialects("acknowledged before it is synced", (3, 10)),
        "a replica that has left counts": _both_dialects("a replica that has left counts", (3, 4, 10, 16, 17)),
    }
)
CONTROLLERS_DIALECT = Sort(CONTROLLED_FAULTS, CONTROLLED, 120, 600)
