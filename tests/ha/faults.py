"""Faults planted into sessions, listener, follower and frontier: each of a sort that has lost somebody's messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import patch

from spark_mq.broker_server.batch_server import BatchServer
from storage.format.replication import Report
from storage.ha import listener as listening
from storage.ha import replicas as counting
from storage.ha.follower import FollowedLog
from storage.ha.listener import ReplicationListener
from storage.ha.replicas import Replica, Replicas
from storage.ha.sessions import Acknowledged, MasterSession, SessionEvent, StartRequested
from storage.log.dispatch import RawCheck
from storage.log.writer import CommitLogWriter
from storage.put.store_writer import StoreWriter
from storage.rules.put_guards import NO_COPIES
from storage.service import put_group
from storage.service.put_group import AckFrontier, CopiesWanted, ReplicaAcks
from tests.ha.lives import OPERATED, Kind, lived

MOST_SEEDS, STEPS = 120, 120


class Fault(NamedTuple):
    """What is planted, and which invariants may show it; 0 = an undeclared error."""

    plant: Callable[[], AbstractContextManager[Any]]
    shows: tuple[int, ...]
    first: tuple[int, ...] = ()
    """Seeds that are tried first, for what happens seldom."""


def _any_ack() -> AbstractContextManager[Any]:
    heed = MasterSession._handle

    def believing(session: MasterSession, value: Any) -> SessionEvent | None:
        if isinstance(value, Report) and session._has_started and value.max_offset > session.acknowledged:
            session.acknowledged = value.max_offset
            return Acknowledged(value.max_offset)
        return heed(session, value)

    return patch.object(MasterSession, "_handle", believing)


def _acks_go_back() -> AbstractContextManager[Any]:
    heed = MasterSession._handle

    def forgiving(session: MasterSession, value: Any) -> SessionEvent | None:
        if isinstance(value, Report) and session._has_started and 0 <= value.max_offset < session.acknowledged:
            session.acknowledged = value.max_offset
            return Acknowledged(value.max_offset)
        return heed(session, value)

    return patch.object(MasterSession, "_handle", forgiving)


def _connections_count() -> AbstractContextManager[Any]:
    return patch.object(
        listening._Connection,
        "replica",
        lambda connection: Replica(connection.address, None, connection.address, counting.UNPROVEN),
    )


def _where_it_asks(asked: int, *_: Any, **__: Any) -> int:
    return asked


def _no_judgement() -> AbstractContextManager[Any]:
    """As a Java master: it begins where it is asked to, beyond the end too."""
    return patch.object(listening, "where_to_start", _where_it_asks)


def _begun_where_it_asks() -> AbstractContextManager[Any]:
    """What a slave asks for counts as held before anybody has looked."""
    heed = ReplicationListener._handle

    def trusting(listener: ReplicationListener, connection: Any, event: SessionEvent) -> None:
        if isinstance(event, StartRequested):
            listener.replicas.acknowledged(connection.number, event.offset)
        heed(listener, connection, event)

    return patch.object(ReplicationListener, "_handle", trusting)


def _ack_before_write() -> AbstractContextManager[Any]:
    """The end of what came is reported one turn before it is written."""
    settle = FollowedLog.settle

    def early(log: FollowedLog, confirmed: int | None = None) -> int:
        ahead = getattr(log, "is_ahead", False)
        log.is_ahead = not ahead  # type: ignore[attr-defined]
        return settle(log, confirmed) if ahead else log.raw_end

    return patch.object(FollowedLog, "settle", early)


def _unsynced_acks() -> AbstractContextManager[Any]:
    """Under SYNC_FLUSH a slave acknowledges what is not synced."""
    return patch.object(StoreWriter, "enter_raw", _without_sync(StoreWriter.enter_raw))


def _without_sync(enter: Callable[..., None]) -> Callable[..., None]:
    def unsynced(writer: Any, found: Any) -> None:
        with patch.object(type(writer), "_sync_records", lambda _: None):
            enter(writer, found)

    return unsynced


def _stale_bytes() -> AbstractContextManager[Any]:
    """What is cut stays in the file."""

    def cut(writer: CommitLogWriter, end: int) -> None:
        """Nothing."""

    return patch.object(CommitLogWriter, "cut_raw", cut)


def _gone_counts() -> AbstractContextManager[Any]:
    def stay(replicas: Replicas, connection: int) -> None:
        """It counts on."""

    return patch.object(Replicas, "gone", stay)


def _frontier_off() -> AbstractContextManager[Any]:
    reached = AckFrontier.reached
    return patch.object(AckFrontier, "reached", lambda frontier, needed: reached(frontier, needed) + 1_000)


def _one_copy_fewer() -> AbstractContextManager[Any]:
    reached = AckFrontier.reached
    return patch.object(AckFrontier, "reached", lambda frontier, needed: reached(frontier, needed - 1))


def _head_of_line() -> AbstractContextManager[Any]:
    """The first that waits holds up all behind it, until it gives up."""

    def settled(frontier: AckFrontier) -> list[CopiesWanted]:
        done: list[CopiesWanted] = []
        for needed, waiting in frontier._waiting.items():
            reached = frontier.reached(needed)
            if len(waiting) > 1 and waiting[-1].end > reached:
                continue
            done += [put for put in waiting if put.end <= reached]
            frontier._waiting[needed] = [put for put in waiting if put.end > reached]
        return done

    return patch.object(AckFrontier, "_settled", settled)


def _refused_too_late() -> AbstractContextManager[Any]:
    """A put is stored before anybody asks whether there are replicas enough."""
    want = ReplicaAcks.want

    def nobody(acks: ReplicaAcks, end: int, needed: int) -> Any:
        return want(acks, end, needed) if acks.in_sync(end) >= needed else None

    return patch.object(ReplicaAcks, "want", nobody)


def _nobody_waits() -> AbstractContextManager[Any]:
    return patch.object(ReplicaAcks, "needed", lambda acks, end: NO_COPIES)


def _begins_further() -> AbstractContextManager[Any]:
    """A master goes on one record too far."""
    begin = MasterSession.begin

    def further(session: MasterSession, start: int) -> Acknowledged:
        found = begin(session, start)
        session.sent = start + 100 if start else start
        return found

    return patch.object(MasterSession, "begin", further)


def _wrong_bytes() -> AbstractContextManager[Any]:
    """A listener sends a record one bit of whose born time is another."""
    pieces = ReplicationListener._pieces

    def spoilt(listener: ReplicationListener, outgoing: Any) -> list[memoryview]:
        found = pieces(listener, outgoing)
        if len(found) == 2 and len(found[1]) > 60:
            changed = bytearray(found[1])
            changed[45] ^= 1  # of a born time: no sum reaches it
            found[1] = memoryview(bytes(changed))
        return found

    return patch.object(ReplicationListener, "_pieces", spoilt)


def _nothing_dispatched() -> AbstractContextManager[Any]:
    """A slave's records are in no queue."""
    whole = RawCheck.whole_records

    def bare(check: RawCheck, start: int, end: int) -> Any:
        return whole(check, start, end)._replace(batches=())

    return patch.object(RawCheck, "whole_records", bare)


