"""Epochs of a log: which holds where, and up to where two logs agree by theirs. Pure. Java: EpochFileCache.

Entries ascend in epoch and start; an entry ends where the next one begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from storage.format.epoch import EpochEntry

NO_END = 2**63 - 1
"""Where the last entry ends."""
NO_EPOCH = EpochEntry(-1, 0)


def epoch_at(entries: Sequence[EpochEntry], place: int) -> EpochEntry:
    """The epoch in which the byte at a place was, or will be, written; of a place before all of them the first; NO_EPOCH of none."""
    found = [entry for entry in entries if entry.start_offset <= place]
    return found[-1] if found else next(iter(entries), NO_EPOCH)


def epoch_end(entries: Sequence[EpochEntry], epoch: int) -> int:
    """Where an epoch ends."""
    return next((entry.start_offset for entry in entries if entry.epoch > epoch), NO_END)


def flaw_of(entries: Sequence[EpochEntry]) -> str | None:
    """What is wrong with entries that a peer names; None = nothing."""
    for entry, following in pairwise(entries):
        if following.epoch <= entry.epoch or following.start_offset < entry.start_offset:
            return f"epoch {following.epoch} from {following.start_offset} follows epoch {entry.epoch} from {entry.start_offset}"
    if entries and (entries[0].epoch < 0 or entries[0].start_offset < 0):
        return f"epoch {entries[0].epoch} from {entries[0].start_offset}"
    return None


def consistent_point(
    own: Sequence[EpochEntry], own_end: int, others: Sequence[EpochEntry], other_end: int
) -> int | None:
    """Up to where both logs are the same, by the newest epoch that both have with one start; None if there is none.

    Java: findConsistentPoint.
    """
    starts = {entry.epoch: entry.start_offset for entry in others}
    for entry in reversed(own):
        if starts.get(entry.epoch) == entry.start_offset:
            return min(min(epoch_end(own, entry.epoch), own_end), min(epoch_end(others, entry.epoch), other_end))
    return None


def with_entry(entries: Sequence[EpochEntry], entry: EpochEntry) -> tuple[EpochEntry, ...]:
    """With an epoch that begins behind all others, be it where an empty one does; unchanged where it does not: epochs ascend.

    An empty epoch stays: a slave of Java's that has heard of it alone finds no place in common without it.
    Departure: Java refuses one that begins where the last one does, so that the second of two masters elected at one offset has none.
    """
    if entries and (entry.epoch <= entries[-1].epoch or entry.start_offset < entries[-1].start_offset):
        return tuple(entries)
    return (*entries, entry)


def cut_at(entries: Sequence[EpochEntry], end: int) -> tuple[EpochEntry, ...]:
    """The entries of a log that was cut at a place, an epoch among them that begins there and has no byte here.

    Departure: Java forgets that one. Whoever is elected with nothing of the first epoch then has no place in common
    with the old master.
    Java: truncateSuffixByOffset.
    """
    return tuple(entry for entry in entries if entry.start_offset <= end)


def followed(own: Sequence[EpochEntry], end: int, masters: Sequence[EpochEntry]) -> tuple[EpochEntry, ...]:
    """The entries of a log that was cut where it agrees with a master's: its own as far as it has bytes of them, then the master's.

    An epoch of its own that begins at the cut and that the master does not have goes: it would claim the bytes that come now.
    """
    found = tuple(entry for entry in own if entry.start_offset < end)
    for entry in masters:
        if entry.start_offset <= end:
            found = with_entry(found, entry)
    return found
