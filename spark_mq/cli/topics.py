"""Commands about topics and their queues: topics, offset-by-time, lag, create-topic."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Annotated

import typer

from spark_mq.cli.output import (
    CommandError,
    console,
    duration_in_words,
    print_json,
    print_table,
    say,
    time_in_words,
    time_text,
)
from spark_mq.cli.places import (
    AsJson,
    Everything,
    Place,
    QueueNumber,
    RequiredTopic,
    refuse_other_shape,
    refuse_unknown_topic,
    shape_in_words,
    shape_of,
)
from spark_mq.cli.stores import ReadPath, open_place, store_to_write
from spark_mq.command_options import LOCK_TIMEOUT_MS, NO_CLUSTER, Conf, Connection, LockTimeout
from spark_mq.options import parse_time
from spark_mq.terminal import interrupt_on_signal
from storage import open_store
from storage.epoch_times import current_time_ms
from storage.files.local_file_system import LocalFileSystem
from storage.names import is_system_group, nearest, validate_user_topic
from storage.rules.row_rules import DEFAULT_QUEUE_COUNT
from storage.settings.load import load_config
from storage.tables.broker_names import broker_names
from storage.tables.offline_changes import create_topic as enter_topic
from storage.tables.topics import PERM_READ, PERM_WRITE, QUEUE_COUNT_LIMIT, TopicConfig, TopicTable

_GREATEST_PERM = 7  # PermName.isValid

ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="With --name-server: one of its clusters; without it all."),
]


def topics(
    path: ReadPath = None,
    every_topic: Everything = False,
    conf: Conf = None,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """List topics and their queues.

    A row has the queue's offsets and count, and the topic's settings. RocketMQ's own topics are left out.
    """
    with open_place(path, conf, connection) as place:
        found = place.topic_entries()
        listed = [entry for entry in found if every_topic or not place.is_system_topic(entry["topic"])]
    listed.sort(key=lambda entry: (entry["topic"], entry["broker_name"]))
    if as_json:
        print_json(listed)
        return
    rows = []
    for entry in listed:
        settings = entry["read_queue_nums"], entry["write_queue_nums"], _permission(entry["perm"])
        for queue in entry["queues"] or [dict.fromkeys(("queue_id", "min_offset", "max_offset", "count"))]:
            rows.append((entry["topic"], entry["broker_name"], *queue.values(), *settings))
    print_table(("topic", "broker", "queue", "min", "max", "count", "read", "write", "perm"), rows)
    if hidden := len({entry["topic"] for entry in found}) - len({entry["topic"] for entry in listed}):
        say(f"RocketMQ's own topics are left out: {hidden}. --all shows them")


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
        names = "topic", "broker_name", "queue_id", "offset", "store_timestamp"
        print_json([{**dict(zip(names, line, strict=True)), "timestamp": time_ms} for line in lines])
    else:
        rows = [(*line[:-1], time_in_words(line[-1], now_ms)) for line in lines]
        title = f"at {time_in_words(time_ms, now_ms)}"
        print_table(("topic", "broker", "queue", "offset", "stored"), rows, title=title)


def lag(
    path: ReadPath = None,
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
    connection: Connection = NO_CLUSTER,
) -> None:
    """Show how far consumer groups are behind.

    A row has messages, bytes and time (newest message − last consumed one) of a queue. An unknown value is a dash (null), never 0: no
    offset is stored, the message before it has expired, or it is the bytes at a running cluster. RocketMQ's own groups and topics, and
    the groups of Spark sinks, are left out.
    """
    with open_place(path, conf, connection) as place:
        if watch is None:
            _print_lags(place, group, every_group=every_group, as_json=as_json)
            return
        with interrupt_on_signal(), suppress(KeyboardInterrupt):
            while True:
                if not as_json:
                    console().clear()  # does nothing but on a terminal
                    say(str(time_text(current_time_ms())))
                _print_lags(place, group, every_group=every_group, as_json=as_json)
                sys.stdout.flush()
                time.sleep(watch)
                place.refresh()


def _print_lags(place: Place, group: str | None, *, every_group: bool, as_json: bool) -> None:
    found = list(place.group_lags(group))
    if group is not None and not found:
        like = nearest(group, set(place.groups()) - {group})
        raise CommandError(f"no offset of group {group} is stored", f"did you mean {like}?" if like else None)
    lines = found
    if not every_group and group is None:
        lines = [line for line in found if not (is_system_group(line["group"]) or place.is_system_topic(line["topic"]))]
    if as_json:
        print_json(lines)
        return
    columns = "group", "topic", "broker", "queue", "next", "end", "messages", "bytes", "time"
    print_table(columns, [(*list(line.values())[:-1], _time_behind(line["time_ms"])) for line in lines])
    hidden = 0 if group is not None else len({line["group"] for line in found} - {line["group"] for line in lines})
    if hidden:
        say(f"groups of RocketMQ itself and of Spark sinks are left out: {hidden}. --all shows them")


def _time_behind(time_ms: int | None) -> str | None:
    return None if time_ms is None else duration_in_words(time_ms)


def create_topic(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[PATH] TOPIC", show_default=False, help="A store, and the topic; only it with --name-server."
        ),
    ],
    queues: Annotated[
        int,
        typer.Option(
            "--queues", metavar="N", min=1, max=QUEUE_COUNT_LIMIT, help="How many queues, to read and to write."
        ),
    ] = DEFAULT_QUEUE_COUNT,
    perm: Annotated[
        int, typer.Option("--perm", metavar="N", min=0, max=_GREATEST_PERM, help="4 to read, 2 to write, 6 for both.")
    ] = PERM_READ | PERM_WRITE,
    cluster: ClusterName = None,
    lock_timeout_ms: LockTimeout = LOCK_TIMEOUT_MS,
    conf: Conf = None,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Make a topic in a store or in a running cluster.

    A topic that is there is never changed; exit code 1 if it has another shape. In a cluster each broker without the topic gets it. A
    store is made where none is. Nothing else in a store is changed, and no recovery takes place.
    """
    if len(words) != (1 if connection.is_given else 2):
        shape = "TOPIC" if connection.is_given else "PATH TOPIC, or TOPIC with --name-server"
        raise typer.BadParameter(f"expected {shape}, found {' '.join(words)}", param_hint="[PATH] TOPIC")
    wanted = TopicConfig(words[-1], queues, queues, perm)
    if connection.is_chosen(None if connection.is_given else words[0]):
        from spark_mq.cli.sending import make_at_brokers  # a store needs no client

        brokers, made_at = make_at_brokers(connection.settings(), wanted, cluster)
        _print_made({"brokers": made_at or brokers}, wanted, is_made=bool(made_at), as_json=as_json)
    else:
        _create_in_store(words[0], wanted, conf, lock_timeout_ms, as_json=as_json)


