"""Options of the Spark sink: names, meanings, defaults; parsed and checked once, at construction.

    RowOptions            how rows are written, for both sinks
      SinkOptions         into a store (`path`)
      LiveSinkOptions     into a cluster of running brokers (`nameServer`)

Each option is declared by one field (`spark_mq/options.py`). Spark's own `checkpointLocation` and `queryName` are ignored here; a
cluster's staging directory lies beside the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Literal, get_args

from spark_mq.conditions import OptionError
from spark_mq.options import (
    ClusterOptions,
    Guarantee,
    Mode,
    Option,
    OptionRow,
    OptionTable,
    given_options,
    option_name,
    parse_boolean,
    parse_duration_ms,
    parse_path,
    parse_positive_int,
    parse_positive_long,
    parse_size_bytes,
    parse_store_path,
    parse_text,
)
from spark_mq.remoting.frames import MOST_BODY_BYTES
from storage.batch.ledger import GROUP_PREFIX, UNNAMED_PREFIX
from storage.errors import ConfigurationError, NameIllegalError
from storage.files.remote import absolute_path, only_for_reading, plain_path
from storage.names import validate_broker_name, validate_group, validate_topic
from storage.put.settings import parse_host
from storage.rules.inner_messages import MAX_MESSAGE_SIZE
from storage.settings.nouns import parse_broker_version
from storage.tables.topics import QUEUE_COUNT_LIMIT

OnInvalidRow = Literal["fail", "deadLetter"]
FlushDiskType = Literal["ASYNC_FLUSH", "SYNC_FLUSH"]
Acks = Literal["stored", "all"]

DEFAULT_GROUP = "SPARK_MQ_SINK"
MOST_BATCH_BYTES = MAX_MESSAGE_SIZE
"""The default limit of brokers. Java: MessageExtEncoder.encode(MessageExtBatch)."""
QUERY_PROPERTY = "SPARK_MQ_QUERY"
BATCH_PROPERTY = "SPARK_MQ_BATCH"
"""By these a transaction check finds the checkpoint, and there whether a half's micro-batch was committed."""

_STAGING_SUFFIX = ".spark_mq"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def parse_store_host(text: str, option: str) -> str:
    """`address:port` at which a broker could be reached."""
    try:
        parse_host(text, option)
    except ConfigurationError as error:
        raise OptionError(option, error.rule) from error
    return text.strip()


def parse_queue_count(text: str, option: str) -> int:
    return parse_positive_long(text, option, QUEUE_COUNT_LIMIT)


def parse_on_invalid_row(text: str, option: str) -> str:
    return one_of(text, option, get_args(OnInvalidRow))


def parse_flush_disk_type(text: str, option: str) -> str:
    return one_of(text, option, get_args(FlushDiskType))


def parse_topic(text: str, option: str) -> str:
    try:
        return validate_topic(parse_text(text, option))
    except NameIllegalError as error:
        raise OptionError(option, str(error)) from error


def parse_broker_name(text: str, option: str) -> str:
    try:
        return validate_broker_name(parse_text(text, option))
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
    name = parse_text(text, option)
    if name.startswith(UNNAMED_PREFIX):
        raise OptionError(option, f"{name!r} begins with {UNNAMED_PREFIX}, as the names of writes without one do")
    try:
        validate_group(GROUP_PREFIX + name)
    except NameIllegalError as error:
        raise OptionError(option, f"it names a consumer group: {error}") from error
    return name


def parse_group(text: str, option: str) -> str:
    try:
        return validate_group(parse_text(text, option))
    except NameIllegalError as error:
        raise OptionError(option, str(error)) from error


def parse_times(text: str, option: str) -> int:
    """A whole number from 0 that Java's int can hold."""
    return 0 if re.fullmatch("0+", text.strip()) else parse_positive_int(text, option)


def one_of(text: str, option: str, known: tuple[str, ...]) -> str:
    """The known name that the text is, in whatever case."""
    by_lower = {name.lower(): name for name in known}
    found = by_lower.get(text.strip().lower())
    if found is None:
        raise OptionError(option, f"expected {' or '.join(known)}, found {text!r}")
    return found


def parse_guarantee(text: str, option: str) -> str:
    return one_of(text, option, get_args(Guarantee))


def parse_acks(text: str, option: str) -> str:
    return one_of(text, option, get_args(Acks))


