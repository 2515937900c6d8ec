"""A store that follows a master: the note that says so, and the master's state files that the store copies. These are topics, groups,
offsets of groups and delay levels, counts and place of the timer, and the groups' modes.

A master's answer is the content of its file.
Departures: topics and groups are replaced whole (Java deletes all, adds them one by one, and stops half-way at one with attributes:
apache/rocketmq#9403, #9547). A group's offset never decreases; Java takes the master's. A delay level's offset is the master's, as in
Java: messages that only a greater own offset covers may have been delivered into a log that was cut since.

How far delayed messages are delivered is kept here, too: `config/delayOffset.json` of the delay levels, `config/timercheck` of the
timer.

Java: SlaveSynchronize; ScheduleMessageService, DelayOffsetSerializeWrapper, TimerCheckpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from storage.errors import StateFileError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format import fastjson
from storage.format.delay import TimerCheckpoint, decode_timer_checkpoint, encode_timer_checkpoint
from storage.format.typed_json import DataVersion
from storage.tables.consumer_groups import ConsumerOffsets, SubscriptionGroupTable
from storage.tables.document import GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE, integer, number_of, parse_document, section
from storage.tables.topics import MAPPINGS, MAPPINGS_FILE, TopicQueueMappingTable, TopicTable

DELAYS_FILE = "delayOffset.json"
_OFFSETS = "offsetTable"


@dataclass(frozen=True, slots=True)
class DelayOffsets:
    """The offsets of all levels, also of those that broker.conf has no more. Every change gives a new table.

    A level's offset is the next one to deliver from its queue, level − 1 of SCHEDULE_TOPIC_XXXX. A broker writes the file every
    ten seconds and overwrites it from memory. For a level that the file does not name it delivers everything that is retained.
    """

    version: DataVersion = field(default_factory=DataVersion)
    offsets: Mapping[int, int] = field(default_factory=dict, hash=False)
    """Level → next offset."""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content; the other fields are a view of it."""

    @classmethod
    def load(cls, text: str, file: str | None = None) -> DelayOffsets:
        """The offsets that the file's text holds; StateFileError (naming `file`) if it holds none."""
        document = parse_document(text, file)
        offsets = {}
        for level, offset in (table := section(document, _OFFSETS, file)).items():
            if offset is not None:  # a missing offset, not offset 0
                offsets[number_of(level, f"{_OFFSETS}: a level", file)] = integer(table, level, 0, file)
        return cls(DataVersion.from_document(document, file), offsets, document)

    def to_text(self) -> str:
        """The text for the file."""
        return fastjson.to_text(self.document)

    def get(self, level: int) -> int | None:
        """The next offset of the level; None if the file does not name it."""
        return self.offsets.get(level)

    def with_offsets(self, offsets: Mapping[int, int], *, now_ms: int) -> DelayOffsets:
        """The table with the offsets of some levels set and its version raised; itself if nothing changes.

        Java raises the version at every 200th change only (delayOffsetUpdateVersionStep).
        """
        changed = {**self.offsets, **offsets}
        if changed == self.offsets:
            return self
        entries = {**(self.document.get(_OFFSETS) or {}), **{str(level): offsets[level] for level in sorted(offsets)}}
        version = self.version.raised(now_ms)
        document = {**self.document, "dataVersion": version.to_document(), _OFFSETS: entries}
        return DelayOffsets(version, changed, document)


TIMER_CHECKPOINT_FILE = "timercheck"
"""Name of the timer checkpoint of a master, under config/."""
_READ_TIME, _QUEUE_OFFSET = "readTimeMs", "queueOffset"


def timer_checkpoint_path(root: str) -> str:
    """Java: BrokerPathConfigHelper.getTimerCheckPath."""
    return f"{root}/config/timercheck"


def read_timer_checkpoint(file_system: FileSystem, root: str) -> TimerCheckpoint:
    """The checkpoint of a store; all zero if there is none, as Java reads it."""
    return decode_timer_checkpoint(file_system.read_file(timer_checkpoint_path(root)) or b"")


