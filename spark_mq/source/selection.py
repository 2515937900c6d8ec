"""From options to queues and to the wanted parts of each message; shared by batch and streaming readers."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from spark_mq.conditions import OptionError, names
from spark_mq.source.archive_table import ArchiveTable
from spark_mq.source.cluster import Cluster
from spark_mq.source.logical_queues import LogicalCluster
from spark_mq.source.offsets import QueueId
from spark_mq.source.options import SourceOptions
from spark_mq.source.query_cluster import Piece, QueryCluster
from spark_mq.source.ranges import QueueRange, split_ranges
from spark_mq.source.rows import COLUMNS, CORRUPT_COLUMN, KAFKA_COLUMNS, RowRequest, columns_named
from storage.names import MULTI_DISPATCH_PREFIX, advice, names_several, nearest
from storage.settings.load import ConfigurationWarning

if TYPE_CHECKING:
    from spark_mq.spark_api import StructType


def open_cluster(options: SourceOptions) -> QueryCluster:
    """The stores of a query, with static topics as the options show them, or the running cluster; tells settings that take no effect.

    With an archive the queues go on in it. Raises what `Cluster.open` and `LiveCluster` do, and ArchiveError.
    """
    if options.archive_place is None:
        return _open_brokers(options)
    from spark_mq.source.archived_cluster import ArchivedCluster

    table = ArchiveTable.open(options.archive_place)
    brokers = _open_brokers(options) if options.stores or options.is_live else None
    return ArchivedCluster(brokers, table, fail_on_data_loss=options.fail_on_data_loss)


def _open_brokers(options: SourceOptions) -> QueryCluster:
    if options.is_live:
        from spark_mq.source.live_cluster import LiveCluster  # a query over files need not load the client

        return LiveCluster(options)
    kind = LogicalCluster if options.logical else Cluster
    cluster = kind.open(options.stores, conf=options.conf, broker_name=options.broker_name)
    cluster.tell_unread_settings()
    return cluster


def split_shown(
    cluster: QueryCluster,
    ranges: Sequence[QueueRange],
    min_partitions: int | None,
    max_records_per_partition: int | None,
) -> Iterator[Piece]:
    """The pieces of ranges that tasks read (`split_ranges`), in physical queues, and as what each is shown."""
    parts = [part for piece in ranges for part in cluster.physical(piece)]
    parents = iter(parts)
    parent, shown = next(parents, (None, None))
    for piece in split_ranges([part for part, _ in parts], min_partitions, max_records_per_partition):
        while parent is not None and not (parent.queue == piece.queue and parent.start <= piece.start < parent.end):
            parent, shown = next(parents, (None, None))
        yield Piece(piece.queue, ((piece.start, piece.end),), shown)


def select_queues(cluster: QueryCluster, options: SourceOptions) -> list[QueueId]:
    """The queues of a batch query, and those that a new stream starts with.

    Raises OptionError for a topic or queue that was named and is not there, and for a pattern that matches no topic,
    unless `allowEmpty`.
    """
    subscription, queues = options.subscription, cluster.queues()
    cluster.refuse_batch_topics(subscription.topics)
    missing = subscription.missing(queues, brokers=cluster.brokers)
    if missing:
        known = _topics_of_users(cluster)
        option = "assign" if subscription.assigned else "topic" if options.topic else "subscribe"
        raise OptionError(option, f"{names(missing)}: not in {cluster.place}{_advice(option, missing, known)}")
    selected = subscription.select(queues, brokers=cluster.brokers, is_system_topic=cluster.is_system_topic)
    if not selected and subscription.topics and subscription.queue_ids:
        count = max(cluster.queue_count(topic) for topic in subscription.topics)
        if min(subscription.queue_ids) >= count:
            raise OptionError(
                "queueId", f"{min(subscription.queue_ids)} is no queue of the topic; its queues are 0 to {count - 1}"
            )
    for topic in sorted({queue.topic for queue in selected if queue.topic.startswith(MULTI_DISPATCH_PREFIX)}):
        rule = f"the entries of a queue {MULTI_DISPATCH_PREFIX}… name records of other topics, so it gives no rows"
        warnings.warn(
            f"topic {topic} of {cluster.place}: {rule}; read these topics", ConfigurationWarning, stacklevel=2
        )
    if not selected and subscription.pattern is not None and not options.allow_empty:
        _refuse_no_match(subscription.pattern, _topics_of_users(cluster), cluster.place)
    return selected


def _refuse_no_match(pattern: re.Pattern[str], topics: Sequence[str], place: str) -> None:
    """Raises OptionError, unless `queueId` is why nothing was selected."""
    if any(map(pattern.fullmatch, topics)):
        return
    rule = f"{pattern.pattern!r} matches no topic in {place} (a pattern matches the whole name of a topic)"
    there = f"there are {names(topics) or 'no topics'}"
    raise OptionError("subscribePattern", f"{rule}; {there}; allowEmpty=true waits for topics that are made later")


def _topics_of_users(cluster: QueryCluster) -> list[str]:
    return [topic for topic in cluster.topics if not cluster.is_system_topic(topic)]


def _advice(option: str, missing: Sequence[str], topics: Sequence[str]) -> str:
    """The end of an error about missing topics or queues: the nearest name, and the existing ones."""
    if option == "topic" and names_several(missing[0]):
        return "; topic takes one name: give several in the option subscribe, as a,b"
    near = "" if option == "assign" else advice(missing[0], topics)
    there = names(topics) or "no topics"
    return f"{near} There are {there}" if near else f"; there are {there}"


def request_of(
    options: SourceOptions,
    column_names: Sequence[str],
    *,
    nullable: Collection[str] = (),
    tags: frozenset[str] | None = None,
) -> RowRequest:
    """The needs of tasks of each message. `tags` of a pushed filter narrow those of the option."""
    of_option = frozenset(option_tags) if (option_tags := options.wanted_tags) is not None else None
    if tags is not None and of_option is not None:
        tags = tags & of_option
    return RowRequest(
        column_names=tuple(column_names),
        kafka=options.kafka_columns,
        tags=of_option if tags is None else tags,
        key=options.key,
        decompress=options.decompress,
        verify_crc=options.verify_crc,
        fail_on_data_loss=options.fail_on_data_loss,
        nullable=frozenset(nullable),
        permissive=options.permissive,
    )


def check_schema(options: SourceOptions, schema: StructType) -> None:
    """Raises OptionError where a schema that the user gave has no column, one that does not exist, or that can be null and must
    not be. Types are compared by Spark.
    """
    known = KAFKA_COLUMNS if options.kafka_columns else COLUMNS
    if not schema.fields:
        raise OptionError("schema", f"it has no column; there are {', '.join(known)}")
    for field in schema:
        if field.name not in known:
            raise OptionError(
                "schema", _no_column(schema, field.name, known, "value" if options.kafka_columns else "body")
            )
        if field.name == CORRUPT_COLUMN and not options.permissive:
            raise OptionError("schema", f"the column {CORRUPT_COLUMN} needs mode=PERMISSIVE")
        (column,) = columns_named([field.name], kafka=options.kafka_columns, permissive=options.permissive)
        if column.nullable and not field.nullable:
            raise OptionError("schema", f"column {field.name} can be null")


def _no_column(schema: StructType, name: str, known: Collection[str], body: str) -> str:
    """A schema with names of its own is mostly that of the bodies, as other sources take it."""
    near = nearest(name, known, 0.8)
    if near is not None:
        return f"there is no column {name!r}; did you mean {near}?"
    fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    parsed = f'.select(from_json(col("{body}").cast("string"), "{fields}"))'
    instead = f"leave out .schema(…) and write .load(){parsed}; docs/recipes.md counts what does not parse"
    return f"there is no column {name!r}, and bodies are not parsed: {instead}"
