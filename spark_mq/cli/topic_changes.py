"""Commands that change topics: create-topic, alter-topic, delete-topic.

Java: mqadmin updateTopic, deleteTopic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NoReturn

import typer

from spark_mq.cli.places import AsJson, Place, refuse_other_shape, refuse_unknown_topic, shape_in_words, shape_of
from spark_mq.cli.stores import one_store, open_place, store_to_write
from spark_mq.command_options import LOCK_TIMEOUT_MS, NO_CLUSTER, Conf, Connection, LockTimeout
from spark_mq.lag.figures import LagLooks
from spark_mq.terminal import CommandError, UsageError, print_json, say, why_missing
from storage import open_store
from storage.epoch_times import current_time_ms
from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem, read_table
from storage.names import validate_user_topic
from storage.rules.row_rules import DEFAULT_QUEUE_COUNT
from storage.settings.load import load_config
from storage.tables.offline_changes import alter_topic as change_entry
from storage.tables.offline_changes import create_topic as enter_topic
from storage.tables.surroundings import refuse_foreign_log
from storage.tables.topics import (
    MAPPINGS_FILE,
    PERM_READ,
    PERM_WRITE,
    QUEUE_COUNT_LIMIT,
    TopicConfig,
    TopicQueueMappingTable,
    TopicTable,
    broker_names,
)

_GREATEST_PERM = 7  # PermName.isValid

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="[PATH] TOPIC", show_default=False, help="A store, and the topic; only it with --name-server."
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="With --name-server: one of its clusters; without it all."),
]


def _topic_of(words: list[str], connection: Connection) -> str:
    if len(words) != (1 if connection.is_given else 2):
        shape = "TOPIC" if connection.is_given else "PATH TOPIC, or TOPIC with --name-server"
        raise typer.BadParameter(f"expected {shape}, found {' '.join(words)}", param_hint="[PATH] TOPIC")
    connection.is_chosen(None if connection.is_given else words[0])
    return words[-1]


def create_topic(
    words: Words,
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
    wanted = TopicConfig(_topic_of(words, connection), queues, queues, perm)
    if connection.is_given:
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
        print_json({**where, "topic": topic.topic, "created": is_made, **_shape(topic)})
    else:
        say(f"topic {topic.topic} {'made' if is_made else 'was there already'}, with {shape_in_words(topic)}")


def _shape(topic: TopicConfig) -> dict[str, int]:
    return dict(zip(("read_queue_nums", "write_queue_nums", "perm"), shape_of(topic), strict=True))


def alter_topic(
    words: Words,
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues", metavar="N", min=1, max=QUEUE_COUNT_LIMIT, help="How many queues, to read and to write."
        ),
    ] = None,
    read_queues: Annotated[
        int | None,
        typer.Option("--read-queues", metavar="N", min=0, max=QUEUE_COUNT_LIMIT, help="How many queues to read."),
    ] = None,
    write_queues: Annotated[
        int | None,
        typer.Option("--write-queues", metavar="N", min=0, max=QUEUE_COUNT_LIMIT, help="How many queues to write."),
    ] = None,
    perm: Annotated[
        int | None,
        typer.Option("--perm", metavar="N", min=0, max=_GREATEST_PERM, help="4 to read, 2 to write, 6 for both."),
    ] = None,
    cluster: ClusterName = None,
    lock_timeout_ms: LockTimeout = LOCK_TIMEOUT_MS,
    conf: Conf = None,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Change a topic's queues or permission.

    The command changes a topic of a store whose broker is stopped, or of each broker of a running cluster that has it. What is not
    named stays as it is; mqadmin updateTopic sets it to a default. To take queues away, lower --write-queues first, and --read-queues
    when the consumers have read them: a queue beyond the read ones is not consumed, and its messages stay until they expire.

    RocketMQ's own topics, static topics, and the queues of ordered topics are refused.
    """
    topic = _topic_of(words, connection)
    if queues is not None and (read_queues is not None or write_queues is not None):
        raise UsageError("give --queues, or --read-queues and --write-queues")
    given = {
        "read_queue_count": queues if read_queues is None else read_queues,
        "write_queue_count": queues if write_queues is None else write_queues,
        "perm": perm,
    }
    named = {name: value for name, value in given.items() if value is not None}
    if not named:
        raise UsageError("say what to change: --queues, --read-queues, --write-queues or --perm")
    change = partial(_changed, named)
    if connection.is_given:
        from spark_mq.cli.sending import alter_at_brokers  # a store needs no client

        found = alter_at_brokers(connection.settings(), topic, change, cluster)
        _print_altered("broker_name", found, as_json=as_json)
        return
    root = one_store(words[0], to_write=True)
    files = LocalFileSystem()
    config = load_config(root, conf, read_bytes=files.read_file)
    done = change_entry(
        root, config, topic, change, now_ms=current_time_ms(), file_system=files, lock_timeout_ms=lock_timeout_ms
    )
    if done is None:
        refuse_in_store(root, topic, conf)
    else:
        _print_altered("store", {root: done}, as_json=as_json)


