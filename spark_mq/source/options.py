"""Options of the Spark source: names, meanings, defaults; parsed and checked once, at construction.

Each option is declared by one field of `SourceOptions` (`option_table.py`). With `columns=kafka` the client options of a Kafka job
(`kafka.*`) are accepted and ignored.

Spark: KafkaSourceProvider.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

from spark_mq.client.settings import with_namespace
from spark_mq.conditions import OptionError, UnknownOptionError
from spark_mq.option_table import NAMES_ELSEWHERE, Mode, Option, OptionRow, OptionTable, given_options
from spark_mq.source import option_values as values
from spark_mq.source.cluster_options import PullOptions
from spark_mq.source.column_names import (
    COLUMN_NAMES,
    CORRUPT_COLUMN,
    KAFKA_COLUMN_NAMES,
    KAFKA_HEADERS,
    parse_columns,
)
from spark_mq.source.offsets import EARLIEST, LATEST, NamedQueue, parse_assignment
from spark_mq.source.read_limits import ReadLimits
from spark_mq.source.starting_offsets import (
    AtGroup,
    AtOffsets,
    AtTime,
    AtTimes,
    Edge,
    Limit,
    NoMatch,
    TimePoint,
)
from spark_mq.source.subscription import Subscription

_FLAGS = re.compile(r"^(\(\?[aimsux]+\))+")
_Limit = TypeVar("_Limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(PullOptions):
    """What a reader was asked for. `parse` makes it and refuses what makes no sense."""

    path: Annotated[
        str | None,
        Option(values.parse_store_path, "a store, or a directory of stores = a cluster; local or any fsspec URL"),
    ] = None
    paths: Annotated[
        tuple[str, ...],
        Option(values.parse_paths, "several of them as a JSON list; what `load([a, b])` sends"),
    ] = ()
    conf: Annotated[
        str | None,
        Option(values.parse_path, "the broker's configuration file", shown="broker.conf beside or in the store"),
    ] = None
    broker_name: Annotated[
        str | None, Option(values.parse_text, "the name of the store's broker", shown="as the store tells")
    ] = None

    topic: Annotated[str | None, Option(values.parse_text, "the one topic to read")] = None
    subscribe: Annotated[tuple[str, ...], Option(values.parse_comma_list, "topics to read: `a,b`")] = ()
    subscribe_pattern: Annotated[
        re.Pattern[str] | None,
        Option(values.parse_pattern, "regular expression that the whole name of a topic matches"),
    ] = None
    assign: Annotated[
        frozenset[NamedQueue],
        Option(parse_assignment, 'queues to read: `{"t": {"broker-a": [0, 1]}}`, with one broker `{"t": [0, 1]}`'),
    ] = frozenset()
    allow_empty: Annotated[
        bool,
        Option(values.parse_boolean, "let subscribePattern match no topic (yet); else that is an error", shown="false"),
    ] = False
    include_system_topics: Annotated[
        bool,
        Option(values.parse_boolean, "a pattern matches RocketMQ's own topics too", shown="false"),
    ] = False
    logical: Annotated[
        bool,
        Option(
            values.parse_boolean,
            "show static topics by their logical queues and offsets, as clients do, with broker `__syslo__global__`; else by "
            "physical ones",
            shown="false",
        ),
    ] = False
    queue_id: Annotated[tuple[int, ...], Option(values.parse_queue_ids, "only these queues of the topics: `0,1`")] = ()

    starting_offsets: Annotated[
        Edge | Literal["group"] | AtOffsets | None,
        Option(
            values.parse_start,
            "where a new query starts: earliest, latest (streaming), group (what consumerGroup stored), or "
            'JSON with every queue: `{"t": {"broker-a": {"0": 12}}}`, -2 earliest, -1 latest',
            shown="latest (streaming), earliest (batch)",
        ),
    ] = None
    starting_timestamp: Annotated[
        TimePoint | None,
        Option(
            values.parse_time,
            "start at the first message stored at or after: ms since the epoch, ISO-8601 (UTC unless it says "
            "otherwise), or `-10m` before the query's start; wins over the next and over startingOffsets",
        ),
    ] = None
    starting_offsets_by_timestamp: Annotated[
        Mapping[NamedQueue, int] | None,
        Option(values.parse_times, "the same in ms for each queue, as JSON; wins over startingOffsets"),
    ] = None
    starting_offsets_by_timestamp_strategy: Annotated[
        NoMatch | None,
        Option(
            values.parse_no_match,
            "a queue without a message that new: error, or latest = its end (an empty one starts there)",
            shown="error; latest for `-10m`",
        ),
    ] = None
    ending_offsets: Annotated[
        Edge | AtOffsets | None,
        Option(values.parse_end, "where to stop, exclusive: latest, or JSON, -1 latest", "batch", "latest"),
    ] = None
    ending_timestamp: Annotated[
        TimePoint | None,
        Option(
            values.parse_time,
            "stop before the first message stored at or after; wins over the next and over endingOffsets",
            "batch",
        ),
    ] = None
    ending_offsets_by_timestamp: Annotated[
        Mapping[NamedQueue, int] | None,
        Option(values.parse_times, "the same in ms for each queue, as JSON; wins over endingOffsets", "batch"),
    ] = None
    fail_on_data_loss: Annotated[
        bool,
        Option(
            values.parse_boolean,
            "fail when messages expired unread or a topic was deleted or made again; else warn and go on",
            shown="true",
        ),
    ] = True

    max_offsets_per_trigger: Annotated[
        int | None,
        Option(values.parse_positive_long, "rows of a micro-batch at most, in proportion to backlog", "streaming"),
    ] = None
    min_offsets_per_trigger: Annotated[
        int | None, Option(values.parse_positive_long, "rows worth a micro-batch", "streaming")
    ] = None
    max_trigger_delay: Annotated[
        int,
        Option(values.parse_duration_ms, "wait for minOffsetsPerTrigger so long at most", "streaming", "15m"),
    ] = 15 * 60 * 1000
    max_bytes_per_trigger: Annotated[
        int | None,
        Option(
            values.parse_size_bytes,
            "bytes of a micro-batch (`64m`), but at least one message a queue",
            "streaming",
        ),
    ] = None
    min_partitions: Annotated[
        int | None, Option(values.parse_positive_int, "split large queues into about so many partitions")
    ] = None
    max_records_per_partition: Annotated[
        int | None, Option(values.parse_positive_long, "rows of one partition at most")
    ] = None

    tags: Annotated[
        tuple[str, ...] | None,
        Option(values.parse_tags, "only messages with one of: `TagA || TagB`", shown="*"),
    ] = None
    key: Annotated[
        str | None,
        Option(values.parse_text, "only messages with this key or unique key, through the index", "batch"),
    ] = None
    push_down: Annotated[
        bool,
        Option(
            values.parse_boolean,
            "let Spark's filters cut the read, where the session pushes them; only for a DataFrame that is used with one filter",
            "batch",
            "false",
        ),
    ] = False
    columns: Annotated[
        tuple[str, ...],
        Option(
            parse_columns,
            "only these, `topic,body`, where `*` stands for all but those to be asked for; "
            "or `kafka` = the columns of Spark's Kafka source",
            shown="*",
        ),
    ] = COLUMN_NAMES
    include_headers: Annotated[
        bool, Option(values.parse_boolean, "with columns=kafka, the column headers too", shown="false")
    ] = False
    decompress: Annotated[bool, Option(values.parse_boolean, "inflate compressed bodies", shown="true")] = True
    verify_crc: Annotated[bool, Option(values.parse_boolean, "check the CRC of every body", shown="false")] = False
    mode: Annotated[
        Literal["FAILFAST", "PERMISSIVE"],
        Option(
            values.parse_mode,
            "a message whose body does not decompress, or with verifyCrc has another CRC: FAILFAST fails the query and names the "
            "message; PERMISSIVE gives a row with a null `body` and the reason in the column `_corrupt`",
            shown="FAILFAST",
        ),
    ] = "FAILFAST"

    consumer_group: Annotated[
        str | None, Option(values.parse_text, "the group of startingOffsets=group and commitOffsets")
    ] = None
    commit_offsets: Annotated[
        bool,
        Option(
            values.parse_boolean,
            "store finished offsets as consumerGroup's, where tools look",
            "streaming",
            "false",
        ),
    ] = False

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: Mode | None = None) -> SourceOptions:
        """Parse and check; with a `mode` also refuse what has no meaning in it.

        Raises UnknownOptionError, OptionError or OffsetJsonError.
        """
        given = given_options(options)
        kafka = given.get("columns", "").strip().lower() == "kafka"
        clients = [name for name in given if name.startswith("kafka.")]
        if clients and not kafka:
            ours = NAMES_ELSEWHERE.get(clients[0])
            hint = "options of Kafka's clients are accepted, and ignored, with columns=kafka only"
            raise UnknownOptionError(clients[0], ours, hint)
        if "kafka.bootstrap.servers" in given and not _PLACES & given.keys():
            raise OptionError(
                "nameServer", "kafka.bootstrap.servers names no RocketMQ: give nameServer (host:9876) or path"
            )
        for name in clients:
            del given[name]
        parsed = _TABLE.parse(given, mode)
        made = in_namespace(cls(**parsed))
        made._check()
        if mode == "batch":
            made._check_batch()
        return made

    def _check(self) -> None:
        if (self.path is not None) + bool(self.paths) + self.is_live != 1:
            raise OptionError(
                "path", "give the store to read, or the cluster: exactly one of path, paths and nameServer"
            )
        self.check_cluster()
        if self.is_live:
            self._refuse_options_of_stores()
        selectors = (self.topic, self.subscribe, self.subscribe_pattern, self.assign)
        if sum(bool(selector) for selector in selectors) != 1:
            raise OptionError("topic", "give exactly one of topic, subscribe, subscribePattern and assign")
        if self.allow_empty and self.subscribe_pattern is None:
            raise OptionError("allowEmpty", "belongs to subscribePattern; a topic that is named must be there")
        if self.consumer_group is None and (self.starting_offsets == "group" or self.commit_offsets):
            wanting = "commitOffsets" if self.commit_offsets else "startingOffsets=group"
            raise OptionError("consumerGroup", f"{wanting} needs it")
        if self.include_headers and not self.kafka_columns:
            raise OptionError("includeHeaders", "belongs to columns=kafka; ours has the column properties")
        if CORRUPT_COLUMN in self.columns and not self.permissive:
            raise OptionError("columns", f"the column {CORRUPT_COLUMN} needs mode=PERMISSIVE")
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise OptionError("minOffsetsPerTrigger", f"{least} is greater than maxOffsetsPerTrigger, {most}")

    def _refuse_options_of_stores(self) -> None:
        for name, is_given, rule in (
            ("conf", self.conf is not None, "a broker of a cluster knows its own settings"),
            ("brokerName", self.broker_name is not None, "the name servers know the brokers' names"),
            ("logical", self.logical, "static topics are read by physical queues here"),
            (
                "maxBytesPerTrigger",
                self.max_bytes_per_trigger is not None,
                "brokers do not tell sizes ahead; limit rows",
            ),
        ):
            if is_given:
                raise OptionError(name, f"is for stores (path), and has no meaning with nameServer: {rule}")
        if self.tags is not None and self.sub_expression is not None:
            raise OptionError("subExpression", "give one of tags and subExpression")
        _ = self.wanted_tags  # refuses what is no list of tags

    def _check_batch(self) -> None:
        start, end = self.batch_start, self.batch_end
        if start is Edge.LATEST:
            raise OptionError("startingOffsets", f"{_NOT_AT_LATEST}: write earliest, or read a stream")
        for limit, sentinel, rule in (
            (start, LATEST, f"{_NOT_AT_LATEST} (-1)"),
            (end, EARLIEST, "a batch query cannot end at the earliest offset"),
        ):
            if isinstance(limit, AtOffsets):
                for queue, offset in limit.offsets.items():
                    if offset == sentinel:
                        raise OptionError(limit.option, f"queue {queue}: {rule}")
        match start, end:
            case AtTime(TimePoint(first, before_now)), AtTime(TimePoint(last, last_before_now)) if (
                before_now == last_before_now and (first < last if before_now else first > last)
            ):
                raise OptionError("startingTimestamp", "is later than endingTimestamp")
            case AtTimes(option, starts), AtTimes(_, ends):
                _refuse_start_beyond_end(option, starts, ends)
            case AtOffsets(option, starts), AtOffsets(_, ends):
                _refuse_start_beyond_end(option, starts, ends)

    @property
    def stores(self) -> tuple[str, ...]:
        """`path` or `paths`."""
        return self.paths if self.path is None else (self.path,)

    @property
    def wanted_tags(self) -> tuple[str, ...] | None:
        """The tags of `tags`, or of `subExpression`; None = all."""
        if self.sub_expression is not None and self.expression_type == "TAG":
            return values.parse_tags(self.sub_expression, "subExpression")
        return self.tags

    @property
    def subscription(self) -> Subscription:
        return Subscription(
            topics=self.subscribe if self.topic is None else (self.topic,),
            pattern=self.subscribe_pattern,
            assigned=self.assign,
            queue_ids=self.queue_id,
            include_system_topics=self.include_system_topics,
        )

    @property
    def stream_start(self) -> Limit:
        """Where a streaming query without a checkpoint starts."""
        return self._start(Edge.LATEST)

    @property
    def batch_start(self) -> Limit:
        return self._start(Edge.EARLIEST)

    @property
    def batch_end(self) -> Limit:
        if self.ending_timestamp is not None:
            return AtTime(self.ending_timestamp)
        if self.ending_offsets_by_timestamp is not None:
            return AtTimes("endingOffsetsByTimestamp", self.ending_offsets_by_timestamp)
        return self.ending_offsets or Edge.LATEST

    def _start(self, default: Edge) -> Limit:
        strategy = self.starting_offsets_by_timestamp_strategy
        if self.starting_timestamp is not None:
            return AtTime(self.starting_timestamp, strategy)
        if self.starting_offsets_by_timestamp is not None:
            return AtTimes("startingOffsetsByTimestamp", self.starting_offsets_by_timestamp, strategy)
        if self.starting_offsets == "group":
            assert self.consumer_group is not None, "checked when parsed"
            return AtGroup(self.consumer_group)
        return self.starting_offsets or default

    @property
    def read_limits(self) -> ReadLimits:
        return ReadLimits(
            max_offsets=self.max_offsets_per_trigger,
            min_offsets=self.min_offsets_per_trigger,
            max_delay_ms=self.max_trigger_delay,
            max_bytes=self.max_bytes_per_trigger,
        )

    @property
    def kafka_columns(self) -> bool:
        """Whether rows have the columns of Spark's Kafka source."""
        return self.columns == KAFKA_COLUMN_NAMES

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of a row's columns, in order."""
        names = (*self.columns, KAFKA_HEADERS) if self.include_headers else self.columns
        return (*names, CORRUPT_COLUMN) if self.permissive and CORRUPT_COLUMN not in names else names

    @property
    def permissive(self) -> bool:
        """Whether a corrupt message is a row, and not the end of the query."""
        return self.mode == "PERMISSIVE"