def parse_batch_bytes(text: str, option: str) -> int:
    """A request's size; brokers answer a larger one with an error that says nothing of it, each time it is sent."""
    size = parse_size_bytes(text, option)
    if size > MOST_BATCH_BYTES:
        raise OptionError(option, f"a broker takes up to {MOST_BATCH_BYTES >> 20}m (maxMessageSize), found {text!r}")
    return size


def parse_message_size(text: str, option: str) -> int:
    """The largest body; of a larger one no frame would come through."""
    size = parse_size_bytes(text, option)
    if size > MOST_BODY_BYTES:
        raise OptionError(option, f"a frame of 16m carries bodies of up to {MOST_BODY_BYTES} bytes, found {text!r}")
    return size


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Options of both sinks for the writing of rows, and the sink's name."""

    topic: Annotated[
        str | None,
        Option(parse_topic, "the topic of all rows; overrides column topic", shown="each row's column topic"),
    ] = None
    write_to_source: Annotated[
        bool,
        Option(
            parse_boolean,
            "allow the query to write into a topic that it reads, so that each row comes back; else the sink "
            "refuses what it can detect",
            "streaming",
        ),
    ] = False
    compress_body_over: Annotated[
        int | None,
        Option(parse_size_bytes, "compress bodies of at least this size (`4k`), as clients do", shown="off"),
    ] = None
    keep_unique_key: Annotated[
        bool, Option(parse_boolean, "keep the row's unique_key if it has one; else each row gets a new one")
    ] = False
    strict_properties: Annotated[
        bool,
        Option(
            parse_boolean,
            "properties that are reserved for brokers and clients make a row invalid; else they are dropped",
        ),
    ] = False
    on_invalid_row: Annotated[
        OnInvalidRow,
        Option(
            parse_on_invalid_row,
            "fail the write, or deadLetter: put invalid rows aside and continue",
            shown="fail",
            guarantee="atLeastOnce",
        ),
    ] = "fail"
    dead_letter_path: Annotated[
        str | None,
        Option(
            parse_path,
            "a local directory, shared by driver and workers, for invalid rows with their error (Parquet); files "
            "appear with the batch",
            guarantee="atLeastOnce",
        ),
    ] = None
    transactional: Annotated[
        bool,
        Option(
            parse_boolean,
            "each row is a transaction: first a half message, then ended by its transaction_state. In a store "
            "both are in one batch; at a cluster a task ends its transactions when all its rows are stored",
            guarantee="atLeastOnce",
        ),
    ] = False
    send_back: Annotated[
        bool,
        Option(
            parse_boolean,
            "rows are messages of this store or cluster whose consumption failed: they go to the group's retry "
            "topic, or to its dead letters",
            guarantee="atLeastOnce",
        ),
    ] = False
    consumer_group: Annotated[str | None, Option(parse_group, "with sendBack: the group whose consumption failed")] = (
        None
    )
    max_reconsume_times: Annotated[
        int | None,
        Option(
            parse_times,
            "with sendBack or retry_group: retries of a message before it becomes a dead letter",
            shown="the group's retryMaxTimes, else 16",
        ),
    ] = None
    lock_timeout: Annotated[
        int,
        Option(
            parse_duration_ms,
            "how long a commit waits for another process that holds the store or commits for the same sink",
            shown="60s",
        ),
    ] = 60_000
    write_id: Annotated[
        str | None,
        Option(
            parse_sink_id,
            "the name of this write: a second write with that name writes nothing",
            "batch",
            guarantee="exactlyOnce",
        ),
    ] = None
    sink_id: Annotated[
        str | None,
        Option(
            parse_sink_id,
            "the name of the sink's state in the store or staging directory; detects a lost checkpoint",
            "streaming",
            "the query's id",
            "exactlyOnce",
        ),
    ] = None
    sink_takeover: Annotated[
        bool,
        Option(
            parse_boolean,
            "skip batches that another run of the query has written, or this run with other rows: their present "
            "rows are not written. In a store the query may also continue a sinkId of another query",
            "streaming",
            guarantee="exactlyOnce",
        ),
    ] = False

    def _check_rows(self) -> None:
        """Raises OptionError for what does not go together."""
        path = self.dead_letter_path
        if path is not None and (rule := only_for_reading(path)):
            raise OptionError("deadLetterPath", f"{path}: {rule}")
        if self.on_invalid_row == "deadLetter" and path is None:
            raise OptionError("deadLetterPath", "onInvalidRow=deadLetter needs it")
        if path is not None and self.on_invalid_row != "deadLetter":
            raise OptionError("deadLetterPath", "belongs to onInvalidRow=deadLetter")
        if self.transactional and self.send_back:
            raise OptionError("sendBack", "is not for transactional=true: what a consumer gives back is no transaction")
        if self.send_back and self.consumer_group is None:
            raise OptionError("consumerGroup", "sendBack=true needs it: whose consumers failed")
        if self.consumer_group is not None and not self.send_back:
            raise OptionError("consumerGroup", "belongs to sendBack=true")
        for name in ("topic", "compress_body_over", "keep_unique_key", "strict_properties") if self.send_back else ():
            if self._is_given(name):
                rule = "has no meaning with sendBack=true: messages go back as they were consumed"
                raise OptionError(option_name(name), rule)

    def _is_given(self, field_name: str) -> bool:
        """Whether the field has another value than its default."""
        return bool(getattr(self, field_name) != self.__dataclass_fields__[field_name].default)


