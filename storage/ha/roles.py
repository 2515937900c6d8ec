"""Who is master of a group, as a controller says, and what a broker becomes by it. Pure. Java: ReplicasManager."""

from __future__ import annotations

from typing import NamedTuple


class Term(NamedTuple):
    """What a controller has decided of a group. Terms never go back."""

    epoch: int
    """masterEpoch; 0 = nobody was elected yet."""
    master_id: int | None = None
    """None = nobody is master now."""
    master_address: str | None = None
    members: frozenset[int] = frozenset()
    """The SyncStateSet."""
    set_epoch: int = 0


class Role(NamedTuple):
    """What one broker is in a term."""

    own_id: int
    term: Term

    @property
    def is_master(self) -> bool:
        return self.term.master_id == self.own_id

    @property
    def registered_id(self) -> int:
        """As name servers know it."""
        return 0 if self.is_master else self.own_id


def next_role(own_id: int, present: Role | None, told: Term) -> Role | None:
    """What the broker becomes by what it was told; None = it stays what it is, fenced where it is nothing yet.

    A term without a master changes nothing: a master in it has lost the election already, and acknowledges to nobody that waits for all
    in sync. A slave whose master is at another address within the term follows it there; Java's hears of that from name servers.
    """
    if told.master_id is None or told.master_address is None:
        return None
    if present is not None and told.epoch <= present.term.epoch and not _has_moved(present, told):
        return None
    return Role(own_id, told)


def _has_moved(slave: Role, told: Term) -> bool:
    """Whether the master of a slave's term is at another address; a master knows where it is."""
    known = slave.term
    is_same = (told.epoch, told.master_id) == (known.epoch, known.master_id)
    return is_same and not slave.is_master and told.master_address != known.master_address
