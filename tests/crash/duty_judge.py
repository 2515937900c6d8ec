"""What a store that was killed over and over must show: looked at after each kill, and in the end.

Expectations are those of the stories, by what the notes say was asked for and acknowledged; what is found is the log's records, the
same for a reader and after recovery.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.verify_store import verify_store
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import SCHEDULE_TOPIC
from storage.names import dead_letter_topic, retry_topic
from storage.rules.delays import TIMER_TOPIC
from storage.rules.half_messages import DISCARD_TOPIC, GROUP, HALF_TOPIC, OP_TOPIC
from storage.tables.document import OFFSETS_FILE
from storage.tables.masters import DELAYS_FILE, read_timer_checkpoint
from tests.crash.duty_records import Record, read_records
from tests.crash.duty_stories import DELAYS_MS, LATER, ORDERS, RETRIES, Fate, Notes, Stories, Story
from tests.support.served import served

_OWN_TOPICS = frozenset(
    (ORDERS, LATER, DISCARD_TOPIC, *RETRIES, *map(retry_topic, RETRIES), *map(dead_letter_topic, RETRIES))
)

Place = tuple[str, str, int]
"""Topic, name, reconsume times: what there may be once."""


class Judge:
    """Judges one store, which only goes forward."""

    def __init__(self, root: Path, notes: Path, seed: int) -> None:
        self._root = root
        self._notes_path = notes
        self._stories = Stories(seed)
        self._offsets: dict[str, int] = {}
        self.doubles: set[tuple[Place, int]] = set()
        """What was delivered more than once, with how often."""
        self.records: list[Record] = []
        """As they were last seen."""

    def look(self) -> list[str]:
        """What is wrong now, with whatever is still on its way."""
        notes = Notes(self._notes_path)
        self.records = read_records(self._root)
        return [
            *self._gone_back(),
            *self._twice(self.records),
            *self._undecided(notes, self.records),
            *self._early(self.records),
            *self._lost(notes, self.records),
        ]

    def unfinished(self) -> list[str]:
        """Stories of which something is still to come, by what was last seen."""
        notes, counts = Notes(self._notes_path), _counts(self.records)
        return [
            story.name
            for story in self._all_stories(notes)
            if any(not counts[place] for place in self._expected(story, notes))
        ]

    def final(self) -> list[str]:
        """What is wrong in the end, when nothing is on its way: a reader finds all of each story, once, and the files agree."""
        notes, counts = Notes(self._notes_path), _counts(self.records)
        expected = {place for story in self._all_stories(notes) for place in self._expected(story, notes)}
        found = [f"{place} is missing" for place in sorted(expected - counts.keys())]
        found += [f"{place} should not be there" for place in sorted(counts.keys() - expected)]
        open_store(self._root, read_only=False).close()
        found += [f"{place} cannot be read {count} times" for place, count in self._unreadable(counts)]
        return [*found, *(f"verify: {finding}" for finding in verify_store(str(self._root)).findings)]

    # What is expected

    def _all_stories(self, notes: Notes) -> Iterator[Story]:
        for name in notes.of("begun"):
            yield self._stories.named(name)
        for batch in notes.of("batch"):
            yield from self._stories.rows(int(batch))

    def _expected(self, story: Story, notes: Notes) -> list[Place]:
        """All that is to be seen of a story."""
        name, fate = story.name, story.fate
        if fate.is_transaction:
            given_up = [(DISCARD_TOPIC, name, 0)] if fate is Fate.GIVEN_UP else []
            return given_up + [(ORDERS, name, 0)] * fate.is_committed
        if fate is Fate.RECALLED:
            was_taken = notes.of("recall").get(name, {}).get("taken", False)
            return [] if was_taken else [(LATER, name, 0)]
        if fate is not Fate.FAILING:
            return [(LATER, name, 0)]
        tries = range(1, story.dies_after + 1)
        dead = dead_letter_topic(story.group), name, story.dies_after + 1  # consumerSendMsgBack counts this time too
        return [(story.topic, name, 0), *((retry_topic(story.group), name, times) for times in tries), dead]

    # What is found

    def _twice(self, records: Sequence[Record]) -> Iterator[str]:
        for place, count in _counts(records).items():
            if count > 1:
                self.doubles.add((place, count))
                yield f"{place} is there {count} times"

    def _undecided(self, notes: Notes, records: Sequence[Record]) -> Iterator[str]:
        halves = {record.commitlog_offset: record for record in records if record.topic == HALF_TOPIC}
        for record in records:
            if record.topic != ORDERS:
                continue
            if not self._stories.named(record.name).fate.is_committed:
                yield f"{record.name} is rolled back, and visible"
            if not notes.has("decided", record.name):
                yield f"{record.name} is visible, and nobody has decided it"
            half = halves.get(record.prepared_transaction_offset)
            if half is None or half.name != record.name:
                yield f"{record.name} is the commit of no half: it names {record.prepared_transaction_offset}"
            elif (half.properties["REAL_TOPIC"], int(half.properties["REAL_QID"])) != (record.topic, record.queue_id):
                yield f"{record.name} was committed to queue {record.queue_id}"

    def _early(self, records: Sequence[Record]) -> Iterator[str]:
        """Java: ScheduleMessageService delivers at store time + delay of the level, TimerMessageStore at the deliver time."""
        due: dict[tuple[str, int], int] = {}
        for record in records:
            key = record.name, record.reconsume_times
            if record.topic == SCHEDULE_TOPIC:
                due[key] = record.store_time_ms + DELAYS_MS[record.queue_id]
            elif record.topic == TIMER_TOPIC:
                due[key] = int(record.properties["TIMER_DELIVER_MS"])
            elif record.store_time_ms < due.get(key, 0):
                yield f"{record.name} came at {record.store_time_ms}, and was due at {due[key]}"

    def _lost(self, notes: Notes, records: Sequence[Record]) -> Iterator[str]:
        """What was acknowledged stands where it was said to stand."""
        places = {record.commitlog_offset: record.name for record in records}
        for name, sent in notes.of("sent").items():
            if places.get(sent["place"]) != name:
                yield f"{name} was acknowledged at {sent['place']}, and is not there"
        tried = {(record.name, record.reconsume_times) for record in records}
        for request in notes.of("failed"):
            name, _, times = request.partition("/")
            if (name, int(times) + 1) not in tried:
                yield f"{request} was sent back, and is not there"

    def _gone_back(self) -> Iterator[str]:
        for what, offset in self._progress().items():
            before = self._offsets.get(what, 0)
            if offset < before:
                yield f"{what} went from {before} back to {offset}"
            self._offsets[what] = offset

    def _progress(self) -> dict[str, int]:
        """All offsets that never go back. One that is no longer told is at 0."""
        consumed = self._table(OFFSETS_FILE)
        found = {
            f"{topic} offset": int(consumed.get(f"{topic}@{GROUP}", {}).get("0", 0)) for topic in (HALF_TOPIC, OP_TOPIC)
        }
        levels = self._table(DELAYS_FILE)
        found |= {f"offset of level {level}": levels.get(str(level), 0) for level in range(1, len(DELAYS_MS) + 1)}
        timer = read_timer_checkpoint(LocalFileSystem(), str(self._root))
        for name in ("last_read_time_ms", "queue_offset", "master_queue_offset", "log_position"):
            found[f"the timer's {name}"] = getattr(timer, name)
        return found

    def _table(self, name: str) -> Mapping[str, Any]:
        """Read as plain JSON, not by what is judged."""
        path = self._root / "config" / name
        if not path.exists():
            return {}
        found: Mapping[str, Any] = json.loads(path.read_text("utf-8"))["offsetTable"]
        return found

    def _unreadable(self, counts: Mapping[Place, int]) -> Iterator[tuple[Place, int]]:
        """What queues do not give as often as the log has it."""
        read: Counter[Place] = Counter()
        with open_store(self._root) as store:
            for topic in _OWN_TOPICS & set(store.topics()):
                read.update((topic, m.body.decode(), m.reconsume_times) for m in served(store, topic))
        return ((place, counts[place]) for place in counts if read[place] != counts[place])


def _counts(records: Iterable[Record]) -> Counter[Place]:
    """How often each message is there for consumers."""
    return Counter(
        (record.topic, record.name, record.reconsume_times) for record in records if record.topic in _OWN_TOPICS
    )