def write_timer_checkpoint(file_system: LocalFileSystem, root: str, checkpoint: TimerCheckpoint) -> None:
    """Overwrite the page in place and sync it; 56 bytes of one sector, as Java does."""
    path, page = timer_checkpoint_path(root), encode_timer_checkpoint(checkpoint)
    if not file_system.exists(path):
        file_system.replace(path, page)
        return
    file_system.write(path, 0, page)
    file_system.sync(path)


class FollowedTimer(NamedTuple):
    """How far a master's timer has delivered, as its follower last received it.

    ROOT/spark_mq/followed_timer.json: {"readTimeMs": …, "queueOffset": …}.

    A follower delivers nothing, so wheel and log of its own timer do not say what its master has delivered. A timer that runs here
    again rebuilds them from the queue, without what the master had delivered, and deletes the file. Departure: Java keeps both numbers
    in config/timercheck, and delivers all due messages again if wheel and log are missing. Java:
    SlaveSynchronize.syncTimerCheckPoint.
    """

    read_time_ms: int
    """Everything due before it was delivered,"""
    queue_offset: int
    """of the messages of the timer's queue before this one."""

    @classmethod
    def of_answer(cls, page: bytes) -> FollowedTimer:
        """From the answer to request 60."""
        checkpoint = decode_timer_checkpoint(page)
        return cls(checkpoint.last_read_time_ms, checkpoint.queue_offset)

    @classmethod
    def load(cls, text: str, file: str | None) -> FollowedTimer:
        """Raises StateFileError."""
        document = parse_document(text, file)
        return cls(*(integer(document, name, 0, file) for name in (_READ_TIME, _QUEUE_OFFSET)))

    def to_text(self) -> str:
        """The file's content."""
        return fastjson.to_text({_READ_TIME: self.read_time_ms, _QUEUE_OFFSET: self.queue_offset})

    def is_later(self, checkpoint: TimerCheckpoint) -> bool:
        """Whether no timer has run here since, according to this store's own checkpoint."""
        return self.read_time_ms > checkpoint.last_read_time_ms


def followed_timer_path(root: str) -> str:
    """Path of the file."""
    return f"{root}/spark_mq/followed_timer.json"


def read_followed_timer(file_system: FileSystem, root: str) -> FollowedTimer | None:
    """None if the store follows no master, or its own timer has run since. Raises StateFileError."""
    path = followed_timer_path(root)
    content = file_system.read_file(path)
    if content is None:
        return None
    try:
        return FollowedTimer.load(content.decode(), path)
    except UnicodeDecodeError as error:
        raise StateFileError(path, 1, 1, str(error)) from error


def forget_followed_timer(file_system: LocalFileSystem, root: str) -> None:
    """Delete the note: from now on the store's own timer counts. Durable on return. Raises OSError."""
    with suppress(FileNotFoundError):
        file_system.unlink(followed_timer_path(root))
        file_system.sync(f"{root}/spark_mq")


_FOLLOWER_NOTE = "spark_mq/follower.json"


def followed_master(file_system: FileSystem, root: str) -> str | None:
    """The master that the store at ROOT follows; None = it follows no master.

    The note is ROOT/spark_mq/follower.json: {"master": "host:port"}. While it exists, only the store's follower writes the store.
    No Java counterpart: there brokerRole of broker.conf decides.
    """
    content = file_system.read_file(f"{root}/{_FOLLOWER_NOTE}")
    if content is None:
        return None
    try:
        return str(json.loads(content)["master"])
    except (ValueError, KeyError, TypeError):
        return "an unknown master"


def note_followed_master(file_system: LocalFileSystem, root: str, master: str) -> None:
    """Durable on return. Raises OSError."""
    if followed_master(file_system, root) != master:
        file_system.replace(f"{root}/{_FOLLOWER_NOTE}", json.dumps({"master": master}).encode())


def forget_followed_master(file_system: LocalFileSystem, root: str) -> bool:
    """Delete the note, so that other writers may write the store; returns whether there was one. Raises OSError."""
    path = f"{root}/{_FOLLOWER_NOTE}"
    if not file_system.exists(path):
        return False
    file_system.unlink(path)
    file_system.sync(f"{root}/spark_mq")
    return True


_TOPICS_NOTE = "spark_mq/copied_topics.json"


