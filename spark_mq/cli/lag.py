"""The command lag: how far consumer groups are behind, by the offsets that the store keeps of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import typer

from spark_mq.cli.app import AsJson, CommandError, Conf, Everything, StorePath, app, open_cluster
from spark_mq.cli.output import console, duration_in_words, print_json, print_table, say, time_text
from spark_mq.source.cluster import Cluster
from spark_mq.stop_signals import interrupt_on_signal
from storage import MessageStore
from storage.epoch_times import current_time_ms
from storage.names import is_system_group
from storage.nearest_name import nearest
from storage.tables.consumer_offsets import FILE_NAME as OFFSETS_FILE
from storage.tables.consumer_offsets import ConsumerOffsets


@app.command()
def lag(
    path: StorePath,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="One consumer group; without it all.")
    ] = None,
    every_group: Everything = False,
    watch: Annotated[
        float | None,
        typer.Option("--watch", metavar="SECONDS", min=0.1, help="Look again every so many seconds, until Ctrl-C."),
    ] = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """How far consumer groups are behind in each queue: messages, bytes, and time (newest message − last consumed one).

    What cannot be known is a dash (null), never 0: no stored offset, or the message before it has expired. RocketMQ's own groups and
    topics, and what Spark sinks keep as groups, are left out.
    """
    cluster = open_cluster(path, conf)
    try:
        if watch is None:
            _print_lags(cluster, group, every_group=every_group, as_json=as_json)
            return
        with interrupt_on_signal(), suppress(KeyboardInterrupt):
            while True:
                if not as_json:
                    console().clear()  # does nothing but on a terminal
                    say(str(time_text(current_time_ms())))
                _print_lags(cluster, group, every_group=every_group, as_json=as_json)
                sys.stdout.flush()
                time.sleep(watch)
                cluster.refresh()
    finally:
        cluster.close()


def _print_lags(cluster: Cluster, group: str | None, *, every_group: bool, as_json: bool) -> None:
    offsets = {name: store.state(OFFSETS_FILE, ConsumerOffsets.load) for name, store in cluster.stores.items()}
    groups = {name for table in offsets.values() if table is not None for name in table.groups()}
    if group is not None and group not in groups:
        like = nearest(group, groups)
        raise CommandError(f"no offset of group {group} is stored", f"did you mean {like}?" if like else None)
    found = [
        line
        for name, table in offsets.items()
        if table is not None
        for line in group_lags(name, cluster.stores[name], table, group)
    ]
    lines = found
    if not every_group and group is None:
        lines = [
            line for line in found if not (is_system_group(line["group"]) or cluster.is_system_topic(line["topic"]))
        ]
    if as_json:
        print_json(lines)
        return
    columns = "group", "topic", "broker", "queue", "next", "end", "messages", "bytes", "time"
    print_table(columns, [(*list(line.values())[:-1], _time_behind(line["timeMs"])) for line in lines])
    hidden = 0 if group is not None else len(groups) - len({line["group"] for line in lines})
    if hidden:
        say(f"groups of RocketMQ itself and of Spark sinks are left out: {hidden}. --all shows them")


def _time_behind(time_ms: int | None) -> str | None:
    return None if time_ms is None else duration_in_words(time_ms)


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