@dataclass(frozen=True, kw_only=True)
class SinkOptions(RowOptions):
    """Options of a store's sink. `parse` makes them and refuses values that make no sense."""

    path: Annotated[str, Option(parse_store_path, "the store: a local directory, created if missing")]
    conf: Annotated[
        str | None,
        Option(parse_path, "the broker's configuration file", shown="broker.conf beside or in the store"),
    ] = None
    broker_name: Annotated[
        str | None, Option(parse_broker_name, "the name of the store's broker", shown="from the store")
    ] = None
    store_host: Annotated[
        str | None,
        Option(
            parse_store_host,
            "`address:port` of the broker that will serve the store, for records and message ids; must agree "
            "with brokerIP1 in broker.conf and with a running broker",
            shown="from broker.conf, broker or last record, else 127.0.0.1:10911",
        ),
    ] = None
    rocketmq_version: Annotated[
        str | None,
        Option(
            parse_rocketmq_version,
            "the release of the store's broker (`4.9.7`); records that it cannot read are refused",
            shown="rocketmqVersion in broker.conf, else 5.3",
        ),
    ] = None
    create_topic: Annotated[
        bool | None,
        Option(
            parse_boolean,
            "create missing topics; else their rows are invalid",
            shown="autoCreateTopicEnable in broker.conf, else true",
        ),
    ] = None
    queue_num: Annotated[
        int | None,
        Option(
            parse_queue_count,
            "number of queues of a new topic, at least as many as its rows name (at most 4096). If given, an "
            "existing topic grows, up to this number, by the queues that rows name",
            shown="the template's: defaultTopicQueueNums in broker.conf, else 8",
        ),
    ] = None
    flush_disk_type: Annotated[
        FlushDiskType | None,
        Option(
            parse_flush_disk_type,
            "SYNC_FLUSH syncs the log before a batch is done; with ASYNC_FLUSH the staged rows complete it after "
            "a power loss",
            shown="broker.conf's, else ASYNC_FLUSH",
        ),
    ] = None
    in_sync_replicas: Annotated[
        int | None,
        Option(
            parse_positive_int,
            "copies of a batch, including the master's, before it is done; more than one needs a running "
            "`spark-mq broker` or `spark-mq replicate`",
            shown="inSyncReplicas in broker.conf with brokerRole=SYNC_MASTER, else 1",
        ),
    ] = None
    slave_timeout: Annotated[
        int | None,
        Option(
            parse_duration_ms,
            "how long a batch in the log may lack copies before the write fails; the next try continues to wait",
            shown="slaveTimeout in broker.conf, else 3s",
        ),
    ] = None
    producer_group: Annotated[
        str | None,
        Option(
            parse_group,
            "with transactional: the producer group for transaction checks of all rows; overrides column "
            "producer_group",
        ),
    ] = None

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: Mode) -> SinkOptions:
        """Parse and check. Relative paths are this process's, and no longer relative: tasks have other working directories.

        Raises UnknownOptionError or OptionError.
        """
        given = given_options(options)
        if mode == "streaming":
            given.pop("checkpointlocation", None)
            given.pop("queryname", None)
        parsed = _STORE_TABLE.parse(given, mode)
        for name in ("path", "conf", "dead_letter_path"):
            if name in parsed:
                parsed[name] = absolute_path(parsed[name])
        if "path" not in parsed:
            rule = "give the store to write: save(path), start(path) or option path; or a running cluster, nameServer"
            raise OptionError("path", rule)
        made = cls(**parsed)
        if why := only_for_reading(made.path):
            raise OptionError("path", f"{made.path}: {why}")
        if made.producer_group is not None and not made.transactional:
            rule = "belongs to transactional=true; ordinary messages have no producer group"
            raise OptionError("producerGroup", rule)
        made._check_rows()
        return made

    @property
    def root(self) -> str:
        """The store's directory."""
        return plain_path(self.path).rstrip("/") or "/"


