"""Options of the Spark source: names, meanings, defaults; parsed and checked once, at construction.

Each option is declared by one field of `SourceOptions` (`spark_mq/options.py`). With `columns=kafka` the client options of a Kafka job
(`kafka.*`) are accepted and ignored.

Spark: KafkaSourceProvider.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Literal, TypeVar

from spark_mq.client.settings import with_namespace
from spark_mq.conditions import OptionError, UnknownOptionError
from spark_mq.options import (
    MAX_INT,
    NAMES_ELSEWHERE,
    ClusterOptions,
    Mode,
    Option,
    OptionRow,
    OptionTable,
    TimePoint,
    given_options,
    option_name,
    parse_boolean,
    parse_comma_list,
    parse_duration_ms,
    parse_path,
    parse_positive_int,
    parse_positive_long,
    parse_size_bytes,
    parse_store_path,
    parse_text,
    parse_time,
)
from spark_mq.source.archive_table import Place
from spark_mq.source.offsets import EARLIEST, LATEST, NamedQueue, load_json, parse_assignment, parse_positions
from spark_mq.source.ranges import ReadLimits, Subscription
from spark_mq.source.rows import COLUMN_NAMES, COLUMNS, CORRUPT_COLUMN, KAFKA_COLUMN_NAMES, KAFKA_HEADERS
from spark_mq.source.starting_offsets import (
    AtGroup,
    AtOffsets,
    AtTime,
    AtTimes,
    Edge,
    Limit,
    NoMatch,
)
from storage.epoch_times import other_unit_rule
from storage.names import advice

_FLAGS = re.compile(r"^(\(\?[aimsux]+\))+")
_Limit = TypeVar("_Limit")


_NOT_IN_A_TAG = re.compile(r"""[\s,;|*'"]""")
_PLAIN_TAG = re.compile(r"[\w.%-]+")
_BETWEEN_TAGS = re.compile(r"""(?:[\s,;|'"]|\b(?:OR|AND|or|and)\b(?=\s))+""")


def parse_paths(text: str, option: str) -> tuple[str, ...]:
    """A JSON list, as Spark hands on `load([a, b])`."""
    paths = load_json(text, option)
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        raise OptionError(option, f"expected a JSON list of paths, found {text!r}")
    return tuple(parse_store_path(path, option) for path in paths)


def parse_storage(text: str, option: str) -> Mapping[str, str]:
    """A JSON object of texts. No value is repeated in an error."""
    found = load_json(text, option)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise OptionError(option, 'expected a JSON object of texts, such as {"AWS_REGION": "eu-central-1"}')
    return found


def parse_pattern(text: str, option: str) -> re.Pattern[str]:
    try:
        return re.compile(parse_text(text, option), re.ASCII)  # as in Java, \d and \w are ASCII
    except re.error as error:
        raise OptionError(option, f"{text!r} is not a regular expression: {error}; .* stands for any text") from error


def parse_queue_ids(text: str, option: str) -> tuple[int, ...]:
    parts = parse_comma_list(text, option)
    if not all(re.fullmatch(r"[0-9]{1,10}", part) and int(part) <= MAX_INT for part in parts):
        raise OptionError(option, f"expected queue ids separated by commas, found {text!r}")
    return tuple(sorted({int(part) for part in parts}))


def parse_start(text: str, option: str) -> Edge | Literal["group"] | AtOffsets:
    match text.strip().lower():
        case "earliest":
            return Edge.EARLIEST
        case "latest":
            return Edge.LATEST
        case "group":
            return "group"
    if not text.strip().startswith("{"):
        raise OptionError(option, f"expected earliest, latest, group or JSON with offsets, found {text!r}")
    return AtOffsets(option, parse_positions(text, option, lowest=EARLIEST))


def parse_end(text: str, option: str) -> Edge | AtOffsets:
    match text.strip().lower():
        case "latest":
            return Edge.LATEST
        case "earliest":
            raise OptionError(option, "a batch query cannot end at the earliest offset")
    if not text.strip().startswith("{"):
        raise OptionError(option, f"expected latest or JSON with offsets, found {text!r}")
    return AtOffsets(option, parse_positions(text, option, lowest=EARLIEST))


def parse_times(text: str, option: str) -> dict[NamedQueue, int]:
    """ms since the epoch for each queue."""
    times_ms = parse_positions(text, option)
    for queue, time_ms in times_ms.items():
        if rule := other_unit_rule(time_ms):
            raise OptionError(option, f"queue {queue}: {rule}")
    return times_ms


def parse_no_match(text: str, option: str) -> NoMatch:
    try:
        return NoMatch(text.strip().lower())
    except ValueError as error:
        raise OptionError(option, f"expected error or latest, found {text!r}") from error


def parse_mode(text: str, option: str) -> Literal["FAILFAST", "PERMISSIVE"]:
    match text.strip().upper():
        case "FAILFAST":
            return "FAILFAST"
        case "PERMISSIVE":
            return "PERMISSIVE"
        case "DROPMALFORMED":
            raise OptionError(option, "no message is dropped unseen: use PERMISSIVE and filter on `_corrupt IS NULL`")
    raise OptionError(option, f"expected FAILFAST or PERMISSIVE, found {text!r}")


def parse_tags(text: str, option: str) -> tuple[str, ...] | None:
    """Names between `||`, blanks around them dropped; `*` or nothing is None = all (FilterAPI.buildSubscriptionData).

    Java takes anything between two `||` for a tag. Here a name is refused that is more likely a list in another language, or a
    pattern: nothing would match it. A message may have such a tag; Spark's `where` finds it.
    """
    if text.strip() in ("", "*"):
        return None
    tags = tuple(dict.fromkeys(tag.strip() for tag in text.split("||") if tag.strip()))
    if not tags:
        raise OptionError(option, f"expected tags separated by || or *, found {text!r}")
    for tag in tags:
        if found := _NOT_IN_A_TAG.search(tag):
            raise OptionError(option, _tags_rule(text, tag, found[0]))
    return tags


def _tags_rule(text: str, tag: str, character: str) -> str:
    where = f'for a tag that holds it write .where("tags = {tag!r}")'
    if character == "*":
        return f"{tag!r} is no pattern: * stands alone, for all tags, and RocketMQ has no other; {where}"
    names = [name for name in _BETWEEN_TAGS.split(text) if name]
    if not all(map(_PLAIN_TAG.fullmatch, names)):  # an expression, which no list of tags can say
        return f"it takes tags separated by ||, as 'TagA || TagB', and {tag!r} holds {character!r}; {where}"
    return f"tags are separated by ||, and {tag!r} holds {character!r}: write {' || '.join(names)!r}; {where}"


def parse_expression_type(text: str, option: str) -> Literal["TAG", "SQL92"]:
    match text.strip().upper():
        case "TAG":
            return "TAG"
        case "SQL92":
            return "SQL92"
    raise OptionError(option, f"expected TAG or SQL92, found {text!r}")


def parse_columns(text: str, option: str) -> tuple[str, ...]:
    """`kafka`, or names of our columns between commas, in the order wanted; `*` stands for COLUMN_NAMES."""
    if text.strip().lower() == "kafka":
        return KAFKA_COLUMN_NAMES
    columns: list[str] = []
    for part in text.split(","):
        columns += COLUMN_NAMES if part.strip() == "*" else [part.strip()]
    for column in columns:
        if column not in COLUMNS:
            if column in (*KAFKA_COLUMN_NAMES, KAFKA_HEADERS):
                rule = f"there is no column {column!r}: write columns=kafka for Kafka's columns"
                raise OptionError(option, rule + (", with includeHeaders=true" if KAFKA_HEADERS in text else ""))
            instead = advice(column, COLUMNS) or f"; there are {', '.join(COLUMNS)}"
            raise OptionError(option, f"there is no column {column!r}{instead}")
    if len(set(columns)) != len(columns):
        raise OptionError(option, f"a column is named twice in {text!r}")
    return tuple(columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ClusterOptions):
    """A reader's options. `parse` makes them and refuses values that make no sense."""

    sub_expression: Annotated[
        str | None,
        Option(parse_text, "the brokers' filter, in place of tags: `TagA || TagB`, or SQL92"),
    ] = None
    expression_type: Annotated[
        Literal["TAG", "SQL92"],
        Option(
            parse_expression_type,
            "the language of subExpression: TAG, or SQL92 (needs enablePropertyFilter at the brokers)",
            shown="TAG",
        ),
    ] = "TAG"
    pull_timeout: Annotated[
        int,
        Option(
            parse_duration_ms,
            "how long driver and tasks try to reach a broker before the query fails",
            shown="2m",
        ),
    ] = 120_000
    pull_from_slave: Annotated[
        bool,
        Option(parse_boolean, "read from a slave when the master suggests it"),
    ] = False

    path: Annotated[
        str | None,
        Option(parse_store_path, "a store, or a directory of stores (a cluster); local or any fsspec URL"),
    ] = None
    paths: Annotated[
        tuple[str, ...],
        Option(parse_paths, "several stores as a JSON list; `load([a, b])` sets it"),
    ] = ()
    conf: Annotated[
        str | None,
        Option(parse_path, "the broker's configuration file", shown="broker.conf beside or in the store"),
    ] = None
    broker_name: Annotated[str | None, Option(parse_text, "the name of the store's broker", shown="from the store")] = (
        None
    )

    archive: Annotated[
        str | None,
        Option(
            parse_store_path,
            "a Delta table of `spark-mq job archive`: what the log no longer has is read from there; alone, without path and "
            "nameServer, only the table is read",
        ),
    ] = None
    archive_storage: Annotated[
        Mapping[str, str] | None,
        Option(parse_storage, "the table's storage options, as delta-rs names them, as a JSON object; never shown"),
    ] = field(default=None, repr=False)

    topic: Annotated[str | None, Option(parse_text, "the one topic to read")] = None
    subscribe: Annotated[tuple[str, ...], Option(parse_comma_list, "topics to read: `a,b`")] = ()
    subscribe_pattern: Annotated[
        re.Pattern[str] | None,
        Option(parse_pattern, "regular expression that the whole name of a topic matches"),
    ] = None
    assign: Annotated[
        frozenset[NamedQueue],
        Option(parse_assignment, 'queues to read: `{"t": {"broker-a": [0, 1]}}`, with one broker `{"t": [0, 1]}`'),
    ] = frozenset()
    allow_empty: Annotated[
        bool,
        Option(parse_boolean, "subscribePattern may match no topic (yet); else that is an error"),
    ] = False
    include_system_topics: Annotated[
        bool,
        Option(parse_boolean, "subscribePattern also matches RocketMQ's own topics"),
    ] = False
    logical: Annotated[
        bool,
        Option(
            parse_boolean,
            "show static topics with logical queues and offsets, like clients, and broker `__syslo__global__`; "
            "else with physical ones",
        ),
    ] = False
    queue_id: Annotated[tuple[int, ...], Option(parse_queue_ids, "only these queues of the topics: `0,1`")] = ()

    starting_offsets: Annotated[
        Edge | Literal["group"] | AtOffsets | None,
        Option(
            parse_start,
            "where a new query starts: earliest, latest (streaming), group (the stored offsets of "
            'consumerGroup), or JSON with every queue: `{"t": {"broker-a": {"0": 12}}}`, -2 earliest, -1 latest',
            shown="latest (streaming), earliest (batch)",
        ),
    ] = None
    starting_timestamp: Annotated[
        TimePoint | None,
        Option(
            parse_time,
            "start at the first message stored at or after this time: ms since the epoch, ISO-8601 (default "
            "UTC), or `-10m` before the query's start; overrides startingOffsetsByTimestamp and startingOffsets",
        ),
    ] = None
    starting_offsets_by_timestamp: Annotated[
        Mapping[NamedQueue, int] | None,
        Option(parse_times, "the same in ms for each queue, as JSON; overrides startingOffsets"),
    ] = None
    starting_offsets_by_timestamp_strategy: Annotated[
        NoMatch | None,
        Option(
            parse_no_match,
            "for a queue without such a message: error, or latest (start at its end). An empty queue starts at its end",
            shown="error; latest for `-10m`",
        ),
    ] = None
    ending_offsets: Annotated[
        Edge | AtOffsets | None,
        Option(parse_end, "where to stop, exclusive: latest, or JSON, -1 latest", "batch", "latest"),
    ] = None
    ending_timestamp: Annotated[
        TimePoint | None,
        Option(
            parse_time,
            "stop before the first message stored at or after this time; overrides endingOffsetsByTimestamp and "
            "endingOffsets",
            "batch",
        ),
    ] = None
    ending_offsets_by_timestamp: Annotated[
        Mapping[NamedQueue, int] | None,
        Option(parse_times, "the same in ms for each queue, as JSON; overrides endingOffsets", "batch"),
    ] = None
    fail_on_data_loss: Annotated[
        bool,
        Option(
            parse_boolean,
            "fail when unread messages expired, or a topic was deleted or recreated; else warn and continue",
        ),
    ] = True

    max_offsets_per_trigger: Annotated[
        int | None,
        Option(parse_positive_long, "maximum rows of a micro-batch, shared among queues by their backlog", "streaming"),
    ] = None
    min_offsets_per_trigger: Annotated[
        int | None, Option(parse_positive_long, "minimum rows of a micro-batch", "streaming")
    ] = None
    max_trigger_delay: Annotated[
        int,
        Option(parse_duration_ms, "maximum wait for minOffsetsPerTrigger", "streaming", "15m"),
    ] = 15 * 60 * 1000
    max_bytes_per_trigger: Annotated[
        int | None,
        Option(
            parse_size_bytes,
            "maximum bytes of a micro-batch (`64m`), but at least one message a queue",
            "streaming",
        ),
    ] = None
    min_partitions: Annotated[
        int | None, Option(parse_positive_int, "split large queues into about this many partitions")
    ] = None
    max_records_per_partition: Annotated[int | None, Option(parse_positive_long, "maximum rows of one partition")] = (
        None
    )

    tags: Annotated[
        tuple[str, ...] | None,
        Option(parse_tags, "only messages with one of these tags: `TagA || TagB`", shown="*"),
    ] = None
    key: Annotated[
        str | None,
        Option(parse_text, "only messages with this key or unique key, through the index", "batch"),
    ] = None
    push_down: Annotated[
        bool,
        Option(
            parse_boolean,
            "let Spark's pushed filters reduce the read; only for a DataFrame that is used with one filter",
            "batch",
        ),
    ] = False
    columns: Annotated[
        tuple[str, ...],
        Option(
            parse_columns,
            "only these (`topic,body`), where `*` means all default columns; or `kafka`: the columns of Spark's "
            "Kafka source",
            shown="*",
        ),
    ] = COLUMN_NAMES
    include_headers: Annotated[bool, Option(parse_boolean, "with columns=kafka: add the column headers")] = False
    decompress: Annotated[bool, Option(parse_boolean, "decompress bodies")] = True
    verify_crc: Annotated[bool, Option(parse_boolean, "check the CRC of every body")] = False
    mode: Annotated[
        Literal["FAILFAST", "PERMISSIVE"],
        Option(
            parse_mode,
            "for a body that does not decompress, or with verifyCrc has a wrong CRC: FAILFAST fails the query "
            "and names the message; PERMISSIVE returns a row with null `body` and the reason in column `_corrupt`",
            shown="FAILFAST",
        ),
    ] = "FAILFAST"

    consumer_group: Annotated[
        str | None, Option(parse_text, "the group for startingOffsets=group and commitOffsets")
    ] = None
    commit_offsets: Annotated[
        bool,
        Option(
            parse_boolean,
            "store finished offsets as offsets of consumerGroup, for RocketMQ's tools",
            "streaming",
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
        places = (self.path is not None) + bool(self.paths) + self.is_live
        if places > 1 or (not places and self.archive is None):
            raise OptionError(
                "path", "give the store to read, or the cluster: exactly one of path, paths and nameServer"
            )
        if self.archive_storage is not None and self.archive is None:
            raise OptionError("archiveStorage", "belongs to archive, and no archive is given")
        if self.archive is not None and self.expression_type != "TAG":
            raise OptionError(
                "expressionType", "SQL92 is the brokers' filter, and an archive has none: use tags, or where"
            )
        if self.archive is not None and self.logical:
            raise OptionError("logical", "an archive has physical queues: read it without logical=true")
        self._check_cluster()
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

    def _check_cluster(self) -> None:
        if not self.is_live:
            for each in fields(self):
                if each.name in _OF_CLUSTERS and getattr(self, each.name) != each.default:
                    raise OptionError(option_name(each.name), "belongs to nameServer, and stores are read (path)")
            return
        self.check_access()
        if self.expression_type != "TAG" and self.sub_expression is None:
            raise OptionError("expressionType", "needs subExpression")
        self._refuse_options_of_stores()

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
    def place_option(self) -> str:
        """The option that says where the data is, for texts."""
        return "nameServer" if self.is_live else "path" if self.stores else "archive"

    @property
    def stores(self) -> tuple[str, ...]:
        """`path` or `paths`."""
        return self.paths if self.path is None else (self.path,)

    @property
    def archive_place(self) -> Place | None:
        """The table of option archive."""
        return None if self.archive is None else Place.of(self.archive, self.archive_storage)

    @property
    def wanted_tags(self) -> tuple[str, ...] | None:
        """The tags of `tags`, or of `subExpression`; None = all."""
        if self.sub_expression is not None and self.expression_type == "TAG":
            return parse_tags(self.sub_expression, "subExpression")
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
        """The start of a streaming query without a checkpoint."""
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
_OF_CLUSTERS = {"sub_expression", "expression_type", "pull_timeout", "pull_from_slave"} | {
    each.name for each in fields(ClusterOptions)
}
_TABLE = OptionTable(SourceOptions)


def option_rows() -> list[OptionRow]:
    """The option table of docs/reading.md, in the order of declaration."""
    return _TABLE.rows()


def _refuse_start_beyond_end(option: str, starts: Mapping[NamedQueue, int], ends: Mapping[NamedQueue, int]) -> None:
    """Refuse a start after the end if both are numbers; this check needs no store."""
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