def refuse_in_store(root: str, topic: str, conf: str | None) -> NoReturn:
    """Raises CommandError: topics.json has no such topic."""
    with open_place(root, conf, NO_CLUSTER) as place:
        refuse_unknown_topic(place, topic)
    raise CommandError(f"topic {topic} has queues, and no entry in topics.json", "spark-mq create-topic makes one")


def _changed(named: Mapping[str, int], topic: TopicConfig) -> TopicConfig:
    """Raises CommandError for the numbers of queues of an ordered topic, and where a queue would be written and not read."""
    changes: dict[str, Any] = dict(named)
    wanted = replace(topic, **changes)
    counts = (topic.read_queue_count, topic.write_queue_count), (wanted.read_queue_count, wanted.write_queue_count)
    if topic.order and counts[0] != counts[1]:
        text = f"topic {topic.topic} is ordered: name servers know its numbers of queues, too"
        raise CommandError(text, "mqadmin updateTopic -o true changes both")
    if wanted.read_queue_count < min(counts[0]):
        text = f"topic {topic.topic} would lose queues with what is unread there: it has {shape_in_words(topic)}"
        raise CommandError(text, "lower --write-queues first, and --read-queues when the other queues are read")
    if wanted.write_queue_count > max(topic.write_queue_count, wanted.read_queue_count):
        text = f"topic {topic.topic} would have queues that are written, and that no consumer reads: it has {shape_in_words(topic)}"
        raise CommandError(text, "give --read-queues, too: as many, or more")
    return wanted


def _print_altered(where: str, found: Mapping[str, tuple[TopicConfig, TopicConfig]], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {where: name, "topic": now.topic, "changed": now != before, "before": _shape(before), **_shape(now)}
                for name, (before, now) in found.items()
            ]
        )
        return
    for name, (before, now) in found.items():
        if now == before:
            say(f"{name}: topic {now.topic} is so already, with {shape_in_words(now)}")
        else:
            say(f"{name}: topic {now.topic} had {shape_in_words(before)}, and now has {shape_in_words(now)}")


