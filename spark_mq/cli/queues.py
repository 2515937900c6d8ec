"""Commands about queues and their offsets: topics, offset-by-time."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_mq.cli.app import AsJson, Conf, Everything, QueueNumber, RequiredTopic, app
from spark_mq.cli.connection import NO_CLUSTER, Connection, takes_connection
from spark_mq.cli.opening import ReadPath, open_place
from spark_mq.cli.output import print_json, print_table, say, time_in_words
from spark_mq.cli.places import refuse_unknown_topic
from spark_mq.options import parse_time
from storage.epoch_times import current_time_ms
from storage.tables.topics import PERM_READ, PERM_WRITE


@app.command()
@takes_connection
def topics(
    path: ReadPath = None,
    every_topic: Everything = False,
    conf: Conf = None,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """List topics and their queues: offsets, counts, and the topic's settings. RocketMQ's own are left out."""
    with open_place(path, conf, connection) as place:
        found = place.topic_entries()
        listed = [entry for entry in found if every_topic or not place.is_system_topic(entry["topic"])]
    listed.sort(key=lambda entry: (entry["topic"], entry["brokerName"]))
    if as_json:
        print_json(listed)
        return
    rows = []
    for entry in listed:
        settings = entry["readQueueNums"], entry["writeQueueNums"], _permission(entry["perm"])
        for queue in entry["queues"] or [dict.fromkeys(("queueId", "minOffset", "maxOffset", "count"))]:
            rows.append((entry["topic"], entry["brokerName"], *queue.values(), *settings))
    print_table(("topic", "broker", "queue", "min", "max", "count", "read", "write", "perm"), rows)
    if hidden := len({entry["topic"] for entry in found}) - len({entry["topic"] for entry in listed}):
        say(f"RocketMQ's own topics are left out: {hidden}. --all shows them")


def _permission(perm: int | None) -> str | None:
    if perm is None:
        return None
    return ("R" if perm & PERM_READ else "-") + ("W" if perm & PERM_WRITE else "-")


@app.command("offset-by-time")
@takes_connection
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
    """The queue offset at a time: the first message stored at or after it, the end of the queue if there is none."""
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
        names = "topic", "brokerName", "queueId", "offset", "storeTimestamp"
        print_json([{**dict(zip(names, line, strict=True)), "timestamp": time_ms} for line in lines])
    else:
        rows = [(*line[:-1], time_in_words(line[-1], now_ms)) for line in lines]
        title = f"at {time_in_words(time_ms, now_ms)}"
        print_table(("topic", "broker", "queue", "offset", "stored"), rows, title=title)
