"""The command create-topic: into a store's topics.json, or on the masters of a running cluster."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from spark_mq.cli.app import AsJson, CommandError, Conf, LockTimeout, app, lock_timeout_ms, store_to_write
from spark_mq.cli.connection import NO_CLUSTER, Connection, takes_connection
from spark_mq.cli.output import print_json, say
from spark_mq.client import Admin, ClientSettings, NewTopic, TopicRouteNotFoundError
from spark_mq.client.settings import with_namespace
from storage import open_store
from storage.epoch_times import current_time_ms
from storage.files.local_file_system import LocalFileSystem
from storage.names import MASTER_ID, validate_user_topic
from storage.rules.row_rules import DEFAULT_QUEUE_COUNT
from storage.settings.load import load_config
from storage.tables.broker_names import broker_names
from storage.tables.offline_changes import create_topic as enter_topic
from storage.tables.topics import PERM_READ, PERM_WRITE, QUEUE_COUNT_LIMIT, TopicConfig, TopicTable

_GREATEST_PERM = 7  # PermName.isValid
_POLL_S = 0.05

ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="With --name-server: one of its clusters; without it all."),
]


@app.command("create-topic")
@takes_connection
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
    lock_timeout: LockTimeout = "10s",
    conf: Conf = None,
    as_json: AsJson = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Make a topic: in a store, or at each broker of a running cluster that does not have it.

    A topic that is there is never changed; exit code 1 if it is not as asked for. A store is made where none is. Nothing else in a
    store is touched, no recovery takes place.
    """
    if len(words) != (1 if connection.is_given else 2):
        shape = "TOPIC" if connection.is_given else "PATH TOPIC, or TOPIC with --name-server"
        raise typer.BadParameter(f"expected {shape}, found {' '.join(words)}", param_hint="[PATH] TOPIC")
    wanted = TopicConfig(words[-1], queues, queues, perm)
    if connection.is_chosen(None if connection.is_given else words[0]):
        brokers, made_at = make_at_brokers(connection.settings(), wanted, cluster)
        _tell({"brokers": made_at or brokers}, wanted, is_made=bool(made_at), as_json=as_json)
    else:
        _create_in_store(words[0], wanted, conf, lock_timeout_ms(lock_timeout), as_json=as_json)


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
        _refuse_other_shape(wanted, present, "")
    _tell({"store": root}, wanted, is_made=present is None, as_json=as_json)


def make_at_brokers(settings: ClientSettings, wanted: TopicConfig, cluster: str | None) -> tuple[list[str], list[str]]:
    """Make the topic on the masters of a cluster, or of all, that do not have it. Returns all of these brokers, and where it was made.

    Raises CommandError where it is there in another shape.
    """
    named = with_namespace(settings.namespace, wanted.topic)
    with Admin(settings) as admin:
        masters = _masters(admin, cluster, wanted.topic)
        have = _brokers_that_have(admin, named, wanted)
        missing = [name for name in masters if name not in have]
        new = NewTopic(named, wanted.read_queue_count, wanted.write_queue_count, wanted.perm)
        for name in missing:
            admin.create_topic(new, address=masters[name])
        end = time.monotonic() + settings.request_timeout_ms / 1000
        while missing and not _is_routed(admin, named, missing) and time.monotonic() < end:
            time.sleep(_POLL_S)  # brokers tell their name servers at once, but not before they answer
    return sorted(masters), missing


def _masters(admin: Admin, cluster: str | None, topic: str) -> dict[str, str]:
    """The masters' addresses by broker name. Raises CommandError where a broker has none, or there is no such cluster."""
    info = admin.cluster_info()
    clusters = info.cluster_address_table
    if cluster is not None and cluster not in clusters:
        raise CommandError(f"there is no cluster {cluster}", f"the name server knows {', '.join(sorted(clusters))}")
    found = {}
    for cluster_name in clusters if cluster is None else [cluster]:
        for name in sorted(clusters[cluster_name]):
            validate_user_topic(topic, broker_name=name, cluster_name=cluster_name)
            addresses = info.broker_address_table[name].broker_addresses
            if MASTER_ID not in addresses:
                raise CommandError(f"broker {name} has no master now, and only a master makes topics")
            found[name] = addresses[MASTER_ID]
    if not found:
        raise CommandError("no broker is registered at the name server")
    return found


def _brokers_that_have(admin: Admin, topic: str, wanted: TopicConfig) -> set[str]:
    try:
        found = admin.topic_config(topic)
    except TopicRouteNotFoundError:
        return set()
    for name, config in found.items():
        present = TopicConfig(wanted.topic, config.read_queue_count, config.write_queue_count, config.perm)
        _refuse_other_shape(wanted, present, f" at broker {name}")
    return set(found)


def _is_routed(admin: Admin, topic: str, brokers: list[str]) -> bool:
    try:
        return set(brokers) <= admin.route(topic).brokers.keys()
    except TopicRouteNotFoundError:
        return False


def _refuse_other_shape(wanted: TopicConfig, present: TopicConfig, where: str) -> None:
    """Raises CommandError for a topic that is there in another shape."""
    if _shape(present) != _shape(wanted):
        text = f"topic {wanted.topic} is there already{where}, with {_in_words(present)}"
        raise CommandError(text, "nothing was changed; mqadmin updateTopic changes topics")


def _tell(where: dict[str, object], topic: TopicConfig, *, is_made: bool, as_json: bool) -> None:
    if as_json:
        read_queues, write_queues, perm = _shape(topic)
        settings = {"readQueueNums": read_queues, "writeQueueNums": write_queues, "perm": perm}
        print_json({**where, "topic": topic.topic, "created": is_made, **settings})
    else:
        say(f"topic {topic.topic} {'made' if is_made else 'was there already'}, with {_in_words(topic)}")


def _in_words(config: TopicConfig) -> str:
    read_queues, write_queues, perm = _shape(config)
    return f"{read_queues} read queues, {write_queues} write queues and perm {perm}"


def _shape(config: TopicConfig) -> tuple[int, int, int]:
    return config.read_queue_count, config.write_queue_count, config.perm
