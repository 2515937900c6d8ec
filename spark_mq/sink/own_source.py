"""Refuse a streaming query that writes into a topic that it reads: each written row would come back to it, for ever.

PySpark does not name a query's sources to its sink. It names the query's checkpoint. Before a batch runs, the checkpoint holds the end
of the batch in each queue, with the place of the record before that end (`source/offsets.py`). A place in a store's log never holds
another record later. So the same record at that place means the same store, whether by path or by a broker and under any name, or a
copy of it. Therefore a query that reads a backup and writes into the original is refused, too, unless it sets `writeToSource`.

    driver   looks into the checkpoint, and for its newest records in the sink's store or cluster: the topics that must not be written
    task     refuses a row for one of them, before anything of its rows is staged or sent

Nothing is refused if the sink does not know the checkpoint (`foreachBatch`, `df.write`, a checkpoint that
`spark.sql.streaming.checkpointLocation` names), if it cannot read the checkpoint (it is no local directory) or the topic (access
control), and as long as the query has read no message. Spark's Kafka sink refuses nothing. Rows for a consumer group's retry topic
are exempt: the number of their tries is limited.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import fields

from spark_mq.client.settings import with_namespace
from spark_mq.conditions import OffsetJsonError, SparkMqError, WritesOwnSourceError
from spark_mq.options import ClusterOptions
from spark_mq.sink.options import RowOptions, local_checkpoint
from spark_mq.source.offsets import QueueId, QueueOffset, QueueOffsets, load_json
from spark_mq.source.options import SourceOptions
from spark_mq.source.selection import open_cluster
from storage.errors import DescribedError, StorageError
from storage.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

_LOOKS = 4
"""Number of newest records of each broker to look for: some may be gone already."""
_PLACE = {"path", "conf"} | {field.name.replace("_", "") for field in fields(ClusterOptions)} - {"namespace"}
"""Options that say where a sink writes, in lower case; the checkpoint names topics as brokers do."""

_OF_GROUPS = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
_Broker = tuple[int, str]
"""A broker of one of the query's sources, by the source's number: two sources may read stores whose brokers have one name."""

_seen: dict[tuple[str, str, str, _Broker], bool] = {}
"""By checkpoint, its query's id, the sink's place and a broker of the checkpoint: whether the broker is the sink's. Spark asks again
for each batch."""


def own_topics(given: Mapping[str, str], options: RowOptions) -> frozenset[str]:
    """The topics that the query reads where it writes, by the names that brokers know.

    `given` are the sink's options as Spark gives them, with the query's checkpoint. Where option `topic` is given, that one alone is
    looked for: raises WritesOwnSourceError where it is found.
    """
    by_name = {name.lower(): text for name, text in given.items()}
    checkpoint = by_name.get("checkpointlocation")
    directory = None if checkpoint is None else local_checkpoint(checkpoint)
    if directory is None or options.send_back or options.write_to_source:
        return frozenset()
    place = {name: text for name, text in by_name.items() if name in _PLACE}
    topic = options.topic and with_namespace(by_name.get("namespace", "").strip(), options.topic)
    by_broker: dict[_Broker, dict[QueueId, QueueOffset]] = {}
    for number, read in enumerate(_logged_offsets(directory)):
        for queue, position in read.items():
            if not queue.topic.startswith(_OF_GROUPS):
                by_broker.setdefault((number, queue.broker_name), {})[queue] = position
    found: set[str] = set()
    for broker, positions in by_broker.items():
        topics = {queue.topic for queue in positions} if topic is None else {topic}
        if topics & {queue.topic for queue in positions} and _is_the_sinks(place, directory, broker, positions):
            found |= topics
    if topic in found:
        raise WritesOwnSourceError(topic)
    return frozenset(found)


def _is_the_sinks(
    place: Mapping[str, str], directory: str, broker: _Broker, positions: Mapping[QueueId, QueueOffset]
) -> bool:
    """Whether the sink's store, or a broker of its cluster, is the one that the query's source reads under that name."""
    key = directory, _query_id(directory), place.get("path") or place.get("nameserver", ""), broker
    if key not in _seen:
        known = {queue: position for queue, position in positions.items() if position.before is not None}
        newest = heapq.nlargest(_LOOKS, known.items(), key=lambda item: item[1].before or (0, 0))
        with suppress(SparkMqError, StorageError, DescribedError, OSError):  # the write itself says what is wrong there
            if newest:
                _seen[key] = _holds_any(place, newest)
    return _seen.get(key, False)


def _holds_any(place: Mapping[str, str], records: Collection[tuple[QueueId, QueueOffset]]) -> bool:
    topics = sorted({queue.topic for queue, _ in records})
    cluster = open_cluster(SourceOptions.parse({**place, "subscribe": ",".join(topics)}, "streaming"))
    try:
        there = set(cluster.queues())
        wanted = [
            (QueueId(queue.topic, broker_name, queue.queue_id), position)
            for queue, position in records
            for broker_name in cluster.brokers
        ]
        wanted = [(queue, position) for queue, position in wanted if queue in there]
        return any(cluster.record_before(queue, position.next) == position.before for queue, position in wanted)
    finally:
        cluster.close()


def _query_id(directory: str) -> str:
    """As the checkpoint says it, which may be deleted and made anew; as it stands there. Spark: StreamMetadata."""
    try:
        with open(f"{directory}/metadata", encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def _logged_offsets(directory: str) -> list[QueueOffsets]:
    """Up to where the checkpoint's newest batch reads, for each source that is this package's. Spark: OffsetSeqLog."""
    log = f"{directory}/offsets"
    try:
        newest = max((int(name) for name in os.listdir(log) if name.isascii() and name.isdigit()), default=None)
        if newest is None:
            return []
        with open(f"{log}/{newest}", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return []
    found = []
    for line in lines:
        with suppress(OffsetJsonError):  # the version, Spark's own line, another source's offset
            found.append(QueueOffsets.from_json_dict(load_json(line, "offset")))
    return found