_NOT_AT_LATEST = "a batch query cannot start at the latest offset"
_PLACES = frozenset({"path", "paths", "nameserver"})
_TABLE = OptionTable(SourceOptions, {})


def option_rows() -> list[OptionRow]:
    """The option table of docs/reading.md, in the order of declaration."""
    return _TABLE.rows()


def _refuse_start_beyond_end(option: str, starts: Mapping[NamedQueue, int], ends: Mapping[NamedQueue, int]) -> None:
    """Where both are given as numbers, it needs no store to see that they cross."""
    for queue, start in starts.items():
        end = ends.get(queue, LATEST)
        if 0 <= end < start:
            raise OptionError(option, f"queue {queue}: the start {start} is greater than the end {end}")


def in_namespace(options: SourceOptions) -> SourceOptions:
    """The options with the names of topics and of the group as brokers know them: option namespace. Java: NamespaceUtil.

    Rows, checkpoints and lags have these names too, so that the brokers' own stores can carry a checkpoint on.
    """
    namespace = options.namespace
    if namespace is None:
        return options
    pattern = options.subscribe_pattern
    return replace(
        options,
        topic=options.topic and with_namespace(namespace, options.topic),
        subscribe=tuple(with_namespace(namespace, topic) for topic in options.subscribe),
        subscribe_pattern=pattern and _pattern(namespace, pattern),
        assign=frozenset(_named(namespace, queue) for queue in options.assign),
        starting_offsets=_at(namespace, options.starting_offsets),
        ending_offsets=_at(namespace, options.ending_offsets),
        starting_offsets_by_timestamp=_by_name(namespace, options.starting_offsets_by_timestamp),
        ending_offsets_by_timestamp=_by_name(namespace, options.ending_offsets_by_timestamp),
        consumer_group=options.consumer_group and with_namespace(namespace, options.consumer_group),
    )


def _pattern(namespace: str, pattern: re.Pattern[str]) -> re.Pattern[str]:
    """Flags may stand at the beginning of a pattern only; they are among its flags anyway, and none of the namespace's."""
    return re.compile(f"(?-i:{re.escape(namespace)}%)(?:{_FLAGS.sub('', pattern.pattern)})", pattern.flags)


def _named(namespace: str, queue: NamedQueue) -> NamedQueue:
    return queue._replace(topic=with_namespace(namespace, queue.topic))


def _by_name(namespace: str, by_queue: Mapping[NamedQueue, int] | None) -> Mapping[NamedQueue, int] | None:
    return by_queue and {_named(namespace, queue): value for queue, value in by_queue.items()}


def _at(namespace: str, limit: _Limit) -> _Limit:
    if not isinstance(limit, AtOffsets):
        return limit
    return replace(limit, offsets=_by_name(namespace, limit.offsets) or {})
