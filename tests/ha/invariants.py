"""What must hold of masters, slaves and puts, whatever happens: looked at after each step, at promotions, and at the end of a life."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from storage.ha.listener import ReplicationListener
from storage.ha.replicas import UNPROVEN
from storage.ha.sessions import MasterSession
from storage.pending import PutStatus
from storage.service.put_service import PutService
from tests.ha.node import FILE_BYTES, Node, WaitsFor
from tests.support.replicas import holders

INVARIANTS: Mapping[int, str] = MappingProxyType(
    {
        1: "a slave's log is a prefix of its master's, byte by byte, fillers too",
        2: "an acknowledgement lies within what this slave was sent, never goes back, and the slave has those bytes",
        3: "a put is acknowledged when as many machines hold all of it as it needs: synced under SYNC_FLUSH, else written",
        4: "a replica counts once, however many connections it has; a stranger's word counts for nothing that it was not sent",
        5: "a put that timed out stands in the log once, is readable, and is on every slave in the end",
        6: "of a refused put nothing is stored",
        7: "a slave's queues are its master's, and have no entry behind the end of its log",
        8: "an acknowledged message keeps its queue offset and its place",
        9: "queue offsets have no gaps and no repeats, on a promoted slave too",
        10: "a promoted slave has all that was acknowledged",
        13: "behind the end of a log there is nothing: what was cut does not come back",
        14: "a deposed master acknowledges nothing",
        17: "a slave gets all of its master's log in the end, or is told why not",
        18: "what a peer sends raises nothing undeclared, and takes no more memory than a frame",
        19: "a put that has its copies does not wait for another one, and is never called late",
        22: "each row of a sink's batch is in the log once at most, and there when the batch was acknowledged",
    }
)
"""11, 12, 15, 16, 20 and 21 are of epochs, sets and copied tables: `controlled_invariants.py`.

docs/tables/replicas.md says which is looked at when.
"""

ENTRY = np.dtype([("place", ">i8"), ("size", ">i4"), ("tag", ">i8")])
MOST_HELD_BYTES = (4 << 20) + 64


class Broken(AssertionError):
    """An invariant does not hold."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"invariant {number}: {text}")
        self.number = number


def require(holds: bool, number: int, text: str) -> None:
    """Raises Broken."""
    if not holds:
        raise Broken(number, text)


def put_rows(
    service: PutService, rows: pa.RecordBatch, queues: int
) -> tuple[PutStatus, list[tuple[str, int, int, int]]]:
    """Put them; topic, queue, queue offset and place of each. None of a refused put, of which nothing is stored."""
    before = service.log_end
    receipt = service.put_batch(rows, queue_count=queues)
    if receipt.status is not PutStatus.PUT_OK:
        require(service.log_end == before, 6, f"{receipt.status.name}, and the log has grown")
        return receipt.status, []
    found = receipt.places.to_pylist()
    return receipt.status, [
        (row["topic"], row["queue_id"], row["queue_offset"], row["commitlog_offset"]) for row in found
    ]


@dataclass(eq=False)
class Put:
    """One put, or one commit of a sink's batch, and what became of it."""

    node: Node
    start: int
    data: bytes
    places: Sequence[tuple[str, int, int, int]]
    """Topic, queue, queue offset, place in the log."""
    waits_for: WaitsFor
    copies: int
    begun_ms: int
    deadline_ms: int
    is_of_deposed: bool = False
    status: PutStatus | None = None
    epoch: int = 0
    """Of the master that has put it, with a controller."""
    batch_id: int | None = None
    """Of a sink's."""

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    @property
    def waits_to(self) -> int:
        """Where copies must end: of a batch that is done already behind what has come since."""
        return self.end if self.waits_for.copies is None else self.waits_for.copies.end


