"""Commands that look at topics and their queues: topics, offset-by-time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from spark_mq.cli.places import AsJson, Everything, QueueNumber, RequiredTopic, Topic, refuse_unknown_topic
from spark_mq.cli.stores import ReadPath, open_place
from spark_mq.command_options import NO_CLUSTER, Conf, Connection
from spark_mq.options import parse_time
from spark_mq.terminal import end_with, first_of, print_json, print_table, refuse_nothing, say, time_in_words
from storage.epoch_times import current_time_ms
from storage.tables.topics import PERM_READ, PERM_WRITE

ByQueue = Annotated[bool, typer.Option("--queues", help="A line for each queue, with its offsets.")]


def topics(
    path: ReadPath = None,
    topic: Topic = None,
    by_queue: ByQueue = False,
    every_topic: Everything = False,
    conf: Conf = None,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """List topics.

    A row has the topic's brokers, its queues to read and to write, its permission, and how many messages the queues hold. --queues has
    a row for each queue, with its offsets. JSON has an object for each topic and broker, with its queues. RocketMQ's own topics are
    left out. Where a broker does not answer, the rows are those of the others, its error is on stderr, and the exit code is 1.
    """
    with open_place(path, conf, connection) as place:
        refuse_unknown_topic(place, topic)
        found = place.known_entries(topic)
        errors = list(place.troubles.values())
        refuse_nothing(found, errors)
        is_shown = every_topic or topic is not None
        listed = [entry for entry in found if is_shown or not place.is_system_topic(entry["topic"])]
    listed.sort(key=lambda entry: (entry["topic"], entry["broker_name"]))
    if as_json:
        print_json(listed)
    elif by_queue:
        of_queues = "topic", "broker", "queue", "min", "max", "count", "read", "write", "perm"
        print_table(of_queues, [row for entry in listed for row in _queue_rows(entry)])
    else:
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for entry in listed:
            by_topic.setdefault(entry["topic"], []).append(entry)
        columns = "topic", "brokers", "read", "write", "perm", "messages", "written"
        print_table(columns, [_topic_row(name, entries) for name, entries in by_topic.items()])
    hidden = len({entry["topic"] for entry in found}) - len({entry["topic"] for entry in listed})
    if hidden and not as_json:
        say(f"RocketMQ's own topics are left out: {hidden}. --all shows them")
    end_with(errors)


def _topic_row(topic: str, entries: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    """A topic over its brokers: queues and messages added up; `written` is how many messages it ever had."""
    queues = [queue for entry in entries for queue in entry["queues"]]
    brokers = sorted({entry["broker_name"] for entry in entries})
    perms = sorted({text for entry in entries if (text := _permission(entry["perm"])) is not None})
    return (
        topic,
        first_of(brokers),
        _added([entry["read_queue_nums"] for entry in entries]),
        _added([entry["write_queue_nums"] for entry in entries]),
        " ".join(perms) or None,
        sum(queue["count"] for queue in queues),
        sum(queue["max_offset"] for queue in queues),
    )


def _added(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _queue_rows(entry: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    settings = entry["read_queue_nums"], entry["write_queue_nums"], _permission(entry["perm"])
    queues = entry["queues"] or [dict.fromkeys(("queue_id", "min_offset", "max_offset", "count"))]
    return [(entry["topic"], entry["broker_name"], *queue.values(), *settings) for queue in queues]


def _permission(perm: int | None) -> str | None:
    if perm is None:
        return None
    return ("R" if perm & PERM_READ else "-") + ("W" if perm & PERM_WRITE else "-")


def offset_by_time(
    path: ReadPath = None,
    *,
    topic: RequiredTopic,
    moment: Annotated[
        str, typer.Option("--time", metavar="TIME", show_default=False, help="ms since 1970, ISO-8601, or -10m.")
    ],
    queue_id: QueueNumber = None,
    upper: Annotated[
        bool, typer.Option("--upper", help="The last offset not stored after TIME, not the first not before it.")
    ] = False,
    conf: Conf = None,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Find the offset of each queue at a time.

    It is that of the first message stored at or after the time, or the end of the queue if there is none.
    """
    now_ms = current_time_ms()
    time_ms = parse_time(moment, "--time").at(now_ms)
    with open_place(path, conf, connection) as place:
        refuse_unknown_topic(place, topic)
        lines = [
            (topic, found.queue.broker_name, found.queue.queue_id, found.queue_offset, found.store_time_ms)
            for found in place.offsets_by_time(topic, time_ms, upper=upper)
            if queue_id in (None, found.queue.queue_id)
        ]
    if as_json:
        names = "topic", "broker_name", "queue_id", "queue_offset", "store_timestamp"
        print_json([{**dict(zip(names, line, strict=True)), "timestamp": time_ms} for line in lines])
    else:
        rows = [(*line[:-1], time_in_words(line[-1], now_ms)) for line in lines]
        title = f"at {time_in_words(time_ms, now_ms)}"
        print_table(("topic", "broker", "queue", "offset", "stored"), rows, title=title)
