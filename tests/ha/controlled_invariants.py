"""What must hold of a controller and its brokers, beside what holds of any master and its slaves (`invariants.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from spark_mq.controller.state import Group
from storage.batch.ledger import TOPIC as LEDGER
from storage.format.record import Message, decode_record
from storage.format.replication import EpochEntry
from storage.ha.epochs import epoch_at, flaw_of, load_epochs
from storage.ha.replicas import UNPROVEN
from storage.pending import PutStatus
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE
from tests.ha.control import Control
from tests.ha.controlled_node import ControlledNode
from tests.ha.invariants import (
    ENTRY,
    Put,
    Watch,
    _nothing_behind,
    _require_bounded,
    compare_queues,
    entries_of,
    require,
)

CONTROLLED: Mapping[int, str] = MappingProxyType(
    {
        1: "a slave's log is a prefix of its master's, byte by byte, fillers too",
        2: "an acknowledgement lies within what this slave was sent, never goes back, and the slave has those bytes",
        3: "a put is acknowledged when all have it whom the controller calls in sync: synced under SYNC_FLUSH, else written",
        4: "a replica counts once, however many connections it has",
        5: "a put that timed out stands in the log once, and is readable as soon as it is confirmed, not before",
        6: "of a refused put nothing is stored",
        7: "a slave's queues are its master's as far as both are confirmed, and have no entry behind; all of the log in the end",
        8: "an acknowledged message keeps its queue offset and its place, and so does what any reader has seen",
        9: "queue offsets have no gaps and no repeats, on a new master too",
        10: "whoever is in the controller's set, and so may be elected, has all that was acknowledged",
        11: "epochs and their starts ascend; a node's epoch file says of each record whose epoch it is, after a crash too",
        12: "nothing is cut that was acknowledged, or that a master called confirmed",
        13: "behind the end of a log there is nothing: what was cut does not come back",
        14: "an epoch has one master; a deposed one acknowledges nothing that the next one lacks",
        15: "epochs of masters and of sets never fall, whatever is restarted",
        16: "the set that a put sees holds the controller's",
        17: "all have the master's log in the end",
        18: "what peers and controllers say raises nothing undeclared, and takes no more memory than a frame",
        19: "a put that has its copies does not wait for another one, and is never called late",
        20: "no consumer offset falls, and none counts a message that this node's log does not have",
        21: "whoever may be elected has all that readers see, and nothing of it is cut",
        22: "each row of a sink's batch is in the log once at most, and there when the batch was acknowledged",
    }
)


@dataclass
class ControlledWatch(Watch):
    """What was seen before."""

    control: Control | None = None
    group: Group | None = None
    """As the controller had it last."""
    masters: dict[int, str] = field(default_factory=dict)
    """Of each epoch the address of its master."""
    starts: dict[int, set[int]] = field(default_factory=dict)
    """Where the log ended with which a master of that epoch began."""
    puts: list[Put] = field(default_factory=list)
    offsets: dict[int, tuple[str, Mapping[tuple[str, str], Mapping[int, int]]]] = field(default_factory=dict)
    shown: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    """What readers have seen at a queue offset, anywhere."""
    lost_power: bool = False
    """Whether one has, under ASYNC_FLUSH: then acknowledgements promise nothing."""
    _looked: dict[Any, Any] = field(default_factory=dict)
    _epochs: dict[int, int] = field(default_factory=dict)

    def look_at(self, nodes: Sequence[ControlledNode], acknowledged: list[Put]) -> int:
        """After a step. Returns how many acknowledged puts are gone that nobody has promised."""
        forgiven = self._look_at_group(nodes, acknowledged)
        hosts = {node.host: node for node in nodes}
        for node in nodes:
            require(node.noted is None, 18, f"{node.host}: {node.noted!r}")
            disk = node.files, node.files.changes, node.held_end if node.service else -1, len(self.puts)
            is_new = self._looked.get(("disk", node.number)) != disk
            if is_new:
                self._looked["disk", node.number] = disk
                self._look_at_epochs(node)
                self._look_at_offsets(node)
            self._look_at_cuts(node)
            if node.running is None or node.service is None:
                continue
            self.checks += 1
            self._look_at_role(node)
            self._look_at_readers(node, nodes)
            self._look_at_shown(node)
            if is_new:
                _nothing_behind(node)
            if node.listener is not None:
                self._judge_connections(node.listener)
                self._judge_members(node, nodes)
            if node.session is not None and node.connection is not None:
                _require_bounded(node.session._incoming._held)
                master = hosts.get(node.connection.peer.host)
                if master is not None and node.session._has_started and master.epoch == node.epoch and master.is_master:
                    self._compare_once(node, master)
        return forgiven

    # The controller

    def _look_at_group(self, nodes: Sequence[ControlledNode], acknowledged: list[Put]) -> int:
        group = self.control.group if self.control is not None else None
        before = self.group
        if group is None or group is before:
            return 0
        if before is not None:
            text = f"{before.master_epoch}, {before.sync_state_set_epoch} becomes {group.master_epoch}, {group.sync_state_set_epoch}"
            rises = group.master_epoch >= before.master_epoch
            require(rises and group.sync_state_set_epoch >= before.sync_state_set_epoch, 15, text)
            same = (group.sync_state_set, group.master_id) == (before.sync_state_set, before.master_id)
            require(
                group.sync_state_set_epoch > before.sync_state_set_epoch or same or group.master_id is None, 15, text
            )
        self.group = group
        if group.master_address is not None:
            found = self.masters.setdefault(group.master_epoch, group.master_address)
            require(
                found == group.master_address, 14, f"epoch {group.master_epoch} has {found}, {group.master_address}"
            )
        lost = [put for put in acknowledged if any(not self.holds(node, put) for node in self.members(nodes))]
        if lost and self.lost_power:
            acknowledged[:] = [put for put in acknowledged if put not in lost]
            return len(lost)
        require(
            not lost, 10, f"{sorted(group.sync_state_set)} are in sync, and one lacks {[put.start for put in lost[:3]]}"
        )
        return 0

    def members(self, nodes: Sequence[ControlledNode]) -> list[ControlledNode]:
        """Whom the controller calls in sync."""
        group = self.group
        if group is None:
            return []
        hosts = {(group.address(each) or "").rpartition(":")[0] for each in group.sync_state_set}
        return [node for node in nodes if node.host in hosts]

    def holds(self, node: ControlledNode, put: Put) -> bool:
        """Whether a put is there, as durably as it is promised."""
        log = node.synced_log(put.end) if self.is_synced else node.log(put.end)
        return log[put.start : put.end] == put.data

    # Brokers

    def _look_at_role(self, node: ControlledNode) -> None:
        assert node.running is not None
        role = node.running.role
        epoch = role.term.epoch
        before = self._looked.get(("role", node.number))
        if before is not None and before[0] is node.broker:
            require(epoch >= before[1], 15, f"{node.host} was in epoch {before[1]}, and is in {epoch}")
        self._looked["role", node.number] = node.broker, epoch
        if not role.is_master:
            return
        elected = self.masters.get(epoch)
        require(
            elected is None or elected.startswith(f"{node.host}:"), 14, f"{node.host} is master of {elected}'s epoch"
        )
        group = self.group
        if group is not None and group.master_epoch == epoch and node.running.keeper is not None:
            assert node.service is not None
            seen = {*node.service.acks._frontier._others_in_set, f"id:{role.own_id}"}
            lacking = {f"id:{each}" for each in group.sync_state_set} - seen
            require(not lacking, 16, f"{node.host} of epoch {epoch} waits for {sorted(map(str, seen))}: {lacking} lack")

    def _look_at_shown(self, node: ControlledNode) -> None:
        """8, of all that readers see, acknowledged or not, on masters, deposed ones and slaves."""
        end = node.readable_end
        if self.lost_power or self._looked.get(("shown", node.number)) == (node.service, end):
            return
        self._looked["shown", node.number] = node.service, end
        log = node.log(end)
        for (topic, queue_id), entries in entries_of(node).items():
            for offset, (place, size) in enumerate(entries[["place", "size"]].tolist()):
                found = log[place : place + size]
                if place + size <= end and self.shown.setdefault((topic, queue_id, offset), found) != found:
                    require(False, 8, f"{topic} {queue_id} {offset} was another message before {node.host} showed it")

    def _look_at_readers(self, node: ControlledNode, nodes: Sequence[ControlledNode]) -> None:
        """21."""
        end, group = node.readable_end, self.group
        if (
            self.lost_power
            or group is None
            or self._looked.get(("readers", node.number)) == (id(node.service), end, id(group))
        ):
            return
        self._looked["readers", node.number] = id(node.service), end, id(group)
        for each in self.members(nodes):
            log = each.synced_log(end) if self.is_synced else each.log(end)
            require(
                log == node.log(end), 21, f"{node.host} shows its log up to {end}, and {each.host} lacks some of it"
            )

    def _judge_members(self, master: ControlledNode, nodes: Sequence[ControlledNode]) -> None:
        """2 and 4, of those that are in the master's term."""
        listener = master.listener
        if listener is None or not master.is_master:
            return
        snapshot = listener.replicas.snapshot()
        if self._looked.get(("replicas", master.number)) == (snapshot, id(master.service)):
            return
        self._looked["replicas", master.number] = snapshot, id(master.service)
        identities = [replica.identity for replica in snapshot]
        require(len(set(identities)) == len(identities), 4, f"{identities}")
        there = {connection.address for connection in listener._connections}
        followers = {node.running.role.own_id: node for node in nodes if node.running is not None}
        for replica in snapshot:
            require(replica.address in there, 4, f"{replica.identity} has left, and counts")
            node = followers.get(replica.broker_id or 0)
            is_own = node is not None and replica.address.startswith(f"{node.host}:")
            if node is None or not is_own or node.epoch != master.epoch or replica.acknowledged == UNPROVEN:
                continue
            if not self.lost_power:
                log = master.log(replica.acknowledged)
                whole = _whole(log)
                require(
                    node.log(len(log))[:whole] == log[:whole], 2, f"{replica} does not hold what it has acknowledged"
                )

    def _compare_once(self, slave: ControlledNode, master: ControlledNode) -> None:
        assert slave.session is not None
        shown = slave.readable_end, master.readable_end
        key = slave.held_end, master.held_end, slave.checked_end, *shown, slave.session.reported, id(slave.session)
        if self._looked.get(slave.number) == key:
            return
        self._looked[slave.number] = key
        end = slave.held_end
        require(end <= master.held_end, 1, f"{slave.host} ends at {end}, its master at {master.held_end}")
        require(slave.log(end) == master.log(end), 1, f"{slave.host} has other bytes before {end}")
        require(slave.session.reported <= end, 2, f"{slave.session.reported} is reported of {end}")
        compare_queues(slave, master)

    def begins(self, node: ControlledNode) -> None:
        """It has become something, just now."""
        if not node.is_master or node.running is None:
            return
        entries = load_epochs(node.files, str(node.root))
        epoch = node.epoch
        mine = [entry for entry in entries if entry.epoch == epoch]
        require(len(mine) == 1 and mine[0] == entries[-1], 11, f"{node.host} is master of epoch {epoch}: {entries}")
        self.starts.setdefault(epoch, set()).add(mine[0].start_offset)
        require(len(self.starts[epoch]) == 1 or self.lost_power, 11, f"epoch {epoch} begins at {self.starts[epoch]}")

    # Files

    def _look_at_epochs(self, node: ControlledNode) -> None:
        """11, of its disk, whether it runs or not."""
        entries = load_epochs(node.files, str(node.root))
        flaw = flaw_of(entries)
        require(flaw is None, 11, f"{node.host}: {flaw}")
        for entry in entries:
            known = self.starts.setdefault(entry.epoch, set())
            if not known and self.masters.get(entry.epoch, "").startswith(f"{node.host}:"):
                known.add(entry.start_offset)  # it has died in between
            require(entry.start_offset in known, 11, f"{node.host}: {entry}, and it began at {known}")
        log = node.log(1 << 40)
        for put in self.puts[-40:]:
            if log[put.start : put.end] == put.data:
                found = epoch_at(entries, put.start)
                text = (
                    f"{node.host} has {put.start} of epoch {put.epoch}, and calls it {found.epoch}'s: {_shown(entries)}"
                )
                require(found.epoch == put.epoch, 11, text)

    def _look_at_offsets(self, node: ControlledNode) -> None:
        content = _content(node, f"config/{OFFSETS_FILE}")
        if content is None or self.offsets.get(node.number, ("",))[0] == content:
            return
        found = ConsumerOffsets.load(content.decode()).offsets
        before = self.offsets.get(node.number, ("", {}))[1]
        self.offsets[node.number] = content, found  # type: ignore[assignment]
        if self.lost_power:
            return
        ends = queue_ends(node)
        for key, queues in found.items():
            for queue, offset in queues.items():
                there = ends[key[0], queue]
                require(offset <= there, 20, f"{node.host} {key} {queue}: {offset} is counted, {there} are there")
        for key, queues in before.items():
            for queue, offset in queues.items():
                now = found.get(key, {}).get(queue, -1)
                if key[0] == LEDGER:  # a sink's mark tells of what it has appended, be it not confirmed
                    offset = min(offset, ends[key[0], queue])
                require(now >= offset, 20, f"{node.host} {key} {queue}: {offset} becomes {now}")

    def _look_at_cuts(self, node: ControlledNode) -> None:
        cuts, node.cuts = node.cuts, []
        for cut in cuts:
            text = f"{node.host}, {cut.before} bytes, is cut at {cut.end}"
            require(cut.end >= cut.confirmed, 12, f"{text}, and {cut.confirmed} was confirmed")
            require(not cut.lost or self.lost_power, 12, f"{text}, and {cut.lost} were acknowledged")
            require(cut.end >= cut.shown or self.lost_power, 21, f"{text}, and readers saw it up to {cut.shown}")