def _late_though_done() -> AbstractContextManager[Any]:
    return patch.object(put_group.AckFrontier, "see", lambda frontier, acknowledged: [])


def _batch_done_is_done() -> AbstractContextManager[Any]:
    """A batch that an earlier try has appended is acknowledged at once."""
    commit = BatchServer._commit

    def early(server: BatchServer, *asked: Any) -> Any:
        outcome, wanted = commit(server, *asked)
        return outcome, None if outcome.already_done else wanted

    return patch.object(BatchServer, "_commit", early)


FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "any acknowledgement counts": Fault(_any_ack, (2, 3, 4)),
        "an acknowledgement may go back": Fault(_acks_go_back, (2,)),
        "connections count, not replicas": Fault(_connections_count, (3, 4)),
        "a slave begins where it asks": Fault(_no_judgement, (0, 2, 4, 17)),
        "what is asked for counts as held": Fault(_begun_where_it_asks, (2, 3, 4)),
        "acknowledged before it is written": Fault(_ack_before_write, (1, 2, 3)),
        "acknowledged before it is synced": Fault(_unsynced_acks, (3, 10)),
        "bytes that were cut stay": Fault(_stale_bytes, (13, 1)),
        "a replica that has left counts": Fault(_gone_counts, (3, 4, 19)),
        "the frontier is off": Fault(_frontier_off, (3, 19)),
        "a copy too few": Fault(_one_copy_fewer, (3,)),
        "one slow put holds up the others": Fault(_head_of_line, (19,)),
        "too few in sync are enough": Fault(_refused_too_late, (3,)),
        "a put waits for nobody": Fault(_nobody_waits, (3, 14)),
        "a master goes on too far": Fault(_begins_further, (17, 1, 2)),
        "other bytes than the log's": Fault(_wrong_bytes, (1, 2)),
        "a slave dispatches nothing": Fault(_nothing_dispatched, (7,)),
        "a batch that is done is acknowledged": Fault(_batch_done_is_done, (3,)),
        "nobody is told of acknowledgements": Fault(_late_though_done, (19,)),
    }
)


class Sort(NamedTuple):
    """Faults, and the lives in which they are looked for."""

    faults: Mapping[str, Fault]
    kind: Kind = OPERATED
    seeds: int = MOST_SEEDS
    steps: int = STEPS


def noticed(name: str, sort: Sort) -> str | None:
    """What shows the fault: a seed and an invariant; None = nothing does.

    Another failure counts nothing, and neither does a life that fails without the fault: it may be the simulation that is wrong.
    """
    fault = sort.faults[name]
    for seed in (*fault.first, *range(sort.seeds)):
        with fault.plant():
            found = lived([seed], sort.steps, kind=sort.kind)
        if found.failures and found.broken[0] in fault.shows and not lived([seed], sort.steps, kind=sort.kind).failures:
            number = found.broken[0]
            return f"seed {seed}, " + (f"invariant {number}" if number else "an error")
    return None


def plant_all(note: Callable[[str], None], sort: Sort) -> dict[str, str | None]:
    """Of each fault what shows it."""
    killed: dict[str, str | None] = {}
    for name in sort.faults:
        killed[name] = noticed(name, sort)
        note(f"{name}: {killed[name] or 'NOT NOTICED'}")
    return killed


DEFAULT_DIALECT = Sort(FAULTS)
