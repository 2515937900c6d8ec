"""A store that follows a master: the note that says so, and the master's state files that the store copies. These are topics, groups,
offsets of groups and delay levels, counts and place of the timer, and the groups' modes.

A master's answer is the content of its file.
Departures: topics and groups are replaced whole (Java deletes all, adds them one by one, and stops half-way at one with attributes:
apache/rocketmq#9403, #9547). A group's offset never decreases; Java takes the master's. A delay level's offset is the master's, as in
Java: messages that only a greater own offset covers may have been delivered into a log that was cut since. Java: SlaveSynchronize.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from storage.errors import StateFileError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format import fastjson
from storage.format.delay import TimerCheckpoint
from storage.tables.consumer_groups import GROUPS_FILE, OFFSETS_FILE, ConsumerOffsets, SubscriptionGroupTable
from storage.tables.delay_progress import (
    DELAYS_FILE,
    TIMER_CHECKPOINT_FILE,
    DelayOffsets,
    FollowedTimer,
    followed_timer_path,
)
from storage.tables.document import DataVersion, parse_document, section
from storage.tables.topics import MAPPINGS, MAPPINGS_FILE, TOPICS_FILE, TopicQueueMappingTable, TopicTable

_NAME = "spark_mq/follower.json"


def followed_master(file_system: FileSystem, root: str) -> str | None:
    """The master that the store at ROOT follows; None = it follows no master.

    The note is ROOT/spark_mq/follower.json: {"master": "host:port"}. While it exists, only the store's follower writes the store.
    No Java counterpart: there brokerRole of broker.conf decides.
    """
    content = file_system.read_file(f"{root}/{_NAME}")
    if content is None:
        return None
    try:
        return str(json.loads(content)["master"])
    except (ValueError, KeyError, TypeError):
        return "an unknown master"


def note_followed_master(file_system: LocalFileSystem, root: str, master: str) -> None:
    """Durable on return. Raises OSError."""
    if followed_master(file_system, root) != master:
        file_system.replace(f"{root}/{_NAME}", json.dumps({"master": master}).encode())


def forget_followed_master(file_system: LocalFileSystem, root: str) -> bool:
    """Delete the note, so that other writers may write the store; returns whether there was one. Raises OSError."""
    path = f"{root}/{_NAME}"
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
_TABLE = "offsetTable"
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
    table = _merged(section(said, _TABLE, _SOURCE), section(known, _TABLE, None), choose)
    if own is not None and table == section(known, _TABLE, None):
        return None
    return fastjson.to_text({**known, "dataVersion": DataVersion.from_document(said).to_document(), _TABLE: table})


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