@dataclass
class Watch:
    """What was seen before."""

    is_synced: bool
    acknowledged: dict[MasterSession, int] = field(default_factory=dict)
    seen_queues: dict[int, Hashable] = field(default_factory=dict)
    checks: int = 0

    def look(self, master: Node | None, nodes: Iterable[Node]) -> None:
        """After a step. `master` is who is master now and runs."""
        for node in nodes:
            if not node.is_up:
                continue
            self.checks += 1
            _nothing_behind(node)
            if node.listener is not None:
                self._judge_connections(node.listener)
            if node.session is not None:
                _require_bounded(node.session._incoming._held)
            if master is not None and node.follower is not None:
                self._compare(node, master)
        if master is not None and master.listener is not None:
            self._judge_replicas(master, master.listener, {node.host: node for node in nodes})

    def _judge_connections(self, listener: ReplicationListener) -> None:
        for connection in listener._connections:
            session = connection.session
            require(
                session.acknowledged <= session.sent, 2, f"{session.acknowledged} of {session.sent} is acknowledged"
            )
            require(session.acknowledged >= self.acknowledged.get(session, UNPROVEN), 2, "it goes back")
            self.acknowledged[session] = session.acknowledged
            _require_bounded(session._incoming._held)
            _require_bounded(sum(map(len, connection.unsent)) // 2)

    def _judge_replicas(self, master: Node, listener: ReplicationListener, nodes: Mapping[str, Node]) -> None:
        seen: set[str] = set()
        there = {connection.address for connection in listener._connections}
        for replica in listener.replicas.snapshot():
            host = replica.address.rpartition(":")[0]
            require(host not in seen, 4, f"{host} counts twice")
            seen.add(host)
            require(replica.address in there, 4, f"{host} has left, and counts")
            if host not in nodes:
                require(replica.acknowledged <= 3, 4, f"{replica} is nobody")
            elif self.is_synced or nodes[host].lost_power_ms is None:
                log = master.log(max(0, replica.acknowledged))
                held = nodes[host].log(len(log))
                fits = held == log or _same_records(held, log)  # half a record goes with the process
                require(fits, 2, f"{replica} does not hold what it has acknowledged")

    def _compare(self, slave: Node, master: Node) -> None:
        end = slave.held_end
        require(end <= master.held_end, 1, f"{slave.host} ends at {end}, its master at {master.held_end}")
        require(slave.log(end) == master.log(end), 1, f"{slave.host} has other bytes before {end}")
        if slave.session is not None:
            require(slave.session.reported <= end, 2, f"{slave.session.reported} is reported of {end}")
        state = (slave.readable_end, id(slave.service), id(master.service))
        if self.seen_queues.get(slave.number) != state:
            self.seen_queues[slave.number] = state
            compare_queues(slave, master)


def _same_records(held: bytes, log: bytes) -> bool:
    """Whether all whole records of the log are held."""
    end = 0
    while (size := int.from_bytes(log[end : end + 4], "big")) and end + size <= len(log):
        end += size
    return held[:end] == log[:end]


def _require_bounded(size_bytes: int) -> None:
    require(size_bytes <= MOST_HELD_BYTES, 18, f"{size_bytes} bytes are held")


def _nothing_behind(node: Node) -> None:
    end = node.held_end
    for start, content in node.log_files().items():
        behind = content[max(0, end - start) : FILE_BYTES]
        require(
            behind.count(0) == len(behind),
            13,
            f"{node.host} ends at {end}, and there are bytes behind, in file {start}",
        )


def entries_of(node: Node) -> dict[tuple[str, int], np.ndarray]:
    """Of each queue its entries, as far as they are written."""
    found = {}
    for queue, files in node.queues().items():
        content = b"".join(bytes(files[start]) for start in sorted(files))
        entries = np.frombuffer(content[: len(content) // 20 * 20], ENTRY)
        found[queue] = entries[: int(np.count_nonzero(entries["size"]))]
    return found


def shown_end(node: Node) -> int:
    """Behind the last message that stands in a queue of its disk."""
    return max(
        (int((each["place"] + each["size"]).max()) for each in entries_of(node).values() if len(each)), default=0
    )


def compare_queues(slave: Node, master: Node) -> None:
    """Invariant 7. Up to where both show their logs, they show the same; behind it neither has anything."""
    ours, theirs, end = _shown_entries(slave), _shown_entries(master), min(slave.readable_end, master.readable_end)
    none = np.empty(0, ENTRY)
    for queue in ours.keys() | theirs.keys():
        own, wanted = (_before(entries.get(queue, none), end) for entries in (ours, theirs))
        require(np.array_equal(own, wanted), 7, f"{slave.host} {queue} has {len(own)}, of {len(wanted)} before {end}")


def _shown_entries(node: Node) -> dict[tuple[str, int], np.ndarray]:
    found = entries_of(node)
    for queue, entries in found.items():
        shown = len(_before(entries, node.readable_end)) == len(entries)
        require(shown, 7, f"{node.host} {queue} has an entry behind {node.readable_end}")
    return found


def _before(entries: np.ndarray, end: int) -> np.ndarray:
    return entries[entries["place"] + entries["size"] <= end]


def judge_master(master: Node, acknowledged: Iterable[Put]) -> None:
    """Invariants 8, 9 and 10 of who has become master, or is it at the end; 8 as far as readers see its log."""
    log = master.log(master.held_end)
    queues = entries_of(master)
    for queue, entries in queues.items():
        for number, place in enumerate(entries["place"].tolist()):
            found = int.from_bytes(log[place + 20 : place + 28], "big")
            require(found == number, 9, f"{master.host} {queue}: entry {number} is of a record with offset {found}")
    for put in acknowledged:
        require(log[put.start : put.end] == put.data, 10, f"{master.host} ends at {len(log)}, and lacks {put.start}")
        for topic, queue_id, offset, place in put.places if put.end <= master.readable_end else ():
            entries = queues.get((topic, queue_id), np.empty(0, ENTRY))
            there = offset < len(entries) and int(entries["place"][offset]) == place
            require(there, 8, f"{topic} {queue_id} {offset} is not at {place}")


def judge_outcome(put: Put, status: PutStatus, nodes: Iterable[Node], *, is_synced: bool) -> None:
    """Invariants 3, 5, 14 and 19 of a put that is answered now."""
    if status is PutStatus.PUT_OK:
        held = 0
        for node in nodes:
            log = node.synced_log(put.end) if is_synced else node.log(put.end)
            lost = not is_synced and (node.lost_power_ms or -1) >= put.begun_ms
            held += log[put.start : put.end] == put.data or lost
        require(held >= put.copies, 3, f"{put.start} to {put.end}: {held} hold it, {put.copies} are needed")
        require(put.copies <= 1 or not put.is_of_deposed, 14, f"{put.start} to {put.end}")
        return
    listener = put.node.listener
    assert listener is not None
    require(
        holders(listener.replicas.snapshot(), put.waits_to) < put.copies - 1,
        19,
        f"{put.waits_to} has its copies, and is late",
    )
    queues = entries_of(put.node)
    for topic, queue_id, offset, place in put.places:
        entries = queues.get((topic, queue_id), np.empty(0, ENTRY))
        there = [int(found) for found in np.flatnonzero(entries["place"] == place)]
        require(there == [offset], 5, f"{topic} {queue_id}: {place} stands at {there}, not at {offset}")