def acknowledged_beyond(node: ControlledNode, end: int, acknowledged: Iterable[Put]) -> list[int]:
    """Where acknowledged puts begin that it has, and that go when it is cut there."""
    log = node.log(1 << 40)
    return [put.start for put in acknowledged if put.end > end and log[put.start : put.end] == put.data]


def _whole(log: bytes) -> int:
    """Behind the last whole record."""
    end = 0
    while (size := int.from_bytes(log[end : end + 4], "big")) and end + size <= len(log):
        end += size
    return end


def queue_ends(node: ControlledNode) -> Counter[tuple[str, int]]:
    """Of each queue how many messages its log has."""
    log, found, start = node.log(1 << 40), Counter[tuple[str, int]](), 0
    end = _whole(log)
    while start < end:
        size = int.from_bytes(log[start : start + 4], "big")
        message = decode_record(log[start : start + size])
        if isinstance(message, Message):
            found[message.topic, message.queue_id] = message.queue_offset + 1
        start += size
    return found


def _content(node: ControlledNode, name: str) -> bytes | None:
    """Of a file, as the page cache has it."""
    number = node.files.disk.number(f"{node.root}/{name}")
    found = None if number is None or number < 0 else node.files.disk.files.get(number)
    return None if found is None else bytes(found.content)


