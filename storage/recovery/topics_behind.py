"""Topic entries that are behind the log: a replica has messages of a topic, and its master had no time to send the entry.

    the master's log ──▶ log, queues           in milliseconds
    its topics.json  ──▶ topics.json           in seconds, and noted: "as of this end of the own log" (`storage/tables/masters.py`)

No topic without an entry is served, so a replica whose master is gone would hide messages that it has. `make_missing_topics` makes the
entry of the topic's queues:

    queues        as many as the topic's first row makes, and at least one more than the greatest queue id with a message behind the
                  noted end; an entry with fewer than that gets more
    permission    read and write, as a first message would make it
    all else      Java's defaults: no attributes, not ordered, no flags

A topic whose messages all lie before the noted end, and that has no entry, was deleted at the master: it stays so. Topics that each
broker has of itself need no entry. The master's next topics replace what was made here.

Departure: Java's slave answers TOPIC_NOT_EXIST. Java: SlaveSynchronize.
"""

from __future__ import annotations

import logging

from storage.errors import NameIllegalError
from storage.names import MULTI_DISPATCH_PREFIX, validate_topic
from storage.put.store_writer import StoreWriter
from storage.rules.response_codes import RequestRefusedError
from storage.rules.topics import RowWish
from storage.tables.topics import is_made_by_brokers

_LOG = logging.getLogger(__name__)


def unserved_queues(writer: StoreWriter) -> set[tuple[str, int]]:
    """The queues with messages that no entry of topics.json covers, those of deleted topics too. For any thread."""
    settings = writer.settings
    topics, names = settings.topics.topics, list(writer.ends.queue_ends)
    return {
        (topic, queue_id)
        for topic, queue_id in names
        if ((entry := topics.get(topic)) is None or queue_id >= entry.read_queue_count)
        and _has_entry_of_its_own(topic, settings.broker_name, settings.cluster)
    }


def _has_entry_of_its_own(topic: str, broker_name: str | None, cluster_name: str) -> bool:
    if topic.startswith(MULTI_DISPATCH_PREFIX) or is_made_by_brokers(topic, broker_name, cluster_name):
        return False
    try:
        validate_topic(topic)
    except NameIllegalError:
        return False
    return True


def make_missing_topics(writer: StoreWriter, since: int) -> tuple[str, ...]:
    """Make entries of topics.json for messages behind the log offset `since`; returns the topics. The caller has the store alone.

    Raises StateFileError, OSError.
    """
    wanted: dict[str, int] = {}
    for topic, queue_id in unserved_queues(writer):
        if _last_place(writer, topic, queue_id) >= since:
            wanted[topic] = max(wanted.get(topic, 0), queue_id + 1)
    for topic in wanted.keys() - writer.settings.topics.topics.keys():
        # A batch that began at the master is repeated here: its rows must go to the same queues.
        wanted[topic] = max(wanted[topic], _queues_of_a_first_row(writer, topic))
    if wanted:
        writer.topic_entries.ensure({}, grown=wanted)
        _LOG.warning(
            "%s: topics whose entries their master had no time to send have entries now, with so many queues: %s",
            writer.root,
            ", ".join(f"{topic} ({count})" for topic, count in sorted(wanted.items())),
        )
    return tuple(sorted(wanted))


def _queues_of_a_first_row(writer: StoreWriter, topic: str) -> int:
    """0 for a topic that rows cannot make."""
    try:
        return writer.settings.topic_rules.check(topic, RowWish()).config.write_queue_count
    except RequestRefusedError:
        return 0


def _last_place(writer: StoreWriter, topic: str, queue_id: int) -> int:
    """Log offset of the queue's last message; the log's end if that waits to be confirmed."""
    end = writer.ends.readable_ends.get((topic, queue_id), 0)
    queue = writer.queues.get(topic, queue_id)
    if queue is None or writer.ends.queue_ends.get((topic, queue_id), 0) > end:
        return writer.log_end
    return int(queue.entries(end - 1, end)[0]["commitlog_offset"])