def delete_topic(
    words: Words,
    cluster: ClusterName = None,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask whether to delete it.")] = False,
    lock_timeout_ms: LockTimeout = LOCK_TIMEOUT_MS,
    conf: Conf = None,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Delete a topic of a store or of a running cluster.

    The topic, its queues, and the offsets of all groups in it are forgotten: by a store whose broker is stopped, or by the brokers of
    a running cluster, whose name servers forget its route. Messages stay in the log until they expire, and no consumer gets them. The
    command shows how many messages are unread before it asks. A broker that is not registered now keeps the topic, and brings it back.
    RocketMQ's own topics are refused, and in a store static topics.
    """
    topic = _topic_of(words, connection)
    if connection.is_given:
        place, done = _delete_at_brokers(connection, topic, cluster, is_sure=is_sure)
    else:
        place, done = _delete_in_store(words[0], topic, conf, lock_timeout_ms, is_sure=is_sure)
    if as_json:
        print_json({"topic": topic, **place, "messages": done})
    else:
        say(f"topic {topic} is deleted, with {done:,} messages in its queues")


def _delete_at_brokers(
    connection: Connection, topic: str, cluster: str | None, *, is_sure: bool
) -> tuple[dict[str, object], int]:
    """The brokers that had the topic, and how many messages were in its queues."""
    from spark_mq.cli.live_place import LivePlace  # the other commands need no client for a store
    from spark_mq.client.admin import brokers_of
    from spark_mq.client.event_loop import run
    from spark_mq.lag.of_cluster import ClusterLag

    place = LivePlace(connection.settings())
    try:
        _refuse_missing_or_own(place, topic)
        chosen = brokers_of(run(place.admin.cluster_info()), cluster)
        entries = [entry for entry in place.topic_entries(topic) if entry["broker_name"] in chosen]
        if not entries:
            raise CommandError(f"no broker{'' if cluster is None else f' of cluster {cluster}'} has topic {topic}")
        if not is_sure:
            looks = partial(ClusterLag, place.settings, cluster=cluster, ages_a_look=0, with_rates=False)
            _ask(looks, topic, _messages_in(entries))
        run(place.admin.delete_topic(place.at_brokers(topic), cluster=cluster))
    finally:
        place.close()
    return {"brokers": [entry["broker_name"] for entry in entries]}, _messages_in(entries)


def _delete_in_store(
    path: str, topic: str, conf: str | None, timeout_ms: int, *, is_sure: bool
) -> tuple[dict[str, object], int]:
    """The store, and how many messages were in the topic's queues."""
    root = one_store(path, to_write=True)
    files = LocalFileSystem()
    config = load_config(root, conf, read_bytes=files.read_file)
    refuse_foreign_log(root, config, files)
    with open_place(root, conf, NO_CLUSTER) as place:
        _refuse_missing_or_own(place, topic)
        entries = [entry for entry in place.topic_entries() if entry["topic"] == topic]
        mappings = read_table(f"{root}/config/{MAPPINGS_FILE}", TopicQueueMappingTable.load, files.read_file)
        if mappings is not None and topic in mappings.mappings:
            raise StoreRefusedError(root, f"topic {topic} is static: mqadmin deleteTopic deletes it at all its brokers")
        if not is_sure:
            _ask(place.lag_looks, topic, _messages_in(entries))
    with open_store(root, config=config, read_only=False, lock_timeout_ms=timeout_ms) as store:
        store.delete_topic(topic)
    return {"store": root}, _messages_in(entries)


def _refuse_missing_or_own(place: Place, topic: str) -> None:
    """Raises CommandError for a topic that is not there, or is RocketMQ's own."""
    refuse_unknown_topic(place, topic)
    if place.is_system_topic(topic):
        raise CommandError(f"topic {topic} is RocketMQ's own, and is not deleted")


def _messages_in(entries: list[dict[str, Any]]) -> int:
    return sum(queue["count"] for entry in entries for queue in entry["queues"])


def _ask(looks: Callable[[], LagLooks], topic: str, messages: int) -> None:
    """Raises UsageError where nobody can answer, CommandError where the answer is no."""
    if not sys.stdin.isatty():
        raise UsageError(f"deleting topic {topic} cannot be undone: say --yes")
    with closing(looks()) as opened:
        report = opened.look(keep=lambda _, queue: queue.topic == topic)
    for error in report.errors:
        say(f"{why_missing(error)}; how many messages are unread there is not known")
    for each in report.groups:
        say(
            f"{each.reader.name} has {'an unknown number of' if each.lag is None else f'{each.lag:,}'} unread messages there"
        )
    if not typer.confirm(f"delete topic {topic}, with {messages:,} messages in its queues?", err=True):
        raise CommandError("nothing was changed")