@dataclass(frozen=True, kw_only=True)
class LiveSinkOptions(RowOptions, ClusterOptions):
    """Options of the sink for running brokers. `parse` makes them and refuses values that make no sense."""

    create_topic: Annotated[
        bool,
        Option(
            parse_boolean,
            "rows of a topic without a route go to the queues of TBW102, whose brokers create the topic "
            "(autoCreateTopicEnable); else they are invalid",
        ),
    ] = True
    guarantee: Annotated[
        Guarantee | None,
        Option(
            parse_guarantee,
            "exactlyOnce or atLeastOnce",
            shown="exactlyOnce with a staging directory (df.write: and a writeId); else atLeastOnce (df.write), or an "
            "error (streaming)",
        ),
    ] = None
    staging_path: Annotated[
        str | None,
        Option(
            parse_path,
            "a directory, shared by driver and workers, for staged rows and the record of sent batches",
            shown=f"streaming: the checkpointLocation with {_STAGING_SUFFIX} behind its name, where that is a local path",
            guarantee="exactlyOnce",
        ),
    ] = None
    acks: Annotated[
        Acks,
        Option(
            parse_acks,
            'all: an answer "stored, but not flushed or replicated as configured" is an error; stored: it is a success',
            shown="all",
        ),
    ] = "all"
    producer_group: Annotated[
        str,
        Option(
            parse_group,
            "the producer group of the sends; with transactional also for transaction checks of all rows, and "
            "overrides column producer_group",
            shown=DEFAULT_GROUP,
            guarantee="atLeastOnce",
        ),
    ] = DEFAULT_GROUP
    send_timeout: Annotated[int, Option(parse_duration_ms, "how long to wait for an answer", shown="10s")] = 10_000
    retry_timeout: Annotated[
        int,
        Option(
            parse_duration_ms,
            "how long to retry a batch of rows, or a commit's request, while the broker is away (frozen, "
            "restarted, moved) or refuses for a while",
            shown="2m",
        ),
    ] = 120_000
    fence_timeout: Annotated[
        int,
        Option(
            parse_duration_ms,
            "exactlyOnce: how long a commit waits for a broker to report what an earlier attempt has stored",
            shown="2m",
        ),
    ] = 120_000
    batch_bytes: Annotated[
        int,
        Option(
            parse_batch_bytes,
            "maximum size of a request, up to `4m` and the broker's limit; a larger row goes alone",
            shown="512k",
        ),
    ] = 512 << 10
    max_message_size: Annotated[
        int | None,
        Option(
            parse_message_size,
            "the largest stored body; used if lower than the brokers' maxMessageSize, or if they do not report theirs",
            shown="the brokers'; 4m for a broker that does not report it",
        ),
    ] = None

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: Mode) -> LiveSinkOptions:
        """Parse and check; the guarantee and the staging directory are settled then. Raises UnknownOptionError or OptionError."""
        given = given_options(options)
        checkpoint = given.pop("checkpointlocation", None) if mode == "streaming" else None
        if mode == "streaming":
            given.pop("queryname", None)
        if "path" in given:
            raise OptionError("path", "give the store to write, or the cluster: one of path and nameServer")
        parsed = _CLUSTER_TABLE.parse(given, mode)
        if "staging_path" not in parsed and parsed.get("guarantee") != "atLeastOnce":
            found = None if checkpoint is None else staging_beside(checkpoint)
            if found is not None:
                parsed["staging_path"] = found
        if "staging_path" in parsed:
            if rule := only_for_reading(parsed["staging_path"]):
                raise OptionError("stagingPath", f"{parsed['staging_path']}: {rule}")
            parsed["staging_path"] = plain_path(absolute_path(parsed["staging_path"])).rstrip("/") or "/"
        if parsed.get("guarantee") is None:
            parsed["guarantee"] = _default_guarantee(parsed, mode)
        if "dead_letter_path" in parsed:
            parsed["dead_letter_path"] = absolute_path(parsed["dead_letter_path"])
        made = cls(**parsed)
        made.check_access()
        made._check_guarantee(mode)
        made._check_rows()
        return made

    @property
    def is_exact(self) -> bool:
        """Whether each row is sent exactly once."""
        return self.guarantee == "exactlyOnce"

    def _check_guarantee(self, mode: Mode) -> None:
        if not self.is_exact:
            for name, option in _CLUSTER_TABLE.of_guarantee("exactlyOnce"):
                if self._is_given(name):
                    raise OptionError(option, "belongs to guarantee=exactlyOnce")
            return
        if self.staging_path is None:
            rule = "exactlyOnce needs a directory that driver and workers share; give one, or guarantee=atLeastOnce"
            raise OptionError("stagingPath", rule)
        if mode == "batch" and self.write_id is None:
            raise OptionError("writeId", "exactlyOnce needs it: a job that is run again is known by it")
        for name, option in _CLUSTER_TABLE.of_guarantee("atLeastOnce"):
            if self._is_given(name):
                why = _WHY_NOT_EXACTLY_ONCE[name]
                raise OptionError(option, f"belongs to guarantee=atLeastOnce; with exactlyOnce {why}")


