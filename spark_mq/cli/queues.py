"""Commands about queues and their offsets: topics, offset-by-time."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from spark_mq.cli.app import AsJson, Conf, Everything, QueueNumber, RequiredTopic, StorePath, app, open_cluster
from spark_mq.cli.messages import refuse_unknown_topic
from spark_mq.cli.output import print_json, print_table, say, time_in_words
from spark_mq.source.option_values import parse_time
from storage import MessageStore
from storage.epoch_times import current_time_ms
from storage.tables.topics import FILE_NAME as TOPICS_FILE
from storage.tables.topics import PERM_READ, PERM_WRITE, TopicConfig, TopicTable


@app.command()
def topics(path: StorePath, every_topic: Everything = False, conf: Conf = None, as_json: AsJson = False) -> None:
    """List topics and their queues: offsets, counts, and the settings that topics.json holds. RocketMQ's own are left out."""
    cluster = open_cluster(path, conf)
    try:
        found = [entry for name, store in cluster.stores.items() for entry in _topics_of(name, store)]
        listed = [entry for entry in found if every_topic or not cluster.is_system_topic(entry["topic"])]
    finally:
        cluster.close()
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


def _topics_of(broker_name: str, store: MessageStore) -> list[dict[str, Any]]:
    """Topics with queues and topics with settings. Of a topic with batch queues only the settings are known."""
    table = store.state(TOPICS_FILE, TopicTable.load)
    configs = dict(table.topics) if table is not None else {}
    return [_topic(broker_name, store, name, configs.get(name)) for name in sorted({*store.topics(), *configs})]


def _topic(broker_name: str, store: MessageStore, topic: str, config: TopicConfig | None) -> dict[str, Any]:
    queues = []
    for queue_id in () if topic in store.queues.batch_topics else store.queue_ids(topic):
        minimum, maximum = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        queues.append({"queueId": queue_id, "minOffset": minimum, "maxOffset": maximum, "count": maximum - minimum})
    return {
        "topic": topic,
        "brokerName": broker_name,
        "readQueueNums": config.read_queue_count if config else None,
        "writeQueueNums": config.write_queue_count if config else None,
        "perm": config.perm if config else None,
        "queues": queues,
    }


def _permission(perm: int | None) -> str | None:
    if perm is None:
        return None
    return ("R" if perm & PERM_READ else "-") + ("W" if perm & PERM_WRITE else "-")


@app.command("offset-by-time")
def offset_by_time(
    path: StorePath,
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
) -> None:
    """The queue offset at a time: the first message stored at or after it, the end of the queue if there is none."""
    now_ms = current_time_ms()
    time_ms = parse_time(moment, "--time").at(now_ms)
    cluster = open_cluster(path, conf)
    found = []
    try:
        refuse_unknown_topic(cluster, topic)
        for name, store in cluster.stores.items():
            for queue in store.queue_ids(topic):
                if queue_id in (None, queue):
                    offset = store.offset_in_queue_by_time(topic, queue, time_ms, upper=upper)
                    position = store.position(topic, queue, offset)
                    found.append((topic, name, queue, offset, position.store_time_ms if position else None))
    finally:
        cluster.close()
    if as_json:
        names = "topic", "brokerName", "queueId", "offset", "storeTimestamp"
        print_json([{**dict(zip(names, line, strict=True)), "timestamp": time_ms} for line in found])
    else:
        rows = [(*line[:-1], time_in_words(line[-1], now_ms)) for line in found]
        title = f"at {time_in_words(time_ms, now_ms)}"
        print_table(("topic", "broker", "queue", "offset", "stored"), rows, title=title)
