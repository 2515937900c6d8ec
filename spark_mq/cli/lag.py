"""The command lag: how far consumer groups are behind, by the offsets that the store keeps of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from spark_mq.cli.app import AsJson, CommandError, Conf, StorePath, app
from spark_mq.cli.output import print_json, print_table
from spark_mq.cluster import Cluster
from storage import MessageStore
from storage.consumer_offsets import FILE_NAME as OFFSETS_FILE
from storage.consumer_offsets import ConsumerOffsets
from storage.nearest_name import nearest


@app.command()
def lag(
    path: StorePath,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="One consumer group; without it all.")
    ] = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """How far consumer groups are behind in each queue: messages, bytes, and time (newest message − last consumed one).

    What cannot be known is a dash (null), never 0: no stored offset, or the message before it has expired.
    """
    cluster = Cluster.open([path], conf=conf)
    try:
        offsets = {name: store.state(OFFSETS_FILE, ConsumerOffsets.load) for name, store in cluster.stores.items()}
        groups = {name for table in offsets.values() if table is not None for name in table.groups()}
        if group is not None and group not in groups:
            like = nearest(group, groups)
            raise CommandError(f"no offset of group {group} is stored", f"did you mean {like}?" if like else None)
        lines = [
            line
            for name, table in offsets.items()
            if table is not None
            for line in group_lags(name, cluster.stores[name], table, group)
        ]
    finally:
        cluster.close()
    if as_json:
        print_json(lines)
    else:
        columns = "group", "topic", "broker", "queue", "next", "end", "messages", "bytes", "ms"
        print_table(columns, [tuple(line.values()) for line in lines])


def group_lags(
    broker_name: str, store: MessageStore, offsets: ConsumerOffsets, group: str | None = None
) -> Iterator[dict[str, Any]]:
    """A line for each group and each queue of its topics. A queue for which the group has no offset is unknown."""
    for name in offsets.groups() if group is None else [group]:
        for topic in offsets.topics_of(name):
            stored = offsets.offsets[topic, name]
            readable = set() if topic in store.queues.batch_topics else set(store.queue_ids(topic))
            for queue_id in sorted(readable | stored.keys()):
                end = store.max_offset(topic, queue_id) if queue_id in readable else None
                behind = _behind(store, topic, queue_id, stored.get(queue_id), end)
                yield {
                    "group": name,
                    "topic": topic,
                    "brokerName": broker_name,
                    "queueId": queue_id,
                    "nextOffset": stored.get(queue_id),
                    "maxOffset": end,
                    **dict(zip(("rows", "bytes", "timeMs"), behind, strict=True)),
                }


def _behind(
    store: MessageStore, topic: str, queue_id: int, next_offset: int | None, end: int | None
) -> tuple[int | None, int | None, int | None]:
    """Rows, bytes and ms from the next offset to the end. An offset behind the end is of another life of the topic."""
    if next_offset is None or end is None or next_offset > end:
        return None, None, None
    if next_offset == end:
        return 0, 0, 0
    held = max(next_offset, store.min_offset(topic, queue_id))
    rows, size = end - next_offset, store.size_between(topic, queue_id, held, end)
    newest, last_read = store.position(topic, queue_id, end - 1), store.position(topic, queue_id, next_offset - 1)
    time_ms = newest.store_time_ms - last_read.store_time_ms if newest and last_read else None
    return rows, size if held == next_offset else None, time_ms