def local_checkpoint(checkpoint: str) -> str | None:
    """The directory of a local checkpoint; None for one that is elsewhere."""
    path = plain_path(checkpoint)
    if path == checkpoint and path.startswith("file:/"):  # as Hadoop writes it
        path = path.removeprefix("file:")
    return None if _SCHEME.match(path) else path.rstrip("/")


def staging_beside(checkpoint: str) -> str | None:
    """The staging directory that belongs to a local checkpoint; None for one that is elsewhere."""
    directory = local_checkpoint(checkpoint)
    return None if directory is None else directory + _STAGING_SUFFIX


def _default_guarantee(parsed: Mapping[str, object], mode: Mode) -> Guarantee:
    if mode == "streaming":
        if "staging_path" not in parsed:
            rule = "give it for exactly once (a directory that driver and workers share), or say guarantee=atLeastOnce"
            raise OptionError("stagingPath", f"there is none, and no local checkpointLocation to put it beside: {rule}")
        return "exactlyOnce"
    return "exactlyOnce" if "staging_path" in parsed and "write_id" in parsed else "atLeastOnce"


_WHY_NOT_EXACTLY_ONCE = {
    "transactional": "a half message lies in a system topic, where no row is looked for",
    "send_back": "a row sent back looks like one that another consumer sends back",
    "on_invalid_row": "an invalid row fails the write",
    "dead_letter_path": "an invalid row fails the write",
    "producer_group": "each attempt has a group of its own",
}
_OF_STORES = "is for stores (path), and has no meaning with nameServer"
_OF_CLUSTERS = "belongs to nameServer, and a store is written (path)"
_WHY_NOT_FOR_CLUSTERS = {
    "conf": "a broker of a cluster knows its own settings",
    "brokerName": "the name servers know the brokers' names",
    "flushDiskType": "how brokers flush is their own setting; see acks",
    "queueNum": "make topics with their queues by mqadmin updateTopic",
}


def _only_in(one: type[RowOptions], other: type[RowOptions]) -> list[str]:
    """The options of one sink that the other one does not have, but what says where it writes."""
    missing = {each.name for each in fields(one)} - {each.name for each in fields(other)} - {"path", "name_server"}
    return [option_name(each.name) for each in fields(one) if each.name in missing]


_STORE_TABLE = OptionTable(SinkOptions, dict.fromkeys(_only_in(LiveSinkOptions, SinkOptions), _OF_CLUSTERS))
_CLUSTER_TABLE = OptionTable(
    LiveSinkOptions,
    {
        name: f"{_OF_STORES}: {_WHY_NOT_FOR_CLUSTERS[name]}" if name in _WHY_NOT_FOR_CLUSTERS else _OF_STORES
        for name in _only_in(SinkOptions, LiveSinkOptions)
    },
)


def sink_option_rows() -> list[OptionRow]:
    """The option table of docs/writing.md: the store, then options in the order of declaration."""
    return sorted(_STORE_TABLE.rows(), key=lambda row: row.name != "path")


def live_sink_option_rows() -> list[OptionRow]:
    """The option table of docs/live.md, in the order of declaration."""
    return _CLUSTER_TABLE.rows()
