"""Options of the Spark sink: names, meanings, defaults; parsed and checked once, at construction.

Each option is declared by one field of `SinkOptions` (`option_table.py`). Of what Spark puts beside them, `checkpointLocation` and
`queryName` are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, get_args

from spark_mq.conditions import OptionError
from spark_mq.option_table import Mode, Option, OptionRow, OptionTable, given_options
from spark_mq.source import option_values as values
from storage.batch.ledger import GROUP_PREFIX, UNNAMED_PREFIX
from storage.errors import ConfigurationError, NameIllegalError
from storage.files.remote import absolute_path, only_for_reading, plain_path
from storage.names import validate_broker_name, validate_group, validate_topic
from storage.put.settings import parse_host
from storage.settings.load import parse_broker_version
from storage.tables.topics import QUEUE_COUNT_LIMIT

OnInvalidRow = Literal["fail", "deadLetter"]
FlushDiskType = Literal["ASYNC_FLUSH", "SYNC_FLUSH"]

_SPARKS_OWN = ("checkpointlocation", "queryname")


def parse_store_host(text: str, option: str) -> str:
    """`address:port` at which a broker could be reached."""
    try:
        parse_host(text, option)
    except ConfigurationError as error:
        raise OptionError(option, error.rule) from error
    return text.strip()


def parse_queue_count(text: str, option: str) -> int:
    return values.parse_positive_long(text, option, QUEUE_COUNT_LIMIT)


def parse_on_invalid_row(text: str, option: str) -> str:
    return one_of(text, option, get_args(OnInvalidRow))


def parse_flush_disk_type(text: str, option: str) -> str:
    return one_of(text, option, get_args(FlushDiskType))


def parse_topic(text: str, option: str) -> str:
    try:
        return validate_topic(values.parse_text(text, option))
    except NameIllegalError as error:
        raise OptionError(option, str(error)) from error


def parse_broker_name(text: str, option: str) -> str:
    try:
        return validate_broker_name(values.parse_text(text, option))
    except NameIllegalError as error:
        raise OptionError(option, str(error)) from error


def parse_rocketmq_version(text: str, option: str) -> str:
    try:
        parse_broker_version(text)
    except ValueError as rule:
        raise OptionError(option, str(rule)) from None
    return text.strip()


def parse_sink_id(text: str, option: str) -> str:
    """A name that can end a consumer group's, and is none of those that unnamed writes get."""
    name = values.parse_text(text, option)
    if name.startswith(UNNAMED_PREFIX):
        raise OptionError(option, f"{name!r} begins with {UNNAMED_PREFIX}, as the names of writes without one do")
    try:
        validate_group(GROUP_PREFIX + name)
    except NameIllegalError as error:
        raise OptionError(option, f"it names a consumer group: {error}") from error
    return name


def parse_group(text: str, option: str) -> str:
    try:
        return validate_group(values.parse_text(text, option))
    except NameIllegalError as error:
        raise OptionError(option, str(error)) from error


def parse_times(text: str, option: str) -> int:
    """A whole number from 0 that Java's int can hold."""
    return 0 if re.fullmatch("0+", text.strip()) else values.parse_positive_int(text, option)


def one_of(text: str, option: str, known: tuple[str, ...]) -> str:
    """The known name that the text is, in whatever case."""
    by_lower = {name.lower(): name for name in known}
    found = by_lower.get(text.strip().lower())
    if found is None:
        raise OptionError(option, f"expected {' or '.join(known)}, found {text!r}")
    return found