def copied_topics_end(file_system: FileSystem, root: str) -> int | None:
    """The log offset before which all topics of the log have their entries, as far as the master had them; None = no note.

    The note is ROOT/spark_mq/copied_topics.json: {"logEnd": 4711}. A slave has it, until it becomes a master. A lost or an older note
    lets topics count as missing that the master has deleted since; no topic is lost.
    """
    content = file_system.read_file(f"{root}/{_TOPICS_NOTE}")
    try:
        return None if content is None else int(json.loads(content)["logEnd"])
    except (ValueError, KeyError, TypeError):
        return 0


def note_copied_topics(file_system: LocalFileSystem, root: str, end: int) -> None:
    """Durable on return. Raises OSError."""
    if copied_topics_end(file_system, root) != end:
        file_system.replace(f"{root}/{_TOPICS_NOTE}", json.dumps({"logEnd": end}).encode())


def forget_copied_topics(file_system: LocalFileSystem, root: str) -> None:
    """The store's topics are its own from now on. Raises OSError."""
    if file_system.exists(path := f"{root}/{_TOPICS_NOTE}"):
        file_system.unlink(path)


TIMER_METRICS_FILE = "timermetrics"
REQUEST_MODES_FILE = "messageRequestMode.json"
_MODES = "messageRequestModeMap"
_MASTERS_MAPPINGS = "topicQueueMappingDetailMap"
_SOURCE = "the master's answer"
Copy = Callable[[str, str | None], str | None]
"""New text of a file, from the master's answer and the file's present text; None = unchanged."""
Choice = Callable[[int, int], int]
"""Chooses between two offsets, the master's and the own."""


def copied_topics(answer: str, own: str | None) -> str | None:
    """New text of topics.json; None = unchanged. Raises StateFileError for an answer that is no table."""
    return _replaced(answer, own, TopicTable.load, ("topicConfigTable",))


def copied_mappings(answer: str, own: str | None) -> str | None:
    """New text of topicQueueMapping.json, from the answer that has the topics; None = unchanged, or there is no static topic.

    Departure: Java's slave does not take the mappings over. Raises StateFileError for an answer that is no table.
    """
    said = parse_document(answer, _SOURCE)
    mappings = section(said, _MASTERS_MAPPINGS, _SOURCE)
    if own is None and not mappings:
        return None
    version = section(said, "mappingDataVersion", _SOURCE)
    text = fastjson.to_text({"dataVersion": version, MAPPINGS: mappings})
    return _replaced(text, own, TopicQueueMappingTable.load, (MAPPINGS,))


def copied_groups(answer: str, own: str | None) -> str | None:
    """New text of subscriptionGroup.json; None = unchanged. Raises StateFileError."""
    return _replaced(answer, own, SubscriptionGroupTable.load, ("subscriptionGroupTable", "forbiddenTable"))


def _replaced(answer: str, own: str | None, load: Callable[[str, str], Any], keys: tuple[str, ...]) -> str | None:
    load(answer, _SOURCE)
    said = parse_document(answer, _SOURCE)
    known: Mapping[str, Any] = {} if own is None else parse_document(own, None)
    if own is not None and DataVersion.from_document(said) == DataVersion.from_document(known):
        return None
    taken = {key: section(said, key, _SOURCE) for key in keys}
    return fastjson.to_text({**known, "dataVersion": DataVersion.from_document(said).to_document(), **taken})


def copied_offsets(answer: str, own: str | None) -> str | None:
    """New text of consumerOffset.json, with the greater offset of each queue; None = unchanged. Raises StateFileError."""
    ConsumerOffsets.load(answer, _SOURCE)
    return _merged_text(answer, own, max)


def copied_delays(answer: str, own: str | None) -> str | None:
    """New text of delayOffset.json, with the master's offset of each level that it names; None = unchanged.

    Raises StateFileError.
    """
    DelayOffsets.load(answer, _SOURCE)
    return _merged_text(answer, own, lambda said, _: said)


def kept_delays(answer: str, own: str | None) -> str | None:
    """New text of delayOffset.json of a returning master, with the greater of its own and a slave's offset of each level.

    Raises StateFileError.
    """
    DelayOffsets.load(answer, _SOURCE)
    return _merged_text(answer, own, max)