def _shown(entries: Sequence[EpochEntry]) -> str:
    return ", ".join(f"{entry.epoch}-{entry.start_offset}" for entry in entries)


def judge_late(put: Put) -> None:
    """5 and 19 of a put whose time is over, where its broker still runs."""
    service = put.node.service
    if service is None or service.is_closed:
        return
    queues = entries_of(put.node)
    for topic, queue_id, offset, place in put.places:
        entries = queues.get((topic, queue_id), np.empty(0, ENTRY))
        there = [int(found) for found in np.flatnonzero(entries["place"] == place)]
        wanted = [offset] if put.end <= service.dispatched_end else []
        require(there == wanted, 5, f"{topic} {queue_id}: {place} stands at {there}, not at {wanted}")


def judge_acknowledged(put: Put, watch: ControlledWatch, nodes: Sequence[ControlledNode]) -> bool:
    """3 and 14 of a put that is acknowledged now; whether it is lost, and nobody had promised it."""
    assert put.status is PutStatus.PUT_OK
    group = watch.group
    lacking = [node.host for node in watch.members(nodes) if not watch.holds(node, put)]
    if lacking and watch.lost_power:
        return True
    is_deposed = group is not None and group.master_epoch != put.epoch
    text = f"{put.start} to {put.end} of epoch {put.epoch}: {lacking} lack it, and are in sync"
    require(not lacking, 14 if is_deposed else 3, text)
    return False