# Options of both sinks, of stores and of clusters.
OneTopic = Annotated[
    str | None,
    Option(parse_topic, "the topic of all rows; it comes before the column topic", shown="each row's column topic"),
]
WriteToSource = Annotated[
    bool,
    Option(
        values.parse_boolean,
        "let this query write into a topic that it reads, where each row comes back to it; else that is refused where it is seen",
        "streaming",
        "false",
    ),
]
CompressBodyOver = Annotated[
    int | None,
    Option(values.parse_size_bytes, "compress bodies of at least so many bytes (`4k`), as clients do", shown="off"),
]
KeepUniqueKey = Annotated[
    bool,
    Option(values.parse_boolean, "keep the row's unique_key where it has one; else each gets a new one", shown="false"),
]
StrictProperties = Annotated[
    bool,
    Option(
        values.parse_boolean,
        "properties that only brokers and clients set make a row invalid; else they are dropped",
        shown="false",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """How rows are to be written. `parse` makes it and refuses what makes no sense."""

    path: Annotated[str, Option(values.parse_store_path, "the store: a local directory, made where it is missing")]
    conf: Annotated[
        str | None,
        Option(values.parse_path, "the broker's configuration file", shown="broker.conf beside or in the store"),
    ] = None
    broker_name: Annotated[
        str | None, Option(parse_broker_name, "the name of the store's broker", shown="as the store tells")
    ] = None
    store_host: Annotated[
        str | None,
        Option(
            parse_store_host,
            "`address:port` of the broker that will serve the store, for records and message ids; another one than brokerIP1 in "
            "broker.conf says, or than the running broker's, is refused",
            shown="as broker.conf, broker or last record tells, else 127.0.0.1:10911",
        ),
    ] = None
    rocketmq_version: Annotated[
        str | None,
        Option(
            parse_rocketmq_version,
            "the release of the store's broker (`4.9.7`); what it cannot read is refused",
            shown="rocketmqVersion in broker.conf, else 5.3",
        ),
    ] = None
    topic: OneTopic = None
    write_to_source: WriteToSource = False
    create_topic: Annotated[
        bool | None,
        Option(
            values.parse_boolean,
            "make missing topics; else their rows are invalid",
            shown="autoCreateTopicEnable in broker.conf, else true",
        ),
    ] = None
    queue_num: Annotated[
        int | None,
        Option(
            parse_queue_count,
            "queues of a topic that is made, or as many as its rows name (at most 4096); where it is given, a topic that is there "
            "gets, up to so many, the queues that rows name",
            shown="the template's: defaultTopicQueueNums in broker.conf, else 8",
        ),
    ] = None
    flush_disk_type: Annotated[
        FlushDiskType | None,
        Option(
            parse_flush_disk_type,
            "SYNC_FLUSH syncs the log before a batch counts as done; with ASYNC_FLUSH the staged rows make it whole after a power loss",
            shown="broker.conf's, else ASYNC_FLUSH",
        ),
    ] = None
    in_sync_replicas: Annotated[
        int | None,
        Option(
            values.parse_positive_int,
            "how many copies a batch has, the master's among them, when it counts as done; more than one needs a running "
            "`spark-mq broker` or `spark-mq replicate`",
            shown="inSyncReplicas in broker.conf with brokerRole=SYNC_MASTER, else 1",
        ),
    ] = None
    slave_timeout: Annotated[
        int | None,
        Option(
            values.parse_duration_ms,
            "how long a batch in the log may lack copies before the write fails; the next try waits on",
            shown="slaveTimeout in broker.conf, else 3s",
        ),
    ] = None
    lock_timeout: Annotated[
        int,
        Option(
            values.parse_duration_ms, "how long to wait for a store that another writer or a broker holds", shown="60s"
        ),
    ] = 60_000
    compress_body_over: CompressBodyOver = None
    keep_unique_key: KeepUniqueKey = False
    strict_properties: StrictProperties = False
    on_invalid_row: Annotated[
        OnInvalidRow,
        Option(parse_on_invalid_row, "fail the batch, or deadLetter: put such rows aside and go on", shown="fail"),
    ] = "fail"
    dead_letter_path: Annotated[
        str | None,
        Option(
            values.parse_path, "local directory for invalid rows, as Parquet with their error; appears with the batch"
        ),
    ] = None
    transactional: Annotated[
        bool,
        Option(
            values.parse_boolean,
            "rows are transactions: each is put as a half message, and ended in the same batch as its transaction_state says",
            shown="false",
        ),
    ] = False
    producer_group: Annotated[
        str | None,
        Option(
            parse_group,
            "with transactional: whom a broker asks back about all rows; it comes before the column producer_group",
        ),
    ] = None
    send_back: Annotated[
        bool,
        Option(
            values.parse_boolean,
            "rows are messages that consumers failed on: they go to the group's retry topic, or to its dead letters, in one batch",
            shown="false",
        ),
    ] = False
    consumer_group: Annotated[str | None, Option(parse_group, "with sendBack: whose consumers failed")] = None
    max_reconsume_times: Annotated[
        int | None,
        Option(
            parse_times,
            "with sendBack or retry_group: how often a message is tried again before it becomes a dead letter",
            shown="the group's retryMaxTimes, else 16",
        ),
    ] = None
    write_id: Annotated[
        str | None,
        Option(parse_sink_id, "the name of this write: a second one of that name writes nothing", "batch"),
    ] = None
    sink_id: Annotated[
        str | None,
        Option(
            parse_sink_id,
            "the name under which the store keeps what it has taken; lets a lost checkpoint be noticed",
            "streaming",
            "the query's id",
        ),
    ] = None
    sink_takeover: Annotated[
        bool,
        Option(
            values.parse_boolean,
            "let this query go on under a sinkId that another one used, or pass over batches that another run of it has written, or "
            "this one with other rows: the store gets none of the rows that they bring now",
            "streaming",
            "false",
        ),
    ] = False

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: Mode) -> SinkOptions:
        """Parse and check. Relative paths are this process's, and no longer relative: tasks have other working directories.

        Raises UnknownOptionError or OptionError.
        """
        given = given_options(options)
        if mode == "streaming":
            for name in _SPARKS_OWN:
                given.pop(name, None)
        parsed = _TABLE.parse(given, mode)
        for name in ("path", "conf", "dead_letter_path"):
            if name in parsed:
                parsed[name] = absolute_path(parsed[name])
        if "path" not in parsed:
            rule = "give the store to write: save(path), start(path) or option path; or a running cluster, nameServer"
            raise OptionError("path", rule)
        made = cls(**parsed)
        made._check()
        return made

    @property
    def root(self) -> str:
        """The store's directory."""
        return plain_path(self.path).rstrip("/") or "/"

    def _check(self) -> None:
        if rule := only_for_reading(self.path):
            raise OptionError("path", f"{self.path}: {rule}")
        check_dead_letters(self.on_invalid_row, self.dead_letter_path)
        self._check_transactions()
        check_send_back(self)

    def _check_transactions(self) -> None:
        if self.producer_group is not None and not self.transactional:
            raise OptionError(
                "producerGroup", "belongs to transactional=true; ordinary messages have no producer group"
            )


class ReturnOptions(Protocol):
    """What the options of either sink say of rows that are sent back, and of what does not go with them."""

    @property
    def send_back(self) -> bool: ...

    @property
    def consumer_group(self) -> str | None: ...

    @property
    def transactional(self) -> bool: ...

    @property
    def topic(self) -> str | None: ...

    @property
    def compress_body_over(self) -> int | None: ...

    @property
    def keep_unique_key(self) -> bool: ...

    @property
    def strict_properties(self) -> bool: ...


def check_dead_letters(on_invalid_row: OnInvalidRow, path: str | None) -> None:
    """Raises OptionError where one of them is given without the other, or where nobody can write there."""
    if path is not None and (rule := only_for_reading(path)):
        raise OptionError("deadLetterPath", f"{path}: {rule}")
    if on_invalid_row == "deadLetter" and path is None:
        raise OptionError("deadLetterPath", "onInvalidRow=deadLetter needs it")
    if path is not None and on_invalid_row != "deadLetter":
        raise OptionError("deadLetterPath", "belongs to onInvalidRow=deadLetter")


def check_send_back(options: ReturnOptions) -> None:
    """Raises OptionError for what does not go together with sendBack, or without it."""
    if options.transactional and options.send_back:
        raise OptionError("sendBack", "is not for transactional=true: what a consumer gives back is no transaction")
    if options.send_back and options.consumer_group is None:
        raise OptionError("consumerGroup", "sendBack=true needs it: whose consumers failed")
    if options.consumer_group is not None and not options.send_back:
        raise OptionError("consumerGroup", "belongs to sendBack=true")
    if options.send_back:
        for option, is_given in (
            ("topic", options.topic is not None),
            ("compressBodyOver", options.compress_body_over is not None),
            ("keepUniqueKey", options.keep_unique_key),
            ("strictProperties", options.strict_properties),
        ):
            if is_given:
                raise OptionError(option, "has no meaning with sendBack=true: messages go back as they were consumed")


_OF_CLUSTERS = "belongs to nameServer, and a store is written (path)"
_NOT_FOR_STORES = dict.fromkeys(
    (
        *("namespace", "accessKey", "secretKey", "securityToken"),
        *("tls", "tlsVerify", "tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsKeyPassword", "tlsServerName"),
        *("guarantee", "stagingPath", "acks", "sendTimeout", "retryTimeout", "fenceTimeout", "batchBytes"),
        *("requestTimeout", "maxMessageSize"),
    ),
    _OF_CLUSTERS,
)

_TABLE = OptionTable(SinkOptions, _NOT_FOR_STORES)


def sink_option_rows() -> list[OptionRow]:
    """The option table of docs/writing.md, in the order of declaration."""
    return _TABLE.rows()
