"""The releases of RocketMQ, and what a broker of each reads and writes: one table.

A store does not say which release wrote it. So the user names the release: `rocketmqVersion` in broker.conf, or an option. A broker
ignores that line. No Java class has this table: a Java broker writes only what it can read.
A difference between releases is a field of `Release`; code asks the field and never compares versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

VERSION_SETTING = "rocketmqVersion"
"""Its name in broker.conf and as an option; Java has no such setting."""
SHORT_TOPIC_LIMIT = 127
"""The longest topic, in bytes, in a record with a one-byte length (magic V1)."""

_TEXT = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", re.ASCII)


class BrokerVersion(NamedTuple):
    """A release's number, such as 4.9.7. Compares as releases do."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))


OLDEST_VERSION = BrokerVersion(4, 9)


def parse_broker_version(text: str) -> BrokerVersion:
    """`4.9.7` or `5.3`. Raises ValueError with the rule for other texts, and for releases before 4.9, which are not tested."""
    matched = _TEXT.fullmatch(text.strip())
    if matched is None:
        raise ValueError(f"{text!r} is no release of RocketMQ; write it as 4.9.7 or 5.3")
    version = BrokerVersion(*(int(part or 0) for part in matched.groups()))
    if version < OLDEST_VERSION:
        raise ValueError(
            f"{version} is older than {OLDEST_VERSION.major}.{OLDEST_VERSION.minor}, the oldest release that was tried"
        )
    return version


TOPIC_AND_KEY = "topic+uniqueKey"
KEY_ALONE = "uniqueKey"
"""The two forms in which a deletion names its timer message (property TIMER_DEL_UNIQKEY)."""


@dataclass(frozen=True, slots=True)
class Release:
    """What a broker of one release reads and writes. The defaults are those of 4.9; `_CHANGES` has the later ones."""

    version: BrokerVersion = OLDEST_VERSION
    has_timer: bool = False
    """Delivers timer messages. An older broker never delivers them. Java: HookUtils.handleScheduleMessage."""
    reads_long_topics: bool = False
    """Reads records of topics of more than 127 bytes (magic V2). An older broker ends its log at the first one and cuts the rest.
    Java: MessageDecoder.MESSAGE_MAGIC_CODE_V2."""
    reads_op_lists: bool = False
    """Reads op messages that name several half messages. An older broker expects a single number, and checks ended transactions again.
    Java: TransactionalMessageServiceImpl.fillOpRemoveMap."""
    timer_deletion_keys: tuple[str, ...] = (TOPIC_AND_KEY,)
    """The forms of TIMER_DEL_UNIQKEY that it compares. One deletion is written for each. Java: TimerMessageStore.buildDeleteKey."""
    indexes_tags: bool = False
    """Has one more index item for each tagged message, `topic#T#tag`. Java: IndexService.buildIndex."""
    honours_priority: bool = False
    """Puts a message with `_SYS_MSG_PRIORITY_` into queue min(priority, queues - 1). An older broker ignores the property.
    Java: SendMessageProcessor.sendMessage."""
    longest_group: int = 255
    """Characters of a new consumer group: a broker asks when it makes the group's entry, and knows producers' groups by no entry.
    Java: TopicValidator.validateGroup; before 5.4 Validators.CHARACTER_MAX_LENGTH."""
    batch_appends_request_properties: bool = True
    """Whether each record of a batch ends with the properties of the request. If so, all have the UNIQ_KEY of the batch.
    Java: MessageExtEncoder.encode(MessageExtBatch)."""
    recovered_log_files: int | None = None
    """How many of the last log files a recovery reads at most; None = as many as the checkpoint demands.
    Java: commitLogRecoverMaxNum, CommitLog.recoverAbnormally."""
    checkpoint_has_queue_position: bool = False
    """Whether the checkpoint's sixth long (byte 40) is the position of the last record whose queue entry is on the disk.
    Java: StoreCheckpoint.logicsPhysicalOffset, ConsumeQueueStore.isMappedFileMatchedRecover."""

    knows_lite_topics: bool = False
    """Enters a message with `__LITE_TOPIC` into a queue of that topic, too. An older broker ignores the property.
    Java: SendMessageProcessor.sendMessage, MultiDispatchUtils."""
    commit_names_real_queue: bool = True
    """Whether a committed message of a transaction keeps REAL_TOPIC and REAL_QID of its half. Java: EndTransactionProcessor.
    endMessageTransaction, which cleared them after it had made the record's text."""
    parks_delayed_halves: bool = True
    """Whether a half message with a delay level is taken: it waits in the schedule topic, and is discarded when it is due. Brokers of
    all releases take it; clients drop the level, and from 5.5 on refuse the message.
    Java: DefaultMQProducerImpl.ensureNotDelayedForTransactional."""
    has_plain_acl: bool = True
    """Knows ACL 1.0 (`aclEnable`); a later broker ignores the setting. Java: the module acl."""

    def __str__(self) -> str:
        return str(self.version)

    def refusal_of_topic(self, topic: str) -> str | None:
        """Why this release must not find a record of this topic in its log; None if it may."""
        length = len(topic.encode())
        if length <= SHORT_TOPIC_LIMIT or self.reads_long_topics:
            return None
        return (
            f"topic {topic!r} has {length} bytes: a broker of RocketMQ {self} ({VERSION_SETTING}) reads at most {SHORT_TOPIC_LIMIT}, "
            "and would cut its log at this message; 5.1.0 is the first release that reads it"
        )

    def refusal_of_group(self, group: str) -> str | None:
        """Why a broker of this release makes no entry for a group, by its name's length; None if it does."""
        if len(group) <= self.longest_group:
            return None
        at_most = f"a broker of RocketMQ {self} ({VERSION_SETTING}) takes at most {self.longest_group}"
        return f"{group!r} has {len(group)} characters: {at_most}"


_CHANGES: tuple[tuple[BrokerVersion, Mapping[str, Any]], ...] = (
    (BrokerVersion(5, 0), {"has_timer": True}),
    (BrokerVersion(5, 1), {"reads_long_topics": True, "reads_op_lists": True}),
    (BrokerVersion(5, 3, 3), {"has_plain_acl": False}),
    (
        BrokerVersion(5, 4),
        {
            "commit_names_real_queue": False,
            "timer_deletion_keys": (KEY_ALONE,),
            "indexes_tags": True,
            "honours_priority": True,
            "longest_group": 120,
            "batch_appends_request_properties": False,
            "recovered_log_files": 10,
        },
    ),
    (
        BrokerVersion(5, 5),
        {"checkpoint_has_queue_position": True, "knows_lite_topics": True, "parks_delayed_halves": False},
    ),
)
"""What each release changed; all other values are those of the release before it."""


def release_of(version: BrokerVersion) -> Release:
    """The behaviour of this release: that of the newest one in the table that is not newer."""
    release = Release()
    for first, changes in _CHANGES:
        if version >= first:
            release = replace(release, **changes)
    return replace(release, version=version)


UNNAMED = replace(
    release_of(BrokerVersion(5, 3)),
    timer_deletion_keys=(TOPIC_AND_KEY, KEY_ALONE),
    knows_lite_topics=True,
    parks_delayed_halves=False,
)
"""Where the user names no release: what a 5.3.3 and a 5.5.0 broker both understand.

That is what 5.3 writes. A deletion of a timer message is written in both forms, because either broker ignores the other's. A message
for a lite topic is refused: its client is of 5.5 or later. A half message that would be discarded is refused.
"""
