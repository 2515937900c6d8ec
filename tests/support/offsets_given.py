"""Who gave the queue offsets of a group's log: offsets that were given twice, and who it was that messages are not served.

A leader gives each message the next offset of its queue. One whose queues lack entries of the log gives their offsets again. Then the
log has two messages of one offset, and a queue has room for one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tests.support.kill_hunts import Place


class Given(NamedTuple):
    """A message of the log, and who led when it got its offset."""

    place: Place
    commitlog_offset: int
    term: int
    giver: str

    @property
    def slot(self) -> tuple[int, int]:
        """Its queue and its offset."""
        return self.place.queue_id, self.place.queue_offset


class Jump(NamedTuple):
    """Messages of one leader that follow each other in a queue, and do not go on where the log's queue ended."""

    queue_id: int
    end: int
    """The offset that was next in the queue, by the log before them."""
    first: Given
    count: int
    """How many got an offset below `end`; 0 for a hole: their first offset is above it."""

    def __str__(self) -> str:
        what = f"{self.count} offsets again" if self.count else "a hole"
        return (
            f"queue {self.queue_id}: {what} from {self.first.place.queue_offset}, where {self.end} was next, "
            f"by {self.first.giver} in term {self.first.term}, at {self.first.commitlog_offset} of the log"
        )


def jumps(log: Iterable[Given]) -> list[Jump]:
    """In the order of the log, for each run of a leader in a queue: where it begins below or above the queue's end."""
    ends: dict[int, int] = defaultdict(int)
    last: dict[int, Given] = {}
    runs: dict[int, Jump] = {}
    found: list[Jump] = []
    for each in log:
        queue_id, offset = each.slot
        end, before, run = ends[queue_id], last.get(queue_id), runs.pop(queue_id, None)
        follows = before is not None and (before.term, before.place.queue_offset + 1) == (each.term, offset)
        if run is not None and follows and offset < end:
            runs[queue_id] = run._replace(count=run.count + 1)
        else:
            found += [] if run is None else [run]
            if offset != end:
                runs[queue_id] = Jump(queue_id, end, each, int(offset < end))
        ends[queue_id], last[queue_id] = max(end, offset + 1), each
    return sorted([*found, *runs.values()], key=lambda jump: jump.first.commitlog_offset)


def beginners(log: Iterable[Given]) -> dict[Place, str]:
    """For each message whose offset its queue had already: the leader that went back to such an offset.

    A queue ends there then, for our members. So another leader, which goes on from it, gives offsets again through no fault of its own.
    """
    ends: dict[int, int] = defaultdict(int)
    last: dict[int, int] = {}
    began: dict[int, str] = {}
    found: dict[Place, str] = {}
    for each in log:
        queue_id, offset = each.slot
        if offset >= ends[queue_id]:
            began.pop(queue_id, None)
        elif offset != last[queue_id] + 1 or queue_id not in began:
            began[queue_id] = each.giver
        if queue_id in began:
            found[each.place] = began[queue_id]
        ends[queue_id], last[queue_id] = max(ends[queue_id], offset + 1), offset
    return found


def unserved_by(
    unserved: Iterable[Place], log: Sequence[Given], whose: Callable[[str], str], leader: str
) -> Counter[str]:
    """For messages of the log that are not served at their offsets: how many of them for which reason, and whose member it was.

    Where the log has several messages of one offset, it is who gave it again, and who went back first; else it is the last leader: its
    queue lacks the message.
    """
    at: dict[tuple[int, int], list[Given]] = defaultdict(list)
    for each in log:
        at[each.slot].append(each)
    began = beginners(log)
    found: Counter[str] = Counter()
    for place in unserved:
        first, *later = at[place.queue_id, place.queue_offset]
        if later:
            again = later[0] if first.place == place else next(each for each in later if each.place == place)
            giver, beginner = whose(again.giver), whose(began[again.place])
            after = "" if beginner == giver else f", after {beginner}"
            found[f"offset given again by {giver}{after}"] += 1
        else:
            found[f"queue of {whose(leader)} lacks it"] += 1
    return found