def copied_timer_metrics(answer: str, own: str | None) -> str | None:
    """New text of timermetrics; None = unchanged. Raises StateFileError."""
    return _replaced(answer, own, parse_document, ("timingCount",))


def copied_timer(answer: str, own: str | None) -> str | None:
    """New text of followed_timer.json; None = unchanged, or the master's timer has not run. Raises StateFileError."""
    said = FollowedTimer.load(answer, _SOURCE)
    return None if said.read_time_ms <= 0 or answer == own else answer


def kept_timer(checkpoint: TimerCheckpoint, answer: str, own: str | None) -> str | None:
    """New text of followed_timer.json of a returning master with that checkpoint, if a slave's timer has delivered further.

    None = unchanged. Raises StateFileError.
    """
    said = FollowedTimer.load(answer, _SOURCE)
    known = -1 if own is None else FollowedTimer.load(own, None).read_time_ms
    return answer if said.is_later(checkpoint) and said.read_time_ms > known else None


def copied_request_modes(answer: str, own: str | None) -> str | None:
    """New text of messageRequestMode.json; None = unchanged. Raises StateFileError."""
    modes = section(parse_document(answer, _SOURCE), _MODES, _SOURCE)
    known = {} if own is None else section(parse_document(own, None), _MODES, None)
    return None if modes == known else fastjson.to_text({_MODES: modes})


def with_request_mode(own: str | None, topic: str, group: str, mode: str, shared_queues: int) -> str:
    """New text of messageRequestMode.json with a group's mode for a topic. Raises StateFileError. Java: MessageRequestModeManager."""
    modes = dict({} if own is None else section(parse_document(own, None), _MODES, None))
    entry = {"consumerGroup": group, "mode": mode, "popShareQueueNum": shared_queues, "topic": topic}
    modes[topic] = {**(modes.get(topic) or {}), group: entry}
    return fastjson.to_text({_MODES: modes})


def _merged_text(answer: str, own: str | None, choose: Choice) -> str | None:
    said = parse_document(answer, _SOURCE)
    known: Mapping[str, Any] = {} if own is None else parse_document(own, None)
    table = _merged(section(said, _OFFSETS, _SOURCE), section(known, _OFFSETS, None), choose)
    if own is not None and table == section(known, _OFFSETS, None):
        return None
    return fastjson.to_text({**known, "dataVersion": DataVersion.from_document(said).to_document(), _OFFSETS: table})


def _merged(said: Mapping[str, Any], known: Mapping[str, Any], choose: Choice) -> dict[str, Any]:
    """Merge two nested tables: of two numbers the chosen one; an entry that only one table has stays."""
    merged = dict(known)
    for key, value in said.items():
        present = known.get(key)
        if isinstance(value, dict):
            merged[key] = _merged(value, present if isinstance(present, dict) else {}, choose)
        elif isinstance(value, int) and not isinstance(value, bool):
            merged[key] = choose(value, present) if isinstance(present, int) else value
        elif value is not None:
            raise StateFileError(_SOURCE, 0, 0, f"{key:.40}: an offset is expected, found {value!r:.40}")
    return merged


def place_of_copy(root: str, name: str) -> str:
    """Path of the copy of the master's file of that name, in a store at ROOT."""
    return followed_timer_path(root) if name == TIMER_CHECKPOINT_FILE else f"{root}/config/{name}"


COPIES: Mapping[str, Copy] = {
    TOPICS_FILE: copied_topics,
    MAPPINGS_FILE: copied_mappings,
    GROUPS_FILE: copied_groups,
    OFFSETS_FILE: copied_offsets,
    DELAYS_FILE: copied_delays,
    TIMER_METRICS_FILE: copied_timer_metrics,
    TIMER_CHECKPOINT_FILE: copied_timer,
    REQUEST_MODES_FILE: copied_request_modes,
}
"""Copy function by the master's file name under config/."""
KEPT_BY_SLAVES: Mapping[str, Copy] = {OFFSETS_FILE: copied_offsets, DELAYS_FILE: kept_delays}
"""Copy functions for a returning master, which takes the files of a slave that stood in for it."""