def _create_in_store(path: str, wanted: TopicConfig, conf: str | None, timeout_ms: int, *, as_json: bool) -> None:
    root, is_new = store_to_write(path)
    files = LocalFileSystem()
    config = load_config(root, conf, read_bytes=files.read_file)
    if is_new:  # an illegal name does not make a store
        names = broker_names(config, TopicTable())
        validate_user_topic(wanted.topic, broker_name=names.broker, cluster_name=names.cluster)
        open_store(root, config=config, read_only=False, create=True, lock_timeout_ms=timeout_ms).close()
    present = enter_topic(
        root,
        config,
        wanted,
        now_ms=current_time_ms(),
        file_system=files,
        lock_timeout_ms=timeout_ms,
    )
    if present is not None:
        refuse_other_shape(wanted, present, "")
    _print_made({"store": root}, wanted, is_made=present is None, as_json=as_json)


def _print_made(where: dict[str, object], topic: TopicConfig, *, is_made: bool, as_json: bool) -> None:
    if as_json:
        settings = dict(zip(("read_queue_nums", "write_queue_nums", "perm"), shape_of(topic), strict=True))
        print_json({**where, "topic": topic.topic, "created": is_made, **settings})
    else:
        say(f"topic {topic.topic} {'made' if is_made else 'was there already'}, with {shape_in_words(topic)}")
